"""Where rows of code come from: the sample, row files, code files, a folder, the hub."""

from __future__ import annotations

import codecs
import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePath, PurePosixPath
from typing import NamedTuple

from nbhelpers.common.files import expanded, kind_of
from nbhelpers.data.detection_rows import (
    MAX_CODE_CHARACTERS,
    CodeReader,
    CodeRow,
    FileName,
    Known,
    check_code,
    meanings,
)
from nbhelpers.data.files import (
    ENDINGS,
    GZIP,
    HEAD_BYTES,
    LOCAL_LICENCE,
    MAIN_SPLITS,
    SMOKE_LICENCE,
    Fault,
    Record,
    ending_of,
    head_fault,
    named,
    read_records,
)
from nbhelpers.data.findings import Findings
from nbhelpers.data.hub import Files
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
from nbhelpers.data.sources import find_files, is_data, open_file, split_in, unpacked
from nbhelpers.data.tables import SAVED
from nbhelpers.errors import DataError
from nbhelpers.presets.catalog import SAMPLES
from nbhelpers.presets.checks import ARCHIVES, DATASET_PREFIX

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


NOTEBOOK = ".ipynb"
NOTEBOOK_BYTES = 40_000_000  # with the pictures that it shows
PYTHON_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun")  # above a cell of Python


class Decoded(NamedTuple):
    """A text and the encoding that it was read in, or the kind and detail of what is wrong.

    `language` is that of a notebook, which says it.
    """

    text: str = ""
    encoding: str = ""
    fault: tuple[str, str] | None = None
    language: str = ""


def decode(data: bytes, ending: str = "") -> Decoded:
    r"""The text of a code file: by its byte order mark, else UTF-8, else Windows-1252 or Latin-1.

    Of a notebook the code of its cells (`notebook_code`).

    >>> decode("é".encode("utf-16")).text, decode(b"caf\xe9 = 1").encoding
    ('é', 'cp1252')
    >>> decode(b"\x7fELF\x02\x01\x01\0\0\0\0").fault[0]
    'binary_file'
    """
    decoded = _decode(data, ending)
    if ending != NOTEBOOK or decoded.fault:
        return decoded
    try:
        code, language = notebook_code(decoded.text)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return Decoded(fault=("unreadable_code", "it is no notebook that can be read"))
    return decoded._replace(text=code, language=language)


def notebook_code(text: str) -> tuple[str, str]:
    r"""The code cells of a Jupyter notebook below each other, and their language.

    What is meant for Jupyter is left out: lines that begin with `%` or `!`, cells of `%%bash` and
    the like.

    >>> cells = [{"cell_type": "code", "source": ["%time\n", "x = 1"]}, {"cell_type": "markdown"}]
    >>> notebook_code(json.dumps({"cells": cells, "metadata": {}}))
    ('x = 1\n', 'python')
    """
    book = json.loads(text)
    about = book.get("metadata") or {}
    sheets = [book] if "cells" in book else book["worksheets"]  # so until 2015
    cells = [cell for sheet in sheets for cell in sheet["cells"] if cell["cell_type"] == "code"]
    sources = ["".join(cell.get("source", cell.get("input", ""))) for cell in cells]
    programs = []
    for source in sources:
        lines = source.splitlines()
        if lines and lines[0].startswith("%%") and not lines[0].startswith(PYTHON_MAGICS):
            continue
        program = "\n".join(line for line in lines if not line.startswith(("%", "!")))
        programs += [program.strip("\n")] if program.strip() else []
    names = [(about.get(key) or {}) for key in ("language_info", "kernelspec")]
    language = names[0].get("name") or names[1].get("language") or "python"
    return "\n\n".join(programs) + "\n" * bool(programs), language_of(language)


def _decode(data: bytes, ending: str) -> Decoded:
    for mark, encoding in MARKS:
        if data.startswith(mark):
            try:
                return Decoded(data[len(mark) :].decode(encoding), encoding)
            except UnicodeDecodeError:
                return Decoded(fault=("binary_file", f"marked as {encoding}, but it is not"))
    fault = head_fault(data[:HEAD_BYTES])
    if fault is not None and fault[0] == "wrong_encoding":  # every second byte is NUL
        encoding = "utf-16-le" if data[1:2] == b"\0" else "utf-16-be"
        with contextlib.suppress(UnicodeDecodeError):
            return Decoded(data.decode(encoding), encoding)
    if data.startswith(GZIP):
        fault = "", "is compressed by gzip"
    if fault is not None and not (ending in PAGES and "web page" in fault[1]):
        return Decoded(fault=("binary_file", fault[1]))
    if 0 in data:
        return Decoded(fault=("binary_file", f"a NUL at byte {data.index(0) + 1}"))
    for encoding in ("utf-8", "cp1252"):
        with contextlib.suppress(UnicodeDecodeError):
            return Decoded(data.decode(encoding), encoding)
    return Decoded(data.decode("latin-1"), "latin-1")


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


