"""Convolutions by cuDNN: its workspace is an estimate, copies and bias sums are exact.

cuDNN changes the layout of images into channels last where its kernels want it, in its workspace:
input, weights and output, with channels filled up to a multiple. Measured with cuDNN 9.19 on
capability 9.0 over 500 convolutions; other releases and cards may choose other kernels.
"""

from __future__ import annotations

import torch

from nbhelpers.simulate.kernels_call import (
    Call,
    Rule,
    accumulation_bytes,
    argument,
    copy_of,
    elements,
    phases,
    round_up,
    size_of,
)
from nbhelpers.simulate.kernels_reductions import reduction

SOURCE = "aten/src/ATen/native/cudnn/Conv_v8.cpp, aten/src/ATen/native/Convolution.cpp"
NOTE = "cuDNN chooses its kernels and their workspace: an upper bound in most cases"
SMALL = 512


def _is_last(tensor: torch.Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = formats.get(tensor.dim())
    if layout is None or tensor.is_contiguous():
        return False
    return tensor.is_contiguous(memory_format=layout)


def _filled(tensor: torch.Tensor, groups: int = 1) -> int:
    """Bytes with the second dimension filled up to 16 bytes a group."""
    channels = tensor.shape[1] // groups
    multiple = 16 // tensor.element_size()
    return size_of(tensor) // max(channels, 1) * round_up(channels, multiple)


def _is_depthwise(tensor: torch.Tensor, groups: int) -> bool:
    return groups > 1 and groups == tensor.shape[1]


def workspace(
    image: torch.Tensor, weight: torch.Tensor, result: torch.Tensor, stride: list[int], groups: int
) -> list[int]:
    """What one convolution, or one gradient of it, takes."""
    if _is_depthwise(image, groups):
        return []
    if _is_last(image):
        return [size_of(weight), SMALL]
    taps = elements(weight.shape[2:])
    if taps == 1 and all(step == 1 for step in stride):
        return [SMALL]
    patches = list(weight.shape[2:]) == list(stride)
    if image.element_size() == 4 and image.shape[1] < 4 and patches:
        return []
    total = _filled(image, groups) + _filled(result)
    return [total + (_filled(weight) if taps > 1 else 0) + SMALL]


def _dense(tensor: torch.Tensor) -> list[int]:
    return [] if _is_last(tensor) else copy_of(tensor)


def _before(call: Call) -> list[int]:
    return [*_dense(call.args[0]), *_dense(call.args[1])]


def _forward(call: Call) -> list[int]:
    image, weight = call.args[0], call.args[1]
    stride, groups = argument(call, 3, "stride"), argument(call, 8, "groups")
    if argument(call, 6, "transposed"):
        return workspace(call.out, weight, image, stride, groups)
    return workspace(image, weight, call.out, stride, groups)


def _backward_before(call: Call) -> list[int]:
    grad, image = call.args[0], call.args[1]
    if _is_last(image):
        return [] if _is_last(grad) else [size_of(grad)]
    taken = [] if grad.is_contiguous() else [size_of(grad)]
    return [*taken, *copy_of(image)]


def _backward(call: Call) -> list[int]:
    grad, image, weight = call.args[:3]
    stride, groups = argument(call, 4, "stride"), argument(call, 9, "groups")
    mask = argument(call, 10, "output_mask", (True, True, True))
    large, small = (grad, image) if argument(call, 7, "transposed") else (image, grad)
    space = workspace(large, weight, small, stride, groups)
    taps = elements(weight.shape[2:])
    events: list[int] = []
    if mask[0]:
        events += phases(space)
    if mask[1]:
        if taps == 1 and not _is_depthwise(image, groups):
            space = [max(sum(space), 16 * weight.numel())]  # four partial sums in float
        events += phases(space)
    if mask[2]:
        dims = (0, *range(2, grad.dim()))
        size = accumulation_bytes(grad.dtype)
        events += reduction(call, grad, dims, accumulator=size)
    return events


RULES: dict[str, Rule] = {
    "convolution.default": Rule(_forward, SOURCE, before=_before, note=NOTE),
    "_convolution.default": Rule(_forward, SOURCE, before=_before, note=NOTE),
    "cudnn_convolution.default": Rule(None, SOURCE, before=_before, note=NOTE),
    "convolution_backward.default": Rule(_backward, SOURCE, before=_backward_before, note=NOTE),
}
