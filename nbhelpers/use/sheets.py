"""Scores of many files as a ranked table, and the evidence sheet of one file."""

from __future__ import annotations

import html
import re
import shlex
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from nbhelpers.common.display import Cell, Table
from nbhelpers.common.formatting import number, percent
from nbhelpers.metrics.stack import FILE as STACK_FILE
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
from nbhelpers.use.code_files import TEXT_NAME, CodeFile, Skipped
from nbhelpers.use.facts import NO_EVIDENCE, Rate
from nbhelpers.use.results import SHOWN, Block, Items, Shown, csv_text, facts_table, left_out

# ------------------------------------------------------------------------------------------------
# Many files at once: a table ranked by score, what was left out, and the accusations to expect.


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
        values = {"rank": self.rank, "file": self.name, **self.verdict.to_dict()}
        values |= {"language": self.language, "lines": self.n_lines}
        values |= {"size_bytes": self.size_bytes, "sha256": self.sha256}
        return {name: values[name] for name in COLUMNS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Shown):
    """The scores of many files, highest first, and what must be known to read them.

    `seconds`: of reading, scoring and the talk with the model's process, without its start.
    """

    ENDINGS = (".csv", ".json")

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
        return [_accusations(rate, self.n_callable) for rate in self.judge.rates]

    def summary(self) -> list[str]:
        """What must be read before the table, as sentences."""
        counts = Counter(row.verdict.call for row in self.rows)
        lines = [f"{number(len(self.rows), 'file')} scored, {len(self.skipped)} left out."]
        if self.judge.can_call and self.judge.calibration is not None:
            lines[0] += (
                f" Called AI: {counts[AI]}; undecided (the score lies in the band): "
                f"{counts[UNDECIDED]}; not judged (for reasons beside the score): "
                f"{counts[NOT_JUDGED]}."
            )
            lines.append(f"{self.judge.calibration.promise}.")
            lines.append(f"It was fixed on {self.judge.fixed_on}.")
        else:
            lines.append(f"Nothing is called AI: {self.judge.no_call}.")
        facts = self.judge.facts
        unknown = [] if facts.has_result else [f"{facts.why}."]
        return [*lines, *unknown, *self._accusation_sentences(), NO_EVIDENCE]

    def _accusation_sentences(self) -> list[str]:
        """Say how many false accusations there would be; nothing of a model that calls nothing."""
        if not self.rows or not self.judge.rates:
            return []
        if not self.n_callable:
            return [f"None of the {len(self.rows)} files can be judged, whatever its score is."]
        n_files = len(self.rows)
        return [
            _accusation_sentence(accusations, self.judge, n_files)
            for accusations in self.expected_false_accusations()
        ]

    def blocks(self, top: int = SHOWN) -> list[Block]:
        """Return the summary and the highest rows; what holds for all rows is said once, above."""
        more = len(self.rows) - top
        notes = [f"... and {more} more with lower scores"] if more > 0 else []
        rows = [
            (row.rank, Cell(row.verdict.p_ai, ".4f"), row.verdict.call or "-", why, row.name)
            for row in self.rows[:top]
            for why in (_why(row, self.judge),)
        ]
        table = Table(("rank", "score", "call", "why", "file"), rows, notes=notes)
        pace = self.ms_per_file
        return [
            "\n".join(self.summary()),
            *([table] if rows else []),
            *left_out(self.skipped),
            *([f"{pace:.1f} ms a file on {self.device}."] if pace is not None else []),
        ]

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
            "skipped": [file.to_dict() for file in self.skipped],
            "inference": {
                "n_files": len(self.rows),
                "seconds": self.seconds,
                "ms_per_file": self.ms_per_file,
                "device": self.device,
            },
        }

    def csv(self) -> str:
        """Return the rows as CSV; a text that a spreadsheet would run begins with an apostrophe.

        Of a model that learnt the bundled sample, a last column says so.
        """
        rows = [row.to_dict() for row in self.rows]
        for row in rows:
            row |= {"reasons": "; ".join(row["reasons"]), "call": row["call"] or "no call"}
        for file in self.skipped:
            reasons = f"{file.reason}: {file.detail}"
            rows.append({"file": file.name, "call": "left out", "reasons": reasons})
        return csv_text(rows, COLUMNS, self.judge.facts.sample_note)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        counts = Counter(row.verdict.call for row in self.rows)
        called = f"{counts[AI]} called AI" if self.judge.can_call else "no calls"
        skipped = f"{len(self.skipped)} left out"
        return f"Batch({self.place}: {len(self.rows)} files scored, {called}, {skipped})"


