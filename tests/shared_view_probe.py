"""One rank of two whose views of a shared folder differ.

Rank 1 sees `FOLDER/late`, where what rank 0 wrote to `FOLDER/true` shows up late, or never.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from accelerate import Accelerator
from contexts import make_context

from nbhelpers.errors import JobFailed
from nbhelpers.jobs import checkpoint as ck
from nbhelpers.jobs import training
from nbhelpers.jobs.loop import TrainState

DELAY_S = 0.3


def save(folder: Path, step: int, *, is_best: bool) -> None:
    """Write a checkpoint whose weights are its step."""
    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, float(step))
    ck.save_checkpoint(
        folder,
        step=step,
        model_state=model.state_dict(),
        optimizer_state=torch.optim.SGD(model.parameters(), lr=0.1).state_dict(),
        state={"train": TrainState(step=step).to_dict(), "scaler": None},
        extra=lambda path: None,
        is_best=is_best,
        keep=9,
    )


def show_late(true: Path, late: Path) -> None:
    """Let the newest checkpoint appear in rank 1's view: first its folder, then its files."""
    newest = ck.list_checkpoints(true)[-1]
    time.sleep(DELAY_S)
    (late / newest.name).mkdir(parents=True)
    shutil.copy2(newest / ck.MANIFEST, late / newest.name)
    time.sleep(DELAY_S / 2)
    shutil.copytree(newest, late / newest.name, dirs_exist_ok=True)


def main(folder: Path, what: str) -> None:
    """Choose a checkpoint together with the other rank, and write what this rank got."""
    folder.mkdir(exist_ok=True)
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    true, late = folder / "true", folder / "late"
    if rank == 0 and what != "start":
        save(true, 1, is_best=True)
        shutil.copytree(true, late)
        save(true, 2, is_best=True)
    accelerator.wait_for_everyone()
    if rank == 0 and what in ("resume", "best"):
        threading.Thread(target=show_late, args=(true, late)).start()
    if what == "never":  # the last one
        ck.SEEN_WITHIN_S = 0.5
    run = SimpleNamespace(checkpoints_path=late if rank else true)
    context = make_context(run=run, accelerator=accelerator, rank=rank)
    model = torch.nn.Linear(1, 1)
    began, error, step = time.monotonic(), "", None
    try:
        if what == "best":
            training._load_best(context, model)
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            step = training._resume(context, model, optimizer)[0].step
    except JobFailed as failed:
        error = str(failed)
    facts = {"step": step, "weight": float(model.weight), "error": error}
    facts["seconds"] = time.monotonic() - began
    (folder / f"rank{rank}.json").write_text(json.dumps(facts))
