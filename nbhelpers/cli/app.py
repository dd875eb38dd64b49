"""The shell's entry: the same functions as the notebooks call, one command each.

Errors are printed with their fix and end the command with their class's exit code (`errors.py`).
"""

from __future__ import annotations

import shlex
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from nbhelpers.cli.budget import budget, calibration
from nbhelpers.cli.flow import Currency, MaxHours, Price, probe, study
from nbhelpers.cli.legacy import legacy_launcher, patch_legacy
from nbhelpers.cli.options import (
    error_text,
    listed,
    of_the_system,
    plain_output,
    presets_text,
    settings_text,
    table,
    typed_path,
)
from nbhelpers.cli.use import ask, audit, calibrate, detect, export, merge, similar
from nbhelpers.errors import ConfigError, NbhelpersError
from nbhelpers.presets.jobs import JOBS

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Fine-tuning jobs: hardware → preset → plan → budget → run → result → report.",
)
DEBUG = "--debug"
INTERRUPTED = 130  # what shells use for Ctrl-C

*_OTHERS, _LAST = JOBS
Job = Annotated[str, typer.Argument(help=f"The job: {', '.join(_OTHERS)} or {_LAST}.")]
PresetName = Annotated[str, typer.Option("--preset", help="A preset's name, a .yaml file or auto.")]
GpuKey = Annotated[str, typer.Option("--gpu", help="Plan for this GPU instead of what is here.")]
GpuCount = Annotated[int, typer.Option("--count", min=1, help="How many such GPUs.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--override", "-o", help="A setting, as name=value; repeatable.")
]
NumGpus = Annotated[int | None, typer.Option(min=1, help="Training processes; default: preset.")]
RunDir = Annotated[
    Path, typer.Option(parser=typed_path, help="The folder that holds the run folders.")
]
RunName = Annotated[str, typer.Argument(help="A run's id or folder.")]


def main() -> None:
    """Run the command line; `--debug` anywhere shows the traceback of an error."""
    debug = DEBUG in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != DEBUG]
    plain_output(sys.stdout, sys.stderr)
    try:
        app()
    except (NbhelpersError, OSError) as error:
        known = error if isinstance(error, NbhelpersError) else of_the_system(error)
        if debug:
            traceback.print_exc()
        else:
            typer.echo(error_text(known), err=True)
        sys.exit(known.exit_code)


@app.callback()
def _common(
    debug: Annotated[bool, typer.Option(DEBUG, help="Show the traceback of an error.")] = False,
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
            "total GiB": f"{card.memory_total_bytes / 2**30:.1f}",
            "free GiB": f"{card.memory_free_bytes / 2**30:.1f}",
            "capability": ".".join(map(str, card.compute_capability)),
            "bf16": "yes" if card.has_bf16 else "no",
            "used by": listed(f"{p.name or '?'} ({p.pid})" for p in card.processes),
        }
        for card in hardware.gpus
    ]
    if rows:
        typer.echo(table(rows))


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
    gpu: GpuKey = "",
    count: GpuCount = 1,
    override: Overrides = None,
    max_hours: MaxHours = None,
    price: Price = None,
    currency: Currency = "",
) -> None:
    """Show what a preset decides, how the batch is split, and what memory and time that needs."""
    from nbhelpers.budget.predict import source_words
    from nbhelpers.budget.time import time_lines
    from nbhelpers.cli.options import budget_text, preset_text
    from nbhelpers.plan import scaling_table

    hardware, chosen, split, needed = _prepare(job, preset, gpu=gpu, count=count, override=override)
    typer.echo(preset_text(chosen))
    typer.echo(repr(split))
    if split.use_gpu and chosen.settings.num_gpus == "auto":
        scaling = scaling_table(chosen, plan=split)
        typer.echo(f"The {scaling.title()}:\n{scaling.text()}")
    typer.echo(budget_text(needed))
    typer.echo(f"From: {source_words(needed, job)}")
    wishes = {"max_hours": max_hours, "price_per_hour": price, "currency": currency}
    typer.echo("\n".join(time_lines(chosen, split, hardware, run_dir="runs", **wishes)))


app.command("budget")(budget)


@app.command()
def train(
    job: Job,
    preset: PresetName = "auto",
    override: Overrides = None,
    num_gpus: NumGpus = None,
    run_dir: RunDir = Path("runs"),
    fresh: Annotated[bool, typer.Option(help="Start anew; default: re-attach or resume.")] = False,
    detach: Annotated[bool, typer.Option(help="Return at once; the run goes on.")] = False,
) -> None:
    """Train and evaluate; Ctrl-C stops watching, `nbhelpers stop RUN` stops the run."""
    from nbhelpers.runs.starting import launch

    extra = [] if num_gpus is None else [f"num_gpus={num_gpus}"]
    override = [*(override or []), *extra]
    hardware, chosen, split, needed = _prepare(job, preset, gpu="", count=1, override=override)
    run = launch(chosen, split, needed, hardware=hardware, run_dir=run_dir, fresh=fresh)
    _watch(run, detach=detach)


