"""Where a notebook keeps its runs, how it waits for them, how a folder leaves the machine."""

from __future__ import annotations

import html
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from nbhelpers.common.files import expanded, is_file, is_folder
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.machine import detect_platform, is_headless
from nbhelpers.runs.starting import DRIVE, lost_disk

AUTO = "auto"
PLACES = {"colab": f"{DRIVE}/MyDrive/runs", "kaggle": "/kaggle/working/runs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The folder of the runs, and what survives."""

    folder: str
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.text)}</p>"


def keep_runs(run_dir: str = AUTO) -> Kept:
    """Choose the folder of the runs, and mount Google Drive where it lies there.

    Args:
        run_dir: A folder; `auto`: Drive in Colab, the working folder in Kaggle, else `runs` in the
            folder of the notebook.
    """
    platform = detect_platform()
    folder = PLACES.get(platform, "runs") if run_dir == AUTO else run_dir
    problem = ""
    if platform == "colab" and Path(folder).is_relative_to(DRIVE):
        problem = _mount()
        if problem and run_dir == AUTO:
            folder = "runs"
    root = expanded(folder, "run_dir").absolute()
    lost, fix = lost_disk(platform, root)
    if not lost:
        drive = platform == "colab"
        lost = "they outlive this machine." if drive else "they last as long as this disk."
        lost = f"Runs are kept in {root}: {lost}"
    return Kept(folder=folder, text=" ".join(filter(None, [problem, lost, fix])))


def _mount() -> str:
    """Mount Drive where it is not; say why that failed, in whatever way it did."""
    if os.path.ismount(DRIVE):
        return ""
    try:
        from google.colab import drive

        drive.mount(DRIVE)
    except Exception as error:  # refused, no browser, no answer: each raises something else
        return f"Google Drive was not mounted ({type(error).__name__})."
    return ""


def download(folder: str | Path) -> Path:
    """Pack a folder as `<folder>.zip` beside it and say where; in Colab the browser saves it too.

    Raises:
        ConfigError: There is no such folder.
    """
    path = expanded(folder, "the folder")
    if not is_folder(path):
        text = f"There is no folder {path} to pack."
        raise ConfigError(text, fix="save the model first: export(run, folder)")
    packed = Path(shutil.make_archive(str(path), "zip", root_dir=path))
    if detect_platform() == "colab" and not is_headless():
        from google.colab import files

        files.download(str(packed))
    report = packed.parent / "report.html"
    place = os.path.relpath(packed)
    sys.stdout.write(
        f"Packed: {packed if place.startswith(os.pardir) else place}. "
        "In JupyterLab: right-click it in the file browser at the left, Download."
        + (" The report beside it: report.html." if is_file(report) else "")
        + "\n"
    )
    return packed


class Unfinished(Exception):
    """A cell ends here, in one line: what it watches goes on."""

    def _render_traceback_(self) -> list[str]:  # IPython's way to word an error
        return [str(self)]


def stop_unless(has_ended: bool) -> None:
    """Keep the cells below from running where a run goes on unwatched.

    Raises:
        Unfinished: It has not ended.
    """
    if not has_ended:
        raise Unfinished("The training goes on, and the cells below wait: run this cell again.")
