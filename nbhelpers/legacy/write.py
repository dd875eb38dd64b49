"""Files on the disk: a repaired script with its backup, in one step, and a launcher."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
import tempfile
from pathlib import Path

from nbhelpers.common.files import absence, kind_of
from nbhelpers.errors import ConfigError


def resolve_target(path: Path) -> Path:
    """Return the file itself where a path is a link to it, so that the link stays one.

    Raises:
        ConfigError: The links lead nowhere.
    """
    try:
        if not path.is_symlink():
            return path
    except OSError:  # a name too long: the reader says so
        return path
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        text = f"{path} is a link that leads to no file. Nothing was changed."
        raise ConfigError(text, fix="name the script itself") from error


def replace_script(path: Path, before: bytes, after: bytes) -> Path:
    """Write a script anew in one step, with its mode, and return the path of its backup.

    Args:
        path: The file itself, no link.
        before: What it held when it was read.
        after: What it is to hold.

    Raises:
        ConfigError: It may not be written, or someone else has changed it meanwhile.
    """
    try:
        if not os.access(path, os.W_OK):
            raise PermissionError(13, "Permission denied")
        mode = stat.S_IMODE(path.stat().st_mode)
        draft = _draft(path, after, mode)
        try:
            if path.read_bytes() != before:
                text = f"{path} was changed by someone else just now. Nothing was changed."
                raise ConfigError(text, fix="run patch-legacy again")
            backup = _backup(path, before)
            try:
                draft.replace(path)
            except OSError:
                backup.unlink(missing_ok=True)
                raise
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        text = f"{path} cannot be written ({error.strerror or error}). Nothing was changed."
        fix = "check the permissions of the file and its folder, and the free space"
        raise ConfigError(text, fix=fix) from error
    return backup


def write_launcher(path: Path, name: str, text: str, *, force: bool) -> Path:
    """Write an executable launcher and return its path; in a folder it takes its usual name.

    Raises:
        ConfigError: Something is there already (without `force`), or it cannot be written.
    """
    path = path / name if path.is_dir() else path
    if kind_of(path) not in ("", "file"):
        raise ConfigError(f"{path} {absence(path)}.", fix="name a file")
    target = path.resolve() if force else path
    try:
        if force:  # a new file, because bash may be reading the old one
            target.unlink(missing_ok=True)
        with target.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        mode = target.stat().st_mode
        target.chmod(mode | (mode & 0o444) >> 2)  # who may read it may execute it
    except FileExistsError as error:
        text = f"{path} exists already. Nothing was written."
        raise ConfigError(text, fix="name another file, or add --force to replace it") from error
    except OSError as error:
        text = f"{path} cannot be written ({error.strerror or error})."
        raise ConfigError(text, fix="check the folder and its permissions") from error
    return path


def _draft(path: Path, content: bytes, mode: int) -> Path:
    """The new content beside the script, complete on the disk."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:80]}.", suffix=".tmp")
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            with contextlib.suppress(OSError):  # some mounted drives have no fsync
                os.fsync(file.fileno())
        owner = path.stat()
        with contextlib.suppress(OSError, AttributeError):  # only root may give files away
            os.chown(draft, owner.st_uid, owner.st_gid)
        draft.chmod(mode)  # after chown, which clears the set-id bits
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return draft


def _backup(path: Path, content: bytes) -> Path:
    """A copy of the old script beside it, under the first free name: run.py.bak, run.py.bak2."""
    for number in itertools.count(1):
        backup = path.with_name(f"{path.name}.bak{number if number > 1 else ''}")
        with contextlib.suppress(FileExistsError):
            file = backup.open("xb")
            break
    try:
        with file:
            file.write(content)
    except OSError:
        backup.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):
        shutil.copystat(path, backup)
    return backup
