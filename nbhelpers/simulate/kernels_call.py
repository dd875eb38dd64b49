"""What a rule about a kernel is given and what it says; small arithmetic that rules share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch

aten = torch.ops.aten
OUT = None  # among events: here the outputs are made
# Bytes: +n allocates, -n gives back the latest live block of n bytes.
Events = Sequence[int | None]


@functools.cache
def torch_version() -> tuple[int, int]:
    """Return torch's major and minor version."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def overloads(names: str, among: Collection[str] = ("default",)) -> set[Any]:
    """The operators of these names that this torch has: `sum` in each of the overloads that are
    `among`, `sum.dim_IntList` in that one.
    """
    chosen = set()
    for name in names.split():
        packet, _, overload = name.partition(".")
        packet = getattr(aten, packet, None)
        known = packet.overloads() if packet is not None else ()
        wanted = (overload,) if overload else among
        chosen |= {getattr(packet, each) for each in known if each in wanted}
    return chosen


class Call(NamedTuple):
    """One call of an operator, seen by the dispatcher and already run on the meta device."""

    func: Any
    args: tuple
    kwargs: dict
    out: Any
    card: Any  # nbhelpers.simulate.cards.Card
    deterministic: bool = False


class Rule(NamedTuple):
    """What a CUDA kernel allocates besides its outputs, and where that is written.

    `events`, in order: those ahead of the outputs, if there are any, end with `OUT`; what is still
    alive after the last goes back when the operator ends. `outputs` gives the bytes of the outputs'
    storages, in order, where they differ from those of the meta function.
    """

    events: Callable[[Call], Events] | None
    source: str
    outputs: Callable[[Call], Sequence[int]] | None = None
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


def copying(*places: tuple[int, str]) -> Callable[[Call], Events]:
    """The events of `.contiguous()` of some arguments, each by its place and name."""
    return lambda call: copies_of(*(argument(call, *place) for place in places))


def first(events: Callable[[Call], Events]) -> Callable[[Call], Events]:
    """The same events ahead of the outputs."""
    return lambda call: [*events(call), OUT]


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether the channels of an image, or of a volume, lie beside each other."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = formats.get(tensor.dim())
    return layout is not None and tensor.is_contiguous(memory_format=layout)


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


def elements(shape: Iterable[int]) -> int:
    """How many elements a shape holds."""
    return prod(shape)
