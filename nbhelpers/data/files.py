"""The rows of a file by place: read strictly, or from a table of `datasets`; both give the same.

Read are JSON, JSON Lines, CSV and TSV, also compressed, Parquet, and what `tables` opens.
"""

from __future__ import annotations

import ast
import bz2
import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path, PurePath
from typing import IO, Any, Generic, NamedTuple, TypeVar

from nbhelpers.data import tables
from nbhelpers.data.findings import EXAMPLES_SHOWN, Findings
from nbhelpers.errors import ConfigError
from nbhelpers.presets.checks import COMPRESSED, FILE_ENDINGS

MAIN_SPLITS = ("train", "valid", "test")
SMOKE = "smoke"
SMOKE_LICENCE = "Apache-2.0"
LOCAL_LICENCE = "not stated (local files)"

JSON_ENDINGS = (".json", ".jsonl", ".ndjson")
CSV_ENDINGS = (".csv", ".tsv")
ENDINGS = FILE_ENDINGS
# Rows are held in memory as Python texts, about three times their size on the disk; a JSON value is
# held as bytes, text and objects at once.
MAX_FILE_BYTES = 2 * 2**30
MAX_JSON_BYTES = 512 * 2**20
HEAD_BYTES = 64 * 1024
BATCH_ROWS = 1024
LARGEST_CELL = 2**30
LIST_KEYS = ("data", "rows", "examples")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


T = TypeVar("T")
Columns = TypeVar("Columns")


class Record(NamedTuple):
    """One entry of a file: its line or row number from 1, and what stands there."""

    file: str
    line: int
    values: Any


class Fault(Exception):
    """What is wrong with a record: kind of finding and detail."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(kind, detail)
        self.kind, self.detail = kind, detail


def usable(
    records: Iterable[Record], make: Callable[[Record], T], findings: Findings
) -> Iterator[T]:
    """What `make` makes of the records; a `Fault` that it raises is a finding at that place."""
    for record in records:
        try:
            if not isinstance(record.values, dict):
                kind = type(record.values).__name__
                raise Fault("not_a_row", f"it is {kind}: {shorten(record.values)}")
            yield make(record)
        except Fault as fault:
            findings.add(fault.kind, record.file, record.line, fault.detail)


class RowReader(Generic[T, Columns]):
    """Turns the records of files into rows; what cannot be used is a finding.

    A job says which of a record's columns it reads (`choose`) and makes its row of them (`make`).
    A file of which no record has these columns cannot be read; where others have them, a record
    without is one bad row.

    Attributes:
        rows: Those that can be used, so far.
        columns: Names of each set of columns, and which are read or why none are.
        unread: Columns that nobody reads, and in how many rows they hold something.
    """

    unknown = "unknown_columns"  # the finding for a file whose columns are not known

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.rows: list[T] = []
        self.columns: dict[tuple[str, ...], Columns | str] = {}
        self.unread: Counter[str] = Counter()
        self._unread_of: dict[tuple[str, ...], tuple[str, ...]] = {}

    def choose(self, names: tuple[str, ...], record: Record) -> Columns | str:
        """The columns that are read of these, or why none are; `record` is the first with them."""
        raise NotImplementedError

    def names(self, columns: Columns) -> Collection[str]:
        """The names of the columns that are read."""
        raise NotImplementedError

    def make(self, record: Record, columns: Columns) -> T:
        """The row of a record; what is wrong with it is a `Fault`."""
        raise NotImplementedError

    def lack(self, record: Record, why: str, *, is_alone: bool) -> str:
        """What to say of a record whose columns are not known; `is_alone` where others' are."""
        raise NotImplementedError

    def read(self, records: Iterable[Record]) -> None:
        """Take the records of one file."""
        unknown: list[tuple[Record, str]] = []
        counts: Counter[bool] = Counter()  # of the records, by whether their columns are known

        def make(record: Record) -> T | None:
            names = tuple(map(str, record.values))
            columns = self._columns_of(names, record)
            is_known = not isinstance(columns, str)
            counts[is_known] += 1
            if not is_known:
                if len(unknown) < EXAMPLES_SHOWN:
                    unknown.append((record, columns))
                return None
            for name in self._unread_of[names]:
                self.unread[name] += not is_nothing(record.values.get(name))
            return self.make(record, columns)

        made = list(usable(records, make, self.findings))
        self.rows += [row for row in made if row is not None]
        kind = "null_value" if counts[True] else self.unknown
        for record, why in unknown if counts[True] else unknown[:1]:
            detail = self.lack(record, why, is_alone=bool(counts[True]))
            self.findings.add(kind, record.file, record.line, detail)
        if counts[True] and counts[False] > len(unknown):
            rest = counts[False] - len(unknown)
            self.findings.add("null_value", unknown[0][0].file, None, "as these", n=rest)

    def _columns_of(self, names: tuple[str, ...], record: Record) -> Columns | str:
        if names not in self.columns:
            columns = self.columns[names] = self.choose(names, record)
            read = () if isinstance(columns, str) else self.names(columns)
            self._unread_of[names] = tuple(name for name in names if name not in read)
        return self.columns[names]