@app.command("export-launcher")
def export_launcher(
    job: Job,
    preset: PresetName = "auto",
    nodes: Annotated[int, typer.Option(min=1, help="Machines that train together.")] = 2,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="Processes on each.")] = 1,
    gpu: Annotated[str, typer.Option(help="The nodes' GPU; default: the preset's.")] = "",
    override: Overrides = None,
    run_dir: Annotated[
        Path, typer.Option(parser=typed_path, help="A folder of runs that every node sees.")
    ] = Path("runs"),
    main_address: Annotated[str, typer.Option(help="Node 0; default: this machine.")] = "",
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Of node 0.")] = None,
    slurm: Annotated[
        Path | None, typer.Option(parser=typed_path, help="Write a SLURM script; - prints it.")
    ] = None,
    partition: Annotated[str, typer.Option(help="Of SLURM.")] = "",
    time: Annotated[str, typer.Option(help="SLURM's limit, such as 04:00:00.")] = "",
    account: Annotated[str, typer.Option(help="Of SLURM.")] = "",
    sbatch: Annotated[
        list[str] | None, typer.Option(help="Another option of sbatch; repeatable.")
    ] = None,
    fresh: Annotated[bool, typer.Option(help="Start anew; default: resume.")] = False,
) -> None:
    """Prepare a run on several nodes: print the line for each, or write a SLURM script."""
    from nbhelpers.cli.flow import show_launcher
    from nbhelpers.runs.launcher import SlurmOptions, prepare_nodes

    others = tuple(sbatch or ())
    options = SlurmOptions(partition=partition, time=time, account=account, others=others)
    launcher = prepare_nodes(
        job,
        preset,
        num_nodes=nodes,
        gpus_per_node=gpus_per_node,
        gpu=gpu,
        overrides=_overrides(job, override),
        run_dir=run_dir,
        fresh=fresh,
        main_address=main_address,
        port=port,
        command=shlex.join(["nbhelpers", *sys.argv[1:]]),
    )
    show_launcher(launcher, slurm, options)


@app.command()
def evaluate(
    job: Job,
    run: Annotated[str, typer.Option(help="Score the best checkpoint of this run.")] = "",
    checkpoint: Annotated[
        Path | None, typer.Option(parser=typed_path, help="Score this file of weights.")
    ] = None,
    data: Annotated[str, typer.Option(help="A folder or hub id; default: the run's own.")] = "",
    model: Annotated[str, typer.Option(help="The checkpoint's architecture.")] = "",
    preset: PresetName = "auto",
    override: Overrides = None,
    run_dir: RunDir = Path("runs"),
    fresh: Annotated[bool, typer.Option(help="Score again even if the scores exist.")] = False,
) -> None:
    """Score a trained run, or weights that other scripts saved, on a test split."""
    from nbhelpers.cli.flow import start_evaluation

    if bool(run) == (checkpoint is not None):
        raise ConfigError(
            "evaluate needs either --run or --checkpoint.",
            fix="name a finished run with --run, or a file of weights with --checkpoint",
        )
    inputs = {name: text for name, text in (("data", data), ("model", model)) if text}
    settings = _overrides(job, override) | inputs
    started = start_evaluation(
        job, run, checkpoint, preset=preset, overrides=settings, run_dir=run_dir, fresh=fresh
    )
    _watch(started, detach=False)


app.command("patch-legacy")(patch_legacy)
app.command("legacy-launcher")(legacy_launcher)
for _command in (ask, merge, export, audit, calibrate, detect, similar, probe):
    app.command()(_command)
app.command("calibration", hidden=True)(calibration)  # the earlier name of budget --history
app.command("study")(study)


@app.command("score-predictions")
def score_predictions(
    answers: Annotated[Path, typer.Argument(help="Lines of id1<TAB>id2<TAB>label.")],
    predictions: Annotated[Path, typer.Argument(help="The same form, with predictions.")],
) -> None:
    """Score a predictions file as CodeXGLUE does; a missing prediction is an error."""
    from nbhelpers.metrics.predictions import evaluate_predictions

    for name, value in evaluate_predictions(answers, predictions).items():
        typer.echo(f"{name}: {value:.6g}" if isinstance(value, float) else f"{name}: {value}")


