"""Where function pairs come from: the sample, a folder of text or Parquet, `datasets`, the hub."""

from __future__ import annotations

import difflib
import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from nbhelpers.common.files import expanded, is_file
from nbhelpers.data.files import (
    MAIN_SPLITS,
    SMOKE,
    SMOKE_LICENCE,
    Fault,
    arrow_batches,
    check_choice,
    check_whole,
    class_names,
    ending_of,
    features_of,
    line_fault,
    n_unreadable,
    named,
    opened,
    plain_name,
    read_lines,
    shorten,
    tell_unread,
)
from nbhelpers.data.findings import Findings, Policy
from nbhelpers.data.hub import Files
from nbhelpers.data.pairs import CloneData, ClonePairs, FunctionTable, RawSplit, assemble, subsample
from nbhelpers.data.sources import find_files, open_file, sort_files
from nbhelpers.errors import DataError
from nbhelpers.presets.checks import ARCHIVES


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
            columns; also of `save_to_disk`, or as one archive), or a data set on the hub.
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
    check_choice(on_bad_rows, train_fraction)
    check_whole(0, seed=seed)
    if max_train_samples is not None:
        check_whole(1, max_train_samples=max_train_samples)
    data = _load(source, revision, Findings(on_bad_rows, source), require, seed)
    if "train" in data.splits:
        limits = {"fraction": train_fraction, "max_samples": max_train_samples}
        data.splits["train"] = subsample(data.splits["train"], **limits, seed=seed)
    return data


def _load(
    source: str,
    revision: str | None,
    findings: Findings,
    require: tuple[str, ...],
    seed: int,
) -> CloneData:
    if source == SMOKE:
        return _load_smoke(findings, seed)
    is_archive = isinstance(source, str) and source.lower().endswith(ARCHIVES)
    if isinstance(source, str) and is_file(source) and not is_archive:
        raise DataError(
            f"{source} is a file, not a folder.",
            fix=f"name the folder that holds it: {expanded(source).parent}",
        )
    lack = f"neither {FUNCTIONS_FILE} nor files of rows"
    wanted = {"endings": (".jsonl", ".txt", ".parquet", ".arrow"), "layout": layout, "lack": lack}
    wanted["needed"] = f"{FUNCTIONS_FILE}, train.txt, valid.txt and test.txt, or Parquet files,"
    files = find_files(source, revision, findings, **wanted)
    names = layout(files.names)
    is_table = not names and (files.tables or files.revision)
    in_tables = (".parquet", ".arrow")
    rows = [n for n in files.names if is_table or ending_of(PurePosixPath(n)) in in_tables]
    if others := [] if is_table else [n for n in files.names if n not in (names or rows)]:
        findings.add("ignored_file", others[0], None, "it is no split by its name", n=len(others))
    facts = {"source": files.source, "revision": files.revision, "licence": files.licence}
    if rows and not names:
        table, raw = _read_tables(files._replace(names=rows), require, findings)
    else:
        inner = PurePosixPath(names[0]).parent if names else ""
        table, raw = _read_folder(files.folder / inner, require, findings)
    return assemble(table, raw, findings, **facts)


def layout(names: list[str]) -> list[str]:
    """The files of the CodeXGLUE layout around the outermost `data.jsonl`, if there is one."""
    paths = [PurePosixPath(name) for name in names]
    roots = [path.parent for path in paths if plain_name(path.name) == FUNCTIONS_FILE]
    if not roots:
        return []
    folder = min(roots, key=lambda root: len(root.parts))
    return [str(path) for path in paths if path.parent == folder and _is_of_layout(path)]


def _is_of_layout(path: PurePosixPath) -> bool:
    name = PurePosixPath(plain_name(path.name))
    is_split = name.stem in MAIN_SPLITS or name.stem.startswith("test_")
    return name.name == FUNCTIONS_FILE or (is_split and name.suffix == ".txt")


def _load_smoke(findings: Findings, seed: int) -> CloneData:
    from nbhelpers.data import samples

    table = FunctionTable(findings, rows_are_functions=True)
    for line, function in enumerate(samples.load_functions(), 1):
        table.add(function.id, function.code, "samples", line)
    raw = {}
    for name, pairs in samples.sample_pairs(seed).items():
        number = table.index
        rows = [(number[a], number[b], label, n) for n, (a, b, label) in enumerate(pairs, 1)]
        raw[name] = to_split([(name, Columns(*np.array(rows, dtype=np.int32).T))])
    facts = {"source": SMOKE, "revision": None, "licence": SMOKE_LICENCE}
    return assemble(table, raw, findings, **facts, note=samples.SAMPLE_NOTE)