def tell_unread(unread: Mapping[str, int], source: str, findings: Findings) -> None:
    """Name the columns that nobody reads, with the number of rows in which they hold something."""
    counts = {name: n for name, n in unread.items() if n}
    if counts:
        detail = ", ".join(f"{column_name(name)} in {n:,} rows" for name, n in counts.items())
        findings.add("unread_columns", source, None, detail, n=len(counts))


def column_name(name: object) -> str:
    """A column's name as a sentence shows it: quoted where it is no plain word."""
    return str(name) if str(name).isidentifier() else shorten(name, 40)


def named(columns: Iterable[object], limit: int = 12) -> str:
    """Names of columns, not too many of them."""
    names = [column_name(name) for name in columns]
    return ", ".join(names[:limit]) + (", …" if len(names) > limit else "") or "none"


def is_nothing(value: object) -> bool:
    """Whether a cell is empty: null, no text, or the NaN that stands there for a missing value.

    >>> [is_nothing(value) for value in (None, "", float("nan"), 0, " ")]
    [True, True, True, False, False]
    """
    return value is None or value == "" or (isinstance(value, float) and value != value)


def listed(value: object) -> list[Any] | None:
    """The list in a cell, also one written out in a text as JSON or as Python shows it.

    >>> listed([1]), listed('["a"]'), listed("['a']"), listed("a")
    ([1], ['a'], ['a'], None)
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        for parse in (json.loads, ast.literal_eval):
            with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
                value = parse(value.strip())
                break
    return value if isinstance(value, list) else None


def shorten(value: object, limit: int = 60) -> str:
    """`repr` of a value, cut to a length that a report can show."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 2]}…{text[0]}"


