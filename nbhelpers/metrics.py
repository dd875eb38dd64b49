"""Scores of a pair classifier, with intervals that respect what the pairs share.

One decision rule everywhere: a pair is called a clone when its probability is *above* the
threshold (`is_positive`). The threshold is chosen on valid and frozen for test. Names of scores and
the reading of `--require` stand in `targets` and are exported from here as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbhelpers.errors import ConfigError, DataError
from nbhelpers.ranking import Ranking, as_array, checked, is_positive, ratios, ratios_at
from nbhelpers.targets import (
    METRICS,
    Requirement,
    available,
    check_targets,
    lookup,
    parse_requirement,
)

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "METRICS",
    "Requirement",
    "at_prior",
    "available",
    "best_threshold",
    "binary_scores",
    "bootstrap_over_functions",
    "check_targets",
    "is_positive",
    "lead_over",
    "lookup",
    "parse_requirement",
    "score_pairs",
]

Scores = dict[str, float | None]


def binary_scores(
    labels: Sequence[int] | np.ndarray,
    probabilities: Sequence[float] | np.ndarray,
    threshold: float,
    weights: Sequence[float] | np.ndarray | None = None,
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
        weights: How often each pair counts; once each when left out.

    Raises:
        DataError: Lengths differ, a label is not 0 or 1, or a probability is not finite.
    """
    import numpy as np

    y, p = checked(labels, probabilities)
    w = np.ones(len(y)) if weights is None else as_array(weights, "weights", np.float64)
    if w.shape != y.shape:
        raise DataError(f"{w.size} weights for {len(y)} pairs", fix="Give one weight to each pair.")
    if not (np.isfinite(w) & (w >= 0)).all():
        raise DataError("a weight is negative or not finite", fix="Give counts from 0 up.")
    ranking = Ranking(y, p, threshold)
    counts = ranking.counts(w[ranking.order])
    found = ratios(counts[None, :])
    return {name: _plain(found[name][0]) for name in METRICS}


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
    import numpy as np

    y, p = checked(labels, probabilities)
    clones = int(y.sum())
    if clones == 0:
        return 0.5
    order = np.argsort(-p, kind="stable")
    ranked, found = p[order], np.cumsum(y[order])
    ends = np.flatnonzero(np.append(np.diff(ranked) != 0, True))
    f1 = 2 * found[ends] / (ends + 1 + clones)
    upper = ranked[ends]
    lower = np.append(upper[1:], upper[-1])
    middle = lower + (upper - lower) / 2
    middle = np.where(middle < upper, middle, lower)  # neighbours in float64: lower itself divides
    middle[-1] = upper[-1] / 2 if upper[-1] > 0 else upper[-1] - 1.0  # below all of them
    ties = middle[f1 == f1.max()]
    return float(ties[np.argmin(np.abs(ties - 0.5))])


def at_prior(
    labels: Sequence[int] | np.ndarray,
    probabilities: Sequence[float] | np.ndarray,
    threshold: float,
    prior: float,
) -> Scores:
    """Return precision, recall and F1 as they would be if a share `prior` of the pairs were clones.

    Recall and the false positive rate belong to the classes and stay; precision follows from
    Bayes: `prior*recall / (prior*recall + (1-prior)*false_positive_rate)`. This assumes that the
    pairs of each class are a fair sample of their class. None when the sample has only one class.

    Source: Elkan 2001, The Foundations of Cost-Sensitive Learning, section 2 (change of base rate).
    """
    if not isinstance(prior, int | float) or not 0 < prior < 1:
        raise ConfigError(f"prior={prior} is not between 0 and 1", fix="Give a share such as 0.14.")
    y, p = checked(labels, probabilities)
    ranking = Ranking(y, p, threshold)
    found = ratios_at(ranking.counts(None)[None, :], prior)
    return {"prior": float(prior)} | {name: _plain(value[0]) for name, value in found.items()}


