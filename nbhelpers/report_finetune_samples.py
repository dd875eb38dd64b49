"""A few generations of a run with their verdict, read from `generations.jsonl` line by line.

The file holds what a model wrote: any text at all. It may be absent, cut short or damaged; a line
that is no generation is left out and counted.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nbhelpers.metric_registry import TASKS, TITLES
from nbhelpers.report_facts import RunFacts
from nbhelpers.report_page import paragraph, section

FILE_NAME = "generations.jsonl"
SPLITS = ("test", *TASKS)
MOST_PER_SPLIT = 3
MOST_LINES = 50_000
MOST_JUDGED = 300  # generations of a split among which the shown ones are chosen
MAX_LINE_BYTES = 4_000_000
SHOWN_PROMPT, SHOWN_TEXT = 700, 1500  # characters of a prompt's end, and of an answer's start


class Generation(NamedTuple):
    """One evaluated sample, as in the file; test problems have no reference."""

    split: str
    id: str
    prompt: str
    reference: str | None
    answer: str
    new_tokens: int | None
    stopped: bool | None
    outcome: str | None
    detail: str | None

    def kind(self, error: str | None) -> str:
        """Return what became of it: of each kind one is shown. `error`: of its syntax, or None."""
        from nbhelpers.code_metrics import exact_match

        if self.outcome:
            return self.outcome
        if exact_match([self.answer], [self.reference]) == 1:
            return "exact match"
        return "not the reference, but it parses" if error is None else "does not parse"

    def verdict(self, error: str | None) -> str:
        """Return what became of it, in words."""
        said, why = self.kind(error), self.detail if self.outcome else error
        said += f" ({why[:200]})" if why else ""
        ends = {True: "ended by itself", False: "cut at the limit of new tokens"}
        return f"{said}; {ends[self.stopped]}" if self.stopped in ends else said


def read_generations(path: Path) -> Iterator[Generation | None]:
    """Yield the generations of a file in its order, None for a line that is none; [] without it."""
    try:
        with path.open("rb") as file:
            for _ in range(MOST_LINES):
                line = file.readline(MAX_LINE_BYTES)
                if not line:
                    return
                if line.strip():
                    yield _generation(line)
    except OSError:
        return


def rows_by_split(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the sound lines of a file as rows, by split."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in read_generations(path):
        if row is not None:
            found.setdefault(row.split, []).append(row._asdict())
    return found


def _generation(line: bytes) -> Generation | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    needed = ("split", "prompt", "answer")
    if not isinstance(row, dict) or any(not isinstance(row.get(name), str) for name in needed):
        return None
    if row["split"] not in SPLITS:
        return None
    kinds = {"reference": str, "outcome": str, "detail": str, "stopped": bool}
    known = {
        name: v if isinstance(v := row.get(name), kind) else None for name, kind in kinds.items()
    }
    tokens = row.get("new_tokens")
    known["new_tokens"] = tokens if type(tokens) is int and 0 <= tokens < 2**31 else None
    return Generation(**{name: row[name] for name in needed}, **known, id=str(row.get("id")))


def chosen(path: Path) -> tuple[dict[str, list[tuple[Generation, str]]], int]:
    """Return up to three generations of each split with their verdicts; and the damaged lines.

    They are of unlike kinds where there are several. Within a kind the first of the file is taken,
    so that a report is the same each time.
    """
    from nbhelpers.code_metrics import codes
    from nbhelpers.code_syntax import syntax_errors_of

    rows: dict[str, list[Generation]] = {}
    damaged = 0
    for row in read_generations(path):
        damaged += row is None
        if row is not None and len(same := rows.setdefault(row.split, [])) < MOST_JUDGED:
            same.append(row)
    found = {}
    for split in (name for name in SPLITS if name in rows):
        kinds: dict[str, list[tuple[Generation, str]]] = {}
        errors = syntax_errors_of(codes([row.answer for row in rows[split]]))
        for row, error in zip(rows[split], errors, strict=True):
            kinds.setdefault(row.kind(error), []).append((row, row.verdict(error)))
        found[split] = _mixed(kinds)
    return found, damaged


def _mixed(kinds: Mapping[str, list[Any]]) -> list[Any]:
    """Take one of each kind in turn until there are enough.

    >>> _mixed({"passed": [1, 2, 3, 4], "failed": [5]})
    [1, 5, 2]
    """
    rounds = [rows[at] for at in range(MOST_PER_SPLIT) for rows in kinds.values() if at < len(rows)]
    return rounds[:MOST_PER_SPLIT]


def samples_section(facts: RunFacts) -> str:
    """Return the section of sample generations as HTML, or nothing without the file."""
    found, damaged = chosen(facts.run.path / FILE_NAME)
    parts = [
        _sample(row, verdict, is_open=at == 0)
        for rows in found.values()
        for at, (row, verdict) in enumerate(rows)
    ]
    if damaged:
        parts.append(paragraph(f"{damaged:,} damaged lines of {FILE_NAME} are left out.", "note"))
    note = (
        f"The first of each kind in {FILE_NAME}, not the best. A prompt is shown from its end, "
        "a long text up to a limit."
    )
    return section("Sample generations", "".join(parts), note)


def _sample(row: Generation, verdict: str, *, is_open: bool) -> str:
    title = f"{TITLES.get(row.split, row.split)} {row.id[:80]}: {verdict}"
    texts = {"prompt": _end(row.prompt), "reference": _start(row.reference or "")}
    texts["answer"] = _start(row.answer) or "(nothing)"
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
