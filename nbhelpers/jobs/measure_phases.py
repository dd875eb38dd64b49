"""Peak memory and seconds by phase, and their lines in a result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from nbhelpers.budget.formulas import CONTEXT
from nbhelpers.budget.memory import MemoryBudget, compare
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.measure import HERE, MemoryMeter

TOLERANCE_PERCENT = 3.0
MOST_EVENTS = 200_000  # that the allocator keeps of one step, the newest
SNAPSHOT = "memory_snapshot"  # of rank 0, with .pickle; those of others have their number too


class StepRecorder:
    """Lets PyTorch's allocator record one step, and dumps the record if the prediction was off.

    The dump is what https://pytorch.org/memory_viz shows: all blocks, and where each was made.
    """

    def __init__(self, context: RunContext, device: torch.device, predicted_bytes: int) -> None:
        """Record on this device.

        Args:
            predicted_bytes: Of the largest step, which the recorded one should be.
        """
        self.context, self.device, self.predicted_bytes = context, device, predicted_bytes
        self._step: int | None = None

    def start(self, step: int) -> None:
        """Begin to record; an allocator without a history is left alone."""
        try:
            torch.cuda.memory._record_memory_history(
                enabled="all", context="alloc", stacks="python", max_entries=MOST_EVENTS
            )
        except (AttributeError, RuntimeError, TypeError) as error:
            self.context.warn(f"The memory of a step cannot be recorded here: {error}.")
            return
        self._step = step

    def stop(self, measured_bytes: int) -> dict[str, Any] | None:
        """End the record; return what is said of it, if the prediction is off by more than 3 %."""
        if self._step is None:
            return None
        step, self._step = self._step, None
        error = 100 * (self.predicted_bytes - measured_bytes) / max(1, measured_bytes)
        rank = self.context.rank
        path = self.context.run.path / f"{SNAPSHOT}{f'-rank{rank}' if rank else ''}.pickle"
        try:
            if abs(error) <= TOLERANCE_PERCENT:
                return None
            torch.cuda.memory._dump_snapshot(str(path))
        except (OSError, RuntimeError) as problem:
            self.context.warn(f"The record of a step's memory could not be kept: {problem}.")
            return None
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
        sizes = {"measured_bytes": measured_bytes, "predicted_bytes": self.predicted_bytes}
        return {"file": path.name, "step": step + 1, "error_percent": error} | sizes


# ------------------------------------------------------------------------------------------------
# Peak memory and seconds by phase: load, forward, backward, optimizer, evaluation.
#
# Seconds are taken of every step. Peaks are taken of few steps: each reading of the allocator costs
# some microseconds, and resets its peak, so `MemoryMeter` keeps the true one.


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

    def mark(self, name: str, hidden: tuple[int, int] | None = None) -> None:
        """End a phase of this name; what moves a batch to the device belongs to the forward.

        Args:
            hidden: See `MemoryMeter.take_beside`.
        """
        HERE.enter(AFTER.get(name, name), step=HERE.step)
        if not self._is_on or name == "data":
            return
        self.meter.note(name, self.meter.take_beside(hidden) if hidden else self.meter.take())
        if name == "optimizer":
            self._is_on = False
            self._end_step()

    def _end_step(self) -> None:
        """Tell what the first watched steps, and each later one, have shown."""
        peaks = self.meter.phases
        if self.recorder is not None and HERE.step == self.last:
            record = self.recorder.stop(max(peaks.get(name, 0) for name in PHASES[1:4]))
            if record is not None:
                self.meter.snapshot = record
                self.tell(SNAPSHOT, snapshot=record)
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
    Where the next step begins before this one is read, all its phases have ended when it is.
    """

    def __init__(
        self, device: torch.device | None = None, *, memory: PhasePeaks | None = None
    ) -> None:
        """Time this device (None, or a CPU: by the clock), and let `memory` see the same marks."""
        self._cuda = device is not None and device.type == "cuda"
        self._marks: list[tuple[str, Any]] = []
        self._running: list[tuple[str, Any]] = []  # begin and end of the optimizer phase before
        self._earlier: list[Any] = []  # intervals of steps that are not read yet
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
        self._earlier += [*pairwise(self._running), *pairwise(self._marks)] if self._marks else []
        self._running = [] if self._marks else self._running
        self._marks = [("", self._now())]

    def mark(self, name: str, hidden: tuple[int, int] | None = None) -> None:
        """End a phase of this name where it stands; `hidden`: see `MemoryMeter.take_beside`."""
        if self._marks:
            self._marks.append((name, self._now()))
            self.memory.mark(name, hidden)

    def add_to(self, seconds: dict[str, float]) -> dict[str, float]:
        """Return the seconds by phase with those of this step that have ended, without a sync."""
        total, ended, self._marks = dict(seconds), self._marks, []
        intervals = list(pairwise(ended))
        if self._cuda:
            intervals = [*pairwise(self._running), *intervals[:-1]]
            self._running = ended[-2:]
        return self._added(total, intervals)

    def add_earlier_to(self, seconds: dict[str, float]) -> dict[str, float]:
        """Return the seconds by phase with those of the steps before the newest, all ended."""
        intervals, self._earlier = self._earlier, []
        return self._added(dict(seconds), intervals)

    def _added(self, total: dict[str, float], intervals: list[Any]) -> dict[str, float]:
        for (_, one), (name, two) in intervals:
            took = one.elapsed_time(two) / 1000 if self._cuda else two - one
            total[name] = total.get(name, 0.0) + took
        return total


