"""A trained model that stays open in a notebook, with fields to ask it; without widgets one answer.

A click is answered in the kernel's own thread: what the model writes is shown as it comes, and the
model is loaded once for all questions.
"""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Mapping
from typing import Any

from nbhelpers.errors import NbhelpersError
from nbhelpers.hardware.machine import is_headless
from nbhelpers.use.clones import CloneModel
from nbhelpers.use.detector import Detector
from nbhelpers.use.model import LoadedModel

Show = Callable[[str, str], None]  # the name of a pane, and the text so far
PANE = (
    "flex:1 1 16em;min-width:0;border:1px solid currentColor;border-radius:4px;"
    "padding:.3em .6em;margin:.2em"
)

SHEET = "width:0;min-width:100%;overflow-x:auto;line-height:1.4"  # as wide as the page, no wider


class AskBox:
    """A model and the texts that it is asked; it shows itself as fields, a button and the answer.

    Args:
        model: From `load`; it stays open.
        texts: What the fields hold at first: `prompt` of a language model; `program` and
            `language` of a detector; `one` and `other` of a clone model.
    """

    def __init__(self, model: Any, **texts: str) -> None:
        """Nothing is asked yet."""
        self.model, self.texts = model, texts
        self.answer: Any = None
        self.seconds = 0.0

    def ask(self, show: Show | None = None, **texts: str) -> Any:
        """Return the model's answer; the fields then hold these texts.

        Args:
            show: Called with a name ("base", "tuned") and the text so far, as it is written.
            texts: What changes in the fields.
        """
        self.texts = {**self.texts, **texts}
        began = time.monotonic()
        self.answer = _answer(self.model, self.texts, show)
        self.seconds = time.monotonic() - began
        return self.answer

    def __repr__(self) -> str:
        return f"{self.model!r}: {self.answer!r}"

    def _ipython_display_(self) -> None:
        from IPython.display import display

        fields = None if is_headless() else _fields(self)
        if fields is None:
            display(self.ask())
        else:
            display(fields.root)
            fields.ask()


def _answer(model: Any, texts: Mapping[str, str], show: Show | None) -> Any:
    if isinstance(model, LoadedModel):
        ask = model.compare if model.has_adapter else model.ask
        return ask([texts["prompt"]], show=show)
    if isinstance(model, Detector):
        return model.score_code(texts["program"], language=texts.get("language", ""))
    if isinstance(model, CloneModel):
        return model.are_clones(texts["one"], texts["other"])
    raise TypeError(f"{model!r} cannot be asked")


def _fields(box: AskBox) -> AskFields | None:
    """The widget, or None where ipywidgets is missing."""
    try:
        import ipywidgets  # noqa: F401 - is it here?
    except ImportError:
        return None
    return AskFields(box)


class AskFields:
    """The fields of a box, from the parts that ipywidgets 7.7 and 8 share."""

    def __init__(self, box: AskBox) -> None:
        import ipywidgets

        self.box, wide = box, ipywidgets.Layout(width="98%")
        self.fields = {}
        for name, text in box.texts.items():
            kind = ipywidgets.Text if name == "language" else ipywidgets.Textarea
            self.fields[name] = kind(value=text, description=name, layout=wide)
            if kind is ipywidgets.Textarea:
                self.fields[name].rows = max(3, text.count("\n") + 1)
        self.button = ipywidgets.Button(description="Ask", button_style="primary")
        self.button.on_click(lambda _: self.ask())
        self.page = ipywidgets.HTML(layout=wide)
        self.root = ipywidgets.VBox([*self.fields.values(), self.button, self.page])

    def ask(self) -> None:
        """Ask with what the fields hold, and show the answer as it comes."""
        panes: dict[str, str] = {}

        def show(name: str, text: str) -> None:
            panes[name] = text
            self.page.value = panes_html(panes)

        self.button.disabled = True
        try:
            answer = self.box.ask(
                show, **{name: field.value for name, field in self.fields.items()}
            )
            page = (
                panes_html(panes) if panes else f'<div style="{SHEET}">{answer._repr_html_()}</div>'
            )
            self.page.value = f"{page}<small>answered in {self.box.seconds:.1f} s</small>"
        except NbhelpersError as error:
            fix = f"<br>Fix: {html.escape(error.fix)}" if error.fix else ""
            self.page.value = f"<p role='alert'>{html.escape(error.message)}{fix}</p>"
        finally:
            self.button.disabled = False


def panes_html(panes: Mapping[str, str]) -> str:
    """Return texts side by side, or below each other where the page is narrow."""
    blocks = "".join(
        f'<div style="{PANE}"><b>{html.escape(name)}</b><pre style="white-space:pre-wrap;'
        f'margin:0;background:none;color:inherit">{html.escape(text)}</pre></div>'
        for name, text in panes.items()
    )
    return f'<div style="display:flex;flex-wrap:wrap">{blocks}</div>'
