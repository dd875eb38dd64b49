"""Promise: the detector's notebook audits, trains, reports and tries on `smoke`, without a GPU and
in a kernel without torch; data that cannot train a detector stop it before anything is launched.

The run is the one that is recorded as `live_detector` (`tests/golden`).
"""

from __future__ import annotations

import ast
import io
import json
from pathlib import Path

import nbformat
import papermill
import pytest

from nbhelpers.data.samples.styles import load_style_rows
from nbhelpers.errors import DataError
from nbhelpers.notebook.headless import run_notebook
from nbhelpers.runs.run import Run, list_runs
from tests.golden.live import live_detector
from tests.golden.record import LOOSE, compare

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "notebooks" / "02_detect_ai_code.ipynb"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one play, for all tests of this file; it meets what was required of it."""
    folder = tmp_path_factory.mktemp("detector")
    recorded = live_detector(folder)
    (folder / "recorded.json").write_text(json.dumps(recorded))
    assert recorded["code"] == 0, (folder / "said.txt").read_text()[-4000:]
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    (run,) = list_runs(folder / "runs")
    return run


def outputs(folder: Path) -> dict[str, str]:
    """The outputs of each code cell of the executed notebook as one text, by the cell's name."""
    notebook = nbformat.read(folder / "executed.ipynb", as_version=4)
    return {c.id: json.dumps(c.outputs) for c in notebook.cells if c.cell_type == "code"}


def test_the_run_is_the_one_recorded(folder: Path) -> None:
    compare("live_detector", json.loads((folder / "recorded.json").read_text()), LOOSE)


def test_every_cell_ran_and_no_widget_is_left(folder: Path) -> None:
    notebook = nbformat.read(folder / "executed.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code) and "widgets" not in notebook.metadata
    assert not [o for cell in code for o in cell.outputs if o.output_type == "error"]


def test_the_audit_stands_in_the_cell_of_the_plan_and_passes_the_sample_with_warnings(
    folder: Path,
) -> None:
    shown = outputs(folder)
    assert "usable with warnings" in shown["plan"]
    assert list(shown).index("plan") < list(shown).index("launch")
    notebook = nbformat.read(folder / "executed.ipynb", as_version=4)
    source = next(cell.source for cell in notebook.cells if cell.id == "plan")
    assert source.index("require_usable") < source.index("plan_batch")
    assert "text/html" in shown["plan"] and "identifier_length" in shown["plan"]  # its tables


def test_the_result_is_of_the_whole_test_split_at_a_frozen_threshold(run: Run) -> None:
    data = run.result().data
    rows = load_style_rows()
    assert data["scores"]["test"]["n_samples"] == sum(row["split"] == "test" for row in rows)
    point = data["operating_point"]
    assert point["n_humans"] == data["scores"]["valid"]["n_human"] == 72
    floors = {"length", "layout", "tfidf", "masked_tfidf", "encoder"}
    assert set(data["scores"]["test"]["floors"]) == floors
    assert data["similarity"]["headline"]["mrr"] > 0


def test_the_report_and_the_tries_say_what_a_score_is_worth(folder: Path, run: Run) -> None:
    shown = outputs(folder)
    assert "no evidence of misconduct" in shown["try"].replace("no <b>evidence", "no evidence")
    assert "no call" in shown["try"] and "detects nothing real" in shown["try"]
    assert "similarity" in shown["similar"] and "-terse.py" in shown["similar"]
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "evidence of misconduct" in page and "TF-IDF" in page


@pytest.mark.parametrize("path", sorted(NOTEBOOK.parent.glob("*.ipynb")), ids=lambda p: p.stem)
def test_papermill_reads_every_parameter_that_the_cell_assigns(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    (cell,) = [c for c in cells if "parameters" in c.metadata.get("tags", [])]
    assigned = [node.targets[0].id for node in ast.parse(cell.source).body]
    assert list(papermill.inspect_notebook(str(path))) == assigned


def test_data_without_machine_written_rows_stop_the_notebook_before_the_launch(
    tmp_path: Path,
) -> None:
    humans = [row for row in load_style_rows() if row["label"] == "human"]
    file = tmp_path / "humans.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in humans), encoding="utf-8")
    values = {"preset": "smoke", "run_dir": str(tmp_path / "runs"), "data": str(file)}
    values |= {"hold_out": "language=java"}
    with pytest.raises(DataError, match="The class ai is empty"):
        run_notebook(NOTEBOOK, values, output=tmp_path / "out.ipynb", stream=io.StringIO())
    assert not list((tmp_path / "runs").glob("*/run.json"))