def read_code_folder(folder: Path, reader: CodeReader) -> None:
    """All code files of a folder; the rest is counted."""
    code, depth = _code_in(files := _files(folder))
    other = [path.as_posix() for path in files if path not in set(code)]
    if other:
        detail = f"no code by its ending, as are {len(other) - 1} more" if other[1:] else "no code"
        reader.findings.add("ignored_file", other[0], None, detail, n=len(other))
    rows = list(_rows(folder, code, depth, reader.findings))
    for row, task in zip(rows, _tasks(rows, depth), strict=True):
        reader.rows.append(reader.complete(row._replace(task=task)))
    at = depth or 0
    words = [(p.parts[at], _folder_label(p, depth)) for p in code if len(p.parts) > at + 1]
    if words:
        reader.findings.facts["folders"] = meanings(Counter(words))


def _code_in(files: list[PurePath]) -> tuple[list[PurePath], int | None]:
    """The code files among others, and how deep the folders lie that tell the label.

    Below the folders human and ai, files without a known ending count too.
    """
    depth = _label_depth(files)
    return [path for path in files if _is_code(path, depth)], depth


def read_code_file(path: Path, reader: CodeReader) -> None:
    """One file, whatever its ending."""
    for row in _rows(path.parent, [PurePath(path.name)], None, reader.findings):
        reader.rows.append(reader.complete(row))


def _rows(
    folder: Path, files: list[PurePath], depth: int | None, findings: Findings
) -> Iterator[CodeRow]:
    for file in files:
        name = file.as_posix()
        findings.read(name, 1)
        try:
            decoded = _read(folder / file)
        except Fault as fault:
            findings.add(fault.kind, name, None, fault.detail)
            continue
        if decoded.encoding != "utf-8":
            findings.add("decoded", name, None, decoded.encoding)
        yield CodeRow(
            id=name,
            code=decoded.text,
            language=decoded.language
            or language_of_ending(file.suffix)
            or _language_in(file.parts[:-1]),
            label=_folder_label(file, depth),
            place=name,
            split=next(filter(None, map(split_word, file.parts[:-1])), ""),
        )


def _read(path: Path) -> Decoded:
    try:
        size = path.stat().st_size
        if size > (NOTEBOOK_BYTES if path.suffix.lower() == NOTEBOOK else 4 * MAX_CODE_CHARACTERS):
            detail = f"{size / 1e6:.1f} MB; at most {MAX_CODE_CHARACTERS:,} characters are read"
            raise Fault("long_code", detail)
        decoded = decode(path.read_bytes(), path.suffix.lower())
    except OSError as error:
        raise Fault("unreadable_code", error.strerror or str(error)) from error
    if decoded.fault:
        raise Fault(*decoded.fault)
    check_code(decoded.text)
    return decoded


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
    """All usable rows of a source, and its origin."""

    rows: list[CodeRow]
    source: str
    revision: str | None
    licence: str
    columns: tuple[str, ...] = ()
    note: str = ""


def read_source(
    source: str,
    revision: str | None,
    findings: Findings,
    *,
    label_is_task: bool = False,
    what: str = "data",
) -> RawRows:
    """All usable rows of a source; errors call it `what`.

    Raises:
        DataError: Nothing is there, a file cannot be read, or rows are bad and the policy is
            `stop`.
    """
    if source in SAMPLES:
        raw = _read_sample(source, findings)
    elif (path := code_path(source)) is not None:
        raw = _read_code(path, source, revision, findings)
    else:
        files = find_files(source, revision, findings, what=what)
        raw = _read_files(files, findings, label_is_task)
    findings.stop_if_needed()
    if not raw.rows:
        findings.add("no_rows_left", source, None, "every row was dropped")
        findings.stop_if_needed()
    return raw


