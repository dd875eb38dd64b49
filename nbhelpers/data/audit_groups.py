"""What the columns beside the programs say: counts, people, generators, tasks, and confounding."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from .audit_duplicates import HELD
from .audit_rows import CLASSES, Row

COLUMNS = ("language", "source", "generator", "split", "licence")
FEW_ROWS = 20  # below which a value that holds one class says nothing
EXAMPLES = 5
LETTERS_OF_A_NAME = 4  # numbers are given by every source anew
_DATE = re.compile(r"(?<!\d)((?:19|20)\d\d)(?:-?([01]\d))?")
# Before the first large language model could be asked for code by the public.
# Source: the OpenAI API (GPT-3) opened in a private beta on 11 June 2020.
FIRST_MODEL = (2020, 6)


def count_tables(rows: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
    """Return rows of each class per value of each column, most rows first."""
    return {column: counts(rows, attrgetter(column)) for column in COLUMNS}


def counts(rows: Iterable[Row], key: Callable[[Row], str]) -> list[dict[str, Any]]:
    """Return records of value, human and ai for one column."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        found[key(row)][row.label or ""] += 1
    order = sorted(found.items(), key=lambda item: (-item[1].total(), item[0]))
    return [{"value": value, **{label: n[label] for label in CLASSES}} for value, n in order]


