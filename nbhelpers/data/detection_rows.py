"""From records to rows of code: which column holds what, and what cannot be used."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

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
from nbhelpers.data.pair_sources import shorten
from nbhelpers.data.problems import ProblemLog

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


class Place(NamedTuple):
    """What the name of a file tells of its rows."""

    label: str | None = None
    split: str = ""
    source: str = ""


def code_fault(code: Any) -> tuple[str, str] | None:
    """Why a text is no program that can be used: kind of finding and detail.

    >>> code_fault("print(1)") is None, code_fault("  ")
    (True, ('empty_code', 'white space only'))
    """
    if code is None:
        return "empty_code", "null"
    if not isinstance(code, str):
        return "not_text", f"the code is {type(code).__name__}: {shorten(code)}"
    if len(code) > MAX_CODE_CHARACTERS:
        return "long_code", f"{len(code):,} characters; at most {MAX_CODE_CHARACTERS:,} are read"
    if not code.strip().strip("\ufeff"):
        return "empty_code", "white space only" if code else "empty"
    if "\0" in code:
        return "bad_text", f"the code holds a NUL at character {code.index(chr(0)) + 1}"
    try:
        code.encode()
    except UnicodeEncodeError as error:
        return "bad_text", f"the code holds a lone surrogate at character {error.start + 1}"
    return None


class RowReader:
    """Turns records into rows; what cannot be used goes to the log.

    Args:
        log: Collects findings.
        known: What is known of the data set.
        label_is_task: A column `label` names the task where no other does.
    """

    def __init__(
        self, log: ProblemLog, known: Known | None = None, *, label_is_task: bool = False
    ) -> None:
        self.log, self.known, self.label_is_task = log, known or Known(), label_is_task
        self.rows: list[CodeRow] = []
        self.given: list[str] = []  # split of each row as the data names it, "" for none
        self.columns: tuple[str, ...] = ()  # of the first record
        self._ids: set[str] = set()
        self._told: set[tuple[str, str]] = set()
        self._of: dict[tuple[str, ...], dict[str, str]] = {}

    def read(self, records: Any, file: str, place: Place) -> None:
        """Take the records of one file; one whose first record has no code is not read on."""
        for at, (line, record) in enumerate(records):
            if not isinstance(record, Mapping):
                detail = f"it is {type(record).__name__}: {shorten(record)}"
                self.log.add("not_a_row", file, line, detail)
                continue
            columns = self._columns(record, file, line)
            if "code" in columns:
                self._add(record, columns, file, line, place)
            elif at == 0:
                self.log.add("missing_column", file, line, self._lack("code", record))
                return
            else:
                self.log.add("null_value", file, line, self._lack("code", record))

    def _lack(self, what: str, record: Mapping[str, Any]) -> str:
        names = ", ".join(map(str, list(record)[:12])) or "none"
        return f"no column {what} (or {', '.join(COLUMNS[what][1:])}); the columns are {names}"

    def _columns(self, record: Mapping[str, Any], file: str, line: int) -> dict[str, str]:
        keys = tuple(map(str, record))
        self.columns = self.columns or keys
        if keys in self._of:
            return self._of[keys]
        names = {key.strip().lower(): key for key in reversed(keys)}
        columns_of = {}
        for what, words in COLUMNS.items():
            own = self.known.columns.get(what, "")
            words = () if own is None else (own,) if own else words
            column = next((names[word] for word in words if word in names), None)
            if column is not None:
                columns_of[what] = column
        if self.label_is_task and "label" in columns_of and "task" not in columns_of:
            columns_of["task"] = columns_of.pop("label")
        self._of[keys] = columns_of
        odd = [f"{column} as {what}" for what, column in columns_of.items() if column != what]
        if odd:
            self.log.add("columns_read", file, line, ", ".join(odd))
        return columns_of

    def _add(
        self,
        record: Mapping[str, Any],
        columns: Mapping[str, str],
        file: str,
        line: int,
        place: Place,
    ) -> None:
        def cell(what: str) -> str:
            return plain(record[columns[what]]) if what in columns else ""

        code = record[columns["code"]]
        if fault := code_fault(code):
            self.log.add(fault[0], file, line, fault[1])
            return
        label, task = label_of(cell("label")), cell("task")
        if cell("label") and label is None:
            detail = f"{shorten(cell('label'))} in the column {columns['label']}"
            self.log.add("unknown_label", file, line, detail)
            return
        row = CodeRow(
            id=self._id(cell("id"), file, line),
            code=code,
            language=language_of(cell("language")) or self.known.language,
            label=label or place.label or self.known.label,
            task=task_id(self.known.task_prefix + task) if task else "",
            author=cell("author"),
            generator=cell("generator"),
            source=cell("source") or self.known.source or place.source,
            licence=cell("licence"),
            date=cell("date"),
            place=f"{file}:{line}",
        )
        self.keep(row, self._split(cell("split"), file, line) or place.split)

    def keep(self, row: CodeRow, split: str = "") -> None:
        """Take a row that is already made; a generator that goes without saying is filled in."""
        if not row.generator and row.label is not None:
            own = HUMAN if row.label == HUMAN else self.known.generator
            row = row._replace(generator=own)
        if row.language and not is_known_language(row.language):
            self._tell_once("unknown_language", row.place.rpartition(":")[0], row.language)
        self.rows.append(row)
        self.given.append(split)

    def _id(self, id_: str, file: str, line: int) -> str:
        """The row's own id where it is the first with it, else its place."""
        if not id_ or id_ in self._ids or len(id_) > 200 or not id_.isprintable():
            id_ = f"{file}:{line}"
        self._ids.add(id_)
        return id_

    def _split(self, value: str, file: str, line: int) -> str:
        name = split_word(value) or ""
        if value and not name:
            self._tell_once("unknown_split", file, value, line)
        return name

    def _tell_once(self, kind: str, file: str, word: str, line: int | None = None) -> None:
        if (kind, word) not in self._told:
            self._told.add((kind, word))
            self.log.add(kind, file, line, shorten(word))


def labels_read() -> str:
    """The labels that are read, as a sentence says them."""
    return f"{', '.join(LABELS[HUMAN])} for human code; {', '.join(LABELS[AI])} for AI code"
