"""The sample of Python instructions and coding tasks, written for this package."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any

# ------------------------------------------------------------------------------------------------
# The twenty kinds of task of the instruction sample, written by hand.
#
# In `says` and `code`, braces hold what a row fills in: `{xs}`, `{n}` or `{text}` is the parameter,
# `{k}`, `{a}` and `{b}` are numbers, `{w}` and `{v}` words, and every other name is one of
# `choices`, which has words for the instruction and source for the code.


COMPARE = (
    ("greater than {k}", "> {k}"),
    ("less than {k}", "< {k}"),
    ("at least {k}", ">= {k}"),
    ("at most {k}", "<= {k}"),
    ("equal to {k}", "== {k}"),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """One kind of task.

    `verbs`: first words of the function's name; `says`: what the function does, in several
    phrasings; `given`: a phrasing and the input that goes with it; `calls`: arguments of the tests.
    """

    name: str
    verbs: tuple[str, ...]
    says: tuple[str, ...]
    code: str
    calls: tuple[str, ...]
    given: tuple[str, str] | None = None
    choices: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)


KINDS = (
    Kind(
        name="scale",
        verbs=("scale", "grow", "stretch"),
        says=("multiplies each item of {xs} by {k}", "returns {k} times every item of {xs}"),
        code="    return [item * {k} for item in {xs}]",
        calls=("[1, 2, 3]", "[]", "[-{k}, 0]"),
    ),
    Kind(
        name="shift",
        verbs=("shift", "raise", "move"),
        says=("adds {k} to each item of {xs}", "returns every item of {xs} plus {k}"),
        code="    return [item + {k} for item in {xs}]",
        calls=("[1, 2, 3]", "[]", "[-{k}, 0]"),
    ),
    Kind(
        name="keep",
        verbs=("keep", "select", "filter"),
        says=("keeps the items of {xs} that are {test}", "drops all of {xs} but items {test}"),
        code="    return [item for item in {xs} if item {test}]",
        calls=("[1, {k}, 40, {k} - 1, {k} + 1]", "[]"),
        choices={"test": COMPARE},
    ),
    Kind(
        name="count",
        verbs=("count", "tally", "number"),
        says=("counts the items of {xs} that are {test}", "returns how many of {xs} are {test}"),
        code="    return sum(1 for item in {xs} if item {test})",
        calls=("[1, {k}, 40, 50, 60, {k} - 1, {k} + 1]", "[]"),
        choices={"test": COMPARE},
    ),
    Kind(
        name="check",
        verbs=("check", "test", "probe"),
        says=("tells whether {some} of {xs} is {test}", "returns True if {some} of {xs} is {test}"),
        code="    return {some}(item {test} for item in {xs})",
        calls=("[{k}]", "[{k} + 1]", "[{k} - 1]", "[{k}, 40]", "[]"),
        choices={"some": (("any item", "any"), ("every item", "all")), "test": COMPARE},
    ),
    Kind(
        name="take",
        verbs=("take", "cut", "slice"),
        says=("returns the {end} {k} items of {xs}", "takes {k} items from the {end} part of {xs}"),
        code="    return {xs}[{end}]",
        calls=("list(range(30))", "[1, 2]"),
        choices={"end": (("first", ":{k}"), ("last", "-{k}:"))},
    ),
    Kind(
        name="peak",
        verbs=("find", "pick", "get"),
        says=(
            "returns the {most} item of {xs}, or {k} if it is empty",
            "finds the {most} of {xs} and gives {k} for an empty list",
        ),
        code="    if not {xs}:\n        return {k}\n    return {most}({xs})",
        calls=("[3, 9, 5]", "[]", "[-1]"),
        choices={"most": (("largest", "max"), ("smallest", "min"))},
    ),
    Kind(
        name="total",
        verbs=("total", "sum", "fold"),
        says=("starts at {k} and {step} of {xs} in a loop", "loops from {k} and {step} of {xs}"),
        code="    total = {k}\n    for item in {xs}:\n        total {step} item\n    return total",
        calls=("[1, 2, 3]", "[]", "[5, -1]"),
        choices={
            "step": (
                ("adds each item", "+="),
                ("subtracts each item", "-="),
                ("multiplies by each item", "*="),
            )
        },
    ),
    Kind(
        name="rank",
        verbs=("rank", "sort", "order"),
        says=("returns the {k} {most} items of {xs}, sorted", "sorts {xs}, the {k} {most} only"),
        code="    return sorted({xs}{most})[:{k}]",
        calls=("[3, 9, 5, 1, 7, 8, 2]", "list(range(25))"),
        choices={"most": (("largest", ", reverse=True"), ("smallest", ""))},
    ),
    Kind(
        name="skip",
        verbs=("skip", "thin", "sample"),
        says=("returns one item of {xs} in {k}", "walks through {xs} in steps of {k}"),
        code="    return {xs}[::{k}]",
        calls=("list(range(50))", "[1, 2, 3]"),
    ),
    Kind(
        name="multiple",
        verbs=("divide", "match", "fit"),
        says=("tells whether {n} is a multiple of {k}", "returns True if {k} divides {n}"),
        code="    return {n} % {k} == 0",
        calls=("{k}", "{k} + 1", "0", "3 * {k}"),
    ),
    Kind(
        name="clamp",
        verbs=("limit", "clamp", "bound"),
        says=("limits {n} to the range from {a} to {b}", "keeps {n} between {a} and {b}"),
        given=("limits {n} to the given range", "from {a} to {b}"),
        code="    return max({a}, min({b}, {n}))",
        calls=("0", "500", "{a} + 1", "{b}"),
    ),
    Kind(
        name="label",
        verbs=("label", "name", "describe"),
        says=(
            'returns "{w}" if {n} is {test}, else "{v}"',
            'gives "{w}" for {n} {test} and "{v}" for others',
        ),
        code='    if {n} {test}:\n        return "{w}"\n    return "{v}"',
        calls=("{k}", "{k} + 1", "{k} - 1"),
        choices={"test": COMPARE},
    ),
    Kind(
        name="halve",
        verbs=("halve", "shrink", "reduce"),
        says=(
            "counts how often {n} is halved until it is at most {k}",
            "halves {n} while it is over {k} and counts the steps",
        ),
        code="    steps = 0\n    while {n} > {k}:\n        {n} //= 2\n        steps += 1\n"
        "    return steps",
        calls=("1", "100", "{k} + 1"),
    ),
    Kind(
        name="convert",
        verbs=("convert", "map", "change"),
        says=("multiplies {n} by {a} and adds {b}", "returns {a} times {n} plus {b}"),
        given=("converts {n} with a factor and an offset", "factor {a}, offset {b}"),
        code="    return {n} * {a} + {b}",
        calls=("0", "1", "-7"),
    ),
    Kind(
        name="affix",
        verbs=("detect", "spot", "see"),
        says=('tells whether {text} {end} "{w}"', 'returns True if {text} {end} "{w}"'),
        code='    return {text}.{end}("{w}")',
        calls=('"{w} {v}"', '"{v} {w}"', '""'),
        choices={"end": (("starts with", "startswith"), ("ends with", "endswith"))},
    ),
    Kind(
        name="replace",
        verbs=("replace", "swap", "edit"),
        says=('replaces "{w}" in {text} by "{v}"', 'writes "{v}" for every "{w}" in {text}'),
        given=("replaces one word in {text} by another", '"{w}" by "{v}"'),
        code='    return {text}.replace("{w}", "{v}")',
        calls=('"a {w} and a {w}"', '"{v}"', '""'),
    ),
    Kind(
        name="repeat",
        verbs=("repeat", "copy", "echo"),
        says=("repeats {text} {k} times", "returns {k} copies of {text} in one string"),
        code="    return {text} * {k}",
        calls=('"ab"', '""'),
    ),
    Kind(
        name="join",
        verbs=("join", "merge", "link"),
        says=(
            "joins the first {k} strings of {xs} with {mark}",
            "puts {mark} between the first {k} strings of {xs}",
        ),
        code='    return "{mark}".join({xs}[:{k}])',
        calls=('["a", "b", "c"]', "[]", '["x"] * 30'),
        choices={"mark": (("a comma", ", "), ("a dash", "-"), ("a blank", " "))},
    ),
    Kind(
        name="lookup",
        verbs=("look", "read", "fetch"),
        says=(
            'looks up "{w}" in the dict {xs}, with {k} if it is not there',
            'returns {xs} at the key "{w}", or {k} without it',
        ),
        code='    return {xs}.get("{w}", {k})',
        calls=('{{"{w}": 1}}', '{{"{v}": 2}}', "{{}}"),
    ),
)

_MANY = (
    "scores prices ages names values cards coins dates files games hours keys lines marks "
    "notes pages parts points ranks rates sizes tasks teams times trees units votes weights "
    "books cities colors cups"
)
_ONE = (
    "score price age speed value depth coin date height level hour width line mark length "
    "page angle point rank rate size task team time count unit vote weight"
)
_TEXTS = "title line word name label note page path message key code street city answer song"
_WORDS = (
    "red blue green cat dog sun moon star tree bird fish stone water fire wind snow rain gold "
    "iron apple pear bread milk salt open closed high low new old big small fast slow hot "
    "cold"
)
# Second words of a function's name, by its parameter; a parameter is named so too, or generically.
NOUNS = {"xs": _MANY.split(), "n": _ONE.split(), "text": _TEXTS.split()}
GENERIC = {
    "xs": ("items", "numbers", "values"),
    "n": ("n", "x", "number"),
    "text": ("text", "string", "s"),
}
WORDS = _WORDS.split()
OPENERS = (
    "Write a function {head} that {says}.",
    "Write a Python function {head}. It {says}.",
    "Define {head}, which {says}.",
    "I need a function {head} that {says}.",
)


# ------------------------------------------------------------------------------------------------
# A bundled sample of Python code instructions: twenty kinds of task, filled in by rule.
#
# The kinds stand in :mod:`nbhelpers.data.samples.instructions`, written by hand. The rule:
#
# * A row is a kind with a name, a parameter, numbers, words and one of the phrasings drawn for it.
# * Function names are a verb of the kind and a noun. Of each kind a seeded shuffle keeps some names
#   for ``valid`` and ``test``; neither ``train`` nor the plain code holds them, and no two rows
#   have
#   one instruction or one output. A row of ``test`` is thus a new combination of known parts.
# * One row in four of the kinds that can say it so puts the numbers or words into ``input``.
# * Plain code is what the base model is pre-trained on: modules of functions of the same kinds,
# each
#   with a docstring, none with an instruction. From docstrings the model learns that words decide
#   what code does; with fewer of them it copies numbers and words of a prompt much later.


SAMPLE_NOTE = (
    "A sample of Python instructions written for this project to show the machinery: twenty kinds "
    "of small task, filled in by rule. Scores on it say nothing about real code."
)
ROWS_PER_KIND = {"train": 60, "valid": 2, "test": 3}
PLAIN_MODULES, FUNCTIONS_PER_MODULE = 600, 8
GIVEN_ONE_IN = 4

_SEED = 4


def load_instruction_rows() -> dict[str, list[dict[str, str]]]:
    """Return ``train``, ``valid`` and ``test``: rows of id, instruction, input and output."""
    keys = ("id", "instruction", "input", "output")
    return {
        split: [{key: row[key] for key in keys} for row in rows] for split, rows in _rows().items()
    }


def sample_tasks() -> list[dict[str, str]]:
    """Return the rows of ``test`` as problems whose solutions can be run.

    Each has id, instruction, input, entry_point, tests (lines of ``assert``) and reference.
    """
    return [
        {
            **{key: row[key] for key in ("id", "instruction", "input", "entry_point")},
            "tests": _tests(row),
            "reference": row["output"],
        }
        for row in _rows()["test"]
    ]


@cache
def plain_code() -> tuple[str, ...]:
    """Return modules of Python functions, without instructions, to pre-train on."""
    draw = random.Random(f"{_SEED} plain code")
    names = [(kind, name) for kind in KINDS for name in _names(kind)["train"]]
    modules = []
    for _ in range(PLAIN_MODULES):
        functions = [_plain(*draw.choice(names), draw) for _ in range(FUNCTIONS_PER_MODULE)]
        modules.append("\n\n\n".join(functions))
    return tuple(modules)


def _plain(kind: Kind, name: tuple[str, str], draw: random.Random) -> str:
    """Return a function with a docstring that says what it does."""
    row = _fill(kind, name, draw)
    head, _, body = row["output"].partition("\n")
    return f'{head}\n    """{row["says"][0].upper()}{row["says"][1:]}."""\n{body}'


@cache
def _rows() -> dict[str, list[dict[str, Any]]]:
    """Return the rows of every split with all that was drawn for them."""
    splits: dict[str, list[dict[str, Any]]] = {split: [] for split in ROWS_PER_KIND}
    seen: set[str] = set()
    for kind in KINDS:
        draw = random.Random(f"{_SEED} {kind.name}")
        names = _names(kind)
        for split, count in ROWS_PER_KIND.items():
            for number in range(count):
                pool = names[split] if split == "train" else [names[split][number]]
                row = _new_row(kind, pool, draw, seen)
                splits[split].append(row | {"id": f"{kind.name}-{split}-{number:02d}"})
    for split, rows in splits.items():
        random.Random(f"{_SEED} order of {split}").shuffle(rows)
    return splits


def _new_row(
    kind: Kind, names: list[tuple[str, str]], draw: random.Random, seen: set[str]
) -> dict[str, Any]:
    """Return a row whose instruction and output are both new."""
    while True:
        row = _fill(kind, draw.choice(names), draw)
        texts = {f"{row['instruction']}\n{row['input']}", row["output"]}
        if not texts & seen:
            seen |= texts
            return row


@cache
def _names(kind: Kind) -> dict[str, list[tuple[str, str]]]:
    """Return the function names of each split as (verb, noun)."""
    names = list(product(kind.verbs, NOUNS[_parameter(kind)]))
    random.Random(f"{_SEED} names of {kind.name}").shuffle(names)
    valid, test = ROWS_PER_KIND["valid"], ROWS_PER_KIND["valid"] + ROWS_PER_KIND["test"]
    return {"valid": names[:valid], "test": names[valid:test], "train": names[test:]}


def _parameter(kind: Kind) -> str:
    return next(slot for slot in NOUNS if f"{{{slot}}}" in kind.code)


def _fill(kind: Kind, name: tuple[str, str], draw: random.Random) -> dict[str, Any]:
    """Draw what stands in the braces and return the texts of a row, and the values drawn."""
    verb, noun = name
    slot = _parameter(kind)
    low, high = sorted(draw.sample(range(2, 20), 2))
    first, second = draw.sample(WORDS, 2)
    values = {
        slot: noun if draw.random() < 0.6 else draw.choice(GENERIC[slot]),
        **{"k": draw.randrange(2, 20), "a": low, "b": high, "w": first, "v": second},
    }
    chosen = {choice: draw.choice(pairs) for choice, pairs in kind.choices.items()}
    words = {choice: pair[0] for choice, pair in chosen.items()}
    source = {choice: pair[1] for choice, pair in chosen.items()}
    says, input_text = draw.choice(kind.says), ""
    if kind.given and draw.randrange(GIVEN_ONE_IN) == 0:
        says, input_text = kind.given
    says = _put(says, words, values)
    head = f"{verb}_{noun}({values[slot]})"
    return {
        "instruction": draw.choice(OPENERS).format(head=head, says=says),
        "input": _put(input_text, {}, values),
        "output": f"def {head}:\n{_put(kind.code, source, values)}",
        "says": says,
        "entry_point": f"{verb}_{noun}",
        "calls": [call.format(**values) for call in kind.calls],
    }


def _put(text: str, choices: dict[str, str], values: dict[str, Any]) -> str:
    """Fill a template: choices first, since they may hold slots of their own."""
    for choice, chosen in choices.items():
        text = text.replace(f"{{{choice}}}", chosen)
    return text.format(**values)


def _tests(row: dict[str, Any]) -> str:
    """Return assert lines with the values that the row's own function gives."""
    space: dict[str, Any] = {}
    exec(row["output"], space)
    name = row["entry_point"]
    lines = []
    for call in row["calls"]:
        value = eval(call, space)  # "17 - 1" reads better as 16
        lines.append(f"assert {name}({value!r}) == {space[name](value)!r}")
    return "\n".join(lines)
