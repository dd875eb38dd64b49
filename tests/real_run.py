"""Starts real runs of the clone job in their smallest form, for tests."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import nbhelpers as nb
from nbhelpers.runs.events import tail
from nbhelpers.runs.run import Run

TINY: dict[str, Any] = {
    "pretrain_steps": 0,
    "max_train_samples": 40,
    "max_eval_pairs": 40,
    "seq_len": 48,
    "epochs": 2,
    "global_batch_size": 8,
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 8,
    "dropout": 0.1,
    "logging_steps": 1,
    "save_steps": 1,
    "bootstrap_samples": 100,
    "floors": False,
}


def start(folder: Path, *, processes: int = 1, fresh: bool = False, **changes: Any) -> Run:
    """Launch the smallest run with these overrides."""
    hardware = nb.detect_hardware()
    overrides = TINY | {"num_gpus": processes} | changes
    preset = nb.load_preset("clones", "smoke", hardware=hardware, overrides=overrides)
    plan = nb.plan_batch(preset, hardware)
    budget = nb.predict_memory(preset, plan, hardware)
    return nb.launch(
        preset, plan, budget, hardware=hardware, run_dir=folder, fresh=fresh, owner_pid=os.getpid()
    )


def finish(run: Run) -> dict[str, Any]:
    """Follow a run to its end and return its result."""
    return nb.follow(run, stream=io.StringIO(), timeout_s=240).data


def wait_for_step(run: Run, step: int, *, limit_s: float = 120) -> None:
    """Return when rank 0 has told of this optimizer step in the latest launch."""
    path = run.events_path(0)
    offset, end = run.offset(path), time.monotonic() + limit_s
    while time.monotonic() < end:
        events, offset = tail(path, offset)
        if any(e["type"] == "step" and e["step"] >= step for e in events):
            return
        assert not any(e["type"] == "error" for e in events), events
        time.sleep(0.02)
    raise AssertionError(f"step {step} was not reached: {run.log_tail()}")


def kill_rank(run: Run, rank: int = 0) -> None:
    """SIGKILL one worker process and wait until the run has gone down with it."""
    starts = [
        json.loads(line)
        for line in run.events_path(rank).read_text().splitlines()
        if '"start"' in line
    ]
    os.kill(starts[-1]["pid"], signal.SIGKILL)
    end = time.monotonic() + 60
    while run.status == "running":
        assert time.monotonic() < end, "the run outlived its killed rank"
        time.sleep(0.05)


def last_weights(run: Run) -> bytes:
    """Return the bytes of the newest checkpoint's weights."""
    index = json.loads((run.checkpoints_path / "index.json").read_text())
    return (run.checkpoints_path / index["last"] / "model.safetensors").read_bytes()


def last_optimizer(run: Run) -> dict[str, Any]:
    """Return the newest checkpoint's optimizer state."""
    import torch

    index = json.loads((run.checkpoints_path / "index.json").read_text())
    path = run.checkpoints_path / index["last"] / "optimizer.pt"
    return torch.load(path, weights_only=True)
