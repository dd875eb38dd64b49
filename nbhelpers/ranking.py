"""The arithmetic under `metrics`: pairs ranked once, counted under any weights, turned into ratios.

Kept apart so that a score and its bootstrap interval cannot be computed by two different formulas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbhelpers.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np


def is_positive(probabilities: Sequence[float] | np.ndarray, threshold: float) -> np.ndarray:
    """Return which pairs are called clones: those whose probability is above the threshold.

    Compared in float64, so that a threshold between two float32 values keeps separating them.

    >>> is_positive([0.2, 0.5, 0.7], 0.5).tolist()
    [False, False, True]
    """
    import numpy as np

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
    import numpy as np

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
    import numpy as np

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
    """Pairs sorted once by falling probability, so that any weighting is scored by running sums."""

    def __init__(
        self,
        labels: np.ndarray,
        probabilities: np.ndarray,
        threshold: float,
        *,
        has_areas: bool = True,
    ) -> None:
        """Sort once; without `has_areas` the two areas stay undefined and are not computed."""
        import numpy as np

        self.order = np.argsort(-probabilities, kind="stable")
        self.labels = labels[self.order].astype(np.float64)
        self.cut = int(is_positive(probabilities, threshold).sum())
        ranked = probabilities[self.order]
        ends = np.flatnonzero(np.append(np.diff(ranked) != 0, True))
        self.ends = slice(None) if len(ends) == len(ranked) else ends  # tied scores move together
        self.has_areas = has_areas

    def counts(self, weights: np.ndarray | None) -> np.ndarray:
        """Return [tp, fp, fn, tn, roc_auc, pr_auc]; `weights` follow `order`."""
        import numpy as np

        w = np.ones(len(self.labels)) if weights is None else weights
        clones, total = np.cumsum(w * self.labels), np.cumsum(w)
        tp, called = (clones[self.cut - 1], total[self.cut - 1]) if self.cut else (0.0, 0.0)
        positives, negatives = clones[-1], total[-1] - clones[-1]
        fp = called - tp
        areas = (np.nan, np.nan)
        if self.has_areas:
            areas = _areas(clones[self.ends], total[self.ends])
        return np.array([tp, fp, positives - tp, negatives - fp, *areas])


def _areas(clones: np.ndarray, total: np.ndarray) -> tuple[float, float]:
    """Return ROC-AUC (ties count half) and average precision from running sums."""
    import numpy as np

    positives, negatives = clones[-1], total[-1] - clones[-1]
    if positives <= 0:
        return np.nan, np.nan
    gained = np.diff(clones, prepend=0.0)
    precision = np.divide(clones, total, out=np.zeros_like(total), where=total > 0)
    average_precision = float(gained @ precision) / positives
    if negatives <= 0:
        return np.nan, average_precision
    lost = np.diff(total - clones, prepend=0.0)
    return float(lost @ (clones - gained / 2)) / (positives * negatives), average_precision


def ratios(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Turn rows of `Ranking.counts` into metrics, one array each."""
    tp, fp, fn, tn, roc_auc, pr_auc = counts.T
    found = {
        "precision": _divide(tp, tp + fp),
        "recall": _divide(tp, tp + fn),
        "f1": _divide(2 * tp, 2 * tp + fp + fn),
    }
    negative = {
        "precision": _divide(tn, tn + fn),
        "recall": _divide(tn, tn + fp),
        "f1": _divide(2 * tn, 2 * tn + fp + fn),
    }
    found |= {f"{name}_macro": (found[name] + negative[name]) / 2 for name in negative}
    found["accuracy"] = _divide(tp + tn, tp + fp + fn + tn)
    return found | {"roc_auc": roc_auc, "pr_auc": pr_auc}


def ratios_at(counts: np.ndarray, prior: float) -> dict[str, np.ndarray]:
    """Turn rows of counts into precision, recall and F1 at another share of clones."""
    import numpy as np

    tp, fp, fn, tn = counts.T[:4]
    recall, false_rate = _divide(tp, tp + fn, np.nan), _divide(fp, fp + tn, np.nan)
    precision = _divide(prior * recall, prior * recall + (1 - prior) * false_rate)
    precision = np.where(np.isnan(recall + false_rate), np.nan, precision)
    f1 = _divide(2 * precision * recall, precision + recall)
    f1 = np.where(np.isnan(precision), np.nan, f1)
    return {"precision": precision, "recall": recall, "f1": f1}


def _divide(above: np.ndarray, below: np.ndarray, empty: float = 0.0) -> np.ndarray:
    import numpy as np

    return np.divide(above, below, out=np.full_like(below, empty), where=below > 0)
