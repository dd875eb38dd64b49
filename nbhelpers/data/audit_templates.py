"""Whether the rows of a class are few templates with other names, numbers and texts filled in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from .audit_rows import Row
from .audit_text import statements
from .near_duplicates import ShingleIndex

MIN_ROWS = 50
ROWS_PER_TASK = 3  # several answers to one question may be alike; only that
MANY_TASKS = 30  # a class with fewer tasks gets no such allowance: the tasks are the templates
MIN_STATEMENTS = 4  # shorter programs are alike by nature
MIN_SHORT = 200  # rows of a class of short programs, so many of one shape are no chance
SHORT_SHAPES = 5
# Natural sets of 500 to 9,000 rows: half the rows need at least 38 % as many shapes, and the
# statements below cover 2 to 20 % of the rows, 43 % where programs have five statements.
FEW_SHAPES = 0.05
STATEMENTS_PER_LENGTH = 20
COVERED = 0.6
SHAPES_COMPARED = 300
TEMPLATE_SHARE = 0.01
ONE_TEMPLATE = 0.6  # Jaccard similarity of masked texts that come from one template
EXAMPLES = 5


def template_facts(rows: Sequence[Row]) -> dict[str, Any]:
    """Measure how many shapes stand behind the rows of one class.

    A *shape* is a program's statements with names, numbers, texts, operators and comments masked.
    `is_collapsed` where few shapes make up half of the rows, or where few statements make up most
    rows wholly (templates with optional parts have many shapes, but few statements).

    Args:
        rows: Rows of one class, a sample of it if it is large.
    """
    kept = _spread(rows)
    found = [(row, masked) for row in kept if len(masked := statements(row.code, row.language))]
    long = [(row, masked) for row, masked in found if len(masked) >= MIN_STATEMENTS]
    facts: dict[str, Any] = {"rows": len(kept), "rows_compared": len(long), "is_collapsed": False}
    few = FEW_SHAPES
    if len(long) < max(MIN_ROWS, len(kept) // 2):
        if len(found) < MIN_SHORT:
            return facts | {"skipped": "too few rows of enough statements"}
        long, few = found, SHORT_SHAPES / len(found)
    shapes = Counter("\n".join(masked) for _, masked in long)
    half = _rows_for_half(shapes, len(long))
    covered, used = _covered([masked for _, masked in long])
    is_collapsed = half <= few * len(long) or (long is not found and covered >= COVERED)
    facts |= {
        "rows_compared": len(long),
        "shapes": len(shapes),
        "shapes_of_half": half,
        "statements_of_most": used,
        "covered_share": round(covered, 4),
        "is_collapsed": is_collapsed,
    }
    return facts | (_templates(shapes, long) if is_collapsed else {})


def _spread(rows: Sequence[Row]) -> list[Row]:
    tasks = Counter(row.task for row in rows if row.task)
    if len(tasks) < MANY_TASKS:
        return list(rows)
    seen: Counter[str] = Counter()
    kept = []
    for row in rows:
        seen[row.task] += 1
        if not row.task or seen[row.task] <= ROWS_PER_TASK:
            kept.append(row)
    return kept


def _rows_for_half(shapes: Counter[str], n: int) -> int:
    total = 0
    for count, (_, rows) in enumerate(shapes.most_common(), start=1):
        total += rows
        if 2 * total >= n:
            return count
    return len(shapes)


def _covered(programs: list[list[str]]) -> tuple[float, int]:
    """Share of programs made only of the most frequent statements, and how many those are."""
    count = Counter(one for program in programs for one in set(program))
    length = median(map(len, programs))
    limit = int(min(STATEMENTS_PER_LENGTH * length, len(programs) // 4))
    common = {one for one, _ in count.most_common(limit)}
    whole = sum(common.issuperset(program) for program in programs)
    return whole / len(programs), len(common)


def _templates(shapes: Counter[str], long: list[tuple[Row, list[str]]]) -> dict[str, Any]:
    """About how many templates there are, and an example of the most frequent ones."""
    frequent = [shape for shape, _ in shapes.most_common(SHAPES_COMPARED)]
    index = ShingleIndex(frequent, threshold=ONE_TEMPLATE)
    of = {match.row: match.of for match in index.repeats(range(len(frequent)))}
    rows: Counter[int] = Counter()
    for at, shape in enumerate(frequent):
        rows[of.get(at, at)] += shapes[shape]
    shown = {"\n".join(masked): row for row, masked in reversed(long)}
    named = Counter({str(at): n for at, n in rows.items()})
    most, half = _rows_for_half(named, int(1.8 * len(long))), _rows_for_half(named, len(long))
    # Beside other code a template stands for more than a hundredth of the rows, that code does not.
    needed = min(most, max(half, sum(n >= TEMPLATE_SHARE * len(long) for n in rows.values())))
    examples = [
        {
            "rows": n,
            "share": round(n / len(long), 4),
            "place": shown[frequent[at]].place,
            "code": shown[frequent[at]].code[:400],
        }
        for at, n in rows.most_common(EXAMPLES)
    ]
    return {"templates": needed, "examples": examples}
