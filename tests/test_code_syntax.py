"""Guards: code is cut into tokens as Python cuts it, and no text can end the judge of syntax."""

from __future__ import annotations

import ast
import bisect
import colorsys
import heapq
import io
import keyword
import random
import re
import textwrap
import threading
import tokenize
import warnings
from pathlib import Path
from types import ModuleType

import pytest

from nbhelpers.metrics.python_code import (
    DEDENT,
    EMPTY,
    INDENT,
    LINE_END,
    MAX_CODE_CHARS,
    NO_STATEMENT,
    NUL,
    SURROGATE,
    TOO_DEEP,
    TOO_LONG,
    code_tokens,
    syntax_errors_of,
)

# Tokens.


def cut_by_python(code: str) -> list[str]:
    """Return the tokens by Python's own `tokenize`, strings and comments cut into words."""
    layout = {tokenize.NEWLINE: LINE_END, tokenize.INDENT: INDENT, tokenize.DEDENT: DEDENT}
    words, found = re.compile(r"\w+|[^\w\s]"), []
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type in layout:
            found.append(layout[token.type])
        elif token.type == tokenize.COMMENT:
            found += words.findall(token.string)
        elif token.type == tokenize.STRING:
            head = re.match(r"\w*('''|\"\"\"|'|\")", token.string)
            start, quote = head.group(), head.group(1)
            found += [start, *words.findall(token.string[len(start) : -len(quote)]), quote]
        elif token.type not in (tokenize.NL, tokenize.ENDMARKER):
            found.append(token.string)
    return found


@pytest.mark.parametrize("module", [bisect, colorsys, heapq, keyword, textwrap])
def test_valid_code_is_cut_as_python_cuts_it(module: ModuleType) -> None:
    # Modules without f-strings, which from 3.12 on are many tokens to Python and one here.
    code = Path(str(module.__file__)).read_text(encoding="utf-8")
    assert code_tokens(code) == cut_by_python(code)


@pytest.mark.parametrize(
    "code",
    [
        "x = 0x1F + 1_000.5e-3j - .5 ** 2 // 3\n",
        "a = b'x' rb'\\'' u\"é\"\nif a:\n\tpass\n  \n# c\nelse:\n        x\n",
        "f(a,\n  b)\nx = 1 + \\\n    2\ndef f(*a, **k) -> None: ...\n",
        "x: int = (y := 3) != 4; z @= 1; w >>= 2\n",
        "'''a\n b'''\nclass A:\n  '''d'''\n  def f(self):\n    return 1\nx\n",
    ],
)
def test_tokens_of_special_cases_are_pythons(code: str) -> None:
    assert code_tokens(code) == cut_by_python(code)


def test_code_that_python_cannot_cut_is_cut_by_the_same_rules() -> None:
    broken = "def f(x:\n  return 'abc\n"
    with pytest.raises((tokenize.TokenError, SyntaxError, AssertionError)):
        assert "'abc" not in "".join(cut_by_python(broken)), "an error token, or an exception"
    assert code_tokens(broken) == ["def", "f", "(", "x", ":", "return", "'", "abc"]
    assert code_tokens("x = $y ? 2") == ["x", "=", "$", "y", "?", "2", LINE_END]


def test_no_token_holds_white_space_and_no_other_sign_is_lost() -> None:
    chance = random.Random(0)
    signs = "ab1_.'\"#\\()[]{}\n\t\r\f \x1c\x00\u2003é🙂\ud800=<>!:f"
    for _ in range(300):
        text = "".join(chance.choices(signs, k=chance.randrange(60)))
        found = code_tokens(text)
        assert all(token.split() == [token] for token in found)
        plain = [token for token in found if token not in (LINE_END, INDENT, DEDENT)]
        kept = "".join(text.replace("\\\r\n", "").replace("\\\r", "").replace("\\\n", "").split())
        assert "".join(plain).replace("\\", "") == kept.replace("\\", "")


