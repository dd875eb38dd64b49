"""Promise: the bundled sample is what its header says, and its pairs follow the stated rule."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from itertools import combinations

import pytest

from nbhelpers.errors import DataError
from nbhelpers.samples import (
    FAMILY_SIZE,
    GROUPS,
    HARD_ONE_IN,
    SAMPLE_NOTE,
    SEEN_FAMILIES,
    SPLIT_SIZES,
    UNSEEN_FAMILIES,
    load_functions,
    parse_family,
    sample_pairs,
    split_functions,
)

SPLITS = ("train", "valid", "test", "test_unseen")
FUNCTIONS = {function.id: function for function in load_functions()}
GROUP_OF = {family: group for group, families in GROUPS.items() for family in families}
TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|[A-Za-z_]\w*|\d[\w.]*|\S')
JAVA_WORDS = """
boolean break byte case catch char continue default do double else false final finally float
for if int long new null private protected public return short static switch this throw throws
true try void while
"""
KEYWORDS = frozenset(JAVA_WORDS.split())


def _used(pairs):
    return {name for one, other, _ in pairs for name in (one, other)}


def _is_hard(one, other):
    return GROUP_OF[FUNCTIONS[one].family] == GROUP_OF[FUNCTIONS[other].family]


def _normalised(code):
    """Return the token counts of a method whose identifiers are numbered as they appear."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", code, flags=re.DOTALL)
    numbers: dict[str, str] = {}
    tokens = []
    for token in TOKEN.findall(code):
        is_name = token[0].isalpha() or token[0] == "_"
        if is_name and token not in KEYWORDS:
            token = numbers.setdefault(token, f"id{len(numbers)}")
        tokens.append(token)
    return Counter(tokens)


def test_twelve_families_have_twenty_methods_each():
    counts = Counter(function.family for function in load_functions())
    assert set(counts) == set(SEEN_FAMILIES + UNSEEN_FAMILIES)
    assert len(counts) == 12
    assert set(counts.values()) == {FAMILY_SIZE} == {20}


def test_ids_are_unique_and_in_a_stable_order():
    ids = [function.id for function in load_functions()]
    assert len(set(ids)) == len(ids)
    assert ids[0] == "brackets-01"
    assert ids[-1] == "gcd-20"
    assert ids == [function.id for function in load_functions()]


def test_texts_stay_distinct_when_white_space_is_ignored():
    assert len({"".join(function.code.split()) for function in load_functions()}) == 240


@pytest.mark.parametrize("family", SEEN_FAMILIES + UNSEEN_FAMILIES)
def test_no_method_is_a_renaming_of_another(family):
    members = [function for function in load_functions() if function.family == family]
    counts = {function.id: _normalised(function.code) for function in members}
    for one, other in combinations(counts, 2):
        shared = (counts[one] & counts[other]).total()
        assert shared / (counts[one] | counts[other]).total() < 0.9, (one, other)


def test_a_renaming_would_be_noticed():
    code = FUNCTIONS["gcd-01"].code
    renamed = re.sub(r"\bgcd\b", "greatest", re.sub(r"\bt\b", "keep", code))
    assert renamed != code
    assert _normalised(renamed) == _normalised(code)


def test_methods_have_four_to_twenty_five_lines_and_no_class_around_them():
    for function in load_functions():
        lines = function.code.splitlines()
        assert 4 <= len(lines) <= 25, function.id
        assert not re.search(r"^\s*(public\s+)?class\s", function.code, re.MULTILINE), function.id
        assert "//@" not in function.code


def test_every_method_parses_inside_a_class():
    tree_sitter = pytest.importorskip("tree_sitter")
    java = pytest.importorskip("tree_sitter_java")
    parser = tree_sitter.Parser(tree_sitter.Language(java.language()))
    for function in load_functions():
        root = parser.parse(f"class X {{\n{function.code}}}\n".encode()).root_node
        assert not root.has_error, function.id
        body = root.children[0].child_by_field_name("body")
        kinds = [child.type for child in body.named_children if "comment" not in child.type]
        assert kinds == ["method_declaration"], function.id


