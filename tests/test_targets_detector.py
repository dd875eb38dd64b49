"""Guards: the scores of a detector have names of their own, in presets and in requirements."""

from __future__ import annotations

from typing import Any

import pytest
from detector_on_disk import result

from nbhelpers.errors import ConfigError, RequirementMissed
from nbhelpers.metrics.detection import METRICS
from nbhelpers.metrics.registry import DETECTOR_SCORES
from nbhelpers.presets.checks import cross_problems
from nbhelpers.presets.targets import available, check_targets, lookup, parse_requirement
from nbhelpers.runs.thresholds import parse_requirements


def test_the_names_are_those_that_are_measured() -> None:
    assert DETECTOR_SCORES.names() == METRICS


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("roc_auc", "scores.test.metrics.roc_auc"),
        ("test.tpr", "scores.test.metrics.tpr"),
        ("unseen_humans.fpr", "scores.unseen_humans.metrics.fpr"),
        ("held_out.n_ai", "scores.held_out.n_ai"),
        ("edits.rename.tpr_loss", "scores.test.edits.rename.tpr_loss"),
        ("floors.tfidf.roc_auc", "scores.test.floors.tfidf.metrics.roc_auc"),
        ("similarity.mrr", "similarity.headline.mrr"),
        ("similarity.pair_accuracy", "similarity.headline.pair_accuracy"),
        ("throughput.mfu_6n", "throughput.mfu_6n"),
        ("memory.error_percent", "memory.error_percent"),
        ("timing.total_s", "timing.total_s"),
        ("inference.ms_per_file", "inference.ms_per_file"),
        ("operating_point.n_humans", "operating_point.n_humans"),
    ],
)
def test_a_number_is_found_by_its_name(name: str, way: str) -> None:
    data = result()
    wanted: Any = data
    for key in way.split("."):
        wanted = wanted[key]
    assert lookup(data, name) == wanted
    assert parse_requirement(f"{name}>=-1", "detector").check(data)["passed"]
    assert parse_requirement(f"{name}>=-1").metric == name


def test_a_prevalence_and_a_lead_are_named_too() -> None:
    data = result()
    test = data["scores"]["test"]
    found = available(data)
    precision = test["at_prevalence"]["0.05"]["precision"]
    assert found["at_prevalence.0.05.precision"] == precision
    assert found["floors.tfidf.lead.tpr"] == test["floors"]["tfidf"]["lead"]["tpr"][0]
    parse_requirement("held_out.at_prevalence.0.5.precision>=0.9", "detector")
    with pytest.raises(ConfigError, match="no score is called"):
        parse_requirement("at_prevalence.often.precision>=0.9", "detector")


def test_an_error_rate_is_bounded_from_above() -> None:
    data = result(scores={"test": {"metrics": {"fpr": 0.02, "ece": None, "tpr": 0.5}}})
    rows = check_targets({"fpr": 0.05, "ece": 0.1, "tpr": 0.5, "timing.total_s": 400}, data)
    assert [row["passed"] for row in rows] == [True, False, True, False]


@pytest.mark.parametrize(
    ("text", "job", "said"),
    [
        ("roc_acu>=0.9", "detector", "Did you mean 'roc_auc'?"),
        ("mean.f1>=0.9", "detector", "unseen_humans"),
        ("bleu>=9", "detector", "similarity.mrr"),
        ("unseen_humans.fpr<=0.1", "clones", "test_unseen"),
        ("ece<=0.1", "finetune", "bleu"),
    ],
)
def test_a_name_of_another_job_is_refused_before_the_run(text: str, job: str, said: str) -> None:
    with pytest.raises(ConfigError, match="no score is called") as caught:
        parse_requirements([text], job)
    assert said in caught.value.fix
    assert len(caught.value.fix) < 1200


def test_what_a_run_did_not_measure_is_no_zero() -> None:
    data = result(similarity=None)
    with pytest.raises(ConfigError, match=r"measured no similarity.mrr") as caught:
        parse_requirement("similarity.mrr>=0.1").enforce(data)
    assert "objective" in caught.value.fix
    data["scores"]["test"]["metrics"]["roc_auc"] = None
    with pytest.raises(RequirementMissed, match="undefined"):
        parse_requirement("roc_auc>=0").enforce(data)


def test_a_preset_with_an_unknown_target_is_told_the_nearest() -> None:
    values = {"save_steps": 10, "targets": {"roc_acu": 0.5}}
    (problem,) = cross_problems("detector", values, {})
    assert "unknown score `roc_acu`" in problem.text
    assert problem.fix.startswith("did you mean `roc_auc`?")


def test_every_name_that_may_be_a_target_is_accepted() -> None:
    names = DETECTOR_SCORES.score_names()
    values = {"save_steps": 10, "targets": dict.fromkeys(names, 0.5)}
    assert cross_problems("detector", values, {}) == []
