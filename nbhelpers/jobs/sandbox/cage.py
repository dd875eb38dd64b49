"""What a process gives up before it runs a generated program; standard library alone.

The order matters: paths are opened while they can be reached, the user is changed while that is
allowed, and the filter of system calls comes last, as it forbids all the steps before it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import stat
import sys
from pathlib import Path
from typing import Any

from . import landlock, seccomp

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION = 0x20080522
_CAP_CHOWN, _CAP_SETGID, _CAP_SETUID = 0, 6, 7
_NEW_USER, _NEW_OTHERS = 0x10000000, 0x40000000 | 0x08000000 | 0x04000000  # network, ipc, uts
_READABLE = [
    *("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/nix/store"),
    *("/usr/share/zoneinfo", "/etc/localtime", "/etc/ld.so.cache", "/dev/urandom", "/dev/random"),
]
_DEVICES = ["/dev/null", "/dev/zero"]
_NOBODY = 65534
OPEN_FILES, THREADS = 64, 32


def _prctl(option: int, value: int = 0) -> None:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    word = ctypes.c_ulong
    if prctl(ctypes.c_int(option), word(value), word(0), word(0), word(0)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def spare_user(pid: int) -> int | None:
    """A user id of its own for the program of this process; None where ids cannot be changed.

    A high number that no account has; inside a container that maps few ids, one that
    distributions leave free, else `nobody`.
    """
    if os.geteuid() != 0 or not _may_change_users():
        return None
    rows = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    ranges = [(int(first), int(first) + int(count)) for first, _, count in rows]
    for candidate in (1_900_000_000 + pid, 60_100 + pid % 4_000, _NOBODY):
        if any(low <= candidate < high for low, high in ranges):
            return candidate
    return None


def _may_change_users() -> bool:
    """Whether root still has what containers can take away from it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    mask = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return all(mask >> bit & 1 for bit in (_CAP_CHOWN, _CAP_SETGID, _CAP_SETUID))


def _reach_library() -> None:
    """Keep Python's own modules importable for a user who may not enter the folders above them.

    A descriptor names a folder without the path to it.
    """
    moved: dict[str, str] = {}
    for entry in sys.path:
        above = [Path(entry), *Path(entry).parents]
        closed = [folder for folder in above if not _is_open_to_all(folder)]
        if closed and Path(entry).is_dir():
            descriptor = os.open(entry, os.O_PATH)
            moved[entry] = f"/proc/self/fd/{descriptor}"
    sys.path[:] = [moved.get(entry, entry) for entry in sys.path]
    sys.path_importer_cache.clear()
    for module in list(sys.modules.values()):
        places = getattr(module, "__path__", None)
        for index, place in enumerate(places if isinstance(places, list) else []):
            for old, new in moved.items():
                if place.startswith(old + "/"):
                    places[index] = new + place[len(old) :]


def _is_open_to_all(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & stat.S_IXOTH)
    except OSError:
        return False


def _limit(**limits: int) -> None:
    for name, wanted in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))


def _try_unshare(flags: int) -> bool:
    return ctypes.CDLL(None, use_errno=True).unshare(ctypes.c_int(flags)) == 0


def _become(user: int) -> bool:
    """Change to a user without groups; False where the capability for it was taken away."""
    try:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    except OSError:
        if os.getresuid() != (0, 0, 0) or os.getegid() != 0:
            raise  # half changed: not a state to run anything in
        return False
    return True


def _drop_capabilities() -> None:
    with contextlib.suppress(OSError):  # kernels before 4.3 have no ambient set
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    if ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "the capabilities could not be dropped")


def enter(request: dict[str, Any], user: int | None, parent: int) -> dict[str, Any]:
    """Give up everything; the rest of this process's life is spent inside.

    Args:
        request: `folder`, `timeout_s`, `memory_bytes`, `file_bytes` and `without`, the names of
            protections that a test leaves out.
        user: Whom to become; None stays.
        parent: The process whose end is to end this one.

    Returns:
        What is in force: `user`, `landlock`, `namespaces`, `folder_writable`.

    Raises:
        OSError: A protection without which nothing may run could not be had.
    """
    without: list[str] = request["without"]
    os.setsid()
    with contextlib.suppress(OSError):  # the first one to go when the machine runs out of memory
        Path("/proc/self/oom_score_adj").write_text("1000")
    os.chdir(request["folder"])
    rules, known = None, landlock.version()
    if "landlock" not in without:
        readable = [*sys.path, f"{sys.base_prefix}/lib", *_READABLE]
        rules = landlock.prepare(readable=readable, devices=_DEVICES, folder=request["folder"])
    apart = "namespaces" not in without and _try_unshare(_NEW_OTHERS)
    seconds = int(request["timeout_s"]) + 2
    _limit(CPU=seconds, FSIZE=request["file_bytes"], NOFILE=OPEN_FILES, CORE=0, MEMLOCK=0)
    if user is not None:
        _reach_library()
        if _become(user):
            _limit(NPROC=THREADS)
        else:
            user = None
    if not apart and "namespaces" not in without:
        apart = _try_unshare(_NEW_USER | _NEW_OTHERS)
    _drop_capabilities()
    _seal(rules, parent)
    _limit(AS=request["memory_bytes"])
    seccomp.install(os.getpid(), writable=rules is not None)
    return {
        "user": user,
        "landlock": 0 if rules is None else known,
        "namespaces": apart,
        "folder_writable": rules is not None,
    }


def _seal(rules: int | None, parent: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)  # no other program of this user may look inside
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user would have cleared it
    if os.getppid() != parent:
        os._exit(1)
    if rules is not None:
        landlock.restrict(rules)
