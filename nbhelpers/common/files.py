"""Paths, JSON files, the cache folder and a lock: what stands between us and the disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar
from uuid import uuid4

from nbhelpers.errors import ConfigError, LaunchError, NbhelpersError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError


# ------------------------------------------------------------------------------------------------
# Paths that a person typed: asked about without a crash.
#
# `pathlib` raises OSError for a name too long or a folder that may not be searched, and
# RuntimeError for an unknown `~name`. Here these are answers, or one typed error.


def expanded(path: str | os.PathLike[str], name: str = "the path") -> Path:
    """Return a path with `~` resolved; `name` is how the error calls it.

    >>> expanded("runs").as_posix()
    'runs'

    Raises:
        ConfigError: It is no path at all, or names a user that is not there.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"{name} is {path!r}, which is no path.", fix="give a path as text")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        text = f"{name} is {str(path)!r}, and the home folder in it is unknown."
        raise ConfigError(text, fix="write the whole path, without ~") from error


def kind_of(path: str | os.PathLike[str]) -> str:
    """Say what is at a path: "file", "folder", "other", "forbidden", or "" for nothing.

    Links are followed; a loop of them is nothing. "forbidden": a folder above may not be searched.

    >>> kind_of("/"), kind_of("/no/such/place"), kind_of("x" * 5000)
    ('folder', '', '')
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
    states = {"": "does not exist", "folder": "is a folder", "file": "is a file"}
    return states.get(kind, "cannot be looked at" if kind == "forbidden" else "is no plain file")


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is there that can be asked about."""
    return kind_of(path) == "folder"


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether a regular file is there that can be asked about."""
    return kind_of(path) == "file"


# ------------------------------------------------------------------------------------------------
# JSON files that are replaced in one step, and frozen dataclasses that were saved in them.


T = TypeVar("T")


LARGEST = 1e300  # no number here is larger, and a larger integer cannot become a float


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number; truth values are none.

    >>> is_number(3), is_number(True), is_number("3"), is_number(float("nan")), is_number(10**400)
    (True, False, False, False, False)
    """
    return type(value) in (int, float) and -LARGEST < value < LARGEST


def read_json(path: str | Path) -> dict[str, Any] | None:
    """The object in a JSON file; None when none can be read."""
    try:
        return parsed(Path(path).read_bytes())
    except OSError:
        return None


_DECODER = json.JSONDecoder(parse_constant=lambda _: None)


def parsed(text: bytes | str) -> dict[str, Any] | None:
    """The object that a JSON text holds, NaN and infinity as None; None where it holds none.

    >>> parsed(b'{"loss": NaN}'), parsed(b'{"loss": 0.'), parsed(b"[]")
    ({'loss': None}, None, None)
    """
    try:
        if not isinstance(text, str):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        data = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def write_json(path: str | Path, data: dict[str, Any]) -> None:
    """Replace a JSON file in one step: readers see the old or the new one, never a part."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(json.dumps(data, indent=1, default=str) + "\n")
            file.flush()
            with contextlib.suppress(OSError):  # some mounted drives have no fsync
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def rebuilt(
    kind: type[T],
    data: Mapping[str, Any],
    what: str,
    *,
    ignore_unknown: bool = False,
    error: type[NbhelpersError] = ConfigError,
    fix: str = "use the version of nbhelpers that wrote it (`versions` in run.json)",
) -> T:
    """Return the dataclass whose fields were saved as plain values; lists become tuples.

    Args:
        kind: The dataclass.
        data: Its fields.
        what: How an error calls it.
        ignore_unknown: Leave out fields that the dataclass does not have.
        error: The class of the error.
        fix: What to do about it.

    Raises:
        ConfigError: A field is missing, unknown or of a wrong type; names it.
    """
    from pydantic import ValidationError

    unknown = sorted(set(data) - {field.name for field in fields(kind)})
    try:
        if unknown and not ignore_unknown:
            raise error(f"A saved {what} has the unknown field {unknown[0]}.", fix=fix)
        return _adapter(kind).validate_python(data)
    except ValidationError as wrong:
        raise error(f"A saved {what} cannot be used: {fault(wrong)}.", fix=fix) from wrong


def plain_values(value: Any) -> dict[str, Any]:
    """Return a dataclass as values that JSON keeps, which `rebuilt` reads."""
    return _adapter(type(value)).dump_python(value, mode="json")


@cache
def _adapter(kind: type[T]) -> TypeAdapter[T]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def fault(error: ValidationError) -> str:
    """Return the first field that a model refuses: what it should be, and what it is."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"{place} is missing"
    wanted = first["msg"].removeprefix("Input ").partition(" or instance of")[0]
    value = repr(first["input"])
    return f"{place}: {wanted}, is {value if len(value) <= 60 else value[:57] + '...'}"


