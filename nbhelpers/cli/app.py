"""The shell's entry: the same functions as the notebooks call, one command each.

Errors are printed with their fix and end the command with their class's exit code (`errors.py`).
"""

from __future__ import annotations

import json
import sys
import traceback
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, TextIO

import typer

from nbhelpers import __version__
from nbhelpers.cli.budget import budget, calibration
from nbhelpers.cli.flow import (
    evaluate,
    export_launcher,
    follow,
    probe,
    run_notebook,
    study,
    train,
)
from nbhelpers.cli.legacy import legacy_launcher, patch_legacy
from nbhelpers.cli.options import (
    JOB_HELP,
    RUNS,
    Currency,
    GpuCount,
    GpuKey,
    GpuMemory,
    Job,
    MaxHours,
    Overrides,
    PresetName,
    Price,
    Quick,
    RunDir,
    RunName,
    budget_text,
    error_text,
    find_study,
    hardware_of,
    overrides_of,
    prepare,
    preset_text,
    presets_text,
    report_text,
    result_of,
    settings_text,
    table,
    warn,
    working_run,
)
from nbhelpers.cli.use import ask, audit, calibrate, clones_of, detect, export, merge, similar
from nbhelpers.errors import ConfigError, DataError, JobFailed, NbhelpersError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Fine-tuning jobs: hardware → preset → plan → budget → run → result → report.",
)
DEBUG = "--debug"


def main() -> None:
    """Run the command line; `--debug` anywhere shows the traceback of an error."""
    debug = DEBUG in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != DEBUG]
    for stream in (sys.stdout, sys.stderr):
        show_any_character(stream)
    try:
        app()
    except (NbhelpersError, OSError) as error:
        known = error if isinstance(error, NbhelpersError) else _of_the_system(error)
        if debug:
            traceback.print_exc()
        else:
            warn(error_text(known))
        sys.exit(known.exit_code)
    except SystemExit as end:
        if end.code == 2 and (line := _setting_as_option(sys.argv[1:])):
            warn(f"Fix: {line}")
        raise


def _setting_as_option(words: list[str]) -> str:
    """What to write for a setting, ours or another library's, that was typed as an option."""
    from nbhelpers.presets.jobs import JOBS
    from nbhelpers.presets.parameters import parse_value, settings_line

    command = typer.main.get_command(app).commands.get(words[0]) if words else None
    options = [option for param in getattr(command, "params", ()) for option in param.opts]
    if "--override" not in options:
        return ""
    job = next((word for word in words if word in JOBS), "finetune")
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        option, equals, text = word.partition("=")
        if option.startswith("--") and option not in options:
            value = text if equals else "true" if after.startswith("--") else after
            name = option[2:].replace("-", "_")
            flag = "-o" if command.name != "run" else "-p"
            return settings_line(job, name, parse_value(value), flag)
    return ""


def show_any_character(stream: TextIO) -> None:
    """Let a stream write `?` for a character that its encoding lacks, instead of an error."""
    if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
        is_whole = stream.errors != "strict" and stream.encoding.lower() in ("utf-8", "utf8")
        stream.reconfigure(errors=stream.errors if is_whole else "replace")


def _of_the_system(error: OSError) -> NbhelpersError:
    """What the system refused, as an error with a fix."""
    place = f"{error.filename}: " if error.filename else ""
    return JobFailed(
        f"{place}{error.strerror or error}.",
        fix="check the path, its permissions and the free space; --debug shows the traceback",
    )


def _tell_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"nbhelpers {__version__}")
        raise typer.Exit()


