"""Convolutions by cuDNN: its workspace is an estimate, copies and bias sums are exact.

cuDNN changes the layout of images into channels last where its kernels want it, in its workspace:
input, weights and output, with channels filled up to a multiple. Measured with cuDNN 9.19 on
capability 9.0 over 500 convolutions; other releases and cards may choose other kernels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from nbhelpers.simulate.kernels_call import (
    OUT,
    Call,
    Events,
    Rule,
    accumulation_bytes,
    argument,
    copy_of,
    copying,
    elements,
    first,
    is_channels_last,
    phases,
    round_up,
    size_of,
)
from nbhelpers.simulate.kernels_reductions import reduction

SOURCE = "aten/src/ATen/native/cudnn/Conv_v8.cpp, aten/src/ATen/native/Convolution.cpp"
NOTE = "cuDNN chooses its kernels and their workspace: an upper bound in most cases"
FFT = "cuFFT may take a workspace for lengths that are no product of small primes"
SMALL = 512
FEW_TAPS = 16  # so many weights a channel are convolved without a change of layout
FEW_CHANNELS = 32
DEPTHWISE_FLOAT = 10 << 20


def _is_last(tensor: torch.Tensor) -> bool:
    return not tensor.is_contiguous() and is_channels_last(tensor)


def _filled(tensor: torch.Tensor, groups: int = 1) -> int:
    """Bytes with the second dimension filled up to 16 bytes a group."""
    channels = max(tensor.shape[1] // groups, 1)
    multiple = 16 // tensor.element_size()
    return size_of(tensor) // channels * round_up(channels, multiple)


class Convolution(NamedTuple):
    """The three tensors of a convolution, transposed ones turned round."""

    image: torch.Tensor  # (batch, channels, ...)
    weight: torch.Tensor  # (out channels, channels a group, ...)
    result: torch.Tensor  # (batch, out channels, ...)
    stride: list[int]
    groups: int

    @property
    def taps(self) -> int:
        """Weights of one channel."""
        return elements(self.weight.shape[2:])

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is a group of its own."""
        return self.groups > 1 and self.groups == self.image.shape[1]

    @property
    def is_pointwise(self) -> bool:
        """Whether it is a product of matrices."""
        return self.taps == 1 and all(step == 1 for step in self.stride)

    @property
    def is_narrow(self) -> bool:
        """Whether so few channels go in that the layout stays as it is."""
        channels, out = self.image.shape[1], self.result.shape[1]
        if channels == 1:
            return self.image.element_size() == 4 or (self.taps <= FEW_TAPS and out <= 64)
        return channels < 4 and self.taps <= FEW_TAPS

    @property
    def relaid(self) -> int:
        """Bytes of the image and the result with channels last."""
        return _filled(self.image, self.groups) + _filled(self.result)


def forward_workspace(conv: Convolution) -> int:
    """Bytes for the result, or for the gradient of the image."""
    if conv.is_depthwise:
        return 0
    if _is_last(conv.image):
        return size_of(conv.weight)
    if conv.is_pointwise or conv.is_narrow:
        return SMALL
    weight = _filled(conv.weight) if conv.taps > 1 else 0
    return conv.relaid + weight + SMALL


def weight_workspace(conv: Convolution) -> int:
    """Bytes for the gradient of the weights: partial sums, or another layout."""
    image, count = conv.image, conv.weight.numel()
    is_float = image.element_size() == 4
    if conv.is_depthwise:
        if not _is_last(image):
            return 0
        if not is_float:
            return 32 * image.shape[0] * count
        if image.shape[1] > 256:
            return 0
        return _depthwise_float(conv)
    if _is_last(image):
        return size_of(conv.weight)
    if conv.is_pointwise:
        narrow = min(image.shape[1], conv.result.shape[1])
        if narrow < FEW_CHANNELS or (is_float and narrow == FEW_CHANNELS):
            return conv.relaid
        return 4 * image.shape[0] * count  # a sum for every image, in float
    patches = list(conv.weight.shape[2:]) == list(conv.stride)
    if is_float and conv.is_narrow and (image.shape[1] == 1 or patches):
        return SMALL
    weight = _filled(conv.weight) if conv.taps > 1 else 0
    copies = 3 if is_float else {1: 17, 2: 7, 3: 7}.get(image.shape[1], 1)
    return conv.relaid + copies * weight + SMALL


def _depthwise_float(conv: Convolution) -> int:
    wide = 4 * (size_of(conv.image) + size_of(conv.result))
    return wide + DEPTHWISE_FLOAT


def _dense(tensor: torch.Tensor) -> list[int]:
    return [] if _is_last(tensor) else copy_of(tensor)


def _copies(call: Call) -> list[int]:
    return [*_dense(call.args[0]), *_dense(call.args[1])]


def _forward(call: Call) -> Events:
    image, weight = call.args[0], call.args[1]
    ends = (call.out, image) if argument(call, 6, "transposed") else (image, call.out)
    stride, groups = argument(call, 3, "stride"), argument(call, 8, "groups")
    conv = Convolution(ends[0], weight, ends[1], stride, groups)
    return [*_copies(call), OUT, forward_workspace(conv)]


def _backward_copies(grad: torch.Tensor, image: torch.Tensor) -> list[int]:
    if _is_last(image):
        return [] if _is_last(grad) else [size_of(grad)]
    taken = [] if grad.is_contiguous() else [size_of(grad)]
    return [*taken, *copy_of(image)]


def _backward(call: Call) -> Events:
    grad, image, weight = call.args[:3]
    stride, groups = argument(call, 4, "stride"), argument(call, 9, "groups")
    mask = argument(call, 10, "output_mask", (True, True, True))
    ends = (grad, image) if argument(call, 7, "transposed") else (image, grad)
    conv = Convolution(ends[0], weight, ends[1], stride, groups)
    events: list[int] = []
    if mask[0]:
        events += phases([forward_workspace(conv)])
    if mask[1]:
        events += phases([weight_workspace(conv)])
    if mask[2]:
        dims = (0, *range(2, grad.dim()))
        size = accumulation_bytes(grad.dtype)
        events += reduction(call, grad, dims, accumulator=size)
    return [*_backward_copies(grad, image), OUT, *filter(None, events)]


RULES: dict[str, Rule] = {
    "im2col.default": Rule(first(copying((0, "self"))), "aten/src/ATen/native/cuda/Im2Col.cu"),
    "col2im.default": Rule(copying((0, "self")), "aten/src/ATen/native/cuda/Col2Im.cu"),
    "_fft_c2r.default": Rule(
        lambda call: [size_of(call.args[0])],
        "aten/src/ATen/native/cuda/SpectralOps.cpp: _fft_c2r_cufft clones its input",
        note=FFT,
    ),
    "_fft_r2c.default": Rule(None, "aten/src/ATen/native/cuda/SpectralOps.cpp", note=FFT),
    "_fft_c2c.default": Rule(None, "aten/src/ATen/native/cuda/SpectralOps.cpp", note=FFT),
    "convolution.default": Rule(_forward, SOURCE, note=NOTE),
    "_convolution.default": Rule(_forward, SOURCE, note=NOTE),
    "cudnn_convolution.default": Rule(first(_copies), SOURCE, note=NOTE),
    "convolution_backward.default": Rule(_backward, SOURCE, note=NOTE),
}
