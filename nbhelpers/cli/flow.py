"""Commands that start a run or watch one: train, evaluate, probe, study, run, export-launcher."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nbhelpers.cli.options import (
    INTERRUPTED,
    RUNS,
    Currency,
    GpuCount,
    GpuKey,
    Job,
    MaxHours,
    NumGpus,
    Overrides,
    PresetName,
    Price,
    Quick,
    Resume,
    RunDir,
    RunName,
    hardware_of,
    overrides_of,
    path_option,
    prepare,
    refuse_study,
    report_text,
)
from nbhelpers.common.files import expanded, is_file, kind_of
from nbhelpers.errors import ConfigError, DataError

if TYPE_CHECKING:
    from nbhelpers.presets.preset import Preset
    from nbhelpers.runs.launcher import NodeLauncher
    from nbhelpers.runs.run import Run


def train(
    job: Job,
    preset: PresetName = "auto",
    override: Overrides = None,
    num_gpus: NumGpus = None,
    quick: Quick = False,
    run_dir: RunDir = RUNS,
    fresh: Annotated[bool, typer.Option(help="Start anew; default: re-attach or resume.")] = False,
    resume: Resume = False,
    detach: Annotated[bool, typer.Option(help="Return at once; the run goes on.")] = False,
) -> None:
    """Train and evaluate; Ctrl-C stops watching, `nbhelpers stop RUN` stops the run."""
    from nbhelpers.runs.starting import launch

    number = [] if num_gpus is None else [f"num_gpus={num_gpus}"]
    asked = prepare(job, preset, [*(override or []), *number], quick=quick)
    options = {"hardware": asked.hardware, "run_dir": run_dir, "fresh": fresh}
    options["resume"] = resume or None
    run = launch(asked.preset, asked.plan, asked.budget, **options)
    if not detach:
        return watch(run)
    typer.echo(f"{run!r} goes on by itself. To watch it: {run.shell('follow')}")
    typer.echo(f"To stop it: {run.shell('stop')}")


def follow(run: RunName, run_dir: RunDir = RUNS) -> None:
    """Watch a run until it ends; Ctrl-C stops watching only."""
    from nbhelpers.runs.run import open_run

    refuse_study("follow", run, run_dir)
    watch(open_run(run, run_dir))


def watch(run: Run) -> None:
    """Follow a run to its report."""
    from nbhelpers.runs.following import follow as follow_run

    # Of a run that had ended there is nothing to watch: its events would look like a new run's.
    result = run.result() if run.status == "finished" else follow_run(run)
    if result is None:  # Ctrl-C: `follow` has said how to go on
        raise typer.Exit(INTERRUPTED)
    typer.echo(report_text(result))


def probe(
    job: Job,
    preset: PresetName = "auto",
    override: Overrides = None,
    run_dir: RunDir = RUNS,
    max_hours: MaxHours = None,
    price: Price = None,
    currency: Currency = "",
    force: Annotated[bool, typer.Option(help="Also where it is predicted not to fit.")] = False,
) -> None:
    """Make some 20 steps of a run, and tell the time and memory of all of it from them."""
    from nbhelpers.runs.probe import probe as run_probe

    asked = prepare(job, preset, override)
    if getattr(asked.preset.settings, "method", "") == "base":
        raise ConfigError("method=base trains nothing to probe.", fix="set method=lora or qlora")
    result = run_probe(
        asked.preset,
        asked.plan,
        asked.budget,
        hardware=asked.hardware,
        run_dir=run_dir,
        force=force,
        max_hours=max_hours,
        price_per_hour=price,
        currency=currency,
    )
    if result is None:
        raise typer.Exit(INTERRUPTED)
    typer.echo("\n".join(result.lines()))


def study(
    preset: PresetName = "auto",
    adapters: Annotated[
        str, typer.Option(help="all, or names: base,r8,r16,qlora-r16 (lora16 is r16).")
    ] = "all",
    seeds: Annotated[str, typer.Option(help="Such as 3,4,5; default: the preset's.")] = "",
    override: Overrides = None,
    quick: Quick = False,
    gpu: GpuKey = None,
    count: GpuCount = 1,
    run_dir: RunDir = RUNS,
    fresh: Annotated[bool, typer.Option(help="Start all runs anew; default: go on.")] = False,
    resume: Resume = False,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Show the plan, then end; --gpu needs it.")
    ] = False,
    stop_on_failure: Annotated[
        bool, typer.Option("--stop-on-failure", help="Start no run after one that failed.")
    ] = False,
) -> None:
    """Fine-tune several adapters on the same data, one run each, and compare them.

    Ctrl-C stops watching; the same command goes on where the study is.
    """
    from nbhelpers.presets.loading import load_preset
    from nbhelpers.reports.study import report_study
    from nbhelpers.reports.writing import report
    from nbhelpers.runs.studies import require_gpu_for, run_study
    from nbhelpers.runs.study_plan import plan_study

    if gpu and not plan_only:
        raise ConfigError("--gpu plans for a GPU that is not here.", fix="add --plan-only")
    hardware = hardware_of(gpu, count)
    values = {"overrides": overrides_of("finetune", override), "quick": "on" if quick else "off"}
    chosen = load_preset("finetune", preset, hardware=hardware, **values)
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
    options["resume"] = resume or None
    result = run_study(planned, hardware=hardware, report=report, **options)
    if result.finished:
        typer.echo(f"\n{report_study(result, show=False)}".rstrip())
    typer.echo(f"The study: {result.path}")
    if any(row.status == "running" for row in result.rows):  # Ctrl-C: it has said how to go on
        raise typer.Exit(INTERRUPTED)
    result.require_complete()
    typer.echo(f'To ask its best run: nbhelpers ask {result.best.run.typed} "INSTRUCTION"')


# ------------------------------------------------------------------------------------------------
# `nbhelpers evaluate`: a run's best checkpoint, or a file of weights.


def evaluate(
    job: Job,
    run: Annotated[str, typer.Option(help="Score the best checkpoint of this run.")] = "",
    checkpoint: Annotated[Path | None, path_option(help="Score this file of weights.")] = None,
    data: Annotated[str, typer.Option(help="A folder or hub id; default: the run's own.")] = "",
    model: Annotated[str, typer.Option(help="The checkpoint's architecture.")] = "",
    preset: PresetName = "auto",
    override: Overrides = None,
    run_dir: RunDir = RUNS,
    fresh: Annotated[bool, typer.Option(help="Score again even if the scores exist.")] = False,
) -> None:
    """Score a trained run, or weights that other scripts saved, on a test split."""
    if bool(run) == (checkpoint is not None):
        raise ConfigError(
            "evaluate needs either --run or --checkpoint.",
            fix="name a finished run with --run, or a file of weights with --checkpoint",
        )
    inputs = {name: text for name, text in (("data", data), ("model", model)) if text}
    settings = overrides_of(job, override) | inputs
    options = {"preset": preset, "overrides": settings, "run_dir": run_dir, "fresh": fresh}
    watch(start_evaluation(job, run, checkpoint, **options))


def start_evaluation(
    job: str,
    run: str,
    checkpoint: Path | None,
    *,
    preset: str,
    overrides: Mapping[str, Any],
    run_dir: Path,
    fresh: bool,
) -> Run:
    """Launch an evaluation of a run's best checkpoint, or of a file of weights."""
    from nbhelpers.budget.predict import predict_memory
    from nbhelpers.plan import plan_batch
    from nbhelpers.presets.loading import load_preset
    from nbhelpers.runs.run import open_run
    from nbhelpers.runs.starting import launch
    from nbhelpers.use.trained import require_checkpoint

    hardware = hardware_of(None)
    if checkpoint is None:
        trained = open_run(run, run_dir)
        require_checkpoint(trained.path)
        chosen, weights = _preset_of(trained, job).override(**overrides), trained.path
    else:
        weights = _existing(checkpoint)
        _require_foreign(weights, overrides)
        chosen = load_preset(job, preset, hardware=hardware, overrides=overrides)
    plan = plan_batch(chosen, hardware)
    options = {"run_dir": run_dir, "job_mode": "evaluate", "checkpoint": weights, "fresh": fresh}
    budget = predict_memory(chosen, plan, hardware)
    return launch(chosen, plan, budget, hardware=hardware, **options)


