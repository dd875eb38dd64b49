"""Functions drawn with replacement, and what each draw does to the counts of a ranking."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np

from nbhelpers.errors import ConfigError, DataError
from nbhelpers.metrics.ranking import Ranking

MAX_THREADS = 2  # eight took ten times as long as one on a virtual machine (docs/LOG.md)
MAX_AREA_WORK = 100_000_000  # pairs times samples whose areas are computed
MIN_AREA_SAMPLES = 200
SUMMED_AT_ONCE = 250  # resamples whose weights are held together
BLOCK = 200  # resamples whose draws are held together
WORK_PER_THREAD = 2_000_000  # pairs times samples; below it a thread costs more than it saves


def resampled_counts(
    left: Sequence[Any] | np.ndarray,
    right: Sequence[Any] | np.ndarray,
    rankings: Sequence[Ranking],
    samples: int,
    seed: int,
) -> list[np.ndarray]:
    """Return one (drawn, 6) array of `Ranking.counts` per ranking, a row per resample.

    Equal seeds give equal resamples, whatever the number of threads, and all rankings are scored
    on the same ones. A resample that draws no pair at all has no row. Memory is proportional to
    the number of pairs, not to that of the samples. Areas need a pass over all pairs for each
    sample, so of long lists only the first `area_samples` have them, and the others hold NaN there.

    Args:
        left: (pairs,) first function of each pair, by any id.
        right: (pairs,) second function of each pair.
        rankings: Rankings of these pairs, at least one.
        samples: Number of resamples.
        seed: Of the draws.

    Raises:
        ConfigError: `samples` or `seed` cannot be used.
        DataError: Not one function on each side of every pair.
    """
    check_draws(samples, seed)
    n_pairs = len(rankings[0].rows)
    if len(left) != n_pairs or len(right) != n_pairs:
        raise DataError(
            f"{len(left)} left and {len(right)} right functions for {n_pairs} pairs",
            fix="Give the two functions of every pair.",
        )
    names, index = np.unique(np.concatenate([left, right]), return_inverse=True)
    counter = _Counter(index[:n_pairs], index[n_pairs:], rankings)
    weights = drawn_counts(len(names), samples, seed)
    counts = np.full((len(rankings), samples, 6), np.nan)
    walked = area_samples(n_pairs, samples)
    draws = _Shared(enumerate(islice(weights, walked)))
    threads = _threads(n_pairs * walked)
    with ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(counter.fill, draws, counts) for _ in range(threads)]
        for job in jobs:
            job.result()
    for start in range(walked, samples, SUMMED_AT_ONCE):
        block = np.stack(list(islice(weights, SUMMED_AT_ONCE)))
        for at in range(len(rankings)):
            counts[at, start : start + len(block), :4] = counter.sums(at, block)
    is_drawn = counts[0, :, :4].sum(axis=1) > 0
    return [rows[is_drawn] for rows in counts]


def area_samples(n_pairs: int, samples: int) -> int:
    """Return for how many of the samples the two areas are computed.

    >>> area_samples(4_000, 1000), area_samples(415_416, 1000)
    (1000, 240)
    """
    return min(samples, max(MIN_AREA_SAMPLES, MAX_AREA_WORK // max(n_pairs, 1)))


class _Counter:
    """The pairs by function number, in the order of the first ranking; the others refer to it."""

    def __init__(self, left: np.ndarray, right: np.ndarray, rankings: Sequence[Ranking]) -> None:
        base = rankings[0].rows
        self.rankings = rankings
        self.first, self.second = left[base], right[base]
        self.itself = np.flatnonzero(self.first == self.second)
        self.orders = [np.arange(len(base))]
        place = np.empty(len(base), dtype=np.int64)
        place[base] = np.arange(len(base))
        self.places = [place[ranking.rows] for ranking in rankings[1:]]
        self.orders += self.places

    def fill(self, draws: Iterator[tuple[int, np.ndarray]], results: np.ndarray) -> None:
        """Score draws until there are none left. Two buffers serve all of them."""
        pair_weight, other = np.empty(len(self.first)), np.empty(len(self.first))
        for sample, weight in draws:
            # mode="clip" writes straight into `out`; the default goes through a copy
            np.take(weight, self.first, out=pair_weight, mode="clip")
            np.take(weight, self.second, out=other, mode="clip")
            np.multiply(pair_weight, other, out=pair_weight)
            pair_weight[self.itself] = weight[self.first[self.itself]]
            results[0, sample] = self.rankings[0].counts(pair_weight)
            for at, rows in enumerate(self.places, start=1):
                np.take(pair_weight, rows, out=other, mode="clip")
                results[at, sample] = self.rankings[at].counts(other)

    def sums(self, at: int, weights: np.ndarray) -> np.ndarray:
        """Return (samples, 4) tp, fp, fn, tn of one ranking: sums of products, no ranking needed.

        Args:
            at: Which ranking.
            weights: (samples, functions) how often each function is drawn.
        """
        from scipy.sparse import csr_matrix

        ranking, order, size = self.rankings[at], self.orders[at], weights.shape[1]
        tp, clones = ranking.n_called_clones, ranking.n_clones
        fp = clones + ranking.n_called_others
        totals = np.empty((len(weights), 4))
        for column, rows in enumerate((order[:tp], order[clones:fp], order[tp:clones], order[fp:])):
            a, b = self.first[rows], self.second[rows]
            same = a == b
            ones = np.ones(int((~same).sum()))
            pairs = csr_matrix((ones, (a[~same], b[~same])), shape=(size, size))
            alone = np.bincount(a[same], minlength=size)
            totals[:, column] = ((pairs.T @ weights.T).T * weights).sum(axis=1) + weights @ alone
        return totals


class _Shared:
    """An iterator that several threads draw from in turn."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items, self._lock = items, threading.Lock()

    def __iter__(self) -> _Shared:
        return self

    def __next__(self) -> Any:
        with self._lock:
            return next(self._items)


