"""The supervisor of one launch: `python -m nbhelpers.runs.supervise RUN_DIR`, started by `launch`.

It leaves the kernel's session, so that a run outlives the cell, the kernel and the logout::

    kernel ─► starter (ends once the supervisor is up)
                └─► guard ─► supervisor ─► worker, or a launcher ─► ranks

The supervisor writes `process.json`, starts the worker, waits, ends whatever is left below it and
records an `exit` event. It stops the worker cleanly when asked by the `stop` file, by a signal or
by the end of its owner, and by force when the grace time is over. When the supervisor itself is
killed, the system kills the worker, and the guard ends the rest and records that. SIGHUP is
ignored: that is what a terminal sends when it closes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from nbhelpers.common import processes
from nbhelpers.common.files import read_json, write_json
from nbhelpers.common.processes import (
    MODULE_VARIABLE,
    WORKER_MODULE,
    first_failure,
    worker_command,
    worker_environment,
)
from nbhelpers.runs.events import EventWriter
from nbhelpers.runs.run import HEARTBEAT_S, Run, launch_offsets

OWNER_VARIABLE = "NBHELPERS_OWNER"  # pid:start time, set by `launch`
LOG_START_VARIABLE = "NBHELPERS_LOG_START"  # where this launch begins in launcher.log
GRACE_VARIABLE = "NBHELPERS_STOP_GRACE_S"
STOP_GRACE_S = 60.0
TERM_GRACE_S = 5.0
POLL_S, LOOK_S = 0.05, 0.5
FOLDER_PATIENCE_S = 60.0


class Supervisor:
    """Watches one worker from its start to the end of its last descendant."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.launch_id = os.environ.get(processes.LAUNCH_VARIABLE, "")
        self.plan = dict((read_json(run.record_path) or {})["plan"])
        pid, _, started = os.environ.get(OWNER_VARIABLE, "").partition(":")
        self.owner = (int(pid), started) if pid.isdigit() else None
        self.grace_s = float(os.environ.get(GRACE_VARIABLE) or STOP_GRACE_S)
        self.cause: str | None = None  # why the run is to end before its own end
        self.deadline = float("inf")
        self.escalated = False
        self.signals = 0
        self.request: tuple[int, int] | None = None  # the stop file that was last read
        self.returncode: int | None = None
        self.worker: subprocess.Popen[bytes] | None = None
        self.oom_kills = _oom_kills()
        self.last_look = self.last_beat = self.last_seen = time.monotonic()

    def register(self) -> None:
        """Write `process.json`, before anything is started."""
        pid, guard = os.getpid(), os.getppid()
        offsets = launch_offsets(self.run)
        offsets[self.run.launcher_log_path.name] = int(os.environ.get(LOG_START_VARIABLE) or 0)
        facts = processes.machine() | {"launch_id": self.launch_id, "pid": pid}
        facts |= {"pgid": os.getpgrp(), "start_time": processes.start_time(pid)}
        facts |= {"guard_pid": guard, "guard_start_time": processes.start_time(guard)}
        facts |= {"owner_pid": self.owner[0] if self.owner else None, "started_at": time.time()}
        write_json(self.run.process_path, facts | {"offsets": offsets})

    def start(self) -> None:
        """Start the worker in a session of its own; the system kills it with this process."""
        module = os.environ.get(MODULE_VARIABLE, WORKER_MODULE)
        command = worker_command(self.run.path, self.plan, module=module)
        env = worker_environment(os.environ, self.plan)
        env.pop(OWNER_VARIABLE, None)
        me = os.getpid()
        env[processes.SUPERVISOR_VARIABLE] = f"{me}:{processes.start_time(me)}"
        is_single = int(self.plan["world_size"]) == 1
        log = self.run.log_path(0) if is_single else self.run.launcher_log_path
        with log.open("ab") as output:
            self.worker = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=functools.partial(processes.die_with, me),
            )
        self.record("launched", pid=self.worker.pid, pgid=self.worker.pid, command=command)

    def record(self, type: str, **fields: Any) -> None:
        """Append an event to the launcher's file; a full disk must not end the supervision."""
        try:
            with EventWriter(self.run.launcher_events_path) as writer:
                writer.write(type, launch_id=self.launch_id, **fields)
        except OSError:
            traceback.print_exc()

    def on_signal(self, *_: object) -> None:
        """Count a TERM or INT; the loop acts on it."""
        self.signals += 1

    def wait(self) -> None:
        """Return when the worker has ended or its time to end is over."""
        while self.returncode is None:
            time.sleep(POLL_S)
            self.reap()
            self.look()
            if time.monotonic() > self.deadline and self.returncode is None:
                self.escalated = True
                return

    def reap(self) -> None:
        """Collect ended children: the worker, and orphans of its that were adopted."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if self.worker is not None and pid == self.worker.pid:
                    code = os.waitstatus_to_exitcode(status)
                    self.returncode = self.worker.returncode = code

    def look(self) -> None:
        """See whether the run is to end: a signal, the stop file, the owner, the folder."""
        now = time.monotonic()
        if self.signals:
            self.end_by("launcher signalled", 0.0 if self.signals > 1 else self.grace_s)
        if now - self.last_look < LOOK_S:
            return
        self.last_look = now
        self.look_at_stop_file()
        if self.owner and not processes.is_alive(*self.owner):
            self.end_by("owner ended", self.grace_s)
        if self.run.path.is_dir():
            self.last_seen = now
        elif now - self.last_seen > FOLDER_PATIENCE_S:  # a mounted drive may drop out briefly
            self.end_by("run folder deleted", 0.0)
        if now - self.last_beat > HEARTBEAT_S:
            self.last_beat = now
            with contextlib.suppress(OSError):
                os.utime(self.run.process_path)

    def look_at_stop_file(self) -> None:
        """Take a request to stop; a later request may only shorten the grace time."""
        try:
            stat = self.run.stop_path.stat()
        except OSError:
            return
        if self.request == (stat.st_mtime_ns, stat.st_ino):
            return
        self.request = (stat.st_mtime_ns, stat.st_ino)
        asked = read_json(self.run.stop_path) or {}  # an empty file made by hand counts too
        self.end_by("stop requested", float(asked.get("grace_s", self.grace_s)))

    def end_by(self, cause: str, grace_s: float) -> None:
        """Ask the worker to stop, and set the time at which it is made to."""
        self.deadline = min(self.deadline, time.monotonic() + grace_s)
        if self.cause is not None:
            return
        self.cause = cause
        if self.request is None and self.run.path.is_dir():
            with contextlib.suppress(OSError):
                write_json(self.run.stop_path, {"asked_at": time.time(), "cause": cause})
                stat = self.run.stop_path.stat()
                self.request = (stat.st_mtime_ns, stat.st_ino)

    def finish(self) -> None:
        """End every process below this one, then record how the launch ended."""
        self.look_at_stop_file()  # the worker may have seen it, and ended, before we looked
        below = functools.partial(processes.descendants, os.getpid())
        left = processes.end(below, grace_s=min(TERM_GRACE_S, self.grace_s), reap=self.reap)
        self.reap()
        code = self.returncode
        rank, cause = (0 if code else None), code
        if int(self.plan["world_size"]) > 1:
            rank, cause = (code and first_failure(self.log())) or (None, code)
        number = -cause if cause is not None and cause < 0 else None
        how = "finished" if code == 0 else "killed" if number else "failed"
        self.record(
            "exit",
            returncode=code,
            signal=number,
            rank=rank,
            reason=self.cause or how,
            escalated=self.escalated,
            processes_ended=left,
            oom_kills=_oom_kills() - self.oom_kills,
        )

    def log(self) -> str:
        """What the launcher wrote in this launch."""
        with contextlib.suppress(OSError), self.run.launcher_log_path.open("rb") as file:
            file.seek(self.run.offset(self.run.launcher_log_path))
            return file.read().decode(errors="replace")
        return ""


def _oom_kills() -> int:
    """How often the kernel's out-of-memory killer acted since boot; 0 where it does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _supervise(run: Run, ready: int) -> int:
    os.setpgid(0, 0)  # apart from the guard's group: one signal to a group must not end both
    processes.adopt_orphans()
    supervisor = Supervisor(run)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, supervisor.on_signal)
    supervisor.register()
    supervisor.start()
    os.write(ready, b"1")
    os.close(ready)
    try:
        supervisor.wait()
    finally:
        supervisor.finish()
    return 0


