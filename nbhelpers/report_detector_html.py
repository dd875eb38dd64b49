"""The middle of a detector's page: scores, promise, floors, edits, similarity and doubts."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.plots import caption
from nbhelpers.report_detector import cautions
from nbhelpers.report_detector_base import part, splits, texts
from nbhelpers.report_detector_cells import (
    ai_edited_cells,
    floor_cells,
    human_edited_cells,
    macro_cells,
    pair_cells,
    prevalence_cells,
    promise_cells,
    retrieval_cells,
    score_cells,
    slice_cells,
    target_cells,
)
from nbhelpers.report_detector_words import (
    BROKEN,
    abstain_said,
    audit_said,
    calibration_said,
    compile_said,
    point_said,
    promise_said,
    promises,
    worst_said,
)
from nbhelpers.report_facts import RunFacts, count
from nbhelpers.report_page import figure, paragraph, section, table_of

if TYPE_CHECKING:
    import pandas as pd

Tables = Mapping[str, "pd.DataFrame"]
Plots = Mapping[str, Path]
Cells = Callable[["pd.DataFrame"], "pd.DataFrame"]
SHOWN_ROWS = 40  # of a long table; the others are folded away
MOST_ROWS = 400  # of those, on the page; the table of the report has all
MOST_PARTS = 300
MOST_LINES, MOST_CHARACTERS, DEPTH = 60, 400, 3  # of what the checks of the data found


def middle(facts: RunFacts, tables: Tables, plots: Plots) -> str:
    """Return the sections between the head and the cost of a run."""
    return (
        section("Targets", table_of(target_cells(tables.get("targets"))))
        + section("Audit of the data", _audit(facts, tables))
        + _scores(facts, tables, plots)
        + _point(facts, tables)
        + _parts(facts, tables, plots)
        + _similarity(tables)
        + section(
            "What to hold against these scores", "".join(paragraph(t) for t in cautions(facts))
        )
    )


def cost(facts: RunFacts, tables: Tables) -> str:
    """Return what a detector's training tells of its time beside the phases of the run."""
    return section(
        "Time of training by phase",
        table_of(tables.get("phases")) + paragraph(compile_said(facts)),
    ) + section("Time to score a file", table_of(tables.get("inference")))


def _audit(facts: RunFacts, tables: Tables) -> str:
    said = audit_said(facts)
    listed = "".join(f"<li>{html.escape(t)}</li>" for t in texts(facts.data, "audit", "warnings"))
    features = table_of(tables.get("features"))
    note = paragraph("Single features: area under the ROC curve of each one alone.", "note")
    listed = f"<ul class='note'>{listed}</ul>" if listed else ""
    return paragraph(said) + listed + (note + features if features else "")


def _scores(facts: RunFacts, tables: Tables, plots: Plots) -> str:
    note = (
        "AI is the positive class; all at the frozen threshold, but for the areas, ECE and Brier "
        "score. Intervals: 95 %; Clopper-Pearson for FPR and specificity, the others by resampling "
        "tasks. Undefined: the split has one class."
    )
    beside = (
        "Floors: cheap scorers trained on the same rows, each with its own threshold, frozen on "
        "validation humans at the same promise. TPR at promised FPR compares them at one rate, "
        "with a threshold read from the split itself. Leads: ours minus the floor's, on the same "
        "resamples."
    )
    return (
        section("Scores", _lines(score_cells(tables.get("scores"))), note)
        + section("Beside the floors", _lines(floor_cells(tables.get("floors"))), beside)
        + _figure(facts, plots, "roc")
        + _figure(facts, plots, "scores")
    )


def _point(facts: RunFacts, tables: Tables) -> str:
    said = paragraph(point_said(facts))
    for each in promises(facts):
        said += paragraph(promise_said(facts, each), "bad" if each.verdict == BROKEN else "")
    said += table_of(promise_cells(tables.get("promise")))
    precision = (
        "Precision depends on how much of the code is AI code at all: at the measured TPR and FPR "
        "of a split, for these shares."
    )
    trust = paragraph(calibration_said(facts)) + paragraph(abstain_said(facts))
    return (
        section("Operating point", said)
        + section("Precision", table_of(prevalence_cells(tables.get("prevalence"))), precision)
        + section("Calibration and abstention", trust)
    )


