"""Figures of budgets: bars by cause with the card's line, grids of what fits, the calibration.

Every figure carries its own light background, so it reads the same on a dark page, and says in
text what its colours say. Colours: Okabe and Ito.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbhelpers.budget.memory import DOES_NOT_FIT, FITS, NO_GPU, TIGHT, MemoryBudget
from nbhelpers.reports.figures import (
    BLACK,
    CYCLE,
    GREEN,
    GREY,
    name_above,
    panels,
    plain_ticks,
    size_unit,
    stack,
    styles_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from nbhelpers.budget.search import BudgetGrid

BAR_INCHES, MARGIN_INCHES = 0.55, 1.35
# Cells of a grid: light enough for black text, apart for every kind of colour vision.
CELLS = {FITS: "#A6DDC8", TIGHT: "#F6D68A", DOES_NOT_FIT: "#EDA27A", NO_GPU: "#DDDDDD"}
HATCHES = {TIGHT: "..", DOES_NOT_FIT: "//"}
WITHIN = 0.01  # of the measured peak: the band of a calibration plot


def budget_bars(budgets: MemoryBudget | Mapping[str, MemoryBudget]) -> Figure | None:
    """Draw one stacked bar per budget by cause, with a line at what its card has.

    What others hold of the card stands behind the need, as causes of its own.

    Args:
        budgets: One budget, or several by name.

    Returns:
        The figure; None where no budget holds anything.
    """
    named = {"": budgets} if isinstance(budgets, MemoryBudget) else dict(budgets)
    if not any(budget.total_bytes for budget in named.values()):
        return None
    largest = max(max(b.total_bytes, b.capacity_bytes or 0) for b in named.values())
    unit, name = size_unit(largest)
    figure, (axis,) = panels(1, height=MARGIN_INCHES + BAR_INCHES * len(named))
    figure.set_size_inches(8.2, MARGIN_INCHES + BAR_INCHES * len(named))
    styles = styles_of(line for b in named.values() for line in (*b.lines, *b.held))
    for row, budget in enumerate(named.values()):
        end = stack(axis, row, (*budget.lines, *budget.held), unit, styles)
        text = f"  {budget.total_bytes / unit:.1f}: {budget.verdict}"
        axis.text(end, row, text, va="center", fontsize=8, color=BLACK)
        _card_line(axis, row, budget, unit=unit, first=row == 0)
    axis.set_yticks(range(len(named)), [_wrapped(label) for label in named])
    axis.set(xlabel=f"memory of one process ({name})", xlim=(0, 1.3 * largest / unit))
    axis.set_ylim(len(named) - 0.45, -0.55)
    _legend(figure, axis)
    return figure


def _card_line(axis: Axes, row: int, budget: MemoryBudget, *, unit: int, first: bool) -> None:
    """The card's memory as a line across the bar, with its size where it is first drawn."""
    if not budget.capacity_bytes:
        return
    at = budget.capacity_bytes / unit
    label = "what the card has" if first else None
    axis.vlines(at, row - 0.42, row + 0.42, colors=BLACK, linestyles="--", label=label)
    axis.text(at, row - 0.4, f"card {at:.1f}", ha="center", va="bottom", fontsize=7, color=BLACK)


def _legend(figure: Figure, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(
        once.values(), once.keys(), fontsize=7.5, ncols=5, loc="outside lower left", frameon=False
    )


def _wrapped(text: str, width: int = 22) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width)) or text


