"""The picker: a job, a preset and a GPU to choose, with the budget, the plan and the time."""

from __future__ import annotations

import atexit
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

from nbhelpers.budget.memory import DOES_NOT_FIT, FITS, NO_GPU, TIGHT, UNSURE, MemoryBudget
from nbhelpers.budget.predict import is_exact, source_words
from nbhelpers.errors import ConfigError, JobFailed, NbhelpersError
from nbhelpers.hardware.detection import Hardware, detect_hardware
from nbhelpers.hardware.machine import is_headless, is_notebook
from nbhelpers.notebook.choice import (
    ADAPTERS,
    COUNTS,
    HERE,
    OFFERED,
    Choice,
    Estimate,
    Resolved,
    check_choice,
    exact_estimate,
    gpus_of,
    offered,
    own_value,
    presets_of,
    quick_estimate,
    resolve,
)
from nbhelpers.notebook.equal_lines import all_lines, loaded, parameter_lines
from nbhelpers.presets.jobs import JOBS

if TYPE_CHECKING:
    from nbhelpers.plan import BatchPlan
    from nbhelpers.presets.preset import Preset


# ------------------------------------------------------------------------------------------------
# Work that may take seconds, beside a widget: only the newest request counts.


LAST_S = 5.0  # for what is being drawn when the process ends
Check = Callable[[str], None]
Work = Callable[[Check], Any]
Done = Callable[[Any], None]


class ReplacedError(Exception):
    """A newer request has come: the work ends at its next step."""


