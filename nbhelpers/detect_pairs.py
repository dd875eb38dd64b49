"""Pairs of programs by similarity: arithmetic on blocks, so that thousands of files fit.

Only the best pairs are kept. How every other pair scored is kept as a histogram, which tells the
rank of a pair among all of them to a ten-thousandth of the score.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

BLOCK = 256  # rows at once: (256, files) floats
BINS = 20_000  # of cosines from -1 to 1
FEW = 30  # programs; of fewer, an n-gram in a single one still makes it unlike the others

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPair:
    """Two rows, their cosine and rank, and the floor's; `n` pairs were compared."""

    rank: int
    one: int
    other: int
    cosine: float
    floor: float
    floor_rank: int
    n: int


def floor_vectors(codes: list[str]) -> Any:
    """Return unit vectors of the floor that a report names: sparse (programs, columns)."""
    from nbhelpers.retrieval_floors import TfidfSimilarity

    least = 1 if len(codes) < FEW else 2
    everyone = range(len(codes))
    return TfidfSimilarity(codes, min_programs=least).between(everyone, everyone)[0]


def best_pairs(
    vectors: np.ndarray,
    ngrams: Any,
    *,
    top: int,
    split_at: int | None = None,
    progress: Progress | None = None,
) -> list[RankedPair]:
    """Return the pairs with the highest cosine, highest first.

    Args:
        vectors: (programs, dimensions) of length 1.
        ngrams: The floor's, (programs, columns), sparse, of length 1.
        top: How many pairs.
        split_at: Compare only programs before this row with programs from it on.
        progress: Called with rows done and rows in all.
    """
    import numpy as np

    counts = np.zeros(BINS, dtype=np.int64)
    floors = np.zeros(BINS, dtype=np.int64)
    best: list[tuple[float, int, int, float]] = []  # a heap: its first is the lowest that is kept
    for start, one, other in _blocks(len(vectors), split_at):
        cosines = np.clip(vectors[one] @ vectors[other].T, -1.0, 1.0)  # (block, programs)
        plain = np.asarray((ngrams[one] @ ngrams[other].T).todense())
        is_pair = _is_pair(one, other, split_at)
        counts += _histogram(cosines[is_pair])
        floors += _histogram(plain[is_pair])
        _keep(best, top, np.where(is_pair, cosines, -np.inf), plain, (one, other))
        if progress is not None:
            progress(start + len(one), split_at or len(vectors))
    found = sorted(best, key=lambda each: (-each[0], -each[1], -each[2]))
    n, above = int(counts.sum()), np.append(np.cumsum(floors[::-1])[::-1], 0)
    return [
        RankedPair(
            rank=rank,
            one=-one,
            other=-other,
            cosine=float(cosine),
            floor=float(plain),
            floor_rank=int(above[_bin(plain) + 1]) + 1,
            n=n,
        )
        for rank, (cosine, one, other, plain) in enumerate(found, 1)
    ]


def _blocks(n: int, split_at: int | None) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    import numpy as np

    last = n if split_at is None else split_at
    for start in range(0, last, BLOCK):
        rows = np.arange(start, min(start + BLOCK, last))
        yield start, rows, np.arange(start if split_at is None else split_at, n)


def _is_pair(one: np.ndarray, other: np.ndarray, split_at: int | None) -> np.ndarray:
    """(block, programs): each pair once, and no program with itself."""
    import numpy as np

    if split_at is not None:
        return np.ones((len(one), len(other)), dtype=bool)
    return one[:, None] < other[None, :]


def _keep(
    best: list[tuple[float, int, int, float]],
    top: int,
    cosines: np.ndarray,
    plain: np.ndarray,
    rows: tuple[np.ndarray, np.ndarray],
) -> None:
    """Put the best pairs of a block into the heap; among equal ones the earlier rows stay."""
    import numpy as np

    flat = cosines.ravel()
    # Once the heap is full, an equal pair of a later row changes nothing.
    floor = best[0][0] if len(best) >= top else -np.inf
    found = np.flatnonzero(flat > floor)
    if len(found) > top:
        least = np.partition(flat[found], len(found) - top)[len(found) - top]
        found = found[flat[found] >= least]
    for at in found[np.argsort(-flat[found], kind="stable")][:top]:
        i, j = divmod(int(at), cosines.shape[1])
        item = (float(flat[at]), -int(rows[0][i]), -int(rows[1][j]), float(plain[i, j]))
        if len(best) < top:
            heapq.heappush(best, item)
        elif item > best[0]:
            heapq.heapreplace(best, item)


def _histogram(values: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.bincount(_bin(values), minlength=BINS)


def _bin(values: Any) -> Any:
    """Number of the bin of a cosine, or of an array of them."""
    import numpy as np

    found = np.clip(((np.asarray(values) + 1.0) * (BINS / 2)).astype(np.int64), 0, BINS - 1)
    return found if found.ndim else int(found)
