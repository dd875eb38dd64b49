"""The figures of a detector's report; colours and style are of `figures`.

Scores of single programs come from `predictions.jsonl`, everything else from the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nbhelpers.common.json_models import read_lines
from nbhelpers.common.result_files import (
    DetectorPrediction,
    Edit,
    OperatingPoint,
    Slice,
    Split,
    Step,
    Training,
)
from nbhelpers.metrics.registry import BASELINES, DETECTOR_SCORES, EDITS
from nbhelpers.reports.figures import BLACK, BLUE, CYCLE, GREEN, GREY, ORANGE, panels, thinned

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTIONS = {
    "loss": "The two parts of the training loss per logged step, each before its weight, and "
    "scores on valid while training.",
    "roc": "ROC curve on a logarithmic axis: what counts is the left end. Marks: model and "
    "baselines at their frozen thresholds.",
    "scores": "Scores by label with threshold and band of abstention, and how often a program of a "
    "given probability is AI.",
    "edits": "After each edit, at the frozen threshold; ticks: the same programs before it.",
    "slices": "TPR and FPR by slice with 95 % intervals; dashed: the promised FPR.",
}
MODEL = "this model"
MARKS = {MODEL: "o", "length": "s", "layout": "^", "tfidf": "D"}
MOST_SLICES = 24
LOWEST_FPR = 1e-3
SHARES = ("tpr", "fpr", "roc_auc", "mrr")  # of an evaluation while training, as far as it has them

Point = tuple[float, float]


class Scored(NamedTuple):
    """The scored programs of one split: labels as 0 (human) and 1 (AI), both (n,)."""

    labels: np.ndarray
    p: np.ndarray


def read_scored(path: Path) -> dict[str, Scored]:
    """Return labels and probabilities of the labelled programs by split.

    Raises:
        DataError: A line is not a prediction.
    """
    import numpy as np

    by_split: dict[str, tuple[list[int], list[float]]] = {}
    for row in read_lines(DetectorPrediction, path):
        if row.get("label") is not None:
            labels, p = by_split.setdefault(row["split"], ([], []))
            labels.append(int(row["label"] == "ai"))
            p.append(row["p_ai"])
    return {name: Scored(np.array(y), np.array(p)) for name, (y, p) in by_split.items()}


def loss_figure(training: Training) -> Figure | None:
    """Draw both parts of the loss apart, or the whole where there is one part; scores on valid."""
    curves = {
        "classification loss (nats)": (BLUE, _points(training.history, "classification_loss")),
        "contrastive loss (nats)": (ORANGE, _points(training.history, "contrastive_loss")),
    }
    drawn = {title: curve for title, curve in curves.items() if curve[1]}
    whole = _points(training.history, "loss")
    drawn = drawn or ({"loss (nats)": (BLUE, whole)} if whole else {})
    valid = {name: points for name in SHARES if (points := _points(training.evals, name))}
    if not drawn and not valid:
        return None
    figure, axes = panels(len(drawn) + bool(valid), columns=3)
    for axis, (title, (colour, points)) in zip(axes, drawn.items(), strict=False):
        axis.plot(*zip(*points, strict=True), color=colour)
        axis.set(xlabel="optimizer step", ylabel=title)
        axis.set_ylim(bottom=0)
    for at, (name, points) in enumerate(valid.items()):
        style = {"color": CYCLE[at], "linestyle": ("-", "--", ":", "-.")[at], "marker": "o"}
        title = DETECTOR_SCORES.short(name)
        axes[-1].plot(*zip(*points, strict=True), markersize=4, label=title, **style)
    if valid:
        axes[-1].set(xlabel="optimizer step", ylabel="score on valid", ylim=(0, 1.02))
        axes[-1].legend(fontsize=7.5, loc="lower right")
    return figure


def _points(steps: Iterable[Step], name: str) -> list[Point]:
    points = ((row.step, row.scores.get(name, getattr(row, name, None))) for row in steps)
    return [(step, v) for step, v in points if step is not None and v is not None and step >= 0]


def roc_figure(curves: Mapping[str, Scored], target: float | None, test: Split) -> Figure | None:
    """Draw the ROC curve at low FPR of the splits that have both classes, by their titles.

    Model and baselines are marked at what they reach on test.
    """
    from sklearn.metrics import roc_curve

    curves = {name: s for name, s in curves.items() if 0 < s.labels.sum() < len(s.labels)}
    if not curves:
        return None
    figure, (axis,) = panels(1, height=3.8)
    lowest = 1.0
    for at, (name, (labels, p)) in enumerate(curves.items()):
        fpr, tpr, _ = roc_curve(labels, p)
        step = 1 / (len(labels) - labels.sum())
        lowest = min(lowest, max(step / 2, LOWEST_FPR / 2))
        fpr, tpr = thinned(fpr.clip(min=step / 2), tpr)
        style = {"color": CYCLE[at], "linestyle": ("-", "--")[at]}
        axis.plot(fpr, tpr, drawstyle="steps-post", label=name, **style)
    if target:
        axis.axvline(target, color=BLACK, linestyle=":", linewidth=1, label="promised FPR")
    for at, (name, scores) in enumerate({MODEL: test, **test.floors}.items()):
        fpr, tpr = scores.metrics.get("fpr"), scores.metrics.get("tpr")
        if "test" in curves and fpr is not None and tpr is not None:
            colour = BLACK if name == MODEL else CYCLE[(at + 1) % len(CYCLE)]
            style = {"color": colour, "marker": MARKS.get(name, "x"), "linestyle": "none"}
            title = f"{BASELINES.get(name, name)}, test"
            axis.plot([max(fpr, lowest)], [tpr], label=title, **style)
    axis.set(xscale="log", xlim=(lowest, 1), ylim=(0, 1.02))
    axis.set(xlabel="false-positive rate", ylabel="true-positive rate")
    handles = axis.get_legend_handles_labels()
    figure.legend(*handles, fontsize=7.5, ncols=3, loc="outside lower left")
    return figure


def scores_figure(
    test: Scored | None, point: OperatingPoint, splits: Mapping[str, Split]
) -> Figure | None:
    """Draw the scores of test by label, with threshold and band; the reliability by split."""
    curves = {name: points for name, scores in splits.items() if (points := _reliability(scores))}
    has_scores = test is not None and len(test.p) > 0
    if not has_scores and not curves:
        return None
    figure, axes = panels(int(has_scores) + bool(curves))
    if has_scores:
        _histogram(axes[0], test, point)
    if curves:
        axis = axes[-1]
        axis.plot([0, 1], [0, 1], color=GREY, linestyle=":", label="perfectly calibrated")
        for at, (name, points) in enumerate(curves.items()):
            style = {"color": CYCLE[at % len(CYCLE)], "marker": "o", "markersize": 4}
            axis.plot(*zip(*points, strict=True), label=name, **style)
        axis.set(xlabel="probability of AI", ylabel="share that are AI", xlim=(0, 1))
        axis.set_ylim(-0.02, 1.02)
        axis.legend(fontsize=7.5, loc="upper left")
    return figure


def _reliability(scores: Split) -> list[Point]:
    points = [(one.get("mean_p"), one.get("share_ai")) for one in scores.reliability]
    return [(x, y) for x, y in points if x is not None and y is not None]


def _histogram(axis: Axes, test: Scored, point: OperatingPoint) -> None:
    import numpy as np

    bins = np.linspace(0, 1, 26)
    for label, name, colour, hatch in ((1, "AI", BLUE, ""), (0, "human", ORANGE, "//")):
        style = {"color": colour, "alpha": 0.55, "hatch": hatch, "edgecolor": "white"}
        axis.hist(test.p[test.labels == label], bins=bins, label=name, **style)
    if point.abstain and None not in point.abstain:
        axis.axvspan(*point.abstain, color=GREY, alpha=0.2, label="undecided")
    if point.threshold is not None:
        axis.axvline(point.threshold, color=BLACK, linestyle="--", linewidth=1, label="threshold")
    axis.set(xlabel="probability of AI", ylabel="test programs", yscale="log", xlim=(0, 1))
    axis.legend(fontsize=7.5)


def edits_figure(edits: Mapping[str, Edit]) -> Figure | None:
    """Draw TPR on edited AI programs and FPR on edited human programs, baselines beside."""
    scorers = dict.fromkeys([MODEL, *(name for edit in edits.values() for name in edit.floors)])
    titles = {"tpr": "TPR, AI programs edited", "fpr": "FPR, human programs edited"}
    bars = [  # (rate, place of the edit, scorer, after, before)
        (rate, place, name, after, getattr(scores, f"{rate}_unedited"))
        for rate in titles
        for place, edit in enumerate(edits.values())
        for name, scores in {MODEL: edit, **edit.floors}.items()
        if (after := getattr(scores, rate)) is not None
    ]
    if not bars:
        return None
    drawn = [name for name in scorers if any(bar[2] == name for bar in bars)]
    figure, axes = panels(2, height=1.6 + 0.35 * max(3, len(edits)))
    width, colours = (
        0.8 / len(drawn),
        {name: CYCLE[at % len(CYCLE)] for at, name in enumerate(drawn)},
    )
    for axis, (rate, title) in zip(axes, titles.items(), strict=True):
        for _, place, name, after, before in (bar for bar in bars if bar[0] == rate):
            y = place + (drawn.index(name) - (len(drawn) - 1) / 2) * width
            axis.barh(y, after, height=width * 0.9, color=colours[name])
            if before is not None:
                axis.plot([before, before], [y - width / 2, y + width / 2], color=BLACK)
        axis.set_yticks(range(len(edits)), [EDITS.get(e, e[:30]) for e in edits], fontsize=8)
        axis.set(xlabel=title, ylim=(len(edits) - 0.5, -0.5))
        axis.set_xlim(left=0)
    axes[1].set_yticklabels([])
    for name, colour in colours.items():
        axes[0].barh([0], [0], color=colour, label=BASELINES.get(name, name))
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, fontsize=7.5, ncols=4, loc="outside lower left")
    return figure


def slices_figure(slices: Sequence[Slice], target: float | None) -> Figure | None:
    """Draw TPR and FPR of the slices, the crossed ones left out."""
    slices = [
        one
        for one in slices
        if " x " not in str(one.by) and (one.tpr is not None or one.fpr is not None)
    ][:MOST_SLICES]
    if not slices:
        return None
    figure, axes = panels(2, height=1.0 + 0.22 * max(5, len(slices)))
    for axis, rate, colour in zip(axes, ("tpr", "fpr"), (BLUE, GREEN), strict=True):
        for at, one in enumerate(slices):
            value, edges = getattr(one, rate), getattr(one, f"{rate}_interval")
            if edges and None not in edges:
                axis.plot(edges, [at, at], color=colour, linewidth=2, solid_capstyle="butt")
            if value is not None:
                axis.plot([value], [at], color=BLACK, marker="o", markersize=4)
        axis.set(xlabel=rate.upper(), ylim=(len(slices) - 0.5, -0.5), xlim=(0, 1.02))
    if target is not None:
        axes[1].axvline(target, color=BLACK, linestyle="--", linewidth=1)
        ends = [((one.fpr_interval or [0, 0])[1] or 0, one.fpr or 0) for one in slices]
        axes[1].set_xlim(0, 1.02 if max(map(max, ends)) > 0.3 else 0.32)
    names = [_plain(f"{one.by}: {one.value}") for one in slices]
    axes[0].set_yticks(range(len(slices)), names, fontsize=7.5)
    axes[1].set_yticks(range(len(slices)), [""] * len(slices))
    return figure


def _plain(text: str) -> str:
    """Return a text that a figure shows as it is, and no longer than its axis."""
    return "".join(c if c.isprintable() else "?" for c in text[:36]).replace("$", r"\$")
