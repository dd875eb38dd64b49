"""What is checked of a notebook, its parameters and its output before a headless run starts."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbhelpers.errors import ConfigError
from nbhelpers.parameters import as_declared, check_values, require_known, with_more
from nbhelpers.paths import expanded, is_file, kind_of


def check_notebook(notebook: str | Path, parameters: Mapping[str, Any]) -> tuple[Path, Path]:
    """Check a notebook and its parameters; return its path and the project's folder.

    Raises:
        ConfigError: No such notebook, not of Python, no `parameters` cell, unknown names, values
            that cannot be stored or are out of range.
    """
    import papermill

    path = _existing(notebook)
    content = _read(path, notebook)
    cell = _parameters_cell(content, notebook)
    spec = content.metadata.get("kernelspec")
    language = spec.get("language", "python") if isinstance(spec, dict) else ""
    if not language or str(language).lower() != "python" or not spec.get("name"):
        raise ConfigError(
            f"{notebook} names no Python kernel in its metadata (kernelspec: {spec}).",
            fix="open it in Jupyter, choose a Python 3 kernel and save it",
        )
    _require_storable(parameters)
    declared = papermill.inspect_notebook(escaped(path))
    parameters = as_declared(parameters, declared)
    about = content.metadata.get("nbhelpers")
    job = about.get("job") if isinstance(about, dict) else None
    if job:
        parameters = with_more(job, parameters, declared)
    require_known(parameters, declared, path.name)
    if job:
        defaults = _defaults(cell, declared, notebook)
        check_values(job, defaults | dict(parameters))
    return path, project_root(path)


def notebook_job(path: Path) -> str | None:
    """Return the job that a checked notebook names in its metadata, or None."""
    about = _read(path, path).metadata.get("nbhelpers")
    job = about.get("job") if isinstance(about, dict) else None
    return job if isinstance(job, str) else None


def own_spelling(path: Path, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters under the names that a checked notebook declares."""
    import papermill

    declared, job = papermill.inspect_notebook(escaped(path)), notebook_job(path)
    plain = as_declared(parameters, declared)
    return with_more(job, plain, declared) if job else plain


def escaped(path: Path) -> str:
    """A path for papermill, which formats braces in paths with the parameters.

    >>> escaped(Path("a {b}.ipynb"))
    'a {{b}}.ipynb'
    """
    return str(path).replace("{", "{{").replace("}", "}}")


def _existing(notebook: str | Path) -> Path:
    path = expanded(notebook, "the notebook")
    kind = kind_of(path)
    if kind != "file":
        found = {
            "": "does not exist",
            "folder": "is a folder",
            "forbidden": "is in a folder that may not be searched",
        }.get(kind, "is no regular file")
        raise ConfigError(f"{notebook} {found}.", fix="name an .ipynb file")
    return path.resolve()


def _read(path: Path, notebook: str | Path) -> Any:
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:  # nbformat raises several kinds for a broken file
        raise ConfigError(
            f"{notebook} is not a notebook: {error}", fix="name an .ipynb file"
        ) from error


def _parameters_cell(content: Any, notebook: str | Path) -> Any:
    tagged = []
    for number, cell in enumerate(content.cells, 1):
        tags = cell.metadata.get("tags", [])
        if not isinstance(tags, list):
            raise ConfigError(
                f"Cell {number} of {notebook} has the tags {tags!r}, which is no list.",
                fix="correct its tags in Jupyter, or delete them",
            )
        if cell.cell_type == "code" and "parameters" in tags:
            tagged.append(cell)
    if len(tagged) != 1:
        raise ConfigError(
            f"{notebook} has {len(tagged)} code cells tagged `parameters`; exactly one is needed.",
            fix="tag the cell with the defaults, and no other",
        )
    return tagged[0]


def _require_storable(parameters: Mapping[str, Any]) -> None:
    """Refuse values that the saved notebook could not hold.

    Raises:
        ConfigError: A value that is no JSON, or a text that is not UTF-8.
    """
    for name, value in parameters.items():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"The value of `{name}` cannot be stored in a notebook: {error}.",
                fix="give a plain text, number, truth value, list or mapping",
            ) from error


def _defaults(cell: Any, declared: Mapping[str, Any], notebook: str | Path) -> dict[str, Any]:
    """The values that the parameters cell writes.

    Raises:
        ConfigError: The cell is no Python, or a default is not a plain value.
    """
    try:
        ast.parse(cell.source)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"The cell tagged `parameters` of {notebook} is not plain Python: {error}.",
            fix="write lines such as epochs = 3",
        ) from error
    found = {}
    for name, about in declared.items():
        try:
            found[name] = ast.literal_eval(about["default"])
        except (SyntaxError, TypeError, ValueError) as error:
            raise ConfigError(
                f"The default of `{name}` in {notebook} is computed: {about['default']}.",
                fix=f"write a plain value, such as {name} = None",
            ) from error
    return found


def project_root(notebook: Path) -> Path:
    """The folder that the kernel works in: the enclosing project's, else the notebook's own."""
    for folder in notebook.parents:
        if is_file(folder / "nbhelpers" / "__init__.py"):
            return folder
    return notebook.parent


def default_output(notebook: Path, root: Path) -> Path:
    """A new path below runs/notebooks, named by the notebook and the time."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return root / "runs" / "notebooks" / f"{notebook.stem}-{stamp}-{os.getpid()}.ipynb"


def prepare_output(output: str | Path | None, path: Path, root: Path) -> tuple[Path, Path]:
    """Return where the notebook is saved and where its runs are noted, both writable.

    Raises:
        ConfigError: It is no .ipynb file, the notebook itself, or cannot be written.
    """
    saved = expanded(output, "the output").absolute() if output else default_output(path, root)
    if saved.suffix != ".ipynb":
        fix = f"write --output {Path(str(output)).with_suffix('.ipynb')}"
        raise ConfigError(f"The output {output} does not end in .ipynb.", fix=fix)
    launched = saved.with_name(f".{saved.name}.runs")
    try:
        if kind_of(saved) and saved.samefile(path):
            fix = "write another --output: the notebook would be overwritten by its own result"
            raise ConfigError(f"The output {saved} is the notebook itself.", fix=fix)
        saved.parent.mkdir(parents=True, exist_ok=True)
        launched.write_text("")
        if kind_of(saved):
            with saved.open("r+b"):  # an earlier output, to be replaced at the end
                pass
    except OSError as error:
        with contextlib.suppress(OSError):
            launched.unlink(missing_ok=True)
        raise ConfigError(
            f"The output {saved} cannot be written: {error.strerror or error}.",
            fix="write --output with a file in a folder that you may write to",
        ) from error
    return saved, launched


def check_timeout(timeout_s: float | None) -> None:
    """Refuse a time limit that leaves no time, or is no number.

    Raises:
        ConfigError: It is not above 0.
    """
    if timeout_s is None:
        return
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise ConfigError(
            f"--timeout {timeout_s} leaves no time to run.",
            fix="give seconds above 0, or leave --timeout out for no limit",
        )
