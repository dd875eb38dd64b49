"""The picker: a job, a preset and a GPU to choose, with the memory, the batch plan and the time.

It starts from the notebook's parameters, and prints the lines that are equal to the choice. While
all cells run, a change in a widget acts only after the last cell: a cell below the picker reads
`picker.preset` and `picker.overrides`, shows the settings in force, and takes the new ones when it
is run again. Without widgets the same answer is text and a figure.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import Any

from nbhelpers.budget.memory import DOES_NOT_FIT, FITS, NO_GPU, TIGHT, UNSURE, MemoryBudget
from nbhelpers.budget.predict import is_exact, source_words
from nbhelpers.budget.simulator import missing_libraries
from nbhelpers.errors import JobFailed, NbhelpersError
from nbhelpers.hardware.detection import Hardware, detect_hardware
from nbhelpers.hardware.machine import is_headless, is_notebook
from nbhelpers.notebook.choice import (
    HERE,
    OF_CHOICE,
    OFFERED,
    Answer,
    Choice,
    offered,
    own_value,
    resolve,
)
from nbhelpers.notebook.equal_lines import all_lines, parameter_lines
from nbhelpers.plan import BatchPlan
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.loading import load_preset
from nbhelpers.presets.preset import Preset

WIDGET = "application/vnd.jupyter.widget-view+json"
# What was chosen in a widget of this kernel, by what the picker started from: running all cells
# again makes the picker anew, and must not lose the choice.
_CHOSEN: dict[str, Choice] = {}


class PresetPicker:
    """A job's presets to choose from, with what each needs on a GPU.

    Args:
        job: Such as `clones`.
        hardware: Found or planned; None: what is found here.
        preset: A name, a .yaml file, or `auto`.
        adapters: Of a fine-tuning: names with commas; "": the preset's own.
        overrides: Settings that the parameters change.
        any_job: Offer the other jobs too.
        price_per_hour: Of the machine; a cost is then shown.
        max_hours: What a run may take; more is said, with what would be shorter.
        quick: `on`, `off` or `auto`: a small experiment, as `load_preset` makes it.

    Raises:
        NbhelpersError: The parameters do not make a preset; with the fix.
    """

    def __init__(
        self,
        job: str,
        hardware: Hardware | None = None,
        *,
        preset: str = "auto",
        adapters: str = "",
        overrides: Mapping[str, Any] | None = None,
        any_job: bool = False,
        price_per_hour: float | None = None,
        max_hours: float | None = None,
        quick: str = "off",
    ) -> None:
        self.here = hardware if hardware is not None else detect_hardware()
        wishes = {"price_per_hour": price_per_hour, "max_hours": max_hours}
        self._start = Choice(
            job=job,
            preset=preset,
            adapters=adapters,
            overrides=dict(overrides or {}),
            fixed=frozenset(overrides or {}),
            any_job=any_job,
            quick=quick,
            wishes={name: value for name, value in wishes.items() if value is not None},
        )
        self.answer: Answer = resolve(self._start, self.here)
        if (previous := _CHOSEN.get(self._key)) is not None:
            self.answer = resolve(previous, self.here)

    @property
    def choice(self) -> Choice:
        """The plain values of the choice."""
        return self.answer.choice

    @property
    def name(self) -> str:
        """The name of the preset; what `auto` means on the chosen GPU."""
        return self.answer.preset.name

    @property
    def preset(self) -> str:
        """What `load_preset` takes: `auto` as long as nothing else is chosen."""
        return self.choice.preset if self.choice.gpu == HERE else self.name

    @property
    def adapters(self) -> str | None:
        """The adapters by their names; None for a job that varies nothing."""
        if not JOBS[self.choice.job].has_adapters:
            return None
        return self.choice.adapters or self.answer.preset.settings.adapter

    @property
    def overrides(self) -> dict[str, Any]:
        """The settings that differ from the preset because somebody chose them."""
        return dict(self.choice.overrides)

    @property
    def hardware(self) -> Hardware:
        """The hardware of the choice: this machine's, or the planned one."""
        return self.answer.hardware

    @property
    def plan(self) -> BatchPlan:
        """How the batch is split."""
        return self.answer.plan

    @property
    def budget(self) -> MemoryBudget:
        """The budget of the choice; of several adapters the largest."""
        return max(self.answer.budgets.values(), key=lambda budget: budget.total_bytes)

    def load(self) -> Preset:
        """Return the chosen preset with its adapter; of several adapters the preset they share."""
        return self.answer.run_preset

    @property
    def line(self) -> str:
        """The lines for the parameters cell."""
        return parameter_lines(self.answer)

    @property
    def lines(self) -> dict[str, str]:
        """The equal lines: for the parameters cell, Python, papermill and the shell."""
        return all_lines(self.answer)

    def __repr__(self) -> str:
        return plain_text(self.answer)

    def change(self, **values: Any) -> str:
        """Choose something else and return the lines for the parameters cell.

        Args:
            values: Any of job, preset, gpu ("" is this machine's), count and adapters, and
                settings; the preset's own value of a setting, or None, is no override.

        Raises:
            NbhelpersError: What is not possible, with the fix; the choice stays as it was.
        """
        choice = self.choice
        for name, value in values.items():
            if name not in OF_CHOICE and value == own_value(choice, self.here, name):
                value = None
            choice = choice.with_value(name, value)
            if name == "preset":
                choice = self._fitted(choice)
        self.answer = resolve(choice, self.here)
        return self.line

    def _fitted(self, choice: Choice) -> Choice:
        """As many planned GPUs as a preset is typed for: its own number, no other experiment."""
        gpu = choice.gpu
        if gpu == HERE and self.here.is_planned and self.here.gpu is not None:
            gpu = self.here.gpu.key or HERE
        if gpu == HERE or choice.preset == "auto":
            return choice
        typed = load_preset(choice.job, choice.preset).settings.num_gpus
        if typed in ("auto", len(self.hardware.gpus)):
            return choice
        return choice.with_value("gpu", gpu).with_value("count", typed)

    def reset(self) -> str:
        """Go back to the notebook's parameters and return their lines."""
        _CHOSEN.pop(self._key, None)
        self.answer = resolve(self._start, self.here)
        return self.line

    def remember(self) -> None:
        """Keep the choice for when the cell of the picker is run again in this kernel."""
        if is_notebook():
            _CHOSEN[self._key] = self.choice

    @property
    def _key(self) -> str:
        return repr((self._start, [gpu.key or gpu.name for gpu in self.here.gpus]))

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if (box := None if is_headless() else _box(self)) is not None:
            # The text is what GitHub shows of a saved notebook; ipywidgets 7 and 8 draw the view.
            view = {"version_major": 2, "version_minor": 0, "model_id": box.root.model_id}
            display({WIDGET: view, "text/plain": repr(self)}, raw=True)
            return
        from nbhelpers.reports.figures import png
        from nbhelpers.reports.figures_budget import budget_bars

        answer = self.answer
        page = answer_html(answer) + details_html(answer) + lines_html(answer)
        display({"text/plain": plain_text(answer), "text/html": page}, raw=True)
        figure = budget_bars(answer.budgets)
        if figure is not None:
            display({"image/png": png(figure), "text/plain": "bars by cause"}, raw=True)


