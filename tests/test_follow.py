"""Promise: following shows a run truly, and ends in its result or in the error that ended it."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_launch
import pytest
from fake_launch import launch_fake, wait_for, wait_for_event

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
from nbhelpers.runs import progress as shown
from nbhelpers.runs.events import EventWriter
from nbhelpers.runs.following import follow, outcome
from nbhelpers.runs.progress import LogView, NotebookView, Progress, TerminalView, choose_view
from nbhelpers.runs.run import Run, end_leftovers, list_runs, write_json


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for runs of the fake worker; whatever still runs at the end is killed."""
    for name, value in fake_launch.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for name in ("NBHELPERS_OWNER_PID", "NBHELPERS_FRESH", "NBHELPERS_LAUNCHED"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path / "runs"
    for run in list_runs(tmp_path / "runs") if (tmp_path / "runs").is_dir() else ():
        end_leftovers(run)


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
    assert f"nbhelpers follow {run.path}" in text and f"nbhelpers stop {run.path}" in text
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


# What is shown.


def step(t: float, number: int, **facts: Any) -> dict[str, Any]:
    return {"t": t, "type": "step", "rank": 0, "step": number, "total_steps": 100} | facts


def trained(*events: dict[str, Any]) -> Progress:
    progress = Progress()
    for event in ({"t": 0.0, "type": "phase", "rank": 0, "name": "train"}, *events):
        progress.update(event)
    return progress


@pytest.mark.parametrize(
    ("steps", "eta_s"),
    [
        ([(10, 1)], None),
        ([(10, 1), (20, 2)], 980),
        ([(10, 50), (20, 60), (30, 70)], 30),  # a resumed run: what was done before is free
        ([(10, 1), (20, 100)], 0),
    ],
)
def test_the_eta_follows_the_speed_of_this_launch(steps: list, eta_s: float | None) -> None:
    progress = trained(*(step(t, number) for t, number in steps))
    assert progress.eta_s == (None if eta_s is None else pytest.approx(eta_s))


def test_a_line_holds_loss_speed_and_every_gpu() -> None:
    gpus = [
        {"index": 0, "utilisation_percent": 71, "memory_used_bytes": 3 * 2**30},
        {"index": 1, "utilisation_percent": None, "memory_used_bytes": 2**30},
    ]
    gpu = {"t": 3.0, "type": "gpu", "rank": 0, "gpus": gpus}
    progress = trained(step(1, 1), step(2, 2, loss=0.25, useful_tokens_per_s=81234.5), gpu)
    assert progress.line() == (
        "[train] step 2/100 (2%) · loss 0.2500 · 81,234 useful tokens/s · ETA 1 min 38 s · "
        "GPU 0 71 % 3.0 GiB · GPU 1 1.0 GiB"
    )


def test_other_ranks_do_not_disturb_the_line() -> None:
    progress = trained(step(1, 1, loss=0.5), step(1, 90, loss=9.0) | {"rank": 1})
    assert progress.done == 1 and progress.loss == 0.5


def test_a_loss_that_is_not_a_number_is_left_out() -> None:
    assert "loss" not in trained(step(1, 1, loss=None)).line()


def test_a_new_phase_begins_its_own_count() -> None:
    progress = trained(step(1, 1), step(2, 50))
    progress.update({"t": 3, "type": "phase", "rank": 0, "name": "evaluate"})
    assert progress.line() == "[evaluate]" and progress.eta_s is None
    progress.update({"t": 4, "type": "progress", "rank": 0, "name": "test", "done": 1, "total": 4})
    assert progress.line() == "[evaluate] test 1/4 (25%)"


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_score_names_its_split(split: str) -> None:
    scored = {"t": 3.0, "type": "eval", "rank": 0, "split": split, "scores": {"f1": 0.8852}}
    assert trained(step(1, 1), scored).line() == f"[train] step 1/100 (1%) · {split} F1 0.885"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("evaluate test", "evaluate test 60/60 functions (100%)"),
        ("tokenise", "tokenise 60/60 functions (100%)"),
        ("pretrain", "pretrain 60/60 steps (100%)"),
    ],
)
def test_a_count_says_what_it_counts(name: str, line: str) -> None:
    counted = {"t": 1.0, "type": "progress", "rank": 0, "name": name, "done": 60, "total": 60}
    assert trained(counted).line() == f"[train] {line}"


def test_a_log_gets_whole_lines_about_every_tenth(monkeypatch) -> None:
    stream = io.StringIO()
    view, progress = LogView(stream), trained()
    for number in range(1, 101):
        progress.update(step(number, number, loss=1.0))
        view.show(progress)
    lines = stream.getvalue().splitlines()
    assert 10 <= len(lines) <= 12 and "\r" not in stream.getvalue()
    now = time.monotonic()
    monkeypatch.setattr(shown.time, "monotonic", lambda: now + 11)
    progress.update(step(101, 99, loss=2.0))
    view.show(progress)
    assert "loss 2.0000" in stream.getvalue().splitlines()[-1]  # ten seconds passed


def test_a_terminal_line_is_rewritten_and_fits(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = io.StringIO()
    view = TerminalView(stream)
    view.show(trained(step(1, 1), step(2, 50, loss=0.5, useful_tokens_per_s=1e6)))
    view.note("Warning: hot")
    view.close()
    text = stream.getvalue()
    assert text.startswith("\r##########..........") and text.endswith("\n")
    assert max(len(line) for line in text.replace("\r", "\n").splitlines()) < 60
    assert "\rWarning: hot\n" in text


def test_a_notebook_output_is_replaced_and_escaped(monkeypatch) -> None:
    display = pytest.importorskip("IPython.display")
    pages: list[str] = []

    class Handle:
        def update(self, page: Any) -> None:
            pages.append(page.data)

    monkeypatch.setattr(display, "display", lambda *_, **__: Handle())
    view = NotebookView()
    view.show(trained(step(1, 1), step(2, 50)))
    view.show(trained(step(1, 1), step(2, 50)))
    view.note("<b>hot</b>")
    assert len(pages) == 2 and "width:50.0%" in pages[0]
    assert "<b>hot" not in pages[1] and "&lt;b&gt;hot" in pages[1] and "width:50.0%" in pages[1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "is_headless", "view"),
    [
        (io.StringIO(), False, LogView),
        (Terminal(), False, TerminalView),
        (Terminal(), True, LogView),
        (None, True, LogView),
    ],
)
def test_the_view_fits_the_place(stream: Any, is_headless: bool, view: type) -> None:
    assert type(choose_view(stream, is_headless=is_headless)) is view


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
