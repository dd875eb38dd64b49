"""Python code cut into tokens for BLEU: the same cut for code that runs and for code that does not.

Python's own `tokenize` is no even-handed judge of generated code: it stops at an unterminated
string, so a wrong answer would need another cut than its reference, and it cuts f-strings
differently from version to version. These rules follow its lexical grammar, apply to any text, and
agree with it on code that it accepts (a test compares them). `TOKENIZER` names them; a change of
the rules changes the name, since scores of different cuts are not comparable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

TOKENIZER = "nb-python-1"
TAB_STOP = 8  # columns, as in Python's own reading of indentation
# Marks of layout. Code cannot contain them as one token: its `<` is an operator of its own.
LINE_END, INDENT, DEDENT = "<line>", "<indent>", "<dedent>"

_WORD = re.compile(r"\w+|[^\w\s]")
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
        while found := _TOKEN.match(self.code, self.place):
            start, self.place = found.start(), found.end()
            kind = str(found.lastgroup) if found.lastgroup != "quote" else "string"
            if kind == "line":
                line_start = self.place
                yield from self._end_line()
            elif kind == "comment":
                yield from _WORD.findall(found.group())
            elif kind not in ("space", "joined"):
                if not self.in_line and self.depth == 0:
                    yield from self._indentation(self.code[line_start:start])
                self.in_line = True
                yield from self._string(found) if kind == "string" else self._plain(found.group())
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
        yield from _WORD.findall(body.group())
        if self.code.startswith(quote, self.place):
            self.place += len(quote)
            yield quote
