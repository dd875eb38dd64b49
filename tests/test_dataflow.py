"""Promise: a function's data flow is GraphCodeBERT's, and a missing one has a reason.

Expected edges are written as "token kind parents"; they were checked by hand against the rules.
"""

from __future__ import annotations

import pickle

import pytest

from nbhelpers.data.dataflow import extract_dataflow
from nbhelpers.data.dataflow_program import Edge
from nbhelpers.errors import ConfigError, DataFlowUnavailable


def edges(code: str, language: str = "java", compat: str = "maintained") -> list[str]:
    flow = extract_dataflow(code, language, grammar_compat=compat)
    return [" ".join(map(str, (e.token_index, e.kind, *e.parent_indices))) for e in flow.edges]


JAVA = {
    "a use comes from the parameter": (
        "int f(int a) { return a; }",
        "int f ( int a ) { return a ; }",
        ["4 comesFrom", "8 comesFrom 4"],
    ),
    "a declared name comes from each part of its value": (
        "void f() { int b = a + 1; }",
        "void f ( ) { int b = a + 1 ; }",
        ["6 comesFrom 8", "6 comesFrom 10", "8 comesFrom", "10 comesFrom"],
    ),
    "a declaration without a value starts a name": (
        "void f() { int a, b = a; }",
        "void f ( ) { int a , b = a ; }",
        ["6 comesFrom", "8 comesFrom 10", "10 comesFrom 6"],
    ),
    "an assignment computes its target and reads the value before": (
        "void f(int a) { a = a + b; }",
        "void f ( int a ) { a = a + b ; }",
        ["4 comesFrom", "7 computedFrom 9", "7 computedFrom 11", "9 comesFrom 4", "11 comesFrom"],
    ),
    "a compound assignment does not read its target": (
        "void f() { s += t; }",
        "void f ( ) { s += t ; }",
        ["5 computedFrom 7", "7 comesFrom"],
    ),
    "an update computes each of its variables from each": (
        "void f() { i++; a[i]--; }",
        "void f ( ) { i ++ ; a [ i ] -- ; }",
        [
            *("5 computedFrom 5", "8 computedFrom 8", "8 computedFrom 10"),
            *("10 computedFrom 8", "10 computedFrom 10"),
        ],
    ),
    "after an if both outcomes are possible": (
        "void f(int x) { if (c) { x = 1; } use(x); }",
        "void f ( int x ) { if ( c ) { x = 1 ; } use ( x ) ; }",
        ["4 comesFrom", "12 computedFrom 14", "14 comesFrom", "19 comesFrom 4 12"],
    ),
    "with an else the state before stays possible too": (
        "void f(int x) { if (c) { x = 1; } else { x = 2; } use(x); }",
        "void f ( int x ) { if ( c ) { x = 1 ; } else { x = 2 ; } use ( x ) ; }",
        [
            *("4 comesFrom", "12 computedFrom 14", "14 comesFrom"),
            *("19 computedFrom 21", "21 comesFrom", "26 comesFrom 4 12 19"),
        ],
    ),
    "each branch sees the state before the if": (
        "void f() { if (x > 0) use(x); else use(x); use(x); }",
        "void f ( ) { if ( x > 0 ) use ( x ) ; else use ( x ) ; use ( x ) ; }",
        [
            *("7 comesFrom", "11 comesFrom", "13 comesFrom 7", "17 comesFrom", "19 comesFrom"),
            *("22 comesFrom 11 17", "24 comesFrom 7 19"),
        ],
    ),
    "a while is walked twice, so the end of its body reaches its start": (
        "void f(int x) { while (x < n) { use(x); x = x + 1; } }",
        "void f ( int x ) { while ( x < n ) { use ( x ) ; x = x + 1 ; } }",
        [
            *("4 comesFrom", "9 comesFrom 4 19", "11 comesFrom 11", "14 comesFrom 14"),
            *("16 comesFrom 4 19", "19 computedFrom 21 23", "21 comesFrom 4 19", "23 comesFrom"),
        ],
    ),
    "a for repeats what follows its declaration": (
        "void f() { for (int i = 0; i < n; i++) { s = s + i; } }",
        "void f ( ) { for ( int i = 0 ; i < n ; i ++ ) { s = s + i ; } }",
        [
            *("8 comesFrom 10", "10 comesFrom", "12 comesFrom 8 16", "14 comesFrom 14"),
            *("16 computedFrom 16", "20 computedFrom 22 24", "22 comesFrom 20", "24 comesFrom 16"),
        ],
    ),
    "a for without a declaration is walked once": (
        "void f() { for (i = 0; i < n; i++) s = i; }",
        "void f ( ) { for ( i = 0 ; i < n ; i ++ ) s = i ; }",
        [
            *("7 computedFrom 9", "9 comesFrom", "11 comesFrom 7", "15 computedFrom 15"),
            *("18 computedFrom 20", "20 comesFrom 15"),
        ],
    ),
    "a for each computes its name from the collection": (
        "void f() { for (int v : a) { s += v; } use(v); }",
        "void f ( ) { for ( int v : a ) { s += v ; } use ( v ) ; }",
        [
            *("8 computedFrom 10", "10 comesFrom 10", "13 computedFrom 15", "15 comesFrom 8"),
            "20 comesFrom 8",
        ],
    ),
    "a do is no loop to the rules": (
        "void f() { do { x = y; } while (x < 1); }",
        "void f ( ) { do { x = y ; } while ( x < 1 ) ; }",
        ["7 computedFrom 9", "9 comesFrom", "14 comesFrom 7"],
    ),
    "a literal that was part of a target has a state": (
        "void f() { a[0] = x; use(0); }",
        "void f ( ) { a [ 0 ] = x ; use ( 0 ) ; }",
        ["5 computedFrom 10", "7 computedFrom 10", "10 comesFrom", "14 comesFrom 7"],
    ),
    "a type is a variable by its text": (
        "void f() { Foo = 1; Foo g; }",
        "void f ( ) { Foo = 1 ; Foo g ; }",
        ["5 computedFrom 7", "7 comesFrom", "9 comesFrom 5"],
    ),
    "a variable named like its kind of node is taken for a keyword": (
        "void f(int identifier) { return identifier; }",
        "void f ( int identifier ) { return identifier ; }",
        [],
    ),
}

