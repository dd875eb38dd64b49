"""Files of code as other people hand them in: found, read once, and every one left out is told.

Nothing is trusted: links are not followed, pipes and devices are not opened, a file is read up to a
limit, and what is no text in a known encoding is skipped with its reason.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nbhelpers.common.code_words import CODE_WORD
from nbhelpers.common.files import absence, expanded, kind_of
from nbhelpers.data.detection_sources import decode
from nbhelpers.data.languages import language_of, language_of_ending
from nbhelpers.errors import ConfigError, DataError

MAX_BYTES = 2_000_000  # of one file: no program that a person wrote by hand is longer
CHUNK_FILES, CHUNK_BYTES = 256, 8_000_000  # read and scored at once
NOT_ENTERED = frozenset(
    (".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", "venv", ".ipynb_checkpoints")
)
NOTEBOOKS = (".ipynb",)
NOTEBOOK_WORDS = "its code lies in cells of JSON: save it as a script first"


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
        place: A file, or a folder with all below it.
        language: What every file is written in; "" asks its ending, and then a folder's files
            whose ending no language has are left out.

    Raises:
        ConfigError: There is nothing at the place, or it may not be looked at.
    """
    root, language = expanded(place, "the file or folder"), language_of(language)
    kind = kind_of(root)
    if kind not in ("file", "folder"):
        text = f"{shown(str(place))!r} {absence(root)}."
        raise ConfigError(text, fix="name a file of code, or a folder of them")
    if kind == "file":
        spoken = language or language_of_ending(root.suffix) or ""
        return [Entry(path=root, name=shown(root.name), language=spoken)], []
    skipped: list[Skipped] = []
    return list(_walk(root, language, skipped)), skipped


def _walk(root: Path, language: str, skipped: list[Skipped]) -> Iterator[Entry]:
    """Files below a folder, depth first without recursion, so that no depth is too deep."""
    stack = [(root, "")]
    while stack:
        folder, prefix = stack.pop()
        try:
            with os.scandir(folder) as entries:
                inside = sorted(entries, key=lambda each: os.fsencode(each.name))
        except OSError as error:
            _skip(skipped, prefix or ".", "not readable", error.strerror or str(error))
            continue
        below = []
        for each in inside:
            name = f"{prefix}{each.name}"
            if reason := _not_entered(each):
                _skip(skipped, name, *reason)
            elif each.is_dir(follow_symlinks=False):
                below.append((Path(each.path), f"{name}/"))
            elif spoken := language or language_of_ending(Path(each.name).suffix):
                yield Entry(path=Path(each.path), name=shown(name), language=spoken)
            else:
                ending = Path(each.name).suffix or "none"
                _skip(skipped, name, "unknown language", f"no language has the ending {ending}")
        stack += reversed(below)


def _not_entered(each: os.DirEntry[str]) -> tuple[str, str] | None:
    """Why an entry of a folder is passed over before it is opened."""
    if each.is_symlink():
        return "link", "links are not followed: name what it leads to"
    if each.is_dir(follow_symlinks=False):
        is_left = each.name in NOT_ENTERED
        return ("folder of tools", "not looked into") if is_left else None
    if not each.is_file(follow_symlinks=False):
        return "no plain file", "a pipe, a socket or a device"
    return None


def _skip(skipped: list[Skipped], name: str, reason: str, detail: str) -> None:
    skipped.append(Skipped(name=shown(name), reason=reason, detail=shown(detail)))


def read_file(entry: Entry) -> CodeFile | Skipped:
    """Return the program in a file, or why there is none to score."""
    try:
        data = _bytes_of(entry.path)
    except OSError as error:
        if error.errno == errno.EFBIG:
            reason, detail = "too large", f"at least {MAX_BYTES / 1e6:g} MB"
        else:
            reason, detail = "not readable", error.strerror or type(error).__name__
        return Skipped(name=entry.name, reason=reason, detail=detail)
    if entry.path.suffix.lower() in NOTEBOOKS:
        return Skipped(name=entry.name, reason="notebook", detail=NOTEBOOK_WORDS)
    text, encoding, fault = decoded(data, entry.path.suffix.lower())
    if fault is not None:
        return Skipped(name=entry.name, reason=fault[0], detail=fault[1])
    digest = hashlib.sha256(data).hexdigest()
    about = {"name": entry.name, "language": entry.language, "encoding": encoding}
    return CodeFile(code=text, sha256=digest, size_bytes=len(data), **about)


