"""Promise: a launched run is stopped and goes on, also on a mounted drive; a checkpoint is scored,
also one of the old script.

What a killed run gives stands in test_contract.py, of two processes in test_nodes.py.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
import slow_drive
import torch
from safetensors.torch import load_file

import nbhelpers as nb
from nbhelpers.common.model_config import encoder_config
from nbhelpers.data import load_clone_data
from nbhelpers.errors import Stopped
from nbhelpers.metrics.predictions import read_predictions
from nbhelpers.runs.run import Run
from tests.job_runs import finish, prepare, start, wait_for_step, work_here

pytestmark = pytest.mark.slow


def test_a_stopped_run_on_a_mounted_drive_goes_on_with_another_split_or_as_it_was(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With half the micro-batch it is the same experiment: only rounding parts the two."""
    changes = {"max_train_samples": 400, "dropout": 0.0, "save_total_limit": 200, "save_steps": 5}
    drive = slow_drive.mount(tmp_path, monkeypatch, str(root))
    run = start("clones", drive, **changes)
    wait_for_step(run, 5)
    assert run.stop(timeout_s=300) == "stopped"
    with pytest.raises(Stopped, match="Fix"):
        nb.follow(run, timeout_s=300)
    time.sleep(slow_drive.LATE_S)  # until the drive lists the checkpoint
    other = start("clones", drive, resume=True, per_device_train_batch_size=4, **changes)
    split = finish(other)
    assert other.id != run.id and split["training"]["resumed_from"] >= 5
    assert any(f"those of {run.id}" in text for text in split["warnings"])
    again = start("clones", drive, **changes)
    assert again.path == run.path
    ended = finish(again)
    assert ended["training"]["resumed_from"] >= 5
    curves = [[line["loss"] for line in one["training"]["history"]] for one in (split, ended)]
    assert len(curves[0]) == 100 and curves[0] == pytest.approx(curves[1], rel=2e-3)
    finished = start("clones", drive, **changes)
    assert finished.status == "finished" and finished.path == run.path
    nb.report(finished, show=False)
    assert finished.report_path.is_file()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of the clone job."""
    run = prepare("clones", tmp_path_factory.mktemp("trained") / "runs")
    work_here(run)
    return run


def test_a_checkpoint_folder_evaluates_on_its_own(trained: Run, tmp_path: Path):
    best = next(trained.checkpoints_path.glob("step-*"))
    run = prepare("clones", tmp_path / "runs", mode="evaluate", checkpoint=best)
    scored = work_here(run)
    assert scored["mode"] == "evaluate" and not scored["model"]["random_weights"]
    assert scored["threshold"]["chosen_on"] == "valid"


def test_a_checkpoint_of_the_old_script_is_scored_in_the_right_order(trained: Run, tmp_path: Path):
    ours = trained.checkpoints_path / "step-00000010"
    base = tmp_path / "base"  # architecture and tokenizer, no weights
    shutil.copytree(ours, base, ignore=shutil.ignore_patterns("*.safetensors", "*.pt", "m*.json"))
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(encoder_config(config)))
    state = {f"module.{key}": value for key, value in load_file(ours / "model.safetensors").items()}
    state["module.encoder.h.0.attn.masked_bias"] = torch.tensor(-1e4)
    saved = tmp_path / "saved_models" / "checkpoint-best-f1"  # as the script leaves it
    saved.mkdir(parents=True)
    torch.save(state, saved / "model.bin")
    data = write_smoke_folder(tmp_path / "data")
    named = {"mode": "evaluate", "checkpoint": saved.parent}
    run = prepare("clones", tmp_path / "runs", data=str(data), model=str(base), **named)
    work_here(run)
    rows = read_predictions(run.predictions_path, split="test")
    again = prepare("clones", tmp_path / "again", mode="evaluate", checkpoint=ours)
    work_here(again)
    wanted = read_predictions(again.predictions_path)
    first = [i for i, split in enumerate(wanted["split"]) if split == "test"]
    assert rows["id1"] == [wanted["id1"][i] for i in first]
    assert rows["p"] == pytest.approx([wanted["p"][i] for i in first], abs=1e-6)


def write_smoke_folder(folder: Path) -> Path:
    """Write the bundled sample in the CodeXGLUE layout."""
    data = load_clone_data("smoke", seed=3)
    folder.mkdir()
    functions = zip(data.ids, data.functions, strict=True)
    text = "".join(json.dumps({"idx": i, "func": f}) + "\n" for i, f in functions)
    (folder / "data.jsonl").write_text(text)
    for name in ("train", "valid", "test"):
        pairs = data.splits[name]
        rows = zip(pairs.left, pairs.right, pairs.label, strict=True)
        text = "".join(f"{data.ids[a]}\t{data.ids[b]}\t{y}\n" for a, b, y in rows)
        (folder / f"{name}.txt").write_text(text)
    return folder


def test_a_cached_pre_training_gives_the_run_that_a_fresh_one_gave(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path / "cache"))
    runs = [prepare("clones", tmp_path / name, pretrain_steps=3) for name in ("cold", "warm")]
    results = [work_here(run) for run in runs]
    assert len(list((tmp_path / "cache" / "smoke").iterdir())) == 1
    cold, warm = results
    assert cold["training"]["history"] == warm["training"]["history"]
    assert cold["scores"] == warm["scores"]
