"""What was alive at the memory peak of one step, kept where the prediction was off.

The step is recorded by PyTorch's allocator. Its own dump is a pickle, which no reader should have
to trust, so what matters is written as JSON: the sizes that were alive, where they were made, and
the curve of the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nbhelpers.jobs.checkpoint import write_json

TOLERANCE_PERCENT = 3.0
MOST_EVENTS = 200_000  # that the allocator keeps of one step, the newest
MOST_SIZES, MOST_POINTS, MOST_IN_RESULT = 300, 2000, 12
NO_FRAME = "before the step"
FREED = ("free_completed", "free")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """Blocks of one size that were alive at the peak, made at one place."""

    size_bytes: int
    count: int
    made_at: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, with the sum."""
        sizes = {"size_bytes": self.size_bytes, "count": self.count}
        return sizes | {"total_bytes": self.size_bytes * self.count, "made_at": self.made_at}


class StepRecorder:
    """Records one step of a GPU and keeps what it saw if the prediction was off."""

    def __init__(
        self,
        device: torch.device,
        *,
        path: Path,
        predicted_bytes: int,
        tell: Callable[[dict[str, Any]], None],
        warn: Callable[[str], None],
    ) -> None:
        """Record on this device.

        Args:
            path: The JSON file of this rank.
            predicted_bytes: Of the largest step, which the recorded one should be.
            tell: Takes the part that goes into `result.json`.
        """
        self.device, self.path, self.predicted_bytes = device, path, predicted_bytes
        self.tell, self.warn = tell, warn
        self._step: int | None = None

    def start(self, step: int) -> None:
        """Begin to record; an allocator without a history is left alone."""
        try:
            torch.cuda.memory._record_memory_history(
                enabled="all", context="alloc", stacks="python", max_entries=MOST_EVENTS
            )
        except (AttributeError, RuntimeError, TypeError) as error:
            self.warn(f"The memory of a step cannot be recorded here: {error}.")
            return
        self._step = step

    def stop(self, measured_bytes: int) -> None:
        """End the record; keep it if the prediction is off by more than 3 %."""
        if self._step is None:
            return
        step, self._step = self._step, None
        error = 100 * (self.predicted_bytes - measured_bytes) / max(1, measured_bytes)
        try:
            if abs(error) > TOLERANCE_PERCENT:
                found = torch.cuda.memory._snapshot(self.device)
                self._keep(found, step=step, measured_bytes=measured_bytes, error=error)
        except (OSError, RuntimeError, KeyError) as problem:
            self.warn(f"The record of a step's memory could not be kept: {problem}.")
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)

    def _keep(
        self, snapshot: Mapping[str, Any], *, step: int, measured_bytes: int, error: float
    ) -> None:
        index = self.device.index or 0
        events = snapshot["device_traces"][index]
        blocks = [
            (block["address"], block.get("requested_size") or block["size"])
            for segment in snapshot["segments"]
            if segment.get("device", 0) == index
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        ]
        alive, curve = at_peak(events, blocks)
        rows = [each.to_dict() for each in alive[:MOST_SIZES]]
        told = {"file": self.path.name, "step": step + 1, "measured_bytes": measured_bytes}
        told |= {"predicted_bytes": self.predicted_bytes, "error_percent": error}
        whole = told | {"schema": 1, "torch": torch.__version__, "events": len(events)}
        write_json(self.path, whole | {"alive": rows, "curve": thin(curve)})
        self.tell(told | {"alive": rows[:MOST_IN_RESULT]})


def at_peak(
    events: Sequence[Mapping[str, Any]], at_end: Iterable[tuple[int, int]]
) -> tuple[list[Alive], list[tuple[int, int]]]:
    """Return what was alive at the peak, most bytes first, and the curve (microseconds, bytes).

    The events are gone through from their end, where what is alive is known: the beginning may
    have been cut off.

    Args:
        events: `action`, `addr`, `size`, perhaps `frames` and `time_us`, as the allocator tells.
        at_end: Address and bytes of the blocks that are alive after the last event.
    """
    alive = dict(at_end)
    now = peak = sum(alive.values())
    at, curve = len(events), []
    for index in range(len(events) - 1, -1, -1):
        event = events[index]
        curve.append((int(event.get("time_us", 0)), now))
        if event["action"] == "alloc":
            now -= alive.pop(event["addr"], 0)
        elif event["action"] in FREED:
            alive[event["addr"]] = event["size"]
            now += event["size"]
        if now > peak:
            peak, at = now, index
    return _grouped(events, dict(alive), at), curve[::-1]


def _grouped(events: Sequence[Mapping[str, Any]], alive: dict[int, int], at: int) -> list[Alive]:
    """Go forward from what was alive before the first event up to event `at`."""
    made: dict[int, str] = {}
    for event in events[:at]:
        if event["action"] == "alloc":
            alive[event["addr"]] = event["size"]
            made[event["addr"]] = place(event.get("frames") or ())
        elif event["action"] in FREED:
            alive.pop(event["addr"], None)
            made.pop(event["addr"], None)
    counts = Counter((size, made.get(addr, NO_FRAME)) for addr, size in alive.items())
    found = [Alive(size_bytes=s, count=n, made_at=where) for (s, where), n in counts.items()]
    return sorted(found, key=lambda each: -each.size_bytes * each.count)


def place(frames: Iterable[Mapping[str, Any]]) -> str:
    """Return the innermost Python line that is no part of PyTorch, with two parts of its path.

    >>> place([{"filename": "/x/torch/nn/linear.py", "line": 1, "name": "f"},
    ...        {"filename": "/y/models/gemma/mlp.py", "line": 7, "name": "forward"}])
    'gemma/mlp.py:7 forward'
    """
    found = ""
    for frame in frames:
        parts = str(frame.get("filename", "")).replace("\\", "/").split("/")
        if not parts[-1].endswith(".py"):
            continue
        found = f"{'/'.join(parts[-2:])}:{frame.get('line')} {frame.get('name')}"
        if "torch" not in parts:
            return found
    return found or "the backward pass, or code without Python lines"


def thin(curve: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return at most `MOST_POINTS` points, in each stretch the highest.

    >>> thin([(0, 1), (1, 5)])
    [(0, 1), (1, 5)]
    """
    width = -(-len(curve) // MOST_POINTS) or 1
    stretches = (curve[i : i + width] for i in range(0, len(curve), width))
    return [max(stretch, key=lambda point: point[1]) for stretch in stretches]
