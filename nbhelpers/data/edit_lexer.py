"""Tokens of languages with braces, without a grammar: enough to move white space and comments.

A text of which the tokens are not certain is refused: an open string, a bracket without its
partner, a slash in JavaScript that may divide or begin a pattern, markup inside of a script.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .edit_tree import Unsure
from .edit_words import words

LANGUAGES = ("c", "cpp", "csharp", "javascript", "typescript", "go", "rust", "kotlin")
# A line end can end a statement there.
BY_LINE = frozenset({"javascript", "typescript", "go", "kotlin"})
SCRIPTS = frozenset({"javascript", "typescript"})
COMMENT_KINDS = frozenset({"line", "block"})

_SIGNS = sorted(
    words(
        ">>>= <<= >>= >>> ... === !== **= &&= ||= ??= <=> ->* ..= ..< -> ++ -- << >> <= >= == != "
        "&& || += -= *= /= %= &= |= ^= :: := <- => ?. ?? ?: ** .. &^ !! ##"
    ),
    key=len,
    reverse=True,
)
_LITERALS = {
    "c": r"(?:u8|[LuU])?\"(?:\\.|[^\"\\\n])*\"|(?:u8|[LuU])?'(?:\\.|[^'\\\n])+'",
    "csharp": r"'(?:\\.[0-9A-Fa-f]*|[^'\\\n])'",
    "javascript": r"\"(?:\\(?s:.)|[^\"\\\n])*\"|'(?:\\(?s:.)|[^'\\\n])*'",
    "go": r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'|`[^`]*`",
    "rust": r"[bc]?\"(?:\\(?s:.)|[^\"\\])*\"|b?'(?:\\(?:x..|u\{[^}]*\}|.)|[^'\\\n])'",
    "kotlin": r"'(?:\\u....|\\.|[^'\\\n])'",
}
_LITERALS |= {"cpp": _LITERALS["c"], "typescript": _LITERALS["javascript"]}
_LINE = r"//[^\n]*"
_LINES = {"c": r"//(?:\\\n|[^\n])*", "cpp": r"//(?:\\\n|[^\n])*"}
_DIRECTIVES = {
    "c": r"\#[ \t]*include[ \t]*<[^>\n]*>|\#[ \t]*(?:error|warning|pragma)(?:\\\n|[^\n])*",
    "csharp": r"\#(?:\\\n|[^\n])*",
    "javascript": r"\#!(?<=\A\#!)[^\n]*",
}
_DIRECTIVES |= {"cpp": _DIRECTIVES["c"], "typescript": _DIRECTIVES["javascript"]}
# Strings that only a scan can read: they nest, or say themselves how they end.
_OPENERS = {
    "cpp": r"(?:u8|[LuU])?R\"[^()\\\s]{0,16}\(",
    "csharp": r"[$@]*\"",
    "javascript": r"`",
    "typescript": r"`",
    "rust": r"[bc]?r\#*\"",
    "kotlin": r"\"\"\"|\"",
}
_NESTED = frozenset({"rust", "kotlin"})
_PARTNER = {")": "(", "]": "[", "}": "{"}
# Behind these words a slash begins a pattern.
_PATTERN_WORDS = words(
    "return typeof case in of delete void throw new instanceof do else yield await"
)
_PATTERN = re.compile(r"/(?:\\[^\n]|\[(?:\\[^\n]|[^\]\\\n])*\]|[^/\\\[\n])+/\w*")
_HEADS = frozenset({"if", "while", "for", "with"})


class Token(NamedTuple):
    """A token or comment with the number of line ends since the last token."""

    kind: str  # word, number, literal, sign, directive, line or block (comments)
    text: str
    start: int
    breaks: int

    @property
    def is_comment(self) -> bool:
        """Is this a comment?"""
        return self.kind in COMMENT_KINDS


def _scanner(language: str) -> re.Pattern[str]:
    signs = "|".join(map(re.escape, _SIGNS))
    parts = [
        r"(?P<blank>[ \t\r\f\v\n]+|\\\r?\n)",
        rf"(?P<line>{_LINES.get(language, _LINE)})",
        r"(?P<block>/\*)",
    ]
    if language in _DIRECTIVES:
        parts.append(rf"(?P<directive>{_DIRECTIVES[language]})")
    if language in _OPENERS:
        parts.append(rf"(?P<opener>{_OPENERS[language]})")
    quote = "'(?=\\w)" if language in ("c", "cpp") else "_"
    parts += [
        rf"(?P<literal>{_LITERALS[language]})",
        rf"(?P<number>\.?\d(?:[eEpP][+-](?=\d)|\.(?![.\w])|\.(?=\d)|\w|{quote})*)",
        r"(?P<word>(?:r\#)?[^\W\d][\w$]*|[$@\#'][^\W\d][\w$]*|\$)",
        rf"(?P<sign>{signs}|[^\w\s\"'`\\])",
    ]
    return re.compile("|".join(parts))


_SCANNERS = {language: _scanner(language) for language in LANGUAGES}


@dataclass(slots=True)
class _Lexer:
    code: str
    language: str

    def tokens(self) -> Iterator[Token]:
        scan = _SCANNERS[self.language].match
        code, at, breaks, size = self.code, 0, 0, len(self.code)
        last: Token | None = None  # the last token that is no comment
        heads: list[str] = []  # the word before each open bracket
        closed = ""  # the word before the bracket that closed last
        while at < size:
            found = scan(code, at)
            if found is None or found.lastgroup is None:
                raise Unsure
            kind, stop = found.lastgroup, found.end()
            if kind == "blank":
                breaks += code.count("\n", at, stop) if code[at] != "\\" else 0
                at = stop
                continue
            if kind == "block":
                stop = self._block_end(stop)
            elif kind == "opener":
                kind, stop = "literal", self._string_end(found.group(), stop)
            elif code[at] == "/" and kind == "sign" and self._begins_pattern(last, closed):
                kind, stop = "literal", self._pattern_end(at)
            token = Token(kind, code[at:stop], at, breaks)
            yield token
            if token.is_comment:
                breaks += token.text.count("\n")
            else:
                if token.text == "(":
                    heads.append(last.text if last else "")
                elif token.text == ")":
                    closed = heads.pop() if heads else ""
                last, breaks = token, 0
            at = stop

    def _block_end(self, at: int) -> int:
        """Where a comment ends that began before `at`."""
        if self.language not in _NESTED:
            end = self.code.find("*/", at)
            if end < 0:
                raise Unsure
            return end + 2
        depth = 1
        for mark in re.compile(r"/\*|\*/").finditer(self.code, at):
            depth += 1 if mark.group() == "/*" else -1
            if not depth:
                return mark.end()
        raise Unsure

    def _begins_pattern(self, last: Token | None, closed: str) -> bool:
        """Does a slash begin a pattern here?"""
        if self.language not in SCRIPTS:
            return False
        if last is None:
            return True
        if last.text == ")":
            return closed in _HEADS
        if last.text == "}":
            raise Unsure
        if last.kind == "word":
            return last.text in _PATTERN_WORDS
        return last.kind == "sign" and last.text not in ("]", "++", "--")

    def _pattern_end(self, at: int) -> int:
        found = _PATTERN.match(self.code, at)
        if not found:
            raise Unsure
        return found.end()

    def _string_end(self, opener: str, at: int) -> int:
        """Where a string ends that the opener before `at` began."""
        if opener.endswith("("):
            return self._behind(")" + opener[opener.index('"') + 1 : -1] + '"', at)
        if self.language == "rust":
            return self._behind('"' + "#" * opener.count("#"), at)
        if self.language == "csharp":
            return self._csharp_end(opener, at)
        if opener == '"""':
            return self._holes_end('"""', at, "${", escapes=False)
        return self._holes_end(opener, at, "${", escapes=True)

    def _behind(self, end: str, at: int) -> int:
        found = self.code.find(end, at)
        if found < 0:
            raise Unsure
        return found + len(end)

    def _csharp_end(self, opener: str, at: int) -> int:
        if self.code.startswith('""', at) and "@" not in opener:
            raise Unsure  # a raw string, or an empty one before a quote
        if "$" in opener:
            return self._holes_end('"', at, "{", escapes="@" not in opener)
        pattern = r'(?:[^"]|"")*"(?!")' if "@" in opener else r'(?:\\.|[^"\\\n])*"'
        found = re.compile(pattern).match(self.code, at)
        if not found:
            raise Unsure
        return found.end()

    def _holes_end(self, end: str, at: int, hole: str, *, escapes: bool) -> int:
        """Where a string with holes for code ends; the code in a hole is lexed as any."""
        code, size = self.code, len(self.code)
        while at < size:
            if code.startswith(end, at):
                if end == '"' and not escapes and code.startswith('""', at):
                    at += 2
                    continue
                while end == '"""' and code.startswith('"', at + 3):
                    at += 1
                return at + len(end)
            is_doubled = hole == "{" and code.startswith(("{{", "}}"), at)
            if is_doubled or (escapes and code[at] == "\\"):
                at += 2
            elif code.startswith(hole, at):
                at = self._hole_end(at + len(hole))
            elif code[at] == "\n" and end == '"' and escapes:
                raise Unsure
            else:
                at += 1
        raise Unsure

    def _hole_end(self, at: int) -> int:
        """Where the code in a hole ends: at the brace that has no partner in it."""
        depth = 0
        rest = _Lexer(self.code[at:], self.language)
        for token in rest.tokens():
            if token.kind == "sign":
                depth += (token.text == "{") - (token.text == "}")
            if depth < 0:
                return at + token.start + 1
        raise Unsure


def lex(code: str, language: str) -> list[Token]:
    """Return the tokens and comments of a program.

    Raises:
        Unsure: They are not certain.
    """
    tokens = list(_Lexer(code, language).tokens())
    stack: list[str] = []
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.kind == "sign" and token.text in ("(", "[", "{"):
            stack.append(token.text)
        elif (
            token.kind == "sign"
            and token.text in _PARTNER
            and (not stack or stack.pop() != _PARTNER[token.text])
        ):
            raise Unsure
        is_markup = before is not None and before.text == "<" and token.text in ("/", ">", "!")
        if language in SCRIPTS and is_markup:
            raise Unsure
    if stack:
        raise Unsure
    return tokens
