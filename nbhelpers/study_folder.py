"""The folder of a study: `study.json` holds the plan and how each run stands.

What a run found stays in its own folder, beside the study's; status and errors are read there.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nbhelpers.errors import ConfigError, DataError, NbhelpersError, from_kind
from nbhelpers.follow import outcome
from nbhelpers.json_models import read_raw
from nbhelpers.locks import locked
from nbhelpers.paths import expanded, is_file
from nbhelpers.result_files import StudyFile
from nbhelpers.runs import Run
from nbhelpers.study_baseline import BaselineCheck
from nbhelpers.study_plan import PlannedRun, Study
from nbhelpers.study_table import StudyResult, StudyRow
from nbhelpers.study_time import FINISHED

FILE_NAME = "study.json"
PREFIX = "study-"


@dataclass
class StudyFolder:
    """A study on disk; `study` is its plan."""

    path: Path
    study: Study

    @classmethod
    def opened(cls, path: Path) -> StudyFolder:
        """Read the folder of a study.

        Raises:
            ConfigError: There is none, or another version wrote it.
            DataError: Its file is damaged; names the field.
        """
        data = read_raw(StudyFile, path / FILE_NAME)
        if not data:
            raise ConfigError(f"There is no {path / FILE_NAME}.", fix=StudyFile.FIX)
        try:
            return cls(path, Study.from_dict(data["study"]))
        except ConfigError as error:
            text = f"{path / FILE_NAME}: {error.message}"
            raise ConfigError(text, fix=StudyFile.FIX) from error

    def begin(self) -> None:
        """Write the plan; what an earlier call predicted of runs that are finished now is kept."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.lock():
            known: dict[str, Any] = {"schema": 1, "created_at": time.time(), "runs": {}}
            with contextlib.suppress(ConfigError, DataError):
                earlier = StudyFolder.opened(self.path).study
                self.study = _with_first_times(self.study, earlier)
                known = self.facts()
            self.write(known | {"study": self.study.to_dict()})

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Hold what only one process may do: start a run, and write the file."""
        return locked(self.path / ".lock")

    def facts(self) -> dict[str, Any]:
        """Return what the file holds now."""
        return read_raw(StudyFile, self.path / FILE_NAME)

    def write(self, facts: dict[str, Any]) -> None:
        """Replace the file in one step; the caller holds the lock."""
        StudyFile.write(self.path / FILE_NAME, facts | {"updated_at": time.time()})

    def noted(self, row: PlannedRun) -> dict[str, Any]:
        """Return what the file holds about one run."""
        return (self.facts().get("runs") or {}).get(row.name) or {}

    def note(self, row: PlannedRun, **facts: Any) -> None:
        """Add facts about one run; the caller holds the lock."""
        data = self.facts()
        runs = data.get("runs") or {}
        runs[row.name] = self.noted(row) | facts
        self.write(data | {"runs": runs})

    def run_of(self, row: PlannedRun) -> Run:
        """Return the run of a row, in the folder of runs around the study's own."""
        return Run(self.path.parent / row.run_id)

    def kept(self, row: PlannedRun) -> tuple[Run, str]:
        """Return the run that the study used, also where it was set aside since, and a note.

        Another program may start the same configuration anew: the study keeps the figures of its
        own run. The note says where that run is gone.
        """
        run, noted = self.run_of(row), self.noted(row)
        places = [run, *(Run(path) for path in sorted(run.path.parent.glob(f"{run.id}~*")))]
        for name in ("launch_id", "created_at"):  # the second outlives a launch that went on
            told = noted.get(name)
            for place in places if told else ():
                if launch_facts(place)[name] == told:
                    return place, ""
        now = launch_facts(run)["created_at"]
        if not noted.get("created_at") or not now:
            return run, ""
        text = f"{row.name}: its run of {noted['created_at']} was replaced by one of {now}, and the"
        return run, f"{text} figures are those of the later one."

    def running(self) -> PlannedRun | None:
        """Return the first row whose run works now, or None."""
        return next((row for row in self.study.rows if self.run_of(row).is_running), None)

    def result(self) -> StudyResult:
        """Return what all runs found, from their folders."""
        rows = tuple(self._row(row) for row in self.study.rows)
        return StudyResult(study=self.study, path=self.path, rows=rows)

    def _row(self, row: PlannedRun) -> StudyRow:
        run, replaced, noted = self.run_of(row), "", self.noted(row)
        baseline = noted.get("baseline")
        status, result, error = "failed", None, None
        try:
            run, replaced = self.kept(row)
            status = run.status
            if status == "finished":
                result = run.result()
            elif status in ("stopped", "failed", "dead"):
                error = _ended(run)
            elif status == "new" and noted.get("error"):  # it could not start
                status, error = "failed", error_from(noted["error"])
        except DataError as damage:  # the other runs of the study are shown all the same
            status, error = "failed", damage
        return StudyRow(
            name=row.name,
            planned=row,
            run=run,
            status=status,
            result=result,
            error=error,
            baseline=BaselineCheck.from_dict(baseline) if baseline else None,
            replaced=replaced,
        )


