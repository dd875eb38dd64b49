"""A program without its comments, and without its docstrings in Python; all else stays as it is."""

from __future__ import annotations

from collections.abc import Iterable

from .edit_tree import Syntax

# (first byte, byte behind the last, what stands there instead)
Cut = tuple[int, int, bytes]

_BLANKS = b" \t\f\r\v"


def strip_tree(syntax: Syntax, language: str) -> str:
    """Return a program in Python or Java without its comments and docstrings."""
    cuts: list[Cut] = [(syntax.starts[c], syntax.stops[c], b"") for c in syntax.comments()]
    if language == "python" and b"__doc__" not in syntax.source:
        cuts += _docstrings(syntax)
    return cut_out(syntax.source, cuts).decode()


def _docstrings(syntax: Syntax) -> list[Cut]:
    """Statements that are one string; the first is `pass` where its block would be empty."""
    cuts: list[Cut] = []
    for node, kind in enumerate(syntax.kinds):
        if kind not in ("block", "module"):
            continue
        parts = [c for c in syntax.children(node) if syntax.kinds[c] not in ("comment", ";")]
        strings = [c for c in parts if _is_text(syntax, c)]
        for string in strings:
            is_needed = kind == "block" and string == parts[0] and len(strings) == len(parts)
            stop = syntax.stops[string]
            if not is_needed:
                stop = _behind_semicolon(syntax.source, stop)
            cuts.append((syntax.starts[string], stop, b"pass" if is_needed else b""))
    return cuts


def _is_text(syntax: Syntax, node: int) -> bool:
    """Is this statement one string in which nothing is computed?"""
    if syntax.kinds[node] != "expression_statement":
        return False
    children = list(syntax.children(node))
    if len(children) != 1 or syntax.kinds[children[0]] != "string":
        return False
    return "interpolation" not in syntax.kinds[children[0] : syntax.lasts[children[0]]]


def _behind_semicolon(source: bytes, stop: int) -> int:
    """Where a statement ends together with the semicolon behind it."""
    rest = stop
    while rest < len(source) and source[rest : rest + 1] in b" \t":
        rest += 1
    return rest + 1 if source[rest : rest + 1] == b";" else stop


def cut_out(source: bytes, cuts: Iterable[Cut]) -> bytes:
    """Replace pieces of a text; a line of which nothing is left goes too.

    Two words that only a comment kept apart stay apart; blanks before it go where it ended a line.
    """
    out, kept = bytearray(), 0
    for start, stop, instead in sorted(cuts):
        if start < kept:
            continue
        out += source[kept:start]
        kept = stop
        if instead:
            out += instead
            continue
        rest = kept
        while rest < len(source) and source[rest] in _BLANKS:
            rest += 1
        if rest == len(source) or source[rest : rest + 1] == b"\n":
            kept = _end_line(out, rest, len(source))
        else:
            kept = rest
            if out and out[-1:] not in b" \t\n(":
                out += b" "
    out += source[kept:]
    return bytes(out if source.startswith(b"\n") else out.lstrip(b"\n"))


def _end_line(out: bytearray, rest: int, size: int) -> int:
    """Drop the blanks at the end of what was written; return where the source goes on."""
    while out and out[-1] in _BLANKS:
        del out[-1]
    if rest < size and (not out or out[-1:] == b"\n"):
        return rest + 1  # the whole line was cut
    return rest
