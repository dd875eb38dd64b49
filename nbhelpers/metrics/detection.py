"""Scores of a detector: threshold, promised false-positive rate, calibration, intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nbhelpers.common.files import rebuilt
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.metrics.intervals import (
    LEVEL,
    check_share,
    clopper_pearson,
    count_of,
    divide,
    humans_needed,
    interval,
    moved_interval,
    plain,
    promised_fpr,
    rate_interval,
)
from nbhelpers.metrics.ranking import Ranking, is_positive
from nbhelpers.metrics.registry import DETECTOR_SCORES
from nbhelpers.metrics.resampling import drawn_blocks, resampled_counts, resampled_sums

# ------------------------------------------------------------------------------------------------
# The true-positive rate at a false-positive rate of the split itself: how well scores rank.
#
# A frozen threshold can keep its false-positive rate on one split and triple it on another, for the
# model and for a floor differently. Then their TPRs at frozen thresholds cannot be compared; this
# one can. It is no operating point: it needs the labels of the split that it is read on.


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
        return np.concatenate([np.zeros(0), *(self._block(weights) for weights in blocks)])

    def _block(self, weights: np.ndarray) -> np.ndarray:
        tpr = np.full(len(weights), np.nan)
        humans, machines = (self._totals @ weights.T).astype(np.float64)  # (r,) drawn of each class
        rows = np.flatnonzero((humans > 0) & (machines > 0))
        if not len(rows):
            return tpr
        weights, allowed = weights[rows], np.floor(self._target * humans[rows] + 1e-9)
        first = self._first_refused(weights, allowed)
        above = self._above[first]
        seen = np.take(weights, self._machines[: above.max()], axis=1)
        caught = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(seen, axis=1)], axis=1)
        tpr[rows] = caught[np.arange(len(rows)), above] / machines[rows]
        return tpr

    def _first_refused(self, weights: np.ndarray, allowed: np.ndarray) -> np.ndarray:
        """Return the rank of the human that may not lie above the threshold, (r,)."""
        n = len(self._humans)
        read = min(n, int(4 * self._target * n) + 50)  # the top ranks decide, nearly always
        while True:
            passed = np.cumsum(np.take(weights, self._humans[:read], axis=1), axis=1)
            if read == n or (passed[:, -1] > allowed).all():
                return (passed <= allowed[:, None]).sum(axis=1)
            read = n


# ------------------------------------------------------------------------------------------------
# Labels, scores and tasks of a split as arrays, checked once.


def checked_rows(
    labels: Sequence[Any] | np.ndarray, scores: Sequence[float] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (n,) labels as 0 (human) and 1 (ai), and (n,) float64 scores.

    Raises:
        DataError: Lengths differ, a label is another one, or a score is not finite (rows count
            from 1).
    """
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
    if len(tasks) != n:
        raise DataError(f"{len(tasks)} tasks for {n} rows", fix="Give one to each; '' for none.")
    numbers: dict[Any, int] = {}
    keys = [task or (row,) for row, task in enumerate(tasks)]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


# ------------------------------------------------------------------------------------------------
# Whether a probability means what it says: temperature, reliability, and the error left over.


MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 100.0
MAX_SCALED_LOGIT = 30.0  # beyond about 36 a float64 probability is exactly 1 and orders nothing
BINS = 15
MIN_BIN_ROWS = 10


