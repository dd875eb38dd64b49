"""Promise: comments and docstrings go as GraphCodeBERT's preparation removes them, nothing else.

Where Python is 3.11, the text is compared with one built on that version's own `tokenize`.
"""

from __future__ import annotations

import io
import random
import sys
import time
import tokenize

import pytest

from nbhelpers.data.syntax import remove_comments, stripped_lines


@pytest.mark.parametrize(
    ("code", "left"),
    [
        ("a; // one\nb;", "a;  \nb;"),
        ("a /* one */ b", "a   b"),
        ("a /* one\ntwo */ b\n", "a   b"),
        ("a;\n\n \t\n// one\nb;", "a;\nb;"),
        ('s = "// no"; c = \'"\'; // yes', 's = "// no"; c = \'"\';  '),
        ('s = "a\\"// no"; // yes', 's = "a\\"// no";  '),
        ("c = '\\''; // yes", "c = '\\'';  "),
        ("a /* never closed // b", "a /* never closed  "),
        ("it's // gone", "it's  "),
        ("it's // not 'gone'", "it's // not 'gone'"),
        ("/*/ a */ b", "  b"),
        ("/**/a", " a"),
        ("a / b // c", "a / b  "),
        ("a // b\r\nc", "a  \nc"),
        ('"two\nlines // in" // a', '"two\nlines // in"  '),
        ("/* only */", ""),
        ("", ""),
    ],
)
def test_java(code: str, left: str) -> None:
    assert remove_comments(code, "java") == left


@pytest.mark.parametrize(
    ("code", "left"),
    [
        ("x = 1  # one\n", "x = 1  "),
        ("# one\nx = '# no'\n", "x = '# no'"),
        ('def f():\n    """Docs."""\n    return 1\n', "def f():\n    return 1"),
        ('def f():\n    "Docs."\n    x = "kept"\n', 'def f():\n    x = "kept"'),
        ('"""Module\ndocs."""\nx = 1\n', "x = 1"),
        ('def f():\n    f"""no {docs}"""\n    return f"{a}#"\n', 'def f():\n    return f"{a}#"'),
        # A string statement counts as a docstring after any statement, not after an empty line.
        ('x = 1\nif x:\n  y = 2\n  "gone"\n', "x = 1\nif x:\n  y = 2"),
        ('if x:\n  y = 2\n\n  "stays"\n', 'if x:\n  y = 2\n  "stays"'),
        # In the first column every string goes, even inside a list.
        ('x = [\n"gone",\n  "stays"]\n', 'x = [\n,\n  "stays"]'),
        # What a backslash joins becomes one line; tabs between tokens become blanks.
        ("x = 1 + \\\n    y\n", "x = 1 +    y"),
        ("x\t=\t1\n", "x = 1"),
        ("if x:\n\ty = 1\n\tz = 2\n", "if x:\n\ty = 1\n z = 2"),
        ("x = '''a\n# b\n'''\n", "x = '''a\n# b\n'''"),
        ('x = rb"\\"#" + Rb\'#\' # gone\n', 'x = rb"\\"#" + Rb\'#\' '),
        ("x = f'{a!r:>{w}}#' # gone", "x = f'{a!r:>{w}}#' "),
        ("x = $ ? ` # gone\n", "x = $ ? ` "),
        ("x = 'never closed # gone\ny = 1\n", "x = 'never closed \ny = 1"),
        ("", ""),
        ("# only\n", ""),
    ],
)
def test_python(code: str, left: str) -> None:
    assert remove_comments(code, "python") == left


@pytest.mark.parametrize(
    "code",
    [
        "x = (1,  # a bracket that stays open\n",
        "x = '''a string that stays open # here\n",
        "if x:\n    y = 1  # indented\n  z = 2\n",
        "x = 1 \\\n",
        "x = 1)  # one bracket too many\ny = 2\n",
    ],
)
def test_python_that_cannot_be_tokenised_stays_as_it_is(code: str) -> None:
    assert remove_comments(code, "python") == code


def test_lines_keep_their_numbers() -> None:
    code = "a; /* 1\n2\n3 */ b;\n\nc; // 5\n/* 6\n7 */ d;\n"
    assert stripped_lines(code, "java") == [(1, "a;   b;"), (5, "c;  "), (6, "  d;")]
    code = '"""1\n2"""\nx = 1\n\n# 5\ny = (1,\n  # 7\n  2)\n"9"\nz = 3 \\\n  + 4\n'
    assert [number for number, _ in stripped_lines(code, "python")] == [3, 6, 8, 10]


@pytest.mark.parametrize("piece", ["'\\", "/*", '"\\', "//*", "'\"", "\\'"])
def test_the_time_for_java_is_linear(piece: str) -> None:
    began = time.perf_counter()
    remove_comments(piece * 200_000, "java")
    assert time.perf_counter() - began < 5


def _by_tokenize(code: str) -> str:
    """The text that this Python's own tokens give when the comments and docstrings are left out."""
    text, row, column, last = "", 0, 0, tokenize.INDENT
    try:
        for kind, string, start, end, _ in tokenize.generate_tokens(io.StringIO(code).readline):
            column = 0 if start[0] > row else column
            text += " " * (start[1] - column)
            is_docstring = last in (tokenize.INDENT, tokenize.NEWLINE) or start[1] == 0
            if kind != tokenize.COMMENT and not (kind == tokenize.STRING and is_docstring):
                text += string
            (row, column), last = end, kind
    except (tokenize.TokenError, IndentationError):
        return code
    return "\n".join(line for line in text.split("\n") if line.strip())


PIECES = (
    *("'", '"', "'''", '"""', "\\", "\n", "\n", "\n", " ", "    ", "\t", "\f", "\r\n", "\r", "#"),
    *("# c", "(", ")", "[", "]", "{", "}", "f", "rb", "u", "bu", "0x", "1", "x", "$", "!=", "="),
    *(":", "def f():\n", "    x = 1\n", '"doc"', 'f"{x}"', "\\\n", "b'a'", "\u00e9", "\u00b2"),
)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="tokenize of Python 3.11 is the rule")
def test_python_equals_the_tokenizer_of_python_3_11_on_random_text() -> None:
    draw = random.Random(0)
    for _ in range(4000):
        code = "".join(draw.choice(PIECES) for _ in range(draw.randrange(1, 25)))
        assert remove_comments(code, "python") == _by_tokenize(code), code
