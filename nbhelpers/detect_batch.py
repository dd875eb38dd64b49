"""Many files at once: a table ranked by score, what was left out, and the accusations to expect."""

from __future__ import annotations

import csv
import html
import io
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbhelpers.detect_calls import (
    AI,
    NOT_JUDGED,
    UNDECIDED,
    Judge,
    Verdict,
    short_reasons,
    threshold_facts,
)
from nbhelpers.detect_facts import DetectorFacts, Rate
from nbhelpers.detect_files import CodeFile, Skipped
from nbhelpers.detector_notice import NO_EVIDENCE
from nbhelpers.errors import ConfigError
from nbhelpers.tables import left

SHOWN = 50  # rows of a table on the screen; the files hold all
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r", "\n")
COLUMNS = ("rank", "file", "p_ai", "logit", "call", "reasons", "language", "lines", "tokens")
COLUMNS += ("truncated_share", "size_bytes", "sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A scored file, without its text; `rank` 1 has the highest score."""

    rank: int
    name: str
    language: str
    n_lines: int
    size_bytes: int
    sha256: str
    verdict: Verdict

    def to_dict(self) -> dict[str, Any]:
        """JSON values, in the order of `COLUMNS`."""
        told = {"rank": self.rank, "file": self.name, **self.verdict.to_dict()}
        told |= {"language": self.language, "lines": self.n_lines}
        told |= {"size_bytes": self.size_bytes, "sha256": self.sha256}
        return {name: told[name] for name in COLUMNS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The scores of many files, highest first, and what must be known to read them.

    `ms_per_file`: of reading, scoring and the talk with the model's process, without its start.
    """

    place: str
    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...]
    judge: Judge
    seconds: float
    device: str

    @property
    def ms_per_file(self) -> float | None:
        """Milliseconds for one scored file; None without any."""
        return 1000 * self.seconds / len(self.rows) if self.rows else None

    @property
    def n_callable(self) -> int:
        """Files on which nothing but the score itself can forbid a call."""
        return sum(not row.verdict.is_doubted for row in self.rows)

    def expected_false_accusations(self) -> list[dict[str, Any]]:
        """How many of these files would be called AI if people had written them all.

        One entry for each rate that is known: `expected`, `interval` (95 %), and on whom the rate
        was measured. The first is the one to expect; without a calibration each holds only for the
        people that it was measured on.
        """
        n = self.n_callable
        return [_accusations(rate, n) for rate in self.judge.rates]

    def summary(self) -> list[str]:
        """What must be read before the table, as sentences."""
        counts = Counter(row.verdict.call for row in self.rows)
        lines = [f"{len(self.rows)} files scored, {len(self.skipped)} left out."]
        if self.judge.can_call:
            lines[0] += (
                f" Called AI: {counts[AI]}; undecided (the score lies in the band): "
                f"{counts[UNDECIDED]}; not judged (for reasons beside the score): "
                f"{counts[NOT_JUDGED]}."
            )
            lines.append(f"{self.judge.calibration.promise}.")  # type: ignore[union-attr]
            lines.append(f"It was fixed on {self.judge.fixed_on}.")
        else:
            lines.append(f"Nothing is called AI: {self.judge.no_call}.")
        return [*lines, *self._accusations_said(), NO_EVIDENCE]

    def _accusations_said(self) -> list[str]:
        """Say how many false accusations there would be; nothing of a model that calls nothing."""
        if not self.rows or not self.judge.rates:
            return []
        if not self.n_callable:
            return [f"None of the {len(self.rows)} files can be judged, whatever its score is."]
        told = self.expected_false_accusations()
        return [_accusation_words(each, self.judge, len(self.rows)) for each in told]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "format": 1,
            "notice": NO_EVIDENCE,
            "data_note": self.judge.facts.data_note,
            "place": self.place,
            "summary": self.summary(),
            "model": self.judge.facts.to_dict(),
            "threshold": threshold_facts(self.judge),
            "expected_false_accusations": self.expected_false_accusations(),
            "rows": [row.to_dict() for row in self.rows],
            "skipped": [each.to_dict() for each in self.skipped],
            "inference": {
                "n_files": len(self.rows),
                "seconds": self.seconds,
                "ms_per_file": self.ms_per_file,
                "device": self.device,
            },
        }

    def csv(self) -> str:
        """Return the rows as CSV; a text that a spreadsheet would run begins with an apostrophe.

        Of a model that learnt the bundled sample, the first line is a comment that says so.
        """
        rows = [row.to_dict() for row in self.rows]
        for row in rows:
            row["reasons"] = "; ".join(row["reasons"])
            row["call"] = row["call"] or "no call"
        blank = dict.fromkeys(COLUMNS, "")
        for each in self.skipped:
            why = f"{each.reason}: {each.detail}"
            rows.append(blank | {"file": each.name, "call": "left out", "reasons": why})
        return csv_note(self.judge.facts) + csv_text(COLUMNS, rows)

    def save(self, place: str | Path) -> Path:
        """Write the table as .csv or .json, by the ending.

        Raises:
            ConfigError: Another ending, or the place cannot be written.
        """
        path = checked_output(place)
        text = self.csv() if path.suffix.lower() == ".csv" else _json(self.to_dict())
        return write_text(path, text)

    def text(self, top: int = SHOWN) -> str:
        """Return the summary and the highest rows as text."""
        lines = ["", *self._table(self.rows[:top])] if self.rows else []
        if len(self.rows) > top:
            lines.append(f"... and {len(self.rows) - top} more with lower scores")
        if self.skipped:
            kinds = Counter(each.reason for each in self.skipped)
            told = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
            lines += ["", f"Left out: {told}."]
            lines += [f"  {each.name}: {each.reason} ({each.detail})" for each in self.skipped[:10]]
        if self.ms_per_file is not None:
            lines += ["", f"{self.ms_per_file:.1f} ms a file on {self.device}."]
        return "\n".join([*self.summary(), *lines])

    def _table(self, rows: tuple[Row, ...]) -> list[str]:
        """Rows under their heads; what holds for all of them is said once, above."""
        whys = [_why(row, self.judge) for row in rows]
        width = max(map(len, whys))
        why = f"{'why':<{width}}  " if width else ""
        lines = [f"{'rank':>5}  {'score':<6}  {'call':<10}  {why}file"]
        for row, said in zip(rows, whys, strict=True):
            why = f"{said:<{width}}  " if width else ""
            call = row.verdict.call or "-"
            lines.append(f"{row.rank:>5}  {row.verdict.p_ai:.4f}  {call:<10}  {why}{row.name}")
        return lines

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        counts = Counter(row.verdict.call for row in self.rows)
        called = f"{counts[AI]} called AI" if self.judge.can_call else "no calls"
        left_out = f"{len(self.skipped)} left out"
        return f"Batch({self.place}: {len(self.rows)} files scored, {called}, {left_out})"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("", "file", "score", "call", "why"))
        body = "".join(_html_row(row, self.judge) for row in self.rows[:SHOWN])
        notes = "".join(f"<p>{html.escape(line)}</p>" for line in self.summary())
        more = len(self.rows) - SHOWN
        notes += f"<p>{more} more rows with lower scores are not shown.</p>" if more > 0 else ""
        items = "".join(
            f"<li>{html.escape(f'{each.name}: {each.reason} ({each.detail})')}</li>"
            for each in self.skipped[:SHOWN]
        )
        out = f"<p>Left out: {len(self.skipped)}</p><ul>{items}</ul>" if items else ""
        return left(f"<table><tr>{head}</tr>{body}</table>") + notes + out


def ranked(found: list[tuple[CodeFile, Verdict]]) -> tuple[Row, ...]:
    """Return the rows of scored files, highest score first, then by name."""
    order = sorted(found, key=lambda each: (-each[1].logit, each[0].name))
    return tuple(
        Row(
            rank=rank,
            name=file.name,
            language=file.language,
            n_lines=file.n_lines,
            size_bytes=file.size_bytes,
            sha256=file.sha256,
            verdict=verdict,
        )
        for rank, (file, verdict) in enumerate(order, 1)
    )


def _accusations(rate: Rate, n: int) -> dict[str, Any]:
    interval = None if rate.interval is None else [n * edge for edge in rate.interval]
    expected = rate.fpr if rate.expected is None else rate.expected
    told = {"files": n, "expected": n * expected, "interval": interval, "words": str(rate)}
    return told | {"rate": rate.to_dict()}


def _accusation_words(told: dict[str, Any], judge: Judge, n_files: int) -> str:
    edges = told["interval"]
    spread = f" (95 % interval {edges[0]:.1f} to {edges[1]:.1f})" if edges else ""
    files = f"{told['files']} of the {n_files} files can be judged"
    wrong = f"about {told['expected']:.1f} of them would be called AI by mistake{spread}"
    if judge.calibration is not None:
        above = f"{told['words']} may lie above the threshold"
        return f"{files}. If people like yours wrote all of these, {wrong}: {above}."
    return (
        f"Above the run's own threshold lay {told['words']}. {files}; if people like those wrote "
        f"all of these, {wrong}."
    )


def _why(row: Row, judge: Judge) -> str:
    """Why a file has no call, in a few words, without what holds for every file."""
    kinds = short_reasons(row.verdict)
    return ", ".join(kind for kind in kinds if kind != judge.no_call_kind)


def _html_row(row: Row, judge: Judge) -> str:
    found = row.verdict
    why = "; ".join(each for each in found.reasons if each != judge.no_call_kind)
    cells = (str(row.rank), row.name, f"{found.p_ai:.4f}", found.call or "no call", why)
    return f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"


def csv_note(facts: DetectorFacts) -> str:
    """Return what stands above a table of a model that learnt the bundled sample; else ""."""
    return f"# {facts.data_note}\r\n" if facts.is_sample else ""


def csv_text(columns: tuple[str, ...], rows: list[dict[str, Any]]) -> str:
    """Return rows as CSV under their names, safe to open in a spreadsheet.

    >>> csv_text(("file", "score"), [{"file": "=cmd()", "score": -1.5}])
    "file,score\\r\\n'=cmd(),-1.5\\r\\n"
    """
    made = io.StringIO()
    writer = csv.writer(made)
    writer.writerow(columns)
    writer.writerows([_cell(row[name]) for name in columns] for row in rows)
    return made.getvalue()


def _cell(value: Any) -> Any:
    """A text that begins like a formula gets an apostrophe before it; numbers stay numbers."""
    if isinstance(value, str) and value.lstrip(" ").startswith(FORMULA_SIGNS):
        return f"'{value}"
    return "" if value is None else value


def checked_output(place: str | Path) -> Path:
    """Return a file to write a table to, checked before the work is done.

    Raises:
        ConfigError: Its ending is none of .csv and .json, or its folder is not there.
    """
    path = Path(place).expanduser()
    if path.suffix.lower() not in (".csv", ".json"):
        text = f"A table is written as .csv or .json, not as {path.name!r}."
        raise ConfigError(text, fix="name another ending")
    if not path.parent.is_dir() or path.is_dir():
        what = "is a folder" if path.is_dir() else "lies in a folder that does not exist"
        raise ConfigError(f"{path} {what}.", fix="name a file in a folder that exists")
    return path


def write_text(path: Path, text: str) -> Path:
    """Write a file of UTF-8 as it is.

    Raises:
        ConfigError: The place cannot be written.
    """
    try:
        path.write_bytes(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        text = f"{path} cannot be written: {error.strerror or error}."
        raise ConfigError(text, fix="name another file") from error
    return path


def _json(told: dict[str, Any]) -> str:
    return json.dumps(told, indent=1, allow_nan=False) + "\n"