pick_preset = PresetPicker  # as notebooks call it


def _box(picker: PresetPicker) -> PickerBox | None:
    """The widget, or None where ipywidgets is missing."""
    try:
        import ipywidgets  # noqa: F401 - is it here?
    except ImportError:
        return None
    return PickerBox(picker)


# ------------------------------------------------------------------------------------------------
# The picker as a widget, from the parts that ipywidgets 7.7 and 8 share.
#
# Every control shows the value that is in force. A change goes to the picker; what is not possible
# is told, and the control goes back. An exact simulation that ends later redraws the answer.


LABELS = {name: name for name in ("job", "gpu", "count", "preset", "adapters", *OFFERED)}
LABELS |= {"gpu": "GPU", "count": "GPUs", "seq_len": "length"}
LABELS |= {"per_device_train_batch_size": "micro-batch", "gradient_checkpointing": "checkpointing"}
REFUSED = "Not possible, so nothing was changed:"
NOT_EXACT = "The exact simulation did not come about, so the figures above stay:"


class PickerBox:
    """The controls of a picker, its answer, its bars and its lines; `root` is what is shown."""

    def __init__(self, picker: PresetPicker) -> None:
        import ipywidgets

        self.picker, self._is_setting, self._simulation = picker, False, Latest()
        self._first: Mapping[str, MemoryBudget] = {}  # of a choice, before anything is simulated
        layout, style = ipywidgets.Layout, {"description_width": "95px"}
        self.controls = {
            name: ipywidgets.Dropdown(description=label, layout=layout(width="330px"), style=style)
            for name, label in LABELS.items()
        }
        self.reset = ipywidgets.Button(
            description="back to the parameters", layout=layout(width="200px")
        )
        self.answer, self.details, self.lines = (ipywidgets.HTML() for _ in range(3))
        natural = layout(max_width="100%", align_self="flex-start")
        self.bars = ipywidgets.Image(format="png", layout=natural)
        grid = ipywidgets.HBox(
            [*self.controls.values(), self.reset], layout=layout(flex_flow="row wrap")
        )
        self.root = ipywidgets.VBox([grid, self.answer, self.bars, self.details, self.lines])
        for name, control in self.controls.items():
            control.observe(self._changer(name), names="value")
        self.reset.on_click(lambda _: self._try(self.picker.reset))
        self.refresh()

    def _changer(self, name: str) -> Callable[[dict[str, Any]], None]:
        def change(event: dict[str, Any]) -> None:
            if not self._is_setting:
                self._try(lambda: self.picker.change(**{name: event["new"]}))

        return change

    def _try(self, act: Callable[[], Any]) -> None:
        """Do what was chosen, or tell why it cannot be; the controls then show what is in force."""
        try:
            act()
        except NbhelpersError as error:
            self._set_controls()
            self.answer.value = problem_html(error, REFUSED) + answer_html(self.picker.answer)
            return
        self.picker.remember()
        self.refresh()

    def refresh(self) -> None:
        """Show what is known of the choice now, and ask for the exact budget."""
        self._set_controls()
        answer = self.picker.answer
        self._first = answer.budgets
        is_checking = not answer.is_exact and not missing_libraries()
        self.show(answer, is_checking=is_checking)
        if is_checking:
            self._simulate(answer, with_advice=False)
        else:
            self._simulation.forget()

    def _simulate(self, answer: Answer, *, with_advice: bool) -> None:
        def work(check: Callable[[str], None]) -> Answer:
            return answer.simulated(with_advice=with_advice, report=check)

        def done(result: Answer | NbhelpersError) -> None:
            """Redraw, in the thread that simulated; then ask for what would help."""
            if isinstance(result, NbhelpersError):
                self.answer.value = answer_html(answer) + problem_html(result, NOT_EXACT)
            elif answer.choice == self.picker.choice:
                tight = [b for b in result.budgets.values() if b.verdict in (TIGHT, DOES_NOT_FIT)]
                is_checking = not with_advice and not all(budget.advice for budget in tight)
                self.picker.answer = result.advised_like(answer) if is_checking else result
                self.show(self.picker.answer, is_checking=is_checking)
                if is_checking:
                    self._simulate(self.picker.answer, with_advice=True)

        self._simulation.ask(work, done)

    def show(self, answer: Answer, *, is_checking: bool = False) -> None:
        """Draw an answer."""
        from nbhelpers.reports.figures import png
        from nbhelpers.reports.figures_budget import budget_bars

        self.answer.value = answer_html(answer, is_checking=is_checking, first=self._first)
        self.details.value = details_html(answer)
        self.lines.value = lines_html(answer)
        figure = budget_bars(answer.budgets)
        self.bars.layout.display = "none" if figure is None else ""
        if figure is not None:
            self.bars.value = png(figure)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the exact budget; whether it came in time."""
        return self._simulation.wait(timeout_s)

    def _set_controls(self) -> None:
        """Put into every control what may be chosen, and what is; hide those without a choice."""
        self._is_setting = True
        try:
            for name, (options, value) in offered(self.picker.answer, self.picker.here).items():
                control, options = self.controls[name], options or [("-", value)]
                control.layout.display = "none" if len(options) < 2 else ""
                if tuple(control.options) != tuple(options):
                    control.options = options
                if control.value != value:
                    control.value = value
        finally:
            self._is_setting = False


Work = Callable[[Callable[[str], None]], Any]


class ReplacedError(Exception):
    """A newer request has come: the work ends at its next step."""


class Latest:
    """Work that may take seconds, beside a widget: one piece at a time, and only the newest counts.

    Work gets a function to call between its steps, which raises `ReplacedError` once there is a
    newer request. `done` gets the result, or the `NbhelpersError` that ended the work; it is called
    in the thread of the work, and not for work that was replaced.
    """

    def __init__(self) -> None:
        self._number, self._turn, self._drawing = 0, threading.Lock(), threading.Lock()
        self._thread: threading.Thread | None = None
        atexit.register(self.close)

    def ask(
        self, work: Callable[[Callable[[str], None]], Any], done: Callable[[Any], None]
    ) -> None:
        """Do this next, instead of whatever waits."""
        self._number += 1
        options = {"args": (self._number, work, done), "daemon": True}
        self._thread = threading.Thread(target=self._run, **options)
        self._thread.start()

    def forget(self) -> None:
        """Drop what waits, and the result of what is being done."""
        self._number += 1

    def close(self) -> None:
        """Begin nothing more, and let a `done` end: a thread that dies while it draws aborts."""
        self.forget()
        if self._drawing.acquire(timeout=5):
            self._drawing.release()

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing is left to do; whether that came in time."""
        while (thread := self._thread) is not None:
            thread.join(timeout_s)
            if thread.is_alive():
                return False
            if thread is self._thread:
                return True
        return True

    def _run(self, number: int, work: Work, done: Callable[[Any], None]) -> None:
        def check(_: str = "") -> None:
            if number != self._number:
                raise ReplacedError

        with self._turn:
            try:
                check()
                result = work(check)
            except ReplacedError:
                return
            except NbhelpersError as error:
                result = error
            except Exception as error:  # a thread has nobody to raise to; it is told like the rest
                result = JobFailed(f"{type(error).__name__}: {error}")
        with self._drawing:
            if number == self._number:
                done(result)


