"""Styles of layout, and lines that keep to them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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


def product_or_sum(sign: str, products: frozenset[str], style: Style) -> str:
    """The blanks around the sign of a sum or a product."""
    if style.operator == "tight":
        return "" if sign in products else " "
    return style.operator
