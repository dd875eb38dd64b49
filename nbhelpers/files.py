"""JSON files that are replaced in one step, and frozen dataclasses that were saved in them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from nbhelpers.errors import ConfigError, NbhelpersError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

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


def parsed(text: bytes | str) -> dict[str, Any] | None:
    """The object that a JSON text holds, NaN and infinity as None; None where it holds none.

    >>> parsed(b'{"loss": NaN}'), parsed(b'{"loss": 0.'), parsed(b"[]")
    ({'loss': None}, None, None)
    """
    try:
        data = json.loads(text, parse_constant=lambda _: None)
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
