"""A Java program set out anew in a given style."""

from __future__ import annotations

import random

from nbhelpers.data.edit_layout import (
    Item,
    Style,
    columns,
    join,
    moved_comment,
    product_or_sum,
    wrapped,
)
from nbhelpers.data.edit_tree import JAVA_TYPES, words
from nbhelpers.data.syntax import COMMENTS, Tree

# ------------------------------------------------------------------------------------------------
# What stands between two tokens of Java on one line, in a given style.


_TYPE_BRACKETS = frozenset({"type_arguments", "type_parameters"})
_CONTROL = words("if for while switch catch synchronized try")
_ASSIGNED = words("assignment_expression variable_declarator element_value_pair resource")
_METHODS = words(
    "method_declaration constructor_declaration compact_constructor_declaration static_initializer"
)
_COMPARE = frozenset({"<", ">", "<=", ">=", "==", "!="})
_PRODUCTS = words("* / %")
_LABELS = words("switch_block_statement_group labeled_statement switch_label")
_INITIALIZERS = words("array_initializer element_value_array_initializer")
_CALLS = words("method_invocation method_reference")
_TIGHT = frozenset({".", "::", "@"})
# Pairs of characters that read as one sign.
_ONE_SIGN = words("++ -- && || == != <= >= += -= *= /= %= &= |= ^= << >> -> :: // /* */ .. <-")


def _between(tree: Tree, a: int, b: int, style: Style) -> str:
    """The blanks between two leaves that follow each other."""
    blank = _wanted(tree, a, b, style)
    return " " if blank == "" and _merge(tree, a, b) else blank


def _merge(tree: Tree, a: int, b: int) -> bool:
    """Would two tokens without a blank read as others?"""
    left, right = tree.text(a), tree.text(b)
    if (left[-1].isalnum() or left[-1] in "_$") and (right[0].isalnum() or right[0] in "_$"):
        return True
    if left[-1].isdigit() and right[0] == "." and right != "...":
        return True
    in_types = tree.parent_kind(a) in _TYPE_BRACKETS and tree.parent_kind(b) in _TYPE_BRACKETS
    return left[-1] + right[0] in _ONE_SIGN and not in_types


def _wanted(tree: Tree, a: int, b: int, style: Style) -> str:
    left, right = tree.text(a), tree.text(b)
    above, below = tree.parent_kind(a), tree.parent_kind(b)
    if (left in _TIGHT and above != "labeled_statement") or right in (".", "::", ",", ";"):
        return ""
    if left == "{" and right == "}":
        return "" if style.empty == "\n" else style.empty
    if left == "{" or right == "}":
        return style.pad if above in _INITIALIZERS else " "
    if left in ("(", "[") or right in (")", "]"):
        is_empty = left in ("(", "[") and right in (")", "]")
        return "" if is_empty or left in ("[", "]") or right in ("[", "]") else style.pad
    if left == ",":
        return style.comma
    if right in ("[", "...") or (right == ":" and below in _LABELS):
        return ""
    if right == "(":
        if left in _CONTROL:
            return style.control
        if below == "argument_list":
            return style.call
        if below == "formal_parameters":
            return " " if _owner_kind(tree, b) == "lambda_expression" else style.call
        if below in ("annotation_argument_list", "resource_specification", "record_pattern_body"):
            return ""
    if right == "<" and below in _TYPE_BRACKETS:
        return " " if _owner_kind(tree, b) in _METHODS else ""
    if (left == "<" and above in _TYPE_BRACKETS) or (right == ">" and below in _TYPE_BRACKETS):
        return ""
    if left == ">" and above in _TYPE_BRACKETS and _owner_kind(tree, a) in _CALLS:
        return ""
    if above == "unary_expression" and tree.fields[a] == "operator":
        return ""
    if (left in ("++", "--") and _is_prefix(tree, a)) or (
        right in ("++", "--") and not _is_prefix(tree, b)
    ):
        return ""
    for text, parent in ((left, above), (right, below)):
        if text.endswith("=") and parent in _ASSIGNED:
            return style.assign
        if parent == "binary_expression" and not (text[0].isalnum() or text[0] in "_$\"'("):
            if text in ("&&", "||"):
                return " "
            return style.compare if text in _COMPARE else product_or_sum(text, _PRODUCTS, style)
    return " "


def _is_prefix(tree: Tree, sign: int) -> bool:
    """Does this `++` stand before its operand?"""
    return tree.parents[sign] == sign - 1


def _owner_kind(tree: Tree, node: int) -> str:
    return tree.parent_kind(tree.parents[node])