class Latest:
    """One thread that does the newest piece of work and forgets those that waited before it.

    Work gets a function to call between its steps, with a word on what comes next: it raises
    `ReplacedError` once there is a newer request. `done` gets the result, or the `NbhelpersError`
    that ended the work; it is called in the thread, and not for work that was replaced.
    """

    def __init__(self) -> None:
        self._lock, self._doing = threading.Condition(), threading.Lock()
        self._next: tuple[int, Work, Done] | None = None
        self._number = 0
        self._thread: threading.Thread | None = None

    def ask(self, work: Work, done: Done) -> None:
        """Do this next, instead of whatever waits."""
        with self._lock:
            self._number += 1
            self._next = (self._number, work, done)
            if self._thread is None:
                atexit.unregister(self.close)
                atexit.register(self.close)
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()

    def forget(self) -> None:
        """Drop what waits, and the result of what is being done."""
        with self._lock:
            self._number += 1
            self._next = None

    def close(self) -> None:
        """Begin nothing more, and let a `done` end: a thread that dies while it draws aborts."""
        self.forget()
        if self._doing.acquire(timeout=LAST_S):
            self._doing.release()

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing is left to do; whether that came in time."""
        with self._lock:
            return self._lock.wait_for(lambda: self._thread is None, timeout_s)

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._next is None:
                    self._thread = None
                    self._lock.notify_all()
                    return
                number, work, done = self._next
                self._next = None
            result = self._result(number, work)
            with self._doing:
                if number == self._number:
                    done(result)

    def _result(self, number: int, work: Work) -> Any:
        def check(_: str) -> None:
            if number != self._number:
                raise ReplacedError

        try:
            return work(check)
        except NbhelpersError as error:
            return error
        except ReplacedError:
            return None
        except Exception as error:  # a thread has nobody to raise to; it is told like the rest
            return JobFailed(f"{type(error).__name__}: {error}")


# ------------------------------------------------------------------------------------------------
# A choice in words and as HTML: the verdict, what would help, the plan, the minutes, the lines.


MOST_TOLD = 6  # parts that are not predicted, by name
NOTE = "  "  # before a line that says where a time comes from
# Verdict: colour behind it (Okabe and Ito), colour of its text, and a mark that needs no colour.
STYLES = {
    FITS: ("#009E73", "#000000", "+"),
    TIGHT: ("#E69F00", "#000000", "!"),
    DOES_NOT_FIT: ("#D55E00", "#000000", "x"),
    UNSURE: ("#CCCCCC", "#000000", "?"),
    NO_GPU: ("#CCCCCC", "#000000", "-"),
}


def verdict_chip(verdict: str) -> str:
    """Return a verdict as HTML that carries its own colours, for light and dark pages."""
    behind, text, mark = STYLES.get(verdict, STYLES[UNSURE])
    style = f"background:{behind};color:{text};padding:2px 8px;border-radius:4px;font-weight:bold"
    return f'<span style="{style}">{escape(mark)} {escape(verdict)}</span>'


def plain_text(estimate: Estimate) -> str:
    """Return the whole answer as text, for a terminal and for a run without widgets."""
    resolved, parts = estimate.found, []
    for name, budget in estimate.budgets.items():
        parts.append(f"{resolved.choice.job}/{resolved.preset.name}, {name}: {budget.title()}")
        parts.append(f"  {source_words(budget, resolved.choice.job)}")
        parts += [f"  {text}" for text in (*budget.advice, *_unpredicted(budget), *budget.notes)]
    parts.append(f"Batch: {resolved.plan.words()}")
    parts += estimate.time_lines
    for name, lines in all_lines(resolved).items():
        parts += [f"{name}:", *(f"  {line}" for line in lines.splitlines())]
    return "\n".join(parts)


def answer_html(estimate: Estimate, *, waiting: bool = False) -> str:
    """Return the verdicts and what would help as HTML.

    Args:
        estimate: What was found for the choice.
        waiting: An exact simulation runs, and will replace what is not exact.
    """
    job, parts = estimate.found.choice.job, []
    for name, budget in estimate.budgets.items():
        source = source_words(budget, job)
        if waiting and not is_exact(budget, job):
            source += "; the exact simulation runs now and replaces it"
        parts.append(_budget_html(name, budget, source))
    return "".join(parts)


def _budget_html(name: str, budget: MemoryBudget, source: str) -> str:
    points = [*budget.advice, *_unpredicted(budget), *budget.notes]
    items = "".join(f"<li>{escape(text)}</li>" for text in points)
    advice = f"<ul style='margin:0'>{items}</ul>" if items else ""
    return (
        f"<p style='margin:6px 0'>{verdict_chip(budget.verdict)} <b>{escape(name)}</b>: "
        f"{escape(budget.title())}<br><small>{escape(source)}</small></p>{advice}"
    )


def details_html(estimate: Estimate) -> str:
    """Return the batch plan, minutes and cost, and what the preset is for, as HTML."""
    preset, first, rest = estimate.found.preset, *_first(estimate.time_lines)
    about = " ".join([*preset.about.split(), *preset.notes])
    lines = [f"<b>Batch</b>: {escape(estimate.found.plan.words())}", *map(escape, first)]
    folded = "<br>".join(map(escape, rest))
    more = f"<details><summary>how the time was found</summary>{folded}</details>" if rest else ""
    return f"<p style='margin:6px 0'>{'<br>'.join(lines)}</p>{more}<p>{escape(about)}</p>"


def _first(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """The time, the limit and the cost; and the notes, which say where the time comes from."""
    first = [text for text in lines if not text.startswith(NOTE)]
    return first, [text.removeprefix(NOTE) for text in lines if text.startswith(NOTE)]


def _unpredicted(budget: MemoryBudget) -> list[str]:
    texts = [f"not predicted: {name}" for name in budget.opaque[:MOST_TOLD]]
    rest = len(budget.opaque) - MOST_TOLD
    return [*texts, f"and {rest} more that are not predicted"] if rest > 0 else texts


def lines_html(estimate: Estimate) -> str:
    """Return the equal lines as HTML, one block for each form."""
    blocks = (
        f"<p style='margin:0'><b>{escape(name)}</b></p>"
        f"<pre style='white-space:pre-wrap;margin:0 0 6px 0'>{escape(lines)}</pre>"
        for name, lines in all_lines(estimate.found).items()
    )
    return "".join(blocks)


def problem_html(error: NbhelpersError, heading: str) -> str:
    """Return an error as HTML: what it means for the choice, what is wrong, and what to do."""
    fix = f"<br>Fix: {escape(error.fix)}" if error.fix else ""
    log = (
        f"<details><summary>details</summary><pre>{escape(error.details)}</pre></details>"
        if error.details
        else ""
    )
    return f"<p role='alert'><b>{escape(heading)}</b> {escape(error.message)}{fix}</p>{log}"


def bundle(estimate: Estimate) -> dict[str, Any]:
    """Return the answer in the forms that a notebook stores without widgets."""
    return {
        "text/plain": plain_text(estimate),
        "text/html": answer_html(estimate) + details_html(estimate) + lines_html(estimate),
    }


# ------------------------------------------------------------------------------------------------
# The picker as a widget, from the parts that ipywidgets 7.7 and 8 share.
#
# Every control shows the value that is in force. A change goes to the picker; what is not possible
# is told, and the control goes back. An exact simulation that ends later redraws the answer.


NAMES = {
    "any_job": "job",
    "gpu": "GPU",
    "count": "GPUs",
    "preset": "preset",
    "adapters": "method",
    "model": "model",
    "per_device_train_batch_size": "micro-batch",
    "seq_len": "length",
    "gradient_checkpointing": "checkpointing",
    "loss": "loss",
    "precision": "precision",
    "attention": "attention",
}
WORDS = {True: "on", False: "off"}
REFUSED = "Not possible, so nothing was changed:"
NOT_EXACT = "The exact simulation did not come about, so the figures above stay:"


def budgets(estimate: Estimate) -> list[MemoryBudget]:
    """Return the budgets of an estimate."""
    return list(estimate.budgets.values())


class PickerBox:
    """The controls of a picker, its answer, its bars and its lines; `root` is what is shown."""

    def __init__(self, picker: PresetPicker) -> None:
        import ipywidgets

        self.picker, self._is_setting, self._exact = picker, False, Latest()
        style = {"description_width": "95px"}
        self.controls = {
            name: ipywidgets.Dropdown(
                description=label, layout=ipywidgets.Layout(width="330px"), style=style
            )
            for name, label in NAMES.items()
        }
        wide = ipywidgets.Layout(width="200px")
        self.reset = ipywidgets.Button(description="back to the parameters", layout=wide)
        self.answer, self.details = ipywidgets.HTML(), ipywidgets.HTML()
        self.lines = ipywidgets.HTML()
        self.bars = ipywidgets.Image(format="png", layout=ipywidgets.Layout(max_width="100%"))
        grid = ipywidgets.HBox(
            [*self.controls.values(), self.reset], layout=ipywidgets.Layout(flex_flow="row wrap")
        )
        self.root = ipywidgets.VBox([grid, self.answer, self.bars, self.details, self.lines])
        for name, control in self.controls.items():
            control.observe(self._changer(name), names="value")
        self.reset.on_click(lambda _: self._try(self.picker.reset))
        self.refresh()

    def _changer(self, name: str) -> Callable[[dict[str, Any]], None]:
        def change(event: dict[str, Any]) -> None:
            if not self._is_setting:
                self._try(lambda: self._apply(name, event["new"]))

        return change

    def _apply(self, name: str, value: Any) -> None:
        """Hand a new value to the picker."""
        picker = self.picker
        if name == "any_job":
            picker.switch(value)
        elif name == "preset":
            picker.choose(value)
        elif name == "gpu":
            picker.plan_for(value, picker.choice.count)
        elif name == "count":
            picker.plan_for(picker.choice.gpu, value)
        elif name == "adapters":
            picker.vary(value)
        else:
            picker.override(**{name: value})

    def _try(self, act: Callable[[], Any]) -> None:
        """Do what was chosen, or tell why it cannot be; the controls then show what is in force."""
        try:
            act()
        except NbhelpersError as error:
            self._set_controls()
            self.answer.value = problem_html(error, REFUSED) + answer_html(self.picker.estimate)
            return
        self.picker.keep()
        self.refresh()

    def refresh(self) -> None:
        """Show what is known of the choice now, and ask for the exact budget."""
        self._set_controls()
        estimate = self.picker.estimate
        waiting = not estimate.is_exact and estimate.can_simulate
        self.show(estimate, waiting=waiting)
        if waiting:
            first = functools.partial(exact_estimate, estimate, with_advice=False)
            self._exact.ask(lambda check: first(report=check), self._arrived)
        else:
            self._exact.forget()

    def _arrived(self, result: Any) -> None:
        """Redraw with the exact budgets, in the thread that has them."""
        estimate = self.picker.estimate
        if isinstance(result, Estimate) and result.found is estimate.found:
            self.picker.take(result)
            self.show(result)
            if any(b.verdict in (TIGHT, DOES_NOT_FIT) and not b.advice for b in budgets(result)):
                self._exact.ask(lambda check: exact_estimate(result, report=check), self._advised)
        elif isinstance(result, NbhelpersError):
            self.answer.value = answer_html(estimate) + problem_html(result, NOT_EXACT)

    def _advised(self, result: Any) -> None:
        """Redraw with what would help; the figures of the choice itself are known already."""
        if isinstance(result, Estimate) and result.found is self.picker.found:
            self.picker.take(result)
            self.show(result)

    def show(self, estimate: Estimate, *, waiting: bool = False) -> None:
        """Draw an estimate."""
        from nbhelpers.reports.figures_budget import budget_bars, png

        self.answer.value = answer_html(estimate, waiting=waiting)
        self.details.value = details_html(estimate)
        self.lines.value = lines_html(estimate)
        figure = budget_bars(estimate.budgets)
        self.bars.layout.display = "none" if figure is None else ""
        if figure is not None:
            self.bars.value = png(figure)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the exact budget; whether it came in time."""
        return self._exact.wait(timeout_s)

    def _set_controls(self) -> None:
        """Put into every control what may be chosen, and what is."""
        self._is_setting = True
        try:
            for name, (options, value) in self._contents().items():
                control = self.controls[name]
                control.layout.display = "none" if len(options) < 2 else ""
                if tuple(control.options) != tuple(options):
                    control.options = options
                if control.value != value:
                    control.value = value
        finally:
            self._is_setting = False

    def _contents(self) -> dict[str, tuple[list[Any], Any]]:
        """Options and value of each control; one option or none hides it."""
        picker, choice = self.picker, self.picker.choice
        values = offered(picker.found)
        shown: dict[str, tuple[list[Any], Any]] = {
            "any_job": (list(JOBS) if choice.any_job else [choice.job], choice.job),
            "gpu": (gpus_of(picker.here), choice.gpu),
            "count": (self._counts(), choice.count),
            "preset": (self._presets(), choice.preset),
            "adapters": (self._adapters(), picker.adapters),
        }
        for name in OFFERED:
            now = getattr(picker.found.preset.settings, name, None)
            options = [
                (WORDS.get(v, str(v)) if isinstance(v, bool) else str(v), v)
                for v in values.get(name, [])
            ]
            if name == "model" and options:
                now = self._model(now)
            shown[name] = (options, now) if options else ([("-", None)], None)
        return shown

    def _presets(self) -> list[tuple[str, str]]:
        """The presets; `auto` with what it means here."""
        picker = self.picker
        means = picker.name if picker.choice.preset == "auto" else ""
        return [
            (f"auto: {means}" if name == "auto" and means else name, name)
            for name in presets_of(picker.choice)
        ]

    def _counts(self) -> list[int]:
        choice = self.picker.choice
        return [choice.count] if choice.gpu == HERE else sorted({*COUNTS, choice.count})

    def _adapters(self) -> list[Any]:
        picker = self.picker
        if not JOBS[picker.job].has_adapters:
            return [None]
        return list(dict.fromkeys([*ADAPTERS, picker.adapters]))

    def _model(self, model: str) -> str:
        return JOBS[self.picker.job].models.short_name(model) or model


