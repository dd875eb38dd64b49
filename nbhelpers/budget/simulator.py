"""The process that simulates: started when it is first asked, kept for the next, ended with this.

It is the only way from the notebook's process to the simulation, which needs torch.
"""

from __future__ import annotations

import importlib.util
import threading
from typing import TYPE_CHECKING

from nbhelpers.budget.memory import MemoryBudget
from nbhelpers.common.child import Child
from nbhelpers.errors import JobFailed, Killed, LaunchError, NbhelpersError

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.plan import BatchPlan
    from nbhelpers.presets.preset import Preset

MODULE = "nbhelpers.jobs.simulated.child"
NEEDED = ("torch", "transformers", "accelerate")
IDLE_S = 900.0  # then it gives its memory back, about a gigabyte of libraries
WITHOUT = "or go without: kept budgets and an estimate by formulas need none of them"


class Simulator:
    """A process that answers many requests, one at a time; a dead one is started anew."""

    def __init__(self, module: str = MODULE) -> None:
        self._module, self._lock = module, threading.RLock()
        self._child: Child | None = None
        self._idle: threading.Timer | None = None

    @property
    def pid(self) -> int | None:
        """The process, if one runs."""
        child = self._child
        return child.process.pid if child is not None and child.is_alive else None

    def ask(
        self, preset: Preset, plan: BatchPlan, hardware: Hardware, *, timeout_s: float
    ) -> MemoryBudget:
        """Simulate a run; see `simulate_budget` for the errors."""
        what = {"preset": preset.to_dict(), "plan": plan.to_dict(), "hardware": hardware.to_dict()}
        with self._lock:
            self._rest(None)
            try:
                child = self._started()
                return MemoryBudget.from_dict(child.call("simulate", timeout_s=timeout_s, **what))
            except (Killed, JobFailed, LaunchError) as error:
                is_lost = self._child is not None and not self._child.is_alive
                raise _explained(error, preset, timeout_s, is_lost=is_lost) from error
            finally:
                self._rest(IDLE_S)

    def close(self) -> None:
        """End the process; the next request starts another."""
        with self._lock:
            self._rest(None)
            child, self._child = self._child, None
            if child is not None:
                child.close()

    def _started(self) -> Child:
        if self._child is None or not self._child.is_alive:
            self.close()
            require_libraries()
            self._child = Child(use_gpu=False, module=self._module)
        return self._child

    def _rest(self, seconds: float | None) -> None:
        """End the process after so long without a request; None: not now."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = None
        if seconds is not None and self._child is not None:
            self._idle = threading.Timer(seconds, self._end_if_idle)
            self._idle.daemon = True
            self._idle.start()

    def _end_if_idle(self) -> None:
        if self._lock.acquire(blocking=False):  # else somebody asks right now
            try:
                self.close()
            finally:
                self._lock.release()


_simulator = Simulator()


def simulated(
    preset: Preset, plan: BatchPlan, hardware: Hardware, *, timeout_s: float
) -> MemoryBudget:
    """Simulate in this process's one simulator."""
    return _simulator.ask(preset, plan, hardware, timeout_s=timeout_s)


def close_simulator() -> None:
    """End the process that simulates, if one runs."""
    _simulator.close()


def has_libraries() -> bool:
    """Whether what a simulation needs is installed, as far as can be told without importing it."""
    return not missing_libraries()


def missing_libraries() -> list[str]:
    """Return the names of the libraries that a simulation lacks here."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def require_libraries() -> None:
    """Stop where nothing can be simulated.

    Raises:
        LaunchError: Names what is missing.
    """
    if missing := missing_libraries():
        raise LaunchError(
            f"A simulation runs the training step, and {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not installed here.",
            fix=f"pip install {' '.join(missing)}; {WITHOUT}",
        )


def _explained(
    error: NbhelpersError, preset: Preset, timeout_s: float, *, is_lost: bool
) -> NbhelpersError:
    """Say what a lost simulator means; what it says itself stays as it is."""
    what = f"the step of {preset.job}/{preset.name}"
    if isinstance(error, Killed) and "took longer" in error.message:
        return Killed(
            f"Simulating {what} took longer than {timeout_s:g} s and was ended.",
            fix="give more time (timeout_s), or use the estimate",
            details=error.details,
        )
    if not is_lost:
        return error
    if isinstance(error, Killed):
        return Killed(
            f"The process that simulates {what} was killed.",
            fix="if that was for want of main memory, close other programs; then ask again, "
            "which starts another",
            details=error.details,
        )
    return JobFailed(
        f"The process that simulates {what} ended by itself.",
        fix="read the end of its log below; asking again starts another",
        details=error.details,
    )
