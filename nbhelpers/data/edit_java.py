"""A Java program set out anew in a given style."""

from __future__ import annotations

import random

from nbhelpers.data.edit_layout import Item, Style, columns, join, moved_comment, wrapped
from nbhelpers.data.edit_tree import words
from nbhelpers.data.syntax import COMMENTS, Tree

# ------------------------------------------------------------------------------------------------
# What stands between two tokens of Java on one line, in a given style.


_TYPE_BRACKETS = frozenset({"type_arguments", "type_parameters"})
_CONTROL = words("if for while switch catch synchronized try")
_ASSIGNED = words("assignment_expression variable_declarator element_value_pair resource")
_COMPARE = frozenset({"<", ">", "<=", ">=", "==", "!="})
_PRODUCTS = frozenset({"*", "/", "%"})
_TIGHT = frozenset({".", "::", "@"})
# Pairs of characters that read as one sign.
_ONE_SIGN = words("++ -- && || == != <= >= += -= *= /= %= &= |= ^= << >> -> :: // /* */ .. <-")


def between(syntax: Tree, a: int, b: int, style: Style) -> str:
    """Return the blanks between two leaves that follow each other."""
    left, right = syntax.text(a), syntax.text(b)
    blank = _wanted(syntax, a, b, left, right, style)
    if blank == "" and _merge(syntax, a, b, left, right):
        return " "
    return blank


def _merge(syntax: Tree, a: int, b: int, left: str, right: str) -> bool:
    """Would two tokens without a blank read as others?"""
    if (left[-1].isalnum() or left[-1] in "_$") and (right[0].isalnum() or right[0] in "_$"):
        return True
    if left[-1].isdigit() and right[0] == "." and right != "...":
        return True
    in_types = syntax.parent_kind(a) in _TYPE_BRACKETS and syntax.parent_kind(b) in _TYPE_BRACKETS
    return left[-1] + right[0] in _ONE_SIGN and not in_types


def _wanted(syntax: Tree, a: int, b: int, left: str, right: str, style: Style) -> str:
    above, below = syntax.parent_kind(a), syntax.parent_kind(b)
    if (left in _TIGHT and above != "labeled_statement") or right in (".", "::"):
        return ""
    if right in (",", ";"):
        return ""
    if left == "{" or right == "}":
        return _in_braces(left, right, above, style)
    if left in ("(", "[") or right in (")", "]"):
        is_empty = left in ("(", "[") and right in (")", "]")
        return "" if is_empty or "[" in (left, right) or "]" in (left, right) else style.pad
    if left == ",":
        return style.comma
    if right in ("[", "...") or (right == ":" and below in _LABELS):
        return ""
    if right == "(":
        return _before_bracket(syntax, a, b, left, below, style)
    if left in ("<", ">") or right in ("<", ">"):
        blank = _type_brackets(syntax, a, b, left, right, style)
        if blank is not None:
            return blank
    return _operators(syntax, a, b, left, right, style)


_LABELS = frozenset({"switch_block_statement_group", "labeled_statement", "switch_label"})


def _in_braces(left: str, right: str, above: str, style: Style) -> str:
    if left == "{" and right == "}":
        return "" if style.empty == "\n" else style.empty
    if above in ("array_initializer", "element_value_array_initializer"):
        return style.pad
    return " "


def _before_bracket(syntax: Tree, a: int, b: int, left: str, below: str, style: Style) -> str:
    if left in _CONTROL:
        return style.control
    if below in ("argument_list", "annotation_argument_list", "resource_specification"):
        return style.call if below == "argument_list" else ""
    if below == "formal_parameters":
        owner = syntax.parent_kind(syntax.parents[b])
        return " " if owner == "lambda_expression" else style.call
    if below == "record_pattern_body":
        return ""
    return _operators(syntax, a, b, left, "(", style)


def _type_brackets(syntax: Tree, a: int, b: int, left: str, right: str, style: Style) -> str | None:
    above, below = syntax.parent_kind(a), syntax.parent_kind(b)
    if right == "<" and below in _TYPE_BRACKETS:
        is_method = syntax.parent_kind(syntax.parents[b]) in (
            "method_declaration",
            "constructor_declaration",
        )
        return " " if is_method else ""
    if (left == "<" and above in _TYPE_BRACKETS) or (right == ">" and below in _TYPE_BRACKETS):
        return ""
    if left == ">" and above in _TYPE_BRACKETS:
        in_call = syntax.parent_kind(syntax.parents[a]) in ("method_invocation", "method_reference")
        return "" if in_call else None
    return None


