"""Promise: the three jobs are alike: five functions, events in one order, and a run that is
stopped, killed, damaged or split otherwise ends as an undisturbed one.

The runs are real ones in their smallest form, made in this process by the worker's own function.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import nbhelpers as nb
from nbhelpers.errors import Stopped
from nbhelpers.jobs import checkpoint as ck
from nbhelpers.jobs.loop import Trainer
from nbhelpers.presets.jobs import JOBS
from nbhelpers.runs.run import Run
from tests.job_runs import (
    STEPS,
    TINY,
    events,
    last_checkpoint,
    learned,
    prepare,
    result,
    stop_at,
    work_here,
    work_in_ranks,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
# Each with dropout, so that a step that draws otherwise is noticed.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "clones": ("clones", {}),
    "clones with data flow": ("clones", {"model": "smoke-graphcodebert", "data_flow_length": 16}),
    "detector": ("detector", {}),
    "lora": ("finetune", {"lora_dropout": 0.1, "gradient_checkpointing": True}),
    "qlora": ("finetune", {"method": "qlora", "lora_dropout": 0.1, "packing": False}),
}
each_variant = pytest.mark.parametrize("name", VARIANTS)
each_job = pytest.mark.parametrize("job", list(JOBS))


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    """A worker sets how matrices are multiplied; here others come after it."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Return the finished run of a variant that nothing disturbed, made once."""
    done: dict[str, Run] = {}

    def get(name: str) -> Run:
        if name not in done:
            job, changes = VARIANTS[name]
            run = prepare(job, tmp_path_factory.mktemp("whole") / "runs", **changes)
            assert work_here(run)["training"]["optimizer_steps"] == STEPS[job]
            done[name] = run
        return done[name]

    return get


def begin(name: str, folder: Path) -> tuple[Run, int]:
    job, changes = VARIANTS[name]
    return prepare(job, folder / "runs", **changes), STEPS[job]


def assert_same(run: Run, whole: Run) -> None:
    """Weights, moments, losses, predictions and scores are equal bit for bit."""
    assert learned(run) == learned(whole)
    ours, wanted = result(run), result(whole)
    for key in ("history", "evals", "optimizer_steps", "examples", "epochs"):
        assert ours["training"][key] == wanted["training"][key], key
    assert ours["scores"] == wanted["scores"] and ours["data"] == wanted["data"]


def die(at: Callable[[], None]) -> int:
    """Do something in a copy of this process that is expected to be killed; return its signal."""
    child = os.fork()
    if child == 0:
        try:
            at()
        finally:
            os._exit(1)
    end = time.monotonic() + 300
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the copy of this process hangs")


