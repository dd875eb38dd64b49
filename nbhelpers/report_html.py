"""Writes a report as HTML: one page that needs no other file, and the same body for a notebook."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from nbhelpers.plots import caption
from nbhelpers.report_facts import RunFacts, count, duration, interval, known, score, share, size
from nbhelpers.report_findings import cautions, details, glossary, headline, verdicts
from nbhelpers.report_words import citation, memory_sentence, problems

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
.nbh .scroll{overflow-x:auto}.nbh table{border-collapse:collapse;margin:.5rem 0;font-size:.86rem}
.nbh th,.nbh td{padding:.22rem .7rem .22rem 0;text-align:left;vertical-align:top;
border-bottom:1px solid #eee;background:none;color:inherit}
.nbh th{font-weight:600;color:#444;border-bottom-color:#bbb;white-space:nowrap}
.nbh td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.nbh th.n{text-align:right}.nbh .long{overflow-wrap:anywhere}
.nbh td.w{white-space:nowrap}
.nbh img{max-width:100%;height:auto;display:block}.nbh figure{margin:.6rem 0}
.nbh figcaption{color:#555;font-size:.84rem}
@media(max-width:600px){.nbh th{white-space:normal}}
"""
UNBROKEN = frozenset(("scorer", "split", "order", "prior", "metric", "average", "phase"))
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


def body(facts: RunFacts, tables: Mapping[str, pd.DataFrame], plots: Mapping[str, Path]) -> str:
    """Return the report as an HTML fragment that brings its own style and images."""
    parts = [
        _head(facts),
        _scores(facts, tables, plots),
        _doubts(facts, tables),
        _cost(facts, tables, plots),
        _settings(facts, tables),
    ]
    return f'<div class="nbh"><style>{STYLE}</style>{"".join(parts)}</div>'


def page(facts: RunFacts, fragment: str) -> str:
    """Return a whole document around a fragment."""
    title = html.escape(f"Report of {facts.run.id}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title></head><body style='margin:0;background:#fff'>\n"
        f"{fragment}\n</body></html>\n"
    )


def _head(facts: RunFacts) -> str:
    job, model = facts.get("job") or "run", _short_name(str(facts.get("model", "name") or ""))
    title = f"{job}: {model}" if model else str(job)
    said = [f"<h1>{html.escape(title)}</h1>", _p(headline(facts), "lead")]
    said += [_p(text, "bad") for text in problems(facts)]
    said += [_p(verdict) for verdict in verdicts(facts)]
    said += [_p(details(facts)), *(_p(line, "note") for line in glossary(facts))]
    where = f"Run {facts.run.id}, preset {facts.get('preset')}, {facts.status}."
    return "".join(said) + _p(where, "note")


def _short_name(model: str) -> str:
    """Return a hub name as it is, and of a path only its last part.

    >>> _short_name("microsoft/CodeGPT"), _short_name("/a/run/checkpoints/step-00000060")
    ('microsoft/CodeGPT', 'step-00000060')
    """
    is_path = model.count("/") > 1 or model.startswith(("/", ".", "~"))
    return PurePath(model).name if is_path else model


def _scores(facts: RunFacts, tables: Mapping[str, pd.DataFrame], plots: Mapping[str, Path]) -> str:
    note = (
        "As given: the two functions in the order in which the data holds them. Binary scores "
        "are of the class clone; macro is the mean over both classes: do not compare "
        "one with the other. Intervals come from resampling functions, because pairs share them."
    )
    return (
        _section("Targets", _table(tables.get("targets")))
        + _section("Scores, pairs as given", _table(_wide_scores(tables.get("scores"))), note)
        + _figure(facts, plots, "curves")
        + _figure(facts, plots, "scores")
        + _section(
            "At other shares of clones",
            _table(tables.get("priors")),
            "Recall does not depend on the share of clones; precision and F1 do. Compare scores "
            "only at equal shares.",
        )
    )


def _wide_scores(table: pd.DataFrame | None) -> pd.DataFrame | None:
    """Put the splits side by side: one row per metric, `value (low to high)` per split."""
    import pandas as pd

    if table is None:
        return None
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in table.to_dict("records"):
        edges = interval([known(row["low"]), known(row["high"])])
        said = score(known(row["value"])) + (f" ({edges})" if edges else "")
        cells.setdefault((row["metric"], row["average"]), {})[row["split"]] = said
    rows = [
        {"metric": HEADS.get(metric, metric).removesuffix(" (binary)"), "average": average} | splits
        for (metric, average), splits in cells.items()
    ]
    return pd.DataFrame(rows).fillna("")


def _doubts(facts: RunFacts, tables: Mapping[str, pd.DataFrame]) -> str:
    notes = "".join(_p(text) for text in cautions(facts))
    return (
        _section(
            "Beside cheap scorers",
            _table(_floors_cells(tables.get("floors"))),
            "The floors, each at its own threshold. Lead: our F1 minus the floor's, and the 95 % "
            "interval of the difference.",
        )
        + _section(
            "By texts seen in train",
            _table(tables.get("strata")),
            "Seen in train: how many of a pair's two texts (0, 1 or 2) also occur in train, white "
            "space aside. Pairs with none come nearest to a new code base.",
        )
        + _section(
            "Order of a pair",
            _table(tables.get("orders")),
            "Given: as in the data; reversed: the two functions swapped; mean: of both "
            "probabilities. The head reads in order; a clone does not depend on it.",
        )
        + _section("What to hold against these scores", notes)
    )


