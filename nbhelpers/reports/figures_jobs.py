"""Figures of one job alone: of a detector, of a fine-tuning, and of a study of several."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.common.formatting import GIB, count, share
from nbhelpers.errors import ConfigError
from nbhelpers.metrics.registry import FINETUNE_SCORES, TITLES
from nbhelpers.reports.facts import RunFacts, dig, interval, read_facts
from nbhelpers.reports.figures import BLACK, BLUE, CYCLE, GREY, ORANGE, panels
from nbhelpers.reports.finetune_tables import evaluated
from nbhelpers.runs.progress import bar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
