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


def fails(folder: Path, error: type[Exception], match: str, **settings: Any) -> Any:
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


def test_a_target_module_that_the_model_does_not_have(tmp_path: Path):
    error = fails(
        tmp_path,
        ConfigError,
        "lora_target_modules names qkv, c_attn, which smoke does not have",
        lora_target_modules=["q_proj", "qkv", "c_attn"],
    )
    assert "gate_proj" in error.fix and "lm_head" not in error.fix


def test_a_base_run_that_scores_nothing(tmp_path: Path):
    fails(tmp_path, ConfigError, "trains nothing and evaluate=none", method="base", evaluate="none")


def test_sdpa_would_drop_the_soft_cap(tmp_path: Path, gemma: Path):
    """A folder's family is known only once it is read."""
    error = fails(
        tmp_path, ConfigError, "sdpa drops the soft-cap", model=str(gemma), attention="sdpa"
    )
    assert "attention=auto" in error.fix


@pytest.mark.parametrize("triton", [False, True])
def test_flex_attention_on_a_cpu(tmp_path: Path, triton: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(finetune, "has_triton", lambda: triton)
    match = "cannot train on a CPU" if triton else "needs Triton"
    assert "attention=auto" in str(fails(tmp_path, ConfigError, match, attention="flex"))


def test_a_model_of_another_family(tmp_path: Path, gemma: Path):
    model = copied(gemma, tmp_path, model_type="gpt2")
    error = fails(tmp_path, ConfigError, "of the type gpt2", model=str(model))
    assert "gemma2 or llama" in error.fix


def test_a_tokenizer_with_more_words_than_rows(tmp_path: Path, gemma: Path):
    model = copied(gemma, tmp_path, vocab_size=40)
    fails(tmp_path, ConfigError, r"has \d+ words, its embedding 40 rows", model=str(model),
          random_weights=True)  # fmt: skip


def test_a_tokenizer_without_an_end(tmp_path: Path, gemma: Path):
    model = copied(gemma, tmp_path)
    file = model / "tokenizer_config.json"
    values = json.loads(file.read_text())
    values.pop("eos_token")
    file.write_text(json.dumps(values))
    fails(tmp_path, ConfigError, "no end token", model=str(model))


@pytest.mark.parametrize(
    ("file", "match"), [("config.json", "config.json of"), ("model.safetensors", "weights")]
)
def test_a_damaged_model(tmp_path: Path, gemma: Path, file: str, match: str):
    model = copied(gemma, tmp_path)
    (model / file).write_bytes((model / file).read_bytes()[:50])
    fails(tmp_path, ConfigError, match, model=str(model))


def test_a_model_without_weights(tmp_path: Path, gemma: Path):
    model = copied(gemma, tmp_path)
    (model / "model.safetensors").unlink()
    fails(tmp_path, (ConfigError, DataError), "weights", model=str(model))


def test_a_single_row(tmp_path: Path):
    fails(tmp_path, DataError, "row", data=rows(tmp_path, 1))


def test_prompts_without_room_for_an_answer(tmp_path: Path):
    long = rows(tmp_path, 60, prompt="word " * 80)
    error = fails(tmp_path, DataError, "No sample leaves room", data=long, seq_len=64)
    assert "seq_len" in error.fix


def test_answers_beyond_the_models_positions(tmp_path: Path):
    error = fails(tmp_path, ConfigError, "1024 positions", max_new_tokens=1020)
    assert "max_new_tokens" in error.fix


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
