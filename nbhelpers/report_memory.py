"""The tables of a report on memory beside the peak: by phase, what others held, what was alive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.formatting import size
from nbhelpers.report_facts import RunFacts, dig, known
from nbhelpers.report_page import figure, paragraph, table_of

if TYPE_CHECKING:
    import pandas as pd

PHASES_CAPTION = (
    "Peak memory of each phase: predicted, where there is a prediction, beside measured."
)
HELD = {
    "other_processes_bytes": ("held by other processes", "before the run began"),
    "earlier_bytes": ("left over from earlier cells", "by the notebook's process"),
    "context_bytes": ("CUDA context", "outside the allocator, measured after the first steps"),
}


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows)


def phases_table(facts: RunFacts) -> pd.DataFrame:
    """Return predicted and measured peak bytes of each phase, then of what was reserved."""
    keys = ("predicted_bytes", "measured_bytes", "error_percent")
    rows = [
        {"phase": row["phase"]} | {key: row.get(key) for key in keys}
        for row in facts.get("memory", "phases") or []
        if row.get("phase") and row.get("measured_bytes")
    ]
    reserved = facts.get("memory", "reserved") or {}
    if rows and reserved.get("measured_bytes"):
        rows.append({"phase": "reserved, whole run"} | {key: reserved.get(key) for key in keys})
    return _frame(rows)


def left_over_table(facts: RunFacts) -> pd.DataFrame:
    """Return what the card held beside the tensors of the run."""
    found = facts.get("memory", "left_over") or {}
    return _frame(
        [
            {"what": HELD[name][0], "size_bytes": found[name], "note": HELD[name][1]}
            for name in HELD
            if found.get(name) is not None
        ]
    )


def alive_table(facts: RunFacts) -> pd.DataFrame:
    """Return what was alive at the peak of the recorded step, kept where the prediction was off."""
    keys = ("total_bytes", "size_bytes", "count", "made_at")
    rows = facts.get("memory", "snapshot", "alive") or []
    return _frame([{key: dig(row, key) for key in keys} for row in rows])


def makers() -> dict[str, Any]:
    """Return the tables of this module by name."""
    return {
        "memory_phases": phases_table,
        "memory_left_over": left_over_table,
        "memory_alive": alive_table,
    }


def memory_parts(
    facts: RunFacts, tables: Mapping[str, pd.DataFrame], plots: Mapping[str, Path]
) -> str:
    """Return as HTML the phases, what others held, and what was alive at a peak that was off."""
    said = "".join(paragraph(text) for text in memory_notes(facts))
    rest = "".join(table_of(table) for table in _cells(tables))
    return said + figure(plots, "memory_phases", PHASES_CAPTION) + rest


def _cells(tables: Mapping[str, pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Yield the tables as a page shows them: sizes and errors in words."""
    for name in makers():
        if name in tables and len(tables[name]):
            yield _written(tables[name])


def _written(table: pd.DataFrame) -> pd.DataFrame:
    heads = {"predicted_bytes": "predicted", "measured_bytes": "measured", "size_bytes": "size"}
    heads |= {"total_bytes": "together", "made_at": "made at"}
    rows = []
    for row in table.to_dict("records"):
        cells = {}
        for key, value in row.items():
            value = known(value)
            if key == "error_percent":
                cells["error"] = "" if value is None else f"{value:+.1f} %"
            elif key in heads and key.endswith("_bytes"):
                cells[heads[key]] = "" if value is None else size(value)
            else:
                cells[heads.get(key, key)] = value
        rows.append(cells)
    return _frame(rows)


def memory_notes(facts: RunFacts) -> list[str]:
    """Return the sentences beside the tables: the worst phase, and where the record lies."""
    said, memory = [], facts.get("memory") or {}
    known_rows = [r for r in memory.get("phases") or [] if r.get("error_percent") is not None]
    measured = [r for r in memory.get("phases") or [] if r.get("measured_bytes")]
    if measured and not known_rows:
        said.append("Phases are measured only: their prediction needs a simulated step on a GPU.")
    if known_rows:
        worst = max(known_rows, key=lambda row: abs(row["error_percent"]))
        basis = f", predicted for {memory['basis']}" if memory.get("basis") else ""
        said.append(
            f"By phase{basis}: the largest error is {worst['error_percent']:+.1f} % "
            f"({worst.get('phase')})."
        )
    held = memory.get("left_over") or {}
    others = (held.get("other_processes_bytes") or 0) + (held.get("earlier_bytes") or 0)
    if others:
        said.append(f"Held by others or left over from earlier cells: {size(others)}.")
    kept = memory.get("snapshot") or {}
    if kept.get("file") and kept.get("error_percent") is not None:
        said.append(
            f"Step {kept.get('step')} was off by {kept['error_percent']:+.1f} %: what was alive at "
            f"its peak is in {kept['file']}."
        )
    return said
