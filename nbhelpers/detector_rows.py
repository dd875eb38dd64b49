"""Labels, scores and tasks of a split as arrays, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbhelpers.errors import DataError

if TYPE_CHECKING:
    import numpy as np


def checked_rows(
    labels: Sequence[Any] | np.ndarray, scores: Sequence[float] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (n,) labels as 0 (human) and 1 (ai), and (n,) float64 scores.

    Raises:
        DataError: Lengths differ, a label is another one, or a score is not finite (rows count
            from 1).
    """
    import numpy as np

    numbers = {"human": 0, "ai": 1, 0: 0, 1: 1}
    try:
        y = np.array([numbers[label] for label in labels], dtype=np.int64)
        z = np.asarray(scores, dtype=np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"a label or a score cannot be used: {error}", fix='Labels are "human" or "ai".'
        ) from error
    if y.shape != z.shape:
        raise DataError(f"{len(y)} labels for scores {z.shape}", fix="Give one score to each row.")
    bad = np.flatnonzero(~np.isfinite(z))
    if len(bad):
        raise DataError(
            f"score {z[bad[0]]} in row {bad[0] + 1} is not finite ({len(bad)} such rows)",
            fix="Look for non-finite weights: the model has not produced a score there.",
        )
    return y, z


def task_groups(tasks: Sequence[str], n: int) -> np.ndarray:
    """Return (n,) numbers of the tasks from 0; a row without a task is a task of its own.

    >>> task_groups(["a", "", "a", ""], 4).tolist()
    [0, 1, 0, 2]
    """
    import numpy as np

    if len(tasks) != n:
        raise DataError(f"{len(tasks)} tasks for {n} rows", fix="Give one to each; '' for none.")
    numbers: dict[Any, int] = {}
    keys = [task if task else (row,) for row, task in enumerate(tasks)]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
