"""Processes: facts about them, ways to end them, and how a worker is started."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import re
import shlex
import shutil
import signal
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

# ------------------------------------------------------------------------------------------------
# Facts about processes, and ways to end them.
#
# A pid alone names nothing for long: it is recycled. Here a process is a pid with its start time.


LAUNCH_VARIABLE = "NBHELPERS_LAUNCH_ID"
SUPERVISOR_VARIABLE = "NBHELPERS_SUPERVISOR"
WATCH_S = 0.5
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PROC = Path("/proc")


def start_time(pid: int) -> str | None:
    """The start time of a process as the system words it; None when it is gone or a zombie.

    On Linux it is in clock ticks since boot, which no change of the clock moves, as psutil's
    seconds.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            text = (_PROC / str(pid) / "stat").read_text(errors="replace")
            fields = text.rpartition(")")[2].split()  # the name may hold spaces and brackets
            return None if fields[0] in "ZX" else fields[19]
        return None
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return None if is_zombie else str(process.create_time())
    return None


def is_alive(pid: int, started: str | None) -> bool:
    """Whether the process that had this pid and this start time still runs."""
    return started is not None and start_time(pid) == started


def shell_command() -> str:
    """The command `nbhelpers` as it can be typed here: by this Python where PATH has none."""
    python = shlex.quote(sys.executable)
    return "nbhelpers" if shutil.which("nbhelpers") else f"{python} -m nbhelpers"


def descendants(root: int) -> list[int]:
    """All living processes below `root`, parents first."""
    with contextlib.suppress(psutil.Error, OSError):
        below = [child.pid for child in psutil.Process(root).children(recursive=True)]
        return [pid for pid in below if start_time(pid)]
    return []


def ancestors(pid: int, levels: int = 6) -> list[int]:
    """The parents of a process, nearest first, at most `levels` of them, without process 1."""
    with contextlib.suppress(psutil.Error, OSError):
        parents = psutil.Process(pid).parents()[:levels]
        return [parent.pid for parent in parents if parent.pid > 1]
    return []


def arguments(pid: int) -> list[str]:
    """The command line of a process; [] when it cannot be read."""
    with contextlib.suppress(psutil.Error, OSError):
        return psutil.Process(pid).cmdline()
    return []


def of_launch(launch_id: str) -> list[int]:
    """Processes that a launch started, wherever they hang in the tree."""
    pids = []
    for process in psutil.process_iter() if launch_id else ():
        with contextlib.suppress(psutil.Error, OSError):
            is_ours = process.environ().get(LAUNCH_VARIABLE) == launch_id
            if is_ours and process.pid != os.getpid() and start_time(process.pid):
                pids.append(process.pid)
    return pids


@functools.cache
def machine() -> dict[str, str]:
    """What tells this machine, this boot and this container apart; "" where unknown."""
    boot_id = namespace = ""
    with contextlib.suppress(OSError):
        boot_id = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    with contextlib.suppress(OSError):
        namespace = str((_PROC / "self/ns/pid").readlink())
    return {"host": socket.gethostname(), "boot_id": boot_id, "pid_namespace": namespace}


