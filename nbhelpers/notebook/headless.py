"""Run a notebook without a person: strict parameters, one time limit, errors with exit codes."""

from __future__ import annotations

import ast
import contextlib
import html
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from nbhelpers.common.files import absence, expanded, is_file, kind_of
from nbhelpers.errors import ConfigError, JobFailed, Killed, NbhelpersError, Stopped, from_kind
from nbhelpers.presets.parameters import as_declared, check_values, require_known, with_more
from nbhelpers.runs.thresholds import parse_requirements, require_scores

if TYPE_CHECKING:
    from nbhelpers.runs.run import Run, RunResult
    from nbhelpers.runs.study_results import StudyResult


# ------------------------------------------------------------------------------------------------
# Signals as a fact to look at, instead of an exception in the middle of anything.


class SignalWatch:
    """While entered, stop signals are only noted in `received`; a signal ignored before stays so.

    Outside the main thread nothing can be watched, and `received` stays None.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> SignalWatch:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name


# ------------------------------------------------------------------------------------------------
# What is checked of a notebook, its parameters and its output before a headless run starts.


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedNotebook:
    """A notebook that can be run, the project's folder, and parameters under its own names.

    `kernel` is the installed one that was asked for, or "": this very Python. `kernel_note` says
    that the notebook names another one, which is not here.
    """

    path: Path
    root: Path
    job: str | None
    parameters: dict[str, Any]
    kernel: str = ""
    kernel_note: str = ""


def check_notebook(
    notebook: str | Path, parameters: Mapping[str, Any], *, kernel: str = ""
) -> CheckedNotebook:
    """Check a notebook and its parameters.

    Raises:
        ConfigError: No such notebook or kernel, not of Python, no `parameters` cell, unknown names,
            or values out of range.
    """
    import papermill

    path = expanded(notebook, "the notebook")
    if not is_file(path):
        raise ConfigError(f"{notebook} {absence(path)}.", fix="name an .ipynb file")
    path = path.resolve()
    content = read_notebook(path, notebook)
    cell = _parameters_cell(content, notebook)
    spec = content.metadata.get("kernelspec")
    language = spec.get("language", "python") if isinstance(spec, dict) else ""
    if str(language).lower() != "python" or not spec.get("name"):
        raise ConfigError(
            f"{notebook} names no Python kernel in its metadata (kernelspec: {spec}).",
            fix="open it in Jupyter, choose a Python 3 kernel and save it",
        )
    declared = papermill.inspect_notebook(escaped(path))
    values = as_declared(parameters, declared)
    about = content.metadata.get("nbhelpers")
    job = about.get("job") if isinstance(about, dict) else None
    if job:
        values = with_more(job, values, declared)
    require_known(values, declared, path.name, job=job or None, values=values)
    if job:
        check_values(job, _defaults(cell, declared, notebook) | values)
    return CheckedNotebook(
        path=path,
        root=project_root(path),
        job=job or None,
        parameters=values,
        kernel=kernel,
        kernel_note=_kernel_note(kernel, spec["name"]),
    )


def _kernel_note(asked: str, named: str) -> str:
    """Say which kernel a notebook gets where the one that it names is not here.

    Raises:
        ConfigError: The one that was asked for is not here.
    """
    from jupyter_client.kernelspec import KernelSpecManager

    installed = KernelSpecManager().find_kernel_specs()
    if asked and asked not in installed:
        fix = f"leave --kernel out for this Python; installed: {', '.join(sorted(installed))}"
        raise ConfigError(f"There is no kernel `{asked}` here.", fix=fix)
    if asked or named in installed:
        return ""
    return f"The notebook's kernel `{named}` is not here: it runs in {sys.executable}.\n"


def escaped(path: Path) -> str:
    """A path for papermill, which formats braces in paths with the parameters.

    >>> escaped(Path("a {b}.ipynb"))
    'a {{b}}.ipynb'
    """
    return str(path).replace("{", "{{").replace("}", "}}")


def read_notebook(path: Path, notebook: str | Path) -> Any:
    """Return a notebook; one that cannot be read is a `ConfigError`."""
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:  # nbformat raises several kinds for a broken file
        text = f"{notebook} is not a notebook: {error}"
        raise ConfigError(text, fix="name an .ipynb file") from error


def _parameters_cell(content: Any, notebook: str | Path) -> Any:
    code = [cell for cell in content.cells if cell.cell_type == "code"]
    tagged = [cell for cell in code if "parameters" in (cell.metadata.get("tags") or [])]
    if len(tagged) != 1:
        raise ConfigError(
            f"{notebook} has {len(tagged)} code cells tagged `parameters`; exactly one is needed.",
            fix="tag the cell with the defaults, and no other",
        )
    return tagged[0]


def _defaults(cell: Any, declared: Mapping[str, Any], notebook: str | Path) -> dict[str, Any]:
    """The values that the parameters cell writes.

    Raises:
        ConfigError: The cell is no Python, or a default is not a plain value.
    """
    try:
        ast.parse(cell.source)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"The cell tagged `parameters` of {notebook} is not plain Python: {error}.",
            fix="write lines such as epochs = 3",
        ) from error
    defaults = {}
    for name, about in declared.items():
        try:
            defaults[name] = ast.literal_eval(about["default"])
        except (SyntaxError, TypeError, ValueError) as error:
            raise ConfigError(
                f"The default of `{name}` in {notebook} is computed: {about['default']}.",
                fix=f"write a plain value, such as {name} = None",
            ) from error
    return defaults


def project_root(notebook: Path) -> Path:
    """The folder that the kernel works in: the enclosing project's, else the notebook's own."""
    for folder in notebook.parents:
        if is_file(folder / "nbhelpers" / "__init__.py"):
            return folder
    return notebook.parent


def default_output(notebook: Path, root: Path) -> Path:
    """A new path below runs/notebooks, named by the notebook and the time."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return root / "runs" / "notebooks" / f"{notebook.stem}-{stamp}-{os.getpid()}.ipynb"


