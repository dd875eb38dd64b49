"""Texts that nearly repeat another: sets of token shingles, compared exactly by Jaccard similarity.

No hashing to fewer bits and no sampling: an inverted index over the rarest shingles of each text
leaves few pairs to compare and misses none (prefix filtering).

Source: the prefix filter is Chaudhuri, Ganti, Kaushik, "A Primitive Operator for Similarity Joins
in Data Cleaning", ICDE 2006; the length bound is Bayardo, Ma, Srikant, "Scaling Up All Pairs
Similarity Search", WWW 2007; the bound by position is Xiao, Wang, Lin, Yu, "Efficient Similarity
Joins for Near Duplicate Detection", WWW 2008.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from nbhelpers.common.code_words import code_words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

THRESHOLD = 0.8
SHINGLE_TOKENS = 3
MOST_PAIRS = 5_000_000  # that share a rare shingle: more are those of templates
_SLACK = 1e-9  # 0.8 x 5 is a little more than 4 in binary

# Shingle -> (size of a text, position of the shingle in it) -> texts: what cannot be alike by these
# two numbers is passed over together, however many texts one template gave.
Postings = dict[int, dict[tuple[int, int], list[int]]]


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
    return code_words(text.lower())


def shingles(text: str, size: int = SHINGLE_TOKENS) -> set[tuple[str, ...]]:
    """All runs of `size` tokens; a shorter text is one run.

    >>> sorted(shingles("a b c d"))
    [('a', 'b', 'c'), ('b', 'c', 'd')]
    >>> shingles("a b"), shingles("")
    ({('a', 'b')}, set())
    """
    words = tokens(text)
    if len(words) < size:
        return {tuple(words)} if words else set()
    return set(zip(*(words[i:] for i in range(size)), strict=False))


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
        self._starts, self._ranks, self._n_single = _ranked_shingles(texts)
        self._sets: list[frozenset[int] | None] = [None] * len(self)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def matches(self, rows: Iterable[int], references: Iterable[int]) -> list[Match]:
        """For each row that resembles a reference, one that it resembles (not always the most)."""
        rows, references = list(rows), list(references)
        search = _Search(self, is_whole=not set(rows).isdisjoint(references))
        for reference in references:
            search.insert(reference)
        return [match for row in rows if (match := search.first(row)) is not None]

    def repeats(self, rows: Iterable[int]) -> list[Match]:
        """Rows that resemble an earlier one which itself resembles none before it.

        So a hundred copies of a row are 99 repeats of the first, and comparing them takes 99 steps.
        """
        rows = list(rows)
        search = _Search(self, is_whole=len(set(rows)) < len(rows))
        matches = []
        for row in rows:
            match = search.first(row)
            if match is None:
                search.insert(row)
            else:
                matches.append(match)
        return matches

    @cached_property
    def paired(self) -> NDArray[np.bool_] | None:
        """(texts,) whether a text resembles any other; None where that is too much to look through.

        All pairs that may be alike at once, by array arithmetic: in most data they are few, and the
        searches then look at no other text.
        """
        import numpy as np

        prefixes = self._prefixes()
        candidates = _candidate_pairs(prefixes, self.threshold)
        if candidates is None:
            return None
        paired = np.zeros(len(self), dtype=bool)
        for one, other in zip(*(side.tolist() for side in candidates), strict=True):
            if not (paired[one] and paired[other]):
                paired[[one, other]] |= self.similarity(one, other) >= self.threshold - _SLACK
        return paired

    @cached_property
    def asked(self) -> NDArray[np.bool_]:
        """(shingles,) whether a text with a pair begins with it: no other is ever looked up."""
        import numpy as np

        prefixes = self._prefixes()
        is_asked = np.zeros(int(self._ranks.max(initial=-1)) + 1, dtype=bool)
        paired = self.paired
        is_asked[prefixes.shingle if paired is None else prefixes.shingle[paired[prefixes.row]]] = 1
        return is_asked

    def _prefixes(self) -> _Prefixes:
        """The rarest shingles of all texts: who shares none of these is below the threshold.

        Those of one text alone are left out: nobody shares them.
        """
        import numpy as np

        starts = np.asarray(self._starts)
        n = np.diff(starts)
        n_rare = np.where(n > 0, n - np.ceil(self.threshold * n - _SLACK).astype(np.int64) + 1, 0)
        row = np.repeat(np.arange(len(n)), n_rare)
        at = np.arange(len(row)) - np.repeat(np.cumsum(n_rare) - n_rare, n_rare)
        shingle = self._ranks[starts[row] + at]
        is_shared = shingle >= self._n_single
        row, at, shingle = row[is_shared], at[is_shared], shingle[is_shared]
        return _Prefixes(row, at, shingle, n[row])

    def size(self, row: int) -> int:
        """Shingles of a text."""
        return self._starts[row + 1] - self._starts[row]

    def prefix(self, row: int, asked: NDArray[np.bool_] | None) -> list[tuple[int, int]]:
        """Positions and numbers of the rarest shingles of a text, of those asked for."""
        n, start = self.size(row), self._starts[row]
        n_rare = n - ceil(self.threshold * n - _SLACK) + 1 if n else 0
        rare = self._ranks[start : start + n_rare]
        at = (rare >= self._n_single if asked is None else asked[rare]).nonzero()[0]
        return list(zip(at.tolist(), rare[at].tolist(), strict=True))

    def similarity(self, one: int, other: int) -> float:
        """Jaccard similarity of two texts."""
        shared = len(self._set(one) & self._set(other))
        return shared / (self.size(one) + self.size(other) - shared)

    def _set(self, row: int) -> frozenset[int]:
        known = self._sets[row]
        if known is None:
            ranks = self._ranks[self._starts[row] : self._starts[row + 1]]
            known = self._sets[row] = frozenset(ranks.tolist())
        return known


class _Prefixes(NamedTuple):
    """The rarest shingles of texts, (n,) each: whose, where among its own, which, of how many."""

    row: NDArray[np.int64]
    at: NDArray[np.int64]
    shingle: NDArray[np.int64]
    size: NDArray[np.int64]


class _Search:
    """Texts inserted so far, looked through for one that a text resembles.

    Args:
        is_whole: A text may meet itself, so every one is looked up.
    """

    def __init__(self, index: ShingleIndex, *, is_whole: bool) -> None:
        self.index, self._postings = index, Postings()
        self._paired = None if is_whole else index.paired
        self._asked = None if is_whole else index.asked

    def insert(self, row: int) -> None:
        n = self.index.size(row)
        for at, shingle in self.index.prefix(row, self._asked):
            self._postings.setdefault(shingle, {}).setdefault((n, at), []).append(row)

    def first(self, row: int) -> Match | None:
        if self._paired is not None and not self._paired[row]:
            return None
        for other in self._candidates(row):
            similarity = self.index.similarity(row, other)
            if similarity >= self.index.threshold - _SLACK:
                return Match(row, other, similarity)
        return None

    def _candidates(self, row: int) -> Iterator[int]:
        """Texts that may share enough: by the first shingle shared, all others come after it."""
        threshold, n = self.index.threshold, self.index.size(row)
        low, high = threshold * n - _SLACK, n / threshold + _SLACK
        share = threshold / (1 + threshold)
        seen: set[int] = set()
        for at, shingle in self.index.prefix(row, self._asked):
            for (size, place), others in self._postings.get(shingle, {}).items():
                most = min(n - at, size - place)
                if low <= size <= high and most >= share * (n + size) - _SLACK:
                    yield from (other for other in others if other not in seen)
                    seen.update(others)


def _candidate_pairs(
    prefixes: _Prefixes, threshold: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """The two texts of each pair that shares a rare shingle and may share enough; None: too many.

    A pair that is alike shares one of these, and that at two positions from which enough is left.
    """
    import numpy as np

    room = int(prefixes.size.max(initial=0)) + 2
    key = prefixes.shingle * room + prefixes.size
    order = np.argsort(key, kind="stable")
    key, (row, at, shingle, size) = key[order], (part[order] for part in prefixes)
    largest = np.minimum((size / threshold + _SLACK).astype(np.int64), room - 1)
    n_pairs = np.searchsorted(key, shingle * room + largest, side="right") - np.arange(len(key)) - 1
    if n_pairs.sum() > MOST_PAIRS:
        return None
    one = np.repeat(np.arange(len(key)), n_pairs)
    other = one + 1 + np.arange(len(one)) - np.repeat(np.cumsum(n_pairs) - n_pairs, n_pairs)
    left, share = size - at, threshold / (1 + threshold)
    most = np.minimum(left[one], left[other])
    may = most >= share * (size[one] + size[other]) - _SLACK
    pairs = np.sort(np.stack([row[one[may]], row[other[may]]]), axis=0)
    n_rows = int(row.max(initial=0)) + 1
    return np.divmod(np.unique(pairs[0] * n_rows + pairs[1]), n_rows)


class _Numbers(dict[str, int]):
    """Numbers of words from 1 up, in the order in which they are first asked for."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self) + 1
        return number


