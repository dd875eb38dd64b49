"""Promise: what a detector's result counts is what it says it counts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from contexts import make_context
from detector_on_disk import result
from detector_probe import make_trainer
from fake_detector import write_run
from test_detector_training import config

from nbhelpers.data.detection_rows import CodeRow
from nbhelpers.jobs.cards import detector_card
from nbhelpers.jobs.detector_inputs import Inputs, left_out_said, new_rows, only_changed
from nbhelpers.jobs.detector_scores import _model_facts, _phases, frozen_point
from nbhelpers.jobs.loop import TrainState
from nbhelpers.jobs.models.inputs import TokenTable
from nbhelpers.metrics.detection import choose_operating_point, score_detection
from nbhelpers.metrics.slices import slice_scores
from nbhelpers.use.facts import detector_facts
from nbhelpers.use.trained import find_detector

LONG = (
    "def total(prices, rates):\n    found = 0\n    for price in prices:\n        found += price\n"
)


def row(code: str, **changes: Any) -> CodeRow:
    known = dict.fromkeys(("id", "author", "generator", "source", "licence", "date", "task"), "")
    known |= {"language": "python", "label": "human", "place": "row", "code": code}
    return CodeRow(**(known | changes))


def test_further_programs_are_new_in_code_task_and_author():
    known = [row(LONG, task="sums", author="Ann"), row("a = 1", label="ai", author="Model")]
    rows = [
        row("b = 2", task="sums"),  # another solution of a known task
        row(LONG.replace("    ", "\t")),
        row(LONG + "    return found\n"),  # Jaccard 0.91
        row("c = 3", author="ann"),
        row("d = 4", author="model"),  # the name of an AI model is no person
        row("d  =  4"),
        row("e = 5", label="ai"),
        row("f = 6;", language="java"),
        row("g = 7", task="products"),
    ]
    kept, left_out = new_rows(rows, known, languages=["Python"], only_humans=True)
    assert [each.code for each in kept] == ["d = 4", "g = 7"]
    wanted = ("other_language", "not_human", "repeated", "same_code", "task", "author", "near_code")
    assert left_out == dict.fromkeys(wanted, 1)
    assert sum(left_out.values()) + len(kept) == len(rows)
    assert "1 of a task of train or valid" in left_out_said(left_out)


def test_pools_of_retrieval_keep_ai_code_and_known_authors():
    known = [row(LONG, author="Ann")]
    rows = [row("c = 3", author="Ann"), row("e = 5", label="ai")]
    assert new_rows(rows, known) == (rows, {})


def test_a_program_that_an_edit_leaves_as_it_is_does_not_count_as_edited():
    codes = ["a = 1  # one\n", "b = 2\n", "c = 3\n", "d = [1,\n 2]\n"]
    edited = ["a = 1\n", "b = 2\n\n", None, "d = [1, 2]\n"]
    assert only_changed(codes, edited, "text") == ["a = 1\n", None, None, "d = [1, 2]\n"]
    assert only_changed(codes, edited, "flat") == ["a = 1\n", None, None, None]
    assert only_changed(codes, edited, "raw")[1] == "b = 2\n\n"


def test_cut_programs_are_those_of_the_data_and_not_their_edited_forms():
    lengths = [3, 9, 9, 9]  # two programs, then forms of them
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.full(offsets[-1], 5, dtype=np.int32)
    table = TokenTable(ids=ids, offsets=offsets, bos_id=0, eos_id=2, pad_id=1, seq_len=8)
    none: Any = None
    inputs = Inputs(data=none, audit=None, table=table, found=none, rows=np.array([0, 1]))
    assert table.truncated == 3 and inputs.truncated == 1


def test_precision_without_a_false_alarm_is_not_certain():
    draw = np.random.default_rng(0)
    labels = ["human"] * 60 + ["ai"] * 60
    logits = np.concatenate([draw.uniform(-3, 0, 60), draw.uniform(-1, 2, 60)])
    point = choose_operating_point(labels, logits, target_fpr=0.01, target_miss_rate=0.05)
    tasks = [f"t{at % 20}" for at in range(120)]
    draws = {"prevalences": [], "resamples": 100, "seed": 0}
    found = score_detection(labels, logits, point, tasks=tasks, **draws)
    low, high = found["intervals"]["precision"]
    assert found["metrics"]["precision"] == high == 1.0 and 0.7 < low < 0.9
    apart = np.concatenate([draw.uniform(-3, -1, 60), draw.uniform(1, 3, 60)])
    found = score_detection(labels, apart, point, tasks=tasks, **draws)
    assert found["metrics"]["roc_auc"] == 1.0 and found["intervals"]["roc_auc"] is None
    single = score_detection(labels, logits, point, tasks=["t"] * 120, **draws)
    assert single["intervals"]["tpr"] is None  # one task: no resample differs


def test_phases_are_the_steps_and_the_evaluations():
    trainer, _ = make_trainer(config(programs=40, epochs=1))
    state = trainer.fit(TrainState())
    found = _phases(SimpleNamespace(state=state))
    assert found is not None
    evaluate_s = found.pop("evaluate_s")
    assert set(found) == {"data_s", "forward_s", "backward_s", "optimizer_s"}
    assert sum(found.values()) == pytest.approx(state.train_s, rel=0.1) and evaluate_s > 0
    again = TrainState.from_dict(state.to_dict())  # as a resumed run reads it
    assert _phases(SimpleNamespace(state=again))["evaluate_s"] == evaluate_s


@pytest.mark.parametrize("model, wanted", [("smoke", True), ("codebert", False)])
def test_a_smoke_model_began_with_random_weights(model: str, wanted: bool):
    _, bare = make_trainer(config(programs=20))
    s = SimpleNamespace(model=model, random_weights=False, seq_len=8, pooling="mean")
    s.projection_size, s.pretrain_steps = 8, 0
    inputs = SimpleNamespace(found=SimpleNamespace(weights=None, note=""))
    facts = _model_facts(make_context(settings=s), inputs, SimpleNamespace(raw=bare))
    assert facts["random_weights"] is wanted


def test_the_card_says_that_test_and_held_out_may_share_programs():
    told = result()
    facts = {"detector": {}, "model": {}, "name": "run", "parameters": 1}
    assert "Test and held_out may share" not in detector_card(told, facts)
    told["data"]["splits"] = told["data"]["splits"] | {"held_out": {"rows": 3}}
    assert "share: none. Test and held_out may share some" in detector_card(told, facts)


def test_of_slices_without_false_alarms_the_worst_is_that_of_fewest_humans():
    labels = ["human", "ai"] * 120
    logits = np.tile([-2.0, 2.0], 120)
    point = choose_operating_point(labels, logits, target_fpr=0.01, target_miss_rate=0.05)
    rows = [row("x", language="go" if at < 160 else "java", task=f"t{at}") for at in range(240)]
    found = slice_scores(rows, labels, logits, point, resamples=20, seed=0)
    assert found["worst"]["fpr"]["fpr"] == 0.0 and found["worst"]["fpr"]["n_human"] == 40
    assert found["worst"]["tpr"]["n_ai"] == 40


def test_a_threshold_belongs_to_the_checkpoint_that_it_was_chosen_with(tmp_path: Path):
    run = write_run(tmp_path / "run")
    best = run / "checkpoints" / "step-00000008"
    last = Path(shutil.copytree(best, best.with_name("step-00000009")))
    known, unknown = (detector_facts(find_detector(folder)) for folder in (best, last))
    assert known.threshold_logit is not None and len(known.rates) == 2 and known.home == run
    assert unknown.threshold_logit is None and unknown.rates == () and unknown.home == last
    assert unknown.run_id == "run"
    point = choose_operating_point([0, 1], [0.0, 1.0], target_fpr=0.1, target_miss_rate=0.1)
    (run / "result.json").write_text(json.dumps({"operating_point": point.to_dict()}))
    assert frozen_point(best / "model.safetensors") == point
    assert frozen_point(last / "model.safetensors") is None
