"""The twenty kinds of task of the instruction sample, written by hand.

In `says` and `code`, braces hold what a row fills in: `{xs}`, `{n}` or `{text}` is the parameter,
`{k}`, `{a}` and `{b}` are numbers, `{w}` and `{v}` words, and every other name is one of `choices`,
which has words for the instruction and source for the code.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