def prepare_output(output: str | Path | None, path: Path, root: Path) -> tuple[Path, Path]:
    """Return where the notebook is saved and where its runs are noted, both writable.

    Raises:
        ConfigError: It is no .ipynb file, the notebook itself, or cannot be written.
    """
    saved = expanded(output, "the output").absolute() if output else default_output(path, root)
    if saved.suffix != ".ipynb":
        fix = f"write --output {Path(str(output)).with_suffix('.ipynb')}"
        raise ConfigError(f"The output {output} does not end in .ipynb.", fix=fix)
    launched = saved.with_name(f".{saved.name}.runs")
    try:
        if kind_of(saved) and saved.samefile(path):
            fix = "write another --output: the notebook would be overwritten by its own result"
            raise ConfigError(f"The output {saved} is the notebook itself.", fix=fix)
        saved.parent.mkdir(parents=True, exist_ok=True)
        if kind_of(saved):
            with saved.open("r+b"):  # an earlier output, to be replaced at the end
                pass
        launched.write_text("")
    except OSError as error:
        raise ConfigError(
            f"The output {saved} cannot be written: {error.strerror or error}.",
            fix="write --output with a file in a folder that you may write to",
        ) from error
    return saved, launched


# ------------------------------------------------------------------------------------------------
# Run a notebook without a person: strict parameters, one time limit, errors with exit codes.
#
# papermill executes the cells in a thread; this thread watches the clock and the signals, and stops
# the run (resumably) before it stops the kernel. The notebook is saved whatever happens.


STOP_PATIENCE_S = 120.0  # for the worker to write its checkpoint and end
CELL_PATIENCE_S = 20.0  # for a cell to end after its run ended, or after an interrupt


