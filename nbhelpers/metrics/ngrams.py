"""TF-IDF vectors of character n-grams, and the similarity of programs by their words."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from nbhelpers.errors import DataError
from nbhelpers.metrics.stack import Ngrams, buckets

Answer = TypeVar("Answer")

# ------------------------------------------------------------------------------------------------
# TF-IDF vectors of character n-grams, counted by array arithmetic: seconds for ten megabytes.


MIN_BITS, MAX_BITS = 16, 24  # n-grams are hashed into 2**bits buckets: for few texts, fewer


# Where each text ends, (texts + 1,), and the buckets and counts of all of them in a row.
Counted = tuple[np.ndarray, np.ndarray, np.ndarray]


def counted_rows(counted: Counted, rows: np.ndarray) -> Counted:
    """Return the counts of some of the texts."""
    ends, places, counts = counted
    sizes = np.diff(ends)[rows]
    new_ends = np.concatenate([[0], np.cumsum(sizes)])
    at = np.repeat(ends[:-1][rows] - new_ends[:-1], sizes) + np.arange(new_ends[-1])
    return new_ends, places[at], counts[at]


class NgramVectors:
    """Character n-grams of several sizes: log counts, times rarity, each text of length 1.

    Characters are the bytes of UTF-8. Only texts that it was fitted on say which n-grams count and
    how rare they are.

    Source: Salton and Buckley 1988, Term-weighting approaches in automatic text retrieval; rarity
    as ln((1 + n) / (1 + texts with it)) + 1.
    """

    def __init__(
        self,
        *,
        sizes: Sequence[int] = (1, 2, 3, 4, 5),
        min_texts: int = 2,
        max_columns: int = 400_000,
    ) -> None:
        """Prepare.

        Args:
            sizes: Lengths of the n-grams, at most 7 bytes each.
            min_texts: Rarer n-grams are left out.
            max_columns: The most frequent n-grams are kept.
        """
        self.sizes, self.min_texts, self.max_columns = tuple(sizes), min_texts, max_columns

    def fit_transform(self, texts: Sequence[str]) -> Any:
        """Learn from texts and return their vectors, a sparse (texts, columns) float32 matrix.

        Raises:
            DataError: No n-gram occurs in `min_texts` texts.
        """
        return self.fit(self.count(texts))

    def count(self, texts: Sequence[str]) -> Counted:
        """Count the n-grams of texts, of which some may then be learnt from."""
        self._bits = self._enough_bits(texts)
        return self._counted(texts)

    def fit(self, counted: Counted) -> Any:
        """Learn from counted texts and return their vectors, as `fit_transform` does."""
        n_texts = len(counted[0]) - 1
        texts_with = np.bincount(counted[1], minlength=1 << self._bits)
        columns = np.flatnonzero(texts_with >= self.min_texts)
        if len(columns) > self.max_columns:
            ranked = np.argsort(-texts_with[columns], kind="stable")[: self.max_columns]
            columns = np.sort(columns[ranked])
        if not len(columns):
            raise DataError(
                f"no run of characters occurs in {self.min_texts} of {n_texts} texts",
                fix="Give more texts.",
            )
        self._column = np.full(1 << self._bits, -1, dtype=np.int32)
        self._column[columns] = np.arange(len(columns), dtype=np.int32)
        rarity = np.log((1 + n_texts) / (1 + texts_with[columns])) + 1
        self._rarity = rarity.astype(np.float32)
        return self.vectors(counted)

    def transform(self, texts: Sequence[str]) -> Any:
        """Return the vectors of texts; one without a known n-gram is all zeros."""
        return self.vectors(self._counted(texts))

    def counts(self, texts: Sequence[str]) -> Any:
        """Return log counts of all n-grams, unweighted: sparse (texts, buckets) float32.

        Needs no fit; columns are buckets.
        """
        from scipy.sparse import csr_matrix

        self._bits = self._enough_bits(texts)
        ends, places, times = self._counted(texts)
        shape = (len(texts), 1 << self._bits)
        return csr_matrix((1 + np.log(times), places, ends), shape=shape)

    def _enough_bits(self, texts: Sequence[str]) -> int:
        """Return bits for four buckets to each n-gram, were all of them different."""
        ngrams = len(self.sizes) * sum(map(len, texts))
        return min(MAX_BITS, max(MIN_BITS, (4 * ngrams).bit_length()))

    def vectors(self, counted: Counted) -> Any:
        """Return the vectors of counted texts; one without a known n-gram is all zeros."""
        from scipy.sparse import csr_matrix

        ends, places, counts = counted
        columns = self._column[places]
        known = columns >= 0
        ends = np.concatenate([[0], np.cumsum(known)])[ends]
        columns = columns[known]
        values = (1 + np.log(counts[known], dtype=np.float32)) * self._rarity[columns]
        shape = (len(ends) - 1, len(self._rarity))
        matrix = csr_matrix((values, columns, ends), shape=shape)
        length = np.sqrt(np.add.reduceat(np.append(values, 0) ** 2, ends[:-1]))
        length[np.diff(ends) == 0] = 1.0  # reduceat reads one value of an empty row
        matrix.data /= np.repeat(length, np.diff(ends)).astype(np.float32)
        return matrix

    def classifier(self, model: Any, *, is_masked: bool) -> Ngrams:
        """Return a linear model of these vectors, (1, columns), as what scores texts alone."""
        return Ngrams(
            is_masked=is_masked,
            sizes=self.sizes,
            bits=self._bits,
            columns=np.flatnonzero(self._column >= 0).astype(np.int32),
            rarity=self._rarity,
            weights=model.coef_.reshape(-1).astype(np.float32),
            bias=float(model.intercept_[0]),
        )

    def _counted(self, texts: Sequence[str]) -> Counted:
        places, counts, ends = [], [], [0]
        for text in texts:
            text_buckets, times = np.unique(
                buckets(text, self.sizes, self._bits), return_counts=True
            )
            places.append(text_buckets.astype(np.int32))
            counts.append(times.astype(np.float32))
            ends.append(ends[-1] + len(text_buckets))
        if not places:
            return np.array([0]), np.zeros(0, np.int32), np.zeros(0, np.float32)
        return np.array(ends), np.concatenate(places), np.concatenate(counts)


# ------------------------------------------------------------------------------------------------
# The floor of code similarity: how alike the words of two programs are spelled.
#
# It sees every text of a comparison, also those of the test, because it learns from no label. That
# makes it as strong as it can be.


SIZES = (3, 4)
CHARACTERS_READ = 200_000  # of one program
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_PART = re.compile(r"[^\W\d_]+|\d+|[^\s\w]")


def similarity_text(code: str) -> str:
    """Return a program as lower-case words, numbers and signs with one blank between.

    Names are cut at underscores and capitals, so that habits of a language hide no word.

    >>> similarity_text("int maxValue = max_value2;")
    ' int max value = max value 2 ; '
    """
    parts = _PART.findall(_HUMP.sub(" ", code[:CHARACTERS_READ]).lower())
    return f" {' '.join(parts)} "


class TfidfSimilarity:
    """Cosines of character n-grams between programs, counted once for all comparisons."""

    def __init__(self, codes: Sequence[str], *, min_programs: int = 2) -> None:
        """Count the n-grams of every program.

        Args:
            codes: The programs.
            min_programs: Leave out n-grams that stand in fewer. One of a single program can match
                nothing; among a handful of programs it still shows how unlike the others it is.
        """
        counts = NgramVectors(sizes=SIZES).counts([similarity_text(code) for code in codes])
        texts_with = np.bincount(counts.indices, minlength=counts.shape[1])
        self._min_programs = min_programs
        self._counts = counts[:, np.flatnonzero(texts_with >= min_programs)]
        self._answers: dict[bytes, Any] = {}

    def answer(self, work: Callable[[], Answer], *asked: Sequence[Any] | np.ndarray) -> Answer:
        """Return what `work` computes from these programs and `asked`; asked again, it is at hand.

        Answers travel with a pickled object, so another process can give them.
        """
        key = hashlib.sha256()
        for part in asked:
            values = np.asarray(part)
            key.update(f"{values.dtype} {values.shape} ".encode())
            key.update(values.tobytes())
        if key.digest() not in self._answers:
            self._answers[key.digest()] = work()
        return self._answers[key.digest()]

    def between(
        self, left: Sequence[int] | np.ndarray, right: Sequence[int] | np.ndarray
    ) -> tuple[Any, Any]:
        """Return sparse unit vectors of the programs at `left` and at `right`.

        How rare an n-gram is follows from these programs alone; one that stands in fewer
        than `min_programs` of them is left out.

        Args:
            left: (m,) positions among the codes.
            right: (n,) likewise; `left` again for all pairs of one list.
        """
        from scipy.sparse import diags

        left, right = np.asarray(left, dtype=np.int64), np.asarray(right, dtype=np.int64)
        members = np.unique(np.concatenate([left, right]))
        chosen = self._counts[members]
        texts_with = np.bincount(chosen.indices, minlength=chosen.shape[1])
        columns = np.flatnonzero(texts_with >= self._min_programs)
        rarity = np.log((1 + len(members)) / (1 + texts_with[columns])) + 1
        weighted = chosen[:, columns] @ diags(rarity.astype(np.float32))
        length = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).reshape(-1))
        scale = np.divide(1, length, out=np.zeros_like(length), where=length > 0)
        unit = (diags(scale.astype(np.float32)) @ weighted).tocsr()
        return unit[np.searchsorted(members, left)], unit[np.searchsorted(members, right)]
