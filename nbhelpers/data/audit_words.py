"""Whether the classes differ at all: the words of a program, without the tags, tell or do not."""

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

MIN_ROWS = 100  # of each class
MAX_ROWS = 2000
_TOKEN = re.compile(r"\w+|[^\w\s]")


def told_apart(
    human: Sequence[Row], ai: Sequence[Row], clean: Callable[[str], str]
) -> dict[str, Any] | None:
    """Return the area under the ROC curve of naive Bayes on words and pairs of words.

    None where a class has too few rows. Two halves, by task where there are tasks: each is scored
    by the model of the other, so that no program is scored by one that has seen its task.
    """
    if min(len(human), len(ai)) < MIN_ROWS:
        return None
    rows = [*human[:MAX_ROWS], *ai[:MAX_ROWS]]
    texts = [clean(row.code[:CHARACTERS_READ]) for row in rows]
    words = [_words(text) for text in texts]
    halves: tuple[list[int], list[int]] = ([], [])
    for at, row in enumerate(rows):
        name = (row.task or " ".join(texts[at].split())).encode("utf-8", "replace")
        halves[zlib.crc32(name) % 2].append(at)
    areas = [
        area
        for fitted, scored in (halves, halves[::-1])
        if (area := _area(rows, words, fitted, scored)) is not None
    ]
    if not areas:
        return None
    counts = {label: sum(row.label == label for row in rows) for label in CLASSES}
    return {"auc": round(sum(areas) / len(areas), 4), **counts}


def _words(code: str) -> set[str]:
    found = _TOKEN.findall(code)
    return {*found, *map(" ".join, pairwise(found))}


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
