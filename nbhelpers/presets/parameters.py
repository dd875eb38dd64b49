"""Parameters of a notebook and values of the shell: strict, checked before anything runs.

papermill only warns about a name that a notebook does not have, and then runs with your defaults.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import json
import math
import re
from collections.abc import Container, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args, get_origin

from nbhelpers.common.files import expanded
from nbhelpers.errors import ConfigError
from nbhelpers.presets.checks import (
    SPELLINGS,
    other_name,
    raise_problems,
    respelt,
    settings_class,
)
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.preset import QUICK

if TYPE_CHECKING:
    from nbhelpers.presets.preset import Preset

MORE = "more_settings"  # the parameter that holds settings without a parameter of their own
KEEP_ONE = "keep one of the two"
_WORDS = {"none": None, "null": None, "~": None, "true": True, "false": False}
_INJECTED = "# Parameters"  # papermill's first line in the cell that it adds
# Colab's form behind an assignment, not a mention of the word somewhere in a comment.
_FORM = re.compile(r"^\w+[^#\n]*=.*#\s*@param", re.MULTILINE)


def parse_value(text: str) -> Any:
    """Return a shell value as YAML would read a scalar; numbers in every usual spelling.

    >>> [parse_value(t) for t in ("3", "5e-5", "true", "none", "t4", '"3"', "")]
    [3, 5e-05, True, None, 't4', '3', '']
    """
    stripped = text.strip()
    if stripped.lower() in _WORDS:
        return _WORDS[stripped.lower()]
    try:
        return json.loads(stripped, parse_constant=lambda word: word)
    except (ValueError, RecursionError):  # no JSON, too many digits, nested too deeply
        pass
    try:
        number = int(stripped) if stripped.lstrip("+-").isdigit() else float(stripped)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def parse_assignments(pairs: Iterable[str], option: str) -> dict[str, Any]:
    """Return `name=value` texts as a dict.

    Raises:
        ConfigError: A text without `=`, an empty name, or a name given twice.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise ConfigError(
                f"{option} {pair!r} is not of the form name=value.",
                fix=f"write for instance {option} epochs=1",
            )
        if name in values:
            raise ConfigError(f"{option} {name} is given twice.", fix=KEEP_ONE)
        is_word = text.strip().lower() == "none" and name in _named_none()
        values[name] = "none" if is_word else parse_value(text)
    return values


@functools.cache
def _named_none() -> frozenset[str]:
    """Settings that have a value called none: a bare `none` means it, not "as in the preset"."""
    fields = (item for job in JOBS.values() for item in job.settings.model_fields.items())
    return frozenset(name for name, field in fields if "none" in get_args(field.annotation))


def parse_overrides(job: str, pairs: Iterable[str]) -> dict[str, Any]:
    """Return `name=value` texts as settings of a job; a list may be written with commas.

    >>> parse_overrides("detector", ["languages=python,java", "prevalences=0.1", "epochs=1"])
    {'languages': ['python', 'java'], 'prevalences': [0.1], 'epochs': 1}

    Raises:
        ConfigError: There is no such job, or a setting has no value; or see `parse_assignments`.
    """
    fields, values = settings_class(job).model_fields, parse_assignments(pairs, "-o")
    for name, value in values.items():
        if value is None:
            theirs = "" if name in fields else settings_line(job, name, None, "-o")
            if theirs:
                raise ConfigError(f"There is no setting `{name}`.", fix=theirs)
            fix = f"leave it out for the preset's own, or write a value: -o {name}=VALUE"
            raise ConfigError(f"-o {name} without a value takes none away.", fix=fix)
        is_list = name in fields and get_origin(fields[name].annotation) is list
        if is_list and isinstance(value, str | int | float) and not isinstance(value, bool):
            parts = [part.strip() for part in str(value).strip("[]").split(",")]
            values[name] = [parse_value(part) for part in parts if part]
    return values


