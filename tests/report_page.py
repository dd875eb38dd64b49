"""Reads a report as its reader does, for the tests of reports."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from nbhelpers.reports.rendering import Report
from nbhelpers.reports.writing import report


def changed(finished: Path, tmp_path: Path, **changes: Any) -> Report:
    """Return the report of a copy of the finished run with parts of its result replaced."""
    data = json.loads((finished / "result.json").read_text())
    for name, value in changes.items():
        target, keys = data, name.split("__")
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(data))
    return report(folder, show=False)


class PageText(HTMLParser):
    """Collects what a reader sees and whether anything points outside the page."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.outside: list[str] = []

    def handle_data(self, data: str) -> None:
        self.seen.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href") and not (value or "").startswith("data:"):
                self.outside.append(f"{tag} {name}={value}")


def check_report(made: Report, plots: set[str]) -> None:
    """What the reports of all jobs and of studies keep.

    The page needs no other file and has its own colours in every theme, each table scrolls in its
    own box, plots stand in the folder and in the page, the text fits 100 columns.
    """
    parser, page = PageText(), made.path.read_text()
    parser.feed(page)
    assert parser.outside == [] and '<meta name="viewport"' in page
    assert "http" not in re.sub(r"base64,[^\"]+", "", page)
    for markup in (page, made.html):
        assert "color-scheme:light dark" in markup and "[theme=" in made.html
        assert markup.count("<table") == markup.count('<div style="overflow-x:auto"><table') > 0
    assert set(made.plots) == plots and page.count("data:image/png") == len(plots)
    for plot in made.plots.values():
        assert plot.parent == made.path.parent and plot.read_bytes().startswith(b"\x89PNG")
    *lines, last = made.text.splitlines()
    assert max(map(len, lines)) <= 100 and last == f"Report: {made.path}"


def seen(made: Report) -> str:
    """Return the visible text of the saved page."""
    parser = PageText()
    parser.feed(made.path.read_text())
    return " ".join(parser.seen)
