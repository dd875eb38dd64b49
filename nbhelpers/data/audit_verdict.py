"""From the facts of an audit to a verdict: what makes the data hopeless, what is to be known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from nbhelpers.data.audit_rules import FEW_SHAPES, TELLING
from nbhelpers.data.audit_text import CLASSES

Facts = Mapping[str, Any]

# Every limit, with why it is where it is.
TINY = 30  # distinct rows of a class: fewer say nothing about any share
REPEATED = 0.5  # share of a class that repeats other rows but for white space
UNEVEN = 10  # rows of one class for each of the other
COPIED = 0.2  # share of the AI rows that are human code; a wrong label in five spoils any score
DOUBTFUL_TWINS = 0.05
# Area of the words; seven generators against the people of their sources have 0.73 and more at 400
# rows of each class, 0.66 and more at 200; people's code with both labels has 0.53 at most.
NOTHING_TOLD = 0.6
NO_MORE_THAN_CHANCE = 0.55
SURE_ROWS = 250
# Area of the masked statements: the same generators have 0.67 and more at 400 rows.
SURE_ROWS_OF_STRUCTURE = 400
APART = 0.8  # two draws of one source have 0.5
STRONG = 0.9  # told, because a model may learn nothing but it
TAGGED = 0.2  # share of a class with a text that tells it, of which more than chance is left
MANY_REPEATS = 0.02
SHARED_TASKS = 0.5
# Share of the rows that other tasks than the largest need: half of a tenth each for valid and test,
# as `detection_splits` draws them at least.
OF_OTHER_TASKS = 0.1
# Humans without one false positive that promise at most 1 % with 95 % confidence: 0.99^299 < 0.05.
HUMANS_FOR_ONE_PERCENT = 299

HOPELESS, WARNED, USABLE = "hopeless", "usable with warnings", "usable"


class Finding(NamedTuple):
    """One thing that was found: its kind in one word or two, and a sentence for a person."""

    kind: str
    text: str
    is_reason: bool = False


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
        rows = f"{facts['n_rows']:,} row{'s' * (facts['n_rows'] > 1)} that can be used"
        text = f"No label in the {rows}: {facts['read'].get('no_label', 'none is given')}."
        yield Finding("no labels", f"{text} {facts['left_out']}".rstrip(), True)
        return
    for label, other in (CLASSES, CLASSES[::-1]):
        repeats = n[label] - distinct[label]
        if not n[label]:
            text = f"The class {label} is empty: all {n[other]:,} labelled rows are {other}."
            yield Finding("empty class", text, True)
        elif distinct[label] < TINY:
            text = f"The class {label} is tiny: {n[label]:,} rows, {distinct[label]:,} of them "
            yield Finding("tiny class", f"{text}distinct; {TINY} are the least.", True)
        elif repeats / n[label] >= REPEATED:
            text = f"{repeats:,} of the {n[label]:,} {label} rows repeat another"
            yield Finding("repeated rows", f"{text} but for white space.", True)
    low, high = sorted((n["human"], n["ai"]))
    if low and high >= UNEVEN * low:
        text = f"There are {high / low:.0f} rows of one class for each of the other"
        yield Finding("uneven classes", f"{text} ({n['human']:,} human, {n['ai']:,} ai).")
    if lone := n["unlabelled"]:
        text = f"{lone:,} {'row has' if lone == 1 else 'rows have'} no label."
        yield Finding("unlabelled rows", text)
    if facts["left_out"]:
        yield Finding("rows left out", facts["left_out"])


def _templates(facts: Facts) -> Iterator[Finding]:
    for label, of_class in facts["templates"].items():
        if not of_class["is_collapsed"]:
            continue
        n, rows, first = of_class["templates"], facts["classes"][label], of_class["examples"][0]
        # Optional parts give a template many shapes, and then the number of templates is not told.
        is_counted = of_class["shapes_of_half"] <= FEW_SHAPES * of_class["rows_compared"]
        behind = f"About {n:,} templates stand" if n > 1 else "1 template stands"
        lines = (line.strip()[:60] for line in first["code"].splitlines() if line.strip())
        text = (
            f"{behind if is_counted else 'Few templates stand'} behind most of the {rows:,} {label}"
            " rows, with other names, numbers and texts filled in: "
            f"{of_class['shapes_of_half']:,} shapes make up half of the rows, "
            f"and {of_class['covered_share']:.0%} consist of the same "
            f"{of_class['statements_of_most']:,} statements. "
            f"First: {next(lines, '')!r} ({first['place']})."
        )
        yield Finding("templates", text, True)


def _is_collapsed(facts: Facts) -> bool:
    """Whether few templates stand behind the rows of a class."""
    return any(of_class["is_collapsed"] for of_class in facts["templates"].values())


def _wrong_labels(facts: Facts) -> Iterator[Finding]:
    """What speaks for people's code among the AI rows."""
    copies, claims = facts["duplicates"]["ai_like_human"], facts["claims"]
    known, twins, words = facts["known_humans"], facts["twins"], facts["told_apart"]
    if copies["rows"]:
        text = f"{copies['rows']:,} of {copies['of']:,} ai rows equal or nearly equal a human row"
        yield _doubt(f"{text} ({'; '.join(copies['examples'][:2])}).", copies["share"])
    if known and known["rows"]:
        text = f"{known['rows']:,} ai rows equal or nearly equal known human code"
        yield _doubt(f"{text} ({'; '.join(known['examples'][:3])}).", known["share"])
    if n := claims["generator_human"]:
        yield _doubt(f"{n:,} ai rows name a human as their generator.", n / claims["rows"])
    if n := claims["too_early"]:
        text = f"{n:,} ai rows have a date before there was a model to write them."
        yield _doubt(text, n / claims["dated"])
    if twins and twins["share"] >= DOUBTFUL_TWINS and twins["of"] >= TINY:
        text = (
            f"{twins['rows']:,} of {twins['of']:,} ai rows have the statements of a human row with "
            f"other names, numbers, room or comments ({twins['same_statements']:,}), or are a part "
            f"of one ({twins['within']:,}): {'; '.join(twins['examples'][:2])}."
        )
        yield _doubt(text, twins["share"])
    if words and not _is_collapsed(facts):
        yield from _alike(facts, words)


