"""Guards: runs side by side say what differs, what is chance, and name what cannot be read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nbhelpers.errors import ConfigError
from nbhelpers.metrics.compare_predictions import Calls, compare_calls, compare_intervals
from nbhelpers.metrics.pairs import compare_scorers
from nbhelpers.metrics.ranking import ratios
from nbhelpers.notebook.headless import run_notebook
from nbhelpers.reports.comparison import (
    compare,
    differences,
    machine_facts,
    pairs_of,
    read_members,
    score_rows,
    summary,
)
from nbhelpers.reports.rendering import Report
from nbhelpers.runs.studies import open_study
from tests.golden.outputs import place

ROOT = Path(__file__).resolve().parent.parent
FIRST, SECOND = "clones-smoke-07050a2d98", "clones-smoke-a393df5555"
STOPPED, FAILED = "clones-smoke-bec7fb3888", "clones-smoke-227061600c"
DETECTORS = ("detector-smoke-8fc752994b", "detector-smoke-b1e523a7c2")
TUNED = ("finetune-smoke-2fb3e08be2", "finetune-smoke-05c75c195b", "finetune-smoke-73b939e880")
DRAWS = {"seed": 0, "resamples": 200}


def calls(p: np.ndarray, y: np.ndarray, order: np.ndarray | None = None) -> Calls:
    order = np.arange(len(p)) if order is None else order
    rows = order.tolist()
    return Calls(rows, y[order], p[order], p[order] > 0.5, rows, rows)


def test_a_difference_is_the_baselines_lead_and_rows_may_stand_in_any_order() -> None:
    random = np.random.default_rng(1)
    y = random.integers(0, 2, 80)
    ours, other = (np.clip(y * lift + random.random(80) / 2, 0, 1) for lift in (0.5, 0.2))
    moved = calls(ours, y, random.permutation(80))
    found = compare_calls(calls(other, y), moved, ratios, **DRAWS)["f1"]
    rows, how = list(range(80)), {"samples": 200, "seed": 0}
    known = compare_scorers(rows, rows, y, {"other": (other, 0.5)}, ours=(ours, 0.5), **how)
    assert found["difference"] == pytest.approx(known["other"]["lead"]["f1"])
    assert found["interval"] == pytest.approx(known["other"]["lead"]["interval"])
    assert found["p_value"] < 0.05


def test_a_few_rows_that_differ_are_no_proof_and_other_rows_are_not_compared() -> None:
    y = np.tile([0, 1], 50)
    right, wrong = y.astype(float), y.astype(float)
    wrong[:4] = 1 - wrong[:4]
    found = compare_calls(calls(wrong, y), calls(right, y), ratios, **DRAWS)["f1"]
    assert found["interval"][0] > 0 and found["p_value"] == 0.125
    shorter = calls(right[:-1], y[:-1])
    assert "test rows in one run only: 1" in compare_calls(
        calls(wrong, y), shorter, ratios, **DRAWS
    )
    assert "other labels" in compare_calls(calls(wrong, y), calls(right, 1 - y), ratios, **DRAWS)


@pytest.mark.parametrize(("second", "is_settled"), [(0.62, False), (0.85, True), (0.5, False)])
def test_two_intervals_settle_what_the_interval_of_their_difference_does(
    second: float, is_settled: bool
) -> None:
    sides = [(value, (value - 0.1, value + 0.1)) for value in (0.5, second)]
    found = compare_intervals(*sides)
    low, high = found["interval"]
    assert high - low == pytest.approx(2 * 0.1 * 2**0.5)
    assert (found["p_value"] < 0.05) == is_settled == (not low <= 0 <= high)


@pytest.fixture(scope="module")
def made() -> Iterator[Report]:
    """Return a comparison of two runs, a copy without predictions, and three that are not sound."""
    with place(FIRST, SECOND, STOPPED, FAILED) as where:
        bare, damaged = where.runs / "copied" / FIRST, where.runs / "clones-smoke-damaged"
        shutil.copytree(where.runs / FIRST, bare)
        for name in ("predictions.jsonl", "process.json", "run.json"):
            (bare / name).unlink()
        shutil.copytree(where.runs / SECOND, damaged)
        (damaged / "result.json").write_text("{")
        runs = ["runs/clones-*", bare, "runs/missing"]
        yield compare(runs, price_per_hour=3600, show=False)


def test_what_cannot_be_read_or_has_no_result_is_a_line_and_the_rest_goes_on(made: Report) -> None:
    text = " ".join(made.text.split())
    assert "clones-smoke-damaged: " in text and "missing: there is no run folder" in text
    assert f"{STOPPED} (stopped): Stopped at step 83" in text
    assert f"{FAILED} (failed): DataError: The data" in text
    assert set(made.tables["scores_clones"]["run"]) == {
        f"runs/{FIRST}",
        "clones a393",
        f"copied/{FIRST}",
    }


def test_scores_are_compared_row_by_row_or_it_says_by_what(made: Report) -> None:
    pairs = made.tables["pairs"].set_index(["first", "second"])
    scores = made.tables["scores_clones"].set_index("run")["test F1"]
    paired = pairs.loc[("clones a393", f"runs/{FIRST}")]
    assert paired["difference"] == pytest.approx(scores["clones a393"] - scores[f"runs/{FIRST}"])
    assert paired["verdict"] == "worse" and not paired["reason"]
    bare = [row for (_, row) in pairs.iterrows() if "intervals" in row["reason"]]
    assert {row["reason"] for row in bare} == {
        f"by the two intervals: no predictions of copied/{FIRST}"
    }
    assert len(bare) == 2 and len(pairs) == 3


def test_settings_that_differ_time_memory_and_price_stand_side_by_side(made: Report) -> None:
    settings = made.tables["differences_clones"].set_index("what")
    assert settings.loc["epochs", ["clones a393", f"runs/{FIRST}"]].tolist() == ["2", "3"]
    assert "learning_rate" not in settings.index
    cost = made.tables["cost"].set_index("run").loc["clones a393"]
    assert cost["cost"] == cost["time_s"] > 1 and cost["predicted_peak_bytes"] > 2**20


def test_nothing_to_compare_is_an_error_with_its_fix(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train one first"):
        compare(str(tmp_path / "*"), show=False)
    with pytest.raises(ConfigError, match="no number above zero"):
        compare(tmp_path, price_per_hour=0, show=False)


def test_no_run_that_can_be_read_and_an_empty_name_are_errors(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text("{")
    with pytest.raises(ConfigError, match=r"No run can be read: a: .*; b: .*result\.json"):
        compare([tmp_path / "a", tmp_path / "b"], show=False)
    with pytest.raises(ConfigError, match="name of a run is empty"):
        compare(["", tmp_path / "a"], show=False)


def test_the_verdict_is_of_runs_that_have_the_score_and_jobs_stay_apart() -> None:
    with place(FIRST, SECOND, TUNED[0]) as where:
        path = where.runs / SECOND / "result.json"
        result = json.loads(path.read_text())
        result["scores"]["test"]["orders"]["given"]["f1"] = float("nan")
        path.write_text(json.dumps(result))
        members, problems = read_members([where.runs / n for n in (FIRST, SECOND, TUNED[0])])
        top = summary(members, problems, list(pairs_of(members)), None)
    assert "within noise" not in top.verdict and "scores of different jobs are not" in top.verdict
    assert f"{members[1].name}: no score that another run of clones has too" in top.verdict
    assert "job" in {row["what"] for row in differences(members, machine_facts)}


def test_fine_tunings_have_the_scores_and_the_p_that_their_study_has() -> None:
    with place(*TUNED, "study-0b398d71ba") as where:
        members, _ = read_members([where.runs / name for name in (TUNED[2], TUNED[0])])
        pair = next(p for p in pairs_of(members) if p.metric == "exact_match")
        study = open_study(where.runs / "study-0b398d71ba")
        draw = study.compare("test.exact_match", baseline="base")["against"]["r8"]
    assert pair.is_headline and "exact match" in next(iter(score_rows(members)))
    assert (pair.p, pair.difference) == (draw["p_value"], draw["difference"])
    assert pair.p_words() == f"p <= {draw['p_value']:.3f}"


@pytest.mark.slow
def test_the_notebook_compares_runs_headless(tmp_path: Path) -> None:
    with place(FIRST, *DETECTORS) as where:
        saved = tmp_path / "executed.ipynb"
        parameters = {"runs": f"{where.runs}/*", "run_dir": str(where.runs)}
        run_notebook(ROOT / "notebooks" / "04_compare_runs.ipynb", parameters, output=saved)
        (page,) = where.runs.glob("comparison-*/comparison.html")
        text = page.read_text()
    assert "detector b1e5 is better than detector 8fc7" in text
    assert "one run of clones" in text and "differences_detector" in saved.read_text()
