"""What an audit measures: features, duplicates, tags, templates, twins, words, groups."""

from __future__ import annotations

import math
import random
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache, partial
from itertools import pairwise
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from nbhelpers.common.code_words import CODE_WORD, code_words
from nbhelpers.common.pool import map_chunks
from nbhelpers.common.processes import garbage_stays
from nbhelpers.data.audit_text import ANY_NUMBER, CHARACTERS_READ, CLASSES, statements, units
from nbhelpers.data.canonical import canonical
from nbhelpers.data.detection_rows import CodeRow
from nbhelpers.data.layout_features import CHARACTERS_READ as FEATURE_CHARACTERS_READ
from nbhelpers.data.layout_features import FEATURES, layout_features
from nbhelpers.data.near_duplicates import THRESHOLD, Match, ShingleIndex, shingles

# ------------------------------------------------------------------------------------------------
# How well each single feature of a program tells the label: raw, and in the canonical form.


MORE = (
    "package_line",
    "import_lines",
    "carriage_returns",
    "non_ascii_share",
    "unseen_characters",
    "code_fences",
)
SLICE_ROWS = 30  # of each class, below which the feature is not measured in a language

_PACKAGE = re.compile(r"^[ \t]*(?:package|namespace)[ \t]+[\w.]+", re.MULTILINE)
_IMPORT = re.compile(r"^[ \t]*(?:import|from|using|#[ \t]*include|require)\b", re.MULTILINE)
_UNSEEN = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060\ufeff]")


def more_features(code: str) -> dict[str, float]:
    """Return the numbers named in `MORE`: counts, but for `package_line` (0 or 1) and the share."""
    text = code[:FEATURE_CHARACTERS_READ]
    ascii_length = len(text.encode("ascii", "ignore"))
    values = (
        bool(_PACKAGE.search(text)),
        len(_IMPORT.findall(text)),
        text.count("\r"),
        1 - ascii_length / len(text) if text else 0.0,
        0 if ascii_length == len(text) and text.isprintable() else len(_UNSEEN.findall(text)),
        text.count("```"),
    )
    return dict(zip(MORE, map(float, values), strict=True))


def feature_table(rows: Sequence[CodeRow], *, form: str) -> list[dict[str, Any]]:
    """Return one record per feature, the most telling first, for labelled rows of both classes.

    `raw` and `canonical` are areas under the ROC curve, turned so that they are 0.5 or more;
    `higher_in` is the class with the higher raw values. `slice_raw` and `slice_canonical` are of
    the language (`slice`) in which the canonical area is largest; `slice_share` is the share of
    rows in languages where both pass `TELLING`. `human` and `ai` are mean raw values.
    """
    raw, clean = _matrices(rows, form)
    is_ai = np.array([row.label == "ai" for row in rows])
    languages = _languages(rows, is_ai)
    pooled = [aucs(is_ai, values) for values in (raw, clean)]
    parts = {
        name: (aucs(is_ai[at], raw[at]), aucs(is_ai[at], clean[at]))
        for name, at in languages.items()
    }
    means = [raw[is_ai == (label == "ai")].mean(axis=0) for label in CLASSES]
    records = []
    for at, name in enumerate((*FEATURES, *MORE)):
        in_raw, in_clean = (float(area[at]) for area in pooled)
        record = {
            "feature": name,
            "raw": round(max(in_raw, 1 - in_raw), 4),
            "canonical": round(max(in_clean, 1 - in_clean), 4),
            "higher_in": "" if in_raw == 0.5 else CLASSES[in_raw > 0.5],
            "human": round(float(means[0][at]), 4),
            "ai": round(float(means[1][at]), 4),
        }
        records.append(record | _slice(at, parts, languages, len(rows)))
    return sorted(records, key=lambda one: -max(one["canonical"], one["slice_canonical"] or 0))


def _matrices(rows: Sequence[CodeRow], form: str) -> tuple[np.ndarray, np.ndarray]:
    chunks = map_chunks(partial(_both_values, form=form), [row.code for row in rows], len)
    raw, clean = zip(*(pair for chunk in chunks for pair in chunk), strict=True)
    return np.array(raw), np.array(clean)


def _both_values(codes: Sequence[str], form: str) -> list[tuple[list[float], list[float]]]:
    pairs = []
    for code in codes:
        raw, other = _values(code), canonical(code, form)
        pairs.append((raw, raw if other == code else _values(other)))
    return pairs


def _values(code: str) -> list[float]:
    return [*layout_features(code).values(), *more_features(code).values()]


def _languages(rows: Sequence[CodeRow], is_ai: np.ndarray) -> dict[str, np.ndarray]:
    """CodeRow numbers of each language that has enough rows of both classes."""
    of: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        of.setdefault(row.language, []).append(at)
    numbers_of = {name: np.array(places) for name, places in of.items()}
    return {
        name: at
        for name, at in numbers_of.items()
        if SLICE_ROWS <= is_ai[at].sum() <= len(at) - SLICE_ROWS
    }


