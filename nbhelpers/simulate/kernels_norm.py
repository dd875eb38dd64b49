"""Normalisation: copies of what is not contiguous, and statistics of groups and channels."""

from __future__ import annotations

import torch

from nbhelpers.simulate.kernels_call import (
    Call,
    Rule,
    accumulation_bytes,
    argument,
    ceil_div,
    copies_of,
    copy_of,
    elements,
    size_of,
)
from nbhelpers.simulate.kernels_reductions import reduction

SOURCE = "aten/src/ATen/native/cuda"
LAYER_NORM = f"{SOURCE}/layer_norm_kernel.cu"
GROUP_NORM = f"{SOURCE}/group_norm_kernel.cu"
BATCH_NORM = f"{SOURCE}/Normalization.cu, Normalization.cuh"
FLOAT = 4
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
MANY_ROWS, MOST_BLOCKS = 64 * 1024, 32 * 1024


def _layer_norm_before(call: Call) -> list[int]:
    return copies_of(call.args[0], argument(call, 2, "weight"), argument(call, 3, "bias"))


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
    if not rows or not grads or weight is None or VERSION < (2, 8):
        return []
    parts = torch.empty(rows, width, dtype=weight.dtype, device="meta")
    size = accumulation_bytes(weight.dtype)
    total = reduction(call, parts, (0,), accumulator=size, in_output=False)
    return [size_of(parts)] * grads + [size_of(weight), *total] * grads


def _layer_norm_backward_before(call: Call) -> list[int]:
    return copies_of(call.args[1], argument(call, 5, "weight"))


def _layer_norm_backward(call: Call) -> list[int]:
    mask = argument(call, 7, "output_mask", (True, True, True))
    weight = argument(call, 5, "weight")
    return [*copy_of(call.args[0]), *_weight_parts(call, weight, sum(map(bool, mask[1:])))]


def _rms_norm_before(call: Call) -> list[int]:
    return copies_of(call.args[0], argument(call, 2, "weight"))


def _rms_norm_backward_before(call: Call) -> list[int]:
    return copies_of(call.args[1], argument(call, 4, "weight"))


def _rms_norm_backward(call: Call) -> list[int]:
    mask = argument(call, 5, "output_mask", (True, True))
    return [*copy_of(call.args[0]), *_weight_parts(call, argument(call, 4, "weight"), int(mask[1]))]


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


def _is_channels_last(tensor: torch.Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = formats.get(tensor.dim())
    return layout is not None and tensor.is_contiguous(memory_format=layout)


def _dense_copy(tensor: torch.Tensor) -> list[int]:
    return [] if _is_channels_last(tensor) else copy_of(tensor)


def _staged(tensor: torch.Tensor, sums: int) -> list[int]:
    """Partial sums of blocks when channels come last: at most 256 rows of every channel."""
    if not _is_channels_last(tensor):
        return []
    rows = min(ceil_div(tensor.numel() // _channels(tensor), 16 * 8), 256)
    return [sums * FLOAT * rows * _channels(tensor), FLOAT * ceil_div(_channels(tensor), 32)]


def _batch_norm(call: Call) -> list[int]:
    return _staged(call.args[0], 2)


def _batch_norm_backward_before(call: Call) -> list[int]:
    return [FLOAT * _channels(call.args[1])] * 2


def _batch_norm_backward(call: Call) -> list[int]:
    return _staged(call.args[1], 2)


def _cudnn_batch_norm(call: Call) -> list[int]:
    """cuDNN's workspace with channels last: measured at up to 1/28 of the input."""
    tensor = call.args[0]
    return [size_of(tensor) // 28 + 1024] if _is_channels_last(tensor) else []


def _cudnn_before(call: Call) -> list[int]:
    return _dense_copy(call.args[0])


def _cudnn_backward_before(call: Call) -> list[int]:
    return [*_dense_copy(call.args[0]), *_dense_copy(call.args[1])]


CUDNN = "cuDNN's own workspace: an upper bound"
RULES: dict[str, Rule] = {
    "native_layer_norm.default": Rule(
        None, f"{LAYER_NORM}: layer_norm_cuda", before=_layer_norm_before
    ),
    "native_layer_norm_backward.default": Rule(
        _layer_norm_backward,
        f"{LAYER_NORM}: layer_norm_backward_cuda",
        before=_layer_norm_backward_before,
    ),
    "_fused_rms_norm.default": Rule(
        None, f"{LAYER_NORM}: _fused_rms_norm_cuda (since torch 2.9)", before=_rms_norm_before
    ),
    "_fused_rms_norm_backward.default": Rule(
        _rms_norm_backward,
        f"{LAYER_NORM}: _fused_rms_norm_backward_cuda",
        before=_rms_norm_backward_before,
    ),
    "native_group_norm.default": Rule(_group_norm, f"{GROUP_NORM}: GroupNormKernelImplInternal"),
    "native_group_norm_backward.default": Rule(
        _group_norm_backward, f"{GROUP_NORM}: GroupNormBackwardKernelImplInternal"
    ),
    "native_batch_norm.default": Rule(_batch_norm, f"{BATCH_NORM}: batch_norm_cuda_out"),
    "_native_batch_norm_legit.default": Rule(_batch_norm, f"{BATCH_NORM}: batch_norm_cuda_out"),
    "native_batch_norm_backward.default": Rule(
        _batch_norm_backward,
        f"{BATCH_NORM}: batch_norm_backward_cuda",
        before=_batch_norm_backward_before,
    ),
    "cudnn_batch_norm.default": Rule(
        _cudnn_batch_norm,
        "aten/src/ATen/native/cudnn/BatchNorm.cpp",
        before=_cudnn_before,
        note=CUDNN,
    ),
    "cudnn_batch_norm_backward.default": Rule(
        _cudnn_batch_norm,
        "aten/src/ATen/native/cudnn/BatchNorm.cpp",
        before=_cudnn_backward_before,
        note=CUDNN,
    ),
    "_weight_norm_interface.default": Rule(None, f"{SOURCE}/WeightNorm.cu"),
    "_weight_norm_interface_backward.default": Rule(None, f"{SOURCE}/WeightNorm.cu"),
}
