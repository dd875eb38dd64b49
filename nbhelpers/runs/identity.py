"""Who a run is: its id, a stamp of its local data, and the versions that `run.json` records."""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbhelpers.common.files import expanded, is_file, kind_of
from nbhelpers.presets.jobs import JOBS, bundled
from nbhelpers.presets.schema import telling

_EDGE_BYTES = 1 << 20
_MAX_FILES = 1000


def run_id(
    job: str,
    settings: Mapping[str, Any],
    *,
    mode: str = "train",
    checkpoint: str | None = None,
    stamp: str = "",
) -> str:
    """The name of a run: equal for equal settings, mode, checkpoint and data.

    >>> run_id("clones", {"model": "microsoft/CodeGPT-small", "seed": 3})
    'clones-codegpt-small-4f6a01a609'
    """
    identity = {"settings": telling(JOBS[job].settings, settings), "mode": mode}
    identity |= {"checkpoint": checkpoint, "data": stamp}
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return f"{job}-{slug(str(settings.get('model', 'model')))}-{digest}"


def slug(model: str) -> str:
    """The last part of a hub id or a path, in lower case letters, digits and hyphens.

    >>> slug("microsoft/CodeGPT-small-java-adaptedGPT2")
    'codegpt-small-java-adaptedgpt2'
    """
    last = model.rstrip("/\\").replace("\\", "/").rpartition("/")[2]
    return re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-")[:40].strip("-") or "model"


def folder_stamp(*places: str | None) -> str:
    """A stamp of what lies in local files and folders; "" for hub ids and names.

    It covers names, sizes and both ends of each file, not the times: a copy has the same stamp.
    """
    digest, is_empty = hashlib.sha256(), True
    for place in places:
        for name, path in _files(place):
            is_empty = False
            digest.update(f"{name}\0{path.stat().st_size}\0".encode())
            digest.update(_edges(path))
    return "" if is_empty else digest.hexdigest()[:16]


def _files(place: str | None) -> list[tuple[str, Path]]:
    if not place or place in bundled():
        return []
    kind = kind_of(place)
    if kind not in ("file", "folder"):  # the name of something on the hub
        return []
    root = expanded(place)
    if kind == "file":
        return [(root.name, root)]
    with contextlib.suppress(OSError):  # a folder that changes meanwhile
        files = sorted(path for path in root.rglob("*") if is_file(path))
        return [(path.relative_to(root).as_posix(), path) for path in files[:_MAX_FILES]]
    return []


def _edges(path: Path) -> bytes:
    """Both ends of a file; nothing of one that may not be read: the run itself will name it."""
    with contextlib.suppress(PermissionError), path.open("rb") as file:
        head = file.read(_EDGE_BYTES)
        size = path.stat().st_size
        file.seek(max(size - _EDGE_BYTES, len(head)))
        return hashlib.sha256(head + file.read(_EDGE_BYTES)).digest()
    return b""


def versions() -> dict[str, str]:
    """The versions known without importing anything heavy."""
    import nbhelpers

    return {"python": platform.python_version(), "nbhelpers": nbhelpers.__version__}


def git_commit(root: Path | None = None) -> str | None:
    """The commit of the checkout that holds this package; None outside one, or without git."""
    root = root or Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # a folder, or the file of a worktree
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    with contextlib.suppress(OSError):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() or None if done.returncode == 0 else None
    return None
