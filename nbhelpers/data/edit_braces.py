"""Programs in languages with braces, set out anew or without comments, token by token.

Lines break where they broke before, but for braces and `else` where line ends mean nothing. All
else is drawn: indentation, blank lines, braces, blanks around what is surely an operator.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from .edit_lexer import BY_LINE, LANGUAGES, Token, lex
from .edit_lines import moved_comment
from .edit_strip import cut_out
from .edit_styles import Style
from .edit_tree import Unsure
from .edit_words import words

__all__ = ["LANGUAGES", "reformat_braces", "strip_braces"]

_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")
_PUNCTUATION = _OPEN | _CLOSE | {",", ";"}
_CONTROL = words("if for while switch catch foreach lock using when")
_HEADS = words("if for while else do foreach")
_FOLLOWS = frozenset({"else", "catch", "finally"})
_ASSIGN = words("= += -= *= /= %= &= |= ^= <<= >>= >>>= := **= &&= ||= ??=")
_COMPARE = words("== != <= >= === !==")
_LOGIC = frozenset({"&&", "||"})
_NO_OPERAND = words("return case throw in of yield await else and or not")
_IMPORTS = words("import using use package namespace mod extern")
_SECTION = frozenset({"public", "private", "protected"})


def strip_braces(code: str, language: str) -> str:
    """Return a program without its comments.

    Raises:
        Unsure: Its tokens are not certain, or nothing but comments is left.
    """
    tokens = lex(code, language)
    cuts, size, seen = [], 0, 0
    for token in tokens:
        if token.is_comment:
            size += len(code[seen : token.start].encode("utf-8", "surrogatepass"))
            length = len(token.text.encode("utf-8", "surrogatepass"))
            cuts.append((size, size + length, b""))
            size, seen = size + length, token.start + len(token.text)
    text = cut_out(code.encode("utf-8", "surrogatepass"), cuts).decode("utf-8", "surrogatepass")
    after = lex(text, language)
    if not text.strip() or any(token.is_comment for token in after):
        raise Unsure
    _require_same(tokens, after, language)
    return text


def _require_same(before: list[Token], after: list[Token], language: str) -> None:
    """The tokens are the same, and so is where lines end if that means something.

    Raises:
        Unsure: They are not.
    """
    by_line = language in BY_LINE

    def content(tokens: list[Token]) -> list[tuple[str, bool]]:
        kept = [token for token in tokens if not token.is_comment]
        return [(t.text, by_line and n > 0 and t.breaks > 0) for n, t in enumerate(kept)]

    if content(before) != content(after):
        raise Unsure


def reformat_braces(code: str, language: str, style: Style, draw: random.Random) -> str:
    """Return a program in a style.

    Raises:
        Unsure: Its tokens are not certain.
    """
    tokens = lex(code, language)
    lines = _Layout(code, language, style).lines(tokens)
    out: list[str] = []
    for number, line in enumerate(lines):
        chance = draw.random()
        if number:
            out.extend([""] * _blanks(lines[number - 1], line, style, chance))
        out.append(line.text)
    text = "\n".join(out) + "\n" if out else ""
    after = lex(text, language)
    _require_same(tokens, after, language)
    if [t.text.split() for t in tokens if t.is_comment] != [
        t.text.split() for t in after if t.is_comment
    ]:
        raise Unsure
    return text


@dataclass(slots=True)
class _Line:
    level: int
    tokens: list[Token]
    text: str = ""
    is_directive: bool = False

    @property
    def is_note(self) -> bool:
        """Does it hold comments alone?"""
        return all(token.is_comment for token in self.tokens)

    @property
    def last(self) -> str:
        """The last token that is no comment, or ""."""
        return next((t.text for t in reversed(self.tokens) if not t.is_comment), "")


def _blanks(before: _Line, line: _Line, style: Style, chance: float) -> int:
    first = line.tokens[0]
    if before.is_directive != line.is_directive:
        return 1
    if line.is_directive or before.is_note or before.last == "{" or first.text in _FOLLOWS | {"{"}:
        return 0
    if first.text in _CLOSE:
        return 0
    if line.level == 0 and before.last == "}":
        return style.top_blanks
    if before.tokens[0].text in _IMPORTS:
        return int(first.text not in _IMPORTS)
    is_larger = (
        first.text in _CONTROL or first.text == "return" or before.last == "}" or line.is_note
    )
    return int(is_larger and chance < style.blank_chance)


@dataclass(slots=True)
class _Bracket:
    level: int  # of the line that it stands on
    is_switch: bool
    is_brace: bool


class _Layout:
    """Lines with their levels of indentation."""

    def __init__(self, code: str, language: str, style: Style) -> None:
        self.code, self.language, self.style = code, language, style
        self.stack: list[_Bracket] = []
        self.done: list[_Line] = []
        self.is_switch = False  # a switch has begun whose brace is still to come

    def lines(self, tokens: list[Token]) -> list[_Line]:
        """Return the lines of a program with their texts."""
        for group in self._grouped(tokens):
            line = _Line(self._level(group), group, is_directive=self._is_directive(group[0]))
            if line.is_directive:
                line.text = self._verbatim(group)
            else:
                self._follow(line)
                line.text = self.style.indent * line.level + self._text(line)
            self.done.append(line)
        return self.done

    def _is_directive(self, token: Token) -> bool:
        return token.text.startswith("#") and self.language in ("c", "cpp", "csharp")

    def _verbatim(self, group: list[Token]) -> str:
        """A directive as it is, its further lines included."""
        end = group[-1].start + len(group[-1].text)
        return self.code[group[0].start : end].rstrip()

    def _grouped(self, tokens: list[Token]) -> list[list[Token]]:
        groups: list[list[Token]] = []
        last: Token | None = None  # the token or comment before
        for number, token in enumerate(tokens):
            after = tokens[number + 1] if number + 1 < len(tokens) else None
            if not groups or self._breaks(token, last, after, groups[-1]):
                groups.append([])
            groups[-1].append(token)
            last = token
        return groups

    def _breaks(
        self, token: Token, last: Token | None, after: Token | None, group: list[Token]
    ) -> bool:
        """Does a line begin with this token?"""
        assert last is not None
        gap = self.code[last.start + len(last.text) : token.start]
        was = "\n" in gap.replace("\\\n", "")
        is_free = self.language not in BY_LINE and not self._is_directive(group[0])
        if last.kind == "line" or last.is_comment or self._is_directive(token) or not is_free:
            return was
        ends_line = after is None or after.breaks > 0
        if token.text == "{" and ends_line and (last.text == ")" or self._is_name(last)):
            return self.style.brace == "own"
        if token.text in _FOLLOWS and last.text == "}":
            return not self.style.cuddle
        return was

    def _is_name(self, token: Token) -> bool:
        return token.kind == "word" and token.text not in _NO_OPERAND

    def _level(self, group: list[Token]) -> int:
        """Steps of indentation of a line, before its own brackets are counted."""
        closers = 0
        for token in group:
            if token.text not in _CLOSE:
                break
            closers += 1
        if closers:
            return self.stack[-closers].level
        base = self.stack[-1].level + 1 if self.stack else 0
        first = group[0].text
        if self.stack and self.stack[-1].is_switch:
            base += int(self.style.case)
            return (
                base - 1
                if first in ("case", "default")
                else max(base, self._continued(base, first))
            )
        is_section = first in _SECTION and len(group) > 1 and group[1].text == ":"
        if is_section and self.language == "cpp":
            return max(base - 1, 0)
        return self._continued(base, first)

    def _continued(self, base: int, first: str) -> int:
        """The level of a line that may go on with the statement of the line before."""
        before = next((line for line in reversed(self.done[-8:]) if not line.is_note), None)
        if before is None or before.is_directive or before.level < base:
            return base
        is_head = before.tokens[0].text in _HEADS or before.tokens[0].text == "}"
        opens_body = is_head and (before.last == ")" or before.last in ("else", "do"))
        if opens_body:
            return before.level + (first != "{")
        in_brackets = bool(self.stack) and not self.stack[-1].is_brace
        if in_brackets or before.last in (";", "{", "}", ":", ",", ""):
            return base
        if self.language in BY_LINE:
            is_open = not (before.last[-1].isalnum() or before.last[-1] in "_)]}\"'`+-")
            return base + int(is_open or first in (".", "?", ":", "&&", "||", "+", "?.", "|"))
        return base + int(first != "{")

    def _follow(self, line: _Line) -> None:
        """Keep account of the brackets of a line."""
        for token in line.tokens:
            if token.text in ("switch", "select"):
                self.is_switch = True
            elif token.kind == "sign" and token.text in _OPEN:
                is_brace = token.text == "{"
                self.stack.append(_Bracket(line.level, self.is_switch and is_brace, is_brace))
                self.is_switch = self.is_switch and not is_brace
            elif token.kind == "sign" and token.text in _CLOSE:
                self.stack.pop()
            elif token.text == ";":
                self.is_switch = False

    def _text(self, line: _Line) -> str:
        first = self.style.indent * line.level
        out = ""
        for number, token in enumerate(line.tokens):
            text = moved_comment(token.text, first) if token.is_comment else token.text
            out += (self._gap(line.tokens, number) if number else "") + text
        return out

    def _gap(self, tokens: list[Token], number: int) -> str:
        """What stands between a token and the one before."""
        a, b = tokens[number - 1], tokens[number]
        had = a.start + len(a.text) < b.start
        if b.is_comment:
            return self.style.comment or " "
        wanted = self._wanted(tokens, number)
        if wanted is None:
            return " " if had else ""
        is_risky = a.kind == b.kind == "sign" and not {a.text, b.text} & _PUNCTUATION
        is_risky |= {a.kind, b.kind} <= {"word", "number", "literal"}
        return " " if wanted == "" and had and is_risky else wanted

    def _wanted(self, tokens: list[Token], number: int) -> str | None:
        a, b = tokens[number - 1], tokens[number]
        style = self.style
        if a.text in _OPEN and b.text in _CLOSE:
            return ""
        if b.text in (",", ";"):
            return ""
        if a.text in ("(", "[") or b.text in (")", "]"):
            return style.pad if "(" in (a.text, b.text) or ")" in (a.text, b.text) else ""
        if a.text == ",":
            return style.comma
        if a.text in _CONTROL and b.text == "(":
            return style.control
        if (
            b.text == "{"
            and (a.text == ")" or self._is_name(a))
            and self.language not in ("rust", "go")
        ):
            return " " if tokens[-1] is b else None
        for sign, is_before in ((b, True), (a, False)):
            if sign.kind != "sign":
                continue
            if sign.text in _ASSIGN:
                return style.assign
            if sign.text in _COMPARE:
                return style.compare
            if sign.text in _LOGIC and self.language != "rust":
                return " "
            at = number if is_before else number - 1
            if sign.text in ("+", "-") and self._is_binary(tokens, at):
                return style.operator if style.operator != "tight" else " "
        return None

    def _is_binary(self, tokens: list[Token], at: int) -> bool:
        """Does this sign stand between two operands?"""
        if at == 0 or at + 1 == len(tokens):
            return False
        a, b = tokens[at - 1], tokens[at + 1]
        left = a.kind in ("number", "literal") or a.text in (")", "]") or self._is_name(a)
        return left and (b.kind in ("number", "word", "literal") or b.text == "(")
