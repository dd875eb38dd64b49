"""Promise: a fine-tuning that is killed, stopped or scored again ends as an undisturbed one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from finetune_runs import STEPS, learned, prepare, start, work_here

import nbhelpers as nb
from nbhelpers.errors import Killed, Stopped
from nbhelpers.jobs import checkpoint as ck
from nbhelpers.jobs import finetune
from nbhelpers.jobs.loop import Trainer
from nbhelpers.runs.run import Run
from tests.real_run import finish, kill_rank, wait_for_step

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
DROPOUT = {"lora_dropout": 0.1, "gradient_checkpointing": True}
QLORA = {"method": "qlora", "lora_dropout": 0.1, "packing": False}
VARIANTS = {"dropout": DROPOUT, "qlora": QLORA}


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    """A worker sets how matrices are multiplied; here others come after it."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Return the finished run of a variant that nothing disturbed."""
    done: dict[str, Run] = {}

    def get(name: str) -> Run:
        if name not in done:
            run = prepare(tmp_path_factory.mktemp("whole") / "runs", **VARIANTS[name])
            assert work_here(run)["training"]["optimizer_steps"] == STEPS
            done[name] = run
        return done[name]

    return get


def result(run: Run) -> dict[str, Any]:
    return json.loads(run.result_path.read_text())


def assert_same(run: Run, whole: Run) -> None:
    """Adapter, optimizer, losses and answers are equal bit for bit."""
    assert learned(run) == learned(whole)
    found, wanted = result(run), result(whole)
    for key in ("history", "evals", "optimizer_steps", "examples", "epochs"):
        assert found["training"][key] == wanted["training"][key], key
    assert found["scores"] == wanted["scores"]
    assert found["adapter"] == wanted["adapter"] and found["data"] == wanted["data"]


def events(run: Run, kind: str) -> list[dict[str, Any]]:
    return [event for event in run.events() if event["type"] == kind]


def stop_at(run: Run, step: int) -> Callable[[], bool]:
    """Ask for a stop while this optimizer step is made."""
    before = len(events(run, "step"))

    def wants_stop() -> bool:
        told = events(run, "step")[before:]
        return bool(told) and told[-1]["step"] >= step - 1

    return wants_stop


def die(at: Callable[[], None]) -> int:
    """Do something in a copy of this process that is expected to be killed; return its signal."""
    child = os.fork()
    if child == 0:
        try:
            at()
        finally:
            os._exit(1)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the copy of this process hangs")


