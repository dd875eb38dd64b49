"""Promise: the two-style sample is what its header says: its programs do their tasks, its splits
share nothing, and its styles overlap."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import json
import re
from collections import Counter, defaultdict
from itertools import combinations

import pytest

from nbhelpers.data.near_duplicates import shingles
from nbhelpers.data.samples.styles import (
    LANGUAGES,
    NAMES,
    SAMPLE_NOTE,
    SPLIT_TASKS,
    STYLES,
    VARIANTS,
    load_style_rows,
    load_tasks,
    write_style_files,
)

ROWS = load_style_rows()
TASKS = {task.name.replace(" ", "-"): task for task in load_tasks()}
# Scores in the presets and the log come from these very rows.
DIGEST = "3a51a321914f727d"


def of(**wanted: str) -> list[dict[str, str]]:
    return [row for row in ROWS if all(row[name] == value for name, value in wanted.items())]


def test_the_sample_is_the_same_everywhere():
    assert hashlib.sha256(json.dumps(ROWS).encode()).hexdigest()[:16] == DIGEST


def test_every_task_has_its_programs_in_both_languages_and_styles():
    counts = Counter((row["task"], row["language"], row["label"]) for row in ROWS)
    assert set(counts.values()) == {VARIANTS}
    assert len(counts) == len(TASKS) * len(LANGUAGES) * len(STYLES)
    assert len({row["id"] for row in ROWS}) == len(ROWS) == 912


def test_the_splits_share_no_task_no_pool_and_no_code():
    for key in ("task", "author", "code"):
        parts = [{row[key] for row in of(split=split)} - {""} for split in SPLIT_TASKS]
        assert all(not one & other for one, other in combinations(parts, 2)), key
    assert {split: len({r["task"] for r in of(split=split)}) for split in SPLIT_TASKS} == (
        SPLIT_TASKS
    )


def test_a_pool_stands_for_the_terse_style_and_a_generator_for_the_other():
    for row in ROWS:
        assert bool(row["author"]) == (row["label"] == "human")
        assert bool(row["generator"]) == (row["label"] == "ai")
        assert row["author"].startswith("pool-") or row["generator"].startswith("rules-")
    sources = Counter(row["source"] for row in ROWS)
    assert set(sources) == {"set-1", "set-2"} and min(sources.values()) > 400


def test_no_program_stands_twice_or_nearly_under_the_other_label_or_task():
    assert len({"".join(row["code"].split()) for row in ROWS}) == len(ROWS)
    groups = defaultdict(list)
    for row in ROWS:
        groups[row["task"], row["language"]].append((row["label"], shingles(row["code"])))
    for rows in groups.values():
        for (label, one), (other_label, other) in combinations(rows, 2):
            if label != other_label:
                assert len(one & other) / len(one | other) < 0.8


def test_every_python_program_does_its_task():
    for row in of(language="python"):
        task, space = TASKS[row["task"]], {"__name__": "sample"}
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(row["code"], space)
        (function,) = (v for k, v in space.items() if k != "__builtins__" and callable(v))
        value = ast.literal_eval(task.value)
        assert function(*ast.literal_eval(f"({task.call},)")) == value, row["id"]
        assert said.getvalue() in ("", f"{value}\n")


def test_every_java_program_parses():
    tree_sitter = pytest.importorskip("tree_sitter")
    java = tree_sitter.Language(pytest.importorskip("tree_sitter_java").language())
    parser = tree_sitter.Parser(java)
    for row in of(language="java"):
        assert not parser.parse(row["code"].encode()).root_node.has_error, row["id"]
        assert "class " in row["code"] and "$" not in row["code"]


def test_every_task_has_two_bodies_per_language_and_known_names():
    for task in TASKS.values():
        for language in LANGUAGES:
            first, second = task.bodies[language]
            assert first != second
            slots = set(re.findall(r"\$([a-z]+)", f"{first}\n{second}")) - {"f"}
            assert slots <= NAMES.keys()
            assert {name for _, name in task.parameters} <= slots


def chance(pattern: str, label: str, language: str = "python") -> float:
    rows = of(label=label, language=language)
    return sum(bool(re.search(pattern, row["code"])) for row in rows) / len(rows)


@pytest.mark.parametrize(
    ("pattern", "is_explaining"),
    [(r'"""', True), (r"raise V", True), (r" -> ", True), (r"# [A-Z]", True), (r",\S", False)],
)
def test_a_habit_is_a_chance_and_no_law(pattern, is_explaining):
    terse, explaining = chance(pattern, "human"), chance(pattern, "ai")
    assert (terse < explaining) is is_explaining and abs(terse - explaining) > 0.1
    assert min(terse, explaining) > 0.02 and max(terse, explaining) < 0.8


def test_neither_length_nor_names_tell_the_styles_apart():
    from sklearn.metrics import roc_auc_score

    labels = [row["label"] == "ai" for row in ROWS]
    words = [re.findall(r"[A-Za-z_]\w*", row["code"]) for row in ROWS]
    length = roc_auc_score(labels, [len(row["code"]) for row in ROWS])
    names = roc_auc_score(labels, [sum(map(len, w)) / len(w) for w in words])
    assert 0.6 < length < 0.85 and 0.75 < names < 0.93


def test_a_folder_to_try_a_detector_on_is_written_twice_alike(tmp_path):
    folder = write_style_files(tmp_path / "try", tasks=2)
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 8 and len({name.partition(".")[0] for name in names}) == 4
    assert write_style_files(folder, tasks=2) == folder and len(list(folder.iterdir())) == 8
    codes = {row["code"] for row in of(split="test")}
    assert {path.read_text(encoding="utf-8") for path in folder.iterdir()} <= codes


def test_the_note_says_what_scores_are_worth():
    assert "say nothing about real code" in SAMPLE_NOTE and "detects nothing real" in SAMPLE_NOTE
