"""Scores of a detector on one split, with intervals that respect tasks, beside its floors.

The operating point is chosen on validation rows and frozen (`detector_points`); everything here
only applies it. What needs both classes is None where there is one: never 0.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from nbhelpers.detector_calibration import calibration_error, equal_bins, reliability
from nbhelpers.detector_points import (
    OperatingPoint,
    checked_rows,
    choose_operating_point,
    clopper_pearson,
    humans_needed,
    promised_fpr,
    recalibrate,
)
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.ranking import Ranking, is_positive
from nbhelpers.resampling import drawn_counts, resampled_counts

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "METRICS",
    "OperatingPoint",
    "choose_operating_point",
    "clopper_pearson",
    "humans_needed",
    "interval",
    "precision_at",
    "promised_fpr",
    "recalibrate",
    "score_detection",
    "task_groups",
]

METRICS = (
    "roc_auc",
    "pr_auc",
    "accuracy",
    "f1",
    "precision",
    "recall",
    "fpr",
    "specificity",
    "tpr",
    "balanced_accuracy",
    "ece",
    "brier",
    "abstain_share",
    "accuracy_decided",
)
LEADS = ("roc_auc", "tpr")
LEVEL = 0.95
BLOCK = 200  # resamples whose weights are held together

# A floor on one split: its scores and its own frozen threshold; or the reason why there is none.
Floor = tuple["np.ndarray", float] | str


def score_detection(
    labels: Sequence[Any] | np.ndarray,
    logits: Sequence[float] | np.ndarray,
    point: OperatingPoint,
    *,
    tasks: Sequence[str],
    prevalences: Sequence[float],
    resamples: int,
    seed: int,
    floors: Mapping[str, Floor] | None = None,
) -> dict[str, Any]:
    """Return the scores of one split, as `result.json` holds them.

    FPR and specificity have Clopper-Pearson intervals, which take human programs as independent;
    the others come from resampling tasks, all scorers on the same resamples. The calibration error
    has none: resampling moves it upwards. Where every AI row is called, or none, resamples cannot
    vary and the interval of the TPR is that of as many independent rows as there are tasks.

    Args:
        labels: (n,) "human" or "ai" (or 0 and 1).
        logits: (n,) ai minus human.
        point: Frozen before.
        tasks: (n,) task of each row; "" is a task of its own.
        prevalences: Shares of AI code at which precision is stated.
        resamples: Number of resamples.
        seed: Of the resamples.
        floors: By name, (scores, threshold) of these rows, or why the floor was skipped.

    Raises:
        DataError: There are no rows, or lengths differ.
    """
    y, z = checked_rows(labels, logits)
    if not len(y):
        raise DataError("there are no rows to score", fix="Check that the split is not empty.")
    groups = task_groups(tasks, len(y))
    known = {name: value for name, value in (floors or {}).items() if not isinstance(value, str)}
    rankings = [ranking_of(y, z, point.is_ai(z))]
    rankings += [ranking_of(y, s, is_positive(s, t)) for s, t in known.values()]
    counts = resampled_counts(groups, groups, rankings, resamples, seed)
    once = [ranking.counts(None)[None, :] for ranking in rankings]
    extras = _extras(y, z, point)
    values = rates(once[0]) | _extra_rates(once[0], extras.sum(axis=0)[None, :])
    spread = rates(counts[0])
    spread |= _extra_rates(counts[0], resampled_sums(groups, extras, resamples, seed))
    found: dict[str, Any] = {
        "n_samples": len(y),
        "n_human": int((y == 0).sum()),
        "n_ai": int(y.sum()),
        "n_tasks": int(groups.max()) + 1,
        "metrics": {name: plain(values[name][0]) for name in METRICS if name != "ece"},
    }
    bins = equal_bins(point.probabilities(z))
    is_mixed = found["n_human"] > 0 and found["n_ai"] > 0
    found["metrics"]["ece"] = calibration_error(y, point.probabilities(z), bins) if is_mixed else None
    found["metrics"] = {name: found["metrics"][name] for name in METRICS}
    found["intervals"] = _intervals(once[0][0], spread, groups, y)
    n_ai_tasks = len(set(groups[y == 1].tolist()))
    found["at_prevalence"] = {
        f"{share:g}": precision_at(once[0][0], spread["tpr"], n_ai_tasks, share)
        for share in prevalences
    }
    found["reliability"] = reliability(y, point.probabilities(z), bins) if is_mixed else []
    found["floors"] = {
        name: {"skipped": value} for name, value in (floors or {}).items() if isinstance(value, str)
    }
    for at, (name, (_, threshold)) in enumerate(known.items(), start=1):
        found["floors"][name] = _floor(once, counts, at, groups, y) | {"threshold": float(threshold)}
    return found


def _floor(
    once: list[np.ndarray], counts: list[np.ndarray], at: int, groups: np.ndarray, y: np.ndarray
) -> dict[str, Any]:
    """Return the scores of one floor and our lead over it, on the same resamples."""
    ours, theirs = rates(once[0]), rates(once[at])
    our_spread, their_spread = rates(counts[0]), rates(counts[at])
    lead = {}
    for name in LEADS:
        middle = plain(ours[name][0] - theirs[name][0])
        edges = interval(our_spread[name] - their_spread[name])
        lead[name] = None if middle is None or edges is None else [middle, *edges]
    return {
        "metrics": {name: plain(value[0]) for name, value in theirs.items()},
        "intervals": _intervals(once[at][0], their_spread, groups, y),
        "lead": lead,
    }


def ranking_of(y: np.ndarray, scores: np.ndarray, called: np.ndarray) -> Ranking:
    """Return the rows ranked by score; `called` is what the frozen threshold calls AI."""
    import numpy as np

    scores = np.asarray(scores, dtype=np.float64)
    rest = scores[~called]
    return Ranking(y, scores, float(rest.max()) if len(rest) else -np.inf)


def rates(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Turn rows of `Ranking.counts`, (r, 6), into metrics, (r,) each; undefined ones are NaN."""
    import numpy as np

    tp, fp, fn, tn, roc_auc, pr_auc = counts.T
    tpr, fpr = divide(tp, tp + fn), divide(fp, fp + tn)
    is_single = np.isnan(tpr) | np.isnan(fpr)
    found = {
        "roc_auc": roc_auc,
        "pr_auc": pr_auc,
        "accuracy": divide(tp + tn, tp + fp + fn + tn),
        "f1": divide(2 * tp, 2 * tp + fp + fn),
        "precision": divide(tp, tp + fp),
        "balanced_accuracy": (tpr + 1 - fpr) / 2,
    }
    found = {name: np.where(is_single, np.nan, value) for name, value in found.items()}
    return found | {"recall": tpr, "tpr": tpr, "fpr": fpr, "specificity": 1 - fpr}


