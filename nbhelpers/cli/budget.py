"""Commands `budget` and `calibration`: what a run needs, and how far predictions were off."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nbhelpers.cli.flow import Currency, MaxHours, Price
from nbhelpers.cli.options import table, typed_path
from nbhelpers.errors import BudgetError, ConfigError

if TYPE_CHECKING:
    from nbhelpers.budget.memory import MemoryBudget
    from nbhelpers.budget.search import BudgetGrid
    from nbhelpers.budget.time import TimeBudget
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.plan import BatchPlan
    from nbhelpers.presets.preset import Preset


# ------------------------------------------------------------------------------------------------
# `nbhelpers budget --history`: how far the predictions of memory were off on this machine.


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


def calibration(runs: Runs = False, plot: Plot = None) -> None:
    """Show predicted beside measured memory of earlier runs (now: budget --history)."""
    show_history(runs=runs, plot=plot)


def show_history(*, runs: bool, plot: Path | None) -> None:
    """Print predicted beside measured memory of earlier runs; nothing is corrected by it."""
    from nbhelpers.budget.prediction_log import log_path, plot_data, read_log, summary

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
        _draw(plot, plot_data(lines))


def _group_row(row: dict[str, object]) -> dict[str, str]:
    names = {"median_error_percent": "median", "lowest_percent": "lowest"}
    names |= {"highest_percent": "highest"}
    cells = {name: str(row[name]) for name in ("job", "gpu", "source", "runs")}
    return cells | {head: f"{row[name]:+.1f} %" for name, head in names.items()}


def _run_row(line: dict[str, object]) -> dict[str, str]:
    cells = {"run": str(line["run_id"]), "gpu": str(line.get("gpu") or line.get("device") or "-")}
    for name in ("predicted", "measured"):
        size = line.get(f"{name}_bytes")
        cells[f"{name} MiB"] = f"{size / 2**20:.1f}" if size else "-"
    error = line.get("error_percent")
    return cells | {"error": "-" if error is None else f"{error:+.1f} %"}


def _draw(path: Path, data: dict[str, list[object]]) -> None:
    from nbhelpers.reports.figures import calibration_figure

    figure = calibration_figure(data)
    if figure is None:
        typer.echo("No run has both a prediction and a measurement: nothing is drawn.")
        return
    figure.savefig(path, dpi=110)
    typer.echo(f"Drawn: {path}")


# ------------------------------------------------------------------------------------------------
# `nbhelpers budget`: what a run needs on a card, in memory, minutes and money; does it fit?


NOT_KNOWN = 10  # exit code: nobody can say whether it fits


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the options of the command mean."""

    hardware: Hardware
    preset: Preset
    plan: BatchPlan


def budget(
    name: Annotated[
        str, typer.Argument(metavar="[JOB]", help="The job: clones, finetune or detector.")
    ] = "",
    job: Annotated[str, typer.Option(help="The same, as an option.")] = "",
    preset: Annotated[
        str, typer.Option("--preset", help="A preset's name, a .yaml file or auto.")
    ] = "auto",
    gpu: Annotated[str, typer.Option("--gpu", help="Plan for this GPU, not what is here.")] = "",
    count: Annotated[int, typer.Option("--count", min=1, help="How many such GPUs.")] = 1,
    override: Annotated[
        list[str] | None,
        typer.Option("--override", "-o", help="A setting, as name=value; repeatable."),
    ] = None,
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
    history: Annotated[
        bool, typer.Option("--history", help="Predicted and measured memory of earlier runs.")
    ] = False,
    runs: Runs = False,
    plot: Plot = None,
) -> None:
    """Predict memory by cause, with its verdict and what would help, then minutes and cost.

    Exit codes: 0 fits or is tight (with a warning), 8 does not fit, 10 cannot be said.
    """
    _check_history(history, of_history=runs or plot is not None, of_new=as_json or exact or grid)
    if history:
        return show_history(runs=runs, plot=plot)
    from nbhelpers.budget.time import predict_time

    asked = _asked(name, job, preset, gpu=gpu, count=count, override=override, method=method)
    memory_budget, table = _predicted(asked, exact=exact, grid=grid)
    wishes = {"max_hours": max_hours, "price_per_hour": price, "currency": currency}
    time = predict_time(asked.preset, asked.plan, asked.hardware, run_dir="runs", **wishes)
    if as_json:
        typer.echo(json.dumps(_plain(asked, memory_budget, table, time), indent=2))
    else:
        typer.echo(_text(asked, memory_budget, table, time))
    code = exit_code(memory_budget)
    if not exact:
        _refresh(asked, memory_budget)
    _tell(memory_budget, as_json=as_json)
    if code:
        raise typer.Exit(code)