def _operators(syntax: Tree, a: int, b: int, left: str, right: str, style: Style) -> str:
    above, below = syntax.parent_kind(a), syntax.parent_kind(b)
    if above == "unary_expression" and syntax.fields[a] == "operator":
        return ""
    if (left in ("++", "--") and _is_prefix(syntax, a)) or (
        right in ("++", "--") and not _is_prefix(syntax, b)
    ):
        return ""
    for text, parent in ((left, above), (right, below)):
        if text.endswith("=") and parent in _ASSIGNED:
            return style.assign
        if parent == "binary_expression" and not (text[0].isalnum() or text[0] in "_$\"'("):
            return _binary(text, style)
    return " "


def _is_prefix(syntax: Tree, sign: int) -> bool:
    """Does this `++` stand before its operand?"""
    return syntax.parents[sign] == sign - 1


def _binary(text: str, style: Style) -> str:
    if text in _COMPARE:
        return style.compare
    if text in ("&&", "||"):
        return " "
    if style.operator == "tight":
        return "" if text in _PRODUCTS else " "
    return style.operator


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
_TYPES = words(
    "class_declaration interface_declaration enum_declaration record_declaration "
    "annotation_type_declaration"
)
_METHODS = frozenset(
    [
        "method_declaration",
        "constructor_declaration",
        "compact_constructor_declaration",
        "static_initializer",
    ]
)
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


def reformat_java(syntax: Tree, style: Style, draw: random.Random) -> str:
    """Return the program in the style."""
    lines = _lines(syntax, style)
    out: list[str] = []
    before: _Line | None = None
    for line in lines:
        chance = draw.random()
        if before is not None:
            out.extend([""] * _blanks(syntax, before, line, style, chance))
        out.append(_written(syntax, line, style))
        before = line
    return "\n".join(out) + "\n" if out else ""


def _lines(syntax: Tree, style: Style) -> list[_Line]:
    depths, breaks = _depths(syntax, style), _breaks(syntax, style)
    lines: list[_Line] = []
    end, must, was_comment = 0, True, False
    for number, leaf in enumerate(syntax.leaves):
        kind = syntax.kinds[leaf]
        is_apart = b"\n" in syntax.source[end : syntax.starts[leaf]]
        end = syntax.stops[leaf]
        if kind in COMMENTS:
            follows = syntax.leaves[number + 1] if number + 1 < len(syntax.leaves) else -1
            if is_apart or (must and not was_comment and not lines):
                depth = _comment_depth(syntax, leaf, depths, follows)
                lines.append(_Line(depth, leaf))
                lines[-1].leaves.append(leaf)
                must = was_comment = True
            elif kind == "line_comment" or must or follows in breaks:
                text = moved_comment(syntax.text(leaf), "")
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


def _comment_depth(syntax: Tree, leaf: int, depths: list[int], follows: int) -> int:
    """Comments stand as deep as what follows, and behind the last statement as deep as that."""
    if follows >= 0 and syntax.kinds[follows] not in COMMENTS | {"}"}:
        return min(depths[leaf], depths[follows]) if depths[leaf] else depths[follows]
    return depths[leaf]


def _depths(syntax: Tree, style: Style) -> list[int]:
    """Steps of indentation of every node."""
    depths: list[int] = []
    kinds, parents = syntax.kinds, syntax.parents
    for node, kind in enumerate(kinds):
        parent = parents[node]
        if parent < 0:
            depths.append(0)
            continue
        above, more = kinds[parent], 0
        if above in BODIES:
            is_inner = kind not in ("{", "}") and syntax.starts[parent] >= 0
            more = int(is_inner and (above != "switch_block" or style.case))
        elif above in _UNBRACED:
            more = int(_is_unbraced_body(syntax, node))
        elif above == "switch_block_statement_group":
            more = int(kind not in ("switch_label", ":"))
        depths.append(depths[parent] + more)
    return depths


def _is_unbraced_body(syntax: Tree, node: int) -> bool:
    kind, field = syntax.kinds[node], syntax.fields[node]
    if field not in _BODY_FIELDS or kind in ("block", ";"):
        return False
    return not (field == "alternative" and kind == "if_statement")


