"""What a report knows: the run folder read once, complete or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nbhelpers.common.files import expanded, is_file, is_folder
from nbhelpers.common.result_files import Budget, Record, Result, Similarity
from nbhelpers.errors import ConfigError
from nbhelpers.presets.jobs import JOBS
from nbhelpers.runs.events import phase_seconds
from nbhelpers.runs.run import Run

SAMPLE = "smoke"


@dataclass(frozen=True, kw_only=True, eq=False)
class RunFacts:
    """The result where there is one, else what the record and the events tell so far.

    Facts are read once and are equal to themselves alone, so that what is computed from them can be
    cached.
    """

    run: Run
    status: str
    result: Result
    saved: Record
    events: list[dict[str, Any]]

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of one type, by time."""
        return [event for event in self.events if event.get("type") == kind]

    @property
    def job(self) -> str:
        """The job of the run."""
        return str(self.result.job or self.saved.job or "")

    @property
    def adapter(self) -> str:
        """The short name of what a fine-tuning trains, such as `r16`; nothing for other jobs."""
        if self.job not in JOBS or not JOBS[self.job].has_adapters:
            return ""
        method, rank = self.result.settings.method, self.result.settings.lora_r
        planned = {"lora": f"r{rank}", "qlora": f"qlora-r{rank}"}.get(str(method), method)
        return str(self.result.adapter.name or planned or "")

    @property
    def budget(self) -> Budget:
        """The budget before the run; none for an evaluation, whose budget is that of training."""
        return Budget() if self.is_evaluation else self.result.budget

    @property
    def is_evaluation(self) -> bool:
        """Whether the run scored a checkpoint and trained nothing."""
        return self.result.mode == "evaluate"

    @property
    def is_sample(self) -> bool:
        """Whether the data is the sample that comes with this project."""
        return SAMPLE in (self.result.data.source, self.result.settings.data)

    @property
    def is_complete(self) -> bool:
        """Whether there is a result to report on."""
        return bool(self.result.scores) or self.result.similarity != Similarity()


def read_facts(run_or_result: Any) -> RunFacts:
    """Read a run's folder, given as a path, a run or a result.

    Raises:
        ConfigError: There is no such folder, or it holds nothing of a run.
        DataError: Its run.json or result.json is damaged; names the field.
    """
    path = expanded(getattr(run_or_result, "path", run_or_result), "the run")
    run = Run(path.parent if is_file(path) else path)
    if not is_folder(run.path):
        raise ConfigError(
            f"there is no run folder {run.path}", fix="Give a folder that `nbhelpers runs` lists."
        )
    saved, events = Record.read(run.record_path), run.events()
    result = Result.read(run.result_path)
    data = result.raw if result is not None else getattr(run_or_result, "data", None)
    if not data and saved is None and not events:
        raise ConfigError(
            f"{run.path} holds neither result.json nor run.json nor events",
            fix="Give the folder of one run, not the folder that holds the runs.",
        )
    is_partial = not data
    saved = saved or Record()
    if result is None:
        result = Result.checked(dict(data) if data else _so_far(saved.raw, events), run.path)
    status = run.status
    if status == "new" and (events or not is_partial):  # a folder copied without process.json
        status = "unfinished" if is_partial else "finished"
    return RunFacts(run=run, status=status, result=result, saved=saved, events=events)


def _so_far(record: dict[str, Any], events: list[dict[str, Any]]) -> dict[str, Any]:
    """Build the part of a result that a run without one has left in its record and events."""
    preset = record.get("preset") or {}
    settings = preset.get("settings") or {}
    steps = [event for event in events if event.get("type") == "step"]
    data: dict[str, Any] = {
        "run_id": record.get("run_id"),
        "job": record.get("job"),
        "mode": record.get("mode"),
        "preset": preset.get("name"),
        "settings": preset.get("settings"),
        "seed": settings.get("seed"),
        "plan": record.get("plan"),
        "budget": record.get("budget"),
        "versions": record.get("versions"),
        "git_commit": record.get("git_commit"),
        "command": record.get("command"),
        "model": {"name": settings.get("model")},
        "warnings": [e.get("message", "") for e in events if e.get("type") == "warning"],
        "timing": _phase_times(events),
    }
    if steps:
        data["training"] = _training_so_far(steps, events)
    peak = max((step.get("memory_bytes") or 0 for step in steps), default=0)
    predictions = [e.get("predicted_bytes") for e in events if e.get("type") == "memory"]
    data["memory"] = {
        "predicted_bytes": predictions[-1] if predictions else None,
        "measured_bytes": peak or None,
    }
    return data


def _training_so_far(steps: list[dict[str, Any]], events: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "optimizer_steps": steps[-1].get("step"),
        "total_steps": steps[-1].get("total_steps"),
        "epochs": steps[-1].get("epoch"),
        "first_loss": steps[0].get("loss"),
        "last_loss": steps[-1].get("loss"),
        "skipped_steps": steps[-1].get("skipped_steps"),
        "history": steps,
        "evals": [event for event in events if event.get("type") == "eval"],
    }


def _phase_times(events: list[dict[str, Any]]) -> dict[str, float]:
    """Return seconds by phase of rank 0, over all attempts."""
    times = {f"{name}_s": seconds for name, seconds in phase_seconds(events).items()}
    return times | ({"total_s": sum(times.values())} if times else {})
