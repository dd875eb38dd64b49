"""Python code as text: whether it parses, and how it is cut into tokens for BLEU."""

from __future__ import annotations

import ast
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from nbhelpers.common.code_words import code_words

# ------------------------------------------------------------------------------------------------
# Whether a text is Python that parses, and if not, what kind of error stands in the way.
#
# No text may end the process that judges it. CPython guards its parser with limits of its own (200
# nested brackets, 100 levels of indentation, 6,000 parser frames, a depth of the syntax tree), but
# those fit the stack of a main thread: in a thread with 512 KiB a chain of 2,900 `lambda:` was
# measured to kill Python 3.11, 3.12 and 3.13. So texts are parsed in a thread whose stack is large
# enough for those limits, and texts above `MAX_CODE_CHARS` are refused unread: a line of 500,000
# statements took 0.9 GB and seconds.
#
# What parses is not yet right: `return` outside a function passes, and so does a single word.


T, R = TypeVar("T"), TypeVar("R")
MAX_CODE_CHARS = 200_000  # far above any answer: 32,768 tokens of code are about 130,000 characters
STACK_BYTES = 64 * 2**20  # virtual memory; only pages that are touched become real
_STACK_SIZE = threading.Lock()  # the size for new threads is one setting of the whole process

EMPTY, NO_STATEMENT = "empty answer", "no statement"
TOO_LONG = f"longer than {MAX_CODE_CHARS:,} characters"
NUL, SURROGATE, TOO_DEEP = "NUL character", "lone surrogate", "nested too deep"

# A part of the parser's message, in any of Python 3.11 to 3.13, and the kind it stands for. First
# match wins. The texts are CPython's (Parser/tokenizer.c, Grammar/python.gram, Parser/pegen.c).
_KINDS = (
    ("null byte", NUL),
    ("too many nested", TOO_DEEP),
    ("too many statically nested", TOO_DEEP),
    ("too many levels of indentation", TOO_DEEP),
    ("unterminated", "unterminated string"),
    ("was never closed", "unclosed bracket"),
    ("unexpected eof", "unexpected end"),
    ("unmatched", "unmatched bracket"),
    ("does not match opening", "unmatched bracket"),
    ("inconsistent use of tabs", "mixed tabs and spaces"),
    ("expected an indented block", "missing indented block"),
    ("unindent does not match", "unindent matches no level"),
    ("unexpected indent", "unexpected indent"),
    ("unexpected unindent", "unexpected indent"),
    ("missing parentheses in call", "print without parentheses"),
    ("multiple exception types must be parenthesized", "except without parentheses"),
    ("expected 'except' or 'finally'", "try without except"),
    ("forgot a comma", "missing comma"),
    ("expected ':'", "missing colon"),
    ("f-string", "f-string"),
    ("cannot assign", "invalid assignment target"),
    ("cannot delete", "invalid assignment target"),
    ("illegal target", "invalid assignment target"),
    ("maybe you meant '=='", "invalid assignment target"),
    ("line continuation", "line continuation"),
    ("integer string conversion", "invalid number"),
    ("leading zeros", "invalid number"),
    ("literal", "invalid number"),
    ("invalid digit", "invalid number"),
    ("invalid character", "invalid character"),
    ("non-printable", "invalid character"),
    ("codec can't decode", "invalid escape"),
    ("argument", "invalid arguments"),
    ("follows parameter", "invalid arguments"),
    ("expected one or more names", "invalid syntax"),
    ("invalid syntax", "invalid syntax"),
)


def syntax_errors_of(codes: Sequence[str]) -> list[str | None]:
    """Return per text the kind of its first syntax error; None where it parses.

    A text without a statement counts as an error although `ast.parse` accepts it: "empty answer"
    where nothing but white space stands, "no statement" where there are only comments. Warnings,
    such as the one about an invalid escape, are no errors and are not shown. Texts are read by the
    grammar of the running Python.

    >>> syntax_errors_of(["x = 1", "x = (1", "print 'a'", " "])
    [None, 'unclosed bracket', 'print without parentheses', 'empty answer']
    """
    return with_deep_stack(_kinds, codes)


def with_deep_stack(function: Callable[[T], R], argument: T) -> R:
    """Call `function(argument)` in a thread whose stack holds the parser's deepest recursion.

    What the function raises is raised here.
    """
    returned: list[R] = []
    raised: list[BaseException] = []

    def call() -> None:
        try:
            returned.append(function(argument))
        except BaseException as error:  # handed to the caller below
            raised.append(error)

    thread = threading.Thread(target=call, name="deep-stack", daemon=True)
    with _STACK_SIZE:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if raised:
        raise raised[0]
    return returned[0]


