"""One report of everything found while a data set was read.

A finding is *fatal* (a file that cannot be read at all), a *problem* (a row that cannot be used:
stop, or drop exactly that row, as the user says) or a *note* (accepted, counted, told).
"""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import DataError
from ..tables import left
from .problem_kinds import KINDS, Weight

EXAMPLES_SHOWN = 20
PLACES_SHOWN = 3  # of each kind, where rows that were left out are told in a sentence

Policy = Literal["stop", "drop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Where one finding stands, and what was found there."""

    file: str
    line: int | None
    detail: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.detail}" if self.detail else place


def _plural(n: int, word: str) -> str:
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}s"


def _share(examples: dict[str, tuple[Example, ...]], kinds: list[str]) -> dict[str, int]:
    """Deal the examples shown over the kinds in turn, so that a frequent kind hides no rare one."""
    shown = dict.fromkeys(kinds, 0)
    left = EXAMPLES_SHOWN
    while left > 0:
        open_kinds = [k for k in kinds if shown[k] < len(examples.get(k, ()))][:left]
        if not open_kinds:
            break
        for kind in open_kinds:
            shown[kind] += 1
        left -= len(open_kinds)
    return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Problems:
    """Everything found in a data set: counts, first examples, rows dropped, facts worth knowing.

    `counts` is per kind of finding, `rows_read` and `rows_dropped` per file, `facts` per question
    (distinct texts, what the splits share, share of clones per split).
    """

    policy: Policy
    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, tuple[Example, ...]] = field(default_factory=dict)
    rows_read: dict[str, int] = field(default_factory=dict)
    rows_dropped: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def kinds(self, *weights: Weight) -> list[str]:
        """Kinds found that have one of these weights, in the order of `KINDS`."""
        return [k for k in KINDS if k in self.counts and KINDS[k][0] in weights]

    @property
    def n_problems(self) -> int:
        """Number of findings that are not mere notes."""
        return sum(self.counts[k] for k in self.kinds("fatal", "problem"))

    @property
    def has_problems(self) -> bool:
        """Whether anything but notes was found."""
        return self.n_problems > 0

    @property
    def n_dropped(self) -> int:
        """Rows left out, over all files."""
        return sum(self.rows_dropped.values())

    def report(self) -> str:
        """Problems with their places and fixes, then the notes, then totals per file."""
        kinds = self.kinds("fatal", "problem")
        shown = _share(self.examples, kinds)
        lines: list[str] = []
        for kind in kinds:
            _, what, fix = KINDS[kind]
            lines.append(f"{self.counts[kind]:,} x {what}. Fix: {fix}.")
            found = self.examples.get(kind, ())
            lines += [f"    {example}" for example in found[: shown[kind]]]
            if self.counts[kind] > shown[kind]:
                lines.append(f"    … and {self.counts[kind] - shown[kind]:,} more")
        return "\n".join([*lines, *self.rest()])

    def rest(self) -> list[str]:
        """The lines of `report` that are no problems: notes, and totals per file."""
        return self._note_lines() + [
            f"{file}: {_plural(n, 'row')} read" + self._dropped_text(file)
            for file, n in self.rows_read.items()
        ]

    def left_out(self) -> str:
        """The rows left out and why, with the first places, as a sentence; empty if there are none.

        >>> where = Example(file="rows.jsonl", line=7, detail="")
        >>> Problems(policy="drop", counts={"empty_answer": 1}, rows_dropped={"rows.jsonl": 1},
        ...     examples={"empty_answer": (where,)}).left_out()
        '1 row is left out of the data: 1 x row has no answer (rows.jsonl:7).'
        """
        if not self.n_dropped:
            return ""
        said = []
        for kind in self.kinds("problem"):
            found = self.examples.get(kind, ())
            places = [f"{e.file}:{e.line}" if e.line else e.file for e in found[:PLACES_SHOWN]]
            places += ["…"] if self.counts[kind] > len(places) else []
            said.append(f"{self.counts[kind]:,} x {KINDS[kind][1]} ({', '.join(places)})")
        rows = f"{_plural(self.n_dropped, 'row')} {'is' if self.n_dropped == 1 else 'are'}"
        return f"{rows} left out of the data: {'; '.join(said)}."

    def summary(self) -> str:
        """`report` followed by the facts of the data set, one a line."""
        facts = [
            f"{name.replace('_', ' ')}: {_fact_text(value)}" for name, value in self.facts.items()
        ]
        return "\n".join([self.report(), *facts]).strip()

    def to_dict(self) -> dict[str, Any]:
        """JSON form for `result.json`."""
        shown = _share(self.examples, self.kinds("fatal", "problem"))
        return {
            "policy": self.policy,
            "counts": dict(self.counts),
            "rows_read": dict(self.rows_read),
            "rows_dropped": dict(self.rows_dropped),
            "examples": [
                f"{KINDS[k][1]}: {e}" for k, n in shown.items() for e in self.examples[k][:n]
            ],
            "notes": self._note_lines(),
            "left_out": self.left_out(),
            "facts": dict(self.facts),
        }

    def _note_lines(self) -> list[str]:
        lines = []
        for kind in self.kinds("note"):
            places = "; ".join(str(e) for e in self.examples.get(kind, ())[:2])
            lines.append(
                f"note: {KINDS[kind][1]}: {self.counts[kind]:,}"
                + (f" ({places})" if places else "")
            )
        return lines

    def _dropped_text(self, file: str) -> str:
        dropped = self.rows_dropped.get(file, 0)
        return f", {dropped:,} dropped" if dropped else ""

    def __repr__(self) -> str:
        return (
            f"Problems({_plural(self.n_problems, 'problem')}, "
            f"{_plural(self.n_dropped, 'row')} dropped, "
            f"{_plural(len(self.kinds('note')), 'kind')} of note)"
        )

    def _repr_html_(self) -> str:
        rows = []
        for kind in self.kinds("fatal", "problem", "note"):
            weight, what, fix = KINDS[kind]
            first = next(iter(self.examples.get(kind, ())), "")
            cells = (weight, what, f"{self.counts[kind]:,}", str(first), fix)
            rows.append("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in cells) + "</tr>")
        head = "<tr><th></th><th>found</th><th>times</th><th>first at</th><th>fix</th></tr>"
        return left(f"<table>{head}{''.join(rows)}</table>")


def _fact_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_fact_text(v)}" for k, v in value.items()) or "none"
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:.4g}"
        if isinstance(value, float)
        else str(value)
    )


