"""What was found in a script and done to it, as an object and as the report of patch-legacy."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nbhelpers.legacy.faults import Fault
from nbhelpers.legacy.source import Script, last_name

WOULD, DONE, ALREADY = "would patch", "patched", "already patched"
WEIGHTS = "checkpoint-best-f1/model.bin"


@dataclass(frozen=True, slots=True)
class Hints:
    """What is known of a script's job; `model` is empty where the script does not show it."""

    is_clones: bool
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptPatch:
    """What was found in a script and what was, or would be, done to it.

    `repairs` says in words what each edit does, with the line of the script as it was; `diff` is a
    unified diff, empty for a script that is already patched.
    """

    path: Path
    target: Path
    status: str
    repairs: tuple[str, ...]
    notes: tuple[str, ...]
    diff: str
    backup: Path | None
    faults: tuple[Fault, ...]
    hints: Hints

    def __repr__(self) -> str:
        return f"ScriptPatch({self.path}: {self.status}; {len(self.faults)} faults remain)"


def hints_of(script: Script) -> Hints:
    """Return what a script shows of its job: our name for its model.

    Source: the features of the scripts of CodeXGLUE, GraphCodeBERT and ISSTA22-CodeStudy. Clone
    scripts call the pair's ids url1 and url2. GraphCodeBERT alone has a data flow, CodeGPT ends a
    function with the end token, CodeBERT begins it with the class token. UniXcoder, which is none
    of them, adds a token <encoder-only>.
    """
    names = {last_name(node) for node in script.nodes}
    values = [node.value for node in script.nodes if isinstance(node, ast.Constant)]
    texts = [value for value in values if isinstance(value, str)]
    is_clones = {"url1", "url2"} <= names
    is_other = any(text.startswith("<encoder") for text in texts)
    model = _model(names) if is_clones and not is_other else ""
    return Hints(is_clones, model)


def _model(names: set[str]) -> str:
    if "data_flow_length" in names:
        return "graphcodebert"
    if {"bos_token", "eos_token"} <= names and "cls_token" not in names:
        return "codegpt"
    return "codebert" if {"cls_token", "sep_token"} <= names else ""


def train_command(model: str, presets: Sequence[str] = ()) -> str:
    """Return our command for a model, with the preset that quotes the seeds where one is there.

    >>> train_command("graphcodebert", ["t4", "seed-graphcodebert"])
    'nbhelpers train clones --preset seed-graphcodebert -o data=FOLDER'
    >>> train_command("codebert", ["t4", "seed-graphcodebert"])
    'nbhelpers train clones -o model=codebert -o data=FOLDER'
    """
    preset = {"codegpt": "seed-2x-rtx6000ada", "graphcodebert": "seed-graphcodebert"}.get(model)
    chosen = f"--preset {preset}" if preset in presets else f"-o model={model or 'MODEL'}"
    return f"nbhelpers train clones {chosen} -o data=FOLDER"


def patch_text(patch: ScriptPatch, presets: Sequence[str] = ()) -> str:
    """Return the whole report of a script.

    Args:
        patch: What was found and done.
        presets: The presets of the job `clones`; the one that quotes the seeds is offered.
    """
    note = f"; the old script is {patch.backup}" if patch.backup else ""
    note = " (nothing is written without --write)" if patch.status == WOULD else note
    parts = [f"{patch.path}: {patch.status}{note}", *(f"  {each}" for each in patch.repairs)]
    parts += [f"  note: {note}" for note in patch.notes]
    if patch.diff:
        parts += ["", patch.diff.rstrip("\n")]
    faults = [f"What the repair leaves in {patch.path.name}:"] if patch.faults else []
    for fault in patch.faults:
        where = f"line{'s' * (len(fault.lines) > 1)} {', '.join(map(str, fault.lines))}"
        faults += [f"  {where}: {fault.name}", f"      {fault.harm}"]
    instead = _instead(patch.hints, presets) if patch.hints.is_clones else []
    return "\n".join(
        [*parts, *(["", *faults] if faults else []), *(["", *instead] if instead else [])]
    )


def _instead(hints: Hints, presets: Sequence[str]) -> list[str]:
    """Our commands that replace the script, and rescue the score of what it has trained."""
    unknown = "  MODEL is codegpt, graphcodebert or codebert: the script does not show which."
    return [
        "Instead of the script (every pair predicted once, in order, on any number of GPUs):",
        f"  {train_command(hints.model, presets)}",
        "To score a model that the script has already trained:",
        f"  nbhelpers evaluate clones --checkpoint OUTPUT_DIR/{WEIGHTS} "
        f"--model {hints.model or 'MODEL'} --data FOLDER",
        *([] if hints.model else [unknown]),
        *_lengths(hints.model),
    ]


def _lengths(model: str) -> list[str]:
    """What else decides the scores of weights that a script saved."""
    advice = "  with the length it was trained with, where that is another than the preset's: "
    if model != "graphcodebert":
        return [f"{advice}-o seq_len=BLOCK_SIZE"]
    return [
        f"{advice}-o code_length=N -o data_flow_length=M",
        "  and, as the script's parser kept string literals whole: -o grammar_compat=checkpoint",
    ]
