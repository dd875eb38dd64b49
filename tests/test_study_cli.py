"""Promise: `nbhelpers study` shows the plan, runs it, and its exit code says how it ended."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_study
import pytest
from fake_launch import folder_of_runs, wait_for_event
from fake_study import make_preset, no_gpu

from nbhelpers.cli import app
from nbhelpers.errors import ConfigError, OutOfMemory, Stopped
from nbhelpers.runs.run import list_runs

pytestmark = pytest.mark.slow


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of runs; the preset and the hardware are those of the tests."""

    def load(job: str, name: str, *, overrides: dict[str, Any], **_: Any) -> Any:
        assert (job, name) == ("finetune", "smoke")
        return make_preset(**overrides)

    monkeypatch.setattr("nbhelpers.presets.loading.load_preset", load)
    monkeypatch.setattr("nbhelpers.hardware.detection.detect_hardware", no_gpu)
    yield from folder_of_runs(tmp_path, monkeypatch, fake_study.ENVIRONMENT)


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["nbhelpers", *arguments])
    try:
        app.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_plan_only_shows_memory_and_time_and_starts_nothing(
    runs: Path, monkeypatch, capsys
) -> None:
    options = ("study", "--preset", "smoke", "--run-dir", str(runs), "--plan-only")
    assert command(monkeypatch, *options, "--seeds", "3,4", "-o", "epochs=1") == 0
    said = capsys.readouterr().out
    assert "qlora-r16-seed4" in said and "In total: " in said and "; estimate)" in said
    assert not runs.exists()
    assert command(monkeypatch, *options, "--gpu", "l4") == 0
    assert "planned 1 x L4" in capsys.readouterr().out
    assert command(monkeypatch, *options, "--gpu", "l4", "--count", "2") == 0
    assert "planned 2 x L4" in capsys.readouterr().out


def test_a_study_runs_and_is_used_again(runs: Path, monkeypatch, capsys) -> None:
    options = ("study", "--preset", "smoke", "--adapters", "r8", "--run-dir", str(runs))
    assert command(monkeypatch, *options) == 0
    said = capsys.readouterr().out
    ending = said.index("runs finished:")
    assert said.index("In total: ") < said.index("[1/2] base") < ending
    (folder,) = runs.glob("study-*")
    assert f"Report: {folder}/study.html" in said and (folder / "study.html").is_file()
    assert said.rstrip().endswith('"INSTRUCTION"') and "best run: nbhelpers ask /" in said
    assert len(list(runs.glob("finetune-*/report.html"))) == 2  # each run has its own page
    ended = said[ending:].splitlines()
    assert max(len(line) for line in ended if str(runs) not in line) <= 100
    assert command(monkeypatch, *options) == 0
    again = capsys.readouterr().out
    assert again.count("is finished: its result is used") == 2
    assert "[start]" in said and "[start]" not in again  # nothing is told as if it ran
    for name in (folder.name, folder.name[:9], str(folder)):
        assert command(monkeypatch, "report", name, "--run-dir", str(runs)) == 0
        said = capsys.readouterr().out
        assert re.search(r"runs finished: +2 of 2", said) and f"{folder}/study.html" in said
    assert command(monkeypatch, "runs", "--run-dir", str(runs)) == 0
    listed, studies = capsys.readouterr().out.split("\n\n")
    assert listed.count("finished") == 2  # the study's folder is no run
    assert studies.split("\n")[0].split() == ["study", "adapters", "finished"]
    assert studies.split("\n")[1].split() == [folder.name, "base,", "r8", "2", "of", "2"]
    run = next(runs.glob("finetune-*")).name
    for named in (("follow",), ("ask",), ("merge",), ("export",)):
        rest = {"follow": ()}.get(named[0], ("x",))
        given = (*named, folder.name, *rest, "--run-dir", str(runs))
        assert command(monkeypatch, *given) == ConfigError.exit_code
        said = capsys.readouterr().err
        assert "is a study" in said and run in said and f"nbhelpers {named[0]} {runs}" in said
    assert command(monkeypatch, "stop", folder.name, "--run-dir", str(runs)) == 0
    assert ": finished" in capsys.readouterr().out
    assert command(monkeypatch, "report", "study-0", "--run-dir", str(runs)) == 2
    assert folder.name in capsys.readouterr().err


def test_a_failed_run_is_the_exit_code(runs: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("FAKE_FAIL", "r8")
    options = ("study", "--preset", "smoke", "--adapters", "r8", "--run-dir", str(runs))
    assert command(monkeypatch, *options) == OutOfMemory.exit_code
    said = capsys.readouterr()
    assert "1 of 2 runs" in said.err and "r8 failed first" in said.err and "The study: " in said.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--adapters", "r8,r8"), "twice"),
        (("--seeds", "x"), "is no seed"),
        (("--gpu", "l4"), "--plan-only"),
        (("--count", "2"), "--count needs --gpu"),
    ],
)
def test_a_wrong_option_ends_before_anything_starts(
    runs: Path, monkeypatch, capsys, options: tuple[str, ...], words: str
) -> None:
    arguments = ("study", "--preset", "smoke", "--run-dir", str(runs), *options)
    assert command(monkeypatch, *arguments) == ConfigError.exit_code
    assert words in capsys.readouterr().err and not runs.exists()


def test_stop_takes_a_study_and_its_stopped_run_has_the_code_of_one(
    runs: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("FAKE_SLOW", "base")
    monkeypatch.setattr("nbhelpers.runs.studies.follow", lambda run, **options: None)
    options = ("study", "--preset", "smoke", "--adapters", "r8", "--run-dir", str(runs))
    assert command(monkeypatch, *options) == 130
    (folder,) = runs.glob("study-*")
    (run,) = list_runs(runs)
    wait_for_event(run, "step")
    assert command(monkeypatch, "stop", folder.name, "--run-dir", str(runs)) == 0
    assert f"{run.id}: stopped" in capsys.readouterr().out
    assert command(monkeypatch, "report", run.id, "--run-dir", str(runs)) == Stopped.exit_code
    assert "(stopped) holds no result" in capsys.readouterr().err


def test_an_interrupted_study_has_the_shells_exit_code(runs: Path, monkeypatch) -> None:
    monkeypatch.setenv("FAKE_SLOW", "base")
    monkeypatch.setattr("nbhelpers.runs.studies.follow", lambda run, **options: None)
    options = ("study", "--preset", "smoke", "--adapters", "r8", "--run-dir", str(runs))
    assert command(monkeypatch, *options) == 130
