"""Further programs for a trained detector: only those that its training cannot have known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from nbhelpers.data.canonical import canonical
from nbhelpers.data.detection import CodeRow
from nbhelpers.data.detection_groups import NearRows
from nbhelpers.data.detection_words import language_of

REASONS = {
    "other_language": "in other languages",
    "not_human": "not human",
    "repeated": "repeated",
    "same_code": "known from train or valid",
    "task": "of a task of train or valid",
    "author": "by an author of train or valid",
    "near_code": "like a program of train or valid",
}


def new_rows(
    rows: Sequence[CodeRow],
    known: Sequence[CodeRow],
    *,
    languages: Sequence[str] = (),
    only_humans: bool = False,
) -> tuple[list[CodeRow], dict[str, int]]:
    """Return the rows that are new beside the known ones, and how many are left out by reason.

    A row that shares its task with train is no test of retrieval, and one that is like a known
    program, or by a known person, is not unseen. Valid counts as known: the threshold and the best
    checkpoint were chosen on it.

    Args:
        rows: In their order; of equal texts the first stays.
        known: Rows of train and valid.
        languages: Keep the rows in these; none: all.
        only_humans: Leave out AI code, and code of the known rows' authors.
    """
    people = {row.author.casefold() for row in known if row.label != "ai"} - {""}
    tasks = {row.task for row in known} - {""}
    texts = {canonical(row.code, "flat") for row in known}
    seen: set[str] = set()

    asked = {language_of(name) for name in languages}

    def reasons(row: CodeRow, text: str) -> Iterator[str]:
        if asked and row.language not in asked:
            yield "other_language"
        if only_humans and row.label == "ai":
            yield "not_human"
        if text in seen:
            yield "repeated"
        if text in texts:
            yield "same_code"
        if row.task in tasks:
            yield "task"
        if only_humans and row.author.casefold() in people:
            yield "author"

    kept, left_out = [], Counter[str]()
    for row in rows:
        text = canonical(row.code, "flat")
        reason = next(reasons(row, text), None)
        if reason is None:
            seen.add(text)
            kept.append(row)
        else:
            left_out[reason] += 1
    like = _like(kept, known)
    left_out["near_code"] = int(like.sum())
    kept = [row for row, is_like in zip(kept, like, strict=True) if not is_like]
    return kept, {reason: left_out[reason] for reason in REASONS if left_out[reason]}


def _like(rows: Sequence[CodeRow], known: Sequence[CodeRow]) -> np.ndarray:
    """Return (rows,) whether each resembles a known one."""
    texts = [canonical(row.code, "text") for row in (*known, *rows)]
    places = np.arange(len(texts))
    return NearRows(texts).like(places[len(known) :], places[: len(known)]) >= 0


def left_out_said(left_out: dict[str, int]) -> str:
    """Write how many rows are left out, and why.

    >>> left_out_said({"task": 2, "near_code": 1})
    '2 of a task of train or valid, 1 like a program of train or valid'
    """
    return ", ".join(f"{n:,} {REASONS[reason]}" for reason, n in left_out.items())