class Columns(NamedTuple):
    """Pairs as arrays of one length: function numbers, label, and line in the file from 1."""

    left: np.ndarray  # (n,) int32
    right: np.ndarray  # (n,) int32
    label: np.ndarray  # (n,) 0 or 1
    line: np.ndarray  # (n,) int32


def to_split(parts: list[tuple[str, Columns]]) -> RawSplit:
    """One split from the files that it stands in, in order."""
    left, right, line = (
        np.concatenate([getattr(columns, field) for _, columns in parts])
        for field in ("left", "right", "line")
    )
    label = np.concatenate([columns.label.astype(np.int8) for _, columns in parts])
    starts = np.cumsum([0, *(len(columns.label) for _, columns in parts)])

    def place(row: int) -> tuple[str, int]:
        return parts[bisect_right(starts, row) - 1][0], int(line[row])

    return RawSplit(ClonePairs(left=left, right=right, label=label), place)


# ------------------------------------------------------------------------------------------------
# The CodeXGLUE layout: `data.jsonl` beside `train.txt`, `valid.txt`, `test.txt`.
#
# One pass over each file; what stays in memory is the functions and a few bytes per pair. A line
# that cannot be used is named by file and line, never skipped in silence: the scripts this replaces
# dropped every pair whose id was a number and took any label other than "0" for 1.


FUNCTIONS_FILE = "data.jsonl"
# Other names in use for a file, by its stem here.
SPELLINGS = {
    "valid": ("val", "dev", "validation", "eval"),
    "data": ("functions", "code"),
    "test": ("test1", "eval"),
}

Raw = tuple[FunctionTable, dict[str, RawSplit]]


def _read_folder(folder: Path, require: tuple[str, ...], findings: Findings) -> Raw:
    there = {plain_name(path.name): path for path in sorted(folder.iterdir()) if is_file(path)}
    names = [*MAIN_SPLITS, *(name[:-4] for name in there if name.startswith("test_"))]
    paths = {name: there[f"{name}.txt"] for name in names if f"{name}.txt" in there}
    missing = [f"{name}.txt" for name in require if name not in paths]
    table, raw = FunctionTable(findings, rows_are_functions=True), {}
    if FUNCTIONS_FILE in there:
        _note_missing(folder, missing, findings)
        _read_functions(there[FUNCTIONS_FILE], table, findings)
    else:
        _note_missing(folder, [FUNCTIONS_FILE, *missing], findings)
    for name, path in paths.items() if table.ids else ():  # else every pair would be called unknown
        split = _read_pairs(path, table, findings)
        if split is not None:
            raw[name] = split
    return table, raw


def _note_missing(folder: Path, missing: list[str], findings: Findings) -> None:
    there = sorted(path.name for path in folder.iterdir() if is_file(path))
    for name in missing:
        parts = []
        if name == missing[0]:  # what is there is said once
            named = ", ".join(there[:12]) or "no files"
            parts.append(f"the folder holds {named}{', …' if len(there) > 12 else ''}")
        close = _did_you_mean(name, there)
        if close and close.lower().endswith(ARCHIVES):
            parts.append(f"unpack {close}, or name it as the data")
        elif close:
            parts.append(f"did you mean {close}? Rename it to {name}")
        findings.add("missing_file", name, None, "; ".join(parts))


def _did_you_mean(name: str, there: list[str]) -> str | None:
    stem = name.split(".")[0]
    for other in there:
        if other.split(".")[0].lower() in (stem, *SPELLINGS.get(stem, ())):
            return other
    return next(iter(difflib.get_close_matches(name, there, n=1, cutoff=0.8)), None)


def _end_file(path: Path, rows: int, n_unreadable_before: int, findings: Findings) -> None:
    if not rows and n_unreadable(findings) == n_unreadable_before:
        findings.add("empty_file", path.name, None, "0 rows")


