"""What a report is made of: texts, tables, figures and sections, which two renderers write.

A job's report module selects facts and returns blocks. It has two functions of a run's facts:
`summary(facts) -> Summary`, what a page opens with, and `blocks(facts) -> list[Block]`, all the
rest. Blocks without content, such as a table without rows, are left out when they are written, so
that a module lists them without asking.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from nbhelpers.common import display
from nbhelpers.common.display import Cell, cell

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib import figure

NOTE, ALARM, VERBATIM = "note", "alarm", "verbatim"  # kinds of text
EDGES = ("low", "high")


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph.

    `kind`: NOTE explains, ALARM must not be missed, VERBATIM keeps its lines and blanks, of which
    parts may be marked: `marks` holds their places in the text, as (start, end).
    """

    sort: ClassVar[str] = "text"
    text: str
    kind: str = ""
    marks: Sequence[tuple[int, int]] = ()

    @property
    def parts(self) -> list[tuple[str, bool]]:
        """The text in parts, each with whether it is marked.

        >>> Text("ab", marks=[(1, 2)]).parts
        [('a', False), ('b', True)]
        """
        ends = [0, *(at for mark in self.marks for at in mark), len(self.text)]
        parts = [(self.text[a:b], at % 2 == 1) for at, (a, b) in enumerate(pairwise(ends))]
        return [(text, is_marked) for text, is_marked in parts if text]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one kind, by the names of their columns; `code` names the table in `Report.tables`.

    Args:
        code: The name of the table, unique in its report.
        rows: Values, or `Cell` with a format and an interval, by column.
        heads: Titles of columns; others are titled by their name.
        spread: A column whose values become columns on the page, side by side, and the column
            whose cells these hold.
    """

    sort: ClassVar[str] = "table"
    code: str
    rows: Sequence[Mapping[str, Any]]
    heads: Mapping[str, str] = field(default_factory=dict)
    spread: tuple[str, str] | None = None

    @property
    def shown(self) -> display.Table:
        """The table as it is shown; columns without any value are left out."""
        rows = self._spread_rows() if self.spread else self.rows
        names = dict.fromkeys(name for row in rows for name in row)
        names = [n for n in names if any(str(cell(row.get(n))) for row in rows)]
        heads = [self.heads.get(name, _head(name)) for name in names]
        return display.Table(heads, [[row.get(name) for name in names] for row in rows])

    def _spread_rows(self) -> list[dict[str, Any]]:
        across, content = self.spread or ("", "")
        by_rest: dict[tuple[str, ...], dict[str, Any]] = {}
        for row in self.rows:
            rest = {name: value for name, value in row.items() if name not in (across, content)}
            key = tuple(map(str, rest.values()))
            by_rest.setdefault(key, rest)[str(cell(row[across]))] = row[content]
        return list(by_rest.values())

    def frame(self) -> pd.DataFrame:
        """Return the values to compute with; the edges of an interval stand beside their value."""
        import pandas as pd

        return pd.DataFrame([dict(self._values(row)) for row in self.rows])

    def _values(self, row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, value in row.items():
            yield name, cell(value).value
            if any(_has_interval(other.get(name)) for other in self.rows):
                edges = cell(value).interval or (None, None)
                for edge, bound in zip(EDGES, edges, strict=True):
                    yield (edge if name == "value" else f"{name}_{edge}"), bound


def _has_interval(value: Any) -> bool:
    return isinstance(value, Cell) and value.interval is not None


def _head(name: str) -> str:
    """Return the title of a column.

    >>> _head("predicted_bytes"), _head("share of clones"), _head("made_at")
    ('predicted', 'share of clones', 'made at')
    """
    return name.removesuffix("_bytes").removesuffix("_percent").replace("_", " ")


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture, drawn when it is written: `NAME.png` in the run's folder, and in the page.

    `draw` returns a matplotlib figure, or None where there is nothing to draw.
    """

    sort: ClassVar[str] = "figure"
    name: str
    caption: str
    draw: Callable[[], figure.Figure | None]


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a title, which fold on a page.

    `code` names the section for code that looks for it; `note` explains below the title. A section
    that is not `in_text` is left to the page.
    """

    sort: ClassVar[str] = "section"
    title: str
    blocks: Sequence[Block]
    code: str = ""
    note: str = ""
    is_open: bool = False
    in_text: bool = True


Block: TypeAlias = Text | Table | Figure | Section


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """One of the figures that a report opens with: what it is, its value, and a few words on it."""

    title: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a report opens with.

    Args:
        title: Of the page, such as `clones: codegpt`.
        verdict: The finding in one sentence.
        alarms: What a reader must not miss.
        caveat: The first thing to hold against the verdict.
        figures: About four.
        picture: One.
        where: Which run this is.
    """

    title: str
    verdict: str
    alarms: Sequence[str] = ()
    caveat: str = ""
    figures: Sequence[KeyFigure] = ()
    picture: Figure | None = None
    where: str = ""


def listing(code: str, values: Mapping[str, Any], heads: Mapping[str, str] | None = None) -> Table:
    """Return a table with a line for each value; what is not known is left out."""
    known = {what: value for what, value in values.items() if str(cell(value))}
    rows = [{"what": what, "value": value} for what, value in known.items()]
    return Table(code, rows, heads or {})


def texts(lines: Sequence[str], kind: str = "") -> list[Text]:
    """Return each line that says something as a paragraph."""
    return [Text(line, kind) for line in lines if line]


def walk(blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield all blocks in their order, those inside sections too."""
    for block in blocks:
        yield block
        if isinstance(block, Section):
            yield from walk(block.blocks)


def filled(blocks: Sequence[Block], images: Container[str] | None = None) -> list[Block]:
    """Return the blocks that have content, sections with what is left of them.

    Args:
        images: The names of the figures that were drawn; None: any figure has content.
    """
    rest: list[Block] = []
    for block in blocks:
        if isinstance(block, Section):
            inside = filled(block.blocks, images)
            if any(not isinstance(each, Text) or each.kind != NOTE for each in inside):
                rest.append(replace(block, blocks=inside))
        elif isinstance(block, Figure):
            rest += [block] if images is None or block.name in images else []
        elif block.text if isinstance(block, Text) else block.rows:
            rest.append(block)
    return rest
