"""Patches of foreign modules that last as long as a simulation, and undo themselves.

A module that is loaded later, by the code under simulation, is patched when it is.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any, Protocol

ABSENT = object()


class State(Protocol):
    """What a stand-in may ask of the simulation that it stands in."""

    card: Any

    def refuse(self, name: str, why: str) -> None:
        """Name a part that cannot be predicted."""

    def note(self, text: str) -> None:
        """Say how a part was predicted."""

    def temporary(self, *sizes_bytes: int) -> None:
        """Allocate blocks one after another, then free them together."""


class Patches:
    """Values that were put in place of others, and the way back.

    >>> class Box: value = 1
    >>> patches = Patches()
    >>> patches.put(Box, "value", 2)
    1
    >>> Box.value, patches.undo(), Box.value
    (2, None, 1)
    """

    def __init__(self) -> None:
        self._undo: list[tuple[Any, Any, Any]] = []

    def put(self, owner: Any, name: Any, value: Any) -> Any:
        """Set an attribute, or an item of a dictionary; return what was there, None for nothing."""
        if isinstance(owner, dict):
            old = owner.get(name, ABSENT)
            owner[name] = value
        else:
            # What the owner inherits is not its own: undoing must not leave a copy of it.
            old = vars(owner).get(name, ABSENT) if hasattr(owner, "__dict__") else ABSENT
            setattr(owner, name, value)
        self._undo.append((owner, name, old))
        return None if old is ABSENT else old

    def undo(self) -> None:
        """Put everything back, the last first."""
        while self._undo:
            owner, name, old = self._undo.pop()
            if isinstance(owner, dict):
                owner.pop(name, None) if old is ABSENT else owner.__setitem__(name, old)
            elif old is ABSENT:
                if name in vars(owner):
                    delattr(owner, name)
            else:
                setattr(owner, name, old)


@contextmanager
def without_modes() -> Iterator[None]:
    """Compute as if there were no simulation: for numbers of the host that must be real ones."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


class _Watch(MetaPathFinder):
    """Runs a function before a module is executed, and one after."""

    def __init__(self, name: str, before: Callable[[], Any], after: Callable[[Any], None]) -> None:
        self.name, self.before, self.after, self.busy = name, before, after, False

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self.name or self.busy:
            return None
        self.busy = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.busy = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(Loader):
    def __init__(self, inner: Any, watch: _Watch) -> None:
        self.inner, self.watch = inner, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def create_module(self, spec: Any) -> ModuleType | None:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        leave = self.watch.before()
        try:
            with without_modes():  # tensors that a module makes for itself outlive the simulation
                self.inner.exec_module(module)
        finally:
            if callable(leave):
                leave()
        self.watch.after(module)


@contextmanager
def when_imported(
    name: str, after: Callable[[Any], None], *, before: Callable[[], Any] = lambda: None
) -> Iterator[None]:
    """Call `after` with a module: at once if it is loaded, else as soon as it is.

    Args:
        before: Called before the module is executed; may return a function that is called after.
    """
    if name in sys.modules:
        after(sys.modules[name])
        yield
        return
    watch = _Watch(name, before, after)
    sys.meta_path.insert(0, watch)
    try:
        yield
    finally:
        sys.meta_path.remove(watch)
