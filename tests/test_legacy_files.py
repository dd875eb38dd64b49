"""A repair changes its own lines and no other byte, and a script is never lost."""

from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from nbhelpers.errors import ConfigError
from nbhelpers.legacy import patch_script
from nbhelpers.legacy.source import MAX_SOURCE_BYTES
from tests.legacy_scripts import assert_behaves, repaired, said, script, write

READ = (
    '    if args.local_rank == -1 and "LOCAL_RANK" in os.environ:\n'
    '        args.local_rank = int(os.environ["LOCAL_RANK"])\n'
)


def _expected(text: str) -> str:
    """The usual stand-in, repaired by hand."""
    parsed = "    args = parser.parse_args()\n"
    opened = text.replace(
        "if args.local_rank == -1 and args.ev", "if args.local_rank in [-1, 0] and args.ev"
    )
    return opened.replace(parsed, parsed + READ)


def test_only_the_repaired_places_change(tmp_path: Path) -> None:
    path = write(tmp_path, script())
    repaired(path)
    assert path.read_text() == _expected(script())
    assert path.read_text() != script()


LAYOUTS = {
    "line ends of Windows": lambda text: text.replace("\n", "\r\n"),
    "line ends of old Macs": lambda text: text.replace("\n", "\r"),
    "tabs": lambda text: text.replace("    ", "\t"),
    "two blanks": lambda text: text.replace("    ", "  "),
    "eight blanks": lambda text: text.replace("    ", "        "),
    "no final newline": lambda text: text.rstrip("\n"),
    "blank lines at the end": lambda text: text + "\n\n  \n",
    "form feeds": lambda text: text.replace("\ndef ", "\n\f\ndef ").replace(
        "\nimport", "\n\fimport"
    ),
    "trailing blanks": lambda text: text.replace("():\n", "():  \t\n"),
    "a byte order mark": lambda text: "\ufeff" + text,
    "a shell's first line": lambda text: "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n" + text,
    "other letters": lambda text: text.replace("args.local_rank == -1)", "학습 é 🙂"),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_layout_is_kept_and_still_runs(tmp_path: Path, layout: object) -> None:
    before, after = layout(script()), layout(_expected(script()))
    path = write(tmp_path, before)
    repaired(path)
    assert path.read_bytes() == after.encode()
    assert_behaves(path)


def test_no_newline_is_added_behind_the_last_line(tmp_path: Path) -> None:
    text = (
        "import os, argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--local_rank', type=int, default=-1)\n"
        "if parser:\n\targs = parser.parse_args()"
    )
    path = write(tmp_path, text)
    repaired(path)
    assert path.read_text().startswith(text + "\n\tif args")
    assert path.read_text().endswith('\t\targs.local_rank = int(os.environ["LOCAL_RANK"])')


def test_mixed_line_ends_stay_mixed_and_a_new_line_takes_its_neighbours(tmp_path: Path) -> None:
    before = script().replace("parse_args()\n    if", "parse_args()\r\n    if")
    path = write(tmp_path, before)
    repaired(path)
    after = path.read_bytes()
    assert after.count(b"\r\n") == before.count("\r\n") + 2
    assert b'["LOCAL_RANK"])\r\n' in after
    assert_behaves(path)


def test_another_encoding_is_kept(tmp_path: Path) -> None:
    text = "# -*- coding: latin-1 -*-\nname = 'é'\n" + script().partition("\n")[2].replace(
        "from __future__ import annotations\n", ""
    )
    path = write(tmp_path, text.encode("latin-1"))
    repaired(path)
    assert b"name = '\xe9'" in path.read_bytes()
    assert_behaves(path)


def test_a_text_that_only_speaks_of_the_repairs_is_not_touched(tmp_path: Path) -> None:
    lines = "    args = parser.parse_args()\n    if args.local_rank == -1 and args.evaluate:\n"
    note = f'NOTE = """\n{lines}"""\n# {lines.split(chr(10))[0]}\n'
    path = write(tmp_path, script().replace("\ndef evaluate", f"\n{note}\n\ndef evaluate"))
    repaired(path)
    assert note in path.read_text()
    assert_behaves(path)


def test_the_diff_is_one_that_patch_takes(tmp_path: Path) -> None:
    if shutil.which("patch") is None:
        pytest.skip("the command patch is not here")
    for number, layout in enumerate(LAYOUTS.values()):
        before = layout(script()).encode()
        if b"\r" in before and b"\r\n" not in before:
            continue  # a diff has no form for the line ends of old Macs
        folder = tmp_path / str(number)
        folder.mkdir()
        path = write(folder, before)
        diff = patch_script(path).diff.encode()
        command = ["patch", "-p1", "--binary", "--silent"]
        subprocess.run(command, input=diff, cwd=folder, check=True, timeout=30)
        patched = path.read_bytes()
        path.write_bytes(before)
        repaired(path)
        assert path.read_bytes() == patched


def test_without_write_nothing_changes(tmp_path: Path) -> None:
    path = write(tmp_path, script())
    found = patch_script(path)
    assert (found.status, found.backup) == ("would patch", None)
    assert path.read_text() == script()
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_script_is_kept_and_no_backup_is_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path, script())
    (tmp_path / "run.py.bak").write_text("precious")
    (tmp_path / "run.py.bak2").symlink_to("nowhere")
    found = repaired(path)
    assert found.backup == tmp_path / "run.py.bak3"
    assert found.backup.read_text() == script()
    assert (tmp_path / "run.py.bak").read_text() == "precious"
    assert {each.name for each in tmp_path.iterdir()} == {
        "run.py",
        *(f"run.py.bak{n}" for n in ("", 2, 3)),
    }


