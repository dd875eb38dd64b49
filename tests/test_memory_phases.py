"""Promise: the memory of each phase is measured beside its prediction, on every rank, over every
attempt; where a GPU's step was off, what was alive at its peak is kept without a pickle.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from contexts import make_context
from run_on_disk import MIB, result, split_scores, write_run
from test_loop import Line, make

from nbhelpers.budget.formulas import MemoryLine
from nbhelpers.budget.memory import MemoryBudget
from nbhelpers.errors import HardwareError
from nbhelpers.hardware import detection
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.hardware.gpus import GIB, GpuProcess
from nbhelpers.jobs import measure, measure_phases, worker
from nbhelpers.jobs import measure as measure_context
from nbhelpers.jobs.loop import TrainState
from nbhelpers.jobs.measure import HERE, CardMemory, MemoryMeter
from nbhelpers.jobs.measure_phases import (
    EVENT,
    OF_DATA,
    PhasePeaks,
    PhaseTimer,
    StepRecorder,
    memory_facts,
    phase_rows,
    told_phases,
)
from nbhelpers.plan import split_batch
from nbhelpers.reports.writing import report
from nbhelpers.runs.run import Run

pytestmark = pytest.mark.slow  # a figure is drawn, and an optimizer is loaded

WIDE = 1 << 16  # a weight of 256 KiB, beside which a batch is small


class Wide(Line):
    """A task whose evaluation needs more than its training."""

    def loss_sum(self, model: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        loss = (model(self.values[batch.rows].unsqueeze(1)) ** 2).sum()
        return loss, loss.detach()[None]

    def evaluate(self, step: int) -> dict[str, float]:
        torch.ones(20 * WIDE).sum()
        return super().evaluate(step)


def measured(watched: tuple[int, ...] = (0, 1), **changes: Any) -> tuple[MemoryMeter, list]:
    """Train a wide layer on a CPU with its phases measured; return the meter and what was told."""
    trainer, _, _ = make(Wide(), **changes)
    trainer.model = torch.nn.Linear(1, WIDE, bias=False)
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), foreach=False)
    meter, told = MemoryMeter(torch.device("cpu")), []
    mode = meter.watch_steps(trainer.model)
    hooks = trainer.hooks
    peaks = PhasePeaks(meter, watched=watched, tell=lambda *a, **k: told.append((a, k)))
    hooks.phases = PhaseTimer(memory=peaks)
    before = hooks.step_context
    hooks.step_context = lambda step: mode if step in watched else before(step)
    trainer.fit(TrainState())
    return meter, told


def test_the_phases_of_a_small_training_are_what_arithmetic_says():
    meter, told = measured()
    phases, weight = meter.phases, 4 * WIDE
    assert list(phases) == ["load", "forward", "backward", "optimizer", "evaluation"]
    assert phases["load"] == weight
    # Two rows: their outputs and squares, beside the weight and, on the second step, two moments.
    assert 3 * weight + 2 * 2 * weight <= phases["forward"] < 9 * weight
    # Weight, gradient, moments, and AdamW's temporaries.
    assert 4 * weight <= phases["optimizer"] < 8 * weight
    assert phases["evaluation"] >= 23 * weight
    training = max(phases[name] for name in ("forward", "backward", "optimizer"))
    assert meter.peak_bytes() == training  # scoring moves no number of the training steps
    assert told[-1][0] == (EVENT,) and told[-1][1]["phases"] == phases


def test_on_a_gpu_the_update_is_timed_with_the_next_step_and_nothing_waits_for_it(monkeypatch):
    """A stream of which the host has seen as much as its last sync: reading on is an error."""
    queued, reached = [0.0], [0.0]

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0.0

        def record(self) -> None:
            self.at = queued[0]

        def elapsed_time(self, end: Event) -> float:
            assert self.at <= end.at <= reached[0], "the host would have to wait"
            return 1000 * (end.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    timer, seconds = PhaseTimer(torch.device("cuda")), {}
    for step in range(3):
        timer.start(step)
        for name, took in (("data", 1), ("forward", 2), ("backward", 4), ("optimizer", 8)):
            queued[0] += took
            if name == "optimizer":
                reached[0] = queued[0] - took  # the one sync of a step comes before the update
            timer.mark(name)
        seconds = timer.add_to(seconds)
    assert seconds == {"data": 3, "forward": 6, "backward": 12, "optimizer": 16}


def test_steps_that_are_not_watched_are_not_measured():
    meter, told = measured(watched=())
    assert set(meter.phases) == {"load", "evaluation"} and len(told) == 1


def test_a_resumed_run_knows_the_phases_of_its_earlier_attempts():
    _, told = measured()
    events = [{"type": a[0], **json.loads(json.dumps(k))} for a, k in told]
    events += [{"type": EVENT, "where": "another card", "phases": {"forward": 1 << 50}}]
    events += [{"type": EVENT, "where": "cpu", "phases": x} for x in (None, [1], {"odd": 3})]
    events += [{"type": EVENT, "where": "cpu", "phases": {"forward": "x", "load": 5}}]
    assert told_phases(events, "cpu") == told[-1][1]["phases"]


def context_of(budget: MemoryBudget | None) -> Any:
    """Return the context of a run that was launched with this budget."""
    facts = {"mode": "train", "budget": budget.to_dict() if budget else None}
    device = SimpleNamespace(device=torch.device("cpu"))
    return make_context(facts=facts, accelerator=device)


def simulated(forward: int) -> MemoryBudget:
    line = MemoryLine(name="weights", size_bytes=forward, note="")
    return MemoryBudget(
        lines=(line,),
        total_bytes=forward,
        capacity_bytes=None,
        verdict="fits",
        advice=(),
        source="simulation",
        reserved_bytes=120,
        phases=(MemoryLine(name="forward", size_bytes=forward, note=""),),
    )


def rank(number: int, forward: int, **more: Any) -> dict[str, Any]:
    line = {"rank": number, "peak_allocated_bytes": forward, "peak_reserved_bytes": 100}
    return line | {"phases": {"forward": forward, "load": 7}, "snapshot": None} | more


def test_every_rank_counts_and_the_worst_is_compared():
    ranks = [rank(0, 80, context_bytes=5), rank(1, 100, context_bytes=9, earlier_bytes=0)]
    found = memory_facts(context_of(None), ranks, simulated(110), trained=True)
    assert found["phases"] == [
        {"phase": "load", "predicted_bytes": None, "measured_bytes": 7, "error_percent": None},
        {
            "phase": "forward",
            "predicted_bytes": 110,
            "measured_bytes": 100,
            "error_percent": pytest.approx(10.0),
        },
    ]
    assert found["reserved"]["error_percent"] == pytest.approx(20.0)
    assert (found["basis"], found["source"]) == (OF_DATA, "simulation")
    assert found["left_over"] == {
        "other_processes_bytes": None,
        "earlier_bytes": 0,
        "context_bytes": 9,
    }
    assert "phases" not in found["per_rank"][0]


def test_a_training_on_a_gpu_whose_simulation_failed_says_so():
    context = context_of(None)
    context.accelerator.device = torch.device("cuda", 0)
    found = memory_facts(context, [rank(0, 100)], None, trained=True)
    assert (found["source"], found["predicted_bytes"], found["basis"]) == ("unknown", None, None)
    assert found["measured_bytes"] == 100 and found["phases"][1]["predicted_bytes"] is None
    assert memory_facts(context, [rank(0, 100)], None, trained=False)["source"] is None


def test_a_phase_without_a_measurement_has_no_error():
    rows = phase_rows({"evaluation": 5, "backward": 0}, [{"backward": 4}])
    assert [row["error_percent"] for row in rows] == [-100.0, None]


@pytest.mark.parametrize(
    ("predicted", "is_kept", "fault"),
    [(1020, False, ""), (1031, True, ""), (969, True, ""), (1, False, "the disk is full")],
)
def test_a_step_is_kept_only_where_the_prediction_was_off(
    tmp_path, monkeypatch, predicted: int, is_kept: bool, fault: str
):
    recording: list[Any] = []

    def dump(path: str) -> None:
        if fault:
            raise OSError(fault)
        Path(path).touch()

    monkeypatch.setattr(
        measure_phases.torch.cuda,
        "memory",
        SimpleNamespace(
            _record_memory_history=lambda enabled, **_: recording.append(enabled),
            _dump_snapshot=dump,
        ),
    )
    context = make_context(run=Run(tmp_path))
    recorder = StepRecorder(context, torch.device("cuda", 0), predicted)
    recorder.start(4)
    found = recorder.stop(1000)
    assert recorder.stop(1) is None  # nothing is recorded any more
    assert recording == ["all", None]
    assert (tmp_path / "memory_snapshot.pickle").is_file() == is_kept == (found is not None)
    if is_kept:
        error = pytest.approx((predicted - 1000) / 10)
        sizes = {"measured_bytes": 1000, "predicted_bytes": predicted, "error_percent": error}
        assert found == {"file": "memory_snapshot.pickle", "step": 5} | sizes
    assert bool(context.warnings) == bool(fault)


def card(used: int, *processes: GpuProcess) -> Any:
    planned = plan_hardware("t4")
    gpu = planned.gpus[0]
    gpu = replace(gpu, memory_free_bytes=gpu.memory_total_bytes - used, processes=processes)
    return replace(planned, gpus=(gpu,))


@pytest.mark.parametrize(
    ("own_bytes", "used_bytes", "context"),
    [
        (None, 3 * GIB, GIB // 2),
        (GIB, 9 * GIB, GIB // 2),
        (None, GIB, None),
        (None, 12 * GIB, None),
    ],
)
def test_the_context_is_what_this_process_took_beside_its_allocator(
    monkeypatch, own_bytes, used_bytes, context
):
    notebook = GpuProcess(pid=77, name="python3", memory_bytes=GIB)
    own = GpuProcess(pid=measure_context.os.getpid(), name="python3", memory_bytes=own_bytes)
    readings = [card(2 * GIB, notebook), card(used_bytes, notebook, own)]
    monkeypatch.setattr(measure_context, "detect_hardware", lambda: readings.pop(0))
    monkeypatch.setattr(measure_context.torch.cuda, "memory_reserved", lambda device: GIB // 2)
    memory = CardMemory(0, notebook_pid=77)
    memory.read(torch.device("cuda", 0))
    assert memory.facts() == {
        "context_bytes": context,
        "other_processes_bytes": GIB,
        "earlier_bytes": GIB,
    }


def test_a_machine_without_a_driver_tells_nothing_of_its_card(monkeypatch):
    monkeypatch.setattr(measure_context, "detect_hardware", detection.detect_hardware)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    memory = CardMemory(0)
    memory.read(torch.device("cpu"))
    assert memory.facts() == {"context_bytes": None}


def test_a_card_without_kernels_ends_the_run_at_its_check(monkeypatch):
    facts = {"device_count": 1, "get_device_capability": (6, 0), "get_device_name": "Tesla P100"}
    for name, value in (facts | {"get_arch_list": ["sm_75", "sm_90", "compute_90"]}).items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    with pytest.raises(HardwareError, match=r"Tesla P100 has the compute capability 6\.0") as error:
        worker._check_gpu("fp32", CardMemory(0))
    assert "T4" in error.value.fix
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_50", "sm_60", "sm_70"])
    card = CardMemory(0)
    assert worker._check_gpu("fp32", card) is card


def test_a_gpu_is_begun_beside_the_libraries_and_one_that_cannot_start_is_told_by_the_check():
    assert worker._begin_gpu({"plan": {"use_gpu": False}}) is None
    card = worker._begin_gpu({"plan": {"use_gpu": True}}).result()
    with pytest.raises(HardwareError, match="sees 0"):
        worker._check_gpu("fp32", card)


def test_running_out_of_memory_names_the_phase_and_the_step(monkeypatch):
    plan = {"per_device_train_batch_size": 8, "global_batch_size": 64}
    run = SimpleNamespace(read_json=lambda: {"plan": plan, "budget": {"total_bytes": GIB}})
    steps = PhasePeaks()
    steps.start(2)
    steps.mark("forward")
    error = worker._out_of_memory(run, "asked for 2 GiB")
    assert error.message.startswith("Out of memory in the phase backward of optimizer step 3.")
    assert "Predicted need: 1.00 GiB." in error.message
    clock = measure.Clock(lambda *_, **__: None)
    clock.phase("model")
    assert "in the phase load." in worker._out_of_memory(run, "").message
    HERE.enter("")
    assert worker._out_of_memory(run, "").message.startswith("Out of memory. Predicted")


@pytest.mark.parametrize(
    ("size", "total", "world_size", "is_checkpointed", "words"),
    [
        (8, 64, 2, False, "set per_device_train_batch_size=4:"),
        (5, 15, 1, True, "set per_device_train_batch_size=1:"),
        (6, 24, 2, False, "set per_device_train_batch_size=3:"),
        (1, 8, 1, False, "set gradient_checkpointing=true"),
        (1, 8, 1, True, "set a shorter seq_len"),
    ],
)
def test_what_is_advised_without_memory_splits_evenly_and_is_new(
    size: int, total: int, world_size: int, is_checkpointed: bool, words: str
) -> None:
    facts = {"plan": {"per_device_train_batch_size": size, "global_batch_size": total}}
    facts["plan"]["world_size"] = world_size
    facts |= {"budget": None}
    facts |= {"preset": {"settings": {"gradient_checkpointing": is_checkpointed}}}
    fix = worker._out_of_memory(SimpleNamespace(read_json=lambda: facts), "").fix
    assert fix.startswith(words)
    if size > 1:
        split_batch(total, int(fix.partition("=")[2].partition(":")[0]), world_size)


def test_the_report_shows_the_phases_and_old_results_still_read(tmp_path):
    old = report(write_run(tmp_path / "old"), show=False)
    assert not {n for n in old.tables if n.startswith("memory_")} - {"memory_lines"}
    assert "an estimate by formulas" in old.text
    data = result(split_scores(1), split_scores(2))
    data["memory"] |= {
        "phases": phase_rows({"forward": 110 * MIB}, [{"forward": 100 * MIB, "load": MIB}]),
        "reserved": {"predicted_bytes": 1, "measured_bytes": 2, "error_percent": -50.0},
        "left_over": {"other_processes_bytes": GIB, "earlier_bytes": 0, "context_bytes": 9},
        "basis": OF_DATA,
        "source": "simulation",
        "snapshot": {
            "file": "memory_snapshot.json",
            "step": 3,
            "error_percent": 9.0,
            "alive": [{"size_bytes": 8, "count": 2, "total_bytes": 16, "made_at": "a.py:1 f"}],
        },
    }
    new = report(write_run(tmp_path / "new", data=data), show=False)
    rows = new.tables["memory"].set_index("what")["error_percent"]
    assert rows["reserved by the allocator"] == -50 and rows["phase forward"] == pytest.approx(10)
    assert new.tables["memory_left_over"]["size_bytes"].sum() == GIB + 9
    assert new.tables["memory_alive"]["total_bytes"].tolist() == [16]
    text = new.text.replace("\n", " ")
    assert "+10.0 % (forward)" in text and OF_DATA in text and "memory_snapshot.json" in text
    assert "a simulation of the largest batch" in text
    assert "Below: the peak of each phase." in new.html and "Below: the" not in old.html
    data["memory"] |= {"phases": [{"phase": "load", "measured_bytes": 5}], "basis": None}
    only = report(write_run(tmp_path / "only", data=data), show=False)
    assert "measured only" in only.text
