"""The lines equal to a choice: for the parameters cell, Python, papermill and the shell."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.common.files import is_file
from nbhelpers.common.processes import shell_command
from nbhelpers.notebook.choice import Answer, Choice
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.loading import ADAPTERS
from nbhelpers.presets.parameters import MORE, override_words
from nbhelpers.presets.preset import OVERRIDES

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.plan import BatchPlan
    from nbhelpers.presets.preset import Preset

OPENED_VARIABLE = "JPY_SESSION_NAME"  # the notebook of this kernel, by jupyter_server
BUDGET_NOTEBOOK = "notebooks/00_gpu_and_budget.ipynb"
WISHES = {"price_per_hour": "--price", "max_hours": "--max-hours"}  # as options of the shell
DECLARED_BUDGET = ("model", "per_device_train_batch_size", "seq_len")
ADAPTER_SETTINGS = ("method", "lora_r", "lora_alpha", "lora_target_modules")


def all_lines(answer: Answer) -> dict[str, str]:
    """Return every form of the choice by its name."""
    return {
        "parameters cell": parameter_lines(answer),
        "Python": python_lines(answer),
        "papermill": papermill_lines(answer),
        "shell": shell_lines(answer),
    }


def budget_lines(preset: Preset, plan: BatchPlan, hardware: Hardware) -> list[str]:
    """Return the lines that mean the same as a prepared run in Python, and that start it."""
    changed = [n for n, where in preset.provenance.items() if where.startswith(OVERRIDES)]
    values = preset.settings.model_dump(mode="json")
    # Of method and rank a notebook makes one parameter, `adapters`.
    own = {name: values[name] for name in changed if name not in ("method", "lora_r")}
    facts = {"hardware": hardware, "preset": preset, "plan": plan}
    answers = [
        Answer(
            choice=Choice(job=preset.job, preset=preset.name, overrides=overrides),
            variants={preset.name: preset},
            **facts,
        )
        for overrides in ({name: values[name] for name in changed}, own)
    ]
    python = f"import nbhelpers as nb\n{python_lines(answers[0])}"
    return ["In Python:", python, "By papermill:", papermill_lines(answers[1])]


def parameters_of(answer: Answer, *, of_job: bool = False) -> dict[str, Any]:
    """Return the choice as parameters of the notebook that the picker stands in.

    Args:
        answer: The choice with its objects.
        of_job: Take the notebook that trains, wherever the picker stands.
    """
    choice, values = answer.choice, {}
    is_budget = choice.any_job and not of_job
    own = DECLARED_BUDGET if is_budget else JOBS[choice.job].parameters
    if is_budget:
        values["gpu"] = _planned_gpu(answer) or "here"
        if (count := len(answer.hardware.gpus)) > 1:
            values["gpu_count"] = count
        values["job"] = choice.job
    values["preset"] = _preset(answer)
    if choice.quick != "off":
        values["quick"] = "on" if answer.preset.quick else "off"
    if JOBS[choice.job].has_adapters:
        values[ADAPTERS] = choice.adapters or answer.preset.settings.adapter
    values |= {name: value for name, value in choice.overrides.items() if name in own}
    if more := {name: v for name, v in choice.overrides.items() if name not in own}:
        values[MORE] = more
    return values | choice.wishes if is_budget else values


def _planned_gpu(answer: Answer) -> str | None:
    """The planned GPU as `plan_hardware` takes it; None for what is really here."""
    gpu = answer.hardware.gpu if answer.hardware.is_planned else None
    return gpu.key or gpu.name if gpu is not None else None


def _preset(answer: Answer) -> str:
    """The preset's name, for `auto` what it means; a file of one's own as it was typed."""
    preset = answer.choice.preset
    return preset if preset.endswith((".yaml", ".yml")) else answer.preset.name


def parameter_lines(answer: Answer) -> str:
    """Write the choice for the cell under `Parameters`: one assignment a line, in its order."""
    return "\n".join(f"{name} = {_quoted(v)}" for name, v in parameters_of(answer).items())


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def python_lines(answer: Answer) -> str:
    """Write the choice as calls of this package."""
    count = f", {len(answer.hardware.gpus)}" if len(answer.hardware.gpus) > 1 else ""
    key = _planned_gpu(answer)
    where = f'nb.plan_hardware("{key}"{count})' if key else "nb.detect_hardware()"
    changed: dict[str, Any] = dict(answer.choice.overrides)
    ours, own = answer.run_preset.settings, answer.preset.settings
    for name in ADAPTER_SETTINGS:  # an adapter that is not the preset's own is an override too
        if (value := getattr(ours, name, None)) != getattr(own, name, None):
            changed[name] = value
    options = f", overrides={changed!r}" if changed else ""
    options += ', quick="on"' if answer.preset.quick else ""
    preset = f'"{answer.choice.job}", {_quoted(_preset(answer))}'
    return (
        f"hardware = {where}\n"
        f"chosen = nb.load_preset({preset}, hardware=hardware{options})\n"
        "plan = nb.plan_batch(chosen, hardware)\n"
        "budget = nb.predict_memory(chosen, plan, hardware)"
    )


def papermill_lines(answer: Answer) -> str:
    """Write the choice as papermill's command for the notebook that trains.

    Where the picker stands in the budget notebook, the command for that one comes first.
    """
    notebook = JOBS[answer.choice.job].notebook
    any_job = answer.choice.any_job
    place = _place(notebook, is_open=not any_job)
    job = _papermill(place, parameters_of(answer, of_job=True)) if notebook else ""
    if not any_job:
        return job
    place = _place(BUDGET_NOTEBOOK, is_open=True)
    return f"{_papermill(place, parameters_of(answer))}\n{job}".rstrip()


def _place(notebook: str, *, is_open: bool) -> str:
    """Where a notebook lies: in a clone, or alone, under another name perhaps if it is open."""
    opened = Path(os.environ.get(OPENED_VARIABLE, "")).name if is_open else ""
    for name in (notebook, Path(notebook).name, opened):
        if name.endswith(".ipynb") and is_file(name):
            return name
    return notebook


def _papermill(notebook: str, parameters: Mapping[str, Any]) -> str:
    words = ["papermill", "--cwd", ".", notebook, "out.ipynb"]
    for name, value in parameters.items():
        # papermill reads plain words; a list, a mapping or what looks like another value is YAML
        is_plain = isinstance(value, int | float) or (isinstance(value, str) and _is_word(value))
        words += ["-p", name, str(value)] if is_plain else ["-y", json.dumps({name: value})]
    return shlex.join(words)


def _is_word(text: str) -> bool:
    """Whether papermill's `-p` keeps a text: it reads True, None and numbers out of words."""
    try:
        float(text)
    except ValueError:
        return text not in ("True", "False", "None", "")
    return False


def shell_lines(answer: Answer) -> str:
    """Write the choice as commands: the budget for the chosen GPU, then the run on this machine."""
    job, name = answer.choice.job, _preset(answer)
    command = shlex.split(shell_command())
    budget = [*command, "budget", "--job", job, "--preset", name]
    if key := _planned_gpu(answer):
        count = len(answer.hardware.gpus)
        budget += ["--gpu", key, *(["--count", str(count)] if count > 1 else [])]
    for wish, value in answer.choice.wishes.items():
        budget += [WISHES[wish], str(value)]
    train = [*command, "train", job, "--preset", name]
    if len(answer.variants) > 1:
        train = [*command, "study", "--preset", name, "--adapters", answer.choice.adapters]
    settings = override_words(answer.run_preset)
    return "\n".join(shlex.join([*words, *settings]) for words in (budget, train))
