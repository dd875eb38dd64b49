"""Chunks of functions read, or edited, by several child processes.

The children are plain Python processes that talk over pipes, not those of `multiprocessing`: they
import nothing but the data layer whatever the parent is (a worker that holds torch, a notebook, a
test), do not fork a process with threads or CUDA, and end when the parent's pipe closes.
"""

from __future__ import annotations

import json
import queue
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from typing import IO, Any, TypeVar

from ..errors import DataError

T = TypeVar("T")
_LENGTH = struct.Struct(">Q")  # precedes each message
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {module} import serve; serve()"
)
_STDERR_SHOWN = 2000


def start_child(module: str, *arguments: str) -> _Child:
    """Start a process that runs `serve` of a module; it finds the arguments in `sys.argv[2:]`."""
    return _Child(module, *arguments)


def run_chunks(
    chunks: Sequence[Sequence[Any]],
    *,
    start: Callable[[], _Child],
    count: int,
    read: Callable[[bytes], T],
    here: Callable[[Sequence[Any]], T],
) -> Iterator[tuple[int, T]]:
    """Yield each chunk's number and its answer as they are done, from up to `count` children.

    Args:
        chunks: Lists that JSON can hold.
        start: Starts a child.
        count: The most children.
        read: Makes a result of a child's answer.
        here: Makes a result in this process, where no child can be started.

    Raises:
        DataError: A child ended before its work was done.
    """
    children: list[_Child] = []
    pool: ThreadPoolExecutor | None = None
    try:
        _start(children, start, count)
        if not children:
            yield from ((i, here(chunk)) for i, chunk in enumerate(chunks))
            return
        pool = ThreadPoolExecutor(len(children))
        jobs = _submit(pool, children, chunks)
        for job in as_completed(jobs):
            yield jobs[job], read(job.result())
    finally:
        for child in children:
            child.stop()
        if pool:
            pool.shutdown(cancel_futures=True)


def _start(children: list[_Child], start: Callable[[], _Child], count: int) -> None:
    """Add up to `count` children to the list; it is the caller's, who ends them."""
    with suppress(OSError):  # no permission to fork, no memory, no folder for temporary files
        while sys.executable and len(children) < count:
            children.append(start())


def _submit(
    pool: ThreadPoolExecutor, children: Sequence[_Child], chunks: Sequence[Sequence[Any]]
) -> dict[Future[bytes], int]:
    """Have each chunk read by the next child that is idle; return the chunk of each job."""
    idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
    for child in children:
        idle.put(child)

    def work(chunk: Sequence[Any]) -> bytes:
        child = idle.get()
        try:
            return child.read(chunk)
        finally:
            idle.put(child)

    return {pool.submit(work, chunk): i for i, chunk in enumerate(chunks)}


class _Child:
    """A process that runs `serve` of a module."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - goes with this object
        paths = json.dumps([path for path in sys.path if isinstance(path, str)])
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START.format(module=module), paths, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
        )

    def read(self, chunk: Sequence[Any]) -> bytes:
        """Send a chunk and wait for the answer."""
        assert self.process.stdin and self.process.stdout
        try:
            _send(self.process.stdin, json.dumps(chunk).encode())
            answer = _receive(self.process.stdout)
        except (OSError, ValueError):  # the pipe is broken, or closed by `stop`
            answer = None
        if answer is None:
            raise DataError(
                f"A process that reads code ended with {self.process.wait()} before its "
                f"{len(chunk)} functions were done.",
                fix="try again with processes=1, which needs less memory and shows where it fails",
                details=self._tail(),
            )
        return answer

    def _tail(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode("utf-8", "replace")[-_STDERR_SHOWN:]

    def stop(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                if stream:
                    stream.close()


def serve_with(answer: Callable[[list[Any]], bytes | memoryview]) -> None:
    """Answer each chunk that comes in, until the pipe ends."""
    while (message := _receive(sys.stdin.buffer)) is not None:
        _send(sys.stdout.buffer, answer(json.loads(message)))


def _send(stream: IO[bytes], message: bytes | memoryview) -> None:
    stream.write(_LENGTH.pack(len(message)))
    stream.write(message)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes | None:
    """Return the next message, or None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    message = stream.read(length)
    return message if len(message) == length else None