def _kinds(codes: Sequence[str]) -> list[str | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [_kind(code) for code in codes]


def _kind(code: str) -> str | None:
    if not code.strip():
        return EMPTY
    if len(code) > MAX_CODE_CHARS:
        return TOO_LONG
    try:
        return None if ast.parse(code).body else NO_STATEMENT
    except SyntaxError as error:  # IndentationError and TabError are kinds of it
        return _kind_of_message(error)
    except (RecursionError, MemoryError):  # the parser's own limits, reached before the stack's end
        return TOO_DEEP
    except UnicodeEncodeError:
        return SURROGATE
    except ValueError as error:  # Python 3.11 says it so of a NUL
        return NUL if "null bytes" in str(error) else "ValueError"


def _kind_of_message(error: SyntaxError) -> str:
    message = str(error.msg).lower()
    for part, kind in _KINDS:
        if part in message:
            return kind
    return f"other {type(error).__name__}"


# ------------------------------------------------------------------------------------------------
# Python code cut into tokens for BLEU: the same cut for code that runs and for code that does not.
#
# Python's own `tokenize` is no even-handed judge of generated code: it stops at an unterminated
# string, so a wrong answer would need another cut than its reference, and it cuts f-strings
# differently from version to version. These rules follow its lexical grammar, apply to any text,
# and agree with it on code that it accepts (a test compares them). `TOKENIZER` names them; a change
# of the rules changes the name, since scores of different cuts are not comparable.


TOKENIZER = "nb-python-1"
TAB_STOP = 8  # columns, as in Python's own reading of indentation
# Marks of layout. Code cannot contain them as one token: its `<` is an operator of its own.
LINE_END, INDENT, DEDENT = "<line>", "<indent>", "<dedent>"

_TOKEN = re.compile(
    r"""
    (?P<comment>\#[^\n]*)
  | (?P<string>[rRbBuUfFtT]{0,2}(?P<quote>\"{3}|'{3}|\"|'))
  | (?P<number>0[xX][0-9a-fA-F_]+ | 0[bB][01_]+ | 0[oO][0-7_]+
      | (?:[0-9][0-9_]*\.?(?:[0-9][0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9][0-9_]*)?[jJ]?)
  | (?P<name>\w+)
  | (?P<line>\n)
  | (?P<joined>\\\n)
  | (?P<op>\*\*=|//=|>>=|<<=|\.\.\.|!=|->|:=|\*\*|//|>>|<<|[-+*/%@&|^=<>]=|[^\s])
  | (?P<space>[^\S\n]+)
    """,
    re.VERBOSE,
)
# What stands in a string up to its end; an unclosed one ends with its line, or with the text.
_BODY = {
    "'": re.compile(r"(?:[^'\\\n]++|\\.)*+", re.DOTALL),
    '"': re.compile(r'(?:[^"\\\n]++|\\.)*+', re.DOTALL),
    "'''": re.compile(r"(?:[^'\\]++|\\.|'(?!''))*+", re.DOTALL),
    '"""': re.compile(r'(?:[^"\\]++|\\.|"(?!""))*+', re.DOTALL),
}


def code_tokens(code: str) -> list[str]:
    """Return the tokens of any text, read as Python.

    Names, numbers and operators are one token each. A string is its opening quote with prefix, the
    words and signs of its body, and its closing quote; a comment is cut into words and signs. The
    end of a logical line and each step of indentation are tokens too, since they are Python's
    grammar; other white space is none. No token holds white space.

    >>> code_tokens("def f(x):\\n    return x+1")
    ['def', 'f', '(', 'x', ')', ':', '<line>', '<indent>', 'return', 'x', '+', '1', '<line>', '<dedent>']
    >>> code_tokens("print('no end")
    ['print', '(', "'", 'no', 'end']
    """  # noqa: E501 (the doctest needs its line)
    return list(_Reader(code.replace("\r\n", "\n").replace("\r", "\n")).tokens())


class _Reader:
    """One pass over a text: where it is, which columns are open, and how deep the brackets are."""

    def __init__(self, code: str) -> None:
        self.code, self.place = code, 0
        self.columns, self.depth, self.in_line = [0], 0, False

    def tokens(self) -> Iterator[str]:
        line_start = 0
        while token := _TOKEN.match(self.code, self.place):
            start, self.place = token.start(), token.end()
            kind = str(token.lastgroup) if token.lastgroup != "quote" else "string"
            if kind == "line":
                line_start = self.place
                yield from self._end_line()
            elif kind == "comment":
                yield from code_words(token.group())
            elif kind not in ("space", "joined"):
                if not self.in_line and self.depth == 0:
                    yield from self._indentation(self.code[line_start:start])
                self.in_line = True
                yield from self._string(token) if kind == "string" else self._plain(token.group())
        yield from self._end_line()
        yield from [DEDENT] * (len(self.columns) - 1)

    def _end_line(self) -> Iterator[str]:
        """End the logical line; empty lines and line ends inside brackets are not one."""
        if self.in_line and self.depth == 0:
            self.in_line = False
            yield LINE_END

    def _indentation(self, before: str) -> Iterator[str]:
        column = len(before.rpartition("\f")[2].expandtabs(TAB_STOP))
        if column > self.columns[-1]:
            self.columns.append(column)
            yield INDENT
        while column < self.columns[-1]:
            self.columns.pop()
            yield DEDENT

    def _plain(self, token: str) -> Iterator[str]:
        if token in "([{":
            self.depth += 1
        elif token in ")]}":
            self.depth = max(0, self.depth - 1)
        yield token

    def _string(self, opening: re.Match[str]) -> Iterator[str]:
        quote = opening.group("quote")
        yield opening.group("string")
        body = _BODY[quote].match(self.code, self.place)
        assert body is not None, "a body may be empty, so it always matches"
        self.place = body.end()
        yield from code_words(body.group())
        if self.code.startswith(quote, self.place):
            self.place += len(quote)
            yield quote
