"""How programs are set out: styles that people, editors and formatters are known for.

A style is drawn for each program and seed, whoever wrote the program, so that the layout of edited
code says nothing about its origin.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass


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
