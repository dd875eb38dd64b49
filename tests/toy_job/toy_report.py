"""The report of the toy job."""

from __future__ import annotations

from typing import Any

from nbhelpers.presets.targets import scores_of
from nbhelpers.reports.html import cost, origin
from nbhelpers.reports.page import section, table_of
from nbhelpers.reports.tables import (
    memory_table,
    metrics_table,
    settings_table,
    timing_table,
    training_table,
)


def headline(facts: Any) -> str:
    return f"Accuracy {facts.get('scores', 'test', 'metrics', 'accuracy'):.3f} on test."


def details(facts: Any) -> str:
    return "Points are drawn."


def no_lines(facts: Any) -> list[str]:
    return []


verdicts = glossary = cautions = alarms = cost_lines = no_lines


def tables() -> dict[str, Any]:
    return {
        "scores": metrics_table,
        "memory": memory_table,
        "timing": timing_table,
        "training": training_table,
        "settings": settings_table,
    }


def score_lines(facts: Any, tables: Any) -> list[str]:
    scores = scores_of(facts.data)
    rows = tables["scores"].to_dict("records")
    return [f"{r['split']} {scores.title(r['metric'])} {r['value']:.3f}" for r in rows]


def sections(facts: Any, tables: Any, plots: Any) -> str:
    scores = scores_of(facts.data)
    shown = tables["scores"].assign(metric=tables["scores"]["metric"].map(scores.title))
    rest = cost(facts, tables, plots) + origin(facts, tables, plots)
    return section("Scores", table_of(shown)) + rest


def figures(facts: Any) -> dict[str, Any]:
    return {}


def captions() -> dict[str, str]:
    return {}
