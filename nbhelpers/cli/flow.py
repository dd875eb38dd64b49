"""Commands of a run: probe, study, evaluate, report, run a notebook, export a launcher."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nbhelpers.cli.options import typed_path
from nbhelpers.common.files import expanded, is_file, kind_of
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.use.weight_files import weights_file

if TYPE_CHECKING:
    from nbhelpers.presets.preset import Preset
    from nbhelpers.runs.launcher import NodeLauncher, SlurmOptions
    from nbhelpers.runs.run import Run, RunResult
    from nbhelpers.runs.study_results import StudyResult


# ------------------------------------------------------------------------------------------------
# `nbhelpers probe`: a few steps of a run, then its time and memory as they were measured.


INTERRUPTED = 130  # what shells use for Ctrl-C


def _above_zero(option: typer.CallbackParam, value: float | None) -> float | None:
    """Refuse a limit or a price before anything is computed, let alone run.

    Raises:
        ConfigError: It is no number above zero.
    """
    if value is None or 0 < value < float("inf"):
        return value
    name = option.opts[0]
    text = f"{name} {value:g} is no number above zero."
    raise ConfigError(text, fix=f"write for instance {name} 3, or leave it out")


MaxHours = Annotated[
    float | None,
    typer.Option(callback=_above_zero, help="The hours that there are; what ends in them is told."),
]
Price = Annotated[
    float | None,
    typer.Option("--price", callback=_above_zero, help="Of the machine, per hour."),
]
Currency = Annotated[str, typer.Option(help="What the price is in, as you write it.")]


def probe(
    job: Annotated[str, typer.Argument(help="The job: clones, finetune or detector.")],
    preset: Annotated[
        str, typer.Option("--preset", help="A preset's name, a .yaml file or auto.")
    ] = "auto",
    override: Annotated[
        list[str] | None,
        typer.Option("--override", "-o", help="A setting, as name=value; repeatable."),
    ] = None,
    run_dir: Annotated[
        Path, typer.Option(parser=typed_path, help="The folder that holds the run folders.")
    ] = Path("runs"),
    max_hours: MaxHours = None,
    price: Price = None,
    currency: Currency = "",
    force: Annotated[bool, typer.Option(help="Also where it is predicted not to fit.")] = False,
) -> None:
    """Make some 20 steps of a run, and tell the time and memory of all of it from them."""
    from nbhelpers.budget.predict import predict_memory
    from nbhelpers.hardware.detection import detect_hardware
    from nbhelpers.plan import plan_batch
    from nbhelpers.presets.loading import load_preset
    from nbhelpers.presets.parameters import parse_overrides
    from nbhelpers.runs.probe import probe as run_probe

    hardware = detect_hardware()
    values = parse_overrides(job, override or [])
    chosen = load_preset(job, preset, hardware=hardware, overrides=values)
    if getattr(chosen.settings, "method", "") == "base":
        raise ConfigError("method=base trains nothing to probe.", fix="set method=lora or qlora")
    plan = plan_batch(chosen, hardware)
    result = run_probe(
        chosen,
        plan,
        predict_memory(chosen, plan, hardware),
        hardware=hardware,
        run_dir=run_dir,
        force=force,
        max_hours=max_hours,
        price_per_hour=price,
        currency=currency,
    )
    if result is None:
        raise typer.Exit(INTERRUPTED)
    typer.echo("\n".join(result.lines()))


# ------------------------------------------------------------------------------------------------
# The shell's command `study`: plan the runs of a study, then run them one after the other.


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
    from nbhelpers.errors import ConfigError
    from nbhelpers.hardware.detection import detect_hardware, plan_hardware
    from nbhelpers.presets.loading import load_preset
    from nbhelpers.presets.parameters import parse_overrides
    from nbhelpers.reports.writing import report
    from nbhelpers.runs.studies import require_gpu_for, run_study
    from nbhelpers.runs.study_plan import plan_study

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


def _show(result: StudyResult) -> None:
    """Print the report of a study as `nbhelpers report`, and end with the code of how it ended."""
    from nbhelpers.reports.study import report_study

    if result.finished:
        typer.echo(f"\n{report_study(result, show=False)}".rstrip())
    typer.echo(f"The study: {result.path}")
    if any(row.status == "running" for row in result.rows):  # Ctrl-C: it has said how to go on
        raise typer.Exit(INTERRUPTED)
    result.require_complete()


# ------------------------------------------------------------------------------------------------
# The longer commands of the shell: evaluate, report, and a headless notebook.


def what_was_found(name: str, run_dir: Path) -> RunResult | StudyResult:
    """Return the result of a run, or what a study found, by its folder or its id."""
    from nbhelpers.runs.run import open_run

    return find_study(name, run_dir) or open_run(name, run_dir).result()


def find_study(name: str, run_dir: Path) -> StudyResult | None:
    """Return the study that a folder, an id or the beginning of an id means; None for a run."""
    from nbhelpers.runs.studies import FILE_NAME, PREFIX, open_study

    folders = (run_dir / name, Path(name))
    if any(is_file(folder / FILE_NAME) for folder in folders):
        return open_study(name, run_dir)
    is_run = any(is_file(folder / "run.json") for folder in folders)
    return open_study(name, run_dir) if name.startswith(PREFIX) and not is_run else None


def refuse_study(command: str, name: str, run_dir: Path) -> None:
    """Stop where a study is named to a command that takes one run.

    Raises:
        ConfigError: It is a study; names its runs and the command for one of them.
    """
    if (result := find_study(name, run_dir)) is None:
        return
    best = result.best if result.finished else result.rows[0]
    likely = next((row for row in result.rows if row.status == "running"), best)
    runs = ", ".join(f"{row.run.id} ({row.name}, {row.status})" for row in result.rows)
    words = ["nbhelpers", command, str(likely.run.path)]
    rest = {"ask": ' "INSTRUCTION"', "merge": " FOLDER", "export": " FOLDER"}.get(command, "")
    text = f"{result.study.id} is a study, and `{command}` takes a run. Its runs are: {runs}."
    raise ConfigError(text, fix=f"write for instance: {shlex.join(words)}{rest}")


def working_run(name: str, run_dir: Path) -> Run:
    """Return the run that a name means: of a study the one that works, or worked last."""
    from nbhelpers.runs.run import open_run

    if (result := find_study(name, run_dir)) is None:
        return open_run(name, run_dir)
    begun = [row.run for row in result.rows if row.status != "new"] or [result.rows[0].run]
    return next((row.run for row in result.rows if row.status == "running"), begun[-1])


def study_rows(run_dir: Path) -> list[dict[str, str]]:
    """Return id, adapters and state of each study in a folder of runs, newest first, as text."""
    from nbhelpers.runs.studies import list_studies, open_study

    rows = []
    for folder in list_studies(run_dir):
        try:
            result = open_study(folder)
        except (ConfigError, DataError):  # `report` says what is wrong with it
            rows.append({"study": folder.name, "adapters": "", "finished": "cannot be read"})
            continue
        names = ", ".join(dict.fromkeys(row.planned.adapter for row in result.rows))
        count = f"{len(result.finished)} of {len(result.rows)}"
        rows.append({"study": folder.name, "adapters": names, "finished": count})
    return rows


def show_report(result: RunResult | StudyResult) -> str:
    """Write the page of a report and return it as text."""
    from nbhelpers.reports.writing import report

    return str(report(result, show=False)).rstrip()


def show_launcher(launcher: NodeLauncher, slurm: Path | None, options: SlurmOptions) -> None:
    """Print the lines of all nodes, or write their SLURM script."""
    if launcher.run.status == "finished":
        typer.echo(f"Its report: nbhelpers report {launcher.run.path}")
        return
    if slurm is None:
        typer.echo(launcher.text())
        return
    script = launcher.slurm(options)
    if str(slurm) == "-":
        typer.echo(script, nl=False)
        return
    _write_slurm(slurm, script)
    typer.echo(f"{launcher.run.id} is prepared, not started: {launcher.run.path}")
    typer.echo("Every node must see this folder under this path, and have the same environment.")
    typer.echo(f"Submit: sbatch {slurm}")
    typer.echo(f"Watch: nbhelpers follow {launcher.run.path}")


def _write_slurm(path: Path, script: str) -> None:
    """Write a SLURM script, over an earlier one of ours only."""
    from nbhelpers.runs.launcher import WRITTEN_BY

    try:
        if kind_of(path):
            is_ours = is_file(path) and WRITTEN_BY in path.read_text("utf-8", errors="replace")
            if not is_ours:
                text = f"{path} exists, and export-launcher has not written it."
                raise ConfigError(text, fix="name another file with --slurm, or - to print it")
        path.write_text(script, encoding="utf-8")
        path.chmod(0o755)
    except OSError as error:
        text = f"{path} cannot be written ({error.strerror or error})."
        raise ConfigError(text, fix="name a file in a folder that you may write to") from error


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
    from nbhelpers.hardware.detection import detect_hardware
    from nbhelpers.plan import plan_batch
    from nbhelpers.presets.loading import load_preset
    from nbhelpers.runs.run import open_run
    from nbhelpers.runs.starting import launch

    hardware = detect_hardware()
    if checkpoint is None:
        trained = open_run(run, run_dir)
        _require_checkpoint(trained)
        chosen, weights = _preset_of(trained, job).override(**overrides), trained.path
    else:
        weights = _existing(checkpoint)
        _require_foreign(weights, overrides)
        chosen = load_preset(job, preset, hardware=hardware, overrides=overrides)
    split = plan_batch(chosen, hardware)
    return launch(
        chosen,
        split,
        predict_memory(chosen, split, hardware),
        hardware=hardware,
        run_dir=run_dir,
        job_mode="evaluate",
        checkpoint=weights,
        fresh=fresh,
    )


def _preset_of(run: Run, job: str) -> Preset:
    """The preset that a run was made with."""
    from nbhelpers.presets.preset import Preset

    preset = Preset.from_dict((run.record or {}).get("preset") or {})
    if preset.job != job:
        raise ConfigError(
            f"{run.id} is a run of the job {preset.job}, not of {job}.",
            fix=f"write: nbhelpers evaluate {preset.job} --run {run.id}",
        )
    return preset


def _require_checkpoint(run: Run) -> None:
    """Stop before the launch where the run has nothing to score."""
    if any(run.checkpoints_path.glob("*/manifest.json")):
        return
    record, status = run.record or {}, run.status
    command = record.get("command") or "the same command again"
    settings = (record.get("preset") or {}).get("settings") or {}
    if settings.get("method") == "base":
        text = "has no adapter: method=base scores the model as it is"
        fix = f"read its scores: nbhelpers report {run.id}"
    elif record.get("mode") == "evaluate":
        text, fix = "only scored others' weights", "name the run that trained them"
    elif status == "running":
        text, fix = "has no checkpoint yet", f"follow it: nbhelpers follow {run.id}"
    else:
        text, fix = "has no checkpoint", f"train it: {command}"
    raise ConfigError(f"{run.id} is {status} and {text}.", fix=fix)


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
    if kind_of(checkpoint) not in ("file", "folder"):
        raise DataError(f"There is no checkpoint {checkpoint}.", fix="check the path")
    path = expanded(checkpoint, "--checkpoint").resolve()
    weights = weights_file(path)
    if weights != path:
        typer.echo(f"Weights: {weights}")
    return weights


def play_notebook(
    notebook: Path,
    parameters: Mapping[str, Any],
    *,
    output: Path | None,
    resume: bool,
    timeout_s: float | None,
    require: tuple[str, ...],
) -> None:
    """Run a notebook, say where it is saved, print the report, then check what was required."""
    from nbhelpers.notebook.headless import (
        check_notebook,
        default_output,
        notebook_job,
        project_root,
        run_notebook,
    )
    from nbhelpers.runs.thresholds import parse_requirements, require_scores

    parse_requirements(require)  # what no job can meet is refused before the notebook is read
    path = check_notebook(notebook, parameters)[0]
    conditions = parse_requirements(require, notebook_job(path))
    saved, started = output or default_output(path, project_root(path)), time.time()
    try:
        result = run_notebook(
            notebook,
            parameters,
            output=saved,
            fresh=not resume,
            timeout_s=timeout_s,
            stream=sys.stdout,
        )
    finally:
        if is_file(saved) and saved.stat().st_mtime >= started - 1:
            typer.echo(f"\nNotebook: {saved}")
    if result is not None:
        typer.echo(show_report(result))
    require_scores(result, conditions)