def _check_history(history: bool, *, of_history: bool, of_new: bool) -> None:
    if history and of_new:
        text = "--history shows earlier runs; --json, --exact and --grid are for a new one."
        raise ConfigError(text, fix="leave one of them out")
    if of_history and not history:
        raise ConfigError("--runs and --plot show earlier runs.", fix="add --history")


def _asked(
    name: str,
    job: str,
    preset: str,
    *,
    gpu: str,
    count: int,
    override: list[str] | None,
    method: str,
) -> _Asked:
    from nbhelpers.hardware.detection import detect_hardware, plan_hardware
    from nbhelpers.plan import plan_batch
    from nbhelpers.presets.loading import load_preset
    from nbhelpers.presets.parameters import parse_overrides

    if name and job and name != job:
        raise ConfigError(f"Two jobs are named: {name} and {job}.", fix="name one of them")
    if count != 1 and not gpu:
        raise ConfigError("--count needs --gpu.", fix="add for instance --gpu t4")
    chosen = name or job or "clones"
    settings = parse_overrides(chosen, override or [])
    if method and settings.get("method", method) != method:
        text = f"Two methods are named: --method {method} and -o method={settings['method']}."
        raise ConfigError(text, fix="name one of them")
    settings |= {"method": method} if method else {}
    hardware = plan_hardware(gpu, count) if gpu else detect_hardware()
    loaded = load_preset(chosen, preset, hardware=hardware, overrides=settings)
    return _Asked(hardware, loaded, plan_batch(loaded, hardware))


def _predicted(asked: _Asked, *, exact: bool, grid: bool) -> tuple[MemoryBudget, BudgetGrid | None]:
    from nbhelpers.budget.predict import predict_memory, simulate_budget
    from nbhelpers.budget.search import budget_grid

    def report(text: str) -> None:
        typer.echo(f"{text} …", err=True)

    def simulated(preset: Any, plan: Any, hardware: Any) -> MemoryBudget:
        return simulate_budget(preset, plan, hardware, with_advice=False, report=report)

    if exact:
        memory_budget = simulate_budget(asked.preset, asked.plan, asked.hardware, report=report)
    else:
        memory_budget = predict_memory(asked.preset, asked.plan, asked.hardware)
    if not grid:
        return memory_budget, None
    predict: Callable[..., MemoryBudget] = simulated if exact else predict_memory
    return memory_budget, budget_grid(asked.preset, asked.plan, asked.hardware, predict=predict)


def exit_code(memory_budget: MemoryBudget) -> int:
    """Return 8 for what does not fit, 10 where that cannot be said, else 0."""
    from nbhelpers.budget.memory import DOES_NOT_FIT, UNKNOWN, UNSURE

    if memory_budget.verdict == DOES_NOT_FIT:
        return BudgetError.exit_code
    return NOT_KNOWN if memory_budget.verdict == UNSURE or memory_budget.source == UNKNOWN else 0


def _text(
    asked: _Asked, memory_budget: MemoryBudget, grid: BudgetGrid | None, time: TimeBudget
) -> str:
    from nbhelpers.budget.predict import source_words
    from nbhelpers.budget.search import LEGEND
    from nbhelpers.cli.options import budget_text, table

    parts = [repr(asked.preset), repr(asked.plan), budget_text(memory_budget)]
    parts.append(f"From: {source_words(memory_budget, asked.preset.job)}")
    if memory_budget.opaque:
        parts.append(f"Not predicted: {', '.join(memory_budget.opaque)}")
    parts += time.lines()
    if grid is not None:
        parts.append(f"\n{table(grid.rows())}\n{LEGEND}")
    return "\n".join([*parts, "", *_same(asked)])


