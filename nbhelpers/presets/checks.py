"""What makes settings valid: names, types, ranges, and settings that contradict each other.

Problems are collected, not raised one by one, so that a user meets all of them at once.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.common.files import absence, expanded, is_file, is_folder, kind_of
from nbhelpers.common.model_config import is_own
from nbhelpers.common.suggest import did_you_mean
from nbhelpers.errors import ConfigError, HardwareError
from nbhelpers.presets.catalog import SAMPLES
from nbhelpers.presets.foreign import answer
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.rules import broken_rules
from nbhelpers.presets.schema import OWN_ENGINE

if TYPE_CHECKING:
    from nbhelpers.presets.schema import Settings

FILE_ENDINGS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow")
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4")  # of text
SPELLINGS = {"code_length": "seq_len"}  # GraphCodeBERT's word for the tokens of code
DATASET_PREFIX = "hf://datasets/"
_HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")


class Problem(NamedTuple):
    """One thing that is wrong: where, what, and what to type instead."""

    where: str
    text: str
    fix: str


def raise_problems(title: str, problems: Iterable[Problem]) -> None:
    """Raise one `ConfigError` that lists every problem, or return if there is none.

    Raises:
        ConfigError: There is at least one problem.
    """
    unique = list(dict.fromkeys(problems))
    if not unique:
        return
    if len(unique) == 1:
        where, text, fix = unique[0]
        place = title if where in title else f"{title}: {where}"
        raise ConfigError(f"{place}: {text}.", fix=fix)
    lines = [f"  - {where}: {text}; {fix}" for where, text, fix in unique]
    message = "\n".join([f"{title}: {len(unique)} problems", *lines])
    raise ConfigError(message, fix=f"correct these {len(unique)} values; each line says how")


def settings_class(job: str) -> type[Settings]:
    """Return the settings model of a job.

    Raises:
        ConfigError: There is no such job.
    """
    if not isinstance(job, str) or job not in JOBS:
        raise ConfigError(f"There is no job `{job}`.", fix=did_you_mean(job, JOBS))
    return JOBS[job].settings


# ------------------------------------------------------------------------------------------------
# Names and spellings.


def unknown_names(
    job: str,
    names: Mapping[str, str],
    *,
    also: tuple[str, ...] = (),
    values: Mapping[str, Any] = MappingProxyType({}),
) -> list[Problem]:
    """Return a problem for every name (with its place) that is no setting of the job.

    Args:
        also: Further names that are known.
        values: What was given under these names, and other settings.
    """
    known = (*settings_class(job).model_fields, *also)
    return [
        Problem(
            where,
            f"there is no setting `{name}`",
            other_name(job, name, values, as_yaml=".yaml" in where) or did_you_mean(name, known),
        )
        for name, where in names.items()
        if name not in known
    ]


def other_name(job: str, name: str, values: Mapping[str, Any], *, as_yaml: bool = False) -> str:
    """Return what to write for a name of another library or job; "" where nobody has it."""
    if text := answer(job, name, values.get(name), values, as_yaml=as_yaml):
        return text
    owner = next((other for other in JOBS if name in JOBS[other].settings.model_fields), None)
    return f"leave it out: it is a setting of {owner}, and {job} has none like it" if owner else ""


def respelt(
    values: Mapping[str, Any], place: Callable[[str], str]
) -> tuple[dict[str, Any], list[Problem]]:
    """Return values under the settings' own names, such as `seq_len` for `code_length`.

    Returns:
        The values, and a problem for every setting that is given in both spellings unlike.

    >>> respelt({"code_length": 400}, lambda name: "overrides")
    ({'seq_len': 400}, [])
    """
    plain, problems = dict(values), []
    for other, name in SPELLINGS.items():
        if other not in plain:
            continue
        value = plain.pop(other)
        if plain.setdefault(name, value) != value:
            text = f"`{other}` is {value!r} and `{name}` is {plain[name]!r}: they are one setting"
            problems.append(Problem(place(other), text, f"keep `{name}`, and leave `{other}` out"))
    return plain, problems


# ------------------------------------------------------------------------------------------------
# Types, ranges and contradictions, by the models of `schema.py`.


def type_problems(job: str, values: Mapping[str, Any], places: Mapping[str, str]) -> list[Problem]:
    """Return a problem for every value of a wrong type or out of range, and every missing field."""
    errors = type_errors(job, values)
    return [
        _explain(job, name, items, places.get(name, "the preset")) for name, items in errors.items()
    ]


def cross_problems(job: str, values: Mapping[str, Any], places: Mapping[str, str]) -> list[Problem]:
    """Return the contradictions between fields that are each valid."""
    return [
        Problem(places.get(name, "the preset"), text, fix)
        for name, text, fix in broken_rules(JOBS[job], values, without=type_errors(job, values))
    ]


def type_errors(job: str, values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return pydantic's errors about each field."""
    from pydantic import ValidationError

    by_field: dict[str, list[Any]] = {}
    try:
        settings_class(job).model_validate(dict(values), strict=True)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            by_field.setdefault(str(item["loc"][0]), []).append(item)
    return by_field


