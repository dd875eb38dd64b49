"""Texts that nearly repeat another: sets of token shingles, compared exactly by Jaccard similarity.

No hashing to fewer bits and no sampling: an inverted index over the rarest shingles of each text
leaves few pairs to compare and misses none (prefix filtering).

Source: the prefix filter is Chaudhuri, Ganti, Kaushik, "A Primitive Operator for Similarity Joins
in Data Cleaning", ICDE 2006; the length bound is Bayardo, Ma, Srikant, "Scaling Up All Pairs
Similarity Search", WWW 2007.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from math import ceil
from typing import NamedTuple

THRESHOLD = 0.8
SHINGLE_TOKENS = 3
_TOKEN = re.compile(r"\w+|[^\w\s]")
_SLACK = 1e-9  # 0.8 x 5 is a little more than 4 in binary


class Match(NamedTuple):
    """Text number `row` resembles text number `of`: 1.0 means equal shingles."""

    row: int
    of: int
    similarity: float


def tokens(text: str) -> list[str]:
    """Words and signs in lower case; white space does not count.

    >>> tokens("def F(x):  return x")
    ['def', 'f', '(', 'x', ')', ':', 'return', 'x']
    """
    return _TOKEN.findall(text.lower())


def shingles(text: str, size: int = SHINGLE_TOKENS) -> set[tuple[str, ...]]:
    """All runs of `size` tokens; a shorter text is one run.

    >>> sorted(shingles("a b c d"))
    [('a', 'b', 'c'), ('b', 'c', 'd')]
    >>> shingles("a b"), shingles("")
    ({('a', 'b')}, set())
    """
    found = tokens(text)
    if len(found) < size:
        return {tuple(found)} if found else set()
    return set(zip(*(found[i:] for i in range(size)), strict=False))


def jaccard(one: str, other: str) -> float:
    """Shared shingles over all shingles of two texts, from 0 to 1; two texts without any: 0.

    >>> jaccard("a b c d", "a b c d e"), jaccard("", "")
    (0.6666666666666666, 0.0)
    """
    left, right = shingles(one), shingles(other)
    union = len(left | right)
    return len(left & right) / union if union else 0.0


class ShingleIndex:
    """Texts made ready to be compared; the numbers in each answer are positions in `texts`.

    Args:
        texts: All texts, of every split.
        threshold: Lowest Jaccard similarity of a match, in (0, 1].
    """

    def __init__(self, texts: Iterable[str], *, threshold: float = THRESHOLD) -> None:
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold={threshold} is not in (0, 1]")
        self.threshold = threshold
        number: dict[tuple[str, ...], int] = {}
        sets = [[number.setdefault(s, len(number)) for s in shingles(text)] for text in texts]
        count = Counter(chain.from_iterable(sets))
        # Rarest first; the number breaks ties, so that every text is sorted by one order.
        rank = [0] * len(number)
        for place, (one, _) in enumerate(sorted(count.items(), key=lambda item: item[::-1])):
            rank[one] = place
        self._sorted = [sorted(rank[one] for one in found) for found in sets]
        self._sets: list[frozenset[int] | None] = [None] * len(sets)

    def __len__(self) -> int:
        return len(self._sorted)

    def matches(self, rows: Iterable[int], references: Iterable[int]) -> list[Match]:
        """For each row that resembles a reference, one that it resembles (not always the most)."""
        postings: dict[int, list[int]] = {}
        for reference in references:
            self._insert(reference, postings)
        return [found for row in rows if (found := self._first(row, postings)) is not None]

    def repeats(self, rows: Iterable[int]) -> list[Match]:
        """Rows that resemble an earlier one which itself resembles none before it.

        So a hundred copies of a row are 99 repeats of the first, and comparing them takes 99 steps.
        """
        postings: dict[int, list[int]] = {}
        found = []
        for row in rows:
            match = self._first(row, postings)
            if match is None:
                self._insert(row, postings)
            else:
                found.append(match)
        return found

    def _prefix(self, row: int) -> list[int]:
        """The rarest shingles: a text that shares none of these is below the threshold."""
        found = self._sorted[row]
        return found[: len(found) - ceil(self.threshold * len(found) - _SLACK) + 1]

    def _insert(self, row: int, postings: dict[int, list[int]]) -> None:
        for shingle in self._prefix(row) if self._sorted[row] else ():
            postings.setdefault(shingle, []).append(row)

    def _first(self, row: int, postings: dict[int, list[int]]) -> Match | None:
        for other in self._candidates(row, postings):
            shared = len(self._set(row) & self._set(other))
            similarity = shared / (len(self._sorted[row]) + len(self._sorted[other]) - shared)
            if similarity >= self.threshold - _SLACK:
                return Match(row, other, similarity)
        return None

    def _candidates(self, row: int, postings: dict[int, list[int]]) -> Iterator[int]:
        n = len(self._sorted[row])
        if not n:
            return
        low, high = self.threshold * n - _SLACK, n / self.threshold + _SLACK
        seen = dict.fromkeys(
            chain.from_iterable(postings.get(shingle, ()) for shingle in self._prefix(row))
        )
        yield from (other for other in seen if low <= len(self._sorted[other]) <= high)

    def _set(self, row: int) -> frozenset[int]:
        known = self._sets[row]
        if known is None:
            known = self._sets[row] = frozenset(self._sorted[row])
        return known
