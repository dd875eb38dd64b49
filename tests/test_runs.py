"""Promise: a run's folder alone tells its status, on this machine and elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nbhelpers.common import processes
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.runs import identity
from nbhelpers.runs.events import EventWriter
from nbhelpers.runs.run import HEARTBEAT_LIMIT_S, Run, RunResult, list_runs, open_run, write_json

DEAD = {"pid": 2**22 + 1, "start_time": "1"}  # above Linux's largest pid


def make_run(
    root: Path,
    *,
    process: dict[str, Any] | None = None,
    end: dict[str, Any] | None = None,
    events: tuple[str, ...] = (),
    result: bool = False,
) -> Run:
    run = Run(root / "clones-smoke-0123456789")
    run.path.mkdir(parents=True)
    write_json(run.record_path, {"run_id": run.id, "preset": {"name": "smoke"}})
    if process is not None:
        write_json(run.process_path, processes.machine() | {"launch_id": "one"} | process)
    if end is not None:
        facts = {"returncode": 0, "signal": None, "reason": "finished", "escalated": False}
        with EventWriter(run.path) as launcher:
            launcher.write("exit", **({"launch_id": "one"} | facts | end))
    with EventWriter(run.path, 0) as writer:
        for type in events:
            writer.write(type)
    if result:
        write_json(run.result_path, {"run_id": run.id, "scores": {}})
    return run


def living() -> dict[str, Any]:
    return {"pid": os.getpid(), "start_time": processes.start_time(os.getpid())}


STOPPED = {"reason": "stop requested"}
FAILED = {"reason": "failed", "returncode": 1}
KILLED = {"reason": "killed", "returncode": -9, "signal": 9}
FORCED = STOPPED | {"returncode": -9, "signal": 9, "escalated": True}


@pytest.mark.parametrize(
    ("end", "events", "result", "status"),
    [
        ({}, ("end",), True, "finished"),
        (None, ("end",), True, "finished"),
        (STOPPED, ("end",), True, "finished"),
        (KILLED, ("end",), True, "finished"),
        (FAILED, ("end", "error"), True, "failed"),
        (FAILED, ("error",), False, "failed"),
        (FAILED, (), False, "failed"),
        ({}, (), False, "failed"),
        (KILLED, (), False, "failed"),
        (KILLED, ("error",), False, "failed"),
        (STOPPED, ("stopped",), False, "stopped"),
        ({"reason": "owner ended"}, ("stopped",), False, "stopped"),
        ({}, ("stopped",), False, "stopped"),
        (FORCED, (), False, "stopped"),
        (FORCED, ("error",), False, "stopped"),
        (STOPPED | {"returncode": 12}, ("error",), False, "failed"),
        (None, (), False, "dead"),
        (None, ("stopped",), False, "stopped"),
        (None, ("error",), False, "failed"),
        ({"reason": "launcher killed", "returncode": None}, (), False, "dead"),
        ({"launch_id": "an earlier one"}, (), False, "dead"),
    ],
)
def test_status_of_an_ended_run(
    tmp_path: Path, end: dict | None, events: tuple, result: bool, status: str
) -> None:
    run = make_run(tmp_path, process=DEAD, end=end, events=events, result=result)
    assert run.status == status


def test_a_folder_without_a_launch_is_new_or_finished(tmp_path: Path) -> None:
    assert make_run(tmp_path / "a").status == "new"
    assert make_run(tmp_path / "b", result=True).status == "finished"


@pytest.mark.parametrize(
    ("process", "status"),
    [
        ({}, "running"),
        ({"start_time": "17"}, "dead"),  # another process has its pid
        ({"boot_id": "an earlier boot"}, "dead"),
    ],
)
def test_the_supervisor_itself_must_live(tmp_path: Path, process: dict, status: str) -> None:
    assert make_run(tmp_path, process=living() | process, events=("step",)).status == status


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = processes.start_time(child.pid)
    assert processes.is_alive(child.pid, started)
    child.stdin.close()
    deadline = time.monotonic() + 120
    while processes.is_alive(child.pid, started) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not processes.is_alive(child.pid, started)  # ended, and not yet waited for
    child.wait()


@pytest.mark.parametrize("key", ["host", "pid_namespace"])
@pytest.mark.parametrize(("age_s", "status"), [(0, "running"), (HEARTBEAT_LIMIT_S + 9, "dead")])
def test_elsewhere_the_heartbeat_decides(
    tmp_path: Path, key: str, age_s: float, status: str
) -> None:
    run = make_run(tmp_path, process=living() | {key: "elsewhere"})
    os.utime(run.process_path, (time.time() - age_s,) * 2)
    assert run.status == status


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"run_id": "x"'])
def test_a_torn_result_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    run = make_run(tmp_path, process=DEAD, end={}, events=("end",))
    run.result_path.write_text(text)
    with pytest.raises(DataError, match=r"result\.json: (is no JSON|should be)") as caught:
        run.result()
    assert "delete this file" in caught.value.fix


@pytest.mark.parametrize("status", ["finished", "new"])
def test_stopping_what_does_not_run_changes_nothing(tmp_path: Path, status: str) -> None:
    run = make_run(tmp_path, result=status == "finished")
    before = sorted(path.name for path in run.path.iterdir())
    assert run.stop() == status == run.stop()
    assert sorted(path.name for path in run.path.iterdir()) == before


def test_the_log_tail_is_of_the_latest_launch(tmp_path: Path) -> None:
    run = make_run(tmp_path, process=DEAD | {"offsets": {"rank0.log": 4, "launcher.log": 0}})
    run.log_path(0).write_text("old\n")
    run.launcher_log_path.write_text("no module named x\n")
    assert run.log_tail() == "no module named x"  # the rank wrote nothing this time
    run.log_path(0).write_text("old\n" + "".join(f"{i}\n" for i in range(30)))
    assert run.log_tail(lines=2) == "28\n29"


def test_output_of_c_code_and_children_goes_to_the_rank_log(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    code = (
        "import os, sys; from nbhelpers.runs.run import redirect_output\n"
        "redirect_output(sys.argv[1], 3); print('python'); os.write(2, b'c code\\n')\n"
        "os.system('echo child')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run.path)], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert run.log_path(3).read_text().splitlines() == ["python", "c code", "child"]


def test_a_run_is_opened_by_id_and_by_folder(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert open_run(run.id, tmp_path) == open_run(run.path) == run


def test_a_mistyped_run_names_the_nearest(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with pytest.raises(ConfigError, match=f"Did you mean {run.id}"):
        open_run(run.id[:-1] + "x", tmp_path)
    with pytest.raises(ConfigError, match=f"The newest runs here: {run.id}"):
        open_run("nothing", tmp_path)
    with pytest.raises(ConfigError, match="--run-dir"):
        open_run("clones", tmp_path / "empty")


def test_runs_are_listed_newest_first(tmp_path: Path) -> None:
    old = make_run(tmp_path, result=True)
    aside = Run(old.path.rename(tmp_path / f"{old.id}~1"))
    os.utime(aside.record_path, (1, 1))
    new = make_run(tmp_path)
    (tmp_path / "no run").mkdir()
    table = list_runs(tmp_path)
    assert list(table) == [new, aside] and len(table) == 2
    assert [row["status"] for row in table.rows()] == ["new", "finished"]
    write_json(table[0].record_path, {"mode": "evaluate", "preset": {"name": "smoke"}})
    assert [row["preset"] for row in list_runs(tmp_path).rows()] == ["smoke, evaluate", "smoke"]
    assert aside.id in table._repr_html_() and aside.id in repr(table)
    assert "no runs" in repr(list_runs(tmp_path / "none"))


def test_tables_escape_what_they_show(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_json(run.record_path, {"preset": {"name": "<b>"}, "command": "<script>"})
    write_json(run.result_path, {"run_id": "<i>"})
    assert "<script>" not in run._repr_html_()
    assert "<b>" not in list_runs(tmp_path)._repr_html_()
    assert "<i>" not in run.result()._repr_html_()


def test_a_result_has_names_for_its_parts(tmp_path: Path) -> None:
    data = {"scores": {"test": {"orders": {"given": {"f1": 0.5}}}}, "timing": {"total_s": 9}}
    write_json(tmp_path / "result.json", data)
    result = RunResult.from_path(tmp_path)
    assert (result.f1, result.timing["total_s"], result.memory) == (0.5, 9, {})
    assert repr(result) == f"RunResult({tmp_path.name}, test F1 0.500)"


SETTINGS = {"model": "org/Model-1", "data": "smoke", "seed": 3}


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({}, True),
        ({"settings": dict(reversed(SETTINGS.items()))}, True),
        ({"settings": SETTINGS | {"seed": 4}}, False),
        ({"mode": "evaluate"}, False),
        ({"checkpoint": "/c"}, False),
        ({"stamp": "other data"}, False),
    ],
)
def test_equal_runs_have_equal_ids(change: dict[str, Any], is_same: bool) -> None:
    base = identity.run_id("clones", SETTINGS)
    given = dict(change)
    other = identity.run_id("clones", given.pop("settings", SETTINGS), **given)
    assert (base == other) is is_same and base.startswith("clones-model-1-")


def test_a_setting_that_came_later_changes_an_id_where_it_is_not_at_its_default() -> None:
    earlier = identity.run_id("finetune", SETTINGS)
    ids = [identity.run_id("finetune", SETTINGS | {"engine": e}) for e in ("nbhelpers", "trl")]
    assert ids[0] == earlier != ids[1]


def test_a_very_long_model_name_gives_a_short_id() -> None:
    assert len(identity.run_id("clones", {"model": "x/" + "y" * 400})) < 80


def test_the_data_stamp_follows_contents_not_times(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text("one")
    first = identity.folder_stamp(str(tmp_path))
    os.utime(tmp_path / "data.jsonl", (1, 1))
    assert identity.folder_stamp(str(tmp_path)) == first != ""
    (tmp_path / "data.jsonl").write_text("two")
    assert identity.folder_stamp(str(tmp_path)) != first
    assert identity.folder_stamp("org/name", None, "smoke", "x" * 5000) == ""


def test_the_commit_is_that_of_the_checkout_that_holds_the_package(tmp_path: Path) -> None:
    assert identity.git_commit(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert identity.git_commit(tmp_path) is None  # no commit yet
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    assert re.fullmatch("[0-9a-f]{40}", identity.git_commit(tmp_path) or "")
    (tmp_path / "inside").mkdir()
    assert identity.git_commit(tmp_path / "inside") is None  # somebody's repository around it


def test_a_json_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"old": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {("a", "key"): 1})
    assert (tmp_path / "a.json").read_text() == '{\n "old": 1\n}\n'
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
