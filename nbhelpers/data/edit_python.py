"""A Python program set out anew, statement by statement, in a given style.

Only tokens, comments and the tree decide, never where the lines broke before: several statements on
a line get lines of their own, blank lines are drawn. Docstrings keep their text.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from nbhelpers.data.edit_layout import (
    CLOSE,
    OPEN,
    Item,
    Style,
    bracketed,
    join,
    product_or_sum,
    wrapped,
)
from nbhelpers.data.edit_tree import PYTHON_IMPORTS, same_string, words
from nbhelpers.data.syntax import COMMENTS, Tree

_CLAUSES = words(
    "elif_clause else_clause except_clause except_group_clause finally_clause case_clause"
)
_DEFINITIONS = frozenset({"function_definition", "class_definition", "decorated_definition"})
_LARGER = words(
    "if_statement for_statement while_statement try_statement with_statement return_statement "
    "match_statement"
)
_ARGUMENTS = frozenset({"argument_list", "parameters", "class_pattern"})
_SPLATS = words(
    "list_splat dictionary_splat list_splat_pattern dictionary_splat_pattern splat_pattern "
    "parenthesized_list_splat keyword_separator positional_separator"
)
_DEFAULTS = frozenset({"keyword_argument", "default_parameter", "keyword_pattern"})
_PRODUCTS = words("* / // % ** @")
_UNARY = words("- + ~ @ * **")
_BEFORE_CONDITIONS = words("if while not in return")


class _Line(NamedTuple):
    """A logical line, or a comment on a line of its own (`kind` is "comment")."""

    depth: int
    kind: str
    leaves: list[int]
    comment: str = ""  # behind the code


def reformat_python(tree: Tree, style: Style, draw: random.Random) -> str:
    """Return the program in the style."""
    lines = _logical_lines(tree)
    out: list[str] = []
    for number, line in enumerate(lines):
        blanks = _blanks_before(lines, number, style, draw)
        out.extend([""] * (blanks if out else 0))
        first = style.indent * line.depth
        if line.kind == "comment":
            out.append(first + tree.text(line.leaves[0]).rstrip())
            continue
        text = _statement(tree, line, style)
        out.append(text + (style.comment or " ") * bool(line.comment) + line.comment)
    return "\n".join(out) + "\n" if out else ""


def _logical_lines(tree: Tree) -> list[_Line]:
    starts, depths = _statements(tree)
    lines: list[_Line] = []
    columns: dict[int, int] = {}  # indentation, by depth, of the lines so far
    waiting: list[int] = []  # comments on lines of their own, until the next statement is known
    brackets = 0
    end = 0
    for leaf in tree.leaves:
        text, kind = tree.text(leaf), tree.kinds[leaf]
        gap = tree.source[end : tree.starts[leaf]]
        end = tree.stops[leaf]
        if kind == "comment" and not brackets:
            if b"\n" in gap or not lines:
                waiting.append(leaf)
            else:
                lines[-1] = lines[-1]._replace(comment=f"{lines[-1].comment} {text}".strip())
        elif leaf in starts:
            node = starts[leaf]
            depth, column = depths[leaf], _column(tree, leaf)
            lines += _placed(tree, waiting, lines, depth, column, columns)
            waiting = []
            columns[depth] = column
            lines.append(_Line(depth, tree.kinds[node], [leaf]))
        elif kind != ";":
            lines[-1].leaves.append(leaf)
        brackets += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
    return lines + _placed(tree, waiting, lines, 0, 0, columns)


def _statements(tree: Tree) -> tuple[dict[int, int], dict[int, int]]:
    """The leaves that begin a logical line with the outermost node they begin; their depths."""
    starts: dict[int, int] = {}
    depths: dict[int, int] = {}
    node_depths: list[int] = []
    following = {tree.starts[leaf]: leaf for leaf in tree.leaves}
    for node, kind in enumerate(tree.kinds):
        parent = tree.parents[node]
        above = tree.kinds[parent] if parent >= 0 else ""
        depth = node_depths[parent] + (above == "block") if parent >= 0 else 0
        node_depths.append(depth)
        begins = above in ("block", "module", "decorated_definition") or kind in _CLAUSES
        if begins and kind not in COMMENTS and kind not in (";", ":"):
            leaf = following.get(tree.starts[node])
            if leaf is not None and leaf not in starts:
                starts[leaf], depths[leaf] = node, depth
    return starts, depths


def _column(tree: Tree, node: int) -> int:
    """Columns before a node; its line may hold something else before it."""
    begin = tree.source.rfind(b"\n", 0, tree.starts[node]) + 1
    return len(tree.source[begin : tree.starts[node]].expandtabs(8))


def _placed(
    tree: Tree,
    comments: list[int],
    lines: list[_Line],
    depth: int,
    column: int,
    columns: dict[int, int],
) -> list[_Line]:
    """Comments before a statement of this depth: in its block, or still in the one before it."""
    before = lines[-1].depth if lines else 0
    placed, deepest = [], max(before, depth)
    for comment in comments:
        own = _column(tree, comment)
        level = deepest
        while level > depth and own < columns.get(level, column + 1):
            level -= 1
        deepest = level
        placed.append(_Line(level, "comment", [comment]))
    return placed


def _blanks_before(lines: list[_Line], number: int, style: Style, draw: random.Random) -> int:
    if not number:
        return 0
    line, before = lines[number], lines[number - 1]
    chance = draw.random()
    if before.kind == "comment" or line.kind in _CLAUSES or line.depth > before.depth:
        return 0
    later = range(number, len(lines))
    ahead = next((lines[n] for n in later if lines[n].kind != "comment"), line)
    if ahead.depth == line.depth and ahead.kind in _DEFINITIONS:
        is_decorated = before.kind in _DEFINITIONS and before.depth == line.depth
        if not is_decorated or before.kind != "decorated_definition":
            return style.inner_blanks if line.depth else style.top_blanks
        return 0
    if line.depth == 0 and before.depth > 0 and _ends_definition(lines, number):
        return style.top_blanks
    if before.kind in PYTHON_IMPORTS and line.kind not in PYTHON_IMPORTS:
        return 1
    is_larger = line.kind in _LARGER or line.kind == "comment" or before.depth > line.depth
    return int(is_larger and chance < style.blank_chance)


def _ends_definition(lines: list[_Line], number: int) -> bool:
    """Does what stands before this line at the same depth define a function or class?"""
    depth = lines[number].depth
    before = (line for line in reversed(lines[:number]) if line.depth == depth)
    return next((line.kind in _DEFINITIONS for line in before if line.kind != "comment"), False)


def _statement(tree: Tree, line: _Line, style: Style) -> str:
    items = []
    for at, leaf in enumerate(line.leaves):
        text = tree.text(leaf)
        if tree.kinds[leaf] == "string" and style.quote:
            text = same_string(text, style.quote)
        blank = _between(tree, line.leaves[at - 1], leaf, style) if at else ""
        items.append(Item(blank, text, tree.kinds[leaf] in COMMENTS))
    first = style.indent * line.depth
    if any(item.is_comment for item in items):
        return bracketed(items, first, style)
    text = first + join(items)
    if style.width and len(text.expandtabs(4)) > style.width:
        return wrapped(items, first, style, " \\")
    return text


def _between(tree: Tree, a: int, b: int, style: Style) -> str:
    """What stands between two tokens of a statement."""
    left, right = tree.text(a), tree.text(b)
    if left in OPEN or right in CLOSE:
        is_empty = left in OPEN and right in CLOSE
        return "" if is_empty or left == "," else style.pad
    if right in (",", ";", ":"):
        return ""
    blank = _wanted(tree, a, b, style)
    if blank == "" and _merge(left, right, tree.kinds[a]):
        return " "
    return " " if blank is None else blank


def _merge(left: str, right: str, left_kind: str) -> bool:
    """Would two tokens without a blank read as others?"""
    words = (left[-1].isalnum() or left[-1] == "_") and (right[0].isalnum() or right[0] in "_'\"")
    number = left_kind in ("integer", "float") and (right[0] == "." or right[0].isalpha())
    return words or number


def _wanted(tree: Tree, a: int, b: int, style: Style) -> str | None:
    """The blanks of the style, or None where it says nothing."""
    left, right = tree.text(a), tree.text(b)
    above, below = tree.parent_kind(a), tree.parent_kind(b)
    if left == ",":
        return style.comma
    if left == ":":
        return {"slice": "", "pair": style.colon, "dict_pattern": style.colon}.get(above, " ")
    if left == ".":
        return " " if tree.kinds[b] == "import" else ""
    if left in _UNARY and (above in ("unary_operator", "decorator") or above in _SPLATS):
        return ""
    if right == ".":
        return " " if tree.kinds[a] in ("from", "integer") else ""
    if right == "[" and below in ("subscript", "type_parameter"):
        return ""
    if right == "(":
        is_generator = below == "generator_expression"
        if below == "argument_list" or (is_generator and _owner_kind(tree, b) == "call"):
            return style.call
        if below in _ARGUMENTS:
            return ""
        if tree.kinds[a] in _BEFORE_CONDITIONS:
            return style.control
    for node, text, parent in ((a, left, above), (b, right, below)):
        if text[0].isalpha() or text[0] in "_\"'":
            continue
        if "=" in text and parent in _DEFAULTS:
            return style.keyword
        if "=" in text and parent in ("assignment", "augmented_assignment"):
            return style.assign
        if parent == "comparison_operator" and tree.fields[node] == "operators":
            return style.compare
        if parent == "binary_operator" and tree.fields[node] == "operator":
            return product_or_sum(text, _PRODUCTS, style)
    return None


def _owner_kind(tree: Tree, node: int) -> str:
    return tree.parent_kind(tree.parents[node])
