"""Predict the memory of a training step on a GPU that need not be there, by running its code.

The step's own code runs on tensors without storage while a dispatch tracker, CUDA's rules and a
caching allocator tell what a card would hold. `simulate_step` is the way in.
"""

from __future__ import annotations

from typing import Any

__all__ = ["simulate_step"]


def __getattr__(name: str) -> Any:
    if name != "simulate_step":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nbhelpers.simulate.step import simulate_step

    return simulate_step
