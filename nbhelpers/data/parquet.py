"""Reader of the hub's Parquet form: texts stand in every row, so they are made distinct at once.

Columns: `id1`, `id2` (whole numbers or text), `func1`, `func2` (text), `label` (bool, or 0 and 1).
Only these are read, in batches whose texts are compared as a dictionary, so that memory stays
bounded although the prepared form of the whole set takes 5.5 GB.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .bigclonebench import id_fault, shorten
from .checks import assemble
from .pairs import MAIN_SPLITS, CloneData, ClonePairs, FunctionTable, RawSplit
from .problems import ProblemLog

if TYPE_CHECKING:
    import numpy as np

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
    found: dict[str, list[str]] = {}
    for name in sorted(names):
        split = split_of(Path(name))
        if split is None:
            log.add("ignored_file", name, None, "no split in its name")
        else:
            found.setdefault(split, []).append(name)
    for split, files in found.items():
        folders = sorted({str(Path(file).parent) for file in files})
        if len(folders) > 1:
            log.add("ambiguous_files", files[0], None, f"{split} stands in {', '.join(folders)}")
        elif lost := _missing_parts(files):
            log.add("missing_shard", files[0], None, f"{split} lacks {lost}")
    return found


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
