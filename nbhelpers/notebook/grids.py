"""What fits on a GPU: the budgets of many micro-batches and lengths, for every job and method.

The global batch of the preset stays in every cell, so each one is the same experiment; another
length is another experiment, and the grid shows what it would need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from nbhelpers.budget.predict import predict_memory
from nbhelpers.budget.prediction_log import read_log
from nbhelpers.budget.search import BudgetGrid, budget_grid, even_sizes
from nbhelpers.hardware.detection import Hardware
from nbhelpers.notebook.choice import most_tokens
from nbhelpers.plan import plan_batch
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.loading import load_preset
from nbhelpers.presets.preset import Preset

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

MOST_ROWS, MOST_COLUMNS = 6, 5
GRID_LENGTHS = (128, 256, 512, 1024, 2048)
# Job, and what is varied beside batch and length: the grids of the budget notebook.
METHODS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("finetune", {"method": "lora"}),
    ("finetune", {"method": "qlora"}),
    ("clones", {}),
    ("clones", {"model": "graphcodebert"}),
    ("detector", {}),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WhatFits:
    """The grids of one GPU; shows itself as a figure, and as a table of text."""

    gpu: str
    grids: tuple[BudgetGrid, ...]

    def __repr__(self) -> str:
        return "\n".join([f"What fits on {self.gpu}:", *map(repr, self.grids)])

    def figure(self) -> Figure | None:
        """Return the figure of all grids."""
        from nbhelpers.reports.figures_budget import verdict_grid

        return verdict_grid(self.grids)

    def _ipython_display_(self) -> None:
        show(self.figure(), repr(self))


def show(figure: Figure | None, text: str) -> None:
    """Display a figure as PNG with the same content as text, or the text alone."""
    from IPython.display import display

    from nbhelpers.reports.figures import png

    if figure is None:
        print(text)  # noqa: T201 - what a cell shows where nothing can be drawn
        return
    display({"image/png": png(figure), "text/plain": text}, raw=True)


def what_fits(
    hardware: Hardware, methods: Iterable[tuple[str, Mapping[str, Any]]] = METHODS
) -> WhatFits:
    """Return the grids of every job and method on one GPU of this hardware.

    Args:
        hardware: Found or planned.
        methods: Pairs of a job and settings that differ from the preset for this GPU.
    """
    name = hardware.gpu.name if hardware.gpu else "this machine, without a GPU"
    job_grids = [fit_grid(job, hardware, changes) for job, changes in methods]
    return WhatFits(gpu=name, grids=tuple(job_grids))


def fit_grid(job: str, hardware: Hardware, changes: Mapping[str, Any] | None = None) -> BudgetGrid:
    """Return the budgets of a job's preset for this hardware over micro-batches and lengths.

    Raises:
        ConfigError: A change is none of the job's settings.
    """
    preset = load_preset(job, "auto", hardware=hardware, overrides=dict(changes or {}))
    plan, most = plan_batch(preset, hardware), most_tokens(preset)
    return budget_grid(
        preset,
        plan,
        hardware,
        predict=partial(predict_memory, advise=False),
        batches=_thinned(even_sizes(plan), MOST_ROWS),
        lengths=_thinned([n for n in GRID_LENGTHS if n <= most], MOST_COLUMNS),
        title=_title(preset),
    )


def _thinned(values: Iterable[int], most: int) -> tuple[int, ...]:
    """At most so many values, the first and the last among them.

    >>> _thinned((1, 2, 3, 4, 6, 8, 12, 24), 4)
    (1, 3, 8, 24)
    """
    numbers = list(values)
    if len(numbers) <= most:
        return tuple(numbers)
    return tuple(numbers[round(i * (len(numbers) - 1) / (most - 1))] for i in range(most))


def _title(preset: Preset) -> str:
    s = preset.settings
    model = JOBS[preset.job].models.short_name(s.model) or s.model
    method = f", {s.adapter}" if JOBS[preset.job].has_adapters else ""
    saving = ", checkpointing" if s.gradient_checkpointing else ""
    return f"{preset.job}: {model}{method}{saving} (batch {s.global_batch_size})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PastPredictions:
    """Predicted beside measured peaks of the runs that ended on this machine."""

    rows: tuple[Mapping[str, Any], ...]

    def __repr__(self) -> str:
        errors = [row["error_percent"] for row in self.rows if row.get("error_percent") is not None]
        if not errors:
            return "No finished run has told its memory yet: train something, then look again."
        within = sum(abs(error) <= 1 for error in errors)
        return (
            f"{len(errors)} finished runs: {within} predicted within 1 %, "
            f"the errors lie between {min(errors):+.1f} and {max(errors):+.1f} %"
        )

    def figure(self) -> Figure | None:
        """Return the figure; None without a finished run."""
        from nbhelpers.reports.figures_budget import calibration_plot

        return calibration_plot(self.rows)

    def _ipython_display_(self) -> None:
        show(self.figure(), repr(self))


def past_predictions(path: Path | None = None) -> PastPredictions:
    """Return what the calibration log says; None: the log of this machine."""
    return PastPredictions(rows=tuple(read_log(path)))