def suicide(*args: Any, **options: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_launched_run_that_is_killed_ends_bit_equal(tmp_path: Path, undisturbed: Any):
    whole = undisturbed("dropout")
    run = start(tmp_path / "runs", **DROPOUT)
    wait_for_step(run, 2)
    kill_rank(run)
    with pytest.raises(Killed):
        nb.follow(run, timeout_s=60)
    again = start(tmp_path / "runs", **DROPOUT)
    assert again.path == run.path
    found = finish(again)
    assert found["training"]["resumed_from"] >= 1
    assert_same(again, whole)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_stopped_twice_ends_bit_equal(tmp_path: Path, variant: str, undisturbed: Any):
    whole = undisturbed(variant)
    run = prepare(tmp_path / "runs", **VARIANTS[variant])
    for step in (2, 4):  # inside the first epoch and inside the second
        with pytest.raises(Stopped, match=f"after optimizer step {step} of {STEPS}") as error:
            work_here(run, stop_at(run, step))
        assert "goes on from the checkpoint" in error.value.fix
        assert learned_step(run) == step and not run.result_path.exists()
    work_here(run)
    assert [event["step"] for event in events(run, "resumed")] == [2, 4]
    assert [event["step"] for event in events(run, "step")] == list(range(1, STEPS + 1))
    assert_same(run, whole)


def learned_step(run: Run) -> int:
    return int(ck.read_index(run.checkpoints_path)["last"].split("-")[1])


def test_a_run_killed_while_a_checkpoint_is_written_goes_on_from_the_one_before(
    tmp_path: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
):
    whole = undisturbed("dropout")
    run = prepare(tmp_path / "runs", **DROPOUT)

    def at_the_third() -> None:
        real = ck._write_parts

        def write(part: Path, *rest: Any) -> None:
            real(part, *rest)
            if part.name.startswith("step-00000003"):
                suicide()

        monkeypatch.setattr(ck, "_write_parts", write)
        work_here(run)

    assert die(at_the_third) == signal.SIGKILL
    assert learned_step(run) == 2
    assert work_here(run)["training"]["resumed_from"] == 2
    assert_same(run, whole)
    assert not list(run.checkpoints_path.glob("*.part"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_killed_in_its_evaluation_does_not_train_again(
    tmp_path: Path, variant: str, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
):
    whole = undisturbed(variant)
    run = prepare(tmp_path / "runs", **VARIANTS[variant])

    def in_evaluation() -> None:
        monkeypatch.setattr(finetune, "evaluate_all", suicide)
        work_here(run)

    assert die(in_evaluation) == signal.SIGKILL
    assert learned_step(run) == STEPS and not run.result_path.exists()
    told = len(events(run, "step"))

    def step(*_: Any, **__: Any) -> None:
        raise AssertionError("it trains again")

    monkeypatch.setattr(Trainer, "_backward", step)
    assert work_here(run)["training"]["resumed_from"] == STEPS
    assert len(events(run, "step")) == told == STEPS
    assert_same(run, whole)


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path: Path, undisturbed: Any):
    whole = undisturbed("dropout")
    run = prepare(tmp_path / "runs", **DROPOUT)
    with pytest.raises(Stopped):
        work_here(run, stop_at(run, 4))
    damaged = run.checkpoints_path / "step-00000004"
    weights = damaged / "adapter_model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    (run.checkpoints_path / "step-00000003" / "optimizer.pt").unlink()
    found = work_here(run)
    assert found["training"]["resumed_from"] == 2
    told = [event["message"] for event in events(run, "warning")]
    assert any("step-00000004: adapter_model.safetensors has changed" in line for line in told)
    assert any("step-00000003: optimizer.pt is missing" in line for line in told)
    assert set(told) <= set(found["warnings"])
    # Predicted and measured are those of the two steps that this process counted: 3 and 4.
    assert abs(found["memory"]["error_percent"]) < 10
    assert found["memory"]["measured_bytes"] != result(whole)["memory"]["measured_bytes"]
    assert_same(run, whole)


def test_a_checkpoint_says_what_it_belongs_to(undisturbed: Any):
    folder = undisturbed("qlora").checkpoints_path / f"step-{STEPS:08d}"
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "smoke" and config["r"] == 4
    assert config["inference_mode"] is True
    assert not ck.verify(folder)
    from safetensors.torch import load_file

    tensors = load_file(folder / "adapter_model.safetensors")
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
    assert all(bool(t.any()) for name, t in tensors.items() if "lora_B" in name)


def test_the_memory_of_every_phase_of_the_trainer_is_measured(undisturbed: Any):
    memory = result(undisturbed("dropout"))["memory"]
    found = {row["phase"]: row["measured_bytes"] for row in memory["phases"]}
    assert list(found) == ["load", "forward", "backward", "optimizer", "evaluation"]
    assert min(found.values()) == found["load"]
    training = max(found[name] for name in ("forward", "backward", "optimizer"))
    assert training == memory["measured_bytes"]


def test_ledger_and_adapter_count_the_parameters_of_the_loaded_model(undisturbed: Any):
    found = result(undisturbed("dropout"))
    adapter, base = found["adapter"], found["model"]["parameters"]
    weights = found["memory"]["predicted_lines"][0]
    assert weights["name"] == "weights" and weights["note"].startswith(f"{base:,} parameters")
    assert adapter["total_parameters"] == base + adapter["trainable_parameters"]


def test_two_processes_score_a_trained_run_to_the_same_file(tmp_path: Path, undisturbed: Any):
    whole = undisturbed("dropout")
    words = [sys.executable, "-m", "nbhelpers", "evaluate", "finetune", "--run", str(whole.path)]
    words += ["--run-dir", str(tmp_path / "runs"), "-o", "num_gpus=2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = nb.list_runs(tmp_path / "runs")
    assert run.path != whole.path
    found, wanted = result(run), result(whole)
    assert (run.path / "generations.jsonl").read_text() == learned(whole)["generations"]
    assert found["mode"] == "evaluate" and found["plan"]["world_size"] == 2
    assert found["checkpoint"] == str(whole.path)
    assert {k: v for k, v in found["adapter"].items() if k != "check"} == wanted["adapter"] | {
        "target_modules": sorted(wanted["adapter"]["target_modules"])
    }
    assert found["adapter"]["check"]["zero_b"] == 0
    assert found["scores"] == wanted["scores"]
    assert found["training"]["optimizer_steps"] == 0 and found["throughput"] == {}
    assert len(events(run, "start")) == 2 and not events(run, "step")
    told = " ".join(done.stdout.split())
    assert "on 5 test samples" in told and f"Scored: {whole.path} (adapter r4)" in told
