"""`run_study`: the runs of a study one after the other, each in processes of its own.

It can be interrupted anywhere and run again: finished runs are used, a running one is followed, a
stopped or failed one goes on from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nbhelpers import processes
from nbhelpers.errors import (
    ConfigError,
    DataError,
    HardwareError,
    LaunchError,
    NbhelpersError,
    Stopped,
)
from nbhelpers.follow import follow, outcome
from nbhelpers.launch import (
    explained,
    is_fresh_by_default,
    launch,
    needs_start,
    require_gpu,
    tell_runner,
)
from nbhelpers.paths import expanded
from nbhelpers.runs import Run
from nbhelpers.study_adapters import parse_adapters
from nbhelpers.study_baseline import (
    PATIENCE_S,
    BaselineCheck,
    check_baseline,
    gpus_of,
    memory_in_use,
)
from nbhelpers.study_folder import (
    StudyFolder,
    error_facts,
    launch_facts,
    open_folder,
    study_folders,
)
from nbhelpers.study_plan import PlannedRun, Study, plan_study
from nbhelpers.study_table import StudyResult, StudyRow

if TYPE_CHECKING:
    from nbhelpers.hardware import Hardware

__all__ = [
    "Study",
    "StudyResult",
    "StudyRow",
    "list_studies",
    "open_study",
    "parse_adapters",
    "plan_study",
    "run_study",
]

_SHARED = (ConfigError, DataError, HardwareError)  # a reason that may hold for every run


def run_study(
    study: Study,
    *,
    hardware: Hardware,
    run_dir: str | Path = "runs",
    fresh: bool = False,
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
    if hardware.is_planned:
        fix = "Use detect_hardware() for a run, plan_hardware() for planning only."
        raise HardwareError("This hardware is a plan, not this machine's.", fix=fix)
    require_gpu_for(study, hardware, run_dir=run_dir, fresh=fresh)
    root = expanded(run_dir, "run_dir").absolute()
    folder = StudyFolder(root / study.id, study)
    with explained(root):
        folder.begin()
    tell_runner(folder.path)
    if fresh and (busy := folder.running()):
        fix = f"Stop it first: nbhelpers stop {shlex.quote(str(folder.run_of(busy).path))}"
        raise LaunchError(f"{busy.name} is running, so the study cannot start anew.", fix=fix)
    driver = _Driver(
        folder, hardware, fresh=fresh, show=show, patience_s=baseline_wait_s, write_page=report
    )
    try:
        driver.work(on_failure)
    except KeyboardInterrupt:
        driver.say(driver.how_to_go_on())
    found = folder.result()
    for line in found.failure_lines():
        driver.say(f"Without a result: {line}")
    return found.require_complete() if found.failures and not found.finished else found


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
    return open_folder(path_or_id, run_dir).result()


def list_studies(run_dir: str | Path = "runs") -> list[Path]:
    """Return the folders of the studies in a folder of runs, newest first."""
    return study_folders(run_dir)


@dataclass
class _Driver:
    """Works through a study; several may do so at once, and each run is started by one of them."""

    folder: StudyFolder
    hardware: Hardware
    fresh: bool
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
            facts |= {"error": None if error is None else error_facts(error)}
            if works:
                facts |= {"ended_at": time.time()}
                facts |= {"baseline": check.to_dict() if check else None}
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
            fix = f"nbhelpers report {run.id}"
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
        before, used = self.folder.run_of(row).process.get("launch_id"), self._memory(row, status)
        run = self._quietly_launch(row)
        if run.id != row.run_id:
            fix = "plan the study again with plan_study: it takes the data as they are now"
            raise ConfigError("The data changed after the study was planned.", fix=fix)
        is_new = run.process.get("launch_id") != before
        self.folder.note(row, **launch_facts(run))
        if is_new:
            if not self.baseline and used:
                self.baseline = used
                place = {"gpus": used, "machine": processes.machine(), "at": time.time()}
                self.folder.write(self.folder.facts() | {"baseline": place})
            facts = {"status": "running", "started_at": time.time(), "before_bytes": used}
            self.folder.note(row, **facts, error=None, baseline=None)
        return is_new or status == "running"

    def _quietly_launch(self, row: PlannedRun) -> Run:
        out = contextlib.nullcontext() if self.show else contextlib.redirect_stdout(io.StringIO())
        with out:
            return launch(
                row.preset,
                row.plan,
                row.budget,
                hardware=self.hardware,
                run_dir=self.folder.path.parent,
                fresh=self.fresh,
            )

    def _memory(self, row: PlannedRun, status: str) -> dict[str, int]:
        """Memory in use before a run; of one that works already, the baseline of who started it."""
        if status != "running":
            return memory_in_use(gpus_of(row.plan, self.hardware))
        stored = self.folder.facts().get("baseline") or {}
        if not self.baseline and stored.get("machine") == processes.machine():
            self.baseline = dict(stored["gpus"])
        return {}

    def follow(self, row: PlannedRun) -> None:
        """Watch a run to its end; an interrupt goes on to whoever called."""
        self.current = row
        stream = None if self.show else io.StringIO()
        if follow(self.folder.run_of(row), stream=stream) is None:
            raise KeyboardInterrupt
        self.current = None

    def check(self, row: PlannedRun) -> BaselineCheck | None:
        """Wait until the GPUs are back at the baseline; warn if they do not come back."""
        gpus = gpus_of(row.plan, self.hardware)
        if not gpus or not self.baseline:
            return None
        found = check_baseline(gpus, self.baseline, patience_s=self.patience_s)
        if found is not None and not found.is_back:
            who = ", ".join(found.holders) or "processes that the driver does not name"
            self.say(
                f"Warning: {found.excess_bytes / 2**20:,.0f} MiB more than before the study are in "
                f"use after {row.name}, held by: {who}"
            )
        return found

    def how_to_go_on(self) -> str:
        """Say what an interrupt left behind, and how to go on."""
        name = self.current.name if self.current else "no run"
        return (
            f"Stopped following the study; {name} goes on, those after it wait. To go on, run it "
            f"again.\nHow it stands: open_study({str(self.folder.path)!r})"
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
