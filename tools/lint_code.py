"""Check how the folders of the package import each other: print each problem, exit 1 for any.

All imports count: those inside functions and under TYPE_CHECKING too. Package inits are exempt, as
they only name what a folder exports.
"""

from __future__ import annotations

import ast
import graphlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "nbhelpers"

# The kernel side from low to high: a folder may import itself and what stands before it.
KERNEL = ["errors", "common", "hardware", "metrics", "presets", "data", "plan", "budget", "runs"]
KERNEL += ["use", "reports", "notebook", "cli"]
LAYERS: dict[str, set[str]] = {name: set(KERNEL[:at]) for at, name in enumerate(KERNEL)}
LAYERS["cli"] |= {"legacy"}
LAYERS["legacy"] = {"errors", "common", "hardware", "presets", "plan"}
# The worker side; the simulation of anybody's code knows little of ours.
LAYERS["simulate"] = {"errors", "hardware", "budget"}
LAYERS["jobs"] = LAYERS["use"] | {"use", "simulate"}
LAYERS["__main__"] = {"cli"}

TORCH = {"torch", "transformers", "peft", "trl", "accelerate", "bitsandbytes", "evaluate"}
HEAVY = TORCH | {"numpy", "pandas", "sklearn", "matplotlib", "pynvml", "datasets", "ipywidgets"}
HEAVY |= {"papermill", "nbformat", "huggingface_hub", "jupyter_client", "scipy", "IPython"}
WORKER = {"jobs", "simulate"}
ARRAYS = {"metrics", "data"}  # may import numpy with the module itself
YAML_HOME = f"{PACKAGE}.common.yaml_files"


class Import(NamedTuple):
    """One imported module, where it is imported, and when: with the module itself or later."""

    name: str
    line: int
    at_import: bool


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Return the modules of the package by dotted name, package inits left out."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        if path.name != "__init__.py":
            found[".".join(path.relative_to(root).with_suffix("").parts)] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[Import]:
    """Yield what a module imports; a name that is itself a module counts as that module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    early = {node for statement in _executed(tree.body) for node in ast.walk(statement)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, node in early)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = name.split(".")[: -node.level]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield Import(inner if inner in known else base, node.lineno, node in early)


def _executed(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run on import: no functions, and nothing for typing only."""
    for statement in body:
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from statement.orelse
        elif isinstance(statement, ast.ClassDef):
            yield from _executed(statement.body)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement


def folder_of(module: str) -> str:
    """Return the folder, or the module, that stands directly in the package."""
    return module.split(".")[1] if "." in module else ""


def layer_problems(root: Path = ROOT) -> list[str]:
    """Return every import that runs up, and every heavy library in the wrong place."""
    known, problems = modules(root), []
    for name, path in known.items():
        folder = folder_of(name)
        if folder not in LAYERS:
            problems.append(f"{name}: {folder} has no place in LAYERS of tools/lint_code.py")
            continue
        for each in imports(name, path, known):
            where = f"{path.relative_to(root)}:{each.line}"
            library = each.name.partition(".")[0]
            target = folder_of(each.name)
            if library == PACKAGE and target and target not in LAYERS[folder] | {folder}:
                problems.append(f"{where}: {folder} must not import {target}")
            elif library in TORCH and folder not in WORKER:
                problems.append(f"{where}: {library} belongs to the worker side, jobs and simulate")
            elif library in HEAVY and each.at_import and folder not in WORKER:
                if not (library == "numpy" and folder in ARRAYS):
                    problems.append(f"{where}: import {library} inside the function that needs it")
            elif library == "yaml" and name != YAML_HOME:
                problems.append(f"{where}: {YAML_HOME} alone reads YAML")
    return problems


def circle_problems(root: Path = ROOT) -> list[str]:
    """Return one circle of imports, if there is any."""
    known = modules(root)
    arrows = {
        name: {each.name for each in imports(name, path, known)} & set(known) - {name}
        for name, path in known.items()
    }
    try:
        graphlib.TopologicalSorter(arrows).prepare()
    except graphlib.CycleError as error:
        return ["a circle of imports: " + " <- ".join(error.args[1])]
    return []


def problems(root: Path = ROOT) -> list[str]:
    """Return every problem of a checkout."""
    return layer_problems(root) + circle_problems(root)


def main() -> int:
    """Print the problems; 1 if there are any."""
    found = problems()
    print("\n".join(found) if found else "import layers: no arrow up, no circle")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
