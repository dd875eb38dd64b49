"""How a run's progress looks: in a notebook, in a terminal, and in a log.

`Progress` folds events into what is known now; a view shows it. A notebook gets one display that
changes (`runs/live.py`), a terminal one line that is rewritten, a log (papermill, a pipe) a line
now and then.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

from nbhelpers.common.files import is_number
from nbhelpers.common.formatting import duration
from nbhelpers.presets.jobs import CLONES, JOBS
from nbhelpers.runs.events import Event

LOG_EVERY_S = 10.0
LOG_EVERY_SHARE = 0.1
LOSSES = ("classification", "contrastive")
ETA_AFTER_S = 1.0  # a count that has just begun tells no speed
PHASE_TITLES = {"floors": "baselines"}  # as people call them
UNITS = {"pretrain": "steps"}  # what a task of any job counts, by the first word of its name


@dataclass
class Progress:
    """What the events so far tell about a run."""

    job: str = ""
    phase: str = "start"
    task: str = ""  # what the phase is doing: a `progress` event's name
    done: int = 0
    total: int = 0
    loss: float | None = None
    losses: dict[str, float] = field(default_factory=dict)  # the parts of `loss`, by name
    valid_loss: float | None = None
    valid_step: int | None = None  # of `valid_loss`, which stays while training goes on
    skipped_steps: int = 0  # updates that overflow made the scaler leave out
    useful_tokens_per_s: float | None = None
    scores: dict[str, float] = field(default_factory=dict)
    split: str = ""  # which pairs `scores` are of
    gpus: list[dict[str, Any]] = field(default_factory=list)
    memory_bytes: int | None = None
    last_event_t: float | None = None
    expected_s: float | None = None  # of the whole run, as predicted before it
    steps: list[tuple[int, float]] = field(default_factory=list)  # step and training loss
    evals: list[tuple[int, dict[str, float]]] = field(default_factory=list)  # on valid, by step
    _first: tuple[float, int] | None = None  # where the current count began, for the ETA
    _now: float = 0.0
    _began: float | None = None  # the first event

    def update(self, event: Event) -> None:
        """Take one event into account."""
        kind = event["type"]
        if kind != "gpu":  # sent by a thread of its own, so it is no sign of life
            self.last_event_t = event["t"]
            self._began = event["t"] if self._began is None else self._began
        handler = getattr(self, f"_on_{kind}", None)
        if handler is not None and event.get("rank", 0) == 0:
            handler(event)

    def _on_phase(self, event: Event) -> None:
        self.phase, self.task, self.done, self.total = str(event.get("name")), "", 0, 0
        self._first = None

    def _on_progress(self, event: Event) -> None:
        if event.get("name") != self.task:
            self.task, self._first = str(event.get("name", "")), None
        self._count(event, event.get("done"), event.get("total"))

    def _on_step(self, event: Event) -> None:
        if self.task:
            self.task, self._first = "", None
        self._count(event, event.get("step"), event.get("total_steps"))
        self.loss = event.get("loss", self.loss)
        if is_number(event.get("loss")):
            self.steps.append((self.done, event["loss"]))
        reported_losses = {name: event.get(f"{name}_loss") for name in LOSSES}
        self.losses |= {name: value for name, value in reported_losses.items() if value is not None}
        self.useful_tokens_per_s = event.get("useful_tokens_per_s", self.useful_tokens_per_s)
        self.memory_bytes = event.get("memory_bytes") or self.memory_bytes
        self.skipped_steps = int(event.get("skipped_steps") or 0)

    def _on_eval(self, event: Event) -> None:
        reported_scores = event.get("scores") or {}
        self.scores = {name: v for name, v in reported_scores.items() if isinstance(v, int | float)}
        reported_loss = self.scores.get("loss", event.get("loss"))
        if reported_loss is not None:
            self.valid_loss, step = reported_loss, event.get("step")
            self.valid_step = step if type(step) is int and step > 0 else None
        self.split = str(event.get("split") or "")
        if type(event.get("step")) is int and event["step"] >= 0 and self.split == "valid":
            losses = {} if reported_loss is None else {"loss": reported_loss}
            self.evals.append((event["step"], self.scores | losses))

    def _on_gpu(self, event: Event) -> None:
        self.gpus = list(event.get("gpus") or [])

    def _count(self, event: Event, done: Any, total: Any) -> None:
        self.done, self.total, self._now = int(done or 0), int(total or 0), event["t"]
        if self._first is None or self.done < self._first[1]:
            self._first = (event["t"], self.done)

    @property
    def share(self) -> float | None:
        """Done share of the current count, 0 to 1; None when nothing is counted."""
        if self.total:
            return min(self.done / self.total, 1.0)
        return 1.0 if self.phase == "finish" else None

    @property
    def eta_s(self) -> float | None:
        """Seconds to the end of the current count at the speed so far; None while unknown."""
        if self._first is None or self.done <= self._first[1] or not self.total:
            return None
        taken_s = self._now - self._first[0]
        if taken_s < ETA_AFTER_S:
            return None
        speed_s = taken_s / (self.done - self._first[1])
        return max(self.total - self.done, 0) * speed_s

    @property
    def predicted_left_s(self) -> float | None:
        """Seconds to the end of the run as predicted before it, until its training has ended.

        How much of the rest is left, the prediction of the whole does not tell.
        """
        is_known = self.expected_s is not None and self._began is not None
        if (
            not is_known
            or self.phase in ("start", "finish")
            or (self.steps and self.phase != "train")
        ):
            return None
        left_s = self.expected_s - ((self.last_event_t or self._began) - self._began)
        return left_s if self.eta_s is None and not self.total and left_s > 0 else None

    def parts(self) -> list[str]:
        """What is known, in words, most important first."""
        texts = []
        if self.total:
            name = self.task or ("step" if self.phase == "train" else "")
            name = "" if name == self.phase else name  # which stands before it
            units = UNITS | JOBS.get(self.job, CLONES).task_units
            counted = f"{self.done:,}/{self.total:,} {units.get(self.task.split(' ')[0], '')}"
            texts.append(f"{name} {counted.strip()} ({self.share:.0%})".strip())
        elif self.task:
            texts.append(self.task)
        if self.phase == "train" and self.loss is not None:
            parts = ", ".join(f"{name} {value:.4f}" for name, value in self.losses.items())
            texts.append(f"loss {self.loss:.4f}" + (f" ({parts})" if parts else ""))
        if self.phase == "train" and self.valid_loss is not None:
            where = "" if self.valid_step is None else f" (step {self.valid_step:,})"
            texts.append(f"valid loss {self.valid_loss:.4f}{where}")
        if self.phase == "train" and self.useful_tokens_per_s:
            texts.append(f"{self.useful_tokens_per_s:,.0f} useful tokens/s")
        if self.phase == "train" and self.skipped_steps:
            texts.append(f"{self.skipped_steps:,} skipped")
        if self.eta_s is not None and self.done < self.total:
            what = "task" if self.task not in ("", self.phase) else "phase"
            texts.append(f"ETA of this {what} {duration(self.eta_s)}")
        if (left_s := self.predicted_left_s) is not None:
            texts.append(f"about {duration(left_s)} to the end (predicted)")
        if scores_text := self._scores_said():
            texts.append(f"{self.split} {scores_text}".strip())
        return texts + self._device_parts()

    def headline(self, scores: Mapping[str, float]) -> list[tuple[str, str]]:
        """Return the scores that the job is known by, as their short names and as text."""
        job = JOBS.get(self.job, CLONES).scores
        names = dict.fromkeys(name for _, name in job.headline if name in scores)
        return [(job.short(name), job.written(name, scores[name])) for name in names]

    def _scores_said(self) -> str:
        return ", ".join(f"{name} {text}" for name, text in self.headline(self.scores))

    def _device_parts(self) -> list[str]:
        if self.gpus:
            return [_gpu_text(gpu) for gpu in self.gpus]
        if not self.memory_bytes:
            return []
        gib = self.memory_bytes / 2**30
        return [f"memory {gib:.2f} GiB" if gib >= 1 else f"memory {gib * 1024:.1f} MiB"]

    @property
    def title(self) -> str:
        """The phase, as people call it."""
        return PHASE_TITLES.get(self.phase, self.phase)

    def line(self) -> str:
        """All of it on one line."""
        return f"[{self.title}] {' · '.join(self.parts())}".rstrip()


def _gpu_text(gpu: dict[str, Any]) -> str:
    used, share = gpu.get("memory_used_bytes"), gpu.get("utilisation_percent")
    text = f"GPU {gpu.get('index', '?')}"
    text += f" {share:.0f} %" if share is not None else ""
    return text + (f" {used / 2**30:.1f} GiB" if used is not None else "")


def bar(share: float | None, width: int = 20) -> str:
    """A bar of text; empty dots while nothing is counted."""
    filled = round((share or 0.0) * width)
    return "#" * filled + "." * (width - filled)


class LogView:
    """Whole lines only: at each new phase or task, and about every 10 s or 10 %."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._where: tuple[str, str] | None = None
        self._shown: tuple[float, float, str] = (0.0, 0.0, "")  # time, share, line

    def show(self, progress: Progress, *, is_last: bool = False) -> None:
        """Write a line when it is due."""
        line, share, now = progress.line(), progress.share or 0.0, time.monotonic()
        where = (progress.phase, progress.task)
        last_time, last_share, last_line = self._shown
        is_due = where != self._where or share - last_share >= LOG_EVERY_SHARE
        is_due = is_due or now - last_time >= LOG_EVERY_S or is_last
        if is_due and line != last_line:
            self._where, self._shown = where, (now, share, line)
            self.note(line)

    def note(self, text: str) -> None:
        """Write a message."""
        self.stream.write(text + "\n")
        self.stream.flush()

    def close(self) -> None:
        """Nothing to tidy up."""


class TerminalView:
    """One line that is rewritten in place."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self._line = stream, ""

    def show(self, progress: Progress, *, is_last: bool = False) -> None:
        """Rewrite the line."""
        width = max(shutil.get_terminal_size().columns - 1, 20)
        self._draw(f"{bar(progress.share)} {progress.line()}"[:width])

    def note(self, text: str) -> None:
        """Write a message above the line."""
        line = self._line
        self._draw("")
        self.stream.write(text + "\n")
        self._line = ""
        self._draw(line)

    def close(self) -> None:
        """Leave the last line as it is."""
        if self._line:
            self.stream.write("\n")
            self.stream.flush()
            self._line = ""

    def _draw(self, line: str) -> None:
        if line != self._line:
            blank = " " * max(len(self._line) - len(line), 0)
            self.stream.write(f"\r{line}{blank}" + ("\r" if not line else ""))
            self.stream.flush()
            self._line = line
