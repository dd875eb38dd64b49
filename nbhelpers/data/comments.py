"""Source text without comments and docstrings, as GraphCodeBERT's preparation leaves it.

Java: a comment becomes one blank, and strings and characters are known, so that `"//"` stays.
Python: comments and docstrings go, and tokens are set out again at their columns. The rules for
Python are those of the `tokenize` module of Python 3.11, kept here because later versions tokenise
f-strings and faulty code otherwise; text that it cannot tokenise stays as it is.

Source: `remove_comments_and_docstrings` in microsoft/CodeBERT,
GraphCodeBERT/clonedetection/parser/utils.py at commit 15034c0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

TAB_STOP = 8

_JAVA_START = re.compile(r"//|/\*|['\"]")
_JAVA_LITERAL = {
    quote: re.compile(rf"[^\\{quote}]*(?:\\.[^\\{quote}]*)*{quote}", re.DOTALL) for quote in "'\""
}

_PREFIX = r"(?:[bB][rR]?|[rR][bBfF]?|[fF][rR]?|[uU])?"
_PYTHON_TOKEN = re.compile(
    r"[ \f\t]*(?:"
    r"(?P<join>\\\r?\n|\Z)"
    r"|(?P<comment>\#[^\r\n]*)"
    rf"|(?P<long>{_PREFIX}(?:'''|\"\"\"))"
    r"|(?P<newline>\r?\n)"
    rf"|(?P<string>{_PREFIX}(?:"
    r"'[^\n'\\]*(?:\\.[^\n'\\]*)*(?:'|\\\r?\n)"
    r"|\"[^\n\"\\]*(?:\\.[^\n\"\\]*)*(?:\"|\\\r?\n)))"
    r"|(?P<other>\w+|!=|[-%&()*+,./:;<=>@\[\]^{|}~])"
    r")"
)
_PYTHON_END = {
    "'": re.compile(r"[^'\\]*(?:\\.[^'\\]*)*'"),
    '"': re.compile(r'[^"\\]*(?:\\.[^"\\]*)*"'),
    "'''": re.compile(r"[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''"),
    '"""': re.compile(r'[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""'),
}


class _CannotTokenise(Exception):
    """The text ends inside a string or a bracket, or its indentation fits no outer level."""


class _Piece(NamedTuple):
    """A token: where it starts and ends, lines from 1 and columns in characters from 0."""

    kind: str  # comment, string, newline (ends a statement), indent, other
    text: str
    line: int
    column: int
    end_line: int
    end_column: int


def remove_comments(code: str, language: str) -> str:
    r"""Return the text without comments, docstrings (Python) and blank lines.

    >>> remove_comments("int f() { // one\n\n  return 1; /* two\n */ }", "java")
    'int f() {  \n  return 1;   }'
    >>> remove_comments('def f():\n    "Say one."\n    return 1  # one\n', "python")
    'def f():\n    return 1  '
    """
    return "\n".join(text for _, text in stripped_lines(code, language))


def stripped_lines(code: str, language: str) -> list[tuple[int, str]]:
    """Return the lines that `remove_comments` joins, each with its number in `code` (from 1).

    Raises:
        KeyError: The language is neither "java" nor "python".
    """
    try:
        lines = {"java": _java_lines, "python": _python_lines}[language](code)
    except _CannotTokenise:
        return list(enumerate(code.split("\n"), start=1))
    return [(number, text) for number, text in lines if text.strip()]


class _Lines:
    """Text under construction that remembers where each of its lines began."""

    def __init__(self) -> None:
        self._done: list[tuple[int, str]] = []
        self._parts: list[str] = []
        self._began = 1

    def add(self, text: str, line: int) -> None:
        """Append text that starts at a line of the source."""
        first, *rest = text.split("\n")
        self._parts.append(first)
        for offset, part in enumerate(rest, start=1):
            self._done.append((self._began, "".join(self._parts)))
            self._began, self._parts = line + offset, [part]

    def finish(self) -> list[tuple[int, str]]:
        """Every line with the number of the line of the source in which it begins."""
        return [*self._done, (self._began, "".join(self._parts))]


def _java_lines(code: str) -> list[tuple[int, str]]:
    lines = _Lines()
    kept, line = 0, 1
    for start, end in _java_comments(code):
        lines.add(code[kept:start] + " ", line)
        line += code.count("\n", kept, end)
        kept = end
    lines.add(code[kept:], line)
    return lines.finish()


def _java_comments(code: str) -> Iterator[tuple[int, int]]:
    """Yield the span of each comment; what opens and never closes is ordinary text.

    One opener that found no end says that no later one of its kind finds one either (a quote that
    is passed over is an escaped one, and what follows it is read alike), so the time is linear.
    """
    endless: set[str] = set()
    found = _JAVA_START.search(code)
    while found:
        start, opener = found.span()[0], found.group()
        end = -1 if opener in endless else _java_end(code, opener, found.end())
        if end < 0:
            endless.add(opener)
        elif opener[0] == "/":
            yield start, end
        found = _JAVA_START.search(code, end if end >= 0 else start + 1)


def _java_end(code: str, opener: str, start: int) -> int:
    """Return where what `opener` opens ends, or -1."""
    if opener == "//":
        end = code.find("\n", start)
        return len(code) if end < 0 else end
    if opener == "/*":
        end = code.find("*/", start)
        return end + 2 if end >= 0 else -1
    closed = _JAVA_LITERAL[opener].match(code, start)
    return closed.end() if closed else -1


