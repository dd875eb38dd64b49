"""From records to rows of code: which column holds what, and what cannot be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from nbhelpers.data.files import Fault, Record, RowReader, check_text, named, shorten, tell_unread
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
    whole,
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
    check_text(code, "the code")


class CodeReader(RowReader[CodeRow, dict[str, str]]):
    """Turns records, and code files, into rows of code.

    Args:
        findings: Get what is found.
        known: What is known of the data set.
        label_is_task: A column `label` names the task where no other does.

    Attributes:
        words: How often each word stands for a label, and which (None: no known one).
        name: What the name of the file that is read tells.
    """

    unknown = "missing_column"

    def __init__(
        self, findings: Findings, known: Known | None = None, *, label_is_task: bool = False
    ) -> None:
        super().__init__(findings)
        self.known = known or Known()
        self.label_is_task = label_is_task
        self.name = FileName()
        self.words: Counter[tuple[str, str | None]] = Counter()
        self._ids: set[str] = set()
        self._noted: set[tuple[str, str]] = set()

    def choose(self, names: tuple[str, ...], record: Record) -> dict[str, str] | str:
        """What each column is called that a row has; without code there is no row."""
        column_of = {name.strip().lower(): name for name in reversed(names)}
        columns = {}
        for what, words in COLUMNS.items():
            own = self.known.columns.get(what, "")
            words = () if own is None else (own,) if own else words
            column = next((column_of[word] for word in words if word in column_of), None)
            if column is not None:
                columns[what] = column
        if self.label_is_task and "label" in columns and "task" not in columns:
            columns["task"] = columns.pop("label")
        if "code" not in columns:
            return f"no column code (or {', '.join(COLUMNS['code'][1:])})"
        odd = [f"{column} as {what}" for what, column in columns.items() if column != what]
        if odd:
            self.findings.add("columns_read", record.file, record.line, ", ".join(odd))
        return columns

    def names(self, columns: dict[str, str]) -> Collection[str]:
        """All that hold something a row has."""
        return set(columns.values())

    def lack(self, record: Record, why: str, *, is_alone: bool) -> str:
        """The names that code goes by, and the columns that are there."""
        return f"{why}; the columns are {named(record.values)}"

    def make(self, record: Record, columns: dict[str, str]) -> CodeRow:
        """The row of a record; what it does not tell, the file or the data set may."""
        code = record.values[columns["code"]]
        check_code(code)
        cell = {what: plain(record.values[column]) for what, column in columns.items()}
        cell |= {what: whole(cell[what]) for what in ("label", "author", "id") if what in cell}
        label, task = label_of(cell.get("label")), cell.get("task")
        if word := cell.get("label"):
            self.words[word, label] += 1
            if label is None:
                raise Fault("unknown_label", f"{shorten(word)} in the column {columns['label']}")
        elif self.name.label:
            self.words[record.file, self.name.label] += 1
        place = f"{record.file}:{record.line}"
        split = split_word(word := cell.get("split", ""))
        if word and not split:
            self._note_once("unknown_split", record.file, word, record.line)
        return self.complete(
            CodeRow(
                id=self._id(cell.get("id", ""), place),
                code=code,
                language=language_of(cell.get("language")) or self.known.language,
                label=label or self.name.label or self.known.label,
                task=task_id(self.known.task_prefix + task) if task else "",
                author=cell.get("author", ""),
                generator=cell.get("generator", ""),
                source=cell.get("source") or self.known.source or self.name.source,
                licence=cell.get("licence", ""),
                date=cell.get("date", ""),
                place=place,
                task_as_written=task or "",
                split=split or self.name.split,
            )
        )

    def complete(self, row: CodeRow) -> CodeRow:
        """The row with the generator that goes without saying; an unknown language is noted."""
        if not row.generator and row.label is not None:
            row = row._replace(generator=HUMAN if row.label == HUMAN else self.known.generator)
        if row.language and not is_known_language(row.language):
            self._note_once("unknown_language", row.place.rpartition(":")[0], row.language)
        return row

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

    def finish(self, source: str) -> None:
        """Name the columns that nobody read; what was read as what is a fact of the data."""
        tell_unread(self.unread, source, self.findings)
        read: dict[str, str] = {}
        for columns in self.columns.values():
            read |= {} if isinstance(columns, str) else columns
        if read:
            self.findings.facts["columns"] = read
        if self.words:
            self.findings.facts["labels"] = meanings(self.words)


def meanings(words: Counter[tuple[str, str | None]]) -> dict[str, str]:
    """What each of the most frequent words for a label stands for, and how often it was met."""
    return {
        shorten(word, 40).strip("'"): f"{label or 'no label'} ({n:,})"
        for (word, label), n in words.most_common(12)
    }


def labels_read() -> str:
    """The labels that are read, as a sentence says them."""
    return f"{', '.join(LABELS[HUMAN])} for human code; {', '.join(LABELS[AI])} for AI code"
