"""Promise: a notebook says where its runs lie and what survives; a mounted drive will do."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
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


def test_a_saved_folder_is_packed(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a.txt").write_text("a")
    assert download(tmp_path / "model").name == "model.zip"
    with pytest.raises(ConfigError, match="export"):
        download(tmp_path / "nothing")


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of runs on a drive, for this process and all that it starts."""
    folder = tmp_path / "drive"
    folder.mkdir()
    plain = fake_launch.ENVIRONMENT
    extra = slow_drive.environment(tmp_path / "site", folder, plain["PYTHONPATH"])
    for module, names in ((os, ("replace", "rename", "scandir", "listdir")), (fcntl, ("flock",))):
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name))  # put back at the end
    slow_drive.apply(extra[slow_drive.VARIABLE])
    yield from fake_launch.folder_of_runs(folder, monkeypatch, plain | extra)


def test_a_run_on_a_mounted_drive_ends_and_is_found_again(drive: Path) -> None:
    run = fake_launch.launch_fake(drive)
    result = follow(run, refresh_s=0.05, timeout_s=60)
    assert result is not None and result.run_id == run.id
    again = fake_launch.launch_fake(drive)
    assert again.path == run.path and again.status == "finished"


@pytest.mark.slow
def test_a_training_on_a_mounted_drive_stops_and_goes_on(tmp_path: Path, root: Path) -> None:
    folder = tmp_path / "drive"
    folder.mkdir()
    env = os.environ | slow_drive.environment(tmp_path / "site", folder, str(root))
    words = ["train", "clones", "--preset", "smoke", "-o", "save_steps=5", "--run-dir", str(folder)]
    words += ["-o", "max_train_samples=640", "-o", "pretrain_steps=20", "-o", "epochs=1"]
    command = [sys.executable, "-m", "nbhelpers", *words]
    options = {"cwd": root, "env": env, "capture_output": True, "text": True, "timeout": 300}
    with subprocess.Popen([*command, "--detach"], cwd=root, env=env) as started:
        assert started.wait(timeout=120) == 0
    deadline = time.monotonic() + 200
    while not list(folder.glob("clones-*/checkpoints/step-*/manifest.json")):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    (run,) = folder.glob("clones-*")
    stop = [sys.executable, "-m", "nbhelpers", "stop", run.name, "--run-dir", str(folder)]
    stopped = subprocess.run(stop, check=False, **options)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert not (run / "result.json").exists()
    again = subprocess.run(command, check=False, **options)
    assert again.returncode == 0, (again.stdout + again.stderr)[-3000:]
    events = (run / "events-rank0.jsonl").read_text()
    assert '"resumed"' in events and (run / "report.html").is_file()
