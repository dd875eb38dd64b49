"""Two classifiers compared: on the same rows, resampled together, or by their intervals alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from nbhelpers.metrics.compare import Comparison, refused
from nbhelpers.metrics.detection import ranking_of
from nbhelpers.metrics.intervals import LEVEL, interval
from nbhelpers.metrics.resampling import resampled_counts

AREAS = ("roc_auc", "pr_auc")  # which no threshold enters


class Calls(NamedTuple):
    """What one model says of (n,) rows.

    `keys` tell the rows; `labels` are 0 or 1, `scores` finite, `called` whether a row is called
    positive. `left` and `right` are what is drawn: the two functions of a pair, of a program its
    task twice.
    """

    keys: Sequence[Hashable]
    labels: np.ndarray
    scores: np.ndarray
    called: np.ndarray
    left: Sequence[Any]
    right: Sequence[Any]


def compare_calls(
    first: Calls,
    second: Calls,
    metrics: Callable[[np.ndarray], dict[str, np.ndarray]],
    *,
    seed: int,
    resamples: int,
) -> dict[str, Comparison] | str:
    """Return second minus first by metric, or why the rows are not the same.

    Both are scored on the same resamples, so that what is hard for both cancels out. `p_value` is
    that of a normal distribution with the spread of the resamples, and never less than what the
    rows that are called differently could show if each changed sides at random: of few such rows
    resampling alone claims too much.

    Args:
        first: One model.
        second: The other; its rows may stand in another order.
        metrics: Turns (r, 6) rows of `Ranking.counts` into metrics, (r,) each.
        seed: Of the draws.
        resamples: Number of draws.
    """
    places = {key: at for at, key in enumerate(_numbered(second.keys))}
    ours = _numbered(first.keys)
    if alone := places.keys() ^ set(ours):
        return f"test rows in one run only: {len(alone)}"
    order = [places[key] for key in ours]
    if (first.labels != second.labels[order]).any():
        return "the same test rows have other labels"
    called = first.called, second.called[order]
    scorers = zip((first.scores, second.scores[order]), called, strict=True)
    rankings = [ranking_of(first.labels, *scorer) for scorer in scorers]
    drawn = resampled_counts(first.left, first.right, rankings, resamples, seed)
    values = [metrics(ranking.counts(None)[None, :]) for ranking in rankings]
    spreads = [metrics(counts) for counts in drawn]
    differing = int((called[0] != called[1]).sum())
    return {
        name: _compared(
            float(values[1][name][0] - values[0][name][0]),
            spreads[1][name] - spreads[0][name],
            {} if name in AREAS else {"n_differing": differing},
        )
        for name in values[0]
    }


def _numbered(keys: Sequence[Hashable]) -> list[tuple[Hashable, int]]:
    """Tell equal keys apart by their order."""
    seen: Counter[Hashable] = Counter()
    numbered = []
    for key in keys:
        numbered.append((key, seen[key]))
        seen[key] += 1
    return numbered


def _compared(difference: float, spread: np.ndarray, differing: dict[str, int]) -> Comparison:
    known = spread[~np.isnan(spread)]
    if math.isnan(difference) or not len(known):
        return refused("it is not defined in one of the runs")
    p = _two_sided(difference, float(known.std()))
    p = min(1.0, max(p, *(2.0 ** (1 - n) for n in differing.values()), 0.0))
    edges = {"difference": difference, "interval": interval(known), "p_value": p}
    return edges | differing | {"reason": None}


def _two_sided(difference: float, spread: float) -> float:
    if not spread:
        return float(not difference)
    return 2 * NormalDist().cdf(-abs(difference) / spread)


def compare_intervals(
    first: tuple[float, Sequence[float]], second: tuple[float, Sequence[float]]
) -> Comparison:
    """Return second minus first by two scores with their 95 % intervals, taken as independent.

    Source: Zou and Donner 2008, Construction of confidence limits about effect measures, equation
    for a difference (MOVER). `p_value` is that of a normal distribution which reaches from the
    difference to the limit that lies towards 0.

    >>> found = compare_intervals((0.5, (0.4, 0.6)), (0.9, (0.8, 0.95)))
    >>> [round(edge, 3) for edge in found["interval"]], found["p_value"] < 0.05
    ([0.259, 0.512], True)
    """
    (low_value, (low, low_top)), (value, (bottom, top)) = first, second
    difference = value - low_value
    down = math.hypot(value - bottom, low_top - low_value)
    up = math.hypot(top - value, low_value - low)
    half = down if difference > 0 else up
    p = _two_sided(difference, half / NormalDist().inv_cdf((1 + LEVEL) / 2))
    edges = [difference - down, difference + up]
    return {"difference": difference, "interval": edges, "p_value": p, "reason": None}
