"""Promise: whatever happens to the model's process, the notebook gets an answer or an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbhelpers.common import child as use_child
from nbhelpers.common.child import Child
from nbhelpers.common.processes import start_time
from nbhelpers.errors import DataError, JobFailed, Killed, OutOfMemory


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with Child(use_gpu=False, module="fake_serve") as found:
        yield found


def test_what_libraries_print_does_not_reach_the_protocol(child: Child) -> None:
    told = child.call("chatter", size=200_000)
    assert told == {"pid": child.process.pid}
    assert "and on stderr" in child.log_tail()
    assert len(child.log_tail()) <= use_child.LOG_BYTES


def test_progress_is_told_in_order(child: Child) -> None:
    said: list[str] = []
    child.call("steps", report=said.append)
    assert said == ["first", "second"]


def test_it_has_the_environment_of_a_worker(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    env = child.call("environment")
    assert env["CUDA_VISIBLE_DEVICES"] == "" and env["PYTHONSAFEPATH"] == "1"
    monkeypatch.setenv("RANK", "3")
    with Child(use_gpu=False, module="fake_serve") as other:
        assert "RANK" not in other.call("environment")


def test_an_error_comes_back_with_its_kind_and_fix_and_the_process_stays(child: Child) -> None:
    with pytest.raises(DataError, match="bad") as error:
        child.call("fail", how="data")
    assert error.value.fix == "mend it"
    for how, words in (("memory", "no room"), ("cuda", "allocate 2.00 GiB")):
        with pytest.raises(OutOfMemory, match="ran out of memory") as error:
            child.call("fail", how=how)
        assert "max_new_tokens" in error.value.fix and words in error.value.details
    with pytest.raises(JobFailed, match="KeyError: 'odd'") as error:
        child.call("fail", how="odd")
    assert "a clue in the log" in error.value.details
    assert child.call("wait", seconds=0) == {"cancelled": False}


@pytest.mark.parametrize(
    ("how", "kind", "words"), [("kill", Killed, "was killed"), ("exit", JobFailed, "exit code 3")]
)
def test_a_death_is_told_with_the_end_of_the_log(
    child: Child, how: str, kind: type, words: str
) -> None:
    with pytest.raises(kind, match=words) as error:
        child.call("fail", how=how)
    assert "a clue in the log" in error.value.details
    assert not child.is_alive
    with pytest.raises(kind):  # asked again, it says so again
        child.call("wait", seconds=0)


def test_a_time_limit_stops_the_work_and_leaves_the_process(child: Child) -> None:
    began = time.monotonic()
    with pytest.raises(Killed, match=r"longer than timeout_s=0\.2"):
        child.call("wait", seconds=60, timeout_s=0.2)
    assert time.monotonic() - began < 50
    assert child.is_alive and child.call("wait", seconds=0) == {"cancelled": False}


def test_a_process_that_does_not_listen_is_ended(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(use_child, "CANCEL_S", 0.2)
    with pytest.raises(Killed, match="longer than"):
        child.call("deaf", seconds=60, timeout_s=0.1)
    assert not child.is_alive


def test_an_interrupt_stops_the_work_and_no_late_answer_meets_the_next_question(
    child: Child,
) -> None:
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        child.call("wait", seconds=60)
    timer.join()
    assert child.is_alive
    assert child.call("chatter", size=1) == {"pid": child.process.pid}


def test_closing_ends_it_also_in_the_middle_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    child = Child(use_gpu=False, module="fake_serve")
    with pytest.raises(Killed):
        child.call("wait", seconds=60, timeout_s=0.1)
    child.close()
    child.close()
    assert child.process.returncode is not None and not child.is_alive


def test_a_forgotten_one_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    child = Child(use_gpu=False, module="fake_serve")
    process = child.process
    child.call("wait", seconds=0)
    del child
    assert process.returncode is not None


STARTER = """
import os, sys, time
from nbhelpers.common.child import Child
child = Child(use_gpu=False, module="fake_serve")
child.call("wait", seconds=0)
if os.fork() == 0:  # a fork that lives on and holds the pipe open
    time.sleep(30)
    os._exit(0)
print(child.process.pid, flush=True)
child.call("deaf", seconds=60)
"""


def test_it_ends_with_the_process_that_started_it(tmp_path: Path, root: Path) -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), str(Path(__file__).parent)])}
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER], stdout=subprocess.PIPE, env=env, start_new_session=True
    )
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    assert start_time(pid) is not None
    starter.kill()
    starter.wait()
    deadline = time.monotonic() + 5
    while start_time(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    alive = start_time(pid) is not None
    os.killpg(starter.pid, signal.SIGKILL)  # the fork
    assert not alive
