"""The longer commands of the shell: evaluate, report, and a headless notebook."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from nbhelpers.errors import ConfigError, DataError
from nbhelpers.paths import expanded, is_file, kind_of
from nbhelpers.weight_files import weights_file

if TYPE_CHECKING:
    from nbhelpers.launcher import NodeLauncher
    from nbhelpers.launcher_slurm import SlurmOptions
    from nbhelpers.presets import Preset
    from nbhelpers.runs import Run, RunResult
    from nbhelpers.study import StudyResult


def what_was_found(name: str, run_dir: Path) -> RunResult | StudyResult:
    """Return the result of a run, or what a study found, by its folder or its id."""
    from nbhelpers.runs import open_run

    return find_study(name, run_dir) or open_run(name, run_dir).result()


def find_study(name: str, run_dir: Path) -> StudyResult | None:
    """Return the study that a folder, an id or the beginning of an id means; None for a run."""
    from nbhelpers.study import open_study
    from nbhelpers.study_folder import FILE_NAME, PREFIX

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
    if (found := find_study(name, run_dir)) is None:
        return
    best = found.best if found.finished else found.rows[0]
    likely = next((row for row in found.rows if row.status == "running"), best)
    runs = ", ".join(f"{row.run.id} ({row.name}, {row.status})" for row in found.rows)
    words = ["nbhelpers", command, str(likely.run.path)]
    rest = {"ask": ' "INSTRUCTION"', "merge": " FOLDER", "export": " FOLDER"}.get(command, "")
    text = f"{found.study.id} is a study, and `{command}` takes a run. Its runs are: {runs}."
    raise ConfigError(text, fix=f"write for instance: {shlex.join(words)}{rest}")


def working_run(name: str, run_dir: Path) -> Run:
    """Return the run that a name means: of a study the one that works, or worked last."""
    from nbhelpers.runs import open_run

    if (found := find_study(name, run_dir)) is None:
        return open_run(name, run_dir)
    begun = [row.run for row in found.rows if row.status != "new"] or [found.rows[0].run]
    return next((row.run for row in found.rows if row.status == "running"), begun[-1])


def study_rows(run_dir: Path) -> list[dict[str, str]]:
    """Return id, adapters and state of each study in a folder of runs, newest first, as text."""
    from nbhelpers.study import list_studies, open_study

    rows = []
    for folder in list_studies(run_dir):
        try:
            found = open_study(folder)
        except (ConfigError, DataError):  # `report` says what is wrong with it
            rows.append({"study": folder.name, "adapters": "", "finished": "cannot be read"})
            continue
        names = ", ".join(dict.fromkeys(row.planned.adapter for row in found.rows))
        count = f"{len(found.finished)} of {len(found.rows)}"
        rows.append({"study": folder.name, "adapters": names, "finished": count})
    return rows


def show_report(result: RunResult | StudyResult) -> str:
    """Write the page of a report and return it as text."""
    from nbhelpers.report import report

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
    from nbhelpers.launcher_slurm import WRITTEN_BY

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
    from nbhelpers.batching import plan_batch
    from nbhelpers.budgets import predict_memory
    from nbhelpers.config import load_preset
    from nbhelpers.hardware import detect_hardware
    from nbhelpers.launch import launch
    from nbhelpers.runs import open_run

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
    from nbhelpers.presets import Preset

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
    given = expanded(checkpoint, "--checkpoint").resolve()
    found = weights_file(given)
    if found != given:
        typer.echo(f"Weights: {found}")
    return found


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
    from nbhelpers.headless import check_notebook, default_output, project_root, run_notebook
    from nbhelpers.headless_checks import notebook_job
    from nbhelpers.requirements import parse_requirements, require_scores

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
