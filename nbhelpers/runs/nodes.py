"""A worker without a supervisor of ours, on one node of several: it signs in, and watches the rest.

`launch` starts a supervisor that writes `process.json`. Where `accelerate launch` or SLURM starts
the workers, `attend` does its part in every rank: it refuses a rank that works already, keeps the
heartbeat, ends this rank when another one is lost, and records how it ended. Nothing of it needs
more than the folder that the nodes share.
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
from typing import Any

from nbhelpers.common import processes
from nbhelpers.common.files import locked, write_json
from nbhelpers.errors import Killed, LaunchError
from nbhelpers.runs.events import EventWriter, file_name
from nbhelpers.runs.ranks import ATTENDED, beat_of, claim_path, has_ended, read_claim
from nbhelpers.runs.run import HEARTBEAT_LIMIT_S, HEARTBEAT_S, Run, is_here

BEAT_VARIABLE = "NBHELPERS_HEARTBEAT_S"  # for tests: a shorter time between heartbeats
MISSING_AFTER_BEATS = 4  # then rank 0 says which ranks have not come yet
LIMIT_BEATS = int(HEARTBEAT_LIMIT_S / HEARTBEAT_S)  # without one, a rank that came is given up
RECENT_S = 120.0  # a rank that failed so shortly before this one came failed in the same launch
OBSERVED_BEATS = 4  # a foreign heartbeat that does not move for so long is dead; a drive shows late
_AGAIN = "start every node again: the run goes on from its last checkpoint"


def attend(folder: str | Path, work: Callable[[str], int]) -> int:
    """Do a rank's work between its sign-in and its sign-out; return its exit code.

    Under a supervisor of ours it only does the work. A finished run is left as it is.

    Args:
        folder: The run folder.
        work: Called with the folder; returns the exit code.
    """
    if os.environ.get(processes.SUPERVISOR_VARIABLE):
        return work(str(folder))
    rank = int(os.environ.get("RANK", "0"))
    run = Run(Path(folder))
    try:
        if _is_finished(run):
            _say(f"{run.id} is finished: its result is used. To start anew: export it with --fresh")
            return 0
        attendance = Attendance(run, rank)
        attendance.sign_in()
    except LaunchError as error:
        _say(f"{type(error).__name__}: {error}")
        return error.exit_code
    code = 1
    try:
        code = work(str(folder))
    finally:
        attendance.sign_out(code)
    return code


def _is_finished(run: Run) -> bool:
    if run.record is None:
        raise LaunchError(
            f"{run.record_path} cannot be read on {socket.gethostname()}.",
            fix="prepare the run with nbhelpers export-launcher, in a folder that all nodes share",
        )
    return run.status == "finished"


class Attendance:
    """One rank's claim, its heartbeat, and its eye on the other ranks."""

    def __init__(self, run: Run, rank: int) -> None:
        """Read what is planned; nothing is written yet."""
        plan = (run.record or {}).get("plan") or {}
        self.run, self.rank = run, rank
        self.world_size = int(plan.get("world_size") or 1)
        self.per_node = self.world_size // int(plan.get("num_nodes") or 1)
        self.beat_s = float(os.environ.get(BEAT_VARIABLE) or HEARTBEAT_S)
        self.limit_s = LIMIT_BEATS * self.beat_s
        self.claim: dict[str, Any] = {}
        self.ended = threading.Event()
        self.watch = _Watch(self)

    def sign_in(self) -> None:
        """Claim this rank, and keep the heartbeat from now on.

        Raises:
            LaunchError: The rank works already, here or on another node.
        """
        lock = self.run.path / f".rank{self.rank}.lock"
        patience_s = 60.0 + 2 * OBSERVED_BEATS * self.beat_s
        with locked(lock, timeout_s=patience_s):
            self._refuse_a_second()
            self._write_claim()
        self.watch.begin()
        threading.Thread(target=self._beat, name="nbhelpers-beat", daemon=True).start()

    def _refuse_a_second(self) -> None:
        record, first = read_claim(self.run.path, self.rank), self.run.process
        if first and not first.get(ATTENDED) and self.run.is_running:
            record, what = first, f"{self.run.id} is running already, under a supervisor"
        elif record.get(ATTENDED) and not has_ended(record) and self._is_alive(record):
            what = f"Rank {self.rank} of {self.run.id} works already"
        else:
            return
        where = (
            f"process {int(record.get('pid') or 0)} on {record.get('host') or 'another machine'}"
        )
        raise LaunchError(
            f"{what}: {where}. This one ends and changes nothing.",
            fix="start each node's line once; to end the run first: "
            f"nbhelpers stop {self.run.path}",
        )

    def _is_alive(self, record: dict[str, Any]) -> bool:
        if is_here(record):
            return processes.is_alive(int(record.get("pid") or 0), record.get("start_time"))
        before = beat_of(self.run.path, self.rank)
        if before is None or time.time() - before / 1e9 > self.limit_s:
            return False
        end = time.monotonic() + OBSERVED_BEATS * self.beat_s
        while time.monotonic() < end:
            time.sleep(min(1.0, self.beat_s))
            if beat_of(self.run.path, self.rank) != before:
                return True
        return False

    def _write_claim(self) -> None:
        folder, pid = self.run.path, os.getpid()
        files = [folder / file_name(self.rank), self.run.log_path(self.rank)]
        if self.rank == 0:
            files += [*folder.glob("events-*.jsonl"), *folder.glob("*.log")]
        self.claim = processes.machine() | {
            ATTENDED: True,
            "rank": self.rank,
            "launch_id": uuid.uuid4().hex,
            "pid": pid,
            "start_time": processes.start_time(pid),
            "started_at": time.time(),
            "offsets": {file.name: _size(file) for file in files},
        }
        if self.rank == 0:  # a request to stop was meant for an earlier start
            self.run.stop_path.unlink(missing_ok=True)
        write_json(claim_path(folder, self.rank), self.claim)

    def _beat(self) -> None:
        while not self.ended.wait(self.beat_s):
            with contextlib.suppress(OSError):  # a mounted drive may drop out briefly
                os.utime(claim_path(self.run.path, self.rank))
                self.watch.look()

    def sign_out(self, code: int) -> None:
        """Record how this rank ended; rank 0 ends the launch."""
        self.ended.set()
        with contextlib.suppress(OSError):  # the disk may be full
            if self.rank == 0:
                was_stopped = bool(self.run.final_events("stopped"))
                reason = "failed" if code else "stop requested" if was_stopped else "finished"
                with EventWriter(self.run.launcher_events_path) as writer:
                    launch_id = self.claim["launch_id"]
                    facts = {"returncode": code, "signal": None, "rank": 0, "escalated": False}
                    writer.write("exit", launch_id=launch_id, reason=reason, **facts)
            write_json(claim_path(self.run.path, self.rank), self.claim | {"returncode": code})


