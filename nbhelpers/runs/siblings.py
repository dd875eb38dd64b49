"""A run that ended early and is the same experiment, with its global batch split otherwise.

Settings decide a run's id, so a run that died of memory and is launched again with another
micro-batch is another run. What it had learned still serves: the rows of every optimizer step
depend on the global batch alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbhelpers.errors import DataError
from nbhelpers.runs.run import Run

# Settings that say how a step is computed, not what is learned; out-of-memory errors advise them.
SPLIT = ("per_device_train_batch_size", "num_gpus", "allow_uneven_split")
SPLIT += ("per_device_eval_batch_size", "gradient_checkpointing")
ENDED = ("stopped", "failed", "dead")


def newest_step(run: Run) -> int:
    """Return the optimizer step of a run's newest checkpoint; 0 where it has none."""
    names = (file.parent.name for file in run.checkpoints_path.glob("step-*/manifest.json"))
    return max((int(name[5:]) for name in names if name[5:].isdigit()), default=0)


def find_sibling(run: Run, record: Mapping[str, Any]) -> tuple[Run, str] | None:
    """Return the run that got furthest of those like this one but for the split, and what differs.

    Args:
        run: The run that is to start; its own checkpoints count, so only one that got further is
            returned.
        record: What its `run.json` will hold.
    """
    furthest, best = newest_step(run), None
    kind = run.id.rpartition("-")[0]  # job and model: the rest of an id is its hash
    for folder in run.path.parent.glob(f"{kind}-*/checkpoints"):
        other = Run(folder.parent)
        if (step := newest_step(other)) <= furthest:
            continue
        with contextlib.suppress(DataError):
            there = other.record or {}
            changes = _changes(there, record) if other.id == there.get("run_id") else ""
            if changes and other.status in ENDED:
                furthest, best = step, (other, changes)
    return best


def _changes(other: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """Say which settings of the split differ; nothing where others do, or the data or the job."""
    if any(
        other.get(key) != record.get(key)
        for key in ("job", "mode", "checkpoint", "data_fingerprint_hint")
    ):
        return ""
    there, here = ((facts.get("preset") or {}).get("settings") or {} for facts in (other, record))
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    if not set(names) <= set(SPLIT):
        return ""
    return ", ".join(f"{name} {there.get(name)} -> {here.get(name)}" for name in names)


def take_checkpoints(sibling: Run, run: Run) -> None:
    """Give a run the checkpoints of another; files that one disk can share take no room twice."""
    shutil.copytree(
        sibling.checkpoints_path,
        run.checkpoints_path,
        ignore=shutil.ignore_patterns("*.part"),
        copy_function=_link,
        dirs_exist_ok=True,
    )


def _link(source: str, target: str) -> None:
    """Checkpoints are never written in place, so that a second name of a file is safe."""
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without links
        shutil.copyfile(source, target)
