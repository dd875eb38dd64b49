"""Launchers for the legacy scripts: the seeds' settings, split exactly over the GPUs at hand."""

from __future__ import annotations

import ast
import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nbhelpers.common.files import absence, is_file, kind_of
from nbhelpers.errors import ConfigError
from nbhelpers.legacy.faults import intervals
from nbhelpers.legacy.patch import patch_script
from nbhelpers.legacy.result import ALREADY, hints_of, train_command
from nbhelpers.legacy.source import Script, last_name, read_script
from nbhelpers.plan import BatchPlan, split_batch, valid_choices

GLOBAL_BATCH, EPOCHS, SAVE_STEPS = 64, 2, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings of one script, as its users tuned them on 48 GB cards.

    Source: seeds 001 (CodeGPT) and 002 (GraphCodeBERT); CodeXGLUE's README (CodeBERT).
    """

    title: str
    hub_id: str
    lengths: Mapping[str, int]
    log: str
    file: str = "run_auto.sh"
    model_type: str = "roberta"
    per_gpu_batch: int = 16
    measured_gib: float = 0.0


RECIPES = {
    "codegpt": Recipe(
        title="CodeGPT",
        hub_id="microsoft/CodeGPT-small-java-adaptedGPT2",
        lengths={"block_size": 1024},
        log="train_optimized.log",
        file="run_optimized.sh",
        model_type="gpt2",
        per_gpu_batch=8,
        measured_gib=37.8,  # fp32, eager, padded to 1,024: one H200
    ),
    "graphcodebert": Recipe(
        title="GraphCodeBERT",
        hub_id="microsoft/graphcodebert-base",
        lengths={"code_length": 400, "data_flow_length": 128},
        log="train_auto_graphcodebert.log",
    ),
    "codebert": Recipe(
        title="CodeBERT",
        hub_id="microsoft/codebert-base",
        lengths={"block_size": 400},
        log="train_auto_codebert.log",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFacts:
    """What a script shows: whether it is repaired, its options, the faults that stay.

    `refusal` says why patch-legacy leaves it alone, empty where it does not; `interval_line` sets
    an interval that accumulation never meets, 0 for none.
    """

    is_patched: bool
    is_clones: bool
    refusal: str
    options: frozenset[str]
    interval_line: int
    faults: tuple[str, ...]

    def lacks(self, wanted: list[str]) -> list[str]:
        """Return the options that the script does not declare; argparse takes unique beginnings."""
        if not self.options:  # declared in another file
            return []
        return [name for name in wanted if not any(o.startswith(name) for o in self.options)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A launcher as text, with the name that its users know and the split of its batch.

    `notes` is what its header says of the script, which the command says on stderr as well.
    """

    name: str
    text: str
    plan: BatchPlan
    notes: tuple[str, ...] = ()


def recipe_of(model: str) -> Recipe:
    """Return the settings of a model's script.

    Raises:
        ConfigError: The model is none of the three.
    """
    if model not in RECIPES:
        text = f"--model {model!r} has no legacy script."
        raise ConfigError(text, fix=f"write one of {', '.join(RECIPES)}")
    return RECIPES[model]


def script_facts(path: Path) -> ScriptFacts | None:
    """Return what a script shows; None where it is not at hand or does not parse."""
    if not is_file(path):
        return None
    patch, refusal = None, ""
    try:
        script = read_script(path)
    except ConfigError:
        return None
    try:
        patch = patch_script(path)
    except ConfigError as error:
        refusal = error.message
    return ScriptFacts(
        is_patched=patch is not None and patch.status == ALREADY,
        is_clones=hints_of(script).is_clones,
        refusal=refusal,
        options=frozenset().union(*map(_options, [script, *_beside(path, script)])),
        interval_line=next((value.lineno for value, _ in intervals(script)), 0),
        faults=tuple(
            f"{each.name} (line {', '.join(map(str, each.lines))})"
            for each in (patch.faults if patch else ())
        ),
    )


def _beside(path: Path, script: Script) -> Iterator[Script]:
    """The modules beside a script that it imports: `configs.py` may hold the parser."""
    for node in script.nodes:
        if isinstance(node, ast.ImportFrom) and node.module and "." not in node.module:
            file = path.with_name(f"{node.module}.py")
            if is_file(file):
                with contextlib.suppress(ConfigError):
                    yield read_script(file)


