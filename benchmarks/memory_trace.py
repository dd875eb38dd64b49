"""Find where a simulated step and a measured one differ, by the events of their allocators.

    python benchmarks/memory_trace.py PRED-events/NAME.json.gz events/NAME.json.gz [--least KIB]

Prints the first and the largest allocations that only one of the two has, and what is alive at the
two peaks by size, with the operation that the simulation saw.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

MIB = 2**20


def read(path: Path) -> dict[str, Any]:
    """Return the events of a step."""
    with gzip.open(path, "rt") as file:
        return json.load(file)


def allocations(events: list[list[Any]], least: int) -> list[tuple[int, str]]:
    """Return (bytes, operation) of the allocations of at least so many bytes, in order."""
    return [
        (each[1], each[3] if len(each) > 3 else "")
        for each in events
        if each[0] == "a" and each[1] >= least
    ]


def peak(data: dict[str, Any]) -> tuple[int, int, Counter[tuple[int, str]]]:
    """Return the highest sum above the start, its place, and what was born and alive there."""
    now = high = place = 0
    for at, event in enumerate(data["events"]):
        if event[0] in "af":
            now += event[1] if event[0] == "a" else -event[1]
        if now > high:
            high, place = now, at
    alive: dict[int, list[Any]] = {}
    for event in data["events"][: place + 1]:
        if event[0] == "a":
            alive[event[2]] = event
        elif event[0] == "f":
            alive.pop(event[2], None)
    found = Counter((e[1], e[3] if len(e) > 3 else "") for e in alive.values())
    return high, place, found


def differences(
    predicted: list[tuple[int, str]], measured: list[tuple[int, str]]
) -> list[tuple[int, str, int, str]]:
    """Return (place, "simulated" or "measured", bytes, operations around) where only one has it."""
    match = SequenceMatcher(None, [s for s, _ in predicted], [s for s, _ in measured], False)
    found = []
    for kind, a, b, c, d in match.get_opcodes():
        if kind == "equal":
            continue
        near = predicted[a][1] if a < len(predicted) else "the end"
        found += [(at, "simulated", *predicted[at]) for at in range(a, b)]
        found += [(a, "measured", measured[at][0], f"before {near}") for at in range(c, d)]
    return found


def show(rows: list[tuple[int, str, int, str]], title: str, count: int) -> None:
    """Print some differences."""
    print(f"\n{title}")
    for place, side, size, near in rows[:count]:
        print(f"  #{place:6d} only {side:9s} {size / MIB:12.3f} MiB  {near}")


def show_peaks(predicted: dict[str, Any], measured: dict[str, Any], count: int) -> None:
    """Print what is alive at both peaks, by size, where the counts differ."""
    high, _, ours = peak(predicted)
    real_high, _, theirs = peak(measured)
    before, real_before = predicted["before_bytes"], measured["before_bytes"]
    print(f"before the step: {before / MIB:.1f} simulated, {real_before / MIB:.1f} measured MiB")
    print(f"peak above it:   {high / MIB:.1f} simulated, {real_high / MIB:.1f} measured MiB")
    names: dict[int, Counter[str]] = {}
    for (size, name), number in ours.items():
        names.setdefault(size, Counter())[name] += number
    real = Counter()
    for (size, _), number in theirs.items():
        real[size] += number
    sizes = {s: names.get(s, Counter()).total() - real[s] for s in names.keys() | real.keys()}
    print("\nalive at the peak, where the counts differ (simulated - measured):")
    for size in sorted(sizes, key=lambda s: -abs(sizes[s]) * s)[:count]:
        if sizes[size]:
            told = ", ".join(f"{n} x {name}" for name, n in names.get(size, {}).items())
            print(f"  {sizes[size]:+4d} x {size / MIB:12.3f} MiB  {told[:150]}")


def main() -> None:
    """Read the arguments and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("predicted", type=Path)
    parser.add_argument("measured", type=Path)
    parser.add_argument("--least", type=float, default=64.0, help="smallest allocation, KiB")
    parser.add_argument("--count", type=int, default=15)
    options = parser.parse_args()
    predicted, measured = read(options.predicted), read(options.measured)
    show_peaks(predicted, measured, options.count)
    least = int(options.least * 1024)
    rows = differences(
        allocations(predicted["events"], least), allocations(measured["events"], least)
    )
    print(f"\n{len(rows)} allocations of {options.least:g} KiB or more differ")
    show(rows, "first:", options.count)
    show(sorted(rows, key=lambda row: -row[2]), "largest:", options.count)


if __name__ == "__main__":
    main()
