"""Paths that a person typed: asked about without a crash, whatever they hold.

`pathlib` raises OSError for a name too long or a folder that may not be searched, ValueError for a
NUL and RuntimeError for an unknown `~name`. Here these are answers, or one typed error.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from nbhelpers.errors import ConfigError


def expanded(path: str | os.PathLike[str], name: str = "the path") -> Path:
    """Return a path with `~` resolved; `name` is how the error calls it.

    >>> expanded("runs").as_posix()
    'runs'

    Raises:
        ConfigError: It is no path at all, holds a NUL, or names a user that is not there.
    """
    try:
        text = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str) or "\0" in text:
        raise ConfigError(f"{name} is {path!r}, which is no path.", fix="give a path as text")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{name} is {text!r}, and the home folder in it is unknown.",
            fix="write the whole path, without ~",
        ) from error


def kind_of(path: str | os.PathLike[str]) -> str:
    """Say what is at a path: "file", "folder", "other", "forbidden", or "" for nothing.

    Links are followed; a loop of them is nothing. "forbidden": a folder above may not be searched.

    >>> kind_of("/"), kind_of("/no/such/place"), kind_of("x" * 5000), kind_of("a\\0b")
    ('folder', '', '', '')
    """
    try:
        mode = expanded(path).stat().st_mode
    except PermissionError:
        return "forbidden"
    except (OSError, ValueError, ConfigError):
        return ""
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"


def absence(path: str | os.PathLike[str]) -> str:
    """Say why there is nothing to use at a path, as the end of a sentence.

    >>> absence("/no/such/place")
    'does not exist'
    """
    kind = kind_of(path)
    found = {"": "does not exist", "folder": "is a folder", "file": "is a file"}
    return found.get(kind, "cannot be looked at" if kind == "forbidden" else "is no plain file")


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is there that can be asked about."""
    return kind_of(path) == "folder"


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether a regular file is there that can be asked about."""
    return kind_of(path) == "file"
