"""Promise: the instruction sample is what its header says, and its tests tell right from wrong."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections import Counter

import pytest

from nbhelpers.data.near_duplicates import ShingleIndex
from nbhelpers.data.samples.instructions import (
    KINDS,
    OPENERS,
    ROWS_PER_KIND,
    SAMPLE_NOTE,
    load_instruction_rows,
    plain_code,
    sample_tasks,
)

ROWS = load_instruction_rows()
HELD_OUT = [*ROWS["valid"], *ROWS["test"]]
# Scores in the presets and the log come from these very rows.
DIGEST = "94a3dc0ebf250d58"
PLAIN_DIGEST = "c3b9320d02532a95"


def _digest(value) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _name(row) -> str:
    return ast.parse(row["output"]).body[0].name


def _passes(code: str, tests: str) -> bool:
    try:
        exec(f"{code}\n{tests}", {})
    except AssertionError:
        return False
    return True


def test_the_sample_is_the_same_everywhere():
    assert _digest(ROWS) == DIGEST and _digest(plain_code()) == PLAIN_DIGEST


def test_every_kind_has_its_rows_in_every_split():
    for split, rows in ROWS.items():
        kinds = Counter(row["id"].split("-")[0] for row in rows)
        assert kinds == {kind.name: ROWS_PER_KIND[split] for kind in KINDS}
    assert [len(rows) for rows in ROWS.values()] == [1200, 40, 60]
    assert len({row["id"] for rows in ROWS.values() for row in rows}) == 1300


def test_every_output_is_one_function_whose_head_stands_in_the_instruction():
    for row in (row for rows in ROWS.values() for row in rows):
        (function,) = ast.parse(row["output"]).body
        assert isinstance(function, ast.FunctionDef)
        head = row["output"].partition(":")[0].removeprefix("def ")
        assert head in row["instruction"] and "{" not in row["instruction"]
        assert row["output"] == row["output"].strip()


def test_what_the_output_needs_stands_in_instruction_or_input():
    for row in HELD_OUT:
        asked = f"{row['instruction']} {row['input']}"
        words = set(re.findall(r'"(\w+)"', row["output"]))
        numbers = set(re.findall(r"\b(?:[2-9]|1\d)\b", row["output"]))
        if not row["id"].startswith("halve"):  # it divides by 2
            assert all(re.search(rf"\b{part}\b", asked) for part in words | numbers), row


def test_a_verb_belongs_to_one_kind():
    verbs = Counter(verb for kind in KINDS for verb in kind.verbs)
    assert set(verbs.values()) == {1}


def test_held_out_names_are_new_and_appear_once():
    known = {_name(row) for row in ROWS["train"]}
    known |= set(re.findall(r"def (\w+)", "\n".join(plain_code())))
    names = Counter(map(_name, HELD_OUT))
    assert set(names.values()) == {1} and not known & set(names)


def test_no_instruction_and_no_output_stands_twice():
    rows = [row for split in ROWS.values() for row in split]
    assert len({(row["instruction"], row["input"]) for row in rows}) == len(rows)
    assert len({row["output"] for row in rows}) == len(rows)


def test_no_train_row_nearly_equals_a_held_out_row():
    rows = [*ROWS["train"], *HELD_OUT]
    index = ShingleIndex([f"{r['instruction']}\n{r['input']}\n{r['output']}" for r in rows])
    border = len(ROWS["train"])
    assert index.matches(range(border), range(border, len(rows))) == []


def test_some_rows_use_the_input_column():
    able = [kind.name for kind in KINDS if kind.given]
    share = [bool(r["input"]) for r in ROWS["train"] if r["id"].split("-")[0] in able]
    assert able and 0.15 < sum(share) / len(share) < 0.35
    assert any(row["input"] for row in ROWS["test"])


def test_plain_code_parses_and_holds_no_instruction():
    for module in plain_code():
        functions = ast.parse(module).body
        assert len(functions) == 8 and all(map(ast.get_docstring, functions))
    text = "\n".join(plain_code())
    openers = [opener.partition("{")[0] for opener in OPENERS]
    assert not any(words in text for words in (*openers, "###", "Instruction"))


def test_a_reference_passes_its_tests_and_an_empty_function_fails():
    tasks = sample_tasks()
    assert [task["id"] for task in tasks] == [row["id"] for row in ROWS["test"]]
    for task, row in zip(tasks, ROWS["test"], strict=True):
        assert task["reference"] == row["output"] and task["input"] == row["input"]
        assert task["entry_point"] == _name(row)
        assert _passes(task["reference"], task["tests"])
        head = task["reference"].partition("\n")[0]
        assert not _passes(f"{head}\n    return None", task["tests"])


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"\b(1?[2-9]|1[01])\b(?! ==)", lambda found: str(int(found[0]) + 1)),
        (r"\bmax\b", lambda found: "min"),
        (r"\ball\b", lambda found: "any"),
        (r"\+= item", lambda found: "-= item"),
        (r"endswith", lambda found: "startswith"),
        (r", reverse=True", lambda found: ""),
        (r'"(\w+)"', lambda found: '"other"'),
    ],
)
def test_the_tests_notice_a_wrong_detail(right, wrong):
    changed = 0
    for task in sample_tasks():
        code = re.sub(right, wrong, task["reference"])
        if code != task["reference"]:
            changed += 1
            assert not _passes(code, task["tests"]), code
    assert changed


def test_the_tests_tell_all_comparisons_apart():
    signs = (">", "<", ">=", "<=", "==")
    tasks = [task for task in sample_tasks() if re.match("keep|count|check|label", task["id"])]
    assert len(tasks) == 12
    for task in tasks:
        (right,) = re.findall(r" ([<>=]=?) \d", task["reference"])
        for sign in set(signs) - {right}:
            code = re.sub(r" [<>=]=? (?=\d)", f" {sign} ", task["reference"])
            assert not _passes(code, task["tests"]), code


def test_the_note_says_what_scores_are_worth():
    assert "say nothing about real code" in SAMPLE_NOTE
