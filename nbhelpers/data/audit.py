"""The audit of detection data: what can be told without any model, before one is trained."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.common.files import cached
from nbhelpers.common.pool import begin, worthwhile
from nbhelpers.common.processes import garbage_stays
from nbhelpers.data.audit_rules import (
    MAX_COMPARED,
    Tag,
    ai_claims,
    confounding,
    count_tables,
    duplicate_facts,
    feature_table,
    find_tags,
    generators,
    group_facts,
    known_human_facts,
    lengths,
    people,
    source_facts,
    spellings,
    template_facts,
    told_apart,
    twin_facts,
    without_tags,
)
from nbhelpers.data.audit_text import CLASSES
from nbhelpers.data.audit_verdict import HOPELESS, judge
from nbhelpers.data.canonical import FORMS, canonical
from nbhelpers.data.detection_rows import CodeReader, CodeRow
from nbhelpers.data.detection_sources import RawRows, raw_rows, read_source, why_missing
from nbhelpers.data.files import Record
from nbhelpers.data.findings import Findings
from nbhelpers.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd


# ------------------------------------------------------------------------------------------------
# The facts of an audit as tables.


TITLES = {
    "classes": "Classes",
    "features": "Area under the ROC curve of single features",
    "tags": "Texts whose presence tells the label",
    "templates": "Shapes of the programs, with names, numbers and texts masked",
    "duplicates": "Repeats",
    "groups": "Tasks and authors",
    "language": "Rows by language",
    "source": "Rows by source",
    "generator": "Rows by generator",
    "split": "Rows by split",
    "licence": "Rows by licence",
    "people": "Human populations",
    "generators": "What made the AI rows",
    "confounding": "How well a column tells the label",
    "sources": "How far each source is from the others: areas of their words",
    "lengths": "Length by class, in tenths of the rows",
}


def tables(facts: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Return every table that has rows, by the names in `TITLES`."""
    import pandas as pd

    rows_of = {
        "classes": list(_classes(facts)),
        "features": facts["features"],
        "tags": [{name: tag[name] for name in _TAG} for tag in facts["tags"]],
        "templates": list(_templates(facts)),
        "duplicates": list(_duplicates(facts)),
        "groups": list(_groups(facts)),
        **{name: _counts(records) for name, records in facts["counts"].items()},
        "people": [one | {"languages": ", ".join(one["languages"])} for one in facts["people"]],
        "generators": [one | {"sources": ", ".join(one["sources"])} for one in facts["generators"]],
        "confounding": list(_confounding(facts)),
        "sources": facts.get("sources", []),
        "lengths": list(_lengths(facts)),
    }
    return {name: pd.DataFrame(rows_of[name]) for name in TITLES if rows_of[name]}


_TAG = ("text", "place", "label", "share", "other_share", "auc", "is_leak", "names_label")


