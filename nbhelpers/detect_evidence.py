"""The sheet of one file: what was measured on which bytes, how sure that is, how to contest it.

It is written for the person whose file it is: everything that is needed to repeat the measurement,
and what would change it.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nbhelpers.detect_calls import (
    AI,
    NOT_JUDGED,
    UNDECIDED,
    Judge,
    Scored,
    Verdict,
    threshold_facts,
)
from nbhelpers.detect_files import CodeFile
from nbhelpers.detector_notice import NO_EVIDENCE
from nbhelpers.errors import ConfigError
from nbhelpers.formatting import percent
from nbhelpers.tables import left

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

    >>> from nbhelpers.detect_files import code_file
    >>> sheet_name(3, code_file("x = 1", "python", "../a b/<x>.py"))
    '00003-x-.py-8ff436de'
    """
    last = _UNSAFE.sub("-", file.name.rpartition("/")[2]).strip(".-")[:60] or "file"
    return f"{number:05d}-{last}-{file.sha256[:8]}"
