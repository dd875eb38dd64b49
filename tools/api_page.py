"""Write docs/API.md from docstrings: `python tools/api_page.py [check]`.

The names are those that `nbhelpers` and its folders export (`__all__`).
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "API.md"
HEAD = """# What a notebook can import

Made from the docstrings by `python tools/api_page.py`. Names are imported when they are first used.
"""
SECTIONS = "Args|Attributes|Returns|Yields|Raises"


def packages() -> list[str]:
    """Return `nbhelpers` and each of its folders that exports names."""
    folders = sorted(path.parent.name for path in (ROOT / "nbhelpers").glob("*/__init__.py"))
    names = ["nbhelpers", *(f"nbhelpers.{folder}" for folder in folders)]
    return [name for name in names if getattr(importlib.import_module(name), "__all__", None)]


def signature(name: str, thing: Any) -> str:
    """Return how it is called, without annotations; of an error or a constant, its name."""
    if not callable(thing) or (isinstance(thing, type) and issubclass(thing, BaseException)):
        return name
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(thing).parameters.values()
    ]
    return name + str(inspect.Signature(parameters))


def text(thing: Any) -> str:
    """Return a docstring as Markdown: its sections as lists, its examples as code."""
    lines, section = [], ""
    for line in inspect.cleandoc(thing.__doc__ or "").splitlines():
        head = re.fullmatch(rf"({SECTIONS}):", line)
        entry = re.match(r"    (\*{0,2}\w[\w.]*): (.*)", line)
        if head:
            section = head[1]
            lines += [f"**{section}**", ""]
        elif section and entry and section != "Returns":
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        elif section and line.startswith("    "):
            lines.append("  " * (section != "Returns") + line.strip())
        else:
            section = section if not line else ""
            lines.append(line)
    body = "\n".join(lines)
    return re.sub(r"((?:^>>> .*\n?(?:.+\n?)*\n?)+)", r"```python\n\1```\n", body, flags=re.M)


def methods(thing: Any) -> list[str]:
    """Return a line for each public method and property of a class: name and first sentence."""
    if not isinstance(thing, type) or issubclass(thing, BaseException):
        return []
    fields = {field.name for field in dataclasses.fields(thing)} if _is_data(thing) else set()
    rows = []
    for name, value in vars(thing).items():
        value = getattr(value, "__func__", value)
        documented = inspect.getdoc(value) if not isinstance(value, str | int | tuple) else None
        if name.startswith("_") or name in fields or not documented:
            continue
        call = signature(name, value) if inspect.isfunction(value) else name
        rows.append(f"- `{call}`: {documented.split(chr(10) * 2)[0].replace(chr(10), ' ')}")
    return rows


def _is_data(thing: type) -> bool:
    return dataclasses.is_dataclass(thing)


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for package in packages():
        module = importlib.import_module(package)
        parts.append(f"## {package}\n\n{(module.__doc__ or '').strip()}\n")
        for name in module.__all__:
            thing = getattr(module, name)
            documented = thing if callable(thing) else None
            parts.append(f"### `{signature(name, thing)}`\n\n{text(documented).strip()}\n")
            if rows := methods(thing):
                parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        if not PAGE.exists() or PAGE.read_text() != page():
            sys.exit("docs/API.md is not what the docstrings say. Fix: python tools/api_page.py")
    else:
        PAGE.write_text(page())
        print(f"wrote {PAGE}")
