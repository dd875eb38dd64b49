"""From records to rows of code: which column holds what, and what cannot be used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from nbhelpers.data.files import Fault, Record, shorten, usable
from nbhelpers.data.findings import Findings
from nbhelpers.data.languages import (
    AI,
    COLUMNS,
    HUMAN,
    LABELS,
    is_known_language,
    label_of,
    language_of,
    plain,
    split_word,
    task_id,
)

# A longer one is a table of data or a bundle, no program that a person wrote; its near-duplicates
# and its edits alone would take longer than those of a whole course.
MAX_CODE_CHARACTERS = 1_000_000


class CodeRow(NamedTuple):
    """One program and what is known of it; "" is unknown.

    `code` is as it was read; `label` is "human", "ai" or None (not told); `language` and `task` are
    in one spelling (`languages`); `place` says where it stands.
    """

    id: str
    code: str
    language: str = ""
    label: str | None = None
    task: str = ""
    author: str = ""
    generator: str = ""
    source: str = ""
    licence: str = ""
    date: str = ""
    place: str = ""
    task_as_written: str = ""
    split: str = ""


class Known(NamedTuple):
    """What is known of a data set beyond its rows.

    `columns` names the columns of things that this data set calls by another's name (None: it has
    no such thing); the others stand for what its rows do not tell.
    """

    columns: Mapping[str, str | None] = MappingProxyType({})
    label: str | None = None
    language: str = ""
    task_prefix: str = ""
    generator: str = ""
    source: str = ""


class FileName(NamedTuple):
    """What the name of a file tells of its rows."""

    label: str | None = None
    split: str = ""
    source: str = ""


def check_code(code: Any) -> None:
    """Refuse a text that is no program that can be used.

    Raises:
        Fault: What is wrong with it.
    """
    if code is None:
        raise Fault("empty_code", "null")
    if not isinstance(code, str):
        raise Fault("not_text", f"the code is {type(code).__name__}: {shorten(code)}")
    if len(code) > MAX_CODE_CHARACTERS:
        detail = f"{len(code):,} characters; at most {MAX_CODE_CHARACTERS:,} are read"
        raise Fault("long_code", detail)
    if not code.strip().strip("\ufeff"):
        raise Fault("empty_code", "white space only" if code else "empty")
    if "\0" in code:
        raise Fault("bad_text", f"the code holds a NUL at character {code.index(chr(0)) + 1}")
    try:
        code.encode()
    except UnicodeEncodeError as error:
        detail = f"the code holds a lone surrogate at character {error.start + 1}"
        raise Fault("bad_text", detail) from None


class RowReader:
    """Turns records into rows; what cannot be used is a finding.

    Args:
        findings: Get what is found.
        known: What is known of the data set.
        label_is_task: A column `label` names the task where no other does.
    """

    def __init__(
        self, findings: Findings, known: Known | None = None, *, label_is_task: bool = False
    ) -> None:
        self.findings, self.known = findings, known or Known()
        self.label_is_task = label_is_task
        self.rows: list[CodeRow] = []
        self.columns: tuple[str, ...] = ()  # of the first record
        self._ids: set[str] = set()
        self._noted: set[tuple[str, str]] = set()
        self._columns_of: dict[tuple[str, ...], dict[str, str]] = {}

    def read(self, records: Iterable[Record], name: FileName) -> None:
        """Take the records of one file; one whose first record has no code is not read on."""
        records = iter(records)
        first = next(records, None)
        if first is None:
            return
        if isinstance(first.values, dict) and "code" not in self._columns(first):
            detail = self._lack_of_code(first)
            self.findings.add("missing_column", first.file, first.line, detail)
            return
        records = chain([first], records)
        for row in usable(records, lambda record: self._row(record, name), self.findings):
            self.keep(row)

    def _lack_of_code(self, record: Record) -> str:
        names = ", ".join(map(str, list(record.values)[:12])) or "none"
        return f"no column code (or {', '.join(COLUMNS['code'][1:])}); the columns are {names}"

    def _columns(self, record: Record) -> dict[str, str]:
        keys = tuple(map(str, record.values))
        self.columns = self.columns or keys
        if keys in self._columns_of:
            return self._columns_of[keys]
        names = {key.strip().lower(): key for key in reversed(keys)}
        columns = {}
        for what, words in COLUMNS.items():
            own = self.known.columns.get(what, "")
            words = () if own is None else (own,) if own else words
            column = next((names[word] for word in words if word in names), None)
            if column is not None:
                columns[what] = column
        if self.label_is_task and "label" in columns and "task" not in columns:
            columns["task"] = columns.pop("label")
        self._columns_of[keys] = columns
        odd = [f"{column} as {what}" for what, column in columns.items() if column != what]
        if odd:
            self.findings.add("columns_read", record.file, record.line, ", ".join(odd))
        return columns

    def _row(self, record: Record, name: FileName) -> CodeRow:
        columns = self._columns(record)
        if "code" not in columns:
            raise Fault("null_value", self._lack_of_code(record))
        code = record.values[columns["code"]]
        check_code(code)
        cell = {what: plain(record.values[column]) for what, column in columns.items()}
        label, task = label_of(cell.get("label")), cell.get("task")
        if cell.get("label") and label is None:
            detail = f"{shorten(cell['label'])} in the column {columns['label']}"
            raise Fault("unknown_label", detail)
        place = f"{record.file}:{record.line}"
        split = split_word(word := cell.get("split", ""))
        if word and not split:
            self._note_once("unknown_split", record.file, word, record.line)
        return CodeRow(
            id=self._id(cell.get("id", ""), place),
            code=code,
            language=language_of(cell.get("language")) or self.known.language,
            label=label or name.label or self.known.label,
            task=task_id(self.known.task_prefix + task) if task else "",
            author=cell.get("author", ""),
            generator=cell.get("generator", ""),
            source=cell.get("source") or self.known.source or name.source,
            licence=cell.get("licence", ""),
            date=cell.get("date", ""),
            place=place,
            task_as_written=task or "",
            split=split or name.split,
        )

    def keep(self, row: CodeRow) -> None:
        """Take a row that is already made; a generator that goes without saying is filled in."""
        if not row.generator and row.label is not None:
            row = row._replace(generator=HUMAN if row.label == HUMAN else self.known.generator)
        if row.language and not is_known_language(row.language):
            self._note_once("unknown_language", row.place.rpartition(":")[0], row.language)
        self.rows.append(row)

    def _id(self, id_: str, place: str) -> str:
        """The row's own id where it is the first with it, else its place."""
        if not id_ or id_ in self._ids or len(id_) > 200 or not id_.isprintable():
            id_ = place
        self._ids.add(id_)
        return id_

    def _note_once(self, kind: str, file: str, word: str, line: int | None = None) -> None:
        if (kind, word) not in self._noted:
            self._noted.add((kind, word))
            self.findings.add(kind, file, line, shorten(word))


def labels_read() -> str:
    """The labels that are read, as a sentence says them."""
    return f"{', '.join(LABELS[HUMAN])} for human code; {', '.join(LABELS[AI])} for AI code"
