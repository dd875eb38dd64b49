"""Promise: how a global batch is split changes neither loss nor gradient, contrastive or not."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from detector_probe import made_up_inputs, make_trainer
from detector_probe import main as play_probe
from ranks import in_ranks

from nbhelpers.jobs.detector_task import task_order
from nbhelpers.jobs.models.contrastive import anchors, cached_gradient, contrastive_losses

SETTINGS = {
    "seed": 3,
    "epochs": 2,
    "global_batch_size": 16,
    "learning_rate": 1e-3,
    "encoder_learning_rate": 1e-3,
    "lr_schedule": "linear",
    "warmup_ratio": 0.1,
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
    "max_skipped_steps": 5,
    "logging_steps": 1,
    "eval_steps": None,
    "save_steps": None,
    "padding": "dynamic",
    "attention": "auto",
    "compile_layers": "off",
    "per_device_eval_batch_size": 4,
    "objective": "both",
    "projection_size": 8,
    "contrastive_weight": 0.5,
    "temperature": 0.07,
    "members_per_task": 3,
    "class_weights": "balanced",
    "freeze_epochs": 0,
    "augment_share": 0.5,
    "target_fpr": 0.1,
}


def config(**changes: Any) -> dict[str, Any]:
    own = {k: changes.pop(k) for k in list(changes) if k in SETTINGS}
    given = {"settings": SETTINGS | own, "optimizer": "adamw", "per_device": 16, "programs": 60}
    return given | changes


GRADIENTS = {"programs": 400, "global_batch_size": 256, "only_gradients": True, "unlabelled": 40}
WEIGHTS = {"programs": 52, "freeze_epochs": 1, "dtype": "float64", "global_batch_size": 12}
Played = tuple[dict[str, np.ndarray], dict[str, Any]]  # tensors, facts


@pytest.fixture(scope="module")
def in_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Played]:
    """What two processes come to, by the name of the split; started once for all."""
    folder = tmp_path_factory.mktemp("two")
    configs = {
        "2x128": config(per_device=128, **GRADIENTS),
        "2x3x2": config(per_device=3, **WEIGHTS),
    }
    outs = {name: folder / f"{name}.safetensors" for name in configs}
    played = [given | {"out": str(outs[name])} for name, given in configs.items()]
    in_ranks(2, lambda: [play_probe(each) for each in played])
    return {name: read(out) for name, out in outs.items()}


def read(out: Path) -> Played:
    from safetensors.numpy import load_file

    return load_file(out), json.loads(out.with_suffix(".json").read_text())


def play(folder: Path, size: int, given: dict[str, Any]) -> Played:
    """Run the probe in this process, `size` programs at once."""
    out = folder / f"{size}.safetensors"
    try:
        play_probe(config(per_device=size, **given) | {"out": str(out)})
    finally:
        torch.set_default_dtype(torch.float32)
    return read(out)


def distance(a: dict, b: dict) -> float:
    """Largest norm of the difference over the norm, over all tensors."""
    assert a.keys() == b.keys()
    whole = math.sqrt(sum(float((a[k].astype(np.float64) ** 2).sum()) for k in a))
    gaps = (((a[k].astype(np.float64) - b[k]) ** 2).sum() for k in a)
    return math.sqrt(float(sum(gaps))) / whole


@pytest.mark.slow
def test_gradients_of_256_programs_do_not_depend_on_the_split(
    tmp_path: Path, in_two: dict[str, Played]
):
    reference, facts = play(tmp_path, 256, GRADIENTS)
    runs = {"2x128": in_two["2x128"], "1x64x4": play(tmp_path, 64, GRADIENTS)}
    assert len(reference) > 30 and facts["losses"][2] > 1.0
    assert facts["losses"][0] == pytest.approx(facts["losses"][1] + 0.5 * facts["losses"][2])
    for name, (gradients, other) in runs.items():
        assert distance(reference, gradients) <= 1e-5, name
        assert np.allclose(other["losses"], facts["losses"], rtol=1e-5), name


@pytest.mark.slow
def test_weights_do_not_depend_on_the_split_through_the_unfreeze(
    tmp_path: Path, in_two: dict[str, Played]
):
    reference, facts = play(tmp_path, 12, WEIGHTS)
    runs = {"1x4x3": play(tmp_path, 4, WEIGHTS), "2x3x2": in_two["2x3x2"]}
    assert facts["state"]["step"] == 8 and facts["state"]["examples"] == 78
    for name, (weights, other) in runs.items():
        assert distance(reference, weights) <= 1e-8, name
        for one, two in zip(facts["state"]["history"], other["state"]["history"], strict=True):
            assert one["contrastive_loss"] == pytest.approx(two["contrastive_loss"], rel=1e-6)


def loss_by_hand(vectors: torch.Tensor, groups: list[int], temperature: float) -> list[float]:
    """Khosla et al., equation 2, as a sum written out."""
    n, found = len(groups), []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        scores = {j: float(vectors[i] @ vectors[j]) / temperature for j in others}
        total = math.log(sum(math.exp(s) for s in scores.values()))
        positive = [j for j in others if groups[j] == groups[i]]
        terms = [total - scores[j] for j in positive]
        found.append(sum(terms) / len(positive) if positive else 0.0)
    return found


def test_the_contrastive_loss_is_the_sum_written_out():
    draw = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(9, 5, generator=draw, dtype=torch.float64), dim=1)
    groups = [0, 0, 0, 1, 1, 2, 3, 3, 3]
    found = contrastive_losses(x, torch.tensor(groups), 0.07)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(loss_by_hand(x, groups, 0.07), rel=1e-4, abs=1e-5)
    assert anchors(np.array(groups)) == 8


def test_two_tight_groups_cannot_go_below_the_minimum_of_the_loss():
    """128 rows in two groups: the mean log of the 63 positives that share the probability."""
    groups = torch.arange(128) % 2
    x = torch.nn.functional.one_hot(groups, 4).float()
    found = contrastive_losses(x, groups, 0.07)
    assert found.mean().item() == pytest.approx(math.log(63), abs=1e-4)


def test_rows_without_a_positive_get_no_loss_and_no_gradient_of_their_own():
    x = torch.nn.functional.normalize(torch.eye(3, 4) + 0.1, dim=1)
    gradient, losses = cached_gradient(x, torch.tensor([0, 1, 2]), 0.07, 0)
    assert not gradient.any() and not losses.any()


def test_each_program_is_read_once_an_epoch_and_tasks_stand_together():
    trainer, _ = make_trainer(config(programs=200))
    task = trainer.task
    for epoch in (0, 1):
        rows = np.concatenate(task.global_batches(epoch))
        assert sorted((rows % task.examples).tolist()) == list(range(task.examples))
        edited = rows // task.examples
        assert 0.25 < edited.mean() < 0.6  # half of those that can be edited
        alone = [
            anchors(task.tasks[w % task.examples]) / len(w) for w in task.global_batches(epoch)
        ]
        assert min(alone[:-1]) > 0.8
    assert not np.array_equal(task.global_batches(0)[0], task.global_batches(1)[0])
    assert np.array_equal(task.global_batches(1)[0], task.global_batches(1)[0])


def test_a_lone_row_of_a_task_joins_the_group_before_it():
    one = np.zeros(5, dtype=np.int64)
    order = task_order(one, one, 2, np.random.default_rng(0))
    assert sorted(order.tolist()) == [0, 1, 2, 3, 4]


def test_a_frozen_encoder_stays_and_learns_after_the_unfreeze():
    trainer, model = make_trainer(config(freeze_epochs=1, epochs=2, dropout=0.1))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    seen: list[bool] = []
    zero_grad = trainer.optimizer.zero_grad

    def watch() -> None:
        state = model.state_dict()
        seen.append(all(torch.equal(before[k], state[k]) for k in before if "encoder." in k))
        zero_grad()

    trainer.optimizer.zero_grad = watch  # type: ignore[method-assign]
    from nbhelpers.jobs.loop import TrainState

    trainer.fit(TrainState())
    steps = trainer.steps_per_epoch
    assert seen == [True] * steps + [False] * steps
    assert not torch.equal(before["classifier.dense.weight"], model.classifier.dense.weight)


def test_the_encoders_schedule_begins_at_the_unfreeze():
    trainer, _ = make_trainer(config(freeze_epochs=1, epochs=4, warmup_ratio=0.25))
    first = trainer.steps_per_epoch
    rates = []
    for step in range(trainer.total_steps):
        trainer._set_learning_rate(step)
        rates.append([group["lr"] for group in trainer.optimizer.param_groups])
    heads, encoder = [r[0] for r in rates], [r[-1] for r in rates]
    assert heads.index(max(heads)) == trainer.total_steps // 4 - 1
    assert encoder.index(max(encoder[first:])) > first and encoder[first] < encoder[first + 1]


def test_objectives_have_the_heads_they_need():
    for objective, heads in (("detect", {"classifier"}), ("similar", {"projector"})):
        _, model = make_trainer(config(objective=objective))
        names = {k.split(".")[0] for k in model.state_dict()}
        rarity = {"rarity"} if objective == "similar" else set()
        assert names == {"encoder", "centre", "spread", *heads, *rarity}


def test_made_up_inputs_have_forms_that_cannot_be_edited():
    inputs = made_up_inputs(40)
    assert (inputs.forms["rename"] == -1).any()


@pytest.mark.parametrize(
    ("precision", "factor", "is_on"),
    [("no", 1.0, True), ("no", 1.01, False), ("bf16", 1.0, True), ("bf16", 1.05, False)],
)
def test_compiled_blocks_are_used_only_when_their_gradients_are_as_exact_as_the_plain_ones(
    monkeypatch: pytest.MonkeyPatch, precision: str, factor: float, is_on: bool
):
    from nbhelpers.jobs.compiling import Compiling
    from nbhelpers.jobs.models import detector
    from nbhelpers.jobs.models.encoding import PLAIN, BlockMath

    bent = BlockMath(PLAIN.before, lambda *args: PLAIN.after(*args) * factor)
    monkeypatch.setattr(detector, "compiled_math", lambda encoder: bent)
    trainer, model = make_trainer(config(freeze_epochs=1, compile_layers="on"))
    task, proofs = trainer.task, []
    autocast = partial(torch.autocast, "cpu", torch.bfloat16, enabled=precision == "bf16")
    monkeypatch.setattr(task.accelerator, "autocast", autocast)
    compiling = Compiling(model, model.compile_blocks, task.accelerator, proofs.append)
    task.compiling = compiling
    task.start_epoch(0)
    assert not proofs  # a frozen encoder is not compiled
    assert task.start_epoch(1) and not task.start_epoch(2)
    assert [proof["is_on"] for proof in proofs] == [is_on]
    assert (proofs[0]["plain"] > 1e-3) is (precision == "bf16")
    assert (model._math is bent) is is_on and compiling.facts()["is_on"] is is_on
    assert not any("_orig_mod" in name for name in model.state_dict())
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_blocks_cut_at_their_attentions_compute_what_they_do_one_by_one():
    from nbhelpers.jobs.models import encoding

    parts = (encoding._before, encoding._after, encoding._between)
    trainer, model = make_trainer(config(freeze_epochs=0))
    model.double().train()
    buckets, _, _ = trainer.task.batches.buckets(np.arange(6))
    values = []
    for blocks in (None, encoding.BlockMath(*parts)):
        model._math = blocks
        model.zero_grad()
        torch.manual_seed(0)  # dropout is drawn in the same order
        model.states(buckets).square().sum().backward()
        values.append([p.grad.clone() for p in model.encoder.parameters() if p.grad is not None])
    assert len(values[0]) == len(values[1]) > 30
    for one, other in zip(*values, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)


def test_a_batch_made_ahead_is_the_one_that_would_be_made_in_its_step():
    trainer, _ = make_trainer(config(freeze_epochs=0))
    task = trainer.task
    steps = task.global_batches(0)
    rows = [trainer._micro_batches(step)[0] for step in steps[:2]]
    task.start_step(steps[0], [rows[0]], lambda number: None)
    task.prepare(rows[1])
    task.start_step(steps[1], [rows[1]], lambda number: None)
    ahead, usual = task.batch(rows[1]), task.batch(rows[1])
    for name in ("place", "labels", "weights", "positions"):
        assert torch.equal(getattr(ahead, name), getattr(usual, name))
    assert torch.equal(ahead.buckets[0].ids, usual.buckets[0].ids)
    assert ahead.useful_tokens == usual.useful_tokens
    task.prepare(rows[0])
    assert torch.equal(task.batch(rows[1]).buckets[0].ids, usual.buckets[0].ids)


def test_scoring_uses_the_plain_blocks_and_a_first_pass_those_of_the_second():
    from nbhelpers.jobs.models.encoding import PLAIN, BlockMath

    calls = []

    def after(*args: Any) -> torch.Tensor:
        calls.append(torch.is_grad_enabled())
        return PLAIN.after(*args)

    trainer, model = make_trainer(config(freeze_epochs=0))
    model._math = BlockMath(PLAIN.before, after)
    rows = np.arange(6)
    trainer.task.batches.predict(model, rows)
    assert calls == []
    model.train()
    with torch.no_grad():
        model.states(trainer.task.batches.buckets(rows)[0])
    assert calls and not any(calls)


@pytest.mark.parametrize(
    "changes", [{}, {"objective": "detect"}, {"objective": "similar"}, {"pooling": "mean_max"}]
)
def test_the_plan_counts_the_parameters_that_the_model_has(changes: dict[str, Any]):
    from dataclasses import replace

    import nbhelpers as nb
    from nbhelpers.budget.shapes import SMOKE_GRAPH, find_shape
    from nbhelpers.jobs.models.detector import build_detector
    from nbhelpers.jobs.models.encoders import smoke_tokenizer

    settings = nb.load_preset("detector", "smoke", overrides=changes).settings
    found = smoke_tokenizer(SMOKE_GRAPH, ["def f(x):\n    return x + 1\n"] * 3)
    model = build_detector(settings, found)
    shape = replace(find_shape(settings), vocab=found.config.vocab_size)
    assert shape.parameters() == sum(p.numel() for p in model.parameters())


def test_the_proof_compares_gradients_where_states_are_large():
    from nbhelpers.jobs.compiling import Compiling

    trainer, model = make_trainer(config(freeze_epochs=0))
    model.spread.fill_(1e-4)
    buckets, _, _ = trainer.task.batches.buckets(np.arange(6))
    compiling = Compiling(model, lambda is_on: None, trainer.task.accelerator)
    compiling.prove_once(lambda: model.states(buckets))
    assert compiling.proof["is_on"] and compiling.proof["largest_difference"] == 0.0


def test_blocks_that_fail_leave_the_model_in_training_and_without_gradients():
    from nbhelpers.jobs.compiling import Compiling
    from nbhelpers.jobs.models.encoding import PLAIN, BlockMath

    def failing(*args: Any) -> torch.Tensor:
        raise RuntimeError("no kernel")

    trainer, model = make_trainer(config(freeze_epochs=0))
    model.train()

    def switch(is_on: bool) -> None:
        model._math = BlockMath(PLAIN.before, failing) if is_on else None

    trainer.task.compiling = Compiling(model, switch, trainer.task.accelerator)
    trainer.task.start_epoch(0)
    proof = trainer.task.compiling.proof
    assert proof == {"is_on": False, "reason": "RuntimeError: no kernel"}
    assert model._math is None and all(module.training for module in model.modules())
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_a_gradient_that_is_only_rounding_does_not_speak_against_compiled_blocks():
    from nbhelpers.jobs.compiling import largest_difference

    draw = torch.Generator().manual_seed(0)
    one = {"weight": torch.randn(64, 64, generator=draw)}
    one["key.bias"] = 1e-6 * torch.randn(64, generator=draw)
    other = one | {"key.bias": 1e-6 * torch.randn(64, generator=draw)}
    assert largest_difference(one, other) < 1e-4
    assert largest_difference(one, one | {"weight": 1.02 * one["weight"]}) > 0.015
