"""Presets from YAML: the only module that reads YAML.

A preset is `configs/<job>/base.yaml` plus one thin overlay. Order of precedence: base, overlay,
overrides. Every value remembers where it came from, and all problems are reported at once.
"""

from __future__ import annotations

import copy
import functools
import os
import re
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
from nbhelpers.errors import ConfigError
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
_SCIENTIFIC = re.compile(r"([-+]?)(\d[\d_]*)(\.\d*)?[eE]([-+]?)(\d+)")


def configs_dir() -> Path:
    """Return the folder of the shipped YAML files, in an installed package and in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / "clones" / "base.yaml").is_file():
            return folder
    raise ConfigError(
        f"The shipped presets are not there: no `configs` in or beside {package}.",
        fix="install the package again, or run from a complete checkout",
    )


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read one YAML mapping; every problem is named with its file and line.

    Raises:
        ConfigError: The file is missing, empty, no mapping or not YAML, has a key twice, or
            writes a number such as `2e-4` that YAML 1.1 reads as text.
    """
    return _read(Path(path))[0]


def _read(path: Path) -> tuple[dict[str, Any], dict[tuple[str, ...], int]]:
    """The mapping, and the line of every key in it."""
    shown = shown_path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{shown}: no such file.", fix="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{shown}: cannot be read ({error}).", fix="save it as UTF-8 text"
        ) from error
    data, lines = _parse_text(shown, text)
    return copy.deepcopy(data), lines


@functools.lru_cache(maxsize=64)
def _parse_text(shown: str, text: str) -> tuple[dict[str, Any], dict[tuple[str, ...], int]]:
    import yaml

    lines: dict[tuple[str, ...], int] = {}
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        problems = [f"{shown}:{line}: {what}" for line, what in _walk(root, (), lines)]
        data = None if root is None else loader.construct_document(root)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _syntax_error(shown, error) from error
    if not isinstance(data, dict):
        kind = "is empty" if data is None else f"holds a {type(data).__name__}"
        raise ConfigError(
            f"{shown} {kind}; a mapping is expected.", fix="write lines such as `settings:`"
        )
    if problems:
        raise ConfigError("\n".join(problems), fix="correct the lines named above")
    return data, lines


def _walk(node: Any, where: tuple[str, ...], lines: dict[tuple[str, ...], int]) -> list[Any]:
    """Record the line of every key below `node` and return (line, problem) pairs."""
    import yaml

    found: list[tuple[int, str]] = []
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            found += _walk(item, (*where, str(index)), lines)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = str(key.value)
            if (*where, name) in lines:
                first = lines[*where, name]
                found.append((line, f"`{name}` is given twice (first in line {first})"))
            elif not key.tag.endswith((":str", ":merge")):
                text = f'the key `{name}` is not text for YAML 1.1; write `"{name}"`'
                found.append((line, text))
            lines[*where, name] = line
            found += _walk(value, (*where, name), lines)
    elif node is not None and node.style is None and node.tag.endswith(":str"):
        match = _SCIENTIFIC.fullmatch(node.value)
        if match:
            sign, whole, part, exponent_sign, exponent = match.groups()
            good = f"{sign}{whole}{part or '.0'}e{exponent_sign or '+'}{exponent}"
            text = f"YAML 1.1 reads {node.value} as text, not as a number; write {good}"
            found.append((node.start_mark.line + 1, text))
    return found


def _syntax_error(shown: str, error: Any) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    where = f"{shown}:{mark.line + 1}" if mark else shown
    problem = getattr(error, "problem", None) or (str(error).splitlines() or ["?"])[0]
    if "\\t" in problem:
        return ConfigError(f"{where}: a tab where YAML wants spaces.", fix="indent with spaces")
    return ConfigError(f"{where}: not valid YAML: {problem}.", fix="correct that line")


def shown_path(path: Path) -> str:
    """Return `configs/…` for shipped files, else the path as given."""
    try:
        return (Path("configs") / path.resolve().relative_to(configs_dir())).as_posix()
    except (ValueError, ConfigError):
        return path.as_posix()


def user_folders() -> list[Path]:
    """Return the folders in the environment variable NBHELPERS_CONFIGS (`configs/` in shape).

    Raises:
        ConfigError: One of them does not exist.
    """
    names = [name for name in os.environ.get(USER_FOLDERS, "").split(os.pathsep) if name]
    folders = [Path(name).expanduser() for name in names]
    for folder in folders:
        if not folder.is_dir():
            text = f"{USER_FOLDERS} names the folder {folder}, which does not exist."
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
    """The file of a preset: a path to a .yaml file, or a name in the known folders."""
    if name.endswith((".yaml", ".yml")):
        return Path(name).expanduser()
    if beside is not None and (beside.parent / f"{name}.yaml").is_file():
        return beside.parent / f"{name}.yaml"
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
    data, lines = _read(path)
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
    if gpu and gpu not in _gpu_facts():
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
        if data.get("gpu") in facts and not name.startswith(SEED):
            found.append(Candidate(name, data["gpu"], data.get("gpus") or 1, *facts[data["gpu"]]))
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
