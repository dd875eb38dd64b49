"""From the facts of an audit to a verdict: what makes the data hopeless, what is to be known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from nbhelpers.data.audit_rules import FEW_SHAPES
from nbhelpers.data.audit_text import CLASSES

# ------------------------------------------------------------------------------------------------
# Whether AI rows are people's code under a wrong label: what an audit says of it.
#
# Every limit stands here, with why it is where it is.


TINY = 30  # distinct rows of a class: fewer say nothing about any share
COPIED = 0.2  # share of the AI rows that are human code; a wrong label in five spoils any score
# Area of the words; seven generators against the people of their sources have 0.73 and more at 400
# rows of each class, 0.66 and more at 200; people's code with both labels has 0.53 at most.
NOTHING_TOLD = 0.6
NO_MORE_THAN_CHANCE = 0.55
SURE_ROWS = 250
# Area of the masked statements: the same generators have 0.67 and more at 400 rows.
SURE_ROWS_OF_STRUCTURE = 400
DOUBTFUL_TWINS = 0.05
Facts = Mapping[str, Any]


class Finding(NamedTuple):
    """One thing that was found: its kind in one word or two, and a sentence for a person."""

    kind: str
    text: str
    is_reason: bool = False


def is_collapsed(facts: Facts) -> bool:
    """Whether few templates stand behind the rows of a class."""
    return any(class_facts["is_collapsed"] for class_facts in facts["templates"].values())


def wrong_labels(facts: Facts) -> Iterator[Finding]:
    """Yield what speaks for people's code among the AI rows."""
    copies, claims = facts["duplicates"]["ai_like_human"], facts["claims"]
    known, words = facts["known_humans"], facts["told_apart"]
    start = "Human code seems to be labelled ai: "
    if copies["rows"]:
        text = f"{copies['rows']:,} of {copies['of']:,} ai rows equal or nearly equal a human row"
        text = f"{text} ({'; '.join(copies['examples'][:2])})."
        yield _doubt("human code labelled ai", start, text, copies["share"])
    if known and known["rows"]:
        text = f"{known['rows']:,} ai rows equal or nearly equal known human code"
        text = f"{text} ({'; '.join(known['examples'][:3])})."
        yield _doubt("human code labelled ai", start, text, known["share"])
    if claims["generator_human"]:
        text = f"{claims['generator_human']:,} ai rows name a human as their generator."
        yield _doubt(
            "human code labelled ai", start, text, claims["generator_human"] / claims["rows"]
        )
    if claims["too_early"]:
        text = (
            f"{claims['too_early']:,} ai rows have a date before there was a model to write them."
        )
        yield _doubt("human code labelled ai", start, text, claims["too_early"] / claims["dated"])
    yield from _twins(facts, start)
    if words and not is_collapsed(facts):
        yield from _alike(facts, words, start)


def _twins(facts: Facts, start: str) -> Iterator[Finding]:
    twins = facts["twins"]
    if twins and twins["share"] >= DOUBTFUL_TWINS and twins["of"] >= TINY:
        text = (
            f"{twins['rows']:,} of {twins['of']:,} ai rows have the statements of a human row with "
            f"other names, numbers, room or comments ({twins['same_statements']:,}), or are a part "
            f"of one ({twins['within']:,}): {'; '.join(twins['examples'][:2])}."
        )
        yield _doubt("human code labelled ai", start, text, twins["share"])


def _alike(facts: Facts, words: Mapping[str, Any], start: str) -> Iterator[Finding]:
    """The classes are the same code, or the same with other names."""
    n, auc = min(words["human"], words["ai"]), words["auc"]
    is_leak, is_sure = any(tag["is_leak"] for tag in facts["tags"]), is_chance(words)
    if auc < NOTHING_TOLD:
        text = (
            f"the words of the two classes{' without the tag' if facts['tags'] else ''} cannot be "
            f"told apart (area {auc:.2f}; chance is 0.5), as when people's code was given both "
            "labels."
        )
    elif words["structure_auc"] < NOTHING_TOLD and n >= SURE_ROWS_OF_STRUCTURE:
        is_sure = True
        text = (
            "with names, numbers, texts and comments left out the two classes cannot be told apart "
            f"(area {words['structure_auc']:.2f}; chance is 0.5), as when people's code was given "
            "both labels and the names or comments of one class were changed."
        )
    else:
        return
    if is_leak or is_sure:
        yield Finding("human code labelled ai", f"{start}{text}", True)
    else:
        yield Finding("classes alike", f"{text[0].upper()}{text[1:]}")