def by_score(file: CodeFile, verdict: Verdict) -> tuple[float, str]:
    """Return what files are ranked by: the highest score first, then the name."""
    return -verdict.logit, file.name


def ranked(verdicts: list[tuple[CodeFile, Verdict]]) -> tuple[Row, ...]:
    """Return the rows of scored files, highest score first, then by name."""
    order = sorted(verdicts, key=lambda pair: by_score(*pair))
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
    expected = n * (rate.fpr if rate.expected is None else rate.expected)
    rates = {"words": str(rate), "rate": rate.to_dict()}
    return {"files": n, "expected": expected, "interval": interval, **rates}


def _accusation_sentence(accusations: dict[str, Any], judge: Judge, n_files: int) -> str:
    edges, words = accusations["interval"], accusations["words"]
    spread = f" (95 % interval {edges[0]:.1f} to {edges[1]:.1f})" if edges else ""
    files = f"{accusations['files']} of the {n_files} files can be judged"
    wrong = f"about {accusations['expected']:.1f} of them would be called AI by mistake{spread}"
    if judge.calibration is not None:
        above = f"{words} may lie above the threshold"
        return f"{files}. If people like yours wrote all of these, {wrong}: {above}."
    return (
        f"Above the run's own threshold lay {words}. {files}; if people like those wrote "
        f"all of these, {wrong}."
    )


def _why(row: Row, judge: Judge) -> str:
    """Why a file has no call, in a few words, without what holds for every file."""
    kinds = short_reasons(row.verdict)
    return ", ".join(kind for kind in kinds if kind != judge.no_call_kind)


# ------------------------------------------------------------------------------------------------
# The sheet of one file: what was measured on which bytes, how sure that is, how to contest it.
#
# It is written for the person whose file it is: everything that is needed to repeat the
# measurement, and what would change it.


