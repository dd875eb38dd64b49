"""What train and evaluation rows share: equal rows, equal questions, near-duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ..errors import DataError
from .instruction_rows import PlacedRow
from .instruction_splits import Splits, question_key, row_key
from .near_duplicates import THRESHOLD, Match, ShingleIndex
from .problems import ProblemLog

HELD = ("test", "valid")
KINDS = ("equal", "same_question", "near")
EXAMPLES_KEPT = 5
# Train rows compared at once; a row of a hundred tokens takes about 6 kB meanwhile.
ROWS_AT_ONCE = 100_000


class Likeness(NamedTuple):
    """How a train row resembles row number `of` of an evaluation split."""

    kind: str
    of: int
    similarity: float | None  # of shingles; None where that was not what told


def compare_splits(
    splits: Splits, log: ProblemLog, *, remove: bool
) -> tuple[Splits, dict[str, Any]]:
    """Find train rows that repeat each other or an evaluation row, and remove the latter if asked.

    A train row is *equal* to an evaluation row (but for white space), of the *same question*, or
    *near* (Jaccard similarity of question and answer >= `near_duplicates.THRESHOLD`); each counts
    once, by the first that holds.

    Returns:
        The splits, and counts per evaluation split and within train, with examples.

    Raises:
        DataError: Rows were to be removed, and none would be left.
    """
    train = splits["train"]
    near, within = _near_rows(splits, log)
    found = {name: _likenesses(train, splits[name], near[name]) for name in HELD}
    bad = sorted(set().union(*found.values()))
    like = {
        name: {kind: sum(one.kind == kind for one in rows.values()) for kind in KINDS}
        for name, rows in found.items()
    }
    if bad:
        detail = ", ".join(f"{len(rows):,} like {name}" for name, rows in found.items())
        log.add("like_evaluation", train[bad[0]].file, train[bad[0]].line, detail, n=len(bad))
    if remove and bad:
        log.add("removed_rows", train[0].file, None, n=len(bad))
        train = _without(train, set(bad))
    facts = {
        "threshold": THRESHOLD,
        "train_rows_like": like,
        "train_rows_like_any": len(bad),
        "removed": len(bad) if remove else 0,
        "within_train": within,
        "examples": list(_examples(splits, found)),
    }
    return splits | {"train": train}, facts


def _without(train: list[PlacedRow], bad: set[int]) -> list[PlacedRow]:
    left = [placed for at, placed in enumerate(train) if at not in bad]
    if not left:
        raise DataError(
            "Every train row equals or nearly equals an evaluation row, and these were to be "
            "removed.",
            fix="set remove_duplicates=False, or give other evaluation rows.",
        )
    return left


def _near_rows(
    splits: Splits, log: ProblemLog
) -> tuple[dict[str, dict[int, Match]], dict[str, int | None]]:
    """Near-duplicates of each evaluation split by train row, and counts within train.

    Train is taken in blocks, so that memory stays bounded; with more than one block, repeats within
    train are not looked for beyond equal rows (None).
    """
    train, held = splits["train"], [*splits["test"], *splits["valid"]]
    n_test, n_held = len(splits["test"]), len(held)
    places = {"test": range(n_test), "valid": range(n_test, n_held)}
    near: dict[str, dict[int, Match]] = {name: {} for name in HELD}
    equal, n_near = _equal_rows(train, log), None
    for start in range(0, len(train), ROWS_AT_ONCE):
        block = train[start : start + ROWS_AT_ONCE]
        index = ShingleIndex(_texts([*held, *block]))
        for name, references in places.items():
            for match in index.matches(range(n_held, len(index)), references):
                at, of = match.row - n_held + start, match.of - references.start
                near[name][at] = Match(at, of, match.similarity)
        if len(block) == len(train):
            rows = [n_held + at for at in range(len(train)) if at not in equal]
            n_near = _tell_repeats(index.repeats(rows), splits, n_held, log)
    return near, {"equal": len(equal), "near": n_near}


def _texts(rows: Iterable[PlacedRow]) -> list[str]:
    return [f"{placed.row.question}\n{placed.row.answer}" for placed in rows]


def _equal_rows(train: list[PlacedRow], log: ProblemLog) -> set[int]:
    """Rows that equal an earlier one."""
    first: dict[str, int] = {}
    equal = [at for at, placed in enumerate(train) if first.setdefault(row_key(placed), at) != at]
    if equal:
        place = train[equal[0]]
        log.add("equal_rows", place.file, place.line, n=len(equal))
    return set(equal)


def _tell_repeats(repeats: list[Match], splits: Splits, n_held: int, log: ProblemLog) -> int:
    if repeats:
        first, train = repeats[0], splits["train"]
        place, other = train[first.row - n_held], train[first.of - n_held]
        detail = f"like {other.file}:{other.line}, similarity {first.similarity:.2f}"
        log.add("near_rows", place.file, place.line, detail, n=len(repeats))
    return len(repeats)


def _likenesses(
    train: list[PlacedRow], held: list[PlacedRow], near: dict[int, Match]
) -> dict[int, Likeness]:
    rows: dict[str, int] = {}
    questions: dict[str, int] = {}
    for at, placed in enumerate(held):
        rows.setdefault(row_key(placed), at)
        questions.setdefault(question_key(placed), at)
    found: dict[int, Likeness] = {}
    for at, placed in enumerate(train):
        equal, same = rows.get(row_key(placed)), questions.get(question_key(placed))
        if equal is not None:
            found[at] = Likeness("equal", equal, 1.0)
        elif same is not None:
            found[at] = Likeness("same_question", same, None)
        elif at in near:
            found[at] = Likeness("near", near[at].of, round(near[at].similarity, 3))
    return found


def _examples(splits: Splits, found: dict[str, dict[int, Likeness]]) -> Iterator[dict[str, Any]]:
    for name, rows in found.items():
        for at, likeness in list(rows.items())[:EXAMPLES_KEPT]:
            one, other = splits["train"][at], splits[name][likeness.of]
            yield {
                "row": f"{one.file}:{one.line}",
                "like": f"{other.file}:{other.line}",
                "kind": likeness.kind,
                "similarity": likeness.similarity,
            }
