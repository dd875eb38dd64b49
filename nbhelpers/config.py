"""Presets from YAML; with `config_files` and `config_yaml`, the only modules that read YAML.

A preset is `configs/<job>/base.yaml` plus one thin overlay. Each file may say under `models:` what
differs for one model. Order of precedence: the base's settings, the overlay's, the base's for this
model, the overlay's for this model, overrides; where the overlay names the model itself, its
settings were written for it and come after the base's for this model. Every value remembers where
it came from, and all problems are reported at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nbhelpers.checks import (
    Problem,
    raise_problems,
    resolve_model,
    respelt,
    settings_class,
    source_problems,
    type_problems,
    unknown_names,
)
from nbhelpers.checks_gpu import check_precision
from nbhelpers.config_files import Layer, PresetFile, gpu_facts, parse_file, require_why
from nbhelpers.config_yaml import configs_dir, read_yaml
from nbhelpers.errors import ConfigError
from nbhelpers.job_specs import JOBS
from nbhelpers.paths import absence, expanded, is_file, is_folder
from nbhelpers.presets import (
    OVERRIDES,
    Candidate,
    Draft,
    Preset,
    build_preset,
    choose,
    share,
)
from nbhelpers.study_adapters import parse_variants
from nbhelpers.suggest import did_you_mean

if TYPE_CHECKING:
    from nbhelpers.hardware import Hardware

__all__ = [
    "Preset",
    "configs_dir",
    "list_presets",
    "load_preset",
    "parameter_overrides",
    "read_yaml",
]

SEED = "seed-"  # presets that quote the seeds as they are
# Parameters of every notebook, and of those that study adapters, that are no settings.
PARAMETERS = ("preset", "run_dir")
ADAPTERS = "adapters"
FEW_LACKING = 3  # missing settings that are told one by one
USER_FOLDERS = "NBHELPERS_CONFIGS"


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
    given, problems = respelt(given, lambda _: OVERRIDES)
    raise_problems("the overrides", problems)
    notes: tuple[str, ...] = ()
    if name == "auto":
        name, notes = choose(_candidates(job), hardware, given.get("num_gpus"))
    preset = _compose(job, _find(job, name), given, notes)
    if hardware is not None:
        check_precision(preset.settings, hardware, preset)
        num_gpus, visible = preset.settings.num_gpus, max(len(hardware.gpus), 1)
        is_quoted = preset.name.startswith(SEED) and num_gpus != "auto"
        if "per_device_train_batch_size" not in given and not is_quoted:
            preset = share(preset, visible if num_gpus == "auto" else num_gpus)
    return preset


def _compose(job: str, path: Path, given: dict[str, Any], notes: tuple[str, ...]) -> Preset:
    file = parse_file(job, path)
    files = [file]
    if file.data.get("extends"):
        below = parse_file(job, _find(job, file.data["extends"], beside=file.path))
        if below.data.get("extends"):
            text = f"`extends: {file.data['extends']}` names a file that extends another"
            fix = (
                f"there is one level only: write `extends: base` and copy what you need from "
                f"{below.shown}, or start the preset {below.path.stem} itself and change "
                "settings (-o name=value)"
            )
            file.problem(("extends",), text, fix)
        files = [below, file]
        if below.data.get("extends"):  # else every setting of the base would be called missing
            raise_problems(f"preset {job}/{path.stem}", [*below.problems, *file.problems])
    else:
        _require_whole(job, file)
    base = _with_defaults(job, files[0].settings)
    model = _model_of(job, files, given)
    draft = _draft(
        _layers(job, files, model), base | files[0].layer(model).values if model else base
    )
    for layer in files:
        require_why(layer, files[0], base)
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


def _require_whole(job: str, file: PresetFile) -> None:
    """Say once that a file which extends nothing lacks most settings."""
    fields = settings_class(job).model_fields
    lacking = [n for n, f in fields.items() if f.is_required() and n not in file.settings]
    if len(lacking) <= FEW_LACKING:
        return
    text = f"{len(lacking)} settings have no value: the file extends no other"
    fix = "add the line `extends: base` at the top; the file then holds what differs alone"
    file.problem((), text, fix)
    raise_problems(f"preset {job}/{file.path.stem}", file.problems)


def _model_of(job: str, files: list[PresetFile], given: Mapping[str, Any]) -> str | None:
    """The short name of the model that the overrides, the overlay or the base ask for."""
    sources = (given, *(file.settings for file in reversed(files)))
    model = next((each["model"] for each in sources if "model" in each), None)
    return JOBS[job].models.short_name(model)


def _layers(job: str, files: list[PresetFile], model: str | None) -> list[Layer]:
    """The places that settings come from, each one above those before it."""
    plain = [file.layer() for file in files]
    if model is None:
        return plain
    special = [file.layer(model) for file in files]
    named = JOBS[job].models.short_name(files[-1].settings.get("model"))
    names_it = len(files) == 2 and named == model
    return [plain[0], special[0], plain[1], special[1]] if names_it else [*plain, *special]


def _draft(layers: list[Layer], reference: dict[str, Any]) -> Draft:
    draft = Draft(values={}, provenance={}, places={}, why={}, reference=reference)
    for layer in layers:
        draft.values |= layer.values
        draft.provenance |= dict.fromkeys(layer.values, layer.origin)
        draft.places |= layer.places()
        draft.why = {k: v for k, v in draft.why.items() if k not in layer.values} | layer.why
    return draft


def _with_defaults(job: str, values: Mapping[str, Any]) -> dict[str, Any]:
    known = settings_class(job).model_fields
    defaults = {
        n: f.get_default(call_default_factory=True) for n, f in known.items() if not f.is_required()
    }
    base = defaults | {name: value for name, value in values.items() if name in known}
    if isinstance(base.get("model"), str):
        base["model"] = resolve_model(base["model"], job)
    return base


def _candidates(job: str) -> list[Candidate]:
    """The presets that `auto` may choose: those that name a GPU and do not quote a seed."""
    facts = gpu_facts()
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

    "" and None mean that the preset decides; `run_dir` and the `adapters` of a fine-tuning are no
    settings and are left out. Types are strict: True is no integer, the text "3" is none either.

    Raises:
        ConfigError: Lists every unknown name, wrong type and value out of range.
    """
    known = settings_class(job).model_fields
    given = {key: value for key, value in parameters.items() if value is not None and value != ""}
    given, problems = respelt(given, lambda _: "parameters")
    places = dict.fromkeys(given, "parameters")
    varied = (ADAPTERS,) if JOBS[job].has_adapters else ()
    problems += unknown_names(job, places, also=(*PARAMETERS, *varied))
    if varied and ADAPTERS in given:
        problems += _variant_problems(given[ADAPTERS])
    for key in PARAMETERS:
        if not isinstance(given.get(key, ""), str):
            text = f"`{key}` must be a text; it is {given[key]!r}"
            problems.append(Problem("parameters", text, f'write {key} = "…"'))
    name = given.get("preset", "auto")
    if isinstance(name, str) and name != "auto":
        try:
            _find(job, name)
        except ConfigError as error:
            problems.append(Problem("parameters", error.message.rstrip("."), error.fix))
    overrides = {key: value for key, value in given.items() if key in known}
    wrong = type_problems(job, overrides, places)
    problems += [problem for problem in wrong if problem.where == "parameters"]
    problems += source_problems(job, overrides, places)
    raise_problems("the notebook's parameters", problems)
    return name, overrides


def _variant_problems(adapters: Any) -> list[Problem]:
    try:
        parse_variants(adapters)
    except ConfigError as error:
        return [Problem("parameters", error.message.rstrip("."), error.fix)]
    return []
