"""Scores of a detector on one split, with intervals that respect tasks, beside its floors.

The operating point is chosen on validation rows and frozen (`detector_points`); everything here
only applies it. What needs both classes is None where there is one: never 0.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from nbhelpers.detector_calibration import calibration_error, equal_bins, reliability
from nbhelpers.detector_points import (
    OperatingPoint,
    choose_operating_point,
)
from nbhelpers.detector_promises import clopper_pearson, humans_needed, promised_fpr
from nbhelpers.detector_rows import checked_rows, task_groups
from nbhelpers.detector_tpr import TprAtFpr
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.metric_registry import DETECTOR_SCORES
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
    "score_detection",
    "task_groups",
]

METRICS, LEADS = DETECTOR_SCORES.names(), DETECTOR_SCORES.differences()
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
    the others come from resampling tasks (`tpr_at_fpr`: see
    `detector_tpr`), all scorers on the same resamples. The calibration error has none: resampling
    moves it upwards. Where every AI row is called, or none, resamples cannot
    vary and the interval of the TPR is that of as many independent rows as there are tasks; that
    of the precision likewise, where every call is right, or none. Another score that no resample
    moves has no interval: a width of 0 would say that it is certain.

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
    scorers = [(z, point.is_ai(z))]
    scorers += [(checked_rows(y, s)[1], is_positive(s, t)) for s, t in known.values()]
    resampler = _Resampler(y, scorers, groups, point.target_fpr, resamples, seed)
    ours = resampler.scored(0)
    extras = _extras(y, z, point)
    ours.values |= _extra_rates(ours.counts, extras.sum(axis=0)[None, :])
    sums = resampled_sums(groups, extras, resamples, seed)
    ours.spread |= _extra_rates(resampler.counts[0], sums)
    n_ai, n_ai_tasks = int(y.sum()), len(set(groups[y == 1].tolist()))
    found: dict[str, Any] = {
        "n_samples": len(y),
        "n_human": len(y) - n_ai,
        "n_ai": n_ai,
        "n_tasks": int(groups.max()) + 1,
    }
    found |= _with_calibration(y, point.probabilities(z), ours)
    found["intervals"] = ours.intervals(n_ai_tasks)
    found["at_prevalence"] = {
        f"{share:g}": precision_at(ours.counts[0], ours.spread["tpr"], n_ai_tasks, share)
        for share in prevalences
    }
    compared = {
        name: _floor(ours, resampler.scored(at), n_ai_tasks) | {"threshold": float(known[name][1])}
        for at, name in enumerate(known, start=1)
    }
    found["floors"] = {
        name: {"skipped": value} if isinstance(value, str) else compared[name]
        for name, value in (floors or {}).items()
    }
    return found


def _with_calibration(y: np.ndarray, p: np.ndarray, ours: _Scored) -> dict[str, Any]:
    """Return `metrics` and `reliability`; calibration needs both classes."""
    bins = equal_bins(p)
    is_mixed = 0 < int(y.sum()) < len(y)
    metrics = {name: plain(ours.values[name][0]) for name in METRICS if name != "ece"}
    metrics["ece"] = calibration_error(y, p, bins) if is_mixed else None
    return {
        "metrics": {name: metrics[name] for name in METRICS},
        "reliability": reliability(y, p, bins) if is_mixed else [],
    }


def _floor(ours: _Scored, floor: _Scored, n_ai_tasks: int) -> dict[str, Any]:
    return {
        "metrics": {name: plain(value[0]) for name, value in floor.values.items()},
        "intervals": floor.intervals(n_ai_tasks),
        "lead": ours.lead_over(floor),
    }


class _Resampler:
    """All scorers of a split on the same resamples of its tasks."""

    def __init__(
        self,
        y: np.ndarray,
        scorers: Sequence[tuple[np.ndarray, np.ndarray]],
        groups: np.ndarray,
        target_fpr: float,
        resamples: int,
        seed: int,
    ) -> None:
        """Count once.

        Args:
            y: (n,) 0 or 1.
            scorers: (n,) scores and (n,) whether a row is called AI, of each.
            groups: (n,) number of each row's task.
            target_fpr: Of `tpr_at_fpr`.
            resamples: Number of resamples.
            seed: Of the resamples.
        """
        self._rankings = [ranking_of(y, scores, called) for scores, called in scorers]
        self.counts = resampled_counts(groups, groups, self._rankings, resamples, seed)
        self._ranked = [TprAtFpr(y, scores, groups, target_fpr) for scores, _ in scorers]
        self._called_tasks = [len(set(groups[called].tolist())) for _, called in scorers]
        self._draws = (int(groups.max()) + 1, resamples, seed)

    def scored(self, at: int) -> _Scored:
        """Return one scorer's metrics, as they are and resampled."""
        import numpy as np

        counts = self._rankings[at].counts(None)[None, :]
        values, spread = rates(counts), rates(self.counts[at])
        values["tpr_at_fpr"] = self._ranked[at].rates([np.ones((1, self._draws[0]))])
        spread["tpr_at_fpr"] = self._ranked[at].rates(_blocks(*self._draws))
        return _Scored(counts, values, spread, self._called_tasks[at])


