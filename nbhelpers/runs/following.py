"""`follow`: watch a run until it ends, then return its result or raise what ended it.

Following only reads the run folder: it can begin late, end early and happen twice.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any, NoReturn, TextIO

from nbhelpers.budget.time import TimeBudget
from nbhelpers.errors import JobFailed, Killed, LaunchError, NbhelpersError, Stopped, from_kind
from nbhelpers.hardware.machine import is_headless
from nbhelpers.runs.events import Event, tail
from nbhelpers.runs.live import View, choose_view
from nbhelpers.runs.progress import Progress
from nbhelpers.runs.run import Run, RunResult, is_supervised

LOG_LINES = 20
_SPEAK_FOR_THEMSELVES = ("ConfigError", "DataError")  # their message says it all
_RESUME = "Launch the same configuration again: it continues from the last checkpoint."


def follow(
    run: Run,
    *,
    stream: TextIO | None = None,
    refresh_s: float = 0.5,
    timeout_s: float | None = None,
    stop_on_timeout: bool = False,
    quiet_s: float = 300.0,
    interrupt_note: str | None = None,
) -> RunResult | None:
    """Show a run's progress until it ends, and return its result.

    Interrupting (Ctrl-C, the stop button) ends the following, never the run; then None is returned.

    Args:
        run: From `launch` or `open_run`.
        stream: Where to write; by default the notebook's output, the terminal or a log's lines.
        refresh_s: Time between two looks at the folder.
        timeout_s: How long to follow; the run goes on unless `stop_on_timeout`.
        stop_on_timeout: Stop the run when the time is over.
        quiet_s: Warn once when the worker tells nothing for so long.
        interrupt_note: What an interrupt says; None: how to go on, "": nothing.

    Raises:
        LaunchError: The run was never started.
        Stopped: The run was stopped on request; it can be resumed.
        Killed: A signal, a vanished supervisor or the time limit ended it.
        JobFailed: The worker failed; its own error class where it named one, with its log's end.
    """
    if run.status == "new":
        nodes = int(((run.record or {}).get("plan") or {}).get("num_nodes") or 1)
        fix = "Start it with nb.launch(...)."
        if nodes > 1:
            fix = f"Run the lines of its {nodes} nodes, or submit its script (sbatch)."
        raise LaunchError(f"{run.path} was never started.", fix=fix)
    view = choose_view(stream, is_headless=is_headless())
    watch = _Watch(run, view, quiet_s)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        while not watch.look():
            if deadline is not None and time.monotonic() > deadline:
                _time_over(run, timeout_s or 0.0, stop=stop_on_timeout)
            time.sleep(refresh_s)
    except KeyboardInterrupt:
        if note := _how_to_go_on(run) if interrupt_note is None else interrupt_note:
            view.note(note)
        return None
    finally:
        view.close()
    return outcome(run)


def outcome(run: Run) -> RunResult:
    """The result of a run that ended, or the error that says how it ended.

    Raises:
        JobFailed: as for `follow`.
    """
    status = run.status
    if status == "finished":
        return run.result()
    if status == "stopped":
        raise _stopped(run)
    if status == "failed":
        raise _failure(run)
    if status == "dead":
        raise Killed(
            f"{run.id} ended without a word: its supervisor was killed or the machine restarted.",
            fix=_RESUME,
            details=_log_end(run, 0),
        )
    fix = f"Follow it: {run.shell('follow')}"
    raise JobFailed(f"{run.id} has not ended (status: {status}).", fix=fix)


def _expected_s(record: dict[str, Any]) -> float | None:
    """Return the seconds that the whole run was predicted to take, where that was saved."""
    budget = TimeBudget.from_record(record)
    return None if budget is None else budget.expected_s


class _Watch:
    """Reads what is new in a run folder and shows it."""

    def __init__(self, run: Run, view: View, quiet_s: float) -> None:
        self.run, self.view, self.quiet_s = run, view, quiet_s
        record = run.record or {}
        self.progress = Progress(job=str(record.get("job") or ""), expected_s=_expected_s(record))
        self.offsets: dict[Path, int] = {}
        self.warned: set[str] = set()
        self.last_news = time.monotonic()
        self.is_quiet = False

    def look(self) -> bool:
        """Show what is new; True when the run has ended and everything was shown."""
        process = self.run.process
        has_ended = self.run.exit_event(process) is not None
        has_ended = has_ended or not is_supervised(self.run, process)
        for event in self._new_events():
            self._take(event)
        self.view.show(self.progress, is_last=has_ended)
        if not has_ended:
            self._mind_silence()
        return has_ended

    def _new_events(self) -> list[Event]:
        events: list[Event] = []
        for path in self.run.rank_files():
            start = self.offsets.get(path, self.run.offset(path))
            new, self.offsets[path] = tail(path, start)
            events += new
        return sorted(events, key=lambda event: event["t"])

    def _take(self, event: Event) -> None:
        if event["type"] != "gpu":  # a thread of its own sends these, also when the worker hangs
            self.last_news, self.is_quiet = time.monotonic(), False
        before = self.progress.phase
        self.progress.update(event)
        if self.progress.phase != before:
            self.view.show(self.progress)
        text = str(event.get("message", ""))
        if event["type"] == "warning" and text not in self.warned:
            self.warned.add(text)
            self.view.note(f"Warning: {text}")

    def _mind_silence(self) -> None:
        if self.is_quiet or time.monotonic() - self.last_news < self.quiet_s:
            return
        self.is_quiet = True
        self.view.note(
            f"Warning: no news from the worker for {self.quiet_s:.0f} s, in the phase "
            f"'{self.progress.phase}'. It may hang; its log is {self.run.log_path(0)}. "
            f"run.stop(), or in a shell {self.run.shell('stop')}, ends it."
        )


def _how_to_go_on(run: Run) -> str:
    path = str(run.path)
    return (
        f"Stopped following; {run.id} goes on.\n"
        f"Re-attach: nb.follow(nb.open_run({path!r}))   or: {run.shell('follow')}\n"
        f"Stop it:   nb.open_run({path!r}).stop()   or: {run.shell('stop')}"
    )


def _time_over(run: Run, timeout_s: float, *, stop: bool) -> NoReturn:
    state = f"it was stopped (status: {run.stop()})" if stop else "it goes on"
    way = f"Follow it again, or stop it: run.stop(), {run.shell('stop')}"
    fix = _RESUME if stop else way
    raise Killed(f"The time limit of {timeout_s:g} s is over for {run.id}; {state}.", fix=fix)


def _stopped(run: Run) -> Stopped:
    ended, marks = run.exit_event() or {}, run.final_events("stopped")
    where = ""
    if marks:
        place = marks[-1].get("checkpoint")
        where = f" at step {marks[-1].get('step')}" + (f" ({place})" if place else "")
    elif ended.get("escalated"):
        where = " by force, as it did not end in time: steps since the last checkpoint are lost"
    causes = {"owner ended": "because the program that owned it ended"}
    causes |= {"launcher signalled": "because its supervisor was asked to end"}
    why = causes.get(ended.get("reason", ""), "on request")
    return Stopped(f"{run.id} was stopped {why}{where}.", fix=_RESUME)


def _failure(run: Run) -> NbhelpersError:
    """The error that came first: a named one, else a killed rank, else any, else the exit code."""
    ended, errors = run.exit_event() or {}, run.final_events("error")
    named = [event for event in errors if type(named_error(event)) is not JobFailed]
    number = None if ended.get("escalated") else ended.get("signal")
    if named:
        return named_error(named[0], run)
    if number:
        return _killed(run, ended, number)
    if errors:
        return named_error(errors[0], run)
    code, rank = ended.get("returncode"), ended.get("rank") or 0
    return JobFailed(
        f"The worker of {run.id} ended with exit code {code} and wrote neither result nor error.",
        fix="Read the end of its log below; it may have failed before it could start.",
        details=_log_end(run, rank),
    )


def error_fields(error: NbhelpersError) -> dict[str, str]:
    """Return an error as JSON keeps it; `named_error` reads it."""
    kind = type(error).__name__
    return {"kind": kind, "message": error.message, "fix": error.fix, "details": error.details}


def named_error(event: Event, run: Run | None = None) -> NbhelpersError:
    """Return the error that was written, with the end of the log of its rank where `run` is."""
    parts, rank = [str(event.get("details") or "")], int(event.get("rank", 0))
    if run is not None and event.get("kind") in _SPEAK_FOR_THEMSELVES:
        parts.append(f"Log: {run.log_path(rank)}")
    elif run is not None:
        parts.append(_log_end(run, rank))
    return from_kind(
        str(event.get("kind")),
        str(event.get("message", "")),
        fix=str(event.get("fix") or ""),
        details="\n".join(part for part in parts if part),
    )


def _killed(run: Run, ended: dict[str, Any], number: int) -> Killed:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    rank = ended.get("rank")
    who = "The launcher" if rank is None else f"Rank {rank}"
    why, fix = "", _RESUME
    if number == signal.SIGKILL:
        seen = " (it acted meanwhile)" if ended.get("oom_kills") else ""
        why = f" A likely cause is the kernel's out-of-memory killer{seen}: too little RAM."
        fix = f"Free RAM or use a machine with more, then: {_RESUME[0].lower()}{_RESUME[1:]}"
    elif number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL):
        why = " Native code crashed: a driver or a library, rather than Python."
    message = f"{who} of {run.id} was killed by {name}, which nobody here asked for.{why}"
    return Killed(message, fix=fix, details=_log_end(run, rank or 0))


def _log_end(run: Run, rank: int) -> str:
    text = run.log_tail(rank, LOG_LINES)
    return f"End of the log of rank {rank} ({run.log_path(rank)}):\n{text}" if text else ""
