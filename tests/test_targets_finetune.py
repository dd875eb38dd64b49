"""Guards: the scores of a fine-tuning have names of their own, in presets and in requirements."""

from __future__ import annotations

from typing import Any

import pytest
from finetune_on_disk import result

from nbhelpers.errors import ConfigError, RequirementMissed
from nbhelpers.metrics.registry import FINETUNE_SCORES
from nbhelpers.presets.checks import cross_problems
from nbhelpers.presets.targets import available, check_targets, lookup, parse_requirement
from nbhelpers.runs.thresholds import parse_requirements


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("syntax_accuracy", 0.92),
        ("test.bleu", 31.2),
        ("humaneval.pass@1", 0.25),
        ("mbpp.n_samples", 500),
        ("stopped", 0.965),
        ("throughput.mfu_4n", 0.279),
        ("energy.watts_mean", 540.0),
        ("adapter.trainable_parameters", 20_766_720),
        ("memory.error_percent", 5.6),
        ("timing.evaluate_s", 300.0),
    ],
)
def test_a_number_is_found_by_its_name(name: str, wanted: float) -> None:
    data = result()
    assert lookup(data, name) == wanted and name in available(data)
    assert parse_requirement(f"{name}>=0", "finetune").check(data)["passed"]
    assert parse_requirement(f" {name} >= 0 ").check(data)["passed"]


def test_a_missed_requirement_names_the_value() -> None:
    with pytest.raises(RequirementMissed, match=r"required humaneval.pass@1>=0.5, .* is 0.25"):
        parse_requirement("humaneval.pass@1>=0.5").enforce(result())


@pytest.mark.parametrize(
    ("text", "job", "said"),
    [
        ("syntax_acuracy>=0.9", "finetune", "Did you mean 'syntax_accuracy'?"),
        ("pass@1>=0.1", "finetune", "humaneval.pass@1"),
        ("f1>=0.9", "finetune", "bleu"),
        ("bleu>=20", "clones", "f1"),
        ("mean.f1>=0.9", "finetune", "bleu"),
    ],
)
def test_a_name_of_another_job_is_refused_before_the_run(text: str, job: str, said: str) -> None:
    with pytest.raises(ConfigError, match="no score is called") as caught:
        parse_requirements([text], job)
    assert said in caught.value.fix
    assert "valid" not in caught.value.fix or job == "clones"


def test_a_score_that_was_not_evaluated_is_no_zero() -> None:
    data = result()
    del data["scores"]["humaneval"]
    with pytest.raises(ConfigError, match=r"evaluated no humaneval.pass@1") as caught:
        parse_requirement("humaneval.pass@1>=0.1").enforce(data)
    assert "evaluate=all" in caught.value.fix
    data["scores"]["mbpp"]["metrics"]["pass@1"] = None
    with pytest.raises(RequirementMissed, match="undefined"):
        parse_requirement("mbpp.pass@1>=0").enforce(data)


def test_targets_of_a_split_are_checked_unrounded() -> None:
    split = {"metrics": {"bleu": 29.999, "exact_match": None}}
    rows = check_targets({"bleu": 30.0, "exact_match": 0.1}, split)
    assert [row["passed"] for row in rows] == [False, False]


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("syntax_acuracy", "did you mean `syntax_accuracy`?"),
        ("human_eval.pass@1", "did you mean `humaneval.pass@1`?"),
        ("f1", "choose one of: "),
    ],
)
def test_a_preset_with_an_unknown_target_is_told_the_nearest(name: str, fix: str) -> None:
    values: dict[str, Any] = {"save_steps": 10, "targets": {name: 0.5}}
    (problem,) = cross_problems("finetune", values, {})
    assert f"unknown score `{name}`" in problem.text and problem.fix.startswith(fix)


def test_every_name_that_may_be_a_target_is_accepted() -> None:
    values = {"save_steps": 10, "targets": dict.fromkeys(FINETUNE_SCORES.target_names(), 0.5)}
    assert cross_problems("finetune", values, {}) == []
