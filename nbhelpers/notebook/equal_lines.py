"""The lines equal to a choice: for the parameters cell, Python, papermill and the shell."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nbhelpers.notebook.choice import Resolved
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.loading import ADAPTERS
from nbhelpers.presets.parameters import MORE, override_words

if TYPE_CHECKING:
    from nbhelpers.presets.preset import Preset

BUDGET_NOTEBOOK = "notebooks/00_gpu_and_budget.ipynb"
WISHES = {"price_per_hour": "--price", "max_hours": "--max-hours"}  # as options of the shell
DECLARED_BUDGET = ("model", "per_device_train_batch_size", "seq_len")


def parameters_of(resolved: Resolved, *, of_job: bool = False) -> dict[str, Any]:
    """Return the choice as parameters of the notebook that the picker stands in.

    Args:
        resolved: The choice.
        of_job: Take the notebook that trains, wherever the picker stands.
    """
    choice, values = resolved.choice, {}
    is_budget = choice.any_job and not of_job
    own = DECLARED_BUDGET if is_budget else JOBS[choice.job].parameters
    if is_budget:
        values |= {"gpu": planned_gpu(resolved) or "here"}
        values |= {"gpu_count": count} if (count := len(resolved.hardware.gpus)) > 1 else {}
        values["job"] = choice.job
    values["preset"] = choice.preset if _is_file(choice.preset) else resolved.preset.name
    if JOBS[choice.job].has_adapters:
        values[ADAPTERS] = choice.adapters or resolved.preset.settings.adapter
    values |= {name: value for name, value in choice.overrides.items() if name in own}
    if more := {name: v for name, v in choice.overrides.items() if name not in own}:
        values[MORE] = more
    return values | choice.wishes if is_budget else values


def planned_gpu(resolved: Resolved) -> str | None:
    """Return the key of the GPU that the choice plans for; None for what is really here."""
    gpu = resolved.hardware.gpu if resolved.hardware.is_planned else None
    return gpu.key if gpu is not None else None


def _is_file(preset: str) -> bool:
    return preset.endswith((".yaml", ".yml"))


def parameter_lines(resolved: Resolved) -> str:
    """Write the choice for the cell under `Parameters`.

    Returns:
        One assignment a line, in the notebook's order.
    """
    return "\n".join(f"{name} = {_quoted(v)}" for name, v in parameters_of(resolved).items())


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def python_lines(resolved: Resolved) -> str:
    """Write the choice as calls of this package."""
    preset = _quoted(parameters_of(resolved)["preset"])
    count = f", {len(resolved.hardware.gpus)}" if len(resolved.hardware.gpus) > 1 else ""
    key = planned_gpu(resolved)
    where = f'nb.plan_hardware("{key}"{count})' if key else "nb.detect_hardware()"
    changed = _overrides(resolved)
    options = f", overrides={changed!r}" if changed else ""
    return (
        f"hardware = {where}\n"
        f'chosen = nb.load_preset("{resolved.choice.job}", {preset}, hardware=hardware{options})\n'
        "plan = nb.plan_batch(chosen, hardware)\n"
        "budget = nb.predict_memory(chosen, plan, hardware)"
    )


def _overrides(resolved: Resolved) -> dict[str, Any]:
    """The overrides of a choice; one adapter that is not the preset's own is an override too."""
    changed: dict[str, Any] = dict(resolved.choice.overrides)
    if len(resolved.variants) == 1:
        (variant,) = resolved.variants.values()
        for name in ("method", "lora_r", "lora_alpha", "lora_target_modules"):
            value = getattr(variant.settings, name, None)
            if value != getattr(resolved.preset.settings, name, None):
                changed[name] = value
    return changed


def papermill_lines(resolved: Resolved) -> str:
    """Write the choice as papermill's command for the notebook that trains.

    Where the picker stands in the budget notebook, the command for that one comes first.
    """
    notebook = JOBS[resolved.choice.job].notebook
    job = _papermill(notebook, parameters_of(resolved, of_job=True)) if notebook else ""
    if not resolved.choice.any_job:
        return job
    return f"{_papermill(BUDGET_NOTEBOOK, parameters_of(resolved))}\n{job}".rstrip()


def _papermill(notebook: str, parameters: Mapping[str, Any]) -> str:
    words = ["papermill", "--cwd", ".", notebook, "out.ipynb"]
    for name, value in parameters.items():
        # papermill reads plain words; a list, a mapping or what looks like another value is YAML
        is_plain = isinstance(value, str | int | float) and _reads_back(value)
        words += ["-p", name, str(value)] if is_plain else ["-y", json.dumps({name: value})]
    return shlex.join(words)


def _reads_back(value: Any) -> bool:
    """Whether papermill's `-p` keeps the value: it reads True, None and numbers out of words."""
    if not isinstance(value, str):
        return True
    try:
        float(value)
    except ValueError:
        return value not in ("True", "False", "None", "")
    return False


def shell_lines(resolved: Resolved) -> str:
    """Write the choice as commands: the budget for the chosen GPU, then the run on this machine."""
    preset, job = loaded(resolved), resolved.choice.job
    name = str(parameters_of(resolved)["preset"])
    settings = override_words(preset)
    budget = ["nbhelpers", "budget", "--job", job, "--preset", name]
    if key := planned_gpu(resolved):
        count = len(resolved.hardware.gpus)
        budget += ["--gpu", key, *(["--count", str(count)] if count > 1 else [])]
    for wish, value in resolved.choice.wishes.items():
        budget += [WISHES[wish], str(value)]
    train = ["nbhelpers", "train", job, "--preset", name]
    if len(resolved.variants) > 1:
        train = ["nbhelpers", "study", "--preset", name, "--adapters", resolved.choice.adapters]
    return "\n".join(shlex.join([*words, *settings]) for words in (budget, train))


def loaded(resolved: Resolved) -> Preset:
    """Return the one preset that runs; of a study the preset that its runs share."""
    return (
        next(iter(resolved.variants.values())) if len(resolved.variants) == 1 else resolved.preset
    )


def all_lines(resolved: Resolved) -> Mapping[str, str]:
    """Return every form of the choice by its name."""
    return {
        "parameters cell": parameter_lines(resolved),
        "Python": python_lines(resolved),
        "papermill": papermill_lines(resolved),
        "shell": shell_lines(resolved),
    }
