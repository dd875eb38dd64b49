"""Writes blocks: as one HTML page that needs no other file, and as text for a terminal."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from nbhelpers.common.display import visible
from nbhelpers.errors import ConfigError
from nbhelpers.reports.blocks import (
    VERBATIM,
    Block,
    Figure,
    Section,
    Summary,
    Table,
    Text,
    filled,
    walk,
)
from nbhelpers.reports.figures import save_figures

if TYPE_CHECKING:
    import pandas as pd
    from jinja2 import Template

WIDTH, PAGE_WIDTH = 100, 110
UNBROKEN = "\u00a0"
TEMPLATE = Path(__file__).with_name("page.html.jinja")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run found: `tables` to compute with, `text` for a terminal, `path` of the page."""

    run_id: str
    status: str
    path: Path
    text: str = field(repr=False)
    tables: dict[str, pd.DataFrame] = field(repr=False)
    plots: dict[str, Path] = field(repr=False)
    html: str = field(repr=False)

    def __repr__(self) -> str:
        """Return one line: which run, how it stands, where the page is."""
        return f"Report({self.run_id}, {self.status}: {self.path})"

    def __str__(self) -> str:
        """Return the text for a terminal."""
        return self.text

    def _repr_html_(self) -> str:
        return self.html


@cache
def _template() -> Template:
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=False)
    return environment.from_string(TEMPLATE.read_text("utf-8"))


def as_html(
    summary: Summary,
    blocks: Sequence[Block],
    images: Mapping[str, bytes],
    *,
    page_title: str = "",
) -> str:
    """Return a report as an HTML fragment that brings its own style and images.

    Args:
        images: PNG files by the name of their figure; a figure without one is left out.
        page_title: Makes it a whole document with this title.
    """
    encoded = {name: base64.b64encode(image).decode() for name, image in images.items()}
    text = _template().render(
        summary=summary,
        blocks=filled(blocks, images),
        images=encoded,
        width=PAGE_WIDTH,
        is_document=bool(page_title),
        page_title=page_title,
    )
    return visible(text)


def as_text(summary: Summary, blocks: Sequence[Block], path: str) -> str:
    """Return a report for a terminal: at most 100 columns, but for the path of its page."""
    lines = wrapped([summary.verdict, *summary.alarms, summary.caveat])
    keys = [(f"{key.title}:", key.value, key.note) for key in summary.figures]
    widths = [max((len(key[at]) for key in keys), default=0) for at in (0, 1)]
    for title, value, note in keys:
        lines += textwrap.wrap(
            f"{title:<{widths[0]}}  {value:<{widths[1]}}  {note}".rstrip(),
            WIDTH,
            subsequent_indent=" " * (widths[0] + widths[1] + 4),
            drop_whitespace=True,
        )
    for block in filled(blocks):
        lines += _lines(block)
    ending = ["", *wrapped([summary.where]), f"Report: {path}"]
    return visible("\n".join([*lines, *ending]) + "\n")


def wrapped(sentences: Sequence[str], width: int = WIDTH) -> list[str]:
    """Return sentences as lines of at most `width` columns, each on a line of its own."""
    return [
        line.replace(UNBROKEN, " ")
        for sentence in sentences
        for line in textwrap.wrap(sentence.replace(" %", f"{UNBROKEN}%"), width)
    ]


def _lines(block: Block) -> Iterator[str]:
    if isinstance(block, Section):
        inside = [list(_lines(b)) for b in block.blocks] if block.in_text else []
        if any(inside):
            yield from ["", f"## {block.title}"]
        previous = None
        for inner, lines in zip(block.blocks, inside, strict=False):
            if previous and lines and Table in (type(previous), type(inner)):
                yield ""
            yield from lines
            previous = inner if lines else previous
    elif isinstance(block, Table):
        yield from block.shown.text(WIDTH).splitlines()
    elif isinstance(block, Text) and block.kind == VERBATIM:
        yield from block.text.splitlines()
    elif isinstance(block, Text):
        yield from wrapped([block.text])


def frames(blocks: Sequence[Block]) -> dict[str, pd.DataFrame]:
    """Return the tables of a report by their codes, to compute with."""
    tables = [block for block in walk(blocks) if isinstance(block, Table) and block.rows]
    return {table.code: table.frame() for table in tables}


def write_report(
    folder: Path,
    path: Path,
    summary: Summary,
    blocks: Sequence[Block],
    *,
    run_id: str,
    status: str,
) -> Report:
    """Write the page and its figures into a folder and return the report.

    Raises:
        ConfigError: The folder cannot be written to.
    """
    pictures = [b for b in [summary.picture, *walk(blocks)] if isinstance(b, Figure)]
    drawn = {picture.name: picture.draw() for picture in pictures}
    try:
        plots = save_figures(folder, drawn)
        images = {name: plot.read_bytes() for name, plot in plots.items()}
        document = as_html(summary, blocks, images, page_title=f"Report of {run_id}")
        draft = path.with_name(f".{path.name}.partial")
        draft.write_text(document, encoding="utf-8", errors="replace")
        draft.replace(path)
    except OSError as error:
        raise ConfigError(
            f"The report cannot be written to {folder}: {error.strerror or error}.",
            fix="make the folder writable, or copy it to a place of your own",
        ) from error
    return Report(
        run_id=run_id,
        status=status,
        path=path,
        text=as_text(summary, blocks, str(path)),
        tables=frames(blocks),
        plots=plots,
        html=as_html(summary, blocks, images),
    )