PYTHON = {
    "a default gives its parameter a value": (
        "def f(a, b=a):\n    return b\n",
        "def f ( a , b = a ) : return b",
        ["3 comesFrom", "5 comesFrom 7", "7 comesFrom 3", "11 comesFrom 5"],
    ),
    "parts pair off where their numbers are equal": (
        "a, b = c, d\n",
        "a , b = c , d",
        ["0 computedFrom 4", "2 computedFrom 6", "4 comesFrom", "6 comesFrom"],
    ),
    "attributes pair off like tuples": (
        "a.b = c.d\n",
        "a . b = c . d",
        ["0 computedFrom 4", "2 computedFrom 6", "4 comesFrom", "6 comesFrom"],
    ),
    "else each target is computed from the whole": (
        "a, b = c\n",
        "a , b = c",
        ["0 computedFrom 4", "2 computedFrom 4", "4 comesFrom"],
    ),
    "an annotation alone does nothing": (
        "x: int\ny: int = x\n",
        "x : int y : int = x",
        ["3 computedFrom 7", "7 comesFrom"],
    ),
    "a chained target is computed from all to its right": (
        "a = b = c\n",
        "a = b = c",
        ["0 computedFrom 2 4", "2 computedFrom 4", "4 comesFrom"],
    ),
    "a walrus is no assignment to the rules": (
        "if (n := g(m)):\n    use(n)\n",
        "if ( n := g ( m ) ) : use ( n )",
        ["2 comesFrom", "12 comesFrom 2"],
    ),
    "without an else the state before stays possible": (
        "x = 0\nif a:\n    x = 1\nelif b:\n    x = 2\nuse(x)\n",
        "x = 0 if a : x = 1 elif b : x = 2 use ( x )",
        [
            *("0 computedFrom 2", "2 comesFrom", "6 computedFrom 8", "8 comesFrom"),
            *("12 computedFrom 14", "14 comesFrom", "17 comesFrom 0 6 12"),
        ],
    ),
    "with an else it does not": (
        "x = 0\nif a:\n    x = 1\nelse:\n    x = 2\nuse(x)\n",
        "x = 0 if a : x = 1 else : x = 2 use ( x )",
        [
            *("0 computedFrom 2", "2 comesFrom", "6 computedFrom 8", "8 comesFrom"),
            *("11 computedFrom 13", "13 comesFrom", "16 comesFrom 6 11"),
        ],
    ),
    "a for is walked twice": (
        "for i in a:\n    s = s + i\n",
        "for i in a : s = s + i",
        [
            *("1 computedFrom 3", "3 comesFrom 3", "5 computedFrom 7 9", "7 comesFrom 5"),
            "9 comesFrom 1",
        ],
    ),
    "a for with an else shows neither its body nor the else": (
        "for i in a:\n    s = i\nelse:\n    t = i\nuse(t)\n",
        "for i in a : s = i else : t = i use ( t )",
        ["1 computedFrom 3", "3 comesFrom 3"],
    ),
    "values of a while go round": (
        "while a:\n    a = b\n    b = a\n",
        "while a : a = b b = a",
        [
            *("1 comesFrom 3", "3 computedFrom 5", "5 comesFrom 6", "6 computedFrom 8"),
            "8 comesFrom 3",
        ],
    ),
    "the loop of a comprehension comes before its result": (
        "y = [v for v in z]\n",
        "y = [ v for v in z ]",
        ["0 computedFrom 3 5 7", "3 comesFrom 5", "5 computedFrom 7", "7 comesFrom"],
    ),
    "a string is one token, whatever is inside": (
        'x = f"{a} b"\n',
        'x = f"{a}·b"',
        ["0 computedFrom 2", "2 comesFrom"],
    ),
}


