"""Tables of a detector's report as a page shows them: every cell is text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nbhelpers.formatting import count
from nbhelpers.metric_registry import DETECTOR_SCORES, PAGE
from nbhelpers.report_detector_base import (
    EDIT_NAMES,
    lead_said,
    rate_said,
    with_edges,
)
from nbhelpers.report_facts import known, score

if TYPE_CHECKING:
    import pandas as pd

UNDEFINED = "–"


def _records(table: pd.DataFrame | None) -> Iterator[dict[str, Any]]:
    for row in table.to_dict("records") if table is not None else ():
        yield {name: _known(value) for name, value in row.items()}


def _known(value: Any) -> Any:
    return value if isinstance(value, list) else known(value)


def _frame(rows: list[dict[str, str]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows).fillna("")


def score_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Put the splits side by side: one row per metric, `value (low to high)` per split.

    What another row says, or another table, is left out; an undefined score is a dash.
    """
    cells: dict[str, dict[str, str]] = {}
    for row in _records(table):
        between = None if row["low"] is None else [row["low"], row["high"]]
        said = UNDEFINED if row["value"] is None else with_edges(row["value"], between)
        if row["metric"] in DETECTOR_SCORES.names("test", PAGE):
            cells.setdefault(row["metric"], {})[row["split"]] = said
    return _frame([{"metric": DETECTOR_SCORES.title(m)} | splits for m, splits in cells.items()])


def target_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write each target with what it bounds."""
    rows = []
    for row in _records(table):
        value = row["note"] or "undefined" if row["value"] is None else f"{row['value']:.4g}"
        cells = {"metric": row["metric"], "wanted": f"{row['op']} {row['target']:g}"}
        rows.append(cells | {"value": value, "passed": bool(row["passed"])})
    return _frame(rows)


def promise_cells(
    table: pd.DataFrame | None, precisions: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Write rates in per cent, and beside them the precision at the named shares of AI code."""
    named: dict[str, dict[str, str]] = {}
    for row in _records(precisions):
        between = None if row["low"] is None else [row["low"], row["high"]]
        said = UNDEFINED if row["precision"] is None else with_edges(row["precision"], between)
        title = f"precision if {100 * float(row['share of AI']):g} % are AI"
        named.setdefault(row["split"], {})[title] = said
    rows = []
    for row in _records(table):
        between = None if row["low"] is None else [row["low"], row["high"]]
        cells = {"split": row["split"], "human programs": count(row["humans"])}
        cells |= {"tasks": "" if row["tasks"] is None else count(row["tasks"])}
        cells |= {"promised FPR": f"{100 * row['promised']:.3g} %"}
        cells |= {"realised FPR": rate_said(row["realised"], between), "promise": row["promise"]}
        rows.append(cells | named.get(row["split"], {}))
    return _frame(rows)


def floor_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write scores with intervals and leads; on valid every threshold was chosen."""
    rows = []
    for row in (row for row in _records(table) if row["split"] != "valid"):
        cells = {"split": row["split"], "scorer": row["scorer"]}
        for metric in ("roc_auc", "tpr_at_fpr"):
            is_known, title = row[metric] is not None, DETECTOR_SCORES.title(metric)
            said = with_edges(row[metric], row[f"{metric} interval"]) if is_known else ""
            cells |= {title: said, f"lead in {title}": lead_said(row[f"{metric} lead"])}
        for metric in ("tpr", "fpr"):
            said = "" if row[metric] is None else score(row[metric])
            cells[f"{metric.upper()} at its threshold"] = said
        rows.append(cells | _skipped(row, "ROC-AUC"))
    return _once(rows, "split")


def slice_cells(table: pd.DataFrame) -> pd.DataFrame:
    """Write rates with intervals, and where a slice is the worst."""
    rows = []
    for row in _records(table):
        worst = [DETECTOR_SCORES.short(name) for name in row["worst"].split(", ") if name]
        name = f"{row['by']}: {row['value']}" + (f" (worst {', '.join(worst)})" if worst else "")
        cells = {"split": row["split"], "slice": name}
        cells |= {"human": count(row["n_human"]), "AI": count(row["n_ai"])}
        cells |= {"ROC-AUC": "" if row["roc_auc"] is None else score(row["roc_auc"])}
        for metric in ("tpr", "fpr"):
            is_known = row[metric] is not None
            said = with_edges(row[metric], row[f"{metric} interval"]) if is_known else ""
            cells[metric.upper()] = said
        rows.append(cells)
    return _once(rows, "split")


def edited_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write TPR of AI programs and FPR of human programs, before and after an edit of these."""
    rows = []
    for row in _records(table):
        edit, on = EDIT_NAMES.get(row["edit"], row["edit"]), row["split"]
        n_ai, n_human = (count(row[key] or 0) for key in ("n_ai", "n_human"))
        edit = f"{edit if on == 'test' else f'{edit}, {on}'} ({n_ai} AI, {n_human} human)"
        lost = "" if row["tpr lost"] is None else row["tpr lost interval"] or [None, None]
        cells = {"edit": edit, "scorer": row["scorer"], "TPR": _before_after(row, "tpr")}
        cells |= {"TPR lost": lost and lead_said([row["tpr lost"], *lost])}
        rows.append(cells | {"FPR": _before_after(row, "fpr")} | _skipped(row, "TPR"))
    return _once(rows, "edit")


