"""The syntax tree of a program with all that an edit must keep, and comments taken out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from nbhelpers.data.syntax import grammar, parse_root
from nbhelpers.errors import DataFlowUnavailable

# ------------------------------------------------------------------------------------------------
# Sets of words, written as the text that they are.


def words(text: str) -> frozenset[str]:
    """Return the words of a text.

    >>> sorted(words("if for while"))
    ['for', 'if', 'while']
    """
    return frozenset(text.split())


# ------------------------------------------------------------------------------------------------
# The syntax tree of a program with everything that an edit must keep, comments included.
#
# Nodes are numbered in preorder. A leaf is a token or a comment; a string is one leaf, whatever it
# holds, and its parts are kept apart for renaming. Only programs that parse without an error have
# one: where the parser guesses, an edit would guess with it.


# One leaf although the grammar gives them children.
_WHOLE = frozenset({"string", "string_literal", "template_expression"})
COMMENTS = frozenset({"comment", "line_comment", "block_comment"})


MAX_DEPTH = 400


class Unsure(Exception):
    """This program cannot be edited without a guess."""


class Syntax:
    """Flat lists over the nodes of a program, and its leaves in reading order."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.kinds: list[str] = []  # (n_nodes,)
        self.parents: list[int] = []  # (n_nodes,) -1 at the root
        self.fields: list[str] = []  # (n_nodes,) name of the field in the parent, or ""
        self.starts: list[int] = []  # (n_nodes,) bytes of `source`
        self.stops: list[int] = []
        self.lasts: list[int] = []  # (n_nodes,) the first node after the subtree
        self.leaves: list[int] = []  # tokens and comments
        self.inner: list[int] = []  # nodes without children inside of strings

    def text(self, node: int) -> str:
        """The text of a node."""
        return self.source[self.starts[node] : self.stops[node]].decode()

    def parent_kind(self, node: int) -> str:
        """The kind of the node above, "" at the root."""
        parent = self.parents[node]
        return self.kinds[parent] if parent >= 0 else ""

    def children(self, node: int) -> Iterator[int]:
        """Yield the children of a node in order."""
        child, end = node + 1, self.lasts[node]
        while child < end:
            yield child
            child = self.lasts[child]

    def field(self, node: int, name: str) -> int | None:
        """Return the first child in a field, or None."""
        return next((c for c in self.children(node) if self.fields[c] == name), None)

    def above(self, node: int) -> Iterator[int]:
        """Yield the nodes above, the nearest first."""
        node = self.parents[node]
        while node >= 0:
            yield node
            node = self.parents[node]

    def tokens(self) -> Iterator[int]:
        """Yield the leaves that are no comments."""
        kinds = self.kinds
        return (leaf for leaf in self.leaves if kinds[leaf] not in COMMENTS)

    def comments(self) -> Iterator[int]:
        """Yield the comments."""
        return (leaf for leaf in self.leaves if self.kinds[leaf] in COMMENTS)

    def shape(self, ignored: Iterable[str] = ()) -> list[tuple[str, int]]:
        """Each node's kind and depth, without comments and the kinds to ignore."""
        skipped = COMMENTS | set(ignored)
        depths: list[int] = []
        nodes = []
        for kind, parent in zip(self.kinds, self.parents, strict=True):
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
            if kind not in skipped:
                nodes.append((kind, depths[-1]))
        return nodes


def parse_clean(code: str, language: str) -> Syntax:
    """Return the tree of a program in Python or Java.

    Raises:
        Unsure: It does not parse, is nested too deep, UTF-8 cannot hold it, or the grammar is not
            installed.
    """
    try:
        source = code.encode()
        root, offset, clean = parse_root(source, language)
    except (UnicodeEncodeError, DataFlowUnavailable, ValueError) as error:
        raise Unsure from error
    if not clean:
        raise Unsure
    syntax = Syntax(source)
    _walk(syntax, root, offset, grammar(language)[1])
    return syntax


def _walk(syntax: Syntax, root: Any, offset: int, names: dict[int, str]) -> None:
    """Fill the lists; what lies outside of the source belongs to a wrapper and is left out."""
    cursor = root.walk()
    down, onward, up = cursor.goto_first_child, cursor.goto_next_sibling, cursor.goto_parent
    kinds, leaves, high = syntax.kinds, syntax.leaves, len(syntax.source)
    above: list[int] = []
    string = -1  # the string that the cursor is in
    while True:
        node, number = cursor.node, len(kinds)
        kind = names.get(node.kind_id) or names.setdefault(node.kind_id, node.type)
        start, stop = node.start_byte - offset, node.end_byte - offset
        kinds.append(kind)
        syntax.parents.append(above[-1] if above else -1)
        syntax.fields.append(cursor.field_name or "")
        syntax.starts.append(start)
        syntax.stops.append(stop)
        syntax.lasts.append(number + 1)
        inside = start >= 0 and stop <= high
        if kind in _WHOLE and string < 0 and inside:
            string = number
            leaves.append(number)
        if down():
            above.append(number)
            if len(above) > MAX_DEPTH:  # looking up from a node must stay cheap
                raise Unsure
            continue
        if string < 0 and start < stop and inside and kind != "line_continuation":
            leaves.append(number)
        elif string >= 0:
            syntax.inner.append(number)
        if number == string:
            string = -1
        while not onward():
            if not above:
                return
            up()
            done = above.pop()
            syntax.lasts[done] = len(kinds)
            if done == string:
                string = -1


# ------------------------------------------------------------------------------------------------
# A program without its comments, and without its docstrings in Python; all else stays as it is.


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
    out, copied_to = bytearray(), 0
    for start, stop, instead in sorted(cuts):
        if start < copied_to:
            continue
        out += source[copied_to:start]
        copied_to = stop
        if instead:
            out += instead
            continue
        rest = copied_to
        while rest < len(source) and source[rest] in _BLANKS:
            rest += 1
        if rest == len(source) or source[rest : rest + 1] == b"\n":
            copied_to = _end_line(out, rest, len(source))
        else:
            copied_to = rest
            if out and out[-1:] not in b" \t\n(":
                out += b" "
    out += source[copied_to:]
    return bytes(out if source.startswith(b"\n") else out.lstrip(b"\n"))


def _end_line(out: bytearray, rest: int, size: int) -> int:
    """Drop the blanks at the end of what was written; return where the source goes on."""
    while out and out[-1] in _BLANKS:
        del out[-1]
    if rest < size and (not out or out[-1:] == b"\n"):
        return rest + 1  # the whole line was cut
    return rest
