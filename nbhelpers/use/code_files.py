"""Files of code as other people hand them in: found, read once, and every one left out is told."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nbhelpers.common.code_words import CODE_WORD
from nbhelpers.common.files import absence, expanded, kind_of
from nbhelpers.data.detection_sources import NOTEBOOK, NOTEBOOK_BYTES, Decoded, decode
from nbhelpers.data.languages import language_of, language_of_ending
from nbhelpers.errors import ConfigError, DataError

TEXT_NAME = "code"  # of a program that was given as text
MAX_BYTES = 2_000_000  # of one file: no program that a person wrote by hand is longer
CHUNK_FILES, CHUNK_BYTES = 256, 8_000_000  # read and scored at once
NOT_ENTERED = frozenset(
    (".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", "venv", ".ipynb_checkpoints")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file that is to be read; `name` is what reports call it, fit to be printed."""

    path: Path
    name: str
    language: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A file that is not scored: the kind of reason, and a sentence."""

    name: str
    reason: str
    detail: str

    def to_dict(self) -> dict[str, str]:
        """JSON values."""
        return {"file": self.name, "reason": self.reason, "detail": self.detail}


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFile:
    """A program as read: `sha256` and `size_bytes` are of the file's bytes, `code` is its text."""

    name: str
    code: str
    language: str
    sha256: str
    size_bytes: int
    encoding: str = "utf-8"

    @property
    def n_lines(self) -> int:
        """Lines that are not blank."""
        return sum(bool(line.strip()) for line in self.code.splitlines())

    @property
    def n_words(self) -> int:
        """Words and signs; white space does not count."""
        return sum(1 for _ in CODE_WORD.finditer(self.code))