def _ranked_shingles(texts: Iterable[str]) -> tuple[list[int], NDArray[np.int64], int]:
    """The distinct shingles of each text by their rank over all texts, the rarest first.

    Returns:
        Where each text starts in the second value, and the end; ranks, ascending in each text; how
        many shingles stand in one text only: theirs are the ranks below that number.
    """
    import numpy as np

    numbers = _Numbers()
    words: list[NDArray[np.int32]] = []
    for text in texts:
        token_numbers = list(map(numbers.__getitem__, tokens(text)))
        short = SHINGLE_TOKENS - len(token_numbers) if token_numbers else 0
        # A text shorter than a shingle is one; 0 is no word.
        words.append(np.array(token_numbers + [0] * max(0, short), dtype=np.int32))
    sizes = [max(0, len(one) - SHINGLE_TOKENS + 1) for one in words]
    owner = np.repeat(np.arange(len(words)), sizes)
    parts = [
        np.concatenate(
            [np.zeros(0, np.int32), *(w[i : i + n] for w, n in zip(words, sizes, strict=True))]
        )
        for i in range(SHINGLE_TOKENS)
    ]
    shingle = _joined(parts, len(numbers) + 1)
    n_kinds = int(shingle.max(initial=0)) + 1
    both = np.sort(owner * n_kinds + shingle)
    owner, shingle = np.divmod(both[np.diff(both, prepend=-1) > 0], n_kinds)
    # Rarest first; the number breaks ties, so that every text is sorted by one order.
    rank = np.empty(n_kinds, dtype=np.int64)
    counts = np.bincount(shingle, minlength=n_kinds)
    rank[np.argsort(counts, kind="stable")] = np.arange(n_kinds)
    ranks = np.sort(owner * n_kinds + rank[shingle]) - owner * n_kinds
    starts = np.searchsorted(owner, np.arange(len(words) + 1))
    return starts.tolist(), ranks, int((counts < 2).sum())


def _joined(parts: list[NDArray[np.int32]], n_words: int) -> NDArray[np.int64]:
    """One number, from 0 up without gaps, for each distinct run of words; exact, not a hash."""
    import numpy as np

    joined, n_kinds = np.zeros(len(parts[0]), dtype=np.int64), 1
    for part in parts:
        if n_kinds * n_words >= 2**62:
            joined, n_kinds = _dense(joined), len(joined)
        joined, n_kinds = joined * n_words + part, n_kinds * n_words
    return _dense(joined)


def _dense(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ranks of values, equal ones alike; `np.unique` takes several times as long."""
    import numpy as np

    order = np.argsort(values, kind="stable")
    ranks = np.zeros(len(values), dtype=np.int64)
    ranks[order[1:]] = np.cumsum(np.diff(values[order]) > 0)
    return ranks
