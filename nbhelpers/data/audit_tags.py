"""Tags: words, lines or signs whose mere presence tells the label."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from .audit_rows import CLASSES, Row
from .audit_text import ANY_NUMBER, units

PLACES = (
    "first line",
    "comment",
    "last line",
    "line",
    "start",
    "end",
    "word",
    "character",
)
FIXED = {"first line", "last line", "start", "end"}
# Words that say who wrote something; with those of the rows' own generators.
LABEL_WORDS = {"ai", "human", "humans", "gpt", "chatgpt", "llm", "generated", "synthetic", "label"}
LABEL_WORDS |= {"machine", "copilot", "gemini", "claude", "llama", "codex", "detection"}

MIN_COUNT = 10  # rows that hold it
PURE = 0.98  # share of the class among its holders, both classes weighing alike
TOLD_SHARE = 0.1  # of the rows of a class; less is not told
# A leak at these shares: the more a text looks like a tag by its place or its words, the fewer.
# 85 % of one site's people have a word of its docstrings (`rtype`), and much else tells them.
LEAK_SHARE = {"label": 0.2, "fixed": 0.4, "comment": 0.6, "any": 0.9}
SAME_ROWS = 0.7  # Jaccard similarity of the rows of two texts that are one tag
FOLLOWS = 0.9
KEPT = 6
STEPS = 20  # texts whose shares differ by less than a twentieth are told by place and length
NUMBER_SHOWN = "<number>"
_PART = re.compile(rf"{NUMBER_SHOWN}|\w+|[^\w\s]")


class Tag(NamedTuple):
    """A text that tells the label: shares are of the rows of each class that hold it."""

    text: str
    place: str
    label: str
    share: float
    other_share: float
    is_leak: bool
    names_label: bool
    example: str

    @property
    def auc(self) -> float:
        """Area under the ROC curve of the mere presence."""
        return 0.5 + abs(self.share - self.other_share) / 2

    def sentence(self) -> str:
        """Say where the tag stands and in how many rows."""
        where = {"start": "at the start", "end": "at the end", "word": "(a word)"}
        place = where.get(self.place, f"({self.place})")
        other = CLASSES[1 - CLASSES.index(self.label)]
        return (
            f"{self.text!r} {place} stands in {self.share:.1%} of the {self.label} rows and in "
            f"{self.other_share:.1%} of the {other} rows"
        )


def find_tags(
    human: Sequence[Row], ai: Sequence[Row], *, words: Iterable[str] = (), only_named: bool = False
) -> list[Tag]:
    """Return the texts that tell the label, the strongest first, one for each set of rows.

    Args:
        human: Human rows.
        ai: AI rows, best in the same languages.
        words: Further words that name a label, such as generators.
        only_named: Tell only texts that name a label: the classes differ in other ways anyhow.
    """
    named = LABEL_WORDS | {word.lower() for word in words if len(word) > 1}
    rows = {"human": list(human), "ai": list(ai)}
    if min(map(len, rows.values())) < MIN_COUNT:
        return []
    sets = {label: [units(row.code) for row in found] for label, found in rows.items()}
    counts = {
        label: Counter(unit for one in found for unit in one) for label, found in sets.items()
    }
    found = [
        (*unit, label)
        for label in CLASSES
        for unit in counts[label]
        if _is_told(counts, rows, unit, label)
    ]
    if only_named:
        found = [one for one in found if _names_label(one[1], named)]
    found.sort(key=lambda one: _order(one, counts, rows))
    return [_tag(one, counts, rows, sets, named) for one in _distinct(found, counts, rows, sets)]


def without_tags(code: str, tags: Sequence[Tag]) -> str:
    """Return a program without the texts of tags: their lines, comments or words, or themselves."""
    for tag in tags:
        pattern, is_case_told = _pattern(tag.text, tag.place)
        flags = re.MULTILINE if is_case_told else re.MULTILINE | re.IGNORECASE
        code = re.sub(pattern, "", code, flags=flags)
    return code


@lru_cache(maxsize=64)
def _pattern(text: str, place: str) -> tuple[str, bool]:
    """A regular expression for a tag in its place, and whether upper case is told from lower."""
    spaced = place in ("start", "end")
    parts = _PART.findall(text) if spaced else re.split(f"({NUMBER_SHOWN})", text)
    shown = (r"\d+" if part == NUMBER_SHOWN else re.escape(part) for part in parts)
    one = (r"\s*" if spaced else "").join(shown)
    around = {
        "comment": rf"(?:\#+|//+|--|/\*+)\s*{one}[^\n]*$",
        "start": rf"\A\s*{one}",
        "end": rf"{one}\s*\Z",
        "word": rf"\w*{one}\w*" if text[:1].isalnum() else one,
    }
    is_line = place in ("first line", "last line", "line")
    return rf"^[ \t]*{one}[^\n]*\n?" if is_line else around.get(place, one), place != "word"


def _is_told(counts: Any, rows: Any, unit: tuple[str, str], label: str) -> bool:
    n, share, other = _shares(counts, rows, unit, label)
    return n >= MIN_COUNT and share >= TOLD_SHARE and share >= PURE * (share + other)


def _shares(counts: Any, rows: Any, unit: tuple[str, str], label: str) -> tuple[int, float, float]:
    against = CLASSES[1 - CLASSES.index(label)]
    n = counts[label][unit]
    return n, n / len(rows[label]), counts[against][unit] / len(rows[against])


def _order(one: tuple[str, str, str], counts: Any, rows: Any) -> tuple[int, int, int, str]:
    place, text, label = one
    _, share, other = _shares(counts, rows, (place, text), label)
    return -round(STEPS * (share - other)), PLACES.index(place), -len(text), text


def _distinct(
    found: list[tuple[str, str, str]], counts: Any, rows: Any, sets: Any
) -> list[tuple[str, str, str]]:
    """Leave out what only repeats, lengthens or follows from a text that is kept."""
    kept: list[tuple[tuple[str, str, str], set[int]]] = []
    first = 0.0  # share of the strongest tag that may stand at a fixed place
    for one in found:
        place, text, label = one
        share = _shares(counts, rows, (place, text), label)[1]
        # A tag at the start moves what stood there: `class` then starts human programs only.
        if place in FIXED and share < FOLLOWS * first:
            continue
        holders = {at for at, held in enumerate(sets[label]) if (place, text) in held}
        if not any(_is_same(one, holders, *other) for other in kept):
            kept.append((one, holders))
            moves = place in FIXED or share >= LEAK_SHARE["any"]
            first = max(first, share if moves else 0.0)
        if len(kept) == KEPT:
            break
    return [one for one, _ in kept]


def _is_same(
    one: tuple[str, str, str], holders: set[int], other: tuple[str, str, str], held: set[int]
) -> bool:
    if one[2] != other[2]:
        return False
    short, long = (re.sub(r"[\W_]+", "", text) for text in (other[1], one[1]))
    is_part = min(len(short), len(long)) > 1 and (short in long or long in short)
    return is_part or len(holders & held) >= SAME_ROWS * len(holders | held)


def _tag(one: tuple[str, str, str], counts: Any, rows: Any, sets: Any, named: set[str]) -> Tag:
    place, text, label = one
    _, share, other = _shares(counts, rows, (place, text), label)
    holder = next(
        row for row, held in zip(rows[label], sets[label], strict=True) if (place, text) in held
    )
    names_label = _names_label(text, named)
    kind = "fixed" if place in FIXED else "comment" if place == "comment" else "any"
    needed = LEAK_SHARE["label" if names_label else kind]
    shown = _as_written(text, place, holder.code)
    is_leak = share - other >= needed
    return Tag(shown, place, label, share, other, is_leak, names_label, holder.place)


def _names_label(text: str, named: set[str]) -> bool:
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower())
    return not named.isdisjoint(words)


def _as_written(text: str, place: str, code: str) -> str:
    """The text with its own white space, where tokens were joined by blanks."""
    if place not in ("start", "end") or ANY_NUMBER in text:
        return text.replace(ANY_NUMBER, NUMBER_SHOWN)
    spaced = r"\s*".join(re.escape(token) for token in text.split(" "))
    found = list(re.finditer(spaced, code))
    return found[0 if place == "start" else -1][0] if found else text