def _read_functions(path: Path, table: FunctionTable, findings: Findings) -> None:
    name, before = path.name, n_unreadable(findings)
    unread: Counter[str] = Counter()
    with opened(path, name, findings) as stream:
        for line, values in read_lines(stream, name, findings) if stream else ():
            if isinstance(values, dict) and len(values) > 2:
                unread.update(key for key in values if key not in ("func", "idx"))
            try:
                id_, text = _function_of(values)
            except Fault as fault:
                findings.add(fault.kind, name, line, fault.detail)
                if (id_ := _id_of(values)) is not None:
                    table.reject(id_)
            else:
                if isinstance(id_, int):
                    findings.add("int_id", name, line)
                table.add(str(id_), text, name, line)
    tell_unread(unread, name, findings)
    rows = findings.rows_read.get(name, 0)
    _end_file(path, rows, before, findings)
    if rows and findings.policy == "drop" and all(text is None for text in table.texts):
        findings.add("no_rows_left", name, None, "every function was dropped")


def _id_of(values: Any) -> str | None:
    """The id of a function that cannot be used, where it has one."""
    id_ = values.get("idx") if isinstance(values, dict) else None
    return str(id_) if type(id_) is int or (isinstance(id_, str) and not id_fault(id_)) else None


def _function_of(values: Any) -> tuple[str | int, str]:
    """Id and text of a line of `data.jsonl`, or a `Fault`."""
    if not isinstance(values, dict):
        raise Fault("not_an_object", f"it is {type(values).__name__}: {shorten(values)}")
    if missing := [key for key in ("func", "idx") if key not in values]:
        lack = " and ".join(f'"{key}"' for key in missing)
        raise Fault("missing_key", f"no {lack}; the keys are {', '.join(values)[:80] or 'none'}")
    id_, text = values["idx"], values["func"]
    if type(id_) not in (int, str):
        raise Fault("wrong_type", f"idx is {type(id_).__name__}: {shorten(id_)}")
    if isinstance(id_, str) and id_fault(id_):
        raise Fault("bad_id", f"idx {shorten(id_)} {id_fault(id_)}")
    if not isinstance(text, str):
        raise Fault("wrong_type", f"func is {type(text).__name__}: {shorten(text)}")
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


_LABELS = {
    text + end: (label, bool(end.rstrip(b"\n")))
    for text, label in ((b"0", 0), (b"1", 1))
    for end in (b"\n", b"\r\n", b"", b"\r")
}


def _read_pairs(path: Path, table: FunctionTable, findings: Findings) -> RawSplit | None:
    """Rows of a pair file; None where nothing can be read."""
    name, before = path.name, n_unreadable(findings)
    number_of = {id_.encode(): number for id_, number in table.index.items()}
    pairs, crlf, bad_rows = array("i"), 0, 0
    with opened(path, name, findings) as stream:
        for number, line in enumerate(stream or (), 1):
            try:
                left, right, last = line.split(b"\t")
                label, is_crlf = _LABELS[last]
                pairs.extend((number_of[left], number_of[right], label, number))
            except (KeyError, ValueError):
                if line.isspace():
                    findings.add("blank_line", name, number)
                    continue
                bad_rows += 1
                fault, is_crlf = _pair_fault(line, table), line.endswith((b"\r\n", b"\r"))
                findings.add(fault.kind, name, number, fault.detail)
            crlf += is_crlf
    columns = Columns(*np.frombuffer(pairs, dtype=np.int32).reshape(-1, 4).T.copy())
    rows = len(columns.label) + bad_rows
    findings.read(name, rows)
    if crlf:
        findings.add("crlf", name, None, "", n=crlf)
    _end_file(path, rows, before, findings)
    return to_split([(name, columns)]) if rows else None


