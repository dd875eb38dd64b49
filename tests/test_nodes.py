"""Promise: a run whose workers no supervisor started looks and ends like any other: it is followed,
stopped and resumed; two nodes give what one gives."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nbhelpers as nb
from nbhelpers.common import processes
from nbhelpers.common.files import write_json
from nbhelpers.common.processes import free_port
from nbhelpers.errors import Killed, LaunchError, NbhelpersError, Stopped
from nbhelpers.runs.following import follow
from nbhelpers.runs.launcher import NodeLauncher, prepare_nodes
from nbhelpers.runs.run import Run, open_run
from nbhelpers.runs.unsupervised import attend
from tests.fake_launch import ROOT, launch_fake, wait_for, wait_for_event
from tests.job_runs import TINY, wait_for_step, work_in_ranks
from tests.job_runs import prepare as prepared_here
from tests.node_cluster import SCONTROL, Cluster, prepare

pytestmark = pytest.mark.slow
LIMIT_S = 600  # for an end that is sure to come, on a machine however busy


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", processes.SUPERVISOR_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


# One rank at a time, with a worker that needs no torch


def prepared(folder: Path) -> Run:
    """A run folder for one process on each of two nodes, as the launcher leaves it."""
    run = Run(folder / "clones-x")
    run.path.mkdir(parents=True)
    plan = {"world_size": 2, "use_gpu": False, "num_nodes": 2}
    record = {"run_id": run.id, "job": "clones", "plan": plan, "command": "again"}
    write_json(run.record_path, record)
    return run


def rank_of(run: Run, rank: int, mode: str = "finish") -> subprocess.Popen[str]:
    """One rank of the fake worker, as a launcher of others would start it."""
    env = os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "FAKE_WORKER": mode}
    command = [sys.executable, "-m", "tests.attended_worker", str(run.path)]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def end(*ranks: subprocess.Popen[str]) -> list[tuple[int, str]]:
    """Exit codes and what was written to stderr."""
    errors = [rank.communicate(timeout=LIMIT_S)[1] for rank in ranks]
    return [(rank.returncode, text) for rank, text in zip(ranks, errors, strict=True)]


def test_a_run_of_two_ranks_is_new_running_stopped_and_finished(tmp_path: Path) -> None:
    run = prepared(tmp_path)
    assert run.status == "new"
    with pytest.raises(LaunchError, match="never started") as error:
        follow(run)
    assert "sbatch" in error.value.fix
    ranks = [rank_of(run, 0, "slow"), rank_of(run, 1, "slow")]
    wait_for(lambda: {0, 1} <= {event["rank"] for event in run.final_events("step")})
    assert "running" in str(open_run(run.id, tmp_path))
    code, text = end(rank_of(run, 0))[0]  # the same line twice
    assert code == LaunchError.exit_code and "is running already" in text and "once" in text
    assert run.stop(timeout_s=LIMIT_S) == "stopped"
    assert [code for code, _ in end(*ranks)] == [0, 0]
    with pytest.raises(Stopped):
        follow(run, stream=io.StringIO())
    assert [code for code, _ in end(rank_of(run, 0), rank_of(run, 1))] == [0, 0]
    assert run.status == "finished" and not run.stop_path.exists()
    assert follow(run, stream=io.StringIO()) is not None
    before = {path: path.read_bytes() for path in run.path.iterdir() if path.is_file()}
    code, text = end(rank_of(run, 0))[0]
    assert code == 0 and "is finished" in text
    assert before == {path: path.read_bytes() for path in run.path.iterdir() if path.is_file()}


def test_a_supervised_run_is_not_joined_by_another_node(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("NBHELPERS_WORKER_MODULE", "tests.fake_worker")
    monkeypatch.setenv("FAKE_WORKER", "slow")
    run = launch_fake(tmp_path)
    wait_for_event(run, "step")
    code, text = end(rank_of(run, 0))[0]
    assert code == LaunchError.exit_code and "is running already" in text
    assert run.stop() == "stopped"


def test_without_its_folder_a_node_says_that_it_must_be_shared(tmp_path: Path) -> None:
    code, text = end(rank_of(Run(tmp_path / "gone"), 1))[0]
    assert code == LaunchError.exit_code
    assert "run.json cannot be read on" in text and "share" in text
    assert not list(tmp_path.iterdir())


def test_a_rank_0_that_is_killed_leaves_a_dead_run(tmp_path: Path) -> None:
    run = prepared(tmp_path)
    rank = rank_of(run, 0, "slow")
    wait_for_event(run, "step")
    rank.kill()
    rank.wait(LIMIT_S)
    assert run.status == "dead"
    with pytest.raises(Killed):
        follow(run, stream=io.StringIO())
    again = rank_of(run, 0)
    assert end(again)[0][0] == 0 and run.status == "finished"


def test_an_error_of_this_launch_alone_is_told(tmp_path: Path) -> None:
    run = prepared(tmp_path)
    assert end(rank_of(run, 0, "error"))[0][0] == 5
    with pytest.raises(NbhelpersError, match="line 7 is bad"):
        follow(run, stream=io.StringIO())
    assert end(rank_of(run, 0, "error"))[0][0] == 5
    assert len(run.final_events("error")) == 1


def test_under_a_supervisor_attend_only_works(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(processes.SUPERVISOR_VARIABLE, "1:2")
    assert attend(tmp_path, lambda folder: len(folder)) == len(str(tmp_path))
    assert not list(tmp_path.iterdir())


# Both nodes, by their own lines


def start_nodes(launcher: NodeLauncher, **env: str) -> list[subprocess.Popen[bytes]]:
    """Both lines, each in a shell of its own."""
    logs = [(launcher.run.path / f"node{rank}.log").open("ab") for rank in (0, 1)]
    return [
        subprocess.Popen(
            ["bash", "-c", launcher.line(rank)], env=os.environ | env, stdout=log, stderr=log
        )
        for rank, log in enumerate(logs)
    ]


def finish_nodes(nodes: list[subprocess.Popen[bytes]]) -> list[int]:
    return [node.wait(timeout=LIMIT_S) for node in nodes]


def two_cpu_nodes(folder: Path, **changes: Any) -> NodeLauncher:
    """The smallest real run, prepared for two nodes that are this machine."""
    return prepare_nodes(
        "clones",
        "smoke",
        num_nodes=2,
        gpus_per_node=1,
        overrides=TINY["clones"] | changes,
        run_dir=folder,
        main_address="127.0.0.1",
        port=free_port(),
    )


@pytest.fixture(scope="module")
def one_node(tmp_path_factory) -> Run:
    """The same run in two processes of one node."""
    run = prepared_here("clones", tmp_path_factory.mktemp("one") / "runs", num_gpus=2)
    work_in_ranks(run)
    return run


def files_of(run: Run) -> dict[str, bytes]:
    """Everything that a job writes once: weights, states, predictions."""
    names = ["predictions.jsonl", "predictions.txt", "checkpoints/index.json"]
    files = {name: (run.path / name).read_bytes() for name in names}
    for path in sorted(run.checkpoints_path.glob("step-*/model.safetensors")):
        files[path.parent.name] = path.read_bytes()
    return files


def test_two_nodes_give_what_two_processes_of_one_node_give(one_node, tmp_path):
    """Started by their lines, and again by the script for SLURM."""
    launcher = two_cpu_nodes(tmp_path / "runs")
    assert launcher.run.id == one_node.id
    nodes = start_nodes(launcher)
    run = launcher.run
    wait_for_step(run, 3)
    starts = [e for e in run.events() if e["type"] == "start" and e["rank"] == 1]
    os.kill(nodes[1].pid, signal.SIGKILL)  # a node dies: its line again continues the run
    os.kill(starts[-1]["pid"], signal.SIGKILL)
    assert finish_nodes(nodes)[0] != 0 and run.status == "failed"
    with pytest.raises(NbhelpersError):
        nb.follow(run)
    cluster = Cluster(tmp_path / "fakes", launcher)
    (cluster.folder / "scontrol").write_text(SCONTROL.replace("alpha", "127.0.0.1"))
    names = ("NBHELPERS_CACHE", "HOME", "PYTHONPATH", "HF_HUB_OFFLINE", "NBHELPERS_SPEEDS")
    env = {name: os.environ[name] for name in names if name in os.environ}
    job = cluster.start(**env, OMP_NUM_THREADS="1")
    out, error = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 0 and run.status == "finished", out + error
    data, expected = nb.follow(run).data, one_node.result().data
    assert data["training"]["resumed_from"] >= 1
    assert files_of(run) == files_of(one_node)
    assert data["scores"] == expected["scores"] and data["plan"]["num_nodes"] == 2
    assert {e["rank"] for e in run.events() if e["type"] == "checkpoint"} == {0}
    assert {e["rank"] for e in run.events() if e["type"] == "start"} == {0, 1}


def test_accelerate_itself_starts_all_ranks_from_the_lines(tmp_path, monkeypatch):
    """The lines for GPUs, with a worker that needs none: two nodes of two processes each.

    A default configuration of accelerate's own, which would change everything, is not read.
    """
    home = tmp_path / "home" / "accelerate"
    home.mkdir(parents=True)
    hostile = {"distributed_type": "FSDP", "mixed_precision": "fp8", "num_machines": 9}
    hostile |= {"compute_environment": "AMAZON_SAGEMAKER", "debug": True, "num_processes": 72}
    (home / "default_config.yaml").write_text(json.dumps(hostile))
    monkeypatch.setenv("HF_HOME", str(home.parent))
    monkeypatch.setenv("NBHELPERS_WORKER_MODULE", "tests.attended_worker")
    launcher = prepare(
        tmp_path / "runs", gpus_per_node=2, main_address="127.0.0.1", port=free_port()
    )
    assert finish_nodes(start_nodes(launcher, FAKE_WORKER="meet")) == [0, 0]
    run = launcher.run
    assert run.status == "finished"
    starts = [event for event in run.events() if event["type"] == "start"]
    assert sorted(e["rank"] for e in starts) == [0, 1, 2, 3]
    assert {e["world_size"] for e in starts} == {4}
