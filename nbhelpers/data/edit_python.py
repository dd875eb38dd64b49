"""A Python program set out anew, statement by statement, in a given style.

Only tokens, comments and the tree decide, never where the lines broke before: several statements on
a line get lines of their own, blank lines are drawn. Docstrings keep their text.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from nbhelpers.data.edit_layout import Item, Style, bracketed, join, wrapped
from nbhelpers.data.edit_tree import same_string, words
from nbhelpers.data.syntax import COMMENTS, Tree

_CLAUSES = words(
    "elif_clause else_clause except_clause except_group_clause finally_clause case_clause"
)
_DEFINITIONS = frozenset({"function_definition", "class_definition", "decorated_definition"})
_IMPORTS = frozenset({"import_statement", "import_from_statement", "future_import_statement"})
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
_PRODUCTS = frozenset({"*", "/", "//", "%", "**", "@"})


class _Line(NamedTuple):
    """A logical line, or a comment on a line of its own (`kind` is "comment")."""

    depth: int
    kind: str
    leaves: list[int]
    comment: str = ""  # behind the code


def reformat_python(syntax: Tree, style: Style, draw: random.Random) -> str:
    """Return the program in the style."""
    lines = _logical_lines(syntax)
    out: list[str] = []
    for number, line in enumerate(lines):
        blanks = _blanks_before(lines, number, style, draw)
        out.extend([""] * (blanks if out else 0))
        first = style.indent * line.depth
        if line.kind == "comment":
            out.append(first + syntax.text(line.leaves[0]).rstrip())
            continue
        text = _statement(syntax, line, style)
        out.append(text + (style.comment or " ") * bool(line.comment) + line.comment)
    return "\n".join(out) + "\n" if out else ""


def _logical_lines(syntax: Tree) -> list[_Line]:
    starts, depths = _statements(syntax)
    lines: list[_Line] = []
    columns: dict[int, int] = {}  # indentation, by depth, of the lines so far
    waiting: list[int] = []  # comments on lines of their own, until the next statement is known
    brackets = 0
    end = 0
    for leaf in syntax.leaves:
        text, kind = syntax.text(leaf), syntax.kinds[leaf]
        gap = syntax.source[end : syntax.starts[leaf]]
        end = syntax.stops[leaf]
        if kind == "comment" and not brackets:
            if b"\n" in gap or not lines:
                waiting.append(leaf)
            else:
                lines[-1] = lines[-1]._replace(comment=f"{lines[-1].comment} {text}".strip())
        elif leaf in starts:
            node = starts[leaf]
            depth, column = depths[leaf], _column(syntax, leaf)
            lines += _placed(syntax, waiting, lines, depth, column, columns)
            waiting = []
            columns[depth] = column
            lines.append(_Line(depth, syntax.kinds[node], [leaf]))
        elif kind != ";":
            lines[-1].leaves.append(leaf)
        brackets += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
    return lines + _placed(syntax, waiting, lines, 0, 0, columns)


def _statements(syntax: Tree) -> tuple[dict[int, int], dict[int, int]]:
    """The leaves that begin a logical line with the outermost node they begin; their depths."""
    starts: dict[int, int] = {}
    depths: dict[int, int] = {}
    node_depths: list[int] = []
    following = {syntax.starts[leaf]: leaf for leaf in syntax.leaves}
    for node, kind in enumerate(syntax.kinds):
        parent = syntax.parents[node]
        above = syntax.kinds[parent] if parent >= 0 else ""
        depth = node_depths[parent] + (above == "block") if parent >= 0 else 0
        node_depths.append(depth)
        begins = above in ("block", "module", "decorated_definition") or kind in _CLAUSES
        if begins and kind not in COMMENTS and kind not in (";", ":"):
            leaf = following.get(syntax.starts[node])
            if leaf is not None and leaf not in starts:
                starts[leaf], depths[leaf] = node, depth
    return starts, depths


def _column(syntax: Tree, node: int) -> int:
    """Columns before a node; its line may hold something else before it."""
    begin = syntax.source.rfind(b"\n", 0, syntax.starts[node]) + 1
    return len(syntax.source[begin : syntax.starts[node]].expandtabs(8))


def _placed(
    syntax: Tree,
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
        own = _column(syntax, comment)
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
    if before.kind in _IMPORTS and line.kind not in _IMPORTS:
        return 1
    is_larger = line.kind in _LARGER or line.kind == "comment" or before.depth > line.depth
    return int(is_larger and chance < style.blank_chance)


def _ends_definition(lines: list[_Line], number: int) -> bool:
    """Does what stands before this line at the same depth define a function or class?"""
    depth = lines[number].depth
    before = (line for line in reversed(lines[:number]) if line.depth == depth)
    return next((line.kind in _DEFINITIONS for line in before if line.kind != "comment"), False)


def _statement(syntax: Tree, line: _Line, style: Style) -> str:
    items = []
    for at, leaf in enumerate(line.leaves):
        text = syntax.text(leaf)
        if syntax.kinds[leaf] == "string" and style.quote:
            text = same_string(text, style.quote)
        blank = _between(syntax, line.leaves[at - 1], leaf, style) if at else ""
        items.append(Item(blank, text, syntax.kinds[leaf] in COMMENTS))
    first = style.indent * line.depth
    if any(item.is_comment for item in items):
        return bracketed(items, first, style)
    text = first + join(items)
    if style.width and len(text.expandtabs(4)) > style.width:
        return wrapped(items, first, style, " \\")
    return text


def _between(syntax: Tree, a: int, b: int, style: Style) -> str:
    """What stands between two tokens of a statement."""
    left, right = syntax.text(a), syntax.text(b)
    if left in ("(", "[", "{") or right in (")", "]", "}"):
        is_empty = left in ("(", "[", "{") and right in (")", "]", "}")
        return "" if is_empty or left == "," else style.pad
    if right in (",", ";", ":"):
        return ""
    blank = _RULES.get(left, _default)(syntax, a, b, style)
    if blank is None:
        blank = _BEFORE.get(right, _default)(syntax, a, b, style)
    if blank is None:
        blank = _operator(syntax, a, b, style)
    if blank == "" and _merge(left, right, syntax.kinds[a], syntax.kinds[b]):
        return " "
    return " " if blank is None else blank


def _merge(left: str, right: str, left_kind: str, right_kind: str) -> bool:
    """Would two tokens without a blank read as others?"""
    words = (left[-1].isalnum() or left[-1] == "_") and (right[0].isalnum() or right[0] in "_'\"")
    number = left_kind in ("integer", "float") and (right[0] == "." or right[0].isalpha())
    return words or number


Rule = Callable[[Tree, int, int, Style], "str | None"]


def _default(syntax: Tree, a: int, b: int, style: Style) -> str | None:
    return None


def _after_comma(syntax: Tree, a: int, b: int, style: Style) -> str:
    return style.comma


def _after_colon(syntax: Tree, a: int, b: int, style: Style) -> str:
    parent = syntax.parent_kind(a)
    return {"slice": "", "pair": style.colon, "dict_pattern": style.colon}.get(parent, " ")


def _after_dot(syntax: Tree, a: int, b: int, style: Style) -> str:
    return " " if syntax.kinds[b] == "import" else ""


def _before_dot(syntax: Tree, a: int, b: int, style: Style) -> str:
    return " " if syntax.kinds[a] in ("from", "integer") else ""


def _before_bracket(syntax: Tree, a: int, b: int, style: Style) -> str | None:
    parent, text = syntax.parent_kind(b), syntax.text(b)
    if text == "[":
        return "" if parent in ("subscript", "type_parameter") else None
    above = syntax.parents[syntax.parents[b]]
    is_call = parent == "generator_expression" and above >= 0 and syntax.kinds[above] == "call"
    if parent == "argument_list" or is_call:
        return style.call
    if parent in _ARGUMENTS:
        return ""
    return style.control if syntax.kinds[a] in ("if", "while", "not", "in", "return") else None


def _after_unary(syntax: Tree, a: int, b: int, style: Style) -> str | None:
    parent = syntax.parent_kind(a)
    return "" if parent in ("unary_operator", "decorator") or parent in _SPLATS else None


def _assigned(syntax: Tree, node: int, style: Style) -> str | None:
    parent = syntax.parent_kind(node)
    if parent in _DEFAULTS:
        return style.keyword
    return style.assign if parent in ("assignment", "augmented_assignment") else None


_RULES: dict[str, Rule] = {
    ",": _after_comma,
    ":": _after_colon,
    ".": _after_dot,
    **dict.fromkeys(("-", "+", "~", "@", "*", "**"), _after_unary),
}
_BEFORE: dict[str, Rule] = {
    ".": _before_dot,
    **dict.fromkeys(("(", "["), _before_bracket),
}


def _operator(syntax: Tree, a: int, b: int, style: Style) -> str | None:
    """Blanks around an operator that stands between two operands, or None where there is none."""
    for node in (a, b):
        text, parent = syntax.text(node), syntax.parent_kind(node)
        if text[0].isalpha() or text[0] in "_\"'":
            continue
        if "=" in text and parent != "comparison_operator":
            blank = _assigned(syntax, node, style)
            if blank is not None:
                return blank
        if parent == "comparison_operator" and syntax.fields[node] == "operators":
            return style.compare
        if parent == "binary_operator" and syntax.fields[node] == "operator":
            if style.operator == "tight":
                return "" if text in _PRODUCTS else " "
            return style.operator
    return None
