"""Promise: the bundled samples are the same everywhere and what their README says of them."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import json
from collections import Counter
from itertools import combinations

import pytest

from nbhelpers.data.near_duplicates import ShingleIndex
from nbhelpers.data.samples import (
    GROUPS,
    HARD_ONE_IN,
    SEEN_FAMILIES,
    SPLIT_SIZES,
    UNSEEN_FAMILIES,
    load_functions,
    sample_pairs,
    split_functions,
)
from nbhelpers.data.samples.instructions import load_instruction_rows, plain_code, sample_tasks
from nbhelpers.data.samples.styles import load_style_rows, write_style_files
from nbhelpers.data.syntax import parse_root

SPLITS = ("train", "valid", "test", "test_unseen")
FUNCTIONS = {function.id: function for function in load_functions()}
GROUP_OF = {family: group for group, families in GROUPS.items() for family in families}
INSTRUCTIONS = load_instruction_rows()
PROGRAMS = load_style_rows()


@pytest.mark.parametrize(
    ("rows", "digest"),
    [
        ([[f.id, f.code] for f in FUNCTIONS.values()], "827596b03af71c9e"),
        (INSTRUCTIONS, "94a3dc0ebf250d58"),
        (plain_code(), "c3b9320d02532a95"),
        (PROGRAMS, "3a51a321914f727d"),
    ],
    ids=["methods", "instructions", "plain code", "programs"],
)
def test_the_rows_that_scores_of_the_log_come_from_have_not_changed(rows, digest):
    assert hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16] == digest


# Java methods


def _used(pairs):
    """Return the methods of the pairs, under whatever names."""
    return {_method(name) for one, other, _ in pairs for name in (one, other)}


def _method(name):
    return name.split("~")[0]


def _is_hard(one, other):
    return GROUP_OF[FUNCTIONS[one].family] == GROUP_OF[FUNCTIONS[other].family]


def test_every_method_parses_inside_a_class():
    for function in FUNCTIONS.values():
        root, _, clean = parse_root(f"class X {{\n{function.code}}}\n".encode(), "java")
        assert clean, function.id
        body = root.children[0].child_by_field_name("body")
        kinds = [child.type for child in body.named_children if "comment" not in child.type]
        assert kinds == ["method_declaration"], function.id


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_no_method_stands_in_two_splits(seed):
    pairs = sample_pairs(seed)
    assert not _used(pairs["train"]) & _used(pairs["valid"])
    assert not _used(pairs["train"]) & _used(pairs["test"])
    assert not _used(pairs["valid"]) & _used(pairs["test"])
    assert not (_used(pairs["train"]) | _used(pairs["valid"])) & _used(pairs["test_unseen"])


@pytest.mark.parametrize(("split", "methods"), [("train", 200), ("valid", 60), ("test", 60)])
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
    ("split", "n_pairs"), [("train", 3800), ("valid", 300), ("test", 300), ("test_unseen", 760)]
)
def test_half_of_each_split_are_clones(split, n_pairs):
    labels = [label for *_, label in sample_pairs()[split]]
    assert len(labels) == n_pairs
    assert sum(labels) * 2 == n_pairs


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_one_non_clone_in_four_is_hard(split):
    others = [(one, other) for one, other, label in sample_pairs()[split] if not label]
    hard = sum(_is_hard(one, other) for one, other in others)
    assert hard == len(others) // HARD_ONE_IN


@pytest.mark.parametrize("split", SPLITS)
def test_an_unordered_pair_of_methods_stands_once_and_no_clone_is_missing(split):
    pairs = [(*sorted(map(_method, pair[:2])), pair[2]) for pair in sample_pairs()[split]]
    assert len(set(pairs)) == len(pairs)
    sizes = [len(names) for names in split_functions()[split].values()]
    assert sum(label for *_, label in pairs) == sum(n * (n - 1) // 2 for n in sizes)


def test_only_train_draws_among_the_renamings():
    pairs = sample_pairs()
    drawn = Counter(name.count("~") for pair in pairs["train"] for name in pair[:2])
    assert 0.6 < drawn[1] / drawn.total() < 0.73
    others = [name for split in SPLITS[1:] for pair in pairs[split] for name in pair[:2]]
    assert not any("~" in name for name in others)


def test_every_pair_about_unseen_tasks_has_an_unseen_task():
    pairs = sample_pairs()["test_unseen"]
    unseen = [
        (FUNCTIONS[one].family in UNSEEN_FAMILIES, FUNCTIONS[other].family in UNSEEN_FAMILIES)
        for one, other, _ in pairs
    ]
    assert all(one or other for one, other in unseen)
    both = sum(all(pair) for pair, (*_, label) in zip(unseen, pairs, strict=True) if not label)
    assert both == sum(not label for *_, label in pairs) // HARD_ONE_IN
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
    assert digest[:16] == "9178e8ecf1e79953", "the pairs of seed 0 changed: was that meant?"


def test_position_in_a_pair_does_not_give_the_label_away():
    ids = list(FUNCTIONS)
    place = {name: index for index, name in enumerate(ids)}
    for label in (0, 1):
        pairs = [pair for pair in sample_pairs()["train"] if pair[2] == label]
        rising = sum(place[one] < place[other] for one, other, _ in pairs)
        assert 0.4 < rising / len(pairs) < 0.6


# Python instructions


def _name(row):
    (function,) = ast.parse(row["output"]).body
    return function.name


def _passes(code, tests):
    try:
        exec(f"{code}\n{tests}", {})
    except AssertionError:
        return False
    return True


def test_held_out_instructions_are_new_and_nearly_equal_no_train_row():
    held_out = [*INSTRUCTIONS["valid"], *INSTRUCTIONS["test"]]
    names = Counter(map(_name, held_out))
    assert max(names.values()) == 1 and not names.keys() & set(map(_name, INSTRUCTIONS["train"]))
    rows = [*INSTRUCTIONS["train"], *held_out]
    index = ShingleIndex([f"{r['instruction']}\n{r['input']}\n{r['output']}" for r in rows])
    border = len(INSTRUCTIONS["train"])
    assert index.matches(range(border), range(border, len(rows))) == []


def test_a_reference_passes_its_tests_and_an_empty_function_fails():
    for task, row in zip(sample_tasks(), INSTRUCTIONS["test"], strict=True):
        assert (task["id"], task["reference"]) == (row["id"], row["output"])
        assert task["entry_point"] == _name(row)
        assert _passes(task["reference"], task["tests"])
        head = task["reference"].partition("\n")[0]
        assert not _passes(f"{head}\n    return None", task["tests"])


# Programs in two styles


def test_the_splits_of_programs_share_no_task_no_author_and_no_code():
    for key in ("task", "author", "code"):
        parts = [{r[key] for r in PROGRAMS if r["split"] == s} - {""} for s in SPLITS[:3]]
        assert all(not one & other for one, other in combinations(parts, 2)), key
    assert len({"".join(row["code"].split()) for row in PROGRAMS}) == len(PROGRAMS) == 912


def test_every_program_runs_or_parses():
    for row in PROGRAMS:
        if row["language"] == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(row["code"], {"__name__": "sample"})
        else:
            assert parse_root(row["code"].encode(), "java")[2], row["id"]


def test_a_folder_to_try_a_detector_on_is_written_twice_alike(tmp_path):
    folder = write_style_files(tmp_path / "try", tasks=2)
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 8 and len({name.partition(".")[0] for name in names}) == 4
    assert write_style_files(folder, tasks=2) == folder and len(list(folder.iterdir())) == 8
    codes = {row["code"] for row in PROGRAMS if row["split"] == "test"}
    assert {path.read_text(encoding="utf-8") for path in folder.iterdir()} <= codes
