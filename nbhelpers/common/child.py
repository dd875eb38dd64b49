"""A process that holds a model, spoken to in JSON lines over two pipes of its own.

Its stdout and stderr go to a file: what libraries print cannot disturb the talk. It ends when its
pipe is closed, when this process ends, or when it is killed; every end gives all memory back.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from nbhelpers.common.processes import SUPERVISOR_VARIABLE, start_time, worker_environment
from nbhelpers.errors import JobFailed, Killed, LaunchError, NbhelpersError, from_kind

MODULE = "nbhelpers.jobs.serve"
CANCEL_S = 5.0  # so long may an answer take to stop; then the process is ended
CLOSE_S = 5.0
LOG_LINES, LOG_BYTES = 20, 1 << 16
Report = Callable[[Any], None]  # a line of text, or what an operation reports


class Inbox:
    """Replies of the process, put here by a thread, so that an interrupt can lose none."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.replies: dict[int, dict[str, Any]] = {}
        self.progress: list[Any] = []
        self.ended = False

    def read(self, descriptor: int) -> None:
        """Read lines until the pipe's end; the body of the thread."""
        with os.fdopen(descriptor, "rb") as pipe, contextlib.suppress(OSError, ValueError):
            for line in pipe:
                message = json.loads(line)
                with self.changed:
                    if "progress" in message:
                        self.progress.append(message["progress"])
                    else:
                        self.replies[message["id"]] = message
                    self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def wait(self, number: int, timeout_s: float | None, report: Report | None) -> dict | None:
        """Return the reply to a request, or None when the process ended or the time is over."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self.changed:
                texts, self.progress = self.progress, []
                reply, is_over = self.replies.pop(number, None), self.ended
                left = None if deadline is None else deadline - time.monotonic()
                if not texts and reply is None and not is_over and (left is None or left > 0):
                    self.changed.wait(left)
                    continue
            for text in texts if report else ():
                report(text)
            if reply is not None or is_over or (left is not None and left <= 0):
                return reply


class Closing(contextlib.AbstractContextManager):
    """What is closed at the end of a `with`."""

    def close(self) -> None:
        """End it; harmless when it has ended."""
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        self.close()


class Child(Closing):
    """The process: started at once, ended by `close`, by a kill, or with this process."""

    def __init__(self, *, use_gpu: bool, module: str | None = None) -> None:
        """Start it.

        Raises:
            LaunchError: The system refuses to start a process.
        """
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        requests_out, self._requests = os.pipe()
        replies_in, replies_out = os.pipe()
        command = [sys.executable, "-m", module or MODULE, str(requests_out), str(replies_out)]
        env = worker_environment(os.environ, {"world_size": 1, "use_gpu": use_gpu})
        env[SUPERVISOR_VARIABLE] = f"{os.getpid()}:{start_time(os.getpid())}"
        try:
            self.process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(requests_out, replies_out),
                start_new_session=True,  # a Ctrl-C at the terminal reaches this process alone
            )
        except OSError as error:
            os.close(self._requests)
            os.close(replies_in)
            text = f"The process for the model could not be started: {error.strerror or error}."
            raise LaunchError(text, fix="end other programs, then try again") from error
        finally:
            os.close(requests_out)
            os.close(replies_out)
        self._inbox, self._numbers = Inbox(), itertools.count(1)
        self._lock = threading.RLock()
        reader = threading.Thread(target=self._inbox.read, args=(replies_in,), daemon=True)
        reader.start()
        self._end = weakref.finalize(self, _end, self.process, self._requests, os.getpid())

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._end.alive and not self._inbox.ended and self.process.poll() is None

    def call(
        self, op: str, *, timeout_s: float | None = None, report: Report | None = None, **args: Any
    ) -> dict[str, Any]:
        """Ask for something and return the answer; an interrupt stops the work and is raised.

        Raises:
            NbhelpersError: What the process says went wrong.
            Killed: It was killed, or the time is over.
            JobFailed: It ended by itself.
        """
        with self._lock:
            if not self.is_alive:
                raise self._death(op)
            number = next(self._numbers)
            try:
                self._send({"id": number, "op": op, "args": args})
                reply = self._inbox.wait(number, timeout_s, report)
            except BaseException:
                self._cancel(number)
                raise
            if reply is None and self._inbox.ended:
                raise self._death(op)
            if reply is None:
                self._cancel(number)
                raise Killed(
                    f"`{op}` took longer than timeout_s={timeout_s:g}.",
                    fix="give more time, or fewer max_new_tokens",
                    details=self.log_tail(),
                )
        if "error" in reply:
            raise self._told(reply["error"])
        return reply["result"]

    def _send(self, message: dict[str, Any]) -> None:
        data = memoryview(json.dumps(message).encode() + b"\n")
        with contextlib.suppress(BrokenPipeError):  # it has ended: the inbox says so
            while data:
                data = data[os.write(self._requests, data) :]

    def _cancel(self, number: int) -> None:
        """Have it stop a request and wait for the end of it; kill it where that takes too long."""
        try:
            self._send({"cancel": number})
            if self._inbox.wait(number, CANCEL_S, None) is None:
                self.kill()
        except BaseException:
            self.kill()
            raise

    def _told(self, error: dict[str, str]) -> NbhelpersError:
        details = error.get("details") or ""
        if error["kind"] == "JobFailed":  # unforeseen: its log says more
            details = "\n".join(part for part in (details, self.log_tail()) if part)
        return from_kind(error["kind"], error["message"], fix=error["fix"], details=details)

    def _death(self, op: str) -> NbhelpersError:
        self.close()
        code = self.process.returncode or 0
        where = f"The process that holds the model ended during `{op}`"
        if code == -signal.SIGKILL:
            return Killed(
                f"{where}: it was killed.",
                fix="if that was for want of memory, close other models or programs, or use a "
                "smaller model; then ask again",
                details=self.log_tail(),
            )
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return JobFailed(
            f"{where} ({name}).", fix="read the end of its log below", details=self.log_tail()
        )

    def log_tail(self) -> str:
        """The last lines that the process and its libraries printed."""
        descriptor = self._log.fileno()
        start = max(0, os.fstat(descriptor).st_size - LOG_BYTES)
        text = os.pread(descriptor, LOG_BYTES, start).decode(errors="replace").strip()
        return "\n".join(text.splitlines()[-LOG_LINES:])

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.close()

    def close(self) -> None:
        """End it and wait until it is gone; harmless when it is."""
        self._end()


def _end(process: subprocess.Popen, requests: int, owner: int) -> None:
    if os.getpid() != owner:  # a fork of the notebook's process must not end what is not its own
        return
    with contextlib.suppress(OSError):
        os.close(requests)
    try:
        process.wait(CLOSE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    except BaseException:
        process.kill()
        raise
