"""Figures of one job alone: of a detector, of a fine-tuning, and of a study of several."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.common.formatting import GIB, count, share
from nbhelpers.common.json_models import read_lines
from nbhelpers.common.result_files import DetectorPrediction
from nbhelpers.errors import ConfigError
from nbhelpers.metrics.registry import DETECTOR_SCORES, FINETUNE_SCORES, TITLES
from nbhelpers.reports.detector_tables import (
    EDIT_NAMES,
    FLOOR_NAMES,
    MODEL,
    edges,
    part,
    rows,
    split_said,
    splits,
)
from nbhelpers.reports.facts import RunFacts, dig, interval, read_facts
from nbhelpers.reports.figures import BLACK, BLUE, CYCLE, GREEN, GREY, ORANGE, panels, thinned
from nbhelpers.reports.finetune_tables import evaluated
from nbhelpers.runs.progress import bar

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# ------------------------------------------------------------------------------------------------
# The figures of a detector's report; colours and style are of `figures`.
#
# Scores of single programs come from `predictions.jsonl`, everything else from the result.


DETECTOR_CAPTIONS = {
    "loss": "The two parts of the training loss per logged step, each before its weight, and "
    "scores on valid while training.",
    "roc": "ROC curve on a logarithmic axis: what counts is the left end. Marks: model and floors "
    "at their frozen thresholds.",
    "scores": "Scores by label with threshold and band of abstention, and how often a program of a "
    "given probability is AI.",
    "edits": "After each edit, at the frozen threshold; ticks: the same programs before it.",
    "slices": "TPR and FPR by slice with 95 % intervals; dashed: the promised FPR.",
}
MARKS = {MODEL: "o", "length": "s", "layout": "^", "tfidf": "D"}
CURVES = ("test", "held_out")
MOST_SLICES = 24
LOWEST_FPR = 1e-3
SHARES = ("tpr", "fpr", "roc_auc", "mrr")  # of an evaluation while training, as far as it has them


class Scored(NamedTuple):
    """The scored programs of one split: labels as 0 (human) and 1 (AI), both (n,)."""

    labels: np.ndarray
    p: np.ndarray


def figures(facts: RunFacts) -> dict[str, Figure | None]:
    """Return every figure by name, None where there is nothing to draw."""
    scored = read_scored(facts.run.predictions_path) if facts.get("scores") else {}
    return {
        "loss": detector_loss_figure(facts),
        "roc": roc_figure(facts, scored),
        "scores": detector_scores_figure(facts, scored.get("test")),
        "edits": edits_figure(facts),
        "slices": slices_figure(facts),
    }


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


def detector_loss_figure(facts: RunFacts) -> Figure | None:
    """Draw both parts of the loss apart, or the whole where there is one part; scores on valid."""
    history = rows(facts.data, "training", "history")
    curves = {
        "classification_loss": ("classification loss (nats)", BLUE),
        "contrastive_loss": ("contrastive loss (nats)", ORANGE),
    }
    drawn = [(*look, _points(history, key)) for key, look in curves.items()]
    drawn = [each for each in drawn if each[2]]
    if not drawn and (whole := _points(history, "loss")):
        drawn = [("loss (nats)", BLUE, whole)]
    evals = [row | dict(part(row, "scores")) for row in rows(facts.data, "training", "evals")]
    valid = {name: points for name in SHARES if (points := _points(evals, name))}
    if not drawn and not valid:
        return None
    figure, axes = panels(len(drawn) + bool(valid), columns=3)
    for axis, (title, colour, points) in zip(axes, drawn, strict=False):
        axis.plot(*zip(*points, strict=True), color=colour)
        axis.set(xlabel="optimizer step", ylabel=title)
        axis.set_ylim(bottom=0)
    names = {name: DETECTOR_SCORES.short(name) for name in ("tpr", "fpr", "roc_auc", "mrr")}
    for at, (name, points) in enumerate(valid.items()):
        style = {"color": CYCLE[at], "marker": "o", "markersize": 4, "label": names[name]}
        axes[-1].plot(*zip(*points, strict=True), linestyle=("-", "--", ":", "-.")[at], **style)
    if valid:
        axes[-1].set(xlabel="optimizer step", ylabel="score on valid", ylim=(0, 1.02))
        axes[-1].legend(fontsize=7.5, loc="lower right")
    return figure


def _points(lines: Iterable[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    points = ((dig(line, "step"), dig(line, name)) for line in lines)
    return [(step, v) for step, v in points if step is not None and v is not None and step >= 0]


def roc_figure(facts: RunFacts, scored: Mapping[str, Scored]) -> Figure | None:
    """Draw the ROC curve at low FPR of the splits that have both classes."""
    from sklearn.metrics import roc_curve

    curves = {
        name: scored[name]
        for name in CURVES
        if name in scored and 0 < scored[name].labels.sum() < len(scored[name].labels)
    }
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
        axis.plot(fpr, tpr, drawstyle="steps-post", label=split_said(facts, name), **style)
    target = dig(facts.data, "operating_point", "target_fpr")
    if target:
        axis.axvline(target, color=BLACK, linestyle=":", linewidth=1, label="promised FPR")
    if "test" in curves:
        _mark_scorers(axis, part(facts.data, "scores", "test"), lowest)
    axis.set(xscale="log", xlim=(lowest, 1), ylim=(0, 1.02))
    axis.set(xlabel="false-positive rate", ylabel="true-positive rate")
    handles = axis.get_legend_handles_labels()
    figure.legend(*handles, fontsize=7.5, ncols=3, loc="outside lower left")
    return figure


def _mark_scorers(axis: Axes, scores: Mapping[str, Any], lowest: float) -> None:
    for at, (name, values) in enumerate({MODEL: scores, **part(scores, "floors")}.items()):
        fpr, tpr = (dig(values, "metrics", metric) for metric in ("fpr", "tpr"))
        if fpr is not None and tpr is not None:
            colour = BLACK if name == MODEL else CYCLE[(at + 1) % len(CYCLE)]
            style = {"color": colour, "marker": MARKS.get(name, "x"), "linestyle": "none"}
            title = f"{FLOOR_NAMES.get(name, name)}, test"
            axis.plot([max(fpr, lowest)], [tpr], label=title, **style)


def detector_scores_figure(facts: RunFacts, test: Scored | None) -> Figure | None:
    """Draw the scores of test by label, with threshold and band; and the reliability by split."""
    bins = [(name, rows(scores, "reliability")) for name, scores in splits(facts)]
    curves = {name: points for name, each in bins if (points := _reliability(each))}
    has_scores = test is not None and len(test.p) > 0
    if not has_scores and not curves:
        return None
    figure, axes = panels(int(has_scores) + bool(curves))
    if has_scores:
        _histogram(facts, axes[0], test)
    if curves:
        axis = axes[-1]
        axis.plot([0, 1], [0, 1], color=GREY, linestyle=":", label="perfectly calibrated")
        for at, (name, points) in enumerate(curves.items()):
            style = {"color": CYCLE[at % len(CYCLE)], "marker": "o", "markersize": 4}
            axis.plot(*zip(*points, strict=True), label=split_said(facts, name), **style)
        axis.set(xlabel="probability of AI", ylabel="share that are AI", xlim=(0, 1))
        axis.set_ylim(-0.02, 1.02)
        axis.legend(fontsize=7.5, loc="upper left")
    return figure


def _reliability(bins: list[Mapping[str, Any]]) -> list[tuple[float, float]]:
    points = [(dig(each, "mean_p"), dig(each, "share_ai")) for each in bins]
    return [(x, y) for x, y in points if x is not None and y is not None]


def _histogram(facts: RunFacts, axis: Axes, test: Scored) -> None:
    import numpy as np

    bins = np.linspace(0, 1, 26)
    for label, name, colour, hatch in ((1, "AI", BLUE, ""), (0, "human", ORANGE, "//")):
        style = {"color": colour, "alpha": 0.55, "hatch": hatch, "edgecolor": "white"}
        axis.hist(test.p[test.labels == label], bins=bins, label=name, **style)
    threshold = dig(facts.data, "operating_point", "threshold")
    band = edges(facts.data, "operating_point", "abstain")
    if band is not None:
        axis.axvspan(*band, color=GREY, alpha=0.2, label="undecided")
    if threshold is not None:
        axis.axvline(threshold, color=BLACK, linestyle="--", linewidth=1, label="threshold")
    axis.set(xlabel="probability of AI", ylabel="test programs", yscale="log", xlim=(0, 1))
    axis.legend(fontsize=7.5)


def edits_figure(facts: RunFacts) -> Figure | None:
    """Draw TPR on edited AI programs and FPR on edited human programs, floors beside the model."""
    edits = part(facts.data, "scores", "test", "edits")
    edits = {name: values for name, values in edits.items() if values}
    baselines = [
        name
        for values in edits.values()
        for name, of in part(values, "floors").items()
        if dig(of, "tpr") is not None or dig(of, "fpr") is not None
    ]
    scorers = list(dict.fromkeys([MODEL, *baselines]))
    bars = {rate: _bars(edits, scorers, rate) for rate in ("tpr", "fpr")}
    if not any(bars.values()):
        return None
    figure, axes = panels(2, height=1.6 + 0.35 * max(3, len(edits)))
    width = 0.8 / len(scorers)
    titles = {"tpr": "TPR, AI programs edited", "fpr": "FPR, human programs edited"}
    for axis, (rate, title) in zip(axes, titles.items(), strict=True):
        for place, slot, value, before in bars[rate]:
            y = place + (slot - (len(scorers) - 1) / 2) * width
            axis.barh(y, value, height=width * 0.9, color=CYCLE[slot % len(CYCLE)])
            if before is not None:
                axis.plot([before, before], [y - width / 2, y + width / 2], color=BLACK)
        axis.set_yticks(range(len(edits)), [EDIT_NAMES.get(e, e[:30]) for e in edits], fontsize=8)
        axis.set_ylim(len(edits) - 0.5, -0.5)
        axis.set(xlabel=title)
        axis.set_xlim(left=0)
    axes[1].set_yticklabels([])
    for slot, name in enumerate(scorers):
        axes[0].barh([0], [0], color=CYCLE[slot % len(CYCLE)], label=FLOOR_NAMES.get(name, name))
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, fontsize=7.5, ncols=4, loc="outside lower left")
    return figure


def _bars(
    edits: Mapping[str, Any], scorers: list[str], rate: str
) -> list[tuple[int, int, float, float | None]]:
    """Return (place of the edit, place of the scorer, rate after it, rate before it)."""
    bars = []
    for place, values in enumerate(edits.values()):
        for slot, name in enumerate(scorers):
            of = values if name == MODEL else part(values, "floors", name)
            value = dig(of, rate)
            if value is not None:
                bars.append((place, slot, value, dig(of, f"{rate}_unedited")))
    return bars


def slices_figure(facts: RunFacts) -> Figure | None:
    """Draw TPR and FPR of the slices of test, the crossed ones left out."""
    slices = [
        one
        for one in rows(facts.data, "scores", "test", "slices")
        if " x " not in str(one.get("by")) and _has_rate(one)
    ][:MOST_SLICES]
    if not slices:
        return None
    figure, axes = panels(2, height=1.0 + 0.22 * max(5, len(slices)))
    for axis, rate, colour in zip(axes, ("tpr", "fpr"), (BLUE, GREEN), strict=True):
        for at, one in enumerate(slices):
            value, between = dig(one, rate), edges(one, f"{rate}_interval")
            if between:
                axis.plot(between, [at, at], color=colour, linewidth=2, solid_capstyle="butt")
            if value is not None:
                axis.plot([value], [at], color=BLACK, marker="o", markersize=4)
        axis.set(xlabel=rate.upper(), ylim=(len(slices) - 0.5, -0.5), xlim=(0, 1.02))
    target = dig(facts.data, "operating_point", "target_fpr")
    if target is not None:
        axes[1].axvline(target, color=BLACK, linestyle="--", linewidth=1)
        axes[1].set_xlim(0, 1.02 if _highest(slices) > 0.3 else 0.32)
    names = [_plain(f"{one.get('by')}: {one.get('value')}") for one in slices]
    axes[0].set_yticks(range(len(slices)), names, fontsize=7.5)
    axes[1].set_yticks(range(len(slices)), [""] * len(slices))
    return figure


def _has_rate(one: Mapping[str, Any]) -> bool:
    return dig(one, "tpr") is not None or dig(one, "fpr") is not None


def _highest(slices: list[Mapping[str, Any]]) -> float:
    ends = [(edges(one, "fpr_interval") or [0, 0])[1] for one in slices]
    return max([*ends, *(dig(one, "fpr") or 0 for one in slices)])


def _plain(text: str) -> str:
    """Return a text that a figure shows as it is, and no longer than its axis."""
    return "".join(c if c.isprintable() else "?" for c in text[:36]).replace("$", r"\$")


# ------------------------------------------------------------------------------------------------
# The figures of a fine-tuning and of a study of several; colours and style are of `figures`.


CAPTIONS = {
    "loss": "Training loss per logged step, and loss on valid while training; both per supervised "
    "token.",
    "scores": "Scores with their 95 % intervals over samples. BLEU and chrF are divided by 100.",
    "lengths": "Tokens per train sample; what lies beyond the dashed line is cut.",
}
STYLES = ("-", "--", ":", "-.")


def finetune_figures(facts: RunFacts) -> dict[str, Figure | None]:
    """Draw the figures of a run."""
    return {
        "loss": loss_figure(facts),
        "scores": scores_figure(facts),
        "lengths": lengths_figure(facts),
    }


def loss_figure(facts: RunFacts) -> Figure | None:
    """Draw the loss on train and on valid by optimizer step."""
    train, valid = losses(facts.get("training"))
    if not train and not valid:
        return None
    figure, (axis,) = panels(1)
    if train:
        axis.plot(*zip(*train, strict=True), color=BLUE, label="train")
    if valid:
        style = {"color": ORANGE, "marker": "o", "markersize": 4, "linestyle": "--"}
        axis.plot(*zip(*valid, strict=True), label="valid", **style)
    axis.set(xlabel="optimizer step", ylabel="loss (nats per supervised token)")
    axis.set_ylim(bottom=0)
    if axis.get_legend_handles_labels()[1]:  # runs without a history have no line to name
        axis.legend(fontsize=7.5, loc="upper right")
    return figure


def losses(training: Any) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return (step, loss) of train and of valid, as far as both are numbers."""

    def points(name: str) -> list[tuple[float, float]]:
        pairs = ((dig(e, "step"), _loss(e)) for e in dig(training, name) or [])
        return [(s, v) for s, v in pairs if s is not None and v is not None and s >= 0]

    return points("history"), points("evals")


