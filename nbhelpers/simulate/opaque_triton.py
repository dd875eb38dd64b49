"""Triton kernels that are launched but not run: what they write, their callers have allocated.

Where Triton is not installed, a module that only has its names takes its place as long as the
simulation lasts, so that a machine without a GPU can run code that imports it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from nbhelpers.simulate.opaque_patches import Patches, when_imported
from nbhelpers.simulate.state import State

# Libraries whose kernels were looked at: each writes into tensors that Python made before.
KNOWN = ("liger_kernel.", "bitsandbytes.", "nbhelpers.jobs.models.masked_attention")
VERSION = "3.0.0"  # the first with the names that libraries ask for today
# What clears the L2 cache between the trials of an autotuner.
# Source: triton/backends/nvidia/driver.py, `get_empty_cache_for_benchmark`.
TRIAL_BYTES = 256 * 2**20


@contextlib.contextmanager
def triton_without_kernels(state: State) -> Iterator[None]:
    """Let `kernel[grid](...)` do nothing, and name kernels that nobody looked at."""
    launches = _Launches(state)
    if "triton" in sys.modules or find_spec("triton") is not None:
        with _real_triton(launches):
            yield
    else:
        with _stub(launches):
            yield


class _Launches:
    """Every launch of a kernel goes by here."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.tuned: set[Any] = set()

    def launch(self, kernel: Any, arguments: dict[str, Any]) -> None:
        function = _function(kernel)
        module = getattr(function, "__module__", None) or "?"
        name = getattr(function, "__name__", type(kernel).__name__)
        if not module.startswith(KNOWN):
            self.state.refuse(f"Triton kernel {module}.{name}", "nobody looked at what it needs")
        if len(getattr(kernel, "configs", ())) > 1:
            self._trials(kernel, name, arguments)

    def _trials(self, kernel: Any, name: str, arguments: dict[str, Any]) -> None:
        numbers = {n: a for n, a in arguments.items() if isinstance(a, int | str | bool)}
        key = (id(kernel), *sorted((n, str(a)) for n, a in numbers.items()))
        if key not in self.tuned:
            self.tuned.add(key)
            self.state.temporary(TRIAL_BYTES)
            self.state.note(f"{name} is tuned when first called: a buffer of 256 MiB for a moment")


def _function(kernel: Any) -> Any:
    """The Python function below an autotuner, heuristics and a compiler."""
    seen = 0
    while hasattr(kernel, "fn") and seen < 8:
        kernel, seen = kernel.fn, seen + 1
    return kernel


# ------------------------------------------------------------------ Triton is there


@contextlib.contextmanager
def _real_triton(launches: _Launches) -> Iterator[None]:
    def patch(jit: Any) -> None:
        def get_item(self: Any, grid: Any) -> Callable[..., None]:
            return lambda *args, **kwargs: launches.launch(self, kwargs)

        def run(self: Any, *args: Any, **kwargs: Any) -> None:
            launches.launch(self, kwargs)

        patches.put(jit.KernelInterface, "__getitem__", get_item)
        patches.put(jit.JITFunction, "run", run)

    with Patches() as patches, when_imported("triton.runtime.jit", patch):
        yield


# ------------------------------------------------------------------ Triton is not there


class _Name(ModuleType):
    """Any name of Triton, also a module of it: may be called, subscripted, read from, and used as a
    decorator.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[:1].isupper():  # a class, of which `isinstance` may ask
            stub = type(name, (), {"__init__": lambda self, *args, **kwargs: None})
            setattr(self, name, stub)
            return stub
        return _Name(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)


class _Kernel:
    def __init__(self, fn: Any, launches: _Launches, configs: Any = ()) -> None:
        self.fn, self.launches, self.configs = fn, launches, list(configs or ())
        self.__name__ = getattr(fn, "__name__", "kernel")
        self.__module__ = getattr(fn, "__module__", "?")

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: self.launches.launch(self, kwargs)

    def run(self, *args: Any, **kwargs: Any) -> None:
        self.launches.launch(self, kwargs)


def _fill(module: ModuleType, launches: _Launches) -> None:
    def jit(fn: Any = None, **options: Any) -> Any:
        make = lambda function: _Kernel(function, launches)  # noqa: E731
        return make(fn) if fn is not None else make

    def autotune(configs: Any = (), *args: Any, **options: Any) -> Any:
        return lambda kernel: _Kernel(kernel, launches, configs)

    module.__version__ = VERSION
    module.jit, module.autotune = jit, autotune
    module.heuristics = lambda *args, **options: lambda kernel: _Kernel(kernel, launches)
    module.cdiv = lambda x, y: -(-x // y)
    module.next_power_of_2 = lambda n: 1 << max(n - 1, 0).bit_length()


class _StubFinder(MetaPathFinder, Loader):
    def __init__(self, launches: _Launches) -> None:
        self.launches = launches

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "triton":
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Name(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "triton":
            _fill(module, self.launches)


@contextlib.contextmanager
def _stub(launches: _Launches) -> Iterator[None]:
    finder = _StubFinder(launches)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _forget()


def _forget() -> None:
    """Drop the stub and every module that took a name from it: without Triton they are useless,
    and torch would believe that it is there.
    """
    if "triton" not in sys.modules:
        return
    kinds = {_Name, _Kernel}
    for name, module in list(sys.modules.items()):
        is_ligers = name.partition(".")[0] == "liger_kernel"
        if is_ligers or type(module) is _Name or _took(module, kinds):
            del sys.modules[name]
    answers = sys.modules.get("torch.utils._triton")
    for value in list(vars(answers).values()) if answers else ():
        if hasattr(value, "cache_clear"):
            value.cache_clear()


def _took(module: Any, kinds: set[type]) -> bool:
    if type(module) is not ModuleType or module.__name__ == __name__:
        return False
    return any(type(value) in kinds for value in list(vars(module).values()))
