"""YAML as presets use it: one mapping, every mistake with its file and line."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbhelpers.common.files import absence, is_file
from nbhelpers.errors import ConfigError

_SCIENTIFIC = re.compile(r"([-+]?)(\d[\d_]*)(\.\d*)?[eE]([-+]?)(\d+)")
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
Lines = dict[tuple[str, ...], int]


def configs_dir() -> Path:
    """Return the folder of the shipped YAML files, in an installed package and in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / "clones" / "base.yaml").is_file():
            return folder
    raise ConfigError(
        f"The shipped presets are not there: no `configs` in or beside {package}.",
        fix="install the package again, or run from a complete checkout",
    )


def shown_path(path: Path) -> str:
    """Return `configs/…` for shipped files, else the path as given."""
    try:
        return (Path("configs") / path.resolve().relative_to(configs_dir())).as_posix()
    except (OSError, ValueError, RuntimeError, ConfigError):
        return path.as_posix()


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read one YAML mapping; every problem is named with its file and line.

    Raises:
        ConfigError: The file is missing, empty, no mapping or not YAML, has a key twice, or
            writes a number such as `2e-4` or `010` that YAML 1.1 reads as something else.
    """
    return read_with_lines(Path(path))[0]


def read_with_lines(path: Path) -> tuple[dict[str, Any], Lines]:
    """Return the mapping, and the line of every key in it."""
    shown = shown_path(path)
    if not is_file(path):
        raise ConfigError(f"{shown} {absence(path)}.", fix="name a .yaml file that you may read")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        text = f"{shown}: cannot be read ({error})."
        raise ConfigError(text, fix="save it as UTF-8 text") from error
    except OSError as error:
        text = f"{shown}: cannot be read ({error.strerror})."
        raise ConfigError(text, fix="check its permissions") from error
    data, lines = _parse(shown, text)
    return copy.deepcopy(data), lines


@functools.lru_cache(maxsize=64)
def _parse(shown: str, text: str) -> tuple[dict[str, Any], Lines]:
    import yaml

    lines: Lines = {}
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        problems = [f"{shown}:{line}: {what}" for line, what in _walk(root, (), lines)]
        data = None if root is None else loader.construct_document(root)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _syntax_error(shown, error) from error
    if not isinstance(data, dict):
        kind = "is empty" if data is None else f"holds a {type(data).__name__}"
        text = f"{shown} {kind}; a mapping is expected."
        raise ConfigError(text, fix="write lines such as `settings:`")
    if problems:
        raise ConfigError("\n".join(problems), fix="correct the lines named above")
    return data, lines


def _walk(node: Any, where: tuple[str, ...], lines: Lines) -> Iterator[tuple[int, str]]:
    """Record the line of every key below a node, and yield what is wrong with its line."""
    import yaml

    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _walk(item, (*where, str(index)), lines)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line, name = key.start_mark.line + 1, str(key.value)
            if first := lines.get((*where, name)):
                yield line, f"`{name}` is given twice (first in line {first})"
            elif not key.tag.endswith((":str", ":merge")):
                yield line, f'the key `{name}` is not text for YAML 1.1; write `"{name}"`'
            lines[*where, name] = line
            yield from _walk(value, (*where, name), lines)
    elif node is not None and node.style is None and (text := _misread(node)):
        yield node.start_mark.line + 1, text


def _misread(node: Any) -> str:
    """Say where YAML 1.1 reads a plain value as something else than it looks like, else ""."""
    value, kind = node.value, node.tag.rpartition(":")[2]
    if kind == "str" and (match := _SCIENTIFIC.fullmatch(value)):
        sign, whole, part, exponent_sign, exponent = match.groups()
        good = f"{sign}{whole}{part or '.0'}e{exponent_sign or '+'}{exponent}"
        return f"YAML 1.1 reads {value} as text, not as a number; write {good}"
    if kind == "int" and _OCTAL.fullmatch(value):
        return f"YAML 1.1 reads {value} in base 8; write it without the leading 0, or in quotes"
    return ""


def _syntax_error(shown: str, error: Exception) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    where = f"{shown}:{mark.line + 1}" if mark else shown
    problem = getattr(error, "problem", None) or (str(error).splitlines() or ["?"])[0]
    if isinstance(error, RecursionError):
        problem = "it is nested too deeply, or refers to itself"
    if "\\t" in problem:
        return ConfigError(f"{where}: a tab where YAML wants spaces.", fix="indent with spaces")
    return ConfigError(f"{where}: not valid YAML: {problem}.", fix="correct that line")
