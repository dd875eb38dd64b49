"""Patches of foreign modules that last as long as a simulation, and undo themselves.

A module that is loaded later, by the code under simulation, is patched when it is.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any
from unittest import mock


class Patches(ExitStack):
    """Values that are put in place of others until it is closed.

    >>> class Box: value = 1
    >>> with Patches() as patches:
    ...     patches.put(Box, "value", 2)
    ...     Box.value
    2
    >>> Box.value
    1
    """

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute, also one that is not there."""
        self.enter_context(mock.patch.object(owner, name, value, create=True))

    def put_known(self, owner: Any, values: Mapping[str, Any]) -> None:
        """Set those attributes that this release of a library has."""
        for name, value in values.items():
            if hasattr(owner, name):
                self.put(owner, name, value)


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
