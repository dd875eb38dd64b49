"""Where a script's arguments are parsed, and what the parsed arguments are called there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from .env import is_rank_option
from .rank import RankNames
from .source import Script
from .syntax import base_name, last_name

_KNOWN = ("parse_known_args", "parse_known_intermixed_args")
_DATACLASSES = "parse_args_into_dataclasses"
_PARSING = ("parse_args", "parse_intermixed_args", *_KNOWN, _DATACLASSES)
_PARTS = ("add_argument_group", "add_mutually_exclusive_group", "add_parser", "add_subparsers")
_GIVES_ARGUMENTS = re.compile(r"arg|opt|conf|param|parse|flag", re.IGNORECASE)
_NAMESPACES = ("Namespace", "SimpleNamespace")


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of the rank's option.

    `default` is code, empty where it is computed; `scope` and `parser` say what it is declared on.
    """

    attribute: str = "local_rank"
    default: str = "-1"
    scope: ast.AST | None = None
    parser: str = ""
    is_of_subcommand: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """A statement that gives the script its arguments.

    `form`: "after" inserts behind it, "return" turns `return parse()` into an assignment first,
    "before" changes the parser's default in front of it, "" means that no place fits.
    """

    statement: ast.stmt
    value: ast.expr
    form: Literal["after", "return", "before", ""]
    namespace: str
    option: Option
    is_sure: bool


def rank_options(script: Script) -> list[Option]:
    """Return every declaration of the option, also as a field of a class of arguments."""
    found = [_declared(script, call) for call in script.calls if is_rank_option(call)]
    if any(last_name(call) == _DATACLASSES for call in script.calls):
        found += [
            Option(default=_code(_field_default(node.value)))
            for node in script.nodes
            if isinstance(node, ast.AnnAssign) and last_name(node.target) == "local_rank"
            if isinstance(script.parents[node], ast.ClassDef)
        ]
    return found


def required_line(script: Script) -> int:
    """Return the line of a rank's option with `required=True`; 0 where there is none."""
    lines = [
        call.lineno
        for call in script.calls
        if is_rank_option(call)
        for each in call.keywords
        if each.arg == "required" and getattr(each.value, "value", None) is True
    ]
    return min(lines, default=0)


def rank_names(options: list[Option]) -> RankNames:
    """Return how a script with these options calls the rank."""
    known = RankNames()
    more = frozenset(option.attribute for option in options)
    return RankNames(known.attributes | more, known.names)


def parse_points(script: Script, names: RankNames, options: list[Option]) -> list[Point]:
    """Return the statements behind which the rank may be read, one per statement."""
    holders = _holders(script, names)
    if not options and not holders:
        return []
    calls = [call for call in script.calls if _is_parsing(call)]
    found: dict[ast.stmt, Point] = {}
    for call in calls:
        option, is_sure = _option_of(script, call, options, alone=len(calls) == 1)
        point = _point(script, holders, call, option, is_sure) if option else None
        if point is None or point.statement in found:
            continue
        if not options and point.namespace and point.namespace not in holders:
            point = replace(point, is_sure=False)  # declared out of sight: perhaps not for this one
        found[point.statement] = point
    return list(found.values()) if calls else list(_foreign_points(script, holders))


def _is_parsing(node: ast.AST) -> bool:
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return is_method and last_name(node) in _PARSING


def _declared(script: Script, call: ast.Call) -> Option:
    given = {each.arg: each.value for each in call.keywords}
    texts = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
    usual = next((each for each in texts if each.startswith("--")), texts[0])
    dest = getattr(given.get("dest"), "value", usual.lstrip("-").replace("-", "_"))
    scope = script.scope(call)
    parser, is_of_subcommand = _root_parser(scope, base_name(call))
    is_number = last_name(given.get("type", call)) == "int"
    default = _code(given.get("default", ast.Constant(None)), is_number)
    return Option(str(dest), default, scope, parser, is_of_subcommand)


