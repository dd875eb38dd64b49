"""The figures of a report: drawn from the facts, for eyes that mix up red and green as well."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.common.formatting import GIB, MIB
from nbhelpers.common.result_files import (
    Lengths,
    Memory,
    PhaseMemory,
    Result,
    Split,
    Step,
    Training,
)
from nbhelpers.metrics.registry import BASELINES, FINETUNE_SCORES, TITLES
from nbhelpers.reports.facts import RunFacts

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Each maker returns a matplotlib figure, or None when the run holds nothing to draw. Figures are
# built without pyplot, so that no backend and no global state is involved. Colours: Okabe and Ito.
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
YELLOW, SKY, BLACK = "#E69F00", "#56B4E9", "#222222"
DASHES = ("-", "--", ":", "-.")
FEW_POINTS = 12  # each of which is marked
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY)
# What is no cause of memory: its colour, in every figure.
PREDICTED, MEASURED = "#AAAAAA", BLACK
CLASSES = {"clone": BLUE, "not a clone": ORANGE, "AI": BLUE, "human": ORANGE}
MODEL = "this model"
# Colour and mark of a scorer, in every figure.
SCORERS = {
    **dict.fromkeys((MODEL,), (BLUE, "o")),
    **dict.fromkeys(("always_yes", "length"), (ORANGE, "s")),
    **dict.fromkeys(("identifier_overlap", "layout"), (GREEN, "^")),
    **dict.fromkeys(("tfidf_mlp", "tfidf"), (PURPLE, "D")),
    "masked_tfidf": (GREY, "P"),
    **dict.fromkeys(("encoder", "raw_encoder"), (YELLOW, "v")),
}
MAX_POINTS = 2000  # of a line, which is less than a pixel wide between them
BUDGET = "budget before the run"
HEIGHT = 0.38  # of a bar; two stand side by side
FAR = 4  # times what is drawn: a card this much larger would leave bars of no width
# A cause of memory keeps its colour and hatch in every figure; what is not named takes the rest.
# Estimates of 0.1.0 wrote `loss` and `workspaces`.
CAUSES: dict[str, tuple[str, str]] = {
    "weights": (BLUE, ""),
    "adapters": (SKY, ""),
    "gradients": (ORANGE, ""),
    "optimizer": (YELLOW, ""),
    "activations": (GREEN, ""),
    "logits and loss": (PURPLE, ""),
    "loss": (PURPLE, ""),
    "attention": (GREEN, "//"),
    "workspace": (GREY, ""),
    "workspaces": (GREY, ""),
    "communication": (ORANGE, "//"),
    "inputs": (SKY, "//"),
    "temporaries": (YELLOW, "//"),
    "cached casts": (BLUE, "//"),
    "context": (GREY, "//"),
}
OTHERS = tuple((colour, hatch) for hatch in ("..", "xx") for colour in (BLUE, GREEN, PURPLE, SKY))


def save_figures(folder: Path, figures: Mapping[str, Figure | None]) -> dict[str, Path]:
    """Write each figure that could be drawn as NAME.png and return name → file."""
    saved = {}
    for name, figure in figures.items():
        if figure is not None:
            saved[name] = folder / f"{name}.png"
            figure.savefig(saved[name], dpi=110, metadata={"Software": None})
    return saved


def png(figure: Figure) -> bytes:
    """Return a figure as a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100, facecolor="white", metadata={"Software": None})
    return file.getvalue()


def panels(
    n: int, *, height: float = 3.4, columns: int = 2, ratios: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """Return a figure with n axes in rows of at most `columns`.

    `height` is the mean one of a row, in inches; `ratios` are those of the rows' heights.
    """
    from matplotlib.figure import Figure

    columns = min(n, columns)
    rows = -(-n // columns)
    size = (4.2 * columns if columns > 1 else 6.4, height * rows)
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, height_ratios=ratios).flat)
    for axis in axes[n:]:
        axis.remove()
    for axis in axes[:n]:
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes[:n]


