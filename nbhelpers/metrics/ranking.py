"""The arithmetic under `metrics`: pairs ranked once, counted under any weights, turned into ratios.

Kept apart so that a score and its bootstrap interval cannot be computed by two different formulas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nbhelpers.errors import ConfigError, DataError
from nbhelpers.metrics.intervals import divide

_TINY = 5e-324  # the smallest number above 0


def is_positive(probabilities: Sequence[float] | np.ndarray, threshold: float) -> np.ndarray:
    """Return which pairs are called clones: those whose probability is above the threshold.

    Compared in float64, so that a threshold between two float32 values keeps separating them.

    >>> is_positive([0.2, 0.5, 0.7], 0.5).tolist()
    [False, False, True]
    """
    try:
        limit = float(threshold)
    except (TypeError, ValueError):
        limit = math.nan
    if math.isnan(limit):
        raise ConfigError(f"threshold={threshold!r} is no number.", fix="Give one such as 0.5.")
    return as_array(probabilities, "probabilities", np.float64) > limit


def as_array(values: Any, name: str, dtype: Any = None) -> np.ndarray:
    """Return values as an array.

    Raises:
        DataError: They are no numbers, or rows of unlike lengths.
    """
    try:
        return np.asarray(values, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise DataError(f"the {name} are no numbers: {error}", fix="Give one number a pair.") from (
            error
        )


def checked(
    labels: Sequence[int] | np.ndarray, probabilities: Sequence[float] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return both as arrays, or name the first row that cannot be scored (rows count from 1)."""
    y, p = as_array(labels, "labels"), as_array(probabilities, "probabilities", np.float64)
    if y.ndim != 1 or y.shape != p.shape:
        raise DataError(
            f"labels have shape {y.shape}, probabilities {p.shape}", fix="Give one of each a pair."
        )
    if not len(y):
        raise DataError("there are no pairs to score", fix="Check that the split is not empty.")
    odd = np.flatnonzero(~np.isin(y, (0, 1)))
    if len(odd):
        raise DataError(
            f"label {y[odd].tolist()[0]!r} in row {odd[0] + 1} is neither 0 nor 1",
            fix="Use 1 for a clone.",
        )
    bad = np.flatnonzero(~np.isfinite(p))
    if len(bad):
        raise DataError(
            f"probability {p[bad[0]]} in row {bad[0] + 1} is not finite ({len(bad)} such rows)",
            fix="Look for non-finite weights or inputs: the model has not produced a score there.",
        )
    return y.astype(np.int64), p


class Ranking:
    """Pairs sorted once by falling probability, so that any weighting is scored by running sums.

    A ranking is scored again for every resample, so what does not depend on the weights is found
    here once. Clones stand apart from the rest: both areas are sums over the clones alone, and the
    other pairs matter only as totals between two clones.
    """

    def __init__(self, labels: np.ndarray, probabilities: np.ndarray, threshold: float) -> None:
        """Sort once.

        Args:
            labels: (n,) 0 or 1.
            probabilities: (n,) finite.
            threshold: See `is_positive`.
        """
        falling = np.argsort(-probabilities, kind="stable")
        is_clone = labels[falling] == 1
        clones, others = falling[is_clone], falling[~is_clone]
        self.rows = np.concatenate([clones, others])  # the order of the weights of `counts`
        self.n_clones = len(clones)
        called = is_positive(probabilities, threshold)
        ranked, rest = -probabilities[clones], -probabilities[others]  # both rise
        groups = np.flatnonzero(np.diff(ranked, prepend=np.nan) != 0)  # tied scores move together
        self._groups = None if len(groups) == len(ranked) else groups
        self._called = int(called[clones[groups]].sum())
        self.n_called_clones = int(called[clones].sum())
        above = np.searchsorted(rest, ranked[groups], "left")  # others ranked above each group
        upto = np.searchsorted(rest, ranked[groups], "right")  # with those that tie with it
        self.n_called_others = cut = int(called[others].sum())
        marks = np.unique(np.concatenate([[0, cut], above, upto]))
        self._starts = marks[marks < len(others)]
        self._above, self._upto = np.searchsorted(marks, above), np.searchsorted(marks, upto)
        self._cut = int(np.searchsorted(marks, cut))

    def counts(self, weights: np.ndarray | None) -> np.ndarray:
        """Return [tp, fp, fn, tn, roc_auc, pr_auc] with (n,) float64 weights in the order `rows`.

        Ties count half in the ROC area; the other area is average precision. Whole weights give
        exact counts: every sum stays below 2**53.
        """
        w = np.ones(len(self.rows)) if weights is None else weights
        clones, others = w[: self.n_clones], w[self.n_clones :]
        gained = clones if self._groups is None else _sums(clones, self._groups)
        hits = np.cumsum(gained)
        passed = np.zeros(len(self._starts) + 1)
        np.cumsum(_sums(others, self._starts), out=passed[1:])
        positives, negatives = (hits[-1] if len(hits) else 0.0), passed[-1]
        tp, fp = (hits[self._called - 1] if self._called else 0.0), passed[self._cut]
        areas = (np.nan, np.nan)
        if positives > 0:
            areas = self._areas(gained, hits, passed)
        return np.array([tp, fp, positives - tp, negatives - fp, *areas])

    def _areas(
        self, gained: np.ndarray, hits: np.ndarray, passed: np.ndarray
    ) -> tuple[float, float]:
        """Return both areas from the running sums of clones and of the others."""
        positives, negatives, upto = hits[-1], passed[-1], passed[self._upto]
        called = hits + upto
        precision = hits / np.maximum(called, _TINY)  # 0 where nothing is called yet
        average_precision = float((gained * precision).sum()) / positives
        if negatives <= 0:
            return np.nan, average_precision
        below = negatives - (passed[self._above] + upto) / 2
        return float((gained * below).sum()) / (positives * negatives), average_precision


def _sums(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the sum of each segment; a segment ends where the next one starts."""
    return np.add.reduceat(values, starts) if len(starts) else np.zeros(0)


def ratios(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Turn rows of `Ranking.counts` into metrics, one array each."""
    tp, fp, fn, tn, roc_auc, pr_auc = counts.T
    metrics = {
        "precision": divide(tp, tp + fp, 0.0),
        "recall": divide(tp, tp + fn, 0.0),
        "f1": divide(2 * tp, 2 * tp + fp + fn, 0.0),
    }
    negative = {
        "precision": divide(tn, tn + fn, 0.0),
        "recall": divide(tn, tn + fp, 0.0),
        "f1": divide(2 * tn, 2 * tn + fp + fn, 0.0),
    }
    metrics |= {f"{name}_macro": (metrics[name] + negative[name]) / 2 for name in negative}
    metrics["accuracy"] = divide(tp + tn, tp + fp + fn + tn, 0.0)
    return metrics | {"roc_auc": roc_auc, "pr_auc": pr_auc}


def ratios_at(counts: np.ndarray, prior: float) -> dict[str, np.ndarray]:
    """Turn rows of counts into precision, recall and F1 at another share of clones."""
    tp, fp, fn, tn = counts.T[:4]
    recall, false_rate = divide(tp, tp + fn), divide(fp, fp + tn)
    precision = divide(prior * recall, prior * recall + (1 - prior) * false_rate, 0.0)
    precision = np.where(np.isnan(recall + false_rate), np.nan, precision)
    f1 = divide(2 * precision * recall, precision + recall, 0.0)
    f1 = np.where(np.isnan(precision), np.nan, f1)
    return {"precision": precision, "recall": recall, "f1": f1}