def _parts(facts: RunFacts, tables: Tables, plots: Plots) -> str:
    edits = (
        "The meaning of each program stays; the threshold stays too. AI edited: TPR that is lost. "
        "Human edited: FPR that is gained. Before and after are the same programs: those that the "
        "edit changes."
    )
    worst = "".join(
        paragraph(f"On {name}: {said[:1].lower()}{said[1:]}")
        for name, scores in splits(facts)
        for said in worst_said(scores)
    )
    return (
        section("Edits", _edits(tables), edits)
        + _figure(facts, plots, "edits")
        + section("Slices", worst + _slices(tables) + _figure(facts, plots, "slices"))
    )


def _edits(tables: Tables) -> str:
    table = tables.get("edits")
    return _lines(ai_edited_cells(table)) + _lines(human_edited_cells(table))


def _slices(tables: Tables) -> str:
    """Return the slices, the crossed kinds folded away."""
    table, macro = tables.get("slices"), table_of(macro_cells(tables.get("macro")))
    shown = ""
    if table is not None:
        is_crossed = table["by"].str.contains(" x ", regex=False)
        shown = _folded(table[~is_crossed], slice_cells, "slices")
        shown += _folded(table[is_crossed], slice_cells, "slices (crossed)", first=0)
    return shown + (paragraph("Mean over slices, each counted once:") + macro if macro else "")


def _folded(table: pd.DataFrame | None, cells: Cells, what: str, *, first: int = SHOWN_ROWS) -> str:
    """Return the first rows of a table, and the others folded away."""
    if table is None:
        return ""
    shown, rest = _lines(cells(table[:first])), table[first:]
    if not len(rest):
        return shown
    more = _lines(cells(rest[:MOST_ROWS]))
    title = f"{count(len(rest))} {'more ' if first else ''}{what}"
    return f"{shown}<details><summary>{title}</summary>{more}</details>"


def _similarity(tables: Tables) -> str:
    retrieval = (
        "Every query looks for programs of its own task among the others of the pool. A lead that "
        "holds 0 in its interval is none. Raw encoder: the same model before this training."
    )
    pairs = (
        "Pairs of one task against hard negatives of another: same language, like length. The "
        "threshold is from validation tasks."
    )
    return section(
        "Similarity: finding programs of the same task",
        _folded(_whole_first(tables.get("retrieval")), retrieval_cells, "rows"),
        retrieval,
    ) + section("Similarity: pairs", _lines(pair_cells(tables.get("pairs"))), pairs)


def _whole_first(table: pd.DataFrame | None) -> pd.DataFrame | None:
    """Put retrieval among all languages above that from one language to another."""
    if table is None:
        return None
    return table.sort_values("query", key=lambda names: names != "all", kind="stable")


def _lines(table: pd.DataFrame) -> str:
    """Return a table whose rows stay on one line; a page that is too narrow scrolls it."""
    return table_of(table, classes="lines")


def _figure(facts: RunFacts, plots: Plots, name: str) -> str:
    return figure(plots, name, caption(facts, name)) if name in plots else ""


def data_parts(tables: Tables) -> str:
    """Return the programs of each split by language, source and generator, folded away."""
    table = tables.get("data_parts")
    if table is None:
        return ""
    return (
        "<details><summary>By language, source and generator</summary>"
        f"{table_of(table[:MOST_PARTS])}</details>"
    )


def data_found(facts: RunFacts) -> str:
    """Return what the checks of the data found and what its splits share, a line each."""
    lines = [line for key in ("problems", "overlap") for line in _named(facts, key)]
    more = [f"and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
    return "\n".join(lines[:MOST_LINES] + more)


def _named(facts: RunFacts, key: str) -> Iterator[str]:
    found = facts.get("data", key)
    if isinstance(found, str):
        yield found
    for name, value in part(facts.data, "data", key).items():
        text = _flat(value)
        cut = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} …"
        yield f"{str(name).replace('_', ' ')}: {cut}"


def _flat(value: Any, depth: int = DEPTH) -> str:
    if isinstance(value, Mapping | list) and not depth:
        return "…"
    if isinstance(value, Mapping):
        return " · ".join(f"{k}: {_flat(v, depth - 1)}" for k, v in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(_flat(each, depth - 1) for each in value[:20]) or "none"
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if is_count and abs(value) < 10**18 else str(value)[:MOST_CHARACTERS]
