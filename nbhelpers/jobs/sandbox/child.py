"""The process between a worker and a generated program: it starts, watches and ends the program.

It runs as a script in an interpreter of its own, with an empty environment, and imports the
standard library alone. The worker writes one JSON line and the program's source to its standard
input and keeps that open: its end, or the worker's, ends the program. The answer is one JSON line.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import time
import types
from pathlib import Path
from typing import Any, NoReturn

# Our package imports more than the standard library, so the neighbours get a package of their own.
_PACKAGE = types.ModuleType("nbhelpers_sandbox")
_PACKAGE.__path__ = [str(Path(__file__).parent)]
sys.modules[_PACKAGE.__name__] = _PACKAGE
cage = importlib.import_module("nbhelpers_sandbox.cage")
runner = importlib.import_module("nbhelpers_sandbox.runner")

_TICK_S, _LAST_TICK_S = 0.02, 0.001  # a process closes its pipes just before it ends
_REPORT_BYTES, _HEAD_BYTES = 16_384, 4_096
_MOST_FILES = 100
_FORGED = "wrote to the private channel of its runner"
_STATUSES = ("failed", "error", "memory", "syntax", "exited")
_KILLED_BY_LIMIT = {signal.SIGXCPU: "timeout", signal.SIGXFSZ: "output"}


class Watch:
    """One program's life as its supervisor sees it."""

    def __init__(self, request: dict[str, Any], pid: int, pipes: dict[str, int]) -> None:
        """Start to watch a child that is about to enter its cage."""
        self.request, self.pid, self.pipes = request, pid, dict(pipes)
        self.report, self.head, self.output_bytes = b"", b"", 0
        self.started, self.seconds = time.monotonic(), 0.0
        self.is_caged = False
        self.limit: tuple[str, str] | None = None
        self.code: int | None = None

    def read(self, name: str) -> None:
        """Take what a pipe holds; an ended pipe is watched no longer."""
        chunk = os.read(self.pipes[name], 65_536)
        if not chunk:
            del self.pipes[name]
        elif name == "report":
            self.report += chunk
        else:
            self.head += chunk[: _HEAD_BYTES - len(self.head)]
            self.output_bytes += len(chunk)

    @property
    def lines(self) -> list[bytes]:
        """What came over the private pipe: the cage's line, then the program's end."""
        return self.report.split(b"\n")

    def limit_passed(self) -> tuple[str, str] | None:
        """Which limit the program has passed, if any."""
        limits, elapsed = self.request, time.monotonic() - self.started
        if elapsed > limits["timeout_s"]:
            return "timeout", f"not finished after {limits['timeout_s']:g} s"
        if self.output_bytes > limits["output_bytes"]:
            return "output", f"more than {limits['output_bytes']} bytes of output"
        if len(self.report) > _REPORT_BYTES:
            return "exited", _FORGED
        if (threads := thread_count(self.pid)) > cage.THREADS:
            return "killed", f"{threads} threads, more than {cage.THREADS}"
        files, size = folder_use(self.request["folder"])
        if files > _MOST_FILES or size > limits["file_bytes"]:
            return "output", f"more than {_MOST_FILES} files or {limits['file_bytes']} bytes in all"
        return None

    def poll(self) -> bool:
        """Wait a moment; False once the child has ended."""
        patience_s = _TICK_S if self.pipes else _LAST_TICK_S
        ready = select.select([0, *self.pipes.values()], [], [], patience_s)[0]
        for name, pipe in list(self.pipes.items()):
            if pipe in ready:
                self.read(name)
        if (0 in ready and not os.read(0, 1)) or os.getppid() != self.request["worker"]:
            raise KeyboardInterrupt  # the worker wants no answer any more
        if not self.is_caged and len(self.lines) > 1:  # the program's own time starts here
            self.is_caged, self.started = True, time.monotonic()
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.code = os.waitstatus_to_exitcode(status)
        return not pid

    def end(self) -> None:
        """Kill the child unless it has ended; it cannot have children of its own."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def drain(self) -> None:
        """Take what a child wrote just before its end."""
        for name in list(self.pipes):
            os.set_blocking(self.pipes[name], False)
            with contextlib.suppress(BlockingIOError):
                while name in self.pipes and len(self.report) <= _REPORT_BYTES:
                    self.read(name)


def thread_count(pid: int) -> int:
    """Threads of a process; 0 when it has just ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return int(text.rpartition(")")[2].split()[17])
    except (OSError, IndexError):
        return 0


