"""The facts of an audit as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .audit_rows import CLASSES

if TYPE_CHECKING:
    import pandas as pd

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
    "lengths": "Length by class, in tenths of the rows",
}


def tables(facts: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Return every table that has rows, by the names in `TITLES`."""
    import pandas as pd

    made = {
        "classes": list(_classes(facts)),
        "features": facts["features"],
        "tags": [{name: tag[name] for name in _TAG} for tag in facts["tags"]],
        "templates": list(_templates(facts)),
        "duplicates": list(_duplicates(facts)),
        "groups": list(_groups(facts)),
        **{name: _counts(found) for name, found in facts["counts"].items()},
        "people": [one | {"languages": ", ".join(one["languages"])} for one in facts["people"]],
        "generators": [one | {"sources": ", ".join(one["sources"])} for one in facts["generators"]],
        "confounding": list(_confounding(facts)),
        "lengths": list(_lengths(facts)),
    }
    return {name: pd.DataFrame(made[name]) for name in TITLES if made[name]}


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
    for label, found in facts["templates"].items():
        if "shapes" in found:
            yield {"label": label, **{name: found.get(name) for name in names}}


def _duplicates(facts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    found = facts["duplicates"]
    splits = found["across_splits"]
    yield {"repeats": "rows equal to an earlier one", "rows": found["equal"]}
    yield {"repeats": "equal but for white space", "rows": found["equal_but_blanks"]}
    yield {"repeats": f"near, Jaccard {found['threshold']:g}", "rows": found["near"]}
    yield {"repeats": "of one text under both labels", "rows": found["across_labels"]["rows"]}
    yield {"repeats": "ai rows like a human row", "rows": found["ai_like_human"]["rows"]}
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
        found = facts[what]
        shared = found["shared_by_splits"]
        yield {
            "of": what,
            "number": found["groups"],
            "rows without": found["rows_without"],
            "median rows": found["median_rows"],
            "largest": found["largest"],
            "with both classes": found["groups_of_both"],
            "in train and held out": shared["groups"] if shared else None,
        }


def _counts(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if [one["value"] for one in found] == [""]:
        return []
    return [
        {"value": one["value"] or "none named", **{k: one[k] for k in CLASSES}} for one in found
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
