"""Promise: long and deep code takes seconds, never a crash; a graph that would explode is refused.

The bounds in seconds are generous: on an idle core each case takes about a tenth of them.
"""

from __future__ import annotations

import sys
import time

import pytest
from dataflow_reference import reference_edges

from nbhelpers.data.dataflow import extract_dataflow
from nbhelpers.data.dataflow_program import DataFlow, Edge
from nbhelpers.errors import DataFlowUnavailable

pytestmark = pytest.mark.slow

DEPTH, LENGTH = 200, 5_000


def method(body: str) -> str:
    return f"void f(int a, int n) {{ {body} }}"


def nested(opening: str, core: str, closing: str, depth: int = DEPTH) -> str:
    """`#` stands for the level."""
    levels = range(depth)
    head = " ".join(opening.replace("#", str(level)) for level in levels)
    return f"{head} {core} {' '.join(closing.replace('#', str(k)) for k in reversed(levels))}"


def within(seconds: float, code: str, language: str) -> DataFlow:
    """Extract the flow in this time; a deep tree needs no recursion."""
    began, limit = time.process_time(), sys.getrecursionlimit()
    sys.setrecursionlimit(250)
    try:
        flow = extract_dataflow(code, language)
    finally:
        sys.setrecursionlimit(limit)
    assert time.process_time() - began < seconds
    assert flow.problem == "" and flow.edges
    return flow


NESTED = {
    "for": ("for (int i# = 0; i# < n; i#++) { s += i#;", "s++;", "s -= i#; }"),
    "while": ("while (a < n) { a = a + #; x# = a;", "s++;", "y# = x#; }"),
    "for each": ("for (T x# : n) {", "s = n;", "n = x#; }"),
    "while and if": ("while (a) { if (b) { a = #; } x# = 1;", "use(a);", "if (c) y# = x#; }"),
    "if": ("if (a > #) { a = #;", "s = a;", "} else { a++; }"),
    "else": ("if (a > #) { a = #; } else {", "s = a;", "}"),
    "block": ("{", "a = n;", "}"),
    "try": ("try { a = n;", "s = a;", "} catch (E e) { a = e; }"),
    "lambda": ("x = (a#) -> {", "y = a0;", "};"),
}


@pytest.mark.parametrize("name", NESTED)
def test_two_hundred_levels(name: str) -> None:
    within(30, method(nested(*NESTED[name])), "java")


@pytest.mark.parametrize("name", NESTED)
def test_a_few_levels_equal_the_plain_walk(name: str) -> None:
    code = method(nested(*NESTED[name], depth=7))
    assert [(t, k, list(p)) for t, k, p in extract_dataflow(code, "java").edges] == reference_edges(
        code, "java"
    )


LONG = {
    "concatenation": "s = " + " + ".join(f'"t{k}" + x{k}' for k in range(LENGTH // 2)) + ";",
    "concatenation in a loop": f"while (n) {{ s = {' + '.join(f'x{k}' for k in range(LENGTH))}; }}",
    "statements": " ".join(f"a{k + 1} = a{k};" for k in range(LENGTH)),
    "calls": "a" + "".join(f".m{k}(n)" for k in range(LENGTH)) + ";",
    "else if": " else ".join(f"if (a == {k}) x = {k};" for k in range(2 * LENGTH)) + " use(x);",
    "ifs that read": " ".join(f"if (x == {k}) x = {k};" for k in range(LENGTH // 2)),
    "parentheses": f"x = {'(' * LENGTH}a{')' * LENGTH};",
}


@pytest.mark.parametrize("name", LONG)
def test_long_code(name: str) -> None:
    flow = within(30, method(LONG[name]), "java")
    if name == "else if":  # every outcome is possible after it
        assert flow.tokens[flow.edges[-1].token_index] == "x"
        assert len(flow.edges[-1].parent_indices) == 2 * LENGTH


def test_long_python() -> None:
    names = [f"x{k}" for k in range(LENGTH // 2)]
    flow = within(30, " = ".join(names) + "\n", "python")
    assert flow.edges[0] == Edge(0, "computedFrom", tuple(range(2, LENGTH, 2)))
    within(30, f"s = {' + '.join(names)}\n", "python")
    branches = "".join(f"elif a == {k}:\n    x = {k}\n" for k in range(2 * LENGTH))
    flow = within(30, f"if a:\n    x = 0\n{branches}use(x)\n", "python")
    assert len(flow.edges[-1].parent_indices) == 2 * LENGTH + 1


@pytest.mark.parametrize(
    "body",
    [
        " = ".join(f"a{k}" for k in range(LENGTH)) + ";",
        " = ".join(f"a{k}" for k in range(3 * LENGTH)) + ";",
        " ".join(f"if (x == {k}) x = {k};" for k in range(2 * LENGTH)),
    ],
)
def test_a_graph_that_grows_with_the_square_is_refused_beyond_the_bound(body: str) -> None:
    began = time.process_time()
    with pytest.raises(DataFlowUnavailable, match="more than 8,000,000 edges"):
        extract_dataflow(method(body), "java")
    assert time.process_time() - began < 30
