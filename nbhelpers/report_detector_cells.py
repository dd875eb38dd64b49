"""Tables of a detector's report as a page shows them: every cell is text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nbhelpers.report_detector_base import (
    EDIT_NAMES,
    lead_said,
    rate_said,
    with_edges,
)
from nbhelpers.report_facts import count, known, score
from nbhelpers.targets_detector import DETECTOR_TITLES

if TYPE_CHECKING:
    import pandas as pd


def _records(table: pd.DataFrame | None) -> Iterator[dict[str, Any]]:
    for row in table.to_dict("records") if table is not None else ():
        yield {name: _known(value) for name, value in row.items()}


def _known(value: Any) -> Any:
    return value if isinstance(value, list) else known(value)


def _frame(rows: list[dict[str, str]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows).fillna("")


def score_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Put the splits side by side: one row per metric, `value (low to high)` per split."""
    cells: dict[str, dict[str, str]] = {}
    for row in _records(table):
        between = None if row["low"] is None else [row["low"], row["high"]]
        cells.setdefault(row["metric"], {})[row["split"]] = with_edges(row["value"], between)
    return _frame([{"metric": DETECTOR_TITLES[m]} | splits for m, splits in cells.items()])


def target_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write each target with what it bounds."""
    rows = []
    for row in _records(table):
        value = row["note"] or "undefined" if row["value"] is None else f"{row['value']:.4g}"
        cells = {"metric": row["metric"], "wanted": f"{row['op']} {row['target']:g}"}
        rows.append(cells | {"value": value, "passed": bool(row["passed"])})
    return _frame(rows)


def promise_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write rates in per cent."""
    rows = []
    for row in _records(table):
        between = None if row["low"] is None else [row["low"], row["high"]]
        cells = {"split": row["split"], "human programs": count(row["humans"])}
        cells |= {"promised FPR": f"{100 * row['promised']:.3g} %"}
        rows.append(
            cells | {"realised FPR": rate_said(row["realised"], between), "promise": row["promise"]}
        )
    return _frame(rows)


def floor_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write scores with intervals and leads."""
    rows = []
    for row in _records(table):
        cells = {"split": row["split"], "scorer": row["scorer"]}
        for metric in ("roc_auc", "tpr_at_fpr", "tpr", "fpr"):
            is_known, title = row[metric] is not None, DETECTOR_TITLES[metric]
            said = with_edges(row[metric], row[f"{metric} interval"]) if is_known else ""
            cells[title] = said
            if metric in ("roc_auc", "tpr_at_fpr"):
                cells[f"lead in {title}"] = lead_said(row[f"{metric} lead"])
        rows.append(cells | _skipped(row, "ROC-AUC"))
    return _frame(rows)


def prevalence_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write each precision with its interval."""
    rows = []
    for row in _records(table):
        between = None if row["low"] is None else [row["low"], row["high"]]
        cells = {"split": row["split"], "share of AI code": row["share of AI"]}
        rows.append(cells | {"precision of a call": with_edges(row["precision"], between)})
    return _frame(rows)


def slice_cells(table: pd.DataFrame) -> pd.DataFrame:
    """Write rates with intervals, and where a slice is the worst."""
    rows = []
    for row in _records(table):
        cells = {"split": row["split"], "by": row["by"], "slice": row["value"]}
        cells |= {"human": count(row["n_human"]), "AI": count(row["n_ai"])}
        cells |= {"ROC-AUC": "" if row["roc_auc"] is None else score(row["roc_auc"])}
        for metric in ("tpr", "fpr"):
            is_known = row[metric] is not None
            said = with_edges(row[metric], row[f"{metric} interval"]) if is_known else ""
            cells[metric.upper()] = said
        worst = ", ".join(DETECTOR_TITLES.get(m, m) for m in row["worst"].split(", ") if m)
        rows.append(cells | {"worst in": worst})
    return _frame(rows)


def macro_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write the means."""
    rows = []
    for row in _records(table):
        cells = {"split": row["split"], "over": row["by"]}
        for metric in ("roc_auc", "tpr", "fpr"):
            said = "" if row[metric] is None else score(row[metric])
            cells[DETECTOR_TITLES[metric]] = said
        rows.append(cells)
    return _frame(rows)


def ai_edited_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write the TPR before and after an edit of AI programs, and what is lost."""
    rows = []
    for row in _records(table):
        cells = _edit(row) | {"AI programs": count(row["n_ai"]), "TPR": _before_after(row, "tpr")}
        cells["TPR lost"] = _signed(row["tpr lost"], row["tpr lost interval"])
        rows.append(cells | _skipped(row, "TPR"))
    return _frame(rows)


def human_edited_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write the FPR before and after an edit of human programs, and what is gained."""
    rows = []
    for row in _records(table):
        cells = _edit(row) | {"human programs": count(row["n_human"])}
        cells |= {"FPR": _before_after(row, "fpr"), "FPR gained": _signed(row["fpr gained"], None)}
        rows.append(cells | _skipped(row, "FPR"))
    return _frame(rows)


def _edit(row: Mapping[str, Any]) -> dict[str, str]:
    edit = EDIT_NAMES.get(row["edit"], row["edit"])
    return {"split": row["split"], "edit": edit, "scorer": row["scorer"]}


def _skipped(row: Mapping[str, Any], column: str) -> dict[str, str]:
    """Return why a scorer has no scores, in the place of one."""
    return {column: f"not scored: {row['note']}"} if row["note"] else {}


def _before_after(row: Mapping[str, Any], rate: str) -> str:
    before, after = row[f"{rate} before"], row[f"{rate} after"]
    if before is None and after is None:
        return ""
    return f"{score(before)} to {with_edges(after, row[f'{rate} after interval'])}"


def _signed(value: float | None, between: list[float] | None) -> str:
    return "" if value is None else lead_said([value, *(between or [None, None])])


def retrieval_cells(table: pd.DataFrame | None) -> pd.DataFrame:
    """Write scores with intervals and the lead."""
    rows = []
    for row in _records(table):
        cells = {"split": row["split"], "query": row["query"], "pool": row["pool"]}
        cells |= {"queries": count(row["queries"]), "pool size": count(row["pool size"])}
        cells |= {"scorer": row["scorer"]}
        for metric, title in (("mrr", "MRR"), ("map_at_r", "MAP@R")):
            is_known = row[metric] is not None
            cells[title] = with_edges(row[metric], row[f"{metric} interval"]) if is_known else ""
            if metric == "mrr":
                cells["lead in MRR"] = lead_said(row["lead"])
        rows.append(cells | _skipped(row, "MRR"))
    return _frame(rows)


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
