"""Where function pairs come from: the sample, a folder of text files, Parquet files, the hub."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from nbhelpers.common.files import expanded, is_file, is_folder, kind_of
from nbhelpers.data.hub import fetch, is_repo_id
from nbhelpers.data.pairs import (
    MAIN_SPLITS,
    CloneData,
    ClonePairs,
    FunctionTable,
    RawSplit,
    assemble,
    raw_split,
    subsample,
)
from nbhelpers.data.problems import Policy, ProblemLog
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.presets.checks import DATASET_PREFIX

if TYPE_CHECKING:
    import numpy as np


# ------------------------------------------------------------------------------------------------
# The fast way through a pair file: whole blocks of lines as arrays, where every line is plain.
#
# A block is taken only when each of its lines is `id<TAB>id<TAB>0|1` with ids that are known and
# written as plain decimal numbers, as in BigCloneBench. Anything else is for the reader that goes
# line by line and can say what is wrong.


BLOCK_BYTES = 4 * 2**20
MAX_DIGITS = 18  # below 2**63
_TAB, _LINE_END, _ZERO = 9, 10, 48


class Columns(NamedTuple):
    """Pairs as arrays of one length: function numbers, label, and line in the file from 1."""

    left: np.ndarray  # (n,) int32
    right: np.ndarray  # (n,) int32
    label: np.ndarray  # (n,) int8
    line: np.ndarray  # (n,) int32


class PlainIds:
    """Finds functions by ids that are plain decimal numbers, a column at a time."""

    def __init__(self, index: Mapping[str, int]) -> None:
        """Sort the ids once.

        Args:
            index: Function number by id; ids of another form are left to the slow reader.
        """
        import numpy as np

        plain = sorted((int(id_), number) for id_, number in index.items() if _is_plain(id_))
        self._values = np.array([value for value, _ in plain], dtype=np.int64)
        self._numbers = np.array([number for _, number in plain], dtype=np.int32)

    def parse(self, block: bytes, first_line: int) -> Columns | None:
        """Return the columns of a block of whole lines, or None where any line is not plain."""
        import numpy as np

        data = np.frombuffer(block if block.endswith(b"\n") else block + b"\n", dtype=np.uint8)
        ends, tabs = np.flatnonzero(data == _LINE_END), np.flatnonzero(data == _TAB)
        if len(tabs) != 2 * len(ends) or not len(self._values):
            return None
        starts, one, two = np.append(0, ends[:-1] + 1), tabs[::2], tabs[1::2]
        # In order and as many as there should be: so each line has its own two tabs.
        if not ((starts < one) & (one + 1 < two) & (two + 2 == ends)).all():
            return None
        label = data[two + 1] - _ZERO  # of unsigned bytes: what is below "0" becomes large
        left, right = self._find(data, starts, one), self._find(data, one + 1, two)
        if left is None or right is None or label.max() > 1:
            return None
        line = np.arange(first_line, first_line + len(ends), dtype=np.int32)
        return Columns(left, right, label.astype(np.int8), line)

    def _find(self, data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
        """Return the function of each id `data[start:end]`, or None where one is not plain."""
        import numpy as np

        length = ends - starts
        longest = int(length.max())
        if longest > MAX_DIGITS or ((data[starts] == _ZERO) & (length > 1)).any():
            return None
        value = np.zeros(len(ends), dtype=np.int64)
        for place in range(longest):  # units, tens, hundreds
            rows = slice(None) if place < length.min() else np.flatnonzero(length > place)
            digit = data[ends[rows] - 1 - place] - _ZERO
            if digit.max() > 9:
                return None
            value[rows] += digit.astype(np.int64) * 10**place
        at = np.searchsorted(self._values, value)
        at[at == len(self._values)] = 0
        return self._numbers[at] if (self._values[at] == value).all() else None


def _is_plain(id_: str) -> bool:
    """Whether an id is the one way to write its number.

    >>> [_is_plain(id_) for id_ in ("7", "0", "07", "x7", "\\u0667", "")]
    [True, True, False, False, False, False]
    """
    is_number = id_.isascii() and id_.isdigit() and len(id_) <= MAX_DIGITS
    return is_number and (id_[0] != "0" or id_ == "0")


# ------------------------------------------------------------------------------------------------
# Strict reader of the CodeXGLUE layout: `data.jsonl` beside `train.txt`, `valid.txt`, `test.txt`.
#
# One pass over each file; what stays in memory is the functions and a few bytes per pair. A line
# that cannot be used is named by file and line, never skipped in silence: the scripts this replaces
# dropped every pair whose id was a number and took any label other than "0" for 1.


FUNCTIONS_FILE = "data.jsonl"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# First bytes that say at once that a file is not what its name says: (start, kind, detail).
SIGNATURES: tuple[tuple[bytes, str, str], ...] = (
    (b"\xff\xfe", "wrong_encoding", "begins with the mark of UTF-16 or UTF-32 (little endian)"),
    (b"\xfe\xff", "wrong_encoding", "begins with the mark of UTF-16 (big endian)"),
    (b"\x1f\x8b", "unreadable_file", "is compressed by gzip; unpack it: gunzip FILE"),
    (b"PK\x03\x04", "unreadable_file", "is a zip archive; unpack it: unzip FILE"),
    (
        b"version https://git-lfs.github.com",
        "unreadable_file",
        "is a Git LFS pointer, not the file; fetch it: git lfs pull",
    ),
)

# Last column with its line end -> 2 * (line ends in CR LF, or the file within it) + label.
LABELS = {b"0\n": 0, b"1\n": 1, b"0": 0, b"1": 1, b"0\r\n": 2, b"1\r\n": 3, b"0\r": 2, b"1\r": 3}


# Other names in use for a file, by its stem here.
SPELLINGS = {
    "valid": ("val", "dev", "validation", "eval"),
    "data": ("functions", "code"),
    "test": ("test1", "eval"),
}


UNPACK = {".gz": "gunzip", ".zip": "unzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd"}


class Fault(NamedTuple):
    """What is wrong with a line (kind, detail), and the function's id where it could be read."""

    kind: str
    detail: str
    id_: str | None = None


