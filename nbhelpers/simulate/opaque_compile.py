"""torch.compile under a simulation: the code runs as it is, and is named.

What a compiler fuses is never allocated, so the eager step is an upper bound.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

import torch

# Loaded now: while "cuda" seems to exist, a CPU build of torch cannot import it.
import torch._dynamo.eval_frame as eval_frame

from nbhelpers.simulate.opaque_flex import FlexKernels
from nbhelpers.simulate.opaque_patches import Patches, State

NAME = "torch.compile"
WHY = "the eager step is an upper bound"


@contextlib.contextmanager
def compile_named(state: State, flex: FlexKernels) -> Iterator[None]:
    """Run code that would be compiled as it is, and name torch.compile.

    `state.compiled_stand_ins`, if it is there, lists functions that return what takes the place of
    a function that is compiled, or None: for code whose compiled memory is known.
    """
    patches = Patches()

    def compile_(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: compile_(function, **options)
        for find in (flex.compiles, *getattr(state, "compiled_stand_ins", ())):
            if (stand_in := find(model)) is not None:
                return stand_in
        if isinstance(model, torch.nn.Module):
            state.refuse(NAME, WHY)
            return model
        return _named(model, state)

    def compile_module(self: Any, *args: Any, **options: Any) -> None:
        state.refuse(NAME, WHY)

    patches.put(torch, "compile", compile_)
    patches.put(torch.nn.Module, "compile", compile_module)
    if hasattr(eval_frame, "_callback_from_stance"):
        patches.put(eval_frame, "_callback_from_stance", _run_eagerly(state, flex))
    try:
        yield
    finally:
        patches.undo()


def _named(function: Any, state: State) -> Any:
    @functools.wraps(function)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        state.refuse(NAME, WHY)
        return function(*args, **kwargs)

    return compiled


def _run_eagerly(state: State, flex: FlexKernels) -> Any:
    """Code that was compiled before the simulation began: each call asks here how to run."""

    def callback_from_stance(callback: Any) -> Any:
        if callback in (None, False):
            return callback
        function = sys._getframe(1).f_locals.get("fn")
        if getattr(function, "__name__", "") == "flex_attention":
            flex.compiled = max(flex.compiled, 1)  # stays: nothing says when the call ends
        else:
            state.refuse(NAME, WHY)
        return None

    return callback_from_stance