def _code(node: ast.expr, is_number: bool = True) -> str:
    """The code of a default; empty where it is computed."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        return ""
    is_digits = isinstance(value, str) and value.strip().lstrip("-").isdigit()
    return repr(int(value) if is_digits and is_number else value)


def _field_default(value: ast.expr | None) -> ast.expr:
    if isinstance(value, ast.Call):
        value = next((each.value for each in value.keywords if each.arg == "default"), None)
    return value or ast.Constant(None)


def _root_parser(scope: ast.AST, name: str) -> tuple[str, bool]:
    """The parser that a group or a subcommand belongs to, and if a subcommand is between."""
    is_of_subcommand = False
    for _ in range(5):  # a chain of groups is two or three long
        made = _value_of(scope, name)
        if not isinstance(made, ast.Call) or last_name(made) not in _PARTS:
            break
        is_of_subcommand |= last_name(made) == "add_parser"
        name = base_name(made)
    return name, is_of_subcommand


def _value_of(scope: ast.AST, name: str) -> ast.expr | None:
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and any(last_name(t) == name for t in node.targets):
            return node.value
    return None


def _option_of(
    script: Script, call: ast.Call, options: list[Option], *, alone: bool
) -> tuple[Option | None, bool]:
    """The option that a parse call fills, and whether that is certain; None for no option."""
    usual = options[0] if options else Option()
    if last_name(call) == _DATACLASSES:
        return usual, True
    parser, around = base_name(call), {script.tree, *script.ancestors(call)}
    for option in options:
        if option.parser == parser and option.scope in around:
            return option, not option.is_of_subcommand
    if alone:
        return usual, not usual.is_of_subcommand
    return (usual, False) if _is_shared(script.scope(call), parser) else (None, True)


def _is_shared(scope: ast.AST, parser: str) -> bool:
    """Whether a parser gets options out of sight: from a helper, its parents, another file."""
    made = _value_of(scope, parser)
    is_plain = isinstance(made, ast.Call) and last_name(made) == "ArgumentParser"
    if not is_plain or any(each.arg == "parents" for each in getattr(made, "keywords", [])):
        return True
    return any(
        isinstance(node, ast.Call) and any(last_name(each) == parser for each in node.args)
        for node in ast.walk(scope)
    )


def _point(
    script: Script, holders: set[str], call: ast.Call, option: Option, is_sure: bool
) -> Point | None:
    node, picks = _outermost(script, call)
    parent, statement = script.parents[node], script.statement(call)
    is_sure = is_sure and all(map(_is_result, _branches(node)))
    method = last_name(call)
    gives_many = method in (*_KNOWN, _DATACLASSES) and not picks
    form, namespace = _before(script, call, is_sure), ""
    if isinstance(parent, ast.NamedExpr) and isinstance(script.parents[parent], ast.Expr):
        form, namespace = "after", parent.target.id
    elif isinstance(parent, ast.Assign | ast.AnnAssign):
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        namespace = _namespace(script, holders, targets, method, gives_many)
        form = "after" if namespace else ""
    elif isinstance(parent, ast.Return) and method != _DATACLASSES:
        form, namespace = "return", "[0]" if gives_many else ""
    elif isinstance(parent, ast.Expr):
        given = next((each.value for each in call.keywords if each.arg == "namespace"), None)
        if given is None:  # the result is thrown away
            return None
        form, namespace = "after", script.source(given)
    value = node if form in ("after", "return") else call
    return Point(statement, value, form, namespace, option, is_sure)


def _outermost(script: Script, call: ast.Call) -> tuple[ast.expr, bool]:
    """The expression that is the call's result: through `x if y else z`, and `[0]`."""
    node: ast.expr = call
    picks = False
    while True:
        parent = script.parents[node]
        is_pick = isinstance(parent, ast.Subscript) and parent.value is node
        if is_pick and getattr(parent.slice, "value", None) == 0:
            picks = True
        elif not isinstance(parent, ast.IfExp) or node is parent.test:
            return node, picks
        node = parent


def _branches(node: ast.expr) -> list[ast.expr]:
    """What `x if y else z` may be; anything else is itself."""
    if isinstance(node, ast.IfExp):
        return [*_branches(node.body), *_branches(node.orelse)]
    return [node]


def _is_result(node: ast.expr) -> bool:
    """Whether a branch is the result of parsing too, and not None or another object."""
    return _is_parsing(node.value if isinstance(node, ast.Subscript) else node)


def _namespace(
    script: Script, holders: set[str], targets: list[ast.expr], method: str, gives_many: bool
) -> str:
    """How the parsed arguments are called after the assignment; empty if that is not certain."""
    target = next((each for each in targets if not isinstance(each, ast.Starred)), targets[0])
    if not isinstance(target, ast.Tuple | ast.List):
        pick = "[0]" if gives_many else ""
        return "" if pick and method == _DATACLASSES else script.source(target) + pick
    parts = [script.source(each) for each in target.elts]
    if len(parts) == 1 or (method in _KNOWN and gives_many):
        return parts[0]
    read = [each for each in parts if each in holders]
    return read[0] if len(read) == 1 else ""


def _before(script: Script, call: ast.Call, is_sure: bool) -> Literal["before", ""]:
    """Whether the parser's default can be changed in front of the statement."""
    assert isinstance(call.func, ast.Attribute)
    statement, parser = script.statement(call), call.func.value
    is_named = all(isinstance(n, ast.Name | ast.Attribute | ast.Load) for n in ast.walk(parser))
    is_named = is_named and not _is_bound_by(statement, parser)
    is_definition = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    is_later = isinstance(script.scope(call), ast.Lambda) or last_name(call) == _DATACLASSES
    is_elif = script.source(statement).startswith("elif")
    fits = is_named and is_sure and not (is_definition or is_later or is_elif)
    return "before" if fits else ""


def _is_bound_by(statement: ast.stmt, parser: ast.expr) -> bool:
    """Whether a statement makes the parser itself, so that there is none in front of it."""
    asked = {node.id for node in ast.walk(parser) if isinstance(node, ast.Name)}
    return any(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in asked
        for node in ast.walk(statement)
    )


def _holders(script: Script, names: RankNames) -> set[str]:
    """What the rank is read of: {"args"} for `args.local_rank`."""
    return {
        script.source(node.value)
        for node in script.nodes
        if isinstance(node, ast.Attribute | ast.Subscript) and names.matches(node)
    }


def _foreign_points(script: Script, holders: set[str]) -> Iterator[Point]:
    """Arguments that another file parses: `args = get_args()`, then `args.local_rank`."""
    for node in script.nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        name, target = last_name(node.value), node.targets[0]
        is_source = _GIVES_ARGUMENTS.search(name) and name not in _NAMESPACES
        if is_source and isinstance(target, ast.Name) and target.id in holders:
            yield Point(node, node.value, "after", target.id, Option(), is_sure=True)
