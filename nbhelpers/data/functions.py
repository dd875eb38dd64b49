"""The functions of a program in Java or Python, cut out by its syntax tree."""

from __future__ import annotations

from dataclasses import dataclass

from nbhelpers.data.syntax import PACKAGES, Tree, parse, parse_root

LANGUAGES = tuple(PACKAGES)
_KINDS = frozenset({"method_declaration", "constructor_declaration", "function_definition"})
_DECORATED = "decorated_definition"
_FAULTS = frozenset({"ERROR"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function as written, without the indentation that all its lines share.

    `line`: where it begins, from 1; `fault`: why it cannot be trusted, or "".
    """

    name: str
    line: int
    code: str
    fault: str = ""


def functions_of(code: str, language: str) -> list[Function]:
    r"""Return the outermost functions with a body, in their order; those inside are a part of them.

    Args:
        code: A program, a class, or functions alone.
        language: "java" or "python".

    Raises:
        DataFlowUnavailable: The language's grammar is not installed.

    >>> [f.name for f in functions_of("class A {\n  int f() { return 1; }\n  A() { }\n}", "java")]
    ['f', 'A']
    >>> functions_of("class A:\n    def f(self):\n        return 1\n", "python")[0].code
    'def f(self):\n    return 1'
    """
    tree = parse(code.encode("utf-8", "replace"), language, whole=frozenset())
    functions, node = [], 0
    while node < len(tree.kinds):
        if tree.kinds[node] not in _KINDS or tree.field(node, "body") is None:
            node += 1
            continue
        functions.append(_function(tree, node))
        node = tree.ends[node]
    return functions


def _function(tree: Tree, node: int) -> Function:
    first = tree.parents[node] if tree.parent_kind(node) == _DECORATED else node
    name = tree.field(node, "name")
    start, stop = tree.starts[first], tree.stops[node]
    line_start = tree.source.rfind(b"\n", 0, start) + 1
    indent = tree.source[line_start:start]
    text = tree.source[start:stop].decode("utf-8", "replace")
    if not indent.strip():
        shared = indent.decode()
        text = "\n".join(line.removeprefix(shared) for line in text.split("\n"))
    kinds = tree.kinds[node : tree.ends[node]]
    fault = "it does not parse" if _FAULTS.intersection(kinds) else ""
    named = tree.text(name) if name is not None else "function"
    return Function(name=named, line=tree.line_of(first), code=text, fault=fault)


def language_of_code(code: str) -> str:
    """Return the first language in which a text parses without an error; Java where none does.

    >>> language_of_code("def f(x): return x"), language_of_code("int f(int x) { return x; }")
    ('python', 'java')
    """
    return next((name for name in LANGUAGES if is_clean(code, name)), "java")


def is_clean(code: str, language: str) -> bool:
    """Whether a program parses without an error, a missing brace too; else functions may be lost.

    >>> is_clean("class A { int f() { return 1; }", "java"), is_clean("x = 1", "python")
    (False, True)
    """
    return parse_root(code.encode("utf-8", "replace"), language)[2]
