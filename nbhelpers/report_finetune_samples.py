"""A few generations of a run with their verdict, read from `generations.jsonl`.

The file holds what a model wrote: any text at all. It may be absent.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbhelpers.json_models import read_lines
from nbhelpers.metric_registry import TASKS, TITLES
from nbhelpers.report_facts import RunFacts
from nbhelpers.report_page import section
from nbhelpers.result_files import Generation

FILE_NAME = "generations.jsonl"
SPLITS = ("test", *TASKS)
MOST_PER_SPLIT = 3
MOST_JUDGED = 300  # generations of a split among which the shown ones are chosen
SHOWN_PROMPT, SHOWN_TEXT = 700, 1500  # characters of a prompt's end, and of an answer's start


Row = Mapping[str, Any]


def _kind(row: Row, error: str | None) -> str:
    """Return what became of it: of each kind one is shown. `error`: of its syntax, or None."""
    from nbhelpers.code_metrics import exact_match

    if row.get("outcome"):
        return row["outcome"]
    if exact_match([row["answer"]], [row.get("reference")]) == 1:
        return "exact match"
    return "not the reference, but it parses" if error is None else "does not parse"


def _verdict(row: Row, error: str | None) -> str:
    """Return what became of it, in words."""
    said, why = _kind(row, error), row.get("detail") if row.get("outcome") else error
    said += f" ({why[:200]})" if why else ""
    ends = {True: "ended by itself", False: "cut at the limit of new tokens"}
    stopped = row.get("stopped")
    return f"{said}; {ends[stopped]}" if stopped in ends else said


def rows_by_split(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the generations of a file by split, in its order.

    Raises:
        DataError: A line is damaged; names it.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for row in read_lines(Generation, path):
        if row["split"] in SPLITS:
            found.setdefault(row["split"], []).append(row)
    return found


def chosen(path: Path) -> dict[str, list[tuple[Row, str]]]:
    """Return up to three generations of each split with their verdicts.

    They are of unlike kinds where there are several. Within a kind the first of the file is taken,
    so that a report is the same each time.
    """
    from nbhelpers.code_metrics import codes
    from nbhelpers.code_syntax import syntax_errors_of

    rows = rows_by_split(path)
    found = {}
    for split in (name for name in SPLITS if name in rows):
        judged = rows[split][:MOST_JUDGED]
        kinds: dict[str, list[tuple[Row, str]]] = {}
        errors = syntax_errors_of(codes([row["answer"] for row in judged]))
        for row, error in zip(judged, errors, strict=True):
            kinds.setdefault(_kind(row, error), []).append((row, _verdict(row, error)))
        found[split] = _mixed(kinds)
    return found


def _mixed(kinds: Mapping[str, list[Any]]) -> list[Any]:
    """Take one of each kind in turn until there are enough.

    >>> _mixed({"passed": [1, 2, 3, 4], "failed": [5]})
    [1, 5, 2]
    """
    rounds = [rows[at] for at in range(MOST_PER_SPLIT) for rows in kinds.values() if at < len(rows)]
    return rounds[:MOST_PER_SPLIT]


def samples_section(facts: RunFacts) -> str:
    """Return the section of sample generations as HTML, or nothing without the file."""
    found = chosen(facts.run.path / FILE_NAME)
    parts = [
        _sample(row, verdict, is_open=at == 0)
        for rows in found.values()
        for at, (row, verdict) in enumerate(rows)
    ]
    note = (
        f"The first of each kind in {FILE_NAME}, not the best. A prompt is shown from its end, "
        "a long text up to a limit."
    )
    return section("Sample generations", "".join(parts), note)


def _sample(row: Row, verdict: str, *, is_open: bool) -> str:
    split = row["split"]
    title = f"{TITLES.get(split, split)} {str(row.get('id'))[:80]}: {verdict}"
    texts = {"prompt": _end(row["prompt"]), "reference": _start(row.get("reference") or "")}
    texts["answer"] = _start(row["answer"]) or "(nothing)"
    blocks = (
        f"<p class='note'>{name}</p><pre class='long code'>{html.escape(text)}</pre>"
        for name, text in texts.items()
        if text
    )
    opened = " open" if is_open else ""
    return f"<details{opened}><summary>{html.escape(title)}</summary>{''.join(blocks)}</details>"


def _end(text: str) -> str:
    return text if len(text) <= SHOWN_PROMPT else f"… {text[-SHOWN_PROMPT:]}"


def _start(text: str) -> str:
    more = len(text) - SHOWN_TEXT
    return text if more <= 0 else f"{text[:SHOWN_TEXT]} … ({more:,} more characters)"
