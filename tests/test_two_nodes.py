"""Promise: two nodes give what one gives, each file is written once, and a lost node is named."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nbhelpers as nb
from nbhelpers.common.processes import free_port
from nbhelpers.errors import NbhelpersError
from nbhelpers.runs.launcher import NodeLauncher, SlurmOptions, prepare_nodes
from nbhelpers.runs.run import Run
from tests.node_cluster import SCONTROL, Cluster, prepare
from tests.real_run import TINY, finish, start, wait_for_step

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow


def start_nodes(launcher: NodeLauncher, **env: str) -> list[subprocess.Popen[bytes]]:
    """Both lines, each in a shell of its own."""
    env = os.environ | {"PYTHONPATH": str(ROOT)} | env
    logs = [(launcher.run.path / f"node{rank}.log").open("ab") for rank in (0, 1)]
    lines = [launcher.line(rank) for rank in (0, 1)]
    return [
        subprocess.Popen(["bash", "-c", line], env=env, stdout=log, stderr=log)
        for line, log in zip(lines, logs, strict=True)
    ]


def two_cpu_nodes(folder: Path, monkeypatch: Any, **changes: Any) -> NodeLauncher:
    """The smallest real run, prepared for two nodes that are this machine."""
    monkeypatch.setenv("NBHELPERS_WORKER_MODULE", "tests.attended_worker")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return prepare_nodes(
        "clones",
        "smoke",
        num_nodes=2,
        gpus_per_node=1,
        overrides=TINY | changes,
        run_dir=folder,
        main_address="127.0.0.1",
        port=free_port(),
    )


def finish_nodes(nodes: list[subprocess.Popen[bytes]]) -> list[int]:
    return [node.wait(timeout=240) for node in nodes]


@pytest.fixture(scope="module")
def one_node(tmp_path_factory) -> Run:
    """The same run in two processes of one node."""
    run = start(tmp_path_factory.mktemp("one"), processes=2)
    finish(run)
    return run


def files_of(run: Run) -> dict[str, bytes]:
    """Everything that a job writes once: weights, states, predictions."""
    names = ["predictions.jsonl", "predictions.txt", "checkpoints/index.json"]
    found = {name: (run.path / name).read_bytes() for name in names}
    for path in sorted(run.checkpoints_path.glob("step-*/model.safetensors")):
        found[path.parent.name] = path.read_bytes()
    return found


def test_two_nodes_give_what_two_processes_of_one_node_give(one_node, tmp_path, monkeypatch):
    launcher = two_cpu_nodes(tmp_path, monkeypatch)
    assert launcher.run.id == one_node.id
    assert finish_nodes(start_nodes(launcher, ATTENDED="real")) == [0, 0]
    run = launcher.run
    assert run.status == "finished"
    found, expected = nb.follow(run).data, one_node.result().data
    assert files_of(run) == files_of(one_node)
    assert found["scores"] == expected["scores"] and found["plan"]["num_nodes"] == 2
    assert found["training"]["history"] == expected["training"]["history"]
    saved = [event["step"] for event in run.events() if event["type"] == "checkpoint"]
    assert saved == sorted(set(saved)) and len(saved) == 10
    assert {e["rank"] for e in run.events() if e["type"] == "checkpoint"} == {0}
    assert {e["rank"] for e in run.events() if e["type"] == "start"} == {0, 1}
    assert [path.name for path in run.path.glob("**/*.part")] == []
    assert nb.report(run.result(), show=False) is not None
    assert finish_nodes(start_nodes(launcher, ATTENDED="real")) == [0, 0]  # finished: left alone
    assert files_of(run) == files_of(one_node)


def test_accelerate_itself_starts_all_ranks_from_the_lines(tmp_path, monkeypatch):
    """The lines for GPUs, with a worker that needs none: two nodes of two processes each."""
    monkeypatch.setenv("NBHELPERS_WORKER_MODULE", "tests.attended_worker")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    launcher = prepare(tmp_path, gpus_per_node=2, main_address="127.0.0.1", port=free_port())
    assert finish_nodes(start_nodes(launcher, FAKE_WORKER="meet")) == [0, 0]
    run = launcher.run
    assert run.status == "finished"
    starts = [event for event in run.events() if event["type"] == "start"]
    assert sorted(e["rank"] for e in starts) == [0, 1, 2, 3]
    assert {e["world_size"] for e in starts} == {4}


def test_a_node_that_dies_is_named_and_its_line_again_continues(one_node, tmp_path, monkeypatch):
    launcher = two_cpu_nodes(tmp_path, monkeypatch)
    run = launcher.run
    nodes = start_nodes(launcher, ATTENDED="real")
    wait_for_step(run, 3)
    starts = [e for e in run.events() if e["type"] == "start" and e["rank"] == 1]
    os.kill(nodes[1].pid, signal.SIGKILL)
    os.kill(starts[-1]["pid"], signal.SIGKILL)
    assert finish_nodes(nodes)[0] != 0
    assert run.status == "failed"
    with pytest.raises(NbhelpersError, match=r"[rR]ank 1") as error:
        nb.follow(run)
    assert "last checkpoint" in error.value.fix
    assert finish_nodes(start_nodes(launcher, ATTENDED="real")) == [0, 0]
    assert nb.follow(run).data["training"]["resumed_from"] >= 1
    assert files_of(run) == files_of(one_node)


def test_a_second_start_of_a_node_disturbs_nothing(tmp_path, monkeypatch):
    launcher = two_cpu_nodes(tmp_path, monkeypatch, max_train_samples=400, epochs=4)
    run = launcher.run
    nodes = start_nodes(launcher, ATTENDED="real")
    wait_for_step(run, 2)
    second = subprocess.run(
        ["bash", "-c", launcher.line(1)],
        env=os.environ | {"ATTENDED": "real", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert second.returncode != 0
    assert "Rank 1" in second.stderr and "works already" in second.stderr
    assert run.status == "running" and not run.final_events("error")
    assert run.stop(timeout_s=60) == "stopped"
    assert finish_nodes(nodes) == [0, 0]


def test_the_script_runs_two_real_nodes(one_node, tmp_path, monkeypatch):
    launcher = two_cpu_nodes(tmp_path / "runs", monkeypatch)
    cluster = Cluster(tmp_path / "fakes", launcher, SlurmOptions())
    (cluster.folder / "torchrun").unlink()
    scontrol = SCONTROL.replace("alpha", "127.0.0.1").replace("beta", "localhost")
    (cluster.folder / "scontrol").write_text(scontrol)
    changes = {"PYTHONPATH": str(ROOT), "ATTENDED": "real", "HF_HUB_OFFLINE": "1"}
    with contextlib.suppress(KeyError):
        changes["NBHELPERS_CACHE"] = os.environ["NBHELPERS_CACHE"]
    changes |= {"HOME": os.environ.get("HOME", "/"), "OMP_NUM_THREADS": "1"}
    process = cluster.start(**changes)
    out, error = process.communicate(timeout=240)
    assert process.returncode == 0, out + error
    assert files_of(launcher.run) == files_of(one_node)
