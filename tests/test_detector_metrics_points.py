"""Guards: a threshold keeps what it promises on validation humans, and says what it cannot."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import beta, binomtest

from nbhelpers.errors import ConfigError, DataError
from nbhelpers.metrics.detection import (
    MAX_SCALED_LOGIT,
    MAX_TEMPERATURE,
    OperatingPoint,
    choose_operating_point,
    fit_temperature,
    threshold_at_fpr,
)
from nbhelpers.metrics.intervals import clopper_pearson, humans_needed, promised_fpr


def chosen(y, z, target_fpr: float = 0.01, target_miss_rate: float = 0.05) -> OperatingPoint:
    return choose_operating_point(y, z, target_fpr=target_fpr, target_miss_rate=target_miss_rate)


def drawn(seed: int, n: int, lift: float = 2.0):
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 2, n)
    return y, draw.normal(size=n) + lift * y - lift / 2


@pytest.mark.parametrize("decimals", [0, 1, 8])
@pytest.mark.parametrize("target", [0.01, 0.05, 0.29])
@pytest.mark.parametrize("n", [1, 7, 100, 350])
def test_no_lower_threshold_keeps_the_rate(decimals: int, target: float, n: int) -> None:
    scores = np.round(np.random.default_rng(n).normal(size=n), decimals)
    threshold = threshold_at_fpr(scores, target)
    assert (scores > threshold).sum() <= target * n + 1e-9
    lower = scores[scores < threshold]
    if len(lower):
        assert (scores > lower.max()).sum() > target * n
    assert n >= 1 / target or threshold == scores.max()


def test_calls_follow_one_rule() -> None:
    y, z = drawn(1, 2000)
    point = chosen(y, z)
    p, calls = point.probabilities(z), np.array(point.calls(z))
    low, high = point.abstain
    assert high == point.threshold and low < high
    assert ((calls == "ai") == (p > point.threshold)).all()
    assert ((calls == "undecided") == ((p >= low) & (p <= high))).all()
    assert ((calls == "human") == (p < low)).all()
    humans, machines = calls[y == 0], calls[y == 1]
    assert 0.008 < (humans == "ai").mean() <= 0.01
    assert 0.048 < (machines == "human").mean() <= 0.05
    assert point.valid_fpr == (humans == "ai").mean()
    assert point.n_humans == len(humans) and not point.warnings
    assert ((z > point.threshold_logit) == (p > point.threshold)).all()


def test_too_few_humans_for_the_promise_are_told() -> None:
    y, z = drawn(2, 120)
    point = chosen(y, z)
    n = int((y == 0).sum())
    assert point.valid_fpr == 0 and point.promised_fpr == promised_fpr(n)
    (warning,) = point.warnings
    assert f"{n} human programs (0 above" in warning
    assert f"{promised_fpr(n):.2%}" in warning and "takes 299" in warning
    assert not chosen(*drawn(2, 700)).warnings


def test_good_scores_leave_no_band() -> None:
    y, z = drawn(3, 2000, lift=8.0)
    point = chosen(y, z)
    assert point.abstain is None
    assert any("no band of abstention" in warning for warning in point.warnings)
    assert set(point.calls(z)) == {"ai", "human"}


def test_single_class_validation_has_a_clear_outcome() -> None:
    _, z = drawn(4, 400)
    humans_only = chosen(["human"] * 400, z)
    assert (humans_only.temperature, humans_only.abstain) == (1.0, None)
    assert "no AI row in validation" in humans_only.warnings[0]
    with pytest.raises(DataError, match="no human row") as caught:
        chosen(["ai"] * 400, z)
    assert "validation rows of human code" in caught.value.fix


@pytest.mark.parametrize("scale", [0.25, 1.0, 6.0])
def test_temperature_undoes_a_scale(scale: float) -> None:
    draw = np.random.default_rng(5)
    z = draw.normal(size=20_000) * 2
    y = (draw.random(20_000) < 1 / (1 + np.exp(-z))).astype(int)
    assert fit_temperature(y, z * scale) == pytest.approx(scale, rel=0.05)


def test_rows_without_an_error_keep_probabilities_that_order() -> None:
    y = np.repeat([0, 1], 200)
    z = np.where(y == 1, 60.0, -60.0) + np.linspace(-5, 5, 400)
    point = chosen(y, z)
    p = point.probabilities(z)
    assert np.abs(z / point.temperature).max() <= MAX_SCALED_LOGIT
    assert p.max() < 1 and len(np.unique(p[y == 1])) == 200
    assert 0 < point.threshold < 1 and point.is_ai(z)[y == 1].all()


def test_scores_the_wrong_way_round_are_told() -> None:
    y, z = drawn(7, 2000)
    point = chosen(y, -z)
    assert point.temperature == MAX_TEMPERATURE
    assert "read the probabilities as ranks" in point.warnings[0]


def test_a_point_survives_json_and_a_damaged_one_is_refused() -> None:
    point = chosen(*drawn(9, 900))
    again = json.loads(json.dumps(point.to_dict()))
    assert OperatingPoint.from_dict(again) == point
    for damage in ({"threshold": "x"}, {"abstain": [0.1]}, {"extra": 1}, {"warnings": 3}):
        with pytest.raises(DataError, match="operating point"):
            OperatingPoint.from_dict(again | damage)
    del again["threshold"]
    with pytest.raises(DataError, match="threshold"):
        OperatingPoint.from_dict(again)


@pytest.mark.parametrize(("k", "n"), [(0, 10), (1, 10), (3, 300), (10, 10), (0, 0)])
def test_exact_intervals_equal_scipy(k: int, n: int) -> None:
    if n:
        wanted = binomtest(k, n).proportion_ci(0.95, method="exact")
        assert clopper_pearson(k, n) == pytest.approx((wanted.low, wanted.high))
        wanted = beta.ppf(0.95, k + 1, n - k) if k < n else 1.0
        assert promised_fpr(n, k) == pytest.approx(wanted)
    else:
        assert clopper_pearson(k, n) == (0.0, 1.0)


@pytest.mark.parametrize("target", [0.001, 0.01, 0.1])
def test_humans_needed_is_the_least_number_that_promises(target: float) -> None:
    n = humans_needed(target)
    assert promised_fpr(n) <= target < promised_fpr(n - 1)


@pytest.mark.parametrize("target", [0, 1, -0.1, "x"])
def test_a_target_that_is_no_share_is_refused(target) -> None:
    with pytest.raises(ConfigError, match="target_fpr"):
        threshold_at_fpr([0.1, 0.2], target)
