"""Matrix products: copies of operands that cuBLAS cannot take, and the workspaces it keeps."""

from __future__ import annotations

from typing import Any

import torch

from nbhelpers.simulate.kernels_call import (
    Call,
    Rule,
    argument,
    copying,
    first,
    size_of,
    torch_version,
)
from nbhelpers.simulate.state import WORKSPACE, State

BLAS = "aten/src/ATen/native/cuda/Blas.cpp"
KIB, MIB = 1 << 10, 1 << 20
# Products that ask for the workspace of the handle; those that may go through cuBLASLt.
LT_PRODUCTS = ("addmm", "_addmm_activation")
PRODUCTS = (*LT_PRODUCTS, "mm", "bmm", "baddbmm", "addmv", "mv", "dot", "vdot", "addbmm")
# Source: aten/src/ATen/cuda/CUDABlas.cpp: _parseChosenWorkspaceSize; since 2.7 it can share the
# handle's workspace if TORCH_CUBLASLT_UNIFIED_WORKSPACE=1.
LT_BYTES = MIB


def cublas_workspace_bytes(card: Any, version: tuple[int, int] = (2, 11)) -> int:
    """Bytes of the workspace of one cuBLAS handle and stream, kept until the process ends.

    Source: aten/src/ATen/cuda/CublasHandlePool.cpp: parseChosenWorkspaceSize,
    getChosenWorkspaceSize. 32 MiB for capability 9.0 (and 10.0, 12.0 since 2.7), else
    `:4096:2:16:8`, 2 x 4096 + 8 x 16 KiB.
    """
    generation = card.capability // 10
    if generation == 9 or (generation in (10, 12) and version >= (2, 7)):
        return 32 * MIB
    return (4096 * 2 + 16 * 8) * KIB


def claim_workspace(state: State, func: Any) -> None:
    """Take the workspace that this operation is the first to need.

    The thread that runs backward passes has a cuBLAS handle of its own, and so its own workspace.
    """
    name = func._schema.name.removeprefix("aten::")
    if name not in PRODUCTS:
        return
    buffers = state.workspaces
    thread = "forward" if torch._C._current_autograd_node() is None else "backward"
    if thread not in buffers:
        size = cublas_workspace_bytes(state.card, torch_version())
        buffers[thread] = state.allocate(size, WORKSPACE, "cuBLAS")
    if name in LT_PRODUCTS and "lt" not in buffers:
        buffers["lt"] = state.allocate(LT_BYTES, WORKSPACE, "cuBLASLt")


def _fits(stride_fast: int, stride_slow: int, length: int) -> bool:
    return stride_fast == 1 and stride_slow >= max(1, length)


def operand_copy(tensor: torch.Tensor) -> list[int]:
    """The copy of an operand that has neither rows nor columns in a line.

    Source: aten/src/ATen/native/cuda/Blas.cpp: prepare_matrix_for_cublas,
    prepare_batch_matrix_for_cublas.
    """
    rows, columns = tensor.shape[-2:]
    down, across = tensor.stride()[-2:]
    if _fits(down, across, rows) or _fits(across, down, columns):
        return []
    return [size_of(tensor)]


def _product(first: int, second: int) -> Rule:
    def events(call: Call) -> list[int]:
        if not call.args[first].numel() or not call.args[second].numel():
            return []
        return [*operand_copy(call.args[first]), *operand_copy(call.args[second])]

    return Rule(events, f"{BLAS}: prepare_matrix_for_cublas")


def _grouped(call: Call) -> list[int]:
    """Pointers and shapes of every group, and CUTLASS's workspace on capability 9.0.

    Elsewhere, and in other types, the groups are multiplied one after the other.
    """
    offsets = argument(call, 2, "offs")
    first, second = call.args[0], call.args[1]
    groups = offsets.numel() if offsets is not None else max(first.shape[0], second.shape[0])
    if call.card.capability // 10 != 9 or first.dtype != torch.bfloat16:
        return []
    return [60 * groups, 512 * call.card.multiprocessors]


def _trilinear(call: Call) -> list[int]:
    """Products of one slice. Source: aten/src/ATen/native/Linear.cpp: _trilinear."""
    return [size_of(call.args[1]) // max(call.args[1].shape[0], 1), call.out.element_size()]


def _distances(call: Call) -> list[int]:
    """Euclidean distances as a product: squares, norms, and both sides with two more columns.

    Source: aten/src/ATen/native/Distance.cpp: _euclidean_dist.
    """
    first, second = call.args[0], call.args[1]
    each = first.element_size()
    rows = [tensor.numel() // tensor.shape[-1] * each for tensor in (first, second)]
    wide = [
        size_of(tensor) + 2 * norms for tensor, norms in zip((first, second), rows, strict=True)
    ]
    largest = size_of(first)
    return [rows[0], rows[0], rows[1], rows[1], largest, wide[0], -largest, wide[1]]


def _all_pairs(call: Call) -> list[int]:
    """Source: aten/src/ATen/native/cuda/DistanceKernel.cu: a gradient for every pair of rows."""
    pairs = argument(call, 4, "cdist") if call.func.__name__.startswith("_cdist") else None
    tensor = call.args[1]
    if pairs is not None:
        return [pairs.numel() * tensor.shape[-1] * tensor.element_size()]
    return [(tensor.shape[0] - 1) * size_of(tensor)]


RULES: dict[str, Rule] = {
    "_trilinear.default": Rule(_trilinear, "aten/src/ATen/native/Linear.cpp"),
    "_euclidean_dist.default": Rule(first(_distances), "aten/src/ATen/native/Distance.cpp"),
    **dict.fromkeys(
        ("_cdist_backward.default", "_pdist_backward.default"),
        Rule(_all_pairs, "aten/src/ATen/native/cuda/DistanceKernel.cu"),
    ),
    "mm.default": _product(0, 1),
    "bmm.default": _product(0, 1),
    "addmm.default": _product(1, 2),
    "baddbmm.default": _product(1, 2),
    "addbmm.default": _product(1, 2),
    "_addmm_activation.default": _product(1, 2),
    "mv.default": Rule(copying((1, "vec")), f"{BLAS}: addmv_out_cuda"),
    "addmv.default": Rule(copying((2, "vec")), f"{BLAS}: addmv_out_cuda"),
    "dot.default": Rule(None, f"{BLAS}: dot_cuda"),
    "vdot.default": Rule(None, f"{BLAS}: vdot_cuda"),
    "_grouped_mm.default": Rule(
        _grouped, "aten/src/ATen/native/cuda/GroupMM.cu: bf16bf16_grouped_mm"
    ),
}
