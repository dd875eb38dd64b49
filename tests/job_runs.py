"""Runs of the real jobs in their smallest form: launched, or in this process as a worker does."""

from __future__ import annotations

import functools
import io
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbhelpers as nb
from nbhelpers.data.samples.styles import load_style_rows
from nbhelpers.jobs.checkpoint import read_index
from nbhelpers.runs.events import EventWriter, tail
from nbhelpers.runs.run import Run, write_json
from nbhelpers.runs.starting import run_record, write_record
from tests.ranks import in_ranks

SMALL = {"pretrain_steps": 0, "epochs": 2, "logging_steps": 1, "save_steps": 1}
SMALL |= {"save_total_limit": 3, "bootstrap_samples": 100}
TINY: dict[str, dict[str, Any]] = {
    "clones": SMALL
    | {
        "max_train_samples": 40,
        "max_eval_pairs": 40,
        "seq_len": 48,
        "global_batch_size": 8,
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 8,
        "dropout": 0.1,
        "floors": False,
    },
    "detector": SMALL
    | {
        "max_train_samples": 80,
        "seq_len": 48,
        "global_batch_size": 32,
        "per_device_train_batch_size": 16,
        "floors": False,
    },
    "finetune": SMALL
    | {
        "max_train_samples": 20,
        "valid_samples": 6,
        "evaluate": "text",
        "eval_samples": 5,
        "global_batch_size": 8,
        "per_device_train_batch_size": 4,
        "lora_r": 4,
        "max_new_tokens": 12,
    },
}
SPLITS = ("train", "valid", "test")
STEPS = {"clones": 10, "detector": 6, "finetune": 6}  # ceil(rows / global batch) twice


_SAMPLES = tempfile.TemporaryDirectory(prefix="nbhelpers-samples-")


@functools.cache
def few_programs() -> str:
    """Return the file of a part of the detector's sample: the audit reads all rows of a run."""
    rows = load_style_rows()
    tasks = {split: sorted({r["task"] for r in rows if r["split"] == split}) for split in SPLITS}
    chosen = {*tasks["train"][::4], *tasks["valid"][::2], *tasks["test"][::2]}
    path = Path(_SAMPLES.name) / "programs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if row["task"] in chosen))
    return str(path)


def _parts(job: str, **changes: Any) -> dict[str, Any]:
    if job == "detector":
        changes = {"data": few_programs(), "on_failed_audit": "go_on"} | changes
    hardware = nb.detect_hardware()
    preset = nb.load_preset(job, "smoke", hardware=hardware, overrides=TINY[job] | changes)
    return {"preset": preset, "plan": nb.plan_batch(preset, hardware), "hardware": hardware}


def start(
    job: str, folder: Path, *, fresh: bool = False, resume: bool | None = None, **changes: Any
) -> Run:
    """Launch the smallest run with these overrides."""
    parts = _parts(job, **changes)
    budget = nb.predict_memory(*parts.values())
    options = {"run_dir": folder, "fresh": fresh, "resume": resume, "owner_pid": os.getpid()}
    return nb.launch(**parts, budget=budget, **options)


def prepare(
    job: str, folder: Path, *, mode: str = "train", checkpoint: Path | None = None, **changes: Any
) -> Run:
    """Return the folder of a run that nothing works on yet."""
    path = str(checkpoint) if checkpoint else None
    record = run_record(**_parts(job, **changes), budget=None, mode=mode, checkpoint=path)
    run = Run(folder / record["run_id"])
    folder.mkdir(exist_ok=True)
    write_record(run, record)
    return run


def work_here(run: Run, wants_stop: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Do the job of a run folder in this process, as a worker does, and return its result."""
    from nbhelpers.jobs.worker import work

    with EventWriter(run.path, 0) as writer:
        work(run, writer, wants_stop)
    return result(run)


def work_in_ranks(run: Run) -> dict[str, Any]:
    """Do the job of a run folder in as many processes as were planned."""
    from nbhelpers.jobs.worker import work

    def work_as_rank() -> None:
        with EventWriter(run.path, int(os.environ["RANK"])) as writer:
            work(run, writer, lambda: False)

    in_ranks(run.read_json()["plan"]["world_size"], work_as_rank)
    return result(run)


def finish(run: Run) -> dict[str, Any]:
    """Follow a run to its end and return its result."""
    return nb.follow(run, stream=io.StringIO(), timeout_s=600).data


def result(run: Run) -> dict[str, Any]:
    """Return what the run has written at its end."""
    return json.loads(run.result_path.read_text())


def events(run: Run, kind: str) -> list[dict[str, Any]]:
    """Return the events of one kind, of all launches."""
    return [event for event in run.events() if event["type"] == kind]


def wait_for_step(run: Run, step: int, *, limit_s: float = 300) -> None:
    """Return when rank 0 has told of this optimizer step in the latest launch."""
    path = run.path / "events-rank0.jsonl"
    offset, end = run.offset(path), time.monotonic() + limit_s
    while time.monotonic() < end:
        lines, offset = tail(path, offset)
        if any(e["type"] == "step" and e["step"] >= step for e in lines):
            return
        assert not any(e["type"] == "error" for e in lines), lines
        time.sleep(0.02)
    raise AssertionError(f"step {step} was not reached: {run.log_tail()}")


def kill_rank(run: Run, rank: int = 0) -> None:
    """SIGKILL one worker process and wait until the run has gone down with it."""
    lines = (run.path / f"events-rank{rank}.jsonl").read_text().splitlines()
    starts = [json.loads(line) for line in lines if '"start"' in line]
    os.kill(starts[-1]["pid"], signal.SIGKILL)
    end = time.monotonic() + 300
    while run.status == "running":
        assert time.monotonic() < end, "the run outlived its killed rank"
        time.sleep(0.05)


def stop_at(run: Run, step: int) -> Callable[[], bool]:
    """Ask for a stop while this optimizer step is made."""
    before = len(events(run, "step"))

    def wants_stop() -> bool:
        steps = events(run, "step")[before:]
        return bool(steps) and steps[-1]["step"] >= step - 1

    return wants_stop


def last_checkpoint(run: Run) -> Path:
    """Return the folder of the newest checkpoint."""
    return run.checkpoints_path / read_index(run.checkpoints_path)["last"]


def learned(run: Run) -> dict[str, Any]:
    """Return what a run has learned and written, bit for bit: weights, moments, answers."""
    import torch

    folder = last_checkpoint(run)
    optimizer = torch.load(folder / "optimizer.pt", weights_only=True)
    moments = {
        (number, key): value.numpy().tobytes()
        for number, state in optimizer["state"].items()
        for key, value in state.items()
    }
    written = [*folder.glob("*.safetensors"), *run.path.glob("*.jsonl"), *run.path.glob("*.txt")]
    files = {p.name: p.read_bytes() for p in written if not p.name.startswith("events")}
    assert any(name.endswith(".safetensors") for name in files)
    return {"step": folder.name, "moments": moments, "groups": optimizer["param_groups"]} | files


def change_record(run: Run, **settings: Any) -> None:
    """Write settings into the record of a run that the kernel side would have refused."""
    record = json.loads(run.record_path.read_text())
    record["preset"]["settings"] |= settings
    write_json(run.record_path, record)
