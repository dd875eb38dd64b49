"""Operations whose result has the same values whatever they are given: zeros, ones, a range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from nbhelpers.simulate.shadow import is_small

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
