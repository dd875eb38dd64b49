"""Where a merged or exported folder may be written: never over what others need.

Asked before any process is started; what already lies there is judged by the job that writes.
"""

from __future__ import annotations

import os
from pathlib import Path

from nbhelpers.errors import ConfigError
from nbhelpers.paths import expanded, is_folder, kind_of
from nbhelpers.trained import Trained
from nbhelpers.trained_detector import TrainedDetector

LONGEST_NAME = 200  # bytes; file systems take 255, and a draft adds its own ending


def place_for(out: str | Path, trained: Trained | TrainedDetector) -> Path:
    """Return the whole path of a folder to write, links resolved.

    Raises:
        ConfigError: It is no folder's place: a file, a folder that cannot be written, or one that
            is, holds or lies inside the adapter, its checkpoints or the base model.
    """
    given = expanded(out, "out").absolute()
    try:
        path = given.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        text = f"out is {str(out)!r}, which leads nowhere."
        raise ConfigError(text, fix="name another folder") from error
    if not path.name or len(os.fsencode(path.name)) > LONGEST_NAME:
        text = f"out is {str(out)[:80]!r}, which is no name for a folder."
        raise ConfigError(text, fix="write for instance out/my-adapter")
    if kind_of(path) not in ("", "folder"):
        raise ConfigError(f"{path} exists, and is no folder.", fix="name another folder")
    _require_writable(path)
    for what, folder in _sources(trained).items():
        if path == folder or path in folder.parents or folder in path.parents:
            how = "is" if path == folder else "holds" if path in folder.parents else "lies in"
            raise ConfigError(f"{path} {how} {what}.", fix="name a folder outside of it")
    return path


def _sources(trained: Trained | TrainedDetector) -> dict[str, Path]:
    """Folders that are read, and must stay as they are."""
    found: dict[str, Path] = {}
    if isinstance(trained, TrainedDetector):
        found["the detector that is read"] = trained.folder.resolve()
    elif trained.adapter is not None:
        found["the adapter that is read"] = trained.adapter.resolve()
    if isinstance(trained, Trained) and is_folder(trained.settings.model):
        found["the base model"] = expanded(trained.settings.model).resolve()
    if trained.run is not None:
        found["the run's folder of checkpoints"] = trained.run.resolve() / "checkpoints"
    return found


def _require_writable(path: Path) -> None:
    near = next((each for each in (path, *path.parents) if kind_of(each)), None)
    if near is None or not is_folder(near) or not os.access(near, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{path} cannot be written: {near or path} is no folder that you may write to.",
            fix="name a folder of your own",
        )
