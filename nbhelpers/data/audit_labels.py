"""Whether AI rows are people's code under a wrong label: what an audit says of it.

Every limit stands here, with why it is where it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

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
    return any(found["is_collapsed"] for found in facts["templates"].values())


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
    found = facts["twins"]
    if found and found["share"] >= DOUBTFUL_TWINS and found["of"] >= TINY:
        text = (
            f"{found['rows']:,} of {found['of']:,} ai rows have the statements of a human row with "
            f"other names, numbers, room or comments ({found['same_statements']:,}), or are a part "
            f"of one ({found['within']:,}): {'; '.join(found['examples'][:2])}."
        )
        yield _doubt("human code labelled ai", start, text, found["share"])


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