def _loss(event: Any) -> float | None:
    """Return the loss of a line of the history, or of an `eval` event."""
    loss = dig(event, "loss")
    return loss if loss is not None else dig(event, "scores", "loss")


def scores_figure(facts: RunFacts) -> Figure | None:
    """Draw every score that is a share, with its interval."""
    bars = []
    for split, scores in evaluated(facts):
        for metric in FINETUNE_SCORES.names(split):
            value = dig(scores, "metrics", metric)
            if value is not None and FINETUNE_SCORES.metric(metric).maximum is not None:
                title = f"{TITLES.get(split, split)}: {TITLES.get(metric, metric)}"
                bars.append(Bar(title, metric, value, dig(scores, "intervals", metric)))
    if not bars:
        return None
    figure, (axis,) = panels(1, height=0.8 + 0.3 * len(bars))
    draw_bars(axis, bars, to_one=True)
    axis.set(xlim=(0, 1.02), xlabel="score")
    return figure


class Bar(NamedTuple):
    """One score of a figure: its name, metric, value and interval."""

    title: str
    metric: str
    value: float
    edges: Any


def draw_bars(axis: Axes, bars: Sequence[Bar], *, to_one: bool = False) -> None:
    """Draw each score as a point with its interval, the first on top; `to_one`: BLEU as a share."""
    for at, each in enumerate(bars):
        scale = (FINETUNE_SCORES.metric(each.metric).maximum or 100) if to_one else 1
        if interval(each.edges):
            ends = [edge / scale for edge in each.edges]
            axis.plot(ends, [at, at], color=BLUE, linewidth=2, solid_capstyle="butt")
        axis.plot([each.value / scale], [at], color=BLACK, marker="o", markersize=5)
    axis.set_yticks(range(len(bars)), [plain(bar.title) for bar in bars], fontsize=8)
    axis.set_ylim(len(bars) - 0.5, -0.5)


