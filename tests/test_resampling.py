"""Guards: resampled functions give the same counts however the work is shared out, and quickly."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from test_metrics import complete_pairs, sample

from nbhelpers.metrics import resampling
from nbhelpers.metrics.pairs import bootstrap_over_functions, compare_scorers
from nbhelpers.metrics.ranking import Ranking


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_change_no_resample(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    left, right = complete_pairs(20)
    y, p = sample(7, len(left))
    wanted = bootstrap_over_functions(left, right, y, p, 0.5, 50, 1)
    monkeypatch.setattr(resampling, "WORK_PER_THREAD", 1)
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    assert resampling._threads(len(y) * 50) == threads
    assert bootstrap_over_functions(left, right, y, p, 0.5, 50, 1) == wanted


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


@pytest.mark.slow
def test_the_whole_test_set_is_resampled_for_less_than_a_quarter_of_a_sort_each() -> None:
    """Compared with sorting the same scores just then: a slow or busy machine slows both."""
    left, right = complete_pairs(912)
    assert len(left) == 415_416
    y, p = sample(8, len(left))
    ratios = []
    for _ in range(3):
        sort_s = cpu_seconds(lambda: np.argsort(p, kind="stable"))
        samples_s = cpu_seconds(lambda: bootstrap_over_functions(left, right, y, p, 0.5, 50, 1))
        ratios.append(samples_s / 50 / sort_s)
    assert sorted(ratios)[1] < 1 / 4, ratios


def test_a_lead_over_itself_is_nothing_and_over_chance_is_settled() -> None:
    left, right = complete_pairs(30)
    y, p = sample(9, len(left))
    noise = np.random.default_rng(1).random(len(y))
    scorers = {"itself": (p, 0.5), "noise": (noise, 0.5)}
    found = compare_scorers(left, right, y, scorers, ours=(p, 0.5), samples=100, seed=1)
    assert found["itself"]["lead"] == {"f1": 0.0, "interval": [0.0, 0.0]}
    lead = found["noise"]["lead"]
    assert 0 < lead["interval"][0] < lead["f1"] < lead["interval"][1]


def test_scorers_compared_together_get_the_intervals_they_get_alone() -> None:
    left, right = complete_pairs(30)
    y, p = sample(9, len(left))
    _, q = sample(10, len(left), decimals=1)  # with ties
    found = compare_scorers(
        left, right, y, {"p": (p, 0.5), "q": (q, 0.3)}, ours=None, samples=60, seed=4
    )
    assert found["p"] == {"intervals": bootstrap_over_functions(left, right, y, p, 0.5, 60, 4)}
    assert found["q"]["intervals"] == bootstrap_over_functions(left, right, y, q, 0.3, 60, 4)


def test_long_lists_have_the_same_sums_without_walking_all_pairs(monkeypatch) -> None:
    draw = np.random.default_rng(5)
    left, right = draw.integers(0, 30, (2, 800))  # repeated pairs, and pairs of one function
    labels = draw.integers(0, 2, 800)
    scores = [draw.integers(0, 9, 800) / 9, draw.random(800)]  # with ties and without
    rankings = [Ranking(labels, p, 0.5) for p in scores]
    whole = resampling.resampled_counts(left, right, rankings, 60, 1)
    monkeypatch.setattr(resampling, "MAX_AREA_WORK", 800 * 20)
    monkeypatch.setattr(resampling, "MIN_AREA_SAMPLES", 5)
    monkeypatch.setattr(resampling, "SUMMED_AT_ONCE", 7)  # several blocks, the last one short
    short = resampling.resampled_counts(left, right, rankings, 60, 1)
    for a, b in zip(whole, short, strict=True):
        assert np.array_equal(a[:, :4], b[:, :4])
        assert np.array_equal(a[:20], b[:20])
        assert np.isnan(b[20:, 4:]).all() and not np.isnan(a[20:, 4:]).any()
