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
LEAST, NARROW = 20, 30  # characters to which a column of text shrinks: as text, and on a page
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
        is_right, widths, parts = self._layout(width)
        lines = [
            line for columns, rows in parts for line in _aligned(rows, columns, widths, is_right)
        ]
        return "\n".join([*filter(None, [self.title]), *lines, *self.notes])

    def html(self, width: int | None = None) -> str:
        """Return the table as HTML with its own alignment, escaped, in the parts that `text` has.

        The style stands in each cell: a style sheet is taken out of a notebook that is not trusted.

        >>> wide = Table(("run", "time", "score"), [("a", "12 s", Cell(0.5, ".3f", (0.4, 0.6)))])
        >>> wide.html().count("<table>"), wide.html(20).count("<table>")
        (1, 2)
        """
        is_right, widths, parts = self._layout(width)
        longest = [max(map(len, column)) for column in zip(*self._texts, strict=True)]
        styles = [_style(*column) for column in zip(is_right, widths, longest, strict=True)]
        for at, column in enumerate(zip(*self._texts, strict=True)):
            if any("\n" in text for text in column):  # as it was written
                styles[at] = f"{_LEFT};white-space:pre-wrap;vertical-align:top"
        tables = []
        for columns, rows in parts:
            tags = ["th" if any(self.heads) and row is rows[0] else "td" for row in rows]
            lines = (
                _line(tag, [(row[at], styles[at]) for at in columns])
                for tag, row in zip(tags, rows, strict=True)
            )
            tables.append(f'<div style="overflow-x:auto"><table>{"".join(lines)}</table></div>')
        title = f"<p><b>{html.escape(self.title)}</b></p>" if self.title else ""
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        notes = f"<ul>{notes}</ul>" if notes else ""
        return f"{title}{''.join(tables)}{notes}"

    @property
    def _texts(self) -> list[list[str]]:
        texts = [list(self.heads)] if any(self.heads) else []
        return texts + [[str(cell(value)) for value in row] for row in self.rows]

    def _layout(
        self, width: int | None
    ) -> tuple[list[bool], list[int], list[tuple[list[int], list[list[str]]]]]:
        """Return which columns stand to the right, their widths, and columns and rows by part."""
        is_right, texts = self._is_right, self._texts
        if not texts:
            return [], [], []
        widths, keys = _widths(texts, is_right, width), _keys(texts)
        parts = []
        for columns in _parts(widths, width, keys):
            is_below = len(columns) > keys and columns[keys] > keys
            rows = [r for r in texts if not is_below or any(r[at] for at in columns[keys:])]
            parts.append((columns, rows))
        return is_right, widths, parts

    @property
    def _is_right(self) -> list[bool]:
        """Whether a column holds numbers and nothing else."""
        columns = [[cell(row[at]) for row in self.rows] for at in range(len(self.heads))]
        columns = [[c for c in column if c.value not in (None, "")] for column in columns]
        return [bool(column) and all(c.is_number for c in column) for column in columns]


def _style(is_right: bool, width: int, longest: int) -> str:
    if is_right:
        return _RIGHT
    if longest <= min(width, UNBROKEN):
        return f"{_LEFT};white-space:nowrap"
    return f"{_LEFT};min-width:{min(width, NARROW) // 2}em"


def _line(tag: str, cells: Iterable[tuple[str, str]]) -> str:
    line = (f'<{tag} style="{style}">{html.escape(text)}</{tag}>' for text, style in cells)
    return f"<tr>{''.join(line)}</tr>"


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
    rows: list[list[str]], columns: list[int], widths: list[int], is_right: list[bool]
) -> list[str]:
    lines = []
    for row in rows:
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
