"""A picker of presets, and of adapters: optional sugar that prints the equal lines of code.

Only the part of ipywidgets that versions 7.7 and 8 share is used. A change made while all cells run
acts after the last cell, so the picker changes nothing by itself: it says what to type.
"""

from __future__ import annotations

import os
from html import escape
from typing import TYPE_CHECKING, Any

from nbhelpers.config import STUDIES, list_presets, load_preset
from nbhelpers.errors import ConfigError
from nbhelpers.study_adapters import ALL, adapter_name, parse_adapters

if TYPE_CHECKING:
    from nbhelpers.hardware import Hardware


ADAPTERS = (*(adapter_name(*each) for each in ALL), "all")


class PresetPicker:
    """Presets of a job to choose from; `line` is the code that is equal to the choice.

    `adapters` is what a fine-tuning varies; None for a job that varies nothing.
    """

    def __init__(self, job: str, hardware: Hardware | None = None) -> None:
        self.job, self.hardware = job, hardware
        preset = load_preset(job, "auto", hardware=hardware)
        self.name = preset.name
        self.adapters = preset.settings.adapter if job in STUDIES else None

    @property
    def line(self) -> str:
        """The line, or two, for the parameters cell."""
        adapters = f'\nadapters = "{self.adapters}"' if self.adapters else ""
        return f'preset = "{self.name}"{adapters}'

    def __repr__(self) -> str:
        return f"{self.line}  (presets: {', '.join(list_presets(self.job))})"

    def text(self) -> str:
        """The line, and what the preset is for."""
        about = " ".join(load_preset(self.job, self.name).about.split())
        return f"<p>{escape(about)}</p><pre>{escape(self.line)}</pre>"

    def choose(self, name: str) -> str:
        """Choose a preset by name and return the equal line.

        Raises:
            ConfigError: There is no such preset.
        """
        self.name = load_preset(self.job, name).name
        return self.line

    def vary(self, adapters: str) -> str:
        """Choose the adapters by their names and return the equal lines.

        Raises:
            ConfigError: There is no such adapter, or the job has none.
        """
        if self.job not in STUDIES:
            raise ConfigError(f"The job {self.job} has no adapters.", fix="choose a preset only")
        parse_adapters(adapters)
        self.adapters = adapters
        return self.line

    def _ipython_display_(self) -> None:
        from IPython.display import display

        box = None if is_headless() else self._box()
        if box is None:
            display({"text/plain": repr(self), "text/html": self.text()}, raw=True)
        else:
            display(box)

    def _box(self) -> Any:
        """The widget, or None where ipywidgets is missing."""
        try:
            import ipywidgets
        except ImportError:
            return None
        choice = ipywidgets.Dropdown(
            options=list_presets(self.job), value=self.name, description="preset"
        )
        shown = ipywidgets.HTML(value=self.text())

        def change(event: dict[str, Any]) -> None:
            self.choose(event["new"])
            shown.value = self.text()

        choice.observe(change, names="value")
        if self.adapters is None:
            return ipywidgets.VBox([choice, shown])
        options = list(dict.fromkeys([*ADAPTERS, self.adapters]))
        varied = ipywidgets.Dropdown(options=options, value=self.adapters, description="adapters")

        def vary(event: dict[str, Any]) -> None:
            self.vary(event["new"])
            shown.value = self.text()

        varied.observe(vary, names="value")
        return ipywidgets.VBox([choice, varied, shown])


def is_headless() -> bool:
    """Whether nobody watches: a widget would only leave dead state in the saved notebook."""
    return "NBHELPERS_OWNER_PID" in os.environ


def pick_preset(job: str, hardware: Hardware | None = None) -> PresetPicker:
    """Return a picker of the job's presets, set to the one for this hardware."""
    return PresetPicker(job, hardware)