def verdict_grid(grids: Sequence[BudgetGrid]) -> Figure | None:
    """Draw what fits: a table of micro-batch x length for every job and method.

    Each cell holds its GiB and its verdict as a word; `~` marks a figure between simulated ones,
    `?` an estimate.

    Returns:
        The figure; None without a grid.
    """
    if not grids:
        return None
    height = 0.9 + 0.42 * max(len(grid.batches) for grid in grids)
    figure, axes = panels(len(grids), height=height, columns=2)
    figure.set_size_inches(6.2 * min(len(grids), 2), height * -(-len(grids) // 2))
    for axis, grid in zip(axes, grids, strict=True):
        _draw_grid(axis, grid)
    return figure


def _draw_grid(axis: Axes, grid: BudgetGrid) -> None:
    from matplotlib.patches import Rectangle

    axis.grid(False)
    batches, lengths = grid.batches, grid.lengths
    for cell in grid.cells:
        x, y = lengths.index(cell.seq_len), batches.index(cell.batch)
        verdict = cell.budget.verdict if cell.budget else NO_GPU
        style = {"facecolor": CELLS.get(verdict, "#DDDDDD"), "edgecolor": "white"}
        axis.add_patch(Rectangle((x, y), 1, 1, hatch=HATCHES.get(verdict, ""), **style))
        text = axis.text(x + 0.5, y + 0.5, cell.text, ha="center", va="center", fontsize=8)
        text.set_bbox({"facecolor": style["facecolor"], "edgecolor": "none", "pad": 1.2})
    axis.set_xlim(0, len(lengths))
    axis.set_ylim(len(batches), 0)
    axis.set_xticks([x + 0.5 for x in range(len(lengths))], map(str, lengths))
    axis.set_yticks([y + 0.5 for y in range(len(batches))], map(str, batches))
    axis.tick_params(length=0, labelsize=8)
    axis.set_xlabel("length (tokens)", fontsize=8)
    axis.set_ylabel(f"{grid.unit} at once", fontsize=8)
    axis.set_title(grid.title, fontsize=9, loc="left")
    for side in axis.spines.values():
        side.set_visible(False)


def calibration_plot(rows: Iterable[Mapping[str, Any]]) -> Figure | None:
    """Draw predicted against measured peaks, and the error of each in per cent.

    Args:
        rows: Lines of the log of predictions; those with both numbers are drawn, by job and card.

    Returns:
        The figure; None where no row holds both.
    """
    whole = [row for row in rows if row.get("measured_bytes") and row.get("predicted_bytes")]
    if not whole:
        return None
    largest = max(row["measured_bytes"] for row in whole)
    unit, name = size_unit(largest)
    points: dict[str, list[tuple[float, float]]] = {}
    for row in whole:
        group = " on ".join(str(row[key]) for key in ("job", "gpu") if row.get(key)) or "run"
        pair = row["measured_bytes"] / unit, row["predicted_bytes"] / unit
        points.setdefault(group, []).append(pair)
    figure, (left, right) = panels(2, height=3.2)
    for at, (group, pairs) in enumerate(sorted(points.items())):
        style = {"color": CYCLE[at % len(CYCLE)], "marker": "os^D"[at % 4], "linestyle": "none"}
        measured = [m for m, _ in pairs]
        left.plot(measured, [p for _, p in pairs], markersize=5, label=group, **style)
        right.plot(measured, [100 * (p - m) / m for m, p in pairs], markersize=5, **style)
    _calibration_axes(left, right, [pair for pairs in points.values() for pair in pairs], unit=name)
    return figure


def _calibration_axes(
    left: Axes, right: Axes, points: list[tuple[float, float]], *, unit: str
) -> None:
    values = [value for pair in points for value in pair]
    low, high = 0.8 * min(values), 1.25 * max(values)
    left.plot([low, high], [low, high], color=GREY, linewidth=1, label="predicted is measured")
    left.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    left.set(xlabel=f"measured peak ({unit})", ylabel=f"predicted peak ({unit})")
    name_above(left)
    right.axhspan(-100 * WITHIN, 100 * WITHIN, color=GREEN, alpha=0.2, label="within 1 %")
    right.axhline(0, color=GREY, linewidth=1)
    most = max(2.0, *(abs(100 * (p - m) / m) for m, p in points))
    right.set(xscale="log", xlabel=f"measured peak ({unit})", ylabel="error (%)")
    right.set_ylim(-1.2 * most, 1.2 * most)
    name_above(right)
    plain_ticks(left.xaxis, left.yaxis, right.xaxis)
