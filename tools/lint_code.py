"""Check import layers and lengths; print every problem and exit 1 if there is one."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_LOOP_LINES = 400, 50, 80

FACTS = {"errors", "events", "metrics", "ranking", "resampling", "floors", "predictions"}
FACTS |= {"metric_registry", "spelling"}
FACTS |= {"cache", "catalog", "forms", "hub_errors", "paths", "tables", "detector", "retrieval"}
FACTS |= {"formatting"}
CONFIG = FACTS | {"schema", "checks", "presets", "config", "study_adapters"}
RUNS = CONFIG | {"identity", "locks", "processes", "result", "results", "runs", "workers"}
RUNS |= {"claims", "nodes", "weight_files", "trained", "speeds"}
HARDWARE = CONFIG | {"processes", "machine", "gpus", "nvml", "visible", "hardware"}
PLAN = HARDWARE | {"batching", "shapes", "ledger", "memory", "preflight", "calibration"}
DATA = CONFIG | {"data", "samples"}
KERNEL = PLAN | RUNS | {"supervise", "launch", "progress", "follow", "parameters", "bootstrap"}
KERNEL |= {"launcher", "requirements", "signals", "report", "plots", "widgets", "headless"}
KERNEL |= {"access", "detect", "legacy", "study", "use", "tokens", "budgets", "timing", "picker"}
CODE = DATA | {"code"}  # scores of generated code: both sides use them

# What each module may import of ours: itself and the rows above it (STYLE, "Module boundaries").
LAYERS: dict[str, set[str]] = {
    **dict.fromkeys(FACTS, FACTS),
    **dict.fromkeys(CONFIG - FACTS, CONFIG),
    **dict.fromkeys(RUNS - CONFIG, RUNS),
    **dict.fromkeys(HARDWARE - CONFIG, HARDWARE),
    **dict.fromkeys(PLAN - HARDWARE, PLAN),
    **dict.fromkeys(KERNEL - PLAN - RUNS, KERNEL | {"code"}),
    "code": CODE,
    "detect": KERNEL | CODE,  # reads people's files as the training reads its data
    "data": DATA,
    "audit": KERNEL | DATA,  # shows what `data` measured
    "samples": DATA,
    **dict.fromkeys(("models", "jobs"), PLAN | RUNS | CODE | {"models", "jobs", "supervise"}),
    "simulate": PLAN | RUNS | CODE | {"models", "jobs", "supervise", "simulate"},
    "cli": KERNEL | {"code", "audit"},
    "__main__": {"cli"},
    "__init__": KERNEL,
}
TORCH = {"torch", "transformers", "peft", "trl", "accelerate", "bitsandbytes", "evaluate"}
HEAVY = TORCH | {"numpy", "pandas", "sklearn", "matplotlib", "pynvml", "datasets", "ipywidgets"}
HEAVY |= {"papermill", "nbformat", "huggingface_hub", "jupyter_client", "scipy", "IPython"}
WORKER = {"models", "jobs", "simulate"}


def module_of(path: Path, package: Path) -> str:
    """The row of a file: `data` for data/pairs.py, `report` for report_html.py."""
    return row_of(path.relative_to(package).with_suffix("").parts[0])


def row_of(name: str) -> str:
    """The row of a module: its own name, else the part before its first underscore."""
    return name if name in LAYERS else name.partition("_")[0]


def imports(tree: ast.Module, inside: tuple[str, ...] = ()) -> Iterator[tuple[str, int, bool]]:
    """Every imported name with its line, and whether it is imported with the module itself.

    `inside` names the folders of the package that the module stands in.
    """
    top = {node for statement in _executed(tree.body) for node in ast.walk(statement)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, node in top
        elif isinstance(node, ast.ImportFrom):
            above = ["nbhelpers", *inside[: len(inside) + 1 - node.level], ""] if node.level else []
            base = ".".join(above) + (node.module or "")
            names = [f"{base}.{alias.name}" for alias in node.names]
            for name in names if base in ("nbhelpers", "nbhelpers.") else [base]:
                yield name.replace("..", "."), node.lineno, node in top


def _executed(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run on import: not functions, and not what stands under TYPE_CHECKING."""
    for statement in body:
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from statement.orelse
        elif isinstance(statement, ast.ClassDef):
            yield from _executed(statement.body)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement


def _typing_only(tree: ast.Module) -> set[int]:
    """Lines that stand under `if TYPE_CHECKING:`."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            lines |= {
                sub.lineno for part in node.body for sub in ast.walk(part) if hasattr(sub, "lineno")
            }
    return lines


def layer_problems(path: Path, package: Path) -> list[str]:
    """What a file of the package imports that its layer must not."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    module, typing_only = module_of(path, package), _typing_only(tree)
    if module not in LAYERS:
        return [f"{path.name}: the module {module} has no row in LAYERS of tools/lint_code.py"]
    problems = []
    for name, line, at_import in imports(tree, path.relative_to(package).parts[:-1]):
        first, _, rest = name.partition(".")
        where = f"{path.relative_to(package.parent)}:{line}"
        ours = row_of(rest.split(".")[0])
        if first == "nbhelpers" and ours and line not in typing_only:
            if ours in LAYERS and ours not in LAYERS[module] | {module}:
                problems.append(f"{where}: {module} must not import {ours}")
        elif first in TORCH and module not in WORKER and line not in typing_only:
            problems.append(f"{where}: {first} belongs to the worker side (models, jobs)")
        elif first in HEAVY and at_import and module not in WORKER:
            problems.append(f"{where}: import {first} inside the function that needs it")
        elif first == "yaml" and module != "config":
            problems.append(f"{where}: config alone reads YAML")
    return problems


def length_problems(path: Path) -> list[str]:
    """Files and functions that are too long; a docstring does not count, a test may be longer."""
    text = path.read_text(encoding="utf-8")
    problems = []
    count = len(text.splitlines())
    if count > MAX_FILE_LINES:
        problems.append(f"{path.name}: {count} lines, more than {MAX_FILE_LINES}")
    if "tests" in path.parts:
        return problems
    limit = MAX_LOOP_LINES if path.name == "loop.py" else MAX_FUNCTION_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _length(node) > limit:
            problems.append(f"{path.name}:{node.lineno}: {node.name} has {_length(node)} lines")
    return problems


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    total = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is not None:
        total -= (first.end_lineno or first.lineno) - first.lineno + 1
    return total


def problems(root: Path = ROOT) -> list[str]:
    """Every problem of a checkout."""
    package = root / "nbhelpers"
    found = []
    for path in sorted(package.rglob("*.py")):
        found += layer_problems(path, package)
    for folder in ("nbhelpers", "tests", "tools", "benchmarks"):
        for path in sorted((root / folder).rglob("*.py")):
            found += length_problems(path)
    return found


def main() -> int:
    """Print the problems; 1 if there are any."""
    found = problems()
    print("\n".join(found) if found else "import layers and lengths: no problem")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