def _bytes_of(path: Path) -> bytes:
    """Read a plain file below the limit; a pipe put in its place is not waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "no plain file")
        data = file.read(MAX_BYTES)
    if len(data) >= MAX_BYTES or status.st_size >= MAX_BYTES:
        raise OSError(errno.EFBIG, "too large")
    return data


def decoded(data: bytes, ending: str = "") -> tuple[str, str, tuple[str, str] | None]:
    r"""Return text and encoding of a file's bytes, or the kind and detail of what is wrong.

    Encodings are told as where the training data is read (`data.detection_sources.decode`).

    >>> decoded(b"x = 1\n")
    ('x = 1\n', 'utf-8', None)
    >>> decoded(b" \n")[2], decoded(b"\x7fELF\x02\x01\x01\0\0\0")[2][0]
    (('empty', 'nothing but white space'), 'binary')
    """
    nothing = ("empty", "nothing but white space" if data else "0 bytes")
    if not data.strip():
        return "", "", nothing
    found = decode(data, ending)
    if found.fault is not None:
        marked = found.fault[1].startswith("marked as")
        return "", "", ("not decodable" if marked else "binary", found.fault[1])
    if found.encoding.startswith(("utf-16", "utf-32")) and not _is_mostly_ascii(found.text):
        return "", "", ("binary", f"read as {found.encoding} it is hardly code")
    if "\0" in found.text:
        return "", "", ("binary", "it holds NUL characters")
    return (found.text, found.encoding, None) if found.text.strip() else ("", "", nothing)


def _is_mostly_ascii(text: str) -> bool:
    """Whether it may be code; chance bytes after a byte order mark are letters of all scripts."""
    return 2 * sum(sign.isascii() for sign in text) >= len(text)


def chunks(entries: Iterable[Entry], skipped: list[Skipped]) -> Iterator[list[CodeFile]]:
    """Read files a chunk at a time, so that thousands never lie in memory; the rest is told."""
    chunk: list[CodeFile] = []
    size = 0
    for entry in entries:
        found = read_file(entry)
        if isinstance(found, Skipped):
            skipped.append(found)
            continue
        if chunk and (len(chunk) >= CHUNK_FILES or size + found.size_bytes > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(found)
        size += found.size_bytes
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
    if kind_of(path) != "file":
        text = f"There is no file {shown(str(path))!r}."
        raise ConfigError(text, fix="name a file of code, or give the program itself as text")
    spoken = language_of(language) or language_of_ending(path.suffix) or ""
    found = read_file(Entry(path=path, name=shown(path.name), language=spoken))
    if isinstance(found, Skipped):
        text = f"{found.name} cannot be scored: {found.reason} ({found.detail})."
        raise DataError(text, fix="give a file of code below 2 MB, saved as UTF-8")
    return found


def _is_path(text: str) -> bool:
    """Whether a text is the name of a file rather than a program."""
    if "\n" in text or not text.strip():
        return False
    is_named = language_of_ending(Path(text).suffix) is not None and " " not in text.strip()
    return is_named or kind_of(text) == "file"


def code_file(code: str, language: str, name: str = "code") -> CodeFile:
    """Return a text as a program; its hash is of its UTF-8 bytes.

    Raises:
        ConfigError: It is no text, is empty, or holds half a character.
    """
    if not isinstance(code, str) or not code.strip():
        raise ConfigError("The code is empty.", fix="give a program as text, or the path of a file")
    try:
        data = code.encode()
    except UnicodeEncodeError as error:
        what = f"The code holds half a character at position {error.start}."
        raise ConfigError(what, fix="remove it: it cannot be written as UTF-8") from None
    digest = hashlib.sha256(data).hexdigest()
    return CodeFile(name=name, code=code, language=language, sha256=digest, size_bytes=len(data))
