"""Promise: one configuration is one run; it outlives its launcher, ends whole, leaves no orphan."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fake_launch
import pytest
from fake_launch import Hardware, folder_of_runs, launch_fake, survivors, wait_for, wait_for_event

import nbhelpers as nb
from nbhelpers.common import processes
from nbhelpers.errors import BudgetError, ConfigError, DataError, HardwareError, LaunchError
from nbhelpers.hardware.detection import Hardware as RealHardware
from nbhelpers.hardware.machine import find_owner
from nbhelpers.runs import starting
from nbhelpers.runs.run import Run, list_runs, open_run

pytestmark = pytest.mark.slow  # each test starts processes
linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from folder_of_runs(tmp_path, monkeypatch, fake_launch.ENVIRONMENT)


@pytest.fixture
def mode(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Set the fake worker's mode with `mode.setenv("FAKE_WORKER", …)`."""
    monkeypatch.setenv("FAKE_WORKER", "slow")
    return monkeypatch


def until_over(run: Run) -> str:
    wait_for(lambda: run.status != "running")
    return run.status


def launches(run: Run) -> int:
    return sum(event["type"] == "launched" for event in run.events())


def test_a_finished_run_is_returned_and_not_started_again(runs: Path, capsys) -> None:
    run = launch_fake(runs)
    assert until_over(run) == "finished"
    assert launch_fake(runs) == run and launches(run) == 1
    assert "is finished: its result is used" in capsys.readouterr().out
    exit_event = run.exit_event()
    assert (exit_event["reason"], exit_event["returncode"]) == ("finished", 0)


def test_the_record_says_what_was_asked(runs: Path) -> None:
    run = launch_fake(runs, seed=5)
    record = run.record
    assert record["run_id"] == run.id and record["mode"] == "train" and record["schema"] == 1
    assert record["command"] == "nbhelpers train clones --preset smoke -o seed=5"
    assert record["preset"]["settings"]["seed"] == 5 and record["plan"]["world_size"] == 1
    assert set(record["versions"]) == {"python", "nbhelpers"}


def test_a_running_run_is_attached_to(runs: Path, mode, capsys) -> None:
    run = launch_fake(runs)
    assert launch_fake(runs, world_size=2) == run and launches(run) == 1
    assert "re-attached" in capsys.readouterr().out
    assert open_run(run.id, runs).status == "running"


def test_two_launches_at_once_start_one_worker(runs: Path, mode) -> None:
    command = [sys.executable, fake_launch.__file__, str(runs)]
    all_three = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    texts = ["".join(iter(process.stdout.readline, "launched\n")) for process in all_three]
    assert sum("re-attached" in text for text in texts) == 2
    run = list_runs(runs)[0]
    wait_for_event(run, "step")
    for process in all_three:
        process.kill()
        process.wait()
    assert launches(run) == 1 and len(list_runs(runs)) == 1
    assert sum(event["type"] == "start" for event in run.events()) == 1


