"""A detector's score as a sum of members: the encoder, and n-grams of characters; numpy alone.

An exported detector carries this module, so it imports nothing of the package.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

FILE = "stack.npz"
ENCODER = "encoder"
# Source: docs/log/detector.md, sources left out. Only how they rank moves with them: the sum is
# divided by their sum. Nearer weights rank better there; on foreign code n-grams were far ahead.
WEIGHTS = {ENCODER: 1.0, "tfidf": 2.0, "masked_tfidf": 1.0}
NGRAMS = ("tfidf", "masked_tfidf")

_MIX = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio (Knuth, TAOCP 3, section 6.4)
_MASK = bytes.maketrans(
    (string.ascii_letters + string.digits).encode(), b"a" * 26 + b"A" * 26 + b"0" * 10
)


def masked(text: str) -> str:
    """Return a text whose letters and digits are all alike: how it is set out stays, no word does.

    >>> masked("int x1 = Max(y);")
    'aaa a0 = Aaa(a);'
    """
    return text.encode("utf-8", "replace").translate(_MASK).decode("utf-8")


def buckets(text: str, sizes: Sequence[int], bits: int) -> np.ndarray:
    """Return the bucket of every n-gram of a text, in any order; characters are bytes of UTF-8.

    Args:
        sizes: Lengths of the n-grams, at most 7 bytes each.
        bits: There are 2**bits buckets.
    """
    letters = np.frombuffer(text.encode("utf-8", "replace"), dtype=np.uint8).astype(np.uint64)
    packed = np.zeros(len(letters), dtype=np.uint64)
    grams = []
    for size in range(1, max(sizes) + 1):
        if size > len(letters):
            break
        packed = packed[: len(letters) - size + 1] << np.uint64(8)
        packed |= letters[size - 1 :]
        if size in sizes:
            grams.append(packed | np.uint64(size << 56))
    keys = np.concatenate(grams) if grams else packed[:0]
    # Half as wide, they are sorted in less time.
    return ((keys * np.uint64(_MIX)) >> np.uint64(64 - bits)).astype(np.uint32)


@dataclass(slots=True, kw_only=True)
class Ngrams:
    """Logistic regression on n-grams of characters: vectors of length 1, as `NgramVectors` has.

    Args:
        is_masked: Whether it reads texts with all letters alike.
        sizes: Lengths of the n-grams.
        bits: They fall into 2**bits buckets.
        columns: (n,) buckets that count, rising.
        rarity: (n,) float32.
        weights: (n,) float32.
    """

    is_masked: bool
    sizes: tuple[int, ...]
    bits: int
    columns: np.ndarray
    rarity: np.ndarray
    weights: np.ndarray
    bias: float
    _column: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32), repr=False)

    def score(self, codes: Sequence[str]) -> np.ndarray:
        """Return (codes,) float64 log odds of AI; a text without a known n-gram has the bias."""
        if not len(self._column):
            self._column = np.full(1 << self.bits, -1, dtype=np.int32)
            self._column[self.columns] = np.arange(len(self.columns), dtype=np.int32)
        scores = np.full(len(codes), float(self.bias))
        for at, code in enumerate(codes):
            grams = buckets(masked(code) if self.is_masked else code, self.sizes, self.bits)
            grams, counts = np.unique(grams, return_counts=True)
            column = self._column[grams.astype(np.int64)]
            known = column >= 0
            column = column[known]
            values = (1 + np.log(counts[known], dtype=np.float32)) * self.rarity[column]
            length = np.sqrt((values * values).sum(dtype=np.float64))
            if length:
                products = values * self.weights[column]
                scores[at] += float(products.sum(dtype=np.float64) / length)
        return scores


@dataclass(slots=True, kw_only=True)
class Stack:
    """A weighted mean of standardised scores, carried as one thing.

    Args:
        form: Canonical form that the n-grams read.
        weights: By member.
        centre: By member, halfway between the means of both classes on valid.
        spread: By member, the deviation on valid.
        ngrams: Members that read texts; the encoder's scores are given.
    """

    form: str
    weights: dict[str, float]
    centre: dict[str, float]
    spread: dict[str, float]
    ngrams: dict[str, Ngrams]

    @classmethod
    def fixed_on(
        cls,
        scores: Mapping[str, np.ndarray],
        y: np.ndarray,
        *,
        weights: Mapping[str, float],
        form: str = "",
        ngrams: Mapping[str, Ngrams] | None = None,
    ) -> Stack:
        """Return the sum of the weighted members, standardised on these rows.

        Args:
            scores: By member, (n,) scores of validation rows.
            y: (n,) 0 human, 1 AI; with one class alone the centre is its mean.
        """
        classes = np.unique(y)
        centre = {n: float(np.mean([scores[n][y == c].mean() for c in classes])) for n in weights}
        spread = {n: max(float(scores[n].std()), 1e-6) for n in weights}
        members = {n: each for n, each in (ngrams or {}).items() if n in weights}
        return cls(form=form, weights=dict(weights), centre=centre, spread=spread, ngrams=members)

    @property
    def name(self) -> str:
        """`stack`, or the only member."""
        return next(iter(self.weights)) if len(self.weights) == 1 else "stack"

    def combined(self, scores: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return (n,) float64 of the members' scores, (n,) each."""
        total = sum(
            weight * (np.asarray(scores[n], dtype=np.float64) - self.centre[n]) / self.spread[n]
            for n, weight in self.weights.items()
        )
        return np.asarray(total) / sum(self.weights.values())

    def members(self, codes: Sequence[str], encoder: np.ndarray) -> dict[str, np.ndarray]:
        """Return by member (codes,) scores of programs in the form that is read."""
        of_texts = {name: member.score(codes) for name, member in self.ngrams.items()}
        return {ENCODER: np.asarray(encoder, dtype=np.float64), **of_texts}

    def score(self, codes: Sequence[str], encoder: np.ndarray) -> np.ndarray:
        """Return (codes,) float64 scores of programs in the form that is read."""
        return self.combined(self.members(codes, encoder))

    def save(self, path: Path) -> None:
        """Write it as arrays and JSON, nothing pickled."""
        arrays: dict[str, np.ndarray] = {}
        facts = {"form": self.form, "members": {}, "ngrams": {}}
        for name, weight in self.weights.items():
            facts["members"][name] = [weight, self.centre[name], self.spread[name]]
        for name, each in self.ngrams.items():
            values = {"is_masked": each.is_masked, "sizes": list(each.sizes), "bits": each.bits}
            facts["ngrams"][name] = values | {"bias": each.bias}
            for part in _ARRAYS:
                arrays[f"{name}.{part}"] = getattr(each, part)
        draft = path.with_name(f".{path.name}.partial")
        with draft.open("wb") as file:
            np.savez(file, facts=np.array(json.dumps(facts)), **arrays)
        draft.replace(path)

    @classmethod
    def load(cls, path: Path) -> Stack:
        """Return what `save` wrote.

        Raises:
            ValueError: The file is missing or damaged, or its parts do not fit each other.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                facts = json.loads(str(file["facts"]))
                ngrams = {
                    name: Ngrams(
                        **values | {"sizes": tuple(values["sizes"])},
                        **{part: file[f"{name}.{part}"] for part in _ARRAYS},
                    )
                    for name, values in facts["ngrams"].items()
                }
            weights, centre, spread = (
                {name: float(values[at]) for name, values in facts["members"].items()}
                for at in range(3)
            )
            stack = cls(
                form=facts["form"], weights=weights, centre=centre, spread=spread, ngrams=ngrams
            )
            if any(len({len(getattr(n, part)) for part in _ARRAYS}) > 1 for n in ngrams.values()):
                raise ValueError("its arrays differ in length")
            stack.score([""], np.zeros(1))  # its members fit each other
        except Exception as error:  # numpy, zipfile and zlib raise many, in words of their own
            text = f"{path} cannot be read: it is damaged, or not what a run saved"
            raise ValueError(f"{text} ({type(error).__name__})") from error
        return stack


_ARRAYS = ("columns", "rarity", "weights")
