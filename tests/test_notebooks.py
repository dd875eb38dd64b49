"""Every notebook has the anatomy that a reader relies on; the lint sees when it has not."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import get_args

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from nbhelpers.presets.checks import settings_class
from nbhelpers.presets.parameters import check_values
from tools import lint_notebook, repository

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
CLONES = Path(__file__).parent.parent / "notebooks" / "03_find_clones.ipynb"
NAMES = {
    "00_gpu_and_budget": [
        *("gpu", "gpu_count", "job", "preset", "quick", "model", "adapters"),
        *("per_device_train_batch_size", "seq_len", "more_settings", "price_per_hour", "max_hours"),
    ],
    "01_finetune_gemma": [
        *("preset", "quick", "model", "adapters", "data", "seq_len", "epochs"),
        *("max_train_samples", "seed", "evaluate", "more_settings", "run_dir", "prompt"),
    ],
    "02_detect_ai_code": [
        *("preset", "quick", "model", "data", "unseen_humans", "objective", "hold_out"),
        *("on_failed_audit", "epochs", "train_fraction", "seed", "more_settings", "run_dir"),
    ],
    "03_find_clones": [
        *("preset", "quick", "model", "data", "seq_len", "data_flow_length", "epochs"),
        *("train_fraction", "seed", "per_device_train_batch_size", "num_gpus"),
        *("more_settings", "run_dir"),
    ],
    "04_compare_runs": ["runs", "run_dir", "price_per_hour"],
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_passes_the_lint(path: Path) -> None:
    assert lint_notebook.problems(path) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_offers_its_parameters_as_forms(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    cell = next(c for c in notebook.cells if "parameters" in c.metadata.get("tags", []))
    names = [node.targets[0].id for node in ast.parse(cell.source).body]
    assert names == NAMES[path.stem]
    assert all(re.search("# @(param|markdown)", line) for line in cell.source.splitlines())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_form_offers_what_the_job_accepts(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    cell = next(c for c in notebook.cells if "parameters" in c.metadata.get("tags", []))
    job = notebook.metadata["nbhelpers"]["job"]
    form = r"^(\w+) = .*# @param (\[.*?\])( \{allow-input: true\})?$"
    for name, values, is_open in re.findall(form, cell.source, re.MULTILINE):
        field = settings_class(job).model_fields.get(name) if job else None
        known = get_args(field.annotation) if field else ()
        assert is_open or not known or {"", *known} == set(json.loads(values))
        for value in json.loads(values) if job else ():
            check_values(job, {name: value})


def test_every_notebook_installs_in_the_same_way() -> None:
    found = set()
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        found.add(next(cell.source for cell in cells if cell.id == "install"))
    assert len(found) == 1


def _edited(tmp_path: Path, edit: object) -> list[str]:
    notebook = nbformat.read(CLONES, as_version=4)
    edit(notebook)
    path = tmp_path / CLONES.name
    nbformat.write(notebook, path)
    return lint_notebook.problems(path)


def _insert(cell: nbformat.NotebookNode, at: int = 8) -> object:
    return lambda notebook: notebook.cells.insert(at, cell)


def _store_output(notebook: nbformat.NotebookNode) -> None:
    code = next(c for c in notebook.cells if c.cell_type == "code")
    code.outputs = [new_output("stream", text="hello")]


def _lose_tag(notebook: nbformat.NotebookNode) -> None:
    for cell in notebook.cells:
        cell.metadata.pop("tags", None)


def _set_parameters(source: str) -> object:
    def edit(notebook: nbformat.NotebookNode) -> None:
        for cell in notebook.cells:
            if "parameters" in cell.metadata.get("tags", []):
                cell.source = source

    return edit


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (_insert(new_code_cell("def f():\n    return 1")), "a definition"),
        (_insert(new_code_cell("\n".join(f"print({i})" for i in range(13)))), "13 lines"),
        (_insert(new_code_cell("hardware = 1")), "`hardware` is assigned in cell"),
        (_insert(new_code_cell("%pip install x")), "%pip stands in cells"),
        (_insert(new_code_cell("!nvidia-smi")), "a magic or shell line"),
        (_insert(new_code_cell("x1 = 1  # takes 3 minutes")), "figure in a comment"),
        (_insert(new_markdown_cell("This needs 15 GB.")), "figure in prose"),
        (_insert(new_markdown_cell("It is 30 % faster.")), "figure in prose"),
        (_insert(new_markdown_cell("word " * 61)), "61 words"),
        (_insert(new_markdown_cell("## Report"), at=3), "out of order"),
        (_insert(new_markdown_cell("The loss must fall."), at=4), "asserts nothing"),
        (_store_output, "outputs are stored"),
        (_lose_tag, "0 cells are tagged"),
        (_set_parameters("preset = 'a' + 'b'  # what"), "only `name = literal`"),
        (_set_parameters('preset = "auto"  # @param {type:"string"}'), "no `# @markdown` line"),
        (_set_parameters('data = ""  # for instance source=NAME'), "hides it from papermill"),
        (_set_parameters("\n".join(f"p{i} = 1  # why" for i in range(15))), "15 parameters"),
        (lambda n: n.metadata.update(widgets={}), "widget state"),
        (lambda n: n.metadata.pop("nbhelpers"), "must name the job"),
        (lambda n: n.cells[0].update(source="# Find clones"), "badge"),
        (lambda n: n.cells.extend(new_markdown_cell("x") for _ in range(10)), "cells, more than"),
    ],
)
def test_the_lint_sees_a_broken_rule(tmp_path: Path, edit: object, said: str) -> None:
    assert said in "\n".join(_edited(tmp_path, edit))


def test_the_address_is_the_same_in_every_file_that_carries_it(root: Path) -> None:
    assert repository.problems(root) == []


def test_make_repo_writes_the_owner_into_badges_and_install_cells(
    tmp_path: Path, root: Path
) -> None:
    for name in ("nbhelpers/notebook/environment.py", "nbhelpers/__init__.py", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text((root / name).read_text())
    (tmp_path / "notebooks").mkdir()
    copy = tmp_path / "notebooks" / CLONES.name
    copy.write_text(CLONES.read_text())
    changed = repository.set_owner(tmp_path, "somebody", "clones")
    assert f"notebooks/{CLONES.name}" in changed
    text = copy.read_text()
    assert "colab.research.google.com/github/somebody/clones/blob/main/notebooks/" in text
    assert "git+https://github.com/somebody/clones@v" in text
    assert repository.problems(tmp_path) == []
    assert lint_notebook.problems(copy) == []
    (tmp_path / "README.md").write_text("https://github.com/another/clones")
    assert "README.md" in repository.problems(tmp_path)[0]