def steps_to_watch(
    global_batches: list[np.ndarray], tokens: Callable[[np.ndarray], int], *, first: int
) -> list[int]:
    """Return the optimizer steps whose phases are measured: the first, and the heaviest later one.

    Args:
        global_batches: Rows of each step to come, the first of them that of step `first`.
        tokens: Of the largest micro-batch of a global batch.

    >>> batches = [np.array([1, 2]), np.array([3, 3]), np.array([9, 8]), np.array([2, 3])]
    >>> steps_to_watch(batches, lambda batch: int(batch.sum()), first=10)
    [10, 11, 12]
    """
    steps = list(range(first, first + min(FIRST_STEPS, len(global_batches))))
    late = global_batches[FIRST_STEPS : FIRST_STEPS + MOST_WINDOWS]
    if late:
        steps.append(first + FIRST_STEPS + int(np.argmax([tokens(batch) for batch in late])))
    return steps


def told_phases(events: Iterable[Mapping[str, Any]], where: str) -> dict[str, int]:
    """Return the peaks by phase that events of earlier attempts tell, of the same device.

    Args:
        where: The device's name: what another card needed says nothing of this one.
    """
    peaks: dict[str, int] = {}
    for event in events:
        phases = event.get("phases")
        if event.get("type") != EVENT or event.get("where") != where:
            continue
        for name, size in phases.items() if isinstance(phases, Mapping) else ():
            if name in PHASES and isinstance(size, int | float):
                peaks[name] = max(peaks.get(name, 0), int(size))
    return peaks


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


# ------------------------------------------------------------------------------------------------
# A run's measuring of memory put together: from its context to its lines in `result.json`.


OF_DATA, UNKNOWN = "the largest batch of the data", "unknown"
LEFT_OVER = ("other_processes_bytes", "earlier_bytes", "context_bytes")


def meter_of(context: RunContext, *, is_resumed: bool, load_bytes: int) -> MemoryMeter:
    """Return the meter of a training: it knows what loading took, and earlier attempts.

    Args:
        load_bytes: The allocator's peak when the model was there, and nothing else.
        is_resumed: The optimizer's state came with the model, so this loading is another one.
    """
    device = context.accelerator.device
    loaded = {}
    if device.type == "cuda" and not is_resumed:
        loaded["load"] = load_bytes
    meter = MemoryMeter(device, card=context.card, phases=loaded)
    for name, size in told_phases(context.earlier, meter.where).items():
        meter.note(name, size)
    snapshots = [event for event in context.earlier if event.get("type") == SNAPSHOT]
    meter.snapshot = snapshots[-1].get("snapshot") if snapshots else None
    return meter


def peaks_of(
    context: RunContext, meter: MemoryMeter, watched: Iterable[int], budget: MemoryBudget | None
) -> PhasePeaks:
    """Return what measures the phases of a training in the steps that are watched.

    Args:
        budget: Of the largest batch; None: it is not known, and no step is recorded.
    """
    recorder, predicted = None, _predicted_bytes(budget)
    if meter.device.type == "cuda" and predicted:
        recorder = StepRecorder(context, meter.device, predicted)
    return PhasePeaks(meter, watched=watched, tell=context.emit_rank, recorder=recorder)


def _predicted_bytes(budget: MemoryBudget | None) -> int | None:
    """Return the peak that training is predicted to have."""
    if budget is None:
        return None
    of_training = [x.size_bytes for x in budget.phases if x.name not in ("load", "evaluation")]
    return max(of_training, default=budget.allocated_bytes) or None


def memory_facts(
    context: RunContext, ranks: list[dict[str, Any]], budget: MemoryBudget | None, *, trained: bool
) -> dict[str, Any]:
    """Return `memory` of `result.json`: the prediction beside the worst rank's peak.

    Args:
        budget: Of the data's largest batch; None: it is not known, or nothing was trained.
    """
    measured = max(line["peak_allocated_bytes"] for line in ranks) or None
    cuda = context.accelerator.device.type == "cuda"
    by_phase = [line.pop("phases", {}) for line in ranks]
    snapshots = [line.pop("snapshot", None) for line in ranks]
    phases = {line.name: line.size_bytes for line in budget.phases} if budget else {}
    facts: dict[str, Any] = {
        "device": context.accelerator.device.type,
        "what": "allocator peak" if cuda else "live tensor bytes",
        "per_rank": ranks,
        "source": budget.source if budget else UNKNOWN if cuda and trained else None,
        "phases": phase_rows(phases, by_phase),
        "basis": OF_DATA if phases else None,
        "reserved": _reserved(budget, ranks),
        "left_over": left_over(ranks),
        "snapshot": next(filter(None, snapshots), None),
    }
    if cuda and trained:
        facts["simulated_s"] = context.forecast.seconds
    if budget is None:
        return facts | {"predicted_bytes": None, "measured_bytes": measured, "error_percent": None}
    lines = [asdict(line) for line in budget.lines if line.name != CONTEXT]
    return facts | {"predicted_lines": lines} | compare(budget, measured)


def _reserved(budget: MemoryBudget | None, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    measured = max(line["peak_reserved_bytes"] for line in ranks) or None
    predicted = budget.reserved_bytes if budget is not None else None
    error = 100 * (predicted - measured) / measured if predicted and measured else None
    return {"predicted_bytes": predicted, "measured_bytes": measured, "error_percent": error}


def left_over(ranks: Iterable[Mapping[str, Any]]) -> dict[str, int | None]:
    """Return what the cards held beside the tensors of the run: of each kind the largest."""
    largest = {}
    for name in LEFT_OVER:
        known = [line[name] for line in ranks if line.get(name) is not None]
        largest[name] = max(known, default=None)
    return largest
