"""The memory that cuBLAS keeps from a process's first matrix product on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbhelpers.simulate.state import BACKWARD, WORKSPACE

if TYPE_CHECKING:
    from nbhelpers.simulate.tracker import Tracker

aten = torch.ops.aten
MIB = 1 << 20
_PRODUCTS = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}


def claim(tracker: Tracker, func: Any, args: Any) -> None:
    """Take the workspace that this operation is the first to need.

    The thread that runs backward passes has a cuBLAS handle of its own, and so its own workspace.
    """
    if func not in _PRODUCTS:
        return
    state = tracker.state
    held = state.__dict__.setdefault("workspaces", {})
    thread = state.phase_now == BACKWARD
    if thread not in held:
        size = 32 * MIB if state.card.capability == 90 else 8519680
        held[thread] = state.allocate(size, WORKSPACE, "cuBLAS")
    if func is aten.addmm.default and "lt" not in held:
        held["lt"] = state.allocate(MIB, WORKSPACE, "cuBLASLt")
