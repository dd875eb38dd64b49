"""Predict the memory of a training step on a GPU that need not be there, by running its code.

The step's own code runs on tensors without storage while a dispatch tracker, CUDA's rules and a
caching allocator tell what a card would hold. `simulate_step` is the way in.
"""

from nbhelpers.common.lazy import exports

_HOMES = {"simulate_step": "step"}
__all__ = list(_HOMES)
__getattr__, __dir__ = exports(__name__, _HOMES)