# ------------------------------------------------------------------------------------------------
# An answer in words and as HTML: the verdict, what would help, the plan, the minutes, the lines.


MOST_NAMED = 6  # parts that are not predicted
# Verdict: colour behind it (Okabe and Ito), and a mark that needs no colour.
STYLES = {FITS: ("#009E73", "+"), TIGHT: ("#E69F00", "!"), DOES_NOT_FIT: ("#D55E00", "x")}
STYLES |= {UNSURE: ("#CCCCCC", "?"), NO_GPU: ("#CCCCCC", "-")}


def plain_text(answer: Answer) -> str:
    """Return the whole answer as text, for a terminal and for a run without widgets."""
    job, parts = answer.choice.job, []
    for name, budget in answer.budgets.items():
        parts.append(f"{job}/{answer.preset.name}, {name}: {budget.title()}")
        texts = (source_words(budget, job), *_points(budget), *budget.notes)
        parts += [f"  {text}" for text in texts]
    parts += [f"Batch: {answer.plan.words()}", *answer.time_lines]
    for name, lines in all_lines(answer).items():
        parts += [f"{name}:", *(f"  {line}" for line in lines.splitlines())]
    return "\n".join(parts)


def _points(budget: MemoryBudget) -> list[str]:
    """What would help, and what is not predicted."""
    unknown = [f"not predicted: {name}" for name in budget.opaque[:MOST_NAMED]]
    if (rest := len(budget.opaque) - MOST_NAMED) > 0:
        unknown.append(f"and {rest} more that are not predicted")
    return [*budget.advice, *unknown]