def _doubt(text: str, share: float) -> Finding:
    """A share of the AI rows that seem to be people's: a reason where it is large."""
    is_reason = share >= COPIED
    start = "Human code seems to be labelled ai: "
    text = f"{start}{text}" if is_reason else text[0].upper() + text[1:]
    return Finding("human code labelled ai", text, is_reason)


def _alike(facts: Facts, words: Mapping[str, Any]) -> Iterator[Finding]:
    """The classes are the same code, or the same with other names."""
    n, auc, structure = min(words["human"], words["ai"]), words["auc"], words["structure_auc"]
    is_sure = any(tag["is_leak"] for tag in facts["tags"]) or _is_chance(words)
    if auc < NOTHING_TOLD:
        text = (
            f"the words of the two classes{' without the tag' if facts['tags'] else ''} cannot be "
            f"told apart (area {auc:.2f}; chance is 0.5), as when people's code was given both "
            "labels."
        )
    elif structure < NOTHING_TOLD and n >= SURE_ROWS_OF_STRUCTURE:
        is_sure = True
        text = (
            "with names, numbers, texts and comments left out the two classes cannot be told apart "
            f"(area {structure:.2f}; chance is 0.5), as when people's code was given "
            "both labels and the names or comments of one class were changed."
        )
    else:
        return
    yield _doubt(text, 1.0) if is_sure else Finding("classes alike", text[0].upper() + text[1:])


def _is_chance(words: Mapping[str, Any] | None) -> bool:
    """Whether it is sure that words tell nothing, once the texts that tell the label are out."""
    is_chance = words is not None and words["auc"] < NO_MORE_THAN_CHANCE
    return is_chance and min(words["human"], words["ai"]) >= SURE_ROWS


def _is_tiny(facts: Facts) -> bool:
    """Whether anything at all would tell the few rows of a class."""
    return min(facts["distinct"].values()) < TINY


def _tags(facts: Facts) -> Iterator[Finding]:
    if _is_tiny(facts):
        return
    has_templates = _is_collapsed(facts)
    # Every word of a template tells its class; only one that names the label is more than that.
    # Where a text tells part of the rows and nothing else tells any, it is a tag too.
    is_all = _is_chance(facts["told_apart"])
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
    for tag in facts["tags"] if not has_templates and not leaks else ():
        yield Finding("telling text", f"A text tells part of the labels: {tag['sentence']}.")


