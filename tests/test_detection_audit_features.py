"""Promise: a single feature is measured as it is defined, on any text, in even time."""

from __future__ import annotations

import math
import random
import time

import pytest

from nbhelpers.data.audit_rules import WORD_MIN_ROWS, aucs, source_facts, template_facts
from nbhelpers.data.audit_text import statements, units
from nbhelpers.data.detection_rows import CodeRow
from nbhelpers.data.layout_features import FEATURES, UNKNOWN_SHARE, layout_features

ODD = ["", "\n", "\r\r\n", "\0", "\ufeff", "\ud800x", "=" * 50, "'''", "/*" * 40, "\t \t", "é" * 9]


def test_sixteen_finite_numbers_for_any_text() -> None:
    assert len(FEATURES) == 16
    for text in ODD:
        found = layout_features(text)
        assert tuple(found) == FEATURES
        assert all(math.isfinite(value) for value in found.values())


@pytest.mark.parametrize(
    ("code", "name", "value"),
    [
        ("a = 1\nb=2\n", "spaced_equals_share", 0.5),
        ("a == b\nc += 1\nd => e\n", "spaced_equals_share", UNKNOWN_SHARE),
        ("f(a, b,c)", "spaced_comma_share", 0.5),
        ("#include <x>\n# no\n// yes\nx", "comment_line_share", 0.5),
        ("#!/bin/sh\n# Sum.\nx", "header_comment", 1.0),
        ("import x\n# Sum.\n", "header_comment", 0.0),
        ("if x:\n\ty\n    z\n", "tab_share", 0.5),
        ("x \ny\t\nz\n\n", "trailing_blank_share", 0.5),
        ("x\n\n\n", "final_newlines", 3.0),
        ("\n\nx", "leading_blank_lines", 2.0),
        ('def f():\n    """Say."""\n', "docstrings", 1.0),
        ("/** Say. */\nint f;", "docstrings", 1.0),
    ],
)
def test_what_each_feature_counts(code: str, name: str, value: float) -> None:
    assert layout_features(code)[name] == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        " " * 200_000 + "x",
        "\t" * 200_000,
        "\n" * 200_000,
        "#" * 200_000,
        "/*" * 50_000,
        '\\"' * 50_000,
    ],
)
def test_long_runs_take_little_time(text: str) -> None:
    start = time.process_time()
    layout_features(text)
    statements(text, "python")
    statements(text, "java")
    units(text)
    assert time.process_time() - start < 2


def test_an_area_is_the_share_of_pairs_in_the_right_order() -> None:
    import numpy as np

    draw = np.random.default_rng(0)
    is_ai = draw.random(60) < 0.3
    values = np.column_stack([draw.integers(0, 5, 60), draw.random(60), np.zeros(60)])
    for area, column in zip(aucs(is_ai, values), values.T, strict=True):
        pairs = [(a > h) + (a == h) / 2 for a in column[is_ai] for h in column[~is_ai]]
        assert area == pytest.approx(sum(pairs) / len(pairs))


def test_what_fills_a_template_does_not_show_and_the_rest_does() -> None:
    one, other = "def f(a):\n    return a + 1  # one\n", "def gg(bc):\n  return bc*27\n"
    assert statements(one, "python") == statements(other, "python")
    assert statements("int f() { return 1; }", "java") != statements("int f() { f(); }", "java")


def code_rows(rows: list[dict[str, str]]) -> list[CodeRow]:
    return [CodeRow(id="", **row) for row in rows]


def test_several_answers_to_one_task_are_no_templates() -> None:
    draw = random.Random(0)
    kinds = ("x = {}", "if x:", "print({})", "f(x, {})", "for x in y:", "return {}", "y[{}] = x")
    tasks = ["\n".join(draw.choices(kinds, k=12)) for _ in range(60)]
    rows = [
        {"code": text.replace("{}", str(draw.randrange(99))), "label": "ai", "language": "python"}
        | {"task": str(at)}
        for at, text in enumerate(tasks)
        for _ in range(40)
    ]
    assert template_facts(code_rows(rows))["shapes_of_half"] >= 25
    few = [row | {"task": str(at % 700)} for at, row in enumerate(rows) if int(row["task"]) < 5]
    assert template_facts(code_rows(few))["is_collapsed"]


def test_sources_are_compared_by_people_s_words_and_by_how_the_label_carries_over() -> None:
    draw = random.Random(0)
    words = {"human": "take put find", "ai": "calculate_total process_items handle_input"}

    def row(source: str, label: str) -> CodeRow:
        at, other = draw.randrange(99), {"human": "ai", "ai": "human"}[label]
        signs = words[other if source == "turned" else label].split()
        own = {"plain": "alpha beta", "turned": "gamma delta"}[source].split()
        code = "\n".join(f"{draw.choice(own)} = {draw.choice(signs)}({at})" for _ in range(6))
        return CodeRow("x", code, language="python", label=label, source=source)

    rows = [row(s, one) for s in ("plain", "turned") for one in words for _ in range(120)]
    facts = {one["source"]: one for one in source_facts(rows, random.Random(0), str)}
    for one in facts.values():
        assert one["told"] > 0.95 and one["label_within"] > 0.95 and one["label_from_others"] < 0.05
    mixed = [each._replace(source=draw.choice(("a", "b"))) for each in rows]
    assert all(0.35 < one["told"] < 0.65 for one in source_facts(mixed, random.Random(0), str))
    few = rows[: WORD_MIN_ROWS - 1]
    assert source_facts(few, random.Random(0), str) == []
