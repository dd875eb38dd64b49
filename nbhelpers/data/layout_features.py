"""Sixteen numbers about how a program is set out: nothing of what it does is looked at.

They are the audit's single features and the floor `layout` of the detector: what they tell apart
needs no model. No parser is used, so any language and any text will do.
"""

from __future__ import annotations

import re

FEATURES = (
    "characters",
    "lines",
    "mean_line_length",
    "longest_line",
    "blank_line_share",
    "comment_line_share",
    "header_comment",
    "docstrings",
    "indent_width",
    "tab_share",
    "trailing_blank_share",
    "final_newlines",
    "leading_blank_lines",
    "spaced_equals_share",
    "spaced_comma_share",
    "identifier_length",
)
UNKNOWN_SHARE = 0.5  # of spaced signs where there are none: neither habit is shown
CHARACTERS_READ = 200_000  # a program is set out alike throughout, and a file may be data

_DIRECTIVE = r"(?:include|define|undef|if|ifdef|ifndef|else|elif|endif|pragma|region|endregion|!)"
_COMMENT = rf"(?://|/\*|\#(?!{_DIRECTIVE}\b)|--\s|\(\*|<!--)"
_COMMENT_LINE = re.compile(rf"^[ \t]*(?:{_COMMENT}|\*(?:[ /]|$))", re.MULTILINE)
_HEADER = re.compile(rf"\s*(?:\#![^\n]*\n\s*)?(?:{_COMMENT}|\"\"\"|''')")
_DOCSTRING = re.compile(r"^[ \t]*(?:[rRuU]?(?:\"\"\"|''')(?=[^\n])|/\*\*)", re.MULTILINE)
_INDENT = re.compile(r"^([ \t]+)(?=\S)", re.MULTILINE)
_TRAILING = re.compile(r"(?<![ \t])[ \t]+(?=\r?\n|\Z)")
_EQUALS = re.compile(r"(?<![=!<>+\-*/%&|^:~])=(?![=>~])")
_WORD = re.compile(r"[^\W\d]\w*")


def layout_features(code: str) -> dict[str, float]:
    r"""Return the numbers named in `FEATURES` for one program, in their order.

    Lengths are in characters, shares are from 0 to 1, `header_comment` is 0 or 1. Of a text
    longer than `CHARACTERS_READ` only so much is read, apart from its end and its length.

    >>> found = layout_features("# Add.\ndef add(a,b):\n\tc = a\n\treturn c \n")
    >>> [found[name] for name in ("lines", "header_comment", "final_newlines", "tab_share")]
    [4.0, 1.0, 1.0, 1.0]
    >>> found["spaced_equals_share"], found["spaced_comma_share"], found["trailing_blank_share"]
    (1.0, 0.0, 0.25)
    """
    text = code[:CHARACTERS_READ]
    lines = text.splitlines()
    n = max(len(lines), 1)
    lengths = list(map(len, lines))
    indents = _INDENT.findall(text)
    words = _WORD.findall(text)
    values = (
        len(code),
        len(lines),
        sum(lengths) / n,
        max(lengths, default=0),
        sum(not line or line.isspace() for line in lines) / n,
        len(_COMMENT_LINE.findall(text)) / n,
        bool(_HEADER.match(text)),
        len(_DOCSTRING.findall(text)),
        sum(map(len, indents)) / n,
        _share(sum("\t" in indent for indent in indents), len(indents), empty=0.0),
        len(_TRAILING.findall(text)) / n,
        _final_newlines(code),
        _leading_blank_lines(text),
        _spaced_equals(text),
        _share(text.count(", ") + text.count(",\n"), text.count(",")),
        _share(sum(map(len, words)), len(words), empty=0.0),
    )
    return dict(zip(FEATURES, map(float, values), strict=True))


def _share(part: int, whole: int, *, empty: float = UNKNOWN_SHARE) -> float:
    return part / whole if whole else empty


def _final_newlines(code: str) -> int:
    end = code[len(code.rstrip("\r\n")) :]
    return end.count("\n") or end.count("\r")


def _leading_blank_lines(text: str) -> int:
    return text[: len(text) - len(text.lstrip())].count("\n")


def _spaced_equals(text: str) -> float:
    """Share of single `=` with a blank on both sides, as in `x = 1` and unlike `x=1`."""
    n_equals = len(_EQUALS.findall(text))
    # A blank before a lone `=` and one after it: the pattern above rules out `==`, `+=` and `=>`.
    return _share(min(text.count(" = "), n_equals), n_equals)
