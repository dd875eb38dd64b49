"""Predict the configurations of the memory grid, and choose the runs under a cap.

    python benchmarks/memory_grid.py predict PRED.json [NAME ...] [--gpu h200] [--at-once 2]
    python benchmarks/memory_grid.py borders PRED.json [--per-cap 8]

Predict with the library versions of the machine that measures. PRED.json is added to; the events
of each simulated step are kept beside it, in PRED-events/NAME.json.gz.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import select
import signal
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks import memory_cases
from benchmarks.memory_measure import load_libraries, versions
from nbhelpers.budget.memory import (
    DOES_NOT_FIT,
    FITS,
    QLORA_SAFETY_FACTOR,
    SAFETY_FACTOR,
    verdict_of,
)

GIB = 2**30
CAPS_GIB = (14.3, 22.0, 38.9, 47.0)
CHILD_S = 240.0


def verdict_under(name: str, allocated: int, reserved: int, cap_gib: float) -> str:
    """Return the verdict for an allocator that may reserve this much; no context counts here."""
    quantised = bool(memory_cases.find_case(name)["quantise"])
    return verdict_of(
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        context_bytes=0,
        room_bytes=cap_gib * GIB,
        safety=QLORA_SAFETY_FACTOR if quantised else SAFETY_FACTOR,
    )


class Listener:
    """Keeps the events of the simulated allocator, with the operation that each belongs to."""

    def __init__(self) -> None:
        from nbhelpers.simulate.state import State

        self.events: list[list[Any]] = []
        self.starts: list[tuple[int, int]] = []  # of each step: its first event, bytes before
        self.state: Any = None
        numbers: dict[int, int] = {}
        allocate, free = State.allocate, State.free

        def heard_allocate(state: Any, size_bytes: int, category: str, what: str = "") -> Any:
            handle = allocate(state, size_bytes, category, what)
            if handle is not None:
                self.state = state
                numbers[id(handle)] = len(self.events)
                phase = state.forced_phase or state.phase_now
                self.events.append(
                    ["a", size_bytes, len(self.events), f"{phase}: {what} [{category}]"]
                )
            return handle

        def heard_free(state: Any, handle: Any) -> None:
            if handle is not None:
                self.events.append(["f", handle[2], numbers.pop(id(handle), -1)])
            free(state, handle)

        State.allocate, State.free = heard_allocate, heard_free

    def mark_step(self) -> None:
        """Say that a step begins."""
        before = self.state.allocator.allocated if self.state is not None else 0
        self.starts.append((len(self.events), before))

    def write(self, path: Path) -> None:
        """Write the events of the last step in the form of `memory_measure.write_events`."""
        if not self.starts:  # the build could not be followed
            return
        first, before = self.starts[-1]
        events = [
            [each[0], each[1], max(each[2] - first, -1), *each[3:]] for each in self.events[first:]
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt") as file:
            json.dump({"before_bytes": before, "events": events}, file, separators=(",", ":"))


def predict(name: str, options: argparse.Namespace, events: Path) -> dict[str, Any]:
    """Simulate one configuration and return what is compared later."""
    from benchmarks.memory_cases_steps import make
    from nbhelpers.simulate import simulate_step

    case = memory_cases.find_case(name)
    build, step = make(case)
    listener = Listener()

    def marked(*built: Any) -> Any:
        listener.mark_step()
        return step(*built)

    budget = simulate_step(
        build, marked, gpu=options.gpu, expandable_segments=memory_cases.is_expandable(name)
    )
    listener.write(events)
    found = {
        "allocated_bytes": budget.allocated_bytes,
        "reserved_bytes": budget.reserved_bytes,
        "verdict": budget.verdict,
        "opaque": list(budget.opaque),
        "notes": list(budget.notes),
        "phases": {line.name: line.size_bytes for line in budget.phases},
        "lines": {line.name: line.size_bytes for line in budget.lines},
    }
    sizes = (budget.allocated_bytes, budget.reserved_bytes or budget.allocated_bytes)
    found["caps"] = {str(cap): verdict_under(name, *sizes, cap) for cap in CAPS_GIB}
    return found


def child(name: str, options: argparse.Namespace, pipe: int) -> None:
    """Predict in this process, hand the result to the parent, and end."""
    found: dict[str, Any] = {"name": name}
    started = time.monotonic()
    events = options.out.with_name(options.out.stem + "-events") / f"{name}.json.gz"
    try:
        found |= predict(name, options, events)
    except Exception as error:
        found |= {"error": type(error).__name__, "text": str(error)[:800]}
        found["traceback"] = traceback.format_exc()[-3000:]
    found["seconds"] = round(time.monotonic() - started, 2)
    with os.fdopen(pipe, "wb") as file:
        file.write(json.dumps(found).encode())
    os._exit(0)


def predict_all(options: argparse.Namespace) -> None:
    """Predict all names, some at a time, and add each to the file at once."""
    load_libraries()
    _load_quantisation()
    todo = list(options.names or memory_cases.ALL)
    running: dict[int, tuple[int, str, float, bytes]] = {}
    while todo or running:
        while todo and len(running) < options.at_once:
            read, write = os.pipe()
            name = todo.pop(0)
            pid = os.fork()
            if pid == 0:
                os.close(read)
                child(name, options, write)
            os.close(write)
            running[read] = (pid, name, time.monotonic() + CHILD_S, b"")
        for pipe in select.select(list(running), [], [], 2.0)[0]:
            pid, name, until, data = running.pop(pipe)
            if more := os.read(pipe, 1 << 20):
                running[pipe] = (pid, name, until, data + more)
                continue
            os.close(pipe)
            os.waitpid(pid, 0)
            keep(options, json.loads(data) if data else {"name": name, "error": "Died"})
        for pid, _, until, _ in running.values():
            if time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)


def _load_quantisation() -> None:
    """Import bitsandbytes once for all children, if it is there: no CUDA is near."""
    import contextlib

    with contextlib.suppress(ImportError):
        import bitsandbytes  # noqa: F401


def read(path: Path) -> dict[str, Any]:
    """Return a file of predictions, or an empty one."""
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    return {"predictions": []}


def keep(options: argparse.Namespace, row: dict[str, Any]) -> None:
    """Put a row into the file of predictions, in the place of an earlier one, and print it."""
    data = read(options.out)
    rows = [old for old in data["predictions"] if old["name"] != row["name"]]
    data = {"gpu": options.gpu, "versions": versions()}
    data["predictions"] = sorted([*rows, row], key=lambda each: each["name"])
    options.out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    told = row.get("error", "") and f"{row['error']}: {row.get('text', '')[:200]}"
    if "allocated_bytes" in row:
        told = f"{row['allocated_bytes'] / GIB:7.3f} {(row['reserved_bytes'] or 0) / GIB:7.3f}"
        told += f" {'; '.join(row['opaque'])[:100]}"
    print(f"{row['name']:44s} {told}  {row.get('seconds', 0):.1f} s", flush=True)


def borders(rows: list[dict[str, Any]], per_cap: int) -> list[str]:
    """Return NAME@CAP for the configurations nearest to both borders of each cap.

    Half of them are the tightest that should fit, half the smallest that should not.
    """
    chosen = []
    for cap in CAPS_GIB:
        known = [
            row
            for row in rows
            if row.get("reserved_bytes")
            and not row["opaque"]
            and not row["name"].startswith("job-")
        ]
        verdicts = {
            row["name"]: verdict_under(
                row["name"], row["allocated_bytes"], row["reserved_bytes"], cap
            )
            for row in known
        }
        fits = [row for row in known if verdicts[row["name"]] == FITS]
        not_fit = [row for row in known if verdicts[row["name"]] == DOES_NOT_FIT]
        fits.sort(key=lambda row: -row["reserved_bytes"])
        not_fit.sort(key=lambda row: row["allocated_bytes"])
        half = per_cap // 2
        chosen += [f"{row['name']}@{cap}" for row in fits[:half] + not_fit[: per_cap - half]]
    return chosen


def main() -> None:
    """Read the arguments and do what is asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["predict", "borders"])
    parser.add_argument("out", type=Path, help="file of predictions")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--per-cap", type=int, default=10)
    options = parser.parse_args()
    if options.what == "predict":
        options.out.parent.mkdir(parents=True, exist_ok=True)
        predict_all(options)
    else:
        print("\n".join(borders(read(options.out)["predictions"], options.per_cap)))


if __name__ == "__main__":
    main()