def _python_lines(code: str) -> list[tuple[int, str]]:
    """Set the tokens out at their columns; a line is not broken where a backslash joins it."""
    lines = _Lines()
    before, last_line, last_column = "indent", 0, 0
    for piece in _PythonScanner(code).pieces():
        if piece.line > last_line:
            last_column = 0
        if piece.column > last_column:
            lines.add(" " * (piece.column - last_column), piece.line)
        docstring = piece.kind == "string" and (
            before in ("indent", "newline") or piece.column == 0
        )
        if piece.kind != "comment" and not docstring:
            lines.add(piece.text, piece.line)
        before, last_line, last_column = piece.kind, piece.end_line, piece.end_column
    return lines.finish()


class _PythonScanner:
    """The token stream of Python 3.11, as far as comments, strings and statements tell apart."""

    def __init__(self, code: str) -> None:
        self.lines = code.split("\n")
        self.lines = [line + "\n" for line in self.lines[:-1]] + self.lines[-1:]
        self.depth = 0  # of brackets
        self.joined = False  # the line before ended in a backslash
        self.blank_end = False  # the last line is white space, without a line end
        self.indents = [0]
        # An open string: where and how it began, what ends it. `short` (it may go on only after a
        # backslash) is not reset by a string that breaks off, as in the original.
        self.open: tuple[int, int, str, re.Pattern[str]] | None = None
        self.short = False

    def pieces(self) -> Iterator[_Piece]:
        """Yield the tokens in order.

        Raises:
            _CannotTokenise: `tokenize` of Python 3.11 would raise here.
        """
        for number, line in enumerate(self.lines, start=1):
            if not line:
                break
            column = 0
            if self.open:
                column, pieces = self._go_on(number, line)
                yield from pieces
            elif not self.depth and not self.joined:
                column, pieces = self._begin(number, line)
                yield from pieces
            self.joined = False
            yield from self._rest(number, line, column)
        if self.open or self.depth or self.joined:
            raise _CannotTokenise
        last = self.lines[-1]
        if last and not self.blank_end and last[-1] != "\r" and last.strip()[:1] != "#":
            end = (len(self.lines), len(last))
            yield _Piece("newline", "", *end, *end)

    def _go_on(self, number: int, line: str) -> tuple[int, list[_Piece]]:
        """Continue an open string; return the column after it and the token that it ends."""
        assert self.open is not None
        start_line, start_column, text, pattern = self.open
        closed = pattern.match(line)
        if closed:
            end = closed.end()
            self.open, self.short = None, False
            whole = text + line[:end]
            return end, [_Piece("string", whole, start_line, start_column, number, end)]
        end = len(line)
        if self.short and not line.endswith(("\\\n", "\\\r\n")):
            self.open = None
            return end, [_Piece("other", text + line, start_line, start_column, number, end)]
        self.open = (start_line, start_column, text + line, pattern)
        return end, []

    def _begin(self, number: int, line: str) -> tuple[int, list[_Piece]]:
        """Read the indentation of a statement, or a whole line that holds none."""
        start = len(line) - len(line.lstrip(" \t\f"))
        rest, end = line[start:], len(line)
        if not rest:
            self.blank_end = True
            return end, []
        if rest[0] in "#\r\n":
            comment = rest.rstrip("\r\n") if rest[0] == "#" else ""
            column = start + len(comment)
            blank = _Piece("other", line[column:], number, column, number, end)
            if not comment:
                return end, [blank]
            return end, [_Piece("comment", comment, number, start, number, column), blank]
        width, pieces = _width(line[:start]), []
        if width > self.indents[-1]:
            self.indents.append(width)
            pieces.append(_Piece("indent", line[:start], number, 0, number, start))
        while width < self.indents[-1]:
            if width not in self.indents:
                raise _CannotTokenise
            self.indents.pop()
            pieces.append(_Piece("other", "", number, start, number, start))
        return start, pieces

    def _rest(self, number: int, line: str, column: int) -> Iterator[_Piece]:
        """Tokens from a column to the end of the line, or to a string that goes on."""
        while column < len(line) and not self.open:
            match = _PYTHON_TOKEN.match(line, column)
            kind = match.lastgroup if match else None
            if match is None or kind is None:  # a character that begins no token
                yield _Piece("other", line[column], number, column, number, column + 1)
                column += 1
                continue
            start, column = match.span(kind)
            text = match[kind]
            if kind == "join":
                self.joined = bool(text)
                continue
            if kind in ("long", "string"):
                column = self._string(number, line, start, text)
                if self.open:
                    return
                kind, text = "string", line[start:column]
            elif kind == "newline" and self.depth > 0:
                kind = "other"
            elif text in ("(", "[", "{"):
                self.depth += 1
            elif text in (")", "]", "}"):
                self.depth -= 1
            yield _Piece(kind, text, number, start, number, column)

    def _string(self, number: int, line: str, start: int, text: str) -> int:
        """Return where a string ends, or open it."""
        long = text.endswith(("'''", '"""')) and len(text.lstrip("bBrRfFuU")) == 3
        quote = text.lstrip("bBrRfFuU")[: 3 if long else 1]
        if not long:
            if text[-1] != "\n":
                return start + len(text)
            self.short = True
        else:
            closed = _PYTHON_END[quote].match(line, start + len(text))
            if closed:
                return closed.end()
        self.open = (number, start, line[start:], _PYTHON_END[quote])
        return len(line)


def _width(blanks: str) -> int:
    """Columns that leading white space stands for."""
    width = 0
    for blank in blanks:
        if blank == "\t":
            width = (width // TAB_STOP + 1) * TAB_STOP
        else:
            width = 0 if blank == "\f" else width + 1
    return width
