"""Whether a probability means what it says: temperature, reliability, and the error left over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbhelpers.detector_rows import checked_rows

if TYPE_CHECKING:
    import numpy as np

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 100.0
MAX_SCALED_LOGIT = 30.0  # beyond about 36 a float64 probability is exactly 1 and orders nothing
BINS = 15
MIN_BIN_ROWS = 10


def probabilities(logits: Sequence[float] | np.ndarray, temperature: float) -> np.ndarray:
    """Return sigmoid(logit / temperature), (n,) float64, without overflow.

    >>> probabilities([-800.0, 0.0, 800.0], 1.0).tolist()
    [0.0, 0.5, 1.0]
    """
    import numpy as np
    from scipy.special import expit

    return expit(np.asarray(logits, dtype=np.float64) / temperature)


def fit_temperature(
    labels: Sequence[Any] | np.ndarray, logits: Sequence[float] | np.ndarray
) -> float:
    """Return the temperature of least cross-entropy; 1.0 when there is one class alone.

    Labels are softened by one pseudo-row of each class, so that rows without a single error have a
    finite optimum too. The result keeps `MIN_TEMPERATURE` and `MAX_TEMPERATURE`, and no row's
    logit is scaled above `MAX_SCALED_LOGIT`, where probabilities would no longer order rows. The
    cross-entropy is convex in 1 / temperature: its slope is bisected.

    Source: Guo et al. 2017, On Calibration of Modern Neural Networks, section 4.2; soft labels as
    in Platt 1999, Probabilistic Outputs for Support Vector Machines, equation 4.
    """
    import numpy as np
    from scipy.special import expit

    y, z = checked_rows(labels, logits)
    n_ai, n_human = int(y.sum()), int((1 - y).sum())
    if not n_ai or not n_human or not np.any(z):
        return 1.0
    soft = np.where(y == 1, (n_ai + 1) / (n_ai + 2), 1 / (n_human + 2))
    least = max(MIN_TEMPERATURE, float(np.abs(z).max()) / MAX_SCALED_LOGIT)
    if least >= MAX_TEMPERATURE:
        return least
    cold, hot = 1 / least, 1 / MAX_TEMPERATURE  # of 1 / temperature: highest and lowest

    def slope(inverse: float) -> float:
        return float(((expit(inverse * z) - soft) * z).sum())

    if slope(cold) <= 0:
        return least
    if slope(hot) >= 0:
        return MAX_TEMPERATURE
    for _ in range(60):
        middle = math.sqrt(cold * hot)
        cold, hot = (middle, hot) if slope(middle) > 0 else (cold, middle)
    return 1 / math.sqrt(cold * hot)


def equal_bins(p: np.ndarray) -> np.ndarray:
    """Return the bin of each row, (n,): runs of the sorted probabilities of about equal size.

    At most `BINS`, each of at least `MIN_BIN_ROWS` rows where there are as many; equal
    probabilities share a bin, so there may be fewer.
    """
    import numpy as np

    count = max(1, min(BINS, len(p) // MIN_BIN_ROWS))
    order = np.sort(p)
    edges = order[[len(p) * at // count for at in range(1, count)]]
    _, bins = np.unique(np.searchsorted(np.unique(edges), p, "right"), return_inverse=True)
    return bins


def reliability(y: np.ndarray, p: np.ndarray, bins: np.ndarray) -> list[dict[str, Any]]:
    """Return per bin its range, its rows, its mean probability and its share of AI rows."""
    found = []
    for at in range(int(bins.max()) + 1 if len(bins) else 0):
        rows = bins == at
        found.append(
            {
                "low": float(p[rows].min()),
                "high": float(p[rows].max()),
                "n": int(rows.sum()),
                "mean_p": float(p[rows].mean()),
                "share_ai": float(y[rows].mean()),
            }
        )
    return found


def calibration_error(y: np.ndarray, p: np.ndarray, bins: np.ndarray) -> float:
    """Return the expected calibration error: the mean gap of the bins, weighted by their rows.

    Source: Naeini et al. 2015, Obtaining Well Calibrated Probabilities Using Bayesian Binning;
    bins of equal mass as in Nixon et al. 2019, Measuring Calibration in Deep Learning.
    """
    import numpy as np

    return float(np.abs(np.bincount(bins, y - p)).sum() / len(p))