def code_path(source: str) -> Path | None:
    """The path of a source that is code itself; None for one that holds rows, or for none here."""
    if not isinstance(source, str) or source.startswith(DATASET_PREFIX) or "\0" in source:
        return None
    path = expanded(source, "data") if source.strip() else None
    kind = kind_of(path) if path else ""
    if path is None or kind not in ("file", "folder"):
        return None
    if kind == "file" and path.name.lower().endswith(ARCHIVES):
        path = unpacked(path)
    elif kind == "file":
        return None if ending_of(path) in ENDINGS else path
    if any((path / name).is_file() for name in SAVED):
        return None
    try:
        names, _ = _code_in(_files(path))
        row_files = [f for f in path.rglob("*") if is_data(f.relative_to(path)) and f.is_file()]
    except OSError:
        return None  # told by find_files
    # A data set may hold a script, a project may hold a table: what has a column of code is data.
    return path if names and not any(map(_has_code, sorted(row_files)[:FILES_ASKED])) else None


def _has_code(path: Path) -> bool:
    records = read_records(path, path.name, Findings("drop", path.name))
    values = next((record.values for record in records), None)
    words = {str(key).strip().lower() for key in values} if isinstance(values, dict) else set()
    return bool(words & set(COLUMNS["code"]))


def _read_code(path: Path, source: str, revision: str | None, findings: Findings) -> RawRows:
    reader = CodeReader(findings)
    if revision is not None:
        findings.add("ignored_revision", source, None, f"revision {revision!r}")
    if kind_of(path) == "file":
        read_code_file(path, reader)
    else:
        read_code_folder(path, reader)
    return raw_rows(reader, source)


def _read_files(files: Files, findings: Findings, label_is_task: bool) -> RawRows:
    known = KNOWN.get(files.source.partition(":")[0].lower()) if files.revision else None
    reader = CodeReader(findings, known, label_is_task=label_is_task)
    for name, facts in _names(files).items():
        reader.name = facts
        reader.read(read_records(open_file(files, name), name, findings))
    reader.finish(files.source)
    if label_is_task and all(label_of(row.task) for row in reader.rows):  # labels after all
        reader.rows = [r._replace(label=label_of(r.task), task="") for r in reader.rows]
    licence = files.licence
    if any(row.licence for row in reader.rows):
        licences = Counter(row.licence or "not stated" for row in reader.rows).most_common()
        licence = "; ".join(f"{text} ({n:,} rows)" for text, n in licences[:6])
        licence += f"; and {len(licences) - 6} more" if licences[6:] else ""
    return raw_rows(reader, files.source, files.revision, licence)


def _names(files: Files) -> dict[str, FileName]:
    """What the files' names tell: splits, labels where both classes are named, else sources."""
    names = files.names
    labels = {name: _label_in(name) for name in names}
    if not {HUMAN, AI} <= set(labels.values()):
        labels = {}
    facts = {}
    for name in names:
        split = split_in(files, name)
        split = split if split in MAIN_SPLITS else ""
        is_source = len(names) > 1 and not split and not labels.get(name)
        source = PurePosixPath(name).stem if is_source else ""
        facts[name] = FileName(labels.get(name), split, source)
    return facts


def _label_in(name: str) -> str | None:
    path = PurePosixPath(name)
    words = [word for word in (path.stem, *reversed(path.parent.parts)) if not word.isdigit()]
    return next(filter(None, map(label_of, words)), None)


def _read_sample(name: str, findings: Findings) -> RawRows:
    from nbhelpers.data.samples import styles

    records = styles.load_style_rows()
    reader = CodeReader(findings)
    file = f"samples/{name}"
    reader.read(Record(file, line, row) for line, row in enumerate(records, 1))
    reader.finish(file)
    findings.read(file, len(records))
    return raw_rows(reader, name, None, SMOKE_LICENCE, styles.SAMPLE_NOTE)


def raw_rows(
    reader: CodeReader,
    source: str,
    revision: str | None = None,
    licence: str = LOCAL_LICENCE,
    note: str = "",
) -> RawRows:
    """What a reader has read, with the columns that it met first."""
    columns = next(iter(reader.columns), ())
    return RawRows(reader.rows, source, revision, licence, columns, note)


def missing(raw: RawRows, what: str, fix: str) -> DataError:
    """The error for rows that all lack something: where it was looked for, and what to do."""
    cause = f"{raw.rows[0].place}: {why_missing(raw, what)}"
    return DataError(f"The rows of {raw.source} have no {what}: {cause}.", fix=fix)


def why_missing(raw: RawRows, what: str) -> str:
    """Where the label or the task of rows was looked for."""
    column = next((c for c in raw.columns if c.strip().lower() in COLUMNS[what]), None)
    if column is not None:
        return f"the column {column} is empty in every row"
    if raw.columns:
        names = ", ".join(COLUMNS[what])
        return f"no column is called {names}; the columns are {named(raw.columns)}"
    if what == "label":
        return "code files have one where they lie in two folders, human and ai"
    return "code files have one where each task is a folder"
