"""Promise: a piece of code without its class, or with errors, is read as well as it can be."""

from __future__ import annotations

import pytest

from nbhelpers.data.dataflow import extract_dataflow
from nbhelpers.data.dataflow_program import Edge

# Pieces that parse only inside a class, an annotation type or an enum.
WRAPPED = {
    "constructor": "public Point(int x) { this.x = x; }",
    "static block": "static { x = 1; y = x; }",
    "two constructors": "A(int x) { y = x; } A() { this(0); }",
    "compact constructor": "Point { if (x < 0) throw new E(x); }",
    "annotation": "@A public C(final int x) throws E { for (int i = x; ; ) { y = i; } }",
    "element with a default": 'String value() default X + "x";',
    "constants with bodies": "A(x), B(x) { int f(int y) { return y; } };",
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_piece_without_its_class_is_read_as_inside_one(name: str) -> None:
    code = WRAPPED[name]
    flow = extract_dataflow(code, "java")
    assert flow.problem == ""
    assert "".join(flow.tokens).replace(" ", "") == code.replace(" ", "")


@pytest.mark.parametrize(
    ("code", "line", "what"),
    [
        ("// one\nint f() {\n  return 1;\n", 3, "a '}' is missing"),
        ("/* one\n two */ int f() { return 1; }\n}", 3, "'}' does not fit"),
        ("int f() {\n  return 1;\n}\n\n/* */\n} int g() { }", 6, "'}' does not fit"),
        ("int f() {\n  return 1\u2028; }", 2, r"'\u2028' does not fit"),
        (" * end of a comment */\nint f(int a) { return a; }", 1, "does not fit"),
    ],
)
def test_text_with_errors_is_read_as_far_as_the_parser_recovers(code, line, what) -> None:
    flow = extract_dataflow(code, "java")
    assert flow.problem.startswith(f"line {line}: ") and what in flow.problem
    assert "return" in flow.tokens


def test_a_piece_that_closes_the_class_itself_is_not_read_as_inside_one() -> None:
    flow = extract_dataflow("} int f(int x) { return x;", "java")
    assert flow.problem.startswith("line 1: ") and flow.tokens[0] == "}"


def test_comments_that_cannot_be_removed_are_no_tokens() -> None:
    flow = extract_dataflow("x = 1)  # one\ny = x  # two\n", "python")
    assert flow.problem and flow.tokens == ["x", "=", "1", ")", "y", "=", "x"]


def test_missing_tokens_at_one_place_are_one_to_the_rules() -> None:
    code = "void f(){ x; int = { }"
    assert extract_dataflow(code, "java").tokens[-2:] == ["", ""]
    edges = extract_dataflow(code, "java").edges
    assert edges == [Edge(13, "comesFrom", (8,)), Edge(13, "comesFrom", (8,))]


def test_broken_rules_do_not_lose_the_rest() -> None:
    code = "void f(int a) { int b = a; for (T v : ) { use(b); } if (a) { b = ; } use(b); "
    flow = extract_dataflow(code, "java")
    assert flow.problem and any(edge.parent_indices == (4,) for edge in flow.edges)
    flow = extract_dataflow(
        "def f(a):\n    for in a:\n        x = a\n    b = \n    a.b = 'c'\n", "python"
    )
    assert flow.problem and any(edge.parent_indices for edge in flow.edges)
