"""Strict reader of the CodeXGLUE layout: `data.jsonl` beside `train.txt`, `valid.txt`, `test.txt`.

One pass over each file; what stays in memory is the functions and a few bytes per pair. A line
that cannot be used is named by file and line, never skipped in silence: the scripts this replaces
dropped every pair whose id was a number and took any label other than "0" for 1.
"""

from __future__ import annotations

import difflib
import json
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..paths import is_file, kind_of
from .checks import assemble
from .pair_columns import BLOCK_BYTES, Columns, PlainIds
from .pairs import MAIN_SPLITS, CloneData, FunctionTable, RawSplit, raw_split
from .problems import ProblemLog

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
    found = {name: folder / f"{name}.txt" for name in MAIN_SPLITS}
    found |= {path.stem: path for path in sorted(folder.glob("test_*.txt"))}
    return {name: path for name, path in found.items() if is_file(path)}


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
