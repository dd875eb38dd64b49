"""The memory that cuBLAS keeps from a process's first matrix product on."""

from __future__ import annotations

from typing import Any

import torch

from nbhelpers.simulate.attention import torch_version
from nbhelpers.simulate.kernels_matmul import (
    LT_PRODUCTS,
    PRODUCTS,
    cublas_workspace_bytes,
    cublaslt_workspace_bytes,
)
from nbhelpers.simulate.state import WORKSPACE, State

aten = torch.ops.aten


def _overloads(names: tuple[str, ...]) -> frozenset[Any]:
    packets = [getattr(aten, name) for name in names if hasattr(aten, name)]
    return frozenset(getattr(packet, o) for packet in packets for o in packet.overloads())


_PRODUCTS, _LT_PRODUCTS = _overloads(PRODUCTS), _overloads(LT_PRODUCTS)


def claim(state: State, func: Any) -> None:
    """Take the workspace that this operation is the first to need.

    The thread that runs backward passes has a cuBLAS handle of its own, and so its own workspace.
    """
    if func not in _PRODUCTS:
        return
    version = torch_version()
    buffers = state.workspaces
    thread = "forward" if torch._C._current_autograd_node() is None else "backward"
    if thread not in buffers:
        size = cublas_workspace_bytes(state.card, version)
        buffers[thread] = state.allocate(size, WORKSPACE, "cuBLAS")
    if func in _LT_PRODUCTS and "lt" not in buffers:
        size = cublaslt_workspace_bytes(state.card, version)
        buffers["lt"] = state.allocate(size, WORKSPACE, "cuBLASLt")
