"""Where this process runs (platform, notebook, headless) and what it may use: RAM, CPUs."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import psutil

from nbhelpers.common import processes

ROOT = Path("/")
OWNER_PID_VARIABLE = "NBHELPERS_OWNER_PID"  # a headless runner names itself here
_HEADLESS = {"papermill", "nbconvert", "jupyter-nbconvert", "jupyter-execute", "nbclient"}


def detect_platform(environment: Mapping[str, str] | None = None) -> str:
    """Tell where this process runs: "kaggle", "colab", "jupyter" or "shell".

    Kaggle's image is built on Colab's and carries its variables, so Kaggle is asked first.
    """
    environment = os.environ if environment is None else environment
    if environment.get("KAGGLE_KERNEL_RUN_TYPE"):
        return "kaggle"
    if any(environment.get(name) for name in ("COLAB_RELEASE_TAG", "COLAB_BACKEND_VERSION")):
        return "colab"
    if "google.colab" in sys.modules:
        return "colab"
    return "jupyter" if is_notebook() else "shell"


def is_notebook() -> bool:
    """Whether a Jupyter kernel runs this code: Jupyter, Colab, Kaggle, VS Code, headless or not.

    A terminal's IPython is none: it shows no HTML and no widgets, and its output stays as printed.
    IPython is not imported to find out.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


def find_owner(pid: int | None = None) -> int | None:
    """The headless runner (papermill, nbconvert) above a process, if there is one."""
    for parent in processes.ancestors(os.getpid() if pid is None else pid):
        words = [Path(word).name for word in processes.arguments(parent)[:4]]
        if _HEADLESS.intersection(words):
            return parent
    return None


def is_headless() -> bool:
    """Whether a headless runner executes this process: by its variable, or as an ancestor."""
    return bool(os.environ.get(OWNER_PID_VARIABLE)) or find_owner() is not None


def ram_bytes(root: Path = ROOT) -> tuple[int, int]:
    """Total and available RAM: the machine's or the cgroup's (v1 and v2), whichever is lower.

    Returns:
        (total, available), 0 for what the system does not tell.
    """
    try:
        memory = psutil.virtual_memory()
        total, available = memory.total, memory.available
    except (OSError, psutil.Error):
        total = available = 0
    for limit, used in _cgroup_memory(root):
        total = min(total, limit) if total else limit
        free = max(limit - used, 0)
        available = min(available, free) if available else free
    return total, available


def _cgroup_memory(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, use that cannot be reclaimed) of each cgroup around this process that has a limit."""
    layouts = (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    for controller, limit_file, usage_file, cache in layouts:
        for folder in _cgroups(root, controller):
            limit = _number(folder / limit_file)
            if limit is None or limit >= 2**60:  # v1 writes "no limit" as nearly 2**63
                continue
            reclaimable = 0
            for line in _lines(folder / "memory.stat"):
                name, _, size = line.partition(" ")
                if name == cache and size.strip().isdigit():
                    reclaimable = int(size)
            used = (_number(folder / usage_file) or 0) - reclaimable
            yield limit, max(used, 0)


def cpu_count(root: Path = ROOT) -> int:
    """CPUs that this process may use: its affinity, and the cgroup's quota rounded up."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    for quota in _cgroup_cpus(root):
        count = min(count, max(1, math.ceil(quota)))
    return count


def _cgroup_cpus(root: Path) -> Iterator[float]:
    for folder in _cgroups(root, ""):
        for line in _lines(folder / "cpu.max"):
            quota, _, period = line.partition(" ")
            if quota.isdigit() and period.strip().isdigit() and int(period):
                yield int(quota) / int(period)
    for folder in _cgroups(root, "cpu"):
        quota_us = _number(folder / "cpu.cfs_quota_us")
        period_us = _number(folder / "cpu.cfs_period_us")
        if quota_us and period_us:
            yield quota_us / period_us


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's cgroup and its ancestors; `controller` is "" for cgroup v2.

    Inside a container the path in /proc/self/cgroup may be the host's and not exist here: then only
    the mounted root is left, which is the container's own cgroup.
    """
    mount = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        parts = line.split(":", 2)
        if len(parts) != 3 or controller not in parts[1].split(","):
            continue
        for name in dict.fromkeys((parts[1], controller)):
            base = mount / name
            path = PurePosixPath(parts[2].lstrip("/"))
            folders = [
                base / folder for folder in (path, *path.parents) if (base / folder).is_dir()
            ]
            if folders:
                yield from dict.fromkeys(folders)
                break


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """The number in a file; None for no file, "max" and a negative number (both: no limit)."""
    text = "".join(_lines(path)[:1]).strip()
    return int(text) if text.isdigit() else None


def foreign_accelerator(root: Path = ROOT) -> str:
    """Name a GPU that is not NVIDIA's ("AMD", "Apple"), or "" for none seen."""
    if sys.platform == "darwin":
        return "Apple"
    return "AMD" if (root / "dev/kfd").exists() else ""


def has_nvidia_hardware(root: Path = ROOT) -> bool:
    """Whether the PCI bus shows an NVIDIA display or compute device, driver or not."""
    for device in (root / "sys/bus/pci/devices").glob("*"):
        vendor = "".join(_lines(device / "vendor")[:1]).strip()
        kind = "".join(_lines(device / "class")[:1]).strip()
        if vendor == "0x10de" and kind.startswith("0x03"):
            return True
    return False
