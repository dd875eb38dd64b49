"""What a notebook is about to do, before it does it: quick or whole, its minutes, its download."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nbhelpers.budget.disk import download_bytes
from nbhelpers.budget.time import TimeBudget, predict_time, pretraining_words
from nbhelpers.common.formatting import gb
from nbhelpers.hardware.detection import Hardware
from nbhelpers.notebook.choice import Answer, Choice, resolve
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.preset import QUICK_CHOICES, quick_reason
from nbhelpers.runs.study_plan import plan_study


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Whether a first result comes first, how long it takes, and the line for the full run.

    `changes`: what makes the experiment small; `full`: the time of the full run, if another.
    `pretraining`: what comes on top of the time, as the end of a sentence. `download`: bytes of the
    weights, 0 where there is nothing to load.
    """

    title: str
    changes: Mapping[str, Any]
    time: TimeBudget
    full: TimeBudget | None
    pretraining: str
    download: int

    def lines(self) -> list[str]:
        """Return what there is to say, a line each."""
        changes = ", ".join(f"{name} = {value}" for name, value in self.changes.items())
        texts = [
            f"{self.title}{changes and f': {changes}'}.",
            f"From Launch to the report: {self.time.words()}{self.pretraining}.",
        ]
        if self.download:
            texts.append(f"Before it the weights are downloaded once: {gb(self.download)}.")
        if self.full is not None:
            texts.append(f'The full run: quick = "off" under Parameters, {self.full.words()}.')
        return texts

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        first, *rest = map(html.escape, self.lines())
        return "<br>".join([f"<b>{first}</b>", *rest])


def expect(
    job: str,
    hardware: Hardware,
    *,
    quick: str = "auto",
    preset: str = "auto",
    adapters: str = "",
    overrides: Mapping[str, Any] | None = None,
) -> Expected:
    """Return what a notebook with these parameters is about to do on this hardware.

    Args:
        job: Such as `clones`.
        hardware: Where it will run.
        quick: As in `load_preset`.
        preset: A name, a .yaml file or `auto`.
        adapters: Of a fine-tuning, names with commas; "": the preset's own.
        overrides: Settings that the parameters change.

    Raises:
        ConfigError: A parameter is wrong.
    """
    choice = Choice(
        job=job, preset=preset, adapters=adapters, overrides=dict(overrides or {}), quick=quick
    )
    answer = resolve(choice, hardware)
    is_quick, reason = quick_reason(quick, hardware)
    state = "on" if answer.preset.quick else "off"
    if is_quick and state == "off":
        reason = "there is nothing to make smaller"
    full = resolve(replace(choice, quick=QUICK_CHOICES[-1]), hardware)
    settings = answer.run_preset.settings
    now, whole = _time(answer), _time(full) if answer.preset.quick else None
    if whole is not None and whole.words() == now.words() and now.expected_s is not None:
        whole = None  # the data are smaller than what quick would take
    on_top = pretraining_words(settings)
    return Expected(
        title=f"quick is {state} ({reason})",
        changes=answer.preset.quick,
        time=now,
        full=whole,
        pretraining=on_top and f"; {on_top}",
        download=download_bytes(settings),
    )


def _time(answer: Answer) -> TimeBudget:
    """The time of one run, or of all runs of a study, the model without an adapter included."""
    if (adapters := ",".join(answer.variants)) and JOBS[answer.choice.job].has_adapters:
        return plan_study(answer.preset, answer.hardware, adapters=adapters).time
    return predict_time(answer.preset, answer.plan, answer.hardware)
