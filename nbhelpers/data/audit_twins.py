"""AI rows that are a person's program of the same data, with other names, room or comments, or cut.

Copies that differ so little that words alone show it are counted in `audit_duplicates`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .audit_rows import CHARACTERS_READ, Row
from .audit_text import statements
from .near_duplicates import shingles

MIN_STATEMENTS = 6  # shorter programs have the same statements by nature
MIN_SHINGLES = 20
# Share of a program's shingles that stand in a person's of the same task. In natural sets up to 7 %
# of the AI rows have so many (rewrites of people's programs), elsewhere 2 % at most.
CONTAINED = 0.9
MAX_AI, MAX_HUMAN, MAX_OF_TASK = 2000, 10_000, 20
EXAMPLES = 5
Shingles = set[tuple[str, ...]]


def twin_facts(
    human: Sequence[Row], ai: Sequence[Row], clean: Callable[[str], str]
) -> dict[str, Any]:
    """Count AI rows with the masked statements of a person's program, or within one of its task.

    Args:
        human: Rows of people.
        ai: AI rows, in random order: the first `MAX_AI` are looked at.
        clean: Takes out what was put into a program to name its label.
    """
    ai = ai[:MAX_AI]
    tasks = {row.task for row in ai if row.task}
    near = [row for row in human if row.task in tasks]
    far = [row for row in human if row.task not in tasks]
    kept = [*near, *far][:MAX_HUMAN]
    shapes = {shape: row for row in reversed(kept) if (shape := _shape(row, clean))}
    of_task: dict[str, list[Row]] = {}
    for row in near:
        of_task.setdefault(row.task, []).append(row)
    sets: dict[str, list[tuple[Shingles, Row]]] = {}
    same, within, n = [], [], 0
    for row in ai:
        shape = _shape(row, clean)
        own = _shingles(row, clean)
        if not shape and len(own) < MIN_SHINGLES:
            continue
        n += 1
        if shape and shape in shapes:
            same.append((row, shapes[shape]))
            continue
        if row.task in of_task and row.task not in sets:
            some = of_task[row.task][:MAX_OF_TASK]
            sets[row.task] = [(_shingles(other, clean), other) for other in some]
        if (other := _around(own, sets.get(row.task, ()))) is not None:
            within.append((row, other))
    found = [*same, *within]
    return {
        "of": n,
        "rows": len(found),
        "same_statements": len(same),
        "within": len(within),
        "share": round(len(found) / n, 4) if n else 0.0,
        "examples": [f"{one.place} and {other.place}" for one, other in found[:EXAMPLES]],
    }


def _shape(row: Row, clean: Callable[[str], str]) -> str:
    """The masked statements of a program, nothing for one that is too short."""
    masked = statements(clean(row.code[:CHARACTERS_READ]), row.language)
    return "\n".join(masked) if len(masked) >= MIN_STATEMENTS else ""


def _shingles(row: Row, clean: Callable[[str], str]) -> Shingles:
    return shingles(clean(row.code[:CHARACTERS_READ]))


def _around(own: Shingles, others: Sequence[tuple[Shingles, Row]]) -> Row | None:
    if len(own) < MIN_SHINGLES:
        return None
    needed = CONTAINED * len(own)
    return next((row for held, row in others if len(own & held) >= needed), None)
