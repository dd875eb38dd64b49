"""Rows from files (JSON, JSON Lines, CSV, Parquet), from folders of them, and from the hub."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any, NamedTuple

from nbhelpers.common.files import expanded, kind_of
from nbhelpers.data.hub import fetch, is_repo_id
from nbhelpers.data.instruction_rows import PlacedRow, RowReader
from nbhelpers.data.pair_sources import (
    BYTE_ORDER_MARK,
    SIGNATURES,
    SMOKE,
    SMOKE_LICENCE,
    find_splits,
    refuse_lost_path,
    shorten,
    split_of,
)
from nbhelpers.data.pairs import MAIN_SPLITS
from nbhelpers.data.problems import ProblemLog
from nbhelpers.errors import DataError
from nbhelpers.presets.checks import DATASET_PREFIX

# ------------------------------------------------------------------------------------------------
# Readers of JSON, JSON Lines, CSV and Parquet files of rows, strict and by place.
#
# Each yields (line or row number, record); what cannot be read goes to the log, by file and line. A
# file that is not what its name says is told apart by its first bytes.


Records = Iterator[tuple[int, Any]]

JSON_ENDINGS = (".json", ".jsonl", ".ndjson")
CSV_ENDINGS = (".csv", ".tsv")
ENDINGS = (*JSON_ENDINGS, ".parquet", *CSV_ENDINGS)
# Rows are held in memory as Python texts, about three times their size on the disk; a JSON value is
# held as bytes, text and objects at once.
MAX_FILE_BYTES = 2 * 2**30
MAX_JSON_BYTES = 512 * 2**20
HEAD_BYTES = 64 * 1024
BATCH_ROWS = 1024
LARGEST_CELL = 2**30
LIST_KEYS = ("data", "rows", "examples")

_BINARY = (
    (b"PAR1", "is a Parquet file; name it .parquet"),
    (b"\x80\x02", "is a pickle; nothing is unpickled here"),
    (b"\x80\x04", "is a pickle; nothing is unpickled here"),
    (b"\x80\x05", "is a pickle; nothing is unpickled here"),
    (b"ARROW1", "is an Arrow file; write it as Parquet"),
    (b"BZh", "is compressed by bzip2; unpack it: bunzip2 FILE"),
    (b"\xfd7zXZ", "is compressed by xz; unpack it: unxz FILE"),
    (b"\x28\xb5\x2f\xfd", "is compressed by Zstandard; unpack it: unzstd FILE"),
    (b"%PDF", "is a PDF"),
    (b"<!DOCTYPE", "is a web page, not data; download the file itself"),
    (b"<html", "is a web page, not data; download the file itself"),
)
_ONLY_IN_BINARY = bytes(set(range(32)) - set(b"\t\n\r\f\v\x1b") - {0})


def read_records(path: Path, name: str, log: ProblemLog) -> Records:
    """The records of a file, in its order.

    Args:
        path: The file; its ending says the format.
        name: How the file is called in findings.
        log: Collects findings; a file that cannot be read at all yields nothing.
    """
    size, rows = _size(path, name, log), 0
    if size is None:
        return
    fatal_before = _n_fatal(log)
    ending = path.suffix.lower()
    reader = _read_parquet if ending == ".parquet" else _read_text_file
    for number, record in reader(path, name, log):
        rows += 1
        yield number, record
    bad = log.rows_dropped.get(name, 0)
    if not rows and not bad and _n_fatal(log) == fatal_before:
        log.add("empty_file", name, None, "0 rows" if size else "0 bytes")


def _n_fatal(log: ProblemLog) -> int:
    return sum(log.counts.get(k, 0) for k in ("unreadable_file", "wrong_encoding", "too_large"))


def _size(path: Path, name: str, log: ProblemLog) -> int | None:
    try:
        size = path.stat().st_size
    except OSError as error:
        log.add("unreadable_file", name, None, error.strerror or str(error))
        return None
    if size > MAX_FILE_BYTES:
        detail = f"{size / 2**30:.1f} GiB; at most {MAX_FILE_BYTES / 2**30:.0f} GiB are read"
        log.add("too_large", name, None, detail)
        return None
    return size


def _read_text_file(path: Path, name: str, log: ProblemLog) -> Records:
    try:
        with path.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
            if fault := head_fault(head):
                log.add(fault[0], name, None, fault[1])
                return
            start = len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0
            if start:
                log.add("byte_order_mark", name, 1)
            stream.seek(start)
            head = head[start:]
            if path.suffix.lower() in CSV_ENDINGS:
                yield from _read_csv(stream, name, log)
            elif _is_one_value(head, path.suffix.lower()):
                yield from _read_json_value(stream, name, log)
            else:
                yield from _read_lines(stream, name, log)
    except OSError as error:
        log.add("unreadable_file", name, None, error.strerror or str(error))


def head_fault(head: bytes) -> tuple[str, str] | None:
    """What the first bytes give away: another format, another encoding, no text at all."""
    for start, kind, detail in SIGNATURES:
        if head.startswith(start):
            return kind, detail
    for start, detail in _BINARY:
        if head.startswith(start):
            return "unreadable_file", detail
    n_nul = head.count(0)
    if n_nul > len(head) // 4 and head[:2].count(0) == 1:
        return "wrong_encoding", "looks like UTF-16 without its mark"
    odd = len(head) - len(head.translate(None, _ONLY_IN_BINARY))
    if odd + n_nul > len(head) // 10:
        return "unreadable_file", "is a binary file, not text"
    return None


def _is_one_value(head: bytes, ending: str) -> bool:
    """Whether a file is one JSON value (a list, or an object with a list) and not one a line."""
    text = head.lstrip()
    if text.startswith(b"["):
        return True
    first, _, rest = text.partition(b"\n")
    if not text.startswith(b"{") or ending != ".json":
        return False
    record = _parsed(first)
    if record is None:  # spread over lines, unless the second line stands alone
        return _parsed(rest.lstrip().partition(b"\n")[0]) is None
    return not rest.strip() and all(isinstance(value, list | dict) for value in record.values())


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; one that has a key twice would lose a value without a word."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:40]!r} stands twice in one object")
    return fields


def _read_lines(stream: IO[bytes], name: str, log: ProblemLog) -> Records:
    rows = crlf = 0
    for number, line in enumerate(stream, 1):
        if not line.strip():
            log.add("blank_line", name, number)
            continue
        rows += 1
        crlf += line.endswith(b"\r\n")
        try:
            yield number, json.loads(line.decode(), object_pairs_hook=_unique)
        except UnicodeDecodeError as error:
            detail = f"byte {error.start + 1} of the line is 0x{line[error.start]:02x}"
            log.add("not_utf8", name, number, detail)
        except RecursionError:
            log.add("broken_json", name, number, "nested too deeply")
        except ValueError as error:  # a number of thousands of digits is a plain ValueError
            if b"\0" in line:
                log.add("nul_byte", name, number, f"at byte {line.index(0) + 1} of the line")
            else:
                log.add("broken_json", name, number, str(error).split("\n")[0][:100])
    log.read(name, rows)
    if crlf:
        log.add("crlf", name, None, "", n=crlf)


def _read_json_value(stream: IO[bytes], name: str, log: ProblemLog) -> Records:
    data = stream.read(MAX_JSON_BYTES + 1)
    if len(data) > MAX_JSON_BYTES:
        detail = f"one JSON value of more than {MAX_JSON_BYTES // 2**20} MiB; write one row a line"
        log.add("too_large", name, None, detail)
        return
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        detail = f"line {line}: byte 0x{data[error.start]:02x} is not UTF-8; save it as UTF-8"
        log.add("unreadable_file", name, line, detail)
        return
    except RecursionError:
        log.add("unreadable_file", name, None, "is JSON nested too deeply")
        return
    except ValueError as error:
        log.add("unreadable_file", name, None, f"is not JSON: {str(error)[:120]}")
        return
    rows = _rows_of(value)
    if isinstance(rows, str):
        log.add("unreadable_file", name, None, rows)
        return
    log.read(name, len(rows))
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


def _read_csv(stream: IO[bytes], name: str, log: ProblemLog) -> Records:
    limit = csv.field_size_limit(LARGEST_CELL)
    try:
        # Bytes that are not UTF-8 pass as lone surrogates, so that their row can be named.
        text = io.TextIOWrapper(stream, encoding="utf-8", errors="surrogateescape", newline="")
        yield from _csv_rows(text, name, log)
        text.detach()
    finally:
        csv.field_size_limit(limit)


def _csv_rows(text: io.TextIOWrapper, name: str, log: ProblemLog) -> Records:
    head = [text.readline()]
    while head[-1] and not head[-1].strip():  # blank lines above the header
        head.append(text.readline())
    delimiter = max(",;\t", key=head[-1].count)
    rows = 0
    # Strict: else a quote that is never closed swallows the rest of the file.
    reader = csv.reader(chain(head, text), delimiter=delimiter, strict=True)
    header: list[str] = []
    for line, cells in _csv_lines(reader, name, log):
        if not header and any(cell.strip() for cell in cells):
            header = [cell.strip() for cell in cells]
            if fault := _header_fault(header):
                log.add("unreadable_file", name, line, fault)
                break
        elif not any(cell.strip() for cell in cells):
            log.add("blank_line", name, line)
        else:
            rows += 1
            if bad := _cells_fault(cells, header):
                log.add(bad[0], name, line, bad[1])
            else:
                yield line, dict(zip(header, cells, strict=True))
    log.read(name, rows)


def _csv_lines(reader: Any, name: str, log: ProblemLog) -> Iterator[tuple[int, list[str]]]:
    """Each row with the line where it begins; a cell may hold line ends."""
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            log.add("unreadable_file", name, line, f"is not CSV from line {line} on: {error}")
            return
        if cells is None:
            return
        yield line, cells


def _cells_fault(cells: list[str], header: list[str]) -> tuple[str, str] | None:
    if len(cells) != len(header):
        return "ragged_row", f"{len(cells)} cells under {len(header)} columns"
    odd = any(not cell.isascii() and re.search("[\udc80-\udcff]", cell) for cell in cells)
    return ("not_utf8", "a cell holds other bytes") if odd else None


def _header_fault(header: list[str]) -> str:
    names = [name.lower() or "(no name)" for name in header]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"its header names a column twice: {', '.join(twice)}" if twice else ""


def _read_parquet(path: Path, name: str, log: ProblemLog) -> Records:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as table:
            if fault := _header_fault([name.strip() for name in table.schema_arrow.names]):
                log.add("unreadable_file", name, None, fault)
                return
            for batch in table.iter_batches(batch_size=BATCH_ROWS):
                for record in _batch_records(batch, name, number, log):
                    number += 1
                    if record is not None:
                        yield number, record
    except (OSError, pa.ArrowException, ValueError) as error:  # a name that is not UTF-8 as well
        log.add("unreadable_file", name, None, _why_no_parquet(path, error))
    log.read(name, number)


def _batch_records(
    batch: Any, name: str, before: int, log: ProblemLog
) -> Iterator[dict[str, Any] | None]:
    """Rows of a batch as dicts; None for one with a value that Python cannot hold.

    Dates and times ask and answer nothing, and some lie outside Python's calendar: not read.
    """
    import pyarrow as pa

    is_read = [not pa.types.is_temporal(kind) for kind in batch.schema.types]
    batch = batch.select([at for at, is_kept in enumerate(is_read) if is_kept])
    try:
        rows = batch.to_pylist()
    except (UnicodeDecodeError, OverflowError):
        rows = []
    yield from rows
    for row in range(len(rows), batch.num_rows):
        try:
            yield batch.slice(row, 1).to_pylist()[0]
        except UnicodeDecodeError as error:
            log.add("not_utf8", name, before + row + 1, f"byte {error.start + 1} of a text")
            yield None
        except OverflowError as error:
            log.add("not_text", name, before + row + 1, str(error)[:100])
            yield None


def _why_no_parquet(path: Path, error: Exception) -> str:
    try:
        with path.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
    except OSError:
        head = b""
    for start, _, detail in SIGNATURES:
        if head.startswith(start):
            return detail
    return f"is not Parquet, or damaged: {str(error).split(chr(10))[0][:140]}"


# ------------------------------------------------------------------------------------------------
# Where instructions come from: the bundled sample, a file, a folder of files, or the hub.


LOCAL_LICENCE = "not stated (local files)"
OTHER_NAMES = {"val": "valid", "dev": "valid"}  # of the validation split
HUB_FOLDERS = {"google-research-datasets/mbpp": "full"}  # of the forms that stand side by side
RECORDS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
_WANTED = (
    "no files of rows (.json, .jsonl, .parquet, .csv)",
    "name another data set, or download it and give a local file.",
)


class Files(NamedTuple):
    """Files of one data set and what is known of it."""

    folder: Path
    names: list[str]  # relative to the folder
    source: str
    revision: str | None
    licence: str


class RawData(NamedTuple):
    """Rows by split as they stand in the files, before anything is held out."""

    splits: dict[str, list[PlacedRow]]
    source: str
    revision: str | None
    licence: str
    note: str = ""


def read_source(source: str, revision: str | None, log: ProblemLog) -> RawData:
    """All usable rows of a data set.

    Raises:
        DataError: Nothing is there, a file cannot be read, or rows are bad and the policy is
            `stop`.
    """
    if source == SMOKE:
        data = _read_smoke(log)
    else:
        files = find_files(source, revision, log)
        splits = read_splits(files, log)
        data = RawData(splits, files.source, files.revision, files.licence)
    log.stop_if_needed()
    for name, rows in data.splits.items():
        if not rows:
            log.add("no_rows_left", name, None, "every row was dropped")
    log.stop_if_needed()
    return data


def find_files(source: str, revision: str | None, log: ProblemLog, *, what: str = "data") -> Files:
    """The files that a source names: one file, those of a folder, or those on the hub.

    Args:
        source: A path, `owner/name`, or `owner/name/folder` for a folder of a data set.
        revision: Branch, tag or commit on the hub.
        log: Gets notes on what was ignored or cached.
        what: Name of the parameter, for errors.

    Raises:
        DataError: Nothing of the kind is there or can be reached.
    """
    if not isinstance(source, str) or not source.strip() or "\0" in source:
        raise _unknown_source(source, what)
    path = expanded(source, what)
    if not source.startswith(DATASET_PREFIX) and (kind := kind_of(path)):
        if revision is not None:
            log.add("ignored_revision", source, None, f"revision {revision!r}")
        return _local_files(path, kind, source)
    repo_id = source.removeprefix(DATASET_PREFIX)
    parts = repo_id.split("/")
    under = "/".join(parts[2:])
    if repo_id == source and (not under or source.startswith((".", "/", "~"))):
        refuse_lost_path(source, endings=ENDINGS, what="file or folder")
    repo_id = "/".join(parts[:2])
    if not is_repo_id(repo_id) or (under and Path(under).suffix in ENDINGS):
        raise _unknown_source(source, what)
    under = under or HUB_FOLDERS.get(repo_id, "")
    fetched = fetch(repo_id, revision, log, choose=_chooser(under), wanted=_WANTED)
    name = f"{repo_id}/{under}" if under else repo_id
    return Files(fetched.folder, list(fetched.files), name, fetched.commit, fetched.licence)


def _local_files(path: Path, kind: str, source: str) -> Files:
    if kind == "forbidden":
        raise DataError(
            f"{source} cannot be looked at: a folder above it may not be searched.",
            fix="make it readable, or copy the data to a folder of your own",
        )
    if kind == "file":
        if path.suffix.lower() not in ENDINGS:
            raise DataError(
                f"{source} cannot be read: its name ends in {path.suffix or 'nothing'}.",
                fix=f"write the rows as one of {', '.join(ENDINGS)}.",
            )
        return Files(path.parent, [path.name], source, None, LOCAL_LICENCE)
    if kind != "folder":
        raise DataError(f"{source} is no plain file.", fix="give a file or a folder")
    try:
        names = [file.relative_to(path).as_posix() for file in _files_under(path)]
        there = sorted(child.name for child in path.iterdir())
    except OSError as error:
        raise DataError(
            f"{source} cannot be read: {error.strerror}.", fix=f"chmod -R u+rX {source}"
        ) from error
    if not names:
        raise DataError(
            f"The folder {source} holds no file that is read ({', '.join(ENDINGS)}).",
            fix="put train.jsonl there, or name another folder.",
            details=f"it holds: {', '.join(there[:12]) or 'nothing'}",
        )
    return Files(path, names, source, None, LOCAL_LICENCE)


def _files_under(path: Path) -> Iterator[Path]:
    """Data files of a folder and its subfolders; hidden ones and records about data apart."""
    for file in sorted(path.rglob("*")):
        if is_data(file.relative_to(path)) and file.is_file():
            yield file


def is_data(name: PurePath) -> bool:
    """Whether a file is read as rows, by its name: hidden ones and records about data are not."""
    is_hidden = any(part.startswith(".") for part in name.parts)
    return name.suffix.lower() in ENDINGS and not is_hidden and name.name not in RECORDS


def _chooser(under: str) -> Callable[[list[str]], list[str]]:
    """Files of one format: Parquet where there is any, else what is there."""

    def choose(names: list[str]) -> list[str]:
        inside = [n for n in names if is_data(PurePosixPath(n))]
        if under:
            inside = [n for n in inside if n.startswith(f"{under}/")] or inside
        parquet = [n for n in inside if n.endswith(".parquet")]
        return parquet or [n for n in inside if split_name(n) is not None] or inside

    return choose


def split_name(name: str) -> str | None:
    """Split that a file belongs to, by its name or else by its folder's.

    >>> split_name("data/validation-00000-of-00001.parquet"), split_name("dev.json")
    ('valid', 'valid')
    >>> split_name("my_rows.csv") is None
    True
    """
    path = Path(name)
    other = OTHER_NAMES.get(path.stem) or OTHER_NAMES.get(path.parent.name)
    return split_of(path) or other


def sort_files(names: list[str], log: ProblemLog) -> dict[str, list[str]]:
    """Sort files into splits; a single file without a split's name is the training data."""
    if len(names) == 1 and split_name(names[0]) is None:
        return {"train": names}
    if not any(split_name(name) for name in names):
        detail = (
            f"no name says train, valid or test: {', '.join(sorted(names)[:8])}; name one of "
            f"these files as the data, or rename it to train{PurePosixPath(names[0]).suffix}"
        )
        log.add("ambiguous_files", names[0], None, detail)
        return {}
    files_of = find_splits(names, log, split_of=lambda path: split_name(path.as_posix()))
    for split, files in files_of.items():
        stems = [file.removesuffix(PurePosixPath(file).suffix) for file in files]
        twice = [file for file, stem in zip(files, stems, strict=True) if stems.count(stem) > 1]
        if twice:
            log.add("ambiguous_files", twice[0], None, f"{split} stands in {', '.join(twice)}")
    if "train" not in files_of and len(files_of) > 0:
        detail = f"no train.*; there are {', '.join(sorted(names)[:8])}"
        log.add("missing_file", "train", None, detail)
    return {name: files_of[name] for name in MAIN_SPLITS if name in files_of}


