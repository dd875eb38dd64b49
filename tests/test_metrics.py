"""Guards: scores equal scikit-learn's, thresholds are exact, intervals respect shared functions."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

from nbhelpers.errors import ConfigError, DataError
from nbhelpers.metrics.pairs import (
    METRICS,
    best_threshold,
    binary_scores,
    bootstrap_over_functions,
    score_pairs,
)
from nbhelpers.metrics.ranking import is_positive


def sample(seed: int, n: int = 300, *, decimals: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and probabilities that know something of them; few decimals make ties."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.3).astype(int)
    p = 1 / (1 + np.exp(-(rng.normal(size=n) + 2 * y - 1)))
    return y, np.round(p, decimals)


def complete_pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return every unordered pair of n functions."""
    return np.triu_indices(n, 1)


def by_sklearn(y: np.ndarray, p: np.ndarray, threshold: float, w: Any = None) -> dict[str, float]:
    """Return the same scores from scikit-learn."""
    called = (p > threshold).astype(int)
    rest = {"sample_weight": w, "zero_division": 0, "labels": [0, 1]}
    scores = {}
    for average in ("binary", "macro"):
        found = sk.precision_recall_fscore_support(y, called, average=average, **rest)[:3]
        tail = "" if average == "binary" else "_macro"
        scores |= dict(zip((f"precision{tail}", f"recall{tail}", f"f1{tail}"), found, strict=True))
    scores["accuracy"] = sk.accuracy_score(y, called, sample_weight=w)
    scores["roc_auc"] = sk.roc_auc_score(y, p, sample_weight=w)
    scores["pr_auc"] = sk.average_precision_score(y, p, sample_weight=w)
    return scores


@pytest.mark.parametrize("decimals", [8, 1, 0])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 1.0])
def test_scores_equal_scikit_learn(decimals: int, threshold: float) -> None:
    y, p = sample(1, decimals=decimals)
    ours = binary_scores(y, p, threshold)
    assert set(ours) == set(METRICS)
    for name, value in by_sklearn(y, p, threshold).items():
        assert ours[name] == pytest.approx(value, abs=1e-12), name