def _slice(at: int, parts: Any, languages: Any, n: int) -> dict[str, Any]:
    if not parts:
        return {"slice": "", "slice_raw": None, "slice_canonical": None, "slice_share": 0.0}
    areas = {
        name: tuple(float(max(part[at], 1 - part[at])) for part in both)
        for name, both in parts.items()
    }
    worst = max(areas, key=lambda name: areas[name][1])
    telling = sum(len(languages[name]) for name, both in areas.items() if min(both) > TELLING)
    return {
        "slice": worst,
        "slice_raw": round(areas[worst][0], 4),
        "slice_canonical": round(areas[worst][1], 4),
        "slice_share": round(telling / n, 4),
    }


def aucs(is_ai: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Area under the ROC curve of each column: the chance that an AI row lies above a human one.

    Args:
        is_ai: (rows,) bool, both classes present.
        values: (rows, columns); equal values count one half.

    Source: Mann and Whitney's U over the number of pairs.
    """
    from scipy.stats import rankdata

    n_ai, n_human = int(is_ai.sum()), int((~is_ai).sum())
    sums = rankdata(values, axis=0)[is_ai].sum(axis=0)
    return (sums - n_ai * (n_ai + 1) / 2) / (n_ai * n_human)


# ------------------------------------------------------------------------------------------------
# Rows that repeat others: equal, equal but for white space, and nearly equal.


EXAMPLES = 5
MAX_COMPARED = 60_000  # rows whose texts are compared for nearness; a row takes about 6 kB
HELD = ("valid", "val", "validation", "dev", "test", "held_out")


@garbage_stays()
def duplicate_facts(
    rows: Sequence[CodeRow], compared: Sequence[int], clean: Callable[[str], str]
) -> dict[str, Any]:
    """Count repeats within and across splits and labels, with places.

    Args:
        rows: Labelled rows.
        compared: Numbers of the rows whose texts are compared for nearness.
        clean: Takes out what was put into a program to name its label.
    """
    texts = [clean(row.code[:CHARACTERS_READ]) for row in rows]
    flat = [" ".join(text.split()) for text in texts]
    ordered = sorted(compared)
    index = ShingleIndex(texts[at] for at in ordered)
    places = {at: number for number, at in enumerate(ordered)}
    return {
        "threshold": THRESHOLD,
        "rows_compared": len(ordered),
        "equal": _repeats([row.code for row in rows]),
        "equal_but_blanks": _repeats(flat),
        "near": len(index.repeats(range(len(ordered)))),
        "across_labels": _across_labels(rows, flat),
        "across_splits": _across_splits(rows, flat, index, places),
        "ai_like_human": _ai_like_human(rows, ordered, index),
    }


def _repeats(texts: Sequence[str]) -> int:
    """Rows that equal an earlier one."""
    return len(texts) - len(set(texts))


def _across_labels(rows: Sequence[CodeRow], flat: Sequence[str]) -> dict[str, Any]:
    """Texts that stand under both labels."""
    groups: dict[str, list[int]] = defaultdict(list)
    for at, text in enumerate(flat):
        groups[text].append(at)
    mixed = [members for members in groups.values() if len({rows[at].label for at in members}) > 1]
    examples = [
        " and ".join(f"{rows[at].place} ({rows[at].label})" for at in members[:3])
        for members in mixed[:EXAMPLES]
    ]
    return {"texts": len(mixed), "rows": sum(map(len, mixed)), "examples": examples}


def _across_splits(
    rows: Sequence[CodeRow], flat: Sequence[str], index: ShingleIndex, places: dict[int, int]
) -> dict[str, Any] | None:
    """Train rows that equal, or nearly equal, a row that is held out; None without such splits."""
    held_out = {at for at, row in enumerate(rows) if row.split in HELD}
    train = [at for at, row in enumerate(rows) if row.split == "train"]
    if not held_out or not train:
        return None
    seen = {flat[at] for at in held_out}
    equal = {at for at in train if flat[at] in seen}
    at_of = {number: at for at, number in places.items()}
    near = index.matches(
        [places[at] for at in train if at in places and at not in equal],
        [places[at] for at in sorted(held_out) if at in places],
    )
    return {"equal": len(equal), "near": len(near), "examples": _examples(rows, near, at_of)}


def _ai_like_human(
    rows: Sequence[CodeRow], compared: Sequence[int], index: ShingleIndex
) -> dict[str, Any]:
    """AI rows that equal or nearly equal a human row, in shingles of tokens."""
    ai = [number for number, at in enumerate(compared) if rows[at].label == "ai"]
    human = [number for number, at in enumerate(compared) if rows[at].label == "human"]
    alike = index.matches(ai, human)
    return {
        "rows": len(alike),
        "equal": sum(match.similarity == 1 for match in alike),
        "of": len(ai),
        "share": round(len(alike) / len(ai), 4) if ai else 0.0,
        "examples": _examples(rows, alike, dict(enumerate(compared))),
    }


def _examples(rows: Sequence[CodeRow], matches: list[Match], at_of: dict[int, int]) -> list[str]:
    return [
        f"{rows[at_of[match.row]].place} and {rows[at_of[match.of]].place} ({match.similarity:.2f})"
        for match in matches[:EXAMPLES]
    ]


def known_human_facts(
    rows: Sequence[CodeRow],
    compared: Sequence[int],
    known: Sequence[str],
    clean: Callable[[str], str],
) -> dict[str, Any]:
    """AI rows that equal or nearly equal a program that is known to be a person's."""
    ai = [at for at in compared if rows[at].label == "ai"]
    texts = [clean(rows[at].code[:CHARACTERS_READ]) for at in ai]
    index = ShingleIndex([*texts, *(text[:CHARACTERS_READ] for text in known)])
    alike = index.matches(range(len(ai)), range(len(ai), len(index)))
    return {
        "known": len(known),
        "rows": len(alike),
        "share": round(len(alike) / len(ai), 4) if ai else 0.0,
        "examples": [rows[ai[match.row]].place for match in alike[:EXAMPLES]],
    }


# ------------------------------------------------------------------------------------------------
# Tags: words, lines or signs whose mere presence tells the label.


PLACES = (
    "first line",
    "comment",
    "last line",
    "line",
    "start",
    "end",
    "word",
    "character",
)
FIXED = {"first line", "last line", "start", "end"}
# Words that say who wrote something; with those of the rows' own generators.
LABEL_WORDS = {"ai", "human", "humans", "gpt", "chatgpt", "llm", "generated", "synthetic", "label"}
LABEL_WORDS |= {"machine", "copilot", "gemini", "claude", "llama", "codex", "detection"}

MIN_COUNT = 10  # rows that hold it
PURE = 0.98  # share of the class among its holders, both classes weighing alike
TOLD_SHARE = 0.1  # of the rows of a class; less is not told
# A leak at these shares: the more a text looks like a tag by its place or its words, the fewer.
# 85 % of one site's people have a word of its docstrings (`rtype`), and much else tells them.
LEAK_SHARE = {"label": 0.2, "fixed": 0.4, "comment": 0.6, "any": 0.9}
SAME_ROWS = 0.7  # Jaccard similarity of the rows of two texts that are one tag
FOLLOWS = 0.9
KEPT = 6
STEPS = 20  # texts whose shares differ by less than a twentieth are told by place and length
NUMBER_SHOWN = "<number>"
_PART = re.compile(rf"{NUMBER_SHOWN}|{CODE_WORD.pattern}")


class Tag(NamedTuple):
    """A text that tells the label: shares are of the rows of each class that hold it."""

    text: str
    place: str
    label: str
    share: float
    other_share: float
    is_leak: bool
    names_label: bool
    example: str

    @property
    def auc(self) -> float:
        """Area under the ROC curve of the mere presence."""
        return 0.5 + abs(self.share - self.other_share) / 2

    def sentence(self) -> str:
        """Say where the tag stands and in how many rows."""
        where = {"start": "at the start", "end": "at the end", "word": "(a word)"}
        place = where.get(self.place, f"({self.place})")
        other = CLASSES[1 - CLASSES.index(self.label)]
        return (
            f"{self.text!r} {place} stands in {self.share:.1%} of the {self.label} rows and in "
            f"{self.other_share:.1%} of the {other} rows"
        )


class _Text(NamedTuple):
    """A text at its place, and how many rows of a class hold it, and which share of either."""

    place: str
    text: str
    label: str
    rows: int
    share: float
    other_share: float

    @property
    def is_told(self) -> bool:
        """Whether enough rows hold it, and next to none of the other class."""
        is_pure = self.share >= PURE * (self.share + self.other_share)
        return self.rows >= MIN_COUNT and self.share >= TOLD_SHARE and is_pure

    @property
    def order(self) -> tuple[int, int, int, str]:
        """The strongest first; of equals the one that looks most like a tag."""
        lead = round(STEPS * (self.share - self.other_share))
        return -lead, PLACES.index(self.place), -len(self.text), self.text


def find_tags(
    human: Sequence[CodeRow],
    ai: Sequence[CodeRow],
    *,
    words: Iterable[str] = (),
    only_named: bool = False,
) -> list[Tag]:
    """Return the texts that tell the label, the strongest first, one for each set of rows.

    Args:
        human: Human rows.
        ai: AI rows, best in the same languages.
        words: Further words that name a label, such as generators.
        only_named: Tell only texts that name a label: the classes differ in other ways anyhow.
    """
    named = LABEL_WORDS | {word.lower() for word in words if len(word) > 1}
    rows = {"human": list(human), "ai": list(ai)}
    if min(map(len, rows.values())) < MIN_COUNT:
        return []
    sets = {label: [units(row.code) for row in own] for label, own in rows.items()}
    counts = {label: Counter(unit for one in own for unit in one) for label, own in sets.items()}
    texts = [
        _Text(*unit, label, n, n / len(rows[label]), counts[other][unit] / len(rows[other]))
        for label, other in (CLASSES, CLASSES[::-1])
        for unit, n in counts[label].items()
    ]
    told = [one for one in texts if one.is_told]
    if only_named:
        told = [one for one in told if _names_label(one.text, named)]
    told.sort(key=lambda one: one.order)
    return [_tag(one, rows[one.label][at], named) for one, at in _distinct(told, sets)]


def without_tags(code: str, tags: Sequence[Tag]) -> str:
    """Return a program without the texts of tags: their lines, comments or words, or themselves."""
    for tag in tags:
        pattern, is_case_told = _pattern(tag.text, tag.place)
        flags = re.MULTILINE if is_case_told else re.MULTILINE | re.IGNORECASE
        code = re.sub(pattern, "", code, flags=flags)
    return code


@lru_cache(maxsize=64)
def _pattern(text: str, place: str) -> tuple[str, bool]:
    """A regular expression for a tag in its place, and whether upper case is told from lower."""
    spaced = place in ("start", "end")
    parts = _PART.findall(text) if spaced else re.split(f"({NUMBER_SHOWN})", text)
    shown = (r"\d+" if part == NUMBER_SHOWN else re.escape(part) for part in parts)
    one = (r"\s*" if spaced else "").join(shown)
    around = {
        "comment": rf"(?:\#+|//+|--|/\*+)\s*{one}[^\n]*$",
        "start": rf"\A\s*{one}",
        "end": rf"{one}\s*\Z",
        "word": rf"\w*{one}\w*" if text[:1].isalnum() else one,
    }
    is_line = place in ("first line", "last line", "line")
    return rf"^[ \t]*{one}[^\n]*\n?" if is_line else around.get(place, one), place != "word"


def _distinct(texts: list[_Text], sets: Any) -> list[tuple[_Text, int]]:
    """Leave out what repeats, lengthens or follows from a kept text; with the first row of each."""
    distinct: list[tuple[_Text, set[int]]] = []
    first = 0.0  # share of the strongest tag that may stand at a fixed place
    for one in texts:
        # A tag at the start moves what stood there: `class` then starts human programs only.
        if one.place in FIXED and one.share < FOLLOWS * first:
            continue
        unit = (one.place, one.text)
        holders = {at for at, row_units in enumerate(sets[one.label]) if unit in row_units}
        if not any(_is_same(one, holders, *other) for other in distinct):
            distinct.append((one, holders))
            moves = one.place in FIXED or one.share >= LEAK_SHARE["any"]
            first = max(first, one.share if moves else 0.0)
        if len(distinct) == KEPT:
            break
    return [(one, min(holders)) for one, holders in distinct]


def _is_same(one: _Text, holders: set[int], other: _Text, other_holders: set[int]) -> bool:
    if one.label != other.label:
        return False
    short, long = (re.sub(r"[\W_]+", "", text) for text in (other.text, one.text))
    is_part = min(len(short), len(long)) > 1 and (short in long or long in short)
    return is_part or len(holders & other_holders) >= SAME_ROWS * len(holders | other_holders)


def _tag(one: _Text, holder: CodeRow, named: set[str]) -> Tag:
    names_label = _names_label(one.text, named)
    kind = "fixed" if one.place in FIXED else "comment" if one.place == "comment" else "any"
    is_leak = one.share - one.other_share >= LEAK_SHARE["label" if names_label else kind]
    shown, shares = _as_written(one.text, one.place, holder.code), (one.share, one.other_share)
    return Tag(shown, one.place, one.label, *shares, is_leak, names_label, holder.place)


def _names_label(text: str, named: set[str]) -> bool:
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower())
    return not named.isdisjoint(words)


