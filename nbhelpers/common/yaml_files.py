"""YAML as presets use it: one mapping, every mistake with its file and line, no surprises.

YAML 1.1 reads some spellings as other things than a person means; those are refused, not guessed.
"""

from __future__ import annotations

import copy
import functools
import re
from pathlib import Path
from typing import Any

from nbhelpers.common.files import kind_of
from nbhelpers.errors import ConfigError

_SCIENTIFIC = re.compile(r"([-+]?)(\d[\d_]*)(\.\d*)?[eE]([-+]?)(\d+)")
MAX_NODES = 10_000  # a hundred times the largest preset
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_BASE_60 = re.compile(r"[-+]?\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?")


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


def read_with_lines(path: Path) -> tuple[dict[str, Any], dict[tuple[str, ...], int]]:
    """The mapping, and the line of every key in it."""
    shown, kind = shown_path(path), kind_of(path)
    if kind != "file":
        problem, fix = {
            "": ("no such file", "check the path"),
            "folder": ("it is a folder", "name the .yaml file"),
            "forbidden": ("a folder above it may not be searched", "check its permissions"),
        }.get(kind, ("it is no regular file", "name a .yaml file"))
        raise ConfigError(f"{shown}: {problem}.", fix=fix)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{shown}: cannot be read ({error}).", fix="save it as UTF-8 text"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{shown}: cannot be read ({error.strerror}).", fix="check its permissions"
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
        if _unfolded(root, {}) > MAX_NODES:
            raise ValueError(f"its aliases unfold to more than {MAX_NODES:,} values")
        problems = [f"{shown}:{line}: {what}" for line, what in _walk(root, (), lines, {})]
        data = None if root is None else loader.construct_document(root)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _syntax_error(shown, error) from error
    except (KeyError, IndexError, AttributeError, TypeError) as error:  # from PyYAML's constructors
        raise _syntax_error(shown, ValueError("a value does not fit its !!tag")) from error
    if not isinstance(data, dict):
        kind = "is empty" if data is None else f"holds a {type(data).__name__}"
        raise ConfigError(
            f"{shown} {kind}; a mapping is expected.", fix="write lines such as `settings:`"
        )
    if problems:
        raise ConfigError("\n".join(problems), fix="correct the lines named above")
    return data, lines


def _unfolded(node: Any, known: dict[int, int]) -> int:
    """Count the values that a node stands for, those of its aliases each time; a loop counts 0."""
    if node is None or isinstance(node.value, str):
        return 1
    if id(node) not in known:
        known[id(node)] = 0
        parts = [p for item in node.value for p in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(_unfolded(part, known) for part in parts)
    return known[id(node)]


def _walk(
    node: Any, where: tuple[str, ...], lines: dict[tuple[str, ...], int], seen: dict[int, bool]
) -> list[Any]:
    """Record the line of every key below `node` and return (line, problem) pairs.

    A node that an alias repeats is walked once: aliases of aliases would multiply without end.
    """
    import yaml

    problems: list[tuple[int, str]] = []
    if seen.get(id(node)):
        raise ValueError(f"line {node.start_mark.line + 1} holds an alias of itself")
    if id(node) in seen and not isinstance(node, yaml.ScalarNode):
        return problems
    seen[id(node)] = True  # until its end: an alias in between means a loop
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            problems += _walk(item, (*where, str(index)), lines, seen)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            if (*where, name) in lines:
                first = lines[*where, name]
                problems.append((line, f"`{name}` is given twice (first in line {first})"))
            elif not key.tag.endswith((":str", ":merge")):
                text = f'the key `{name}` is not text for YAML 1.1; write `"{name}"`'
                problems.append((line, text))
            lines[*where, name] = line
            problems += _walk(value, (*where, name), lines, seen)
    elif node is not None and node.style is None and (text := _misread(node)):
        problems.append((node.start_mark.line + 1, text))
    seen[id(node)] = False
    return problems


def _misread(node: Any) -> str:
    """Say where YAML 1.1 reads a plain value as something else than it looks like, else ""."""
    value, kind = node.value, node.tag.rpartition(":")[2]
    if kind == "str" and (match := _SCIENTIFIC.fullmatch(value)):
        sign, whole, part, exponent_sign, exponent = match.groups()
        good = f"{sign}{whole}{part or '.0'}e{exponent_sign or '+'}{exponent}"
        return f"YAML 1.1 reads {value} as text, not as a number; write {good}"
    if kind == "int" and _OCTAL.fullmatch(value):
        return f"YAML 1.1 reads {value} in base 8; write it without the leading 0, or in quotes"
    if kind in ("int", "float") and _BASE_60.fullmatch(value):
        return f"YAML 1.1 reads {value} in base 60; write a plain number, or put it in quotes"
    return ""


def _syntax_error(shown: str, error: Any) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    where = f"{shown}:{mark.line + 1}" if mark else shown
    problem = getattr(error, "problem", None) or (str(error).splitlines() or ["?"])[0]
    if isinstance(error, RecursionError):
        problem = "it is nested too deeply, or refers to itself"
    if "\\t" in problem:
        return ConfigError(f"{where}: a tab where YAML wants spaces.", fix="indent with spaces")
    return ConfigError(f"{where}: not valid YAML: {problem}.", fix="correct that line")