def _preset_of(run: Run, job: str) -> Preset:
    """The preset that a run was made with."""
    from nbhelpers.presets.preset import Preset

    preset = Preset.from_dict((run.record or {}).get("preset") or {})
    if preset.job != job:
        raise ConfigError(
            f"{run.id} is a run of the job {preset.job}, not of {job}.",
            fix=f"write: nbhelpers evaluate {preset.job} --run {run.typed}",
        )
    return preset


def _require_foreign(weights: Path, overrides: Mapping[str, Any]) -> None:
    """Refuse a `--model` beside a checkpoint of ours, which would be ignored."""
    folder = weights if weights.is_dir() else weights.parent
    is_ours = (folder / "manifest.json").is_file() or (folder / "checkpoints").is_dir()
    if "model" in overrides and is_ours:
        raise ConfigError(
            f"{folder} is made by nbhelpers and holds its own configuration, so "
            f"--model {overrides['model']} would be ignored.",
            fix="leave --model out; it is for weights that other scripts saved",
        )


def _existing(checkpoint: Path) -> Path:
    from nbhelpers.use.weight_files import weights_file

    if kind_of(checkpoint) not in ("file", "folder"):
        raise DataError(f"There is no checkpoint {checkpoint}.", fix="check the path")
    path = expanded(checkpoint, "--checkpoint").resolve()
    weights = weights_file(path)
    if weights != path:
        typer.echo(f"Weights: {weights}")
    return weights


