"""Promise: an adapter's checkpoint says what it belongs to, and scores alike on any machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import nbhelpers as nb
from nbhelpers.jobs import checkpoint as ck
from nbhelpers.runs.run import Run
from tests.job_runs import STEPS, events, learned, prepare, result, work_here

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run."""
    run = prepare("finetune", tmp_path_factory.mktemp("whole") / "runs")
    work_here(run)
    return run


def test_a_checkpoint_says_what_it_belongs_to(whole: Run):
    folder = whole.checkpoints_path / f"step-{STEPS['finetune']:08d}"
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "smoke" and config["r"] == 4
    assert config["inference_mode"] is True
    assert not ck.verify(folder)
    from safetensors.torch import load_file

    tensors = load_file(folder / "adapter_model.safetensors")
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
    assert all(bool(t.any()) for name, t in tensors.items() if "lora_B" in name)


def test_ledger_and_adapter_count_the_parameters_of_the_loaded_model(whole: Run):
    found = result(whole)
    adapter, base = found["adapter"], found["model"]["parameters"]
    weights = found["memory"]["predicted_lines"][0]
    assert weights["name"] == "weights" and weights["note"].startswith(f"{base:,} parameters")
    assert adapter["total_parameters"] == base + adapter["trainable_parameters"]


def test_two_processes_score_a_trained_run_to_the_same_file(tmp_path: Path, whole: Run):
    words = [sys.executable, "-m", "nbhelpers", "evaluate", "finetune", "--run", str(whole.path)]
    words += ["--run-dir", str(tmp_path / "runs"), "-o", "num_gpus=2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = nb.list_runs(tmp_path / "runs")
    assert run.path != whole.path
    found, wanted = result(run), result(whole)
    assert learned(whole)["generations.jsonl"] == (run.path / "generations.jsonl").read_bytes()
    assert found["mode"] == "evaluate" and found["plan"]["world_size"] == 2
    assert found["checkpoint"] == str(whole.path)
    assert {k: v for k, v in found["adapter"].items() if k != "check"} == wanted["adapter"] | {
        "target_modules": sorted(wanted["adapter"]["target_modules"])
    }
    assert found["adapter"]["check"]["zero_b"] == 0
    assert found["scores"] == wanted["scores"]
    assert found["training"]["optimizer_steps"] == 0 and found["throughput"] == {}
    assert len(events(run, "start")) == 2 and not events(run, "step")
    told = " ".join(done.stdout.split())
    assert "on 5 test samples" in told and f"Scored: {whole.path} (adapter r4)" in told
