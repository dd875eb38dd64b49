"""The figure of an audit: single features, sources and lengths by class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nbhelpers.plots import BLACK, BLUE, GREY, ORANGE, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTION = (
    "Left: how well one feature tells the label (0.5 is chance). Middle: rows by source. Right: "
    "lines per program, by share of the class."
)
COLOURS = {"human": BLUE, "ai": ORANGE}
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


def _features(axis: Axes, found: list[Mapping[str, Any]]) -> None:
    names = [one["feature"].replace("_", " ") for one in found]
    at = range(len(found))
    axis.barh([y - 0.2 for y in at], [one["raw"] for one in found], 0.4, color=GREY, label="raw")
    clean = [one["canonical"] for one in found]
    axis.barh(
        [y + 0.2 for y in at],
        clean,
        0.4,
        color=BLUE,
        hatch="//",
        edgecolor="white",
        label="canonical",
    )
    axis.axvline(0.99, color=BLACK, linestyle="--", linewidth=1, label="hopeless")
    axis.set_yticks(list(at), names, fontsize=7.5)
    axis.invert_yaxis()
    axis.set(xlabel="area under the ROC curve", xlim=(0.5, 1.0))
    axis.legend(fontsize=7, loc="lower right")


def _sources(axis: Axes, found: list[Mapping[str, Any]]) -> None:
    names = [(one["value"] or "none named")[:NAME_SHOWN] for one in found]
    start = [0] * len(found)
    for label, hatch in (("human", ""), ("ai", "//")):
        rows = [one[label] for one in found]
        style = {"color": COLOURS[label], "hatch": hatch, "edgecolor": "white"}
        axis.barh(range(len(found)), rows, left=start, label=label, **style)
        start = [a + b for a, b in zip(start, rows, strict=True)]
    axis.set_yticks(range(len(found)), names, fontsize=7.5)
    axis.invert_yaxis()
    axis.set(xlabel="rows")
    axis.legend(fontsize=7)


def _lengths(axis: Axes, found: list[Mapping[str, Any]]) -> None:
    for one in found:
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
    axis.legend(fontsize=7, loc="lower right")
