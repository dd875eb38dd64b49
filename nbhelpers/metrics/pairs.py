"""Scores of a pair classifier, with intervals that respect what the pairs share.

One decision rule everywhere: a pair is called a clone when its probability is *above* the
threshold (`is_positive`). The threshold is chosen on valid and frozen for test. Names of scores
stand in `metrics.registry`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nbhelpers.errors import ConfigError, DataError
from nbhelpers.metrics.intervals import interval, plain
from nbhelpers.metrics.ranking import Ranking, checked, is_positive, ratios, ratios_at
from nbhelpers.metrics.registry import CLONES_SCORES
from nbhelpers.metrics.resampling import area_samples, resampled_counts

METRICS = CLONES_SCORES.names()
Scores = dict[str, float | None]
Scorer = tuple["Sequence[float] | np.ndarray", float]


def binary_scores(
    labels: Sequence[int] | np.ndarray,
    probabilities: Sequence[float] | np.ndarray,
    threshold: float,
) -> Scores:
    """Return the nine `METRICS` of one set of pairs, equal to scikit-learn's.

    `precision`, `recall` and `f1` are binary (class 1); `*_macro` is the unweighted mean over
    class 0 and class 1, both always counted. A ratio without a denominator is 0.0, as in
    scikit-learn with `zero_division=0`. `roc_auc` needs both classes and `pr_auc` (average
    precision) needs a clone: None otherwise.

    Args:
        labels: 0 or 1 per pair.
        probabilities: One finite number per pair; only their order matters to the areas.
        threshold: See `is_positive`.

    Raises:
        DataError: Lengths differ, a label is not 0 or 1, or a probability is not finite.
    """
    return _scores(Ranking(*checked(labels, probabilities), threshold).counts(None))


def best_threshold(
    labels: Sequence[int] | np.ndarray, probabilities: Sequence[float] | np.ndarray
) -> float:
    """Return the threshold with the highest binary F1 under the rule of `is_positive`.

    Every midpoint between neighbouring distinct probabilities is tried, and one value below all
    of them. Among equal F1 the one nearest to 0.5 wins, then the higher one. Without a clone among
    the labels no threshold is better than another: 0.5.

    >>> best_threshold([0, 0, 1, 1], [0.1, 0.4, 0.6, 0.9])
    0.5
    """
    y, p = checked(labels, probabilities)
    clones = int(y.sum())
    if clones == 0:
        return 0.5
    order = np.argsort(-p, kind="stable")
    ranked, true_positives = p[order], np.cumsum(y[order])
    ends = np.flatnonzero(np.append(np.diff(ranked) != 0, True))
    f1 = 2 * true_positives[ends] / (ends + 1 + clones)
    upper = ranked[ends]
    lower = np.append(upper[1:], upper[-1])
    middle = lower + (upper - lower) / 2
    middle = np.where(middle < upper, middle, lower)  # neighbours in float64: lower itself divides
    middle[-1] = upper[-1] / 2 if upper[-1] > 0 else upper[-1] - 1.0  # below all of them
    ties = middle[f1 == f1.max()]
    return float(ties[np.argmin(np.abs(ties - 0.5))])


def bootstrap_over_functions(
    left: Sequence[Any] | np.ndarray,
    right: Sequence[Any] | np.ndarray,
    labels: Sequence[int] | np.ndarray,
    probabilities: Sequence[float] | np.ndarray,
    threshold: float,
    samples: int,
    seed: int,
) -> dict[str, list[float] | None]:
    """Return a percentile interval per metric, from resampling functions rather than pairs.

    Pairs are not independent: one function stands in many of them, so a hard function makes all
    its pairs wrong together. Resampling pairs treats them as separate evidence and gives intervals
    that are far too narrow (every pair of 912 functions is 415,416 rows, and still the evidence of
    912 functions). Here the functions are drawn with replacement; a pair whose functions are drawn
    `a` and `b` times counts `a*b` times, a pair of a function with itself as often as the function
    is drawn. Owen shows that such variances err on the large side. Samples in which a metric is
    undefined are left out; a metric without any value has None.

    Scores are sorted once; memory stays proportional to the number of pairs.

    Source: Owen 2007, The pigeonhole bootstrap, Ann. Appl. Stat. 1(2); Snijders and Borgatti 1999,
    Non-parametric standard errors and tests for network statistics (vertex bootstrap).
    """
    ranking = Ranking(*checked(labels, probabilities), threshold)
    (counts,) = resampled_counts(left, right, [ranking], samples, seed)
    return _intervals(counts)


def compare_scorers(
    left: Sequence[Any] | np.ndarray,
    right: Sequence[Any] | np.ndarray,
    labels: Sequence[int] | np.ndarray,
    scorers: Mapping[str, Scorer],
    *,
    ours: Scorer | None = None,
    samples: int,
    seed: int,
) -> dict[str, dict[str, Any]]:
    """Return `intervals` of every scorer, and our `lead` over it, all on the same resamples.

    A lead is our F1 minus theirs with the interval of that difference. What is hard for both
    cancels out in it: two overlapping intervals can still hide a settled difference. A scorer is
    (probabilities, threshold).
    """
    rankings = [Ranking(*checked(labels, p), threshold) for p, threshold in scorers.values()]
    if ours is not None:
        y, p = checked(labels, ours[0])
        called = is_positive(p, ours[1]).astype(np.float64)  # all that our F1 depends on
        rankings.append(Ranking(y, called, 0.5))
    counts = resampled_counts(left, right, rankings, samples, seed)
    compared: dict[str, dict[str, Any]] = {}
    for name, ranking, rows in zip(scorers, rankings, counts, strict=False):
        compared[name] = {"intervals": _intervals(rows)}
        if ours is not None:
            point = _f1(rankings[-1].counts(None)[None, :]) - _f1(ranking.counts(None)[None, :])
            spread = interval(_f1(counts[-1]) - _f1(rows))
            compared[name]["lead"] = {"f1": float(point[0]), "interval": spread}
    return compared


def score_pairs(
    left: Sequence[Any] | np.ndarray,
    right: Sequence[Any] | np.ndarray,
    labels: Sequence[int] | np.ndarray,
    p_given: Sequence[float] | np.ndarray,
    p_reversed: Sequence[float] | np.ndarray | None,
    threshold: float,
    *,
    seen: Sequence[int] | np.ndarray | None,
    priors: Mapping[str, float],
    bootstrap_samples: int,
    seed: int,
) -> dict[str, Any]:
    """Return everything that the report says about one split, in the form of `result.json`.

    Intervals, strata and priors are of the given order. Strata carry intervals of their own, from
    the functions that occur in them.

    Args:
        left: First function of each pair, by any id.
        right: Second function of each pair.
        labels: 0 or 1 per pair.
        p_given: Probability of a clone, pair read as the file has it.
        p_reversed: The same with the two functions swapped; None when it was not computed.
        threshold: Chosen on valid.
        seen: Per pair, how many of its two texts occur in train (0, 1 or 2); None when unknown.
        priors: Named shares of clones to re-weight to.
        bootstrap_samples: Resamples of the functions.
        seed: Of the resampling.
    """
    y, p = checked(labels, p_given)
    left, right = np.asarray(left), np.asarray(right)
    ranking = Ranking(y, p, threshold)
    once = ranking.counts(None)
    orders = {"given": _scores(once)}
    if p_reversed is not None:
        _, backward = checked(y, p_reversed)
        for name, each in (("reversed", backward), ("mean", (p + backward) / 2)):
            orders[name] = _scores(Ranking(y, each, threshold).counts(None))
    (counts,) = resampled_counts(left, right, [ranking], bootstrap_samples, seed)
    scores: dict[str, Any] = {
        "n_pairs": len(y),
        "n_functions": len(np.unique(np.concatenate([left, right]))),
        "prior": float(y.mean()),
        "threshold": float(threshold),
        "orders": orders,
        "intervals": _intervals(counts),
        "resamples": {"all": len(counts), "areas": area_samples(len(y), bootstrap_samples)},
        "at_prior": {name: _scores_at(once, prior, counts) for name, prior in priors.items()},
    }
    if seen is not None:
        options = {"threshold": threshold, "samples": bootstrap_samples, "seed": seed}
        scores["strata"] = _strata(left, right, y, p, np.asarray(seen), **options)
    return scores


def _strata(
    left: np.ndarray,
    right: np.ndarray,
    y: np.ndarray,
    p: np.ndarray,
    seen: np.ndarray,
    **options: Any,
) -> dict[str, Any]:
    if len(seen) != len(y):
        raise DataError(f"{len(seen)} values of seen for {len(y)} pairs", fix="Give one a pair.")
    if not np.isin(seen, (0, 1, 2)).all():
        raise DataError("a value of seen is not 0, 1 or 2", fix="Count the members seen in train.")
    strata: dict[str, Any] = {}
    for members in (0, 1, 2):
        rows = seen == members
        strata[str(members)] = {"n_pairs": int(rows.sum())}
        if rows.any():
            chosen = (left[rows], right[rows], y[rows], p[rows])
            strata[str(members)] |= {"prior": float(y[rows].mean())}
            strata[str(members)] |= binary_scores(chosen[2], chosen[3], options["threshold"])
            strata[str(members)]["intervals"] = bootstrap_over_functions(*chosen, **options)
    return strata


def _intervals(counts: np.ndarray) -> dict[str, list[float] | None]:
    metrics = ratios(counts)
    return {name: interval(metrics[name]) for name in METRICS}


def _f1(counts: np.ndarray) -> np.ndarray:
    return ratios(counts)["f1"]


def _scores(counts: np.ndarray) -> Scores:
    metrics = ratios(counts[None, :])
    return {name: plain(metrics[name][0]) for name in METRICS}


def _scores_at(counts: np.ndarray, prior: float, resampled: np.ndarray) -> dict[str, Any]:
    """Return precision, recall and F1 as they would be if a share `prior` of the pairs were clones.

    Recall and the false positive rate belong to the classes and stay; precision follows from
    Bayes: `prior*recall / (prior*recall + (1-prior)*false_positive_rate)`. This assumes that the
    pairs of each class are a fair sample of their class. None when the sample has only one class.

    Source: Elkan 2001, The Foundations of Cost-Sensitive Learning, section 2 (change of base rate).
    """
    if not isinstance(prior, int | float) or not 0 < prior < 1:
        raise ConfigError(f"prior={prior} is not between 0 and 1", fix="Give a share such as 0.14.")
    metrics = ratios_at(counts[None, :], prior)
    scores = {"prior": float(prior)} | {name: plain(value[0]) for name, value in metrics.items()}
    spread = ratios_at(resampled, prior)
    return scores | {"intervals": {name: interval(v) for name, v in spread.items()}}