# ------------------------------------------------------------------------------------------------
# A Java program set out anew in a given style; where its lines broke before does not matter.
#
# Statements and members begin lines, braces stand where the style has them, blank lines are drawn.
# Comments stay on lines of their own or behind the code, as they were.


BODIES = words(
    "block class_body constructor_body enum_body interface_body annotation_type_body "
    "switch_block module_body"
)
_PLACES = BODIES | {"program", "switch_block_statement_group", "enum_body_declarations"}
_UNBRACED = words("if_statement for_statement enhanced_for_statement while_statement do_statement")
_BODY_FIELDS = frozenset({"consequence", "alternative", "body"})
_LARGER = words(
    "if_statement for_statement enhanced_for_statement while_statement do_statement "
    "try_statement try_with_resources_statement switch_expression return_statement"
)
_INLINE_BRACE = frozenset({"lambda_expression", "object_creation_expression", "enum_constant"})
CONTINUED = 2  # steps of indentation for a line that goes on


class _Line:
    """A line under construction: its depth, its leaves, the node that it begins."""

    def __init__(self, depth: int, node: int) -> None:
        self.depth, self.node = depth, node
        self.leaves: list[int] = []
        self.comment = ""


def reformat_java(tree: Tree, style: Style, draw: random.Random) -> str:
    """Return the program in the style."""
    lines = _lines(tree, style)
    out: list[str] = []
    before: _Line | None = None
    for line in lines:
        chance = draw.random()
        if before is not None:
            out.extend([""] * _blanks(tree, before, line, style, chance))
        out.append(_written(tree, line, style))
        before = line
    return "\n".join(out) + "\n" if out else ""


def _lines(tree: Tree, style: Style) -> list[_Line]:
    depths, breaks = _depths(tree, style), _breaks(tree, style)
    lines: list[_Line] = []
    end, must, was_comment = 0, True, False
    for number, leaf in enumerate(tree.leaves):
        kind = tree.kinds[leaf]
        is_apart = b"\n" in tree.source[end : tree.starts[leaf]]
        end = tree.stops[leaf]
        if kind in COMMENTS:
            follows = tree.leaves[number + 1] if number + 1 < len(tree.leaves) else -1
            if is_apart or (must and not was_comment and not lines):
                depth = _comment_depth(tree, leaf, depths, follows)
                lines.append(_Line(depth, leaf))
                lines[-1].leaves.append(leaf)
                must = was_comment = True
            elif kind == "line_comment" or must or follows in breaks:
                text = moved_comment(tree.text(leaf), "")
                lines[-1].comment = f"{lines[-1].comment} {text}".strip()
                must = True
            else:
                lines[-1].leaves.append(leaf)
            continue
        if must or leaf in breaks or not lines:
            node = breaks.get(leaf, -1)
            lines.append(_Line(depths[leaf] + (0 if node >= 0 or not lines else CONTINUED), node))
        lines[-1].leaves.append(leaf)
        must = was_comment = False
    return lines


def _comment_depth(tree: Tree, leaf: int, depths: list[int], follows: int) -> int:
    """Comments stand as deep as what follows, and behind the last statement as deep as that."""
    if follows >= 0 and tree.kinds[follows] not in COMMENTS | {"}"}:
        return min(depths[leaf], depths[follows]) if depths[leaf] else depths[follows]
    return depths[leaf]


def _depths(tree: Tree, style: Style) -> list[int]:
    """Steps of indentation of every node."""
    depths: list[int] = []
    kinds, parents = tree.kinds, tree.parents
    for node, kind in enumerate(kinds):
        parent = parents[node]
        if parent < 0:
            depths.append(0)
            continue
        above, more = kinds[parent], 0
        if above in BODIES:
            is_inner = kind not in ("{", "}") and tree.starts[parent] >= 0
            more = int(is_inner and (above != "switch_block" or style.case))
        elif above in _UNBRACED:
            more = int(_is_unbraced_body(tree, node))
        elif above == "switch_block_statement_group":
            more = int(kind not in ("switch_label", ":"))
        depths.append(depths[parent] + more)
    return depths


def _is_unbraced_body(tree: Tree, node: int) -> bool:
    kind, field = tree.kinds[node], tree.fields[node]
    if field not in _BODY_FIELDS or kind in ("block", ";"):
        return False
    return not (field == "alternative" and kind == "if_statement")


