"""The process that holds a model for a notebook: `python -m nbhelpers.jobs.serve IN OUT`.

IN and OUT are descriptors of pipes. A line of IN is {"id", "op", "args"} or {"cancel": id}; a
line of OUT is {"id", "result"}, {"id", "error": {"kind", "message", "fix", "details"}} or
{"progress"}. The end of IN, or of the process that started this one, ends it.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from nbhelpers.common.processes import (
    SUPERVISOR_VARIABLE,
    WATCH_S,
    collect_garbage_again,
    is_alive,
)
from nbhelpers.errors import JobFailed, NbhelpersError, OutOfMemory, is_out_of_memory


class Line:
    """The pipes, and which request is to be stopped."""

    def __init__(self, requests: int, replies: int) -> None:
        """Listen at once, in a thread: the notebook may go while an answer is made."""
        self.requests, self.replies = requests, replies
        self.queue: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.cancelled: set[int] = set()
        self.current = 0
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=_end_with_starter, daemon=True).start()

    def _listen(self) -> None:
        with os.fdopen(self.requests, "rb") as pipe:
            for line in pipe:
                message = json.loads(line)
                if "cancel" in message:
                    self.cancelled.add(message["cancel"])
                else:
                    self.queue.put(message)
        os._exit(0)  # nobody is left to answer, and nothing here is worth a clean end

    def send(self, message: dict[str, Any]) -> None:
        """Write one line."""
        data = memoryview(json.dumps(message, default=float).encode() + b"\n")
        while data:
            data = data[os.write(self.replies, data) :]

    def report(self, text: Any) -> None:
        """Tell how far it is."""
        self.send({"progress": text})

    def is_cancelled(self) -> bool:
        """Whether the request at hand is to be stopped."""
        return self.current in self.cancelled


def _end_with_starter() -> None:
    """End this process when the one that started it is gone.

    A closed pipe tells the same, unless a fork of the starter holds it open.
    """
    pid, _, started = os.environ.get(SUPERVISOR_VARIABLE, "").partition(":")
    while pid.isdigit() and is_alive(int(pid), started):
        time.sleep(WATCH_S)
    os._exit(1)


def serve(line: Line, operations: dict[str, Callable[..., dict[str, Any]]]) -> None:
    """Answer requests, one at a time, without end."""
    gc.disable()  # until the first is answered, which loads libraries and a model
    while True:
        message = line.queue.get()
        line.current = message["id"]
        try:
            reply = {"result": operations[message["op"]](**message["args"])}
        except Exception as error:
            reply = {"error": _described(error)}
        line.send({"id": line.current} | reply)
        collect_garbage_again()


def _described(error: Exception) -> dict[str, str]:
    if isinstance(error, NbhelpersError):
        known = error
    else:
        traceback.print_exc()
        known = _translated(error)
    fields = {"message": known.message, "fix": known.fix, "details": known.details}
    return {"kind": type(known).__name__, **fields}


def _translated(error: Exception) -> NbhelpersError:
    """Name foreign errors; what a starved answer held is given back, and the model stays."""
    text = f"{type(error).__name__}: {error}"
    if is_out_of_memory(error):
        _release(error)
        return OutOfMemory(
            "The model's process ran out of memory.",
            fix="ask for fewer prompts at once or fewer max_new_tokens, close other models, or "
            "load with device='cpu'",
            details=text[:2000],
        )
    if isinstance(error, OSError) and error.errno == 28:
        return NbhelpersError(f"The disk is full: {error}.", fix="free space, then try again")
    return JobFailed(text[:2000], fix="read the end of its log below")


def _release(error: BaseException) -> None:
    traceback.clear_frames(error.__traceback__)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def main(requests: int, replies: int) -> None:
    """Serve until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook cancels by a message
    line = Line(requests, replies)
    from nbhelpers.jobs.worker import quiet_libraries

    quiet_libraries()
    from nbhelpers.jobs.serve_model import operations

    serve(line, operations(line))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
