"""Guards: the numbers of a result have names, in presets and in requirements, of every job."""

from __future__ import annotations

from typing import Any

import detector_on_disk
import finetune_on_disk
import pytest

from nbhelpers.errors import ConfigError, RequirementMissed
from nbhelpers.presets.checks import cross_problems
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.targets import available, lookup, target_rows
from nbhelpers.runs.thresholds import parse_requirement


def clones_result() -> dict[str, Any]:
    test: dict[str, Any] = {"orders": {"given": {"f1": 0.8}, "mean": {"f1": 0.81}}}
    test |= {"at_prior": {"natural": {"prior": 0.1, "f1": 0.4}}, "strata": {"0": {"f1": 0.5}}}
    test |= {"floors": {"tfidf_mlp": {"f1": 0.6}}, "threshold": 0.5, "n_pairs": 9}
    data = {"scores": {"test": test, "valid": {"orders": {"given": {"f1": 0.7}}}}}
    return data | {"memory": {"error_percent": 3.0}, "timing": {"train_s": 12}, "job": "clones"}


RESULTS = {
    "clones": clones_result,
    "detector": detector_on_disk.result,
    "finetune": finetune_on_disk.result,
}


@pytest.mark.parametrize(
    ("job", "name", "way"),
    [
        ("clones", "f1", "scores.test.orders.given.f1"),
        ("clones", "test.mean.f1", "scores.test.orders.mean.f1"),
        ("clones", "valid.f1", "scores.valid.orders.given.f1"),
        ("clones", "n_pairs", "scores.test.n_pairs"),
        ("clones", "test.at_prior.natural.f1", "scores.test.at_prior.natural.f1"),
        ("clones", "test.floors.tfidf_mlp.f1", "scores.test.floors.tfidf_mlp.f1"),
        ("clones", "strata.0.f1", "scores.test.strata.0.f1"),
        ("clones", "timing.train_s", "timing.train_s"),
        ("detector", "roc_auc", "scores.test.metrics.roc_auc"),
        ("detector", "unseen_humans.fpr", "scores.unseen_humans.metrics.fpr"),
        ("detector", "held_out.n_ai", "scores.held_out.n_ai"),
        ("detector", "edits.rename.tpr_loss", "scores.test.edits.rename.tpr_loss"),
        ("detector", "floors.tfidf.roc_auc", "scores.test.floors.tfidf.metrics.roc_auc"),
        ("detector", "floors.tfidf.lead.tpr", "scores.test.floors.tfidf.lead.tpr.0"),
        ("detector", "similarity.mrr", "similarity.headline.mrr"),
        ("detector", "throughput.mfu_6n", "throughput.mfu_6n"),
        ("detector", "operating_point.n_humans", "operating_point.n_humans"),
        ("finetune", "syntax_accuracy", "scores.test.metrics.syntax_accuracy"),
        ("finetune", "humaneval.pass@1", "scores.humaneval.metrics.pass@1"),
        ("finetune", "mbpp.n_samples", "scores.mbpp.n_samples"),
        ("finetune", "energy.watts_mean", "energy.watts_mean"),
        ("finetune", "memory.error_percent", "memory.error_percent"),
    ],
)
def test_a_number_is_found_by_its_name(job: str, name: str, way: str) -> None:
    data = wanted = RESULTS[job]()
    for key in way.split("."):
        wanted = wanted[0] if isinstance(wanted, list) else wanted[key]
    assert lookup(data, name) == wanted == available(data)[name]
    parse_requirement(f"{name} >= -9", job).enforce(data)
    assert parse_requirement(f"{name}>=-1").metric == name


def test_a_prevalence_is_named_by_the_run() -> None:
    data = detector_on_disk.result()
    precision = data["scores"]["test"]["at_prevalence"]["0.05"]["precision"]
    assert available(data)["at_prevalence.0.05.precision"] == precision
    parse_requirement("held_out.at_prevalence.0.5.precision>=0.9", "detector")
    with pytest.raises(ConfigError, match="no score is called"):
        parse_requirement("at_prevalence.often.precision>=0.9", "detector")


@pytest.mark.parametrize(
    ("text", "is_met"),
    [
        ("f1>=0.8", True),
        ("f1 > 0.8", False),
        ("f1<=0.8", True),
        (" test.f1 < .9 ", True),
        ("f1==8e-1", True),
        ("roc_auc>=0", False),
    ],
)
def test_a_requirement_is_checked_with_its_operator(text: str, is_met: bool) -> None:
    data = {"scores": {"test": {"orders": {"given": {"f1": 0.8, "roc_auc": None}}}}}
    requirement = parse_requirement(text)
    if is_met:
        return requirement.enforce(data)
    with pytest.raises(RequirementMissed, match=r"is (0\.8|undefined here)") as caught:
        requirement.enforce(data)
    assert caught.value.exit_code == 7


