"""JSON files as pydantic models: a damaged file is one `DataError` that names file and field.

Keys that a model does not name are kept as they are. A null stands for a value that is undefined
or was not measured; so does NaN.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from nbhelpers.common.files import fault, is_number, write_json
from nbhelpers.errors import DataError

MOST_DIGITS = 300  # of a whole number; more would be no float
_ESCAPED_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def _number(value: Any) -> Any:
    """Keep whole numbers whole, which a field of floats would not."""
    if value is None or is_number(value):
        return value
    raise PydanticCustomError("number", "should be a valid number")


Number = Annotated[float | None, PlainValidator(_number)]
Whole = Annotated[int | None, Field(ge=-(2**63), lt=2**63)]
Text = str | None
Plain = str | bool | Number  # a text, a number, true or false
Numbers = dict[str, Number]
Plains = dict[str, Plain]
Interval = Annotated[list[Number], Field(min_length=2, max_length=2)]
Lead = Annotated[list[Number], Field(min_length=3, max_length=3)]  # value, low, high


class Part(BaseModel):
    """A part of a file; keys that are not named here are kept, and nulls count as absent."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        if data is None:
            return {}
        is_mapping = isinstance(data, dict)
        return {k: v for k, v in data.items() if v is not None} if is_mapping else data


def _parsed(text: bytes) -> Any:
    """Return what JSON holds; NaN is None.

    Raises:
        ValueError: It is none, a number is longer than any that a run writes, or a text holds half
            a character, which nothing can print.
    """
    data = json.loads(text, parse_constant=lambda _: None, parse_int=_whole)
    if _ESCAPED_HALF.search(text):
        json.dumps(data, ensure_ascii=False).encode()
    return data


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _scalar(value: Any) -> float | str:
    """Return a scalar of numpy or torch as a number, anything else as text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


class JsonFile(Part):
    """A JSON file; `raw` is what it holds as plain values, checked by the model."""

    FIX: ClassVar[str] = "copy the whole folder again"
    _raw: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def raw(self) -> dict[str, Any]:
        """What the file holds: mappings, lists, texts and numbers, NaN as None."""
        return self._raw

    @classmethod
    def checked(cls, data: dict[str, Any], place: str | Path) -> Self:
        """Return the file that `data` makes; `place` is how an error calls it.

        Raises:
            DataError: A field is missing or of a wrong type; names it.
        """
        try:
            file = cls.model_validate(data)
        except ValidationError as error:
            raise DataError(f"{place}: {fault(error)}.", fix=cls.FIX) from error
        file._raw = data
        return file

    @classmethod
    def read(cls, path: str | Path) -> Self | None:
        """Return the file at a path, or None where there is none.

        Raises:
            DataError: It is damaged; names the field.
        """
        try:
            data = _parsed(Path(path).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}).", fix=cls.FIX) from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: is no JSON ({error}).", fix=cls.FIX) from error
        if not isinstance(data, dict):
            raise DataError(f"{path}: should be a JSON object.", fix=cls.FIX)
        return cls.checked(data, path)

    @classmethod
    def write(cls, path: str | Path, data: dict[str, Any]) -> Self:
        """Check plain values and write them in one step; NaN and infinity become null.

        Raises:
            DataError: A field is missing or of a wrong type; nothing is written.
        """
        text = json.dumps(data, default=_scalar)
        plain = json.loads(text, parse_constant=lambda _: None)
        file = cls.checked(plain, path)
        write_json(path, plain)
        return file


def read_lines(kind: type[Part], path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines, each checked; none where there is no file.

    Raises:
        DataError: A line is damaged; names its number and the field.
    """
    fix = "evaluate the run again, or remove this file: a report does without it"
    number = 0
    try:
        with Path(path).open("rb") as file:
            for line in file:
                number += 1
                if line.strip():
                    row = _parsed(line)
                    kind.model_validate(row)
                    yield row
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).", fix=fix) from error
    except ValidationError as error:
        raise DataError(f"{path}, line {number}: {fault(error)}.", fix=fix) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {number}: is no JSON.", fix=fix) from error


def read_raw(kind: type[JsonFile], path: str | Path) -> dict[str, Any]:
    """Return what a file holds, checked; {} where there is none.

    Raises:
        DataError: It is damaged; names the field.
    """
    content = kind.read(path)
    return {} if content is None else content.raw