def send(pids: list[int], number: int) -> None:
    """Signal each process; the gone and the forbidden are skipped."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end(
    find: Callable[[], list[int]],
    *,
    grace_s: float = 5.0,
    limit_s: float = 10.0,
    reap: Callable[[], object] = lambda: None,
) -> int:
    """End every process that `find` names: TERM, a grace time, then KILL until none is left.

    Args:
        find: Called again and again, as processes may start children while they end.
        grace_s: Time between TERM and KILL; 0 kills at once.
        limit_s: How long to insist; a process in uninterruptible sleep cannot be killed.
        reap: Collects ended children of the caller, so that they stop being zombies.

    Returns:
        How many processes were found at first.
    """
    first = find()
    if first and grace_s > 0:
        send(first, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and find():
        reap()
        time.sleep(0.05)
    deadline = time.monotonic() + limit_s
    while (left := find()) and time.monotonic() < deadline:
        send(left, signal.SIGKILL)
        reap()
        time.sleep(0.02)
    return len(first)


def _prctl(option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):
        return ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0
    return False


def collect_garbage_again() -> None:
    """Let Python look for garbage where it was told not to, but not among what is loaded by now.

    Loading torch and its kin makes no garbage; looking for it took a fifth of a worker's start.
    """
    if not gc.isenabled():
        gc.enable()
        gc.freeze()


@contextlib.contextmanager
def garbage_stays() -> Iterator[None]:
    """Look for no garbage meanwhile, where none is made; also a decorator.

    Among millions of small objects the search took half of the time in which they were made.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def adopt_orphans() -> bool:
    """Make this process the new parent of orphans below it: none leaves its tree (Linux)."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """Have the system kill this process when its parent ends (Linux); exit when it already has."""
    if _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) and os.getppid() != parent:
        os._exit(1)


def die_with_parent() -> bool:
    """Tie this worker's life to its parent's and to its supervisor's; every rank calls it first.

    The system kills the worker with its parent (Linux). A thread looks at the parent and at the
    supervisor twice a second, and kills the worker's own process group when either is gone.

    Returns:
        False when no supervisor started this process: then nothing is tied, and a worker that is
        run by hand lives as its shell says.
    """
    pid, _, started = os.environ.get(SUPERVISOR_VARIABLE, "").partition(":")
    if not pid.isdigit():
        return False
    parent = os.getppid()
    die_with(parent)
    watch = functools.partial(_watch, parent, int(pid), started)
    threading.Thread(target=watch, name="nbhelpers-watch", daemon=True).start()
    return True


def _watch(parent: int, supervisor: int, started: str) -> None:
    while os.getppid() == parent and is_alive(supervisor, started):
        time.sleep(WATCH_S)
    if os.getpgrp() == os.getpid():  # only a group of our own: never the caller's shell
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


# ------------------------------------------------------------------------------------------------
# How a worker is started: its command, its environment, and what its launcher's log tells after.


WORKER_MODULE = "nbhelpers.jobs.worker"
# For tests: another module in the worker's place.
MODULE_VARIABLE = "NBHELPERS_WORKER_MODULE"
# What another launcher around the notebook left behind would make a single process think that
# it is one of several, or override the precision that the preset decides.
_FOREIGN = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|NBHELPERS_SUPERVISOR"
    r"|(GROUP|ROLE|TORCHELASTIC|FSDP|PARALLELISM_CONFIG)_\w+"
    r"|ACCELERATE_(MIXED_PRECISION|(USE|DYNAMO|GRADIENT|DEEPSPEED)_\w+))"
)
_FAILURE = re.compile(
    r"^\s*rank\s*: (?P<rank>\d+) \(local_rank: \d+\)\s*"
    r"^\s*exitcode\s*: (?P<code>-?\d+) \(pid: \d+\)",
    re.MULTILINE,
)


# Threads that spin while they wait for one another crawl on cores that other programs use.
_SOFT = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false", "PYTHONFAULTHANDLER": "1"}
_HARD = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
_HARD |= {"MPLBACKEND": "Agg", "PYTHONUNBUFFERED": "1"}
_ON_CPU = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}


def free_port() -> int:
    """A TCP port that is free now; another program may take it before the worker does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def worker_command(
    folder: Path,
    plan: Mapping[str, Any],
    *,
    python: str = sys.executable,
    module: str = WORKER_MODULE,
    port: int | None = None,
) -> list[str]:
    """The command that starts a run's worker: directly, by Accelerate, or by torchrun on CPUs.

    `accelerate launch` started a single process when it was asked for two on a CPU, hence torchrun.
    """
    size = int(plan["world_size"])
    start = ["-m", module, str(folder)]
    if size == 1:
        return [python, *start]
    if not plan["use_gpu"]:
        run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
        return [python, *run, *start]
    options = {"--num_processes": size, "--num_machines": 1, "--gpu_ids": "all"}
    options |= {"--mixed_precision": "no", "--dynamo_backend": "no"}
    options |= {"--main_process_port": port or free_port()}
    flags = [str(word) for option in options.items() for word in option]
    return [python, "-m", "accelerate.commands.launch", "--multi_gpu", *flags, *start]


def worker_environment(
    base: Mapping[str, str], plan: Mapping[str, Any], *, cpu_count: int | None = None
) -> dict[str, str]:
    """The environment of a worker: `base` without foreign launchers' traces, with what it needs."""
    env = {name: value for name, value in base.items() if not _FOREIGN.fullmatch(name)}
    threads = max(1, (cpu_count or available_cpus()) // int(plan["world_size"]))
    env = _SOFT | {"OMP_NUM_THREADS": str(threads)} | env | _HARD
    return with_package(env if plan["use_gpu"] else env | _ON_CPU)


def node_environment(use_gpu: bool) -> dict[str, str]:
    """What a line or script for another node must set: that node's environment is not known here.

    Where this package is not installed, PYTHONPATH names its folder here, and nothing else.
    """
    return with_package(_SOFT | _HARD | ({} if use_gpu else _ON_CPU))


def with_package(base: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a child imports this very package, installed or not.

    PYTHONSAFEPATH keeps the working directory out of the child's import path: a user's
    `datasets.py` beside a notebook would hide the library of that name.
    """
    env = dict(base, PYTHONSAFEPATH="1")
    home = Path(__file__).resolve().parents[2]
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    if home not in installed:
        known = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
        env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(home), *known]))
    return env


def available_cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def first_failure(log: str) -> tuple[int, int] | None:
    """The rank that failed first and its exit code, from torchrun's report in the launcher's log.

    A rank that was killed comes before the root cause that the report names (its last entry), as
    the others fail when they lose it. SIGTERM does not count: the launcher sends it to the rest.

    >>> first_failure("  rank      : 1 (local_rank: 1)\\n  exitcode  : -9 (pid: 77) (SIGKILL)")
    (1, -9)
    """
    failures = [(int(match["rank"]), int(match["code"])) for match in _FAILURE.finditer(log)]
    signalled = [item for item in failures if item[1] < 0 and item[1] != -signal.SIGTERM]
    signalled.sort(key=lambda item: item[1] != -signal.SIGKILL)
    return next(iter(signalled or failures[-1:]), None)
