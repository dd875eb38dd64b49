"""The pieces that a report's page is made of: style, sections, tables and figures, all escaped."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.common.formatting import count, duration, share, size
from nbhelpers.reports.facts import interval, known, score

if TYPE_CHECKING:
    import pandas as pd

STYLE = """
.nbh{font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;color:#1c1c1c;background:#fff;
max-width:56rem;margin:0 auto;padding:1rem;box-sizing:border-box}
.nbh h1{font-size:1.35rem;line-height:1.25;margin:.2rem 0 .6rem;overflow-wrap:anywhere}
.nbh h2{font-size:1.05rem;margin:1.8rem 0 .4rem;padding-bottom:.2rem;border-bottom:1px solid #ddd}
.nbh p{margin:.4rem 0;max-width:46rem}.nbh .lead{font-size:1.08rem}
.nbh .note{color:#555;font-size:.88rem}.nbh .bad{border-left:4px solid #D55E00;padding-left:.7rem}
.nbh pre{white-space:pre-wrap;font-size:.82rem}
.nbh .scroll{overflow-x:auto;max-width:100%}
@supports not selector(::-webkit-scrollbar){.nbh .scroll{scrollbar-color:#999 #eee}}
.nbh .scroll::-webkit-scrollbar{height:.6rem;background:#eee}
.nbh .scroll::-webkit-scrollbar-thumb{background:#999;border-radius:.3rem}
.nbh table{border-collapse:collapse;margin:.5rem 0;font-size:.86rem}
.nbh th,.nbh td{padding:.22rem .7rem .22rem 0;text-align:left;vertical-align:top;
border-bottom:1px solid #eee;background:none;color:inherit}
.nbh th{font-weight:600;color:#444;border-bottom-color:#bbb;white-space:nowrap}
.nbh td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.nbh th.n{text-align:right}.nbh .long{overflow-wrap:anywhere}
.nbh td.w{white-space:nowrap}
.nbh td.y{min-width:20rem}.nbh td.v{max-width:14rem;overflow-wrap:break-word}
.nbh img{max-width:100%;height:auto;display:block}.nbh figure{margin:.6rem 0}
.nbh figcaption{color:#555;font-size:.84rem}
.nbh.wide{max-width:84rem}.nbh .lines td{white-space:pre}
.nbh .wrap th{white-space:normal;vertical-align:bottom}
.nbh mark{background:#cfe8cf;color:#123312}.nbh details{margin:.5rem 0}
.nbh summary{cursor:pointer;font-size:.9rem}.nbh pre.code{background:#f6f6f6;padding:.4rem}
@media(max-width:600px){.nbh th{white-space:normal}}
"""
UNBROKEN = frozenset(("scorer", "split", "order", "prior", "metric", "average", "phase"))
UNBROKEN |= {"to cite", "what", "setting", "verdict", "score", "run"}
WIDTHS = {"why": "y", "this run": "v", "base": "v"}  # room for reasons beside long values
SCORE_COLUMNS = frozenset(("precision", "recall", "f1", "roc_auc", "pr_auc", "target"))
HEADS = {
    "f1": "F1 (binary)",
    "precision": "precision (binary)",
    "recall": "recall (binary)",
    "roc_auc": "ROC-AUC",
    "pr_auc": "PR-AUC",
    "size_bytes": "size",
    "mean_utilisation_percent": "mean utilisation",
    "peak_memory_used_bytes": "peak memory in use",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run found: `tables` to compute with, `text` for a terminal, `path` of the page."""

    run_id: str
    status: str
    path: Path
    text: str = field(repr=False)
    tables: dict[str, pd.DataFrame] = field(repr=False)
    plots: dict[str, Path] = field(repr=False)
    html: str = field(repr=False)

    def __repr__(self) -> str:
        """Return one line: which run, how it stands, where the page is."""
        return f"Report({self.run_id}, {self.status}: {self.path})"

    def __str__(self) -> str:
        """Return the text for a terminal."""
        return self.text

    def _repr_html_(self) -> str:
        return self.html


def page(title: str, fragment: str) -> str:
    """Return a whole document around a fragment."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title></head><body style='margin:0;background:#fff'>\n"
        f"{fragment}\n</body></html>\n"
    )


def section(title: str, content: str, note: str = "") -> str:
    """Return content that is HTML under a title, or nothing without content."""
    if not content:
        return ""
    return f"<h2>{html.escape(title)}</h2>" + (paragraph(note, "note") if note else "") + content


def paragraph(text: str, classes: str = "") -> str:
    """Return a paragraph of plain text."""
    return f'<p class="{classes}">{html.escape(text)}</p>' if text else ""


def figure(plots: Mapping[str, Path], name: str, caption: str) -> str:
    """Return a plot with its caption inside the page, or nothing where it was not drawn."""
    if name not in plots:
        return ""
    image, caption = base64.b64encode(plots[name].read_bytes()).decode(), html.escape(caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{image}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def table_of(table: pd.DataFrame | None, *, classes: str = "") -> str:
    """Return a table whose cells are escaped; empty columns are left out."""
    if table is None or not len(table):
        return ""
    rows = [_cells(row) for row in table.to_dict("records")]
    names = [name for name in rows[0] if any(row[name][0] for row in rows)]
    head = "".join(
        f'<th class="{rows[0][name][1]}">{html.escape(HEADS.get(name, name))}</th>'
        for name in names
    )
    lines = "".join(
        "<tr>"
        + "".join(f'<td class="{row[n][1]}">{html.escape(row[n][0])}</td>' for n in names)
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table class="{classes}"><tr>{head}</tr>{lines}</table></div>'


def _cells(row: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return name → (text, class) of one row; two edges become one interval beside their value."""
    cells: dict[str, tuple[str, str]] = {}
    for name, value in row.items():
        if name == "low":
            edges = [known(value), known(row["high"])]
            cells["95 % interval"] = (interval(edges), "n")
        elif name != "high":
            cells[str(name)] = _cell(str(name), value)
    return cells


def _cell(name: str, value: Any) -> tuple[str, str]:
    if isinstance(value, list | tuple):
        return (f"{value[0]:+.3f} to {value[1]:+.3f}" if interval(value) else ""), "n"
    value = known(value)
    writers: dict[str, Callable[[Any], str]] = {
        "share of clones": share,
        "share": share,
        "seconds": duration,
        "lead": lambda difference: f"{difference:+.3f}",
        "mean_utilisation_percent": lambda percent: f"{percent:.0f} %",
        "passed": lambda passed: "passed" if passed else "missed",
    }
    if value is None:
        return "", "n" if name in SCORE_COLUMNS or name in writers else ""
    if name in writers:
        return writers[name](value), "n"
    if name.endswith("_bytes"):
        return size(value), "n"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value), "w" if name in UNBROKEN else WIDTHS.get(name, "")
    if name in SCORE_COLUMNS:
        return score(value), "n"
    is_count = isinstance(value, int) or float(value).is_integer() or abs(value) >= 1000
    return (count(value) if is_count else f"{value:.4g}"), "n"