def people(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the human populations: one per source, with authors, languages and dates."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.label == "human":
            found[row.source].append(row)
    return [
        {
            "source": source,
            "rows": len(own),
            "authors": len({row.author for row in own if row.author}),
            "languages": sorted({row.language for row in own}),
            **_dates(own),
        }
        for source, own in sorted(found.items(), key=lambda item: -len(item[1]))
    ]


def generators(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return what made the AI rows, with the sources and dates of each."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.label == "ai":
            found[row.generator].append(row)
    return [
        {
            "generator": name,
            "rows": len(own),
            "sources": sorted({row.source for row in own}),
            **_dates(own),
        }
        for name, own in sorted(found.items(), key=lambda item: -len(item[1]))
    ]


def _dates(rows: Sequence[Row]) -> dict[str, Any]:
    dates = sorted(row.date for row in rows if month_of(row.date))
    return {"first_date": dates[0] if dates else "", "last_date": dates[-1] if dates else ""}


def month_of(date: str) -> tuple[int, int] | None:
    """Return year and month of a date; a year alone counts as its end.

    >>> month_of("2019-04-02"), month_of("2021"), month_of("")
    ((2019, 4), (2021, 12), None)
    """
    found = _DATE.search(date)
    return (int(found[1]), int(found[2] or 12)) if found else None


def ai_claims(rows: Sequence[Row]) -> dict[str, Any]:
    """Count AI rows that their own columns call human, or date before there was such a model."""
    ai = [row for row in rows if row.label == "ai"]
    dated = [month for row in ai if (month := month_of(row.date))]
    human = [row for row in ai if re.search(r"\bhumans?\b", f"{row.generator} ".lower())]
    return {
        "rows": len(ai),
        "no_generator": sum(not row.generator for row in ai),
        "generator_human": len(human),
        "dated": len(dated),
        "too_early": sum(month < FIRST_MODEL for month in dated),
        "examples": [row.place for row in human[:EXAMPLES]],
    }


def group_facts(rows: Sequence[Row], field: str) -> dict[str, Any]:
    """Return how rows are spread over tasks or authors, and which of these splits share.

    Args:
        rows: Labelled rows.
        field: "task" or "author".
    """
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if value := getattr(row, field):
            found[value].append(row)
    both = [own for own in found.values() if len({row.label for row in own}) > 1]
    sizes = sorted(map(len, found.values()))
    return {
        "groups": len(found),
        "rows": sum(sizes),
        "rows_without": len(rows) - sum(sizes),
        "median_rows": sizes[len(sizes) // 2] if sizes else 0,
        "largest": sizes[-1] if sizes else 0,
        "groups_of_both": len(both),
        "rows_of_both": sum(map(len, both)),
        "sources_of_groups": sum(len({row.source for row in own}) > 1 for own in found.values()),
        "shared_by_splits": _shared(found),
    }


def _shared(found: dict[str, list[Row]]) -> dict[str, Any] | None:
    """Groups whose rows stand in train and in a held-out split; None without such splits."""
    splits = {row.split for own in found.values() for row in own}
    if "train" not in splits or splits.isdisjoint(HELD):
        return None
    mixed = [
        own
        for own in found.values()
        if "train" in (names := {row.split for row in own}) and not names.isdisjoint(HELD)
    ]
    held = sum(row.split in HELD for own in mixed for row in own)
    examples = [sorted({row.task_as_written for row in own})[:3] for own in mixed[:EXAMPLES]]
    return {"groups": len(mixed), "held_rows": held, "examples": examples}


def spellings(rows: Sequence[Row]) -> dict[str, Any]:
    """Return tasks that are written in several ways, and names that sources share.

    `tasks` are written in several ways, `names` are tasks with ids of several sources that have the
    same words behind the source's own prefix; `names_in_two_splits` are those of them that stand in
    train and in a held-out split.
    """
    written: dict[str, set[str]] = defaultdict(set)
    named: dict[str, dict[str, Row]] = defaultdict(dict)
    splits: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row.task:
            written[row.task].add(row.task_as_written)
            name = _own_name(row.task_as_written)
            if sum(map(str.isalpha, name)) >= LETTERS_OF_A_NAME:
                named[name].setdefault(row.task, row)
                splits[name].add("held" if row.split in HELD else row.split)
    many = [sorted(names) for names in written.values() if len(names) > 1]
    shared = {name: list(of.values()) for name, of in named.items() if len(of) > 1}
    return {
        "tasks": len(many),
        "examples": [names[:3] for names in many[:EXAMPLES]],
        "names": len(shared),
        "names_in_two_splits": sum({"train", "held"} <= splits[name] for name in shared),
        "name_examples": [
            [row.task_as_written for row in found[:3]] for found in list(shared.values())[:EXAMPLES]
        ],
    }


def _own_name(task: str) -> str:
    """Letters and digits of a task's name behind a prefix such as `rosetta:`."""
    name = task.partition(":")[2] or task
    return "".join(sign for sign in name.casefold() if sign.isalnum())


def confounding(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return, for each column that a program's origin shows in, how well it tells the label.

    `auc` is of the share of AI rows of each value; `single` names values with one class only.
    """
    found = []
    for column in ("language", "source", "split"):
        table = counts(rows, attrgetter(column))
        if len(table) == 1 and not table[0]["value"]:
            continue
        single = [
            {
                "value": one["value"],
                "label": CLASSES[one["ai"] > 0],
                "rows": one["human"] + one["ai"],
            }
            for one in table
            if min(one["human"], one["ai"]) == 0 and one["human"] + one["ai"] >= FEW_ROWS
        ]
        found.append({"column": column, "auc": _auc_of(table), "single": single})
    return found


def _auc_of(table: list[dict[str, Any]]) -> float | None:
    """Area under the ROC curve when a row's score is the share of AI rows of its value."""
    n_human, n_ai = (sum(one[label] for one in table) for label in CLASSES)
    if not n_human or not n_ai:
        return None
    below, area = 0, 0.0
    ratio: dict[float, list[int]] = {}
    for one in table:
        both = ratio.setdefault(one["ai"] / max(one["human"] + one["ai"], 1), [0, 0])
        both[0] += one["human"]
        both[1] += one["ai"]
    for _, (human, ai) in sorted(ratio.items()):
        area += ai * (below + human / 2)
        below += human
    return round(area / (n_human * n_ai), 4)


def lengths(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return tenths of the number of lines and characters of each class."""
    found = []
    for label in CLASSES:
        own = [row.code for row in rows if row.label == label]
        if not own:
            continue
        for what, values in (
            ("lines", sorted(len(code.splitlines()) for code in own)),
            ("characters", sorted(map(len, own))),
        ):
            tenths = [values[min(len(values) * k // 10, len(values) - 1)] for k in range(11)]
            found.append({"label": label, "of": what, "tenths": tenths})
    return found
