"""Check the anatomy of notebooks; print every problem and exit 1 if there is one."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
MAX_CELLS, MAX_CODE_CELLS, MAX_CODE_LINES, MAX_NAMES, MAX_WORDS = 30, 15, 12, 14, 60
MAX_PARAMETER_LINES, MAX_BEFORE_LAUNCH = 24, 6
MAX_BYTES = 500_000
SECTIONS = (
    "Install",
    "Parameters",
    "Imports",
    "Hardware",
    "Preset",
    "Plan and budget",
    "Launch",
    "Result",
    "Report",
    "What to change next",
)
UNITS = r"%|percent|[KMGT]i?B\b|seconds?\b|minutes?\b|hours?\b|s\b|min\b|times\b|x\b|GPUs?\b"
TYPED_NUMBER = re.compile(rf"\b\d[\d.,]*\s?(?:{UNITS})", re.IGNORECASE)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
HELP = re.compile(r"^# @markdown (.+)$", re.MULTILINE)
MAGIC = re.compile(r"^\s*[%!]")


def code_of(cell: NotebookNode) -> str:
    """A cell's source with magics and shell lines as `pass`, so that it parses."""
    lines = cell.source.splitlines()
    return "\n".join(re.sub(r"[%!].*", "pass", x) if MAGIC.match(x) else x for x in lines)


def assigned(tree: ast.Module) -> set[str]:
    """Names that a cell binds at the top level, imports included."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.comprehension):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    inner = {
        name.id
        for node in ast.walk(tree)
        if isinstance(node, ast.comprehension)
        for name in ast.walk(node.target)
        if isinstance(name, ast.Name)
    }
    return names - inner


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments of a cell with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def shape_problems(notebook: NotebookNode) -> Iterator[str]:
    """Counts, stored outputs, widget state, kernel."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if len(notebook.cells) > MAX_CELLS:
        yield f"{len(notebook.cells)} cells, more than {MAX_CELLS}"
    if len(code) > MAX_CODE_CELLS:
        yield f"{len(code)} code cells, more than {MAX_CODE_CELLS}"
    if any(cell.outputs or cell.execution_count is not None for cell in code):
        yield "outputs are stored: clear them"
    launch = next((i for i, cell in enumerate(code) if cell.get("id") == "launch"), 0)
    if launch > MAX_BEFORE_LAUNCH:
        yield f"{launch} code cells before Launch, more than {MAX_BEFORE_LAUNCH}"
    install = next((cell for cell in code if "%pip" in cell.source), None)
    if install is not None and install.metadata.get("cellView") != "form":
        yield "the install cell must show its title only: cellView form"
    if "widgets" in notebook.metadata:
        yield "widget state is stored: GitHub refuses such a notebook"
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "the kernel must be python3"
    if "job" not in notebook.metadata.get("nbhelpers", {}):
        yield 'the metadata must name the job: "nbhelpers": {"job": "..."}'


def code_problems(notebook: NotebookNode) -> Iterator[str]:
    """Length, definitions, magics, and names that two cells assign."""
    owners: dict[str, int] = {}
    pip_cells = []
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        lines = [
            line for line in cell.source.splitlines() if line.strip(" ") and "@title" not in line
        ]
        is_form = "parameters" in cell.metadata.get("tags", [])
        limit = MAX_PARAMETER_LINES if is_form else MAX_CODE_LINES
        if len(lines) > limit:
            yield f"cell {index}: {len(lines)} lines, more than {limit}"
        magics = [line.strip() for line in lines if MAGIC.match(line)]
        pip_cells += [index for magic in magics if magic.startswith("%pip")]
        if any(not magic.startswith("%pip") for magic in magics):
            yield f"cell {index}: a magic or shell line other than %pip"
        tree = ast.parse(code_of(cell))
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
        if any(isinstance(node, kinds) for node in ast.walk(tree)):
            yield f"cell {index}: a definition belongs into the library"
        for name in sorted(assigned(tree)):
            if name in owners:
                yield f"cell {index}: `{name}` is assigned in cell {owners[name]} already"
            owners.setdefault(name, index)
        for line, comment in comments(code_of(cell)):
            if TYPED_NUMBER.search(comment) and "@param" not in comment:
                yield f"cell {index}, line {line}: a typed figure in a comment: {comment}"
    if len(pip_cells) > 1:
        yield f"%pip stands in cells {pip_cells}; one is enough"


