"""The picker: a job, a preset and a GPU to choose, with the budget, the batch plan and the time.

It starts from the notebook's parameters, and prints the lines that are equal to the choice. While
all cells run, a change in a widget acts only after the last cell: a cell below the picker reads
`picker.preset` and `picker.overrides`, shows the settings in force, and takes the new ones when it
is run again. Without widgets the same answer is text and a figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbhelpers.errors import ConfigError
from nbhelpers.hardware import Hardware, detect_hardware
from nbhelpers.job_specs import JOBS
from nbhelpers.machine import is_headless, is_notebook
from nbhelpers.picker_budget import Estimate, quick_estimate
from nbhelpers.picker_lines import all_lines, loaded, parameter_lines
from nbhelpers.picker_state import HERE, Choice, Resolved, check_choice, own_value, resolve
from nbhelpers.picker_text import bundle, plain_text

if TYPE_CHECKING:
    from nbhelpers.batching import BatchPlan
    from nbhelpers.memory import MemoryBudget
    from nbhelpers.presets import Preset

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
        given = dict(overrides or {})
        wishes = {"price_per_hour": price_per_hour, "max_hours": max_hours}
        start = Choice(
            job=job,
            preset=preset,
            adapters=adapters,
            overrides=given,
            kept=frozenset(given),
            any_job=any_job,
            wishes={name: value for name, value in wishes.items() if value is not None},
        )
        self._start = start
        check_choice(start)
        self.found: Resolved = resolve(start, self.here)
        self._estimate: Estimate | None = None
        if (kept := _KEPT.get(self._key)) is not None:
            self.set(kept)

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
        from nbhelpers.config import load_preset

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
        from nbhelpers.plots_budget import budget_bars, png

        display(bundle(self.estimate), raw=True)
        figure = budget_bars(self.estimate.budgets)
        if figure is not None:
            display({"image/png": png(figure), "text/plain": "bars by cause"}, raw=True)

    def _box(self) -> Any:
        """The widget, or None where ipywidgets is missing."""
        from nbhelpers.picker_box import PickerBox

        try:
            import ipywidgets  # noqa: F401 - is it here?
        except ImportError:
            return None
        return PickerBox(self).root
