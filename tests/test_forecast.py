"""Promise: a run on a GPU knows the memory of its own largest batch before its model is loaded,
and goes on without where it cannot be known.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contexts import make_context
from test_loop import Line

from nbhelpers.budget.memory import MemoryBudget
from nbhelpers.common.child import Child
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.jobs import forecast as forecasting
from nbhelpers.jobs.context import Forecast, RunContext, start_accelerator
from nbhelpers.jobs.forecast import coming_steps, largest_micro_batches, make_forecast
from nbhelpers.jobs.worker import SIMULATOR, _is_simulated, job_module
from nbhelpers.plan import plan_batch
from nbhelpers.presets.loading import load_preset
from nbhelpers.runs.run import Run

SETTINGS = {
    "clones": {"max_train_samples": 200, "max_eval_pairs": 40, "seq_len": 96},
    "detector": {"max_train_samples": 120, "pretrain_steps": 0, "edit_suite": False},
    "finetune": {"max_train_samples": 60, "eval_samples": 6, "valid_samples": 4},
}
SETTINGS["graphs"] = SETTINGS["clones"] | {"model": "smoke-graphcodebert", "data_flow_length": 16}


def context_for(job: str, folder: Path, **changes: Any) -> RunContext:
    """Return the context of a run on an H100 that is not there, its events in `folder`."""
    hardware, events = plan_hardware("h100"), folder / "events.jsonl"
    overrides = {"precision": "bf16", "global_batch_size": 16, "per_device_train_batch_size": 8}
    preset = load_preset(job, "smoke", overrides=overrides | changes, hardware=hardware)
    plan = plan_batch(preset, hardware)

    def emit(kind: str, **fields: Any) -> None:
        with events.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"type": kind} | fields) + "\n")

    return make_context(
        settings=preset.settings,
        plan=plan,
        accelerator=start_accelerator("fp32", replace(plan, use_gpu=False)),
        precision="bf16",
        run=Run(folder),
        facts={"preset": preset.to_dict(), "hardware": hardware.to_dict(), "job": job},
        emit_rank=emit,
    )


def events_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["type"] == kind]


class Items(Line):
    """A task whose rows cost what they are told to."""

    def __init__(self, costs: Any, batches: list[Any], first_full_step: int = 0) -> None:
        self.costs, self.batches = np.asarray(costs), [np.asarray(rows) for rows in batches]
        self.first_full_step = first_full_step

    def global_batches(self, epoch: int) -> list[np.ndarray]:
        return self.batches

    def extent(self, rows: np.ndarray) -> Any:
        from nbhelpers.budget.formulas import CausalExtent

        lengths = self.costs[rows]
        squares = int((lengths**2).sum())
        return CausalExtent(tokens=int(lengths.sum()), squares=squares, supervised=0)


def test_the_largest_first_and_second_micro_batch_are_found_wherever_they_are():
    costs = [1, 9, 2, 8, 5, 5, 5, 6]
    task = Items(costs, [[0, 1, 2, 3], [4, 5, 6, 7], [0, 2]])
    first, second = largest_micro_batches(task, task.batches, world_size=1, per_device=2)
    assert (costs[first[0]], costs[first[1]]) == (9, 8)  # of the first step
    assert sorted(costs[row] for row in second) == [5, 5]  # of the second
    alone = largest_micro_batches(task, task.batches, world_size=2, per_device=2)
    assert [sorted(costs[row] for row in rows) for rows in alone] == [[2, 9]]  # what rank 0 has
    assert largest_micro_batches(task, [], world_size=1, per_device=2) == []
    how = {"world_size": 1, "per_device": 2, "size_of": lambda extent: -extent.tokens}
    assert largest_micro_batches(task, task.batches, **how)[0].tolist() == [2, 0]


def test_of_micro_batches_as_long_the_one_that_learns_more_is_taken(tmp_path):
    """Logits of a supervised token take about as much as its activations."""
    from nbhelpers.jobs import finetune

    context = context_for("finetune", tmp_path, **SETTINGS["finetune"])
    inputs, asked = finetune.build_data(context), []
    table = inputs.tables["train"]
    table.ids[:] = [np.zeros(30, dtype=np.int64) for _ in table.ids]
    table.prompt_lengths[:] = 20
    table.prompt_lengths[7] = 2
    context = replace(context, settings=context.settings.model_copy(update={"epochs": 2}))
    finetune.forecast(context, inputs, lambda shapes, **_: asked.append(shapes))
    assert [30, 2] in asked[0]["samples"]


@pytest.mark.parametrize(
    ("window", "first_full_step", "steps"), [(0, 0, [1, 2, 3]), (2, 0, [2, 3]), (0, 2, [3])]
)
def test_the_steps_to_come_begin_where_all_that_a_run_keeps_is_there(
    tmp_path, window, first_full_step, steps
):
    task = Items([1, 2, 3, 4], [[0], [1], [2], [3]], first_full_step)
    context = context_for("clones", tmp_path, epochs=1)
    if window:
        folder = tmp_path / "checkpoints" / f"step-{window:08d}"
        folder.mkdir(parents=True)
        train = {"epoch": 0, "window": window, "step": window}
        (folder / "state.json").write_text(json.dumps({"train": train}), encoding="utf-8")
    assert [int(rows[0]) for rows in coming_steps(context, task)] == steps


@pytest.fixture(scope="module")
def simulator() -> Any:
    with Child(use_gpu=False, module=SIMULATOR) as child:
        yield child


def largest_tokens(name: str, inputs: Any, shapes: dict[str, Any]) -> tuple[int, int]:
    """Return the tokens of the largest micro-batch as the shapes say, and as the data do."""
    if name == "finetune":
        lengths = inputs.tables["train"].lengths
        return sum(size for size, _ in shapes["samples"][: shapes["parts"][0]]), int(lengths.max())
    if name == "detector":
        return max(shapes["lengths"]), int(inputs.table.lengths[inputs.rows].max())
    return sum(shapes["functions"][shapes["pairs"][0][0]]), int(inputs.table.used.max())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clones", "detector", "finetune", "graphs"])
def test_a_run_is_forecast_for_its_own_largest_batch(name, tmp_path, simulator, monkeypatch):
    """The child gives the budget of the same shapes here, below that of the longest batch."""
    from nbhelpers.jobs.simulated.jobs import simulate_settings

    job = name if name != "graphs" else "clones"
    monkeypatch.setattr(forecasting, "LIMIT_S", 300)  # cores may be busy
    context = context_for(job, tmp_path, **SETTINGS[name])
    module, asked = job_module(job), []
    inputs = module.build_data(context)
    found = make_forecast(context, module, inputs, simulator).budget
    module.forecast(context, inputs, lambda *asks, **changes: asked.append((*asks, changes)))
    shapes, changes = asked[0]
    preset = replace(context.preset, settings=context.settings.model_copy(update=changes))
    assert found == simulate_settings(preset, context.plan, context.hardware, shapes=shapes)
    assert json.loads(json.dumps(shapes)) == shapes
    assert shapes["parts"] == [8, 8]
    said, real = largest_tokens(name, inputs, shapes)
    assert real / 2 <= said
    longest = simulate_settings(context.preset, context.plan, context.hardware)
    assert found.allocated_bytes < longest.allocated_bytes
    [event] = events_of(tmp_path, "memory")
    assert event["predicted_bytes"] == found.allocated_bytes
    assert event["reserved_bytes"] == found.reserved_bytes >= found.allocated_bytes
    assert set(event["phases"]) == {"load", "forward", "backward", "optimizer", "evaluation"}
    assert event["source"] == "simulation"


@pytest.mark.slow
def test_a_batch_that_was_simulated_here_before_is_read_from_the_cache(
    tmp_path, simulator, monkeypatch
):
    """Also when the process that simulates has ended; another batch is not taken for it."""
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path / "cache"))
    context = context_for("clones", tmp_path, **SETTINGS["clones"])
    module = job_module("clones")
    inputs = module.build_data(context)
    first = make_forecast(context, module, inputs, simulator)
    with Child(use_gpu=False, module=SIMULATOR) as ended:
        ended.process.kill()
        again = make_forecast(context, module, inputs, ended)
        assert again.budget == first.budget is not None
        changed = dict(SETTINGS["clones"], seq_len=SETTINGS["clones"].get("seq_len", 64) // 2)
        (tmp_path / "other").mkdir()
        other = context_for("clones", tmp_path / "other", **changed)
        found = make_forecast(other, module, module.build_data(other), ended)
        assert found.budget is None


def test_a_folder_with_another_model_is_simulated_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    context = context_for("clones", tmp_path)
    context = replace(context, settings=context.settings.model_copy(update={"model": str(folder)}))

    class Counting:
        count = 0

        def call(self, name: str, **request: Any) -> dict[str, Any]:
            self.count += 1
            facts = {"lines": (), "capacity_bytes": None, "verdict": "", "advice": ()}
            return MemoryBudget(total_bytes=self.count, **facts).to_dict()

        def kill(self) -> None:
            raise AssertionError("it answers at once")

    child = Counting()
    for layers, count in ((2, 1), (2, 1), (3, 2)):
        (folder / "config.json").write_text(json.dumps({"n_layer": layers}), encoding="utf-8")
        budget = forecasting._simulate(context, child, {"parts": [1]})
        assert child.count == count == budget.total_bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [("time", "more than 0.01 s"), ("ended", "ended during"), ("data", "no such shapes")],
)
def test_without_a_simulation_the_run_goes_on(fault, words, tmp_path, simulator, monkeypatch):
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path / "cache"))  # nothing was simulated before
    context = context_for("clones", tmp_path, **SETTINGS["clones"])
    module = job_module("clones")
    inputs = module.build_data(context)
    if fault == "time":
        monkeypatch.setattr(forecasting, "LIMIT_S", 0.01)
    if fault == "data":
        monkeypatch.setattr(module, "batch_shapes", lambda *_, **__: 1 / 0)
        words = "division by zero"
    if fault == "ended":
        with Child(use_gpu=False, module=SIMULATOR) as simulator:
            simulator.process.kill()
            found = make_forecast(context, module, inputs, simulator)
    else:
        found = make_forecast(context, module, inputs, simulator)
    assert found.budget is None and found.seconds < 10
    [warning] = events_of(tmp_path, "warning")[-1:]
    assert "The memory of the largest batch is unknown" in warning["message"]
    assert words in warning["message"]
    assert not events_of(tmp_path, "memory")


@pytest.mark.parametrize(
    ("facts", "is_simulated"),
    [
        ({"job": "clones", "mode": "train", "plan": {"use_gpu": True}}, True),
        ({"job": "detector", "mode": "probe", "plan": {"use_gpu": True}}, True),
        ({"job": "clones", "mode": "evaluate", "plan": {"use_gpu": True}}, False),
        ({"job": "finetune", "mode": "train", "plan": {"use_gpu": False}}, False),
    ],
)
def test_training_on_a_gpu_alone_is_simulated(facts, is_simulated):
    assert _is_simulated(facts) is is_simulated


@pytest.mark.parametrize(
    ("wish", "sizes", "compiled"),
    [
        ("auto", {"off": 10}, False),  # it is short, and has room
        ("auto", {"off": 70, "on": 40}, True),
        ("auto", {}, True),  # unknown: the room may be needed
        ("off", {"off": 70}, False),
        ("on", {"on": 10}, True),
    ],
)
def test_blocks_are_compiled_where_a_short_run_needs_the_room(
    wish, sizes, compiled, tmp_path, monkeypatch
):
    from nbhelpers.jobs import finetune

    context = context_for("finetune", tmp_path, **SETTINGS["finetune"], compile_layers=wish)
    monkeypatch.setattr(finetune, "has_triton", lambda: True)
    monkeypatch.setattr(finetune, "choose_attention", lambda *_: "flex")
    inputs, asked = finetune.build_data(context), []

    def simulate(shapes: dict[str, Any], compile_layers: str) -> Any:
        asked.append(compile_layers)
        size = sizes.get(compile_layers)
        return size and make_budget(size * 2**30)

    found = finetune.forecast(context, inputs, simulate)
    assert found.is_compiled is compiled
    assert asked == (list(sizes) or ["off", "on"])
    assert (found.budget and found.budget.total_bytes) == (
        sizes["on" if compiled else "off"] * 2**30 if sizes else None
    )


def make_budget(size: int) -> MemoryBudget:
    return MemoryBudget(lines=(), total_bytes=size, capacity_bytes=None, verdict="", advice=())


def test_every_context_has_a_forecast():
    assert make_context().forecast == Forecast(budget=None, is_compiled=None, seconds=0.0)
