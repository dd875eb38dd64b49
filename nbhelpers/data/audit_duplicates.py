"""Rows that repeat others: equal, equal but for white space, and nearly equal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from .audit_rows import CHARACTERS_READ, Row
from .near_duplicates import THRESHOLD, Match, ShingleIndex

EXAMPLES = 5
MAX_COMPARED = 60_000  # rows whose texts are compared for nearness; a row takes about 6 kB
HELD = ("valid", "val", "validation", "dev", "test", "held_out")


def duplicate_facts(
    rows: Sequence[Row], compared: Sequence[int], clean: Callable[[str], str]
) -> dict[str, Any]:
    """Count repeats within and across splits and labels, with places.

    Args:
        rows: Labelled rows.
        compared: Numbers of the rows whose texts are compared for nearness.
        clean: Takes out what was put into a program to name its label.
    """
    texts = [clean(row.code[:CHARACTERS_READ]) for row in rows]
    flat = [" ".join(text.split()) for text in texts]
    kept = sorted(compared)
    index = ShingleIndex(texts[at] for at in kept)
    places = {at: number for number, at in enumerate(kept)}
    return {
        "threshold": THRESHOLD,
        "rows_compared": len(kept),
        "equal": _repeats([row.code for row in rows]),
        "equal_but_blanks": _repeats(flat),
        "near": len(index.repeats(range(len(kept)))),
        "across_labels": _across_labels(rows, flat),
        "across_splits": _across_splits(rows, flat, index, places),
        "ai_like_human": _ai_like_human(rows, kept, index),
    }


def _repeats(texts: Sequence[str]) -> int:
    """Rows that equal an earlier one."""
    return len(texts) - len(set(texts))


def _across_labels(rows: Sequence[Row], flat: Sequence[str]) -> dict[str, Any]:
    """Texts that stand under both labels."""
    groups: dict[str, list[int]] = defaultdict(list)
    for at, text in enumerate(flat):
        groups[text].append(at)
    mixed = [found for found in groups.values() if len({rows[at].label for at in found}) > 1]
    examples = [
        " and ".join(f"{rows[at].place} ({rows[at].label})" for at in found[:3])
        for found in mixed[:EXAMPLES]
    ]
    return {"texts": len(mixed), "rows": sum(map(len, mixed)), "examples": examples}


def _across_splits(
    rows: Sequence[Row], flat: Sequence[str], index: ShingleIndex, places: dict[int, int]
) -> dict[str, Any] | None:
    """Train rows that equal, or nearly equal, a row that is held out; None without such splits."""
    held = {at for at, row in enumerate(rows) if row.split in HELD}
    train = [at for at, row in enumerate(rows) if row.split == "train"]
    if not held or not train:
        return None
    seen = {flat[at] for at in held}
    equal = {at for at in train if flat[at] in seen}
    at_of = {number: at for at, number in places.items()}
    found = index.matches(
        [places[at] for at in train if at in places and at not in equal],
        [places[at] for at in sorted(held) if at in places],
    )
    return {"equal": len(equal), "near": len(found), "examples": _examples(rows, found, at_of)}


def _ai_like_human(rows: Sequence[Row], kept: Sequence[int], index: ShingleIndex) -> dict[str, Any]:
    """AI rows that equal or nearly equal a human row, in shingles of tokens."""
    ai = [number for number, at in enumerate(kept) if rows[at].label == "ai"]
    human = [number for number, at in enumerate(kept) if rows[at].label == "human"]
    found = index.matches(ai, human)
    return {
        "rows": len(found),
        "equal": sum(match.similarity == 1 for match in found),
        "of": len(ai),
        "share": round(len(found) / len(ai), 4) if ai else 0.0,
        "examples": _examples(rows, found, dict(enumerate(kept))),
    }


def _examples(rows: Sequence[Row], found: list[Match], at_of: dict[int, int]) -> list[str]:
    return [
        f"{rows[at_of[match.row]].place} and {rows[at_of[match.of]].place} ({match.similarity:.2f})"
        for match in found[:EXAMPLES]
    ]


def known_human_facts(
    rows: Sequence[Row], compared: Sequence[int], known: Sequence[str], clean: Callable[[str], str]
) -> dict[str, Any]:
    """AI rows that equal or nearly equal a program that is known to be a person's."""
    ai = [at for at in compared if rows[at].label == "ai"]
    texts = [clean(rows[at].code[:CHARACTERS_READ]) for at in ai]
    index = ShingleIndex([*texts, *(text[:CHARACTERS_READ] for text in known)])
    found = index.matches(range(len(ai)), range(len(ai), len(index)))
    return {
        "known": len(known),
        "rows": len(found),
        "share": round(len(found) / len(ai), 4) if ai else 0.0,
        "examples": [rows[ai[match.row]].place for match in found[:EXAMPLES]],
    }