def _as_written(text: str, place: str, code: str) -> str:
    """The text with its own white space, where tokens were joined by blanks."""
    if place not in ("start", "end") or ANY_NUMBER in text:
        return text.replace(ANY_NUMBER, NUMBER_SHOWN)
    spaced = r"\s*".join(re.escape(token) for token in text.split(" "))
    matches = list(re.finditer(spaced, code))
    return matches[0 if place == "start" else -1][0] if matches else text


# ------------------------------------------------------------------------------------------------
# Whether the rows of a class are few templates with other names, numbers and texts filled in.


MIN_ROWS = 50
ROWS_PER_TASK = 3  # several answers to one question may be alike; only that
MANY_TASKS = 30  # a class with fewer tasks gets no such allowance: the tasks are the templates
MIN_STATEMENTS = 4  # shorter programs are alike by nature
MIN_SHORT = 200  # rows of a class of short programs, so many of one shape are no chance
SHORT_SHAPES = 5
# Natural sets of 500 to 9,000 rows: half the rows need at least 38 % as many shapes, and the
# statements below cover 2 to 20 % of the rows, 43 % where programs have five statements.
TELLING = 0.99  # area under the ROC curve of one feature: no model is needed, none is measured
FEW_SHAPES = 0.05
STATEMENTS_PER_LENGTH = 20
COVERED = 0.6
SHAPES_COMPARED = 300
TEMPLATE_SHARE = 0.01
ONE_TEMPLATE = 0.6  # Jaccard similarity of masked texts that come from one template