def shorten(value: object, limit: int = 60) -> str:
    """`repr` of a value, cut to a length that a report can show."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 2]}…{text[0]}"


def split_files(folder: Path) -> dict[str, Path]:
    """Pair files of a folder by split: train, valid, test, and any `test_*.txt`."""
    paths = {name: folder / f"{name}.txt" for name in MAIN_SPLITS}
    paths |= {path.stem: path for path in sorted(folder.glob("test_*.txt"))}
    return {name: path for name, path in paths.items() if is_file(path)}


def read_folder(
    folder: Path,
    log: ProblemLog,
    *,
    require: tuple[str, ...] = MAIN_SPLITS,
    source: str,
    revision: str | None = None,
    licence: str,
) -> CloneData:
    """Read a folder in the CodeXGLUE layout.

    Args:
        folder: The folder that holds `data.jsonl`.
        log: Collects what is found; carries the policy for bad rows.
        require: Splits that must be there; the others are read where they exist.
        source: How the data set is named in results and errors.
        revision: Commit on the hub, if it came from there.
        licence: Terms of the data.

    Raises:
        DataError: A file is missing or unreadable, or rows are bad and the policy is `stop`.
    """
    paths = split_files(folder)
    _note_missing(
        folder, [FUNCTIONS_FILE, *(f"{name}.txt" for name in require if name not in paths)], log
    )
    table = FunctionTable(log, rows_are_functions=True)
    if is_file(folder / FUNCTIONS_FILE):
        _read_functions(folder / FUNCTIONS_FILE, table, log)
        has_rows = bool(log.rows_read.get(FUNCTIONS_FILE))  # else it is called empty or unreadable
        if has_rows and log.policy == "drop" and all(text is None for text in table.texts):
            log.add("no_rows_left", FUNCTIONS_FILE, None, "every function was dropped")
    raw: dict[str, RawSplit] = {}
    if table.ids:  # else every pair would be called unknown
        for name, path in paths.items():
            split = _read_pairs(path, table, log)
            if split is not None:
                raw[name] = split
    return assemble(table, raw, log, source=source, revision=revision, licence=licence)


def _note_missing(folder: Path, names: list[str], log: ProblemLog) -> None:
    missing = [name for name in names if not is_file(folder / name)]
    there = sorted(path.name for path in folder.iterdir() if is_file(path))
    for name in missing:
        parts = []
        if name == missing[0]:  # what is there is said once
            named = ", ".join(there[:12]) or "no files"
            parts.append(f"the folder holds {named}{', …' if len(there) > 12 else ''}")
        close = _did_you_mean(name, there)
        if fault := _no_file(folder / name):
            parts.append(f"{name} is there, but it is {fault}")
        elif close and (how := UNPACK.get(Path(close).suffix.lower())):
            parts.append(f"{close} is compressed; unpack it: {how} {close}")
        elif close:
            parts.append(f"did you mean {close}? Rename it to {name}")
        inner = sorted(path.parent.name for path in folder.glob(f"*/{name}"))
        if inner:
            parts.append(f"{name} is in {inner[0]}/: name that folder instead")
        log.add("missing_file", name, None, "; ".join(parts))


def _no_file(path: Path) -> str:
    """What is in the place of a file; empty where nothing is."""
    kind = kind_of(path)
    if kind:
        return {"folder": "a folder", "forbidden": "not to be looked at"}.get(kind, "no plain file")
    return "a link that leads nowhere" if path.is_symlink() else ""


def _did_you_mean(name: str, there: list[str]) -> str | None:
    stem = name.split(".")[0]
    for other in there:
        if other.split(".")[0].lower() in (stem, *SPELLINGS.get(stem, ())):
            return other
    return next(iter(difflib.get_close_matches(name, there, n=1, cutoff=0.8)), None)


@contextmanager
def _opened(path: Path, log: ProblemLog) -> Iterator[IO[bytes] | None]:
    """The file after its byte order mark; None, and a fatal finding, where it cannot be read."""
    try:
        with path.open("rb") as stream:
            head = stream.read(64)
            for start, kind, detail in SIGNATURES:
                if head.startswith(start):
                    log.add(kind, path.name, None, detail)
                    yield None
                    return
            if head.startswith(BYTE_ORDER_MARK):
                log.add("byte_order_mark", path.name, 1)
            stream.seek(len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0)
            yield stream
    except OSError as error:
        log.add("unreadable_file", path.name, None, error.strerror or str(error))


def _end_file(path: Path, log: ProblemLog, *, rows: int, crlf: int, had_fatal: bool) -> None:
    log.read(path.name, rows)
    if crlf:
        log.add("crlf", path.name, None, "", n=crlf)
    if not rows and not had_fatal:
        log.add("empty_file", path.name, None, "0 rows")


def _n_fatal(log: ProblemLog) -> int:
    return sum(log.counts.get(kind, 0) for kind in ("unreadable_file", "wrong_encoding"))


def _read_functions(path: Path, table: FunctionTable, log: ProblemLog) -> None:
    rows, crlf, before = 0, 0, _n_fatal(log)
    with _opened(path, log) as stream:
        for number, line in enumerate(stream or (), 1):
            if line.isspace():
                log.add("blank_line", path.name, number)
                continue
            rows += 1
            crlf += line.endswith(b"\r\n")
            record = parse_function(line)
            if isinstance(record, Fault):
                log.add(record.kind, path.name, number, record.detail)
                if record.id_ is not None:
                    table.reject(record.id_)
                continue
            id_, text = record
            if isinstance(id_, int):
                log.add("int_id", path.name, number)
            table.add(str(id_), text, path.name, number)
    _end_file(path, log, rows=rows, crlf=crlf, had_fatal=_n_fatal(log) > before)


def parse_function(line: bytes) -> tuple[str | int, str] | Fault:
    r"""Id and text of a line of `data.jsonl`, or what is wrong with it.

    >>> parse_function(b'{"func": "int f() {}", "idx": 7}')
    (7, 'int f() {}')
    >>> parse_function(b'{"func": "int f() {}"}')
    Fault(kind='missing_key', detail='no "idx"; the keys are func', id_=None)
    """
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return Fault("not_utf8", f"byte {error.start + 1} of the line is 0x{line[error.start]:02x}")
    except RecursionError:
        return Fault("broken_json", "nested too deeply")
    except ValueError as error:  # a number of thousands of digits is a plain ValueError
        if b"\0" in line:
            return Fault("nul_byte", f"at byte {line.index(0) + 1} of the line")
        return Fault("broken_json", str(error).split("\n")[0][:100])
    return _function_of(record)


def _function_of(record: Any) -> tuple[str | int, str] | Fault:
    if not isinstance(record, dict):
        return Fault("not_an_object", f"it is {type(record).__name__}: {shorten(record)}")
    id_, text = record.get("idx"), record.get("func")
    id_is_usable = isinstance(id_, (int, str)) and not isinstance(id_, bool)
    known_id = str(id_) if id_is_usable else None
    missing = [key for key in ("func", "idx") if key not in record]
    if missing:
        named = " and ".join(f'"{key}"' for key in missing)
        detail = f"no {named}; the keys are {', '.join(record)[:80] or 'none'}"
        return Fault("missing_key", detail, known_id)
    if not id_is_usable:
        return Fault("wrong_type", f"idx is {type(id_).__name__}: {shorten(id_)}")
    if isinstance(id_, str) and id_fault(id_):
        return Fault("bad_id", f"idx {shorten(id_)} {id_fault(id_)}")
    if not isinstance(text, str):
        return Fault("wrong_type", f"func is {type(text).__name__}: {shorten(text)}", known_id)
    return id_, text


def id_fault(id_: str) -> str:
    """Why a text cannot be an id in a tab-separated file; empty where it can."""
    if not id_ or id_ != id_.strip():
        return "is empty" if not id_.strip() else "has blanks around it"
    if any(c in id_ for c in "\t\n\r\0"):
        return "holds a tab, a line end or a NUL"
    if not id_.isascii() and any("\ud800" <= c <= "\udfff" for c in id_):
        return "holds a lone surrogate"
    return ""


def _read_pairs(path: Path, table: FunctionTable, log: ProblemLog) -> RawSplit | None:
    """Rows of a pair file in blocks, plain ones as arrays; None where nothing can be read."""
    import numpy as np

    ids, lines, before = PlainIds(table.index), _PairLines(path.name, table, log), _n_fatal(log)
    parts: list[Columns] = []
    with _opened(path, log) as stream:
        number = 1
        while stream and (block := stream.read(BLOCK_BYTES) + stream.readline()):
            plain = ids.parse(block, number)
            parts.append(lines.parse(block, number) if plain is None else plain)
            number += block.count(b"\n")
    rows = sum(len(part.label) for part in parts)
    had_fatal = _n_fatal(log) > before
    _end_file(path, log, rows=rows + lines.bad_rows, crlf=lines.crlf, had_fatal=had_fatal)
    if not rows and not lines.bad_rows:
        return None
    left, right, label, places = (np.concatenate(column) for column in zip(*parts, strict=True))
    return raw_split(path.name, left=left, right=right, label=label, lines=places)


class _PairLines:
    """Reads a pair file line by line and says what is wrong with a line that cannot be used."""

    def __init__(self, name: str, table: FunctionTable, log: ProblemLog) -> None:
        self.name, self.table, self.log = name, table, log
        self.bad_rows = self.crlf = 0
        self._known = {id_.encode(): number for id_, number in table.index.items()}

    def parse(self, block: bytes, first_line: int) -> Columns:
        import numpy as np

        left, right, label, lines = array("i"), array("i"), array("b"), array("i")
        find, label_of = self._known.get, LABELS.get
        for number, line in enumerate(BytesIO(block), first_line):
            parts = line.split(b"\t")
            if len(parts) == 3:
                a, b, c = find(parts[0]), find(parts[1]), label_of(parts[2])
                if a is not None and b is not None and c is not None:
                    left.append(a)
                    right.append(b)
                    label.append(c)
                    lines.append(number)
                    continue
            self._note(line, number)
        coded = np.array(label, dtype=np.int8)
        self.crlf += int((coded > 1).sum())
        ints = (np.array(column, dtype=np.int32) for column in (left, right, lines))
        return Columns(next(ints), next(ints), coded & 1, next(ints))

    def _note(self, line: bytes, number: int) -> None:
        if not line.strip():
            self.log.add("blank_line", self.name, number)
            return
        self.bad_rows += 1
        self.crlf += line.endswith(b"\r\n")
        fault = diagnose_pair(line, self.table.index, self.table.bad_ids)
        self.log.add(fault.kind, self.name, number, fault.detail)


def diagnose_pair(line: bytes, known: dict[str, int], bad_ids: set[str]) -> Fault:
    r"""Say what is wrong with a line of a pair file.

    >>> diagnose_pair(b"1 2 0\n", {"1": 0, "2": 1}, set()).detail
    "1 column, split by blanks instead of tabs: '1 2 0'"
    """
    if b"\0" in line:
        return Fault("nul_byte", f"at byte {line.index(0) + 1} of the line")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return Fault("not_utf8", f"byte {error.start + 1} of the line is 0x{line[error.start]:02x}")
    text = text.removesuffix("\n").removesuffix("\r")
    parts = text.split("\t")
    if len(parts) != 3:
        return Fault("wrong_columns", _columns_detail(text, len(parts)))
    faults = [
        f for f in (_label_fault(parts[2]), *(_id_fault(p, known, bad_ids) for p in parts[:2])) if f
    ]
    return Fault(faults[0].kind, "; ".join(fault.detail for fault in faults))


def _columns_detail(text: str, n: int) -> str:
    hint = ""
    if "\r" in text:
        hint = ", lines end in a lone CR (old Mac form)"
    elif n == 1 and len(text.split()) == 3:
        hint = ", split by blanks instead of tabs"
    elif n == 1 and len(text.split(",")) == 3:
        hint = ", split by commas instead of tabs"
    elif n == 2:
        hint = ", the label is missing"
    return f"{n} column{'' if n == 1 else 's'}{hint}: {shorten(text)}"


def _label_fault(label: str) -> Fault | None:
    if label in ("0", "1"):
        return None
    hint = " (remove the blanks)" if label.strip() in ("0", "1") else ""
    return Fault("bad_label", f"label {shorten(label)}{hint}")


def _id_fault(id_: str, known: dict[str, int], bad_ids: set[str]) -> Fault | None:
    if id_ in known:
        return None
    if id_ in bad_ids:
        return Fault("bad_function", f"id {shorten(id_)}")
    hint = ""
    if id_.strip().strip("\"'\ufeff") in known:
        hint = " (known without the blanks, quotes or byte order mark around it)"
    return Fault("unknown_id", f"id {shorten(id_)}{hint}")


# ------------------------------------------------------------------------------------------------
# Reader of the hub's Parquet form: texts stand in every row, so they are made distinct at once.
#
# Columns: `id1`, `id2` (whole numbers or text), `func1`, `func2` (text), `label` (bool, or 0 and
# 1). Only these are read, in batches whose texts are compared as a dictionary, so that memory stays
# bounded although the prepared form of the whole set takes 5.5 GB.


COLUMNS = ("id1", "id2", "func1", "func2", "label")
BATCH_ROWS = 4096
SPLIT_NAMES = {"train": "train", "validation": "valid", "valid": "valid", "test": "test"}
_SHARD = re.compile(r"[-_.](?P<part>\d{1,6})(?:-of-(?P<parts>\d{1,6}))?$")


def split_of(path: Path) -> str | None:
    """Split that a Parquet file belongs to, by its name or else by its folder's.

    >>> split_of(Path("data/validation-00000-of-00001.parquet"))
    'valid'
    >>> split_of(Path("default/test/0000.parquet"))
    'test'
    """
    for name in (_SHARD.sub("", path.stem), path.parent.name):
        if name in SPLIT_NAMES:
            return SPLIT_NAMES[name]
        if name.startswith("test_"):
            return name
    return None


def find_splits(
    names: list[str], log: ProblemLog, *, split_of: Callable[[Path], str | None] = split_of
) -> dict[str, list[str]]:
    """Sort file names into splits; parts that are missing or stand twice go to the log."""
    files_of: dict[str, list[str]] = {}
    for name in sorted(names):
        split = split_of(Path(name))
        if split is None:
            log.add("ignored_file", name, None, "no split in its name")
        else:
            files_of.setdefault(split, []).append(name)
    for split, files in files_of.items():
        folders = sorted({str(Path(file).parent) for file in files})
        if len(folders) > 1:
            log.add("ambiguous_files", files[0], None, f"{split} stands in {', '.join(folders)}")
        elif lost := _missing_parts(files):
            log.add("missing_shard", files[0], None, f"{split} lacks {lost}")
    return files_of


def _missing_parts(files: list[str]) -> str:
    parts: dict[int, set[int]] = {}
    unnumbered = 0
    for file in files:
        match = _SHARD.search(Path(file).stem)
        if match and match["parts"]:
            parts.setdefault(int(match["parts"]), set()).add(int(match["part"]))
        else:
            unnumbered += 1
    if len(parts) > 1 or (parts and unnumbered):
        return "one numbering of its parts: files of two exports are mixed"
    for total, there in parts.items():
        lost = sorted(set(range(total)) - there)
        if lost:
            return f"part {lost[0]:05d} of {total:05d}" + (
                f" and {len(lost) - 1} more" if lost[1:] else ""
            )
    return ""


def read_parquet(
    folder: Path,
    names: list[str],
    log: ProblemLog,
    *,
    require: tuple[str, ...] = MAIN_SPLITS,
    source: str,
    revision: str | None = None,
    licence: str,
) -> CloneData:
    """Read Parquet files with the columns of the hub's BigCloneBench.

    Args:
        folder: The folder that holds them.
        names: The Parquet files found there, relative to it.
        log: Collects what is found; carries the policy for bad rows.
        require: Splits that must be there; the others are read where they exist.
        source: How the data set is named in results and errors.
        revision: Commit on the hub, if it came from there.
        licence: Terms of the data.

    Raises:
        DataError: A split is missing or unreadable, or rows are bad and the policy is `stop`.
    """
    splits = find_splits(names, log)
    for name in require:
        if name not in splits:
            detail = f"no {name}*.parquet; there are {', '.join(sorted(names)[:8])}"
            log.add("missing_file", name, None, detail)
    if log.has_any("missing_file", "missing_shard", "ambiguous_files"):
        log.stop_if_needed()
    table = FunctionTable(log, rows_are_functions=False)
    order = [*[n for n in MAIN_SPLITS if n in splits], *[n for n in splits if n not in MAIN_SPLITS]]
    raw: dict[str, RawSplit] = {}
    for name in order:
        split = _SplitReader(folder, table, log).read(splits[name])
        if split is not None:
            raw[name] = split
    return assemble(table, raw, log, source=source, revision=revision, licence=licence)


class _SplitReader:
    """Reads the files of one split, batch by batch."""

    def __init__(self, folder: Path, table: FunctionTable, log: ProblemLog) -> None:
        self.folder, self.table, self.log = folder, table, log
        self.columns: tuple[list[Any], list[Any], list[Any], list[Any]] = ([], [], [], [])
        self.starts: list[tuple[int, str]] = []  # (rows before the file, its name)
        self.known: dict[int | bytes, tuple[int, bytes]] = {}  # id -> its number and text

    def read(self, files: list[str]) -> RawSplit | None:
        """All rows that can be used so far; None where there are none to look at."""
        import numpy as np

        rows = 0
        for file in files:
            self.starts.append((rows, file))
            n = 0
            for batch in self._batches(file):
                self._read_batch(batch, file, n, rows + n)
                n += batch.num_rows
            rows += n
            self.log.read(file, n)
        if not rows:
            if not self.log.has_any("unreadable_file", "missing_column"):
                self.log.add("empty_file", files[0], None, "0 rows")
            return None
        left, right, label, row = (np.concatenate(parts) for parts in self.columns)
        pairs = ClonePairs(left=left, right=right, label=label)
        return RawSplit(pairs=pairs, place=lambda i: self._place(int(row[i])))

    def _place(self, row: int) -> tuple[str, int]:
        start, file = self.starts[bisect_right([s for s, _ in self.starts], row) - 1]
        return file, row - start + 1

    def _batches(self, file: str) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.folder / file
        try:
            faults = list(_column_faults(pq.read_schema(path)))
            for fault in faults:
                self.log.add("missing_column", file, None, fault)
            if faults:
                return
            with pq.ParquetFile(path, read_dictionary=["func1", "func2"]) as table:
                yield from table.iter_batches(batch_size=BATCH_ROWS, columns=list(COLUMNS))
        except (OSError, pa.ArrowException) as error:
            self.log.add("unreadable_file", file, None, _why_unreadable(path, error))

    def _read_batch(self, batch: Any, file: str, row_in_file: int, row: int) -> None:
        import numpy as np

        members = [self._members(batch, side, file, row_in_file) for side in ("1", "2")]
        label, label_is_bad = _labels(batch.column("label"))
        usable = (members[0] >= 0) & (members[1] >= 0) & ~label_is_bad
        for i in np.flatnonzero(~usable):
            kind, detail = _row_fault(batch, int(i))
            self.log.add(kind, file, row_in_file + int(i) + 1, detail)
        rows = np.flatnonzero(usable)
        for column, values in zip(
            self.columns, (*members, label, np.arange(row, row + len(label))), strict=True
        ):
            column.append(values[rows])

    def _members(self, batch: Any, side: str, file: str, row_in_file: int) -> np.ndarray:
        """Function number of each row's member; -1 where it cannot be used."""
        import numpy as np

        ids, id_of = _codes(batch.column(f"id{side}"))
        texts, text_of = _codes(batch.column(f"func{side}"))
        combined = ids.astype(np.int64) * (len(text_of) + 1) + texts
        _, first, inverse = np.unique(combined, return_index=True, return_inverse=True)
        numbers = np.full(len(first), -1, dtype=np.int32)
        # In row order, so that functions are numbered as they come.
        for position in np.argsort(first):
            i = int(first[position])
            if ids[i] >= 0 and texts[i] >= 0:
                place = (file, row_in_file + i + 1)
                numbers[position] = self._number(id_of[ids[i]], text_of[texts[i]], place)
        return numbers[inverse.reshape(-1)]

    def _number(self, raw_id: int | bytes, value: bytes, place: tuple[str, int]) -> int:
        known = self.known.get(raw_id)
        if known is not None and known[1] == value:
            return known[0]
        number = self._add(_as_id(raw_id), value, place)
        if number >= 0:
            self.known[raw_id] = number, value
        return number

    def _add(self, id_: str, value: bytes, place: tuple[str, int]) -> int:
        if fault := id_fault(id_):
            self.log.add("bad_id", *place, f"id {shorten(id_)} {fault}", rows=0)
            return -1
        try:
            text = value.decode()
        except UnicodeDecodeError as error:
            if id_ not in self.table.bad_ids:
                self.log.add(
                    "not_utf8", *place, f"text of id {id_!r}, byte {error.start + 1}", rows=0
                )
            self.table.reject(id_)
            return -1
        return self.table.add(id_, text, *place)