@app.command()
def follow(run: RunName, run_dir: RunDir = Path("runs")) -> None:
    """Watch a run until it ends; Ctrl-C stops watching only."""
    from nbhelpers.cli.flow import refuse_study
    from nbhelpers.runs.run import open_run

    refuse_study("follow", run, run_dir)
    _watch(open_run(run, run_dir), detach=False)


@app.command()
def stop(run: RunName, run_dir: RunDir = Path("runs")) -> None:
    """Stop a run, or what runs of a study, cleanly: it saves a checkpoint and can be resumed."""
    from nbhelpers.cli.flow import working_run

    chosen_run = working_run(run, run_dir)
    status = chosen_run.stop()
    typer.echo(f"{chosen_run.id}: {status}")
    if status == "running":
        host = chosen_run.process.get("host") or "another machine"
        typer.echo(
            f"It runs on {host} and has not ended yet; there, or by scancel, you can end it."
        )


@app.command()
def runs(run_dir: RunDir = Path("runs")) -> None:
    """List the runs of a folder, newest first, and its studies."""
    from nbhelpers.cli.flow import study_rows
    from nbhelpers.runs.run import list_runs

    listing = list_runs(run_dir)
    typer.echo(table(listing.rows()) if len(listing) else repr(listing))
    if studies := study_rows(run_dir):
        typer.echo(f"\n{table(studies)}")


@app.command()
def report(run: RunName, run_dir: RunDir = Path("runs")) -> None:
    """Print the report of a finished run, or of a study, and write it as a page."""
    from nbhelpers.cli.flow import show_report, what_was_found

    typer.echo(show_report(what_was_found(run, run_dir)))


@app.command("run")
def run_notebook(
    notebook: Annotated[Path, typer.Argument(help="An .ipynb file.")],
    parameter: Annotated[
        list[str] | None, typer.Option("-p", "--parameter", help="name=value; repeatable.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-O", "--output", help="Where the executed .ipynb is saved.")
    ] = None,
    override: Annotated[list[str] | None, typer.Option("-o", "--override", hidden=True)] = None,
    resume: Annotated[bool, typer.Option(help="Continue the same run; default: anew.")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Limit in seconds for the whole run.")
    ] = None,
    require: Annotated[
        list[str] | None, typer.Option(help="A condition such as 'f1>=0.9'; repeatable.")
    ] = None,
) -> None:
    """Run a notebook headless with checked parameters; exit codes say how it ended."""
    from nbhelpers.cli.flow import play_notebook
    from nbhelpers.presets.parameters import parse_assignments

    if override:
        is_path = override[0].endswith(".ipynb")
        raise ConfigError(
            f"`run` has no option -o (-o {override[0]}): a notebook takes parameters.",
            fix=f"write --output {override[0]}" if is_path else f"write -p {override[0]}",
        )
    values = parse_assignments(parameter or [], "-p")
    play_notebook(
        notebook,
        values,
        output=output,
        resume=resume,
        timeout_s=timeout,
        require=tuple(require or ()),
    )


def _overrides(job: str, pairs: list[str] | None) -> dict[str, Any]:
    from nbhelpers.presets.parameters import parse_overrides

    return parse_overrides(job, pairs or [])


def _prepare(
    job: str, preset: str, *, gpu: str, count: int, override: list[str] | None
) -> tuple[Any, Any, Any, Any]:
    """The first half of the flow: hardware, preset, plan, budget."""
    from nbhelpers.budget.predict import predict_memory
    from nbhelpers.hardware.detection import detect_hardware, plan_hardware
    from nbhelpers.plan import plan_batch
    from nbhelpers.presets.loading import load_preset

    if count != 1 and not gpu:
        raise ConfigError("--count needs --gpu.", fix="add for instance --gpu t4")
    hardware = plan_hardware(gpu, count) if gpu else detect_hardware()
    chosen = load_preset(job, preset, hardware=hardware, overrides=_overrides(job, override))
    split = plan_batch(chosen, hardware)
    return hardware, chosen, split, predict_memory(chosen, split, hardware)


def _watch(run: Any, *, detach: bool) -> None:
    """Follow a run to its report, or say how to."""
    from nbhelpers.cli.flow import show_report
    from nbhelpers.runs.following import follow as follow_run

    if detach:
        typer.echo(f"{run!r} goes on by itself. To watch it: nbhelpers follow {run.path}")
        typer.echo(f"To stop it: nbhelpers stop {run.path}")
        return
    # Of a run that had ended there is nothing to watch: its events would look like a new run's.
    result = run.result() if run.status == "finished" else follow_run(run)
    if result is None:  # Ctrl-C: `follow` has said how to go on
        raise typer.Exit(INTERRUPTED)
    typer.echo(show_report(result))