def template_facts(rows: Sequence[CodeRow]) -> dict[str, Any]:
    """Measure how many shapes stand behind the rows of one class.

    A *shape* is a program's statements with names, numbers, texts, operators and comments masked.
    `is_collapsed` where few shapes make up half of the rows, or where few statements make up most
    rows wholly (templates with optional parts have many shapes, but few statements).

    Args:
        rows: Rows of one class, a sample of it if it is large.
    """
    spread = _spread(rows)
    masked_rows = [
        (row, masked) for row in spread if len(masked := statements(row.code, row.language))
    ]
    long = [(row, masked) for row, masked in masked_rows if len(masked) >= MIN_STATEMENTS]
    facts: dict[str, Any] = {"rows": len(spread), "rows_compared": len(long), "is_collapsed": False}
    few = FEW_SHAPES
    if len(long) < max(MIN_ROWS, len(spread) // 2):
        if len(masked_rows) < MIN_SHORT:
            return facts | {"skipped": "too few rows of enough statements"}
        long, few = masked_rows, SHORT_SHAPES / len(masked_rows)
    shapes = Counter("\n".join(masked) for _, masked in long)
    half = _rows_for_half(shapes, len(long))
    covered, used = _covered([masked for _, masked in long])
    is_collapsed = half <= few * len(long) or (long is not masked_rows and covered >= COVERED)
    facts |= {
        "rows_compared": len(long),
        "shapes": len(shapes),
        "shapes_of_half": half,
        "statements_of_most": used,
        "covered_share": round(covered, 4),
        "is_collapsed": is_collapsed,
    }
    return facts | (_templates(shapes, long) if is_collapsed else {})


def _spread(rows: Sequence[CodeRow]) -> list[CodeRow]:
    tasks = Counter(row.task for row in rows if row.task)
    if len(tasks) < MANY_TASKS:
        return list(rows)
    seen: Counter[str] = Counter()
    spread = []
    for row in rows:
        seen[row.task] += 1
        if not row.task or seen[row.task] <= ROWS_PER_TASK:
            spread.append(row)
    return spread


def _rows_for_half(shapes: Counter[str], n: int) -> int:
    total = 0
    for count, (_, rows) in enumerate(shapes.most_common(), start=1):
        total += rows
        if 2 * total >= n:
            return count
    return len(shapes)


def _covered(programs: list[list[str]]) -> tuple[float, int]:
    """Share of programs made only of the most frequent statements, and how many those are."""
    count = Counter(one for program in programs for one in dict.fromkeys(program))
    length = median(map(len, programs))
    limit = int(min(STATEMENTS_PER_LENGTH * length, len(programs) // 4))
    common = {one for one, _ in count.most_common(limit)}
    whole = sum(common.issuperset(program) for program in programs)
    return whole / len(programs), len(common)


def _templates(shapes: Counter[str], long: list[tuple[CodeRow, list[str]]]) -> dict[str, Any]:
    """About how many templates there are, and an example of the most frequent ones."""
    frequent = [shape for shape, _ in shapes.most_common(SHAPES_COMPARED)]
    index = ShingleIndex(frequent, threshold=ONE_TEMPLATE)
    of = {match.row: match.of for match in index.repeats(range(len(frequent)))}
    rows: Counter[int] = Counter()
    for at, shape in enumerate(frequent):
        rows[of.get(at, at)] += shapes[shape]
    shown = {"\n".join(masked): row for row, masked in reversed(long)}
    named = Counter({str(at): n for at, n in rows.items()})
    most, half = _rows_for_half(named, int(1.8 * len(long))), _rows_for_half(named, len(long))
    # Beside other code a template stands for more than a hundredth of the rows, that code does not.
    needed = min(most, max(half, sum(n >= TEMPLATE_SHARE * len(long) for n in rows.values())))
    examples = [
        {
            "rows": n,
            "share": round(n / len(long), 4),
            "place": shown[frequent[at]].place,
            "code": shown[frequent[at]].code[:400],
        }
        for at, n in rows.most_common(EXAMPLES)
    ]
    return {"templates": needed, "examples": examples}


# ------------------------------------------------------------------------------------------------
# AI rows that are a person's program of the same data, with other names, room or comments, or cut.
#
# Copies that differ so little that words alone show it are counted in the duplicates above.


TWIN_MIN_STATEMENTS = 6  # shorter programs have the same statements by nature
MIN_SHINGLES = 20
# Share of a program's shingles that stand in a person's of the same task. In natural sets up to 7 %
# of the AI rows have so many (rewrites of people's programs), elsewhere 2 % at most.
CONTAINED = 0.9
MAX_AI, MAX_HUMAN, MAX_OF_TASK = 2000, 10_000, 20
Shingles = set[tuple[str, ...]]


def twin_facts(
    human: Sequence[CodeRow], ai: Sequence[CodeRow], clean: Callable[[str], str]
) -> dict[str, Any]:
    """Count AI rows with the masked statements of a person's program, or within one of its task.

    Args:
        human: Rows of people.
        ai: AI rows, in random order: the first `MAX_AI` are looked at.
        clean: Takes out what was put into a program to name its label.
    """
    ai = ai[:MAX_AI]
    tasks = {row.task for row in ai if row.task}
    near = [row for row in human if row.task in tasks]
    far = [row for row in human if row.task not in tasks]
    compared = [*near, *far][:MAX_HUMAN]
    shapes = {shape: row for row in reversed(compared) if (shape := _shape(row, clean))}
    of_task: dict[str, list[CodeRow]] = defaultdict(list)
    for row in near:
        of_task[row.task].append(row)

    def shingles_of(row: CodeRow) -> Shingles:
        return shingles(clean(row.code[:CHARACTERS_READ]))

    @cache
    def people_of(task: str) -> list[tuple[Shingles, CodeRow]]:
        return [(shingles_of(row), row) for row in of_task[task][:MAX_OF_TASK]]

    same, within, n = [], [], 0
    for row in ai:
        shape, own = _shape(row, clean), shingles_of(row)
        n += bool(shape) or len(own) >= MIN_SHINGLES
        if shape and shape in shapes:
            same.append((row, shapes[shape]))
        elif (other := _around(own, people_of(row.task))) is not None:
            within.append((row, other))
    twins = [*same, *within]
    return {
        "of": n,
        "rows": len(twins),
        "same_statements": len(same),
        "within": len(within),
        "share": round(len(twins) / n, 4) if n else 0.0,
        "examples": [f"{one.place} and {other.place}" for one, other in twins[:EXAMPLES]],
    }


def _shape(row: CodeRow, clean: Callable[[str], str]) -> str:
    """The masked statements of a program, nothing for one that is too short."""
    masked = statements(clean(row.code[:CHARACTERS_READ]), row.language)
    return "\n".join(masked) if len(masked) >= TWIN_MIN_STATEMENTS else ""


def _around(own: Shingles, others: Sequence[tuple[Shingles, CodeRow]]) -> CodeRow | None:
    needed = max(MIN_SHINGLES, CONTAINED * len(own))
    return next((row for other, row in others if len(own & other) >= needed), None)


# ------------------------------------------------------------------------------------------------
# Whether the classes differ at all: words, or statements with masked names, tell or do not.


WORD_MIN_ROWS = 100  # of each class
MAX_ROWS = 2000


def told_apart(
    human: Sequence[CodeRow], ai: Sequence[CodeRow], clean: Callable[[str], str]
) -> dict[str, Any] | None:
    """Return areas under the ROC curve of naive Bayes: of words and their pairs, and of structure.

    `auc` is that of words, `structure_auc` that of masked statements and pairs of their words: it
    stays at chance where people's code was renamed, stripped of comments or set out anew. None
    where a class has too few rows. Two halves, by task where there are tasks: each is scored by
    the model of the other, so that no program is scored by one that has seen its task.
    """
    if min(len(human), len(ai)) < WORD_MIN_ROWS:
        return None
    rows = [*human[:MAX_ROWS], *ai[:MAX_ROWS]]
    texts = [clean(row.code[:CHARACTERS_READ]) for row in rows]
    masked = [statements(text, row.language) for text, row in zip(texts, rows, strict=True)]
    looks = {
        "auc": [_words(text) for text in texts],
        "structure_auc": [_structure(lines) for lines in masked],
    }
    halves: tuple[list[int], list[int]] = ([], [])
    for at, row in enumerate(rows):
        name = (row.task or " ".join(texts[at].split())).encode("utf-8", "replace")
        halves[zlib.crc32(name) % 2].append(at)
    facts: dict[str, Any] = {label: sum(row.label == label for row in rows) for label in CLASSES}
    for name, words in looks.items():
        both = (_area(rows, words, *part) for part in (halves, halves[::-1]))
        areas = [area for area in both if area is not None]
        if not areas:
            return None
        facts[name] = round(sum(areas) / len(areas), 4)
    return facts


MOST_SOURCES = 8  # that are compared, the largest ones
SOURCE_ROWS = 400  # of a class in a source, and in all others together


def source_facts(
    rows: Sequence[CodeRow], draw: random.Random, clean: Callable[[str], str]
) -> list[dict[str, Any]]:
    """Return how far each source is from the others, by naive Bayes of words and their pairs.

    `told` is the area under the ROC curve by which people's code of the source is told from that of
    the others in the same languages; `label_within` that of the label, learnt in one half of the
    source and asked in the other, `label_from_others` learnt from the other sources alone. All of
    them of `SOURCE_ROWS` rows at most of each class and side; [] for fewer than two sources that
    have `WORD_MIN_ROWS` rows of both classes.
    """
    of: dict[str, dict[str, list[CodeRow]]] = {}
    for row in draw.sample(rows, len(rows)):
        of.setdefault(row.source, {label: [] for label in CLASSES})[row.label].append(row)
    large = {s: own for s, own in of.items() if min(map(len, own.values())) >= WORD_MIN_ROWS}
    names = sorted(large, key=lambda s: (-sum(map(len, large[s].values())), s))[:MOST_SOURCES]
    facts = []
    for name in names if len(names) > 1 else ():
        own = {label: large[name][label][:SOURCE_ROWS] for label in CLASSES}
        spoken = {row.language for row in own["human"]}
        share = -(-SOURCE_ROWS // (len(names) - 1))
        others = {
            label: [
                row
                for other in names
                if other != name
                for row in [r for r in large[other][label] if r.language in spoken][:share]
            ]
            for label in CLASSES
        }
        if min(map(len, others.values())) < WORD_MIN_ROWS:
            continue
        told = told_apart(
            own["human"], [row._replace(label="ai") for row in others["human"]], clean
        )
        within = told_apart(own["human"], own["ai"], clean)
        both = [*own["human"], *own["ai"], *others["human"], *others["ai"]]
        words = [_words(clean(row.code[:CHARACTERS_READ])) for row in both]
        cut = len(own["human"]) + len(own["ai"])
        numbers = list(range(len(both)))
        facts.append(
            {
                "source": name,
                "human": len(own["human"]),
                "ai": len(own["ai"]),
                "told": told and told["auc"],
                "label_within": within and within["auc"],
                "label_from_others": round(
                    _area(both, words, numbers[cut:], numbers[:cut]) or 0, 4
                ),
            }
        )
    return facts


def _words(code: str) -> set[str]:
    tokens = code_words(code)
    return {*tokens, *map(" ".join, pairwise(tokens))}


def _structure(masked: list[str]) -> set[str]:
    return {part for line in masked for part in (line, *map(" ".join, pairwise(line.split())))}


def _area(
    rows: Sequence[CodeRow], words: Sequence[set[str]], fitted: list[int], scored: list[int]
) -> float | None:
    of = {label: [at for at in fitted if rows[at].label == label] for label in CLASSES}
    is_ai = np.array([rows[at].label == "ai" for at in scored])
    if not all(of.values()) or not 0 < is_ai.sum() < len(is_ai):
        return None
    seen = {label: Counter(word for at in own for word in words[at]) for label, own in of.items()}
    size = {label: math.log(len(own) + 1) for label, own in of.items()}
    weight = {
        word: (math.log(seen["ai"][word] + 0.5) - size["ai"])
        - (math.log(seen["human"][word] + 0.5) - size["human"])
        for word in seen["ai"].keys() | seen["human"].keys()
        if seen["ai"][word] + seen["human"][word] > 1
    }
    scores = [sum(weight.get(word, 0.0) for word in words[at]) for at in scored]
    return float(aucs(is_ai, np.array(scores)[:, None])[0])


# ------------------------------------------------------------------------------------------------
# What the columns beside the programs say: counts, people, generators, tasks, and confounding.


COLUMNS = ("language", "source", "generator", "split", "licence")
FEW_ROWS = 20  # below which a value that holds one class says nothing
LETTERS_OF_A_NAME = 4  # numbers are given by every source anew
_DATE = re.compile(r"(?<!\d)((?:19|20)\d\d)(?:-?([01]\d))?")
# Before the first large language model could be asked for code by the public.
# Source: the OpenAI API (GPT-3) opened in a private beta on 11 June 2020.
FIRST_MODEL = (2020, 6)


def count_tables(rows: Sequence[CodeRow]) -> dict[str, list[dict[str, Any]]]:
    """Return rows of each class per value of each column, most rows first."""
    return {column: counts(rows, attrgetter(column)) for column in COLUMNS}


def counts(rows: Iterable[CodeRow], key: Callable[[CodeRow], str]) -> list[dict[str, Any]]:
    """Return records of value, human and ai for one column."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        table[key(row)][row.label or ""] += 1
    order = sorted(table.items(), key=lambda item: (-item[1].total(), item[0]))
    return [{"value": value, **{label: n[label] for label in CLASSES}} for value, n in order]


def people(rows: Sequence[CodeRow]) -> list[dict[str, Any]]:
    """Return the human populations: one per source, with authors, languages and dates."""
    return [
        {
            "source": source,
            "rows": len(own),
            "authors": len({row.author for row in own if row.author}),
            "languages": sorted({row.language for row in own}),
            **_dates(own),
        }
        for source, own in _by(rows, "human", "source")
    ]


def generators(rows: Sequence[CodeRow]) -> list[dict[str, Any]]:
    """Return what made the AI rows, with the sources and dates of each."""
    return [
        {
            "generator": name,
            "rows": len(own),
            "sources": sorted({row.source for row in own}),
            **_dates(own),
        }
        for name, own in _by(rows, "ai", "generator")
    ]


def _by(rows: Sequence[CodeRow], label: str, field: str) -> list[tuple[str, list[CodeRow]]]:
    """Rows of a class by one of their fields, the most frequent value first."""
    rows_of: dict[str, list[CodeRow]] = defaultdict(list)
    for row in rows:
        if row.label == label:
            rows_of[getattr(row, field)].append(row)
    return sorted(rows_of.items(), key=lambda item: -len(item[1]))


def _dates(rows: Sequence[CodeRow]) -> dict[str, Any]:
    dates = sorted(row.date for row in rows if month_of(row.date))
    return {"first_date": dates[0] if dates else "", "last_date": dates[-1] if dates else ""}


def month_of(date: str) -> tuple[int, int] | None:
    """Return year and month of a date; a year alone counts as its end.

    >>> month_of("2019-04-02"), month_of("2021"), month_of("")
    ((2019, 4), (2021, 12), None)
    """
    match = _DATE.search(date)
    return (int(match[1]), int(match[2] or 12)) if match else None


def ai_claims(rows: Sequence[CodeRow]) -> dict[str, Any]:
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


def group_facts(rows: Sequence[CodeRow], field: str) -> dict[str, Any]:
    """Return how rows are spread over tasks or authors, and which of these splits share.

    Args:
        rows: Labelled rows.
        field: "task" or "author".
    """
    members: dict[str, list[CodeRow]] = defaultdict(list)
    for row in rows:
        if value := getattr(row, field):
            members[value].append(row)
    both = [own for own in members.values() if len({row.label for row in own}) > 1]
    sizes = sorted(map(len, members.values()))
    return {
        "groups": len(members),
        "rows": sum(sizes),
        "rows_without": len(rows) - sum(sizes),
        "median_rows": sizes[len(sizes) // 2] if sizes else 0,
        "largest": sizes[-1] if sizes else 0,
        "groups_of_both": len(both),
        "rows_of_both": sum(map(len, both)),
        "sources_of_groups": sum(len({row.source for row in own}) > 1 for own in members.values()),
        "shared_by_splits": _shared(members),
    }


def _shared(members: dict[str, list[CodeRow]]) -> dict[str, Any] | None:
    """Groups whose rows stand in train and in a held-out split; None without such splits."""
    splits = {row.split for own in members.values() for row in own}
    if "train" not in splits or splits.isdisjoint(HELD):
        return None
    mixed = [
        own
        for own in members.values()
        if "train" in (names := {row.split for row in own}) and not names.isdisjoint(HELD)
    ]
    n_held = sum(row.split in HELD for own in mixed for row in own)
    examples = [sorted({row.task_as_written for row in own})[:3] for own in mixed[:EXAMPLES]]
    return {"groups": len(mixed), "held_rows": n_held, "examples": examples}


def spellings(rows: Sequence[CodeRow]) -> dict[str, Any]:
    """Return tasks that are written in several ways, and names that sources share.

    `tasks` are written in several ways, `names` are tasks with ids of several sources that have the
    same words behind the source's own prefix; `names_in_two_splits` are those of them that stand in
    train and in a held-out split.
    """
    written: dict[str, set[str]] = defaultdict(set)
    named: dict[str, dict[str, CodeRow]] = defaultdict(dict)
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
            [row.task_as_written for row in same_name[:3]]
            for same_name in list(shared.values())[:EXAMPLES]
        ],
    }


def _own_name(task: str) -> str:
    """Letters and digits of a task's name behind a prefix such as `rosetta:`."""
    name = task.partition(":")[2] or task
    return "".join(sign for sign in name.casefold() if sign.isalnum())


def confounding(rows: Sequence[CodeRow]) -> list[dict[str, Any]]:
    """Return, for each column that a program's origin shows in, how well it tells the label.

    `auc` is of the share of AI rows of each value; `single` names values with one class only.
    """
    records = []
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
        records.append({"column": column, "auc": _auc_of(table), "single": single})
    return records


def _auc_of(table: list[dict[str, Any]]) -> float | None:
    """Area under the ROC curve when a row's score is the share of AI rows of its value."""
    n = np.array([[one[label] for label in CLASSES] for one in table]).reshape(-1, 2)
    if not n.sum(axis=0).all():
        return None
    scores = np.repeat(n[:, 1] / np.maximum(n.sum(axis=1), 1), n.sum(axis=1))
    is_ai = np.concatenate([np.repeat([False, True], both) for both in n])
    return round(float(aucs(is_ai, scores[:, None])[0]), 4)


def lengths(rows: Sequence[CodeRow]) -> list[dict[str, Any]]:
    """Return tenths of the number of lines and characters of each class."""
    records = []
    for label in CLASSES:
        own = [row.code for row in rows if row.label == label]
        if not own:
            continue
        for what, values in (
            ("lines", sorted(len(code.splitlines()) for code in own)),
            ("characters", sorted(map(len, own))),
        ):
            tenths = [values[min(len(values) * k // 10, len(values) - 1)] for k in range(11)]
            records.append({"label": label, "of": what, "tenths": tenths})
    return records