def drawn_counts(n_items: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """Yield how often each item is drawn with replacement, (n_items,) float64 per sample."""
    generator = np.random.default_rng(seed)
    for _ in range(samples):
        drawn = generator.integers(n_items, size=n_items)
        yield np.bincount(drawn, minlength=n_items).astype(np.float64)


def drawn_blocks(n_items: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """Yield the draws of `drawn_counts` some at a time, (samples, n_items)."""
    draws = drawn_counts(n_items, samples, seed)
    while block := list(islice(draws, BLOCK)):
        yield np.stack(block)


def resampled_sums(
    columns: np.ndarray, samples: int, seed: int, groups: np.ndarray | None = None
) -> np.ndarray:
    """Return (samples, k) sums of (n, k) columns over rows drawn with replacement.

    With `groups`, (n,) numbers from 0, whole groups are drawn: as in `resampled_counts` of them.

    Raises:
        ConfigError: `samples` or `seed` cannot be used.
    """
    check_draws(samples, seed)
    size = len(columns) if groups is None else int(groups.max()) + 1
    if groups is not None:
        columns = np.stack([np.bincount(groups, column, size) for column in columns.T], axis=1)
    return np.concatenate([block @ columns for block in drawn_blocks(size, samples, seed)])


def check_draws(samples: int, seed: int) -> None:
    """Raise ConfigError for numbers that cannot be drawn with."""
    if type(samples) is not int or type(seed) is not int or samples < 1 or seed < 0:
        text = f"{samples!r} resamples with seed={seed!r} cannot be used"
        raise ConfigError(text, fix="Give whole numbers, resamples from 1 and a seed from 0 up.")


def _threads(work: int) -> int:
    """Return how many threads to use for `work` (pairs times samples): no more than asked for."""
    asked = os.environ.get("OMP_NUM_THREADS", "")  # a worker has it from its launcher
    allowed = int(asked) if asked.isdigit() else os.cpu_count() or 1
    return max(1, min(MAX_THREADS, allowed, work // WORK_PER_THREAD))
