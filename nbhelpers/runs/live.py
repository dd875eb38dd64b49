"""The live view of a run in a notebook: phase, bar, figures, the curve and the growing table.

Plain HTML and an inline SVG, which every front end shows. Text and axes take the colour of the
page; the two lines have colours that stand out on white and on black.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Sequence
from typing import TextIO

from nbhelpers.common.display import Cell, Table
from nbhelpers.hardware.machine import is_notebook
from nbhelpers.runs.progress import LogView, Progress, TerminalView

TRAIN, VALID = "#2f7fd1", "#d9730d"
WIDTH, HEIGHT, LEFT, BOTTOM = 300, 120, 46, 18  # of the drawing, and of its margins
MOST_ROWS, MOST_POINTS = 12, 300
Points = Sequence[tuple[float, float]]


def live_html(progress: Progress) -> str:
    """Return the whole view."""
    share = 100 * (progress.share or 0.0)
    bar = (
        '<div style="width:28em;max-width:100%;height:.7em;border:1px solid currentColor;'
        'border-radius:3px;box-sizing:border-box">'
        f'<div style="width:{share:.1f}%;height:100%;background:{TRAIN}"></div></div>'
    )
    parts = "".join(
        f'<span style="margin-right:1.2em;display:inline-block">{html.escape(text)}</span>'
        for text in progress.parts()
    )
    title = f"<b>{html.escape(progress.title)}</b> "
    head = f'<div style="margin:.3em 0;line-height:1.5">{title}{parts}</div>'
    return f"{bar}{head}{curve(progress)}{rows(progress)}"


def rows(progress: Progress) -> str:
    """Return the table: a row for each evaluation, and for some of the steps between."""
    scored = dict(progress.evals)
    losses = dict(progress.steps)
    steps = sorted({*scored, *_thinned(sorted(losses), max(MOST_ROWS - len(scored), 2))})
    if not steps:
        return ""
    names = list(dict.fromkeys(n for s in scored.values() for n, _ in progress.headline(s)))
    has_loss = any("loss" in scores for scores in scored.values())
    heads = ["step", "loss", *(["valid loss"] if has_loss else []), *names]
    lines = []
    for step in steps:
        scores = scored.get(step, {})
        shown = dict(progress.headline(scores))
        valid = [Cell(scores.get("loss"), ".4f")] if has_loss else []
        loss = losses.get(step, _before(progress.steps, step))
        lines.append(
            [Cell(step, ","), Cell(loss, ".4f"), *valid, *(shown.get(n, "") for n in names)]
        )
    return Table(heads, lines).html()


def _before(steps: Points, step: int) -> float | None:
    """The training loss that was logged last before an evaluation."""
    return next((loss for at, loss in reversed(steps) if at <= step), None)


def _thinned(values: Sequence, most: int) -> list:
    """Evenly drawn values, the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(at * (len(values) - 1) / (most - 1))] for at in range(most)]


def curve(progress: Progress) -> str:
    """Return the losses over the steps as an SVG; without a loss on valid its first score."""
    train = [(float(step), loss) for step, loss in progress.steps]
    if len(train) < 2:
        return ""
    valid = [(float(step), scores["loss"]) for step, scores in progress.evals if "loss" in scores]
    last = max(float(progress.total if progress.phase == "train" else 0), train[-1][0])
    heights = [value for _, value in (*train, *valid)]
    low, high = min(heights), max(heights)
    legend = _text(WIDTH - 4, 11, "training loss", TRAIN, "end")
    legend += _text(WIDTH - 4, 25, "valid loss", VALID, "end") if valid else ""
    axes = "".join(
        _text(LEFT - 4, _y(value, low, high) + 4, f"{value:.3g}", "currentColor", "end")
        for value in dict.fromkeys((low, high))
    )
    axes += _text(LEFT, HEIGHT - 4, "0", "currentColor", "middle")
    axes += _text(WIDTH - 4, HEIGHT - 4, f"step {last:,.0f}", "currentColor", "end")
    frame = f"M{LEFT} 6V{HEIGHT - BOTTOM}H{WIDTH - 4}"
    return (
        f'<svg role="img" aria-label="loss by step" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'style="width:28em;max-width:100%;display:block">'
        f'<path d="{frame}" fill="none" stroke="currentColor" stroke-opacity=".5"/>'
        f"{_line(train, TRAIN, last, low, high)}{_line(valid, VALID, last, low, high, dots=True)}"
        f"{axes}{legend}</svg>"
    )


def _x(step: float, last: float) -> float:
    return LEFT + (WIDTH - 8 - LEFT) * step / last


def _y(value: float, low: float, high: float) -> float:
    share = (value - low) / (high - low) if high > low else 0.5
    return HEIGHT - BOTTOM - 4 - (HEIGHT - BOTTOM - 14) * share


def _line(
    points: Points, colour: str, last: float, low: float, high: float, *, dots: bool = False
) -> str:
    if not points:
        return ""
    places = [(_x(x, last), _y(y, low, high)) for x, y in _thinned(points, MOST_POINTS)]
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    marks = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places)
    line = f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
    return line + (marks if dots else "")


def _text(x: float, y: float, text: str, colour: str, anchor: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"'
    return f'<text {place} font-size="12" font-family="sans-serif">{html.escape(text)}</text>'


class NotebookView:
    """One output of a cell that is replaced; plain HTML, which every front end shows."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html, self._notes, self._body, self._shown = HTML, [], "", ""
        self._handle = display(HTML(""), display_id=True)

    def show(self, progress: Progress, *, is_last: bool = False) -> None:
        """Replace the output."""
        self._body = live_html(progress)
        self._update()

    def note(self, text: str) -> None:
        """Keep a message below the bar."""
        self._notes.append(f"<p>{html.escape(text)}</p>".replace("\n", "<br>"))
        self._update()

    def close(self) -> None:
        """The output stays as it is."""

    def _update(self) -> None:
        text = self._body + "".join(self._notes)
        if text != self._shown and self._handle is not None:
            self._handle.update(self._html(text))
            self._shown = text


View = LogView | TerminalView | NotebookView


def choose_view(stream: TextIO | None, *, is_headless: bool) -> View:
    """The view that fits: the given stream, else the notebook, the terminal or the log."""
    if stream is None and not is_headless and is_notebook():
        return NotebookView()
    target = sys.stdout if stream is None else stream
    is_terminal = not is_headless and hasattr(target, "isatty") and target.isatty()
    return TerminalView(target) if is_terminal else LogView(target)