@app.callback()
def _common(
    debug: Annotated[bool, typer.Option(DEBUG, help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Options of every command."""


@app.command()
def gpu() -> None:
    """Show every GPU as its driver describes it, without starting CUDA."""
    from nbhelpers.hardware.detection import detect_hardware

    hardware = detect_hardware()
    typer.echo(repr(hardware))
    rows = [
        {
            "gpu": card.index,
            "name": card.name,
            "preset key": card.key or "unknown",
            "total GiB": f"{card.memory_total_gib:.1f}",
            "free GiB": f"{card.memory_free_gib:.1f}",
            "capability": ".".join(map(str, card.compute_capability)),
            "bf16": "yes" if card.has_bf16 else "no",
            "used by": ", ".join(f"{p.name or '?'} ({p.pid})" for p in card.processes) or "-",
        }
        for card in hardware.gpus
    ]
    if rows:
        typer.echo(table(rows))


@app.command()
def doctor(
    job: Annotated[str, typer.Argument(help=f"{JOB_HELP} None: all.")] = "",
    preset: Annotated[str, typer.Option("--preset", "-p", help="A name, a file or auto.")] = "auto",
    model: Annotated[str, typer.Option(help="A known name, a hub id or a folder.")] = "",
    gpu: GpuKey = None,
    override: Overrides = None,
    run_dir: RunDir = RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Check this machine, and what a run needs of it: libraries, card, disk, token, model, data.

    The exit code is that of the first line that says stop, else 0.
    """
    from nbhelpers.notebook.doctor import doctor as check

    if (model or override) and not job:
        raise ConfigError("Settings belong to a job.", fix="name one: nbhelpers doctor finetune")
    values = overrides_of(job, override) if job else {}
    values |= {"model": model} if model else {}
    hardware = hardware_of(gpu)
    checkup = check(job, preset, overrides=values, hardware=hardware, run_dir=run_dir)
    typer.echo(json.dumps(checkup.to_dict(), indent=2) if as_json else repr(checkup))
    if checkup.exit_code:
        raise typer.Exit(checkup.exit_code)


@app.command()
def presets(
    job: Job = "clones",
    settings: Annotated[bool, typer.Option(help="What -o can change, instead.")] = False,
) -> None:
    """List the presets of a job, or its settings with their values in the base preset."""
    typer.echo(settings_text(job) if settings else presets_text(job))


@app.command()
def plan(
    job: Job,
    preset: PresetName = "auto",
    gpu: GpuKey = None,
    gpu_memory: GpuMemory = None,
    count: GpuCount = 1,
    override: Overrides = None,
    quick: Quick = False,
    max_hours: MaxHours = None,
    price: Price = None,
    currency: Currency = "",
) -> None:
    """Show what a preset decides, how the batch is split, and what memory and time that needs."""
    from nbhelpers.budget.time import predict_time
    from nbhelpers.plan import scaling_table

    where = {"gpu": gpu, "gpu_memory": gpu_memory, "count": count}
    asked = prepare(job, preset, override, quick=quick, **where)
    typer.echo(preset_text(asked.preset))
    typer.echo(repr(asked.plan))
    if asked.plan.use_gpu and asked.preset.settings.num_gpus == "auto":
        scaling = scaling_table(asked.preset, plan=asked.plan)
        typer.echo(f"The {scaling.title()}:\n{scaling.text()}")
    typer.echo(budget_text(asked.budget, job))
    wishes = {"max_hours": max_hours, "price_per_hour": price, "currency": currency}
    time = predict_time(asked.preset, asked.plan, asked.hardware, run_dir="runs", **wishes)
    typer.echo("\n".join(time.lines()))


app.command("budget")(budget)
app.command()(train)
app.command("export-launcher")(export_launcher)
app.command()(evaluate)
app.command("patch-legacy")(patch_legacy)
app.command("legacy-launcher")(legacy_launcher)
for _command in (ask, merge, export, audit, calibrate, detect, similar, clones_of, probe):
    app.command()(_command)
app.command("calibration", hidden=True)(calibration)  # the earlier name of budget --history
app.command()(study)


@app.command("score-predictions")
def score_predictions(
    answers: Annotated[Path, typer.Argument(help="Lines of id1<TAB>id2<TAB>label.")],
    predictions: Annotated[Path, typer.Argument(help="The same form, with predictions.")],
) -> None:
    """Score a predictions file as CodeXGLUE does; a missing prediction is an error."""
    from nbhelpers.metrics.predictions import evaluate_predictions

    for name, value in evaluate_predictions(answers, predictions).items():
        typer.echo(f"{name}: {value:.6g}" if isinstance(value, float) else f"{name}: {value}")


app.command()(follow)


@app.command()
def stop(run: RunName, run_dir: RunDir = RUNS) -> None:
    """Stop a run, or what runs of a study, cleanly: it saves a checkpoint and can be resumed."""
    chosen_run = working_run(run, run_dir)
    status = chosen_run.stop()
    typer.echo(f"{chosen_run.id}: {status}")
    if status == "running":
        host = chosen_run.process.get("host") or "another machine"
        typer.echo(
            f"It runs on {host} and has not ended yet; there, or by scancel, you can end it."
        )


@app.command()
def runs(run_dir: RunDir = RUNS) -> None:
    """List the runs of a folder, newest first, and its studies."""
    from nbhelpers.runs.run import list_runs
    from nbhelpers.runs.studies import list_studies

    listing = list_runs(run_dir)
    typer.echo(table(listing.rows()) if len(listing) else repr(listing))
    if studies := [_study_row(folder, run_dir) for folder in list_studies(run_dir)]:
        typer.echo(f"\n{table(studies)}")


def _study_row(folder: Path, run_dir: Path) -> dict[str, str]:
    """Id, adapters and state of a study."""
    try:
        result = find_study(str(folder), run_dir)
    except (ConfigError, DataError):  # `report` says what is wrong with it
        return {"study": folder.name, "adapters": "", "finished": "cannot be read"}
    names = ", ".join(dict.fromkeys(row.planned.adapter for row in result.rows))
    count = f"{len(result.finished)} of {len(result.rows)}"
    return {"study": folder.name, "adapters": names, "finished": count}


@app.command()
def report(run: RunName, run_dir: RunDir = RUNS) -> None:
    """Print the report of a finished run, or of a study, and write it as a page."""
    typer.echo(report_text(result_of(run, run_dir)))


@app.command()
def compare(
    runs: Annotated[
        list[str], typer.Argument(help="Run folders, ids, studies, folders of runs, or patterns.")
    ],
    run_dir: RunDir = RUNS,
    price: Price = None,
) -> None:
    """Compare runs, of one job or several, also from other machines; write it as a page."""
    from nbhelpers.reports.comparison import compare as compare_runs

    made = compare_runs(runs, run_dir=run_dir, price_per_hour=price, show=False)
    typer.echo(made.text.rstrip())


app.command("run")(run_notebook)


@app.command()
def bundle(
    notebook: Annotated[Path, typer.Argument(help="An .ipynb file of this project.")],
    output: Annotated[
        Path | None, typer.Option("-O", "--output", help="Where the new .ipynb is saved.")
    ] = None,
) -> None:
    """Write one notebook that carries the library: to upload where this repository is not."""
    from nbhelpers.notebook.bundle import bundle as write

    path = write(notebook, output)
    typer.echo(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
