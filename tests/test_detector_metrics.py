"""Guards: a detector's scores equal scikit-learn's, and their intervals follow the tasks."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from sklearn import metrics as reference

from nbhelpers.errors import ConfigError, DataError
from nbhelpers.metrics.detection import (
    METRICS,
    OperatingPoint,
    TprAtFpr,
    calibration_error,
    choose_operating_point,
    equal_bins,
    precision_at,
    reliability,
    score_detection,
    task_groups,
)
from nbhelpers.metrics.resampling import drawn_counts, resampled_sums

OPTIONS = {"prevalences": [0.5, 0.05], "resamples": 120, "seed": 3}


def rows(seed: int, n: int, lift: float = 1.5, decimals: int = 2):
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 2, n)
    z = np.round(draw.normal(size=n) + lift * y, decimals)
    return y, z, [f"t{task}" for task in draw.integers(0, max(2, n // 4), n)]


def point(y, z, target_fpr: float = 0.05) -> OperatingPoint:
    return choose_operating_point(y, z, target_fpr=target_fpr, target_miss_rate=0.1)


@pytest.mark.parametrize("seed", range(4))
def test_scores_equal_scikit_learn(seed: int) -> None:
    y, z, tasks = rows(seed, 400, decimals=1)  # with ties
    frozen = point(*rows(seed + 50, 300)[:2])
    found = score_detection(y, z, frozen, tasks=tasks, **OPTIONS)
    called, p = frozen.is_ai(z), frozen.probabilities(z)
    decided = ~frozen.is_undecided(z)
    wanted = {
        "roc_auc": reference.roc_auc_score(y, z),
        "pr_auc": reference.average_precision_score(y, z),
        "accuracy": reference.accuracy_score(y, called),
        "f1": reference.f1_score(y, called),
        "precision": reference.precision_score(y, called),
        "recall": reference.recall_score(y, called),
        "tpr": reference.recall_score(y, called),
        "specificity": reference.recall_score(1 - y, ~called),
        "balanced_accuracy": reference.balanced_accuracy_score(y, called),
        "brier": reference.brier_score_loss(y, p),
        "abstain_share": 1 - decided.mean(),
        "accuracy_decided": reference.accuracy_score(y[decided], called[decided]),
    }
    assert tuple(found["metrics"]) == METRICS
    for name, value in wanted.items():
        assert found["metrics"][name] == pytest.approx(value, abs=1e-12), name
    assert found["metrics"]["fpr"] == pytest.approx(1 - wanted["specificity"])
    assert (found["n_human"], found["n_ai"]) == ((y == 0).sum(), y.sum())
    for name, edges in found["intervals"].items():
        assert edges[0] <= found["metrics"][name] <= edges[1], name


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_leaves_what_needs_both_undefined(label: int) -> None:
    y, z, tasks = rows(2, 200)
    floors = {"length": (z, 0.5)}
    found = score_detection([label] * 200, z, point(y, z), tasks=tasks, floors=floors, **OPTIONS)
    known = {"abstain_share"} | ({"tpr", "recall"} if label else {"fpr", "specificity"})
    for name, value in found["metrics"].items():
        assert (value is not None) == (name in known), name
    assert {name for name, edges in found["intervals"].items() if edges} == known
    assert found["at_prevalence"]["0.5"] == {"precision": None, "precision_interval": None}
    assert found["reliability"] == []
    assert found["floors"]["length"]["metrics"]["roc_auc"] is None
    lead = found["floors"]["length"]["lead"]
    assert (lead["roc_auc"], lead["tpr_at_fpr"], lead["tpr"] is None) == (None, None, not label)


def test_a_detector_that_calls_nothing_has_no_precision() -> None:
    y, z, tasks = rows(3, 80)
    frozen = point([0] * 80, z + 100)
    found = score_detection(y, z, frozen, tasks=tasks, **OPTIONS)
    assert found["metrics"]["precision"] is None
    assert (found["metrics"]["f1"], found["metrics"]["tpr"]) == (0.0, 0.0)
    low, high = found["intervals"]["tpr"]  # not [0, 0]: the tasks are few
    assert low == 0 and 0 < high < 0.3


def test_a_lead_is_paired_and_over_itself_nothing() -> None:
    y, z, tasks = rows(4, 600, lift=2.0)
    noise = np.random.default_rng(0).normal(size=600)
    frozen = point(y, z)
    floors = {
        "layout": "no features",
        "itself": (z, frozen.threshold_logit),
        "close": (z + 0.2 * noise, 2.0),
        "noise": (noise, 2.0),
    }
    found = score_detection(y, z, frozen, tasks=tasks, floors=floors, **OPTIONS)
    assert list(found["floors"]) == list(floors)
    assert found["floors"]["layout"] == {"skipped": "no features"}
    itself, close = found["floors"]["itself"], found["floors"]["close"]
    assert set(itself["lead"]) == {"roc_auc", "tpr", "tpr_at_fpr"}
    assert all(lead == [0.0, 0.0, 0.0] for lead in itself["lead"].values())
    shared = ("roc_auc", "pr_auc", "f1", "tpr", "fpr", "tpr_at_fpr")
    assert all(itself["intervals"][name] == found["intervals"][name] for name in shared)
    middle, low, high = found["floors"]["noise"]["lead"]["roc_auc"]
    assert 0 < low < middle < high
    spread = np.diff(close["lead"]["roc_auc"][1:])  # what is hard for both cancels out
    assert spread < np.diff(found["intervals"]["roc_auc"])


def test_resampled_scores_are_those_of_the_repeated_rows() -> None:
    y, z, tasks = rows(5, 60)
    groups = task_groups(tasks, 60)
    size, target = int(groups.max()) + 1, 0.2
    weights = np.stack(list(drawn_counts(size, 8, 1)))
    ranked = TprAtFpr(y, z, groups, target).rates([weights[:3], weights[3:]])
    sums = resampled_sums(np.stack([y, z], axis=1), 8, 1, groups)
    for at, weight in enumerate(weights):
        again = np.repeat(np.arange(60), weight[groups].astype(int))
        humans = np.sort(z[again][y[again] == 0])[::-1]
        threshold = humans[int(np.floor(target * len(humans) + 1e-9))]
        assert ranked[at] == pytest.approx((z[again][y[again] == 1] > threshold).mean())
        assert sums[at] == pytest.approx([y[again].sum(), z[again].sum()])


def test_rows_of_one_task_are_one_piece_of_evidence() -> None:
    y, z, _ = rows(6, 100)
    many, scores = np.repeat(y, 10), np.repeat(z, 10)
    tasks = [f"t{at // 10}" for at in range(1000)]
    frozen = point(y, z)
    alone = score_detection(many, scores, frozen, tasks=[""] * 1000, **OPTIONS)
    grouped = score_detection(many, scores, frozen, tasks=tasks, **OPTIONS)
    assert alone["metrics"] == grouped["metrics"]
    assert (alone["n_tasks"], grouped["n_tasks"]) == (1000, 100)
    for name in ("roc_auc", "tpr", "brier"):
        wide, narrow = (np.diff(found["intervals"][name]) for found in (grouped, alone))
        assert wide > 2 * narrow


def test_precision_follows_bayes_and_a_clean_sample_is_not_certain() -> None:
    spread = np.linspace(0.599, 0.601, 50)
    found = precision_at(np.array([60, 2, 40, 98]), spread, 100, 0.05)
    assert found["precision"] == pytest.approx(0.05 * 0.6 / (0.05 * 0.6 + 0.95 * 0.02))
    clean = precision_at(np.array([60, 0, 40, 100]), spread, 100, 0.05)
    low, high = clean["precision_interval"]
    assert clean["precision"] == high == 1.0
    assert low < 0.45  # 100 humans without a flag: up to 4.3 % of the others may be flagged
    with pytest.raises(ConfigError, match="not between 0 and 1"):
        precision_at(np.array([1, 1, 1, 1]), spread, 1, 1.0)


def test_calibration_error_is_the_gap_of_equal_bins() -> None:
    draw = np.random.default_rng(7)
    p = draw.random(6000)
    y = (draw.random(6000) < p).astype(int)
    bins = equal_bins(p)
    table = reliability(y, p, bins)
    assert [row["n"] for row in table] == [400] * 15
    assert all(a["high"] <= b["low"] for a, b in pairwise(table))
    by_hand = sum(row["n"] * abs(row["mean_p"] - row["share_ai"]) for row in table) / 6000
    assert calibration_error(y, p, bins) == pytest.approx(by_hand)
    assert calibration_error(y, p, bins) < 0.03
    sure = np.clip(np.round(p), 0.01, 0.99)
    assert calibration_error(y, sure, equal_bins(sure)) == pytest.approx(0.24, abs=0.02)
    assert len(reliability(y[:5], p[:5], equal_bins(p[:5]))) == 1


def test_what_cannot_be_scored_is_named() -> None:
    y, z, tasks = rows(8, 20)
    frozen = point(y, z)
    with pytest.raises(DataError, match="no rows to score"):
        score_detection([], [], frozen, tasks=[], **OPTIONS)
    with pytest.raises(DataError, match="19 tasks for 20 rows"):
        score_detection(y, z, frozen, tasks=tasks[1:], **OPTIONS)
    z[4] = np.nan
    with pytest.raises(DataError, match=r"row 5 is not finite \(1 such rows\)"):
        score_detection(y, z, frozen, tasks=tasks, **OPTIONS)
    with pytest.raises(DataError, match="'robot'"):
        score_detection(["robot"] * 20, np.zeros(20), frozen, tasks=tasks, **OPTIONS)


def test_fifteen_thousand_rows_and_three_floors_take_seconds() -> None:
    y, z, tasks = rows(9, 15_000, decimals=6)
    floors = {name: (z + at, 1.0) for at, name in enumerate(("length", "layout", "tfidf"))}
    start = time.process_time()
    options = OPTIONS | {"resamples": 250}
    score_detection(y, z, point(y, z), tasks=tasks, floors=floors, **options)
    assert time.process_time() - start < 3