def parameter_problems(notebook: NotebookNode) -> Iterator[str]:
    """One tagged cell: literals only, few names; a form for each, and its help above it."""
    tagged = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    if len(tagged) != 1:
        yield f"{len(tagged)} cells are tagged `parameters`; exactly one is needed"
        return
    source = tagged[0].source
    tree = ast.parse(code_of(tagged[0]))
    explained = set(re.findall(r"`(\w+)`", " ".join(HELP.findall(source))))
    names = 0
    for node in tree.body:
        is_assignment = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if not is_assignment or not _is_literal(node.value):
            yield f"parameters, line {node.lineno}: only `name = literal` is allowed"
            continue
        names += 1
        comment = source.splitlines()[node.lineno - 1].partition("#")[2]
        if node.targets[0].id not in explained:
            yield f"parameters, line {node.lineno}: no `# @markdown` line explains it"
        if not comment.strip().startswith("@param"):
            yield f"parameters, line {node.lineno}: no `# @param` form"
        if "=" in comment:  # papermill then takes the line for no parameter
            yield f"parameters, line {node.lineno}: `=` in the comment hides it from papermill"
    if names > MAX_NAMES:
        yield f"{names} parameters, more than {MAX_NAMES}"


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def prose_problems(notebook: NotebookNode) -> Iterator[str]:
    """Length, typed figures, order of sections, and a promise without its check."""
    titles: list[str] = []
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "markdown":
            continue
        text = LINK.sub(r"\1", cell.source)
        words = len(text.replace("#", " ").split())
        if words > MAX_WORDS:
            yield f"cell {index}: {words} words, more than {MAX_WORDS}"
        if found := TYPED_NUMBER.search(text):
            yield f"cell {index}: a typed figure in prose: {found[0]!r}"
        titles += re.findall(r"^## (.+)$", cell.source, re.MULTILINE)
        following = notebook.cells[index + 1] if index + 1 < len(notebook.cells) else None
        if re.search(r"\bmust\b", text) and (
            following is None or following.cell_type != "code" or "assert" not in following.source
        ):
            yield f"cell {index}: says `must`, and the next cell asserts nothing"
    known = [title for title in titles if title in SECTIONS]
    if known != sorted(known, key=SECTIONS.index):
        yield f"sections out of order: {known}"
    job = notebook.metadata.get("nbhelpers", {}).get("job")
    if job and (missing := [title for title in SECTIONS if title not in titles]):
        yield f"sections are missing: {missing}"


def problems(path: Path) -> list[str]:
    """Every problem of one notebook."""
    notebook: Any = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    found = [
        *shape_problems(notebook),
        *code_problems(notebook),
        *parameter_problems(notebook),
        *prose_problems(notebook),
    ]
    first = notebook.cells[0].source if notebook.cells else ""
    if not first.startswith("# ") or f"/blob/main/notebooks/{path.name}" not in first:
        found.append("the first cell needs a title and the badge that opens this file in Colab")
    if path.stat().st_size > MAX_BYTES:
        found.append(f"{path.stat().st_size} bytes, more than {MAX_BYTES}")
    return [f"{path.name}: {problem}" for problem in found]


def main(paths: list[str]) -> int:
    """Print the problems of the named notebooks; 1 if there are any."""
    found = [problem for path in paths for problem in problems(Path(path))]
    print("\n".join(found) if found else f"notebooks: {len(paths)} checked, no problem")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