class ProblemLog:
    """Collects findings while files are read; memory stays bounded however many there are.

    Args:
        policy: `stop` or `drop`: what to do with a row that cannot be used.
        source: Name of the data set, for the error's first line.
    """

    def __init__(self, policy: Policy, source: str) -> None:
        self.policy, self.source = policy, source
        self.counts: dict[str, int] = {}
        self.examples: dict[str, list[Example]] = {}
        self.rows_read: dict[str, int] = {}
        self.rows_dropped: dict[str, int] = {}
        self.facts: dict[str, Any] = {}

    def add(
        self,
        kind: str,
        file: str,
        line: int | None = None,
        detail: str = "",
        *,
        n: int = 1,
        rows: int | None = None,
    ) -> None:
        """Count a finding.

        Args:
            kind: A key of `KINDS`.
            file: Name of the file, relative to the data set.
            line: Line or row number, counted from 1.
            detail: What was found there.
            n: How many findings this call stands for.
            rows: Rows lost by it where that is not `n` (0: the finding is not a row of the file).
        """
        weight = KINDS[kind][0]
        self.counts[kind] = self.counts.get(kind, 0) + n
        kept = self.examples.setdefault(kind, [])
        if len(kept) < EXAMPLES_SHOWN:
            kept.append(Example(file=file, line=line, detail=detail))
        lost = n if rows is None else rows
        if weight == "problem" and lost:
            self.rows_dropped[file] = self.rows_dropped.get(file, 0) + lost

    def read(self, file: str, n: int) -> None:
        """Record that a file had `n` rows, blank lines apart."""
        self.rows_read[file] = self.rows_read.get(file, 0) + n

    def has_any(self, *kinds: str) -> bool:
        """Whether one of these kinds was found."""
        return any(kind in self.counts for kind in kinds)

    def freeze(self) -> Problems:
        """What was found so far."""
        return Problems(
            policy=self.policy,
            counts=dict(self.counts),
            examples={k: tuple(v) for k, v in self.examples.items()},
            rows_read=dict(self.rows_read),
            rows_dropped=dict(self.rows_dropped) if self.policy == "drop" else {},
            facts=dict(self.facts),
        )

    def stop_if_needed(self) -> None:
        """Raise one `DataError` with the whole report where the findings ask for it.

        Raises:
            DataError: A file cannot be read at all, or rows are bad and the policy is `stop`.
        """
        found = self.freeze()
        fatal, bad = found.kinds("fatal"), found.kinds("problem")
        if not fatal and (not bad or self.policy == "drop"):
            return
        kinds = fatal + bad
        first, is_one = self.examples[kinds[0]][0], sum(self.counts[k] for k in kinds) == 1
        named = "; ".join(f"{self.counts[k]:,} x {KINDS[k][1]}" for k in kinds)
        said = f"{KINDS[kinds[0]][1]}: {first}" if is_one else f"{named}. First: {first}"
        if fatal:
            fix = f"{KINDS[fatal[0]][2]} ({first.file})."
        elif is_one:
            fix = f'{KINDS[bad[0]][2]}, or leave this row out: on_bad_rows="drop".'
        else:
            fix = 'mend the rows named below, or leave out exactly these: on_bad_rows="drop".'
        raise DataError(
            f"The data at {self.source} cannot be used as it is: {said}",
            fix=fix,
            details="\n".join(found.rest()) if is_one else found.report(),
        )
