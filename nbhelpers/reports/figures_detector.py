"""The figures of a detector's report; colours and style are of `figures`.

Scores of single programs come from `predictions.jsonl`, everything else from the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nbhelpers.common.json_models import read_lines
from nbhelpers.common.result_files import (
    DetectorPrediction,
    Edit,
    OperatingPoint,
    Slice,
    Split,
    Training,
)
from nbhelpers.metrics.registry import BASELINES, DETECTOR_SCORES, EDITS
from nbhelpers.reports import figures
from nbhelpers.reports.figures import (
    BLACK,
    BLUE,
    DASHES,
    MODEL,
    SKY,
    Points,
    mark_of,
    panels,
    plain_ticks,
    points,
    thinned,
)

if TYPE_CHECKING:
    import numpy as np
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
MOST_SLICES = 24
LOWEST_FPR = 1e-3
SHARES = ("tpr", "fpr", "roc_auc", "mrr")  # of an evaluation while training, as far as it has them


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
    parts = {f"{part}_loss": f"{part} loss (nats)" for part in ("classification", "contrastive")}
    are_apart = any(points(training.history, name) for name in parts)
    shares = {name: DETECTOR_SCORES.short(name) for name in SHARES}
    return figures.loss_figure(training, parts if are_apart else {"loss": "loss (nats)"}, shares)


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
        style = {"color": (BLUE, SKY)[at], "linestyle": DASHES[at]}
        axis.plot(fpr, tpr, drawstyle="steps-post", label=name, **style)
    if target:
        axis.axvline(target, color=BLACK, linestyle=":", linewidth=1, label="promised FPR")
    for name, scores in {MODEL: test, **test.floors}.items():
        fpr, tpr = scores.metrics.get("fpr"), scores.metrics.get("tpr")
        if "test" in curves and fpr is not None and tpr is not None:
            title = f"{BASELINES.get(name, name)}, test"
            axis.plot([max(fpr, lowest)], [tpr], label=title, **mark_of(name))
    axis.set(xscale="log", xlim=(lowest, 1), ylim=(0, 1.02))
    plain_ticks(axis.xaxis)
    axis.set(xlabel="false-positive rate", ylabel="true-positive rate")
    handles = axis.get_legend_handles_labels()
    figure.legend(*handles, fontsize=7.5, ncols=3, loc="outside lower left")
    return figure


def scores_figure(
    test: Scored | None, point: OperatingPoint, splits: Mapping[str, Split]
) -> Figure | None:
    """Draw the scores of test by label, with threshold and band; the reliability by split."""
    classes = {"AI": test.p[test.labels == 1], "human": test.p[test.labels == 0]} if test else {}
    return figures.probability_figure(
        classes,
        {name: line for name, scores in splits.items() if (line := _reliability(scores))},
        words=("probability of AI", "test programs", "share that are AI"),
        threshold=point.threshold,
        band=point.abstain,
    )


def _reliability(scores: Split) -> Points:
    pairs = [(one.get("mean_p"), one.get("share_ai")) for one in scores.reliability]
    return [(x, y) for x, y in pairs if x is not None and y is not None]


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
    width = 0.8 / len(drawn)
    colours = {name: mark_of(name)["color"] for name in drawn}
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
    plain = [one for one in slices if " x " not in str(one.by)]
    bars_of = {
        rate.upper(): [
            figures.Bar(f"{one.by}: {one.value}"[:36], value, getattr(one, f"{rate}_interval"))
            for one in plain
            if (value := getattr(one, rate)) is not None
        ][:MOST_SLICES]
        for rate in ("tpr", "fpr")
    }
    return figures.interval_figure(bars_of, lines={"FPR": target})
