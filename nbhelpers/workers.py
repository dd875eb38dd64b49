"""How a worker is started: its command, its environment, and what its launcher's log tells after.

Only the standard library: the supervisor imports this and must start at once.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WORKER_MODULE = "nbhelpers.jobs.worker"
# For tests: another module in the worker's place.
MODULE_VARIABLE = "NBHELPERS_WORKER_MODULE"
# What another launcher around the notebook left behind would make a single process think that
# it is one of several, or override the precision that the preset decides.
_WORD = "[A-Za-z0-9_]+"  # for Python and for bash alike
FOREIGN_PATTERN = (
    f"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_{_WORD}|ROLE_{_WORD}"
    f"|MASTER_ADDR|MASTER_PORT|NBHELPERS_SUPERVISOR|TORCHELASTIC_{_WORD}|FSDP_{_WORD}|PARALLELISM_CONFIG_{_WORD}"
    f"|ACCELERATE_(USE_{_WORD}|MIXED_PRECISION|DYNAMO_{_WORD}|GRADIENT_{_WORD}|DEEPSPEED_{_WORD}))"
)
_FOREIGN = re.compile(FOREIGN_PATTERN)
# Those of them that a launcher on another node does not set anew, by name.
FOREIGN_NAMES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("GROUP_RANK", "ROLE_RANK", "ACCELERATE_USE_CPU", "ACCELERATE_USE_DEEPSPEED"),
    *("ACCELERATE_USE_FSDP", "ACCELERATE_USE_MEGATRON_LM", "ACCELERATE_USE_PARALLELISM_CONFIG"),
    *("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "NBHELPERS_SUPERVISOR"),
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
    home = Path(__file__).resolve().parent.parent
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
    found = [(int(match["rank"]), int(match["code"])) for match in _FAILURE.finditer(log)]
    signalled = [item for item in found if item[1] < 0 and item[1] != -signal.SIGTERM]
    signalled.sort(key=lambda item: item[1] != -signal.SIGKILL)
    return next(iter(signalled or found[-1:]), None)
