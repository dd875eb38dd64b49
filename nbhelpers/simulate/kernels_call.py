"""What a rule about a kernel is given and what it says; small arithmetic that rules share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch

Events = Sequence[int]  # bytes: +n allocates, -n gives back the latest live block of n bytes


class Call(NamedTuple):
    """One call of an operator, seen by the dispatcher and already run on the meta device."""

    func: Any
    args: tuple
    kwargs: dict
    out: Any
    card: Any  # nbhelpers.simulate.cards.Card
    is_backward: bool = False
    deterministic: bool = False


class Rule(NamedTuple):
    """What a CUDA kernel allocates besides its outputs, and where that is written.

    `before` happens ahead of the outputs and `temporaries` after them; both give events, and what
    is still alive goes back when the operator ends. `outputs` gives the bytes of the outputs'
    storages, in order, where they differ from those of the meta function.
    """

    temporaries: Callable[[Call], Events] | None
    source: str
    outputs: Callable[[Call], Sequence[int]] | None = None
    before: Callable[[Call], Events] | None = None
    note: str = ""  # what the rule cannot know exactly


def argument(call: Call, index: int, name: str, default: Any = None) -> Any:
    """An argument by place or by name, else `default`."""
    if index < len(call.args):
        return call.args[index]
    return call.kwargs.get(name, default)


def size_of(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> int:
    """Bytes of a dense copy of a tensor, in its own or another type."""
    return tensor.numel() * (dtype.itemsize if dtype else tensor.element_size())


def copy_of(tensor: Any) -> list[int]:
    """What `.contiguous()` allocates: nothing when the tensor is contiguous already."""
    if not isinstance(tensor, torch.Tensor) or tensor.is_contiguous() or not tensor.numel():
        return []
    return [size_of(tensor)]


def copies_of(*tensors: Any) -> list[int]:
    """What `.contiguous()` of several tensors allocates."""
    return [size for tensor in tensors for size in copy_of(tensor)]


def ceil_div(numerator: int, denominator: int) -> int:
    """The quotient, rounded up."""
    return -(-numerator // denominator)


def round_up(number: int, multiple: int) -> int:
    """The next multiple."""
    return -(-number // multiple) * multiple


def is_half(dtype: torch.dtype) -> bool:
    """Whether a type is fp16 or bf16."""
    return dtype in (torch.float16, torch.bfloat16)


def accumulation_bytes(dtype: torch.dtype) -> int:
    """Bytes of the type that CUDA sums in (`acc_type`): float for half types, 64 bits for ints."""
    if is_half(dtype):
        return 4
    return dtype.itemsize if dtype.is_floating_point or dtype.is_complex else 8


def kept_dims(ndim: int, dims: Any) -> tuple[int, ...]:
    """Reduced dimensions as non-negative numbers; all of them when none is named."""
    if dims is None or (isinstance(dims, Iterable) and not list(dims)):
        return tuple(range(ndim))
    listed = [dims] if isinstance(dims, int) else list(dims)
    return tuple(sorted({d % ndim for d in listed})) if ndim else ()


def phases(*steps: Iterable[int]) -> list[int]:
    """Events of steps that follow each other, each giving back what it took."""
    events: list[int] = []
    for step in steps:
        taken = list(step)
        events += taken
        events += [-size for size in reversed(taken)]
    return events


def alive_at_peak(events: Events) -> list[int]:
    """The blocks that live when the sum of the events is highest."""
    live: list[int] = []
    total = best = 0
    at_peak: list[int] = []
    for size in events:
        total += size
        if size > 0:
            live.append(size)
        elif -size in live:
            del live[len(live) - 1 - live[::-1].index(-size)]
        if total > best:
            best, at_peak = total, list(live)
    return at_peak


def elements(shape: Iterable[int]) -> int:
    """How many elements a shape holds."""
    return prod(shape)
