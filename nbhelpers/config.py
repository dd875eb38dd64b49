"""Presets from YAML; with `config_yaml`, the only module that reads YAML.

A preset is `configs/<job>/base.yaml` plus one thin overlay. Order of precedence: base, overlay,
overrides. Every value remembers where it came from, and all problems are reported at once.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nbhelpers.checks import (
    MODEL_ALIASES,
    Problem,
    check_precision,
    did_you_mean,
    raise_problems,
    resolve_model,
    settings_class,
    source_problems,
    type_problems,
    unknown_names,
)
from nbhelpers.config_yaml import configs_dir, read_with_lines, read_yaml, shown_path
from nbhelpers.errors import ConfigError
from nbhelpers.paths import absence, expanded, is_file, is_folder
from nbhelpers.presets import (
    EXPERIMENT_FIELDS,
    OVERRIDES,
    Candidate,
    Draft,
    Preset,
    build_preset,
    choose,
    share,
)

if TYPE_CHECKING:
    from nbhelpers.hardware import Hardware

__all__ = [
    "MODEL_ALIASES",
    "Preset",
    "configs_dir",
    "did_you_mean",
    "list_presets",
    "load_preset",
    "parameter_overrides",
    "read_yaml",
]

SEED = "seed-"  # presets that quote the seeds as they are
USER_FOLDERS = "NBHELPERS_CONFIGS"
_KEYS = {"about": str, "extends": str, "gpu": str, "gpus": int, "settings": dict, "why": dict}


def user_folders() -> list[Path]:
    """Return the folders in the environment variable NBHELPERS_CONFIGS (`configs/` in shape).

    Raises:
        ConfigError: One of them does not exist.
    """
    names = [name for name in os.environ.get(USER_FOLDERS, "").split(os.pathsep) if name]
    folders = [expanded(name, USER_FOLDERS) for name in names]
    for folder in folders:
        if not is_folder(folder):
            text = f"{USER_FOLDERS} names the folder {folder}, which {absence(folder)}."
            raise ConfigError(text, fix=f"correct or unset {USER_FOLDERS}")
    return folders


def list_presets(job: str) -> list[str]:
    """Return the names of all presets of a job, the user's own included, `base` left out."""
    return sorted(_preset_paths(job).keys() - {"base"})


def _preset_paths(job: str) -> dict[str, Path]:
    settings_class(job)
    found: dict[str, Path] = {}
    for folder in (*user_folders(), configs_dir()):
        for path in sorted((folder / job).glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def _find(job: str, name: str, *, beside: Path | None = None) -> Path:
    """The file of a preset: a path to a .yaml file, or a name in the known folders.

    A path in a file's `extends` is relative to that file.
    """
    if not isinstance(name, str):
        raise ConfigError(f"The preset is {name!r}, which is no name.", fix='write "auto"')
    folder = Path() if beside is None else beside.parent
    if name.endswith((".yaml", ".yml")):
        return folder / expanded(name, "the preset")
    if beside is not None and is_file(folder / f"{name}.yaml"):
        return folder / f"{name}.yaml"
    paths = _preset_paths(job)
    if name not in paths:
        hint = did_you_mean(name, ["auto", *paths])
        own = f"; your own: a path to a .yaml file, or {job}/NAME.yaml below {USER_FOLDERS}"
        raise ConfigError(f"There is no preset `{name}` for the job {job}.", fix=hint + own)
    return paths[name]


@dataclass(slots=True, kw_only=True)
class _File:
    """One preset file, with the problems found in its outer shape."""

    path: Path
    shown: str
    data: dict[str, Any]
    lines: dict[tuple[str, ...], int]
    problems: list[Problem] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, Any]:
        return self.data.get("settings") or {}

    @property
    def why(self) -> dict[str, str]:
        return self.data.get("why") or {}

    def place(self, *keys: str) -> str:
        line = self.lines.get(keys)
        return f"{self.shown}:{line}" if line else self.shown

    def problem(self, keys: tuple[str, ...], text: str, fix: str) -> None:
        self.problems.append(Problem(self.place(*keys), text, fix))


def _parse(job: str, path: Path) -> _File:
    data, lines = read_with_lines(path)
    file = _File(path=path, shown=shown_path(path), data=data, lines=lines)
    known = settings_class(job).model_fields
    for key, value in list(data.items()):
        if key not in _KEYS:
            at = "write it under `settings:`" if key in known else did_you_mean(key, _KEYS)
            file.problem((key,), f"there is no key `{key}` in a preset", at)
        elif type(value) is not _KEYS[key] and value is not None:
            text = f"`{key}` must be of type {_KEYS[key].__name__}; it is {value!r}"
            file.problem((key,), text, "see the shipped presets for the form")
            data[key] = None
    for name, text in file.why.items():
        if name not in known:
            text = f"`why` names no setting `{name}`"
            file.problem(("why", name), text, did_you_mean(name, known))
        elif not isinstance(text, str) or not text.strip():
            file.problem(("why", name), f"`why.{name}` is no text", "write a sentence in quotes")
    gpu, count = data.get("gpu"), data.get("gpus")
    if gpu is not None and gpu not in _gpu_facts():
        text = f"there is no gpu `{gpu}` in gpus.yaml"
        file.problem(("gpu",), text, did_you_mean(gpu, _gpu_facts()))
    if count is not None and count < 1:
        file.problem(("gpus",), f"gpus={count} is less than 1", "leave `gpus:` out without a GPU")
    return file