def bootstrap_over_functions(
    left: Sequence[Any] | np.ndarray,
    right: Sequence[Any] | np.ndarray,
    labels: Sequence[int] | np.ndarray,
    probabilities: Sequence[float] | np.ndarray,
    threshold: float,
    samples: int,
    seed: int,
    level: float = 0.95,
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
    y, p = checked(labels, probabilities)
    counts = _bootstrap_counts(left, right, Ranking(y, p, threshold), samples, seed)
    found = ratios(counts)
    return {name: _interval(found[name], level) for name in METRICS}


def lead_over(
    left: Sequence[Any] | np.ndarray,
    right: Sequence[Any] | np.ndarray,
    labels: Sequence[int] | np.ndarray,
    *,
    ours: tuple[Sequence[float] | np.ndarray, float],
    other: tuple[Sequence[float] | np.ndarray, float],
    samples: int,
    seed: int,
    level: float = 0.95,
) -> dict[str, Any]:
    """Return how far our F1 is above another scorer's, and the interval of that difference.

    Both are scored on the same resampled functions, so what is hard for both cancels out: two
    overlapping intervals can still hide a settled difference. `ours` and `other` are each
    (probabilities, threshold).
    """
    f1 = []
    point = []
    for probabilities, threshold in (ours, other):
        ranking = Ranking(*checked(labels, probabilities), threshold, has_areas=False)
        point.append(ratios(ranking.counts(None)[None, :])["f1"][0])
        f1.append(ratios(_bootstrap_counts(left, right, ranking, samples, seed))["f1"])
    return {"f1": float(point[0] - point[1]), "interval": _interval(f1[0] - f1[1], level)}


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
    import numpy as np

    y, p = checked(labels, p_given)
    left, right = np.asarray(left), np.asarray(right)
    orders = {"given": p}
    if p_reversed is not None:
        _, backward = checked(y, p_reversed)
        orders |= {"reversed": backward, "mean": (p + backward) / 2}
    counts = _bootstrap_counts(left, right, Ranking(y, p, threshold), bootstrap_samples, seed)
    found = ratios(counts)
    at = {}
    for name, prior in priors.items():
        spread = ratios_at(counts, prior)
        at[name] = at_prior(y, p, threshold, prior) | {
            "intervals": {metric: _interval(values, 0.95) for metric, values in spread.items()}
        }
    scores: dict[str, Any] = {
        "n_pairs": len(y),
        "n_functions": len(np.unique(np.concatenate([left, right]))),
        "prior": float(y.mean()),
        "threshold": float(threshold),
        "orders": {name: binary_scores(y, each, threshold) for name, each in orders.items()},
        "intervals": {name: _interval(found[name], 0.95) for name in METRICS},
        "at_prior": at,
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
    import numpy as np

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


def _node_weights(n_functions: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    import numpy as np

    generator = np.random.default_rng(seed)
    for _ in range(samples):
        drawn = generator.integers(n_functions, size=n_functions)
        yield np.bincount(drawn, minlength=n_functions).astype(np.float64)


def _bootstrap_counts(
    left: Sequence[Any] | np.ndarray,
    right: Sequence[Any] | np.ndarray,
    ranking: Ranking,
    samples: int,
    seed: int,
) -> np.ndarray:
    """Return one row of counts per resample; equal seeds give equal resamples of the functions."""
    import numpy as np

    if type(samples) is not int or type(seed) is not int or samples < 1 or seed < 0:
        text = f"samples={samples!r} and seed={seed!r} cannot be used"
        raise ConfigError(text, fix="Give whole numbers, samples from 1 and a seed from 0 up.")
    n_pairs = len(ranking.labels)
    if len(left) != n_pairs or len(right) != n_pairs:
        raise DataError(
            f"{len(left)} left and {len(right)} right functions for {n_pairs} pairs",
            fix="Give the two functions of every pair.",
        )
    names, index = np.unique(np.concatenate([left, right]), return_inverse=True)
    first, second = index[:n_pairs][ranking.order], index[n_pairs:][ranking.order]
    itself = np.flatnonzero(first == second)
    rows = np.empty((samples, 6))
    for row, weight in enumerate(_node_weights(len(names), samples, seed)):
        pair_weight = weight[first] * weight[second]
        pair_weight[itself] = weight[first[itself]]
        rows[row] = ranking.counts(pair_weight)
    return rows[rows[:, :4].sum(axis=1) > 0]


def _interval(values: np.ndarray, level: float) -> list[float] | None:
    import numpy as np

    known = values[~np.isnan(values)]
    if not len(known):
        return None
    tail = (1 - level) / 2
    return [float(edge) for edge in np.quantile(known, [tail, 1 - tail])]


def _plain(value: float) -> float | None:
    return None if value != value else float(value)
