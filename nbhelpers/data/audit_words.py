"""Whether the classes differ at all: words, or statements with masked names, tell or do not."""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from .audit_features import aucs
from .audit_rows import CHARACTERS_READ, CLASSES, Row
from .audit_text import statements

MIN_ROWS = 100  # of each class
MAX_ROWS = 2000
_TOKEN = re.compile(r"\w+|[^\w\s]")


def told_apart(
    human: Sequence[Row], ai: Sequence[Row], clean: Callable[[str], str]
) -> dict[str, Any] | None:
    """Return areas under the ROC curve of naive Bayes: of words and their pairs, and of structure.

    `auc` is that of words, `structure_auc` that of masked statements and pairs of their words: it
    stays at chance where people's code was renamed, stripped of comments or set out anew. None
    where a class has too few rows. Two halves, by task where there are tasks: each is scored by
    the model of the other, so that no program is scored by one that has seen its task.
    """
    if min(len(human), len(ai)) < MIN_ROWS:
        return None
    rows = [*human[:MAX_ROWS], *ai[:MAX_ROWS]]
    texts = [clean(row.code[:CHARACTERS_READ]) for row in rows]
    masked = [statements(text, row.language) for text, row in zip(texts, rows, strict=True)]
    looks = {
        "auc": [_words(text) for text in texts],
        "structure_auc": [_structure(lines) for lines in masked],
    }
    halves: tuple[list[int], list[int]] = ([], [])
    for at, row in enumerate(rows):
        name = (row.task or " ".join(texts[at].split())).encode("utf-8", "replace")
        halves[zlib.crc32(name) % 2].append(at)
    found: dict[str, Any] = {label: sum(row.label == label for row in rows) for label in CLASSES}
    for name, words in looks.items():
        both = (_area(rows, words, *part) for part in (halves, halves[::-1]))
        areas = [area for area in both if area is not None]
        if not areas:
            return None
        found[name] = round(sum(areas) / len(areas), 4)
    return found


def _words(code: str) -> set[str]:
    found = _TOKEN.findall(code)
    return {*found, *map(" ".join, pairwise(found))}


def _structure(masked: list[str]) -> set[str]:
    return {part for line in masked for part in (line, *map(" ".join, pairwise(line.split())))}


def _area(
    rows: Sequence[Row], words: Sequence[set[str]], fitted: list[int], scored: list[int]
) -> float | None:
    import numpy as np

    of = {label: [at for at in fitted if rows[at].label == label] for label in CLASSES}
    is_ai = np.array([rows[at].label == "ai" for at in scored])
    if not all(of.values()) or not 0 < is_ai.sum() < len(is_ai):
        return None
    seen = {label: Counter(word for at in own for word in words[at]) for label, own in of.items()}
    size = {label: math.log(len(own) + 1) for label, own in of.items()}
    weight = {
        word: (math.log(seen["ai"][word] + 0.5) - size["ai"])
        - (math.log(seen["human"][word] + 0.5) - size["human"])
        for word in seen["ai"].keys() | seen["human"].keys()
        if seen["ai"][word] + seen["human"][word] > 1
    }
    scores = [sum(weight.get(word, 0.0) for word in words[at]) for at in scored]
    return float(aucs(is_ai, np.array(scores)[:, None])[0])