def test_a_run_outlives_the_process_that_launched_it(runs: Path, mode) -> None:
    launcher = subprocess.Popen(
        [sys.executable, fake_launch.__file__, str(runs)],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    run = wait_for(lambda: next(iter(list_runs(runs)), None))
    wait_for_event(run, "step")
    os.killpg(launcher.pid, signal.SIGKILL)  # the whole group, as a dying kernel's server does
    launcher.wait()
    seen = len(run.events())
    wait_for(lambda: len(run.events()) > seen + 3)
    code = f"from nbhelpers.runs.run import open_run; print(open_run({str(run.path)!r}).stop())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert other.stdout.strip() == "stopped", other.stderr
    wait_for(lambda: not survivors(run))


def test_a_stopped_run_goes_on_where_it_was(runs: Path, mode) -> None:
    run = launch_fake(runs)
    wait_for_event(run, "step")
    assert run.stop() == "stopped" == run.stop()
    stopped = wait_for_event(run, "stopped")
    assert run.exit_event()["reason"] == "stop requested"
    assert launch_fake(runs) == run and run.status == "running"
    first = wait_for(lambda: [e for e in run.events() if e["type"] == "step"][stopped["step"] :])
    assert first[0]["step"] == stopped["step"] + 1
    assert launches(run) == 2 and run.stop() == "stopped"


@linux
@pytest.mark.parametrize("victim", ["supervisor", "guard", "worker"])
def test_a_killed_process_takes_the_whole_tree_down(runs: Path, mode, victim: str) -> None:
    mode.setenv("FAKE_WORKER", "grandchild")
    run = launch_fake(runs)
    children = wait_for_event(run, "children")["pids"]
    assert all(processes.start_time(pid) for pid in children)
    names = {"supervisor": run.process["pid"], "guard": run.process["guard_pid"]}
    names["worker"] = wait_for_event(run, "launched")["pid"]
    os.kill(names[victim], signal.SIGKILL)
    if victim == "guard":  # the supervisor goes on without it
        assert run.stop() == "stopped"
    wait_for(lambda: not survivors(run) and not any(map(processes.start_time, children)))
    assert run.status == {"supervisor": "dead", "guard": "stopped", "worker": "failed"}[victim]
    ended = run.exit_event()
    reasons = {"supervisor": "launcher killed", "worker": "killed", "guard": "stop requested"}
    assert ended["reason"] == reasons[victim]
    assert ended["signal"] == (None if victim == "guard" else signal.SIGKILL)


@linux
def test_the_worker_dies_even_without_guard_and_supervisor(runs: Path, mode) -> None:
    run = launch_fake(runs)
    worker = wait_for_event(run, "start")["pid"]
    for name in ("guard_pid", "pid"):
        os.kill(run.process[name], signal.SIGKILL)
    wait_for(lambda: processes.start_time(worker) is None)
    assert run.status == "dead" and run.exit_event() is None
    assert launch_fake(runs) == run and run.status == "running"


@linux
def test_what_a_worker_leaves_behind_is_ended(runs: Path, mode) -> None:
    mode.setenv("FAKE_WORKER", "leave_child")
    run = launch_fake(runs)
    assert until_over(run) == "finished"
    assert run.exit_event()["processes_ended"] == 1
    wait_for(lambda: not survivors(run))


@linux
def test_a_worker_that_does_not_listen_is_ended_by_force(runs: Path, mode) -> None:
    mode.setenv("FAKE_WORKER", "deaf")
    mode.setenv("NBHELPERS_STOP_GRACE_S", "0.3")
    run = launch_fake(runs)
    wait_for_event(run, "progress")
    assert run.stop(0.1) == "stopped"
    assert run.exit_event()["escalated"] and run.exit_event()["signal"] == signal.SIGKILL
    wait_for(lambda: not survivors(run))


@pytest.mark.parametrize("way", ["killed", "ended", "variable"])
def test_the_end_of_the_owner_stops_the_run(runs: Path, mode, way: str) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    if way == "variable":
        mode.setenv("NBHELPERS_OWNER_PID", str(owner.pid))
    run = launch_fake(runs, owner_pid=None if way == "variable" else owner.pid)
    assert run.process["owner_pid"] == owner.pid
    wait_for_event(run, "step")
    owner.kill() if way == "killed" else owner.stdin.close()
    assert until_over(run) == "stopped"
    assert run.exit_event()["reason"] == "owner ended" and wait_for_event(run, "stopped")
    owner.wait()


def test_an_owner_that_is_gone_already_is_an_error(runs: Path) -> None:
    with pytest.raises(LaunchError, match=r"owner .* is gone"):
        launch_fake(runs, owner_pid=2**22 + 1)


@linux
def test_a_headless_runner_above_a_process_is_its_owner(tmp_path: Path, runs: Path) -> None:
    code = "from nbhelpers.hardware.machine import find_owner; print(find_owner())"
    script = tmp_path / "papermill"
    child = f"subprocess.run([sys.executable, '-c', {code!r}])"
    script.write_text(f"import os, subprocess, sys; print(os.getpid(), flush=True); {child}")
    words = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    outer, found = words.stdout.split()
    assert found == outer and find_owner() is None


def test_a_terminated_supervisor_stops_the_run_cleanly(runs: Path, mode) -> None:
    run = launch_fake(runs)
    wait_for_event(run, "step")
    os.kill(run.process["pid"], signal.SIGHUP)  # a logout: nothing happens
    os.kill(run.process["guard_pid"], signal.SIGHUP)
    seen = len(run.events())
    wait_for(lambda: len(run.events()) > seen + 2)
    os.kill(run.process["guard_pid"], signal.SIGTERM)  # handed on to the supervisor
    assert until_over(run) == "stopped"
    assert run.exit_event()["reason"] == "launcher signalled"


@pytest.mark.parametrize(
    ("there", "here", "is_sibling"),
    [
        ({"per_device_train_batch_size": 8}, {"per_device_train_batch_size": 4}, True),
        ({"num_gpus": 1}, {"num_gpus": 2, "gradient_checkpointing": True}, True),
        ({"learning_rate": 1e-4}, {"learning_rate": 2e-4}, False),
        ({"num_gpus": 1, "seq_len": 64}, {"num_gpus": 2, "seq_len": 32}, False),
    ],
)
@pytest.mark.parametrize("way", ["named", "resume", "headless", "fresh", "own checkpoint"])
def test_a_dead_run_with_another_split_is_named_and_goes_on(
    runs: Path, monkeypatch, capsys, there: dict, here: dict, is_sibling: bool, way: str
) -> None:
    monkeypatch.setattr(starting, "_start", lambda run, _: None)

    def begun(settings: dict[str, Any], **options: Any) -> Run:
        preset = fake_launch.Preset({"model": "smoke", "data": "smoke", "seed": 0, **settings})
        options |= {"budget": None, "hardware": Hardware(), "run_dir": runs}
        return starting.launch(preset, fake_launch.Plan(), **options)

    def save(run: Run, step: int) -> None:
        (folder := run.checkpoints_path / f"step-{step:08d}").mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")

    dead = begun(there)
    save(dead, 120)
    (dead.path / "process.json").write_text('{"pid": 1, "launch_id": "x", "host": "elsewhere"}')
    os.utime(dead.process_path, (0, 0))
    assert dead.status == "dead"
    if way == "own checkpoint":
        save(Run(runs / begun(here).id), 300)
    capsys.readouterr()
    monkeypatch.setenv("NBHELPERS_FRESH", "0" if way == "headless" else "")
    run = begun(here, fresh=way == "fresh", resume=True if way == "resume" else None)
    text = capsys.readouterr().out
    names_it = is_sibling and way not in ("fresh", "own checkpoint")
    assert (f"{dead.id} (dead after step 120) is the same experiment" in text) is names_it
    goes_on = names_it and way in ("resume", "headless")
    assert (starting.newest_step(run) == 120) is goes_on
    assert ("continues" in run.record) is goes_on
    assert ("in its split alone" in text) is (way == "resume" and not is_sibling)
    if names_it:
        assert all(f"{name} {there.get(name)} -> {value}" in text for name, value in here.items())
        assert ("not bit-equal" if goes_on else "--resume") in text


def test_fresh_keeps_the_old_run_aside(runs: Path, capsys) -> None:
    run = launch_fake(runs)
    assert until_over(run) == "finished"
    for number in (1, 2):
        assert until_over(launch_fake(runs, fresh=True)) == "finished"
        assert open_run(f"{run.id}~{number}", runs).status == "finished"
    assert launches(run) == 1 and len(list_runs(runs)) == 3
    assert "is kept as" in capsys.readouterr().out


def test_fresh_is_refused_while_the_run_runs(runs: Path, mode) -> None:
    run = launch_fake(runs)
    with pytest.raises(LaunchError, match="nbhelpers stop"):
        launch_fake(runs, fresh=True)
    assert run.status == "running" and len(list_runs(runs)) == 1


def test_a_headless_runner_gets_a_new_run_once_and_its_name(runs: Path, monkeypatch) -> None:
    run = launch_fake(runs)
    assert until_over(run) == "finished"
    names = runs / "names.txt"
    monkeypatch.setenv("NBHELPERS_FRESH", "1")
    monkeypatch.setenv("NBHELPERS_LAUNCHED", str(names))
    assert until_over(launch_fake(runs)) == "finished" and len(list_runs(runs)) == 2
    launch_fake(runs)
    assert len(list_runs(runs)) == 2 and names.read_text() == f"{run.path}\n" * 2


@pytest.mark.parametrize(
    ("text", "kind"),
    [("", DataError), ("{torn", DataError), ('{"run_id": "another"}', LaunchError)],
)
def test_a_folder_that_is_not_this_run_is_refused(runs: Path, text: str, kind: Any) -> None:
    run = launch_fake(runs)
    until_over(run)
    run.record_path.write_text(text)
    with pytest.raises(kind, match="fresh=True"):
        launch_fake(runs)
    assert until_over(launch_fake(runs, fresh=True)) == "finished"


def test_a_file_in_the_place_of_run_dir_is_explained(runs: Path) -> None:
    runs.write_text("a file")
    for place in (runs, runs / "below"):
        with pytest.raises(LaunchError, match="Fix: Set run_dir to a folder"):
            launch_fake(place)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "not permitted"),
        (errno.ENAMETOOLONG, "too long"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_folder_that_cannot_be_written_is_explained(
    runs: Path, monkeypatch, number: int, words: str
) -> None:
    def fail(path: Path, data: dict) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("nbhelpers.common.json_models.write_json", fail)
    with pytest.raises(LaunchError, match=words) as caught:
        launch_fake(runs)
    assert "run_dir" in caught.value.fix


def test_a_supervisor_that_cannot_start_says_why(runs: Path, monkeypatch) -> None:
    monkeypatch.setattr(starting, "LOG_START_VARIABLE", "PYTHONHOME")
    with pytest.raises(LaunchError, match="did not start") as caught:
        launch_fake(runs)
    assert "Fatal Python error" in caught.value.details


def test_planned_hardware_cannot_run(runs: Path) -> None:
    with pytest.raises(HardwareError, match="detect_hardware"):
        launch_fake(runs, hardware=Hardware(is_planned=True))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"job_mode": "evaluate"}, "needs a checkpoint"),
        ({"job_mode": "evaluate", "checkpoint": "none.bin"}, "There is no checkpoint"),
        ({"job_mode": "export"}, "unknown"),
        ({"checkpoint": "x"}, "takes no checkpoint"),
    ],
)
def test_a_mode_and_its_checkpoint_belong_together(runs: Path, options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        launch_fake(runs, **options)
    assert not runs.exists()


def test_an_evaluation_is_a_run_of_its_own(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_text("weights")
    trained = launch_fake(runs)
    scored = launch_fake(runs, job_mode="evaluate", checkpoint=tmp_path / "model.bin")
    assert scored.id != trained.id and scored.record["mode"] == "evaluate"
    assert scored.record["checkpoint"] == str(tmp_path / "model.bin")


@dataclass
class Budget:
    verdict: str = "does not fit"

    def to_dict(self) -> dict[str, str]:
        return {"verdict": self.verdict}


def test_what_does_not_fit_is_not_started_unless_forced(runs: Path, monkeypatch) -> None:
    def require_fit(budget: Budget) -> None:
        raise BudgetError("too large", fix="halve the batch")

    memory = pytest.importorskip("nbhelpers.budget.memory")
    monkeypatch.setattr(memory, "require_fit", require_fit)
    with pytest.raises(BudgetError):
        launch_fake(runs, budget=Budget())
    assert len(list_runs(runs)) == 0
    assert launch_fake(runs, budget=Budget("tight")).record["budget"] == {"verdict": "tight"}
    assert launch_fake(runs, seed=1, budget=Budget(), force=True).status != "new"


@pytest.mark.parametrize(
    ("platform", "run_dir", "words"),
    [
        ("colab", "/content/runs", "/content/drive/MyDrive/runs"),
        ("colab", "/content/drive/MyDrive/runs", ""),
        ("kaggle", "/kaggle/working/runs", "only by 'Save Version'."),
        ("kaggle", "/tmp/runs", "is lost in any case"),
        ("jupyter", "/content/runs", ""),
    ],
)
def test_a_disk_that_vanishes_is_named(platform: str, run_dir: str, words: str) -> None:
    text = " ".join(starting.lost_disk(platform, Path(run_dir))).strip()
    assert words in text if words else not text


@linux
@pytest.mark.slow
@pytest.mark.parametrize("victim", ["rank", "launcher"])
def test_a_killed_rank_or_launcher_takes_the_other_ranks_down(
    runs: Path, mode, victim: str
) -> None:
    pytest.importorskip("torch")
    run = launch_fake(runs, world_size=2)
    wait_for(lambda: sum(e["type"] == "start" for e in run.events()) == 2)
    ranks = {e["rank"]: e["pid"] for e in run.events() if e["type"] == "start"}
    os.kill(ranks[1] if victim == "rank" else wait_for_event(run, "launched")["pid"], 9)
    assert until_over(run) == "failed"
    ended = run.exit_event()
    assert (ended["signal"], ended["rank"]) == (9, 1 if victim == "rank" else None)
    wait_for(lambda: not survivors(run) and not any(map(processes.start_time, ranks.values())))


# What this machine cannot carry is refused before anything starts.


@pytest.fixture
def no_gpu() -> RealHardware:
    found = nb.detect_hardware()
    return replace(found, gpus=(), reason="no NVIDIA driver", ram_total_bytes=8 * 2**30)


def launch_real(name: str, hardware: RealHardware, run_dir: Path, **overrides: object) -> None:
    preset = nb.load_preset("clones", name, hardware=hardware, overrides=overrides)
    plan = nb.plan_batch(preset, hardware)
    budget = nb.predict_memory(preset, plan, hardware)
    nb.launch(preset, plan, budget, hardware=hardware, run_dir=run_dir)


@pytest.mark.parametrize("name", ["t4", "2x-rtx6000ada", "seed-legacy"])
def test_a_preset_for_a_gpu_is_refused_without_one(name: str, no_gpu: RealHardware, tmp_path: Path):
    with pytest.raises(HardwareError, match="no GPU here: no NVIDIA driver") as error:
        launch_real(name, no_gpu, tmp_path / "runs")
    assert "smoke" in error.value.fix and not (tmp_path / "runs").exists()


def test_more_tensors_than_memory_are_refused_on_a_cpu(no_gpu: RealHardware, tmp_path: Path):
    small = replace(no_gpu, ram_total_bytes=2**30 // 10)
    with pytest.raises(BudgetError, match=r"this machine has 0\.1 GiB"):
        launch_real("smoke", small, tmp_path / "runs")
    assert not list(tmp_path.glob("runs/*/process.json"))
