"""Results that one known side settles: what is or-ed with True, and what is and-ed with False."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from nbhelpers.simulate.shadow import Shadows

aten = torch.ops.aten
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
