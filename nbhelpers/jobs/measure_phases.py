"""Peak memory and seconds by phase: load, forward, backward, optimizer, evaluation.

Seconds are taken of every step. Peaks are taken of few steps: each reading of the allocator costs
some microseconds, and resets its peak, so `MemoryMeter` keeps the true one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nbhelpers.jobs.measure import HERE

if TYPE_CHECKING:
    from nbhelpers.jobs.measure import MemoryMeter
    from nbhelpers.jobs.measure_snapshot import StepRecorder

PHASES = ("load", "forward", "backward", "optimizer", "evaluation")
FIRST_STEPS = 2  # the first makes the optimizer's state, the second has it all
MOST_WINDOWS = 5000  # among which the heaviest step is looked for
AFTER = {"": "forward", "data": "forward", "forward": "backward", "backward": "optimizer"}
EVENT = "memory_phases"


class PhasePeaks:
    """The peak of each phase, of the steps that are watched; without a meter it does nothing."""

    def __init__(
        self,
        meter: MemoryMeter | None = None,
        *,
        watched: Iterable[int] = (),
        tell: Callable[..., None] = lambda *_, **__: None,
        recorder: StepRecorder | None = None,
    ) -> None:
        """Watch some optimizer steps (0-based), and all evaluations.

        Args:
            tell: Writes an event of this rank, so that a resumed run knows these peaks.
            recorder: Keeps what was alive in the last watched step, if the prediction was off.
        """
        self.meter, self.watched, self.tell = meter, frozenset(watched), tell
        self.recorder = recorder
        self.last = max(self.watched, default=-1)
        self._is_on = False

    def start(self, step: int) -> None:
        """Begin an optimizer step."""
        self._is_on = self.meter is not None and step in self.watched
        HERE.enter("forward", step=step)
        if self._is_on:
            self.meter.take()  # what came between the steps belongs to none
            if self.recorder is not None and step == self.last:
                self.recorder.start(step)

    def mark(self, name: str) -> None:
        """End a phase of this name; what moves a batch to the device belongs to the forward."""
        HERE.enter(AFTER.get(name, name), step=HERE.step)
        if not self._is_on or name == "data":
            return
        self.meter.note(name, self.meter.take())
        if name == "optimizer":
            self._is_on = False
            self._end_step()

    def _end_step(self) -> None:
        """Tell what the first watched steps, and each later one, have shown."""
        peaks = self.meter.phases
        if self.recorder is not None and HERE.step == self.last:
            self.recorder.stop(max(peaks.get(name, 0) for name in PHASES[1:4]))
        self.meter.read_context()
        self.tell(EVENT, step=HERE.step + 1, phases=peaks, where=self.meter.where)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Count what an evaluation between the steps needs at its peak."""
        if self.meter is None:
            yield
            return
        HERE.enter("evaluation", step=HERE.step)
        with self.meter.counted_evaluation() as is_counted:
            yield
        if is_counted:
            self.tell(EVENT, step=HERE.step + 1, phases=self.meter.phases, where=self.meter.where)


class PhaseTimer:
    """Seconds of data, forward, backward and optimizer; on a GPU by events, without a sync.

    The kernels of a step are in order, so an event recorded after the last kernel of a phase stands
    where the phase ends. A step syncs before its optimizer phase, so that phase is read with the
    next step: the update runs while the next batch is made. That of the last step is not counted.
    """

    def __init__(
        self, device: torch.device | None = None, *, memory: PhasePeaks | None = None
    ) -> None:
        """Time this device (None, or a CPU: by the clock), and let `memory` see the same marks."""
        self._cuda = device is not None and device.type == "cuda"
        self._marks: list[tuple[str, Any]] = []
        self._running: list[tuple[str, Any]] = []  # begin and end of the optimizer phase before
        self.memory = memory or PhasePeaks()

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def start(self, step: int) -> None:
        """Begin an optimizer step (0-based)."""
        self.memory.start(step)
        self._marks = [("", self._now())]

    def mark(self, name: str) -> None:
        """End a phase of this name where it stands."""
        if self._marks:
            self._marks.append((name, self._now()))
            self.memory.mark(name)

    def add_to(self, seconds: dict[str, float]) -> dict[str, float]:
        """Return the seconds by phase with those of this step that have ended, without a sync."""
        total, ended, self._marks = dict(seconds), self._marks, []
        intervals = list(pairwise(ended))
        if self._cuda:
            intervals = [*pairwise(self._running), *intervals[:-1]]
            self._running = ended[-2:]
        for (_, one), (name, two) in intervals:
            took = one.elapsed_time(two) / 1000 if self._cuda else two - one
            total[name] = total.get(name, 0.0) + took
        return total


def steps_to_watch(
    windows: list[np.ndarray], tokens: Callable[[np.ndarray], int], *, first: int
) -> list[int]:
    """Return the optimizer steps whose phases are measured: the first, and the heaviest later one.

    Args:
        windows: Rows of each step to come, the first of them that of step `first`.
        tokens: Of the largest micro-batch of a window.

    >>> windows = [np.array([1, 2]), np.array([3, 3]), np.array([9, 8]), np.array([2, 3])]
    >>> steps_to_watch(windows, lambda window: int(window.sum()), first=10)
    [10, 11, 12]
    """
    found = list(range(first, first + min(FIRST_STEPS, len(windows))))
    late = windows[FIRST_STEPS : FIRST_STEPS + MOST_WINDOWS]
    if late:
        found.append(first + FIRST_STEPS + int(np.argmax([tokens(window) for window in late])))
    return found


def told_phases(events: Iterable[Mapping[str, Any]], where: str) -> dict[str, int]:
    """Return the peaks by phase that events of earlier attempts tell, of the same device.

    Args:
        where: The device's name: what another card needed says nothing of this one.
    """
    found: dict[str, int] = {}
    for event in events:
        phases = event.get("phases")
        if event.get("type") != EVENT or event.get("where") != where:
            continue
        for name, size in phases.items() if isinstance(phases, Mapping) else ():
            if name in PHASES and isinstance(size, int | float):
                found[name] = max(found.get(name, 0), int(size))
    return found


def phase_rows(
    predicted: Mapping[str, int], measured: Iterable[Mapping[str, int]]
) -> list[dict[str, Any]]:
    """Return the rows of `result.json`'s `memory.phases`: the largest rank beside the prediction.

    >>> phase_rows({"forward": 110}, [{"forward": 90}, {"forward": 100, "load": 7}])[1]
    {'phase': 'forward', 'predicted_bytes': 110, 'measured_bytes': 100, 'error_percent': 10.0}
    """
    ranks, rows = list(measured), []
    for name in PHASES:
        size = max((rank.get(name) or 0 for rank in ranks), default=0) or None
        guess = predicted.get(name)
        if size is None and guess is None:
            continue
        error = 100 * (guess - size) / size if guess is not None and size else None
        row = {"phase": name, "predicted_bytes": guess, "measured_bytes": size}
        rows.append(row | {"error_percent": error})
    return rows
