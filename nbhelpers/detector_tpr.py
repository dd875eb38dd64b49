"""The true-positive rate at a false-positive rate of the split itself: how well scores rank.

A frozen threshold can keep its false-positive rate on one split and triple it on another, for the
model and for a floor differently. Then their TPRs at frozen thresholds cannot be compared; this
one can. It is no operating point: it needs the labels of the split that it is read on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


class TprAtFpr:
    """Rows ranked once, so that the rate is read under any weights of their tasks."""

    def __init__(
        self, y: np.ndarray, scores: np.ndarray, groups: np.ndarray, target_fpr: float
    ) -> None:
        """Sort once.

        Args:
            y: (n,) 0 or 1.
            scores: (n,) finite.
            groups: (n,) number of each row's task.
            target_fpr: Share of the humans that may lie above the threshold.
        """
        import numpy as np

        scores = np.asarray(scores, dtype=np.float64)
        humans, machines = np.flatnonzero(y == 0), np.flatnonzero(y == 1)
        humans = humans[np.argsort(-scores[humans], kind="stable")]
        machines = machines[np.argsort(-scores[machines], kind="stable")]
        self._humans, self._machines, self._target = groups[humans], groups[machines], target_fpr
        # how many AI rows score above each human, (n_human,): the rates it could set as threshold
        self._above = np.searchsorted(-scores[machines], -scores[humans], "left")
        size = int(groups.max()) + 1
        self._totals = np.stack([np.bincount(groups[y == each], minlength=size) for each in (0, 1)])

    def rates(self, blocks: Iterable[np.ndarray]) -> np.ndarray:
        """Return the rate of each resample, NaN where one class is not drawn.

        Args:
            blocks: (resamples, tasks) weights, whole numbers, some at a time.
        """
        import numpy as np

        return np.concatenate([np.zeros(0), *(self._block(weights) for weights in blocks)])

    def _block(self, weights: np.ndarray) -> np.ndarray:
        import numpy as np

        found = np.full(len(weights), np.nan)
        humans, machines = (self._totals @ weights.T).astype(np.float64)  # (r,) drawn of each class
        rows = np.flatnonzero((humans > 0) & (machines > 0))
        if not len(rows):
            return found
        weights, allowed = weights[rows], np.floor(self._target * humans[rows] + 1e-9)
        first = self._first_refused(weights, allowed)
        above = self._above[first]
        seen = np.take(weights, self._machines[: above.max()], axis=1)
        caught = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(seen, axis=1)], axis=1)
        found[rows] = caught[np.arange(len(rows)), above] / machines[rows]
        return found

    def _first_refused(self, weights: np.ndarray, allowed: np.ndarray) -> np.ndarray:
        """Return the rank of the human that may not lie above the threshold, (r,)."""
        import numpy as np

        n = len(self._humans)
        read = min(n, int(4 * self._target * n) + 50)  # the top ranks decide, nearly always
        while True:
            passed = np.cumsum(np.take(weights, self._humans[:read], axis=1), axis=1)
            if read == n or (passed[:, -1] > allowed).all():
                return (passed <= allowed[:, None]).sum(axis=1)
            read = n
