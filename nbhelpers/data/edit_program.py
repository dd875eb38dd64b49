"""One program under one edit, checked against what it was; `code_edits` says what the edits are."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConfigError
from .edit_braces import LANGUAGES as BRACE_LANGUAGES
from .edit_braces import reformat_braces, strip_braces
from .edit_java import reformat_java
from .edit_java_rename import rename_java
from .edit_python import reformat_python, same_strings
from .edit_python_rename import rename_python
from .edit_strip import strip_tree
from .edit_styles import draw_of, draw_style
from .edit_tree import Syntax, Unsure, parse_clean

EDITS = ("reformat", "strip_comments", "rename", "rename_reformat")
MAX_CHARACTERS = 100_000
_TREES = ("python", "java")
# Blanks to the parser, or where statements on one line were parted.
_LAYOUT = {"python": (";", "line_continuation"), "java": ()}


def edited(code: str, language: str, edit: str, *, seed: int = 0) -> str | None:
    r"""Return a program after an edit, or None where it cannot be edited so.

    None: the language is unknown, the program does not parse, has more than `MAX_CHARACTERS`
    characters (a second of work; four for a text that is no program) or is nested too deep, the
    edit would leave nothing, or would have to guess.
    A program without comments, or without a name that may change, is returned as it is. The same
    code, edit and seed give the same result.

    Args:
        code: The text of a program.
        language: Its language in lower case, as data rows have it.
        edit: One of `EDITS`.
        seed: Draws another style and other names.

    Raises:
        ConfigError: `edit` is none of `EDITS`.

    >>> edited("def f(x):\n    # one more\n    return x+1\n", "python", "strip_comments")
    'def f(x):\n    return x+1\n'
    """
    if edit not in EDITS:
        raise ConfigError(f"The edit is {edit!r}.", fix=f"take one of: {', '.join(EDITS)}")
    if not isinstance(code, str) or not code.strip() or len(code) > MAX_CHARACTERS:
        return None
    try:
        if language in _TREES:
            return _edit_tree(code, language, edit, seed)
        if language in BRACE_LANGUAGES:
            return _edit_braces(code, language, edit, seed)
    except (Unsure, RecursionError, MemoryError):
        return None
    return None


def _edit_tree(code: str, language: str, edit: str, seed: int) -> str:
    syntax = parse_clean(code, language)
    if edit == "strip_comments":
        return _stripped(syntax, language)
    text = code
    if edit != "reformat":
        rename = rename_python if language == "python" else rename_java
        text, new = rename(syntax, draw_of(code, "rename", seed))
        renamed = parse_clean(text, language)
        _require_renamed(syntax, renamed, new)
        syntax = renamed
    return text if edit == "rename" else _reformatted(syntax, code, language, seed)


def _reformatted(syntax: Syntax, code: str, language: str, seed: int) -> str:
    """The style belongs to the program as it was written, so that both edits share it."""
    draw = draw_of(code, "reformat", seed)
    reformat = reformat_python if language == "python" else reformat_java
    text = reformat(syntax, draw_style(draw), draw)
    _require_same(syntax, parse_clean(text, language), language)
    return text


def _stripped(syntax: Syntax, language: str) -> str:
    text = strip_tree(syntax, language)
    if not text.strip():
        raise Unsure  # nothing but comments
    after = parse_clean(text, language)
    if any(True for _ in after.comments()) or strip_tree(after, language) != text:
        raise Unsure
    ignored = ("string", "pass", ";") if language == "python" else ()
    if _tokens(syntax, ignored) != _tokens(after, ignored):
        raise Unsure
    return text


def _tokens(syntax: Syntax, ignored: Sequence[str]) -> list[str]:
    return [syntax.text(t) for t in syntax.tokens() if syntax.kinds[t] not in ignored]


def _require_same(before: Syntax, after: Syntax, language: str) -> None:
    """The trees, tokens and comments are those of one program.

    Raises:
        Unsure: They are not.
    """
    ignored = _LAYOUT[language]
    if before.shape(ignored) != after.shape(ignored):
        raise Unsure
    same = same_strings if language == "python" else str
    if [same(t) for t in _tokens(before, ignored)] != [same(t) for t in _tokens(after, ignored)]:
        raise Unsure
    if [before.text(c).split() for c in before.comments()] != [
        after.text(c).split() for c in after.comments()
    ]:
        raise Unsure


def _require_renamed(before: Syntax, after: Syntax, new: dict[str, str]) -> None:
    """The trees are the same, and each name is its old or its one new name.

    Raises:
        Unsure: They are not.
    """
    if before.kinds != after.kinds or before.parents != after.parents:
        raise Unsure
    for node in (*before.leaves, *before.inner):
        old = before.text(node)
        if "string" in before.kinds[node] and before.lasts[node] > node + 1:
            continue  # its parts are compared instead
        if after.text(node) not in (old, new.get(old)):
            raise Unsure


def _edit_braces(code: str, language: str, edit: str, seed: int) -> str | None:
    if edit == "strip_comments":
        return strip_braces(code, language)
    if edit == "reformat":
        draw = draw_of(code, "reformat", seed)
        return reformat_braces(code, language, draw_style(draw), draw)
    return None