def _same(asked: _Asked) -> list[str]:
    """The lines that mean the same in Python, and start it by papermill."""
    from nbhelpers.notebook.choice import Choice, Resolved
    from nbhelpers.notebook.equal_lines import papermill_lines, python_lines
    from nbhelpers.presets.preset import OVERRIDES

    preset, gpu = asked.preset, asked.hardware.gpu if asked.hardware.is_planned else None
    changed = [n for n, where in preset.provenance.items() if where.startswith(OVERRIDES)]
    values = preset.settings.model_dump(mode="json")

    def resolved(names: list[str]) -> Resolved:
        choice = Choice(
            job=preset.job,
            preset=preset.name,
            gpu=gpu.key or "" if gpu else "",
            count=len(asked.hardware.gpus) or 1,
            overrides={name: values[name] for name in names},
        )
        return Resolved(
            choice=choice,
            hardware=asked.hardware,
            preset=preset,
            plan=asked.plan,
            variants={preset.name: preset},
        )

    adapter = ("method", "lora_r")  # of which a notebook makes one parameter, `adapters`
    notebook = papermill_lines(resolved([n for n in changed if n not in adapter]))
    python = f"import nbhelpers as nb\n{python_lines(resolved(changed))}"
    return ["In Python:", python, "By papermill:", notebook]


def _plain(
    asked: _Asked, memory_budget: MemoryBudget, grid: BudgetGrid | None, time: TimeBudget
) -> dict[str, Any]:
    gpu = asked.hardware.gpu
    return {
        "job": asked.preset.job,
        "preset": asked.preset.name,
        "gpu": gpu.key or gpu.name if gpu is not None else None,
        "gpu_count": len(asked.hardware.gpus),
        "plan": asked.plan.to_dict(),
        "budget": memory_budget.to_dict(),
        "time": _time(time),
        "grid": [cell.to_dict() for cell in grid.cells] if grid is not None else None,
        "exit_code": exit_code(memory_budget),
    }


def _time(time: TimeBudget) -> dict[str, Any]:
    """The time with its sums, verdict and cost, which a reader of JSON would have to work out."""
    sums = {name: getattr(time, name) for name in ("low_s", "expected_s", "high_s")}
    cost = dict(zip(("low", "expected", "high"), time.cost, strict=True)) if time.cost else None
    return time.to_dict() | sums | {"verdict": time.verdict, "cost": cost}


def _refresh(asked: _Asked, memory_budget: MemoryBudget) -> None:
    """Have a budget of other versions simulated anew, behind the command's back."""
    from nbhelpers.budget.predict import SIMULATION, is_exact

    if memory_budget.source != SIMULATION or is_exact(memory_budget, asked.preset.job):
        return
    from nbhelpers.budget.refresh import refresh_later

    if refresh_later(asked.preset, asked.plan, asked.hardware):
        text = "It is simulated anew with the libraries that are here: ask again in a minute,"
        typer.echo(f"{text} or wait for it with --exact.", err=True)


def _tell(memory_budget: MemoryBudget, *, as_json: bool) -> None:
    """Say on stderr what the exit code means."""
    from nbhelpers.budget.memory import DOES_NOT_FIT, NO_GPU, TIGHT, UNKNOWN, UNSURE, require_fit
    from nbhelpers.cli.options import error_text

    if memory_budget.verdict == DOES_NOT_FIT and not as_json:
        try:
            require_fit(memory_budget)
        except BudgetError as error:  # its details are the table above
            typer.echo(error_text(BudgetError(error.message, fix=error.fix)), err=True)
    elif memory_budget.verdict == UNSURE or memory_budget.source == UNKNOWN:
        typer.echo("Warning: it cannot be said whether this fits; see above.", err=True)
    elif memory_budget.verdict == NO_GPU:
        typer.echo(
            "No GPU is here: for the verdict of a card, add for instance --gpu t4.", err=True
        )
    elif memory_budget.verdict == TIGHT:
        text = "Warning: tight. It should run, with little room for what was not predicted."
        typer.echo(text, err=True)
