"""Events: what a worker tells the world, one JSON line each, one file per rank.

A line is `{"t": unix seconds, "rank": …, "type": …, …}`. The launcher's file has no rank. Writers
append whole lines; readers skip what they cannot parse, because a process may die inside a line.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from nbhelpers.common.files import is_number, parsed

Event = dict[str, Any]
FILE_PATTERN = "events-*.jsonl"
# A reader must find these after a power cut; the frequent ones are only flushed.
DURABLE_TYPES = frozenset({"error", "checkpoint", "stopped", "end", "exit"})
FIRST_PHASE = "check"  # of each attempt of a run


def file_name(rank: int | None) -> str:
    """The file of a rank, or of the launcher for None."""
    return "events-launcher.jsonl" if rank is None else f"events-rank{rank}.jsonl"


class EventWriter:
    """Appends events to one file; each `write` is one system call and visible at once.

    Args:
        path: The file, or a run folder, where the rank names the file. Made when absent; a torn
            last line of an earlier writer is closed first.
        rank: Stamped on every event; None for the launcher.

    Attributes:
        listener: Called with each event once it is written.
    """

    def __init__(self, path: str | Path, rank: int | None = None) -> None:
        path = Path(path)
        self.path = path / file_name(rank) if path.is_dir() else path
        self.rank = rank
        self.listener: Callable[[Event], None] | None = None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        self._fd: int | None = os.open(self.path, flags, 0o644)
        self._is_torn = self._ends_inside_a_line()

    def _ends_inside_a_line(self) -> bool:
        size = os.lseek(self._fd, 0, os.SEEK_END)
        if not size:
            return False
        os.lseek(self._fd, size - 1, os.SEEK_SET)
        return os.read(self._fd, 1) != b"\n"

    def write(self, type: str, /, **fields: Any) -> Event:
        """Append one event and return it as written.

        NaN and infinity become null, as JSON has no word for them; numpy and torch scalars become
        numbers.

        Raises:
            OSError: the file cannot be written, for example on a full disk.
        """
        if self._fd is None:
            raise ValueError(f"the event file {self.path} is closed")
        head: Event = {"t": time.time(), "type": type}
        if self.rank is not None:
            head["rank"] = self.rank
        event = _plain(head | fields)
        line = (b"\n" if self._is_torn else b"") + json.dumps(event).encode() + b"\n"
        self._is_torn = os.write(self._fd, line) != len(line)
        if self._is_torn:
            raise OSError(f"only a part of an event could be written to {self.path}")
        if type in DURABLE_TYPES:
            with contextlib.suppress(OSError):  # some mounted drives have no fsync
                os.fsync(self._fd)
        if self.listener is not None:
            self.listener(event)
        return event

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"EventWriter({str(self.path)!r}, rank={self.rank})"


def read_events(path: str | Path) -> list[Event]:
    """All events of one file, a whole last line without a newline included; [] without a file."""
    try:
        return _parse(Path(path).read_bytes().splitlines())
    except FileNotFoundError:
        return []


def phase_seconds(events: Iterable[Event]) -> dict[str, float]:
    """Return rank 0's seconds by phase, summed over all attempts of a run.

    An attempt begins with the phase `check`; its last phase lasts until its last event,
    so the time between attempts belongs to none. What an attempt lost is counted: it was spent.

    >>> steps = [(0, "check"), (1, "train"), (9, None), (50, "check"), (52, "train"), (60, None)]
    >>> events = [{"t": t, "type": "phase" if name else "step", "name": name} for t, name in steps]
    >>> phase_seconds(events)
    {'check': 3.0, 'train': 16.0}
    """
    seconds: dict[str, float] = {}
    name, since, last = "", 0.0, 0.0
    for event in (e for e in events if e.get("rank", 0) == 0):
        now = float(event["t"])
        if event.get("type") == "phase":
            if name:
                end = last if event.get("name") == FIRST_PHASE else now
                seconds[name] = seconds.get(name, 0.0) + max(0.0, end - since)
            name, since = str(event.get("name")), now
        last = now
    if name:
        seconds[name] = seconds.get(name, 0.0) + max(0.0, last - since)
    return seconds


def tail(path: str | Path, offset: int = 0) -> tuple[list[Event], int]:
    """The events that were completed after byte `offset`, and the offset to continue from.

    A torn last line is left for the next call. A file that became shorter is read from its start.
    """
    try:
        with Path(path).open("rb") as file:
            if file.seek(0, os.SEEK_END) < offset:
                offset = 0
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], offset
    end = data.rfind(b"\n") + 1
    return _parse(data[:end].splitlines()), offset + end


def last_events(path: str | Path, *, offset: int = 0, max_bytes: int = 1 << 18) -> list[Event]:
    """The events of the last `max_bytes` of a file, none from before byte `offset`."""
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - max_bytes, offset if offset <= size else 0))
            return _parse(file.read().splitlines())
    except FileNotFoundError:
        return []


def merge(folder: str | Path) -> list[Event]:
    """The events of every rank and of the launcher, ordered by time."""
    files = sorted(Path(folder).glob(FILE_PATTERN))
    return sorted((e for file in files for e in read_events(file)), key=lambda event: event["t"])


def _parse(lines: Iterable[bytes]) -> list[Event]:
    """Return the events of whole lines; a torn one, which a killed process leaves, is left out."""
    events = (event for line in lines if (event := parsed(line)) is not None)
    return [e for e in events if is_number(e.get("t")) and isinstance(e.get("type"), str)]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy and torch, without importing either
        return _plain(value.tolist())
    return str(value)
