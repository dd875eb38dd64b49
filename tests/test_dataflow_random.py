"""Promise: the fast form of the rules gives what walking the tree plainly gives."""

from __future__ import annotations

import random

import pytest
from dataflow_reference import reference_edges

from nbhelpers.data.dataflow import extract_dataflow

NAMES = "abcdeT"


class Writer:
    """Random programs of few names, so that values meet; depth is bounded."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def name(self) -> str:
        return self.draw.choice(NAMES)

    def one_of(self, *templates: str) -> str:
        """A template with each `$` replaced by a name."""
        return "".join(self.name() if char == "$" else char for char in self.draw.choice(templates))

    def java(self, depth: int) -> str:
        plain = self.one_of(
            *("$ = $ + $;", "$++;", "--$[$];", "int $ = $;", "T $;", "use($, 0);", "$[0] = $;"),
            *("$ += $ = $;", "$ = ($) -> { $ = $; };", "$.$ = $ > 1 ? $ : $;"),
            *('String $ = "$" + $;', "if ($) $ = $;", "if ($) if ($) $ = 1; else use($);", ""),
        )
        if depth == 0:
            return plain
        inner = " ".join(self.java(self.draw.randrange(depth)) for _ in range(3))
        frame = self.one_of(
            *("while ($ < $) {#}", "for (int $ = $; $ < 3; $++) {#}", "for ($ = 0; ; ) {#}"),
            *("for (T $ : $) {#}", "do {#} while ($);", "if ($) {#}", "if ($) {#} else { $ = $; }"),
            *(
                "if ($) { $ = 1; } else if ($) {#}",
                "if ($) {} else {#}",
                "try {#} finally { $++; }",
            ),
            *("switch ($) { case 1: $ = $; break; default: # }", "synchronized ($) {#}"),
        )
        return f"{plain} {frame.replace('#', inner)}"

    def python(self, depth: int, pad: str = "    ") -> str:
        plain = self.one_of(
            *("$ = $ + $", "$ += 1", "$, $ = $, $", "$, $ = $", "$ = $ = $", "use($, 0)"),
            *("$[0] = $", "$: int", "$: int = $", "($ := $)", "$ = [$ for $ in $ if $]", "pass"),
            *("$ = lambda $, b=$: $", "$.a = $.b", "$ = 'x'", "return $", "del $", "$ = *$, $"),
        )
        if depth == 0:
            return f"{pad}{plain}\n"
        more = pad + "    "
        inner = "".join(self.python(self.draw.randrange(depth), more) for _ in range(3))
        frame = self.one_of(
            *("while $ < $:\n#", "for $ in $:\n#", "for $, $ in $:\n#", "for $ in $, $:\n#"),
            *("for $ in $:\n@ $ = $\n@else:\n#", "if $:\n#", "if $:\n@ $ = $\n@elif $:\n#"),
            *("if $:\n@ $ = $\n@elif $:\n@ $ = 1\n@else:\n#", "with $ as $:\n#"),
            *("try:\n#@except $ as $:\n@ $ = $\n", "def g($, b=$):\n#", "while $:\n#@else:\n@ $\n"),
        )
        return f"{pad}{plain}\n{pad}{frame.replace('@', pad).replace('#', inner)}"


@pytest.mark.parametrize("seed", range(60))
def test_java(seed: int) -> None:
    body = Writer(seed).java(seed % 5)
    code = f"void f(int a, T b) {{ {body} return a; }}"
    flow = extract_dataflow(code, "java")
    assert flow.problem == ""
    assert [(t, k, list(p)) for t, k, p in flow.edges] == reference_edges(code, "java"), code


@pytest.mark.parametrize("seed", range(60))
def test_python(seed: int) -> None:
    code = "def f(a, b=c):\n" + Writer(seed).python(seed % 5)
    flow = extract_dataflow(code, "python")
    assert flow.problem == ""
    assert [(t, k, list(p)) for t, k, p in flow.edges] == reference_edges(code, "python"), code


@pytest.mark.parametrize("depth", range(1, 9))
@pytest.mark.parametrize("seed", range(3))
def test_deeply_nested_loops(depth: int, seed: int) -> None:
    draw = random.Random(100 * depth + seed)
    code = "use(a);"
    for level in range(depth):
        before, after = Writer(draw.randrange(10**6)), Writer(draw.randrange(10**6))
        head = draw.choice(("while (a)", f"for (int i = {level}; i < a; i++)", "for (T b : c)"))
        code = f"{before.java(0)} {head} {{ {before.java(0)} {code} {after.java(0)} }}"
    code = f"void f() {{ {code} }}"
    flow = extract_dataflow(code, "java")
    assert flow.problem == ""
    assert [(t, k, list(p)) for t, k, p in flow.edges] == reference_edges(code, "java"), code
