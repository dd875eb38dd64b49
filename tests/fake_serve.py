"""The process of `nbhelpers.jobs.serve` without a model: it waits, prints, fails and dies."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from nbhelpers.errors import DataError
from nbhelpers.jobs.serve import Line, serve


def operations(line: Line) -> dict[str, Any]:
    def wait(seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not line.is_cancelled():
            time.sleep(0.01)
        return {"cancelled": line.is_cancelled()}

    def chatter(size: int) -> dict[str, Any]:
        sys.stdout.write("a library prints on stdout" + "x" * size + "\n")
        os.write(1, b'{"id": 1, "result": "forged"}\n')
        sys.stderr.write("and on stderr\n")
        return {"pid": os.getpid()}

    def steps() -> dict[str, Any]:
        line.report("first")
        line.report("second")
        return {}

    def fail(how: str) -> dict[str, Any]:
        sys.stderr.write("a clue in the log\n")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            os._exit(3)
        cuda = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        raise {
            "memory": MemoryError("no room"),
            "cuda": cuda,
            "data": DataError("bad", fix="mend it"),
        }.get(how, KeyError(how))

    def deaf(seconds: float) -> dict[str, Any]:
        time.sleep(seconds)
        return {}

    def environment() -> dict[str, Any]:
        return dict(os.environ)

    return {f.__name__: f for f in (wait, chatter, steps, fail, deaf, environment)}


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    found = Line(int(sys.argv[1]), int(sys.argv[2]))
    serve(found, operations(found))
