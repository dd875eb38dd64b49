"""A bundled sample of Java methods: 12 tasks, each solved in 20 or 32 ways, and pairs by rule.

``methods.jsonl`` holds the methods; ``README.md`` says what the sample is for. The rule:

* What a method declares (its name, parameters, local variables) has names drawn from one pool, in
  every split: these names say nothing about the task.
* Two families (:data:`UNSEEN_FAMILIES`) are kept out of ``train``, ``valid`` and ``test``.
* Of each other family, a seeded shuffle gives 20 methods to ``train``, 6 to ``valid`` and
  6 to ``test``: no method stands in two of these splits, under whatever names.
* A pair is a clone (label 1) exactly when both methods are of one family.
* Every split is balanced: as many clones as non-clones, a prior of one half, which real
  code never has.
* One non-clone in four is hard: two families of one group in :data:`GROUPS`, which share
  data types and vocabulary. The others cross groups. Hardness is a matter of subject, not
  of any score, so no baseline is singled out.
* In every split an unordered pair of methods appears at most once; clones are complete. The
  order inside a pair is drawn. In ``train`` each side of a pair draws one of
  :data:`RENAMINGS` renamings of its method; elsewhere a method has one text.
* ``test_unseen`` takes all clone pairs of the unseen families. One of its non-clones in
  four is between these two families, the others pair one of them with a ``test`` method.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any

SAMPLE_NOTE = (
    "A sample of Java methods written for this project to show the machinery: small, tidy and "
    "balanced; their local names are drawn from one pool. Scores on it say nothing about real code."
)

GROUPS: dict[str, tuple[str, ...]] = {
    "text": ("brackets", "caesar", "word_count"),
    "array": ("sort", "binary_search", "matrix_multiply"),
    "number": ("prime", "roman"),
    "bytes": ("hex_encode", "copy_stream"),
}
SEEN_FAMILIES: tuple[str, ...] = tuple(name for group in GROUPS.values() for name in group)
UNSEEN_FAMILIES: tuple[str, ...] = ("palindrome", "gcd")
SPLIT_SIZES: dict[str, int] = {"train": 20, "valid": 6, "test": 6}
RENAMINGS = 3
HARD_ONE_IN = 4

_RENAMING = "~"  # between a method's id and the number of its renaming; none for the first

IdPair = tuple[str, str]
Pair = tuple[str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFunction:
    """One Java method without a class around it, and the task that it solves."""

    id: str
    family: str
    code: str


def sample_rows(file: str) -> list[Any]:
    """Return the rows of a .jsonl file in this folder."""
    text = (Path(__file__).parent / file).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


@cache
def load_functions() -> tuple[SampleFunction, ...]:
    """Return each method under `RENAMINGS` sets of names: `prime-07`, `prime-07~1`, `prime-07~2`.

    They stand family by family, with ids that never change.
    """
    return tuple(SampleFunction(**row) for row in sample_rows("methods.jsonl"))


def _renaming(method: str, number: int) -> str:
    return f"{method}{_RENAMING}{number}" if number else method


def sample_pairs(seed: int = 0) -> dict[str, list[Pair]]:
    """Return ``(id1, id2, label)`` lists of the splits train, valid, test and test_unseen.

    The same seed gives the same lists on every machine; the module's docstring has the rule.
    """
    splits = split_functions(seed)
    pairs: dict[str, list[Pair]] = {}
    for split, members in splits.items():
        rng = random.Random(f"pairs/{split}/{seed}")
        clones = [_turned(pair, rng) for pair in _clones(members)]
        if split == "test_unseen":
            hard, easy = _unseen_non_clones(members, splits["test"])
        else:
            hard, easy = _non_clones(members)
        drawn = _balanced(clones, hard, easy, rng=rng)
        pairs[split] = [_renamed(pair, rng) for pair in drawn] if split == "train" else drawn
    return pairs


def split_functions(seed: int = 0) -> dict[str, dict[str, list[str]]]:
    """Return the method ids of each split by family, drawn afresh for each seed."""
    ids: dict[str, list[str]] = {}
    for function in load_functions():
        if _RENAMING not in function.id:
            ids.setdefault(function.family, []).append(function.id)
    splits: dict[str, dict[str, list[str]]] = {split: {} for split in SPLIT_SIZES}
    for family in SEEN_FAMILIES:
        drawn = list(ids[family])
        random.Random(f"split/{family}/{seed}").shuffle(drawn)
        start = 0
        for split, size in SPLIT_SIZES.items():
            splits[split][family] = sorted(drawn[start : start + size])
            start += size
    splits["test_unseen"] = {family: ids[family] for family in UNSEEN_FAMILIES}
    return splits


def _clones(members: dict[str, list[str]]) -> list[IdPair]:
    return [pair for names in members.values() for pair in combinations(names, 2)]


def _non_clones(
    members: dict[str, list[str]],
) -> tuple[list[IdPair], list[IdPair]]:
    """Return the pairs inside a group of families (hard) and across groups (easy)."""
    group_of = {family: group for group, families in GROUPS.items() for family in families}
    hard: list[IdPair] = []
    easy: list[IdPair] = []
    for one, other in combinations(members, 2):
        kind = hard if group_of[one] == group_of[other] else easy
        kind.extend(product(members[one], members[other]))
    return hard, easy


def _unseen_non_clones(
    unseen: dict[str, list[str]], seen: dict[str, list[str]]
) -> tuple[list[IdPair], list[IdPair]]:
    """Return the pairs between unseen families, and those of an unseen and a seen method."""
    hard = [pair for one, other in combinations(unseen.values(), 2) for pair in product(one, other)]
    easy = list(product(chain(*unseen.values()), chain(*seen.values())))
    return hard, easy


def _balanced(
    clones: list[IdPair],
    hard: list[IdPair],
    easy: list[IdPair],
    *,
    rng: random.Random,
) -> list[Pair]:
    """Return the clones and as many non-clones, one in four of them hard, in a drawn order."""
    n_hard = len(clones) // HARD_ONE_IN
    negatives = rng.sample(hard, n_hard) + rng.sample(easy, len(clones) - n_hard)
    pairs = _labelled(clones, 1) + _labelled([_turned(pair, rng) for pair in negatives], 0)
    rng.shuffle(pairs)
    return pairs


def _renamed(pair: Pair, rng: random.Random) -> Pair:
    one, other = (_renaming(method, rng.randrange(RENAMINGS)) for method in pair[:2])
    return one, other, pair[2]


def _labelled(pairs: Iterable[IdPair], label: int) -> list[Pair]:
    return [(one, other, label) for one, other in pairs]


def _turned(pair: IdPair, rng: random.Random) -> IdPair:
    """Return the pair, or the pair reversed, with equal chance."""
    return pair if rng.random() < 0.5 else (pair[1], pair[0])
