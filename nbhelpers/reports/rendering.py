"""Writes blocks: as one HTML page that needs no other file, and as text for a terminal."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from nbhelpers.common.display import visible
from nbhelpers.reports.blocks import (
    VERBATIM,
    Block,
    Section,
    Summary,
    Table,
    Text,
    filled,
)

if TYPE_CHECKING:
    from jinja2 import Template

WIDTH = 100
UNBROKEN = "\u00a0"
TEMPLATE = Path(__file__).with_name("page.html.jinja")


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
        has_table = False
        if any(inside):
            yield from ["", f"## {block.title}"]
        for inner, lines in zip(block.blocks, inside, strict=False):
            if has_table and lines and not isinstance(inner, Section):
                yield ""
            yield from lines
            has_table = bool(lines) and (has_table or isinstance(inner, Table))
    elif isinstance(block, Table):
        yield from block.shown.text(WIDTH).splitlines()
    elif isinstance(block, Text) and block.kind == VERBATIM:
        yield from block.text.splitlines()
    elif isinstance(block, Text):
        yield from wrapped([block.text])
