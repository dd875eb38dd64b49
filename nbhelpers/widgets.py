"""A preset picker: optional sugar that prints the equal line of code.

Only the part of ipywidgets that versions 7.7 and 8 share is used. A change made while all cells run
acts after the last cell, so the picker changes nothing by itself: it says what to type.
"""

from __future__ import annotations

import os
from html import escape
from typing import TYPE_CHECKING, Any

from nbhelpers.config import list_presets, load_preset

if TYPE_CHECKING:
    from nbhelpers.hardware import Hardware


class PresetPicker:
    """Presets of a job to choose from; `line` is the code that is equal to the choice."""

    def __init__(self, job: str, hardware: Hardware | None = None) -> None:
        self.job, self.hardware = job, hardware
        self.name = load_preset(job, "auto", hardware=hardware).name

    @property
    def line(self) -> str:
        """The line for the parameters cell."""
        return f'preset = "{self.name}"'

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
        return ipywidgets.VBox([choice, shown])


def is_headless() -> bool:
    """Whether nobody watches: a widget would only leave dead state in the saved notebook."""
    return "NBHELPERS_OWNER_PID" in os.environ


def pick_preset(job: str, hardware: Hardware | None = None) -> PresetPicker:
    """Return a picker of the job's presets, set to the one for this hardware."""
    return PresetPicker(job, hardware)
