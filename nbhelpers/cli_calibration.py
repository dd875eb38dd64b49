"""`nbhelpers budget --history`: how far the predictions of memory were off on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nbhelpers.cli_text import table, typed_path
from nbhelpers.errors import ConfigError

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
    from nbhelpers.calibration import log_path, plot_data, read_log, summary

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
    found = {name: str(row[name]) for name in ("job", "gpu", "source", "runs")}
    return found | {head: f"{row[name]:+.1f} %" for name, head in names.items()}


def _run_row(line: dict[str, object]) -> dict[str, str]:
    found = {"run": str(line["run_id"]), "gpu": str(line.get("gpu") or line.get("device") or "-")}
    for name in ("predicted", "measured"):
        size = line.get(f"{name}_bytes")
        found[f"{name} MiB"] = f"{size / 2**20:.1f}" if size else "-"
    error = line.get("error_percent")
    return found | {"error": "-" if error is None else f"{error:+.1f} %"}


def _draw(path: Path, data: dict[str, list[object]]) -> None:
    from nbhelpers.plots_memory import calibration_figure

    figure = calibration_figure(data)
    if figure is None:
        typer.echo("No run has both a prediction and a measurement: nothing is drawn.")
        return
    figure.savefig(path, dpi=110)
    typer.echo(f"Drawn: {path}")
