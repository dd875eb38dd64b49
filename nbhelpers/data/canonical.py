"""One form for the programs of both classes, so that a file's origin is not told by its bytes.

Final newlines, line ends, tabs and the like say from which download a program came, not who wrote
it. The rules are the same for every program, look at no label and know no language.
"""

from __future__ import annotations

import functools
import re
import unicodedata

from nbhelpers.errors import ConfigError

FORMS = ("raw", "text", "flat")
MARKS, WORDS = "+marks", "+words"  # behind a form: see `marked` and `worded`
TAB_WIDTH = 4
# What Python 2 and terminals take a tab for; needed where tabs and blanks indent one program.
MIXED_TAB_WIDTH = 8

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_HUMPS = re.compile(r"[A-Z]{2,}(?![a-z])|[A-Z]?[a-z0-9]+|[A-Z]+|[0-9]+")
_GLUED = re.compile(r"(?<=[\w)\]])([=+*/<>,-])(?=[\w(\[])")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_PART = re.compile(r"[^\W\d_]+|\d+|[^\s\w]")
_RETURNS = re.compile(r"\r+\n?")
_FEED_AT_START = re.compile(r"^[\x0b\x0c]+", re.MULTILINE)
_TAB_INDENT = re.compile(r"^ *\t", re.MULTILINE)
_BLANK_INDENT = re.compile(r"^ {2,}\S", re.MULTILINE)
_MORE_BLANK_LINES = re.compile(r"\n{3,}")
# Byte order mark, zero width blanks, marks of writing direction: nobody sees them.
_UNSEEN = "\ufeff\u200b\u2060\u180e\u200e\u200f\u202a-\u202e\u2066-\u2069"


@functools.cache
def _character_table() -> dict[int, str | None]:
    """What stands for a character in every form but raw: a blank, nothing, the mark for unknown."""
    unseen = re.compile(f"[{_UNSEEN}]")
    table: dict[int, str | None] = {}
    for number in range(0x10000):
        character = chr(number)
        kind = unicodedata.category(character)
        if character in "\n\t\r\x0b\x0c ":
            continue
        if character.isspace():
            table[number] = " "
        elif kind == "Cc" or unseen.match(character):
            table[number] = None
        elif kind == "Cs":  # half a character, which UTF-8 cannot hold
            table[number] = "\ufffd"
    return table


def canonical(code: str, form: str) -> str:
    r"""Return a program in a form that says less about where it was found; twice is as once.

    `raw` leaves it alone. `text` makes alike: line ends, white space beyond ASCII, tabs (as
    blanks), blanks at the end of lines, blank lines at both ends and in runs (one is left), the
    final newline (one; none where nothing is left). Characters that nobody sees are dropped: NUL
    and other controls, byte order marks, zero width blanks. `flat` drops these too, then makes
    every run of white space one blank.

    The language is not known here: white space inside strings changes as well. With `+marks` behind
    the form it is what `marked` makes of it, with `+words` what `worded` does: for a tokenizer.

    Raises:
        ConfigError: `form` is none of `FORMS`.

    >>> canonical("\ufeffif x:\r\n\ty = 1  \r\n\r\n\r\n\r\n\tz = 2", "text")
    'if x:\n    y = 1\n\n    z = 2\n'
    >>> canonical("int  f() {\n\treturn 1; }\n", "flat")
    'int f() { return 1; }'
    """
    if form.endswith(MARKS):
        return marked(canonical(code, form.removesuffix(MARKS)))
    if form.endswith(WORDS):
        return worded(canonical(code, form.removesuffix(WORDS)))
    if form not in FORMS:
        raise ConfigError(f"canonical is {form!r}.", fix=f"take one of: {', '.join(FORMS)}")
    if form == "raw":
        return code
    seen = code.translate(_character_table())
    return " ".join(seen.split()) if form == "flat" else _text(seen)


def _text(code: str) -> str:
    code = _RETURNS.sub(_line_ends, code)
    code = _FEED_AT_START.sub("", code).replace("\x0b", " ").replace("\x0c", " ")
    if "\t" in code:
        is_mixed = _TAB_INDENT.search(code) and _BLANK_INDENT.search(code)
        code = code.expandtabs(MIXED_TAB_WIDTH if is_mixed else TAB_WIDTH)
    code = "\n".join(line.rstrip(" ") for line in code.split("\n"))
    code = _MORE_BLANK_LINES.sub("\n\n", code).strip("\n")
    return f"{code}\n" if code else ""


def _line_ends(returns: re.Match[str]) -> str:
    r"""One line end for \r\r\n, as a file has whose line ends were converted twice."""
    return "\n" if returns[0].endswith("\n") else "\n" * len(returns[0])


def marked(text: str) -> str:
    r"""Return a text in which line ends, indentation and capitals are signs.

    Tokenizers made for prose drop them: `isPrime` is then one unknown word, and a program one line.
    A line begins with a sign for each four columns of its indentation, a name is cut at its
    capitals, and an operator without blanks around it gets a sign.

    >>> marked("if isPrime:\n    MAX=1\n")
    'if is^prime: ¶ » ^^max=~1 ¶ '
    """
    lines = []
    for line in text.split("\n"):
        body = line.lstrip(" ")
        deep, rest = divmod(len(line) - len(body), 4)
        signs = "» " * min(deep, 8) + "· " * (rest > 0)
        lines.append(signs + _GLUED.sub(r"\1~", _NAME.sub(_at_capitals, body)))
    return " ¶ ".join(lines)


def worded(text: str) -> str:
    """Return a program as lower-case words, numbers and signs with one blank between.

    Names are cut at underscores and capitals: what two languages call a thing is then spelled
    alike.

    >>> worded("int maxValue = max_value2;")
    'int max value = max value 2 ;'
    """
    return " ".join(_PART.findall(_HUMP.sub(" ", text).lower()))


def _at_capitals(name: re.Match[str]) -> str:
    """Return a name in lower case: ^ before a capital, ^^ before a word of capitals."""
    lowered = ""
    for part in _HUMPS.findall(name[0]):
        if part.isupper() and len(part) > 1:
            lowered += "^^" + part.lower()
        elif part[0].isupper():
            lowered += "^" + part.lower()
        else:
            lowered += part
    return lowered