def answer_html(
    answer: Answer,
    *,
    is_checking: bool = False,
    first: Mapping[str, MemoryBudget] | None = None,
) -> str:
    """Return the verdicts and what would help as HTML.

    Args:
        answer: The answer.
        is_checking: A simulation runs, and will replace what is not exact, or the advice.
        first: What stood there before anything was simulated: another verdict is told.
    """
    job, parts = answer.choice.job, []
    for name, budget in answer.budgets.items():
        (colour, mark), verdict = STYLES.get(budget.verdict, STYLES[UNSURE]), budget.verdict
        news, before = "", (first or {}).get(name, budget)
        if is_checking and not is_exact(budget, job):
            (colour, mark), verdict = STYLES[UNSURE], "checking"
            news = "The exact simulation runs now and replaces this."
        elif before.verdict != budget.verdict:
            news = f"Before it was simulated exactly, this read {before.need()}: {before.verdict}."
        if is_checking and budget.advice and is_exact(budget, job):
            news += " What would help is being simulated too."
        style = f"background:{colour};color:#000;padding:2px 8px;border-radius:4px;font-weight:bold"
        items = "".join(f"<li>{escape(text)}</li>" for text in _points(budget))
        parts.append(
            f"<p style='margin:6px 0'><span style='{style}'>{mark} {escape(verdict)}</span> "
            f"<b>{escape(name)}</b>: {escape(budget.title())}<br><small>{escape(news)}</small>"
            f"</p><ul style='margin:0'>{items}</ul>"
            + _fold("how this was found", [source_words(budget, job), *budget.notes])
        )
    return "".join(parts)