def is_chance(words: Mapping[str, Any] | None) -> bool:
    """Whether it is sure that words tell nothing, once the texts that tell the label are out."""
    return (
        words is not None
        and words["auc"] < NO_MORE_THAN_CHANCE
        and min(words["human"], words["ai"]) >= SURE_ROWS
    )


def _doubt(kind: str, start: str, text: str, share: float) -> Finding:
    is_reason = share >= COPIED
    return Finding(kind, f"{start}{text}" if is_reason else text[0].upper() + text[1:], is_reason)


# ------------------------------------------------------------------------------------------------
# From the facts of an audit to a verdict: what makes the data hopeless, and what is to be known.
#
# Every limit stands here or in the part above, with why it is where it is.


HOPELESS, WARNED, USABLE = "hopeless", "usable with warnings", "usable"

TELLING = 0.99  # area under the ROC curve of one feature: no model is needed, none is measured
STRONG = 0.9  # told, because a model may learn nothing but it
REPEATED = 0.5  # share of a class that repeats other rows but for white space
MANY_REPEATS = 0.02
TAGGED = 0.2  # share of a class with a text that tells it, of which more than chance is left
UNEVEN = 10  # rows of one class for each of the other
# Humans without one false positive that promise at most 1 % with 95 % confidence: 0.99^299 < 0.05.
HUMANS_FOR_ONE_PERCENT = 299
SHARED_TASKS = 0.5


def judge(facts: Facts) -> tuple[str, list[Finding], list[Finding]]:
    """Return the verdict, the reasons why the data are hopeless, and the warnings."""
    findings = [finding for rule in RULES for finding in rule(facts)]
    reasons = [one for one in findings if one.is_reason]
    warnings = [one for one in findings if not one.is_reason]
    verdict = HOPELESS if reasons else WARNED if warnings else USABLE
    return verdict, reasons, warnings


def _classes(facts: Facts) -> Iterator[Finding]:
    n, distinct = facts["classes"], facts["distinct"]
    if not facts["n_rows"]:
        yield Finding("no rows", "There are no rows.", True)
        return
    if not n["human"] and not n["ai"]:
        yield Finding("no labels", f"None of the {facts['n_rows']:,} rows has a label.", True)
        return
    for label, other in zip(CLASSES, CLASSES[::-1], strict=True):
        if not n[label]:
            text = f"The class {label} is empty: all {n[other]:,} labelled rows are {other}."
            yield Finding("empty class", text, True)
        elif distinct[label] < TINY:
            text = f"The class {label} is tiny: {n[label]:,} rows, {distinct[label]:,} of them "
            yield Finding("tiny class", f"{text}distinct; {TINY} are the least.", True)
        elif 1 - distinct[label] / n[label] >= REPEATED:
            text = f"{n[label] - distinct[label]:,} of the {n[label]:,} {label} rows repeat another"
            yield Finding("repeated rows", f"{text} but for white space.", True)
    low, high = sorted((n["human"], n["ai"]))
    if low and high >= UNEVEN * low:
        yield Finding(
            "uneven classes",
            f"There are {high / low:.0f} rows of one class for each of "
            f"the other ({n['human']:,} human, {n['ai']:,} ai).",
        )
    if n["unlabelled"]:
        yield Finding("unlabelled rows", f"{n['unlabelled']:,} rows have no label.")
    if facts["left_out"]:
        yield Finding("rows left out", facts["left_out"])


def _templates(facts: Facts) -> Iterator[Finding]:
    for label, class_facts in facts["templates"].items():
        if not class_facts["is_collapsed"]:
            continue
        n, rows = class_facts["templates"], facts["classes"][label]
        # Optional parts give a template many shapes, and then the number of templates is not told.
        is_counted = class_facts["shapes_of_half"] <= FEW_SHAPES * class_facts["rows_compared"]
        behind = f"About {n:,} templates stand" if n > 1 else "1 template stands"
        behind = behind if is_counted else "Few templates stand"
        yield Finding(
            "templates",
            f"{behind} behind most of the {rows:,} {label} rows, with other names, numbers and "
            f"texts filled in: {class_facts['shapes_of_half']:,} shapes make up half of the rows, "
            f"and {class_facts['covered_share']:.0%} consist of the same "
            f"{class_facts['statements_of_most']:,} statements. "
            f"First: {_first_line(class_facts['examples'][0]['code'])!r} "
            f"({class_facts['examples'][0]['place']}).",
            True,
        )


def _first_line(code: str) -> str:
    return next((line.strip()[:60] for line in code.splitlines() if line.strip()), "")