def suicide(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@each_job
def test_a_job_is_one_spec_five_functions_and_a_report(job: str) -> None:
    spec = JOBS[job]
    worker = importlib.import_module(spec.worker)
    for name in ("check", "build_data", "build_model", "train", "evaluate"):
        assert callable(getattr(worker, name)), name


@each_variant
def test_events_come_in_one_order(name: str, undisturbed: Any) -> None:
    run, steps = undisturbed(name), STEPS[VARIANTS[name][0]]
    kinds = [event["type"] for event in run.events()]
    assert kinds[-1] == "end" and kinds.count("start") == kinds.count("memory") == 1
    phases = [event["name"] for event in events(run, "phase")]
    wanted = ["check", "data", "model", "train", "evaluate", "finish"]
    assert [phase for phase, _ in itertools.groupby(phases) if phase in wanted] == wanted
    assert [event["step"] for event in events(run, "step")] == list(range(1, steps + 1))
    assert [event["step"] for event in events(run, "checkpoint")] == list(range(1, steps + 1))
    times = [event["t"] for event in run.events()]
    assert times == sorted(times)
    assert all(np.isfinite(event["loss"]) for event in events(run, "step"))


@each_variant
def test_predicted_and_measured_memory_stand_side_by_side(name: str, undisturbed: Any) -> None:
    memory = result(undisturbed(name))["memory"]
    assert memory["predicted_bytes"] > 0 and memory["measured_bytes"] > 0
    ratio = memory["predicted_bytes"] / memory["measured_bytes"]
    assert memory["error_percent"] == pytest.approx(100 * (ratio - 1), abs=0.01)
    phases = {row["phase"]: row["measured_bytes"] for row in memory["phases"]}
    assert list(phases) == ["load", "forward", "backward", "optimizer", "evaluation"]
    training = max(phases[phase] for phase in ("forward", "backward", "optimizer"))
    assert training == memory["measured_bytes"] and min(phases.values()) == phases["load"]


@each_variant
def test_a_run_that_is_stopped_twice_and_killed_twice_ends_bit_equal(
    name: str, tmp_path: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = undisturbed(name)
    run, steps = begin(name, tmp_path)
    half = steps // 2 + 1
    for step in (2, half):  # inside the first epoch and inside the second
        with pytest.raises(Stopped, match=f"after optimizer step {step} of {steps}") as error:
            work_here(run, stop_at(run, step))
        assert "goes on from the checkpoint" in error.value.fix
        assert last_checkpoint(run).name == f"step-{step:08d}" and not run.result_path.exists()
    assert [event["step"] for event in events(run, "step")] == list(range(1, half + 1))
    write_parts = ck._write_parts

    def write(part: Path, *rest: Any) -> None:
        write_parts(part, *rest)
        if part.name.startswith(f"step-{half + 1:08d}"):
            suicide()

    with monkeypatch.context() as patch:  # killed while it saves: the checkpoint before is taken
        patch.setattr(ck, "_write_parts", write)
        assert die(lambda: work_here(run)) == signal.SIGKILL
    assert last_checkpoint(run).name == f"step-{half:08d}"
    worker = importlib.import_module(JOBS[VARIANTS[name][0]].worker)
    with monkeypatch.context() as patch:
        patch.setattr(worker, "evaluate", suicide)
        assert die(lambda: work_here(run)) == signal.SIGKILL
    assert last_checkpoint(run).name == f"step-{steps:08d}" and not run.result_path.exists()

    def train(*_: Any, **__: Any) -> None:
        raise AssertionError("it trains again")

    monkeypatch.setattr(Trainer, "_backward", train)
    assert work_here(run)["training"]["resumed_from"] == steps
    assert [event["step"] for event in events(run, "resumed")] == [2, half, half, steps]
    assert {event["step"] for event in events(run, "step")} == set(range(1, steps + 1))
    assert_same(run, whole)
    assert not list(run.checkpoints_path.glob("*.part"))


@each_job
def test_damaged_checkpoints_are_passed_over_with_a_warning(
    job: str, tmp_path: Path, undisturbed: Any
) -> None:
    name = next(name for name, (other, _) in VARIANTS.items() if other == job)
    whole = undisturbed(name)
    run, _ = begin(name, tmp_path)
    with pytest.raises(Stopped):
        work_here(run, stop_at(run, 4))
    weights = next((run.checkpoints_path / "step-00000004").glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    (run.checkpoints_path / "step-00000003" / "optimizer.pt").unlink()
    ended = work_here(run)
    assert ended["training"]["resumed_from"] == 2
    warnings = [event["message"] for event in events(run, "warning")]
    assert any(f"step-00000004: {weights.name} has changed" in line for line in warnings)
    assert any("step-00000003: optimizer.pt is missing" in line for line in warnings)
    assert set(warnings) <= set(ended["warnings"])
    assert_same(run, whole)


def test_an_adapter_s_checkpoint_says_what_it_belongs_to(undisturbed: Any) -> None:
    run = undisturbed("lora")
    folder, found = last_checkpoint(run), result(run)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "smoke" and config["r"] == 4
    assert config["inference_mode"] is True and not ck.verify(folder)
    tensors = load_file(folder / "adapter_model.safetensors")
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
    assert all(bool(t.any()) for name, t in tensors.items() if "lora_B" in name)
    adapter, base = found["adapter"], found["model"]["parameters"]
    weights = found["memory"]["predicted_lines"][0]
    assert weights["name"] == "weights" and weights["note"].startswith(f"{base:,} parameters")
    assert adapter["total_parameters"] == base + adapter["trainable_parameters"]


UNDROPPED = {"clones": {"dropout": 0.0}, "detector": {}, "finetune": {"lora_dropout": 0.0}}


@each_job
def test_how_a_global_batch_is_split_changes_nothing_that_is_learned(
    job: str, tmp_path: Path
) -> None:
    whole = TINY[job]["global_batch_size"]
    curves = []
    for size in (whole, whole // 4):
        changes = UNDROPPED[job] | {"per_device_train_batch_size": size}
        history = work_here(prepare(job, tmp_path / f"{size}", **changes))["training"]["history"]
        curves.append(np.array([[line["loss"], line["grad_norm"]] for line in history]))
    one, other = curves
    assert one[0] == pytest.approx(other[0], rel=1e-5)  # the same loss and gradient,
    assert one == pytest.approx(other, rel=2e-3)  # and steps that only rounding parts


@each_job
def test_two_processes_score_a_finished_run_to_the_same_files(
    job: str, tmp_path: Path, undisturbed: Any
) -> None:
    name = next(name for name, (other, _) in VARIANTS.items() if other == job)
    whole = undisturbed(name)
    changes = {"mode": "evaluate", "checkpoint": whole.path, "num_gpus": 2} | VARIANTS[name][1]
    run = prepare(job, tmp_path / "runs", **changes)
    scored, wanted = work_in_ranks(run), result(whole)
    assert scored["mode"] == "evaluate" and scored["scores"] == wanted["scores"]
    assert scored["training"]["optimizer_steps"] == 0 and not events(run, "step")
    assert len(events(run, "start")) == scored["plan"]["world_size"] == 2
    kinds = ("predictions.*", "generations.*")
    written = [path for kind in kinds for path in whole.path.glob(kind)]
    assert written
    for path in written:
        assert (run.path / path.name).read_bytes() == path.read_bytes()
    if job == "finetune":
        adapter, trained = scored["adapter"], wanted["adapter"]
        assert adapter.pop("check")["zero_b"] == 0 and scored["checkpoint"] == str(whole.path)
        assert adapter == trained | {"target_modules": sorted(trained["target_modules"])}


@each_job
def test_a_report_is_written_of_a_real_run(job: str, undisturbed: Any) -> None:
    name = next(name for name, (other, _) in VARIANTS.items() if other == job)
    report = nb.report(undisturbed(name))
    page = (undisturbed(name).path / "report.html").read_text()
    assert page.startswith("<!") and len(str(report)) > 500