def _guard(run: Run, child: int) -> None:
    """Outlive the supervisor, end what it may leave, and record its end when it could not."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: processes.send([child], got))
    status = os.waitpid(child, 0)[1]
    launch_id = os.environ.get(processes.LAUNCH_VARIABLE, "")
    processes.end(functools.partial(_below_guard, launch_id), grace_s=0, reap=_reap_any)
    if run.process.get("launch_id") == launch_id and run.exit_event() is None:
        code = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(OSError), EventWriter(run.launcher_events_path) as writer:
            number = -code if code < 0 else None
            facts = {"returncode": None, "signal": number, "reason": "launcher killed"}
            writer.write("exit", launch_id=launch_id, rank=None, escalated=True, **facts)


def _below_guard(launch_id: str) -> list[int]:
    return list({*processes.descendants(os.getpid()), *processes.of_launch(launch_id)})


def _reap_any() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main(folder: str) -> int:
    """Start guard and supervisor, and return 0 once the worker was started."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a lost terminal, a closed notebook server
    run = Run(Path(folder))
    reader, ready = os.pipe()
    if os.fork():
        os.close(ready)
        return 0 if os.read(reader, 1) == b"1" else 1
    os.close(reader)
    processes.adopt_orphans()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = _supervise(run, ready)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(ready)
    _guard(run, child)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