def folder_use(folder: str) -> tuple[int, int]:
    """Files of a flat folder and the bytes they take on the disk; a long count is cut short."""
    files = size = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            files += 1
            with contextlib.suppress(OSError):
                size += entry.stat(follow_symlinks=False).st_blocks * 512
            if files > _MOST_FILES:
                break
    return files, size


def live(request: dict[str, Any], source: bytes, secret: bytes, user: int | None) -> Watch:
    """Fork, cage and run the program; return when it has ended."""
    report_in, report_out = os.pipe()
    output_in, output_out = os.pipe()
    secret_in, secret_out = os.pipe()
    os.write(secret_out, secret)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for old, new in ((null, 0), (output_out, 1), (output_out, 2)):
            os.dup2(old, new)
        for descriptor in (null, output_in, output_out, report_in, secret_out):
            os.close(descriptor)
        _inside(request, source, user, parent, report_out, secret_in)
    for descriptor in (report_out, output_out, secret_in, secret_out):
        os.close(descriptor)
    watch = Watch(request, pid, {"report": report_in, "output": output_in})
    try:
        while watch.limit is None and watch.poll() and not watch.report.endswith(secret):
            watch.limit = watch.limit_passed()
        watch.seconds = time.monotonic() - watch.started
    finally:
        watch.end()
    watch.drain()
    return watch


def _inside(
    request: dict[str, Any], source: bytes, user: int | None, parent: int, report: int, secret: int
) -> NoReturn:
    try:
        line = {"applied": cage.enter(request, user, parent)}
    except BaseException as error:
        os.write(report, json.dumps({"refused": f"{type(error).__name__}: {error}"}).encode())
        os._exit(1)
    os.write(report, json.dumps(line).encode() + b"\n")
    runner.run(source, report, secret)


def judge(watch: Watch, secret: bytes) -> tuple[str, str]:
    """Status and detail: a limit first, then what the runner reported, then how it died."""
    rest = watch.report.partition(b"\n")[2]
    if rest == secret:
        return "passed", ""
    if watch.limit is not None:
        return watch.limit
    if rest.endswith(secret):
        return "exited", _FORGED
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        status, detail = json.loads(rest)
        if status in _STATUSES and isinstance(detail, str):
            return status, detail[:400]
    code = watch.code or 0
    if code < 0:
        name = signal.strsignal(-code) or "unknown"
        return _KILLED_BY_LIMIT.get(-code, "killed"), f"ended by signal {-code} ({name})"
    return "exited", f"ended with exit code {code} before its last line had run"


def answer(request: dict[str, Any], source: bytes) -> dict[str, Any]:
    """Run a program within its limits; what the worker is told."""
    secret = os.urandom(24).hex().encode()
    user = None if "user" in request["without"] else cage.spare_user(os.getpid())
    if user is not None:
        os.chown(request["folder"], user, user)
    watch = live(request, source, secret, user)
    first = json.loads(watch.lines[0] or "{}")
    if "applied" not in first:
        return {"refused": first.get("refused", f"it ended with code {watch.code} in its set-up")}
    status, detail = judge(watch, secret)
    head = watch.head.decode("utf-8", "replace")
    return {"status": status, "detail": detail, "seconds": watch.seconds, "head": head, **first}


def remove(folder: str) -> None:
    """Remove the program's folder: plain files in one level, as nothing else can be made there."""
    with contextlib.suppress(OSError):
        with os.scandir(folder) as entries:
            for entry in entries:
                Path(entry.path).unlink()
        Path(folder).rmdir()


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Serve one request."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _interrupt)
    request = json.loads(sys.stdin.buffer.readline())
    try:
        source = sys.stdin.buffer.read(request["source_bytes"])
        reply = answer(request, source)
    except KeyboardInterrupt:
        return 1
    finally:
        remove(request["folder"])
    sys.stdout.write(json.dumps(reply) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
