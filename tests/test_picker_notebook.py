"""Promise: the budget notebook answers headless, without torch, and its picker leaves no widget."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell

from nbhelpers.notebook.equal_lines import BUDGET_NOTEBOOK, DECLARED_BUDGET
from nbhelpers.notebook.headless import run_notebook
from nbhelpers.presets.jobs import JOBS

ROOT = Path(__file__).resolve().parent.parent
NO_PRESET = {"preset", "adapters", "more_settings", "run_dir", "quick", "prompt"}
NO_SETTING = {"gpu", "gpu_count", "job", "price_per_hour", "max_hours"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[nbformat.NotebookNode]]:
    """What every cell shows, by the cell's id; the kernel has not imported torch."""
    folder = tmp_path_factory.mktemp("budget")
    (folder / "nbhelpers").symlink_to(ROOT / "nbhelpers")  # the notebook's project
    notebook = nbformat.read(ROOT / BUDGET_NOTEBOOK, as_version=4)
    check = "import sys\nassert not {'torch', 'transformers'} & sys.modules.keys()"
    notebook.cells.append(new_code_cell(check))
    nbformat.write(notebook, folder / "budget.ipynb")
    parameters = {"price_per_hour": 1.5, "max_hours": 1, "more_settings": {"loss": "plain"}}
    saved = folder / "out.ipynb"
    assert run_notebook(folder / "budget.ipynb", parameters, output=saved) is None
    played = nbformat.read(saved, as_version=4)
    assert "widgets" not in played.metadata
    return {cell.id: cell.outputs for cell in played.cells if cell.cell_type == "code"}


@pytest.mark.parametrize("cell", ["fits", "picker"])
def test_figures_are_stored_as_pictures_with_text_beside(
    outputs: dict[str, list[nbformat.NotebookNode]], cell: str
) -> None:
    shown = [output.data for output in outputs[cell]]
    assert any("image/png" in data for data in shown)
    assert all(data["text/plain"].strip() for data in shown)
    assert not any("application/vnd.jupyter.widget-view+json" in data for data in shown)


def test_the_answer_has_verdict_batch_time_cost_and_lines(
    outputs: dict[str, list[nbformat.NotebookNode]],
) -> None:
    text = outputs["picker"][0].data["text/plain"]
    for said in ("15.0 GiB", "per optimizer step", "Time:", "not finish in your", "Cost:"):
        assert said in text
    assert "more_settings = {'loss': 'plain'}" in text
    assert "nbhelpers budget --job finetune --preset t4 --gpu t4 --price 1.5" in text


@pytest.mark.parametrize("job", [*JOBS, ""])
def test_the_picker_knows_which_settings_a_notebook_lists(job: str) -> None:
    path = ROOT / (JOBS[job].notebook if job else BUDGET_NOTEBOOK)
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    source = next(
        "".join(c["source"]) for c in cells if "parameters" in c["metadata"].get("tags", [])
    )
    names = {node.targets[0].id for node in ast.parse(source).body}
    assert names - NO_PRESET - NO_SETTING == set(JOBS[job].parameters if job else DECLARED_BUDGET)
