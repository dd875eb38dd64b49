"""What CUDA kernels allocate that no dispatcher sees: a table of rules, read from the sources.

A rule names the file and function that it was read from. `is_known` tells whether anybody looked at
an operator; what nobody looked at is named in a budget, never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nbhelpers.simulate import (
    kernels_attention,
    kernels_convolution,
    kernels_embedding,
    kernels_foreach,
    kernels_indexing,
    kernels_losses,
    kernels_matmul,
    kernels_norm,
    kernels_reductions,
    kernels_softmax,
    kernels_sorting,
)
from nbhelpers.simulate.kernels_call import Call, Events, Rule, alive_at_peak
from nbhelpers.simulate.kernels_known import is_plain

__all__ = ["RULES", "Call", "Rule", "before", "events", "is_known", "note", "outputs"]
__all__ += ["temporaries"]

_FAMILIES = (
    kernels_attention,
    kernels_convolution,
    kernels_embedding,
    kernels_foreach,
    kernels_indexing,
    kernels_losses,
    kernels_matmul,
    kernels_norm,
    kernels_reductions,
    kernels_softmax,
    kernels_sorting,
)


def _overload(name: str) -> Any:
    """The operator of a name such as `sum.dim_IntList`; None where this torch lacks it."""
    packet, _, overload = name.partition(".")
    try:
        return getattr(getattr(torch.ops.aten, packet), overload)
    except AttributeError:
        return None


RULES: dict[Any, Rule] = {
    found: rule
    for family in _FAMILIES
    for name, rule in getattr(family, "RULES", {}).items()
    if (found := _overload(name)) is not None
}
_known: dict[Any, bool] = {}


def is_known(func: Any) -> bool:
    """Whether what the operator's kernel allocates was looked at, or is nothing by its nature."""
    if func not in _known:
        # With `out=` an operation does the same, into memory that is there.
        alike = [func]
        if "out" in getattr(func, "_overloadname", ""):
            packet = func.overloadpacket
            alike += [getattr(packet, name) for name in packet.overloads()]
        _known[func] = any(each in RULES or is_plain(each) for each in alike)
    return _known[func]


def before(call: Call) -> Events:
    """Events ahead of the outputs: +n allocates n bytes, -n gives such a block back."""
    rule = RULES.get(call.func)
    return () if rule is None or rule.before is None else rule.before(call)


def events(call: Call) -> Events:
    """Events after the outputs; what then lives, also from `before`, ends with the operator."""
    rule = RULES.get(call.func)
    return () if rule is None or rule.temporaries is None else rule.temporaries(call)


def temporaries(call: Call) -> Sequence[int]:
    """The blocks, in bytes, that live besides inputs and outputs when the operator needs most."""
    if call.func not in RULES:
        return ()
    return alive_at_peak([*before(call), *events(call)])


def outputs(call: Call) -> Sequence[int] | None:
    """Bytes of the outputs' storages where the meta function is wrong, else None."""
    rule = RULES.get(call.func)
    return None if rule is None or rule.outputs is None else rule.outputs(call)


def note(func: Any) -> str:
    """What the operator's rule cannot know exactly; empty where it knows all."""
    rule = RULES.get(func)
    return "" if rule is None else rule.note
