"""Liger's kernels: their own Python code runs, and what they patched is put back afterwards.

The autograd functions of liger-kernel allocate their outputs and gradients with torch and hand
them to Triton kernels, so with kernels that do nothing (`opaque_triton`) each release allocates
what it does on a GPU: gradients in place, logits in chunks, the head's gradient if it is trained.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from nbhelpers.simulate.opaque_patches import ABSENT, Patches, State, when_imported

PREFIX = "apply_liger_kernel_to_"


@contextlib.contextmanager
def liger_without_traces(state: State) -> Iterator[None]:
    """Put back what Liger changes in transformers and torch while a simulation runs."""
    patches = Patches()
    before: dict[int, tuple[Any, dict[str, Any]]] = {}

    def patch(module: Any) -> None:
        for name in [n for n in vars(module) if n.startswith(PREFIX)]:
            patches.put(module, name, _remembering(getattr(module, name), name, before))
        table = getattr(module, "MODEL_TYPE_TO_APPLY_LIGER_FN", {})
        for kind, function in list(table.items()):
            wrapped = getattr(module, getattr(function, "__name__", ""), function)
            patches.put(table, kind, wrapped)

    try:
        with when_imported("liger_kernel.transformers.monkey_patch", patch):
            yield
    finally:
        patches.undo()
        _put_back(before)


def _remembering(
    apply: Callable[..., Any], name: str, before: dict[int, tuple[Any, dict[str, Any]]]
) -> Callable[..., Any]:
    """Wrap one of Liger's functions so that it first notes what it is going to change."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        _remember(name.removeprefix(PREFIX), before)
        return apply(*args, **kwargs)

    wrapped.__name__ = apply.__name__
    wrapped.__wrapped__ = apply  # transformers and Liger read its parameters
    return wrapped


def _remember(model: str, before: dict[int, tuple[Any, dict[str, Any]]]) -> None:
    import torch.nn.functional

    family = model.removesuffix("_text")
    with contextlib.suppress(ImportError):  # an alias: its module is loaded with another name
        import_module(f"transformers.models.{family}.modeling_{family}")
    for name, module in list(sys.modules.items()):
        if not name.startswith("transformers.models.") or ".modeling_" not in name:
            continue
        classes = [v for v in vars(module).values() if isinstance(v, type)]
        for owner in (module, *(c for c in classes if c.__module__ == name)):
            before.setdefault(id(owner), (owner, dict(vars(owner))))
    functional = torch.nn.functional
    before.setdefault(id(functional), (functional, dict(vars(functional))))


def _put_back(before: dict[int, tuple[Any, dict[str, Any]]]) -> None:
    for owner, values in before.values():
        for name, value in list(vars(owner).items()):
            old = values.get(name, ABSENT)
            if old is value or not _is_ligers(value):
                continue
            if old is ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, old)


def _is_ligers(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("liger_kernel")