def plain(text: str) -> str:
    """Return a text that a figure shows as it is: `$` begins no formula, nothing is invisible."""
    return "".join(c if c.isprintable() else "?" for c in text[:60]).replace("$", r"\$")


def lengths_figure(facts: RunFacts) -> Figure | None:
    """Draw the histogram of sample lengths against the length at which samples are cut."""
    edges, counts = (facts.get("data", "lengths", key) or [] for key in ("edges", "counts"))
    if not counts or len(edges) != len(counts) + 1 or sorted(edges) != edges:
        return None
    figure, (axis,) = panels(1, height=2.8)
    widths = [high - low for low, high in pairwise(edges)]
    axis.bar(edges[:-1], counts, width=widths, align="edge", color=BLUE, edgecolor="white")
    seq_len, cut = (
        facts.get("data", "lengths", "seq_len"),
        facts.get("data", "lengths", "cut_share"),
    )
    if seq_len is not None:
        caption = f"seq_len {seq_len:g}" + (f", {cut:.1%} cut" if cut is not None else "")
        axis.axvline(seq_len, color=BLACK, linestyle="--", linewidth=1, label=caption)
        axis.legend(fontsize=7.5, loc="upper right")
    axis.set(xlabel="tokens (prompt and answer)", ylabel="train samples")
    return figure


