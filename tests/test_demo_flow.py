"""The clone notebook runs headless on `smoke`: it re-attaches, learns, reports and stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import fake_launch
import nbformat
import pytest
from fake_launch import wait_for

from nbhelpers.runs.run import Run, list_runs
from tests.golden.live import notebook
from tests.golden.outputs import call_raw, place

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "notebooks" / "03_find_clones.ipynb"
QUICK = {"epochs": 1, "train_fraction": 0.35, "learning_rate": 3e-3, "pretrain_steps": 150}
LIMIT_S = 900

pytestmark = pytest.mark.slow


@dataclass(kw_only=True)
class Played:
    """What a headless notebook said, and the folder that it left."""

    said: str
    folder: Path

    @property
    def run(self) -> Run:
        """The one run."""
        (run,) = list_runs(self.folder / "runs")
        return run


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """What `make demo` does in less time, on a run that goes already; once for all tests."""
    folder = tmp_path_factory.mktemp("demo")
    settings = [word for name, value in QUICK.items() for word in ("-o", f"{name}={value}")]
    words = ["train", "clones", "--preset", "smoke", *settings, "--run-dir", "@ROOT@/runs"]
    with place(keep=folder) as where:
        assert call_raw(where, *words, "--detach")["code"] == 0
        assert list_runs(where.runs)[0].status == "running"
        played = call_raw(where, *notebook(NOTEBOOK, QUICK))
    said = played["out"] + played["err"]
    assert played["code"] == 0, said[-4000:]
    return Played(said=said, folder=folder)


def test_a_notebook_that_starts_in_the_middle_of_a_run_re_attaches(demo: Played) -> None:
    assert "re-attached" in demo.said
    assert sum(event["type"] == "launched" for event in demo.run.events()) == 1


def test_the_demo_ends_with_scores_memory_and_the_path_of_the_report(demo: Played) -> None:
    ending = demo.said.partition("Notebook: ")[2]
    assert "F1" in ending
    assert "predicted" in ending.lower()
    assert "measured" in ending.lower()
    assert str(demo.run.report_path) in ending
    assert demo.run.report_path.stat().st_size > 1000


def test_the_demo_learns_more_than_the_trivial_floors(demo: Played) -> None:
    test = demo.run.result().scores["test"]
    f1 = test["orders"]["given"]["f1"]
    assert f1 > test["floors"]["always_yes"]["f1"]
    assert f1 > test["floors"]["identifier_overlap"]["f1"]


def test_prediction_and_measurement_stand_side_by_side(demo: Played) -> None:
    memory = demo.run.result().memory
    assert memory["predicted_bytes"] > 0
    assert memory["measured_bytes"] > 0
    assert memory["error_percent"] is not None


def test_the_executed_notebook_shows_its_result_and_holds_no_widget(demo: Played) -> None:
    notebook = nbformat.read(demo.folder / "executed.ipynb", as_version=4)
    outputs = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    assert not [o for o in outputs if o.output_type == "error"]
    assert "widgets" not in notebook.metadata
    assert "F1" in json.dumps(outputs)


def test_every_test_pair_is_predicted_once(demo: Played) -> None:
    lines = demo.run.path.joinpath("predictions.txt").read_text().splitlines()
    assert len(lines) == demo.run.result().scores["test"]["n_pairs"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["TERM", "KILL"])
def test_a_headless_run_takes_its_run_with_it_when_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    for name, value in (fake_launch.ENVIRONMENT | {"FAKE_WORKER": "slow"}).items():
        monkeypatch.setenv(name, value)
    run_dir, saved = tmp_path / "runs", tmp_path / "executed.ipynb"
    words = ["-p", "preset=smoke", "-p", f"run_dir={run_dir}", "--output", str(saved)]
    process = subprocess.Popen(
        [sys.executable, "-m", "nbhelpers", "run", str(NOTEBOOK), *words],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: len(list_runs(run_dir)) == 1, LIMIT_S)
        run = list_runs(run_dir)[0]
        wait_for(lambda: any(event["type"] == "step" for event in run.events()), LIMIT_S)
        os.kill(process.pid, number)
        code = process.wait(timeout=LIMIT_S)
    finally:
        process.kill()
    assert code == (9 if number == signal.SIGTERM else -signal.SIGKILL)
    wait_for(lambda: run.status == "stopped", LIMIT_S)
    if number == signal.SIGTERM:
        assert "did not finish" in saved.read_text()
