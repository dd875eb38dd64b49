"""Operations whose result depends on values: answered from known values, or named and assumed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from nbhelpers.simulate.kernels_call import overloads
from nbhelpers.simulate.shadow import Shadows
from nbhelpers.simulate.state import State, Unpredictable

aten = torch.ops.aten
ONLY_RUN = "that only a run knows"


class Tracker(Protocol):
    """What is needed of `tracker.Tracker`, which calls this module."""

    state: State
    shadows: Shadows
    has_draws: bool

    def put(self, tensor: torch.Tensor) -> None:
        """Give a tensor memory on the card, if it has none."""


SCALARS = overloads("_local_scalar_dense equal is_nonzero item allclose")
# Their results have a size that only values tell.
SIZED = overloads(
    "nonzero masked_select _unique _unique2 unique_dim unique_consecutive unique_dim_consecutive "
    "bincount repeat_interleave.Tensor"
)
DATA_DEPENDENT = SCALARS | SIZED | {aten.index.Tensor}


def run_data_dependent(
    tracker: Tracker, func: Any, args: Any, kwargs: Any, known: tuple[Any] | None
) -> Any:
    """Return what an operation gives that looks at values.

    Args:
        known: The real result in a tuple, where all inputs have values; else None.

    Raises:
        Unpredictable: The size of the result hangs on values that only a run knows.
    """
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
    if func is aten.index.Tensor:
        masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
        if not masks or not any(t.is_meta for t in (args[0], *masks)):
            return func(*args, **kwargs)
        return _masked(tracker, args)
    if not any(t.is_meta for t in tensors):
        return func(*args, **kwargs)
    if func in SCALARS:
        return known[0] if known is not None else _assumed(tracker, func, tensors[0])
    if func is aten.masked_select.default and known is None:
        source, mask = args[0], args[1]
        if not mask.is_meta or tracker.shadows.has(mask):
            values = tracker.shadows.values(mask) if mask.is_meta else mask
            shape = torch.broadcast_shapes(source.shape, mask.shape)
            count = int(values.expand(shape).sum())
            return torch.empty(count, dtype=source.dtype, device="meta")
    if known is None:
        _refuse(tracker, func)
    if tracker.has_draws:
        tracker.state.note(f"{_caller()}: the size follows from one draw of random numbers")
    return _on_card(known[0])


def _on_card(real: Any) -> Any:
    """Return the shapes of a real result without its values."""
    if isinstance(real, torch.Tensor):
        return torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="meta")
    return type(real)(_on_card(each) for each in real) if isinstance(real, (list, tuple)) else real


def _masked(tracker: Tracker, args: Any) -> Any:
    """Index with boolean masks whose values are known: as with the numbers they stand for."""
    source, indices = args
    numbers: list[Any] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            numbers.append(index)
            continue
        if index.is_meta and not tracker.shadows.has(index):
            _refuse(tracker, aten.index.Tensor)
        values = tracker.shadows.values(index) if index.is_meta else index
        places = values.bool().nonzero()
        # CUDA turns the mask into numbers first, and keeps them for the backward pass.
        meta_places = torch.empty_like(places, device="meta")
        tracker.put(meta_places)
        tracker.shadows.keep(meta_places, places)
        numbers.extend(meta_places.unbind(1))
    return aten.index.Tensor(source, numbers)


def _assumed(tracker: Tracker, func: Any, tensor: torch.Tensor) -> Any:
    """Answer for a value that only a run knows: a number for a log is zero.

    A truth that decides a branch and an integer that may be a size are answered too, but named: the
    other answer can need other memory.
    """
    place = _caller()
    truth = _from_checks(tensor)
    if truth is not None:
        return truth
    if tensor.is_floating_point() or func is aten.equal.default or _is_foreseen():
        tracker.state.note(
            f"{place} reads a value {ONLY_RUN} (a loss, a norm): zero or False was assumed"
        )
        return 0.0 if tensor.is_floating_point() else False
    what = "a branch" if tensor.dtype is torch.bool else "a number"
    tracker.state.refuse(f"{what} at {place}", f"it depends on values {ONLY_RUN}; zero was assumed")
    return False if tensor.dtype is torch.bool else 0


def tell_unknown(tracker: Tracker, tensor: torch.Tensor) -> None:
    """Say that values go to Python which only a run knows: integers may be sizes there."""
    place = _caller()
    if tensor.is_floating_point():
        tracker.state.note(f"{place} takes values {ONLY_RUN}: zeros were assumed")
    else:
        why = f"they depend on values {ONLY_RUN}; zeros were assumed"
        tracker.state.refuse(f"numbers at {place}", why)


def _frames() -> Iterator[str]:
    frame: Any = sys._getframe(2)
    while frame is not None:
        yield frame.f_code.co_filename.replace("\\", "/")
        frame = frame.f_back


def _from_checks(tensor: torch.Tensor) -> bool | None:
    """A distribution checks its parameters: in a run that goes well they are right."""
    if tensor.dtype is torch.bool and any("torch/distributions/" in f for f in _frames()):
        return True
    return None


def _is_foreseen() -> bool:
    """Whether a library asks whose answer is known: to go on until the longest length (tokens are
    generated), that no value is far out (bitsandbytes, which tells so in a note), and that no
    number is left to be drawn again (initialisation).
    """
    places = ("transformers/generation/", "/bitsandbytes/", "torch/nn/init.py")
    return any(place in file for file in _frames() for place in places)


def _caller() -> str:
    """Name the line of user code, or of a library, that asked."""
    ours, torchs = str(Path(__file__).parent), str(Path(torch.__file__).parent)
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((ours, torchs, "<")):
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return "The code"


def _refuse(tracker: Tracker, func: Any) -> None:
    name = str(func)
    tracker.state.refuse(name, f"the size of its result depends on values {ONLY_RUN}")
    raise Unpredictable(name)
