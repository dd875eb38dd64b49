"""A folder that behaves as a mounted drive: no locks, slow renames, listings that come late.

`apply` changes this process; the environment of `environment` changes every process below it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Any

import pytest

RENAME_S, LATE_S = 0.05, 1.0
VARIABLE = "SLOW_DRIVE"


class Listing:
    """Entries of `os.scandir` that are old enough to be seen."""

    def __init__(self, entries: Any) -> None:
        self._entries, self._now = entries, time.time()

    def __iter__(self) -> Listing:
        return self

    def __next__(self) -> os.DirEntry[str]:
        return next(
            e for e in self._entries if self._now - e.stat(follow_symlinks=False).st_ctime > LATE_S
        )

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *_: object) -> None:
        self._entries.close()

    def close(self) -> None:
        self._entries.close()


def apply(folder: str) -> None:
    """Make all that lies in `folder` slow, late and without locks."""
    real = {name: getattr(os, name) for name in ("replace", "rename", "scandir", "listdir")}

    def is_there(path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.path.realpath(path).startswith(folder)

    def slow(name: str) -> Any:
        def move(source: Any, target: Any, **options: Any) -> None:
            if is_there(target):
                time.sleep(RENAME_S)
            real[name](source, target, **options)

        return move

    def scandir(path: Any = ".") -> Any:
        entries = real["scandir"](path)
        return Listing(entries) if is_there(path) else entries

    def listdir(path: Any = ".") -> list[str]:
        if not is_there(path):
            return real["listdir"](path)
        with scandir(path) as entries:
            return [entry.name for entry in entries]

    def flock(file: Any, operation: int) -> None:
        raise OSError(errno.ENOTSUP, "no locks here")

    os.replace, os.rename, os.scandir, os.listdir = (
        slow("replace"),
        slow("rename"),
        scandir,
        listdir,
    )
    fcntl.flock = flock


def environment(site: Path, folder: Path, python_path: str) -> dict[str, str]:
    """The variables with which Python's processes begin by `apply(folder)`."""
    site.mkdir()
    code = f"import os, slow_drive\nslow_drive.apply(os.environ['{VARIABLE}'])\n"
    (site / "sitecustomize.py").write_text(code)
    path = os.pathsep.join([str(site), str(Path(__file__).parent), python_path])
    return {VARIABLE: os.path.realpath(folder), "PYTHONPATH": path}


def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python_path: str) -> Path:
    """Return such a folder, for this process and, by the environment, for all that it starts."""
    folder = tmp_path / "drive"
    folder.mkdir()
    for module, names in ((os, ("replace", "rename", "scandir", "listdir")), (fcntl, ("flock",))):
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name))  # put back at the end
    for name, value in environment(tmp_path / "site", folder, python_path).items():
        monkeypatch.setenv(name, value)
    apply(os.environ[VARIABLE])
    return folder