def _features(facts: Facts) -> Iterator[Finding]:
    form = facts["canonical"]
    for one in () if _is_tiny(facts) else facts["features"]:
        name, raw, clean = one["feature"].replace("_", " "), one["raw"], one["canonical"]
        raw_slice, clean_slice = one["slice_raw"] or 0, one["slice_canonical"] or 0
        if min(raw, clean) > TELLING:
            text = (
                f"One feature tells the label: {name} has an area under the ROC curve of {raw:.3f} "
                f"raw and {clean:.3f} in the form {form} "
                f"(mean {one['human']:.3g} human, {one['ai']:.3g} ai)."
            )
            yield Finding("single feature", text, True)
        elif one["slice_share"] >= 0.5:
            text = (
                f"One feature tells the label in {one['slice']}: {name} has an area of "
                f"{raw_slice:.3f} raw and {clean_slice:.3f} in the form {form}."
            )
            yield Finding("single feature", text, True)
        elif (worst := max(clean, clean_slice)) >= STRONG:
            where = f" in {one['slice']}" if worst > clean else ""
            text = f"The feature {name} has an area of {worst:.3f}{where} in the form {form}."
            yield Finding("strong feature", text)
        elif (worst := max(raw, raw_slice)) >= STRONG:
            text = (
                f"The feature {name} has an area of {worst:.3f} raw; in the form {form} it has "
                f"{clean:.3f}. Never train on the raw text."
            )
            yield Finding("raw feature", text)


def _duplicates(facts: Facts) -> Iterator[Finding]:
    duplicates, n = facts["duplicates"], facts["classes"]["human"] + facts["classes"]["ai"]
    mixed, splits = duplicates["across_labels"], duplicates["across_splits"]
    if mixed["texts"]:
        examples = "; ".join(mixed["examples"][:2])
        text = f"{mixed['texts']:,} texts stand under both labels ({examples})."
        yield Finding("label conflict", text)
    if equal := duplicates["equal_but_blanks"]:
        text = f"{equal:,} of {n:,} rows repeat another but for white space"
        yield Finding("equal rows", f"{text} ({duplicates['equal']:,} wholly).")
    if (near := duplicates["near"]) > MANY_REPEATS * max(duplicates["rows_compared"], 1):
        text = f"{near:,} of {duplicates['rows_compared']:,} rows are near duplicates of another"
        yield Finding("near duplicates", f"{text} (Jaccard {duplicates['threshold']:g}).")
    if splits and splits["equal"] + splits["near"]:
        text = f"{splits['equal']:,} train rows equal a held-out row, and {splits['near']:,} nearly"
        examples = "; ".join(splits["examples"][:2]) or "equal"
        yield Finding("code in two splits", f"{text} do ({examples}).")
    for what in ("tasks", "authors"):
        shared = facts[what]["shared_by_splits"]
        if shared and shared["groups"]:
            text = f"{shared['groups']:,} {what} stand in train and in a held-out split"
            yield Finding(
                f"{what} in two splits", f"{text} ({shared['held_rows']:,} held-out rows)."
            )


def _groups(facts: Facts) -> Iterator[Finding]:
    tasks, n = facts["tasks"], facts["classes"]["human"] + facts["classes"]["ai"]
    if n and not facts["authors"]["groups"]:
        text = "No row names its author: rows of one person cannot be kept in one split."
        yield Finding("no authors", text)
    if n and not tasks["groups"]:
        yield Finding("no tasks", "No row names its task: splits cannot be drawn by task.")
    elif tasks["rows_without"]:
        yield Finding("rows without task", f"{tasks['rows_without']:,} rows name no task.")
    has_both = facts["classes"]["human"] and facts["classes"]["ai"]
    is_drawn = not tasks["shared_by_splits"] and not facts["duplicates"]["across_splits"]
    if tasks["groups"] and is_drawn and n - tasks["largest"] < OF_OTHER_TASKS * n - 2:
        text = f"{tasks['largest']:,} of {n:,} rows have one task: no split of them is possible in "
        yield Finding("one task", f"{text}which train and test share no task.", True)
    if has_both and tasks["rows"] and tasks["rows_of_both"] < SHARED_TASKS * tasks["rows"]:
        lone = tasks["groups"] - tasks["groups_of_both"]
        text = f"{lone:,} of {tasks['groups']:,} tasks have one class only: a model may learn the "
        yield Finding("tasks of one class", f"{text}task instead of the writer.")
    spelt = facts["spellings"]
    if spelt["tasks"]:
        text = (
            f"{spelt['tasks']:,} tasks are spelt in several ways ({_equals(spelt['examples'])}): "
            "they are one task only after normalisation."
        )
        yield Finding("task spellings", text)
    if spelt["names"]:
        text = (
            f"{spelt['names']:,} tasks go by like names under several ids "
            f"({_equals(spelt['name_examples'])}), {spelt['names_in_two_splits']:,} of them in "
            "train and in a held-out split."
        )
        yield Finding("task names", text)