def _options(script: Script) -> set[str]:
    return {
        part.value.lstrip("-").replace("-", "_")
        for call in script.calls
        if last_name(call) == "add_argument"
        for part in call.args
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


def split_for(recipe: Recipe, num_gpus: int, per_gpu: int | None, global_batch: int) -> BatchPlan:
    """Return the exact split of a launcher's batch.

    >>> split_for(RECIPES["codegpt"], 2, None, 64).formula()
    '8 x 4 x 2 = 64'

    Raises:
        ConfigError: It does not come out even; the options that do are listed.
    """
    size = recipe.per_gpu_batch if per_gpu is None else per_gpu
    try:
        return split_batch(global_batch, size, num_gpus)
    except ConfigError as error:
        if min(global_batch, size, num_gpus) < 1:
            raise
        valid = valid_choices(global_batch, size, num_gpus)
        choices = (
            ("--num-gpus", valid.world_sizes),
            ("--per-gpu-batch", valid.per_device_sizes),
            ("--global-batch", valid.global_batch_sizes),
        )
        texts = [f"{name} {' or '.join(map(str, values))}" for name, values in choices if values]
        texts[-1] += " (changes the experiment)"
        raise ConfigError(error.message, fix="write one of: " + "; ".join(texts)) from error


def make_launcher(
    model: str,
    num_gpus: int,
    *,
    gpu_name: str = "",
    script: Path = Path("run.py"),
    output_dir: Path = Path("saved_models"),
    data_dir: Path = Path("../dataset"),
    per_gpu_batch: int | None = None,
    global_batch: int = GLOBAL_BATCH,
    facts: ScriptFacts | None = None,
    presets: tuple[str, ...] = (),
) -> Launcher:
    """Return the launcher of a model's legacy script for a number of GPUs of one machine.

    Args:
        model: codegpt, graphcodebert or codebert.
        num_gpus: Processes, one per GPU.
        gpu_name: Named in the header.
        script: The training script, from where the launcher is started.
        output_dir: For weights and the log.
        data_dir: Holds train.txt, valid.txt and test.txt.
        per_gpu_batch: Pairs per GPU and micro-step; default: as the script's users had it.
        global_batch: Pairs per optimizer step.
        facts: What the script shows, if it is at hand.
        presets: The presets of the job `clones`, to name the one with the same settings.

    Raises:
        ConfigError: The batch does not split, or a path cannot stand in a script.
    """
    recipe = recipe_of(model)
    for name, path in (("script", script), ("output-dir", output_dir), ("data-dir", data_dir)):
        if not str(path).isprintable() or str(path).startswith("-"):
            raise ConfigError(
                f"--{name} {str(path)!r} cannot stand in a launcher.",
                fix="name a path without line breaks, control characters and a leading dash",
            )
    plan = split_for(recipe, num_gpus, per_gpu_batch, global_batch)
    quoted = shlex.quote(str(script))
    notes = _notes(quoted, plan, facts)
    cards = f"{num_gpus} GPU{'s' * (num_gpus > 1)}" + (f" ({gpu_name})" if gpu_name else "")
    header = [
        f"{recipe.title} on BigCloneBench with the legacy script, for {cards}:",
        f"{plan.words()}.",
        "Written by nbhelpers legacy-launcher. Start it in the folder that the paths below start "
        "from.",
        "",
        "The script computes in fp32: --mixed_precision is for accelerate, which it does not use.",
        "",
        *notes,
    ]
    if facts is None or facts.is_clones:
        header += ["", f"Our own training: {train_command(model, presets)}"]
    text = _LAUNCHER.format(
        header="\n".join(f"# {line}".rstrip() for line in header),
        script=quoted,
        data_dir=shlex.quote(str(data_dir)),
        output_dir=shlex.quote(str(output_dir)),
        log=recipe.log,
        plan=plan,
        formula=plan.formula(),
        one_gpu=_ONE_GPU if num_gpus == 1 else "",
        command=_command(recipe, num_gpus),
    )
    return Launcher(name=recipe.file, text=text, plan=plan, notes=tuple(notes))


_LAUNCHER = """\
#!/usr/bin/env bash
{header}

set -euo pipefail  # a failure of the training ends the launcher, in spite of tee

SCRIPT={script}
DATA_DIR={data_dir}
OUTPUT_DIR={output_dir}
LOG="$OUTPUT_DIR/{log}"
NUM_GPUS={plan.world_size}
PER_GPU_BATCH={plan.per_device_train_batch_size}
ACCUMULATION_STEPS={plan.gradient_accumulation_steps}  # {formula}

{one_gpu}mkdir -p -- "$OUTPUT_DIR"

{command}
"""
_ONE_GPU = """\
# One process without a rank takes every GPU it sees (DataParallel): show it one.
VISIBLE="${CUDA_VISIBLE_DEVICES-0}"
export CUDA_VISIBLE_DEVICES="${VISIBLE%%,*}"

"""
_COMMAND = """\
accelerate launch{multi_gpu}
--num_processes "$NUM_GPUS"
--num_machines 1
--mixed_precision no
--dynamo_backend no
"$SCRIPT"
--output_dir="$OUTPUT_DIR"
--model_type={recipe.model_type}
--config_name={recipe.hub_id}
--model_name_or_path={recipe.hub_id}
--tokenizer_name={recipe.hub_id}
--do_train
--do_test
--train_data_file="$DATA_DIR/train.txt"
--eval_data_file="$DATA_DIR/valid.txt"
--test_data_file="$DATA_DIR/test.txt"
{lengths}
--train_batch_size "$PER_GPU_BATCH"
--gradient_accumulation_steps "$ACCUMULATION_STEPS"
--eval_batch_size 32
--epoch {epochs}
--learning_rate 5e-5
--max_grad_norm 1.0
--evaluate_during_training
--save_steps {save_steps}
--save_total_limit 2
--overwrite_output_dir
--seed 3
2>&1 | tee -- "$LOG"
"""


def _command(recipe: Recipe, num_gpus: int) -> str:
    """The start of the script, an option a line."""
    text = _COMMAND.format(
        multi_gpu="\n--multi_gpu" if num_gpus > 1 else "",
        recipe=recipe,
        lengths="\n".join(f"--{name} {value}" for name, value in recipe.lengths.items()),
        epochs=EPOCHS,
        save_steps=SAVE_STEPS,
    )
    return " \\\n    ".join(text.splitlines())


def passed_options(recipe: Recipe) -> list[str]:
    """Return the names of all options that a launcher passes to the script.

    >>> "data_flow_length" in passed_options(RECIPES["graphcodebert"])
    True
    """
    return re.findall(r" --(\w+)", _command(recipe, 1).partition('"$SCRIPT"')[2])


def _notes(quoted: str, plan: BatchPlan, facts: ScriptFacts | None) -> list[str]:
    """What is to be known of the script before the launcher starts it."""
    patch = f"nbhelpers patch-legacy {quoted} --write"
    if facts is None:
        return [f"{quoted} is not at hand. Before the first start: {patch}"]
    if facts.refusal:
        return [f"Do not start it on several GPUs. {facts.refusal}"]
    unpatched = f"{quoted} is not patched yet. Before the first start: {patch}"
    notes = [] if facts.is_patched else [unpatched]
    if facts.interval_line and plan.gradient_accumulation_steps > EPOCHS:
        notes.append(
            f"line {facts.interval_line} sets the interval to an epoch's batches: unpatched, with "
            f"{plan.gradient_accumulation_steps} micro-steps and {EPOCHS} epochs, nothing is saved"
        )
    return [*notes, *(f"What stays: {fault}" for fault in facts.faults)]


def write_launcher(path: Path, launcher: Launcher, *, force: bool) -> Path:
    """Write an executable launcher and return its path; in a folder it takes its usual name.

    Raises:
        ConfigError: Something is there already (without `force`), or it cannot be written.
    """
    path = path / launcher.name if path.is_dir() else path
    if kind_of(path) not in ("", "file"):
        raise ConfigError(f"{path} {absence(path)}.", fix="name a file")
    try:
        if force:  # a new file, because bash may be reading the old one
            path.unlink(missing_ok=True)
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(launcher.text)
        path.chmod(path.stat().st_mode | 0o111)
    except FileExistsError as error:
        text = f"{path} exists already. Nothing was written."
        raise ConfigError(text, fix="name another file, or add --force to replace it") from error
    except OSError as error:
        text = f"{path} cannot be written ({error.strerror or error})."
        raise ConfigError(text, fix="check the folder and its permissions") from error
    return path