def _floors_cells(table: pd.DataFrame | None) -> pd.DataFrame | None:
    return None if table is None else table.drop(columns=["precision", "recall"], errors="ignore")


def _cost(facts: RunFacts, tables: Mapping[str, pd.DataFrame], plots: Mapping[str, Path]) -> str:
    memory = _p(memory_sentence(tables)) if "memory" in tables else ""
    memory += _table(_memory_cells(tables.get("memory"))) + _figure(facts, plots, "memory")
    memory += _table(tables.get("memory_lines"))
    return (
        _section("Memory", memory)
        + _section("Time", _table(tables.get("timing")))
        + _section("Speed", _table(tables.get("throughput")))
        + _section("GPUs", _table(tables.get("gpus")) + _figure(facts, plots, "gpu"))
        + _section("Training", _table(tables.get("training")) + _figure(facts, plots, "loss"))
        + _section(
            "Beside the legacy script",
            _table(tables.get("legacy")),
            "Left: the preset that quotes the old script; what it would have measured is known "
            "only from a run of that preset in the same folder.",
        )
    )


def _memory_cells(table: pd.DataFrame | None) -> pd.DataFrame | None:
    import pandas as pd

    if table is None:
        return None
    row = {name: known(value) for name, value in table.iloc[0].to_dict().items()}
    error = row["error_percent"]
    cells = {
        "predicted": size(row["predicted_bytes"]),
        "measured": size(row["measured_bytes"]),
        "error": "" if error is None else f"{error:+.1f} %",
        "what was measured": row["measured"] or "",
        "reserved": size(row["reserved_bytes"]) if row["reserved_bytes"] else "",
        "process (RSS)": size(row["process_rss_bytes"]) if row["process_rss_bytes"] else "",
        "budget before the run": size(row["budget_bytes"]) if row["budget_bytes"] else "",
        "capacity": size(row["capacity_bytes"]) if row["capacity_bytes"] else "",
    }
    return pd.DataFrame([{name: cell for name, cell in cells.items() if cell}])


def _settings(facts: RunFacts, tables: Mapping[str, pd.DataFrame]) -> str:
    import pandas as pd

    rows = pd.DataFrame(list(citation(facts).items()), columns=["to cite", "value"])
    found = _findings(facts.get("data", "problems"))
    checked = f"<pre class='long note'>{html.escape(found)}</pre>" if found else ""
    return (
        _section("Data", _table(tables.get("data")) + checked, _functions_said(facts))
        + _section("Settings that differ from the base preset", _table(tables.get("settings")))
        + _section("To cite or repeat this run", _table(rows, classes="long"))
    )


def _findings(found: Any) -> str:
    """Return what the check of the data found, a line each, from its text or its JSON form."""
    if not isinstance(found, Mapping):
        return found if isinstance(found, str) else ""
    rows = {str(kind): number for kind, number in (found.get("counts") or {}).items()}
    facts = {str(name): value for name, value in (found.get("facts") or {}).items()}
    notes = [*(found.get("examples") or []), *(found.get("notes") or [])]
    lines = [*_named(rows), *(str(note) for note in notes), *_named(facts)]
    return "\n".join(lines)


def _named(values: Mapping[str, Any]) -> list[str]:
    """Write `name: value` lines; a mapping as value becomes `train: 0 · valid: 0`."""
    return [f"{name.replace('_', ' ')}: {_flat(value)}" for name, value in values.items()]


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return " · ".join(f"{name}: {_flat(inner)}" for name, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(_flat(inner) for inner in value) or "none"
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if is_count else str(value)


def _functions_said(facts: RunFacts) -> str:
    """Explain why the functions of the splits need not add up to those of the data."""
    known_functions = facts.get("data", "n_functions")
    if not isinstance(known_functions, int):
        return ""
    return (
        f"The data has {known_functions:,} functions. The table counts those that a split's pairs "
        "use: one without a pair counts nowhere, one in two splits counts in both."
    )


def _section(title: str, content: str, note: str = "") -> str:
    if not content:
        return ""
    return f"<h2>{html.escape(title)}</h2>" + (_p(note, "note") if note else "") + content


def _p(text: str, classes: str = "") -> str:
    return f'<p class="{classes}">{html.escape(text)}</p>' if text else ""


def _figure(facts: RunFacts, plots: Mapping[str, Path], name: str) -> str:
    if name not in plots:
        return ""
    image = base64.b64encode(plots[name].read_bytes()).decode()
    said = html.escape(caption(facts, name))
    return (
        f'<figure><img alt="{said}" src="data:image/png;base64,{image}">'
        f"<figcaption>{said}</figcaption></figure>"
    )


def _table(table: pd.DataFrame | None, *, classes: str = "") -> str:
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
        "lead": lambda lead: f"{lead:+.3f}",
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
        return str(value), "w" if name in UNBROKEN else ""
    if name in SCORE_COLUMNS:
        return score(value), "n"
    is_count = isinstance(value, int) or float(value).is_integer() or abs(value) >= 1000
    return (count(value) if is_count else f"{value:.4g}"), "n"
