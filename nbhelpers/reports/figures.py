"""The figures of a report: drawn from the facts, for eyes that mix up red and green as well."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nbhelpers.common.formatting import GIB
from nbhelpers.presets.jobs import CLONES, JOBS, resolve
from nbhelpers.reports.facts import RunFacts, dig

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# ------------------------------------------------------------------------------------------------
# A figure of predicted beside measured memory, by phase.


PHASES_CAPTION = (
    "Peak memory of each phase: predicted, where there is a prediction, beside measured."
)
HEIGHT = 0.38  # of a bar; two stand side by side


def phases_figure(facts: RunFacts) -> Figure | None:
    """Draw the peak of each phase, predicted beside measured."""

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


# ------------------------------------------------------------------------------------------------
# The figures of a report: drawn from the facts, for eyes that mix up red and green as well.
#
# Each maker returns a matplotlib figure, or None when the run holds nothing to draw. Figures are
# built without pyplot, so that no backend and no global state is involved. Colours: Okabe and Ito.


BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
YELLOW, SKY, BLACK = "#E69F00", "#56B4E9", "#222222"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY)
BASELINES = {
    "always_yes": "always yes",
    "identifier_overlap": "identifier overlap",
    "tfidf_mlp": "TF-IDF classifier",
}
MARKS = {"always_yes": "s", "identifier_overlap": "^", "tfidf_mlp": "D"}
MAX_POINTS = 2000
BUDGET = "budget before the run"
CAPTIONS = {
    "loss": "Training loss per logged step, and F1 on valid while training.",
    "memory": "Memory predicted for the largest batch of the data, by part, beside the measured "
    "peak. Thin: the budget before the run, for the longest possible batch.",
    "gpu": "GPU utilisation over the run.",
    "memory_phases": PHASES_CAPTION,
}


BUDGET_CAPTION = (
    "The budget before the run by part, for the longest possible batch, beside the measured peak."
)


def caption(facts: RunFacts, name: str) -> str:
    """Return what a figure shows, in words."""
    own = _report_of(facts).captions()
    if name in own:
        return own[name]
    return memory_caption(facts) if name == "memory" else CAPTIONS[name]


def memory_caption(facts: RunFacts) -> str:
    """Return what the figure of memory shows."""
    if facts.predicted_lines:
        return CAPTIONS["memory"]
    return BUDGET_CAPTION if facts.budget else "The measured peak of memory."


def save_plots(facts: RunFacts) -> dict[str, Path]:
    """Draw what can be drawn into the run folder and return name → PNG file."""
    return save_figures(
        facts.run.path,
        _report_of(facts).figures(facts)
        | {"memory": memory_figure(facts), "gpu": gpu_figure(facts)}
        | {"memory_phases": phases_figure(facts)},
    )


def _report_of(facts: RunFacts) -> ModuleType:
    return resolve(JOBS.get(facts.job, CLONES).report)


def save_figures(folder: Path, figures: Mapping[str, Figure | None]) -> dict[str, Path]:
    """Write each figure that could be drawn as NAME.png and return name → file."""
    saved = {}
    for name, figure in figures.items():
        if figure is not None:
            saved[name] = folder / f"{name}.png"
            figure.savefig(saved[name], dpi=110, metadata={"Software": None})
    return saved


def panels(n: int, *, height: float = 3.4, columns: int = 2) -> tuple[Figure, list[Axes]]:
    """Return a figure with n axes in rows of at most `columns`; `height` is that of a row."""
    from matplotlib.figure import Figure

    columns = min(n, columns)
    rows = -(-n // columns)
    size = (4.2 * columns if n > 1 else 6.4, height * rows)
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[n:]:
        axis.remove()
    for axis in axes[:n]:
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes[:n]


def loss_figure(facts: RunFacts) -> Figure | None:
    """Draw loss by optimizer step and, where there were evaluations, F1 on valid."""
    history = [h for h in facts.get("training", "history") or [] if dig(h, "loss") is not None]
    evals = [
        (event["step"], f1)
        for event in facts.get("training", "evals") or []
        if (f1 := _eval_f1(event)) is not None and event.get("step", -1) >= 0
    ]
    if not history:
        return None
    figure, axes = panels(2 if evals else 1)
    axes[0].plot([h.get("step") for h in history], [h["loss"] for h in history], color=BLUE)
    axes[0].set(xlabel="optimizer step", ylabel="loss (mean cross-entropy per pair, nats)")
    axes[0].set_ylim(bottom=0)
    if evals:
        axes[1].plot(*zip(*evals, strict=True), color=ORANGE, marker="o", markersize=4)
        axes[1].set(xlabel="optimizer step", ylabel="F1 on valid (binary)", ylim=(0, 1.02))
    return figure


def _eval_f1(event: Any) -> float | None:
    f1 = dig(event, "scores", "f1")
    return f1 if f1 is not None else dig(event, "f1")


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


def curves_caption(facts: RunFacts) -> str:
    """Return what the curves show."""
    text = "Precision-recall and ROC curve on test, pairs as given; baselines at their thresholds."
    test = facts.result.scores.get("test")
    pairs = 0 if test is None else test.n_pairs or 0
    if pairs <= MAX_POINTS:
        return text
    thinned = f"Lines are drawn through {MAX_POINTS:,} points at most; areas are of all"
    return f"{text} {thinned} {pairs:,} pairs."


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
    test = facts.get("scores", "test") or {}
    figure, (left, right) = panels(2, height=3.8)
    left.plot(*thinned(recall, tp / called), color=BLUE, label=_area("this model", test, "pr_auc"))
    left.axhline(positives / len(labels), color=GREY, linestyle=":", label="share of clones")
    left.set(xlabel="recall", ylabel="precision", xlim=(0, 1.02), ylim=(0, 1.02))
    roc = _area("this model", test, "roc_auc")
    right.plot(*thinned(np.append(0, false_rate), np.append(0, recall)), color=BLUE, label=roc)
    right.plot([0, 1], [0, 1], color=GREY, linestyle=":", label="chance")
    right.set(xlabel="false positive rate", ylabel="recall", xlim=(-0.02, 1.02), ylim=(0, 1.02))
    _mark_floors(left, right, test, prior=positives / len(labels))
    for axis in (left, right):
        axis.legend(fontsize=7.5, loc="lower right" if axis is right else "lower left")
    return figure


def _mark_floors(left: Axes, right: Axes, test: Mapping[str, Any], *, prior: float) -> None:
    for colour, (name, values) in zip(CYCLE[1:], (test.get("floors") or {}).items(), strict=False):
        precision, recall = dig(values, "precision"), dig(values, "recall")
        if not precision or recall is None:
            continue
        false_rate = prior * recall * (1 - precision) / (precision * (1 - prior))
        style = {"color": colour, "marker": MARKS.get(name, "o"), "linestyle": "none"}
        left.plot([recall], [precision], label=BASELINES.get(name, name), **style)
        right.plot([false_rate], [recall], label=BASELINES.get(name, name), **style)


def _area(name: str, scores: Mapping[str, Any], metric: str) -> str:
    value = dig(scores, "orders", "given", metric)
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
    figure, (left, right) = panels(2)
    bins = np.linspace(0, 1, 21)
    for value, name, colour, hatch in ((1, "clone", BLUE, ""), (0, "not a clone", ORANGE, "//")):
        style = {"color": colour, "alpha": 0.55, "hatch": hatch, "edgecolor": "white"}
        left.hist(p[labels == value], bins=bins, label=name, **style)
    threshold = facts.get("threshold", "value")
    if threshold is not None:
        left.axvline(threshold, color=BLACK, linestyle="--", linewidth=1, label="threshold")
    left.set(xlabel="probability of a clone", ylabel="test pairs", yscale="log")
    left.legend(fontsize=7.5)
    which = np.clip(np.digitize(p, bins[::2]) - 1, 0, 9)
    counts = np.bincount(which, minlength=10)
    full = counts > 0
    mean = np.bincount(which, weights=p, minlength=10)[full] / counts[full]
    clones = np.bincount(which, weights=labels, minlength=10)[full] / counts[full]
    right.plot([0, 1], [0, 1], color=GREY, linestyle=":", label="perfectly calibrated")
    right.plot(mean, clones, color=BLUE, marker="o", markersize=4, label="test, tenths")
    right.set(xlabel="probability of a clone", ylabel="share that are clones", xlim=(0, 1))
    right.set_ylim(-0.02, 1.02)
    right.legend(fontsize=7.5, loc="upper left")
    return figure


def memory_figure(facts: RunFacts) -> Figure | None:
    """Draw the predicted parts as one bar, the budget as a thin one, the measured peaks as others.

    Without a prediction for the data, the parts are those of the budget and are named so.
    """
    predicted, budget = (
        [line for line in lines or [] if (dig(line, "size_bytes") or 0) > 0]
        for lines in (facts.predicted_lines, facts.budget.get("lines"))
    )
    parts, bars = predicted or budget, _measured_bars(facts)
    if not parts and not bars:
        return None
    whole = facts.budget.get("total_bytes") if predicted else None
    largest = max([sum(line["size_bytes"] for line in parts), whole or 0, *(v for _, v in bars)])
    unit, name = (GIB, "GiB") if largest >= GIB else (2**20, "MiB")
    figure, (axis,) = panels(1, height=1.6 + 0.4 * (len(bars) + bool(whole)))
    _stack(axis, "predicted" if predicted else BUDGET, parts, unit=unit)
    if whole:
        axis.barh(BUDGET, whole / unit, height=0.25, color=SKY)
    for title, value in bars:
        axis.barh(title, value / unit, color=GREY)
    capacity = facts.budget.get("capacity_bytes")
    if capacity:
        axis.axvline(capacity / unit, color=BLACK, linestyle="--", linewidth=1, label="capacity")
    axis.invert_yaxis()
    axis.set(xlabel=f"memory ({name})")
    figure.legend(
        *axis.get_legend_handles_labels(), fontsize=7.5, ncols=4, loc="outside lower left"
    )
    return figure


def _stack(axis: Axes, title: str, lines: list[Mapping[str, Any]], *, unit: int) -> None:
    start = 0.0
    for at, line in enumerate(lines):
        width = line["size_bytes"] / unit
        style = {"color": CYCLE[at % len(CYCLE)], "hatch": ("", "//", "..")[at // len(CYCLE) % 3]}
        axis.barh(title, width, left=start, label=line.get("name"), edgecolor="white", **style)
        start += width


def _measured_bars(facts: RunFacts) -> list[tuple[str, float]]:
    memory = facts.get("memory") or {}
    ranks = [rank for rank in memory.get("per_rank") or [] if dig(rank, "peak_allocated_bytes")]
    if len(ranks) > 1:
        return [(f"measured, rank {r.get('rank')}", r["peak_allocated_bytes"]) for r in ranks]
    peak = memory.get("measured_bytes")
    return [("measured", peak)] if peak else []


def gpu_figure(facts: RunFacts) -> Figure | None:
    """Draw the utilisation of every GPU against the time since the first event."""
    series: dict[str, list[tuple[float, float]]] = {}
    for event in facts.of_type("gpu"):
        for gpu in event.get("gpus") or []:
            busy = dig(gpu, "utilisation_percent")
            if busy is not None:
                minutes = (event["t"] - facts.events[0]["t"]) / 60
                series.setdefault(str(gpu.get("index", 0)), []).append((minutes, busy))
    if not series:
        return None
    figure, (axis,) = panels(1)
    for at, (index, points) in enumerate(sorted(series.items())):
        style = {"color": CYCLE[at % len(CYCLE)], "linestyle": ("-", "--", ":")[at % 3]}
        axis.plot(*zip(*points, strict=True), label=f"GPU {index}", **style)
    axis.set(xlabel="time since start (min)", ylabel="GPU utilisation (%)", ylim=(0, 105))
    axis.legend(fontsize=7.5, loc="lower right")
    return figure
