"""The middle of a detector's page: scores, promise, floors, edits, similarity and doubts."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.formatting import count
from nbhelpers.plots import caption
from nbhelpers.report_detector import doubts
from nbhelpers.report_detector_base import part
from nbhelpers.report_detector_cells import (
    data_cells,
    edited_cells,
    floor_cells,
    pair_cells,
    promise_cells,
    retrieval_cells,
    score_cells,
    setting_cells,
    slice_cells,
    target_cells,
)
from nbhelpers.report_detector_words import (
    abstain_said,
    audit_warnings,
    calibration_said,
    compile_said,
    inference_said,
    means_said,
    phases_said,
    point_said,
    speed_said,
)
from nbhelpers.report_facts import RunFacts
from nbhelpers.report_memory import memory_parts
from nbhelpers.report_page import figure, paragraph, section, table_of
from nbhelpers.report_words import citation, memory_sentence

if TYPE_CHECKING:
    import pandas as pd

Tables = Mapping[str, "pd.DataFrame"]
Plots = Mapping[str, Path]
Cells = Callable[["pd.DataFrame"], "pd.DataFrame"]
SHOWN_ROWS = 40  # of slices; the others are folded away
MOST_ROWS = 400  # of those, on the page; the table of the report has all
MOST_PARTS = 60
MOST_LINES, MOST_CHARACTERS = 12, 300  # of what the checks of the data found
FEATURES = 5
_BRACKETS = re.compile(r"\([^()]*\)")


def middle(facts: RunFacts, tables: Tables, plots: Plots) -> str:
    """Return the sections between the head and the cost of a run."""
    note = str(facts.get("data", "note") or "")
    against = [text for text in [note, *doubts(facts)] if text]
    return (
        section("Targets", table_of(target_cells(tables.get("targets"))))
        + _scores(facts, tables, plots)
        + _point(facts, tables)
        + _parts(facts, tables, plots)
        + _similarity(tables)
        + section("What to hold against these scores", "".join(paragraph(t) for t in against))
        + section("Audit of the data", _audit(facts, tables))
    )


def cost(facts: RunFacts, tables: Tables, plots: Plots) -> str:
    """Return what the run took: memory, time, GPUs, and how the training went."""
    memory = paragraph(memory_sentence(tables)) if "memory" in tables else ""
    memory += _figure(facts, plots, "memory") + memory_parts(facts, tables, plots)
    said = [phases_said(facts), compile_said(facts), speed_said(facts), inference_said(facts)]
    time = table_of(_longer(tables.get("timing"))) + table_of(tables.get("time"))
    time += "".join(paragraph(text) for text in said)
    return (
        section("Memory", memory)
        + section("Time", time)
        + section("GPUs", table_of(tables.get("gpus")) + _figure(facts, plots, "gpu"))
        + section("Training", table_of(tables.get("training")) + _figure(facts, plots, "loss"))
    )


def origin(facts: RunFacts, tables: Tables, plots: Plots) -> str:
    """Return the data, the settings, and what is needed to cite or repeat the run."""
    import pandas as pd

    parts, found = tables.get("data_parts"), data_found(facts)
    data = table_of(data_cells(tables.get("data"), None if parts is None else parts[:MOST_PARTS]))
    data += _figure(facts, plots, "lengths") + "".join(paragraph(text, "note") for text in found)
    said = [row for row in citation(facts).items() if row[0] != "data note"]  # among the doubts
    cited = pd.DataFrame(said, columns=["to cite", "value"])
    settings = table_of(setting_cells(tables.get("settings")))
    return (
        section("Data", data)
        + section("Settings that differ from the base preset", settings)
        + section("To cite or repeat this run", table_of(cited, classes="long"))
    )


def _longer(table: pd.DataFrame | None) -> pd.DataFrame | None:
    """Leave out the phases that took no time worth a line."""
    return None if table is None else table[~(table["seconds"] < 0.05)]


def _audit(facts: RunFacts, tables: Tables) -> str:
    listed = "".join(f"<li>{html.escape(text)}</li>" for text in audit_warnings(facts))
    features = tables.get("features")
    note = "Area under the ROC curve of each of these features alone, of the code as it is and in "
    note = paragraph(f"{note}the form that the model reads.", "note")
    listed = f"<ul class='note'>{listed}</ul>" if listed else ""
    return listed + ("" if features is None else note + table_of(features[:FEATURES].round(3)))


def _scores(facts: RunFacts, tables: Tables, plots: Plots) -> str:
    note = (
        "AI is the positive class; all at the frozen threshold, but for the areas. Intervals: "
        "95 %, by resampling tasks; Clopper-Pearson for FPR, which takes human programs as "
        "independent and so is too narrow where tasks or people repeat. A dash: undefined, as the "
        "split has one class."
    )
    return (
        section("Scores", _lines(score_cells(tables.get("scores"))), note)
        + section(
            "Beside the floors",
            _lines(floor_cells(tables.get("floors"))),
            "Leads: ours minus the floor's, on the same resamples.",
        )
        + _figure(facts, plots, "roc")
        + _figure(facts, plots, "scores")
    )


def _point(facts: RunFacts, tables: Tables) -> str:
    table = promise_cells(tables.get("promise"), tables.get("prevalence"))
    note = (
        "Kept: the whole interval lies below the promise; broken: above it; else open. It takes "
        "programs as independent: of few tasks, or few people, even a kept promise says little. "
        "Precision, the share of calls that are right, depends on how much of the code is AI code."
    )
    said = paragraph(point_said(facts)) + _lines(table)
    said += paragraph(abstain_said(facts)) + paragraph(calibration_said(facts))
    return section("Threshold, promise and precision", said, note if len(table) else "")


def _parts(facts: RunFacts, tables: Tables, plots: Plots) -> str:
    edits = (
        "The meaning of each program stays, and so does the threshold. AI programs edited: TPR; "
        "human programs edited: FPR. Before and after are the programs that the edit changes."
    )
    return (
        section("Edits", _lines(edited_cells(tables.get("edits"))), edits)
        + _figure(facts, plots, "edits")
        + section("Slices", _slices(facts, tables) + _figure(facts, plots, "slices"))
    )


def _slices(facts: RunFacts, tables: Tables) -> str:
    """Return the slices that are not all of their split, the crossed kinds left to the table."""
    table = tables.get("slices")
    if table is None:
        return ""
    kinds = table.groupby(["split", "by"])["value"].transform("size")
    is_shown = ~table["by"].str.contains(" x ", regex=False) & (kinds > 1)
    is_shown = (is_shown | (table["worst"] != "")) & (table["split"] != "valid")
    means = list(means_said(facts))
    said = f"Means on test, each slice counted once: {'; '.join(means)}." if means else ""
    rest = len(table) - int(is_shown.sum())
    more = f"{count(rest)} more stand in result.json: of valid, crossed, or all of their split."
    return _folded(table[is_shown], slice_cells, "slices") + paragraph(
        f"{said} {more if rest else ''}".strip(), "note"
    )


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
    table, of_pairs = tables.get("retrieval"), tables.get("pairs")
    skipped = ""
    if table is not None:
        notes = dict(table.loc[table["note"] != "", ["scorer", "note"]].itertuples(index=False))
        skipped = "; ".join(f"{scorer}: {note}" for scorer, note in notes.items())
        skipped = paragraph(f"Not scored: {skipped}." if skipped else "", "note")
    if of_pairs is not None:
        of_pairs = of_pairs[of_pairs["note"] == ""]
    return section(
        "Similarity: finding programs of the same task",
        _lines(retrieval_cells(_whole_first(table))) + skipped,
        retrieval,
    ) + section("Similarity: pairs", _lines(pair_cells(of_pairs)), pairs)


def _whole_first(table: pd.DataFrame | None) -> pd.DataFrame | None:
    """Put retrieval among all languages above that from one language to another."""
    if table is None:
        return None
    return table.sort_values("query", key=lambda names: names != "all", kind="stable")


def _lines(table: pd.DataFrame) -> str:
    """Return a table whose cells break before a bracket and not inside one."""
    for name in table.columns:
        table[name] = [_unbroken(cell) for cell in table[name]]
    return table_of(table, classes="wrap")


def _unbroken(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    return _BRACKETS.sub(lambda found: found[0].replace(" ", "\u00a0"), cell)


def _figure(facts: RunFacts, plots: Plots, name: str) -> str:
    return figure(plots, name, caption(facts, name)) if name in plots else ""


def data_found(facts: RunFacts) -> list[str]:
    """Return in sentences what the checks of the data found and what its splits share."""
    told = facts.get("data", "problems") or {}
    if isinstance(told, str):  # of an older run
        told = {"left_out": told}
    said = [told["left_out"]] if told.get("left_out") else []
    if dropped := _counts(told.get("rows_dropped")):
        said.append(f"Rows dropped: {dropped}.")
    notes = told.get("notes") or []
    said += [f"{str(note).removeprefix('note: ').capitalize()}." for note in notes]
    said += [f"For instance {text}." for text in told.get("examples") or [] if text]
    if same := _counts(told.get("duplicates")):
        said.append(f"Repeated rows: {same}.")
    if unknown := _counts(told.get("rows_without")):
        said.append(f"Rows without: {unknown}.")
    said += [_shared(facts)]
    said = [text[:MOST_CHARACTERS] for text in said if text]
    more = [f"And {len(said) - MOST_LINES} more."] if len(said) > MOST_LINES else []
    return said[:MOST_LINES] + more


def _counts(found: Any) -> str:
    """Write the counts of a mapping that are not 0."""
    counts = (found or {}).items()
    return ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in counts if n)


def _shared(facts: RunFacts) -> str:
    """Say what the splits share: nothing, as the job asserts."""
    overlap = {
        str(pair): _counts(found) for pair, found in part(facts.data, "data", "overlap").items()
    }
    if shared := [f"{pair} {said}" for pair, said in overlap.items() if said]:
        return f"Splits share: {'; '.join(shared)}."
    return "The splits share no code, nearly equal code, task or author." if overlap else ""