def _equals(examples: list[list[str]]) -> str:
    return "; ".join(" = ".join(names) for names in examples[:2])


def _origins(facts: Facts) -> Iterator[Finding]:
    has_both = facts["classes"]["human"] and facts["classes"]["ai"]
    for one in facts["confounding"]:
        column, auc, single = one["column"], one["auc"] or 0, one["single"]
        if column == "language" and auc > TELLING:
            text = f"The language alone tells the label: {_named(single)}."
            yield Finding("language tells the label", text, True)
        elif column != "split" and auc >= STRONG:
            text = f"The {column} alone tells the label with an area of {auc:.3f}: a model may "
            yield Finding(f"{column} tells the label", f"{text}learn it instead.")
        elif single and has_both:
            text = f"A {column} has one class only: {_named(single)}."
            yield Finding(f"{column}s of one class", text)
    yield from _of_one(facts)
    yield from _apart(facts)
    if facts["people"] and not any(one["first_date"] for one in facts["people"]):
        text = "No human row has a date: whether the code is older than the models cannot be "
        yield Finding("no dates", f"{text}checked.")
    valid = [one["human"] for one in facts["counts"]["split"] if one["value"] == "valid"]
    if valid and valid[0] < HUMANS_FOR_ONE_PERCENT:
        text = f"The validation split has {valid[0]:,} human rows; a promise of 1 % needs "
        yield Finding("few validation humans", f"{text}{HUMANS_FOR_ONE_PERCENT}.")


def _apart(facts: Facts) -> Iterator[Finding]:
    """Sources that are told apart by their words, and what that does to the label."""
    sources = [one for one in facts.get("sources", ()) if one["told"] and one["told"] >= APART]
    if not sources:
        return
    named = "; ".join(
        f"{one['source']} {one['told']:.2f} (label {one['label_within'] or 0:.2f} within it, "
        f"{one['label_from_others'] or 0:.2f} learnt from the others)"
        for one in sources
    )
    yield Finding(
        "sources differ",
        "People's code of a source is told from that of the others by its words alone, area under "
        f"the ROC curve: {named}. A score on data like these says little of other sources.",
    )


def _named(single: list[dict[str, Any]]) -> str:
    values = [f"{one['value'] or 'none named'} ({one['rows']:,} {one['label']})" for one in single]
    return ", ".join(values[:4]) + (f" and {len(values) - 4} more" if values[4:] else "")


def _of_one(facts: Facts) -> Iterator[Finding]:
    """Classes from one source, sources with one generator, and what is not named."""
    for label in CLASSES:
        sources = [one["value"] or "none named" for one in facts["counts"]["source"] if one[label]]
        if len(sources) == 1:
            text = f"All {label} rows are from one source ({sources[0]}): nothing says how a "
            yield Finding("one source", f"{text}detector does on others.")
    of: dict[str, list[str]] = {}
    for one in facts["generators"]:
        for source in one["sources"]:
            of.setdefault(source, []).append(one["generator"])
    lone = sorted(
        f"{source or 'none named'} ({names[0] or 'unnamed'})"
        for source, names in of.items()
        if len(names) == 1
    )
    if lone and facts["classes"]["ai"]:
        text = f"Sources whose ai rows are of one generator: {', '.join(lone[:6])}."
        yield Finding("one generator", text)
    if n := facts["claims"]["no_generator"]:
        yield Finding("no generator", f"{n:,} ai rows do not name their generator.")
    unknown = [one for one in facts["counts"]["licence"] if _is_unstated(one["value"])]
    if unknown:
        n = sum(one["human"] + one["ai"] for one in unknown)
        parts = sorted({source for one in unknown for source in one["sources"]})
        text = f"{n:,} rows have no licence, or one for a part only"
        yield Finding("licences", f"{text} ({', '.join(parts[:6]) or 'no source named'}).")


def _is_unstated(licence: str) -> bool:
    words = ("none stated", "not stated", "unknown", "no licen", "unlicen")
    return not licence or any(word in licence.lower() for word in words)


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _classes,
    _templates,
    _wrong_labels,
    _tags,
    _features,
    _duplicates,
    _groups,
    _origins,
)
