"""What an audit compares of a program: its words, its fixed places, and its masked statements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from nbhelpers.common.code_words import code_words

CLASSES = ("human", "ai")
CHARACTERS_READ = 100_000  # of one program, where its text is compared; its layout is read whole
PREFIX_TOKENS = 8
LINES_SHOWN = 80  # characters of a line that are kept to name it
ANY_NUMBER = "\ue000"  # stands for digits: a private character, which no program holds by chance

# Words that stay when names are masked: they carry the shape of a statement.
_WORDS_KEPT = """
async await bool boolean break byte case catch char class const continue def default do double
elif else end enum except extends false final finally float fn for foreach from func function if
implements import in include int interface is lambda let local long namespace new none not null
package pass private protected public raise return self short signed static str string struct
switch template then this throw throws true try typedef unsigned using var void while with yield
"""
_KEPT = frozenset(_WORDS_KEPT.split())
# What opens and never closes goes on to the end: a search that gave up there would begin anew at
# each later opener, and take a time that grows with the square of the length.
_STRING = (
    r'"""(?:[^"\\]|\\.|"(?!""))*(?:"""|\Z)|' + r"'''(?:[^'\\]|\\.|'(?!''))*(?:'''|\Z)|"
    r'"(?:[^"\\\n]|\\.)*"?|' + r"'(?:[^'\\\n]|\\.)*'?|`[^`\n]*`?"
)
_REST = r"|(?P<number>\d[\w.]*)|(?P<word>[^\W\d]\w*)|(?P<sign>[^\w\s])|(?P<end>\n)"
_HASH = re.compile(rf"(?P<comment>\#[^\n]*)|(?P<string>{_STRING}){_REST}", re.DOTALL)
_SLASH = re.compile(
    rf"(?P<comment>//[^\n]*|/\*(?:[^*]|\*(?!/))*(?:\*/|\Z))|(?P<string>{_STRING}){_REST}", re.DOTALL
)
_HASH_LANGUAGES = {"python", "ruby", "perl", "r", "bash", "shell", "sh", "julia", "elixir", "nim"}
_OPERATORS = re.compile(r"(?:[+\-*/%<>!&|^~?] )+(?:= )*|(?:= ){2,}")
_RUN = re.compile(r"(?<!\S)[v0](?: [,.o] [v0](?!\S))+")

_DIGITS = re.compile(r"\d+")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_COMMENT = re.compile(r"(?:(?<=\s)|^)(?:\#+|//+|--)[ \t]*([^\n]+)|/\*+\s*([^\n*]+)", re.MULTILINE)


def statements(code: str, language: str) -> list[str]:
    r"""Return a program's statements with names as `v`, numbers and texts as `0`, operators as `o`.

    Comments are left out, and runs of names or numbers count once, so that what fills a template
    (names, numbers, operators, texts, lists) does not show.

    >>> statements("total = price + 3  # sum\nf([1, 2])", "python")
    ['v = v', 'v ( [ 0 ] )']
    """
    parts, line = [], []
    pattern = _HASH if language in _HASH_LANGUAGES else _SLASH
    for match in pattern.finditer(code, 0, CHARACTERS_READ):
        kind, text = match.lastgroup, match[0]
        if kind == "end" or text in ";{}":
            parts.append(" ".join(line))
            line = []
        elif kind == "word":
            line.append(text if text.lower() in _KEPT else "v")
        elif kind in ("number", "string"):
            line.append("0")
        elif kind == "sign":
            line.append(text)
    parts.append(" ".join(line))
    return [masked for part in parts if part and (masked := _masked(part)) not in ("", "0")]


@lru_cache(maxsize=20_000)
def _masked(line: str) -> str:
    return _RUN.sub(lambda run: run[0][0], _OPERATORS.sub("o ", f"{line} ").rstrip())


def units(code: str) -> set[tuple[str, str]]:
    r"""Return what could be a tag, as (place, text): words, lines, comments, first and last tokens.

    Each also stands with `ANY_NUMBER` for its digits, so that a tag with a number of its own in
    each row is one tag.

    >>> found = units("# Task: 17\nx = 1\n")
    >>> ("first line", "# Task: 17") in found, ("word", "Task") in found
    (True, True)
    >>> ("start", f"# Task : {ANY_NUMBER}") in found
    True
    """
    text = code[:CHARACTERS_READ]
    words = code_words(text)
    candidates = {("word", part) for word in set(words) for part in _word_parts(word)}
    lines = [stripped for line in text.splitlines() if (stripped := line.strip())]
    candidates |= {("line", both) for line in set(lines) for both in _both(line[:LINES_SHOWN])}
    for comment in {(one or other).strip() for one, other in _COMMENT.findall(text)}:
        candidates |= {("comment", both) for both in _both(comment[:LINES_SHOWN])}
    if lines:
        candidates |= {("first line", both) for both in _both(lines[0][:LINES_SHOWN])}
        candidates |= {("last line", both) for both in _both(lines[-1][:LINES_SHOWN])}
    candidates.update(_ends(words))
    return candidates | {("character", sign) for sign in set(code) - _PLAIN}


_PLAIN = {chr(number) for number in range(0x20, 0x7F)} | {"\n"}


def _ends(words: list[str]) -> Iterator[tuple[str, str]]:
    for length in range(1, min(PREFIX_TOKENS, len(words)) + 1):
        for both in _both(" ".join(words[:length])):
            yield "start", both
        for both in _both(" ".join(words[-length:])):
            yield "end", both


def _both(text: str) -> tuple[str, ...]:
    masked = _DIGITS.sub(ANY_NUMBER, text)
    return (text,) if masked == text else (text, masked)


@lru_cache(maxsize=200_000)
def _word_parts(word: str) -> tuple[str, ...]:
    """The word, also without its digits, and what camelCase and underscores join, in lower case."""
    parts = {*_both(word), word.lower()}
    if len(word) > 1:
        parts.update(part.lower() for part in _PARTS.findall(word))
    return tuple(parts)
