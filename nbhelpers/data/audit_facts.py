"""Everything that an audit measures, as one JSON object."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from .audit_duplicates import MAX_COMPARED, duplicate_facts, known_human_facts
from .audit_features import feature_table
from .audit_groups import (
    ai_claims,
    confounding,
    count_tables,
    generators,
    group_facts,
    lengths,
    people,
    spellings,
)
from .audit_rows import CLASSES, Row
from .audit_tags import Tag, find_tags, without_tags
from .audit_templates import template_facts
from .audit_twins import twin_facts
from .audit_words import told_apart
from .canonical import canonical

# Rows of a class that are drawn to look for tags and templates, which stand in many rows or none.
DRAWN = 4000
DRAWN_OF_TEMPLATES = 2000  # rows of a class of templates that are compared for nearness
SEED = 0


def collect(rows: Sequence[Row], *, form: str, known: Sequence[str] = ()) -> dict[str, Any]:
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

    def clean(code: str) -> str:
        return without_tags(code, strong) if strong else code

    def bare(code: str) -> str:
        return without_tags(code, tags) if tags else code

    strong = [tag for tag in tags if tag.is_leak]
    compared = _compared(labelled, templates, draw)
    has_both = bool(of["human"] and of["ai"])
    return {
        "n_rows": len(rows),
        "canonical": form,
        "classes": {label: len(own) for label, own in of.items()}
        | {"unlabelled": len(rows) - len(labelled)},
        "distinct": {
            label: len({" ".join(row.code.split()) for row in own}) for label, own in of.items()
        },
        "counts": _counts(labelled),
        "people": people(labelled),
        "generators": generators(labelled),
        "claims": ai_claims(labelled),
        "templates": templates,
        "tags": [
            tag._asdict() | {"auc": round(tag.auc, 4), "sentence": tag.sentence()} for tag in tags
        ],
        "features": feature_table(labelled, form=form) if has_both else [],
        "told_apart": told_apart(alike.human, alike.ai, bare) if has_both else None,
        "duplicates": duplicate_facts(labelled, compared, clean),
        "twins": twin_facts(of["human"], drawn["ai"], clean) if has_both else None,
        "known_humans": known_human_facts(labelled, compared, known, clean) if known else None,
        "tasks": group_facts(labelled, "task"),
        "authors": group_facts(labelled, "author"),
        "spellings": spellings(labelled),
        "confounding": confounding(labelled),
        "lengths": lengths(labelled),
    }


def _counts(rows: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
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

    human: list[Row]
    ai: list[Row]
    is_apart: bool


def _alike(of: dict[str, list[Row]], draw: random.Random, form: str) -> _Alike:
    drawn: dict[str, list[Row]] = {label: [] for label in CLASSES}
    by: dict[str, dict[str, list[Row]]] = {label: {} for label in CLASSES}
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


def _in_form(row: Row, form: str) -> Row:
    """In the form that is trained on; lines are kept, because a tag often is one."""
    return row._replace(code=canonical(row.code, "text" if form == "flat" else form))


def _compared(rows: Sequence[Row], templates: dict[str, Any], draw: random.Random) -> list[int]:
    """Rows that are compared for nearness: all of a natural set, some of a class of templates."""
    kept: list[int] = []
    for label, found in templates.items():
        own = [at for at, row in enumerate(rows) if row.label == label]
        limit = DRAWN_OF_TEMPLATES if found["is_collapsed"] else MAX_COMPARED // 2
        kept += draw.sample(own, min(limit, len(own)))
    return sorted(kept)
