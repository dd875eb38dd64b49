"""nbhelpers: hardware → preset → plan → budget → run → result → report.

Each arrow is one function of this package, each noun one frozen object. Nothing heavy is imported
until a function is used, and torch never is: training happens in worker processes.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "detect_hardware": "hardware",
    "plan_hardware": "hardware",
    "list_presets": "config",
    "load_preset": "config",
    "plan_batch": "batching",
    "predict_memory": "budgets",
    "launch": "launch",
    "follow": "follow",
    "open_run": "runs",
    "list_runs": "runs",
    "report": "report",
    "check_environment": "bootstrap",
    "check_parameters": "parameters",
    "pick_preset": "widgets",
    "NbhelpersError": "errors",
}
__all__ = list(_HOME)


class _Verb(ModuleType):
    """A module named like its one function, as `launch`: calling the module calls the function.

    Importing `nbhelpers.runs.starting` anywhere binds the module to `nbhelpers.runs.starting`, which would hide
    a function of that name from everyone who writes `nb.launch(...)`.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(getattr(self, self.__name__.rpartition(".")[2]))


class _Package(ModuleType):
    """This package: a submodule that is named like a public function becomes callable."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _HOME.get(name) == name:
            value.__class__ = _Verb
        super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOME[name]}")
    return module if _HOME[name] == name else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


sys.modules[__name__].__class__ = _Package