class _Watch:
    """Sees by their claims which ranks came, failed or vanished; once on each node."""

    def __init__(self, attendance: Attendance) -> None:
        self.own = attendance
        self.is_on = os.environ.get("LOCAL_RANK", "0") == "0" and attendance.world_size > 1
        self.beats: dict[int, tuple[int | None, int]] = {}  # the heartbeat, and the look it came at
        self.came: set[int] = set()
        self.suspects: set[int] = set()  # that failed at the last look
        self.looks = 0

    def begin(self) -> None:
        """Remember what is there: only what changes from now on counts."""
        folder = self.own.run.path
        self.beats = {rank: (beat_of(folder, rank), 0) for rank in self._others()}
        self.came = {rank for rank in self._others() if self._is_new(rank)}

    def _others(self) -> list[int]:
        if not self.is_on:
            return []
        return [rank for rank in range(self.own.world_size) if rank != self.own.rank]

    def _is_new(self, rank: int) -> bool:
        """Whether a rank that signed in on this machine before this one is at work."""
        record = read_claim(self.own.run.path, rank)
        if not record or has_ended(record) or not is_here(record):
            return False
        return processes.is_alive(int(record.get("pid") or 0), record.get("start_time"))

    def look(self) -> None:
        """End this rank when another failed or vanished; name those that never came.

        Silence is counted in looks, not in time: while the shared drive hangs, nobody can look.
        """
        self.looks += 1
        folder = self.own.run.path
        failed, silent = set(), set()
        for rank in self._others():
            before, since = self.beats[rank]
            beat = beat_of(folder, rank)
            if beat != before:
                self.beats[rank] = (beat, self.looks)
                self.came.add(rank)
            elif rank in self.came and self.looks - since > LIMIT_BEATS:
                silent.add(rank)
            if rank in self.came and (code := read_claim(folder, rank).get("returncode")):
                failed.add((rank, int(code)))
        silent = {r for r in silent if not has_ended(read_claim(folder, r))}
        # A failed rank breaks the others' connections: each gets a beat's time to say so itself.
        if first := min((x for x in failed if x[0] in self.suspects), default=None):
            self._end(first[0], f"ended with exit code {first[1]}")
        if silent:
            self._end(min(silent), f"has given no sign of life for {self.own.limit_s:.0f} s")
        self.suspects = {rank for rank, _ in failed}
        if self.looks == MISSING_AFTER_BEATS and self.own.rank == 0:
            self._name_missing()

    def _end(self, rank: int, what: str) -> None:
        own, record = self.own, read_claim(self.own.run.path, rank)
        if own.ended.is_set():
            return
        host = record.get("host") or "an unknown host"
        error = Killed(f"Rank {rank} of {own.run.id}, on {host}, {what}.", fix=_AGAIN)
        with contextlib.suppress(OSError), EventWriter(own.run.path, own.rank) as writer:
            writer.write("error", kind="Killed", message=error.message, fix=error.fix)
        _say(f"Killed: {error}")
        own.sign_out(error.exit_code)
        os._exit(error.exit_code)  # the worker may hang in a collective that never ends

    def _name_missing(self) -> None:
        missing = [rank for rank in self._others() if rank not in self.came]
        if not missing:
            return
        for rank in missing:
            record = read_claim(self.own.run.path, rank)
            begin = float(record.get("started_at") or 0.0)
            if record.get("returncode") and self.own.claim["started_at"] - begin < RECENT_S:
                self._end(rank, f"ended with exit code {int(record['returncode'])}")
        nodes = sorted({rank // self.own.per_node for rank in missing})
        text = (
            f"{len(missing)} of {self.own.world_size} ranks have not come yet; start the line of "
            f"node {', '.join(map(str, nodes))} there"
        )
        with EventWriter(self.own.run.path, self.own.rank) as writer:
            writer.write("warning", message=text)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
