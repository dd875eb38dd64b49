"""Promise: whatever lies in a folder, each file is read or told with its reason; nothing hangs."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from nbhelpers.errors import ConfigError
from nbhelpers.use.code_files import (
    MAX_BYTES,
    CodeFile,
    Skipped,
    chunks,
    find_files,
    shown,
)


def read_all(folder: Path) -> tuple[dict[str, CodeFile], dict[str, Skipped]]:
    entries, skipped = find_files(folder)
    files = [file for chunk in chunks(entries, skipped) for file in chunk]
    return {file.name: file for file in files}, {each.name: each for each in skipped}


def test_a_hostile_folder_is_told_file_by_file(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_bytes(b"x = 1\n")
    (tmp_path / "empty.py").write_bytes(b"")
    (tmp_path / "blank.py").write_bytes(b" \n\t\n")
    (tmp_path / "photo.py").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
    (tmp_path / "huge.py").write_bytes(b"x = 1\n" * (MAX_BYTES // 6 + 1))
    (tmp_path / "marked.py").write_bytes(b"\xff\xfex\0\xd8")
    (tmp_path / "letters.py").write_bytes(b"\xff\xfe\x00\x01bin\0")
    (tmp_path / "notes.md").write_text("words")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "secret.py").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "hook.py").write_text("x = 1")
    files, skipped = read_all(tmp_path)
    assert list(files) == ["good.py"] and files["good.py"].language == "python"
    assert files["good.py"].sha256 == hashlib.sha256(b"x = 1\n").hexdigest()
    assert {name: each.reason for name, each in skipped.items()} == {
        "empty.py": "empty",
        "blank.py": "empty",
        "photo.py": "binary",
        "letters.py": "binary",
        "huge.py": "too large",
        "marked.py": "not decodable",
        "notes.md": "unknown language",
        "loop": "link",
        "secret.py": "link",
        "pipe.py": "no plain file",
        ".git": "folder of tools",
    }
    assert skipped["huge.py"].detail == "at least 2 MB"


def test_encodings_are_read_and_named(tmp_path: Path) -> None:
    text = "x = 'é'\n"
    for name, encoding in (("a", "utf-8"), ("b", "utf-8-sig"), ("c", "utf-16"), ("d", "cp1252")):
        (tmp_path / f"{name}.py").write_bytes(text.encode(encoding))
    files, skipped = read_all(tmp_path)
    assert not skipped and {file.code for file in files.values()} == {text}
    assert [file.encoding for file in files.values()] == ["utf-8", "utf-8", "utf-16-le", "cp1252"]


def test_names_that_cannot_be_printed_are_escaped_and_their_files_read(tmp_path: Path) -> None:
    for name in (b"a\nb.py", b"\xff.py", b"=cmd.py", "x\u202eyp.py".encode(), b"-rf.py"):
        (Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))).write_text("x = 1")
    files, skipped = read_all(tmp_path)
    assert set(files) == {"a\\nb.py", "\\udcff.py", "=cmd.py", "x\\u202eyp.py", "-rf.py"}
    assert not skipped
    assert shown("Übung 1.py") == "Übung 1.py"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_what_may_not_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o000)
    (tmp_path / "a.py").write_text("x = 1")
    (tmp_path / "a.py").chmod(0o000)
    files, skipped = read_all(tmp_path)
    assert not files and {each.reason for each in skipped.values()} == {"not readable"}


def test_a_place_without_anything_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        find_files(tmp_path / "no")
    with pytest.raises(ConfigError, match="no plain file"):
        find_files("/dev/null")


def test_a_single_file_of_an_unknown_ending_is_read_and_a_named_language_holds(
    tmp_path: Path,
) -> None:
    (tmp_path / "code.txt").write_text("x = 1")
    entries, _ = find_files(tmp_path / "code.txt")
    assert [entry.language for entry in entries] == [""]
    entries, skipped = find_files(tmp_path, language="Python 3")
    assert [entry.language for entry in entries] == ["python"] and not skipped
