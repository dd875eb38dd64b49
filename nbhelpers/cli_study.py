"""The shell's command `study`: plan the runs of a study, then run them one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nbhelpers.cli_text import typed_path

if TYPE_CHECKING:
    from nbhelpers.study import StudyResult

INTERRUPTED = 130  # what shells use for Ctrl-C


def study(
    preset: Annotated[
        str, typer.Option("--preset", help="A preset's name, a .yaml file or auto.")
    ] = "auto",
    adapters: Annotated[
        str, typer.Option(help="all, or names: base,r8,r16,qlora-r16 (lora16 is r16).")
    ] = "all",
    seeds: Annotated[str, typer.Option(help="Such as 3,4,5; default: the preset's.")] = "",
    override: Annotated[
        list[str] | None,
        typer.Option("--override", "-o", help="A setting, as name=value; repeatable."),
    ] = None,
    gpu: Annotated[str, typer.Option("--gpu", help="With --plan-only: plan for this GPU.")] = "",
    run_dir: Annotated[
        Path, typer.Option(parser=typed_path, help="The folder that holds the run folders.")
    ] = Path("runs"),
    fresh: Annotated[bool, typer.Option(help="Start all runs anew; default: go on.")] = False,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Show the plan, then end.")
    ] = False,
    stop_on_failure: Annotated[
        bool, typer.Option("--stop-on-failure", help="Start no run after one that failed.")
    ] = False,
) -> None:
    """Fine-tune several adapters on the same data, one run each, and compare them.

    Ctrl-C stops watching; the same command goes on where the study is.
    """
    from nbhelpers.config import load_preset
    from nbhelpers.errors import ConfigError
    from nbhelpers.hardware import detect_hardware, plan_hardware
    from nbhelpers.parameters import parse_overrides
    from nbhelpers.report import report
    from nbhelpers.study import plan_study, require_gpu_for, run_study

    if gpu and not plan_only:
        raise ConfigError("--gpu plans for a GPU that is not here.", fix="add --plan-only")
    hardware = plan_hardware(gpu) if gpu else detect_hardware()
    values = parse_overrides("finetune", override or [])
    chosen = load_preset("finetune", preset, hardware=hardware, overrides=values)
    planned = plan_study(chosen, hardware, adapters=adapters, seeds=seeds, run_dir=run_dir)
    if not plan_only:
        require_gpu_for(planned, hardware, run_dir=run_dir, fresh=fresh)
    typer.echo(repr(hardware))
    typer.echo(planned.text())
    planned.require_fit()
    if plan_only:
        return
    on_failure = "stop" if stop_on_failure else "go_on"
    options = {"run_dir": run_dir, "fresh": fresh, "on_failure": on_failure}
    _show(run_study(planned, hardware=hardware, report=report, **options))


def _show(found: StudyResult) -> None:
    """Print the report of a study as `nbhelpers report`, and end with the code of how it ended."""
    from nbhelpers.report_study import report_study

    if found.finished:
        typer.echo(f"\n{report_study(found, show=False)}".rstrip())
    typer.echo(f"The study: {found.path}")
    if any(row.status == "running" for row in found.rows):  # Ctrl-C: it has said how to go on
        raise typer.Exit(INTERRUPTED)
    found.require_complete()
