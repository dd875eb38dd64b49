"""How a test problem is asked: the words around the data set's own text."""

from __future__ import annotations

import ast
import builtins
import warnings
from collections.abc import Sequence

HUMANEVAL_QUESTION = (
    "Complete this Python function so that it does what its docstring says. "
    "Write out the whole function."
)
_OWN_NAMES = frozenset(dir(builtins))


def called_name(test: str, reference: str = "") -> str | None:
    """Name of the function that a test calls: one that the reference defines, else the outermost.

    A reference may define a name that Python has too (`sum`).

    >>> called_name("assert set(similar((1, 2))) == {1}", "def similar(x): return x")
    'similar'
    >>> called_name("assert math.isclose(area(2), 4)"), called_name("assert True")
    ('area', None)
    """
    called, defined = _called(test), _defined(reference)
    own = [name for name in called if name in defined]
    return next(iter([*own, *(name for name in called if name not in _OWN_NAMES)]), None)


def _called(source: str) -> list[str]:
    tree = _parse(source)
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree else []
    return [call.id for call in calls if isinstance(call, ast.Name)]


def _defined(source: str) -> set[str]:
    tree = _parse(source)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = {node.name for node in ast.walk(tree) if isinstance(node, kinds)} if tree else set()
    return found


def _parse(source: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def mbpp_question(text: str, reference: str, tests: Sequence[str]) -> str:
    """MBPP's question with the function's name and its first test.

    The text alone names no function, and the tests call one. The authors show all tests; here the
    first one is shown, which tells the name, the order of the arguments and the type of the result,
    and the others stay hidden.

    Source: Austin et al., "Program Synthesis with Large Language Models", arXiv 2108.07732,
    section 2.1 (tests in the prompt).

    >>> print(mbpp_question("Write a function to double.", "", ["assert twice(2) == 4"]))
    Write a function to double.
    Name it `twice`. It has to pass this test:
    assert twice(2) == 4
    """
    text = text.strip()
    test = next((test.strip() for test in tests if test.strip()), "")
    name = called_name(test, reference)
    if not name:
        return text
    return f"{text}\nName it `{name}`. It has to pass this test:\n{test}"
