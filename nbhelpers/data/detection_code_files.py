"""Code files as rows: one file, a folder of files, or a folder with `human/` and `ai/` in it."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import NamedTuple

from .detection_rows import MAX_CODE_CHARACTERS, CodeRow, RowReader, code_fault
from .detection_words import (
    AI,
    HUMAN,
    is_known_language,
    label_of,
    language_of,
    language_of_ending,
    split_word,
    task_id,
)
from .instruction_files import HEAD_BYTES, head_fault
from .problems import ProblemLog

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
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        is_apart = any(part.startswith(".") or part in LEFT_OUT for part in name.parts)
        if not is_apart and path.is_file():
            found.append(PurePath(name))
    return found


def _label_depth(files: list[PurePath]) -> int | None:
    """How deep the folders lie that tell the label: both classes must be there by name.

    One such name alone may mean anything: a project has a folder `model`, a user one `human`.
    """
    for depth in range(2):
        found = {_folder_label(path, depth) for path in files}
        if {HUMAN, AI} <= found:
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
    found = list(_rows(folder, code, depth, reader.log))
    tasks = _tasks([row for row, _ in found], depth)
    for (row, split), task in zip(found, tasks, strict=True):
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
    found = map(language_of, parts)
    return next((name for name in found if is_known_language(name)), "")


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
