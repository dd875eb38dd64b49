"""Where rows of code come from: the sample, row files, code files, or a data set on the hub."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from ..catalog import SAMPLES
from ..checks import DATASET_PREFIX
from ..errors import DataError
from ..paths import expanded, kind_of
from .detection_code_files import code_names, read_code_file, read_code_folder
from .detection_rows import CodeRow, Known, Place, RowReader
from .detection_words import AI, COLUMNS, HUMAN, label_of
from .instruction_files import ENDINGS, read_records
from .instruction_sources import LOCAL_LICENCE, Files, find_files, is_data, split_name
from .problems import ProblemLog
from .sources import SMOKE_LICENCE

FILES_ASKED = 20  # row files of a folder whose columns are looked at, to tell data from code

# Data sets on the hub whose rows do not tell everything, by id in lower case.
KNOWN = {
    "isthisyoullm/h-airosettamp": Known(
        task_prefix="rosetta:", generator="starcoder2", source="h-airosettamp"
    ),
    "christopher/rosetta-code": Known(label="human", task_prefix="rosetta:", source="rosetta-code"),
    "google/code_x_glue_cc_clone_detection_poj104": Known(
        columns={"task": "label", "label": None},
        language="c",
        task_prefix="poj104:",
        source="poj104",
    ),
}


class RawRows(NamedTuple):
    """All usable rows of a source, the split that each is given ("" for none), and its origin."""

    rows: list[CodeRow]
    given: list[str]
    source: str
    revision: str | None
    licence: str
    columns: tuple[str, ...] = ()
    note: str = ""


def read_source(
    source: str, revision: str | None, log: ProblemLog, *, label_is_task: bool = False
) -> RawRows:
    """All usable rows of a source.

    Raises:
        DataError: Nothing is there, a file cannot be read, or rows are bad and the policy is
            `stop`.
    """
    if source in SAMPLES:
        raw = _read_sample(source, log)
    elif (path := _code_path(source)) is not None:
        raw = _read_code(path, source, revision, log)
    else:
        files = find_files(source, revision, log)
        raw = _read_files(files, log, label_is_task)
    log.stop_if_needed()
    if not raw.rows:
        log.add("no_rows_left", source, None, "every row was dropped")
        log.stop_if_needed()
    return raw


def _code_path(source: str) -> Path | None:
    """The path of a source that is code itself; None for one that holds rows, or for none here."""
    if not isinstance(source, str) or source.startswith(DATASET_PREFIX) or "\0" in source:
        return None
    path = expanded(source, "data") if source.strip() else None
    kind = kind_of(path) if path else ""
    if path is None or kind not in ("file", "folder"):
        return None
    if kind == "file":
        return None if path.suffix.lower() in ENDINGS else path
    try:
        names = code_names(path)
        row_files = [f for f in path.rglob("*") if is_data(f.relative_to(path)) and f.is_file()]
    except OSError:
        return None  # told by find_files
    # A data set may hold a script, a project may hold a table: what has a column of code is data.
    return path if names and not any(map(_has_code, sorted(row_files)[:FILES_ASKED])) else None


def _has_code(path: Path) -> bool:
    for _, record in islice(read_records(path, path.name, ProblemLog("drop", path.name)), 1):
        words = {str(key).strip().lower() for key in record} if isinstance(record, dict) else set()
        return bool(words & set(COLUMNS["code"]))
    return False


def _read_code(path: Path, source: str, revision: str | None, log: ProblemLog) -> RawRows:
    reader = RowReader(log)
    if revision is not None:
        log.add("ignored_revision", source, None, f"revision {revision!r}")
    if kind_of(path) == "file":
        read_code_file(path, reader)
    else:
        read_code_folder(path, reader)
    return RawRows(reader.rows, reader.given, source, None, LOCAL_LICENCE)


def _read_files(files: Files, log: ProblemLog, label_is_task: bool) -> RawRows:
    known = KNOWN.get(files.source.lower()) if files.revision else None
    reader = RowReader(log, known, label_is_task=label_is_task)
    for name, place in _places(files.names).items():
        reader.read(read_records(files.folder / name, name, log), name, place)
    if label_is_task and all(label_of(row.task) for row in reader.rows):  # labels after all
        reader.rows = [r._replace(label=label_of(r.task), task="") for r in reader.rows]
    licence = files.licence
    if any(row.licence for row in reader.rows):
        told = Counter(row.licence or "not stated" for row in reader.rows).most_common()
        licence = "; ".join(f"{text} ({n:,} rows)" for text, n in told[:6])
        licence += f"; and {len(told) - 6} more" if told[6:] else ""
    return RawRows(reader.rows, reader.given, files.source, files.revision, licence, reader.columns)


def _places(names: list[str]) -> dict[str, Place]:
    """What the files' names tell: splits, labels where both classes are named, else sources."""
    labels = {name: _label_in(name) for name in names}
    if not {HUMAN, AI} <= set(labels.values()):
        labels = {}
    splits = {name: split_name(name) or "" for name in names}
    found = {}
    for name in names:
        is_source = len(names) > 1 and not splits[name] and not labels.get(name)
        source = PurePosixPath(name).stem if is_source else ""
        found[name] = Place(labels.get(name), splits[name], source)
    return found


def _label_in(name: str) -> str | None:
    path = PurePosixPath(name)
    words = [word for word in (path.stem, *reversed(path.parent.parts)) if not word.isdigit()]
    return next(filter(None, map(label_of, words)), None)


def _read_sample(name: str, log: ProblemLog) -> RawRows:
    from ..samples import styles

    records = styles.load_style_rows()
    reader = RowReader(log)
    reader.read(enumerate(records, 1), f"samples/{name}", Place())
    log.read(f"samples/{name}", len(records))
    return RawRows(
        reader.rows,
        reader.given,
        name,
        None,
        SMOKE_LICENCE,
        reader.columns,
        styles.SAMPLE_NOTE,
    )


def missing(raw: RawRows, what: str, fix: str) -> DataError:
    """The error for rows that all lack something: where it was looked for, and what to do."""
    first = raw.rows[0].place
    column = next((c for c in raw.columns if c.strip().lower() in COLUMNS[what]), None)
    if column is not None:
        said = f"the column {column} is empty in every row"
    elif raw.columns:
        names = ", ".join(COLUMNS[what])
        said = f"no column is called {names}; the columns are {', '.join(raw.columns[:12])}"
    elif what == "label":
        said = "code files have one where they lie in two folders, human and ai"
    else:
        said = "code files have one where each task is a folder"
    return DataError(f"The rows of {raw.source} have no {what}: {first}: {said}.", fix=fix)