def _extras(y: np.ndarray, z: np.ndarray, point: OperatingPoint) -> np.ndarray:
    """Return (n, 3): squared error, whether undecided, whether decided and right."""
    import numpy as np

    undecided = point.is_undecided(z)
    right = ~undecided & (point.is_ai(z) == (y == 1))
    return np.stack([(point.probabilities(z) - y) ** 2, undecided, right], axis=1).astype(float)


def _extra_rates(counts: np.ndarray, sums: np.ndarray) -> dict[str, np.ndarray]:
    import numpy as np

    n = counts[:, :4].sum(axis=1)
    is_single = (counts[:, 0] + counts[:, 2] == 0) | (counts[:, 1] + counts[:, 3] == 0)
    brier, decided_right = divide(sums[:, 0], n), divide(sums[:, 2], n - sums[:, 1])
    return {
        "brier": np.where(is_single, np.nan, brier),
        "abstain_share": divide(sums[:, 1], n),
        "accuracy_decided": np.where(is_single, np.nan, decided_right),
    }


def _intervals(
    counts: np.ndarray, spread: Mapping[str, np.ndarray], groups: np.ndarray, y: np.ndarray
) -> dict[str, list[float] | None]:
    import numpy as np

    tp, fp, fn, tn = (round(float(value)) for value in counts[:4])
    found = {name: interval(spread[name]) for name in METRICS if name in spread}
    found["tpr"] = rate_interval(tp, tp + fn, spread["tpr"], len(np.unique(groups[y == 1])))
    found["recall"] = found["tpr"]
    found["fpr"] = list(clopper_pearson(fp, fp + tn)) if fp + tn else None
    found["specificity"] = found["fpr"] and [1 - found["fpr"][1], 1 - found["fpr"][0]]
    return found