def name_above(axis: Axes) -> None:
    """Put the legend above an axis whose bars and lines may lie anywhere."""
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}
    axis.legend(fontsize=7.5, ncols=2, frameon=False, **place)


def plain_ticks(*axes: Any) -> None:
    """Write 0.5 and 20 on logarithmic axes, not powers of ten, and no more than have room."""
    from matplotlib.ticker import FuncFormatter

    for axis in axes:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(FuncFormatter(_few))


def _few(value: float, _: int) -> str:
    """Label 2 and 5 between the powers of ten.

    >>> [_few(v, 0) for v in (2.0, 3.0, 50.0)]
    ['2', '', '50']
    """
    leading_digit = value / 10 ** math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:g}" if round(leading_digit, 6) in (2, 5) else ""


Points = list[tuple[float, float]]


def points(steps: Iterable[Step], name: str) -> Points:
    """Return (step, value) of what each step holds, itself or among its scores."""
    pairs = [(step.step, getattr(step, name, None), step.scores.get(name)) for step in steps]
    pairs = [(at, score if value is None else value) for at, value, score in pairs]
    return [(at, value) for at, value in pairs if at is not None and at >= 0 and value is not None]


def line_figure(
    axes_of: Iterable[tuple[str, Mapping[str, Points]]],
    *,
    tops: Mapping[str, float] | None = None,
    xlabel: str = "optimizer step",
) -> Figure | None:
    """Draw values by optimizer step, one axis for each title, a line for each name.

    Args:
        axes_of: Titles of the axes and their lines; what holds no point is left out.
        tops: The upper ends of axes, by title; others end where their values do.
        xlabel: What the values are drawn by.
    """
    drawn = [(title, {n: p for n, p in lines.items() if p}) for title, lines in axes_of]
    drawn = [(title, lines) for title, lines in drawn if lines]
    if not drawn:
        return None
    figure, axes = panels(len(drawn), columns=3)
    for axis, (title, lines) in zip(axes, drawn, strict=True):
        for at, (name, line) in enumerate(lines.items()):
            style = {"color": CYCLE[at % len(CYCLE)], "linestyle": DASHES[at // len(CYCLE) % 4]}
            marker = "o" if len(line) <= FEW_POINTS else ""
            axis.plot(*zip(*line, strict=True), label=plain(name), marker=marker, ms=4, **style)
        axis.set(xlabel=xlabel, ylabel=title)
        axis.set_ylim(bottom=0, top=(tops or {}).get(title))
        if len(lines) > 1:
            axis.legend(fontsize=7.5, loc="best")
    return figure


class Bar(NamedTuple):
    """A value with its interval in a figure."""

    title: str
    value: float
    edges: Sequence[float | None] | None = None


def interval_figure(
    bars_of: Mapping[str, Sequence[Bar]],
    *,
    xlabel: str = "",
    limits: Any = None,
    lines: Mapping[str, float | None] | None = None,
) -> Figure | None:
    """Draw each value as a point with its interval, the first on top; one axis for each title.

    Args:
        bars_of: The bars by title; equal ones are named on the first axis alone.
        xlabel: What the values are.
        limits: Of every axis; None: as its values are.
        lines: Where a line is drawn across, by title.
    """
    drawn = {title: bars for title, bars in bars_of.items() if bars}
    if not drawn:
        return None
    most = max(map(len, drawn.values()))
    figure, axes = panels(len(drawn), height=0.9 + 0.3 * most, columns=3)
    names = [[plain(bar.title) for bar in bars] for bars in drawn.values()]
    for axis, own, (title, bars) in zip(axes, names, drawn.items(), strict=True):
        for at, bar in enumerate(bars):
            if bar.edges and None not in bar.edges:
                axis.plot(bar.edges, [at, at], color=BLUE, linewidth=2, solid_capstyle="butt")
            axis.plot([bar.value], [at], color=BLACK, marker="o", markersize=5)
        shown = own if axis is axes[0] or own != names[0] else [""] * len(own)
        axis.set_yticks(range(len(bars)), shown, fontsize=8)
        axis.set_ylim(len(bars) - 0.5, -0.5)
        axis.set_title(title, fontsize=9)
        axis.set(xlim=limits, xlabel=xlabel)
        if (across := (lines or {}).get(title)) is not None:
            axis.axvline(across, color=BLACK, linestyle="--", linewidth=1)
    return figure


def plain(text: str) -> str:
    """Return a text that a figure shows as it is: `$` begins no formula, nothing is invisible."""
    return "".join(c if c.isprintable() else "?" for c in text[:60]).replace("$", r"\$")


SCORE_ON_VALID = "score on valid"


def loss_figure(
    training: Training, losses: Mapping[str, str], scores: Mapping[str, str]
) -> Figure | None:
    """Draw losses on train and valid, each on its axis, and scores on valid while training.

    Args:
        training: The logged steps and the evaluations.
        losses: Their names and the titles of their axes.
        scores: Names and titles.
    """
    steps = {"train": training.history, "valid": training.evals}
    axes_of = [
        (title, {split: points(rows, name) for split, rows in steps.items()})
        for name, title in losses.items()
    ]
    valid = {title: points(training.evals, name) for name, title in scores.items()}
    return line_figure([*axes_of, (SCORE_ON_VALID, valid)], tops={SCORE_ON_VALID: 1.02})


def finetune_scores(result: Result) -> Figure | None:
    """Draw every score that is a share, with its interval; BLEU and chrF divided by 100."""
    bars = []
    for split, scores in result.scores.items():
        for name in FINETUNE_SCORES.names(split):
            value, top = scores.metrics.get(name), FINETUNE_SCORES.metric(name).maximum
            if value is None or top is None:
                continue
            edges = [None if e is None else e / top for e in scores.intervals.get(name) or ()]
            title = f"{TITLES.get(split, split)}: {TITLES.get(name, name)}"
            bars.append(Bar(title, value / top, edges))
    return interval_figure({"": bars}, xlabel="score", limits=(0, 1.02))


def study_cost(runs: Mapping[str, tuple[float | None, ...]]) -> Figure | None:
    """Draw predicted and measured peak bytes, and seconds, of each run by its name."""
    runs = {name: values for name, values in runs.items() if any(values)}
    if not runs:
        return None
    columns = zip(*runs.values(), strict=True)
    predicted, measured, seconds = ([value or 0 for value in column] for column in columns)
    unit, unit_name = size_unit(max(*predicted, *measured))
    per, title = (60, "min") if max(seconds) >= 600 else (1, "s")
    figure, (left, right) = panels(2, height=1.2 + 0.4 * len(runs))
    for shift, name, colour, sizes in (
        (-1, "predicted", PREDICTED, predicted),
        (1, "measured", MEASURED, measured),
    ):
        at = [row + shift * HEIGHT / 2 for row in range(len(runs))]
        left.barh(at, [s / unit for s in sizes], height=HEIGHT, color=colour, label=name)
    left.set(xlabel=f"peak memory ({unit_name})")
    name_above(left)
    right.barh(range(len(runs)), [s / per for s in seconds], color=MEASURED)
    right.set(xlabel=f"time of the run ({title})")
    for axis in (left, right):
        axis.set_yticks(range(len(runs)), [plain(name) for name in runs], fontsize=8)
        axis.set_ylim(len(runs) - 0.5, -0.5)
    return figure


def size_unit(largest_bytes: float) -> tuple[int, str]:
    """Return the unit in which a figure shows sizes, and its name."""
    return (GIB, "GiB") if largest_bytes >= GIB else (MIB, "MiB")


def lengths_figure(lengths: Lengths) -> Figure | None:
    """Draw the histogram of sample lengths against the length at which samples are cut."""
    edges, counts = lengths.edges, lengths.counts
    if not counts or len(edges) != len(counts) + 1 or None in edges or sorted(edges) != edges:
        return None
    figure, (axis,) = panels(1, height=2.8)
    widths = [high - low for low, high in pairwise(edges)]
    axis.bar(edges[:-1], counts, width=widths, align="edge", color=BLUE, edgecolor="white")
    if lengths.seq_len is not None:
        cut = "" if lengths.cut_share is None else f", {lengths.cut_share:.1%} cut"
        label = f"seq_len {lengths.seq_len:g}{cut}"
        axis.axvline(lengths.seq_len, color=BLACK, linestyle="--", linewidth=1, label=label)
        name_above(axis)
    axis.set(xlabel="tokens (prompt and answer)", ylabel="train samples")
    return figure


@lru_cache(maxsize=1)
def _predictions(facts: RunFacts) -> tuple[np.ndarray, np.ndarray] | None:
    """Return labels and probabilities of the test pairs, or None without both classes."""
    import numpy as np

    from nbhelpers.metrics.predictions import read_predictions

    path = facts.run.predictions_path
    if not path.is_file():
        return None
    columns = read_predictions(path, split="test", fields=("label", "p"))
    labels, p = np.array(columns["label"], dtype=np.int64), np.array(columns["p"], dtype=float)
    return (labels, p) if 0 < labels.sum() < len(labels) else None


def curves_figure(facts: RunFacts) -> Figure | None:
    """Draw precision against recall and the ROC curve on test."""
    import numpy as np

    pairs = _predictions(facts)
    if pairs is None:
        return None
    labels, p = pairs
    order = np.argsort(-p, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(p[order]) != 0, True))
    tp = np.cumsum(labels[order])[ends]
    called, positives = ends + 1, labels.sum()
    recall, false_rate = tp / positives, (called - tp) / (len(labels) - positives)
    test = facts.result.scores.get("test", Split())
    figure, (left, right) = panels(2, height=3.8)
    left.plot(*thinned(recall, tp / called), color=BLUE, label=_area("this model", test, "pr_auc"))
    left.axhline(positives / len(labels), color=GREY, linestyle=":", label="share of clones")
    left.set(xlabel="recall", ylabel="precision", xlim=(0, 1.02), ylim=(0, 1.02))
    roc = _area("this model", test, "roc_auc")
    right.plot(*thinned(np.append(0, false_rate), np.append(0, recall)), color=BLUE, label=roc)
    right.plot([0, 1], [0, 1], color=GREY, linestyle=":", label="chance")
    right.set(xlabel="false positive rate", ylabel="recall", xlim=(-0.02, 1.02), ylim=(0, 1.02))
    _mark_baselines(left, right, test, prior=positives / len(labels))
    for axis in (left, right):
        axis.legend(fontsize=7.5, loc="lower right" if axis is right else "lower left")
    return figure


def _mark_baselines(left: Axes, right: Axes, test: Split, *, prior: float) -> None:
    for name, values in test.floors.items():
        precision, recall = values.precision, values.recall
        if not precision or recall is None:
            continue
        false_rate = prior * recall * (1 - precision) / (precision * (1 - prior))
        style = mark_of(name)
        left.plot([recall], [precision], label=BASELINES.get(name, name), **style)
        right.plot([false_rate], [recall], label=BASELINES.get(name, name), **style)


def mark_of(scorer: str) -> dict[str, Any]:
    """Return how the mark of a scorer is drawn."""
    colour, mark = SCORERS.get(scorer, (GREY, "x"))
    style = {"color": colour, "marker": mark, "linestyle": "none"}
    return style | {"clip_on": False, "zorder": 3}  # whole, also at the edge of its axis


def _area(name: str, scores: Split, metric: str) -> str:
    value = scores.orders.get("given", {}).get(metric)
    title = "average precision" if metric == "pr_auc" else "area"
    return name if value is None else f"{name} ({title} {value:.3f})"


def thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keep at most MAX_POINTS points, the first and the last among them."""
    import numpy as np

    if len(x) <= MAX_POINTS:
        return x, y
    keep = np.unique(np.linspace(0, len(x) - 1, MAX_POINTS).astype(int))
    return x[keep], y[keep]


def scores_figure(facts: RunFacts) -> Figure | None:
    """Draw the scores of clones and others, and the reliability of a score."""
    import numpy as np

    pairs = _predictions(facts)
    if pairs is None:
        return None
    labels, p = pairs
    which = np.clip(np.digitize(p, np.linspace(0, 1, 11)) - 1, 0, 9)
    full = np.unique(which)
    means = [(p[which == one].mean(), labels[which == one].mean()) for one in full]
    return probability_figure(
        {"clone": p[labels == 1], "not a clone": p[labels == 0]},
        {"test, tenths": means},
        words=("probability of a clone", "test pairs", "share that are clones"),
        threshold=facts.result.threshold.value,
    )


def probability_figure(
    classes: Mapping[str, np.ndarray],
    curves: Mapping[str, Points],
    *,
    words: tuple[str, str, str],
    threshold: float | None,
    band: Sequence[float | None] | None = None,
) -> Figure | None:
    """Draw the probabilities of each class, and how often what has a probability is positive.

    Args:
        classes: Probabilities by the name of a class.
        curves: Points of a probability and a share, by name.
        words: What a probability is of, what is counted, and what the shares are.
        threshold: Above it a class is called.
        band: Probabilities that are left undecided.
    """
    import numpy as np

    classes = {name: p for name, p in classes.items() if len(p)}
    if not classes and not curves:
        return None
    figure, axes = panels(bool(classes) + bool(curves))
    probability, counted, shares = words
    if classes:
        for (name, p), hatch in zip(classes.items(), ("", "//"), strict=False):
            style = {"color": CLASSES[name], "alpha": 0.55, "hatch": hatch, "edgecolor": "white"}
            axes[0].hist(p, bins=np.linspace(0, 1, 26), label=name, **style)
        if band and None not in band:
            axes[0].axvspan(*band, color=GREY, alpha=0.2, label="undecided")
        if threshold is not None:
            style = {"color": BLACK, "linestyle": "--", "linewidth": 1, "label": "threshold"}
            axes[0].axvline(threshold, **style)
        axes[0].set(xlabel=probability, ylabel=counted, yscale="log", xlim=(0, 1))
        plain_ticks(axes[0].yaxis)
    if curves:
        axes[-1].plot([0, 1], [0, 1], color=GREY, linestyle=":", label="perfectly calibrated")
        for at, (name, line) in enumerate(curves.items()):
            style = {"color": CYCLE[at % len(CYCLE)], "marker": "o", "markersize": 4}
            axes[-1].plot(*zip(*line, strict=True), label=name, **style)
        axes[-1].set(xlabel=probability, ylabel=shares, xlim=(0, 1), ylim=(-0.02, 1.02))
    for axis in axes:
        name_above(axis)
    return figure


def memory_caption(facts: RunFacts) -> str:
    """Return what the figure of memory shows."""
    memory, text = facts.result.memory, "The measured peak of memory."
    if memory.predicted_lines:
        text = (
            "Memory predicted for the largest batch of the data, by part, beside the measured "
            "peak. Thin: the budget before the run, for the longest possible batch."
        )
    elif facts.budget.lines:
        text = (
            "The budget before the run by part, for the longest possible batch, beside the "
            "measured peak."
        )
    return f"{text} Below: the peak of each phase." if memory.phases else text


def memory_figure(facts: RunFacts) -> Figure | None:
    """Draw the predicted parts beside the measured peaks; below, both by phase.

    Without a prediction for the data, the parts are those of the budget and are named so.
    """
    memory, budget = facts.result.memory, facts.budget
    predicted = [line for line in memory.predicted_lines if line.size_bytes]
    parts = predicted or [line for line in budget.lines if line.size_bytes]
    bars, phases = _measured_bars(memory), [p for p in memory.phases if p.measured_bytes]
    if not parts and not bars:
        return None
    whole = budget.total_bytes if predicted else None
    sizes = [sum(line.size_bytes for line in parts), whole or 0, *bars.values()]
    unit, name = size_unit(max([*sizes, *(p.predicted_bytes or 0 for p in phases)]))
    rows = 1 + len(bars) + bool(whole)
    figure, axes = panels(
        1 + bool(phases),
        height=1.3 + 0.2 * (rows + len(phases)),
        columns=1,
        ratios=[rows + 1, len(phases) + 1] if phases else None,
    )
    stack(axes[0], "predicted" if predicted else BUDGET, parts, unit, styles_of(parts))
    if whole:
        axes[0].barh(BUDGET, whole / unit, height=0.25, color=PREDICTED)
    for title, size in bars.items():
        axes[0].barh(title, size / unit, color=MEASURED)
    if budget.capacity_bytes and budget.capacity_bytes <= FAR * max(sizes):
        style = {"color": BLACK, "linestyle": "--", "linewidth": 1, "label": "capacity"}
        axes[0].axvline(budget.capacity_bytes / unit, **style)
    axes[0].invert_yaxis()
    handles = axes[0].get_legend_handles_labels()
    if phases:
        _draw_phases(axes[1], phases, unit)
    axes[-1].set(xlabel=f"memory ({name})")
    figure.legend(*handles, fontsize=7.5, ncols=4, loc="outside lower left")
    return figure


def styles_of(lines: Iterable[Any]) -> dict[str, tuple[str, str]]:
    """Return colour and hatch of every cause that is drawn, in order of appearance."""
    names = dict.fromkeys(line.name for line in lines if (line.size_bytes or 0) > 0)
    odd = [name for name in names if name not in CAUSES]
    rest = {name: OTHERS[at % len(OTHERS)] for at, name in enumerate(odd)}
    return {name: CAUSES.get(name) or rest[name] for name in names}


def stack(
    axis: Axes, row: Any, lines: Iterable[Any], unit: int, styles: Mapping[str, tuple[str, str]]
) -> float:
    """Draw lines of a budget, each with name and bytes, as one bar; return where it ends."""
    start = 0.0
    for line in lines:
        if (line.size_bytes or 0) <= 0:
            continue
        (colour, hatch), width = styles[line.name], line.size_bytes / unit
        style = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.6}
        axis.barh(row, width, left=start, height=0.62, label=line.name, **style)
        start += width
    return start


def _draw_phases(axis: Axes, phases: Sequence[PhaseMemory], unit: int) -> None:
    for at, phase in enumerate(phases):
        measured = phase.measured_bytes / unit
        predicted = (phase.predicted_bytes or 0) / unit
        axis.barh(at + HEIGHT / 2, measured, height=HEIGHT, color=MEASURED)
        axis.barh(at - HEIGHT / 2, predicted, height=HEIGHT, color=PREDICTED)
        if phase.error_percent is not None:
            text = f" {phase.error_percent:+.1f} %"
            axis.annotate(text, (measured, at + HEIGHT / 2), va="center", fontsize=8)
    axis.set_yticks(range(len(phases)), [str(phase.phase) for phase in phases])
    axis.invert_yaxis()
    axis.margins(x=0.12)
    has_prediction = any(phase.predicted_bytes for phase in phases)
    title = ": predicted (light) and measured (dark)" * has_prediction
    axis.set_title(f"peak of each phase{title}", fontsize=9)


def _measured_bars(memory: Memory) -> dict[str, float]:
    ranks = [rank for rank in memory.per_rank if rank.peak_allocated_bytes]
    if len(ranks) > 1:
        return {f"measured, rank {at}": r.peak_allocated_bytes for at, r in enumerate(ranks)}
    return {"measured": memory.measured_bytes} if memory.measured_bytes else {}


def gpu_figure(facts: RunFacts) -> Figure | None:
    """Draw the utilisation of every GPU against the time since the first event."""
    series: dict[str, Points] = {}
    for event in facts.of_type("gpu"):
        for gpu in event.get("gpus") or []:
            busy = gpu.get("utilisation_percent")
            if busy is not None:
                minutes = (event["t"] - facts.events[0]["t"]) / 60
                series.setdefault(f"GPU {gpu.get('index', 0)}", []).append((minutes, busy))
    title = "GPU utilisation (%)"
    lines = [(title, dict(sorted(series.items())))]
    return line_figure(lines, tops={title: 105}, xlabel="time since start (min)")
