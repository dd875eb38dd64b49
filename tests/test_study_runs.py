"""Promise: a study works one run at a time, survives failures and killed kernels, frees GPUs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import fake_study
import pytest
from fake_launch import folder_of_runs, wait_for, wait_for_event
from fake_study import make_preset, no_gpu, run_quickly
from nvml_double import MIB, FakeGpu, FakeNvml

from nbhelpers.errors import (
    BudgetError,
    ConfigError,
    DataError,
    HardwareError,
    LaunchError,
    OutOfMemory,
    Stopped,
)
from nbhelpers.hardware.detection import detect_hardware, plan_hardware
from nbhelpers.runs import studies
from nbhelpers.runs.run import Run, list_runs
from nbhelpers.runs.starting import launch
from nbhelpers.runs.studies import list_studies, open_study, run_study
from nbhelpers.runs.study_plan import plan_study

pytestmark = pytest.mark.slow


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from folder_of_runs(tmp_path, monkeypatch, fake_study.ENVIRONMENT)


def plan(runs: Path, adapters: Any = "r8,r16", **options: Any) -> Any:
    hardware = options.pop("hardware", no_gpu())
    return plan_study(make_preset(), hardware, adapters=adapters, run_dir=runs, **options)


def launches(run: Run) -> int:
    return sum(event["type"] == "launched" for event in run.events())


def statuses(found: Any) -> dict[str, str]:
    return {row.name: row.status for row in found.rows}


def test_five_runs_one_of_which_fails_are_compared_and_gone_on_with(
    runs: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("FAKE_FAIL", "r16")
    study = plan(runs, "all")
    found = run_quickly(study, runs)
    said = capsys.readouterr().out
    expected = dict.fromkeys(["base", "r8", "r32", "qlora-r16"], "finished") | {"r16": "failed"}
    assert statuses(found) == expected and not found.is_complete
    assert [row.name for row in found.failures] == ["r16"]
    assert isinstance(found.rows[2].error, OutOfMemory)
    assert "[5/5] qlora-r16" in said and "Without a result: r16: OutOfMemory" in said
    with pytest.raises(OutOfMemory, match=r"4 of 5 runs.*r16 failed first: it was too much"):
        found.require_complete()
    table = found.table.set_index("adapter")
    assert table.loc["r32", "trainable_parameters"] == 32000
    assert table.loc["base", "test.syntax_accuracy"] == 0.4 and table.loc["r8", "time_s"] == 10
    assert table.loc["r8", "test.syntax_accuracy.low"] == pytest.approx(0.708)
    text = str(found)
    assert "syntax accuracy, r8 against base: better (+0.438 [" in text
    assert "syntax accuracy, r32 against r8: within noise (+0.031 [" in text
    assert found.compare("bleu", baseline="r8")["against"]["base"]["verdict"] == "worse"
    assert "0.808 (0.708 to 0.908)" in text and "r16: OutOfMemory: it was too much" in text
    assert "2.0" in text and ">r32</td>" in found._repr_html_()

    monkeypatch.delenv("FAKE_FAIL")
    again = run_quickly(study, runs)
    said = capsys.readouterr().out
    assert again.is_complete and again.require_complete() is again
    assert said.count("is finished: its result is used") == 4 and "(failed) starts again" in said
    assert [launches(row.run) for row in again.rows] == [1, 1, 2, 1, 1]
    assert all(row.run.id == row.planned.run_id for row in again.rows)


def test_a_study_is_found_again_by_its_folder_or_id(runs: Path, capsys) -> None:
    study = plan(runs, "r8")
    path = run_quickly(study, runs, show=False).path
    assert capsys.readouterr().out == ""
    assert path.name == study.id and list_studies(runs) == [path]
    for place in (path, str(path), study.id):
        opened = open_study(place, runs)
        assert opened.is_complete and opened.study == study
    first = opened.rows[1].planned.time
    replanned = plan(runs, "r8")
    assert replanned.rows[1].time.basis == "finished"
    after = run_quickly(replanned, runs, show=False)  # the first prediction stays beside the fact
    assert after.rows[1].planned.time == first
    assert len(list_runs(runs)) == 2 and repr(list_runs(runs)).count("finetune-smoke") == 2
    with pytest.raises(ConfigError, match=r"No study 'nothing'(.|\n)*" + study.id):
        open_study("nothing", runs)
    (path / "study.json").write_text("{")
    with pytest.raises(DataError, match=r"study\.json: is no JSON"):
        open_study(path)
    assert run_quickly(study, runs, show=False).is_complete


def test_each_run_gets_its_page_and_one_that_cannot_be_written_stops_nothing(
    runs: Path, monkeypatch, capsys
) -> None:
    pages = []

    def report(run: Run, *, show: bool) -> None:
        pages.append(run.id)
        if len(pages) == 1:
            raise OSError("the disk is full")
        run.report_path.write_text("page")

    study = plan(runs, "r8")
    assert run_quickly(study, runs, report=report).is_complete
    said = capsys.readouterr().out
    assert "the report of base was not written (the disk is full)" in said
    run_quickly(study, runs, report=report)
    assert pages == [row.run_id for row in (*study.rows, study.rows[0])]  # what was left out


def test_a_preset_for_a_gpu_is_refused_before_anything_is_made(runs: Path) -> None:
    study = plan(runs, "r8")
    rows = tuple(replace(row, preset=replace(row.preset, gpu="t4")) for row in study.rows)
    with pytest.raises(HardwareError, match="is for the GPU t4; there is no GPU here"):
        run_quickly(replace(study, rows=rows), runs)
    assert not runs.exists()
    run_quickly(study, runs, show=False)  # what is finished can be looked at anywhere
    assert run_quickly(replace(study, rows=rows), runs, show=False).is_complete


def test_fresh_starts_every_run_anew_unless_one_works(runs: Path, monkeypatch) -> None:
    study = plan(runs, "r8")
    run_quickly(study, runs, show=False)
    found = run_quickly(study, runs, fresh=True, show=False)
    assert found.is_complete and len(list_runs(runs)) == 4  # two are set aside
    monkeypatch.setenv("FAKE_SLOW", "r8")
    row = study.rows[1]
    found.rows[1].run.result_path.unlink()
    run = launch(row.preset, row.plan, row.budget, hardware=no_gpu(), run_dir=runs)
    with pytest.raises(LaunchError, match=r"r8 is running(.|\n)*nbhelpers stop"):
        run_quickly(study, runs, fresh=True)
    assert run.status == "running" and len(list_runs(runs)) == 4


def drive(runs: Path) -> subprocess.Popen:
    command = [sys.executable, fake_study.__file__, str(runs)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def test_a_killed_kernel_leaves_a_study_that_goes_on(runs: Path, monkeypatch) -> None:
    monkeypatch.setenv("FAKE_SLOW", "r8")
    study = plan(runs)
    kernel, run = drive(runs), Run(runs / study.rows[1].run_id)
    wait_for(lambda: run.status == "running")
    wait_for_event(run, "step")
    os.killpg(kernel.pid, signal.SIGKILL)
    kernel.wait()
    state = statuses(open_study(study.id, runs))
    assert state == {"base": "finished", "r8": "running", "r16": "new"}
    (runs / "hurry").touch()
    found = run_quickly(study, runs, show=False)
    assert found.is_complete and [launches(row.run) for row in found.rows] == [1, 1, 1]


def test_two_kernels_start_each_run_once_and_one_at_a_time(runs: Path) -> None:
    (runs.parent / "runs").mkdir()
    kernels = [drive(runs), drive(runs)]
    ends = [kernel.communicate(timeout=600)[0] for kernel in kernels]
    finished = dict.fromkeys(["base", "r8", "r16"], "finished")
    assert [json.loads(end.splitlines()[-1]) for end in ends] == [finished] * 2
    times = []
    for row in plan(runs).rows:
        events = Run(runs / row.run_id).events()
        assert sum(event["type"] == "start" for event in events) == 1
        times.append([e["t"] for e in events if e["type"] in ("launched", "exit")])
    assert all(one[1] <= two[0] for one, two in pairwise(times))


def test_a_failed_run_waits_while_another_kernel_is_at_a_later_one(
    runs: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("FAKE_FAIL", "r8")
    monkeypatch.setenv("FAKE_SLOW", "r16")
    study = plan(runs)
    kernel, later = drive(runs), Run(runs / study.rows[2].run_id)
    wait_for(lambda: later.status == "running")
    monkeypatch.delenv("FAKE_FAIL")
    (runs / "hurry").touch()
    found = run_quickly(study, runs)
    assert "r16 of this study is running: it is followed first" in capsys.readouterr().out
    assert found.is_complete
    ended = later.exit_event()["t"]
    again = [e["t"] for e in found.rows[1].run.events() if e["type"] == "launched"][1]
    assert ended <= again
    kernel.wait(600)


def test_an_interrupt_ends_the_following_only(runs: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("FAKE_SLOW", "r8")
    follow, calls = studies.follow, []

    def interrupted(run: Run, **options: Any) -> Any:
        calls.append(run.id)
        if len(calls) > 1:
            monkeypatch.setattr("nbhelpers.runs.following.time.sleep", interrupt)
        return follow(run, **options, refresh_s=0.05)

    def interrupt(seconds: float) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(studies, "follow", interrupted)
    found = run_study(plan(runs), hardware=no_gpu(), run_dir=runs)
    assert statuses(found) == {"base": "finished", "r8": "running", "r16": "new"}
    text = capsys.readouterr().out
    assert not found.failures and "r8 goes on, those after it wait" in text
    assert text.count("Stopped following") == 1
    with pytest.raises(Exception, match="have not ended"):
        found.require_complete()


def test_a_stopped_run_ends_the_study_until_it_is_run_again(runs: Path, monkeypatch) -> None:
    monkeypatch.setenv("FAKE_SLOW", "r8")
    study = plan(runs)
    run = Run(runs / study.rows[1].run_id)
    kernel = drive(runs)
    wait_for(lambda: run.status == "running")
    wait_for_event(run, "step")
    assert run.stop() == "stopped"
    assert json.loads(kernel.communicate(timeout=600)[0].splitlines()[-1])["r16"] == "new"
    found = open_study(study.id, runs)
    assert isinstance(found.rows[1].error, Stopped)
    monkeypatch.delenv("FAKE_SLOW")
    assert run_quickly(study, runs, show=False).is_complete


@pytest.mark.parametrize(
    ("kind", "on_failure", "left"),
    [
        ("OutOfMemory", "go_on", []),
        ("OutOfMemory", "stop", ["r8", "r16"]),
        ("DataError", "go_on", ["r16"]),  # the same reason twice: it holds for all
    ],
)
def test_failures_end_a_study_where_going_on_is_no_use(
    runs: Path, monkeypatch, kind: str, on_failure: str, left: list[str]
) -> None:
    monkeypatch.setenv("FAKE_FAIL", "base r8 r16")
    monkeypatch.setenv("FAKE_KIND", kind)
    error = {"OutOfMemory": OutOfMemory, "DataError": DataError}[kind]
    study = plan(runs)
    with pytest.raises(error, match=r"0 of 3 runs .* base failed first"):
        run_quickly(study, runs, on_failure=on_failure)
    state = statuses(open_study(study.id, runs))
    assert [name for name, status in state.items() if status == "new"] == left


def test_a_run_that_does_not_fit_is_refused_and_the_others_run(runs: Path) -> None:
    study = plan(runs)
    too_large = replace(study.rows[1].budget, verdict="does not fit", total_bytes=9 << 30)
    rows = (study.rows[0], replace(study.rows[1], budget=too_large), study.rows[2])
    found = run_quickly(replace(study, rows=rows), runs, show=False)
    assert statuses(found) == {"base": "finished", "r8": "failed", "r16": "finished"}
    assert isinstance(found.rows[1].error, BudgetError)
    assert isinstance(open_study(study.id, runs).rows[1].error, BudgetError)


def test_what_no_run_could_survive_is_refused_at_once(runs: Path) -> None:
    study = plan(runs)
    with pytest.raises(HardwareError, match="is a plan"):
        run_quickly(study, runs, hardware=plan_hardware("t4"))
    with pytest.raises(ConfigError, match="on_failure='never'"):
        run_quickly(study, runs, on_failure="never")
    runs.write_text("a file in the place of a folder")
    with pytest.raises(LaunchError, match="cannot be used"):
        run_quickly(study, runs)


def test_the_gpu_is_checked_against_its_baseline_after_each_run(
    runs: Path, monkeypatch, capsys
) -> None:
    gpu = FakeGpu(name="Tesla T4")
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(gpu))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    hardware = detect_hardware()
    study = plan(runs, hardware=hardware)
    assert study.rows[0].plan.use_gpu
    left_behind = {"r8": 40 * MIB, "r16": 300 * MIB}  # the first is within the tolerance
    follow = studies.follow

    def leaking(run: Run, **options: Any) -> Any:
        result = follow(run, **options)
        size = left_behind.get(next(r.name for r in study.rows if r.run_id == run.id), 0)
        gpu.free = 15000 * MIB - size
        return result

    monkeypatch.setattr(studies, "follow", leaking)
    found = run_quickly(study, runs, hardware=hardware, baseline_wait_s=0.3)
    checks = {row.name: row.baseline for row in found.rows}
    assert {name: check.is_back for name, check in checks.items()} == {
        **dict.fromkeys(["base", "r8"], True),
        "r16": False,
    }
    assert checks["r8"].excess_bytes == 40 * MIB and checks["r16"].excess_bytes == 300 * MIB
    assert capsys.readouterr().out.count("Warning: 300 MiB more") == 1
    again = open_study(study.id, runs)  # the file keeps it
    assert [row.baseline for row in again.rows] == list(checks.values())
    assert (
        "NOT back (+300 MiB)" in str(again)
        and not again.table.set_index("adapter").loc["r16", "gpu_is_back"]
    )