def _breaks(syntax: Tree, style: Style) -> dict[int, int]:
    """The leaves that begin a line, each with the outermost node that begins with it."""
    breaks: dict[int, int] = {}
    at = {syntax.starts[leaf]: leaf for leaf in syntax.leaves}
    previous = dict(zip(syntax.leaves[1:], syntax.leaves, strict=False))
    for node, kind in enumerate(syntax.kinds):
        if syntax.starts[node] < 0 or kind in COMMENTS or node == 0:
            continue
        if _begins_line(syntax, node, previous, style):
            leaf = at.get(syntax.starts[node])
            if leaf is not None:
                breaks.setdefault(leaf, node)
    return breaks


def _begins_line(syntax: Tree, node: int, previous: dict[int, int], style: Style) -> bool:
    kind, above = syntax.kinds[node], syntax.parent_kind(node)
    if kind == "{" and above in BODIES:
        owner = syntax.parent_kind(syntax.parents[node])
        return style.brace == "own" and owner not in _INLINE_BRACE
    if kind == "}" and above in BODIES:
        before = previous.get(node, -1)
        is_empty = before >= 0 and syntax.kinds[before] == "{"
        return not is_empty or style.empty == "\n" or style.brace == "own"
    if kind in ("else", "catch_clause", "finally_clause") or (
        kind == "while" and above == "do_statement"
    ):
        before = previous.get(node if kind in ("else", "while") else node + 1, -1)
        return not (before >= 0 and syntax.kinds[before] == "}" and style.cuddle)
    if above in _PLACES:
        return _begins_member(syntax, node)
    if above in _UNBRACED and _is_unbraced_body(syntax, node):
        return not style.short_bodies
    return _follows_annotation(syntax, node)


def _begins_member(syntax: Tree, node: int) -> bool:
    kind, above = syntax.kinds[node], syntax.parent_kind(node)
    if kind in (";", ",", ":", "enum_body_declarations"):
        return False
    if kind == "enum_constant":
        return node == syntax.parents[node] + 2 or syntax.field(node, "body") is not None
    return not (above == "program" and kind in ("{", "}"))


def _follows_annotation(syntax: Tree, node: int) -> bool:
    """Is this what an annotation of a type or a method stands before?"""
    parent = syntax.parents[node]
    is_modifier = syntax.kinds[parent] == "modifiers"
    owner = syntax.parents[parent] if is_modifier else parent
    if owner < 0 or syntax.kinds[owner] not in _TYPES | _METHODS:
        return False
    before = _sibling_before(syntax, node)
    if not is_modifier and before is not None and syntax.kinds[before] == "modifiers":
        before = list(syntax.children(before))[-1]
    if before is None:
        return False
    return syntax.kinds[before] in ("marker_annotation", "annotation")


def _sibling_before(syntax: Tree, node: int) -> int | None:
    before = None
    for child in syntax.children(syntax.parents[node]):
        if child == node:
            return before
        if syntax.kinds[child] not in COMMENTS:
            before = child
    return None


def _blanks(syntax: Tree, before: _Line, line: _Line, style: Style, chance: float) -> int:
    """Blank lines between two lines."""
    kind = syntax.kinds[line.node] if line.node >= 0 else ""
    last = syntax.kinds[before.leaves[-1]]
    if kind in ("", "{", "}") or last == "{" or last in COMMENTS or line.depth > before.depth:
        return 0
    if kind in ("else", "catch_clause", "finally_clause", "while"):
        return 0
    was = syntax.kinds[before.node] if before.node >= 0 else ""
    in_type = syntax.parent_kind(line.node) in ("class_body", "interface_body", "program", "")
    if kind in _TYPES | _METHODS or (was == "}" and in_type):
        return max(style.inner_blanks, int(line.depth == 0))
    if "import" in was + kind or "package" in was + kind:
        return int(was != kind and not (kind in COMMENTS and not was))
    if in_type and kind in COMMENTS:
        return style.inner_blanks
    is_larger = kind in _LARGER or kind in COMMENTS or was == "}"
    return int(is_larger and chance < style.blank_chance)


def _written(syntax: Tree, line: _Line, style: Style) -> str:
    first = style.indent * line.depth
    if len(line.leaves) == 1 and syntax.kinds[line.leaves[0]] in COMMENTS:
        text = first + moved_comment(syntax.text(line.leaves[0]), first)
        return text + (" " + line.comment) * bool(line.comment)
    items = []
    for at, leaf in enumerate(line.leaves):
        blank = between(syntax, line.leaves[at - 1], leaf, style) if at else ""
        items.append(Item(blank, moved_comment(syntax.text(leaf), first)))
    text = first + join(items)
    if style.width and columns(text) > style.width:
        text = wrapped(items, first, style)
    return text + ((style.comment or " ") + line.comment) * bool(line.comment)
