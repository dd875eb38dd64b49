"""Promise: TRL's trainer is a second engine of a fine-tuning, for every causal family."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nbhelpers as nb
from nbhelpers.budget.store import budget_key
from nbhelpers.errors import ConfigError, NonFinite, Stopped
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.jobs import checkpoint as ck
from nbhelpers.plan import BatchPlan
from tests.job_runs import (
    events,
    last_checkpoint,
    prepare,
    result,
    stop_at,
    work_here,
    work_in_ranks,
)
from tests.test_contract import die, precision, suicide  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TRL = {"engine": "trl", "lora_target_modules": ["all-linear"]}
SIZES: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
SIZES |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
FAMILIES = {
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "Mistral": {"sliding_window": None},
    "Phi3": {},
    "Gemma3Text": {"head_dim": 8},
    "GPT2": {},
}


def family_folder(family: str, folder: Path) -> Path:
    """A tiny model of random weights, as the hub would have it."""
    import transformers

    from nbhelpers.jobs.models.smoke_causal import smoke_tokenizer

    torch.manual_seed(1)
    sizes = SIZES | FAMILIES[family]
    if family == "GPT2":
        sizes = {"vocab_size": 2048, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
    config = getattr(transformers, f"{family}Config")(**sizes)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    smoke_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    run = prepare("finetune", tmp_path_factory.mktemp("whole") / "runs", engine="trl")
    work_here(run)
    return run


@pytest.mark.parametrize("checkpointing", [False, True])
def test_both_engines_learn_alike(tmp_path: Path, checkpointing: bool) -> None:
    """Each step sees all rows, so that their order does not matter."""
    whole = {"max_train_samples": 16, "global_batch_size": 16, "per_device_train_batch_size": 4}
    whole |= {"epochs": 5, "warmup_ratio": 0.0, "evaluate": "none", "valid_samples": 3}
    whole |= {"gradient_checkpointing": checkpointing}
    curves = {}
    for engine in ("nbhelpers", "trl"):
        training = work_here(prepare("finetune", tmp_path / engine, engine=engine, **whole))
        lines = training["training"]["history"]
        names = ("loss", "grad_norm", "learning_rate")
        curves[engine] = np.array([[line[name] for name in names] for line in lines])
    assert len(curves["trl"]) == 5 and curves["trl"][-1, 0] < curves["trl"][0, 0] - 0.3
    assert curves["trl"] == pytest.approx(curves["nbhelpers"], rel=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_trains_answers_and_is_plain_peft(tmp_path: Path, family: str) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = family_folder(family, tmp_path / "model")
    few = {"model": str(folder), "epochs": 1, "eval_samples": 2, "packing": family == "Qwen3"}
    run = prepare("finetune", tmp_path / "runs", **TRL | few)
    ended = work_here(run)
    assert ended["training"]["last_loss"] < ended["training"]["first_loss"]
    assert ended["scores"]["test"]["n_samples"] == 2 and ended["throughput"]["useful_share"] <= 1
    base = AutoModelForCausalLM.from_pretrained(folder)
    PeftModel.from_pretrained(base, last_checkpoint(run))
    nb.report(run, show=False)
    assert "</html>" in (run.path / "report.html").read_text()


def test_a_run_that_is_stopped_and_killed_ends_with_all_its_steps(
    tmp_path: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = prepare("finetune", tmp_path / "runs", engine="trl")
    with pytest.raises(Stopped, match="after optimizer step 2 of 6") as error:
        work_here(run, stop_at(run, 2))
    assert "goes on from the checkpoint" in error.value.fix
    assert last_checkpoint(run).name == "step-00000002" and not run.result_path.exists()
    adopt = ck.adopt

    def killed(folder: Path, part: Path, **options: Any) -> Path:
        return suicide() if options["step"] == 4 else adopt(folder, part, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ck, "adopt", killed)
        assert die(lambda: work_here(run)) == signal.SIGKILL
    assert last_checkpoint(run).name == "step-00000003"
    ended, whole = work_here(run)["training"], result(undisturbed)["training"]
    assert [event["step"] for event in events(run, "resumed")] == [2, 3]
    assert [line["step"] for line in ended["history"]] == list(range(1, 7))
    for key in ("optimizer_steps", "examples", "epochs", "resumed_from"):
        assert ended[key] == (3 if key == "resumed_from" else whole[key]), key
    assert ended["last_loss"] == pytest.approx(whole["last_loss"], rel=1e-2)
    assert not list(run.checkpoints_path.glob("checkpoint-*"))


def test_a_run_killed_in_its_evaluation_does_not_train_again(
    tmp_path: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbhelpers.jobs import finetune

    run = prepare("finetune", tmp_path / "runs", engine="trl")
    with monkeypatch.context() as patch:
        patch.setattr(finetune, "evaluate", suicide)
        assert die(lambda: work_here(run)) == signal.SIGKILL
    ended = work_here(run)
    assert ended["training"]["resumed_from"] == 6 and len(events(run, "step")) == 6
    assert ended["scores"] == result(undisturbed)["scores"]


def test_events_and_memory_are_those_of_any_run(undisturbed: Any) -> None:
    kinds = [event["type"] for event in undisturbed.events()]
    assert kinds[-1] == "end" and kinds.count("eval") == 2 and kinds.count("checkpoint") == 6
    ended = result(undisturbed)
    assert [line["step"] for line in ended["training"]["evals"]] == [3, 6]
    assert ended["memory"]["measured_bytes"] > 0 and ended["settings"]["engine"] == "trl"
    phases = [row["phase"] for row in ended["memory"]["phases"]]
    assert phases == ["load", "forward", "backward", "optimizer", "evaluation"]


def test_a_loss_that_is_not_finite_stops_before_it_is_saved(tmp_path: Path) -> None:
    import safetensors.torch

    folder = family_folder("Qwen2", tmp_path / "model")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights["model.norm.weight"][:] = math.nan
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    run = prepare("finetune", tmp_path / "runs", model=str(folder), **TRL)
    with pytest.raises(NonFinite, match="loss of optimizer step 1 is not finite"):
        work_here(run)
    assert not ck.list_checkpoints(run.checkpoints_path)


def test_two_processes_and_a_probe(tmp_path: Path) -> None:
    changes = {"engine": "trl", "num_gpus": 2, "eval_samples": 2}
    ended = work_in_ranks(prepare("finetune", tmp_path / "two", **changes))
    assert ended["training"]["optimizer_steps"] == 6 and ended["plan"]["world_size"] == 2
    assert ended["training"]["last_loss"] < ended["training"]["first_loss"]
    probe = work_here(prepare("finetune", tmp_path / "probe", mode="probe", engine="trl"))
    assert probe["training"]["optimizer_steps"] == probe["probe"]["steps"] > 2


def test_the_step_of_that_trainer_is_simulated_for_any_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbhelpers.jobs.simulated.finetune import simulate_finetune

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    hardware = plan_hardware("h100")
    for family in ("Qwen2", "GPT2"):
        changes = TRL | {"model": str(family_folder(family, tmp_path / family))}
        changes |= {"precision": "bf16", "per_device_train_batch_size": 4}
        preset = nb.load_preset("finetune", "smoke", hardware=hardware, overrides=changes)
        plan = nb.plan_batch(preset, hardware)
        budget = simulate_finetune(preset, plan, hardware, gpu=hardware.gpu)
        sizes = {line.name: line.size_bytes for line in budget.lines}
        assert not budget.opaque
        # The whole logits in fp32, of 4 x 128 tokens, are what this trainer cannot do without.
        assert sizes["logits and loss"] >= 4 * 128 * 2048 * 4
    assert not list(Path().iterdir())  # nothing is written where it was started


def test_engines_share_no_budget_and_no_estimate() -> None:
    hardware = plan_hardware("t4")
    ours, theirs = (
        nb.load_preset("finetune", "t4", hardware=hardware, overrides={"engine": engine})
        for engine in ("nbhelpers", "trl")
    )
    keys = [budget_key(p, nb.plan_batch(p, hardware), hardware) for p in (ours, theirs)]
    assert keys[0].family != keys[1].family
    assert nb.predict_memory(ours, nb.plan_batch(ours, hardware), hardware).source == "simulation"
    budget = nb.predict_memory(theirs, nb.plan_batch(theirs, hardware), hardware)
    assert budget.source == "unknown" and "--exact" in budget.advice[0]
    assert not theirs.settings.packing and "TRL counts packed rows" in " ".join(theirs.notes)


def test_the_plan_says_what_trl_does_not_promise(undisturbed: Any) -> None:
    plan = BatchPlan.from_dict(result(undisturbed)["plan"])
    assert "is not bit-equal" in repr(plan) and "in its own order" in repr(plan)
    ours = nb.plan_batch(nb.load_preset("finetune", "t4"), plan_hardware("t4"))
    assert "engine" not in ours.to_dict() and "bit-equal" not in repr(ours)


def test_what_each_engine_refuses(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    with pytest.raises(ConfigError, match="of the type qwen2") as error:
        nb.load_preset("finetune", "base", overrides={"model": str(tmp_path)})
    assert "or set engine=trl" in str(error.value)
    nb.load_preset("finetune", "base", overrides={"model": str(tmp_path), "engine": "trl"})
    for name, value in {"attention": "flex", "loss": "chunked", "compile_layers": "on"}.items():
        with pytest.raises(ConfigError, match=f"engine=trl has no {name}={value}"):
            nb.load_preset("finetune", "base", overrides={"engine": "trl", name: value})