@pytest.mark.parametrize("name", JAVA)
def test_java(name: str) -> None:
    code, tokens, expected = JAVA[name]
    assert extract_dataflow(code, "java").tokens == tokens.split(" ")
    assert edges(code) == expected


@pytest.mark.parametrize("name", PYTHON)
def test_python(name: str) -> None:
    code, tokens, expected = PYTHON[name]
    flow = extract_dataflow(code, "python")
    assert [token.replace(" ", "·") for token in flow.tokens] == tokens.split(" ")
    assert edges(code, "python") == expected


def test_the_result_is_plain_data() -> None:
    flow = extract_dataflow("int f(int a) { return a; }", "java")
    assert flow.edges[1] == Edge(8, "comesFrom", (4,)) == (8, "comesFrom", (4,))
    assert pickle.loads(pickle.dumps(flow)) == flow and flow.problem == ""
    assert repr(flow) == "DataFlow(11 tokens, 2 edges)"


def test_comments_and_docstrings_are_no_tokens() -> None:
    code = 'int f(int a) { // a "quote\n  /* int b; */ return a; }'
    assert extract_dataflow(code, "java").tokens == JAVA["a use comes from the parameter"][1].split(
        " "
    )
    code = 'def f(a):\n    """Docs."""  # more\n    return a\n'
    assert extract_dataflow(code, "python").tokens[-3:] == [":", "return", "a"]


@pytest.mark.parametrize(
    ("code", "strings"),
    [
        ('"""Module\ndocs."""\nx = 1\n', ""),
        ('def f():\n    # why\n    "gone"\n    x = "a"\n', '"a"'),
        ('def f():\n    f"""gone {docs}"""\n    return f"{a}#"\n', 'f"{a}#"'),
        ('def f(): "a"\n', '"a"'),
        ('class A:\n    "gone"\n\nx = "a"\n', '"a"'),
        # A string statement counts as a docstring after any statement, not after an empty line, a
        # comment or the end of a block.
        ('x = 1\nif x:\n  y = 2  # c\n  "gone"\n', ""),
        ('if x:\n  y = 2\n\n  "a"\n', '"a"'),
        ('if x:\n  y = 2\n  # c\n  "a"\n', '"a"'),
        ('if x:\n  if y:\n    z = 2\n  "a"\n', '"a"'),
        ('if x:\n  if y: z = 2\n  "gone"\n', ""),
        # In the first column every string goes, even inside a list.
        ('x = [\n"gone",\n  "a"]\n', '"a"'),
        ('if x:\n\ty = "a"\n\t"gone"\n', '"a"'),
    ],
)
def test_docstrings_are_what_the_original_takes_for_them(code: str, strings: str) -> None:
    tokens = extract_dataflow(code, "python").tokens
    assert " ".join(token for token in tokens if '"' in token) == strings


def test_tabs_and_continued_lines_leave_no_trace() -> None:
    code = "if x:\n    y = 1 + x\n    z = y\n"
    for other in (code.replace("    ", "\t"), code.replace("1 + x", "1 + \\\n    x")):
        assert extract_dataflow(other, "python") == extract_dataflow(code, "python")


def test_a_literal_is_split_or_whole_as_asked() -> None:
    code = 'void f() { s = "a b"; use("a b"); c = \'x\'; t = "a\\n"; u = ""; }'
    split = extract_dataflow(code, "java").tokens
    whole = extract_dataflow(code, "java", grammar_compat="checkpoint").tokens
    assert split[5:10] == ["s", "=", '"', "a b", '"']
    assert whole[5:8] == ["s", "=", '"a b"'] and '"a\\n"' in whole and '""' in whole
    assert "'x'" in split and "'x'" in whole
    assert edges(code, compat="checkpoint")[:2] == ["5 computedFrom 7", "7 comesFrom"]


