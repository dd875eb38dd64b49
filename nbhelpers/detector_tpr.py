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
        if not len(self._humans) or not len(self._machines):
            return found
        passed = np.cumsum(np.take(weights, self._humans, axis=1), axis=1)  # (r, n_human)
        caught = np.cumsum(np.take(weights, self._machines, axis=1), axis=1)  # (r, n_ai)
        allowed = np.floor(self._target * passed[:, -1] + 1e-9)
        first = (passed <= allowed[:, None]).sum(axis=1)  # the human that may not lie above
        is_drawn = (passed[:, -1] > 0) & (caught[:, -1] > 0)
        rows = np.flatnonzero(is_drawn)
        above = self._above[first[rows]]
        hits = np.where(above > 0, caught[rows, np.maximum(above, 1) - 1], 0.0)
        found[rows] = hits / caught[rows, -1]
        return found
