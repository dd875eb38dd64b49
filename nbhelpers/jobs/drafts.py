"""Folders that are written aside and renamed when they are whole; one of somebody else is kept."""

from __future__ import annotations

import shutil
from pathlib import Path

from nbhelpers.common.files import read_json, write_json
from nbhelpers.errors import ConfigError
from nbhelpers.use.trained import FACTS_NAME

DRAFT = "draft"
_KINDS = (DRAFT, "merged", "adapter", "detector")


def require_ours(folder: Path) -> Path:
    """Return a folder that may be replaced: an empty place, or a draft that was left behind.

    Raises:
        ConfigError: Something else lies there.
    """
    is_link = folder.is_symlink()
    if not is_link and (not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))):
        return folder
    facts = {} if is_link else read_json(folder / FACTS_NAME) or {}
    if facts.get("kind") not in _KINDS:
        raise ConfigError(
            f"{folder} is needed for a while, and something else lies there.",
            fix=f"move {folder.name} away, or name another folder to write",
        )
    return folder


def start(folder: Path) -> None:
    """Make a draft's folder anew, marked as one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(folder / FACTS_NAME, {"schema": 1, "kind": DRAFT})


def open_up(folder: Path) -> None:
    """Give the files of a finished folder the mode of its facts: what the umask makes of new files.

    `safetensors` (seen with 0.8) makes its files readable for their owner alone.
    """
    mode = (folder / FACTS_NAME).stat().st_mode & 0o666
    for path in folder.iterdir():
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)
