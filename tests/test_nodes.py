"""Promise: a run whose workers no supervisor started looks and ends like any other: it is followed,
stopped and resumed, each rank works once, and the loss of a node is named."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nbhelpers.common import processes
from nbhelpers.common.files import write_json
from nbhelpers.errors import JobFailed, Killed, LaunchError, Stopped
from nbhelpers.runs.events import EventWriter
from nbhelpers.runs.following import follow
from nbhelpers.runs.nodes import Attendance, attend
from nbhelpers.runs.ranks import claim_path, claims_of_launch, lost_ranks, read_claim
from nbhelpers.runs.run import Run, open_run
from tests.fake_launch import ROOT, launch_fake, wait_for, wait_for_event

pytestmark = pytest.mark.slow

BEAT_S = "0.1"  # a rank is given up after twelve of them


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBHELPERS_HEARTBEAT_S", BEAT_S)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", processes.SUPERVISOR_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def prepare(folder: Path, *, nodes: int = 2) -> Run:
    """A run folder for one process on each of some nodes, as the launcher leaves it."""
    run = Run(folder / "clones-x")
    run.path.mkdir(parents=True)
    plan = {"world_size": nodes, "use_gpu": False, "num_nodes": nodes}
    record = {"run_id": run.id, "job": "clones", "plan": plan, "command": "again"}
    write_json(run.record_path, record)
    return run


def start(run: Run, rank: int, mode: str = "finish", *, local_rank: int = 0, **env: str) -> Any:
    """One rank of the fake worker, as a launcher of others would start it."""
    names = {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "WORLD_SIZE": "2"}
    env = os.environ | names | {"FAKE_WORKER": mode, "PYTHONPATH": str(ROOT)} | env
    command = [sys.executable, "-m", "tests.attended_worker", str(run.path)]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def end(*started: subprocess.Popen[str]) -> list[tuple[int, str]]:
    """Exit codes and what was said on stderr."""
    said = [process.communicate(timeout=30)[1] for process in started]
    return [(process.returncode, text) for process, text in zip(started, said, strict=True)]


def test_a_run_of_two_ranks_is_new_running_and_finished(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    assert run.status == "new"
    with pytest.raises(LaunchError, match="never started") as error:
        follow(run)
    assert "sbatch" in error.value.fix
    ranks = [start(run, 0, "slow"), start(run, 1, "slow")]
    wait_for(lambda: run.status == "running" and read_claim(run.path, 1))
    assert "running" in str(open_run(run.id, tmp_path))
    run.stop_path.touch()
    assert [code for code, _ in end(*ranks)] == [0, 0]
    assert run.status == "stopped"
    with pytest.raises(Stopped):
        follow(run, stream=io.StringIO())
    ranks = [start(run, 0), start(run, 1)]
    wait_for(lambda: run.status == "finished")
    assert follow(run, stream=io.StringIO()) is not None
    assert [code for code, _ in end(*ranks)] == [0, 0]
    assert read_claim(run.path, 1)["returncode"] == 0
    assert not run.stop_path.exists()


def test_stop_ends_all_ranks_cleanly(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    ranks = [start(run, 0, "slow"), start(run, 1, "slow")]
    wait_for(lambda: {0, 1} <= {event["rank"] for event in run.final_events("step")})
    assert run.stop(timeout_s=20) == "stopped"
    assert [code for code, _ in end(*ranks)] == [0, 0]


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    run = prepare(tmp_path, nodes=1)
    assert end(start(run, 0))[0][0] == 0
    before = {path: path.read_bytes() for path in run.path.iterdir() if path.is_file()}
    code, said = end(start(run, 0))[0]
    assert code == 0 and "is finished" in said
    assert before == {path: path.read_bytes() for path in run.path.iterdir() if path.is_file()}


def test_a_node_that_is_started_twice_ends_and_changes_nothing(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    ranks = [start(run, 0, "slow"), start(run, 1, "slow")]
    wait_for(lambda: len(run.final_events("step")) > 3 and read_claim(run.path, 1))
    for rank in (0, 1):
        claim = claim_path(run.path, rank).read_bytes()
        code, said = end(start(run, rank, "error"))[0]
        assert code == LaunchError.exit_code
        assert f"Rank {rank} of clones-x works already: process {ranks[rank].pid}" in said
        assert "once" in said and "Traceback" not in said
        assert claim_path(run.path, rank).read_bytes() == claim
    assert run.status == "running" and not run.final_events("error")
    run.stop()
    end(*ranks)
    assert run.status == "stopped"


def test_a_supervised_run_is_not_joined_by_other_nodes(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("NBHELPERS_WORKER_MODULE", "tests.fake_worker")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FAKE_WORKER", "slow")
    run = launch_fake(tmp_path)
    wait_for_event(run, "step")
    for rank in (0, 1):
        code, said = end(start(run, rank))[0]
        assert code == LaunchError.exit_code and "running already, under a supervisor" in said
    assert not run.events_path(1).exists()
    assert run.stop() == "stopped"


def test_without_its_folder_a_node_says_that_it_must_be_shared(tmp_path: Path) -> None:
    code, said = end(start(Run(tmp_path / "gone"), 1))[0]
    assert code == LaunchError.exit_code
    assert "run.json cannot be read on" in said and "share" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_and_is_named(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    ranks = [start(run, 0, "slow"), start(run, 1, "slow")]
    wait_for(lambda: len(run.final_events("step")) > 3 and read_claim(run.path, 1))
    ranks[1].kill()
    assert end(*ranks)[0][0] == Killed.exit_code
    said = run.log_path(0).read_text()
    assert "Rank 1 of clones-x" in said and "no sign of life for 1 s" in said
    assert run.status == "failed"
    with pytest.raises(Killed, match="Rank 1 of clones-x") as error:
        follow(run, stream=io.StringIO())
    assert "last checkpoint" in error.value.fix
    again = [start(run, 0), start(run, 1)]
    assert [code for code, _ in end(*again)] == [0, 0]
    assert run.status == "finished"


def test_a_rank_that_fails_ends_the_others_by_its_own_error(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    ranks = [start(run, 0, "slow"), start(run, 1, "error")]
    assert [code for code, _ in end(*ranks)] == [Killed.exit_code, 5]
    said = run.log_path(0).read_text()
    assert "Rank 1 of clones-x" in said and "exit code 5" in said
    with pytest.raises(JobFailed) as caught:
        raise_end(run)
    assert "line 7 is bad" in str(caught.value)


def raise_end(run: Run) -> None:
    """What `follow` raises, as a JobFailed whatever its class."""
    try:
        follow(run, stream=io.StringIO())
    except Exception as error:
        raise JobFailed(str(error)) from error


def test_a_rank_that_failed_before_rank_0_came_is_found(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    assert end(start(run, 1, "error"))[0][0] == 5
    assert end(start(run, 0, "slow"))[0][0] == Killed.exit_code
    assert "exit code 5" in run.log_path(0).read_text()


@pytest.mark.slow
def test_a_rank_that_was_killed_in_an_earlier_launch_is_waited_for(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    here = processes.machine() | {"attended": True, "pid": 1, "start_time": "0"}
    write_json(claim_path(run.path, 1), here)
    rank = start(run, 0, "slow")
    wait_for_event(run, "warning")
    time.sleep(15 * float(BEAT_S))  # longer than a rank that came may be silent
    assert rank.poll() is None and not run.final_events("error")
    run.stop()
    end(rank)


def test_only_one_rank_of_a_node_watches(tmp_path: Path, monkeypatch) -> None:
    run = prepare(tmp_path)
    assert Attendance(run, 1).watch.is_on
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert not Attendance(run, 1).watch.is_on


def test_rank_0_says_which_node_has_not_come(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    rank = start(run, 0, "slow")
    warning = wait_for_event(run, "warning")
    assert "1 of 2 ranks" in warning["message"] and "node 1" in warning["message"]
    run.stop()
    end(rank)


def test_a_lost_connection_is_explained_by_the_rank_that_said_nothing(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("nbhelpers.runs.following.LAST_WORDS_S", 0.1)
    run = prepare(tmp_path)
    write_json(claim_path(run.path, 1), claim_of_another_host() | {"started_at": time.time()})
    attendance = Attendance(run, 0)
    attendance.sign_in()
    with EventWriter(run.path, 0) as writer:
        text = "RuntimeError: Connection closed by peer [10.0.0.2]:41000"
        writer.write("error", kind="JobFailed", message=text, fix="")
    attendance.sign_out(1)
    with pytest.raises(Killed, match=r"lost rank 1 on elsewhere") as error:
        follow(run, stream=io.StringIO())
    assert "Connection closed by peer" in str(error.value)


def claim_of_another_host() -> dict[str, Any]:
    return {"attended": True, "host": "elsewhere", "pid": 7, "start_time": "1", "boot_id": "b"}


@pytest.mark.slow
def test_a_foreign_rank_counts_as_alive_while_its_heartbeat_moves(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    path = claim_path(run.path, 1)
    write_json(path, claim_of_another_host())
    code, said = end(start(run, 1))[0]  # it does not move: its node is gone
    assert code == 0, said
    write_json(path, claim_of_another_host())
    second = start(run, 1)
    while second.poll() is None:
        os.utime(path)
        time.sleep(0.05)
    code, said = end(second)[0]
    assert code == LaunchError.exit_code and "process 7 on elsewhere" in said
    old = time.time() - 3600
    write_json(path, claim_of_another_host())
    os.utime(path, (old, old))
    assert end(start(run, 1))[0][0] == 0


def test_a_reused_pid_is_not_mistaken_for_the_rank(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    here = processes.machine() | {"attended": True, "pid": os.getpid(), "start_time": "0"}
    write_json(claim_path(run.path, 1), here)
    assert end(start(run, 1))[0][0] == 0


@pytest.mark.slow
def test_each_launch_begins_where_its_own_ranks_began(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    end(start(run, 0, "slow"), start(run, 1, "error"))
    assert run.status == "failed"
    # Rank 1 comes first and fails at once; rank 0 must not take its words for old ones.
    end(start(run, 1, "error"))
    end(start(run, 0, "slow"))
    errors = [event for event in run.final_events("error") if event["rank"] == 1]
    assert len(errors) == 1
    claim = read_claim(run.path, 1)
    write_json(claim_path(run.path, 1), claim | {"started_at": time.time() - 7200})
    assert claims_of_launch(run.path, run.process) == {}
    assert [e for e in run.final_events("error") if e["rank"] == 1] == []


def test_lost_ranks_are_those_without_a_last_word(tmp_path: Path) -> None:
    run = prepare(tmp_path)
    assert lost_ranks(run.path, {}) == {}
    now = {"attended": True, "started_at": time.time(), "host": "a"}
    for rank, code in ((0, 1), (1, None), (2, 0)):
        claim = now if code is None else now | {"returncode": code}
        write_json(claim_path(run.path, rank), claim)
    assert lost_ranks(run.path, run.process) == {1: "a"}


def test_under_a_supervisor_attend_only_works(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(processes.SUPERVISOR_VARIABLE, "1:2")
    assert attend(tmp_path, lambda folder: len(folder)) == len(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_worker_that_is_terminated_leaves_a_run_that_is_not_running(tmp_path: Path) -> None:
    run = prepare(tmp_path, nodes=1)
    rank = start(run, 0, "slow")
    wait_for_event(run, "step")
    rank.send_signal(signal.SIGKILL)
    rank.wait(10)
    assert run.status == "dead"
    with pytest.raises(Killed):
        follow(run, stream=io.StringIO())


def test_a_full_disk_at_the_end_does_not_hide_the_exit_code(tmp_path: Path, monkeypatch) -> None:
    run = prepare(tmp_path, nodes=1)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def work(folder: str) -> int:
        monkeypatch.setattr("nbhelpers.runs.nodes.write_json", refuse)
        return 12

    assert attend(run.path, work) == 12


def test_the_claims_are_plain_json(tmp_path: Path) -> None:
    run = prepare(tmp_path, nodes=1)
    end(start(run, 0))
    claim = json.loads(run.process_path.read_text())
    assert claim["rank"] == 0 and claim["host"] and claim["returncode"] == 0