@pytest.mark.parametrize(
    ("text", "job", "message", "fix"),
    [
        *((text, None, "cannot read", "f1") for text in ("f1", "f1=0.9", "f1=>1", ">=1", "f1>=")),
        ("0.9<=f1", None, "cannot read", "f1"),
        ("f1>=high", None, "not a number", "f1>=0.9"),
        ("f1>=nan", None, "not a number", "f1>=0.9"),
        ("f2>=0.9", None, "no score is called 'f2'", "f1"),
        ("train.f1>=0.9", None, "no score is called", "f1"),
        ("memory.f1>=0.9", None, "no score is called", "f1"),
        ("roc_acu>=0.9", "detector", "no score is called", "Did you mean 'roc_auc'?"),
        ("mean.f1>=0.9", "detector", "no score is called", "unseen_humans"),
        ("bleu>=9", "detector", "no score is called", "similarity.mrr"),
        ("unseen_humans.fpr<=0.1", "clones", "no score is called", "test_unseen"),
        ("bleu>=20", "clones", "no score is called", "f1"),
        ("syntax_acuracy>=1", "finetune", "no score", "Did you mean 'syntax_accuracy'?"),
        ("pass@1>=0.1", "finetune", "no score is called", "humaneval.pass@1"),
        ("ece<=0.1", "finetune", "no score is called", "bleu"),
    ],
)
def test_what_no_result_can_meet_stops_before_the_run(
    text: str, job: str | None, message: str, fix: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_requirement(text, job)
    assert fix in caught.value.fix and len(caught.value.fix) < 1200


def test_what_a_run_did_not_measure_is_no_zero() -> None:
    data = detector_on_disk.result(similarity=None)
    with pytest.raises(ConfigError, match=r"measured no similarity.mrr") as caught:
        parse_requirement("similarity.mrr>=0.1").enforce(data)
    assert "objective" in caught.value.fix and "roc_auc" in caught.value.fix
    data = finetune_on_disk.result()
    del data["scores"]["humaneval"]
    with pytest.raises(ConfigError, match=r"evaluated no humaneval.pass@1") as caught:
        parse_requirement("humaneval.pass@1>=0.1").enforce(data)
    assert "evaluate=all" in caught.value.fix


def test_targets_are_checked_on_the_unrounded_value() -> None:
    scores = {"test": {"orders": {"given": {"f1": 0.89999, "roc_auc": None}}}}
    targets = {"f1": 0.9, "roc_auc": 0.5, "test.f1": 0.89999}
    rows = target_rows({"job": "clones", "scores": scores, "settings": {"targets": targets}})
    assert [row["passed"] for row in rows] == [False, False, True]
    assert (rows[0]["metric"], rows[0]["value"]) == ("f1", 0.89999)


def test_an_error_rate_is_bounded_from_above_and_what_is_missing_has_a_note() -> None:
    test = {"metrics": {"fpr": 0.02, "ece": None, "tpr": 0.5}}
    data = detector_on_disk.result(scores={"test": test})
    targets = {"fpr": 0.05, "ece": 0.1, "tpr": 0.5, "timing.total_s": 400, "brier": 1, "f3": 1}
    data["settings"]["targets"] = targets
    rows = {row["metric"]: row for row in target_rows(data)}
    assert [row["passed"] for row in rows.values()] == [True, False, True, False, False, False]
    assert "".join(row["op"][0] for row in rows.values()) == "<<><<>"
    assert (rows["brier"]["note"], rows["f3"]["note"]) == ("not measured", "no such score")


@pytest.mark.parametrize(
    ("job", "name", "fix"),
    [
        ("detector", "roc_acu", "did you mean `roc_auc`?"),
        ("finetune", "syntax_acuracy", "did you mean `syntax_accuracy`?"),
        ("finetune", "human_eval.pass@1", "did you mean `humaneval.pass@1`?"),
        ("finetune", "f1", "choose one of: "),
        ("clones", "bleu", "choose one of: "),
    ],
)
def test_a_preset_with_an_unknown_target_is_told_the_nearest(job: str, name: str, fix: str) -> None:
    values = {"save_steps": 10, "targets": {name: 0.5}}
    (problem,) = cross_problems(job, values, {})
    assert f"unknown score `{name}`" in problem.text and problem.fix.startswith(fix)


@pytest.mark.parametrize("job", RESULTS)
def test_every_number_of_a_result_may_be_a_target(job: str) -> None:
    names = [*JOBS[job].scores.score_names(), *available(RESULTS[job]())]
    values = {"save_steps": 10, "targets": dict.fromkeys(names, 0.5)}
    assert cross_problems(job, values, {}) == []
