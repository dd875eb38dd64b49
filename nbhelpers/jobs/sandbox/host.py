"""Is this machine a container, and what would a generated program still reach on it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

# What a program in the sandbox must not be able to do; named as `probe` names it.
ESSENTIAL = (
    "start a process",
    "open a network socket",
    "open a local socket",
    "signal another process",
    "write outside its folder",
    "change a file's mode",
)
SEE_ENVIRONMENTS = "see the environment of other processes"
READ_OWN, READ_PUBLIC = "read files of this user", "read files that everybody may read"
_ALWAYS = (
    "What no sandbox of this kind keeps off: a fault of the operating system's kernel; a program "
    "that keeps the processor busy until its time limit; and a program that makes its own tests "
    "pass by changing the Python it runs in."
)
_REACHED = {
    READ_OWN: "A generated program can read your files here; it can neither change them nor send "
    "them anywhere.",
    SEE_ENVIRONMENTS: "It can read the environment of your other processes, with tokens that "
    "stand there; it cannot send them anywhere, and the run hides its own meanwhile.",
    READ_PUBLIC: "It can read files that every user of this machine may read.",
}

_PLATFORMS = {
    "KAGGLE_KERNEL_RUN_TYPE": "Kaggle",
    "COLAB_RELEASE_TAG": "Colab",
    "COLAB_BACKEND_VERSION": "Colab",
    "KUBERNETES_SERVICE_HOST": "Kubernetes",
}
_FILES = {".dockerenv": "Docker", "run/.containerenv": "Podman"}
_CGROUP = re.compile(r"docker|kubepods|containerd|libpod|crio|lxc|machine\.slice|\.nspawn")
# Containers that lend the user's own home folder: not a fence around anything of value.
_SHARING = {"APPTAINER_CONTAINER": "Apptainer", "SINGULARITY_CONTAINER": "Singularity"}
_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, fixed in linux/proc_ns.h


def container(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> str | None:
    """What was seen of a container around this process; None when nothing was.

    Args:
        root: Where `/proc`, `/run` and the marks of containers lie.
        environ: The process's environment.

    >>> container(Path("/nowhere"), {"COLAB_RELEASE_TAG": "release-colab"})
    'Colab (COLAB_RELEASE_TAG is set)'
    """
    if any(name in environ for name in _SHARING) or (root / ".flatpak-info").exists():
        return None
    seen = [f"{what} ({name} is set)" for name, what in _PLATFORMS.items() if name in environ]
    seen += [f"{what} (/{name} exists)" for name, what in _FILES.items() if (root / name).exists()]
    if manager := _read(root / "run/systemd/container").strip() or environ.get("container", ""):
        seen.append(f"{manager} (as systemd says)")
    if cgroup := _CGROUP.search(_read(root / "proc/1/cgroup")):
        seen.append(f"{cgroup[0]} (in /proc/1/cgroup)")
    if not seen and _has_own_processes(root):
        seen.append("a process namespace of its own (/proc/self/ns/pid)")
    return ", ".join(seen) or None


def _has_own_processes(root: Path) -> bool:
    """Whether process ids are this container's own; Windows' Linux has that without a fence."""
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = str((root / "proc/self/ns/pid").readlink())
    is_windows = "microsoft" in _read(root / "proc/version").lower()
    return namespace.startswith("pid:") and namespace != _FIRST_PID_NAMESPACE and not is_windows


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def sharing(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> str | None:
    """A container that shares the user's home folder, by name."""
    names = [what for name, what in _SHARING.items() if name in environ]
    if (root / ".flatpak-info").exists():
        names.append("Flatpak")
    return names[0] if names else None


def warning(reached: Sequence[str]) -> str:
    """What is not protected, in sentences.

    Args:
        reached: What a program in the sandbox could do, as `probe` names it.
    """
    return " ".join([text for name, text in _REACHED.items() if name in reached] + [_ALWAYS])
