"""Whether a probability means what it says: reliability in bins of equal mass, and their error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

BINS = 15
MIN_BIN_ROWS = 10


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
