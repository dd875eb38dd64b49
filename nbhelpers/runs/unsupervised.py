"""A worker that another launcher started, on one node of several: rank 0 acts as a supervisor.

`launch` starts a supervisor that writes `process.json`, keeps its heartbeat and records how the run
ended. Where `accelerate launch`, torchrun or SLURM start the workers, rank 0 does these three, so
that the run can be listed, followed, stopped and continued. Ranks find, and end, each other by
torchrun's rendezvous.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from nbhelpers.common import processes
from nbhelpers.common.files import write_json
from nbhelpers.errors import LaunchError
from nbhelpers.runs.events import EventWriter
from nbhelpers.runs.run import HEARTBEAT_S, Run, is_here, launch_offsets


def attend(folder: str | Path, work: Callable[[str], int]) -> int:
    """Do a rank's work, and return its exit code; rank 0 records that the run works, and its end.

    Under a supervisor of ours it only does the work. A finished run is left as it is.

    Args:
        folder: The run folder.
        work: Called with the folder; returns the exit code.
    """
    if os.environ.get(processes.SUPERVISOR_VARIABLE):
        return work(str(folder))
    run, rank = Run(Path(folder)), int(os.environ.get("RANK", "0"))
    try:
        if run.record is None:
            raise LaunchError(
                f"{run.record_path} cannot be read on {socket.gethostname()}.",
                fix="prepare the run with nbhelpers export-launcher, in a folder that all nodes "
                "share",
            )
        if run.status == "finished":
            _say(f"{run.id} is finished: its result is used. To start anew: export it with --fresh")
            return 0
        launch_id = _sign_in(run) if rank == 0 else ""
    except LaunchError as error:
        _say(f"{type(error).__name__}: {error}")
        return error.exit_code
    if rank:
        return work(str(folder))
    ended, code = threading.Event(), 1
    threading.Thread(target=_beat, args=(run, ended), name="nbhelpers-beat", daemon=True).start()
    try:
        code = work(str(folder))
    finally:
        ended.set()
        _sign_out(run, launch_id, code)
    return code


def _sign_in(run: Run) -> str:
    """Write `process.json` as a supervisor would, and return the id of this launch.

    Raises:
        LaunchError: The run works already on this machine.
    """
    process = run.process
    if process and is_here(process) and run.is_running:
        raise LaunchError(
            f"{run.id} is running already: process {process.get('pid')} on this machine. This one "
            "ends and changes nothing.",
            fix=f"start each node's line once; to end the run first: {run.shell('stop')}",
        )
    run.stop_path.unlink(missing_ok=True)  # it was meant for an earlier start
    pid, launch_id = os.getpid(), uuid.uuid4().hex
    facts = processes.machine() | {"launch_id": launch_id, "pid": pid, "started_at": time.time()}
    facts |= {"start_time": processes.start_time(pid), "offsets": launch_offsets(run)}
    write_json(run.process_path, facts)
    return launch_id


def _beat(run: Run, ended: threading.Event) -> None:
    while not ended.wait(HEARTBEAT_S):
        with contextlib.suppress(OSError):  # a mounted drive may drop out briefly
            os.utime(run.process_path)


def _sign_out(run: Run, launch_id: str, code: int) -> None:
    was_stopped = bool(run.final_events("stopped"))
    reason = "failed" if code else "stop requested" if was_stopped else "finished"
    facts = {"returncode": code, "signal": None, "rank": 0, "escalated": False, "reason": reason}
    with contextlib.suppress(OSError), EventWriter(run.launcher_events_path) as writer:
        writer.write("exit", launch_id=launch_id, **facts)  # the disk may be full


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
