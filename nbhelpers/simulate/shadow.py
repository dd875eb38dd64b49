"""Real values beside tensors without storage: what code asks of its data has a true answer.

A tensor on the simulated GPU has no values. Yet a mask decides which attention kernel runs, and
`nonzero` decides a shape. So small tensors that came from real data, or that a factory fills, keep
their values on the CPU, by storage: views and in-place operations follow by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

# Numbers of elements up to which values are kept: indices, masks and labels of any usual batch;
# of floating point what masks of a usual batch, counters, scales and schedules need.
MOST_INTEGERS, MOST_FLOATS = 1 << 24, 1 << 22
# And of weights while a model is built: nobody asks them for values.
MOST_WEIGHTS = 1 << 12


def is_small(tensor: torch.Tensor) -> bool:
    """Whether the values of such a tensor are worth keeping."""
    most = MOST_FLOATS if tensor.is_floating_point() or tensor.is_complex() else MOST_INTEGERS
    return tensor.numel() <= most


class Shadows:
    """Values of storages of the simulated GPU, by the storage's key."""

    def __init__(self) -> None:
        self._values: dict[int, torch.UntypedStorage] = {}

    def __len__(self) -> int:
        return len(self._values)

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether the values are known."""
        return is_small(tensor) and tensor.untyped_storage()._cdata in self._values

    def forget(self, key: int) -> None:
        """Drop the values of a storage."""
        self._values.pop(key, None)

    def forget_floats(self, tensors: Iterator[torch.Tensor]) -> None:
        """Drop the values of weights: training changes them to what nobody knows."""
        for tensor in tensors:
            if tensor.is_floating_point():
                self.forget(tensor.untyped_storage()._cdata)

    def keep(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Remember real `values` (any shape that `tensor` views) for a tensor without storage."""
        storage = tensor.untyped_storage()
        if not is_small(tensor) or tensor.dtype != values.dtype:
            return
        same = values.stride() == tensor.stride() and values.storage_offset() == 0
        if not same or values.untyped_storage().nbytes() != storage.nbytes():
            if (
                tensor.storage_offset()
                or tensor.numel() * tensor.element_size() != storage.nbytes()
            ):
                return
            laid = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
            values = laid.copy_(values)
        self._values[storage._cdata] = values.detach().clone().untyped_storage()

    def values(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the values as a CPU tensor that shares the shadow's storage."""
        out = torch.empty(0, dtype=tensor.dtype)
        stored = self._values[tensor.untyped_storage()._cdata]
        return out.set_(stored, tensor.storage_offset(), tensor.shape, tensor.stride())

    def known(self, tensors: list[torch.Tensor]) -> bool:
        """Whether every one of these has values: those without storage through a shadow."""
        return all(not t.is_meta or self.has(t) for t in tensors)

    def run(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run an operation on the values instead of the tensors without storage."""

        def real(tensor: torch.Tensor) -> torch.Tensor:
            return self.values(tensor) if tensor.is_meta else tensor

        kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory")}
        args, kwargs = tree_map_only(torch.Tensor, real, (args, kwargs))
        return func(*args, **kwargs)
