"""Promise: the fine-tuning notebook runs a study on `smoke` and learns; its kernel has no torch.

The runs are those that are recorded as `live_finetune` (`tests/golden`).
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fake_study
import nbformat
import pytest

from nbhelpers.errors import OutOfMemory, RequirementMissed
from nbhelpers.notebook.headless import run_notebook
from nbhelpers.runs.run import list_runs
from nbhelpers.runs.studies import list_studies, open_study
from nbhelpers.runs.study_results import StudyResult
from tests.golden.live import live_finetune
from tests.golden.record import LOOSE, compare

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "notebooks" / "01_finetune_gemma.ipynb"
ADAPTERS = ["base", "r8", "qlora-r16"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole study."""
    return tmp_path_factory.mktemp("study")


@pytest.fixture(scope="module")
def recorded(folder: Path) -> dict[str, Any]:
    """What the notebook left there, played once for all tests of this file."""
    return live_finetune(folder)


@pytest.fixture(scope="module")
def found(folder: Path, recorded: dict[str, Any]) -> StudyResult:
    assert recorded["code"] == RequirementMissed.exit_code, said(folder)
    (path,) = list_studies(folder / "runs")
    return open_study(path)


def said(folder: Path) -> str:
    return (folder / "said.txt").read_text()


def outputs(folder: Path) -> dict[str, list[nbformat.NotebookNode]]:
    """The outputs of each code cell of the executed notebook, by the cell's name."""
    notebook = nbformat.read(folder / "executed.ipynb", as_version=4)
    return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def test_the_runs_are_those_recorded(recorded: dict[str, Any]) -> None:
    compare("live_finetune", recorded, LOOSE)


def test_every_adapter_is_trained_once_and_has_a_result(found: StudyResult, folder: Path) -> None:
    assert [row.name for row in found.rows] == ADAPTERS
    assert found.is_complete and not found.failures
    assert len(list_runs(folder / "runs")) == len(ADAPTERS)


@pytest.mark.parametrize("adapter", ADAPTERS[1:])
def test_an_adapter_answers_better_than_the_base(found: StudyResult, adapter: str) -> None:
    base, tuned = (
        next(row for row in found.rows if row.name == name).result.scores["test"]["metrics"]
        for name in ("base", adapter)
    )
    assert tuned["syntax_accuracy"] > base["syntax_accuracy"] + 0.2
    assert tuned["bleu"] > base["bleu"] + 10


def test_all_runs_read_the_same_data_in_as_many_steps(found: StudyResult) -> None:
    trained = found.rows[1:]
    assert len({row.result.data["data"]["fingerprint"] for row in found.rows}) == 1
    assert len({row.result.training["optimizer_steps"] for row in trained}) == 1


def test_without_a_gpu_no_baseline_is_claimed(found: StudyResult) -> None:
    assert all(row.baseline is None for row in found.rows)


def test_the_command_ends_with_the_report_of_the_study(folder: Path, found: StudyResult) -> None:
    ending = said(folder).partition("Notebook: ")[2]
    assert "runs finished:" in ending and "3 of 3" in ending
    assert all(f"\n{name} " in ending for name in ADAPTERS)
    page = found.path / "study.html"
    assert str(page) in ending and page.stat().st_size > 1000


@pytest.mark.usefixtures("found")
def test_the_executed_notebook_shows_plan_sample_lengths_and_answers(folder: Path) -> None:
    shown = outputs(folder)
    notebook = nbformat.read(folder / "executed.ipynb", as_version=4)
    assert "widgets" not in notebook.metadata
    assert not [o for cell in shown.values() for o in cell if o.output_type == "error"]
    plan, prompt = json.dumps(shown["plan"]), json.dumps(shown["result"])
    assert "time (predicted)" in plan and "qlora-r16" in plan and "in total" in plan
    assert "coloured" in prompt and "image/png" in prompt and "training samples" in prompt
    assert "needs no token" in json.dumps(shown["hardware"])
    assert "1 of 1 answers differ" in json.dumps(shown["try"])
    assert "3 of 3 runs finished" in json.dumps(shown["launch"])


def test_a_run_that_failed_is_the_error_after_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (fake_study.ENVIRONMENT | {"FAKE_FAIL": "r8"}).items():
        monkeypatch.setenv(name, value)
    values = {"preset": "smoke", "run_dir": str(tmp_path / "runs"), "adapters": "r8"}
    with pytest.raises(OutOfMemory, match="r8 failed first"):
        run_notebook(NOTEBOOK, values, output=tmp_path / "executed.ipynb", stream=io.StringIO())
    shown = outputs(tmp_path)
    assert "1 of 2 runs finished" in json.dumps(shown["report"])
    assert not shown["try"]