# What a value should be, by the type of pydantic's error; braces hold names of its context.
_WANTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a dictionary",
    "literal_error": "{expected}",
    "finite_number": "a finite number",
    "string_too_short": "a text that is not empty",
    "string_unicode": "a string in UTF-8",
    "too_short": "a list of at least {min_length}",
    "greater_than": "a number greater than {gt}",
    "greater_than_equal": "a number greater than or equal to {ge}",
    "less_than": "a number less than {lt}",
    "less_than_equal": "a number less than or equal to {le}",
}
_BOUNDS = {"greater_than": "more than {gt}", "greater_than_equal": "{ge} or more"}
_BOUNDS |= {"less_than": "less than {lt}", "less_than_equal": "{le} or less"}


def _explain(job: str, name: str, errors: list[Any], where: str) -> Problem:
    """Put pydantic's errors about one field into one sentence with its fix."""
    first = errors[0]
    if first["type"] == "missing":
        fix = f"add `{name}:` under `settings:`, or `extends: base`"
        return Problem(where, f"`{name}` is missing", fix)
    words = [_filled(_WANTED.get(error["type"], error["msg"]), error) for error in errors]
    wanted, value = " or ".join(dict.fromkeys(words)), first["input"]
    part = first["loc"][1] if len(first["loc"]) > 1 else None
    is_part = name in ("priors", "targets") or isinstance(part, int)  # else it names the union
    label = name if part is None or not is_part else f"{name}.{part}"
    label = f"{name}[{part}]" if isinstance(part, int) else label
    text = f"`{label}` must be {wanted}; it is {_described(value)}"
    by_type = {error["type"]: error for error in errors}
    number = _number(value) if {"int_type", "float_type"} & by_type.keys() else None
    if number is not None and label == name:
        whole = "int_type" in by_type and number.is_integer()
        number = int(number) if whole else number
        if further := type_errors(job, {name: number}).get(name):  # without quotes it is too large
            return Problem(where, text, _explain(job, name, further, where).fix)
        return Problem(where, text, f"write it without quotes: {yaml_number(number)}")
    fix = _value_fix(
        label, value, wanted, by_type, lambda items: type_errors(job, {name: items}).get(name, [])
    )
    return Problem(where, text, fix)


def _filled(text: str, error: Any) -> str:
    """A text with the context of a pydantic error; whole bounds without a point."""
    context = error.get("ctx", {})
    is_whole = {name for name, x in context.items() if type(x) is float and x.is_integer()}
    return text.format(**{n: int(x) if n in is_whole else x for n, x in context.items()})


def _described(value: object) -> str:
    kinds = {str: "the text", bool: "the truth value", int: "the integer", float: "the number"}
    kind = kinds.get(type(value), f"the {type(value).__name__}")
    if type(value) is int and abs(value) >= 10**20:
        return "an integer of more than 20 digits"
    return "null (nothing)" if value is None else f"{kind} {shortened(repr(value))}"