def read_splits(files: Files, log: ProblemLog) -> dict[str, list[PlacedRow]]:
    """Rows of every split; a form that differs between splits is a finding too."""
    sorted_files = sort_files(files.names, log)
    if log.has_any("missing_file", "missing_shard", "ambiguous_files"):
        log.stop_if_needed()
    splits, kinds = {}, {}
    for split, names in sorted_files.items():
        reader = RowReader(log)
        for name in names:
            for line, record in read_records(files.folder / name, name, log):
                reader.add(record, name, line)
        reader.finish(names[0])
        splits[split] = reader.rows
        kinds |= {schema.kind: f"{schema.kind} in {names[0]}" for schema in reader.forms}
    if len(kinds) > 1 and not log.has_any("mixed_columns"):
        log.add("mixed_columns", files.source, None, ", ".join(kinds.values()))
    return splits


def _read_smoke(log: ProblemLog) -> RawData:
    from nbhelpers.data.samples import instructions as sample

    splits: dict[str, list[PlacedRow]] = {}
    for split, rows in sample.load_instruction_rows().items():
        reader = RowReader(log)
        for line, record in enumerate(rows, 1):
            reader.add(record, f"samples/{split}", line)
        reader.finish(f"samples/{split}")
        log.read(f"samples/{split}", len(rows))
        splits[split] = reader.rows
    return RawData(splits, SMOKE, None, SMOKE_LICENCE, sample.SAMPLE_NOTE)


def _unknown_source(source: Any, what: str) -> DataError:
    is_data = what == "data"
    sample = f"`{SMOKE}`, nor " if is_data else ""
    return DataError(
        f"{what}={shorten(source)} is neither {sample}a file or folder here, nor a data set on the "
        "hub (owner/name).",
        fix=f"write `{SMOKE}`, ./file.jsonl, ./folder or owner/name; a revision goes into "
        "data_revision."
        if is_data
        else "write ./file.jsonl, ./folder or owner/name.",
    )