def run_notebook(
    notebook: str | Path,
    parameters: Mapping[str, Any] | None = None,
    *,
    output: str | Path | None = None,
    fresh: bool = True,
    timeout_s: float | None = None,
    require: Sequence[str] = (),
    stream: TextIO | None = None,
    kernel: str = "",
) -> RunResult | StudyResult | None:
    """Run a notebook from top to bottom and return the result of the run that it started.

    Args:
        notebook: An .ipynb file; its metadata `nbhelpers: {job: ...}` names the job.
        parameters: Values for the cell tagged `parameters`.
        output: Where the executed notebook is saved; None: in runs/notebooks of the project.
        fresh: Start the run anew; False re-attaches to, or resumes, the same configuration.
        timeout_s: Limit for the whole run; None: no limit.
        require: Conditions on the scores, such as `f1>=0.9`.
        stream: Receives what the cells print, as they print it.
        kernel: An installed Jupyter kernel; "": this very Python, whatever the notebook names.

    Returns:
        The result, that of the study where the notebook runs one, or None when it starts no run.

    Raises:
        ConfigError: A problem with the notebook, a parameter or a condition: nothing was run.
        RequirementMissed: The run finished below a required score.
        NbhelpersError: What a cell raised, as its own class; `Killed` for a time limit.
    """
    checked = check_notebook(notebook, parameters or {}, kernel=kernel)
    conditions = parse_requirements(require, checked.job)
    if timeout_s is not None and not timeout_s > 0:
        raise ConfigError(
            f"--timeout {timeout_s} leaves no time to run.",
            fix="give seconds above 0, or leave --timeout out for no limit",
        )
    saved, launched = prepare_output(output, checked.path, checked.root)
    (stream or sys.stdout).write(checked.kernel_note)
    play = _Play(notebook=checked, saved=saved, launched=launched, stream=stream)
    try:
        with (
            _environment(root=checked.root, fresh=fresh, launched=launched),
            SignalWatch() as watch,
        ):
            _execute(play, watch=watch, timeout_s=timeout_s)
        result = play.result()
    finally:
        launched.unlink(missing_ok=True)
    require_scores(result, conditions)
    return result


@dataclass(kw_only=True)
class _Play:
    """One execution: its files, its kernel and how it ended."""

    notebook: CheckedNotebook
    saved: Path
    launched: Path
    stream: TextIO | None
    kernels: list[Any] = field(default_factory=list)
    error: BaseException | None = None

    def runs(self) -> list[Run]:
        """Runs that the notebook launched or attached to, in order."""
        from nbhelpers.runs.run import Run

        return [Run(path) for path in self._folders("run.json")]

    def result(self) -> RunResult | StudyResult | None:
        """What the notebook's last study found, else its last run."""
        from nbhelpers.runs.studies import open_study

        if studies := self._folders("study.json"):
            return open_study(studies[-1])
        runs = self.runs()
        return runs[-1].result() if runs else None

    def _folders(self, file: str) -> list[Path]:
        """Folders that hold such a file, among those that the notebook told of."""
        if not self.launched.is_file():
            return []
        lines = self.launched.read_text(encoding="utf-8", errors="replace").splitlines()
        return [Path(line) for line in lines if line and is_file(Path(line) / file)]

    def signal_kernel(self, number: int) -> None:
        """Send a signal to the kernel's process, if it still runs."""
        for kernel in self.kernels:
            pid = getattr(getattr(kernel, "provisioner", None), "pid", None)
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def work(self) -> None:
        """Execute the cells; the body of the thread."""
        import papermill

        try:
            papermill.execute_notebook(
                escaped(self.notebook.path),
                escaped(self.saved),
                self.notebook.parameters,
                cwd=str(self.notebook.root),
                progress_bar=False,
                stdout_file=self.stream,
                stderr_file=self.stream,
                kernel_name=self.notebook.kernel or "python3",
                kernel_manager_class=_kernel_manager(
                    self.kernels, is_this_python=not self.notebook.kernel
                ),
            )
        except BaseException as error:
            self.error = error


def _execute(play: _Play, *, watch: SignalWatch, timeout_s: float | None) -> None:
    """Run the thread to its end, or end it for a signal or the clock; raise the typed error."""
    started = time.monotonic()
    thread = threading.Thread(target=play.work, daemon=True)
    thread.start()
    ended: NbhelpersError | None = None
    while thread.is_alive():
        thread.join(0.1)
        name = watch.received
        if name or (timeout_s is not None and time.monotonic() - started > timeout_s):
            _end(play, thread, watch)
            ended = _ended(play.runs(), name, timeout_s or 0.0)
            break
    error = ended or typed_error(play.error)
    if error:
        _mark_unfinished(play.saved, error)
        raise error from play.error


