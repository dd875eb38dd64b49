"""Writes a report as HTML: one page that needs no other file, and the same body for a notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from nbhelpers.common.formatting import count, size
from nbhelpers.metrics.registry import CLONES_SCORES
from nbhelpers.reports.facts import RunFacts, interval, known, score, shown
from nbhelpers.reports.figures import caption
from nbhelpers.reports.page import STYLE, figure, paragraph, section, table_of
from nbhelpers.reports.tables import memory_parts
from nbhelpers.reports.text import citation, findings, memory_sentence, problems

if TYPE_CHECKING:
    import pandas as pd

LIKE = {"equal": "equal", "same_question": "of the same question", "near": "nearly equal"}


def body(facts: RunFacts, tables: Mapping[str, pd.DataFrame], plots: Mapping[str, Path]) -> str:
    """Return the report as an HTML fragment that brings its own style and images."""
    parts = _head(facts) + findings(facts).sections(facts, tables, plots)
    return shown(f'<div class="nbh"><style>{STYLE}</style>{parts}</div>')


def middle(facts: RunFacts, tables: Mapping[str, pd.DataFrame], plots: Mapping[str, Path]) -> str:
    """Return the sections of clone detection between the head and the cost of a run."""
    return _scores(facts, tables, plots) + _doubts(facts, tables)


def _head(facts: RunFacts) -> str:
    job, model = facts.get("job") or "run", _short_name(str(facts.get("model", "name") or ""))
    title = f"{job}: {model}" if model else str(job)
    title += f", {facts.adapter}" if facts.adapter else ""
    job_report = findings(facts)
    parts = [f"<h1>{html.escape(title)}</h1>", paragraph(job_report.headline(facts), "lead")]
    parts += [paragraph(text, "bad") for text in [*job_report.alarms(facts), *problems(facts)]]
    parts += [paragraph(verdict) for verdict in job_report.verdicts(facts)]
    parts += [paragraph(job_report.details(facts))]
    parts += [paragraph(line, "note") for line in job_report.glossary(facts)]
    where = f"Run {facts.run.id}, preset {facts.get('preset')}, {facts.status}."
    return "".join(parts) + paragraph(where, "note")


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
        section("Targets", table_of(tables.get("targets")))
        + section("Scores, pairs as given", table_of(_wide_scores(tables.get("scores"))), note)
        + _figure(facts, plots, "curves")
        + _figure(facts, plots, "scores")
        + section(
            "At other shares of clones",
            table_of(tables.get("priors")),
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
        cell = score(known(row["value"])) + (f" ({edges})" if edges else "")
        cells.setdefault((row["metric"], row["average"]), {})[row["split"]] = cell
    rows = [
        {"metric": CLONES_SCORES.title(metric), "average": average} | splits
        for (metric, average), splits in cells.items()
    ]
    return pd.DataFrame(rows).fillna("")


def _doubts(facts: RunFacts, tables: Mapping[str, pd.DataFrame]) -> str:
    notes = "".join(paragraph(text) for text in findings(facts).cautions(facts))
    return (
        section(
            "Beside cheap scorers",
            table_of(_floors_cells(tables.get("floors"))),
            "The floors, each at its own threshold. Lead: our F1 minus the floor's, and the 95 % "
            "interval of the difference.",
        )
        + section(
            "By texts seen in train",
            table_of(tables.get("strata")),
            "Seen in train: how many of a pair's two texts (0, 1 or 2) also occur in train, white "
            "space aside. Pairs with none come nearest to a new code base.",
        )
        + section(
            "Order of a pair",
            table_of(tables.get("orders")),
            "Given: as in the data; reversed: the two functions swapped; mean: of both "
            "probabilities. The head reads in order; a clone does not depend on it.",
        )
        + section("What to hold against these scores", notes)
    )


def _floors_cells(table: pd.DataFrame | None) -> pd.DataFrame | None:
    return None if table is None else table.drop(columns=["precision", "recall"], errors="ignore")


def cost(facts: RunFacts, tables: Mapping[str, pd.DataFrame], plots: Mapping[str, Path]) -> str:
    """Return what the run took: memory, time, speed, GPUs, and how the training went."""
    memory = paragraph(memory_sentence(tables)) if "memory" in tables else ""
    memory += table_of(_memory_cells(tables.get("memory"))) + _figure(facts, plots, "memory")
    memory += table_of(tables.get("memory_lines")) + memory_parts(facts, tables, plots)
    return (
        section("Memory", memory)
        + section("Time", table_of(tables.get("timing")) + table_of(tables.get("time")))
        + section("Speed", table_of(tables.get("throughput")))
        + section("GPUs", table_of(tables.get("gpus")) + _figure(facts, plots, "gpu"))
        + section("Training", table_of(tables.get("training")) + _figure(facts, plots, "loss"))
        + section(
            "Beside the legacy script",
            table_of(tables.get("legacy")),
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


def _figure(facts: RunFacts, plots: Mapping[str, Path], name: str) -> str:
    return figure(plots, name, caption(facts, name)) if name in plots else ""


def origin(facts: RunFacts, tables: Mapping[str, pd.DataFrame], plots: Mapping[str, Path]) -> str:
    """Return the data, the settings, and what is needed to cite or repeat the run."""
    import pandas as pd

    rows = pd.DataFrame(list(citation(facts).items()), columns=["to cite", "value"])
    data, problem_text = table_of(tables.get("data")), _findings(facts.get("data", "problems"))
    checked = f"<pre class='long note'>{html.escape(problem_text)}</pre>" if problem_text else ""
    return (
        section("Data", data + _figure(facts, plots, "lengths") + checked, _functions_said(facts))
        + section("Settings that differ from the base preset", table_of(tables.get("settings")))
        + section("To cite or repeat this run", table_of(rows, classes="long"))
    )


def _findings(checks: Any) -> str:
    """Return what the check of the data found, a line each, from its text or its JSON form."""
    if not checks or isinstance(checks, str):  # a text in older runs
        return checks or ""
    facts = checks.get("facts") or {}
    notes = [*(checks.get("examples") or []), *(checks.get("notes") or [])]
    first = _named(checks.get("counts") or {})
    if "left_out" in checks:  # with the notes it says in words what the counts do
        first = [checks["left_out"]] if checks["left_out"] else []
    lines = [*first, *(str(note) for note in notes), *_named(facts)]
    if duplicates := checks.get("duplicates"):
        lines += duplicates_said(duplicates)
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
    if known_functions is None:
        return ""
    return (
        f"The data has {known_functions:,} functions. The table counts those that a split's pairs "
        "use: one without a pair counts nowhere, one in two splits counts in both."
    )


def duplicates_said(duplicates: Mapping[str, Any]) -> list[str]:
    """Return in words which train rows repeat evaluation rows or each other.

    >>> duplicates_said({"train_rows_like_any": 2, "within_train": {"equal": 1, "near": 0},
    ...     "train_rows_like": {"test": {"equal": 2, "near": 0}, "valid": {"equal": 0}}})
    ['Train rows like rows of test: 2 equal.', 'Train rows like an earlier train row: 1 equal.']
    """
    like = duplicates.get("train_rows_like") or {}
    sides = {f"rows of {name}": kinds for name, kinds in like.items()}
    lines = []
    for where, kinds in {**sides, "an earlier train row": duplicates.get("within_train")}.items():
        counts = [
            f"{count(number)} {LIKE.get(kind, kind)}"
            for kind, number in (kinds or {}).items()
            if number
        ]
        lines += [f"Train rows like {where}: {', '.join(counts)}."] if counts else []
    has_near = any(LIKE["near"] in line for line in lines)
    if not duplicates.get("train_rows_like_any"):
        lines = ["No train row equals or nearly equals a row of test or valid.", *lines]
    if duplicates.get("removed"):
        lines.append(f"Removed of these: {count(known(duplicates['removed']))}.")
    if has_near and duplicates.get("threshold"):
        lines.append(f"Nearly equal: a similarity of at least {duplicates['threshold']}, up to 1.")
    return lines
