"""The clone notebook runs headless on `smoke`: it learns, reports, re-attaches and stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

from nbhelpers.runs.run import Run, list_runs

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = "notebooks/03_find_clones.ipynb"
QUICK = {"epochs": "1", "train_fraction": "0.1", "pretrain_steps": "0"}
LIMIT_S = 900

pytestmark = pytest.mark.slow


@dataclass(kw_only=True)
class Played:
    """One finished command and what it left behind."""

    code: int
    said: str
    run_dir: Path
    saved: Path

    @property
    def run(self) -> Run:
        """The newest run."""
        return list_runs(self.run_dir)[0]


def _command(run_dir: Path, saved: Path, *options: str, **parameters: str) -> list[str]:
    values = {"preset": "smoke", "run_dir": str(run_dir)} | parameters
    pairs = [word for name, value in values.items() for word in ("-p", f"{name}={value}")]
    entry = [sys.executable, "-m", "nbhelpers", "run", NOTEBOOK]
    return [*entry, *pairs, "--output", str(saved), *options]


def _play(folder: Path, *options: str, **parameters: str) -> Played:
    run_dir, saved = folder / "runs", folder / "executed.ipynb"
    command = _command(run_dir, saved, *options, **parameters)
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return Played(
        code=done.returncode, said=done.stdout + done.stderr, run_dir=run_dir, saved=saved
    )


def _launches(run: Run) -> int:
    return sum(event["type"] == "launched" for event in run.events())


def _wait(condition: Callable[[], bool], limit_s: float = 300.0) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """What `make demo` does, once for all tests of this file."""
    played = _play(tmp_path_factory.mktemp("demo"))
    assert played.code == 0, played.said[-4000:]
    return played


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
    notebook = nbformat.read(demo.saved, as_version=4)
    outputs = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    assert not [o for o in outputs if o.output_type == "error"]
    assert "widgets" not in notebook.metadata
    assert "F1" in json.dumps(outputs)


def test_every_test_pair_is_predicted_once(demo: Played) -> None:
    lines = demo.run.path.joinpath("predictions.txt").read_text().splitlines()
    assert len(lines) == demo.run.result().scores["test"]["n_pairs"]


def test_a_resumed_notebook_shows_the_finished_run_without_starting_it_again(
    demo: Played, tmp_path: Path
) -> None:
    command = _command(demo.run_dir, tmp_path / "again.ipynb", "--resume")
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert _launches(demo.run) == 1
    assert len(list_runs(demo.run_dir)) == 1
    assert str(demo.run.report_path) in done.stdout


def test_a_requirement_that_is_missed_ends_with_7_after_the_report(
    demo: Played, tmp_path: Path
) -> None:
    command = _command(demo.run_dir, tmp_path / "x.ipynb", "--resume", "--require", "f1>=1.01")
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 7
    assert str(demo.run.report_path) in done.stdout
    assert "f1>=1.01" in done.stderr


def test_a_notebook_that_starts_in_the_middle_of_a_run_re_attaches(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs"
    settings = [word for name, value in QUICK.items() for word in ("-o", f"{name}={value}")]
    entry = [sys.executable, "-m", "nbhelpers", "train", "clones", "--preset", "smoke"]
    command = [*entry, *settings, "--run-dir", str(run_dir), "--detach"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300, capture_output=True)
    assert list_runs(run_dir)[0].status == "running"
    played = _play(tmp_path, "--resume", **QUICK)
    assert played.code == 0, played.said[-4000:]
    assert _launches(played.run) == 1
    assert "re-attached" in played.said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["TERM", "KILL"])
def test_a_headless_run_takes_its_run_with_it_when_it_is_stopped(
    tmp_path: Path, number: int
) -> None:
    run_dir, saved = tmp_path / "runs", tmp_path / "executed.ipynb"
    process = subprocess.Popen(
        _command(run_dir, saved, pretrain_steps="0"),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait(lambda: len(list_runs(run_dir)) == 1)
        run = list_runs(run_dir)[0]
        _wait(lambda: any(event["type"] == "step" for event in run.events()))
        os.kill(process.pid, number)
        code = process.wait(timeout=300)
    finally:
        process.kill()
    assert code == (9 if number == signal.SIGTERM else -signal.SIGKILL)
    _wait(lambda: run.status == "stopped")
    if number == signal.SIGTERM:
        assert "did not finish" in saved.read_text()
