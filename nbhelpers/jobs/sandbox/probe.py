"""What a program in the sandbox tries, to tell which protections hold; it runs inside only."""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

_LIBRARY = """
array bisect calendar cmath collections.abc copy csv dataclasses datetime decimal enum fractions
functools hashlib heapq html itertools json math operator queue random re secrets statistics string
struct textwrap threading time typing unicodedata uuid zlib
"""


def _can(action: Callable[[], object]) -> bool:
    try:
        action()
    except OSError:
        return False
    return True


def _open_socket(family: int) -> None:
    socket.socket(family, socket.SOCK_STREAM).close()


def _start_process() -> None:
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _see_environments() -> None:
    others = [p for p in Path("/proc").iterdir() if p.name.isdigit() and p.name != str(os.getpid())]
    if not any(_can((folder / "environ").read_bytes) for folder in others):
        raise PermissionError


def probe(public: str, own: str, open_to_all: str) -> None:
    """Try everything once and print what could be done.

    Args:
        public: A file that everybody may read.
        own: A file that the worker's user alone may read.
        open_to_all: A file outside the program's folder that everybody may write.
    """
    for name in _LIBRARY.split():  # programs would fail for the sandbox's sake
        importlib.import_module(name)
    done = {
        "start a process": _can(_start_process),
        "open a network socket": _can(lambda: _open_socket(socket.AF_INET)),
        "open a local socket": _can(lambda: _open_socket(socket.AF_UNIX)),
        "signal another process": _can(lambda: os.kill(os.getppid(), 0)),  # 0 only asks
        "write outside its folder": _can(lambda: os.open(open_to_all, os.O_WRONLY)),
        "change a file's mode": _can(lambda: Path(open_to_all).chmod(0o600)),
        "read files of this user": _can(Path(own).read_bytes),
        "read files that everybody may read": _can(Path(public).read_bytes),
        "see the environment of other processes": _can(_see_environments),
    }
    sys.stdout.write(json.dumps(done))
    sys.stdout.flush()
