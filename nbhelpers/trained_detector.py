"""What a path to a trained detector means: a run, a checkpoint, or an exported folder.

Told from JSON files alone, before any model is loaded. A folder with `detector.json` can be loaded
by `jobs.detector_model.load_detector`; a run stands for the best of its checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbhelpers.errors import ConfigError, DataError
from nbhelpers.paths import expanded, is_file, is_folder
from nbhelpers.result_files import CheckpointIndex, DetectorFile, Record
from nbhelpers.runs import open_run
from nbhelpers.trained import best_checkpoint, training_record

FACTS_FILE = "detector.json"
JOB = "detector"
# `nbhelpers.json` beside them marks a folder as an export of ours.
NEEDED = (FACTS_FILE, "config.json", "model.safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedDetector:
    """A folder that holds a detector, and the run that made it, where that is known.

    `kind`: run, checkpoint or export.
    """

    name: str
    kind: str
    folder: Path
    run: Path | None

    @property
    def scored(self) -> Path | None:
        """The run whose result is of these weights: it scores its best checkpoint alone."""
        if self.run is None:
            return None
        index = CheckpointIndex.read(self.run / "checkpoints" / "index.json")
        best = index.best if index else None
        return self.run if best in (None, self.folder.name) else None

    def to_dict(self) -> dict[str, Any]:
        """JSON values, for the pipe to the process that loads it."""
        run = None if self.run is None else str(self.run)
        return {"name": self.name, "kind": self.kind, "folder": str(self.folder), "run": run}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrainedDetector:
        """The inverse of `to_dict`."""
        run = Path(data["run"]) if data["run"] else None
        return cls(name=data["name"], kind=data["kind"], folder=Path(data["folder"]), run=run)


def is_detector(path: str | Path, run_dir: str | Path = "runs") -> bool:
    """Whether a run's id or a folder is of the job `detector`; False where there is nothing."""
    given, root = expanded(path, "the run"), expanded(run_dir, "run_dir")
    for folder in (root / given, given):
        if is_file(folder / "run.json"):
            record = Record.read(folder / "run.json")
            return record is not None and record.job == JOB
    return is_file(given / FACTS_FILE)


def find_detector(path: str | Path, run_dir: str | Path = "runs") -> TrainedDetector:
    """Say what a run's id or a folder holds.

    Raises:
        ConfigError: There is no such run or folder, or it is of another job or has no checkpoint.
        DataError: A file is missing or damaged; names it.
    """
    given, root = expanded(path, "the run"), expanded(run_dir, "run_dir")
    if any(is_file(place / "run.json") for place in (root / given, given)) or not is_folder(given):
        return _of_run(open_run(given, root).path)
    folder = given.resolve()
    if not is_file(folder / FACTS_FILE):
        raise DataError(
            f"{given} is no run (run.json) and no detector ({FACTS_FILE}).",
            fix="name a run of the job detector, one of its checkpoints, or an exported folder",
        )
    run = folder.parent.parent
    is_checkpoint = folder.parent.name == "checkpoints" and is_file(run / "run.json")
    return TrainedDetector(
        name=f"{run.name}/{folder.name}" if is_checkpoint else folder.name,
        kind="checkpoint" if is_checkpoint else "export",
        folder=_require_files(folder),
        run=run if is_checkpoint else None,
    )


def _of_run(folder: Path) -> TrainedDetector:
    record = training_record(folder)
    if record.job != JOB:
        raise ConfigError(
            f"{folder.name} is a run of the job {record.job}, which trains no detector.",
            fix="name a run of the job detector",
        )
    best = _require_files(best_checkpoint(folder))
    return TrainedDetector(name=folder.name, kind="run", folder=best, run=folder)


def _require_files(folder: Path) -> Path:
    missing = [name for name in NEEDED if not is_file(folder / name)]
    if missing:
        fix = "copy the whole folder again, or name another checkpoint"
        raise DataError(f"{folder} lacks {' and '.join(missing)}.", fix=fix)
    DetectorFile.read(folder / FACTS_FILE)
    return folder
