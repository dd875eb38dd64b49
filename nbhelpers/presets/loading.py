"""Presets from YAML: which there are, and how one is read, resolved and checked."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from nbhelpers.common.files import absence, cache_dir, expanded, is_file, is_folder
from nbhelpers.common.suggest import did_you_mean
from nbhelpers.common.yaml_files import configs_dir, read_with_lines, read_yaml, shown_path
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.gpus import known_gpus
from nbhelpers.presets.adapters import parse_variants
from nbhelpers.presets.catalog import SAMPLES
from nbhelpers.presets.checks import (
    SPELLINGS,
    Problem,
    check_precision,
    other_name,
    raise_problems,
    resolve_model,
    respelt,
    settings_class,
    shortened,
    source_problems,
    type_problems,
    unknown_names,
)
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.preset import (
    EXPERIMENT_FIELDS,
    OF_MODEL,
    OVERRIDES,
    Candidate,
    Draft,
    Preset,
    build_preset,
    choose,
    make_quick,
    quick_reason,
    share,
)

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware


# ------------------------------------------------------------------------------------------------
# One preset file: its settings for every model and for one, with their lines and its problems.


_KEYS = {"about": str, "extends": str, "gpu": str, "gpus": int}
_KEYS |= {"settings": dict, "why": dict, "models": dict}


@dataclass(slots=True, kw_only=True)
class PresetFile:
    """One preset file, with the problems found in its outer shape."""

    path: Path
    shown: str
    data: dict[str, Any]
    lines: dict[tuple[str, ...], int]
    problems: list[Problem] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings for every model."""
        return self.data.get("settings") or {}

    @property
    def why(self) -> dict[str, str]:
        """The reasons of these settings."""
        return self.data.get("why") or {}

    def layer(self, model: str | None = None) -> Layer:
        """The settings for every model, or those under `models:` for one."""
        if model is None:
            return Layer(self, ("settings",), self.settings, self.why, self.shown)
        section = (self.data.get("models") or {}).get(model) or {}
        values = {name: value for name, value in section.items() if name != "why"}
        origin = f"{self.shown} {OF_MODEL}{model})"
        return Layer(self, ("models", model), values, section.get("why") or {}, origin)

    def place(self, *keys: str) -> str:
        """The file and line of a key."""
        line = self.lines.get(keys)
        return f"{self.shown}:{line}" if line else self.shown

    def problem(self, keys: tuple[str, ...], text: str, fix: str) -> None:
        """Note what is wrong at a key."""
        self.problems.append(Problem(self.place(*keys), text, fix))

    def respell(self, *keys: str) -> None:
        """Give the settings of one mapping in this file their own names, and keep their lines."""
        parent = functools.reduce(lambda data, key: data.get(key) or {}, keys[:-1], self.data)
        names = parent.get(keys[-1])
        if not isinstance(names, dict):
            return
        for other, name in SPELLINGS.items():
            if other in names and name not in names:
                self.lines[(*keys, name)] = self.lines.get((*keys, other), 0)
        parent[keys[-1]], problems = respelt(names, lambda name: self.place(*keys, name))
        self.problems += problems


class Layer(NamedTuple):
    """Settings of one place in a file: for every model, or for one."""

    file: PresetFile
    keys: tuple[str, ...]
    values: dict[str, Any]
    why: dict[str, str]
    origin: str

    def places(self) -> dict[str, str]:
        """The file and line of every setting."""
        return {name: self.file.place(*self.keys, name) for name in self.values}


def parse_file(job: str, path: Path) -> PresetFile:
    """Read a preset file; what is wrong in it is collected in its `problems`."""
    data, lines = read_with_lines(path)
    file = PresetFile(path=path, shown=shown_path(path), data=data, lines=dict(lines))
    known = settings_class(job).model_fields
    for key, value in list(data.items()):
        if key not in _KEYS:
            at = "write it under `settings:`" if key in known else did_you_mean(key, _KEYS)
            if key not in known and (theirs := other_name(job, key, data, as_yaml=True)):
                at = f"{theirs}, under `settings:`" if theirs.startswith("write ") else theirs
            at = "write `extends: base`" if key == "preset" else at
            file.problem((key,), f"there is no key `{key}` in a preset", at)
        elif type(value) is not _KEYS[key] and value is not None:
            text = f"`{key}` must be of type {_KEYS[key].__name__}; it is {shortened(repr(value))}"
            file.problem((key,), text, "see the shipped presets for the form")
            data[key] = None
    for key in ("settings", "why"):
        file.respell(key)
    _check_reasons(file, ("why",), file.why, known)
    for model in list(data.get("models") or {}):
        _check_model(job, file, model)
    gpu, count = data.get("gpu"), data.get("gpus")
    if gpu is not None and gpu not in known_gpus():
        text = f"there is no gpu `{gpu}` in gpus.yaml"
        file.problem(("gpu",), text, did_you_mean(gpu, known_gpus()))
    if count is not None and count < 1:
        file.problem(("gpus",), f"gpus={count} is less than 1", "leave `gpus:` out without a GPU")
    return file


