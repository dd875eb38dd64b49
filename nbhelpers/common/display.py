"""Tables as aligned text and as HTML, and short texts for their cells."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbhelpers.common.formatting import interval, written

SHOWN = 60  # characters of a cell that could be long
UNBROKEN = 26  # characters of a cell that is not wrapped on a page
LEAST = 20  # characters to which a column of text shrinks
_CELL = re.compile("<(t[dh])>")
_LEFT, _RIGHT = "text-align:left", "text-align:right;white-space:nowrap"
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Cell:
    """A value of a table, how it is written (see `formatting.written`), and its interval.

    `label` is written in place of the value.

    >>> str(Cell(0.874, ".3f", (0.788, 0.939))), str(Cell("f1", label="F1"))
    ('0.874 (0.788 to 0.939)', 'F1')
    """

    value: Any = None
    form: str = ""
    interval: Sequence[float | None] | None = None
    label: str = ""

    def __str__(self) -> str:
        if self.label:
            return self.label
        text, edges = written(self.value, self.form), interval(self.interval, self.form)
        return f"{text} ({edges})" if text and edges else text

    @property
    def is_number(self) -> bool:
        """Whether it stands to the right: numbers, but no truth values."""
        return isinstance(self.value, int | float) and not isinstance(self.value, bool)


def cell(value: Any) -> Cell:
    """Return a value as a cell."""
    return value if isinstance(value, Cell) else Cell(value)


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a head; it shows itself in a notebook, and as aligned columns elsewhere.

    Args:
        heads: The titles of the columns.
        rows: Cells: values, or `Cell` where they have a format or an interval.
        title: Stands above, in bold.
        notes: Stand below, a line each.

    >>> print(Table(("GPU", "time"), [("t4", Cell(192, "duration")), ("l4", Cell(59, "duration"))]))
    GPU        time
    t4   3 min 12 s
    l4         59 s
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.html()

    def text(self, width: int | None = None) -> str:
        """Return aligned columns; `width`: the longest line, for which text is wrapped.

        Columns that still do not fit stand below the others, each part with the columns that tell
        its rows apart, and without rows that have nothing in it.
        """
        texts = [list(self.heads)] if any(self.heads) else []
        texts += [[str(cell(value)) for value in row] for row in self.rows]
        widths = _widths(texts, self._is_right, width)
        parts = [
            line
            for columns in _parts(widths, width, _keys(texts))
            for line in _aligned(texts, columns, widths, self._is_right)
        ]
        return "\n".join([*filter(None, [self.title]), *parts, *self.notes])

    def html(self) -> str:
        """Return the table as HTML with its own alignment, escaped.

        The style stands in each cell: a style sheet is taken out of a notebook that is not trusted.
        """
        styles = [self._style(at) for at in range(len(self.heads))]
        head = _line("th", self.heads, styles) if any(self.heads) else ""
        body = "".join(_line("td", map(str, map(cell, row)), styles) for row in self.rows)
        title = f"<p><b>{html.escape(self.title)}</b></p>" if self.title else ""
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        notes = f"<ul>{notes}</ul>" if notes else ""
        return f'{title}<div style="overflow-x:auto"><table>{head}{body}</table></div>{notes}'

    def _style(self, at: int) -> str:
        if self._is_right[at]:
            return _RIGHT
        if any("\n" in str(cell(row[at])) for row in self.rows):  # text as it was written
            return _LEFT + ";white-space:pre-wrap;vertical-align:top"
        longest = max((len(str(cell(row[at]))) for row in self.rows), default=0)
        return _LEFT + (";white-space:nowrap" if longest <= UNBROKEN else ";min-width:14rem")

    @property
    def _is_right(self) -> list[bool]:
        """Whether a column holds numbers and nothing else."""
        columns = [[cell(row[at]) for row in self.rows] for at in range(len(self.heads))]
        columns = [[c for c in column if c.value not in (None, "")] for column in columns]
        return [bool(column) and all(c.is_number for c in column) for column in columns]


def _line(tag: str, texts: Iterable[str], styles: Sequence[str]) -> str:
    cells = (
        f'<{tag} style="{style}">{html.escape(text)}</{tag}>'
        for text, style in zip(texts, styles, strict=True)
    )
    return f"<tr>{''.join(cells)}</tr>"


def _widths(texts: list[list[str]], is_right: list[bool], width: int | None) -> list[int]:
    """Return the columns' widths; those of text shrink, the widest first, where all then fit."""
    widths = [max(len(row[at]) for row in texts) for at in range(len(texts[0]))]
    if width is None:
        return widths
    shrunk, gaps = list(widths), 2 * (len(widths) - 1)
    shrinkable = [at for at, right in enumerate(is_right) if not right and widths[at] > LEAST]
    while sum(shrunk) + gaps > width and shrinkable:
        widest = max(shrinkable, key=lambda at: shrunk[at])
        if shrunk[widest] <= LEAST:
            return [min(own, width - widths[0] - 2) if at else own for at, own in enumerate(widths)]
        shrunk[widest] -= 1
    return shrunk


