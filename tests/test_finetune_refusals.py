"""Promise: what cannot be trained is told before training, with what to type."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from trained_on_disk import make_base

from nbhelpers.errors import ConfigError, DataError, NonFinite
from nbhelpers.jobs import finetune
from nbhelpers.jobs.outcome import checkpoint_file
from tests.job_runs import change_record, prepare, work_here

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
]


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small Gemma 2."""
    return make_base(tmp_path_factory.mktemp("models") / "gemma", positions=1024)


def fails(folder: Path, error: Any, match: str, **settings: Any) -> Any:
    """Do the job with settings that no check on the kernel's side has seen."""
    run = prepare("finetune", folder / "runs")
    change_record(run, **settings)
    before = torch.get_float32_matmul_precision()
    try:
        with pytest.raises(error, match=match) as found:
            work_here(run)
    finally:
        torch.set_float32_matmul_precision(before)
    assert found.value.fix
    assert not run.checkpoints_path.exists() and not run.result_path.exists()
    assert not [event for event in run.events() if event["type"] == "step"]
    return found.value


def copied(model: Path, folder: Path, **config: Any) -> Path:
    """A copy of a model's folder with another configuration."""
    target = folder / "model"
    shutil.copytree(model, target)
    values = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(values | config))
    return target


def rows(folder: Path, count: int, prompt: str = "Add two numbers.") -> str:
    file = folder / "rows.jsonl"
    lines = [{"prompt": f"{prompt} {i}", "completion": f"x = {i}"} for i in range(count)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


SETTINGS: dict[str, tuple[str, str, dict[str, Any]]] = {  # what is said, in the fix, settings
    "a target module that the model does not have": (
        "lora_target_modules names qkv, c_attn, which smoke does not have",
        "gate_proj",
        {"lora_target_modules": ["q_proj", "qkv", "c_attn"]},
    ),
    "a base run that scores nothing": (
        "trains nothing and evaluate=none",
        "",
        {"method": "base", "evaluate": "none"},
    ),
    "answers beyond the model's positions": (
        "1024 positions",
        "max_new_tokens",
        {"max_new_tokens": 1020},
    ),
}


@pytest.mark.parametrize("what", SETTINGS)
def test_settings_that_cannot_be(tmp_path: Path, what: str):
    match, fix, changes = SETTINGS[what]
    error = fails(tmp_path, ConfigError, match, **changes)
    assert fix in error.fix and "lm_head" not in error.fix


@pytest.mark.parametrize("triton", [False, True])
def test_flex_attention_on_a_cpu(tmp_path: Path, triton: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(finetune, "has_triton", lambda: triton)
    match = "cannot train on a CPU" if triton else "needs Triton"
    assert "attention=auto" in str(fails(tmp_path, ConfigError, match, attention="flex"))


def without_end(model: Path) -> None:
    file = model / "tokenizer_config.json"
    values = json.loads(file.read_text())
    values.pop("eos_token")
    file.write_text(json.dumps(values))


def cut(model: Path, name: str) -> None:
    (model / name).write_bytes((model / name).read_bytes()[:50])


MODELS: dict[str, tuple[Any, str, dict[str, Any]]] = {  # what is done to it, said, set
    "another family": ({"model_type": "gpt2"}, "of the type gpt2(.|\n)*gemma2 or llama", {}),
    "more words than rows": (
        {"vocab_size": 40},
        r"has \d+ words, its embedding 40 rows",
        {"random_weights": True},
    ),
    "no end token": (without_end, "no end token", {}),
    "half a configuration": (lambda model: cut(model, "config.json"), "config.json of", {}),
    "half the weights": (lambda model: cut(model, "model.safetensors"), "weights", {}),
    "no weights": (lambda model: (model / "model.safetensors").unlink(), "weights", {}),
    # A folder's family is known only once it is read.
    "a soft-cap": ({}, "sdpa drops the soft-cap(.|\n)*attention=auto", {"attention": "sdpa"}),
}


@pytest.mark.parametrize("what", MODELS)
def test_a_model_that_cannot_be_trained(tmp_path: Path, gemma: Path, what: str):
    change, match, settings = MODELS[what]
    model = copied(gemma, tmp_path, **(change if isinstance(change, dict) else {}))
    if callable(change):
        change(model)
    fails(tmp_path, (ConfigError, DataError), match, model=str(model), **settings)


def test_a_single_row(tmp_path: Path):
    fails(tmp_path, DataError, "row", data=rows(tmp_path, 1))


def test_prompts_without_room_for_an_answer(tmp_path: Path):
    long = rows(tmp_path, 60, prompt="word " * 80)
    error = fails(tmp_path, DataError, "No sample leaves room", data=long, seq_len=64)
    assert "seq_len" in error.fix


def test_weights_that_are_not_finite(tmp_path: Path, gemma: Path):
    model = copied(gemma, tmp_path)
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = math.nan
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    fails(
        tmp_path, NonFinite, r"loss of optimizer step 1 \(epoch 1\) is not finite", model=str(model)
    )


def test_a_base_run_has_nothing_to_score_again(tmp_path: Path):
    run = prepare("finetune", tmp_path / "runs", method="base")
    work_here(run)
    words = [sys.executable, "-m", "nbhelpers", "evaluate", "finetune", "--run", run.id]
    words += ["--run-dir", str(run.path.parent)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    told = " ".join((done.stdout + done.stderr).split())
    assert "has no adapter: method=base scores the model as it is" in told


def test_weights_of_other_kinds_are_no_adapter(tmp_path: Path, gemma: Path):
    run = prepare("finetune", tmp_path / "runs", mode="evaluate", checkpoint=gemma)
    with pytest.raises(DataError, match="cannot be read as an adapter"):
        work_here(run)
    assert checkpoint_file(gemma) == gemma / "model.safetensors"