def test_a_text_block_loses_its_line_ends_only() -> None:
    code = 'void f() { s = """\n  a\n  b"""; }'
    whole = extract_dataflow(code, "java", grammar_compat="checkpoint").tokens
    assert whole[7] == '"""  a  b"""'
    assert "  a  b" in extract_dataflow(code, "java").tokens


def test_a_string_as_long_as_its_target_stops_the_original_and_says_so() -> None:
    code = 'def f(self):\n    # why\n    self.name = "abc"\n    return self\n'
    flow = extract_dataflow(code, "python")
    assert flow.edges == [] and len(flow.tokens) == 13
    assert flow.problem.startswith("line 3: ") and 'grammar_compat="checkpoint"' in flow.problem
    other = extract_dataflow(code, "python", grammar_compat="checkpoint")
    assert other.problem == "" and Edge(8, "computedFrom", (10,)) in other.edges
    assert edges('self.a = ""\n', "python") == [
        *("0 computedFrom 4", "2 computedFrom 4", "4 comesFrom")
    ]


@pytest.mark.parametrize("name", JAVA)
def test_what_surrounds_a_piece_leaves_no_trace(name: str) -> None:
    method = JAVA[name][0]
    bare = extract_dataflow(method, "java")
    both = extract_dataflow(f"Unseen() {{ }}\n{method}", "java")
    assert both.problem == "" and both.tokens == ["Unseen", "(", ")", "{", "}", *bare.tokens]
    moved = [Edge(t + 5, kind, tuple(p + 5 for p in parents)) for t, kind, parents in bare.edges]
    assert both.edges == moved


def test_text_beyond_ascii_gives_the_graph_of_its_ascii_twin() -> None:
    twin = 'int fu(int ae) { String s = "xx" + ae; /* o */ while (ae < s) { ae++; } return s; }'
    code = (
        twin.replace("ae", "\u00e4\u03a9")
        .replace("xx", "\u20ac\U0001f600")
        .replace("fu", "f\u00fc")
    )
    ours, plain = extract_dataflow(code, "java"), extract_dataflow(twin, "java")
    assert ours.edges == plain.edges and len(ours.edges) > 5
    back = [t.replace("\u00e4\u03a9", "ae").replace("\u20ac\U0001f600", "xx") for t in ours.tokens]
    assert [token.replace("f\u00fc", "fu") for token in back] == plain.tokens
    python = (
        'def f(\u00e4):\n  """\u00fc."""\n  \u00df = "\u20ac" + \u00e4; return \u00df  # \u00f6\n'
    )
    assert extract_dataflow(python, "python").tokens[6:9] == ["\u00df", "=", '"\u20ac"']
    assert edges(python, "python")[-1] == "13 comesFrom 6"


@pytest.mark.parametrize(
    ("code", "language", "reason"),
    [
        ("", "java", "empty"),
        (" \n\t", "python", "empty"),
        ("// only this\n/* and this */", "java", "only comments"),
        ('"""Docs."""\n# more\n', "python", "only comments"),
        ('int f() { return "\ud800"; }', "java", "lone surrogate at character 18"),
        ("int f();", "cobol", "'cobol'"),
        ("int f();", "Java", "'Java'"),
        ("int f();", ["java"], "'java'"),
        (b"int f();", "java", "type bytes"),
        (None, "java", "type NoneType"),
    ],
)
def test_a_missing_graph_has_a_reason(code: str, language: str, reason: str) -> None:
    with pytest.raises(DataFlowUnavailable, match=reason) as caught:
        extract_dataflow(code, language)
    assert caught.value.fix and caught.value.exit_code == 5


def test_an_unknown_grammar_compat_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="maintained, checkpoint"):
        extract_dataflow("int f();", "java", grammar_compat="2020")


def test_a_missing_grammar_says_what_to_install(monkeypatch) -> None:
    from nbhelpers.data import syntax

    syntax.grammar.cache_clear()
    monkeypatch.setitem(syntax.PACKAGES, "java", "tree-sitter-absent")
    with pytest.raises(DataFlowUnavailable, match="pip install -U tree-sitter tree-sitter-absent"):
        extract_dataflow("int f();", "java")
    syntax.grammar.cache_clear()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_do_not_matter(end: str) -> None:
    code = "int f(int a) {\n  // one\n  return a;\n}"
    assert extract_dataflow(code.replace("\n", end), "java") == extract_dataflow(code, "java")


def test_a_byte_order_mark_is_no_token() -> None:
    code = "int f(int a) { return a; }"
    assert extract_dataflow("\ufeff" + code, "java") == extract_dataflow(code, "java")


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
