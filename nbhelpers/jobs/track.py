"""The experiment tracker of a run, by `track`: rank 0's events are told to it as they are written.

Trackers are Accelerate's. A number has one name with each of them: `train/loss`, `valid/f1`,
`memory/allocated_bytes`, and after the run `final/test/f1`. A run that goes on continues in the
tracker, where each step is told once; one that is stopped or fails ends there as failed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import get_available_trackers

from nbhelpers.common.files import is_number
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.secrets import TRACKER_KEYS, share_secret
from nbhelpers.presets.jobs import JOBS
from nbhelpers.runs.events import Event, EventWriter, read_events
from nbhelpers.runs.run import Run, RunResult

PROJECT = "nbhelpers"
NOT_TOLD = {"t", "rank", "step", "total_steps", "memory_bytes"}  # of an optimizer step


def check_tracker(name: str) -> list[str]:
    """Return what is missing for the chosen tracker; Accelerate itself would only warn."""
    if name in {"none", *map(str, get_available_trackers())}:
        return []
    return [f"track={name} needs the package {name}: pip install {name}, or track=none"]


def start_tracker(
    accelerator: Accelerator,
    writer: EventWriter,
    run: Run,
    facts: Mapping[str, Any],
    earlier: Sequence[Event],
) -> None:
    """Start or continue the run in its tracker, and tell it what the writer writes from now on.

    It never asks for a login: without a key Weights & Biases writes into the run folder.

    Args:
        facts: `run.json`.
        earlier: Events of earlier attempts at this run.

    Raises:
        ConfigError: The tracker does not start, for example for a wrong key.
    """
    name, settings = facts["preset"]["settings"]["track"], facts["preset"]["settings"]
    # A run that is started anew has a new event file, and so another id.
    began = read_events(writer.path)[0]["t"]
    options = {"name": facts["run_id"], "resume": "allow", "group": facts["job"]}
    if name == "wandb":
        options |= {"id": f"{facts['run_id']}-{began:.0f}", "job_type": facts["mode"]}
        options["dir"] = str(run.path)
        os.environ.setdefault("WANDB_SILENT", "true")
        if "WANDB_MODE" not in os.environ and not share_secret(TRACKER_KEYS[name]):
            os.environ["WANDB_MODE"] = "offline"
            fix = f"to upload: wandb sync {run.path}/wandb/latest-run"
            text = f"There is no WANDB_API_KEY, so track=wandb writes into the run folder; {fix}"
            writer.write("warning", message=text)
    is_new = name != "tensorboard" or not (run.path / PROJECT).is_dir()
    config = {k: v if is_number(v) or isinstance(v, bool) else str(v) for k, v in settings.items()}
    try:
        accelerator.init_trackers(
            PROJECT,
            config=config if is_new else None,
            init_kwargs={} if name == "tensorboard" else {name: options},
        )
    except Exception as error:
        fix = "check the key and the network, or leave track out"
        fix += ", or WANDB_MODE=offline in the environment" if name == "wandb" else ""
        if isinstance(error, OSError) and error.filename:
            fix = f"see to {error.filename}, where it writes, or leave track out"
        text = f"track={name} does not start: {type(error).__name__}: {error}"
        raise ConfigError(text, fix=fix) from error
    listener = _Listener(accelerator, writer, run, facts["job"])
    # What a killed process had not written is told again; offline each attempt tells the whole run.
    listener.catch_up(earlier, accelerator.trackers[0].run.step if name == "wandb" else math.inf)
    writer.listener = listener


@dataclass(slots=True)
class _Listener:
    """Tells one tracker a run's events; `last`: the last step that it knows, by kind of event."""

    accelerator: Accelerator
    writer: EventWriter
    run: Run
    job: str
    last: dict[str, int] = field(default_factory=lambda: {"step": 0, "eval": 0})
    memory: dict[str, float] = field(default_factory=dict)

    def catch_up(self, earlier: Sequence[Event], first: float) -> None:
        """Tell what earlier attempts told from the step `first` on; the rest it knows."""
        for event in (e for e in earlier if e["type"] in self.last):
            if event["step"] >= first:
                self._tell(event)
            self.last[event["type"]] = max(self.last[event["type"]], event["step"])

    def __call__(self, event: Event) -> None:
        """Tell an event; where the tracker fails, the run goes on without it."""
        try:
            self._tell(event)
        except Exception as error:
            self.writer.listener = None
            self.accelerator.trackers.clear()
            text = f"The tracker failed and is told no more: {type(error).__name__}: {error}"
            self.writer.write("warning", message=text)

    def _tell(self, event: Event) -> None:
        kind = event["type"]
        if kind == "memory":
            self.memory["memory/predicted_bytes"] = event["predicted_bytes"]
        elif kind in self.last and event["step"] > self.last[kind]:
            self.last[kind] = event["step"]
            if kind == "eval":
                numbers = _named(event["split"], event["scores"])
            else:
                numbers = _named("train", {k: v for k, v in event.items() if k not in NOT_TOLD})
                numbers |= self.memory | {"memory/allocated_bytes": event["memory_bytes"]}
            if numbers:
                self.accelerator.log(numbers, step=event["step"])
        elif kind == "end":
            # A tracker that went on at the last step takes no more of that step.
            self.accelerator.log(_final(self.run, self.job), step=self.last["step"] + 1)
            self._finish("finished", 0)
        elif kind in ("stopped", "error"):
            self._finish(f"{kind}: {event['message']}" if kind == "error" else kind, 1)

    def _finish(self, status: str, code: int) -> None:
        """End the run in the tracker; Accelerate knows no failure, and no words for it."""
        self.writer.listener = None
        for tracker in self.accelerator.trackers:
            if tracker.name == "wandb":
                tracker.run.summary["status"] = status
                tracker.run.finish(exit_code=code)
            else:
                if tracker.name == "tensorboard":
                    tracker.writer.add_text("status", status, global_step=self.last["step"])
                tracker.finish()
        self.accelerator.trackers.clear()


def _final(run: Run, job: str) -> dict[str, float]:
    """Return what a tracker is told of a result: every score, memory and time."""
    result = RunResult.from_path(run.path).data
    scores = JOBS[job].scores.available(result)
    named = {name.replace(".", "/"): value for name, value in scores.items()}
    whole = {name: value for name, value in named.items() if f"test/{name}" not in named}
    return (
        _named("final", whole)
        | _named("memory", result.get("memory") or {})
        | _named("time", result.get("timing") or {})
    )


def _named(group: str, values: Mapping[str, Any]) -> dict[str, float]:
    return {f"{group}/{name}": value for name, value in values.items() if is_number(value)}