def load_preset(
    job: str,
    name: str = "auto",
    *,
    hardware: Hardware | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Preset:
    """Return the checked settings of a preset, with the origin of every value.

    Args:
        job: Such as `clones`.
        name: A preset's name, a path to a .yaml file, or `auto`: the one for this hardware, and
            `smoke` without a GPU.
        hardware: Chooses for `auto`, and is checked against a typed precision.
        overrides: Settings to change; None as a value means not given.

    Raises:
        ConfigError: Lists every problem with its file and line, and the fix.
    """
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    notes: tuple[str, ...] = ()
    if name == "auto":
        name, notes = choose(_candidates(job), hardware, given.get("num_gpus"))
    preset = _compose(job, _find(job, name), given, notes)
    if hardware is not None:
        check_precision(preset.settings, hardware)
        if "per_device_train_batch_size" not in given and not preset.name.startswith(SEED):
            num_gpus, visible = preset.settings.num_gpus, max(len(hardware.gpus), 1)
            preset = share(preset, visible if num_gpus == "auto" else num_gpus)
    return preset


def _compose(job: str, path: Path, given: dict[str, Any], notes: tuple[str, ...]) -> Preset:
    file = _parse(job, path)
    files = [file]
    if file.data.get("extends"):
        below = _parse(job, _find(job, file.data["extends"], beside=file.path))
        if below.data.get("extends"):
            text = f"`extends: {file.data['extends']}` names a file that extends another"
            file.problem(("extends",), text, "extend `base`: there is one level only")
        files = [below, file]
        if below.data.get("extends"):  # else every setting of the base would be called missing
            raise_problems(f"preset {job}/{path.stem}", [*below.problems, *file.problems])
    base = _with_defaults(job, files[0].settings)
    draft = Draft(values={}, provenance={}, places={}, why={})
    for layer in files:
        draft.values |= layer.settings
        draft.provenance |= dict.fromkeys(layer.settings, layer.shown)
        draft.places |= {key: layer.place("settings", key) for key in layer.settings}
        draft.why = {k: v for k, v in draft.why.items() if k not in layer.settings} | layer.why
    if len(files) == 2:
        _require_why(file, base)
    draft.values |= given
    draft.provenance |= dict.fromkeys(given, OVERRIDES)
    draft.places |= dict.fromkeys(given, OVERRIDES)
    draft.why = {key: text for key, text in draft.why.items() if key not in given}
    origin = SimpleNamespace(
        job=job,
        name=path.stem,
        notes=notes,
        gpu=file.data.get("gpu"),
        num_target_gpus=file.data.get("gpus") or 1,
        about=(file.data.get("about") or "").strip(),
        base=base,
    )
    problems = [problem for layer in files for problem in layer.problems]
    return build_preset(draft, origin=origin, problems=problems)


def _with_defaults(job: str, values: Mapping[str, Any]) -> dict[str, Any]:
    known = settings_class(job).model_fields
    defaults = {
        n: f.get_default(call_default_factory=True) for n, f in known.items() if not f.is_required()
    }
    base = defaults | {name: value for name, value in values.items() if name in known}
    if isinstance(base.get("model"), str):
        base["model"] = resolve_model(base["model"])
    return base


def _require_why(file: _File, base: Mapping[str, Any]) -> None:
    for name in EXPERIMENT_FIELDS:
        value = file.settings.get(name, base.get(name))
        if value != base.get(name) and name not in file.why:
            text = f"{name} {base.get(name)!r} -> {value!r} changes the experiment without a reason"
            file.problem(("settings", name), text, f"add `{name}: …` under `why:`")


@functools.cache
def _gpu_facts() -> dict[str, tuple[int, tuple[int, int]]]:
    """Memory and compute capability by key of gpus.yaml."""
    return {
        key: (facts["memory_total_bytes"], tuple(facts["compute_capability"]))
        for key, facts in read_yaml(configs_dir() / "gpus.yaml").items()
    }


def _candidates(job: str) -> list[Candidate]:
    """The presets that `auto` may choose: those that name a GPU and do not quote a seed."""
    facts = _gpu_facts()
    found = []
    for name, path in _preset_paths(job).items():
        data = read_yaml(path)
        gpu, count = data.get("gpu"), data.get("gpus") or 1
        if isinstance(gpu, str) and gpu in facts and not name.startswith(SEED):
            count = count if type(count) is int else 1  # chosen or not, `_parse` says what is wrong
            found.append(Candidate(name, gpu, count, *facts[gpu]))
    return found


def parameter_overrides(job: str, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Turn a notebook's parameters into the name of a preset and the overrides.

    "" and None mean that the preset decides; `run_dir` is no setting and is left out. Types are
    strict: True is no integer, and the text "3" is none either.

    Raises:
        ConfigError: Lists every unknown name, wrong type and value out of range.
    """
    given = {key: value for key, value in parameters.items() if value is not None and value != ""}
    places = dict.fromkeys(given, "parameters")
    problems = unknown_names(job, places, also=("preset", "run_dir"))
    for key in ("preset", "run_dir"):
        if not isinstance(given.get(key, ""), str):
            text = f"`{key}` must be a text; it is {given[key]!r}"
            problems.append(Problem("parameters", text, f'write {key} = "…"'))
    name = given.get("preset", "auto")
    if isinstance(name, str) and name != "auto":
        try:
            _find(job, name)
        except ConfigError as error:
            problems.append(Problem("parameters", error.message.rstrip("."), error.fix))
    known = settings_class(job).model_fields
    overrides = {key: value for key, value in given.items() if key in known}
    wrong = type_problems(job, overrides, places)
    problems += [problem for problem in wrong if problem.where == "parameters"]
    problems += source_problems(overrides, places)
    raise_problems("the notebook's parameters", problems)
    return name, overrides
