"""A lock between processes that also works where `flock` does not, such as a mounted drive."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

from nbhelpers.errors import LaunchError

_UNSUPPORTED = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}
STALE_S = 120.0


@contextlib.contextmanager
def locked(path: Path, *, timeout_s: float = 90.0) -> Iterator[None]:
    """Hold the lock file `path`; the end of the process frees it.

    Where the file system has no locks, a second file made in one step stands for the lock; one
    that is older than two minutes was left behind and is taken over.

    Raises:
        LaunchError: another process holds the lock for too long.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
    substitute = path.with_name(path.name + ".held")
    deadline = time.monotonic() + timeout_s
    used = None
    try:
        while used is None:
            used = _try_flock(descriptor)
            if used == "unsupported":
                used = _try_create(substitute)
            if used is None and time.monotonic() > deadline:
                fix = f"Wait for the other launch, or delete {substitute} when there is none."
                raise LaunchError(f"Another launch has held {path} for {timeout_s:g} s.", fix=fix)
            if used is None:
                time.sleep(0.05)
        yield
    finally:
        if used == "created":
            substitute.unlink(missing_ok=True)
        os.close(descriptor)


def _try_flock(descriptor: int) -> str | None:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return "unsupported" if error.errno in _UNSUPPORTED else None
    return "locked"


def _try_create(path: Path) -> str | None:
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > STALE_S:
            path.unlink()
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return None
    return "created"