# ------------------------------------------------------------------------------------------------
# `nbhelpers run`: a headless notebook.


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
    kernel: Annotated[
        str, typer.Option(help="An installed Jupyter kernel; default: this Python.")
    ] = "",
) -> None:
    """Run a notebook headless with checked parameters; exit codes say how it ended."""
    from nbhelpers.notebook import headless
    from nbhelpers.presets.parameters import parse_assignments
    from nbhelpers.runs.thresholds import parse_requirements, require_scores

    if override:
        is_path = override[0].endswith(".ipynb")
        raise ConfigError(
            f"`run` has no option -o (-o {override[0]}): a notebook takes parameters.",
            fix=f"write --output {override[0]}" if is_path else f"write -p {override[0]}",
        )
    values = parse_assignments(parameter or [], "-p")
    parse_requirements(require or ())  # what no job can meet is refused before a notebook is read
    checked = headless.check_notebook(notebook, values, kernel=kernel)
    conditions = parse_requirements(require or (), checked.job)
    saved = output or headless.default_output(checked.path, checked.root)
    options = {"output": saved, "fresh": not resume, "timeout_s": timeout, "kernel": kernel}
    started = time.time()
    try:
        result = headless.run_notebook(notebook, values, stream=sys.stdout, **options)
    finally:
        if is_file(saved) and saved.stat().st_mtime >= started - 1:
            typer.echo(f"\nNotebook: {saved}")
    if result is not None:
        typer.echo(report_text(result))
    require_scores(result, conditions)


# ------------------------------------------------------------------------------------------------
# `nbhelpers export-launcher`: a run on several nodes.


def export_launcher(
    job: Job,
    preset: PresetName = "auto",
    nodes: Annotated[int, typer.Option(min=1, help="Machines that train together.")] = 2,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="Processes on each.")] = 1,
    gpu: GpuKey = None,
    override: Overrides = None,
    run_dir: RunDir = RUNS,
    main_address: Annotated[str, typer.Option(help="Node 0; default: this machine.")] = "",
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Of node 0.")] = None,
    slurm: Annotated[Path | None, path_option(help="Write a SLURM script; - prints it.")] = None,
    partition: Annotated[str, typer.Option(help="Of SLURM.")] = "",
    time: Annotated[str, typer.Option(help="SLURM's limit, such as 04:00:00.")] = "",
    account: Annotated[str, typer.Option(help="Of SLURM.")] = "",
    sbatch: Annotated[
        list[str] | None, typer.Option(help="Another option of sbatch; repeatable.")
    ] = None,
    fresh: Annotated[bool, typer.Option(help="Start anew; default: resume.")] = False,
    resume: Resume = False,
) -> None:
    """Prepare a run on several nodes: print the line for each, or write a SLURM script.

    The folder of runs must be one that every node sees. Not tried on real nodes.
    """
    from nbhelpers.runs.launcher import prepare_nodes, require_sbatch

    named = {"partition": partition, "time": time, "account": account}
    options = [f"--{name}={value}" for name, value in named.items() if value]
    require_sbatch(options := [*options, *(sbatch or ())])
    launcher = prepare_nodes(
        job,
        preset,
        num_nodes=nodes,
        gpus_per_node=gpus_per_node,
        gpu=gpu or "",
        overrides=overrides_of(job, override),
        run_dir=run_dir,
        fresh=fresh,
        resume=resume,
        main_address=main_address,
        port=port,
        command=shlex.join(["nbhelpers", *sys.argv[1:]]),
    )
    _show_launcher(launcher, slurm, options)


def _show_launcher(launcher: NodeLauncher, slurm: Path | None, options: list[str]) -> None:
    """Print the lines of all nodes, or write their SLURM script."""
    if launcher.run.status == "finished":
        typer.echo(f"Its report: {launcher.run.shell('report')}")
    elif slurm is None:
        typer.echo(launcher.text())
    elif str(slurm) == "-":
        typer.echo(launcher.slurm(options), nl=False)
    else:
        launcher.write_slurm(slurm, options)
        typer.echo(launcher.head())
        typer.echo(f"Submit: sbatch {slurm}")
        typer.echo(f"Watch: {launcher.run.shell('follow')}")