def _tags(facts: Facts) -> Iterator[Finding]:
    if _is_tiny(facts):  # anything tells a handful of rows
        return
    has_templates = is_collapsed(facts)
    # Every word of a template tells its class; only one that names the label is more than that.
    # Where a text tells part of the rows and nothing else tells any, it is a tag too.
    is_all = is_chance(facts["told_apart"])
    leaks = [
        tag
        for tag in facts["tags"]
        if (tag["is_leak"] or (is_all and tag["share"] - tag["other_share"] >= TAGGED))
        and (tag["names_label"] or not has_templates)
    ]
    for tag in leaks:
        names = " and names the label" if tag["names_label"] else ""
        text = f"A tag tells the label{names}: {tag['sentence']} ({tag['example']})."
        yield Finding("tag", text, True)
    for tag in facts["tags"]:
        if not has_templates and not leaks:
            yield Finding("telling text", f"A text tells part of the labels: {tag['sentence']}.")


def _features(facts: Facts) -> Iterator[Finding]:
    form = facts["canonical"]
    for one in () if _is_tiny(facts) else facts["features"]:
        name, raw, clean = one["feature"].replace("_", " "), one["raw"], one["canonical"]
        if min(raw, clean) > TELLING:
            yield Finding(
                "single feature",
                f"One feature tells the label: {name} has an area under"
                f" the ROC curve of {raw:.3f} raw and {clean:.3f} in the form {form} "
                f"(mean {one['human']:.3g} human, {one['ai']:.3g} ai).",
                True,
            )
        elif one["slice_share"] >= 0.5:
            yield Finding(
                "single feature",
                f"One feature tells the label in {one['slice']}: {name}"
                f" has an area of {one['slice_raw']:.3f} raw and "
                f"{one['slice_canonical']:.3f} in the form {form}.",
                True,
            )
        elif (one["slice_canonical"] or 0) >= STRONG or clean >= STRONG:
            worst = max(clean, one["slice_canonical"] or 0)
            where = f" in {one['slice']}" if worst > clean else ""
            yield Finding(
                "strong feature",
                f"The feature {name} has an area of {worst:.3f}{where} in the form {form}.",
            )
        elif raw >= STRONG or (one["slice_raw"] or 0) >= STRONG:
            yield Finding(
                "raw feature",
                f"The feature {name} has an area of "
                f"{max(raw, one['slice_raw'] or 0):.3f} raw; in the form {form} it has "
                f"{clean:.3f}. Never train on the raw text.",
            )


def _is_tiny(facts: Facts) -> bool:
    return min(facts["distinct"].values()) < TINY


def _duplicates(facts: Facts) -> Iterator[Finding]:
    duplicates, n = facts["duplicates"], facts["classes"]["human"] + facts["classes"]["ai"]
    mixed, splits = duplicates["across_labels"], duplicates["across_splits"]
    if mixed["texts"]:
        yield Finding(
            "label conflict",
            f"{mixed['texts']:,} texts stand under both labels "
            f"({'; '.join(mixed['examples'][:2])}).",
        )
    if duplicates["equal_but_blanks"]:
        yield Finding(
            "equal rows",
            f"{duplicates['equal_but_blanks']:,} of {n:,} rows repeat another "
            f"but for white space ({duplicates['equal']:,} wholly).",
        )
    if duplicates["near"] > MANY_REPEATS * max(duplicates["rows_compared"], 1):
        yield Finding(
            "near duplicates",
            f"{duplicates['near']:,} of {duplicates['rows_compared']:,} rows are"
            f" near duplicates of another (Jaccard {duplicates['threshold']:g}).",
        )
    if splits and splits["equal"] + splits["near"]:
        yield Finding(
            "code in two splits",
            f"{splits['equal']:,} train rows equal a held-out row, "
            f"and {splits['near']:,} nearly do "
            f"({'; '.join(splits['examples'][:2]) or 'equal'}).",
        )
    for what in ("tasks", "authors"):
        shared = facts[what]["shared_by_splits"]
        if shared and shared["groups"]:
            yield Finding(
                f"{what} in two splits",
                f"{shared['groups']:,} {what} stand in train "
                f"and in a held-out split ({shared['held_rows']:,} held-out "
                "rows).",
            )