def _ended(runs: list[Run], signal_name: str | None, timeout_s: float) -> NbhelpersError:
    """The error of a notebook that a signal or the clock ended; what became of its run."""
    is_finished = bool(runs) and runs[-1].status == "finished"
    what = "its run had finished" if is_finished else "its run was stopped with it"
    go_on = f"its result stands: {runs[-1].shell('report')}" if is_finished else ""
    if signal_name:
        fix = go_on or "the same command with --resume continues it"
        return Stopped(f"{signal_name} stopped the notebook; {what}.", fix=fix)
    fix = go_on or "--resume continues the run"
    text = f"The time limit of {timeout_s:g} s is over; {what}."
    return Killed(text, fix=f"allow more with --timeout; {fix}")


def _end(play: _Play, thread: threading.Thread, watch: SignalWatch) -> None:
    """Stop the runs, then the cell, then the kernel; a second signal skips the waiting."""
    watch.received = None
    for run in play.runs():
        if run.status == "running":
            run.stop(timeout_s=STOP_PATIENCE_S)
    _wait(thread, CELL_PATIENCE_S if play.runs() else 0.0, watch)
    for number, patience_s in ((signal.SIGINT, CELL_PATIENCE_S), (signal.SIGKILL, 60.0)):
        if not thread.is_alive():
            return
        play.signal_kernel(number)
        _wait(thread, patience_s, watch)


def _wait(thread: threading.Thread, patience_s: float, watch: SignalWatch) -> None:
    until = time.monotonic() + patience_s
    while thread.is_alive() and time.monotonic() < until and not watch.received:
        thread.join(0.1)


def typed_error(error: BaseException | None) -> NbhelpersError | None:
    """Return what ended a notebook as one of our errors; None when it finished."""
    if error is None or isinstance(error, NbhelpersError):
        return error
    kind = type(error).__name__
    if kind == "DeadKernelError":
        return Killed(
            "The notebook's kernel died.",
            fix="look for the system's out-of-memory killer (dmesg), then use --resume",
        )
    if kind != "PapermillExecutionError":
        return JobFailed(f"The notebook could not be run: {kind}: {error}")
    name, text = error.ename, str(error.evalue)
    if name == "KeyboardInterrupt":
        return Stopped("The notebook was interrupted.", fix="--resume continues its run")
    typed = from_kind(name, text)
    if type(typed) is JobFailed and name != "JobFailed":
        lines = "\n".join(error.traceback).splitlines()[-15:]
        typed = JobFailed(f"{name}: {text}", details="\n".join(_plain(line) for line in lines))
    return typed


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)


def _mark_unfinished(saved: Path, error: NbhelpersError) -> None:
    """Say in the saved notebook's first cell how it ended: without that it looks complete."""
    import nbformat

    try:
        content = nbformat.read(saved, as_version=4)
    except Exception:  # nothing was saved, or half of it: the error itself is what counts
        return
    reason = html.escape(error.message, quote=False)
    text = f"**This notebook did not finish: {type(error).__name__}.** {reason}"
    cell = nbformat.v4.new_markdown_cell(text)
    cell.metadata["tags"] = ["nbhelpers-unfinished"]
    content.cells.insert(0, cell)
    nbformat.write(content, saved)


def _kernel_manager(started: list[Any], *, is_this_python: bool) -> type:
    """A kernel manager that starts this very Python, whatever kernel specs are installed."""
    from jupyter_client.manager import AsyncKernelManager

    # ipykernel warns of its unencrypted local port at every start, and reports the interrupt with
    # which we end a cell as an error. What a cell raises comes back by papermill, not by this log.
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    command.append("--log-level=50")

    class ThisPython(AsyncKernelManager):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)

        @property
        def kernel_spec(self) -> Any:
            spec = super().kernel_spec
            if spec is not None and is_this_python:
                spec.argv = command
            return spec

    return ThisPython


@contextlib.contextmanager
def _environment(*, root: Path, fresh: bool, launched: Path) -> Iterator[None]:
    """What the kernel inherits: the project, our process as the owner, whether to start anew."""
    wanted = {
        "NBHELPERS_ROOT": str(root),
        "NBHELPERS_OWNER_PID": str(os.getpid()),
        "NBHELPERS_FRESH": "1" if fresh else "0",
        "NBHELPERS_LAUNCHED": str(launched),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