def rate_interval(
    k: int, n: int, spread: np.ndarray, n_tasks: int, level: float = LEVEL
) -> list[float] | None:
    """Return the interval of k in n from its resamples, or exactly where they cannot vary."""
    if not n:
        return None
    if k in (0, n):
        return list(clopper_pearson(n_tasks if k else 0, n_tasks, level))
    return interval(spread, level)


def precision_at(
    counts: np.ndarray, tpr_spread: np.ndarray, n_ai_tasks: int, share: float
) -> dict[str, Any]:
    """Return the precision if a share of the programs were AI, with a cautious interval.

    Precision rises with the TPR and falls with the FPR. Both are taken at the unfavourable and at
    the favourable ends of intervals of 97.5 %, which together hold with 95 % (Bonferroni): no
    false positive in a sample does not make the precision certain.

    Source: Bayes; Elkan 2001, The Foundations of Cost-Sensitive Learning, section 2.
    """
    if not isinstance(share, int | float) or not 0 < share < 1:
        raise ConfigError(f"a prevalence of {share!r} is not between 0 and 1", fix="Give 0.05.")
    tp, fp, fn, tn = (round(float(value)) for value in counts[:4])
    if not tp + fn or not fp + tn:
        return {"precision": None, "precision_interval": None}

    def bayes(tpr: float, fpr: float) -> float | None:
        below = share * tpr + (1 - share) * fpr
        return share * tpr / below if below > 0 else None

    level = (1 + LEVEL) / 2
    sensitivity = rate_interval(tp, tp + fn, tpr_spread, n_ai_tasks, level)
    false_rate = clopper_pearson(fp, fp + tn, level)
    edges = None
    if sensitivity is not None:
        edges = [bayes(sensitivity[0], false_rate[1]), bayes(sensitivity[1], false_rate[0])]
        edges = None if None in edges else edges
    return {"precision": bayes(tp / (tp + fn), fp / (fp + tn)), "precision_interval": edges}


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


def resampled_sums(
    groups: np.ndarray, columns: np.ndarray, resamples: int, seed: int
) -> np.ndarray:
    """Return (resamples, k) weighted sums of (n, k) columns, on the draws of `resampled_counts`."""
    import numpy as np

    size = int(groups.max()) + 1
    sums = np.stack([np.bincount(groups, column, size) for column in columns.T], axis=1)
    return np.concatenate([weights @ sums for weights in _blocks(size, resamples, seed)])


def _blocks(size: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    import numpy as np

    draws = drawn_counts(size, resamples, seed)
    while block := list(islice(draws, BLOCK)):
        yield np.stack(block)


def interval(values: np.ndarray, level: float = LEVEL) -> list[float] | None:
    """Return the percentile interval of resamples; those that are undefined are left out."""
    import numpy as np

    known = values[~np.isnan(values)]
    if not len(known):
        return None
    tail = (1 - level) / 2
    return [float(edge) for edge in np.quantile(known, [tail, 1 - tail])]


def divide(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return the ratio, NaN where there is nothing to divide by."""
    import numpy as np

    return np.divide(above, below, out=np.full(np.shape(below), np.nan), where=below > 0)


def plain(value: float) -> float | None:
    """Return a float for JSON; None for NaN."""
    return None if value != value else float(value)
