"""Styles of layout, lines that keep to them, and languages with braces set out anew."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nbhelpers.data.edit_tree import Unsure, cut_out, words

# ------------------------------------------------------------------------------------------------
# How programs are set out: styles that people, editors and formatters are known for.
#
# A style is drawn for each program and seed, whoever wrote the program, so that the layout of
# edited code says nothing about its origin.


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """One way to set out a program; a chance is a share from 0 to 1."""

    indent: str
    width: int  # characters at which a line is broken; 0: never
    wrap: str  # hang: what a bracket holds on lines of its own; visual: under its first item
    top_blanks: int  # blank lines around functions and classes at the top
    inner_blanks: int  # between methods
    blank_chance: float  # of a blank line before a larger statement, inside of a body
    comma: str  # what follows a comma
    colon: str  # what follows a colon in a mapping
    operator: str  # around sums and products: "", " ", or "tight" (products without, sums with)
    compare: str  # around comparisons
    assign: str  # around assignments
    keyword: str  # around `=` of arguments and defaults
    pad: str  # inside brackets
    call: str  # between a name and the bracket of its call
    control: str  # between `if`, `for` and the like and a bracket
    comment: str  # between code and the comment on its line
    quote: str  # of strings that either quote can hold: "'", '"', or "" to leave them
    brace: str  # where an opening brace stands: "end" of the line, "own" line
    cuddle: bool  # `} else {` on one line
    short_bodies: bool  # a body without braces stays on the line of its `if` or `for`
    case: bool  # labels of a switch are indented
    empty: str  # between the braces of an empty body: "", " " or a line end


def draw_of(code: str, what: str, seed: int) -> random.Random:
    """Return the random numbers that belong to a program, an edit and a seed."""
    key = f"{seed} {what} ".encode() + code.encode("utf-8", "surrogatepass")
    return random.Random(hashlib.sha256(key).digest())


def draw_style(draw: random.Random) -> Style:
    """Return a style: half of the time what formatters write, else what people do by hand."""
    by_hand = draw.random() < 0.5

    def pick(usual: str, *others: str, chance: float = 0.25) -> str:
        return draw.choice(others) if by_hand and draw.random() < chance else usual

    return Style(
        indent=draw.choices(["    ", "  ", "\t", "   ", "        "], [60, 22, 12, 3, 3])[0],
        width=draw.choice([79, 80, 88, 100, 100, 120, 0]),
        wrap=draw.choice(["hang", "visual"]),
        top_blanks=draw.choice([1, 2]),
        inner_blanks=draw.choices([1, 0], [80, 20])[0],
        blank_chance=draw.choice([0.0, 0.0, 0.15, 0.4]),
        comma=pick(" ", "", chance=0.35),
        colon=pick(" ", ""),
        operator=pick(" ", "", "tight", chance=0.6),
        compare=pick(" ", ""),
        assign=pick(" ", ""),
        keyword=pick("", " "),
        pad=pick("", " ", chance=0.12),
        call=pick("", " ", chance=0.08),
        control=pick(" ", "", chance=0.35),
        comment=pick(draw.choice(["  ", " "]), "", "    "),
        quote=draw.choice(["'", '"', ""]),
        brace=draw.choices(["end", "own"], [70, 30])[0],
        cuddle=draw.random() < 0.7,
        short_bodies=draw.random() < 0.3,
        case=draw.random() < 0.6,
        empty=draw.choice(["", " ", "\n"]),
    )


# ------------------------------------------------------------------------------------------------
# Tokens with the blanks between them, joined into lines no longer than a style allows.


OPEN, CLOSE = frozenset("([{"), frozenset(")]}")
JOINTS = frozenset({"and", "or", "&&", "||"})  # a line may break before them
TAB_COLUMNS = 4
WIDE = 0.5  # share of a statement that a bracket must hold for the statement to break in it


class Item(NamedTuple):
    """A token with what stands before it on its line."""

    blank: str
    text: str
    is_comment: bool = False


def join(items: Sequence[Item]) -> str:
    """All items on one line, without the blank before the first."""
    return "".join(item.blank + item.text for item in items)[len(items[0].blank) :] if items else ""


def columns(text: str) -> int:
    """How far the last line of a text reaches."""
    return len(text[text.rfind("\n") + 1 :].expandtabs(TAB_COLUMNS))


def wrapped(items: Sequence[Item], first: str, style: Style, mark: str = "") -> str:
    """A statement that is too long for one line, broken inside of its brackets.

    `mark` is what a line ends with that goes on outside of brackets: a backslash in Python.
    """
    pair = _widest(items)
    whole = len(join(items))
    if pair is None or len(join(items[pair[0] : pair[1]])) < whole * WIDE:
        pieces = list(_pieces(items))
        if len(pieces) > 1:
            return _continued(pieces, first, style, mark)
    if pair is None:
        return first + join(items)
    start, end = _narrowed(items, pair) if style.wrap == "visual" else pair
    head, body = list(items[: start + 1]), items[start + 1 : end]
    tail = [items[end]._replace(blank=""), *items[end + 1 :]]
    begin = first + join(head)
    if style.wrap == "visual":
        under = " " * columns(begin)
        return _filled(body, begin, under, style) + items[end].blank + join(tail)
    inner = first + style.indent
    text, has_comma = begin, any(True for _ in _pieces(body))
    for piece in _pieces(body) if has_comma else ():
        line = inner + join(piece)
        is_long = style.width and columns(line) > style.width
        text += "\n" + (wrapped(piece, inner, style) if is_long else line)
    last = "\n" + first + join(tail)
    is_long = len(tail) > 1 and style.width and columns(last) > style.width
    return text + ("\n" + wrapped(tail, first, style, mark) if is_long else last)


def _narrowed(items: Sequence[Item], pair: tuple[int, int]) -> tuple[int, int]:
    """The pair of brackets inside of this one where lines can break, as in `print(join(a, b))`."""
    start, end = pair
    while True:
        body = items[start + 1 : end]
        inner = _widest(body) if len(list(_pieces(body))) < 2 else None
        if inner is None:
            return start, end
        start, end = start + 1 + inner[0], start + 1 + inner[1]


def _continued(pieces: Sequence[Sequence[Item]], first: str, style: Style, mark: str) -> str:
    """A statement whose commas, `and` and `or` stand in no bracket."""
    text = first + join(pieces[0])
    for piece in pieces[1:]:
        line = join(piece)
        if style.width and columns(text) + len(mark) + 1 + len(line) > style.width:
            text += f"{mark}\n{first}{style.indent * 2}{line}"
        else:
            text += piece[0].blank + line
    return text


def _filled(body: Sequence[Item], begin: str, under: str, style: Style) -> str:
    text = begin
    for number, piece in enumerate(_pieces(body)):
        line = join(piece)
        is_long = style.width and columns(text) + 1 + len(line) > style.width
        if number and is_long:
            text += "\n" + under + line
        else:
            text += (piece[0].blank if number else "") + line
    return text


def _pieces(body: Sequence[Item]) -> Iterator[list[Item]]:
    """What a bracket holds, split behind its own commas and before its own `and`, `or`."""
    depth, piece = 0, []
    for item in body:
        if item.text in JOINTS and not depth and piece:
            yield piece
            piece = []
        piece.append(item)
        depth += (item.text in OPEN) - (item.text in CLOSE)
        if item.text == "," and not depth:
            yield piece
            piece = []
    if piece:
        yield piece


def _widest(items: Sequence[Item]) -> tuple[int, int] | None:
    """The outermost pair of brackets that holds most, by the numbers of its brackets."""
    best, pair, opened, depth = 0, None, 0, 0
    for at, item in enumerate(items):
        if item.text in OPEN:
            if not depth:
                opened = at
            depth += 1
        elif item.text in CLOSE and depth:
            depth -= 1
            if not depth:
                size = len(join(items[opened + 1 : at]))
                if size > best:
                    best, pair = size, (opened, at)
    return pair


def bracketed(items: Sequence[Item], first: str, style: Style) -> str:
    """A statement with comments in its brackets: a line ends where a comment does."""
    text, depth, fresh = first, 0, True
    for number, item in enumerate(items):
        depth -= item.text in CLOSE
        if fresh and number:
            text += "\n" + first + style.indent * max(depth, 0)
        blank = (style.comment or " ") if item.is_comment else item.blank
        text += item.text if fresh else blank + item.text
        fresh = item.is_comment
        depth += item.text in OPEN
    return text


def moved_comment(text: str, first: str) -> str:
    """A comment of several lines moves with its first one where its lines begin with a star."""
    if not text.startswith("/*"):
        return text.rstrip() if text.startswith("//") else text
    lines = [line.strip() for line in text.split("\n")]
    if all(line.startswith("*") for line in lines[1:]):
        return f"\n{first} ".join(lines)
    return text


# ------------------------------------------------------------------------------------------------
# Tokens of languages with braces, without a grammar: enough to move white space and comments.
#
# A text of which the tokens are not certain is refused: an open string, a bracket without its
# partner, a slash in JavaScript that may divide or begin a pattern, markup inside of a script.


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
_LEXER_HEADS = frozenset({"if", "while", "for", "with"})


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
            lexeme = scan(code, at)
            if lexeme is None or lexeme.lastgroup is None:
                raise Unsure
            kind, stop = lexeme.lastgroup, lexeme.end()
            if kind == "blank":
                breaks += code.count("\n", at, stop) if code[at] != "\\" else 0
                at = stop
                continue
            if kind == "block":
                stop = self._block_end(stop)
            elif kind == "opener":
                kind, stop = "literal", self._string_end(lexeme.group(), stop)
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
            return closed in _LEXER_HEADS
        if last.text == "}":
            raise Unsure
        if last.kind == "word":
            return last.text in _PATTERN_WORDS
        return last.kind == "sign" and last.text not in ("]", "++", "--")

    def _pattern_end(self, at: int) -> int:
        pattern = _PATTERN.match(self.code, at)
        if not pattern:
            raise Unsure
        return pattern.end()

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
        place = self.code.find(end, at)
        if place < 0:
            raise Unsure
        return place + len(end)

    def _csharp_end(self, opener: str, at: int) -> int:
        if self.code.startswith('""', at) and "@" not in opener:
            raise Unsure  # a raw string, or an empty one before a quote
        if "$" in opener:
            return self._holes_end('"', at, "{", escapes="@" not in opener)
        pattern = r'(?:[^"]|"")*"(?!")' if "@" in opener else r'(?:\\.|[^"\\\n])*"'
        literal = re.compile(pattern).match(self.code, at)
        if not literal:
            raise Unsure
        return literal.end()

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


# ------------------------------------------------------------------------------------------------
# Programs in languages with braces, set out anew or without comments, token by token.
#
# Lines break where they broke before, but for braces and `else` where line ends mean nothing. All
# else is drawn: indentation, blank lines, braces, blanks around what is surely an operator.


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
        code_tokens = [token for token in tokens if not token.is_comment]
        return [(t.text, by_line and n > 0 and t.breaks > 0) for n, t in enumerate(code_tokens)]

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