def _check_reasons(
    file: PresetFile, keys: tuple[str, ...], why: Mapping[str, Any], known: Mapping[str, Any]
) -> None:
    for name, text in why.items():
        if name not in known:
            message = f"`why` names no setting `{name}`"
            file.problem((*keys, name), message, did_you_mean(name, known))
        elif not isinstance(text, str) or not text.strip():
            file.problem((*keys, name), f"`why.{name}` is no text", "write a sentence in quotes")


def _check_model(job: str, file: PresetFile, model: str) -> None:
    """Check one entry under `models:`, and leave in it what can be used."""
    keys, models = ("models", model), file.data["models"]
    section, known = models[model], settings_class(job).model_fields
    if model not in JOBS[job].models.names:
        hint = did_you_mean(JOBS[job].models.short_name(model) or model, JOBS[job].models.names)
        text = f"`models` names no model `{model}` that is known by a short name"
        file.problem(keys, text, f"{hint}; for any other model write a preset of its own")
    if not isinstance(section, dict):
        text = f"`models.{model}` must hold settings; it is {shortened(repr(section))}"
        file.problem(keys, text, "write `name: value` lines under it")
        models[model] = None
        return
    if not isinstance(section.get("why", {}), dict):
        text = f"`models.{model}.why` must be of type dict; it is "
        text += shortened(repr(section["why"]))
        file.problem((*keys, "why"), text, "write `name: reason` lines under it")
        section["why"] = {}
    file.respell(*keys)
    file.respell(*keys, "why")
    layer = file.layer(model)
    _check_reasons(file, (*keys, "why"), layer.why, known)
    if "model" in layer.values:
        text = f"`models.{model}` cannot choose another model"
        file.problem((*keys, "model"), text, "write `model:` under `settings:`")
    places = layer.places()
    file.problems += unknown_names(job, places, values={**file.settings, **layer.values})
    wrong = type_problems(job, {k: v for k, v in layer.values.items() if k in known}, places)
    file.problems += [problem for problem in wrong if problem.where in places.values()]
    for name in layer.values:
        if name not in known or name == "model":
            del models[model][name]


def require_why(file: PresetFile, base_file: PresetFile, base: Mapping[str, Any]) -> None:
    """Add a problem for every value that changes the experiment without saying why."""
    if file is not base_file:
        _require_reasons(file.layer(), base, file.why)
    for model in file.data.get("models") or {}:
        own = {} if file is base_file else base_file.layer(model).values
        layer = file.layer(model)
        same = {n: w for n, w in file.why.items() if file.settings.get(n) == layer.values.get(n)}
        _require_reasons(layer, {**base, **own}, same | layer.why)


def _require_reasons(layer: Layer, base: Mapping[str, Any], why: Mapping[str, Any]) -> None:
    for name in EXPERIMENT_FIELDS:
        value = layer.values.get(name, base.get(name))
        if value != base.get(name) and name not in why:
            text = f"{name} {base.get(name)!r} -> {value!r} changes the experiment without a reason"
            at = " of this model" if layer.keys[0] == "models" else ""
            layer.file.problem((*layer.keys, name), text, f"add `{name}: …` under `why:`{at}")


# ------------------------------------------------------------------------------------------------
# Presets from YAML, which `common/yaml_files.py` alone reads.
#
# A preset is `configs/<job>/base.yaml` plus one thin overlay. Each file may say under `models:`
# what differs for one model. Order of precedence: the base's settings, the overlay's, the base's
# for this model, the overlay's for this model, overrides; where the overlay names the model itself,
# its settings were written for it and come after the base's for this model. Every value remembers
# where it came from, and all problems are reported at once.