def test_four_methods_of_each_family_have_a_name_that_says_nothing():
    generic = re.compile(r"\b(run|process|solve|f)\(")
    counts = Counter()
    for function in load_functions():
        declaration = re.sub(r"/\*.*?\*/", "", function.code, flags=re.DOTALL).split(")")[0]
        counts[function.family] += bool(generic.search(declaration))
    assert counts == dict.fromkeys(SEEN_FAMILIES + UNSEEN_FAMILIES, 4)


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_no_method_stands_in_two_splits(seed):
    pairs = sample_pairs(seed)
    assert not _used(pairs["train"]) & _used(pairs["valid"])
    assert not _used(pairs["train"]) & _used(pairs["test"])
    assert not _used(pairs["valid"]) & _used(pairs["test"])
    assert not (_used(pairs["train"]) | _used(pairs["valid"])) & _used(pairs["test_unseen"])


@pytest.mark.parametrize(("split", "methods"), [("train", 120), ("valid", 40), ("test", 40)])
def test_split_uses_the_promised_number_of_methods_of_each_seen_family(split, methods):
    used = _used(sample_pairs()[split])
    assert len(used) == methods
    per_family = Counter(FUNCTIONS[name].family for name in used)
    assert per_family == dict.fromkeys(SEEN_FAMILIES, SPLIT_SIZES[split])


@pytest.mark.parametrize("split", SPLITS)
def test_a_label_says_whether_the_families_are_equal(split):
    for one, other, label in sample_pairs()[split]:
        assert label == int(FUNCTIONS[one].family == FUNCTIONS[other].family)
        assert one != other


@pytest.mark.parametrize(
    ("split", "n_pairs"), [("train", 2400), ("valid", 120), ("test", 120), ("test_unseen", 760)]
)
def test_half_of_each_split_are_clones(split, n_pairs):
    labels = [label for *_, label in sample_pairs()[split]]
    assert len(labels) == n_pairs
    assert sum(labels) * 2 == n_pairs


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_one_non_clone_in_four_is_hard(split):
    others = [(one, other) for one, other, label in sample_pairs()[split] if not label]
    hard = sum(_is_hard(one, other) for one, other in others)
    assert hard * HARD_ONE_IN == len(others)


@pytest.mark.parametrize("split", SPLITS)
def test_a_pair_repeats_only_reversed_and_only_as_a_training_clone(split):
    pairs = sample_pairs()[split]
    assert len(set(pairs)) == len(pairs)
    unordered = Counter((*sorted((one, other)), label) for one, other, label in pairs)
    repeated = [key for key, count in unordered.items() if count > 1]
    if split == "train":
        assert all(label == 1 for *_, label in repeated)
        assert len([key for key in unordered if key[2] == 1]) == 10 * (12 * 11 // 2)
    else:
        assert not repeated


def test_every_pair_about_unseen_tasks_has_an_unseen_task():
    pairs = sample_pairs()["test_unseen"]
    unseen = [
        (FUNCTIONS[one].family in UNSEEN_FAMILIES, FUNCTIONS[other].family in UNSEEN_FAMILIES)
        for one, other, _ in pairs
    ]
    assert all(one or other for one, other in unseen)
    both = sum(all(pair) for pair, (*_, label) in zip(unseen, pairs, strict=True) if not label)
    assert both * HARD_ONE_IN == sum(not label for *_, label in pairs)
    test_methods = _used(sample_pairs()["test"])
    assert _used(pairs) <= test_methods | set(
        name for names in split_functions()["test_unseen"].values() for name in names
    )


def test_a_seed_always_gives_the_same_pairs_and_another_seed_gives_others():
    assert sample_pairs(0) == sample_pairs(0)
    assert sample_pairs(0)["test"] != sample_pairs(1)["test"]
    assert split_functions(0)["train"] != split_functions(1)["train"]


def test_pairs_are_the_same_on_every_machine():
    lines = [f"{split} {pair}" for split, pairs in sample_pairs(0).items() for pair in pairs]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert digest[:16] == "dd4b86682cbc52b5", "the pairs of seed 0 changed: was that meant?"


def test_position_in_a_pair_does_not_give_the_label_away():
    ids = list(FUNCTIONS)
    place = {name: index for index, name in enumerate(ids)}
    for label in (0, 1):
        pairs = [pair for pair in sample_pairs()["train"] if pair[2] == label]
        rising = sum(place[one] < place[other] for one, other, _ in pairs)
        assert 0.4 < rising / len(pairs) < 0.6


def test_a_file_with_a_lost_marker_is_refused_with_a_fix():
    with pytest.raises(DataError, match=r"gcd\.java has methods 01, 03") as caught:
        parse_family("gcd", "// header\n//@ 01\nint a() {}\n//@ 03\nint b() {}\n")
    assert "restore the file" in caught.value.fix


def test_the_note_warns_about_scores():
    assert "say nothing about real code" in SAMPLE_NOTE
