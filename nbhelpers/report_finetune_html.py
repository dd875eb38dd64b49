"""The middle of a fine-tuning's page: scores, samples, doubts and what was trained, as HTML."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nbhelpers.formatting import count
from nbhelpers.metric_registry import FINETUNE_SCORES, TITLES, written
from nbhelpers.plots import caption
from nbhelpers.report_facts import RunFacts, known
from nbhelpers.report_finetune import cautions
from nbhelpers.report_finetune_base import signed
from nbhelpers.report_finetune_samples import samples_section
from nbhelpers.report_finetune_tables import not_evaluated
from nbhelpers.report_finetune_words import baseline_said, edges_of, energy_said
from nbhelpers.report_page import figure, paragraph, section, table_of

if TYPE_CHECKING:
    import pandas as pd

Tables = Mapping[str, "pd.DataFrame"]
SHOWN_PARTS, SHOWN_PART = 40, 1500  # of the coloured example: parts, and characters of each


def middle(facts: RunFacts, tables: Tables, plots: Mapping[str, Path]) -> str:
    """Return the sections between the head and the cost of a run."""
    return _scores(facts, tables, plots) + _trust(facts, tables) + _trained(facts, tables)


def _scores(facts: RunFacts, tables: Tables, plots: Mapping[str, Path]) -> str:
    is_over = facts.is_complete or facts.status == "finished"
    missing = not_evaluated(facts) if is_over else {}
    gaps = "".join(
        paragraph(f"{TITLES.get(split, split)}: {why}.") for split, why in missing.items()
    )
    note = (
        "Intervals: 95 %, over samples; Wilson's for shares, resampling for the others. BLEU and "
        "chrF go from 0 to 100, the others from 0 to 1, but for the mean number of new tokens."
    )
    return (
        section("Targets", table_of(_target_cells(tables.get("targets"))))
        + section("Scores", table_of(_score_cells(tables.get("scores"))) + gaps, note)
        + figure(plots, "scores", caption(facts, "scores"))
        + section("Against the base model", table_of(difference_cells(tables.get("base"))))
        + section("Programs in the sandbox", table_of(_named(tables.get("outcomes"))))
        + section("Why Python does not parse an answer", table_of(_named(tables.get("syntax"))))
        + samples_section(facts)
    )


def _trust(facts: RunFacts, tables: Tables) -> str:
    note = (
        "Scores are comparable only where the samples, the decoding and the signatures are equal."
    )
    return section(
        "What to hold against these scores", "".join(paragraph(text) for text in cautions(facts))
    ) + section(
        "How answers were made and scored",
        table_of(_named(tables.get("decoding")), classes="long"),
        note,
    )


def _trained(facts: RunFacts, tables: Tables) -> str:
    parity = (
        "Parity: a batch under the chosen attention beside its samples one by one under eager "
        "attention, before training."
    )
    said = "".join(paragraph(text) for text in (energy_said(facts), baseline_said(facts)))
    return (
        section("Adapter", table_of(tables.get("adapter"), classes="long"))
        + section("Model", table_of(tables.get("model"), classes="long"), parity)
        + section("What is supervised", _example(facts), "Marked: what the loss counts.")
        + section("Energy, and memory after the run", said)
    )


def _score_cells(table: pd.DataFrame | None) -> pd.DataFrame | None:
    """Put the splits side by side: one row per metric, `value (low to high)` per split."""
    import pandas as pd

    if table is None:
        return None
    cells: dict[str, dict[str, str]] = {}
    heads = []
    for row in table.to_dict("records"):
        metric, samples = row["metric"], known(row["samples"])
        edges = edges_of(metric, [row["low"], row["high"]])
        said = written(metric, known(row["value"])) + (f" ({edges})" if edges else "")
        split = TITLES.get(row["split"], row["split"])
        head = split if samples is None else f"{split} (n = {count(samples)})"
        cells.setdefault(metric, {})[head] = said
        heads += [head] if head not in heads else []
    order = [metric.name for metric in FINETUNE_SCORES.metrics if metric.name in cells]
    rows = [{"metric": TITLES.get(metric, metric)} | cells[metric] for metric in order]
    return pd.DataFrame(rows, columns=["metric", *heads]).fillna("")


def _target_cells(table: pd.DataFrame | None) -> pd.DataFrame | None:
    """Write values by their metric; a score that was not made is no number."""
    import pandas as pd

    if table is None:
        return None
    rows = []
    for row in table.to_dict("records"):
        metric, value = row["metric"], known(row["value"])
        said = (row["note"] or "undefined") if value is None else written(metric, value)
        cells = {"metric": metric, "at least": f"{row['target']:g}", "value": said}
        rows.append(cells | {"passed": bool(row["passed"])})
    return pd.DataFrame(rows)


def difference_cells(table: pd.DataFrame | None) -> pd.DataFrame | None:
    """Write a table of differences: both scores, and the difference with its interval."""
    import pandas as pd

    if table is None or not len(table):
        return None
    rows = []
    for row in table.to_dict("records"):
        metric, split = row.pop("metric"), row.pop("split")
        edges = [known(row.pop("low")), known(row.pop("high"))]
        cells = {"score": f"{TITLES.get(metric, metric)}, {TITLES.get(split, split)}"}
        for name, value in row.items():
            is_number = isinstance(value, int | float)
            cells[name] = written(metric, known(value)) if is_number else value
        cells["difference"] = signed(metric, known(row.get("difference")))
        if None not in edges:
            cells["difference"] += f" ({signed(metric, edges[0])} to {signed(metric, edges[1])})"
        rows.append(cells)
    return pd.DataFrame(rows)


def _named(table: pd.DataFrame | None) -> pd.DataFrame | None:
    """Call splits by their names."""
    return None if table is None else table.assign(split=table["split"].replace(TITLES))


def _example(facts: RunFacts) -> str:
    """Return one sample as text, the supervised parts marked."""
    parts = facts.get("data", "example") or []
    said = []
    for part in parts[:SHOWN_PARTS]:
        text, is_supervised = part
        text = html.escape(text[:SHOWN_PART])
        said.append(f"<mark>{text}</mark>" if is_supervised else text)
    return f"<pre class='long'>{''.join(said)}</pre>" if said else ""