SEED = "seed-"  # presets that quote the seeds as they are
# Parameters of notebooks that are no settings; those that study adapters have one more.
PARAMETERS = ("preset", "run_dir", "quick", "prompt")
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
    paths: dict[str, Path] = {}
    for folder in (*user_folders(), configs_dir()):
        for path in sorted((folder / job).glob("*.yaml")):
            paths.setdefault(path.stem, path)
    return paths


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
    data: Any = None,
    quick: str = "off",
) -> Preset:
    """Return the checked settings of a preset, with the origin of every value.

    Args:
        job: Such as `clones`.
        name: A preset's name, a path to a .yaml file, or `auto`: the one for this hardware, and
            `smoke` without a GPU.
        hardware: Chooses for `auto`, and is checked against a typed precision.
        overrides: Settings to change; None as a value means not given, but for those that may be
            None (`max_train_samples=None`: all rows).
        data: The setting `data`, as text, or a `Dataset` or `DatasetDict` of the library
            `datasets`: it is saved in the cache for the worker, under its fingerprint.
        quick: `on` makes a small experiment for a first result (`JobSpec.quick`), where no override
            says otherwise; `auto` does without a GPU and on a card below 24 GiB. The bundled sample
            stays as it is.

    Raises:
        ConfigError: Lists every problem with its file and line, and the fix.
    """
    may_be_none = {n for n, f in settings_class(job).model_fields.items() if f.default is None}
    changes = {k: v for k, v in (overrides or {}).items() if v is not None or k in may_be_none}
    changes |= {} if data is None else {"data": data}
    if "data" in changes and not isinstance(changes["data"], str):
        changes["data"] = _saved(changes["data"])
    changes, problems = respelt(changes, lambda _: OVERRIDES)
    raise_problems("the overrides", problems)
    notes: tuple[str, ...] = ()
    if name == "auto":
        name, notes = choose(_candidates(job), hardware, changes.get("num_gpus"))
    is_quick, reason = quick_reason(quick, hardware)
    preset = _compose(job, _find(job, name), changes, notes, quick=reason if is_quick else "")
    if quick == "auto" and not is_quick:
        preset = replace(preset, notes=(*preset.notes, f"quick is off: {reason}"))
    if hardware is not None:
        check_precision(preset.settings, hardware, preset)
        num_gpus, visible = preset.settings.num_gpus, max(len(hardware.gpus), 1)
        is_quoted = preset.name.startswith(SEED) and num_gpus != "auto"
        if "per_device_train_batch_size" not in changes and not is_quoted:
            preset = share(preset, visible if num_gpus == "auto" else num_gpus)
    return preset


def _saved(data: Any) -> str:
    """The folder in the cache that holds a data set; its fingerprint is its name, and so its id.

    Raises:
        ConfigError: It is none of `datasets`, or cannot be saved.
    """
    if isinstance(data, PathLike):
        return os.fspath(data)
    parts = data if isinstance(data, dict) else {"train": data}
    prints = {name: getattr(part, "_fingerprint", None) for name, part in parts.items()}
    if not hasattr(data, "save_to_disk") or not all(prints.values()):
        kind = type(data).__name__
        text = f"data is a {kind}, which is neither text nor a Dataset or DatasetDict."
        if hasattr(data, "save_to_disk"):  # a DatasetDict, which may hold anything
            name = next(name for name in prints if not prints[name])
            text = f"data[{name!r}] is a {type(parts[name]).__name__}, not a Dataset."
        raise ConfigError(
            text,
            fix="name a file, a folder or a hub id, or make a data set of the rows: "
            "datasets.Dataset.from_list(rows), .from_pandas(frame), .from_generator(function)",
        )
    name = hashlib.sha256(repr(sorted(prints.items())).encode()).hexdigest()[:16]
    folder = (cache_dir() / "datasets" / name).absolute()
    if not _is_saved(parts, folder, is_one=parts is not data):
        part = folder.with_name(f"{name}.{uuid4().hex}.part")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            data.save_to_disk(str(part))
            part.rename(folder)
        except OSError as error:
            if not folder.is_dir():
                text = f"The data set cannot be saved in {folder}: {error.strerror or error}."
                raise ConfigError(text, fix="set NBHELPERS_CACHE to a folder with room") from error
        except Exception as error:  # of a transform, of a cell: as many as types that data may have
            text = f"The data set cannot be saved: {str(error).partition(chr(10))[0]}."
            fix = "apply a transform with .map first, leave a format out by .with_format(None)"
            raise ConfigError(text, fix=fix) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return str(folder)


