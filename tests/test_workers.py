"""Promise: a worker is started by the right launcher, alone, in an environment of its own."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nbhelpers.common import files, processes
from nbhelpers.common import processes as workers
from nbhelpers.errors import LaunchError


@pytest.mark.parametrize("number", [None, errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_a_lock_keeps_others_out_also_without_flock(tmp_path: Path, monkeypatch, number) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "no locks here")

    if number is not None:
        monkeypatch.setattr("fcntl.flock", refuse)
    for _ in range(2):
        second = files.locked(tmp_path / ".lock", timeout_s=0.1)
        with (
            files.locked(tmp_path / ".lock"),
            pytest.raises(LaunchError, match="Another launch") as caught,
            second,
        ):
            pytest.fail("held twice")
        assert "Wait for the other launch" in caught.value.fix


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"world_size": 1, "use_gpu": True}, "python -m w run"),
        ({"world_size": 1, "use_gpu": False}, "python -m w run"),
        (
            {"world_size": 2, "use_gpu": False},
            "python -m torch.distributed.run --standalone --nproc-per-node 2 -m w run",
        ),
        (
            {"world_size": 4, "use_gpu": True},
            "python -m accelerate.commands.launch --multi_gpu --num_processes 4 --num_machines 1 "
            "--gpu_ids all --mixed_precision no --dynamo_backend no --main_process_port 77 "
            "-m w run",
        ),
    ],
)
def test_the_command_follows_the_plan(plan: dict, words: str) -> None:
    found = workers.worker_command(Path("run"), plan, python="python", module="w", port=77)
    assert " ".join(found) == words


def test_a_worker_does_not_inherit_another_launcher() -> None:
    base = {"RANK": "1", "WORLD_SIZE": "8", "MASTER_PORT": "1", "ACCELERATE_USE_FSDP": "true"}
    base |= {"ACCELERATE_MIXED_PRECISION": "fp16", "MPLBACKEND": "module://inline"}
    base |= {"NCCL_DEBUG": "INFO", "HF_TOKEN": "secret", "OMP_NUM_THREADS": "3"}
    env = workers.worker_environment(base, {"world_size": 2, "use_gpu": True}, cpu_count=8)
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT", "ACCELERATE_USE_FSDP"} & set(env)
    assert "ACCELERATE_MIXED_PRECISION" not in env and env["MPLBACKEND"] == "Agg"
    assert (env["NCCL_DEBUG"], env["HF_TOKEN"], env["OMP_NUM_THREADS"]) == ("INFO", "secret", "3")
    assert "CUDA_VISIBLE_DEVICES" not in env and env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize(("size", "cpus", "threads"), [(1, 8, "8"), (3, 8, "2"), (4, 2, "1")])
def test_cpus_are_shared_between_the_ranks(size: int, cpus: int, threads: str) -> None:
    env = workers.worker_environment({}, {"world_size": size, "use_gpu": False}, cpu_count=cpus)
    assert env["OMP_NUM_THREADS"] == threads
    assert (env["CUDA_VISIBLE_DEVICES"], env["ACCELERATE_USE_CPU"]) == ("", "true")


REPORT = """
Failures:
[1]:
  rank      : {0[0]} (local_rank: 0)
  exitcode  : {0[1]} (pid: 63)  (SIGTERM)
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01
  rank      : {1[0]} (local_rank: 1)
  exitcode  : {1[1]} (pid: 64)
"""


@pytest.mark.parametrize(
    ("other", "root", "found"),
    [
        ((0, -15), (1, -9), (1, -9)),
        ((1, -9), (0, 1), (1, -9)),  # rank 0 fails because it lost rank 1
        ((1, -9), (0, -6), (1, -9)),
        ((0, -15), (1, 17), (1, 17)),
        ((0, 1), (1, -11), (1, -11)),
    ],
)
def test_the_rank_that_failed_first_is_found_in_the_report(other, root, found) -> None:
    assert workers.first_failure(REPORT.format(other, root)) == found


def test_a_log_without_a_report_names_no_rank() -> None:
    assert workers.first_failure("rank : 1\nexitcode : none") is None


def test_a_child_imports_this_package_and_nothing_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "datasets.py").write_text("raise SystemExit('the folder came first')")
    code = "import nbhelpers, importlib.util as u; f = u.find_spec('datasets')\n"
    code += "print(nbhelpers.__file__, f and f.origin, sep='\\n')"
    env = workers.with_package({"PATH": os.environ["PATH"]})
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    package, datasets = done.stdout.splitlines()
    assert Path(package).parent == Path(workers.__file__).parents[1]
    assert not datasets.startswith(str(tmp_path))


WATCHED = """
import os, sys, time
from nbhelpers.common import processes
processes._prctl = lambda *_: False
assert processes.die_with_parent()
sys.stdout.write("ready\\n"); sys.stdout.flush()
time.sleep(600)
"""


def test_without_help_from_the_system_a_worker_still_ends_with_its_supervisor() -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = f"{supervisor.pid}:{processes.start_time(supervisor.pid)}"
    worker = subprocess.Popen(
        [sys.executable, "-c", WATCHED],
        env=os.environ | {processes.SUPERVISOR_VARIABLE: name},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert worker.stdout.readline() == b"ready\n"
    supervisor.kill()
    supervisor.wait()
    assert worker.wait(300) == -signal.SIGKILL


def test_a_worker_that_is_run_by_hand_is_not_tied_to_anything(monkeypatch) -> None:
    monkeypatch.delenv(processes.SUPERVISOR_VARIABLE, raising=False)
    assert processes.die_with_parent() is False


@pytest.mark.parametrize("platform", [sys.platform, "darwin"])
def test_a_process_is_a_pid_with_its_start_time(monkeypatch, platform) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(processes.sys, "platform", platform)
    started = processes.start_time(child.pid)
    assert processes.is_alive(child.pid, started)
    assert child.pid in processes.descendants(os.getpid())
    assert processes.ancestors(child.pid)[0] == os.getpid()
    assert "input()" in " ".join(processes.arguments(child.pid))
    child.kill()
    child.wait()
    assert not processes.is_alive(child.pid, started)
