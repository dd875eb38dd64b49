"""Runs of the real fine-tuning job in its smallest form: launched, or in this process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbhelpers as nb
from nbhelpers.runs.events import EventWriter
from nbhelpers.runs.run import Run, write_json
from nbhelpers.runs.starting import run_record, write_record

TINY: dict[str, Any] = {
    "pretrain_steps": 0,
    "max_train_samples": 20,
    "valid_samples": 6,
    "evaluate": "text",
    "eval_samples": 5,
    "epochs": 2,
    "global_batch_size": 8,
    "per_device_train_batch_size": 4,
    "lora_r": 4,
    "max_new_tokens": 12,
    "logging_steps": 1,
    "save_steps": 1,
    "save_total_limit": 3,
    "bootstrap_samples": 100,
}
STEPS = 6  # 20 samples, 8 at a time, twice


def _parts(**changes: Any) -> dict[str, Any]:
    hardware = nb.detect_hardware()
    preset = nb.load_preset("finetune", "smoke", hardware=hardware, overrides=TINY | changes)
    return {"preset": preset, "plan": nb.plan_batch(preset, hardware), "hardware": hardware}


def start(folder: Path, **changes: Any) -> Run:
    """Launch the smallest run with these overrides."""
    return nb.launch(**_parts(**changes), budget=None, run_dir=folder, owner_pid=os.getpid())


def prepare(folder: Path, *, mode: str = "train", checkpoint: Path | None = None, **changes: Any):
    """Return the folder of a run that nothing works on yet."""
    given = str(checkpoint) if checkpoint else None
    record = run_record(**_parts(**changes), budget=None, mode=mode, checkpoint=given)
    run = Run(folder / record["run_id"])
    folder.mkdir(exist_ok=True)
    write_record(run, record)
    return run


def work_here(run: Run, stop: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Do the job of a run folder in this process, as a worker does, and return its result."""
    from nbhelpers.jobs.worker import work

    with EventWriter(run.path, 0) as writer:
        work(run, writer, stop)
    return json.loads(run.result_path.read_text())


def last_checkpoint(run: Run) -> Path:
    """Return the folder of the newest checkpoint."""
    index = json.loads((run.checkpoints_path / "index.json").read_text())
    return run.checkpoints_path / index["last"]


def learned(run: Run) -> dict[str, Any]:
    """Return what a run has learned: adapter and optimizer, bit for bit, and what it wrote."""
    import torch

    folder = last_checkpoint(run)
    optimizer = torch.load(folder / "optimizer.pt", weights_only=True)
    state = {
        (number, key): value.numpy().tobytes()
        for number, moments in optimizer["state"].items()
        for key, value in moments.items()
    }
    return {
        "step": folder.name,
        "adapter": (folder / "adapter_model.safetensors").read_bytes(),
        "optimizer": state,
        "groups": optimizer["param_groups"],
        "generations": (run.path / "generations.jsonl").read_text(),
    }


def change_record(run: Run, **settings: Any) -> None:
    """Write settings into the record of a run that the kernel side would have refused."""
    record = json.loads(run.record_path.read_text())
    record["preset"]["settings"] |= settings
    write_json(run.record_path, record)
