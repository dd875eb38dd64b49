"""`nbhelpers budget`: what a run needs, does it fit; and how far earlier predictions were off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nbhelpers.cli.options import (
    Currency,
    GpuCount,
    GpuKey,
    GpuMemory,
    MaxHours,
    Overrides,
    Prepared,
    PresetName,
    Price,
    Quick,
    budget_text,
    error_text,
    prepare,
    table,
    typed_path,
    warn,
)
from nbhelpers.errors import BudgetError, ConfigError

if TYPE_CHECKING:
    from nbhelpers.budget.memory import MemoryBudget
    from nbhelpers.budget.search import BudgetGrid
    from nbhelpers.budget.time import TimeBudget

NOT_KNOWN = 10  # exit code: nobody can say whether it fits
PICTURES = (".png", ".svg", ".pdf")


def _picture(text: str | Path) -> Path:
    """Return a path that a figure can be drawn into.

    Raises:
        ConfigError: Its ending is no picture's, or its folder is missing.
    """
    path = typed_path(text)
    if path.suffix.lower() not in PICTURES:
        fix = f"end its name in {', '.join(PICTURES[:-1])} or {PICTURES[-1]}"
        raise ConfigError(f"--plot {text} names no picture.", fix=fix)
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot {text}: its folder does not exist.", fix="make it first")
    return path


Runs = Annotated[bool, typer.Option("--runs", help="With --history: every run, no summary.")]
Plot = Annotated[
    Path | None,
    typer.Option(parser=_picture, help="With --history: draw the log into this .png file."),
]


def budget(
    name: Annotated[
        str, typer.Argument(metavar="[JOB]", help="The job: clones, finetune or detector.")
    ] = "",
    job: Annotated[str, typer.Option(help="The same, as an option.")] = "",
    preset: PresetName = "auto",
    gpu: GpuKey = None,
    gpu_memory: GpuMemory = None,
    count: GpuCount = 1,
    override: Overrides = None,
    method: Annotated[str, typer.Option(help="Of a fine-tuning: lora, qlora or base.")] = "",
    exact: Annotated[
        bool, typer.Option("--exact", help="Simulate the step now; needs torch, takes seconds.")
    ] = False,
    grid: Annotated[
        bool, typer.Option("--grid", help="Also the verdict of each batch and length.")
    ] = False,
    max_hours: MaxHours = None,
    price: Price = None,
    currency: Currency = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    quick: Quick = False,
    history: Annotated[
        bool, typer.Option("--history", help="Predicted and measured memory of earlier runs.")
    ] = False,
    runs: Runs = False,
    plot: Plot = None,
) -> None:
    """Predict memory by cause, with its verdict and what would help, then minutes and cost.

    Exit codes: 0 fits or is tight (with a warning), 8 does not fit, 10 cannot be said.
    """
    if history and (as_json or exact or grid):
        text = "--history shows earlier runs; --json, --exact and --grid are for a new one."
        raise ConfigError(text, fix="leave one of them out")
    if (runs or plot is not None) and not history:
        raise ConfigError("--runs and --plot show earlier runs.", fix="add --history")
    if history:
        return show_history(runs=runs, plot=plot)
    from nbhelpers.budget.time import predict_time
    from nbhelpers.presets.jobs import JOBS

    if name and job and name != job:
        raise ConfigError(f"Two jobs are named: {name} and {job}.", fix="name one of them")
    if not (chosen := name or job):
        text = "The job is missing: memory and time are those of one job."
        raise ConfigError(text, fix=f"write one of: nbhelpers budget {', '.join(JOBS)}")
    settings = _method(method, override)
    where = {"gpu": gpu, "gpu_memory": gpu_memory, "count": count}
    asked = prepare(chosen, preset, override, settings=settings, quick=quick, **where)
    memory, cells = _predicted(asked, exact=exact, grid=grid)
    wishes = {"max_hours": max_hours, "price_per_hour": price, "currency": currency}
    time = predict_time(asked.preset, asked.plan, asked.hardware, run_dir="runs", **wishes)
    if as_json:
        typer.echo(json.dumps(_plain(asked, memory, cells, time), indent=2))
    else:
        typer.echo(_text(asked, memory, cells, time))
    _explain(asked, memory, as_json=as_json)
    if code := exit_code(memory):
        raise typer.Exit(code)


def _method(method: str, override: list[str] | None) -> dict[str, str]:
    """The setting that --method means, unless -o says another one."""
    for pair in override or ():
        key, _, value = pair.partition("=")
        if method and key.strip() == "method" and value != method:
            text = f"Two methods are named: --method {method} and -o method={value}."
            raise ConfigError(text, fix="name one of them")
    return {"method": method} if method else {}


def _predicted(
    asked: Prepared, *, exact: bool, grid: bool
) -> tuple[MemoryBudget, BudgetGrid | None]:
    from nbhelpers.budget.predict import predict_memory, simulate_budget
    from nbhelpers.budget.search import budget_grid

    def report(text: str) -> None:
        warn(f"{text} …")

    def simulated(preset: Any, plan: Any, hardware: Any) -> MemoryBudget:
        return simulate_budget(preset, plan, hardware, with_advice=False, report=report)

    def known(preset: Any, plan: Any, hardware: Any) -> MemoryBudget:
        return predict_memory(preset, plan, hardware, advise=False)

    needs = (asked.preset, asked.plan, asked.hardware)
    memory = simulate_budget(*needs, report=report) if exact else asked.budget
    if not grid:
        return memory, None
    return memory, budget_grid(*needs, predict=simulated if exact else known)


def exit_code(memory: MemoryBudget) -> int:
    """Return 8 for what does not fit, 10 where that cannot be said, else 0."""
    from nbhelpers.budget.memory import DOES_NOT_FIT, UNSURE

    if memory.verdict == DOES_NOT_FIT:
        return BudgetError.exit_code
    return NOT_KNOWN if memory.verdict == UNSURE else 0


def _text(asked: Prepared, memory: MemoryBudget, grid: BudgetGrid | None, time: TimeBudget) -> str:
    from nbhelpers.budget.search import LEGEND
    from nbhelpers.notebook.equal_lines import budget_lines

    preset = (repr(asked.preset), *asked.preset.notes)
    parts = [*preset, repr(asked.plan), budget_text(memory, asked.preset.job)]
    if memory.opaque:
        parts.append(f"Not predicted: {', '.join(memory.opaque)}")
    parts += time.lines()
    if grid is not None:
        parts.append(f"\n{table(grid.rows())}\n{LEGEND}")
    return "\n".join([*parts, "", *budget_lines(asked.preset, asked.plan, asked.hardware)])


def _plain(
    asked: Prepared, memory: MemoryBudget, grid: BudgetGrid | None, time: TimeBudget
) -> dict[str, Any]:
    """Everything as JSON; the time with its sums, its verdict and its cost."""
    from nbhelpers.budget.memory import UNKNOWN

    gpu = asked.hardware.gpu
    sums = {name: getattr(time, name) for name in ("low_s", "expected_s", "high_s")}
    told = memory.to_dict()
    if memory.source == UNKNOWN:  # no sum of nothing
        told["total_bytes"] = None
    cost = dict(zip(("low", "expected", "high"), time.cost, strict=True)) if time.cost else None
    return {
        "job": asked.preset.job,
        "preset": asked.preset.name,
        "gpu": gpu.key or gpu.name if gpu is not None else None,
        "gpu_count": len(asked.hardware.gpus),
        "plan": asked.plan.to_dict(),
        "budget": told,
        "time": time.to_dict() | sums | {"verdict": time.verdict, "cost": cost},
        "grid": [cell.to_dict() for cell in grid.cells] if grid is not None else None,
        "exit_code": exit_code(memory),
    }


def _explain(asked: Prepared, memory: MemoryBudget, *, as_json: bool) -> None:
    """Say on stderr what the exit code means, and whether a simulation would tell more."""
    from nbhelpers.budget.memory import DOES_NOT_FIT, NO_GPU, TIGHT, require_fit
    from nbhelpers.budget.predict import SIMULATION, is_exact

    if memory.source == SIMULATION and not is_exact(memory, asked.preset.job):
        warn("It was simulated with other libraries; with those that are here: add --exact.")
    if memory.verdict == DOES_NOT_FIT and not as_json:
        try:
            require_fit(memory)
        except BudgetError as error:  # its details are the table above
            warn(error_text(BudgetError(error.message, fix=error.fix)))
    elif exit_code(memory) == NOT_KNOWN:
        warn("Warning: it cannot be said whether this fits; see above.")
    elif memory.verdict == NO_GPU:
        warn("No GPU is here: for the verdict of a card, add for instance --gpu t4.")
    elif memory.verdict == TIGHT:
        warn("Warning: tight. It should run, with little room for what was not predicted.")


# ------------------------------------------------------------------------------------------------
# `nbhelpers budget --history`: how far the predictions of memory were off on this machine.


def calibration(runs: Runs = False, plot: Plot = None) -> None:
    """Show predicted beside measured memory of earlier runs (now: budget --history)."""
    show_history(runs=runs, plot=plot)


def show_history(*, runs: bool, plot: Path | None) -> None:
    """Print predicted beside measured memory of earlier runs; nothing is corrected by it."""
    from nbhelpers.budget.prediction_log import log_path, read_log, summary

    lines = read_log()
    if not lines:
        typer.echo(f"The calibration log is empty: every finished run adds a line to {log_path()}")
        return
    rows = summary(lines)
    if runs:
        typer.echo(table([_run_row(line) for line in lines]))
    elif rows:
        typer.echo(table([_group_row(row) for row in rows]))
        typer.echo("Positive: too much was predicted. Budgets are not corrected by this.")
    typer.echo(f"{len(lines)} {'run' if len(lines) == 1 else 'runs'} in {log_path()}")
    if plot is not None:
        _draw(plot, lines)


def _group_row(row: dict[str, object]) -> dict[str, str]:
    heads = {"median": "median_error_percent", "lowest": "lowest_percent"}
    heads |= {"highest": "highest_percent"}
    cells = {name: str(row[name]) for name in ("job", "gpu", "source", "runs")}
    return cells | {head: f"{row[name]:+.1f} %" for head, name in heads.items()}


def _run_row(line: dict[str, object]) -> dict[str, str]:
    cells = {"run": str(line["run_id"]), "gpu": str(line.get("gpu") or line.get("device") or "-")}
    for name in ("predicted", "measured"):
        size = line.get(f"{name}_bytes")
        cells[f"{name} MiB"] = f"{size / 2**20:.1f}" if size else "-"
    error = line.get("error_percent")
    return cells | {"error": "-" if error is None else f"{error:+.1f} %"}


def _draw(path: Path, lines: list[dict[str, object]]) -> None:
    from nbhelpers.reports.figures_budget import calibration_plot

    figure = calibration_plot(lines)
    if figure is None:
        typer.echo("No run has both a prediction and a measurement: nothing is drawn.")
        return
    figure.savefig(path, dpi=110)
    typer.echo(f"Drawn: {path}")