EDIT_WORDS = {
    "reformat": "other blanks and line breaks",
    "strip_comments": "comments removed",
    "rename": "local names changed",
    "rename_reformat": "local names changed, and other blanks and line breaks",
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
    "padding:.3em .6em;vertical-align:top}td{overflow-wrap:anywhere;white-space:normal!important}"
)
# No script runs, and nothing is loaded.
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

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        scores = {"edit": self.edit, "p_ai": self.p_ai, "logit": self.logit, "call": self.call}
        return scores | {"is_same": self.is_same}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence(Shown):
    """One file, its score, and all that is needed to judge and to contest it."""

    ENDINGS = (".html", ".json", ".txt")

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
        """ "ai", "undecided", "not judged", "human", or None where no call may be given."""
        return self.verdict.call

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why there is no call, or why it is undecided."""
        kind, why = self.judge.no_call_kind, self.judge.no_call
        return tuple(why if reason == kind else reason for reason in self.verdict.reasons)

    def changes(self) -> list[str]:
        """Say what would change the score, as sentences."""
        sentences = []
        for edit in self.edits:
            words = EDIT_WORDS.get(edit.edit, edit.edit)
            if edit.is_same and edit.p_ai is not None:
                sentences.append(f"{words.capitalize()}: what the model reads stays the same.")
            elif edit.p_ai is not None:
                turns = edit.call is not None and edit.call != self.call
                call = f" and would be {CALL_WORDS[edit.call]}: the call hangs on this"
                moved = f"{words.capitalize()}: the program then scores {edit.p_ai:.3f}"
                sentences.append(f"{moved}{call if turns else ''}.")
        none = "No edited copy could be made (language unknown, or it does not parse)."
        return sentences or [none]

    def contest(self) -> list[str]:
        """Say how to contest the score, with the commands for this file and this model."""
        name, place = self.file.name, self.judge.facts.place
        model = place.name
        if place.kind == "checkpoint" and place.run is not None:
            model = f"{place.run.name}/checkpoints/{place.folder.name}"
        file = shlex.quote(f"./{name}" if name.startswith("-") else name)
        given = f"The program was given as text: write it to a file {file} first, as it was given."
        lines = [given] * (name == TEXT_NAME)
        return lines + [line.format(file=file, model=shlex.quote(model)) for line in CONTEST]

    def rows(self) -> dict[str, str]:
        """Name and text of each finding."""
        file, facts, cut = self.file, self.judge.facts, self.verdict.truncated_share
        encoding = "" if file.encoding == "utf-8" else f", taken for {file.encoding}"
        rest = f"; {percent(cut)} % was cut off and not read" if cut else ", all"
        rows = {
            "file": file.name,
            "SHA-256 of its bytes": f"{file.sha256} ({file.size_bytes} bytes)",
            "language": file.language or "unknown",
            "score": f"{self.p_ai:.4f} (logit {self.logit:.4f}, divided by the temperature "
            f"{facts.temperature:.4g})",
            "call": CALL_WORDS[self.call],
            "because": "; ".join(self.reasons),
            **self._threshold_rows(),
            "read": f"{self.verdict.tokens} tokens, {file.n_lines} lines{encoding}{rest}",
            "model": f"{facts.model}, run {facts.run_id}",
            "SHA-256 of its weights": facts.weights_sha256,
            "what is scored": facts.score_words,
            f"SHA-256 of {STACK_FILE}": facts.stack_sha256,
            "form that is scored": f"{facts.canonical}, the first {facts.seq_len} tokens",
            # Of the sample it stands above, as the reason.
            "its training data": "" if facts.is_sample else facts.data_note,
            "date": self.created,
        }
        return {name: text for name, text in rows.items() if text}

    def _threshold_rows(self) -> dict[str, str]:
        """What the threshold in force is and promises; nothing where none means anything."""
        limit, rows = threshold_facts(self.judge), {}
        if self.judge.facts.is_sample:
            return {}
        if limit["p_ai"] is not None:
            rows["threshold"] = f"{limit['p_ai']:.6g}, fixed on {self.judge.fixed_on}"
        if limit["promise"]:
            rows["promise"] = f"{limit['promise']}."
        if self.judge.calibration is not None:
            rows["what its number of humans allows"] = f"{self.judge.calibration.allows}."
        rates = "; ".join(map(str, self.judge.rates))
        return rows | {"false positives at it": rates or "not measured"}

    def blocks(self, top: int = SHOWN) -> list[Block]:
        """Return the notice, the findings, what would change them and how to contest them."""
        return [
            NO_EVIDENCE,
            facts_table(self.rows()),
            Items("What would change the score", self.changes()),
            Items("How to contest it", self.contest()),
        ]

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
            "edits": [edit.to_dict() for edit in self.edits],
            "changes": self.changes(),
            "contest": self.contest(),
            "model": self.judge.facts.to_dict(),
            "created": self.created,
        }

    def html(self) -> str:
        """Return the sheet as a page of its own."""
        title = html.escape(f"{self.file.name}: {CALL_WORDS[self.call]}")
        head = f"{_HEAD}<title>{title}</title><style>{_STYLE}</style>"
        body = f"<h1>{html.escape(self.file.name)}</h1>{self._repr_html_()}"
        return f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'

    def __repr__(self) -> str:
        return f"Evidence({self.file.name}: score {self.p_ai:.3f}, {CALL_WORDS[self.call]})"


def evidence_of(judge: Judge, file: CodeFile, scored: Scored, edited: EditLogits) -> Evidence:
    """Return the sheet of a file.

    Args:
        judge: The model and the calibration in force.
        file: The program.
        scored: What the model said of it.
        edited: What it said of the edited copies.
    """
    verdict = judge.verdict(file, scored)
    is_judged = verdict.call is not None and not verdict.is_doubted
    edits = [
        EditScore(
            edit=edit,
            p_ai=None if logit is None else judge.facts.probability(logit),
            logit=logit,
            call=judge.called(logit)[0] if is_judged and logit is not None else None,
            is_same=edit in edited.unchanged,
        )
        for edit, logit in edited.logits.items()
    ]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Evidence(file=file, verdict=verdict, edits=tuple(edits), judge=judge, created=now)


def sheet_name(rank: int, file: CodeFile) -> str:
    """Return a file name for a sheet that no name of a file can lead astray.

    >>> from nbhelpers.use.code_files import code_file
    >>> sheet_name(3, code_file("x = 1", "python", "../a b/<x>.py"))
    '00003-x-.py-8ff436de'
    """
    last = _UNSAFE.sub("-", file.name.rpartition("/")[2]).strip(".-")[:60] or "file"
    return f"{rank:05d}-{last}-{file.sha256[:8]}"
