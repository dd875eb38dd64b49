"""The shell's commands for other people's scripts: patch-legacy and legacy-launcher."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nbhelpers.cli.options import (
    GpuCount,
    GpuKey,
    error_text,
    hardware_of,
    path_option,
    typed_path,
    warn,
)
from nbhelpers.errors import ConfigError, HardwareError, NbhelpersError

if TYPE_CHECKING:
    from nbhelpers.legacy import Recipe, ScriptFacts

MOST = 10**6  # of anything that is counted here: far beyond any machine, and quick to split
Scripts = Annotated[
    list[Path], typer.Argument(parser=typed_path, help="Training scripts, such as run.py.")
]
Write = Annotated[bool, typer.Option("--write", help="Change the files, with backups beside them.")]

Model = Annotated[str, typer.Option(help="codegpt, graphcodebert or codebert.")]
NumGpus = Annotated[
    int | None, typer.Option(min=1, max=MOST, help="GPUs; default: those that are here.")
]
ScriptPath = Annotated[Path, path_option("--script", help="The training script.")]
OutputDir = Annotated[Path, path_option(help="For weights and the log.")]
DataDir = Annotated[Path, path_option(help="Holds train.txt and the others.")]
PerGpu = Annotated[int | None, typer.Option(min=1, max=MOST, help="Pairs per GPU and micro-step.")]
GlobalBatch = Annotated[int, typer.Option(min=1, max=MOST, help="Pairs per optimizer step.")]
WriteTo = Annotated[Path | None, path_option("--write", help="A file or folder to write to.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a launcher that exists.")]

TUNED_GIB = 44.0  # what a "48 GB" card offers at least


def patch_legacy(scripts: Scripts, write: Write = False) -> None:
    """Let accelerate run a legacy script: read LOCAL_RANK, let rank 0 save; shows a diff."""
    from nbhelpers.legacy import patch_script, patch_text
    from nbhelpers.presets.loading import list_presets

    presets, worst = list_presets("clones"), 0
    for count, script in enumerate(scripts):
        if count:
            typer.echo("")
        try:
            typer.echo(patch_text(patch_script(script, write=write), presets))
        except NbhelpersError as error:
            warn(error_text(error))
            worst = max(worst, error.exit_code)
    if worst:
        raise typer.Exit(worst)


def legacy_launcher(
    model: Model = "codegpt",
    num_gpus: NumGpus = None,
    gpu: GpuKey = None,
    count: GpuCount = 1,
    output_dir: OutputDir = Path("saved_models"),
    script: ScriptPath = Path("run.py"),
    data_dir: DataDir = Path("../dataset"),
    per_gpu_batch: PerGpu = None,
    global_batch: GlobalBatch = 64,
    write: WriteTo = None,
    force: Force = False,
) -> None:
    """Print or write a launcher of a legacy script for your GPUs, its batch split exactly."""
    from nbhelpers.legacy import make_launcher, recipe_of, script_facts
    from nbhelpers.presets.loading import list_presets

    if force and write is None:
        raise ConfigError(
            "--force needs --write.", fix="name the file, for instance --write run.sh"
        )
    recipe = recipe_of(model)
    cards, name, size_gib = _cards(num_gpus, gpu, count)
    facts = script_facts(script)
    _check_options(script, model, facts)
    launcher = make_launcher(
        model,
        cards,
        gpu_name=name,
        script=script,
        output_dir=output_dir,
        data_dir=data_dir,
        per_gpu_batch=per_gpu_batch,
        global_batch=global_batch,
        facts=facts,
        presets=tuple(list_presets("clones")),
    )
    if per_gpu_batch is None and 0 < size_gib < (recipe.measured_gib or TUNED_GIB):
        warn(_too_small(recipe, size_gib))
    for note in launcher.notes:
        warn(note)
    if write is None:
        typer.echo(launcher.text, nl=False)
        return
    from nbhelpers.legacy import write_launcher

    path = write_launcher(write, launcher, force=force)
    typer.echo(f"{path}: {launcher.plan.words()}")


def _cards(num_gpus: int | None, gpu: str | None, count: int) -> tuple[int, str, float]:
    """How many GPUs, their name and their memory, as far as it is known."""
    if num_gpus is not None and (gpu or count != 1):
        raise ConfigError("--num-gpus and --gpu exclude each other.", fix="use one of the two")
    if num_gpus is not None:
        return num_gpus, "", 0.0
    hardware = hardware_of(gpu, count)
    if hardware.gpu is None:
        raise HardwareError(
            f"There is no GPU to count: {hardware.reason}.",
            fix="write --num-gpus N, or --gpu KEY --count N",
        )
    name = hardware.gpu.name if hardware.is_uniform else ""
    return len(hardware.gpus), name, hardware.gpu.memory_total_gib


def _check_options(script: Path, model: str, facts: ScriptFacts | None) -> None:
    """Refuse a script of another model; say which other options it does not know."""
    from nbhelpers.legacy import passed_options, recipe_of

    recipe = recipe_of(model)
    missing = facts.lacks(passed_options(recipe)) if facts else []
    lengths = [name for name in missing if name in recipe.lengths]
    if lengths:
        raise ConfigError(
            f"{script} has no option --{lengths[0]}, so it is not the script of {model}.",
            fix="name the model of this script with --model, or another script with --script",
        )
    if missing:
        options = ", ".join(f"--{name}" for name in missing)
        text = f"{script} has no option {options}, and refuses what it does not know."
        warn(f"{text} Fix: delete these lines of the launcher.")


def _too_small(recipe: Recipe, size_gib: float) -> str:
    known = (
        f"{recipe.measured_gib} GiB were measured"
        if recipe.measured_gib
        else "tuned on 48 GB cards"
    )
    return (
        f"{recipe.per_gpu_batch} pairs per GPU are meant for {TUNED_GIB:.0f} GiB and more "
        f"({known}); this GPU has {size_gib:.0f} GiB. Add for instance --per-gpu-batch 2."
    )
