"""Where rows of code come from: the sample, row files, code files, a folder, the hub."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PurePath, PurePosixPath
from typing import NamedTuple

from nbhelpers.common.files import expanded, kind_of
from nbhelpers.data.detection_rows import (
    MAX_CODE_CHARACTERS,
    CodeRow,
    Known,
    Place,
    RowReader,
    code_fault,
)
from nbhelpers.data.instruction_files import (
    ENDINGS,
    HEAD_BYTES,
    LOCAL_LICENCE,
    Files,
    find_files,
    head_fault,
    is_data,
    read_records,
    split_name,
)
from nbhelpers.data.languages import (
    AI,
    COLUMNS,
    HUMAN,
    is_known_language,
    label_of,
    language_of,
    language_of_ending,
    split_word,
    task_id,
)
from nbhelpers.data.pair_sources import SMOKE_LICENCE
from nbhelpers.data.problems import ProblemLog
from nbhelpers.errors import DataError
from nbhelpers.presets.catalog import SAMPLES
from nbhelpers.presets.checks import DATASET_PREFIX

# ------------------------------------------------------------------------------------------------
# Code files as rows: one file, a folder of files, or a folder with `human/` and `ai/` in it.


# Bytes that say the encoding, the longer ones first.
MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
PLAIN_ENDINGS = ("", ".txt")  # read where the folder says what the files are
LEFT_OUT = ("__pycache__", "node_modules", "venv", "site-packages")
PAGES = (".php",)  # whose files may begin as a web page does


class Decoded(NamedTuple):
    """A text and the encoding that it was read in, or the kind and detail of what is wrong."""

    text: str = ""
    encoding: str = ""
    fault: tuple[str, str] | None = None


def decode(data: bytes, ending: str = "") -> Decoded:
    r"""The text of a code file: by its byte order mark, else UTF-8, else Windows-1252 or Latin-1.

    >>> decode("é".encode("utf-16")).text, decode(b"caf\xe9 = 1").encoding
    ('é', 'cp1252')
    >>> decode(b"\x7fELF\x02\x01\x01\0\0\0\0").fault[0]
    'binary_file'
    """
    for mark, encoding in MARKS:
        if data.startswith(mark):
            try:
                return Decoded(data[len(mark) :].decode(encoding), encoding)
            except UnicodeDecodeError:
                return Decoded(fault=("binary_file", f"marked as {encoding}, but it is not"))
    fault = head_fault(data[:HEAD_BYTES])
    if fault is not None and fault[0] == "wrong_encoding":  # every second byte is NUL
        encoding = "utf-16-le" if data[1:2] == b"\0" else "utf-16-be"
        try:
            return Decoded(data.decode(encoding), encoding)
        except UnicodeDecodeError:
            return Decoded(fault=("binary_file", fault[1]))
    if fault is not None and not (ending in PAGES and "web page" in fault[1]):
        return Decoded(fault=("binary_file", fault[1]))
    if 0 in data:
        return Decoded(fault=("binary_file", f"a NUL at byte {data.index(0) + 1}"))
    for encoding in ("utf-8", "cp1252", "latin-1"):
        try:
            return Decoded(data.decode(encoding), encoding)
        except UnicodeDecodeError:
            continue
    raise AssertionError("every byte is a letter of Latin-1")


def code_names(folder: Path) -> list[str]:
    """Names of the code files of a folder, in order; hidden ones and installed packages apart.

    Below the folders human and ai, files without a known ending count too.
    """
    files = _files(folder)
    depth = _label_depth(files)
    return [path.as_posix() for path in files if _is_code(path, depth)]


def _files(folder: Path) -> list[PurePath]:
    """All files of a folder and its subfolders, relative to it."""
    paths = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        is_apart = any(part.startswith(".") or part in LEFT_OUT for part in name.parts)
        if not is_apart and path.is_file():
            paths.append(PurePath(name))
    return paths


def _label_depth(files: list[PurePath]) -> int | None:
    """How deep the folders lie that tell the label: both classes must be there by name.

    One such name alone may mean anything: a project has a folder `model`, a user one `human`.
    """
    for depth in range(2):
        labels = {_folder_label(path, depth) for path in files}
        if {HUMAN, AI} <= labels:
            return depth
    return None


def _folder_label(path: PurePath, depth: int | None) -> str | None:
    folders = path.parts[:-1]
    if depth is None or depth >= len(folders) or folders[depth].isdigit():
        return None
    return label_of(folders[depth])


def _is_code(path: PurePath, depth: int | None) -> bool:
    is_plain = path.suffix.lower() in PLAIN_ENDINGS and _folder_label(path, depth) is not None
    return is_plain or language_of_ending(path.suffix) is not None


def read_code_folder(folder: Path, reader: RowReader) -> None:
    """All code files of a folder; the rest is counted in the log."""
    files = _files(folder)
    depth = _label_depth(files)
    code = [path for path in files if _is_code(path, depth)]
    other = [path.as_posix() for path in files if not _is_code(path, depth)]
    if other:
        detail = f"no code by its ending, as are {len(other) - 1} more" if other[1:] else "no code"
        reader.log.add("ignored_file", other[0], None, detail, n=len(other))
    rows = list(_rows(folder, code, depth, reader.log))
    tasks = _tasks([row for row, _ in rows], depth)
    for (row, split), task in zip(rows, tasks, strict=True):
        reader.keep(row._replace(task=task), split)


def read_code_file(path: Path, reader: RowReader) -> None:
    """One file, whatever its ending."""
    for row, split in _rows(path.parent, [PurePath(path.name)], None, reader.log):
        reader.keep(row, split)


def _rows(
    folder: Path, files: list[PurePath], depth: int | None, log: ProblemLog
) -> Iterator[tuple[CodeRow, str]]:
    for file in files:
        name = file.as_posix()
        log.read(name, 1)
        decoded = _read(folder / file)
        fault = decoded.fault or code_fault(decoded.text)
        if fault is not None:
            log.add(fault[0], name, None, fault[1])
            continue
        if decoded.encoding != "utf-8":
            log.add("decoded", name, None, decoded.encoding)
        row = CodeRow(
            id=name,
            code=decoded.text,
            language=language_of_ending(file.suffix) or _language_in(file.parts[:-1]),
            label=_folder_label(file, depth),
            place=name,
        )
        yield row, next(filter(None, map(split_word, file.parts[:-1])), "")


def _read(path: Path) -> Decoded:
    try:
        size = path.stat().st_size
        if size > 4 * MAX_CODE_CHARACTERS:
            detail = f"{size / 1e6:.1f} MB; at most {MAX_CODE_CHARACTERS:,} characters are read"
            return Decoded(fault=("long_code", detail))
        return decode(path.read_bytes(), path.suffix.lower())
    except OSError as error:
        return Decoded(fault=("unreadable_code", error.strerror or str(error)))


def _language_in(parts: tuple[str, ...]) -> str:
    languages = map(language_of, parts)
    return next((name for name in languages if is_known_language(name)), "")


def _tasks(rows: list[CodeRow], depth: int | None) -> list[str]:
    """Task of each file: the folder that holds it, apart from folders named for something else.

    Where the files are labelled, a folder (or, without one, a file's name) is a task only if it
    stands in both classes: a folder of one class names a source or a person.
    """
    names = [_task_name(PurePath(row.place), depth) for row in rows]
    if depth is None:
        return [task_id(folders) for folders, _ in names]
    wanted = [folders or stem for folders, stem in names]
    by_label = {
        label: {name for name, row in zip(wanted, rows, strict=True) if row.label == label}
        for label in (HUMAN, AI)
    }
    both = by_label[HUMAN] & by_label[AI]
    return [task_id(name) if name in both else "" for name in wanted]


def _task_name(path: PurePath, depth: int | None) -> tuple[str, str]:
    folders = [
        part
        for at, part in enumerate(path.parts[:-1])
        if at != depth and split_word(part) is None and not is_known_language(language_of(part))
    ]
    return "/".join(folders), path.stem


# ------------------------------------------------------------------------------------------------
# Where rows of code come from: the sample, row files, code files, or a data set on the hub.


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
        licences = Counter(row.licence or "not stated" for row in reader.rows).most_common()
        licence = "; ".join(f"{text} ({n:,} rows)" for text, n in licences[:6])
        licence += f"; and {len(licences) - 6} more" if licences[6:] else ""
    return RawRows(reader.rows, reader.given, files.source, files.revision, licence, reader.columns)


def _places(names: list[str]) -> dict[str, Place]:
    """What the files' names tell: splits, labels where both classes are named, else sources."""
    labels = {name: _label_in(name) for name in names}
    if not {HUMAN, AI} <= set(labels.values()):
        labels = {}
    splits = {name: split_name(name) or "" for name in names}
    places = {}
    for name in names:
        is_source = len(names) > 1 and not splits[name] and not labels.get(name)
        source = PurePosixPath(name).stem if is_source else ""
        places[name] = Place(labels.get(name), splits[name], source)
    return places


def _label_in(name: str) -> str | None:
    path = PurePosixPath(name)
    words = [word for word in (path.stem, *reversed(path.parent.parts)) if not word.isdigit()]
    return next(filter(None, map(label_of, words)), None)


def _read_sample(name: str, log: ProblemLog) -> RawRows:
    from nbhelpers.data.samples import styles

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
        cause = f"the column {column} is empty in every row"
    elif raw.columns:
        names = ", ".join(COLUMNS[what])
        cause = f"no column is called {names}; the columns are {', '.join(raw.columns[:12])}"
    elif what == "label":
        cause = "code files have one where they lie in two folders, human and ai"
    else:
        cause = "code files have one where each task is a folder"
    return DataError(f"The rows of {raw.source} have no {what}: {first}: {cause}.", fix=fix)
