"""One preset file: its settings for every model and for one, with their lines and its problems."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nbhelpers.checks import (
    SPELLINGS,
    Problem,
    respelt,
    settings_class,
    shortened,
    type_problems,
    unknown_names,
)
from nbhelpers.config_yaml import configs_dir, read_with_lines, read_yaml, shown_path
from nbhelpers.job_specs import JOBS
from nbhelpers.presets import EXPERIMENT_FIELDS, OF_MODEL
from nbhelpers.suggest import did_you_mean

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
    if gpu is not None and gpu not in gpu_facts():
        text = f"there is no gpu `{gpu}` in gpus.yaml"
        file.problem(("gpu",), text, did_you_mean(gpu, gpu_facts()))
    if count is not None and count < 1:
        file.problem(("gpus",), f"gpus={count} is less than 1", "leave `gpus:` out without a GPU")
    return file


def _check_reasons(
    file: PresetFile, keys: tuple[str, ...], why: Mapping[str, Any], known: Mapping[str, Any]
) -> None:
    for name, text in why.items():
        if name not in known:
            said = f"`why` names no setting `{name}`"
            file.problem((*keys, name), said, did_you_mean(name, known))
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
    file.problems += unknown_names(job, places)
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


@functools.cache
def gpu_facts() -> dict[str, tuple[int, tuple[int, int]]]:
    """Return memory and compute capability by key of gpus.yaml."""
    return {
        key: (facts["memory_total_bytes"], tuple(facts["compute_capability"]))
        for key, facts in read_yaml(configs_dir() / "gpus.yaml").items()
    }
