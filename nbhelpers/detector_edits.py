"""What an edit that keeps a program's meaning does to its score: to AI code and to human code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.detector_metrics import (
    Floor,
    divide,
    interval,
    plain,
    ranking_of,
    rate_interval,
    resampled_sums,
)
from nbhelpers.detector_points import OperatingPoint
from nbhelpers.detector_promises import clopper_pearson
from nbhelpers.detector_rows import checked_rows, task_groups
from nbhelpers.errors import DataError
from nbhelpers.ranking import is_positive

if TYPE_CHECKING:
    import numpy as np


class Edited(NamedTuple):
    """The programs of a split that one edit changes, scored again after it."""

    rows: Sequence[int] | np.ndarray  # (m,) row numbers in the split
    logits: Sequence[float] | np.ndarray  # (m,)
    floors: Mapping[str, np.ndarray] = {}  # by name, (m,) scores of edited texts


def edit_scores(
    labels: Sequence[Any] | np.ndarray,
    logits: Sequence[float] | np.ndarray,
    edited: Mapping[str, Edited],
    point: OperatingPoint,
    *,
    tasks: Sequence[str],
    resamples: int,
    seed: int,
    floors: Mapping[str, Floor] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return per edit what it does to the TPR and to the FPR, model and floors at their thresholds.

    Before and after are the same rows: those that the edit changes; `skipped` counts the others.
    The loss of TPR is before minus after, with the interval of that difference. `roc_auc` is of
    edited AI against edited humans, `roc_auc_ai_edited` of edited AI against humans as they are,
    `roc_auc_human_edited` the reverse.

    Args:
        labels: (n,) "human" or "ai" (or 0 and 1) of the split.
        logits: (n,) unedited.
        edited: By name of the edit.
        point: Frozen before.
        tasks: (n,) "" is a task of its own.
        resamples: Number of resamples.
        seed: Of the resamples.
        floors: As for `score_detection`: unedited scores and threshold, or why there is none.

    Raises:
        DataError: An edit's rows do not fit the split or its scores.
    """
    import numpy as np

    y, z = checked_rows(labels, logits)
    groups = task_groups(tasks, len(y))
    found = {}
    for name, edit in edited.items():
        rows = np.asarray(edit.rows, dtype=np.int64)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(y)):
            raise DataError(
                f"{name}: a row number is not of this split of {len(y)} rows",
                fix="Count rows from 0 within the split.",
            )
        _, after = checked_rows(y[rows], edit.logits)
        draw = (groups[rows], resamples, seed)
        scores = {"n_human": int((y[rows] == 0).sum()), "n_ai": int(y[rows].sum())}
        scores |= {"skipped": len(y) - len(rows)}
        calls = (point.is_ai(z[rows]), point.is_ai(after))
        scores |= _compared(y[rows], z[rows], after, calls, draw)
        scores["floors"] = {}
        for floor, value in (floors or {}).items():
            if isinstance(value, str) or floor not in edit.floors:
                reason = value if isinstance(value, str) else "not scored under edits"
                scores["floors"][floor] = {"skipped": reason}
                continue
            before, line = np.asarray(value[0], dtype=np.float64)[rows], value[1]
            _, other = checked_rows(y[rows], edit.floors[floor])
            calls = (is_positive(before, line), is_positive(other, line))
            scores["floors"][floor] = _compared(y[rows], before, other, calls, draw)
        found[name] = scores
    return found


def _compared(
    y: np.ndarray,
    before: np.ndarray,
    after: np.ndarray,
    calls: tuple[np.ndarray, np.ndarray],
    draw: tuple[np.ndarray, int, int],
) -> dict[str, Any]:
    """Return the scores of one scorer on rows before and after an edit."""
    import numpy as np

    called_before, called = calls
    groups, resamples, seed = draw
    is_ai = y == 1
    n_ai, n_human = int(is_ai.sum()), int((~is_ai).sum())
    hits, alarms = int(called[is_ai].sum()), int(called[~is_ai].sum())
    columns = np.stack([is_ai & called, is_ai & called_before, is_ai], axis=1).astype(float)
    sums = np.full((1, 3), np.nan)
    if len(y):
        _, own = np.unique(groups, return_inverse=True)
        sums = resampled_sums(own, columns, resamples, seed)
    tpr, tpr_before = divide(sums[:, 0], sums[:, 2]), divide(sums[:, 1], sums[:, 2])
    old_hits, old_alarms = int(called_before[is_ai].sum()), int(called_before[~is_ai].sum())
    n_tasks = len(set(groups[is_ai].tolist()))
    found: dict[str, Any] = {
        "roc_auc": _auc(y, after),
        "roc_auc_unedited": _auc(y, before),
        "roc_auc_ai_edited": _auc(y, np.where(is_ai, after, before)),
        "roc_auc_human_edited": _auc(y, np.where(is_ai, before, after)),
        "tpr": hits / n_ai if n_ai else None,
        "tpr_interval": rate_interval(hits, n_ai, tpr, n_tasks),
        "tpr_unedited": old_hits / n_ai if n_ai else None,
        "tpr_loss": (old_hits - hits) / n_ai if n_ai else None,
        "tpr_loss_interval": interval(tpr_before - tpr) if n_ai else None,
        "fpr": alarms / n_human if n_human else None,
        "fpr_interval": list(clopper_pearson(alarms, n_human)) if n_human else None,
        "fpr_unedited": old_alarms / n_human if n_human else None,
    }
    return found


def _auc(y: np.ndarray, scores: np.ndarray) -> float | None:
    import numpy as np

    if len(np.unique(y)) < 2:
        return None
    return plain(ranking_of(y, scores, np.zeros(len(y), dtype=bool)).counts(None)[4])