class Series(NamedTuple):
    """One run of a study: its name, and what is drawn of it."""

    name: str
    training: Any
    scores: Mapping[str, Any]
    predicted_bytes: float | None
    measured_bytes: float | None
    seconds: float | None


def study_loss_figure(runs: Iterable[Series]) -> Figure | None:
    """Draw the loss curves of all runs on one axis each for train and valid."""
    drawn = [(run.name, *losses(run.training)) for run in runs]
    drawn = [each for each in drawn if each[1] or each[2]]
    if not drawn:
        return None
    has_valid = any(valid for _, _, valid in drawn)
    figure, axes = panels(2 if has_valid else 1)
    for at, (name, *curves) in enumerate(drawn):
        style = {"color": CYCLE[at % len(CYCLE)], "linestyle": STYLES[at // len(CYCLE) % 4]}
        for axis, points in zip(axes, curves, strict=False):
            if points:
                axis.plot(*zip(*points, strict=True), label=plain(name), **style)
    for axis, title in zip(axes, ("train", "valid"), strict=False):
        axis.set(xlabel="optimizer step", ylabel=f"loss on {title} (nats per token)")
        if axis.get_legend_handles_labels()[1]:
            axis.legend(fontsize=7.5, loc="upper right")
    return figure


def study_scores_figure(runs: Sequence[Series], scores: Sequence[tuple[str, str]]) -> Figure | None:
    """Draw one panel per score, given as (split, metric), with a line per run."""
    panels_of: dict[tuple[str, str], list[Bar]] = {}
    for key in scores:
        split, metric = key
        for run in runs:
            value = dig(run.scores, split, "metrics", metric)
            if value is not None:
                edges = dig(run.scores, split, "intervals", metric)
                panels_of.setdefault(key, []).append(Bar(run.name, metric, value, edges))
    if not panels_of:
        return None
    most = max(len(bars) for bars in panels_of.values())
    figure, axes = panels(len(panels_of), height=1.0 + 0.3 * most, columns=3)
    for axis, ((split, metric), bars) in zip(axes, panels_of.items(), strict=True):
        draw_bars(axis, bars)
        where = "test" if split == "test" else TITLES.get(split, split)
        axis.set_title(f"{TITLES.get(metric, metric)}, {where}", fontsize=9)
    return figure


def study_cost_figure(runs: Sequence[Series]) -> Figure | None:
    """Draw peak memory, predicted beside measured, and the time of each run."""
    known = [run for run in runs if run.measured_bytes or run.predicted_bytes or run.seconds]
    if not known:
        return None
    largest = max(max(run.measured_bytes or 0, run.predicted_bytes or 0) for run in known)
    unit, unit_name = (GIB, "GiB") if largest >= GIB else (2**20, "MiB")
    minutes = max(run.seconds or 0 for run in known) >= 600
    figure, (left, right) = panels(2, height=1.2 + 0.4 * len(known))
    names, rows = [plain(run.name) for run in known], range(len(known))
    predicted = [(run.predicted_bytes or 0) / unit for run in known]
    measured = [(run.measured_bytes or 0) / unit for run in known]
    left.barh([r - 0.2 for r in rows], predicted, height=0.36, color=GREY, label="predicted")
    left.barh([r + 0.2 for r in rows], measured, height=0.36, color=BLUE, label="measured")
    left.set(xlabel=f"peak memory ({unit_name})")
    left.legend(fontsize=7.5, loc="lower right")
    right.barh(rows, [(run.seconds or 0) / (60 if minutes else 1) for run in known], color=ORANGE)
    right.set(xlabel="time of the run (min)" if minutes else "time of the run (s)")
    for axis in (left, right):
        axis.set_yticks(rows, names, fontsize=8)
        axis.set_ylim(len(known) - 0.5, -0.5)
    return figure


# ------------------------------------------------------------------------------------------------
# How long the training samples of a run are, against the length at which they are cut.


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A histogram of tokens per training sample; a picture in a notebook, bars of text elsewhere.

    `counts[i]` samples have from `edges[i]` to `edges[i + 1]` tokens; `cut_share` is from 0 to 1.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    seq_len: int
    cut_share: float
    _facts: RunFacts = field(repr=False)

    def words(self) -> str:
        """Say how many samples there are, and the share that is cut."""
        return (
            f"{count(sum(self.counts))} training samples; {share(self.cut_share)} are longer than "
            f"seq_len, {count(self.seq_len)} tokens, and are cut"
        )

    def __repr__(self) -> str:
        most = max(self.counts, default=0) or 1
        first = next((at for at, n in enumerate(self.counts) if n), 0)
        bins = list(zip(pairwise(self.edges), self.counts, strict=True))[first:]
        lines = [
            f"{low:>6,.0f} to {high:>6,.0f}  {bar(n / most).rstrip('.'):<20}  {n:,}"
            for (low, high), n in bins
        ]
        return "\n".join([self.words(), *lines])

    def _repr_png_(self) -> bytes:
        target = io.BytesIO()
        lengths_figure(self._facts).savefig(target, format="png", dpi=100)
        return target.getvalue()


def show_lengths(run: Any) -> Lengths:
    """Return the lengths of a run's training samples, as its result tells them.

    Args:
        run: A run of the job finetune, its folder or its result.

    Raises:
        ConfigError: There is no such run, or it tells no lengths.
    """
    facts = read_facts(run)
    edges, counts = (_numbers(facts.get("data", "lengths", name)) for name in ("edges", "counts"))
    limit = facts.get("data", "lengths", "seq_len")
    if not counts or len(edges) != len(counts) + 1 or limit is None:
        raise ConfigError(
            f"{facts.run.id} tells no lengths of training samples.",
            fix="take a finished run of the job finetune",
        )
    return Lengths(
        edges=edges,
        counts=counts,
        seq_len=limit,
        cut_share=facts.get("data", "lengths", "cut_share") or 0.0,
        _facts=facts,
    )


def _numbers(values: Sequence[Any] | None) -> tuple[Any, ...]:
    return tuple(values or ())