# ------------------------------------------------------------------------------------------------
# The folder for what can be made again, and how files get into it.
#
# Nothing here may be missed when it is lost: a cache that cannot be read or written is only slower.


def cache_dir() -> Path:
    """Return the folder for what can be made again: `NBHELPERS_CACHE`, else the user's cache."""
    base = os.environ.get("NBHELPERS_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nbhelpers"


def save_in_cache(path: Path, write: Callable[[Path], None]) -> None:
    """Have `write` fill a file and rename it into place; a cache that fails is only slower."""
    # Not the process id: nodes that share a home may have equal ones.
    part = path.with_name(f"{path.stem}.{uuid4().hex}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def append_line(path: Path, entry: Mapping[str, Any]) -> bool:
    """Append a JSON object as a line, in one write; return whether it was written.

    Writers that end together do not mix their lines, and one after a torn line begins a new one.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            torn = b"\n" if size and file.read(1) != b"\n" else b""
            data = torn + json.dumps(entry, default=str).encode() + b"\n"
            return file.write(data) == len(data)
    except OSError:
        return False


def cached(
    folder: str,
    key: Iterable[str | bytes],
    make: Callable[[], T],
    *,
    load: Callable[[Path], T],
    save: Callable[[Path, T], None],
    suffix: str,
) -> T:
    """Return what `make` gives, from the cache where it was made before under the same key.

    A file that cannot be read counts as absent.

    Args:
        folder: Where in the cache folder it lies.
        key: All that decides the result, and a number to raise when the code that makes it changes.
        make: Makes it.
        load: Reads it from a file.
        save: Writes it to a file.
        suffix: How the file's name ends.
    """
    path = cache_dir() / folder / f"{_digest(key)}{suffix}"
    with contextlib.suppress(Exception):  # damaged files fail in many ways
        return load(path)
    value = make()
    save_in_cache(path, lambda part: save(part, value))
    return value


def _digest(key: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for part in key:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:32]


# ------------------------------------------------------------------------------------------------
# A lock between processes that also works where `flock` does not, such as a mounted drive.


@contextlib.contextmanager
def locked(path: Path, *, timeout_s: float = 90.0) -> Iterator[None]:
    """Hold the lock file `path`; the end of the process frees it.

    Where the file system has no locks, a second file stands for the lock, and a process that is
    killed leaves it behind.

    Raises:
        LaunchError: Another process holds the lock for too long.
    """
    from filelock import FileLock, SoftFileLock, Timeout

    substitute = path.with_name(f"{path.name}.held")
    lock = FileLock(path) if _has_flock(path) else SoftFileLock(substitute)
    try:
        lock.acquire(timeout=timeout_s)
    except Timeout as error:
        fix = f"Wait for the other launch, or delete {substitute} when there is none."
        text = f"Another launch has held {path} for {timeout_s:g} s."
        raise LaunchError(text, fix=fix) from error
    try:
        yield
    finally:
        lock.release()


def _has_flock(path: Path) -> bool:
    """Whether the file system knows locks; filelock tells only one of several answers apart."""
    import fcntl

    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True