def _fold(title: str, lines: Iterable[str]) -> str:
    text = "<br>".join(map(escape, lines))
    return f"<details><summary>{title}</summary><small>{text}</small></details>" if text else ""


def details_html(answer: Answer) -> str:
    """Return the batch plan, minutes and cost, and what the preset is for, as HTML."""
    about = " ".join([*answer.preset.about.split(), *answer.preset.notes])
    # Indented lines say where a time comes from.
    notes = [line.strip() for line in answer.time_lines if line.startswith("  ")]
    times = [escape(line) for line in answer.time_lines if not line.startswith("  ")]
    shown = "<br>".join([f"<b>Batch</b>: {escape(answer.plan.words())}", *times])
    more = _fold("how the time was found", notes)
    return f"<p style='margin:6px 0'>{shown}</p>{more}<p>{escape(about)}</p>"


def lines_html(answer: Answer) -> str:
    """Return the equal lines as HTML, one block for each form."""
    return "".join(
        f"<p style='margin:0'><b>{escape(name)}</b></p>"
        f"<pre style='white-space:pre-wrap;margin:0 0 6px 0'>{escape(lines)}</pre>"
        for name, lines in all_lines(answer).items()
    )


def problem_html(error: NbhelpersError, heading: str) -> str:
    """Return an error as HTML: what it means for the choice, what is wrong, and what to do."""
    fix = f"<br>Fix: {escape(error.fix)}" if error.fix else ""
    log = f"<details><summary>details</summary><pre>{escape(error.details)}</pre></details>"
    text = f"<b>{escape(heading)}</b> {escape(error.message)}{fix}"
    return f"<p role='alert'>{text}</p>{log if error.details else ''}"
