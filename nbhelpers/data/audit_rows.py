"""The rows of an audit: programs with what is told of them, nothing left out and nothing mended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..errors import DataError
from .detection_words import LABELS, label_of, language_of, plain, split_word, task_id

CLASSES = ("human", "ai")
CHARACTERS_READ = 100_000  # of one program, where its text is compared; its layout is read whole


class Row(NamedTuple):
    """A program: `label` is human, ai, or None where none is told; texts are "" where unknown."""

    code: str
    label: str | None
    language: str
    task: str  # in one spelling
    task_as_written: str
    author: str
    generator: str
    source: str
    licence: str
    date: str
    split: str
    place: str


def rows_of(data: Iterable[Any]) -> list[Row]:
    """Return rows from mappings or from objects with these fields (a `CodeRow`).

    Raises:
        DataError: An item is neither, has no `code`, or its label is not known; its number is told.
    """
    return [_row(item, number) for number, item in enumerate(data, start=1)]


def _row(item: Any, number: int) -> Row:
    fields = item if isinstance(item, Mapping) else _fields(item, number)
    code = fields.get("code")
    if not isinstance(code, str):
        raise DataError(
            f"row {number} has no text in `code`.", fix="give each row its program as `code`."
        )
    texts = {name: plain(fields.get(name)) for name in Row._fields if name not in ("code", "label")}
    texts["place"] = texts["place"] or f"row {number}"
    texts["task_as_written"] = texts["task_as_written"] or texts["task"]
    texts["task"] = task_id(texts["task"])
    texts["language"] = language_of(texts["language"])
    texts["split"] = split_word(texts["split"]) or texts["split"]
    return Row(code=code, label=_label(fields.get("label"), texts["place"]), **texts)


def _fields(item: Any, number: int) -> Mapping[str, Any]:
    if hasattr(item, "_asdict"):
        return item._asdict()
    raise DataError(
        f"row {number} is {type(item).__name__}.",
        fix="give rows as mappings with the keys code, label, language, task, source …",
    )


def _label(value: Any, place: str) -> str | None:
    label = label_of(value)
    if label is None and plain(value):
        words = "; ".join(f"{', '.join(words)}: {name}" for name, words in LABELS.items())
        raise DataError(f"{place}: the label {value!r} is not known.", fix=f"write {words}.")
    return label