# ------------------------------------------------------------------------------------------------
# The picker: a job, a preset and a GPU to choose, with the budget, the batch plan and the time.
#
# It starts from the notebook's parameters, and prints the lines that are equal to the choice. While
# all cells run, a change in a widget acts only after the last cell: a cell below the picker reads
# `picker.preset` and `picker.overrides`, shows the settings in force, and takes the new ones when
# it is run again. Without widgets the same answer is text and a figure.


WIDGET = "application/vnd.jupyter.widget-view+json"
# What was chosen in a widget of this kernel, by what the picker started from: running all cells
# again makes the picker anew, and must not lose the choice.
_KEPT: dict[str, Choice] = {}


class PresetPicker:
    """A job's presets to choose from, with what each needs on a GPU.

    Args:
        job: Such as `clones`.
        hardware: Of the notebook; None: what is found here.
        preset: A name, a .yaml file, or `auto`.
        adapters: For a job that varies them, as in `parse_adapters`; "": the preset's own.
        overrides: Settings that the parameters change.
        any_job: Offer the other jobs too.
        price_per_hour: Of the machine, for the cost.
        max_hours: What a run may take.

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
    ) -> None:
        self.here = hardware if hardware is not None else detect_hardware()
        self.price_per_hour, self.max_hours = price_per_hour, max_hours
        changes = dict(overrides or {})
        wishes = {"price_per_hour": price_per_hour, "max_hours": max_hours}
        start = Choice(
            job=job,
            preset=preset,
            adapters=adapters,
            overrides=changes,
            kept=frozenset(changes),
            any_job=any_job,
            wishes={name: value for name, value in wishes.items() if value is not None},
        )
        self._start = start
        check_choice(start)
        self.found: Resolved = resolve(start, self.here)
        self._estimate: Estimate | None = None
        if (previous := _KEPT.get(self._key)) is not None:
            self.set(previous)

    @property
    def choice(self) -> Choice:
        """The plain values of the choice."""
        return self.found.choice

    @property
    def job(self) -> str:
        """The job that is chosen."""
        return self.choice.job

    @property
    def name(self) -> str:
        """The name of the preset; what `auto` means on the chosen GPU."""
        return self.found.preset.name

    @property
    def preset(self) -> str:
        """What `load_preset` takes: `auto` as long as nothing else is chosen."""
        return self.choice.preset if self.choice.gpu == HERE else self.name

    @property
    def adapters(self) -> str | None:
        """The adapters by their names; None for a job that varies nothing."""
        if not JOBS[self.job].has_adapters:
            return None
        return self.choice.adapters or self.found.preset.settings.adapter

    @property
    def overrides(self) -> dict[str, Any]:
        """The settings that differ from the preset because somebody chose them."""
        return dict(self.choice.overrides)

    @property
    def hardware(self) -> Hardware:
        """The hardware of the choice: this machine's, or the planned one."""
        return self.found.hardware

    @property
    def estimate(self) -> Estimate:
        """The budgets and the time that are known at once."""
        if self._estimate is None:
            self._estimate = quick_estimate(
                self.found, price_per_hour=self.price_per_hour, max_hours=self.max_hours
            )
        return self._estimate

    def take(self, estimate: Estimate) -> None:
        """Put an exact estimate in the place of the quick one, if the choice is still the same."""
        if estimate.found is self.found:
            self._estimate = estimate

    @property
    def plan(self) -> BatchPlan:
        """How the batch is split."""
        return self.found.plan

    @property
    def budget(self) -> MemoryBudget:
        """The budget of the choice; of several adapters the largest."""
        return max(self.estimate.budgets.values(), key=lambda budget: budget.total_bytes)

    def load(self) -> Preset:
        """Return the chosen preset with its adapter; of several adapters the preset they share."""
        return loaded(self.found)

    @property
    def line(self) -> str:
        """The lines for the parameters cell."""
        return parameter_lines(self.found)

    @property
    def lines(self) -> Mapping[str, str]:
        """The equal lines: for the parameters cell, Python, papermill and the shell."""
        return all_lines(self.found)

    def __repr__(self) -> str:
        return plain_text(self.estimate)

    def text(self) -> str:
        """Return the whole answer as HTML."""
        return str(bundle(self.estimate)["text/html"])

    def set(self, choice: Choice) -> None:
        """Take a whole choice; the old one stays where the new one is not possible.

        Raises:
            NbhelpersError: What is not possible, with the fix.
        """
        check_choice(choice)
        self.found = resolve(choice, self.here)
        self._estimate = None

    def choose(self, name: str) -> str:
        """Choose a preset by name and return the lines for the parameters cell.

        Raises:
            ConfigError: There is no such preset.
        """
        self.set(self._fitted(self.choice.with_preset(name)))
        return self.line

    def vary(self, adapters: str) -> str:
        """Choose the adapters by their names and return the lines for the parameters cell.

        Raises:
            ConfigError: There is no such adapter, or the job has none.
        """
        if not JOBS[self.job].has_adapters:
            raise ConfigError(f"The job {self.job} has no adapters.", fix="choose a preset only")
        self.set(replace(self.choice, adapters=adapters))
        return self.line

    def override(self, **changes: Any) -> str:
        """Change settings and return the lines; the preset's own value, or None, is no override.

        Raises:
            NbhelpersError: A name or a value is wrong, or the batch cannot be split.
        """
        choice = self.choice
        for name, value in changes.items():
            choice = choice.without(name)
            if value is not None and value != own_value(choice, self.here, name):
                choice = choice.with_value(name, value)
        self.set(choice)
        return self.line

    def plan_for(self, gpu: str, count: int = 1) -> str:
        """Choose a GPU ("" is this machine's) and return the lines for the parameters cell.

        Raises:
            NbhelpersError: There is no such GPU, or the choice is not possible on it.
        """
        self.set(replace(self.choice, gpu=gpu, count=count))
        return self.line

    def switch(self, job: str) -> str:
        """Choose another job, with the preset for this GPU, and return its lines.

        Raises:
            ConfigError: There is no such job.
        """
        self.set(self.choice.with_job(job))
        return self.line

    def reset(self) -> str:
        """Go back to the notebook's parameters and return their lines."""
        _KEPT.pop(self._key, None)
        self.set(self._start)
        return self.line

    def keep(self) -> None:
        """Remember the choice for when the cell of the picker is run again in this kernel."""
        if is_notebook():
            _KEPT[self._key] = self.choice

    @property
    def is_changed(self) -> bool:
        """Whether the choice differs from what the parameters say."""
        return self.choice != self._start

    @property
    def _key(self) -> str:
        cards = [(gpu.key or gpu.name) for gpu in self.here.gpus]
        return repr((self._start, cards))

    def _fitted(self, choice: Choice) -> Choice:
        """As many planned GPUs as a preset is typed for: its own number, no other experiment."""
        from nbhelpers.presets.loading import load_preset

        typed = load_preset(choice.job, choice.preset).settings.num_gpus
        gpu = choice.gpu
        if gpu == HERE and self.here.is_planned and self.here.gpu is not None:
            gpu = self.here.gpu.key or HERE
        now = len(self.found.hardware.gpus)
        if gpu == HERE or choice.preset == "auto" or typed in ("auto", now):
            return choice
        return replace(choice, gpu=gpu, count=typed)

    def _ipython_display_(self) -> None:
        box = None if is_headless() else self._box()
        from IPython.display import display

        if box is not None:
            # The text is what GitHub shows of a saved notebook; both versions draw the view.
            view = {"version_major": 2, "version_minor": 0, "model_id": box.model_id}
            display({WIDGET: view, "text/plain": repr(self)}, raw=True)
            return
        from nbhelpers.reports.figures_budget import budget_bars, png

        display(bundle(self.estimate), raw=True)
        figure = budget_bars(self.estimate.budgets)
        if figure is not None:
            display({"image/png": png(figure), "text/plain": "bars by cause"}, raw=True)

    def _box(self) -> Any:
        """The widget, or None where ipywidgets is missing."""

        try:
            import ipywidgets  # noqa: F401 - is it here?
        except ImportError:
            return None
        return PickerBox(self).root