def _groups(facts: Facts) -> Iterator[Finding]:
    tasks, n = facts["tasks"], facts["classes"]["human"] + facts["classes"]["ai"]
    if n and not facts["authors"]["groups"]:
        yield Finding(
            "no authors", "No row names its author: rows of one person cannot be kept in one split."
        )
    if n and not tasks["groups"]:
        yield Finding("no tasks", "No row names its task: splits cannot be drawn by task.")
    elif tasks["rows_without"]:
        yield Finding("rows without task", f"{tasks['rows_without']:,} rows name no task.")
    has_both = facts["classes"]["human"] and facts["classes"]["ai"]
    if has_both and tasks["rows"] and tasks["rows_of_both"] < SHARED_TASKS * tasks["rows"]:
        yield Finding(
            "tasks of one class",
            f"{tasks['groups'] - tasks['groups_of_both']:,} of "
            f"{tasks['groups']:,} tasks have one class only: a model may learn the task "
            "instead of the writer.",
        )
    spelt = facts["spellings"]
    if spelt["tasks"]:
        yield Finding(
            "task spellings",
            f"{spelt['tasks']:,} tasks are spelt in several ways "
            f"({'; '.join(' = '.join(names) for names in spelt['examples'][:2])}): they "
            "are one task only after normalisation.",
        )
    if spelt["names"]:
        yield Finding(
            "task names",
            f"{spelt['names']:,} tasks go by like names under several ids "
            f"({'; '.join(' = '.join(names) for names in spelt['name_examples'][:2])}), "
            f"{spelt['names_in_two_splits']:,} of them in train and in a held-out "
            "split.",
        )


def _origins(facts: Facts) -> Iterator[Finding]:
    for one in facts["confounding"]:
        column, single = one["column"], one["single"]
        if column == "language" and one["auc"] is not None and one["auc"] > TELLING:
            yield Finding(
                "language tells the label",
                f"The language alone tells the label: {_named(single)}.",
                True,
            )
        elif column != "split" and (one["auc"] or 0) >= STRONG:
            yield Finding(
                f"{column} tells the label",
                f"The {column} alone tells the label with an"
                f" area of {one['auc']:.3f}: a model may learn it instead.",
            )
        elif single and facts["classes"]["human"] and facts["classes"]["ai"]:
            yield Finding(
                f"{column}s of one class", f"A {column} has one class only: {_named(single)}."
            )
    yield from _of_one(facts)
    if facts["people"] and not any(one["first_date"] for one in facts["people"]):
        yield Finding(
            "no dates",
            "No human row has a date: whether the code is older than the models cannot be checked.",
        )
    valid = [one["human"] for one in facts["counts"]["split"] if one["value"] == "valid"]
    if valid and valid[0] < HUMANS_FOR_ONE_PERCENT:
        yield Finding(
            "few validation humans",
            f"The validation split has {valid[0]:,} human rows;"
            f" a promise of 1 % needs {HUMANS_FOR_ONE_PERCENT}.",
        )


def _named(single: list[dict[str, Any]]) -> str:
    values = [f"{one['value'] or 'none named'} ({one['rows']:,} {one['label']})" for one in single]
    return ", ".join(values[:4]) + (f" and {len(values) - 4} more" if values[4:] else "")


def _of_one(facts: Facts) -> Iterator[Finding]:
    """Classes from one source, sources with one generator, and what is not named."""
    sources, generators = facts["counts"]["source"], facts["generators"]
    for label in CLASSES:
        own = [one["value"] or "none named" for one in sources if one[label]]
        if len(own) == 1:
            yield Finding(
                "one source",
                f"All {label} rows are from one source ({own[0]}): nothing "
                "says how a detector does on others.",
            )
    of: dict[str, list[str]] = {}
    for one in generators:
        for source in one["sources"]:
            of.setdefault(source, []).append(one["generator"])
    lone = [
        f"{source or 'none named'} ({names[0] or 'unnamed'})"
        for source, names in of.items()
        if len(names) == 1
    ]
    if lone and facts["classes"]["ai"]:
        yield Finding(
            "one generator",
            f"Sources whose ai rows are of one generator: {', '.join(sorted(lone)[:6])}.",
        )
    if facts["claims"]["no_generator"]:
        yield Finding(
            "no generator",
            f"{facts['claims']['no_generator']:,} ai rows do not name their generator.",
        )
    unknown = [one for one in facts["counts"]["licence"] if _is_unstated(one["value"])]
    if unknown:
        n = sum(one["human"] + one["ai"] for one in unknown)
        parts = sorted({source for one in unknown for source in one["sources"]})
        yield Finding(
            "licences",
            f"{n:,} rows have no licence, or one for a part only "
            f"({', '.join(parts[:6]) or 'no source named'}).",
        )


def _is_unstated(licence: str) -> bool:
    words = licence.lower()
    return not words or any(
        text in words for text in ("none stated", "not stated", "unknown", "no licen", "unlicen")
    )


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _classes,
    _templates,
    wrong_labels,
    _tags,
    _features,
    _duplicates,
    _groups,
    _origins,
)