def shown(name: str) -> str:
    r"""Return a name with everything that does not print, or turns the text round, as an escape.

    >>> shown("a\nb"), shown("x\u202ecod.py"), shown("\udcff.py"), shown("Übung 1.py")
    ('a\\nb', 'x\\u202ecod.py', '\\udcff.py', 'Übung 1.py')
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def find_files(
    place: str | os.PathLike[str], *, language: str = ""
) -> tuple[list[Entry], list[Skipped]]:
    """Return the files of code at a place, in the order of their names, and what is left out.

    Args:
        place: A file, or a folder with all below it; links are not followed.
        language: What every file is written in; "" asks its ending, and then a folder's files
            whose ending no language has are left out.

    Raises:
        ConfigError: There is nothing at the place, or it may not be looked at.
    """
    root, language = expanded(place, "the file or folder"), language_of(language)
    kind = kind_of(root)
    if kind == "file":
        language = language or language_of_ending(root.suffix) or ""
        return [Entry(path=root, name=shown(root.name), language=language)], []
    if kind != "folder":
        text = f"{shown(str(place))!r} {absence(root)}."
        raise ConfigError(text, fix="name a file of code, or a folder of them")
    skipped: list[Skipped] = []
    return list(_walk(root, language, skipped)), skipped


def _walk(root: Path, language: str, skipped: list[Skipped]) -> Iterator[Entry]:
    def skip(path: Path, reason: str, detail: str) -> None:
        name = shown(path.relative_to(root).as_posix())
        skipped.append(Skipped(name=name, reason=reason, detail=shown(detail)))

    def unreadable(error: OSError) -> None:
        skip(Path(error.filename), "not readable", error.strerror)

    for place, folders, files in os.walk(root, onerror=unreadable):
        folder = Path(place)
        for path in [folder / name for name in sorted((*folders, *files))]:
            ending = path.suffix
            if path.is_symlink():
                skip(path, "link", "links are not followed: name what it leads to")
            elif path.name in NOT_ENTERED:
                skip(path, "folder of tools", "not looked into")
            elif path.is_dir():
                continue
            elif not path.is_file():
                skip(path, "no plain file", "a pipe, a socket or a device")
            elif spoken := language or language_of_ending(ending):
                name = shown(path.relative_to(root).as_posix())
                yield Entry(path=path, name=name, language=spoken)
            else:
                skip(path, "unknown language", f"no language has the ending {ending or 'none'}")
        folders[:] = sorted(set(folders) - NOT_ENTERED)


def read_file(entry: Entry) -> CodeFile | Skipped:
    """Return the program in a file, or why there is none to score."""
    ending = entry.path.suffix.lower()
    limit = NOTEBOOK_BYTES if ending == NOTEBOOK else MAX_BYTES
    try:
        is_large = entry.path.stat().st_size >= limit
        data = b"" if is_large else entry.path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return Skipped(name=entry.name, reason="not readable", detail=reason)
    if is_large:
        detail = f"at least {limit / 1e6:g} MB"
        return Skipped(name=entry.name, reason="too large", detail=detail)
    text = decoded(data, ending)
    if text.fault is not None:
        return Skipped(name=entry.name, reason=text.fault[0], detail=text.fault[1])
    return CodeFile(
        name=entry.name,
        code=text.text,
        language=text.language or entry.language,
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
        encoding=text.encoding,
    )


def decoded(data: bytes, ending: str = "") -> Decoded:
    r"""Return the text of a file's bytes, or the kind and detail of what is wrong.

    Encodings and notebooks are read as where the training data is (`detection_sources.decode`).

    >>> decoded(b"x = 1\n")[:2]
    ('x = 1\n', 'utf-8')
    >>> decoded(b" \n").fault, decoded(b"\x7fELF\x02\x01\x01\0\0\0").fault[0]
    (('empty', 'nothing but white space'), 'binary')
    """
    nothing = "no cell of code" if ending == NOTEBOOK else "nothing but white space"
    if not data.strip():
        return Decoded(fault=("empty", "nothing but white space" if data else "0 bytes"))
    text = decode(data, ending)
    # Chance bytes after a byte order mark are letters of all scripts.
    is_ascii = 2 * sum(sign.isascii() for sign in text.text) >= len(text.text)
    fault = None
    if text.fault is not None:
        is_marked = text.fault[1].startswith("marked as")
        kind = "not decodable" if is_marked else "binary"
        fault = ("notebook" if text.fault[0] == "unreadable_code" else kind, text.fault[1])
    elif text.encoding.startswith(("utf-16", "utf-32")) and not is_ascii:
        fault = "binary", f"read as {text.encoding} it is hardly code"
    elif "\0" in text.text:
        fault = "binary", "it holds NUL characters"
    elif not text.text.strip():
        fault = "empty", nothing
    elif len(text.text) >= MAX_BYTES:
        fault = "too large", f"at least {MAX_BYTES / 1e6:g} MB"
    return text if fault is None else Decoded(fault=fault)


def chunks(entries: Iterable[Entry], skipped: list[Skipped]) -> Iterator[list[CodeFile]]:
    """Read files a chunk at a time, so that thousands never lie in memory; the rest is told."""
    chunk: list[CodeFile] = []
    size = 0
    for entry in entries:
        file = read_file(entry)
        if isinstance(file, Skipped):
            skipped.append(file)
            continue
        if chunk and (len(chunk) >= CHUNK_FILES or size + file.size_bytes > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(file)
        size += file.size_bytes
    if chunk:
        yield chunk


def program_of(code: str | os.PathLike[str], language: str) -> CodeFile:
    """Return a program that is given as text, or as the path of a file.

    Raises:
        ConfigError: There is no program, or no such file.
        DataError: The file is no program; the reason is told.
    """
    if isinstance(code, str) and not _is_path(code):
        return code_file(code, language_of(language))
    path = expanded(code, "the file")
    if (kind := kind_of(path)) != "file":
        text = f"There is no file {shown(str(path))!r}{': it is a folder' * (kind == 'folder')}."
        raise ConfigError(text, fix="name a file of code, or give the program itself as text")
    (entry,), _ = find_files(path, language=language)
    file = read_file(entry)
    if isinstance(file, Skipped):
        text = f"{file.name} cannot be scored: {file.reason} ({file.detail})."
        raise DataError(text, fix="give a file of code below 2 MB, saved as UTF-8")
    return file


def _is_path(text: str) -> bool:
    """Whether a text names a file, or what is there and is none, rather than being a program."""
    if "\n" in text or not text.strip():
        return False
    is_named = language_of_ending(Path(text).suffix) is not None and " " not in text.strip()
    return is_named or kind_of(text) != ""


def code_file(code: str, language: str, name: str = TEXT_NAME) -> CodeFile:
    """Return a text as a program; its hash is of its UTF-8 bytes.

    Raises:
        ConfigError: It is no text, or is empty.
    """
    if not isinstance(code, str) or not code.strip():
        raise ConfigError("The code is empty.", fix="give a program as text, or the path of a file")
    data = code.encode("utf-8", "replace")
    digest = hashlib.sha256(data).hexdigest()
    text = data.decode()
    return CodeFile(name=name, code=text, language=language, sha256=digest, size_bytes=len(data))
