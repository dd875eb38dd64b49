"""Normalisation and softmax: copies of what is not contiguous, statistics of groups and channels,
products with the gradient, rows of -inf.
"""

from __future__ import annotations

import torch

from nbhelpers.simulate.kernels_call import (
    OUT,
    Call,
    Events,
    Rule,
    accumulation_bytes,
    argument,
    ceil_div,
    copies_of,
    copy_of,
    copying,
    elements,
    first,
    is_channels_last,
    size_of,
    torch_version,
)
from nbhelpers.simulate.kernels_reductions import reduction

SOURCE = "aten/src/ATen/native/cuda"
LAYER_NORM = f"{SOURCE}/layer_norm_kernel.cu"
GROUP_NORM = f"{SOURCE}/group_norm_kernel.cu"
BATCH_NORM = f"{SOURCE}/Normalization.cu, Normalization.cuh"
SOFTMAX = f"{SOURCE}/SoftMax.cu"
FLOAT = 4
MANY_ROWS, MOST_BLOCKS = 64 * 1024, 32 * 1024


def _partial_rows(call: Call, rows: int, width: int) -> int:
    """Rows of partial sums for the weight's gradient when many short rows meet few columns.

    Since torch 2.8. Source: layer_norm_kernel.cu: LaunchGammaBetaBackwardCUDAKernel.
    """
    if rows <= MANY_ROWS or width // 32 >= call.card.multiprocessors // 2:
        return 0
    return min(MOST_BLOCKS // ceil_div(width, 32), ceil_div(rows, 32))


def _weight_parts(call: Call, weight: torch.Tensor | None, grads: int) -> list[int]:
    """Events of partial sums for the gradients of weight and bias, and of their sums."""
    tensor, width = call.args[1], elements(argument(call, 2, "normalized_shape"))
    rows = _partial_rows(call, tensor.numel() // max(width, 1), width)
    if not rows or not grads or weight is None or torch_version() < (2, 8):
        return []
    parts = torch.empty(rows, width, dtype=weight.dtype, device="meta")
    size = accumulation_bytes(weight.dtype)
    total = reduction(call, parts, (0,), accumulator=size, in_output=False)
    return [size_of(parts)] * grads + [size_of(weight), *total] * grads


def _layer_norm_backward(call: Call) -> Events:
    mask = argument(call, 7, "output_mask", (True, True, True))
    weight = argument(call, 5, "weight")
    parts = _weight_parts(call, weight, sum(map(bool, mask[1:])))
    return [*copies_of(call.args[1], weight), OUT, *copy_of(call.args[0]), *parts]


def _rms_norm_backward(call: Call) -> Events:
    mask, weight = argument(call, 5, "output_mask", (True, True)), argument(call, 4, "weight")
    parts = _weight_parts(call, weight, int(mask[1]))
    return [*copies_of(call.args[1], weight), OUT, *copy_of(call.args[0]), *parts]


def _group_norm(call: Call) -> list[int]:
    """A scale and a shift for every channel of every sample, in float."""
    batch, channels = argument(call, 3, "N"), argument(call, 4, "C")
    return [FLOAT * batch * channels] * 2


def _group_norm_backward(call: Call) -> list[int]:
    batch, channels = argument(call, 5, "N"), argument(call, 6, "C")
    groups = argument(call, 8, "group")
    sums, means = FLOAT * batch * channels, FLOAT * batch * groups
    weight = argument(call, 4, "weight")
    taken = [sums, sums, means, means]
    return taken if weight is None else [*taken, sums]


def _channels(tensor: torch.Tensor) -> int:
    return tensor.shape[1] if tensor.dim() > 1 else 1


def _dense_copy(tensor: torch.Tensor) -> list[int]:
    return [] if is_channels_last(tensor) else copy_of(tensor)


def _staged(tensor: torch.Tensor, sums: int) -> list[int]:
    """Partial sums of blocks when channels come last: at most 256 rows of every channel."""
    if not is_channels_last(tensor):
        return []
    rows = min(ceil_div(tensor.numel() // _channels(tensor), 16 * 8), 256)
    return [sums * FLOAT * rows * _channels(tensor), FLOAT * ceil_div(_channels(tensor), 32)]


def _batch_norm(call: Call) -> list[int]:
    return _staged(call.args[0], 2)


def _batch_norm_backward(call: Call) -> Events:
    return [*[FLOAT * _channels(call.args[1])] * 2, OUT, *_staged(call.args[1], 2)]


def _cudnn(inputs: int) -> Rule:
    """cuDNN's workspace with channels last: measured at up to 1/28 of the input."""

    def events(call: Call) -> Events:
        tensor = call.args[0]
        copies = [size for each in call.args[:inputs] for size in _dense_copy(each)]
        space = [size_of(tensor) // 28 + 1024] if is_channels_last(tensor) else []
        return [*copies, OUT, *space]

    return Rule(events, "aten/src/ATen/native/cudnn/BatchNorm.cpp", note=CUDNN)


def _softmax_backward(call: Call) -> list[int]:
    """`grad * output`, and copies of what is not contiguous; the output of a softmax is."""
    grad, output = call.args[0], call.args[1]
    dtype = torch.promote_types(grad.dtype, output.dtype)
    product = size_of(output, dtype)
    dense = grad.stride() == output.stride() or grad.is_contiguous()
    return [product, *copy_of(output), *([] if dense else [product])]


def _safe_softmax(call: Call) -> list[int]:
    """Which scores are -inf, and which rows are nothing else.

    Before torch 2.8 the result was chosen into a tensor of its own.
    """
    scores, dim = call.args[0], call.args[1]
    rows = scores.numel() // max(scores.shape[dim], 1)
    return [*copy_of(scores), scores.numel(), rows, 4]


CUDNN = "cuDNN's own workspace: an upper bound"
RULES: dict[str, Rule] = {
    "native_layer_norm.default": Rule(
        first(copying((0, "input"), (2, "weight"), (3, "bias"))), f"{LAYER_NORM}: layer_norm_cuda"
    ),
    "native_layer_norm_backward.default": Rule(
        _layer_norm_backward, f"{LAYER_NORM}: layer_norm_backward_cuda"
    ),
    "_fused_rms_norm.default": Rule(
        first(copying((0, "input"), (2, "weight"))),
        f"{LAYER_NORM}: _fused_rms_norm_cuda (since torch 2.9)",
    ),
    "_fused_rms_norm_backward.default": Rule(
        _rms_norm_backward, f"{LAYER_NORM}: _fused_rms_norm_backward_cuda"
    ),
    "native_group_norm.default": Rule(_group_norm, f"{GROUP_NORM}: GroupNormKernelImplInternal"),
    "native_group_norm_backward.default": Rule(
        _group_norm_backward, f"{GROUP_NORM}: GroupNormBackwardKernelImplInternal"
    ),
    "native_batch_norm.default": Rule(_batch_norm, f"{BATCH_NORM}: batch_norm_cuda_out"),
    "_native_batch_norm_legit.default": Rule(_batch_norm, f"{BATCH_NORM}: batch_norm_cuda_out"),
    "native_batch_norm_backward.default": Rule(
        _batch_norm_backward, f"{BATCH_NORM}: batch_norm_backward_cuda"
    ),
    "cudnn_batch_norm.default": _cudnn(1),
    "cudnn_batch_norm_backward.default": _cudnn(2),
    "_weight_norm_interface.default": Rule(None, f"{SOURCE}/WeightNorm.cu"),
    "_weight_norm_interface_backward.default": Rule(None, f"{SOURCE}/WeightNorm.cu"),
    "_safe_softmax.default": Rule(
        _safe_softmax, "aten/src/ATen/native/transformers/attention.cpp: _safe_softmax"
    ),
    "_softmax.default": Rule(copying((0, "self")), f"{SOFTMAX}: host_softmax"),
    "_log_softmax.default": Rule(copying((0, "self")), f"{SOFTMAX}: host_softmax"),
    "_softmax_backward_data.default": Rule(
        _softmax_backward, f"{SOFTMAX}: softmax_backward_cuda_out, host_softmax_backward"
    ),
    "_log_softmax_backward_data.default": Rule(
        copying((0, "grad_output"), (1, "output")), f"{SOFTMAX}: host_softmax_backward"
    ),
}