def _breaks(tree: Tree, style: Style) -> dict[int, int]:
    """The leaves that begin a line, each with the outermost node that begins with it."""
    breaks: dict[int, int] = {}
    at = {tree.starts[leaf]: leaf for leaf in tree.leaves}
    previous = dict(zip(tree.leaves[1:], tree.leaves, strict=False))
    for node, kind in enumerate(tree.kinds):
        if tree.starts[node] < 0 or kind in COMMENTS or node == 0:
            continue
        if _begins_line(tree, node, previous, style):
            leaf = at.get(tree.starts[node])
            if leaf is not None:
                breaks.setdefault(leaf, node)
    return breaks


def _begins_line(tree: Tree, node: int, previous: dict[int, int], style: Style) -> bool:
    kind, above = tree.kinds[node], tree.parent_kind(node)
    if kind == "{" and above in BODIES:
        owner = tree.parent_kind(tree.parents[node])
        return style.brace == "own" and owner not in _INLINE_BRACE
    if kind == "}" and above in BODIES:
        before = previous.get(node, -1)
        is_empty = before >= 0 and tree.kinds[before] == "{"
        return not is_empty or style.empty == "\n" or style.brace == "own"
    if kind in ("else", "catch_clause", "finally_clause") or (
        kind == "while" and above == "do_statement"
    ):
        before = previous.get(node if kind in ("else", "while") else node + 1, -1)
        return not (before >= 0 and tree.kinds[before] == "}" and style.cuddle)
    if above in _PLACES:
        return _begins_member(tree, node)
    if above in _UNBRACED and _is_unbraced_body(tree, node):
        return not style.short_bodies
    return _follows_annotation(tree, node)


def _begins_member(tree: Tree, node: int) -> bool:
    kind, above = tree.kinds[node], tree.parent_kind(node)
    if kind in (";", ",", ":", "enum_body_declarations"):
        return False
    if kind == "enum_constant":
        return node == tree.parents[node] + 2 or tree.field(node, "body") is not None
    return not (above == "program" and kind in ("{", "}"))


def _follows_annotation(tree: Tree, node: int) -> bool:
    """Is this what an annotation of a type or a method stands before?"""
    parent = tree.parents[node]
    is_modifier = tree.kinds[parent] == "modifiers"
    owner = tree.parents[parent] if is_modifier else parent
    if owner < 0 or tree.kinds[owner] not in JAVA_TYPES | _METHODS:
        return False
    before = _sibling_before(tree, node)
    if not is_modifier and before is not None and tree.kinds[before] == "modifiers":
        before = list(tree.children(before))[-1]
    if before is None:
        return False
    return tree.kinds[before] in ("marker_annotation", "annotation")


def _sibling_before(tree: Tree, node: int) -> int | None:
    before = None
    for child in tree.children(tree.parents[node]):
        if child == node:
            return before
        if tree.kinds[child] not in COMMENTS:
            before = child
    return None


def _blanks(tree: Tree, before: _Line, line: _Line, style: Style, chance: float) -> int:
    """Blank lines between two lines."""
    kind = tree.kinds[line.node] if line.node >= 0 else ""
    last = tree.kinds[before.leaves[-1]]
    if kind in ("", "{", "}") or last == "{" or last in COMMENTS or line.depth > before.depth:
        return 0
    if kind in ("else", "catch_clause", "finally_clause", "while"):
        return 0
    was = tree.kinds[before.node] if before.node >= 0 else ""
    in_type = tree.parent_kind(line.node) in ("class_body", "interface_body", "program", "")
    if kind in JAVA_TYPES | _METHODS or (was == "}" and in_type):
        return max(style.inner_blanks, int(line.depth == 0))
    if "import" in was + kind or "package" in was + kind:
        return int(was != kind and not (kind in COMMENTS and not was))
    if in_type and kind in COMMENTS:
        return style.inner_blanks
    is_larger = kind in _LARGER or kind in COMMENTS or was == "}"
    return int(is_larger and chance < style.blank_chance)


def _written(tree: Tree, line: _Line, style: Style) -> str:
    first = style.indent * line.depth
    if len(line.leaves) == 1 and tree.kinds[line.leaves[0]] in COMMENTS:
        text = first + moved_comment(tree.text(line.leaves[0]), first)
        return text + (" " + line.comment) * bool(line.comment)
    items = []
    for at, leaf in enumerate(line.leaves):
        blank = _between(tree, line.leaves[at - 1], leaf, style) if at else ""
        items.append(Item(blank, moved_comment(tree.text(leaf), first)))
    text = first + join(items)
    if style.width and columns(text) > style.width:
        text = wrapped(items, first, style)
    return text + ((style.comment or " ") + line.comment) * bool(line.comment)