def _classes(facts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for label in CLASSES:
        yield {
            "label": label,
            "rows": facts["classes"][label],
            "distinct": facts["distinct"][label],
        }
    if facts["classes"]["unlabelled"]:
        yield {"label": "none", "rows": facts["classes"]["unlabelled"], "distinct": None}


def _templates(facts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    names = ("rows_compared", "shapes", "shapes_of_half", "covered_share", "templates")
    for label, class_facts in facts["templates"].items():
        if "shapes" in class_facts:
            yield {"label": label, **{name: class_facts.get(name) for name in names}}


def _duplicates(facts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    duplicates = facts["duplicates"]
    splits = duplicates["across_splits"]
    yield {"repeats": "rows equal to an earlier one", "rows": duplicates["equal"]}
    yield {"repeats": "equal but for white space", "rows": duplicates["equal_but_blanks"]}
    yield {"repeats": f"near, Jaccard {duplicates['threshold']:g}", "rows": duplicates["near"]}
    yield {"repeats": "of one text under both labels", "rows": duplicates["across_labels"]["rows"]}
    yield {"repeats": "ai rows like a human row", "rows": duplicates["ai_like_human"]["rows"]}
    if facts["twins"]:
        name = "ai rows with a human row's statements, or part of one (of those looked at)"
        yield {"repeats": name, "rows": facts["twins"]["rows"]}
    if facts["known_humans"]:
        yield {"repeats": "ai rows like known human code", "rows": facts["known_humans"]["rows"]}
    if splits:
        yield {"repeats": "train rows equal to a held-out row", "rows": splits["equal"]}
        yield {"repeats": "train rows near a held-out row", "rows": splits["near"]}


def _groups(facts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for what in ("tasks", "authors"):
        groups = facts[what]
        shared = groups["shared_by_splits"]
        yield {
            "of": what,
            "number": groups["groups"],
            "rows without": groups["rows_without"],
            "median rows": groups["median_rows"],
            "largest": groups["largest"],
            "with both classes": groups["groups_of_both"],
            "in train and held out": shared["groups"] if shared else None,
        }


def _counts(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if [one["value"] for one in records] == [""]:
        return []
    return [
        {"value": one["value"] or "none named", **{k: one[k] for k in CLASSES}} for one in records
    ]


def _confounding(facts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for one in facts["confounding"]:
        single = ", ".join(f"{v['value'] or 'none named'} ({v['label']})" for v in one["single"])
        yield {"column": one["column"], "auc": one["auc"], "values with one class": single}


def _lengths(facts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for one in facts["lengths"]:
        tenths = one["tenths"]
        yield {
            "label": one["label"],
            "of": one["of"],
            **{f"{k * 10} %": tenths[k] for k in (0, 1, 5, 9, 10)},
        }


# ------------------------------------------------------------------------------------------------
# Everything that an audit measures, as one JSON object.


# Rows of a class that are drawn to look for tags and templates, which stand in many rows or none.
DRAWN = 4000
DRAWN_OF_TEMPLATES = 2000  # rows of a class of templates that are compared for nearness
SEED = 0


@garbage_stays()
def collect(rows: Sequence[CodeRow], *, form: str, known: Sequence[str] = ()) -> dict[str, Any]:
    """Measure everything that `judge` looks at.

    Args:
        rows: All rows, also those without a label.
        form: The canonical form that the detector would train on.
        known: Programs that are known to be a person's.
    """
    of = {label: [row for row in rows if row.label == label] for label in CLASSES}
    labelled = [row for row in rows if row.label]
    draw = random.Random(SEED)
    drawn = {label: draw.sample(own, min(DRAWN, len(own))) for label, own in of.items()}
    templates = {label: template_facts(own) for label, own in drawn.items() if own}
    alike = _alike(of, draw, form)
    tags = _tags(alike)

    bare = partial(without_tags, tags=tags)
    clean = partial(without_tags, tags=[tag for tag in tags if tag.is_leak])
    compared = _compared(labelled, templates, draw)
    repeats = partial(duplicate_facts, labelled, compared, clean)
    if worthwhile(sum(len(row.code) for row in labelled)) > 1:
        repeats = begin(repeats)  # as long as all the rest
    has_both = bool(of["human"] and of["ai"])
    facts = {
        "n_rows": len(rows),
        "canonical": form,
        "classes": {label: len(own) for label, own in of.items()}
        | {"unlabelled": len(rows) - len(labelled)},
        "distinct": {
            label: len({" ".join(row.code.split()) for row in own}) for label, own in of.items()
        },
        "counts": _row_counts(labelled),
        "people": people(labelled),
        "generators": generators(labelled),
        "claims": ai_claims(labelled),
        "templates": templates,
        "tags": [
            tag._asdict() | {"auc": round(tag.auc, 4), "sentence": tag.sentence()} for tag in tags
        ],
        "features": feature_table(labelled, form=form) if has_both else [],
        "told_apart": told_apart(alike.human, alike.ai, bare) if has_both else None,
        "duplicates": None,
        "twins": twin_facts(of["human"], drawn["ai"], clean) if has_both else None,
        "known_humans": known_human_facts(labelled, compared, known, clean) if known else None,
        "tasks": group_facts(labelled, "task"),
        "authors": group_facts(labelled, "author"),
        "spellings": spellings(labelled),
        "confounding": confounding(labelled),
        "sources": source_facts(labelled, draw, bare),
        "lengths": lengths(labelled),
    }
    return facts | {"duplicates": repeats()}


def _row_counts(rows: Sequence[CodeRow]) -> dict[str, list[dict[str, Any]]]:
    tables = count_tables(rows)
    sources: dict[str, set[str]] = {}
    for row in rows:
        sources.setdefault(row.licence, set()).add(row.source)
    for one in tables["licence"]:
        one["sources"] = sorted(sources[one["value"]] - {""})
    return tables


class _Alike(NamedTuple):
    """Rows in the form that is trained on, as many human as AI ones of each language.

    Where no language has both (`is_apart`): rows of every language.
    """

    human: list[CodeRow]
    ai: list[CodeRow]
    is_apart: bool


def _alike(of: dict[str, list[CodeRow]], draw: random.Random, form: str) -> _Alike:
    drawn: dict[str, list[CodeRow]] = {label: [] for label in CLASSES}
    by: dict[str, dict[str, list[CodeRow]]] = {label: {} for label in CLASSES}
    for label, own in of.items():
        for row in own:
            by[label].setdefault(row.language, []).append(row)
    for language in sorted(by["human"].keys() & by["ai"].keys()):
        n = min(len(by[label][language]) for label in CLASSES)
        for label in CLASSES:
            drawn[label] += draw.sample(by[label][language], n)
    is_apart = not drawn["human"]
    drawn = of if is_apart else drawn
    rows = {
        label: [_in_form(row, form) for row in draw.sample(own, min(DRAWN, len(own)))]
        for label, own in drawn.items()
    }
    return _Alike(rows["human"], rows["ai"], is_apart)


def _tags(rows: _Alike) -> list[Tag]:
    """Look for tags; where no language has both classes, only for those that name a label."""
    words = {row.generator for row in rows.ai}
    return find_tags(rows.human, rows.ai, words=words, only_named=rows.is_apart)


def _in_form(row: CodeRow, form: str) -> CodeRow:
    """In the form that is trained on; lines are kept, because a tag often is one."""
    return row._replace(code=canonical(row.code, "text" if form == "flat" else form))


def _compared(rows: Sequence[CodeRow], templates: dict[str, Any], draw: random.Random) -> list[int]:
    """Rows that are compared for nearness: all of a natural set, some of a class of templates."""
    numbers: list[int] = []
    for label, class_facts in templates.items():
        own = [at for at, row in enumerate(rows) if row.label == label]
        limit = DRAWN_OF_TEMPLATES if class_facts["is_collapsed"] else MAX_COMPARED // 2
        numbers += draw.sample(own, min(limit, len(own)))
    return sorted(numbers)


# ------------------------------------------------------------------------------------------------
# The audit of detection data: what can be told without any model, before one is trained.
#
# Most public sets give their labels away: by a tag, by white space, by few templates, by a source
# of its own for each class. A detector learns that first, and its score says nothing about people.


FORMAT = 1
FACTS_FORMAT = 1  # of the cached facts: raise it when the same rows give others than before
CACHED_CHARACTERS = 2_000_000  # less takes a few seconds


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
    def read(self) -> list[str]:
        """The columns, folders and label words that were met, and what was not read."""
        read = self.facts.get("read", {})
        columns = [
            what if what == name else f"{what} from {name}"
            for what, name in read.get("columns", {}).items()
        ]
        lines = [f"Columns: {', '.join(columns)}."] if columns else []
        for title in ("folders", "labels"):
            words = [f"{word} = {meaning}" for word, meaning in read.get(title, {}).items()]
            lines += [f"{title.capitalize()}: {', '.join(words)}."] if words else []
        return lines + list(read.get("told", ()))

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The measured facts as tables by name; those without rows are left out."""

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
    dataset = _given(data, revision)
    known = [] if known_humans is None else _codes(known_humans)
    facts = {"source": dataset.source, "revision": dataset.revision, "licence": dataset.licence}
    facts |= {"left_out": dataset.left_out, "notes": list(dataset.notes)}
    facts["read"] = dict(dataset.read)
    facts |= _collected(dataset.rows, canonical, known)
    verdict, reasons, warnings = judge(facts)
    facts["seconds"] = round(time.perf_counter() - start, 2)
    return Audit(
        verdict=verdict,
        reasons=tuple(one.text for one in reasons),
        warnings=tuple(one.text for one in warnings),
        kinds=tuple(one.kind for one in (*reasons, *warnings)),
        facts=facts,
    )


def _collected(rows: Sequence[CodeRow], form: str, known: Sequence[str]) -> dict[str, Any]:
    """Return what `collect` does, of many programs from the cache where they were seen before."""
    if sum(len(row.code) for row in rows) < CACHED_CHARACTERS:
        return collect(rows, form=form, known=known)
    key = [f"{FACTS_FORMAT} {form} {len(known)}", *known, *(str(x) for row in rows for x in row)]
    return cached(
        "audit",
        key,
        partial(collect, rows, form=form, known=known),
        load=_facts_of,
        save=lambda path, facts: path.write_text(json.dumps(facts), encoding="utf-8"),
        suffix=".json",
    )


def _facts_of(path: Path) -> dict[str, Any]:
    facts = json.loads(path.read_text(encoding="utf-8"))
    return facts | {"duplicates": facts["duplicates"]}  # fails where it is another file


def _codes(known: Any) -> list[str]:
    return [row.code for row in _given(known, None, "known_humans").rows]


class _Given(NamedTuple):
    """Rows to look at, and what was met while they were read."""

    rows: list[CodeRow]
    source: str
    revision: str | None = None
    licence: str = ""
    left_out: str = ""
    notes: tuple[str, ...] = ()
    read: Mapping[str, Any] = MappingProxyType({})


def _given(data: Any, revision: str | None, what: str = "data") -> _Given:
    if isinstance(data, str | Path):
        findings = Findings("drop", str(data))
        return _of(read_source(str(data), revision, findings, what=what), findings)
    if hasattr(data, "splits") and hasattr(data, "rows"):
        return _loaded(data)
    if isinstance(data, Sequence) or (isinstance(data, Iterable) and not isinstance(data, Mapping)):
        return _listed(list(data))
    raise DataError(
        f"{what} is {type(data).__name__}.",
        fix="give a file, a folder, a hub id, a sequence of rows, or loaded detection data.",
    )


def _listed(items: list[Any]) -> _Given:
    """Rows in memory: `CodeRow` as they are, others as the records of a file are read."""
    findings = Findings("drop", f"{len(items):,} rows")
    if all(isinstance(item, CodeRow) for item in items):
        return _Given(items, findings.source)
    reader = CodeReader(findings)
    reader.read(Record("rows", number, item) for number, item in enumerate(items, 1))
    reader.finish("rows")
    if items and not reader.rows:
        findings.add("no_rows_left", "rows", None, "every row was dropped")
    return _of(raw_rows(reader, findings.source), findings)


def _of(raw: RawRows, findings: Findings) -> _Given:
    findings.stop_if_needed()
    read = {"told": [text for text in findings.warnings() if text != findings.left_out()]}
    if not any(row.label for row in raw.rows):
        read["no_label"] = why_missing(raw, "label")
    return _Given(
        rows=raw.rows,
        source=raw.source,
        revision=raw.revision,
        licence=raw.licence,
        left_out=findings.left_out(),
        notes=tuple(findings.rest()),
        read=findings.facts | read,
    )


def _loaded(data: Any) -> _Given:
    split = {int(at): name for name, rows in data.splits.items() for at in rows}
    rows = [row._replace(split=split.get(at, "")) for at, row in enumerate(data.rows)]
    left_out, read = (data.problems or {}).get("left_out", ""), (data.problems or {}).get("facts")
    return _Given(rows, data.source, data.revision, data.licence, str(left_out), read=read or {})
