"""What stands between two tokens of Java on one line, in a given style."""

from __future__ import annotations

from .edit_styles import Style
from .edit_tree import Syntax
from .edit_words import words

_TYPE_BRACKETS = frozenset({"type_arguments", "type_parameters"})
_CONTROL = words("if for while switch catch synchronized try")
_ASSIGNED = words("assignment_expression variable_declarator element_value_pair resource")
_COMPARE = frozenset({"<", ">", "<=", ">=", "==", "!="})
_PRODUCTS = frozenset({"*", "/", "%"})
_TIGHT = frozenset({".", "::", "@"})
# Pairs of characters that read as one sign.
_ONE_SIGN = words("++ -- && || == != <= >= += -= *= /= %= &= |= ^= << >> -> :: // /* */ .. <-")


def between(syntax: Syntax, a: int, b: int, style: Style) -> str:
    """Return the blanks between two leaves that follow each other."""
    left, right = syntax.text(a), syntax.text(b)
    blank = _wanted(syntax, a, b, left, right, style)
    if blank == "" and _merge(syntax, a, b, left, right):
        return " "
    return blank


def _merge(syntax: Syntax, a: int, b: int, left: str, right: str) -> bool:
    """Would two tokens without a blank read as others?"""
    if (left[-1].isalnum() or left[-1] in "_$") and (right[0].isalnum() or right[0] in "_$"):
        return True
    if left[-1].isdigit() and right[0] == "." and right != "...":
        return True
    in_types = syntax.parent_kind(a) in _TYPE_BRACKETS and syntax.parent_kind(b) in _TYPE_BRACKETS
    return left[-1] + right[0] in _ONE_SIGN and not in_types


def _wanted(syntax: Syntax, a: int, b: int, left: str, right: str, style: Style) -> str:
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


def _before_bracket(syntax: Syntax, a: int, b: int, left: str, below: str, style: Style) -> str:
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


def _type_brackets(
    syntax: Syntax, a: int, b: int, left: str, right: str, style: Style
) -> str | None:
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


def _operators(syntax: Syntax, a: int, b: int, left: str, right: str, style: Style) -> str:
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


def _is_prefix(syntax: Syntax, sign: int) -> bool:
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
