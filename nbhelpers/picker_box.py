"""The picker as a widget, from the parts that ipywidgets 7.7 and 8 share.

Every control shows the value that is in force. A change goes to the picker; what is not possible is
told, and the control goes back. An exact simulation that ends later redraws the answer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nbhelpers.errors import NbhelpersError
from nbhelpers.job_specs import JOBS
from nbhelpers.memory import DOES_NOT_FIT, TIGHT, MemoryBudget
from nbhelpers.picker_budget import Estimate, exact_estimate
from nbhelpers.picker_state import ADAPTERS, COUNTS, HERE, OFFERED, gpus_of, offered, presets_of
from nbhelpers.picker_text import answer_html, details_html, lines_html, problem_html
from nbhelpers.picker_watch import Latest

if TYPE_CHECKING:
    from nbhelpers.picker import PresetPicker

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
        from nbhelpers.plots_budget import budget_bars, png

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