def _pair_fault(line: bytes, table: FunctionTable) -> Fault:
    """What is wrong with a line that cannot be used."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return line_fault(line, error)
    if "\0" in text:
        return Fault("nul_byte", f"at byte {line.index(0) + 1} of the line")
    text = text.removesuffix("\n").removesuffix("\r")
    parts = text.split("\t")
    if len(parts) != 3:
        return Fault("wrong_columns", _columns_detail(text, len(parts)))
    faults = [_label_fault(parts[2]), *(_id_fault(id_, table) for id_ in parts[:2])]
    faults = [fault for fault in faults if fault]
    return Fault(faults[0].kind, "; ".join(fault.detail for fault in faults))


def _id_fault(id_: str, table: FunctionTable) -> Fault | None:
    if id_ in table.index:
        return None
    if id_ in table.bad_ids:
        return Fault("bad_function", f"id {shorten(id_)}")
    is_close = id_.strip().strip("\"'\ufeff") in table.index
    hint = " (known without the blanks, quotes or byte order mark around it)"
    return Fault("unknown_id", f"id {shorten(id_)}{hint if is_close else ''}")


def _label_fault(label: str) -> Fault | None:
    if label in ("0", "1"):
        return None
    hint = " (remove the blanks)" if label.strip() in ("0", "1") else ""
    return Fault("bad_label", f"label {shorten(label)}{hint}")


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


# ------------------------------------------------------------------------------------------------
# The hub's form, from Parquet or by `datasets`: texts stand in every row, so they are made distinct
# at once.
#
# Columns: `id1`, `id2` (whole numbers or text), `func1`, `func2` (text), `label` (bool, or 0 and
# 1). Only these are read, in batches whose texts are compared as a dictionary, so that memory stays
# bounded although the prepared form of the whole set takes 5.5 GB.


COLUMNS = ("id1", "id2", "func1", "func2", "label")
BATCH_ROWS = 4096


def _read_tables(files: Files, require: tuple[str, ...], findings: Findings) -> Raw:
    table = FunctionTable(findings, rows_are_functions=False)
    raw, unread = {}, Counter[str]()
    for split, names in sort_files(files, findings, require=require).items():
        reader = _TableReader(table, findings, unread)
        parts = [(name, reader.read(open_file(files, name), name)) for name in names]
        if any(findings.rows_read.get(name) for name in names):
            raw[split] = to_split(parts)
        elif not findings.has_any("unreadable_file", "missing_column", "column_type"):
            findings.add("empty_file", names[0], None, "0 rows")
    tell_unread(unread, files.names[0], findings)
    return table, raw


class _TableReader:
    """Reads the files of one split, batch by batch."""

    def __init__(self, table: FunctionTable, findings: Findings, unread: Counter[str]) -> None:
        self.table, self.findings, self.unread = table, findings, unread
        self.known: dict[int | bytes, tuple[int, bytes]] = {}  # id -> its number and text

    def read(self, source: Path | Any, file: str) -> Columns:
        """All rows of a file that can be used so far."""
        options = {"columns": COLUMNS, "texts": ("func1", "func2"), "batch_rows": BATCH_ROWS}
        parts, n = [np.zeros((4, 0), dtype=np.int32)], 0
        more: list[str] = []

        def check(schema: Any) -> Iterator[Fault]:
            more.extend(name for name in schema.names if name not in COLUMNS)
            return _column_faults(schema)

        for batch in arrow_batches(source, file, self.findings, check=check, **options):
            parts.append(self._usable(batch, file, n))
            n += batch.num_rows
        self.findings.read(file, n)
        self.unread.update(dict.fromkeys(more, n))
        return Columns(*np.concatenate(parts, axis=1))

    def _usable(self, batch: Any, file: str, before: int) -> np.ndarray:
        """(4, n): function numbers, label and row of what can be used."""
        members = [self._members(batch, side, file, before) for side in ("1", "2")]
        codes, words = _codes(batch.column("label"))
        if classes := _classes(batch.schema):
            words = [classes[n] if n in range(len(classes)) else n for n in words]
        labels = np.array([*map(_label, words), -1], dtype=np.int32)[codes]  # the last is null's
        is_usable = (members[0] >= 0) & (members[1] >= 0) & ((labels == 0) | (labels == 1))
        for row in np.flatnonzero(~is_usable).tolist():
            fault = _row_fault(batch.slice(row, 1))
            self.findings.add(fault.kind, file, before + row + 1, fault.detail)
        rows = np.arange(before + 1, before + 1 + len(labels))
        return np.stack([*members, labels, rows])[:, is_usable].astype(np.int32)

    def _members(self, batch: Any, side: str, file: str, before: int) -> np.ndarray:
        """Function number of each row's member; -1 where it cannot be used."""
        ids, id_of = _codes(batch.column(f"id{side}"))
        texts, text_of = _codes(batch.column(f"func{side}"))
        combined = ids.astype(np.int64) * (len(text_of) + 1) + texts
        _, first, inverse = np.unique(combined, return_index=True, return_inverse=True)
        numbers = np.full(len(first), -1, dtype=np.int32)
        for at in np.argsort(first):  # in row order: functions are numbered as they come
            row = int(first[at])
            if ids[row] >= 0 and texts[row] >= 0:
                id_, text = id_of[ids[row]], text_of[texts[row]]
                numbers[at] = self._number(id_, text, file, before + row + 1)
        return numbers[inverse.reshape(-1)]

    def _number(self, raw_id: int | bytes, value: bytes, file: str, line: int) -> int:
        known = self.known.get(raw_id)
        if known is not None and known[1] == value:
            return known[0]
        # Bytes that are not UTF-8 become lone surrogates, which `id_fault` refuses.
        id_ = str(raw_id) if isinstance(raw_id, int) else raw_id.decode(errors="surrogateescape")
        if fault := id_fault(id_):
            self.findings.add("bad_id", file, line, f"id {shorten(id_)} {fault}", rows=0)
            return -1
        try:
            number = self.table.add(id_, value.decode(), file, line)
        except UnicodeDecodeError as error:
            if id_ not in self.table.bad_ids:
                detail = f"text of id {id_!r}, byte {error.start + 1}"
                self.findings.add("not_utf8", file, line, detail, rows=0)
            self.table.reject(id_)
            return -1
        if number >= 0:
            self.known[raw_id] = number, value
        return number