@dataclass
class _Scored:
    """One scorer: its counts (1, 6), its metrics (1,) each, and these resampled (r,) each.

    `n_called_tasks`: tasks of the rows that it calls AI.
    """

    counts: np.ndarray
    values: dict[str, np.ndarray]
    spread: dict[str, np.ndarray]
    n_called_tasks: int

    def intervals(self, n_ai_tasks: int) -> dict[str, list[float] | None]:
        """Return the interval of every metric."""
        tp, fp, fn, tn = (round(float(value)) for value in self.counts[0, :4])
        found = {name: moved_interval(self.spread[name]) for name in METRICS if name in self.spread}
        if found["precision"] is None and fn + tp and fp + tn:
            found["precision"] = rate_interval(
                tp, tp + fp, self.spread["precision"], self.n_called_tasks
            )
        found["tpr"] = found["recall"] = rate_interval(tp, tp + fn, self.spread["tpr"], n_ai_tasks)
        found["fpr"] = list(clopper_pearson(fp, fp + tn)) if fp + tn else None
        found["specificity"] = found["fpr"] and [1 - found["fpr"][1], 1 - found["fpr"][0]]
        return found

    def lead_over(self, other: _Scored) -> dict[str, list[float] | None]:
        """Return of each of `LEADS` ours minus theirs, with the interval of the difference."""
        lead: dict[str, list[float] | None] = {}
        for name in LEADS:
            middle = plain(self.values[name][0] - other.values[name][0])
            edges = interval(self.spread[name] - other.spread[name])
            lead[name] = None if middle is None or edges is None else [middle, *edges]
        return lead


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


def rate_interval(
    k: int, n: int, spread: np.ndarray, n_tasks: int, level: float = LEVEL
) -> list[float] | None:
    """Return the interval of k in n from its resamples, or exactly where they cannot vary."""
    if not n:
        return None
    if k in (0, n):
        return list(clopper_pearson(n_tasks if k else 0, n_tasks, level))
    return moved_interval(spread, level)


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


def moved_interval(values: np.ndarray, level: float = LEVEL) -> list[float] | None:
    """Return the percentile interval of resamples; None where all of them are alike."""
    edges = interval(values, level)
    return None if edges is None or edges[0] == edges[1] else edges


def divide(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return the ratio, NaN where there is nothing to divide by."""
    import numpy as np

    return np.divide(above, below, out=np.full(np.shape(below), np.nan), where=below > 0)


def plain(value: float) -> float | None:
    """Return a float for JSON; None for NaN."""
    return None if value != value else float(value)