@pytest.mark.parametrize(("label", "pr_auc"), [(0, None), (1, 1.0)])
def test_a_single_class_has_no_roc_auc_and_no_warning(label: int, pr_auc: float | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = binary_scores([label] * 4, [0.1, 0.2, 0.8, 0.9], 0.5)
        found = bootstrap_over_functions(
            list("abca"), list("bcda"), [label] * 4, [0.1, 0.2, 0.8, 0.9], 0.5, 50, 1
        )
    assert scores["roc_auc"] is None and found["roc_auc"] is None
    assert scores["pr_auc"] == pr_auc


@pytest.mark.parametrize(
    ("labels", "probabilities", "wanted"),
    [
        (
            [0, 1, 1],
            [0.1, float("nan"), float("inf")],
            "nan in row 2 is not finite \\(2 such rows\\)",
        ),
        ([0, 2, 1], [0.1, 0.2, 0.3], "label .*2.* in row 2 is neither 0 nor 1"),
        ([0, 1], [0.1], "shape"),
        ([], [], "no pairs"),
        ([1, 0], ["a", "b"], "probabilities are no numbers"),
        ([[1], [0, 1]], [0.1, 0.2], "labels are no numbers"),
    ],
)
def test_what_cannot_be_scored_is_named(labels: Any, probabilities: Any, wanted: str) -> None:
    with pytest.raises(DataError, match=wanted):
        binary_scores(labels, probabilities, 0.5)


@pytest.mark.parametrize(("seed", "decimals"), itertools.product(range(3), (8, 1)))
def test_no_other_threshold_has_a_higher_f1(seed: int, decimals: int) -> None:
    y, p = sample(seed, 40, decimals=decimals)
    best = binary_scores(y, p, best_threshold(y, p))["f1"]
    tried = [-1.0, *p, *(p - 1e-9), *(p + 1e-9)]
    assert best == max(sk.f1_score(y, p > t, zero_division=0) for t in tried)


@pytest.mark.parametrize(
    ("labels", "probabilities", "threshold"),
    [
        ([0, 1], [0.2, 0.6], 0.4),
        ([0, 1, 0, 1], [0.1, 0.2, 0.3, 0.9], 0.15),
        ([1, 1], [0.4, 0.4], 0.2),
        ([1, 0], [0.0, 0.0], -1.0),
        ([0, 0], [0.1, 0.9], 0.5),
    ],
)
def test_the_threshold_is_the_midpoint(
    labels: list[int], probabilities: list[float], threshold: float
) -> None:
    assert best_threshold(labels, probabilities) == pytest.approx(threshold)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_threshold_between_two_neighbours_separates_them(kind: type) -> None:
    low = kind(0.6)
    p = np.array([low, np.nextafter(low, kind(1))], dtype=kind)
    assert is_positive(p, best_threshold([0, 1], p)).tolist() == [False, True]


@pytest.mark.parametrize("prior", [0.14, 0.5, 0.01])
def test_a_prior_is_what_weighting_the_classes_would_give(prior: float) -> None:
    y, p = sample(3)
    w = np.where(y == 1, prior / y.mean(), (1 - prior) / (1 - y.mean()))
    wanted = by_sklearn(y, p, 0.5, w)
    ids = np.arange(len(y))
    options = {"seen": None, "bootstrap_samples": 5, "seed": 1}
    scores = score_pairs(ids, ids, y, p, None, 0.5, priors={"x": prior, "own": y.mean()}, **options)
    for name in ("precision", "recall", "f1"):
        assert scores["at_prior"]["x"][name] == pytest.approx(wanted[name], abs=1e-12)
        own = scores["orders"]["given"][name]
        assert scores["at_prior"]["own"][name] == pytest.approx(own)
    alone = score_pairs(ids, ids, y * 0 + 1, p, None, 0.5, priors={"x": prior}, **options)
    assert alone["at_prior"]["x"]["precision"] is None


def test_a_bootstrap_sample_is_scored_as_its_repeated_pairs_would_be() -> None:
    left, right = (np.append(side, 3) for side in complete_pairs(7))  # 3-3 is a pair with itself
    y, p = sample(5, len(left), decimals=1)
    drawn = np.random.default_rng(11).integers(7, size=7)
    weight = np.bincount(drawn, minlength=7)
    times = np.where(left == right, weight[left], weight[left] * weight[right])
    repeated = by_sklearn(np.repeat(y, times), np.repeat(p, times), 0.5)
    found = bootstrap_over_functions(left, right, y, p, 0.5, 1, 11)
    for name, value in repeated.items():
        assert found[name] == pytest.approx([value, value], abs=1e-12), name


def test_intervals_over_functions_are_wider_than_over_pairs_where_functions_are_hard() -> None:
    rng = np.random.default_rng(6)
    left, right = complete_pairs(40)
    y = (rng.random(len(left)) < 0.5).astype(int)
    hard = rng.random(40) < 0.15
    p = np.where(hard[left] | hard[right], 0.9 - 0.8 * y, 0.1 + 0.8 * y)
    low, high = bootstrap_over_functions(left, right, y, p, 0.5, 300, 1)["accuracy"]
    right_ones = ((p > 0.5) == y).astype(float)
    draws = rng.integers(len(y), size=(300, len(y)))
    pair_low, pair_high = np.quantile(right_ones[draws].mean(axis=1), [0.025, 0.975])
    assert high - low > 2 * (pair_high - pair_low)


def test_equal_seeds_give_equal_intervals_and_ids_may_be_text() -> None:
    left, right = complete_pairs(20)
    y, p = sample(7, len(left))
    found = [bootstrap_over_functions(left, right, y, p, 0.5, 50, seed) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
    names = np.array([f"{i:03d}" for i in range(20)])
    assert bootstrap_over_functions(names[left], names[right], y, p, 0.5, 50, 1) == found[0]


@pytest.mark.parametrize("n_clones", [0, 1, 6])
@pytest.mark.parametrize("threshold", [-1.0, 0.5, 2.0])
def test_a_split_of_few_or_one_class_is_scored_under_any_threshold(
    n_clones: int, threshold: float
) -> None:
    y = np.array([1] * n_clones + [0] * (6 - n_clones))
    p = np.array([0.5, 0.2, 0.5, 0.9, 0.2, 0.2])
    found = binary_scores(y, p, threshold)
    called = p > threshold
    assert found["accuracy"] == pytest.approx((called == y).mean())
    assert found["recall"] == pytest.approx((called & (y == 1)).sum() / max(1, n_clones))
    assert (found["roc_auc"] is None) == (n_clones in (0, 6))
    assert (found["pr_auc"] is None) == (n_clones == 0)


@pytest.fixture(scope="module")
def scores() -> dict[str, Any]:
    """Return the scores of a split in which some texts were seen in train."""
    left, right = complete_pairs(25)
    y, p = sample(10, len(left))
    seen = np.where(left < 5, 1, 0)
    options = {"priors": {"natural": 0.14}, "bootstrap_samples": 100, "seed": 1}
    return score_pairs(left, right, y, p, 1 - p, 0.5, seen=seen, **options)


def test_a_split_is_described_by_pairs_and_distinct_functions(scores: dict[str, Any]) -> None:
    y, p = sample(10, 300)
    assert (scores["n_pairs"], scores["n_functions"]) == (300, 25)
    assert scores["prior"] == y.mean()
    assert scores["orders"]["given"] == binary_scores(y, p, 0.5)
    assert scores["orders"]["mean"] == binary_scores(y, np.full(300, 0.5), 0.5)
    assert scores["orders"]["reversed"]["roc_auc"] == pytest.approx(
        1 - scores["orders"]["given"]["roc_auc"]
    )


def test_intervals_hold_their_score(scores: dict[str, Any]) -> None:
    for name, value in scores["orders"]["given"].items():
        low, high = scores["intervals"][name]
        assert low < value < high, name
    low, high = scores["at_prior"]["natural"]["intervals"]["f1"]
    assert low < scores["at_prior"]["natural"]["f1"] < high


def test_strata_part_the_pairs_by_seen_members(scores: dict[str, Any]) -> None:
    strata = scores["strata"]
    assert [strata[k]["n_pairs"] for k in "012"] == [190, 110, 0]
    assert strata["2"] == {"n_pairs": 0}
    y, p = sample(10, 300)
    far = complete_pairs(25)[0] >= 5
    assert strata["0"]["f1"] == binary_scores(y[far], p[far], 0.5)["f1"]


@pytest.mark.parametrize("threshold", [float("nan"), "x", None], ids=repr)
def test_a_threshold_that_is_no_number_scores_nothing(threshold: Any) -> None:
    with pytest.raises(ConfigError, match="is no number"):
        binary_scores([1, 0], [0.9, 0.1], threshold)


@pytest.mark.parametrize(("samples", "seed"), [(0, 0), (-1, 0), (1.5, 0), (10, -1), (10, "x")])
def test_a_bootstrap_of_no_samples_is_refused(samples: Any, seed: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        bootstrap_over_functions([1, 2], [2, 3], [1, 0], [0.9, 0.1], 0.5, samples, seed)


def test_pairs_of_an_unknown_stratum_are_not_left_out_in_silence() -> None:
    options = {"priors": {}, "bootstrap_samples": 10, "seed": 0}
    with pytest.raises(DataError, match="seen"):
        score_pairs([1, 2], [2, 3], [1, 0], [0.9, 0.1], None, 0.5, seen=[0, 9], **options)