def require_known(
    names: Iterable[str],
    known: Iterable[str],
    where: str,
    *,
    job: str | None = None,
    values: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Stop on names that `where` does not have, with the nearest name that it has.

    Another library's name of a setting of `job` is answered with ours and its value.

    Raises:
        ConfigError: With all unknown names at once.
    """
    known = sorted(known)
    problems, fixes = [], []
    for name in sorted(set(names) - set(known)):
        problems.append(f"`{name}` is not a parameter of {where}")
        if job and (line := other_name(job, name, values)):
            fixes.append(f"for `{name}` {line}")
        elif near := difflib.get_close_matches(name, known, n=1):
            fixes.append(f"write `{near[0]}` for `{name}`")
    if problems:
        fixes.append(f"the parameters are: {', '.join(known)}")
        raise ConfigError("; ".join(problems) + ".", fix="; ".join(fixes))


def as_declared(parameters: Mapping[str, Any], declared: Iterable[str]) -> dict[str, Any]:
    """Return parameters under the names that a notebook declares: `seq_len` for `code_length`.

    Raises:
        ConfigError: Both spellings of one parameter are given, with unlike values.
    """
    names = set(declared)
    if not any(name in names and other not in names for other, name in SPELLINGS.items()):
        return dict(parameters)
    plain, problems = respelt(parameters, lambda _: "the parameters")
    raise_problems("the notebook's parameters", problems)
    return plain


def with_more(job: str, parameters: Mapping[str, Any], declared: Container[str]) -> dict[str, Any]:
    """Return parameters whose undeclared settings stand in `more_settings`, where there is one.

    So `-p loss=plain` reaches a notebook that shows only the settings people change most.

    >>> with_more("finetune", {"epochs": 1, "loss": "plain"}, {"epochs", "more_settings"})
    {'epochs': 1, 'more_settings': {'loss': 'plain'}}

    Raises:
        ConfigError: A setting is given in `more_settings` and beside it.
    """
    values = dict(parameters)
    if MORE not in declared:
        return values
    fields = settings_class(job).model_fields
    more = {name: values.pop(name) for name in list(values) if _is_more(name, fields, declared)}
    own = values.get(MORE) or {}
    if not more or not isinstance(own, Mapping):
        return values | more
    if twice := sorted(more.keys() & own.keys()):
        raise ConfigError(f"{', '.join(twice)} stands in {MORE} and beside it.", fix=KEEP_ONE)
    return values | {MORE: {**own, **more}}


def _is_more(name: str, fields: Container[str], declared: Container[str]) -> bool:
    return name in fields and name not in declared


def spread(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with those in `more_settings` beside the others.

    >>> spread({"epochs": 1, "more_settings": {"loss": "plain"}})
    {'epochs': 1, 'loss': 'plain'}

    Raises:
        ConfigError: `more_settings` is no mapping, or sets what another parameter sets.
    """
    values = dict(parameters)
    more = values.pop(MORE, None) or {}
    if not isinstance(more, Mapping):
        fix = f'write {MORE} = {{"learning_rate": 1e-4}}'
        raise ConfigError(f"{MORE} is {more!r}, which is no mapping.", fix=fix)
    twice = [name for name in more if values.get(name) not in (None, "")]
    if twice:
        text = f"{', '.join(map(str, twice))} stands in {MORE} and is a parameter of its own."
        raise ConfigError(text, fix=KEEP_ONE)
    return {name: value for name, value in values.items() if name not in more} | dict(more)


def check_values(job: str, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Check types and ranges of parameters; return the preset's name and the overrides.

    Raises:
        ConfigError: A value of the wrong type or out of range, or an unknown preset.
    """
    from nbhelpers.presets.loading import load_preset, parameter_overrides

    run_dir = parameters.get("run_dir", "runs")
    if not isinstance(run_dir, str) or not run_dir.strip():
        raise ConfigError(f"run_dir={run_dir!r} is not a folder name.", fix='write run_dir="runs"')
    expanded(run_dir, "run_dir")
    preset, overrides = parameter_overrides(job, spread(parameters))
    load_preset(job, "smoke" if preset == "auto" else preset, overrides=overrides)
    return preset, overrides


class Overrides(dict[str, Any]):
    """The settings that you change, as a mapping that shows itself in words.

    `adapters`: what a study varies; it is no setting, so no key.
    """

    adapters: str = ""

    def __repr__(self) -> str:
        changes = ", ".join(f"{name} = {value!r}" for name, value in self.items())
        if self.adapters:
            text = f"You change: {changes}." if changes else "You change no setting."
            return f"{text} Adapters: {self.adapters}."
        return f"You change: {changes}" if changes else "You change nothing."


def check_parameters(
    job: str | None, namespace: Mapping[str, Any], *, also: Container[str] = ()
) -> Overrides:
    """Return the overrides that a notebook's parameters ask for; bare papermill becomes strict.

    Looks at the cells that this kernel has run: the one that declares the parameters, and the one
    that papermill adds after it. A setting that the notebook does not list is taken as one in
    `more_settings`, if it has that parameter.

    Args:
        job: The job that the notebook starts; None: it starts none, and has no settings.
        namespace: The notebook's `globals()`.
        also: Parameters that are no settings of the job.

    Raises:
        ConfigError: papermill passed a name that the notebook does not have, or put its values
            before the defaults; a value of the wrong type or out of range.
    """
    run = namespace.get("In")
    cells = [str(source) for source in run] if isinstance(run, list) else []
    declared = _declared_names(cells)
    fix = "run the cell under `Parameters` first, or run all cells"
    if not declared:
        text = "No cell of this kernel declares the notebook's parameters."
        raise ConfigError(text, fix=fix)
    if lost := sorted(declared - namespace.keys()):
        raise ConfigError(f"The parameters {', '.join(lost)} have no value here.", fix=fix)
    injected = [index for index, source in enumerate(cells) if source.startswith(_INJECTED)]
    values = {name: namespace[name] for name in sorted(declared)}
    if injected:
        assigned = _assigned(cells[injected[-1]])
        others = {o for o in assigned & SPELLINGS.keys() if SPELLINGS[o] in declared}
        if MORE in declared:
            fields = settings_class(job).model_fields
            others |= {name for name in assigned if _is_more(name, fields, declared)}
        values |= {name: namespace.get(name) for name in others}
        typed = {name: namespace.get(name) for name in assigned}
        require_known(assigned - others, declared, "this notebook", job=job, values=typed)
        if injected[-1] < max(i for i, source in enumerate(cells) if _declares(source)):
            raise ConfigError(
                "Values were injected before the defaults, so the defaults are in force.",
                fix="give the cell under `Parameters` the tag `parameters`",
            )
    if job is None:
        return Overrides()
    values = {name: value for name, value in values.items() if name not in also}
    overrides = Overrides(check_values(job, with_more(job, values, declared))[1])
    overrides.adapters = str(values.get("adapters") or "")
    return overrides


def _declared_names(cells: list[str]) -> set[str]:
    """Names of the last cell that was run with `# @param` forms in it."""
    return next((_assigned(source) for source in reversed(cells) if _declares(source)), set())


def _declares(source: str) -> bool:
    """Whether a cell assigns names with `# @param` forms behind them, and could be run."""
    return not source.startswith(_INJECTED) and bool(_FORM.search(source) and _assigned(source))


def _assigned(source: str) -> set[str]:
    """Names that a cell of plain assignments sets; none for a cell that is no plain Python."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError):
        return set()
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def settings_line(job: str, name: str, value: Any, option: str) -> str:
    """Return what to write in a shell for a setting of a job or another library's name for one.

    >>> settings_line("finetune", "num_train_epochs", 3, "-o")
    'write -o epochs=3'
    """
    if name in settings_class(job).model_fields:
        return f"write {option} {name}={_typed(value)}"
    line = other_name(job, name, {name: value})
    if not line.startswith("write "):
        return line
    return line.replace("write ", f"write {option} ").replace(" and ", f" {option} ")


def override_words(preset: Preset, *, leave_out: Container[str] = ()) -> list[str]:
    """Return what was overridden in a preset, as words of a shell command."""
    settings, words = preset.to_dict()["settings"], []
    for name, origin in preset.provenance.items():
        if str(origin).startswith("overrides") and name not in leave_out:
            words += ["-o", f"{name}={_typed(settings[name])}"]
    return words + (["--quick"] if QUICK in preset.provenance.values() else [])


def _typed(value: Any) -> str:
    """Write a value as it is read back: quoted where a bare word would be another value."""
    if isinstance(value, str):
        with contextlib.suppress(ConfigError):
            if parse_assignments([f"x={value}"], "-o") == {"x": value}:
                return value
    return json.dumps(value)