def check_text(text: str, what: str) -> None:
    """Refuse a text that no file of text can hold; what is wrong is a `Fault`."""
    if "\0" in text:
        raise Fault("bad_text", f"{what} holds a NUL at character {text.index(chr(0)) + 1}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        detail = f"{what} holds a lone surrogate at character {error.start + 1}"
        raise Fault("bad_text", detail) from None


def check_choice(on_bad_rows: object, train_fraction: object = 1.0) -> None:
    """Refuse an unknown policy for bad rows, and a share of the rows that is none.

    Raises:
        ConfigError: Names the argument and what it may be.
    """
    if on_bad_rows not in ("stop", "drop"):
        raise ConfigError(f"on_bad_rows={on_bad_rows!r} is not known.", fix='use "stop" or "drop".')
    if type(train_fraction) not in (int, float) or not 0 < train_fraction <= 1:  # type: ignore[operator]
        raise ConfigError(
            f"train_fraction={train_fraction!r} is not in (0, 1].", fix="0.1 takes a tenth."
        )


def check_whole(low: int, **values: object) -> None:
    """Refuse what is no whole number from `low` up.

    Raises:
        ConfigError: Names the argument.
    """
    for name, value in values.items():
        if type(value) is not int or value < low:
            raise ConfigError(
                f"{name}={value!r} is no whole number from {low} up.",
                fix=f"set {name}={max(low, 100) if low else 0}, say.",
            )


def plain_name(name: str) -> str:
    """The name of a file without the ending that says how it is compressed."""
    return name[: name.rindex(".")] if name.lower().endswith(COMPRESSED) else name


def ending_of(name: PurePath) -> str:
    """The ending that tells the format, in lower case; that of a compressed file stands before.

    >>> ending_of(PurePath("a/train.jsonl.gz")), ending_of(PurePath("rows.CSV"))
    ('.jsonl', '.csv')
    """
    return PurePath(plain_name(name.name)).suffix.lower()


# ------------------------------------------------------------------------------------------------
# The rows of a file, strict and by place; what cannot be read goes to the findings.


Rows = Iterator[tuple[int, Any]]

PARQUET, GZIP = b"PAR1", b"\x1f\x8b"
XZ, BZIP2, ZSTANDARD, LZ4 = b"\xfd7zXZ", b"BZh", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"
UTF16 = (b"\xff\xfe", b"\xfe\xff")
# First bytes that say that a file is not what its name says, and what it is.
PICKLE = "is a pickle; nothing is unpickled here"
PAGE = "is a web page, not data; download the file itself"
SIGNATURES = {
    UTF16[0]: "begins with the mark of UTF-16 or UTF-32 (little endian)",
    UTF16[1]: "begins with the mark of UTF-16 (big endian)",
    b"version https://git-lfs": "is a Git LFS pointer, not the file; fetch it: git lfs pull",
    b"PK\x03\x04": "is a zip archive; name it .zip",
    PARQUET: "is a Parquet file; name it .parquet",
    **dict.fromkeys((b"\x80\x02", b"\x80\x04", b"\x80\x05"), PICKLE),
    b"ARROW1": "is an Arrow file with another ending than .arrow, or damaged",
    b"%PDF": "is a PDF",
    b"<!DOCTYPE": PAGE,
    b"<html": PAGE,
}
_ONLY_IN_BINARY = bytes(set(range(32)) - set(b"\t\n\r\f\v\x1b") - {0})


def read_records(source: Path | tables.Table, name: str, findings: Findings) -> Iterator[Record]:
    """The records of a file or a table, in its order.

    Args:
        source: The file, whose ending says the format; or a table of `datasets`.
        name: How it is called in findings.
        findings: Get what is wrong; a file that cannot be read at all yields nothing.
    """
    rows, fatal = 0, n_unreadable(findings)
    is_text = isinstance(source, Path) and ending_of(source) != ".parquet"
    for number, values in (_read_text if is_text else _read_arrow)(source, name, findings):
        rows += 1
        yield Record(name, number, values)
    if not rows and not findings.bad_rows.get(name) and n_unreadable(findings) == fatal:
        is_empty = isinstance(source, Path) and not source.stat().st_size
        findings.add("empty_file", name, None, "0 bytes" if is_empty else "0 rows")


def n_unreadable(findings: Findings) -> int:
    """How many files could not be read so far."""
    return sum(
        findings.counts.get(kind, 0) for kind in ("unreadable_file", "wrong_encoding", "too_large")
    )


@contextmanager
def opened(path: Path, name: str, findings: Findings) -> Iterator[io.BufferedReader | None]:
    """A text file after its byte order mark, unpacked where it is compressed.

    None, and a finding, where it is not text; what fails while it is read is a finding too.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb", buffering=HEAD_BYTES))
            stream = _text_in(file, path, name, findings)
        except DAMAGE as error:
            stream = None
            findings.add("unreadable_file", name, None, _damage(error))
        try:
            yield stream
        except DAMAGE as error:
            findings.add("unreadable_file", name, None, _damage(error))


# What reading raises, also of a compressed file.
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)


def _damage(error: Exception) -> str:
    plain = error.strerror if isinstance(error, OSError) else ""
    return plain or f"is compressed, but damaged: {error}"


def _text_in(
    file: io.BufferedReader, path: Path, name: str, findings: Findings
) -> io.BufferedReader | None:
    if (size := path.stat().st_size) > MAX_FILE_BYTES:
        detail = f"{size / 2**30:.1f} GiB; at most {MAX_FILE_BYTES / 2**30:.0f} GiB are read"
        findings.add("too_large", name, None, detail)
        return None
    file = _decompressed(file)
    head = file.peek(HEAD_BYTES)
    fault = head_fault(head)
    if ending_of(path) == ".arrow" and not head.startswith(tuple(SIGNATURES)):  # nor by `datasets`
        fault = "unreadable_file", "is no Arrow file, or is damaged"
    if fault:
        findings.add(fault[0], name, None, fault[1])
        return None
    if head.startswith(BYTE_ORDER_MARK):
        findings.add("byte_order_mark", name, 1)
        file.read(len(BYTE_ORDER_MARK))
    return file


def _decompressed(file: io.BufferedReader) -> io.BufferedReader:
    """What a compressed file holds, by its first bytes."""
    head = file.peek(max(map(len, (XZ, LZ4))))
    if head.startswith((ZSTANDARD, LZ4)):
        import pyarrow as pa

        kind = "zstd" if head.startswith(ZSTANDARD) else "lz4"
        return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(file), kind), HEAD_BYTES)
    readers: dict[bytes, Any] = {GZIP: gzip.open, BZIP2: bz2.open, XZ: lzma.open}
    unpack = next((read for mark, read in readers.items() if head.startswith(mark)), None)
    return io.BufferedReader(unpack(file), HEAD_BYTES) if unpack else file


def head_fault(head: bytes) -> tuple[str, str] | None:
    """What the first bytes give away: another format, another encoding, no text at all."""
    for start, detail in SIGNATURES.items():
        if head.startswith(start):
            return "wrong_encoding" if start in UTF16 else "unreadable_file", detail
    n_nul = head.count(0)
    if n_nul > len(head) // 4 and head[:2].count(0) == 1:
        return "wrong_encoding", "looks like UTF-16 without its mark"
    odd = len(head) - len(head.translate(None, _ONLY_IN_BINARY))
    if odd + n_nul > len(head) // 10:
        return "unreadable_file", "is a binary file, not text"
    return None


def _read_text(path: Path, name: str, findings: Findings) -> Rows:
    with opened(path, name, findings) as stream:
        if stream is None:
            return
        ending = ending_of(path)
        if ending in CSV_ENDINGS:
            yield from _read_csv(stream, name, findings)
        elif _is_one_value(stream.peek(HEAD_BYTES), ending):
            yield from _read_json_value(stream, name, findings)
        else:
            yield from read_lines(stream, name, findings)


def _is_one_value(head: bytes, ending: str) -> bool:
    """Whether a file is one JSON value (a list, or an object with a list) and not one a line."""
    text = head.lstrip()
    if text.startswith(b"["):
        return True
    first, _, rest = text.partition(b"\n")
    if not text.startswith(b"{") or ending != ".json":
        return False
    values = _object_in(first)
    if values is None:  # spread over lines, unless the second line stands alone
        return _object_in(rest.lstrip().partition(b"\n")[0]) is None
    return not rest.strip() and all(isinstance(value, list | dict) for value in values.values())


def is_one_object(path: Path) -> bool:
    """Whether a JSON file is one object, which may hold the list of rows."""
    with opened(path, path.name, Findings("drop", path.name)) as stream:
        head = stream.peek(HEAD_BYTES) if stream else b"["
        return not head.lstrip().startswith(b"[") and _is_one_value(head, ".json")
    return False


def _object_in(line: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; one that has a key twice would lose a value without a word."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:40]!r} stands twice in one object")
    return fields


def read_lines(stream: IO[bytes], name: str, findings: Findings) -> Rows:
    """The values of JSON Lines, each with its line."""
    rows = crlf = 0
    for number, line in enumerate(stream, 1):
        if line.isspace():
            findings.add("blank_line", name, number)
            continue
        rows += 1
        crlf += line.endswith(b"\r\n")
        try:
            yield number, json.loads(line.decode(), object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            fault = line_fault(line, error)
            findings.add(fault.kind, name, number, fault.detail)
    findings.read(name, rows)
    if crlf:
        findings.add("crlf", name, None, "", n=crlf)


def line_fault(line: bytes, error: Exception) -> Fault:
    """Why a line is not JSON, or no text."""
    if isinstance(error, UnicodeDecodeError):
        byte = line[error.start]
        return Fault("not_utf8", f"byte {error.start + 1} of the line is 0x{byte:02x}")
    if isinstance(error, RecursionError):
        return Fault("broken_json", "nested too deeply")
    if b"\0" in line:
        return Fault("nul_byte", f"at byte {line.index(0) + 1} of the line")
    return Fault("broken_json", str(error).split("\n")[0][:100])


def _read_json_value(stream: IO[bytes], name: str, findings: Findings) -> Rows:
    data, line = stream.read(MAX_JSON_BYTES + 1), None
    if len(data) > MAX_JSON_BYTES:
        detail = f"one JSON value of more than {MAX_JSON_BYTES // 2**20} MiB; write one row a line"
        findings.add("too_large", name, None, detail)
        return
    try:
        rows = _rows_of(json.loads(data.decode(), object_pairs_hook=_unique))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        rows = f"line {line}: byte 0x{data[error.start]:02x} is not UTF-8; save it as UTF-8"
    except RecursionError:
        rows = "is JSON nested too deeply"
    except ValueError as error:
        rows = f"is not JSON: {str(error)[:120]}"
    if isinstance(rows, str):
        findings.add("unreadable_file", name, line, rows)
        return
    findings.read(name, len(rows))
    yield from enumerate(rows, 1)


def _rows_of(value: Any) -> list[Any] | str:
    """The list of rows in a JSON value, or what the value is instead."""
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        return f"is JSON, but {type(value).__name__}; a list of rows is needed"
    lists = [key for key in LIST_KEYS if isinstance(value.get(key), list)]
    if len(lists) == 1:
        return value[lists[0]]
    keys = ", ".join(str(key)[:40] for key in list(value)[:8])
    if value and all(isinstance(column, list | dict) for column in value.values()):
        return (
            f"is JSON column by column, or by split ({keys}); write a list of rows, one file a "
            "split"
        )
    return f'is one JSON object ({keys}); a list of rows is needed, or {{"data": [...]}}'


def _read_csv(stream: IO[bytes], name: str, findings: Findings) -> Rows:
    limit = csv.field_size_limit(LARGEST_CELL)
    try:
        # Bytes that are not UTF-8 pass as lone surrogates, so that their row can be named.
        text = io.TextIOWrapper(stream, encoding="utf-8", errors="surrogateescape", newline="")
        yield from _csv_rows(text, name, findings)
        text.detach()
    finally:
        csv.field_size_limit(limit)


def _csv_rows(text: io.TextIOWrapper, name: str, findings: Findings) -> Rows:
    head = [text.readline()]
    while head[-1] and not head[-1].strip():  # blank lines above the header
        head.append(text.readline())
    # Strict: else a quote that is never closed swallows the rest of the file.
    delimiter = _delimiter(head[-1])
    reader = csv.reader(chain(head, text), delimiter=delimiter, strict=True)
    header: list[str] = []
    rows = 0
    for line, cells in _csv_lines(reader, name, findings):
        if not any(cell.strip() for cell in cells):
            findings.add("blank_line", name, line)
        elif not header:
            header = [cell.strip() for cell in cells]
            if fault := _header_fault(header):
                findings.add("unreadable_file", name, line, fault)
                break
        else:
            rows += 1
            if len(cells) != len(header):
                detail = f"{len(cells)} cells under {len(header)} columns"
                findings.add("ragged_row", name, line, detail)
            elif any(not cell.isascii() and _ODD_BYTE.search(cell) for cell in cells):
                findings.add("not_utf8", name, line, "a cell holds other bytes")
            else:
                yield line, dict(zip(header, cells, strict=True))
    findings.read(name, rows)


_ODD_BYTE = re.compile("[\udc80-\udcff]")


def _delimiter(header: str) -> str:
    return max(",;\t", key=header.count)


def csv_head(path: Path) -> tuple[str, tuple[str, ...]]:
    """What separates the cells of a CSV file, and its columns; none where it cannot be read."""
    with opened(path, path.name, Findings("drop", path.name)) as stream:
        lines = io.TextIOWrapper(stream, "utf-8", "replace", newline="") if stream else ()
        line = next((line for line in lines if line.strip()), "")
        return _delimiter(line), tuple(next(csv.reader([line], delimiter=_delimiter(line)), ()))
    return ",", ()


def _csv_lines(reader: Any, name: str, findings: Findings) -> Iterator[tuple[int, list[str]]]:
    """Each row with the line where it begins; a cell may hold line ends."""
    line = 1
    try:
        for cells in reader:
            yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        findings.add("unreadable_file", name, line, f"is not CSV from line {line} on: {error}")


def _header_fault(header: Iterable[str]) -> str:
    names = [name.strip().lower() or "(no name)" for name in header]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"its header names a column twice: {', '.join(twice)}" if twice else ""


def arrow_batches(
    source: Path | tables.Table,
    name: str,
    findings: Findings,
    *,
    check: Callable[[Any], Iterable[Fault]],
    columns: tuple[str, ...] | None = None,
    texts: tuple[str, ...] = (),
    batch_rows: int = BATCH_ROWS,
) -> Iterator[Any]:
    """Record batches of a Parquet file or a table; nothing, and findings, where it cannot be read.

    Args:
        source: The file, or a table of `datasets`.
        name: How it is called in findings.
        findings: Get what is wrong.
        check: What is wrong with the schema.
        columns: To be read; none: all.
        texts: Columns that are read from a file as dictionaries of distinct texts.
        batch_rows: Rows of a batch.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        is_file = isinstance(source, Path)
        schema = pq.read_schema(source) if is_file else source.features.arrow_schema
        faults = list(check(schema))
        for fault in faults:
            findings.add(fault.kind, name, None, fault.detail)
        if faults:
            return
        if not is_file:
            yield from tables.batches(source, batch_rows, columns)
            return
        with pq.ParquetFile(source, read_dictionary=list(texts)) as table:
            yield from table.iter_batches(batch_size=batch_rows, columns=columns)
    except (OSError, pa.ArrowException, ValueError) as error:  # a name that is not UTF-8 as well
        detail = f"is damaged: {str(error).split(chr(10))[0][:140]}"
        words: list[str] = []
        if isinstance(source, Path):
            detail = f"is not Parquet, or {detail.removeprefix('is ')}"
            with source.open("rb") as stream:
                head = stream.read(HEAD_BYTES)
            packed = dict.fromkeys((GZIP, XZ, BZIP2, ZSTANDARD, LZ4), "is compressed; unpack it")
            signatures = {start: text for start, text in SIGNATURES.items() if start != PARQUET}
            words = [text for at, text in (packed | signatures).items() if head.startswith(at)]
        findings.add("unreadable_file", name, None, next(iter(words), detail))


def _read_arrow(source: Path | tables.Table, name: str, findings: Findings) -> Rows:
    def check(schema: Any) -> list[Fault]:
        fault = _header_fault(schema.names)
        return [Fault("unreadable_file", fault)] if fault else []

    number, nulls = 0, dict[str, int]()
    for batch in arrow_batches(source, name, findings, check=check):
        for column, cells in zip(batch.schema.names, batch.columns, strict=True):
            nulls[column] = nulls.get(column, 0) + cells.null_count
        for row in _batch_rows(batch):
            number += 1
            if isinstance(row, Fault):
                findings.add(row.kind, name, number, row.detail)
            else:
                yield number, row
    findings.read(name, number)
    if not isinstance(source, Path) and ending_of(PurePath(name)) in JSON_ENDINGS:
        _tell_filled(name, nulls, findings)


def _tell_filled(name: str, nulls: Mapping[str, int], findings: Findings) -> None:
    """Say what `datasets` filled with null in a JSON file."""
    if filled := {column: n for column, n in nulls.items() if n}:
        counts = ", ".join(f"{column_name(column)} in {n:,} rows" for column, n in filled.items())
        findings.add("filled_cells", name, None, counts, n=sum(filled.values()))


def _dates(column: Any) -> Any:
    """Dates and times as text, null outside of the calendar."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = column.cast(pa.string())
    return pc.if_else(pc.starts_with(text, "<value out of range"), None, text)


def _batch_rows(batch: Any) -> Iterator[dict[str, Any] | Fault]:
    """Rows of a batch as dicts, a fault for one with a value that Python cannot hold.

    Dates and times come as text, as in the other formats; what `datasets` stored as the number of
    a class or as JSON comes as the class's name and the value.
    """
    import pyarrow as pa

    decoders = _decoders(batch.schema.metadata)

    columns = [
        _dates(column) if pa.types.is_temporal(column.type) else column for column in batch.columns
    ]
    batch = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
    try:
        for row in batch.to_pylist():
            yield row | {n: decode(row[n]) for n, decode in decoders.items()} if decoders else row
    except (UnicodeDecodeError, OverflowError):
        for at in range(batch.num_rows):
            try:
                row = batch.slice(at, 1).to_pylist()[0]
                yield row | {n: decode(row[n]) for n, decode in decoders.items()}
            except UnicodeDecodeError as error:
                yield Fault("not_utf8", f"byte {error.start + 1} of a text")
            except OverflowError as error:
                yield Fault("not_text", str(error)[:100])


Decoder = Callable[[Any], Any]
_NO_NAME = re.compile(r"label[_ ]?\d+", re.IGNORECASE)  # what a class is called that has no name


def features_of(metadata: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    """What `datasets` says of the columns of a schema; empty where it did not write it.

    Source: `datasets.Features.arrow_schema`.
    """
    try:
        return json.loads((metadata or {})[b"huggingface"])["info"]["features"] or {}
    except (KeyError, ValueError, TypeError):
        return {}


def class_names(feature: Any) -> list[str]:
    """The names of a column's classes, in the order of their numbers; empty where it has none."""
    names = feature.get("names") or [] if isinstance(feature, dict) else []
    return [] if all(_NO_NAME.fullmatch(name) for name in names) else names


def _decoders(metadata: Mapping[bytes, bytes] | None) -> dict[str, Decoder]:
    """How cells are read, by column, where `datasets` stored them as another type."""
    decoders = {name: _decoder(part) for name, part in features_of(metadata).items()}
    return {name: decoder for name, decoder in decoders.items() if decoder}


def _decoder(feature: Any) -> Decoder | None:
    if isinstance(feature, list):
        feature = {"_type": "List", "feature": feature[0] if feature else None}
    if not isinstance(feature, dict):
        return None
    kind = feature.get("_type")
    if kind == "Json":
        return lambda value: json.loads(value) if isinstance(value, str) else value
    if kind == "ClassLabel":
        names = class_names(feature)
        if not names:
            return None
        return lambda v: names[v] if type(v) is int and 0 <= v < len(names) else v
    if isinstance(kind, str):  # a list of some kind, or a plain value
        inner = _decoder(feature.get("feature"))
        return inner and (lambda v: [inner(x) for x in v] if isinstance(v, list) else v)
    fields = {name: decoder for name, part in feature.items() if (decoder := _decoder(part))}
    return (lambda v: v and v | {n: f(v[n]) for n, f in fields.items()}) if fields else None
