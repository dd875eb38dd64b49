"""`run_study`: the runs of a study one after the other, and the folder that holds them."""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nbhelpers.common.files import expanded, is_file, locked
from nbhelpers.common.json_models import read_raw
from nbhelpers.common.processes import shell_command
from nbhelpers.common.result_files import StudyFile
from nbhelpers.errors import (
    ConfigError,
    DataError,
    HardwareError,
    LaunchError,
    NbhelpersError,
    Stopped,
)
from nbhelpers.runs.following import error_fields, follow, named_error, outcome
from nbhelpers.runs.gpu_baseline import (
    PATIENCE_S,
    BaselineCheck,
    check_baseline,
    gpus_of,
    memory_in_use,
)
from nbhelpers.runs.run import Run, folders_with
from nbhelpers.runs.starting import (
    explained,
    is_fresh_by_default,
    launch,
    needs_start,
    require_detected,
    require_gpu,
    tell_runner,
)
from nbhelpers.runs.study_plan import FINISHED, PlannedRun, Study
from nbhelpers.runs.study_results import StudyResult, StudyRow

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware


# ------------------------------------------------------------------------------------------------
# The folder of a study: `study.json` holds the plan and how each run stands.
#
# What a run found stays in its own folder, beside the study's; status and errors are read there.


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
            ConfigError: There is none.
            DataError: Its file is damaged, or another version wrote it.
        """
        data = read_raw(StudyFile, path / FILE_NAME)
        if not data:
            raise ConfigError(f"There is no {path / FILE_NAME}.", fix=StudyFile.FIX)
        try:
            return cls(path, Study.from_dict(data["study"]))
        except (ConfigError, LookupError, TypeError, AttributeError, ValueError) as error:
            why = getattr(error, "message", f"{type(error).__name__}: {error}")
            raise DataError(f"{path / FILE_NAME}: {why}", fix=StudyFile.FIX) from error

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

    def running(self) -> PlannedRun | None:
        """Return the first row whose run works now, or None."""
        return next((row for row in self.study.rows if self.run_of(row).is_running), None)

    def result(self) -> StudyResult:
        """Return what all runs found, from their folders."""
        rows = tuple(self._row(row) for row in self.study.rows)
        return StudyResult(study=self.study, path=self.path, rows=rows)

    def _row(self, row: PlannedRun) -> StudyRow:
        run, noted = self.run_of(row), self.noted(row)
        status, result, error, baseline = "failed", None, None, None
        try:
            if check := noted.get("baseline"):
                baseline = BaselineCheck.from_dict(check)
            status = run.status
            if status == "finished":
                result = run.result()
            elif status in ("stopped", "failed", "dead"):
                error = _ended(run)
            elif status == "new" and noted.get("error"):  # it could not start
                status, error = "failed", named_error(noted["error"])
        except DataError as damage:  # the other runs of the study are shown all the same
            status, error = "failed", damage
        return StudyRow(
            name=row.name,
            planned=row,
            run=run,
            status=status,
            result=result,
            error=error,
            baseline=baseline,
        )


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


# ------------------------------------------------------------------------------------------------
# `run_study`: the runs of a study one after the other, each in processes of its own.
#
# It can be interrupted anywhere and run again: finished runs are used, a running one is followed, a
# stopped or failed one goes on from its last checkpoint.


_SHARED = (ConfigError, DataError, HardwareError)  # a reason that may hold for every run


def run_study(
    study: Study,
    *,
    hardware: Hardware,
    run_dir: str | Path = "runs",
    fresh: bool = False,
    resume: bool | None = None,
    show: bool = True,
    on_failure: Literal["go_on", "stop"] = "go_on",
    report: Callable[..., object] | None = None,
    baseline_wait_s: float = PATIENCE_S,
) -> StudyResult:
    """Run what is left of a study and return what all its runs found.

    Interrupting ends the following only: the run that is under way goes on, and those after it
    start when the study is run again. A run that is stopped (`nbhelpers stop`) ends the study too.
    At most one run of a study works at a time, however many processes run the study.

    Args:
        study: From `plan_study`, or `open_study(...).study`.
        hardware: This machine's.
        run_dir: The folder of runs; the study's own folder is made beside theirs.
        fresh: Set earlier runs of the study aside and start all of them anew.
        resume: Go on from runs that differ in how their batch was split only; see `launch`.
        show: Show progress; False: write nothing.
        on_failure: After a run that fails: go on with the next one, or stop.
        report: Writes the page of a run that has ended, as `nb.report` does; None: no pages.
        baseline_wait_s: How long a GPU may take to be free again after a run.

    Raises:
        ConfigError: `on_failure` is unknown.
        HardwareError: The hardware is a plan, or the preset is for a GPU that is not here.
        LaunchError: A folder cannot be used; with `fresh`, a run of the study works now.
        NbhelpersError: No run has a result: of the class of the first failure.
    """
    if on_failure not in ("go_on", "stop"):
        fix = 'write "go_on" or "stop"'
        raise ConfigError(f"on_failure={on_failure!r} is unknown.", fix=fix)
    require_detected(hardware)
    require_gpu_for(study, hardware, run_dir=run_dir, fresh=fresh)
    root = expanded(run_dir, "run_dir").absolute()
    folder = StudyFolder(root / study.id, study)
    with explained(root):
        folder.begin()
    tell_runner(folder.path)
    if fresh and (busy := folder.running()):
        fix = f"Stop it first: {folder.run_of(busy).shell('stop')}"
        raise LaunchError(f"{busy.name} is running, so the study cannot start anew.", fix=fix)
    driver = _Driver(
        folder,
        hardware,
        fresh=fresh,
        resume=resume,
        show=show,
        patience_s=baseline_wait_s,
        write_page=report,
    )
    try:
        driver.work(on_failure)
    except KeyboardInterrupt:
        driver.say(driver.how_to_go_on())
    outcome = folder.result()
    for line in outcome.failure_lines():
        driver.say(f"Without a result: {line}")
    return outcome.require_complete() if outcome.failures and not outcome.finished else outcome


def require_gpu_for(
    study: Study, hardware: Hardware, *, run_dir: str | Path = "runs", fresh: bool = False
) -> None:
    """Stop a study that is for a GPU where there is none, before anything is made.

    Raises:
        HardwareError: The preset is for a GPU, there is none, and not every run is finished.
    """
    root = expanded(run_dir, "run_dir").absolute()
    for row in study.rows:
        if needs_start(Run(root / row.run_id), fresh=fresh):
            require_gpu(row.preset, row.plan, hardware)


def open_study(path_or_id: str | Path, run_dir: str | Path = "runs") -> StudyResult:
    """Return what a study found so far; `.study` can be run again.

    Args:
        path_or_id: Its folder, its id, or the beginning of its id.
        run_dir: Where an id is looked for.

    Raises:
        ConfigError: There is no such study.
        DataError: Its file is damaged; names the field.
    """
    path, root = expanded(path_or_id, "the study"), expanded(run_dir, "run_dir")
    for folder in (root / path, path):
        if is_file(folder / FILE_NAME):
            return StudyFolder.opened(folder.absolute()).result()
    folders = list_studies(root)
    begun = [folder for folder in folders if folder.name.startswith(str(path_or_id))]
    if len(begun) == 1 and str(path_or_id).startswith(PREFIX):
        return StudyFolder.opened(begun[0]).result()
    known = ", ".join(folder.name for folder in folders[:3]) or "none"
    fix = f"the newest here: {known}; for another folder of runs set run_dir"
    raise ConfigError(f"No study {str(path_or_id)!r} in {root.absolute()}.", fix=fix)


def list_studies(run_dir: str | Path = "runs") -> list[Path]:
    """Return the folders of the studies in a folder of runs, newest first."""
    return folders_with(FILE_NAME, expanded(run_dir, "run_dir").absolute())


@dataclass
class _Driver:
    """Works through a study; several may do so at once, and each run is started by one of them."""

    folder: StudyFolder
    hardware: Hardware
    fresh: bool
    resume: bool | None
    show: bool
    patience_s: float
    write_page: Callable[..., object] | None
    baseline: dict[str, int] = field(default_factory=dict)  # bytes in use of each GPU
    current: PlannedRun | None = None

    def work(self, on_failure: str) -> None:
        """Start or follow each run in order."""
        rows, last = self.folder.study.rows, None
        for number, row in enumerate(rows, 1):
            self.say(f"[{number}/{len(rows)}] {row.name}")
            error = self.do(row)
            if isinstance(error, Stopped):
                self.say(f"{row.name} was stopped, and the study with it; run it again to go on.")
                return
            if error is not None and on_failure == "stop":
                return
            if number < len(rows) and _is_shared(error, last):
                self.say("Two runs failed for the same reason: the others are left out.")
                return
            last = error

    def do(self, row: PlannedRun) -> NbhelpersError | None:
        """See one run to its end; returns why it has no result."""
        error, works = None, False
        try:
            works = self.start(row)
            if works:
                self.follow(row)
            else:  # nothing to watch: it had ended before
                outcome(self.folder.run_of(row))
        except NbhelpersError as ended:
            if isinstance(ended, LaunchError) and ended.__cause__ is not None:
                raise  # the disk, or the folder of runs: no other run would start
            error = ended
        check = self.check(row) if works else None
        with self.folder.lock():
            facts: dict[str, Any] = {"status": self.folder.run_of(row).status}
            facts |= {"error": None if error is None else error_fields(error)}
            if works:
                facts |= {"ended_at": time.time()}
                facts |= {"baseline": asdict(check) if check else None}
            self.folder.note(row, **facts)
        if error is not None:
            self.say(f"{row.name} has no result: {type(error).__name__}: {error}")
        else:
            self.report(row, anew=works)
        return error

    def report(self, row: PlannedRun, *, anew: bool) -> None:
        """Write the page of a run that has ended; the study goes on whatever comes of it."""
        run = self.folder.run_of(row)
        if self.write_page is None or (run.report_path.exists() and not anew):
            return
        try:
            self.write_page(run, show=False)
        except Exception as error:  # the scores are safe, and the page can be made again
            fix = run.shell("report")
            self.say(f"Warning: the report of {row.name} was not written ({error}). Try: {fix}")

    def start(self, row: PlannedRun) -> bool:
        """Launch a run once no other of the study works; whether it was not finished before."""
        anew = self.fresh or is_fresh_by_default()
        while True:
            with self.folder.lock():
                status = self.folder.run_of(row).status
                other = self.folder.running() if anew or status != "finished" else None
                if other is None or other.run_id == row.run_id:
                    return self._launch(row, status)
            self.say(f"{other.name} of this study is running: it is followed first.")
            with contextlib.suppress(NbhelpersError):  # it is told in its own turn
                self.follow(other)

    def _launch(self, row: PlannedRun, status: str) -> bool:
        """Launch under the study's lock; the memory in use before it is the baseline."""
        before = self.folder.run_of(row).process.get("launch_id")
        if not self.baseline and status != "running":
            self.baseline = memory_in_use(gpus_of(row.plan, self.hardware))
        with contextlib.nullcontext() if self.show else contextlib.redirect_stdout(io.StringIO()):
            run = launch(
                row.preset,
                row.plan,
                row.budget,
                hardware=self.hardware,
                run_dir=self.folder.path.parent,
                fresh=self.fresh,
                resume=self.resume,
            )
        if run.id != row.run_id:
            fix = "plan the study again with plan_study: it takes the data as they are now"
            raise ConfigError("The data changed after the study was planned.", fix=fix)
        is_new = run.process.get("launch_id") != before
        if is_new:
            facts = {"status": "running", "started_at": time.time()}
            self.folder.note(row, **facts, error=None, baseline=None)
        return is_new or status == "running"

    def follow(self, row: PlannedRun) -> None:
        """Watch a run to its end; an interrupt goes on to whoever called."""
        self.current = row
        stream = None if self.show else io.StringIO()
        if follow(self.folder.run_of(row), stream=stream, interrupt_note="") is None:
            raise KeyboardInterrupt
        self.current = None

    def check(self, row: PlannedRun) -> BaselineCheck | None:
        """Wait until the GPUs are back at the baseline; warn if they do not come back."""
        gpus = gpus_of(row.plan, self.hardware)
        if not gpus or not self.baseline:
            return None
        check = check_baseline(gpus, self.baseline, patience_s=self.patience_s)
        if check is not None and not check.is_back:
            more = f"{check.excess_bytes / 2**20:,.0f} MiB more than before the study are in use"
            self.say(f"Warning: {more} after {row.name}; nvidia-smi names who holds them.")
        return check

    def how_to_go_on(self) -> str:
        """Say what an interrupt left behind, and how to go on."""
        name = self.current.name if self.current else "no run"
        return (
            f"Stopped following the study; {name} goes on, those after it wait. To go on, run it "
            f"again. How it stands: {shell_command()} report {shlex.quote(str(self.folder.path))}"
        )

    def say(self, text: str) -> None:
        """Write a line, unless nothing is to be shown."""
        if self.show:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()


def _is_shared(error: NbhelpersError | None, last: NbhelpersError | None) -> bool:
    """Whether two runs in a row failed for a reason that will hold for the others too."""
    if not isinstance(error, _SHARED) or last is None:
        return False
    return (type(error), error.message) == (type(last), last.message)