def _once(rows: list[dict[str, str]], column: str) -> pd.DataFrame:
    """Write what neighbouring rows share in the first of them alone."""
    shown = [row[column] for row in rows]
    for before, row, own in zip(shown, rows[1:], shown[1:], strict=False):
        row[column] = "" if own == before else own
    return _frame(rows)


def _skipped(row: Mapping[str, Any], column: str) -> dict[str, str]:
    """Return why a scorer has no scores, in the place of one."""
    return {column: f"not scored: {row['note']}"} if row["note"] else {}


def _before_after(row: Mapping[str, Any], rate: str) -> str:
    before, after = row[f"{rate} before"], row[f"{rate} after"]
    return (
        "" if before is None and after is None else f"{score(before)}\u00a0to\u00a0{score(after)}"
    )


def retrieval_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write scores with intervals and the lead; scorers that were skipped are left out."""
    rows = []
    for row in (row for row in _records(table) if not row["note"]):
        ways = f"{row['query']} to {row['pool']}" if row["query"] != "all" else "all languages"
        ways = f"{row['split']}, {ways} ({count(row['queries'])} in {count(row['pool size'])})"
        cells = {"queries in a pool": ways, "scorer": row["scorer"]}
        for metric, title in (("mrr", "MRR"), ("map_at_r", "MAP@R")):
            is_known = row[metric] is not None
            cells[title] = with_edges(row[metric], row[f"{metric} interval"]) if is_known else ""
            if metric == "mrr":
                cells["lead in MRR"] = lead_said(row["lead"])
        rows.append(cells)
    return _once(rows, "queries in a pool")


def pair_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write scores and the lead."""
    rows = []
    for row in _records(table):
        cells = {"scorer": row["scorer"]}
        is_known = row["roc_auc"] is not None
        said = with_edges(row["roc_auc"], row["roc_auc interval"]) if is_known else ""
        cells |= {"ROC-AUC": said}
        for metric, title in (
            ("average_precision", "average precision"),
            ("accuracy", "accuracy"),
            ("f1", "F1"),
        ):
            cells[title] = "" if row[metric] is None else score(row[metric])
        rows.append(cells | {"lead in ROC-AUC": lead_said(row["lead"])} | _skipped(row, "ROC-AUC"))
    return _frame(rows)


def data_cells(table: pd.DataFrame | None, parts: pd.DataFrame | None) -> pd.DataFrame:
    """Put the splits side by side: programs by label and tasks, then by language and the like."""
    cells: dict[str, dict[str, str]] = {}
    for row in _records(table):
        cells.setdefault("all", {})[row["split"]] = _by_label(row)
        cells.setdefault("tasks", {})[row["split"]] = (
            "" if not row["tasks"] else count(row["tasks"])
        )
    for row in _records(parts):
        cells.setdefault(f"{row['by']}: {row['value']}", {})[row["split"]] = _by_label(row)
    rows = [{"human + AI programs": name} | splits for name, splits in cells.items()]
    return _frame([row for row in rows if any(list(row.values())[1:])])


def _by_label(row: Mapping[str, Any]) -> str:
    both = " + ".join(count(row[key] or 0) for key in ("human", "ai"))
    more = f" + {count(row['unlabelled'])} unlabelled" if row["unlabelled"] else ""
    return both + more


def setting_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write each setting's reason, or who chose it where there is none."""
    rows = []
    for row in _records(table):
        cells = {key: _short(row[key]) for key in ("setting", "base", "this run")}
        rows.append(cells | {"why": row["why"] or row["from"]})
    return _frame(rows)


def _short(text: Any) -> str:
    """Write a table of values as its names."""
    is_table = isinstance(text, str) and text.startswith("{")
    if is_table and text != "{}":
        return f"{text.count(':')} values"
    return "none" if is_table else str(text)