def _is_saved(parts: Mapping[str, Any], folder: Path, *, is_one: bool) -> bool:
    """Whether a folder is there and can be read; a damaged one is made again."""
    try:
        if not is_one:
            json.loads((folder / "dataset_dict.json").read_text(encoding="utf-8"))
        for name, part in parts.items():
            if len(part):  # `datasets` reads none without rows
                type(part).load_from_disk(str(folder if is_one else folder / name))
    except Exception:  # as many as there are ways to damage a folder
        return False
    return folder.is_dir()


def _compose(
    job: str, path: Path, changes: dict[str, Any], notes: tuple[str, ...], *, quick: str
) -> Preset:
    """Put a preset together; `quick` is the reason for a small experiment, or ""."""
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
    model = _model_of(job, files, changes)
    draft = _draft(
        _layers(job, files, model), base | files[0].layer(model).values if model else base
    )
    for layer in files:
        require_why(layer, files[0], base)
    if quick and changes.get("data", draft.values.get("data")) not in SAMPLES:
        smaller = ", ".join(make_quick(job, draft, changes)) or "nothing is smaller"
        notes += (f"quick is on ({quick}): {smaller}",)
    draft.values |= changes
    draft.provenance |= dict.fromkeys(changes, OVERRIDES)
    draft.places |= dict.fromkeys(changes, OVERRIDES)
    draft.why = {key: text for key, text in draft.why.items() if key not in changes}
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


def _model_of(job: str, files: list[PresetFile], changes: Mapping[str, Any]) -> str | None:
    """The short name of the model that the overrides, the overlay or the base ask for."""
    sources = (changes, *(file.settings for file in reversed(files)))
    model = next((source["model"] for source in sources if "model" in source), None)
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
    candidates = []
    for name, path in _preset_paths(job).items():
        data = read_yaml(path)
        gpu, count = data.get("gpu"), data.get("gpus") or 1
        if isinstance(gpu, str) and gpu in known_gpus() and not name.startswith(SEED):
            count = count if type(count) is int else 1  # chosen or not, `_parse` says what is wrong
            card = known_gpus()[gpu]
            facts = card.memory_total_bytes, card.compute_capability
            candidates.append(Candidate(name, gpu, count, *facts))
    return candidates


def parameter_overrides(job: str, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Turn a notebook's parameters into the name of a preset and the overrides.

    "" and None mean that the preset decides; `run_dir` and the `adapters` of a fine-tuning are no
    settings and are left out. Types are strict: True is no integer, the text "3" is none either.

    Raises:
        ConfigError: Lists every unknown name, wrong type and value out of range.
    """
    known = settings_class(job).model_fields
    values = {key: value for key, value in parameters.items() if value is not None and value != ""}
    values, problems = respelt(values, lambda _: "parameters")
    places = dict.fromkeys(values, "parameters")
    varied = (ADAPTERS,) if JOBS[job].has_adapters else ()
    problems += unknown_names(job, places, also=(*PARAMETERS, *varied), values=values)
    if varied and ADAPTERS in values:
        problems += _refusal(parse_variants, values[ADAPTERS])
    for key in ("preset", "run_dir", "prompt"):
        if not isinstance(values.get(key, ""), str):
            text = f"`{key}` must be a text; it is {values[key]!r}"
            problems.append(Problem("parameters", text, f'write {key} = "…"'))
    problems += _refusal(quick_reason, values.get("quick", "auto"), None)
    name = values.get("preset", "auto")
    if isinstance(name, str) and name != "auto":
        problems += _refusal(_find, job, name)
    overrides = {key: value for key, value in values.items() if key in known}
    wrong = type_problems(job, overrides, places)
    problems += [problem for problem in wrong if problem.where == "parameters"]
    problems += source_problems(job, overrides, places)
    raise_problems("the notebook's parameters", problems)
    return name, overrides


def _refusal(check: Callable[..., object], *values: Any) -> list[Problem]:
    """Return what a check of parameters refuses, as a problem among others."""
    try:
        check(*values)
    except ConfigError as error:
        return [Problem("parameters", error.message.rstrip("."), error.fix)]
    return []