def _codes(column: Any) -> tuple[np.ndarray, list[Any]]:
    """Index of each row's value among the distinct values (-1 for null), and these values.

    Texts come as bytes, because a file may hold what is not UTF-8.
    """
    import numpy as np
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    indices = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    values = column.dictionary
    if pa.types.is_integer(values.type):
        return indices, values.to_pylist()
    return indices, values.cast(pa.large_binary()).to_pylist()


def _as_id(value: int | bytes) -> str:
    """Id as text; bytes that are not UTF-8 become lone surrogates, which `id_fault` refuses."""
    return str(value) if isinstance(value, int) else value.decode(errors="surrogateescape")


def _labels(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """Labels as int8, and a mask of those that are neither 0 nor 1."""
    import numpy as np

    values = column.cast("int64", safe=False).fill_null(-1).to_numpy(zero_copy_only=False)
    bad = (values != 0) & (values != 1)
    return np.where(bad, 0, values).astype(np.int8), bad


def _row_fault(batch: Any, row: int) -> tuple[str, str]:
    nulls = [name for name in COLUMNS if not batch.column(name)[row].is_valid]
    if nulls:
        return "null_value", ", ".join(nulls)
    label = batch.column("label")[row].as_py()
    if label not in (0, 1):
        return "bad_label", f"label {shorten(label)}"
    ids = [batch.column(name)[row].as_py() for name in ("id1", "id2")]
    return "bad_function", f"ids {', '.join(map(shorten, ids))}"


def _column_faults(schema: Any) -> Iterator[str]:
    import pyarrow as pa

    for name in COLUMNS:
        if name not in schema.names:
            yield f"no column {name}; the columns are {', '.join(schema.names)}"
            continue
        type_ = schema.field(name).type
        if pa.types.is_dictionary(type_):
            type_ = type_.value_type
        is_text = pa.types.is_string(type_) or pa.types.is_large_string(type_)
        is_whole = pa.types.is_integer(type_)
        if name == "label":
            is_right = is_whole or pa.types.is_boolean(type_)
        else:
            is_right = is_text or (is_whole and name.startswith("id"))
        if not is_right:
            yield f"column {name} has type {type_}"


def _why_unreadable(path: Path, error: Exception) -> str:
    if path.is_file():
        with path.open("rb") as stream:
            if stream.read(64).startswith(b"version https://git-lfs"):
                return "is a Git LFS pointer, not the file; fetch it: git lfs pull"
    return str(error).split("\n")[0][:160]


# ------------------------------------------------------------------------------------------------
# Where clone data comes from: the bundled sample, a local folder, or the hub.


SMOKE = "smoke"
SMOKE_LICENCE = "Apache-2.0"
LOCAL_LICENCE = "not stated (a local folder)"


def load_clone_data(
    source: str,
    *,
    revision: str | None = None,
    on_bad_rows: Policy = "stop",
    train_fraction: float = 1.0,
    max_train_samples: int | None = None,
    seed: int = 0,
    require: tuple[str, ...] = MAIN_SPLITS,
) -> CloneData:
    """Load function pairs, distinct functions once, with one report of everything found.

    Args:
        source: `smoke`, a local folder (CodeXGLUE layout, or Parquet files with the hub's
            columns), or a data set on the hub as `owner/name`.
        revision: Branch, tag or commit on the hub; the commit it stood for is recorded.
        on_bad_rows: `stop` raises with the whole report; `drop` leaves out exactly the bad rows
            and records it.
        train_fraction: Share of the train pairs to use.
        max_train_samples: Upper limit on the train pairs, applied after the fraction.
        seed: Of the draw of train pairs (and of the pairs of the bundled sample).
        require: Splits that must exist.

    Raises:
        DataError: The data cannot be found, reached or read, or rows are bad and the policy is
            `stop`.
        ConfigError: An argument is out of range.
    """
    _check_arguments(on_bad_rows, train_fraction, max_train_samples, seed)
    data = _load(source, revision, ProblemLog(on_bad_rows, source), require, seed)
    if "train" not in data.splits:
        return data
    train = subsample(
        data.splits["train"], fraction=train_fraction, max_samples=max_train_samples, seed=seed
    )
    return dataclasses.replace(data, splits=data.splits | {"train": train})


def check_choice(on_bad_rows: object, train_fraction: object) -> None:
    """Refuse an unknown policy for bad rows, and a share of the rows that is none.

    Raises:
        ConfigError: Names the argument and what it may be.
    """
    if on_bad_rows not in ("stop", "drop"):
        raise ConfigError(f"on_bad_rows={on_bad_rows!r} is not known.", fix='use "stop" or "drop".')
    is_number = type(train_fraction) in (int, float)
    if not is_number or not 0 < train_fraction <= 1:  # type: ignore[operator]
        raise ConfigError(
            f"train_fraction={train_fraction!r} is not in (0, 1].", fix="0.1 takes a tenth."
        )


def _check_arguments(
    on_bad_rows: object, train_fraction: object, max_train_samples: object, seed: object
) -> None:
    check_choice(on_bad_rows, train_fraction)
    for name, value, low in (("max_train_samples", max_train_samples, 1), ("seed", seed, 0)):
        if value is None and name != "seed":
            continue
        if type(value) is not int or value < low:
            fix = f"give a whole number from {low} up" + (", or None." if low else ".")
            raise ConfigError(f"{name}={value!r} is no whole number from {low} up.", fix=fix)


def _load(
    source: str, revision: str | None, log: ProblemLog, require: tuple[str, ...], seed: int
) -> CloneData:
    if source == SMOKE:
        return _load_smoke(log, seed)
    if not isinstance(source, str) or not source.strip() or "\0" in source:
        raise _unknown_source(source)
    path = expanded(source, "data")
    if not source.startswith(DATASET_PREFIX) and kind_of(path):
        if revision is not None:
            log.add("ignored_revision", source, None, f"revision {revision!r}")
        return _load_folder(path, log, require, source)
    repo_id = source.removeprefix(DATASET_PREFIX)
    if repo_id == source:
        refuse_lost_path(source)
    if not is_repo_id(repo_id):
        raise _unknown_source(source)
    fetched = fetch(repo_id, revision, log)
    functions = next((name for name in fetched.files if Path(name).name == FUNCTIONS_FILE), None)
    facts = {"source": repo_id, "revision": fetched.commit, "licence": fetched.licence}
    if functions is not None:
        return read_folder((fetched.folder / functions).parent, log, require=require, **facts)
    return read_parquet(fetched.folder, list(fetched.files), log, require=require, **facts)


def _load_folder(path: Path, log: ProblemLog, require: tuple[str, ...], source: str) -> CloneData:
    if kind_of(path) == "forbidden":
        raise DataError(
            f"{source} cannot be looked at: a folder above it may not be searched.",
            fix="make it readable, or copy the data to a folder of your own",
        )
    if not is_folder(path):
        raise DataError(
            f"{source} is a file, not a folder.",
            fix=f"name the folder that holds it: {path.parent}",
        )
    try:
        if kind_of(path / FUNCTIONS_FILE) or split_files(path):
            return read_folder(path, log, require=require, source=source, licence=LOCAL_LICENCE)
        names = [file.relative_to(path).as_posix() for file in path.rglob("*.parquet")]
        if names:
            return read_parquet(
                path, names, log, require=require, source=source, licence=LOCAL_LICENCE
            )
        return read_folder(path, log, require=require, source=source, licence=LOCAL_LICENCE)
    except PermissionError as error:
        raise DataError(
            f"{source} cannot be read: {error.strerror}.", fix=f"chmod -R u+rX {source}"
        ) from error


def refuse_lost_path(
    source: str,
    *,
    endings: tuple[str, ...] = (".jsonl", ".txt", ".parquet"),
    what: str = "folder",
) -> None:
    """Stop at once where a text is meant as a path and nothing is there; the hub is not asked.

    Raises:
        DataError: It is a path, by its form, its ending or its first folder.
    """
    path = expanded(source, "data")
    first = path.parts[0] if path.parts else ""
    is_path = (
        source.startswith((".", "/", "~", "\\"))
        or source.endswith(("/", *endings))
        or "\\" in source
        or source.count("/") > 1
        or (len(path.parts) > 1 and is_folder(first))
    )
    if not is_path or "://" in source:
        return
    parent = next((p for p in path.parents if is_folder(p)), Path())
    try:
        there = sorted(p.name for p in parent.iterdir())[:12]
    except OSError:
        there = ["what may not be listed"]
    raise DataError(
        f"There is no {what} {source}.",
        fix=f"correct the path (for a data set on the hub write {DATASET_PREFIX}owner/name).",
        details=f"{parent} holds: {', '.join(there) or 'nothing'}",
    )


def _unknown_source(source: object) -> DataError:
    return DataError(
        f"data={shorten(source)} is neither `{SMOKE}`, nor a folder here, nor a data set on the "
        "hub (owner/name).",
        fix="write `smoke`, ./folder or owner/name; a revision goes into data_revision.",
    )


def _load_smoke(log: ProblemLog, seed: int) -> CloneData:
    from nbhelpers.data import samples

    table = FunctionTable(log, rows_are_functions=True)
    for line, function in enumerate(samples.load_functions(), 1):
        table.add(function.id, function.code, "samples", line)
    raw = {
        name: raw_split(
            name,
            left=[table.index[left] for left, _, _ in rows],
            right=[table.index[right] for _, right, _ in rows],
            label=[label for *_, label in rows],
            lines=range(1, len(rows) + 1),
        )
        for name, rows in samples.sample_pairs(seed).items()
    }
    return assemble(
        table,
        raw,
        log,
        source=SMOKE,
        revision=None,
        licence=SMOKE_LICENCE,
        note=samples.SAMPLE_NOTE,
    )
