"""A worker without torch: it behaves, or misbehaves, as the variable FAKE_WORKER says.

Started by the supervisor in the real worker's place through NBHELPERS_WORKER_MODULE=fake_worker.
Modes: finish, meet (finish once all ranks have started), slow (steps until the stop file), error,
crash, exit17, hang, oom, sigkill, deaf (ignores the stop file and SIGTERM), grandchild (slow, with
a child in a session of its own), leave_child (finish, and leave such a child), silent (hangs before
its first event), import_error.
FAKE_RANK names the rank that misbehaves; the others are slow.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from nbhelpers.common.processes import die_with_parent
from nbhelpers.runs.events import EventWriter
from nbhelpers.runs.run import Run, redirect_output, write_json

STEPS, STEP_S = 100_000, 0.05  # `slow` outlasts every test


def main(folder: str) -> int:
    die_with_parent()
    run, rank = Run(Path(folder)), int(os.environ.get("RANK", "0"))
    mode = os.environ.get("FAKE_WORKER", "finish")
    if mode == "import_error":
        raise ImportError("No module named 'a_missing_package'")
    redirect_output(run, rank)
    if rank != int(os.environ.get("FAKE_RANK", rank)):
        mode = "slow"
    with EventWriter(run.path, rank) as writer:
        sys.stdout.write(f"worker of rank {rank} in mode {mode}\n")
        if mode == "silent":
            time.sleep(600)
        size = int(os.environ.get("WORLD_SIZE", "1"))
        writer.write("start", rank=rank, world_size=size, device="cpu", pid=os.getpid())
        writer.write("phase", name="train")
        return MODES[mode](run, writer)


def finish(run: Run, writer: EventWriter) -> int:
    for step in range(1, 11):
        _step(writer, step, 10)
    writer.write("warning", message="this is a <fake> worker")
    if writer.rank == 0:
        write_json(run.result_path, {"schema": 1, "run_id": run.id, "scores": {}})
    writer.write("end")
    return 0


def meet(run: Run, writer: EventWriter) -> int:
    """Finish once every rank has started: real ranks wait for each other before they work."""
    size, until = int(os.environ.get("WORLD_SIZE", "1")), time.monotonic() + 300
    while time.monotonic() < until:
        started = {event["rank"] for event in run.events() if event["type"] == "start"}
        if len(started) >= size:
            break
        time.sleep(STEP_S)
    return finish(run, writer)


def slow(run: Run, writer: EventWriter) -> int:
    marker = run.checkpoints_path / "last.json"
    begin = json.loads(marker.read_text())["step"] if marker.is_file() else 0
    for step in range(begin + 1, STEPS):
        _step(writer, step, STEPS)
        time.sleep(STEP_S)
        if run.stop_path.exists():
            run.checkpoints_path.mkdir(exist_ok=True)
            write_json(marker, {"step": step})
            writer.write("stopped", step=step, checkpoint="last.json")
            return 0
    return finish(run, writer)


def deaf(run: Run, writer: EventWriter) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    writer.write("progress", name="deaf", done=0, total=1)
    time.sleep(600)
    return 0


def error(run: Run, writer: EventWriter) -> int:
    sys.stdout.write("last words before the error\n")
    writer.write("error", kind="DataError", message="line 7 is bad", fix="repair line 7")
    return 5


def oom(run: Run, writer: EventWriter) -> int:
    writer.write("error", kind="OutOfMemory", message="asked for 2 GiB", fix="halve the batch")
    return 4


def crash(run: Run, writer: EventWriter) -> int:
    raise KeyError("an error that nobody translated")


def exit17(run: Run, writer: EventWriter) -> int:
    return 17


def hang(run: Run, writer: EventWriter) -> int:
    writer.write("progress", name="hanging", done=1, total=3)
    while not run.stop_path.exists():
        writer.write("gpu", gpus=[{"index": 0, "utilisation_percent": 0}])
        time.sleep(0.1)
    return 0


def sigkill(run: Run, writer: EventWriter) -> int:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def grandchild(run: Run, writer: EventWriter) -> int:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    apart = subprocess.Popen(["sleep", "120"], start_new_session=True)
    writer.write("children", pids=[child.pid, apart.pid])
    return slow(run, writer)


def leave_child(run: Run, writer: EventWriter) -> int:
    apart = subprocess.Popen(["sleep", "120"], start_new_session=True)
    writer.write("children", pids=[apart.pid])
    return finish(run, writer)


def _step(writer: EventWriter, step: int, total: int) -> None:
    facts = {"loss": 1 / step, "useful_tokens_per_s": 1000.0, "memory_bytes": 1 << 30}
    writer.write("step", step=step, total_steps=total, **facts)


MODES = {
    function.__name__: function
    for function in (
        *(finish, slow, deaf, error, oom, crash, exit17, hang, sigkill),
        *(grandchild, leave_child, meet),
    )
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
