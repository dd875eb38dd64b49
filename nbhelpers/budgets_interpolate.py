"""A budget between kept ones: of the same run in all but batch and length.

Memory is the largest of sums that are linear in the batch and convex in the length, so a value
between kept ones is at most too large.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from nbhelpers.budgets_store import Point
from nbhelpers.ledger import MemoryLine
from nbhelpers.memory import MemoryBudget

SOURCE = "interpolated"


def interpolate(points: Sequence[Point], batch: int, seq_len: int) -> MemoryBudget | None:
    """Return the budget of a batch and length from the nearest kept ones around them.

    Returns:
        The budget, whose `source` is "interpolated"; None where the kept ones do not surround it:
        nothing is extrapolated.

    Source: bilinear interpolation in batch and length, line by line.
    """
    known = {(p.batch, p.seq_len): p.budget for p in reversed(points)}  # the first of equal ones
    corners = _corners(list(known), batch, seq_len)
    if corners is None:
        return None
    (low, high), (short, long) = corners
    x, y = _share(batch, low, high), _share(seq_len, short, long)
    weights: dict[tuple[int, int], float] = {}
    for (b, wb), (n, wn) in product(((low, 1 - x), (high, x)), ((short, 1 - y), (long, y))):
        weights[b, n] = weights.get((b, n), 0.0) + wb * wn
    return _mixed([(known[at], weight) for at, weight in weights.items()], sorted(weights))


Range = tuple[int, int]


def _corners(known: list[tuple[int, int]], batch: int, seq_len: int) -> tuple[Range, Range] | None:
    """The smallest rectangle of kept points around one; equal ends where a value is kept itself."""
    have, best = set(known), None
    batches, lengths = sorted({b for b, _ in known}), sorted({n for _, n in known})
    for low, high in _around(batches, batch):
        for short, long in _around(lengths, seq_len):
            if not {(b, n) for b in (low, high) for n in (short, long)} <= have:
                continue
            size = (high / low) * (long / short)
            if best is None or size < best[0]:
                best = (size, ((low, high), (short, long)))
    return best[1] if best else None


def _around(values: list[int], value: int) -> list[Range]:
    below, above = [v for v in values if v <= value], [v for v in values if v >= value]
    return [(low, high) for low in below for high in above if value not in (low, high)] + (
        [(value, value)] if value in values else []
    )


def _share(value: int, low: int, high: int) -> float:
    return 0.0 if low == high else (value - low) / (high - low)


def _mixed(parts: list[tuple[MemoryBudget, float]], at: list[tuple[int, int]]) -> MemoryBudget:
    first = parts[0][0]
    reserved = [budget.reserved_bytes for budget, _ in parts]
    kept = ", ".join(f"{batch} x {seq_len:,}" for batch, seq_len in at)
    notes = dict.fromkeys(note for budget, _ in parts for note in budget.notes)
    lines = _mixed_lines([(budget.lines, weight) for budget, weight in parts])
    return MemoryBudget(
        lines=lines,
        total_bytes=sum(line.size_bytes for line in lines),
        capacity_bytes=None,
        verdict="",
        advice=(),
        source=SOURCE,
        reserved_bytes=None
        if None in reserved
        else round(sum(budget.reserved_bytes * weight for budget, weight in parts)),
        phases=_mixed_lines([(budget.phases, weight) for budget, weight in parts]),
        opaque=tuple(dict.fromkeys(name for budget, _ in parts for name in budget.opaque)),
        notes=(f"interpolated between simulated batch x tokens: {kept}", *notes),
        versions=dict(first.versions),
    )


def _mixed_lines(parts: list[tuple[tuple[MemoryLine, ...], float]]) -> tuple[MemoryLine, ...]:
    """Lines of the same name mixed; a line that a part lacks is nothing there."""
    names = dict.fromkeys(line.name for lines, _ in parts for line in lines)
    mixed = []
    for name in names:
        size, note = 0.0, ""
        for lines, weight in parts:
            size += weight * sum(line.size_bytes for line in lines if line.name == name)
        notes = {line.note for lines, _ in parts for line in lines if line.name == name}
        note = notes.pop() if len(notes) == 1 else "interpolated"
        mixed.append(MemoryLine(name=name, size_bytes=round(size), note=note))
    return tuple(mixed)