def test_the_mode_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path, script())
    path.chmod(0o750)
    found = repaired(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert stat.S_IMODE(found.backup.stat().st_mode) == 0o750


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target = write(tmp_path / "real", script())
    link = tmp_path / "run.py"
    link.symlink_to(target)
    found = repaired(link)
    assert link.is_symlink()
    assert found.target == target
    assert found.backup.parent == target.parent
    assert any("is a link" in note for note in found.notes)
    assert_behaves(link)


def test_what_cannot_be_written_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, script())

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("shutil.copy2", refuse)
    with pytest.raises(ConfigError, match=r"\(Permission denied\)\. Nothing was changed"):
        patch_script(path, write=True)
    assert path.read_text() == script()
    assert list(tmp_path.iterdir()) == [path]


REFUSED = {
    "empty": (b"", "is empty"),
    "blank": (b"\xef\xbb\xbf \n\n", "is empty"),
    "binary": (b"\x7fELF\0\0", "holds zero bytes"),
    "UTF-16": (script().encode("utf-16"), "holds zero bytes"),
    "not UTF-8": (b"import os\nname = '\xe9'\n", "is not valid utf-8 in line 2"),
    "an unknown encoding": (b"# coding: klingon\nx = 1\n", "names an encoding that Python refuses"),
    "Python 2": (b"import os\nprint 'rank', args.local_rank\n", "is written for Python 2 (line 2"),
    "Python 2 exceptions": (
        b"try:\n    x\nexcept ValueError, e:\n    pass\n",
        "for Python 2 (line 3",
    ),
    "Python 2 raise": (b"raise ValueError, 'x'\n", "is written for Python 2 (line 1"),
    "a syntax error": (b"import os\nif x\n    y\n", "does not parse: line 2"),
    "a shell script": (b"#!/bin/bash\nset -e\nmkdir -p x\n", "does not parse: line 3"),
    "broken by sed": (
        b"args = parser.parse_args()\n"
        b"    if args.local_rank == -1 and 'LOCAL_RANK' in os.environ:\n"
        b"        args.local_rank = int(os.environ['LOCAL_RANK'])\n",
        "the two lines that `sed` inserts",
    ),
    "return outside": (
        b"import os\nparser.add_argument('--local_rank')\nargs = parser.parse_args()\nreturn\n",
        "does not compile (line 4",
    ),
    "huge": (b"#" * (MAX_SOURCE_BYTES + 1), "is larger than 1 MiB"),
    "deep": (b"x = " + b"(" * 5000 + b")" * 5000, "pars"),
}


@pytest.mark.parametrize(("content", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_script_is_refused_with_its_reason(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        patch_script(path, write=True)
    assert reason in caught.value.message
    assert "Nothing was changed" in caught.value.message
    assert ("a later Python" in caught.value.fix) == ("does not parse" in caught.value.message)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_paths_that_are_no_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link.py").symlink_to(tmp_path / "gone.py")
    for name, reason in {
        "missing.py": "does not exist",
        ".": "is a folder",
        "link.py": "does not exist",
        "x" * 300: "does not exist",
    }.items():
        with pytest.raises(ConfigError, match=reason):
            patch_script(tmp_path / name)


def test_a_large_script_is_repaired_quickly(tmp_path: Path) -> None:
    path = write(tmp_path, script() + "\n".join(f"x{n} = [{n}, {n}]" for n in range(2000)) + "\n")
    assert repaired(path).status == "patched"
    assert said(path, "0")[0][-1] == "evaluated"