def _value_fix(
    label: str,
    value: object,
    wanted: str,
    errors: Mapping[str, Any],
    errors_of: Callable[[list[Any]], list[Any]],
) -> str:
    if isinstance(value, bool) and "string_type" in errors:
        return f'quote it, `{label}: "no"`: YAML 1.1 reads no, off, on and yes as truth values'
    if isinstance(value, bool) and "literal_error" in errors:
        text = f"write `{label}` as {wanted}"
        return f"{text} (YAML 1.1 reads no, off, on and yes without quotes as truth values)"
    if len(errors) == 1:
        (kind, error), *_ = errors.items()
        if kind in _BOUNDS:
            return f"set {label} to {_filled(_BOUNDS[kind], error)}"
        if kind == "list_type":  # as the shell takes it
            parts = [part.strip(" '\"") for part in str(value).strip("[]").split(",")]
            items = parts if isinstance(value, str) else [value]
            if not (further := errors_of(items)):
                return f"write `{label}` as {wanted}: {label}={json.dumps(items)}"
            item = _filled(_WANTED.get(further[0]["type"], "of the right type"), further[0])
            return f"write `{label}` as {wanted}, each item {item}"
    return f"write `{label}` as {wanted}"


def _number(text: object) -> float | None:
    try:
        number = float(text) if isinstance(text, str) else float("inf")
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def yaml_number(value: float) -> str:
    """Write a number so that YAML 1.1 reads it back as one.

    >>> yaml_number(2e-4), yaml_number(5e-05), yaml_number(64)
    ('0.0002', '5.0e-05', '64')
    """
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def shortened(text: str, limit: int = 200) -> str:
    """Return a text that a message can show.

    >>> shortened("x" * 500, 5)
    'xxxxx… (500 characters)'
    """
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


# ------------------------------------------------------------------------------------------------
# Names of models and data, without any network.


def is_hub_id(text: object) -> bool:
    """Whether a text has the form `owner/name`."""
    return isinstance(text, str) and bool(_HUB_ID.fullmatch(text))


def resolve_model(value: str, job: str) -> str:
    """Return the hub id behind an alias; every other name stays as it is."""
    return JOBS[job].models.aliases.get(value, value)


def source_problems(
    job: str, values: Mapping[str, Any], places: Mapping[str, str]
) -> list[Problem]:
    """Return what is wrong with the names of the model and the data."""
    problems, further = [], JOBS[job].further_data
    checks = dict.fromkeys(("data", *further), _data_fault)
    is_open = values.get("engine", OWN_ENGINE) != OWN_ENGINE  # to every family: the worker judges
    for name, check in ({"model": partial(_model_fault, is_open=is_open)} | checks).items():
        value = values.get(name)
        fault = check(job, value) if isinstance(value, str) else None
        if fault:
            text = f"{name}: {fault[0]}" if name in further else fault[0]
            problems.append(Problem(places.get(name, "the preset"), text, fault[1]))
    return problems


def _model_fault(job: str, model: str, *, is_open: bool = False) -> tuple[str, str] | None:
    known = JOBS[job].models.names
    if JOBS[job].models.short_name(model) is not None:
        return None
    if is_folder(model):
        return None if is_open else _folder_fault(job, model)
    if _looks_local(model):
        text = f"the model folder `{shortened(model)}` {absence(model)}"
        return text, "check the path" + _hub_hint(model)
    close = difflib.get_close_matches(model.lower(), known, n=1, cutoff=0.75)
    if close or not (_HUB_ID.fullmatch(model) or _HUB_NAME.fullmatch(model)):
        text = f"the model `{shortened(model)}` is neither a known name nor a folder"
        return text, did_you_mean(model, known) + ", or write a hub id (owner/name)"
    return None


