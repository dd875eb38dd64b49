"""Promise: every finished run is told once in a log that survives damage, and nothing is corrected
by it but the CUDA context that this machine's own runs measured.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nbhelpers.budget import prediction_log
from nbhelpers.budget.formulas import CONTEXT, CUDA_CONTEXT_BYTES
from nbhelpers.budget.memory import (
    EARLIER,
    OTHERS,
    MemoryBudget,
    held_memory,
    require_fit,
)
from nbhelpers.budget.predict import estimate_budget, on_this_machine
from nbhelpers.cli import app
from nbhelpers.errors import BudgetError, ConfigError
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.hardware.gpus import GIB, GpuProcess
from nbhelpers.plan import plan_batch
from nbhelpers.presets.loading import load_preset


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def result(run_id: str = "a", *, ended: float = 1.0, predicted: int = 103, **memory) -> dict:
    facts = {"device": "cuda", "source": "ledger", "measured_bytes": 100 * GIB // 100}
    facts |= {"predicted_bytes": predicted * GIB // 100, "error_percent": predicted - 100.0}
    return {
        "run_id": run_id,
        "finished_at": ended,
        "job": "clones",
        "settings": {"model": "codegpt"},
        "plan": {"world_size": 1},
        "versions": {"torch": "2.11.0", "python": "3.12"},
        "memory": facts | memory,
    }


RECORD = {"hardware": {"driver_version": "580", "gpus": [{"key": "t4", "name": "Tesla T4"}]}}


def test_a_run_is_told_once_and_its_repetition_again():
    assert prediction_log.append(result(), RECORD)
    assert not prediction_log.append(result(), RECORD)
    assert prediction_log.append(result(ended=2.0), RECORD)
    first, second = prediction_log.read_log()
    assert (first["finished_at"], second["finished_at"]) == (1.0, 2.0)
    assert (first["gpu"], first["driver"], first["versions"]) == ("t4", "580", {"torch": "2.11.0"})


def test_broken_lines_cost_only_themselves(cache):
    prediction_log.append(result("a"), RECORD)
    with prediction_log.log_path().open("ab") as file:
        file.write(b'{"run_id": "torn", "finis')
    assert prediction_log.append(result("b", ended=2.0), RECORD)
    with prediction_log.log_path().open("ab") as file:
        file.write(b'[1]\n{"run_id": 5, "finished_at": 3}\n\xff\xfe\n' + b"[" * 9999 + b"\n")
    assert [line["run_id"] for line in prediction_log.read_log()] == ["a", "b"]


def _write_many(name: str, folder: str) -> None:
    os.environ["NBHELPERS_CACHE"] = folder
    for ended in range(30):
        prediction_log.append(result(name, ended=float(ended)), RECORD)


def test_two_runs_may_end_at_once(cache):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(n, str(cache))) for n in ("a", "b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(prediction_log.read_log()) == 60


def test_a_cache_that_cannot_be_written_costs_a_line_not_the_run(monkeypatch):
    monkeypatch.setenv("NBHELPERS_CACHE", os.devnull)
    assert not prediction_log.append(result(), RECORD)
    assert prediction_log.read_log() == [] == prediction_log.summary()


def test_the_summary_tells_errors_by_job_card_and_source():
    for ended, predicted in enumerate((102, 104, 90)):
        prediction_log.append(result(ended=float(ended), predicted=predicted), RECORD)
    prediction_log.append(result("x", source="simulation"), RECORD)
    prediction_log.append(result("y", error_percent=None), RECORD)
    first, second = prediction_log.summary()
    assert (first["job"], first["gpu"], first["source"], first["runs"]) == (
        "clones",
        "t4",
        "estimate",
        3,
    )
    assert first["median_error_percent"] == pytest.approx(2.0)
    assert (first["lowest_percent"], first["highest_percent"]) == (-10.0, 4.0)
    assert second["source"] == "simulation"


def here(gpu: str = "t4", **changes):
    """A machine that has such a card, not a plan for one."""
    planned = plan_hardware(gpu)
    return replace(planned, is_planned=False, gpus=(replace(planned.gpus[0], **changes),), notes=())


def budget_of(hardware, name: str = "t4", **overrides) -> MemoryBudget:
    preset = load_preset("clones", name, hardware=hardware, overrides=overrides)
    return estimate_budget(preset, plan_batch(preset, hardware), hardware)


def context_of(budget: MemoryBudget) -> int:
    return sum(line.size_bytes for line in budget.lines if line.name == CONTEXT)


def test_the_context_that_was_measured_here_is_used_here_and_in_no_plan():
    left = {"context_bytes": 300 << 20}
    before = budget_of(here())
    prediction_log.append(result(left_over=left), RECORD)
    after = budget_of(here())
    assert context_of(before) == CUDA_CONTEXT_BYTES and context_of(after) == 300 << 20
    assert after.allocated_bytes == before.allocated_bytes
    assert context_of(budget_of(plan_hardware("t4"))) == CUDA_CONTEXT_BYTES
    assert prediction_log.measured_context("t4", world_size=2) is None
    assert prediction_log.measured_context("h100") is None is prediction_log.measured_context(None)


def test_earlier_errors_are_shown_and_change_no_number():
    before = budget_of(here())
    for ended in range(3):
        prediction_log.append(result(ended=float(ended), predicted=150), RECORD)
    after = budget_of(here())
    assert (after.lines, after.total_bytes, after.verdict) == (
        before.lines,
        before.total_bytes,
        before.verdict,
    )
    assert not before.notes and "+50.0 %" in after.notes[0] and "not corrected" in after.notes[0]
    assert "+50.0 %" in after._repr_html_()


def test_memory_that_others_hold_has_its_line_and_decides_the_verdict():
    free = budget_of(here())
    assert free.verdict == "fits" and free.held == ()
    busy = here(
        memory_free_bytes=2 * GIB,
        processes=(
            GpuProcess(pid=os.getpid(), name="python3", memory_bytes=4 * GIB),
            GpuProcess(pid=1, name="Xorg", memory_bytes=None),
        ),
    )
    budget = budget_of(busy)
    assert [line.name for line in budget.held] == [EARLIER, OTHERS]
    assert budget.held[0].size_bytes == 4 * GIB and "Xorg (pid 1)" in budget.held[1].note
    assert budget.verdict == "does not fit"
    assert (budget.lines, budget.total_bytes) == (free.lines, free.total_bytes)
    assert MemoryBudget.from_dict(json.loads(json.dumps(budget.to_dict()))) == budget
    assert OTHERS in budget._repr_html_()
    with pytest.raises(BudgetError, match=r"of which .* GiB are in use"):
        require_fit(budget)


def test_what_the_driver_itself_takes_of_a_card_is_no_ones():
    gpu = plan_hardware("t4").gpus[0]
    own = replace(gpu, memory_free_bytes=gpu.memory_total_bytes - (200 << 20))
    assert held_memory(own).size_bytes == 0
    known = (GpuProcess(pid=1, name="python3", memory_bytes=GIB),)
    seen = replace(own, memory_free_bytes=own.memory_free_bytes - GIB, processes=known)
    assert held_memory(seen).other_processes_bytes == GIB
    hidden = replace(gpu, memory_free_bytes=gpu.memory_total_bytes - 3 * GIB)
    assert held_memory(hidden).other_processes_bytes == 3 * GIB


def test_a_simulated_budget_is_judged_by_what_is_free_here():
    hardware = here()
    preset = load_preset("clones", "t4", hardware=hardware)
    plan = plan_batch(preset, hardware)
    made = replace(
        estimate_budget(preset, plan, plan_hardware("t4")),
        source="simulation",
        reserved_bytes=9 * GIB,
        verdict="fits",
    )
    assert on_this_machine(made, preset, plan, hardware) == made
    need = made.total_bytes
    for free, verdict in ((12 * GIB, "fits"), (need + 9, "tight"), (need - 9, "does not fit")):
        busy = here(memory_free_bytes=free)
        found = on_this_machine(made, preset, plan, busy)
        assert (found.verdict, found.total_bytes) == (verdict, made.total_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("command", [["budget", "--history"], ["calibration"]])
def test_the_command_shows_the_log_and_draws_it(tmp_path, command):
    run = CliRunner()
    assert "empty" in run.invoke(app.app, command).output
    prediction_log.append(result(), RECORD)
    shown = run.invoke(app.app, [*command, "--plot", str(tmp_path / "log.png")]).output
    assert "+3.0 %" in shown and "not corrected" in shown
    assert (tmp_path / "log.png").stat().st_size > 1000
    assert "+3.0 %" in run.invoke(app.app, [*command, "--runs"]).output
    for wrong in ("log.foo", "log", "missing/log.png"):
        found = run.invoke(app.app, [*command, "--plot", str(tmp_path / wrong)])
        assert isinstance(found.exception, ConfigError) and "--plot" in found.exception.message


def test_options_of_the_history_are_for_the_history():
    for words in (["--runs"], ["--history", "--json"]):
        caught = CliRunner().invoke(app.app, ["budget", *words]).exception
        assert isinstance(caught, ConfigError) and "earlier runs" in caught.message
    listed = CliRunner().invoke(app.app, ["--help"]).output
    assert "│ calibrate " in listed and "│ calibration " not in listed