# Syntax.


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("def f(x):\n    return x\n", None),
        ("pattern = '\\d'", None),
        ("", EMPTY),
        (" \n\t\n", EMPTY),
        ("# only a comment\n", NO_STATEMENT),
        ("x = 'abc", "unterminated string"),
        ("x = '''abc\n", "unterminated string"),
        ("f(1", "unclosed bracket"),
        ("f(1))", "unmatched bracket"),
        ("(1]", "unmatched bracket"),
        ("if x:\npass", "missing indented block"),
        ("  x = 1", "unexpected indent"),
        ("if x:\n        y\n    z", "unindent matches no level"),
        ("if x:\n\ty\n        z", "mixed tabs and spaces"),
        ("print 'a'", "print without parentheses"),
        ("try:\n    x\n", "try without except"),
        ("if x\n    y", "missing colon"),
        ("[1 2]", "missing comma"),
        ("1 = x", "invalid assignment target"),
        ("x = 0777", "invalid number"),
        ("x = \u201ca\u201d", "invalid character"),
        ("x = = 1", "invalid syntax"),
        ("x = 1\0", NUL),
        ("x = '\ud800'", SURROGATE),
    ],
)
def test_each_kind_of_error_is_told_apart(code: str, kind: str | None) -> None:
    assert syntax_errors_of([code]) == [kind]


HOSTILE = {
    "nested parentheses": ("(" * 100_000 + ")" * 100_000, TOO_DEEP),
    "unary chain": ("-" * 100_000 + "1", TOO_DEEP),
    "sum": ("1" + "+1" * 90_000, TOO_DEEP),
    "attributes": ("a" + ".b" * 90_000, TOO_DEEP),
    "lambdas": ("lambda:" * 20_000 + "1", TOO_DEEP),
    "calls": ("f" + "()" * 90_000, TOO_DEEP),
    "elif": ("if a:\n pass\n" + "elif b:\n pass\n" * 10_000, TOO_DEEP),
    "indentation": ("".join(" " * n + "if x:\n" for n in range(300)), TOO_DEEP),
    "a line of 1 MB": ("x = '" + "y" * 1_000_000 + "'", TOO_LONG),
    "statements of 1 MB": ("a;" * 500_000, TOO_LONG),
    "digits": ("x = " + "1" * 10_000, "invalid number"),
}


def test_no_hostile_text_ends_the_judge_even_in_a_small_thread() -> None:
    """In 512 KiB of stack, which is what a thread has elsewhere, `ast.parse` itself can crash."""
    codes, found, begin = [code for code, _ in HOSTILE.values()], [], threading.Event()

    def judge() -> None:
        begin.wait()  # until the size of stacks is put back: `syntax_errors_of` sets it too
        found.extend(syntax_errors_of(codes))

    before = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=judge)
        thread.start()
    finally:
        threading.stack_size(before)
    begin.set()
    thread.join()
    assert found == [kind for _, kind in HOSTILE.values()]


def test_warnings_of_judged_code_are_not_shown_and_do_not_matter() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert syntax_errors_of(["x = '\\d'", "1 is 1"]) == [None, None]


def test_the_parsers_stack_size_is_put_back() -> None:
    before = threading.stack_size(1024 * 1024)
    syntax_errors_of(["x"])
    assert threading.stack_size(before) == 1024 * 1024


def test_a_python_of_any_kind_agrees_with_ast_parse_on_real_code(root: Path) -> None:
    code = (root / "nbhelpers" / "errors.py").read_text(encoding="utf-8")
    pieces = [code[start : start + 700] for start in range(0, len(code), 97)]
    for piece, error in zip(pieces, syntax_errors_of(pieces), strict=True):
        try:
            parses = bool(ast.parse(piece).body)
        except SyntaxError:
            parses = False
        assert (error is None) == parses


def test_a_text_at_the_limit_is_still_parsed() -> None:
    text = "x = '" + "y" * (MAX_CODE_CHARS - 6) + "'"
    assert syntax_errors_of([text, text + " "]) == [None, TOO_LONG]