def probabilities(logits: Sequence[float] | np.ndarray, temperature: float) -> np.ndarray:
    """Return sigmoid(logit / temperature), (n,) float64, without overflow.

    >>> probabilities([-800.0, 0.0, 800.0], 1.0).tolist()
    [0.0, 0.5, 1.0]
    """
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
    count = max(1, min(BINS, len(p) // MIN_BIN_ROWS))
    order = np.sort(p)
    edges = order[[len(p) * at // count for at in range(1, count)]]
    _, bins = np.unique(np.searchsorted(np.unique(edges), p, "right"), return_inverse=True)
    return bins


def reliability(y: np.ndarray, p: np.ndarray, bins: np.ndarray) -> list[dict[str, Any]]:
    """Return per bin its range, its rows, its mean probability and its share of AI rows."""
    table = []
    for at in range(int(bins.max()) + 1 if len(bins) else 0):
        rows = bins == at
        table.append(
            {
                "low": float(p[rows].min()),
                "high": float(p[rows].max()),
                "n": int(rows.sum()),
                "mean_p": float(p[rows].mean()),
                "share_ai": float(y[rows].mean()),
            }
        )
    return table


def calibration_error(y: np.ndarray, p: np.ndarray, bins: np.ndarray) -> float:
    """Return the expected calibration error: the mean gap of the bins, weighted by their rows.

    Source: Naeini et al. 2015, Obtaining Well Calibrated Probabilities Using Bayesian Binning;
    bins of equal mass as in Nixon et al. 2019, Measuring Calibration in Deep Learning.
    """
    return float(np.abs(np.bincount(bins, y - p)).sum() / len(p))


# ------------------------------------------------------------------------------------------------
# Where a detector draws its line: the threshold of a promised false-positive rate, and its band.
#
# One decision rule: a program is called AI when its probability is *above* the threshold
# (`ranking.is_positive`). The threshold comes from human code alone, so it holds for people like
# those it was chosen on, and for nobody else.


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """A threshold, what it promises and for whom; frozen once it is chosen.

    Attributes:
        threshold: Probability above which a program is called AI.
        threshold_logit: The same line before scaling: a logit.
        temperature: Logits are divided by it.
        target_fpr: False-positive rate that was asked for.
        n_humans: Human programs that the threshold was chosen on.
        valid_fpr: False-positive rate on those.
        valid_fpr_interval: Its Clopper-Pearson interval.
        promised_fpr: Upper limit of the rate that `n_humans` can promise with `LEVEL`.
        abstain: [low, high] of the probabilities without a call, ends included; None without a
            band.
        target_miss_rate: Share of AI rows that may score below the band.
        chosen_on: Whose code it was chosen on, in words.
        warnings: What a reader has to know, as sentences.
    """

    threshold: float
    threshold_logit: float
    temperature: float
    target_fpr: float
    n_humans: int
    valid_fpr: float
    valid_fpr_interval: tuple[float, float]
    promised_fpr: float
    abstain: tuple[float, float] | None
    target_miss_rate: float
    chosen_on: str
    warnings: tuple[str, ...] = ()

    def probabilities(self, logits: Sequence[float] | np.ndarray) -> np.ndarray:
        """Return p_ai of each logit, (n,) float64."""
        return probabilities(logits, self.temperature)

    def is_ai(self, logits: Sequence[float] | np.ndarray) -> np.ndarray:
        """Return which programs are called AI, (n,) bool."""
        return is_positive(self.probabilities(logits), self.threshold)

    def is_undecided(self, logits: Sequence[float] | np.ndarray) -> np.ndarray:
        """Return which programs get no call, (n,) bool."""
        p = self.probabilities(logits)
        if self.abstain is None:
            return np.zeros(len(p), dtype=bool)
        return (p >= self.abstain[0]) & ~is_positive(p, self.threshold)

    def calls(self, logits: Sequence[float] | np.ndarray) -> list[str]:
        """Return "ai", "undecided" or "human" of each logit."""
        undecided = self.is_undecided(logits)
        return np.where(
            self.is_ai(logits), "ai", np.where(undecided, "undecided", "human")
        ).tolist()

    def to_dict(self) -> dict[str, Any]:
        """Return the point as JSON."""
        facts = asdict(self)
        for name in ("valid_fpr_interval", "abstain", "warnings"):
            facts[name] = None if facts[name] is None else list(facts[name])
        return facts

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> OperatingPoint:
        """Return the point that `to_dict` wrote.

        Raises:
            DataError: A field is missing, unknown or of a wrong type; names it.
        """
        fix = "Take the file that the run or `nbhelpers calibrate` wrote, unchanged."
        return rebuilt(cls, values, "operating point", error=DataError, fix=fix)


def choose_operating_point(
    labels: Sequence[Any] | np.ndarray,
    logits: Sequence[float] | np.ndarray,
    *,
    target_fpr: float,
    target_miss_rate: float,
    chosen_on: str = "the validation humans of this run",
) -> OperatingPoint:
    """Fit the temperature and fix the threshold and the band of abstention on validation rows.

    The threshold is the lowest at which at most `target_fpr` of the human rows are called AI. The
    band starts at the highest probability below which at most `target_miss_rate` of the AI rows
    score, and ends at the threshold.

    Args:
        labels: (n,) "human" or "ai" (or 0 and 1).
        logits: (n,) ai minus human.
        target_fpr: Between 0 and 1.
        target_miss_rate: Between 0 and 1.
        chosen_on: Whose code this is, for the reader.

    Raises:
        DataError: There is no human row, or a logit is not finite.
    """
    check_share(target_miss_rate, "target_miss_rate")
    y, z = checked_rows(labels, logits)
    humans, machines = z[y == 0], np.sort(z[y == 1])
    temperature, low, warnings = fit_temperature(y, z), None, []
    if not len(machines):
        warnings.append(
            "There is no AI row in validation: the temperature is 1 and there is no band of "
            "abstention."
        )
    elif temperature in (MIN_TEMPERATURE, MAX_TEMPERATURE):
        warnings.append(
            f"The temperature stands at its limit ({temperature:g}): read the probabilities as "
            "ranks."
        )
    threshold_logit = threshold_at_fpr(humans, target_fpr)
    threshold = float(probabilities([threshold_logit], temperature)[0])
    exceed, n = int((probabilities(humans, temperature) > threshold).sum()), len(humans)
    promised = promised_fpr(n, exceed)
    if n < humans_needed(target_fpr):
        warnings.append(
            f"{n} human programs ({exceed} above the threshold) promise a false-positive rate of "
            f"at most {promised:.2%} with {LEVEL:.0%} confidence, not {target_fpr:.2%}; that "
            f"takes {humans_needed(target_fpr)} with none above it."
        )
    if len(machines):
        missed = count_of(target_miss_rate, len(machines))
        low = float(probabilities(machines, temperature)[missed])
    if low is not None and low >= threshold:
        low = None
        warnings.append(
            f"There is no band of abstention: at most {target_miss_rate:.1%} of the AI rows score "
            "below the threshold."
        )
    return OperatingPoint(
        threshold=threshold,
        threshold_logit=threshold_logit,
        temperature=temperature,
        target_fpr=float(target_fpr),
        n_humans=n,
        valid_fpr=exceed / n,
        valid_fpr_interval=clopper_pearson(exceed, n),
        promised_fpr=promised,
        abstain=None if low is None else (low, threshold),
        target_miss_rate=float(target_miss_rate),
        chosen_on=chosen_on,
        warnings=tuple(warnings),
    )


def threshold_at_fpr(human_scores: Sequence[float] | np.ndarray, target_fpr: float) -> float:
    """Return the lowest threshold above which at most `target_fpr` of the human scores lie.

    With n humans, floor(target_fpr n) of them may lie above it; the next one sets it. Equal scores
    stay together, below.

    >>> threshold_at_fpr([0.1, 0.2, 0.3, 0.9], 0.25)
    0.3
    >>> threshold_at_fpr([0.1, 0.2, 0.9, 0.9], 0.25)
    0.9

    Raises:
        ConfigError: The target is not between 0 and 1.
        DataError: There is no human score.
    """
    check_share(target_fpr, "target_fpr")
    scores = np.sort(np.asarray(human_scores, dtype=np.float64))
    if not len(scores):
        raise DataError(
            "there is no human row, so no threshold can promise a false-positive rate",
            fix="Give validation rows of human code.",
        )
    return float(scores[len(scores) - 1 - count_of(target_fpr, len(scores))])


# ------------------------------------------------------------------------------------------------
# Scores of a detector on one split, with intervals that respect tasks, beside its floors.
#
# The operating point is chosen on validation rows and frozen (see above); everything here
# only applies it. What needs both classes is None where there is one: never 0.5.


METRICS = DETECTOR_SCORES.names()

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
    groups, p = task_groups(tasks, len(y)), point.probabilities(z)
    n_ai, n_ai_tasks = int(y.sum()), len(set(groups[y == 1].tolist()))
    known = {name: value for name, value in (floors or {}).items() if not isinstance(value, str)}
    scorers = [(z, point.is_ai(z))]
    scorers += [(checked_rows(y, s)[1], is_positive(s, t)) for s, t in known.values()]
    rankings = [ranking_of(y, *scorer) for scorer in scorers]
    resampled = resampled_counts(groups, groups, rankings, resamples, seed)
    scored = []
    for scorer, ranking, counts in zip(scorers, rankings, resampled, strict=True):
        own = ranking.counts(None)[None, :]
        at_fpr = TprAtFpr(y, scorer[0], groups, point.target_fpr)
        once = [np.ones((1, int(groups.max()) + 1))]
        blocks = drawn_blocks(int(groups.max()) + 1, resamples, seed)
        values = rates(own) | {"tpr_at_fpr": at_fpr.rates(once)}
        spread = rates(counts) | {"tpr_at_fpr": at_fpr.rates(blocks)}
        n_called_tasks = len(set(groups[scorer[1]].tolist()))
        scored.append(_Scored(own, values, spread, n_ai_tasks, n_called_tasks))
    ours, extras = scored[0], _extras(y, z, point)
    ours.values |= _extra_rates(ours.counts, extras.sum(axis=0)[None, :])
    sums = resampled_sums(extras, resamples, seed, groups)
    ours.spread |= _extra_rates(resampled[0], sums)
    bins, is_mixed = equal_bins(p), 0 < n_ai < len(y)
    ours.values["ece"] = np.array([calibration_error(y, p, bins) if is_mixed else np.nan])
    baselines = dict(zip(known, scored[1:], strict=True))
    return {
        "n_samples": len(y),
        "n_human": len(y) - n_ai,
        "n_ai": n_ai,
        "n_tasks": int(groups.max()) + 1,
        "metrics": {name: plain(ours.values[name][0]) for name in METRICS},
        "reliability": reliability(y, p, bins) if is_mixed else [],
        "intervals": ours.intervals(),
        "at_prevalence": {
            f"{share:g}": precision_at(ours.counts[0], ours.spread["tpr"], n_ai_tasks, share)
            for share in prevalences
        },
        "floors": {
            name: {"skipped": value}
            if isinstance(value, str)
            else ours.beside(baselines[name]) | {"threshold": float(value[1])}
            for name, value in (floors or {}).items()
        },
    }


@dataclass
class _Scored:
    """One scorer: its counts (1, 6), its metrics (1,) each, and these resampled (r,) each."""

    counts: np.ndarray
    values: dict[str, np.ndarray]
    spread: dict[str, np.ndarray]
    n_ai_tasks: int
    n_called_tasks: int  # tasks of the rows that it calls AI

    def intervals(self) -> dict[str, list[float] | None]:
        """Return the interval of every metric."""
        tp, fp, fn, tn = (round(float(value)) for value in self.counts[0, :4])
        bounds = {
            name: moved_interval(self.spread[name]) for name in METRICS if name in self.spread
        }
        if bounds["precision"] is None and fn + tp and fp + tn:
            spread = self.spread["precision"]
            bounds["precision"] = rate_interval(tp, tp + fp, spread, self.n_called_tasks)
        tpr = rate_interval(tp, tp + fn, self.spread["tpr"], self.n_ai_tasks)
        bounds["tpr"] = bounds["recall"] = tpr
        bounds["fpr"] = list(clopper_pearson(fp, fp + tn)) if fp + tn else None
        bounds["specificity"] = bounds["fpr"] and [1 - bounds["fpr"][1], 1 - bounds["fpr"][0]]
        return bounds

    def beside(self, other: _Scored) -> dict[str, Any]:
        """Return a baseline's scores, and ours minus theirs with the interval of the difference."""
        differences: dict[str, list[float] | None] = {}
        for name in DETECTOR_SCORES.differences():
            middle = plain(self.values[name][0] - other.values[name][0])
            edges = interval(self.spread[name] - other.spread[name])
            differences[name] = None if middle is None or edges is None else [middle, *edges]
        return {
            "metrics": {name: plain(value[0]) for name, value in other.values.items()},
            "intervals": other.intervals(),
            "lead": differences,
        }


def ranking_of(y: np.ndarray, scores: np.ndarray, called: np.ndarray) -> Ranking:
    """Return the rows ranked by score; `called` is what the frozen threshold calls AI."""
    scores = np.asarray(scores, dtype=np.float64)
    rest = scores[~called]
    return Ranking(y, scores, float(rest.max()) if len(rest) else -np.inf)


def rates(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Turn rows of `Ranking.counts`, (r, 6), into metrics, (r,) each; undefined ones are NaN."""
    tp, fp, fn, tn, roc_auc, pr_auc = counts.T
    tpr, fpr = divide(tp, tp + fn), divide(fp, fp + tn)
    is_single = np.isnan(tpr) | np.isnan(fpr)
    metrics = {
        "roc_auc": roc_auc,
        "pr_auc": pr_auc,
        "accuracy": divide(tp + tn, tp + fp + fn + tn),
        "f1": divide(2 * tp, 2 * tp + fp + fn),
        "precision": divide(tp, tp + fp),
        "balanced_accuracy": (tpr + 1 - fpr) / 2,
    }
    metrics = {name: np.where(is_single, np.nan, value) for name, value in metrics.items()}
    return metrics | {"recall": tpr, "tpr": tpr, "fpr": fpr, "specificity": 1 - fpr}


def _extras(y: np.ndarray, z: np.ndarray, point: OperatingPoint) -> np.ndarray:
    """Return (n, 3): squared error, whether undecided, whether decided and right."""
    undecided = point.is_undecided(z)
    right = ~undecided & (point.is_ai(z) == (y == 1))
    return np.stack([(point.probabilities(z) - y) ** 2, undecided, right], axis=1).astype(float)


def _extra_rates(counts: np.ndarray, sums: np.ndarray) -> dict[str, np.ndarray]:
    n = counts[:, :4].sum(axis=1)
    is_single = (counts[:, 0] + counts[:, 2] == 0) | (counts[:, 1] + counts[:, 3] == 0)
    brier, decided_right = divide(sums[:, 0], n), divide(sums[:, 2], n - sums[:, 1])
    return {
        "brier": np.where(is_single, np.nan, brier),
        "abstain_share": divide(sums[:, 1], n),
        "accuracy_decided": np.where(is_single, np.nan, decided_right),
    }


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