def _folder_fault(job: str, model: str) -> tuple[str, str] | None:
    """Refuse a folder whose config.json names another kind of model; the worker judges the rest."""
    try:
        config = json.loads((expanded(model) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    family = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(family, str) or family in JOBS[job].models.families:
        return None
    if is_own(config):
        text = f"`{shortened(model)}` holds a whole trained model ({family}), not an encoder"
        return text, "use the folder encoder of its export: nbhelpers export RUN OUT"
    text = f"`{shortened(model)}` holds a model of the type {shortened(family)}"
    fix = f"use a model of the type {' or '.join(JOBS[job].models.families)}"
    has_engine = "engine" in settings_class(job).model_fields
    return text, fix + (", or set engine=trl" if has_engine else "")


def _data_fault(job: str, data: str) -> tuple[str, str] | None:
    if not data.strip():
        return "the name of the data is empty", "name a file, a folder or a hub id, or leave it out"
    may_be_file = JOBS[job].data_may_be_file
    is_archive = data.lower().endswith(ARCHIVES)
    if data in SAMPLES or is_folder(data) or ((may_be_file or is_archive) and is_file(data)):
        return None
    is_file_name = may_be_file and data.lower().endswith((*FILE_ENDINGS, *COMPRESSED))
    is_file_name = (is_file_name or is_archive) and "://" not in data
    is_local = "://" not in data and _looks_local(data)
    hub_id = data.removeprefix(DATASET_PREFIX).partition(":")[0]  # configuration and split apart
    if _HUB_ID.fullmatch(hub_id) and not (is_local or is_file_name):
        return None
    if kind_of(data) == "forbidden":
        text = f"the data folder `{data}` cannot be looked at: a folder above it is closed to you"
        return text, f"make it readable: chmod u+rx, or copy {data} to a place of your own"
    what = "file or folder" if may_be_file else "folder"
    if is_local or is_file_name:
        return f"the data {what} `{shortened(data)}` {absence(data)}", "check the path"
    text = f"the data `{shortened(data)}` is neither `smoke`, a hub id (owner/name) nor an existing"
    near = difflib.get_close_matches(data.lower(), ["smoke"], n=1)
    fix = did_you_mean(data, near) if near else "check the path" + _hub_hint(data)
    return f"{text} {what}", fix


def _looks_local(name: str) -> bool:
    is_path = name.startswith(("/", "./", "../", "~")) or name.endswith("/")
    return is_path or name.removeprefix(DATASET_PREFIX).count("/") > 1


def _hub_hint(name: str) -> str:
    """What to type for an address copied from the hub's page."""
    parts = [part for part in name.partition("://")[2].split("/")[1:] if part != "datasets"]
    return f"; for the hub write {'/'.join(parts[:2])}" if len(parts) > 1 else ""


# ------------------------------------------------------------------------------------------------
# What a preset asks of the GPUs: a precision that they have, and that there is one at all.


def no_gpu_for(preset: Any, hardware: Any) -> HardwareError:
    """Return the error of a preset for a GPU where there is none."""
    return HardwareError(
        f"The preset {preset.name} is for the GPU {preset.gpu}; there is no GPU here: "
        f"{hardware.reason}.",
        fix='use preset="smoke" (or "auto"), or launch where the GPU is; to plan for it from here: '
        f"in a shell add --gpu {preset.gpu} (study: with --plan-only), in a cell "
        f'hardware = nb.plan_hardware("{preset.gpu}"); there nb.launch(..., force=True) trains '
        "on the CPU all the same",
    )


def check_precision(settings: Settings, hardware: Any, preset: Any = None) -> None:
    """Refuse a precision that the GPUs do not have; `auto` always passes.

    Args:
        preset: Where the settings come from; one for a GPU is refused as such without any.

    Raises:
        ConfigError: bf16 below compute capability 8.0, or fp16 without a GPU.
        HardwareError: The preset's own precision needs its GPU, and there is none.
    """
    without = [gpu for gpu in hardware.gpus if not gpu.has_bf16]
    if settings.precision == "bf16" and without:
        gpu = without[0]
        capability = ".".join(str(part) for part in gpu.compute_capability)
        raise ConfigError(
            f"precision=bf16 was asked for, but {gpu.name} has compute capability {capability}, "
            "and bf16 needs 8.0.",
            fix='set precision to "auto" or "fp16"',
        )
    if settings.precision == "fp16" and not hardware.gpus:
        typed = str(getattr(preset, "provenance", {}).get("precision", "")).startswith("overrides")
        if preset is not None and preset.gpu and not typed:
            raise no_gpu_for(preset, hardware)
        raise ConfigError(
            "precision=fp16 was asked for, but there is no GPU.",
            fix='set precision to "auto" or "fp32"',
        )
