"""The audit of detection data: what can be told without any model, before one is trained.

Most public sets give their labels away: by a tag, by white space, by few templates, by a source of
its own for each class. A detector learns that first, and its score says nothing about people.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ConfigError, DataError
from ..paths import expanded, kind_of
from .audit_facts import collect
from .audit_rows import Row, rows_of
from .audit_verdict import HOPELESS, judge
from .canonical import FORMS
from .detection_sources import read_source
from .detection_words import COLUMNS, plain
from .instruction_files import read_records
from .instruction_sources import find_files
from .problems import ProblemLog

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What was found, and a verdict: usable, usable with warnings, or hopeless.

    `reasons` say why the data are hopeless, `warnings` what is to be known; both are sentences.
    `kinds` names each of them in a word or two, reasons first. `facts` is all that was measured.
    """

    verdict: str
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    kinds: tuple[str, ...]
    facts: dict[str, Any]

    @property
    def is_hopeless(self) -> bool:
        """Whether a detector trained on these data would measure something else."""
        return self.verdict == HOPELESS

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The measured facts as tables by name; those without rows are left out."""
        from .audit_tables import tables

        return tables(self.facts)

    def require_usable(self) -> None:
        """Stop where the data are hopeless.

        Raises:
            DataError: With every reason.
        """
        if self.is_hopeless:
            raise DataError(
                f"The audit says that {self.facts['source']} cannot train a detector.",
                fix="mend the data as the reasons say, or take other data; to train in spite of "
                "them, set on_failed_audit=go_on.",
                details="\n".join(f"- {reason}" for reason in self.reasons),
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON form for `result.json`."""
        return {
            "format": FORMAT,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "warnings": list(self.warnings),
            "kinds": list(self.kinds),
            "facts": self.facts,
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Audit:
        """Return an audit as `to_dict` gave it."""
        texts = {name: tuple(saved[name]) for name in ("reasons", "warnings", "kinds")}
        return cls(verdict=saved["verdict"], facts=saved["facts"], **texts)

    def save(self, path: str | Path) -> Path:
        """Write the audit as JSON and return where."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")
        return path

    def __repr__(self) -> str:
        n = self.facts["classes"]
        return (
            f"Audit({self.facts['source']}: {self.verdict}; {n['human']:,} human, {n['ai']:,} ai; "
            f"{len(self.reasons)} reasons, {len(self.warnings)} warnings)"
        )


def audit(
    data: Any,
    *,
    revision: str | None = None,
    canonical: str = "text",
    known_humans: Any = None,
) -> Audit:
    """Look at detection data without training anything, and say whether they can train a detector.

    Rows are looked at as they are read: nothing is left out of the count of repeats.

    Args:
        data: What `load_detection_data` takes (file, folder, hub id, sample), a sequence of rows
            (mappings or `CodeRow`), or loaded `DetectionData`.
        revision: Branch, tag or commit on the hub.
        canonical: Form that the detector would train on; single features are measured in it too.
        known_humans: Code that people are known to have written, in any form that `data` has: AI
            rows that repeat it carry a wrong label.

    Raises:
        DataError: The data cannot be found or read.
        ConfigError: `canonical` is no form.
    """
    start = time.perf_counter()
    if canonical not in FORMS:
        raise ConfigError(f"canonical is {canonical!r}.", fix=f"take one of: {', '.join(FORMS)}")
    given = _given(data, revision)
    known = [] if known_humans is None else [row.code for row in _given(known_humans, None).rows]
    facts = {"source": given.source, "revision": given.revision, "licence": given.licence}
    facts |= {"left_out": given.left_out, "notes": list(given.notes)}
    facts |= collect(given.rows, form=canonical, known=known)
    verdict, reasons, warnings = judge(facts)
    facts["seconds"] = round(time.perf_counter() - start, 2)
    return Audit(
        verdict=verdict,
        reasons=tuple(one.text for one in reasons),
        warnings=tuple(one.text for one in warnings),
        kinds=tuple(one.kind for one in (*reasons, *warnings)),
        facts=facts,
    )


class _Given(NamedTuple):
    rows: list[Row]
    source: str
    revision: str | None = None
    licence: str = ""
    left_out: str = ""
    notes: tuple[str, ...] = ()


def _given(data: Any, revision: str | None) -> _Given:
    if isinstance(data, str | Path):
        return _read(str(data), revision)
    if hasattr(data, "splits") and hasattr(data, "rows"):
        return _loaded(data)
    if isinstance(data, Sequence) or (isinstance(data, Iterable) and not isinstance(data, Mapping)):
        rows = rows_of(data)
        return _Given(rows, f"{len(rows):,} rows")
    raise DataError(
        f"data is {type(data).__name__}.",
        fix="give a file, a folder, a hub id, a sequence of rows, or loaded detection data.",
    )


def _read(source: str, revision: str | None) -> _Given:
    log = ProblemLog("drop", source)
    raw = read_source(source, revision, log)
    problems = log.freeze()
    rows = [
        row._replace(split=split) for row, split in zip(rows_of(raw.rows), raw.given, strict=True)
    ]
    rows = _with_tasks_as_written(rows, source)
    return _Given(
        rows, raw.source, raw.revision, raw.licence, problems.left_out(), tuple(problems.rest())
    )


def _with_tasks_as_written(rows: list[Row], source: str) -> list[Row]:
    """Put back how local files spell their tasks: rows as read have one spelling of each."""
    if kind_of(expanded(source, "data")) not in ("file", "folder"):
        return rows
    log = ProblemLog("drop", source)
    written: dict[str, str] = {}
    try:
        files = find_files(source, None, log)
    except DataError:  # a folder of code, whose tasks are not written anywhere
        return rows
    for name in files.names:
        for line, record in read_records(files.folder / name, name, log):
            if isinstance(record, Mapping) and (task := _task_of(record)):
                written[f"{name}:{line}"] = task
    return [row._replace(task_as_written=written.get(row.place, "")) for row in rows]


def _task_of(record: Mapping[str, Any]) -> str:
    names = {str(key).strip().lower(): key for key in record}
    return next((plain(record[names[word]]) for word in COLUMNS["task"] if word in names), "")


def _loaded(data: Any) -> _Given:
    split = {int(at): name for name, rows in data.splits.items() for at in rows}
    rows = [row._replace(split=split.get(at, "")) for at, row in enumerate(rows_of(data.rows))]
    left_out = str((data.problems or {}).get("left_out", ""))
    return _Given(rows, data.source, data.revision, data.licence, left_out)
