"""Promise: a notebook says where its runs lie and what survives; a mounted drive will do."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import fake_launch
import pytest
import slow_drive

from nbhelpers.errors import ConfigError
from nbhelpers.notebook import download, keep
from nbhelpers.runs.following import follow


@pytest.mark.parametrize(
    ("platform", "run_dir", "mounts", "folder", "words"),
    [
        ("jupyter", "auto", None, "runs", "last as long as this disk"),
        ("jupyter", "mine", None, "mine", "last as long as this disk"),
        ("kaggle", "auto", None, "/kaggle/working/runs", "Save Version"),
        ("colab", "auto", True, "/content/drive/MyDrive/runs", "outlive this machine"),
        ("colab", "auto", False, "runs", "was not mounted (ValueError). Colab deletes"),
        ("colab", "runs", None, "runs", "Colab deletes this machine's disk"),
    ],
)
def test_the_runs_go_where_they_outlive_the_machine(
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    run_dir: str,
    mounts: bool | None,
    folder: str,
    words: str,
) -> None:
    asked = []

    def mount(place: str) -> None:
        asked.append(place)
        if not mounts:
            raise ValueError("mount failed")

    for name in ("google", "google.colab"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["google.colab"].drive = types.SimpleNamespace(mount=mount)
    monkeypatch.setattr(keep, "detect_platform", lambda: platform)
    kept = keep.keep_runs(run_dir)
    assert kept.folder == folder and words in repr(kept)
    assert asked == ([] if mounts is None else ["/content/drive"])


def test_a_saved_folder_is_packed_and_its_place_told(tmp_path: Path, capsys) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a.txt").write_text("a")
    (tmp_path / "report.html").touch()
    assert download(tmp_path / "model").name == "model.zip"
    (line,) = capsys.readouterr().out.splitlines()
    assert "model.zip" in line and "file browser" in line and "report.html" in line
    with pytest.raises(ConfigError, match="export"):
        download(tmp_path / "nothing")


def test_a_run_that_goes_on_ends_the_cell_in_one_line(capsys) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    assert keep.stop_unless(True) is None
    shell = InteractiveShell()
    shell.user_ns["stop_unless"] = keep.stop_unless
    assert not shell.run_cell("stop_unless(False)").success
    (line,) = capsys.readouterr().out.splitlines()
    assert "run this cell again" in line


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of runs on a drive; a real training on one stands in test_resume.py."""
    plain = fake_launch.ENVIRONMENT
    folder = slow_drive.mount(tmp_path, monkeypatch, plain["PYTHONPATH"])
    plain = plain | {"PYTHONPATH": os.environ["PYTHONPATH"]}
    yield from fake_launch.folder_of_runs(folder, monkeypatch, plain)


def test_a_run_on_a_mounted_drive_ends_and_is_found_again(drive: Path) -> None:
    run = fake_launch.launch_fake(drive)
    result = follow(run, refresh_s=0.05, timeout_s=60)
    assert result is not None and result.run_id == run.id
    again = fake_launch.launch_fake(drive)
    assert again.path == run.path and again.status == "finished"
