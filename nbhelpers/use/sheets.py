"""Scores of many files as a ranked table, and the evidence sheet of one file."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import shlex
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nbhelpers.common.display import left
from nbhelpers.common.formatting import percent
from nbhelpers.errors import ConfigError
from nbhelpers.use.calls import (
    AI,
    NOT_JUDGED,
    UNDECIDED,
    Judge,
    Scored,
    Verdict,
    short_reasons,
    threshold_facts,
)
from nbhelpers.use.code_files import CodeFile, Skipped
from nbhelpers.use.facts import NO_EVIDENCE, DetectorFacts, Rate

# ------------------------------------------------------------------------------------------------
# Many files at once: a table ranked by score, what was left out, and the accusations to expect.


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


# ------------------------------------------------------------------------------------------------
# The sheet of one file: what was measured on which bytes, how sure that is, how to contest it.
#
# It is written for the person whose file it is: everything that is needed to repeat the
# measurement, and what would change it.


EDIT_WORDS = {
    "reformat": "set out anew (blanks, line breaks)",
    "strip_comments": "comments removed",
    "rename": "local names changed",
    "rename_reformat": "local names changed and set out anew",
}
CALL_WORDS = {
    AI: "called AI",
    UNDECIDED: "undecided (its score lies where both kinds are found)",
    NOT_JUDGED: "not judged",
    "human": "not called AI",
    None: "no call",
}
CONTEST = (
    "Check that the SHA-256 above is that of your file (sha256sum {file}); if not, another text "
    "was scored.",
    "Repeat it: nbhelpers detect {file} --model {model}, with the weights whose hash stands above.",
    "Show how the program came about: drafts, version history, notes; explain it in your own "
    "words. Any of these says more than the score.",
    "Say what stands in it that is not yours to vary: starter code, a template, a formatter, a "
    "prescribed style, or generated parts. They move the score.",
)
_STYLE = (
    "body{font-family:sans-serif;max-width:50em;margin:2em auto;padding:0 1em;color:#111;"
    "background:#fff}table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #bbb;"
    "padding:.3em .6em;vertical-align:top}td{overflow-wrap:anywhere}"
    ".note{border-left:4px solid #a60;padding:.3em 1em}"
)
_HEAD = (
    '<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class EditLogits:
    """Logit of each edited copy, None where it cannot be made; `unchanged`: read as before."""

    logits: dict[str, float | None] = field(default_factory=dict)
    unchanged: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class EditScore:
    """The score of an edited copy that does the same; `p_ai` is None where it cannot be made.

    `is_same`: the model reads the same in both.
    """

    edit: str
    p_ai: float | None
    logit: float | None
    call: str | None
    is_same: bool = False

    @property
    def words(self) -> str:
        """The edit as a person reads it."""
        return EDIT_WORDS.get(self.edit, self.edit)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        told = {"edit": self.edit, "p_ai": self.p_ai, "logit": self.logit, "call": self.call}
        return told | {"is_same": self.is_same}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One file, its score, and all that is needed to judge and to contest it."""

    file: CodeFile
    verdict: Verdict
    edits: tuple[EditScore, ...]
    judge: Judge
    created: str

    @property
    def p_ai(self) -> float:
        """The score, from 0 (like the human training programs) to 1 (like the AI ones)."""
        return self.verdict.p_ai

    @property
    def logit(self) -> float:
        """The score before scaling."""
        return self.verdict.logit

    @property
    def call(self) -> str | None:
        """ "ai", "undecided", "human", or None where no call may be given."""
        return self.verdict.call

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why there is no call, or why it is undecided."""
        kind = self.judge.no_call_kind
        return tuple(self.judge.no_call if each == kind else each for each in self.verdict.reasons)

    def changes(self) -> list[str]:
        """Say what would change the score, as sentences."""
        found = []
        for each in self.edits:
            if each.p_ai is None:
                continue
            if each.is_same:
                found.append(f"{each.words.capitalize()}: what the model reads stays the same.")
                continue
            moved = f"With {each.words} the same program scores {each.p_ai:.3f}"
            if each.call is not None and each.call != self.call:
                moved += f" and would be {CALL_WORDS[each.call]}: the call hangs on this"
            found.append(f"{moved}.")
        if not found:
            found.append("No edited copy could be made (language unknown, or it does not parse).")
        return found

    def contest(self) -> list[str]:
        """Say how to contest the score, with the commands for this file and this model."""
        file, place = self.file.name, self.judge.facts.place
        model = place.name
        if place.kind == "checkpoint" and place.run is not None:
            model = f"{place.run.name}/checkpoints/{place.folder.name}"
        file = shlex.quote(f"./{file}" if file.startswith("-") else file)
        return [line.format(file=file, model=shlex.quote(model)) for line in CONTEST]

    def rows(self) -> dict[str, str]:
        """Name and text of each finding."""
        rows = {
            "file": self.file.name,
            "SHA-256 of its bytes": f"{self.file.sha256} ({self.file.size_bytes} bytes)",
            "language": self.file.language or "unknown",
            "score": f"{self.p_ai:.4f} (logit {self.logit:.4f})",
            "call": CALL_WORDS[self.call],
        }
        if self.reasons:
            rows["because"] = "; ".join(self.reasons)
        rows |= self._threshold_rows()
        read = f"{self.verdict.tokens} tokens, {self.file.n_lines} lines"
        read += "" if self.file.encoding == "utf-8" else f", taken for {self.file.encoding}"
        cut = self.verdict.truncated_share
        rows["read"] = (
            f"{read}; {percent(cut)} % was cut off and not read" if cut else f"{read}, all"
        )
        facts = self.judge.facts
        rows["model"] = f"{facts.model}, run {facts.run_id}"
        rows["SHA-256 of its weights"] = facts.weights_sha256
        rows["form that is scored"] = f"{facts.canonical}, the first {facts.seq_len} tokens"
        if facts.data_note and not facts.is_sample:  # of the sample it stands above, as the reason
            rows["its training data"] = facts.data_note
        return rows | {"date": self.created}

    def _threshold_rows(self) -> dict[str, str]:
        """What the threshold in force is and promises; nothing where none means anything."""
        limit, rows = threshold_facts(self.judge), {}
        if self.judge.facts.is_sample:
            return {}
        if limit["p_ai"] is not None:
            rows["threshold"] = f"{limit['p_ai']:.6g}, fixed on {self.judge.fixed_on}"
        if limit["promise"]:
            rows["promise"] = f"{limit['promise']}."
        rates = "; ".join(map(str, self.judge.rates))
        return rows | {"false positives at it": rates or "not measured"}

    def text(self) -> str:
        """Return the sheet as text."""
        lines = [NO_EVIDENCE, ""]
        lines += [f"{name}: {text}" for name, text in self.rows().items()]
        lines += ["", "What would change the score", *(f"- {each}" for each in self.changes())]
        lines += ["", "How to contest it", *(f"- {each}" for each in self.contest())]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the sheet as JSON values."""
        return {
            "format": 1,
            "notice": NO_EVIDENCE,
            "file": self.file.name,
            "sha256": self.file.sha256,
            "size_bytes": self.file.size_bytes,
            "language": self.file.language,
            "lines": self.file.n_lines,
            **self.verdict.to_dict(),
            "reasons": list(self.reasons),
            "threshold": threshold_facts(self.judge),
            "edits": [each.to_dict() for each in self.edits],
            "changes": self.changes(),
            "contest": self.contest(),
            "model": self.judge.facts.to_dict(),
            "created": self.created,
        }

    def html(self) -> str:
        """Return the sheet as a page of its own: no script, and nothing is loaded."""
        title = html.escape(f"{self.file.name}: {CALL_WORDS[self.call]}")
        head = f"{_HEAD}<title>{title}</title><style>{_STYLE}</style>"
        page = f'<html lang="en"><head>{head}</head><body>{self._body()}</body></html>'
        return f"<!DOCTYPE html>{page}\n"

    def save(self, place: str | Path) -> Path:
        """Write the sheet: HTML, JSON or text, by the ending.

        Raises:
            ConfigError: Another ending, or the place cannot be written.
        """
        path = Path(place)
        made = {".html": self.html, ".json": self._json, ".txt": self.text}.get(path.suffix.lower())
        if made is None:
            text = f"A sheet is written as .html, .json or .txt, not as {path.name!r}."
            raise ConfigError(text, fix="name another ending")
        try:
            path.write_text(made(), encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            text = f"{path} cannot be written: {error.strerror or error}."
            raise ConfigError(text, fix="name another folder") from error
        return path

    def _json(self) -> str:
        return json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"

    def _body(self) -> str:
        cells = (
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
            for name, text in self.rows().items()
        )
        parts = [f"<h1>{html.escape(self.file.name)}</h1>"]
        parts.append(f'<p class="note"><b>{html.escape(NO_EVIDENCE)}</b></p>')
        parts.append(left(f"<table>{''.join(cells)}</table>"))
        for title, lines in (
            ("What would change the score", self.changes()),
            ("How to contest it", self.contest()),
        ):
            items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
            parts.append(f"<h2>{title}</h2><ul>{items}</ul>")
        return "".join(parts)

    def __repr__(self) -> str:
        return f"Evidence({self.file.name}: score {self.p_ai:.3f}, {CALL_WORDS[self.call]})"

    def _repr_html_(self) -> str:
        return self._body()


def evidence_of(judge: Judge, file: CodeFile, scored: Scored, edited: EditLogits) -> Evidence:
    """Return the sheet of a file.

    Args:
        judge: The model and the calibration in force.
        file: The program.
        scored: What the model said of it.
        edited: What it said of the edited copies.
    """
    verdict = judge.verdict(file, scored)
    edits = []
    for edit, logit in edited.logits.items():
        p = None if logit is None else judge.facts.probability(logit)
        is_judged = verdict.call is not None and not verdict.is_doubted
        call = judge.called(logit)[0] if is_judged and logit is not None else None
        is_same = edit in edited.unchanged
        edits.append(EditScore(edit=edit, p_ai=p, logit=logit, call=call, is_same=is_same))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Evidence(file=file, verdict=verdict, edits=tuple(edits), judge=judge, created=now)


def sheet_name(number: int, file: CodeFile) -> str:
    """Return a file name for a sheet that no name of a file can lead astray.

    >>> from nbhelpers.use.code_files import code_file
    >>> sheet_name(3, code_file("x = 1", "python", "../a b/<x>.py"))
    '00003-x-.py-8ff436de'
    """
    last = _UNSAFE.sub("-", file.name.rpartition("/")[2]).strip(".-")[:60] or "file"
    return f"{number:05d}-{last}-{file.sha256[:8]}"