# ------------------------------------------------------------------------------------------------
# The public door to the picker of presets: optional sugar that prints the equal lines of code.
#
# Everything works without it. The picker itself stands in `picker`.


def pick_preset(
    job: str,
    hardware: Hardware | None = None,
    *,
    preset: str = "auto",
    adapters: str = "",
    overrides: Mapping[str, Any] | None = None,
    any_job: bool = False,
    price_per_hour: float | None = None,
    max_hours: float | None = None,
) -> PresetPicker:
    """Return a picker of presets with their budgets, set to what the notebook's parameters say.

    Args:
        job: Such as `clones`.
        hardware: Found or planned; None: what is found here.
        preset: A name, a .yaml file, or `auto`.
        adapters: Of a fine-tuning: names with commas; "": the preset's own.
        overrides: Settings that differ from the preset.
        any_job: Offer the other jobs too.
        price_per_hour: Of the machine; a cost is then shown.
        max_hours: What a run may take; more is said, with what would be shorter.

    Raises:
        NbhelpersError: The values do not make a preset; with the fix.
    """
    return PresetPicker(
        job,
        hardware,
        preset=preset,
        adapters=adapters,
        overrides=overrides,
        any_job=any_job,
        price_per_hour=price_per_hour,
        max_hours=max_hours,
    )
