"""The report of the toy job: what it opens with, and its blocks."""

from __future__ import annotations

from typing import Any

from nbhelpers.metrics.registry import Scores
from nbhelpers.presets.jobs import JOBS
from nbhelpers.reports import sections
from nbhelpers.reports.blocks import Block, Cell, KeyFigure, Section, Summary, Table

SPEED = {"examples_per_s": ("points", "per s")}


def summary(facts: Any) -> Summary:
    accuracy = Cell(facts.result.scores["test"].metrics["accuracy"], ".3f")
    return Summary(
        title=sections.title(facts),
        verdict=f"Accuracy {accuracy} on test.",
        figures=[KeyFigure("accuracy", str(accuracy))],
        where=sections.where(facts),
    )


def blocks(facts: Any) -> list[Block]:
    scores: Scores = JOBS["toy"].scores
    table = Table("scores", sections.metric_rows(facts, scores), spread=("split", "value"))
    return [
        Section("Scores", [table], "scores", is_open=True),
        *sections.cost(facts, SPEED),
        *sections.origin(facts, []),
    ]
