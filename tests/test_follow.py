"""Promise: following shows a run truly, and ends in its result or in the error that ended it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_launch
import pytest
from fake_launch import folder_of_runs, launch_fake, wait_for, wait_for_event

from nbhelpers.common import processes
from nbhelpers.errors import (
    DataError,
    JobFailed,
    Killed,
    LaunchError,
    NonFinite,
    OutOfMemory,
    Stopped,
)
from nbhelpers.runs.events import EventWriter
from nbhelpers.runs.following import follow, outcome
from nbhelpers.runs.run import Run, list_runs, write_json

pytestmark = pytest.mark.slow  # most start processes


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from folder_of_runs(tmp_path, monkeypatch, fake_launch.ENVIRONMENT)


def follow_quickly(run: Run, **options: Any) -> tuple[Any, str]:
    stream = io.StringIO()
    return follow(run, stream=stream, **({"refresh_s": 0.05} | options)), stream.getvalue()


def test_a_finished_run_gives_its_result(runs: Path) -> None:
    run = launch_fake(runs)
    result, text = follow_quickly(run)
    assert result.run_id == run.id
    assert "[train]" in text and "step 10/10 (100%)" in text and "loss 0.1000" in text
    assert "1,000 useful tokens/s" in text and text.count("Warning: this is a <fake> worker") == 1
    again, _ = follow_quickly(run, refresh_s=1e9)  # it does not wait for an end that has come
    assert again == result


@pytest.mark.parametrize(
    ("mode", "error", "message", "details"),
    [
        ("error", DataError, "line 7 is bad", "Log: "),
        ("oom", OutOfMemory, "asked for 2 GiB", "mode oom"),
        ("crash", JobFailed, "exit code 1 ", "KeyError: 'an error that nobody translated'"),
        ("exit17", JobFailed, "exit code 17 ", "mode exit17"),
        ("import_error", JobFailed, "exit code 1 ", "No module named 'a_missing_package'"),
        ("sigkill", Killed, "Rank 0 .* SIGKILL.*out-of-memory killer", "mode sigkill"),
    ],
)
def test_a_failure_comes_back_as_its_own_error(
    runs: Path, monkeypatch, mode: str, error: type, message: str, details: str
) -> None:
    monkeypatch.setenv("FAKE_WORKER", mode)
    with pytest.raises(error, match=message) as caught:
        follow_quickly(launch_fake(runs))
    assert type(caught.value) is error and caught.value.fix
    assert details in caught.value.details and "rank0.log" in caught.value.details


def test_a_stopped_run_says_how_to_resume(runs: Path, monkeypatch) -> None:
    monkeypatch.setenv("FAKE_WORKER", "slow")
    run = launch_fake(runs)
    wait_for_event(run, "step")
    run.stop()
    with pytest.raises(Stopped, match=r"on request at step \d+ \(last.json\)") as caught:
        follow_quickly(run)
    assert "Launch the same configuration again" in caught.value.fix


def test_an_interrupt_ends_the_following_only(runs: Path, monkeypatch) -> None:
    monkeypatch.setenv("FAKE_WORKER", "slow")
    run, calls = launch_fake(runs), []

    def interrupt(seconds: float) -> None:
        calls.append(seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr("nbhelpers.runs.following.time.sleep", interrupt)
    result, text = follow_quickly(run)
    monkeypatch.undo()
    assert result is None and calls and run.status == "running"
    assert f"nb.follow(nb.open_run({str(run.path)!r}))" in text
    assert f"nbhelpers follow {run.typed}" in text and f"nbhelpers stop {run.typed}" in text
    wait_for_event(run, "step")


@pytest.mark.parametrize(("stop", "status"), [(False, "running"), (True, "stopped")])
def test_a_time_limit_ends_the_run_only_when_asked(
    runs: Path, monkeypatch, stop: bool, status: str
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "slow")
    run = launch_fake(runs)
    wait_for_event(run, "step")
    with pytest.raises(Killed, match=r"time limit of 0.2 s"):
        follow_quickly(run, timeout_s=0.2, stop_on_timeout=stop)
    assert run.status == status


def test_a_hanging_worker_is_warned_of_once(runs: Path, monkeypatch) -> None:
    monkeypatch.setenv("FAKE_WORKER", "hang")  # its GPU thread goes on sending events
    run, stream, looks = launch_fake(runs), io.StringIO(), []
    wait_for_event(run, "gpu")

    def sleep(seconds: float) -> None:
        looks.append("no news" in stream.getvalue())
        if sum(looks) > 10:
            raise KeyboardInterrupt

    monkeypatch.setattr("nbhelpers.runs.following.time.sleep", sleep)
    follow(run, stream=stream, quiet_s=0.4)
    monkeypatch.undo()
    warned = [line for line in stream.getvalue().splitlines() if "no news" in line]
    assert len(warned) == 1 and "phase 'train'" in warned[0] and "rank0.log" in warned[0]


def test_following_a_run_that_was_never_started_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="never started"):
        follow_quickly(Run(tmp_path))


# Outcomes of runs with several ranks, from folders alone.


def ended_run(root: Path, end: dict[str, Any], errors: list[tuple[int, str]]) -> Run:
    run = Run(root)
    process = {"launch_id": "one", "pid": 2**22 + 1, "start_time": "1"}
    write_json(run.process_path, processes.machine() | process)
    for rank, kind in errors:
        run.log_path(rank).write_text(f"log of rank {rank}\n")
        EventWriter(run.path, rank).write("error", kind=kind, message=f"{kind} on {rank}")
    facts = {"returncode": 1, "signal": None, "rank": None, "reason": "failed"}
    EventWriter(run.path).write("exit", launch_id="one", escalated=False, **(facts | end))
    return run


KILLED = {"signal": 9, "rank": 1, "reason": "killed"}


@pytest.mark.parametrize(
    ("end", "errors", "error", "message"),
    [
        ({}, [(1, "OutOfMemory"), (0, "JobFailed")], OutOfMemory, "on 1"),
        ({}, [(0, "RuntimeError"), (1, "OutOfMemory")], OutOfMemory, "on 1"),
        ({}, [(1, "RuntimeError"), (0, "RuntimeError")], JobFailed, "on 1"),
        (KILLED, [(0, "RuntimeError")], Killed, "Rank 1"),
        (KILLED, [(0, "NonFinite")], NonFinite, "on 0"),
        (KILLED | {"rank": None}, [], Killed, "The launcher"),
        (KILLED | {"signal": 11}, [], Killed, "SIGSEGV.*Native code"),
        ({"rank": 1}, [], JobFailed, "exit code 1 "),
        ({"reason": "launcher killed"}, [], Killed, "without a word"),
    ],
)
def test_the_first_cause_is_reported(
    tmp_path: Path, end: dict, errors: list, error: type, message: str
) -> None:
    run = ended_run(tmp_path, end, errors)
    with pytest.raises(error, match=message) as caught:
        outcome(run)
    assert type(caught.value) is error
    rank = message[-1] if message.startswith("on ") else None
    assert rank is None or f"log of rank {rank}" in caught.value.details


def test_the_launchers_log_stands_in_for_a_rank_that_wrote_none(tmp_path: Path) -> None:
    run = ended_run(tmp_path, {"rank": 1}, [])
    run.launcher_log_path.write_text("ImportError: no torch\n")
    with pytest.raises(JobFailed) as caught:
        outcome(run)
    assert "ImportError: no torch" in caught.value.details


def test_a_kill_by_the_kernel_is_said_to_be_likely(tmp_path: Path) -> None:
    run = ended_run(tmp_path, KILLED | {"oom_kills": 1}, [])
    with pytest.raises(Killed, match="it acted meanwhile"):
        outcome(run)


def test_a_run_is_followed_in_a_real_kernel(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("papermill")
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    lines = [
        "import sys",
        f"sys.path[:0] = [{str(fake_launch.ROOT)!r}, {str(fake_launch.ROOT / 'tests')!r}]",
        "import pathlib, fake_launch; from nbhelpers.runs.following import follow",
        f"follow(fake_launch.launch_fake(pathlib.Path({str(runs)!r})))",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("\n".join(lines))])
    nbclient.NotebookClient(book, kernel_name="python3", timeout=600).execute()
    outputs = book.cells[0].outputs
    bars = [o for o in outputs if "useful tokens/s" in str(o.get("data", {}).get("text/html"))]
    assert len(bars) == 1  # replaced, not repeated
    assert outputs[-1].data["text/plain"].startswith("RunResult(clones-smoke-")
    run = wait_for(lambda: next(iter(list_runs(runs)), None))
    assert run.status == "finished" and run.process["owner_pid"] is None
