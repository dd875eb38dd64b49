"""Real values beside tensors without storage: what code asks of its data has a true answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

# ------------------------------------------------------------------------------------------------
# Real values beside tensors without storage: what code asks of its data has a true answer.
#
# A tensor on the simulated GPU has no values. Yet a mask decides which attention kernel runs, and
# `nonzero` decides a shape. So small tensors that came from real data, or that a factory fills,
# keep their values on the CPU, by storage: views and in-place operations follow by themselves.


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


# ------------------------------------------------------------------------------------------------
# Operations whose result has the same values whatever they are given: zeros, ones, a range.


aten = torch.ops.aten
# Floating point of a model that is being built, and of an optimizer's step, is remembered for
# counters and scales only: weights and moments do not stay as they begin.
_FEW = 64


def _constant(value: float) -> Callable[..., Any]:
    return lambda args, kwargs: value


def _argument(place: int) -> Callable[..., Any]:
    return lambda args, kwargs: args[place] if len(args) > place else kwargs.get("fill_value")


# What the whole result is filled with.
_VALUES: dict[Any, Callable[..., Any]] = {
    aten.zeros.default: _constant(0),
    aten.ones.default: _constant(1),
    aten.full.default: _argument(1),
    aten.scalar_tensor.default: _argument(0),
    aten.zeros_like.default: _constant(0),
    aten.ones_like.default: _constant(1),
    aten.full_like.default: _argument(1),
    aten.new_zeros.default: _constant(0),
    aten.new_ones.default: _constant(1),
    aten.new_full.default: _argument(2),
    aten.zero_.default: _constant(0),
    aten.fill_.Scalar: _argument(1),
}
_RANGES = {aten.arange.default, aten.arange.start, aten.arange.start_step}
FILLED = set(_VALUES) | _RANGES


def filled_values(
    func: Any, args: Any, kwargs: Any, out: torch.Tensor, *, is_brief: bool
) -> torch.Tensor | None:
    """Return the real values of such a result; None where they are not worth keeping."""
    if not is_small(out) or (out.is_floating_point() and is_brief and out.numel() > _FEW):
        return None
    if out.numel() * out.element_size() != out.untyped_storage().nbytes():
        return None
    if func in _RANGES:
        plain = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "layout")}
        return func(*args, **plain, device="cpu")
    value = _VALUES[func](args, kwargs)
    if not isinstance(value, (bool, int, float)):
        return None
    return torch.full(out.shape, value, dtype=out.dtype)


# ------------------------------------------------------------------------------------------------
# Results that one known side settles: what is or-ed with True, and what is and-ed with False.


_OR = {aten.bitwise_or.Tensor, aten.logical_or.default, aten.bitwise_or_.Tensor}
_AND = {aten.bitwise_and.Tensor, aten.logical_and.default, aten.bitwise_and_.Tensor}
_AND |= {aten.mul.Tensor, aten.mul_.Tensor}
ABSORBING = _OR | _AND


def settled(shadows: Shadows, func: Any, args: Any) -> tuple[torch.Tensor] | None:
    """Return the result in a tuple if one side alone decides it, else None.

    Source of the need: a loop that generates ends when the longest length is reached, whatever the
    tokens are.
    """
    first, second = args[0], args[1]
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return None
    if first.is_floating_point() or second.is_floating_point():
        return None
    for known, other in ((first, second), (second, first)):
        if known.is_meta and not shadows.has(known):
            continue
        values = shadows.values(known) if known.is_meta else known
        shape = torch.broadcast_shapes(known.shape, other.shape)
        kind = torch.result_type(first, second)
        if func in _OR and values.dtype is torch.bool and bool(values.all()):
            return (torch.ones(shape, dtype=kind),)
        if func in _AND and not bool(values.any()):
            return (torch.zeros(shape, dtype=kind),)
    return None
