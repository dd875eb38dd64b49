"""Figures of predicted beside measured memory: by phase of one run, and of all runs of the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbhelpers.formatting import GIB
from nbhelpers.report_facts import RunFacts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEIGHT = 0.38  # of a bar; two stand side by side


def phases_figure(facts: RunFacts) -> Figure | None:
    """Draw the peak of each phase, predicted beside measured."""
    from nbhelpers.plots import BLACK, BLUE, GREY, panels

    rows = [r for r in facts.get("memory", "phases") or [] if r.get("measured_bytes")]
    if not rows:
        return None
    most = max(max(r["measured_bytes"], r.get("predicted_bytes") or 0) for r in rows)
    unit, name = (GIB, "GiB") if most >= GIB else (2**20, "MiB")
    figure, (axis,) = panels(1, height=1.4 + 0.35 * len(rows))
    for at, row in enumerate(rows):
        axis.barh(at + HEIGHT / 2, row["measured_bytes"] / unit, height=HEIGHT, color=GREY)
        if row.get("predicted_bytes"):
            size = row["predicted_bytes"] / unit
            axis.barh(at - HEIGHT / 2, size, height=HEIGHT, color=BLUE)
        if row.get("error_percent") is not None:
            text = f" {row['error_percent']:+.1f} %"
            axis.annotate(text, (row["measured_bytes"] / unit, at + HEIGHT / 2), va="center")
    axis.set_yticks(range(len(rows)), [str(row.get("phase")) for row in rows])
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set(xlabel=f"peak memory ({name})")
    _legend(axis, {"predicted": BLUE, "measured": GREY}, BLACK)
    return figure


def _legend(axis: Any, colours: Mapping[str, str], edge: str) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=name) for name, colour in colours.items()]
    axis.legend(handles=handles, fontsize=7.5, loc="lower right", labelcolor=edge)


def calibration_figure(data: Mapping[str, Sequence[Any]]) -> Figure | None:
    """Draw the runs of the calibration log: predicted against measured, and the errors in order.

    Args:
        data: From `calibration.plot_data`.
    """
    from nbhelpers.plots import CYCLE, GREY, panels

    if not data["predicted_mib"]:
        return None
    figure, (left, right) = panels(2, height=3.6)
    most = max(*data["predicted_mib"], *data["measured_mib"])
    unit, name = (1024, "GiB") if most >= 1024 else (1, "MiB")
    groups = list(dict.fromkeys(zip(data["job"], data["gpu"], strict=True)))
    for at, group in enumerate(groups):
        pairs = enumerate(zip(data["job"], data["gpu"], strict=True))
        rows = [i for i, pair in pairs if pair == group]
        style = {"color": CYCLE[at % len(CYCLE)], "marker": "os^D"[at % 4], "linestyle": "none"}
        x, y = ([data[f"{n}_mib"][i] / unit for i in rows] for n in ("measured", "predicted"))
        left.plot(x, y, label=" on ".join(str(part) for part in group), **style)
        right.plot(rows, [data["error_percent"][i] for i in rows], **style)
    left.axline((0, 0), slope=1, color=GREY, linestyle=":")
    left.set(xlabel=f"measured ({name})", ylabel=f"predicted ({name})")
    left.set_xscale("log")
    left.set_yscale("log")
    right.axhline(0, color=GREY, linestyle=":")
    right.set(xlabel="run, by time", ylabel="error of the prediction (%)")
    left.legend(fontsize=7.5)
    return figure