def _keys(texts: list[list[str]]) -> int:
    """Return how many of the first columns tell the rows apart; one where three do not."""
    counts = range(1, min(4, len(texts[0])))
    return next((n for n in counts if len({*map(tuple, (r[:n] for r in texts))}) == len(texts)), 1)


def _parts(widths: list[int], width: int | None, keys: int) -> list[list[int]]:
    """Return the columns that stand side by side, the first `keys` in each part."""
    first = list(range(keys))
    start = sum(widths[:keys]) + 2 * (keys - 1)
    parts, used = [list(first)], start
    for at, own in enumerate(widths[keys:], keys):
        if width and used + 2 + own > width and len(parts[-1]) > keys:
            parts.append(list(first))
            used = start
        parts[-1].append(at)
        used += 2 + own
    return parts


def _aligned(
    texts: list[list[str]], columns: list[int], widths: list[int], is_right: list[bool]
) -> list[str]:
    lines, keys = [], _keys(texts)
    for row in texts:
        is_below = len(columns) > keys and columns[keys] > keys
        if is_below and not any(row[at] for at in columns[keys:]):
            continue
        wrapped = [textwrap.wrap(row[at], max(widths[at], 1)) or [""] for at in columns]
        for line in range(max(map(len, wrapped))):
            cells = [
                text.rjust(widths[at]) if is_right[at] else text.ljust(widths[at])
                for at, text in zip(
                    columns, (w[line] if line < len(w) else "" for w in wrapped), strict=True
                )
            ]
            lines.append("  ".join(cells).rstrip())
    return lines


def visible(text: str) -> str:
    """Return a text of unknown origin with what could act on a terminal or page made visible.

    Control characters but tab and line feed, the marks that turn the direction of writing, and
    halves of characters, which no stream can write.

    >>> visible("a\\x1b[31mred"), visible("caf\u00e9\\n"), visible("\\ud800")
    ('a\\\\x1b[31mred', 'caf\u00e9\\n', '\\\\ud800')
    """
    return _HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def left(markup: str) -> str:
    """Return HTML whose plain table cells are aligned to the left.

    JupyterLab aligns cells to the right, which suits numbers, not sentences. The style stands in
    each cell, because a style sheet is taken out of a notebook that is not trusted.

    >>> left("<tr><th>why</th><td>it fits</td></tr>")
    '<tr><th style="text-align:left">why</th><td style="text-align:left">it fits</td></tr>'
    """
    return _CELL.sub(r'<\1 style="text-align:left">', markup)


def changed(preset: Mapping[str, Any]) -> str:
    """Return in which settings a run's preset was overridden, as they are typed; paths by name.

    >>> origin = {"seed": "overrides", "epochs": "base.yaml", "data": "overrides"}
    >>> changed({"settings": {"seed": 7, "epochs": 2, "data": "/a/b.jsonl"}, "provenance": origin})
    'seed=7, data=b.jsonl'
    """
    settings, origin = (preset.get(key) or {} for key in ("settings", "provenance"))
    changes = [
        f"{name}={str(settings.get(name)).rstrip('/').rpartition('/')[2]}"
        for name, where in origin.items()
        if str(where).startswith("overrides")
    ]
    return cut(", ".join(changes))


def cut(text: str) -> str:
    """Return the first line of a text, and no more of it than a cell shows.

    >>> cut("a" * 99)[-4:], cut("one\\ntwo")
    ('aaa…', 'one')
    """
    line = text.partition("\n")[0]
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 1]}…"
