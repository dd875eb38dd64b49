"""A bundled sample of Python code instructions: twenty kinds of task, filled in by rule.

The kinds stand in :mod:`nbhelpers.samples.instruction_kinds`, written by hand. The rule:

* A row is a kind with a name, a parameter, numbers, words and one of the phrasings drawn for it.
* Function names are a verb of the kind and a noun. Of each kind a seeded shuffle keeps some names
  for ``valid`` and ``test``; neither ``train`` nor the plain code holds them, and no two rows have
  one instruction or one output. A row of ``test`` is thus a new combination of known parts.
* One row in four of the kinds that can say it so puts the numbers or words into ``input``.
* Plain code is what the base model is pre-trained on: modules of functions of the same kinds, each
  with a docstring, none with an instruction. From docstrings the model learns that words decide
  what code does; with fewer of them it copies numbers and words of a prompt much later.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import product
from typing import Any

from nbhelpers.samples.instruction_kinds import GENERIC, KINDS, NOUNS, OPENERS, WORDS, Kind

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
    says, given = draw.choice(kind.says), ""
    if kind.given and draw.randrange(GIVEN_ONE_IN) == 0:
        says, given = kind.given
    says = _put(says, words, values)
    head = f"{verb}_{noun}({values[slot]})"
    return {
        "instruction": draw.choice(OPENERS).format(head=head, says=says),
        "input": _put(given, {}, values),
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
        given = eval(call, space)  # "17 - 1" reads better as 16
        lines.append(f"assert {name}({given!r}) == {space[name](given)!r}")
    return "\n".join(lines)
