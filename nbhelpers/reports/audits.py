"""`audit(data)`: the audit of detection data as a notebook shows it, with tables and a figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.common.formatting import count
from nbhelpers.data.audit import TITLES
from nbhelpers.data.audit import Audit as Measured
from nbhelpers.data.audit import audit as measure
from nbhelpers.data.audit_rules import TELLING
from nbhelpers.reports.blocks import Block, KeyFigure, Section, Summary, Table, texts
from nbhelpers.reports.blocks import Figure as Picture
from nbhelpers.reports.figures import (
    BLACK,
    BLUE,
    CLASSES,
    GREY,
    name_above,
    panels,
    plain_ticks,
    png,
)
from nbhelpers.reports.rendering import as_html

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# ------------------------------------------------------------------------------------------------
# The figure of an audit: single features, sources and lengths by class.


CAPTION = (
    "Left: how well one feature tells the label (0.5 is chance). Middle: rows by source. Right: "
    "lines per program, by share of the class."
)
COLOURS = {"human": CLASSES["human"], "ai": CLASSES["AI"]}
MAX_BARS = 8
NAME_SHOWN = 22  # characters


def audit_figure(facts: Mapping[str, Any]) -> Figure | None:
    """Draw what `Audit.facts` hold; None where there are no rows of both classes."""
    if not facts.get("features"):
        return None
    figure, (left, middle, right) = panels(3, columns=3)
    _features(left, facts["features"][:MAX_BARS])
    _sources(middle, facts["counts"]["source"][:MAX_BARS])
    _lengths(right, facts["lengths"])
    return figure


def _features(axis: Axes, features: list[Mapping[str, Any]]) -> None:
    names = [one["feature"].replace("_", " ") for one in features]
    at = range(len(features))
    axis.barh([y - 0.2 for y in at], [one["raw"] for one in features], 0.4, color=GREY, label="raw")
    clean = [one["canonical"] for one in features]
    axis.barh(
        [y + 0.2 for y in at],
        clean,
        0.4,
        color=BLUE,
        hatch="//",
        edgecolor="white",
        label="canonical",
    )
    axis.axvline(TELLING, color=BLACK, linestyle="--", linewidth=1, label="hopeless")
    axis.set_yticks(list(at), names, fontsize=7.5)
    axis.invert_yaxis()
    axis.set(xlabel="area under the ROC curve", xlim=(0.5, 1.0))
    name_above(axis)


def _sources(axis: Axes, sources: list[Mapping[str, Any]]) -> None:
    names = [(one["value"] or "none named")[:NAME_SHOWN] for one in sources]
    start = [0] * len(sources)
    for label, hatch in (("human", ""), ("ai", "//")):
        rows = [one[label] for one in sources]
        style = {"color": COLOURS[label], "hatch": hatch, "edgecolor": "white"}
        axis.barh(range(len(sources)), rows, left=start, label=label, **style)
        start = [a + b for a, b in zip(start, rows, strict=True)]
    axis.set_yticks(range(len(sources)), names, fontsize=7.5)
    axis.invert_yaxis()
    axis.set(xlabel="rows")
    name_above(axis)


def _lengths(axis: Axes, lengths: list[Mapping[str, Any]]) -> None:
    for one in lengths:
        if one["of"] == "lines":
            style = "-" if one["label"] == "human" else "--"
            share = [k / 10 for k in range(11)]
            axis.plot(
                [max(n, 1) for n in one["tenths"]],
                share,
                style,
                label=one["label"],
                color=COLOURS[one["label"]],
            )
    axis.set(xlabel="lines", ylabel="share of the programs", xscale="log", ylim=(0, 1.02))
    plain_ticks(axis.xaxis)
    name_above(axis)


# ------------------------------------------------------------------------------------------------
# `audit(data)`: the audit of detection data as a notebook shows it, with tables and a figure.


FIRST_TABLES = ("classes", "tags", "templates", "features", "duplicates", "source")


class Audit(Measured):
    """An audit that shows itself: verdict, reasons, warnings, a figure and every table."""

    __slots__ = ()

    def figure(self) -> Figure | None:
        """Draw single features, sources and lengths; None without rows of both classes."""
        return audit_figure(self.facts)

    def save_page(self, path: str | Path) -> Path:
        """Write the audit as one HTML page and return where."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._page(f"Audit of {self.facts['source']}"), "utf-8")
        return path

    def _repr_html_(self) -> str:
        return self._page()

    def _page(self, page_title: str = "") -> str:
        drawn = self.figure()
        images = {} if drawn is None else {"audit": png(drawn)}
        return as_html(self._summary(), self._blocks(), images, page_title=page_title)

    def _summary(self) -> Summary:
        if self.is_hopeless:
            verdict = "A detector trained on these data would measure something else."
        else:
            verdict = "Nothing that was looked for makes these data useless."
        rows = {label: n for label, n in self.facts["classes"].items() if n}
        return Summary(
            title=repr(self),
            verdict=verdict,
            alarms=self.reasons,
            figures=[KeyFigure(f"{label} rows", count(n)) for label, n in rows.items()],
            picture=Picture("audit", CAPTION, self.figure),
        )

    def _blocks(self) -> list[Block]:
        frames = self.tables
        first = [_table(name, frames[name]) for name in FIRST_TABLES if name in frames]
        rest = [_table(name, frames[name]) for name in frames if name not in FIRST_TABLES]
        warned = Section("Warnings", texts(self.warnings), "warnings", is_open=True)
        read = Section("What was read", texts(self.read), "read", is_open=True)
        return [warned, read, *first, Section("All other tables", rest, "rest")]


def _table(name: str, frame: pd.DataFrame) -> Section:
    rows = [
        {key: None if value != value else value for key, value in row.items()}
        for row in frame.to_dict("records")
    ]
    return Section(TITLES[name], [Table(name, rows)], name, is_open=name == "classes")


def audit(
    data: Any,
    *,
    revision: str | None = None,
    canonical: str = "text",
    known_humans: Any = None,
) -> Audit:
    """Look at detection data without training anything, and say whether they can train a detector.

    The arguments and errors are those of `nbhelpers.data.audit.audit`.

    Returns:
        The audit; `require_usable()` stops where the data are hopeless.
    """
    findings = measure(data, revision=revision, canonical=canonical, known_humans=known_humans)
    return Audit.from_dict(findings.to_dict())