# What the two classes are called where a column of `datasets` names them.
CLASS_NAMES = {
    **dict.fromkeys(("0", "false", "no", "not_clone", "non_clone", "no_clone", "different"), 0),
    **dict.fromkeys(("1", "true", "yes", "clone", "same"), 1),
}


def _classes(schema: Any) -> list[int]:
    """The label that each stored number means, by its class's name; empty where none is named."""
    names = class_names(features_of(schema.metadata).get("label"))
    return [CLASS_NAMES.get(re.sub(r"[\s_-]+", "_", name.lower()), -1) for name in names]


def _label(value: Any) -> int:
    """0 or 1 for a label of any type of number, or a text of one; -1 for anything else."""
    return int(value) if value in (0, 1, "0", "1", b"0", b"1") else -1


def _codes(column: Any) -> tuple[np.ndarray, list[Any]]:
    """Index of each row's value among the distinct values (-1 for null), and these values.

    Texts come as bytes, because a file may hold what is not UTF-8.
    """
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    indices = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    values = column.dictionary
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    return indices, (values.cast(pa.large_binary()) if is_text else values).to_pylist()


def _row_fault(row: Any) -> Fault:
    """What is wrong with a row, given as a batch of one."""
    if nulls := [name for name in COLUMNS if row.column(name).null_count]:
        return Fault("null_value", ", ".join(nulls))
    label = row.column("label")[0].as_py()
    if _label(label) < 0:
        return Fault("bad_label", f"label {shorten(label)}")
    ids = [shorten(row.column(name)[0].as_py()) for name in ("id1", "id2")]
    return Fault("bad_function", f"ids {', '.join(ids)}")


def _column_faults(schema: Any) -> Iterator[Fault]:
    from pyarrow import types

    for name in COLUMNS:
        if name not in schema.names:
            detail = f"no column {name}; the columns are {named(schema.names)}"
            yield Fault("missing_column", detail)
            continue
        type_ = schema.field(name).type
        plain = type_.value_type if types.is_dictionary(type_) else type_
        is_text = types.is_string(plain) or types.is_large_string(plain)
        is_whole = types.is_integer(plain)
        if name == "label":
            is_right = is_text or is_whole or types.is_boolean(plain) or types.is_floating(plain)
            words = "the numbers 0 and 1"
            if is_right and sorted(_classes(schema)) not in ([], [0, 1]):
                classes = named(class_names(features_of(schema.metadata)["label"]))
                detail = f"the classes of label are called {classes}; read are not_clone and clone"
                yield Fault("column_type", f"{detail}, different and same, no and yes, 0 and 1")
        elif name.startswith("id"):
            is_right, words = is_text or is_whole, "text or whole numbers"
        else:
            is_right, words = is_text, "text"
        if not is_right:
            yield Fault("column_type", f"column {name} has type {type_}; read are {words}")