def launch_facts(run: Run) -> dict[str, str | None]:
    """Return what tells a run from a later one of the same configuration."""
    created = (run.record or {}).get("created_at")
    return {"launch_id": run.process.get("launch_id"), "created_at": created}


def open_folder(path_or_id: str | Path, run_dir: str | Path) -> StudyFolder:
    """Find the folder of a study by its path, its id, or the beginning of its id.

    Raises:
        ConfigError: There is no such study, or its file cannot be read.
    """
    path, root = expanded(path_or_id, "the study"), expanded(run_dir, "run_dir")
    for folder in (root / path, path):
        if is_file(folder / FILE_NAME):
            return StudyFolder.opened(folder.absolute())
    begun = [each for each in study_folders(root) if each.name.startswith(str(path_or_id))]
    if len(begun) == 1 and str(path_or_id).startswith(PREFIX):
        return StudyFolder.opened(begun[0])
    known = ", ".join(each.name for each in study_folders(root)[:3]) or "none"
    fix = f"the newest here: {known}; for another folder of runs set run_dir"
    raise ConfigError(f"No study {str(path_or_id)!r} in {root.absolute()}.", fix=fix)


def study_folders(run_dir: str | Path) -> list[Path]:
    """Return the folders of the studies in a folder of runs, newest first."""
    found = []
    for file in expanded(run_dir, "run_dir").absolute().glob(f"*/{FILE_NAME}"):
        with contextlib.suppress(OSError):  # deleted meanwhile
            found.append((file.stat().st_mtime, file.parent))
    return [folder for _, folder in sorted(found, reverse=True)]


def error_facts(error: NbhelpersError) -> dict[str, str]:
    """Return an error as JSON keeps it."""
    kind = type(error).__name__
    return {"kind": kind, "message": error.message, "fix": error.fix, "details": error.details}


def error_from(facts: dict[str, Any]) -> NbhelpersError:
    """Rebuild what `error_facts` wrote."""
    words = {name: str(facts.get(name) or "") for name in ("kind", "message", "fix", "details")}
    return from_kind(words.pop("kind"), words.pop("message"), **words)


def _ended(run: Run) -> NbhelpersError | None:
    try:
        outcome(run)
    except NbhelpersError as ended:
        return ended
    return None  # it was started again, or finished, meanwhile


def _with_first_times(study: Study, earlier: Study) -> Study:
    """The new plan with the times that were predicted before its finished runs began."""
    times = {row.run_id: row.time for row in earlier.rows}
    rows = tuple(
        replace(row, time=times.get(row.run_id, row.time)) if row.time.basis == FINISHED else row
        for row in study.rows
    )
    return replace(study, rows=rows)
