"""Rename what a Java method declares: its own name, its parameters and its local variables.

Every new name is drawn from one pool, whatever the method does, so that these names say nothing
about its task. Types, members after a dot, called methods, literals and comments stay.
"""

from __future__ import annotations

import random
import re

POOL: tuple[str, ...] = tuple("abcdefghkmnpqrstuvwxyz")  # one token each

_PIECE = re.compile(
    r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|/\*.*?\*/|//[^\n]*'  # literals and comments stay
    r"|\d[\w.]*|[A-Za-z_]\w*|\.\.\.|::|->|\s+|.",
    re.DOTALL,
)
_WORDS_BEFORE = (
    "return throw new else case instanceof final static public private protected synchronized "
    "strictfp abstract native do assert yield if while for switch try catch throws break continue "
    "goto default this super"
)
_NOT_A_TYPE = frozenset(_WORDS_BEFORE.split())
_VALUE_WORDS = "int long char byte short float double boolean void var null true false class"
_NOT_A_NAME = frozenset(_VALUE_WORDS.split())
# What follows a declared name: its value, the next one, the end, a for-each or an array.
_AFTER = frozenset("=;,):[(")


def declared_names(code: str) -> list[str]:
    """Return the names that a method declares, in order: itself, parameters, locals, lambdas'.

    >>> declared_names("int twice(int of) { int all = of + of; return all; }")
    ['twice', 'of', 'all']
    """
    pieces = [p for p in _PIECE.findall(code) if not p.isspace() and not p.startswith(("/*", "//"))]
    names: list[str] = []
    for at, piece in enumerate(pieces):
        if _is_word(piece) and _is_declared(pieces, at):
            names.append(piece)
    return list(dict.fromkeys(names))


def _is_word(piece: str) -> bool:
    is_word = piece[:1].isalpha() or piece[:1] == "_"
    return is_word and piece not in _NOT_A_TYPE and piece not in _NOT_A_NAME


def _is_declared(pieces: list[str], at: int) -> bool:
    before = pieces[at - 1] if at else ""
    after = pieces[at + 1] if at + 1 < len(pieces) else ""
    if after == "->":
        return before != "case"
    if _in_lambda_head(pieces, at):
        return True
    if after not in _AFTER:
        return False
    if before == ",":
        return _continues_declaration(pieces, at)
    if before in (">", "]"):
        return _closes_a_type(pieces, at - 1)
    return before == "..." or _is_word(before) or before in _NOT_A_NAME


def _in_lambda_head(pieces: list[str], at: int) -> bool:
    """Is this one of `(a, b) ->`?"""
    end = at
    while end < len(pieces) and (pieces[end] == "," or _is_word(pieces[end])):
        end += 1
    if pieces[end : end + 2] != [")", "->"] or pieces[at - 1] not in ("(", ","):
        return False
    start = at
    while pieces[start] == "," or _is_word(pieces[start]):
        start -= 1
    return pieces[start] == "("


def _closes_a_type(pieces: list[str], at: int) -> bool:
    """Does the `>` or `]` at this place close a type, as in `List<String>` or `int[]`?"""
    depth = 0
    while at >= 0:
        piece = pieces[at]
        if piece in (">", "]"):
            depth += 1
        elif piece in ("<", "["):
            depth -= 1
        elif depth == 0:
            return piece in _NOT_A_NAME or piece[0].isupper()
        elif not (_is_word(piece) or piece in _NOT_A_NAME or piece in (",", "?", "extends", ".")):
            return False
        at -= 1
    return False


def _continues_declaration(pieces: list[str], at: int) -> bool:
    """Is this the `j` of `int i = 0, j = 1;`? Looks back for the type, over whole brackets."""
    if pieces[at + 1] not in ("=", ";", ",", "["):
        return False
    depth, back = 0, at - 1
    while back > 0:
        piece = pieces[back]
        if piece in (")", "]", "}"):
            depth += 1
        elif piece in ("(", "[", "{"):
            depth -= 1
            if depth < 0:
                break
        elif piece == ";" and depth == 0:
            break
        back -= 1
    if pieces[back] == "(" and pieces[back - 1] != "for":
        return False
    first = back + 1 + (pieces[back + 1] == "final")
    is_type = pieces[first] in _NOT_A_NAME or pieces[first][0].isupper()
    return is_type and pieces[first + 1] not in (".", "(")


def rename(code: str, key: str) -> str:
    """Return the method with its declared names drawn anew from `POOL`; `key` seeds the draw."""
    old = declared_names(code)
    pieces = _PIECE.findall(code)
    reserved = set(pieces) - set(old)
    free = [name for name in POOL if name not in reserved]
    new = dict(zip(old, random.Random(key).sample(free, len(old)), strict=True))
    out, solid = [], ""  # solid: the last piece that is not white space
    for piece in pieces:
        out.append(piece if solid == "." else new.get(piece, piece))
        solid = solid if piece.isspace() else piece
    return "".join(out)
