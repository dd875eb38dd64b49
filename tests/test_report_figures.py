"""Guards: in a figure nothing lies on what it names, and no two scorers share a mark."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from nbhelpers.common.result_files import Lengths
from nbhelpers.reports.audits import audit_figure
from nbhelpers.reports.figures import lengths_figure, mark_of, probability_figure, study_cost

CLASSES = {"clone": np.linspace(0.3, 1, 40), "not a clone": np.linspace(0, 0.8, 900)}
AUDIT = {
    "features": [{"feature": "lines", "raw": 0.9, "canonical": 0.8}],
    "counts": {"source": [{"value": "set", "human": 40, "ai": 50}]},
    "lengths": [{"of": "lines", "label": "ai", "tenths": list(range(2, 35, 3))}],
}
FIGURES: dict[str, Callable[[], Any]] = {
    "cost": lambda: study_cost({"r8": (4e9, 5e9, 60), "r16": (5e9, 6e9, 90)}),
    "lengths": lambda: lengths_figure(Lengths(edges=[0, 8, 16], counts=[5, 9], seq_len=15)),
    "scores": lambda: probability_figure(
        CLASSES, {"test": [(0.1, 0.9), (0.9, 1)]}, words=("p", "pairs", "share"), threshold=0.5
    ),
    "audit": lambda: audit_figure(AUDIT),
}


@pytest.mark.parametrize("name", FIGURES)
def test_legends_lie_above_their_axes_and_ticks_beside_each_other(name: str) -> None:
    figure = FIGURES[name]()
    figure.draw_without_rendering()
    legends = [(axis, axis.get_legend()) for axis in figure.axes if axis.get_legend()]
    assert legends
    for axis, legend in legends:
        assert legend.get_window_extent().y0 >= axis.bbox.y1 - 1
    for axis in figure.axes:
        labels = [*axis.get_xticklabels(), *axis.get_xticklabels(minor=True)]
        boxes = sorted(
            (box.x0, box.x1) for label in labels if (box := label.get_window_extent()).width > 1
        )
        inside = [(x0, x1) for x0, x1 in boxes if x1 > axis.bbox.x0 and x0 < axis.bbox.x1]
        assert all(end <= start for (_, end), (start, _) in pairwise(inside))


@pytest.mark.parametrize(
    "scorers",
    [
        ("this model", "length", "layout", "tfidf", "masked_tfidf", "encoder"),
        ("this model", "always_yes", "identifier_overlap", "tfidf_mlp", "raw_encoder"),
    ],
)
def test_no_two_scorers_share_a_mark(scorers: tuple[str, ...]) -> None:
    marks = [mark_of(scorer) for scorer in scorers]
    assert len({mark["marker"] for mark in marks}) == len(scorers)
    assert len({mark["color"] for mark in marks}) == len(scorers)
