"""Promise: whatever happens to the simulating process, a budget or a clear error comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nbhelpers.budget import simulator as budgets_child
from nbhelpers.budget.simulator import Simulator
from nbhelpers.common.processes import start_time
from nbhelpers.errors import ConfigError, Killed, LaunchError
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.plan import plan_batch
from nbhelpers.presets.loading import load_preset

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parent


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulator]:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    found = Simulator("fake_simulator")
    yield found
    found.close()


def ask(simulator: Simulator, *, timeout_s: float = 60.0, **changes: Any) -> Any:
    hardware = plan_hardware("t4")
    preset = load_preset("clones", "t4", hardware=hardware, overrides=changes)
    return simulator.ask(preset, plan_batch(preset, hardware), hardware, timeout_s=timeout_s)


def pid_of(budget: Any) -> int:
    return budget.phases[0].size_bytes


def test_one_process_answers_many_requests_and_is_gone_when_closed(simulator: Simulator) -> None:
    first, second = ask(simulator), ask(simulator, seq_len=256)
    assert pid_of(first) == pid_of(second) == simulator.pid
    assert first.total_bytes > second.total_bytes and first.source == "simulation"
    pid = simulator.pid
    simulator.close()
    assert simulator.pid is None and start_time(pid) is None  # not even a zombie


def test_an_error_is_told_and_the_process_stays_a_death_is_told_and_another_starts(
    simulator: Simulator,
) -> None:
    pid = pid_of(ask(simulator))
    with pytest.raises(ConfigError, match="cannot be read") as refused:
        ask(simulator, seed=15)
    assert refused.value.fix == "go online" and pid_of(ask(simulator)) == pid
    with pytest.raises(Killed, match="simulates the step of clones/t4 was killed") as killed:
        ask(simulator, seed=13)
    assert "main memory" in killed.value.fix
    assert pid_of(ask(simulator)) != pid


def test_what_takes_too_long_is_ended(
    simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbhelpers.common.child.CANCEL_S", 0.2)
    pid = pid_of(ask(simulator))
    with pytest.raises(Killed, match=r"longer than 0\.3 s"):
        ask(simulator, seed=14, timeout_s=0.3)
    assert start_time(pid) is None and pid_of(ask(simulator)) != pid


def test_an_idle_process_gives_its_memory_back(
    simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets_child, "IDLE_S", 0.1)
    pid, limit = pid_of(ask(simulator)), time.monotonic() + 10
    while start_time(pid) is not None and time.monotonic() < limit:
        time.sleep(0.05)
    assert start_time(pid) is None and simulator.pid is None


def test_without_torch_the_error_says_what_to_install_and_what_works_without(
    simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets_child, "missing_libraries", lambda: ["torch"])
    with pytest.raises(LaunchError, match="torch is not installed") as error:
        ask(simulator)
    assert "pip install torch" in error.value.fix and "estimate" in error.value.fix


PARENT = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from test_budgets_child import ask, pid_of
from nbhelpers.budget.simulator import Simulator
print(pid_of(ask(Simulator("fake_simulator"))), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_ends_with_the_process_that_asked() -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    script = PARENT.format(tests=str(TESTS))
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    pid, limit = int(done.stdout), time.monotonic() + 10
    while start_time(pid) is not None and time.monotonic() < limit:
        time.sleep(0.05)
    assert start_time(pid) is None
