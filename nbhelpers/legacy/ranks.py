"""What a script does with its rank: conditions, LOCAL_RANK, and its arguments."""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from nbhelpers.legacy.source import Script, base_name, last_name

# ------------------------------------------------------------------------------------------------
# What a condition says of the process that runs it: the only one, rank 0, or another.
#
# A condition is read as logic over the rank: it is computed for the ranks -1 (a single process), 0
# and 1, with everything else that it asks free to be true or false. So every spelling of "only a
# single process" is the same, and one that lets rank 0 pass by another test is recognised.


SINGLE, FIRST, SECOND = -1, 0, 1
MAX_UNKNOWNS = 10  # 1,024 cases; no condition of a script comes near
_MAIN_PROCESS = re.compile(
    r"(is_)?(local_|world_|global_)?(main|master)(_process|_proc|_node|_rank)?"
    r"|is_(world|local)_process_zero|is_rank_?(0|zero)|is_first(_process|_rank)?"
)
_OPERATORS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


class _UnknownValue(Exception):
    """An expression has no value that follows from the rank alone."""


@dataclass(frozen=True, slots=True)
class RankNames:
    """How a script calls the rank: attributes (or keys) and plain names."""

    attributes: frozenset[str] = frozenset({"local_rank"})
    names: frozenset[str] = frozenset({"local_rank", "LOCAL_RANK"})

    def matches(self, node: ast.AST) -> bool:
        """Whether a node is the rank: `args.local_rank`, `args["local_rank"]`, `local_rank`."""
        if isinstance(node, ast.Attribute):
            return node.attr in self.attributes
        if isinstance(node, ast.Name):
            return node.id in self.names
        if isinstance(node, ast.Subscript):
            key = node.slice
        elif isinstance(node, ast.Call) and last_name(node) == "getattr" and len(node.args) > 1:
            key = node.args[1]
        else:
            return False
        return isinstance(key, ast.Constant) and key.value in self.attributes

    def occurs(self, node: ast.AST) -> bool:
        """Whether the rank stands anywhere in a node."""
        return any(self.matches(each) for each in ast.walk(node))


@dataclass(slots=True)
class Judge:
    """Computes conditions for a rank.

    Args:
        names: How the script calls the rank.
        aliases: Names that stand for a condition on the rank (`single = args.local_rank == -1`).
        opened: Parts of conditions to compute as if they let rank 0 do what a single process does.
    """

    names: RankNames
    aliases: Mapping[str, ast.expr] = field(default_factory=dict)
    opened: frozenset[ast.expr] = frozenset()
    _unknowns: dict[str, bool] = field(default_factory=dict)
    _is_hidden: bool = False  # an unknown part holds the rank

    def asks(self, test: ast.AST) -> bool:
        """Whether a condition asks the rank, or a name that stands for a condition on it."""
        named = {last_name(node) for node in ast.walk(test)}
        return self.names.occurs(test) or not named.isdisjoint(self.aliases)

    def table(self, test: ast.expr) -> list[tuple[bool, bool, bool]]:
        """Return the condition at ranks -1, 0 and 1, a row per case of what else it asks.

        Empty for a condition with too many unknown parts.
        """
        self._unknowns, self._is_hidden = {}, False
        for rank in (SINGLE, FIRST, SECOND):  # meets the unknown parts
            self._truth(test, rank)
        keys, rows = list(self._unknowns), []
        if len(keys) > MAX_UNKNOWNS:
            return []
        for values in itertools.product((False, True), repeat=len(keys)):
            self._unknowns = dict(zip(keys, values, strict=True))
            rows.append(tuple(self._truth(test, rank) for rank in (SINGLE, FIRST, SECOND)))
        return rows  # type: ignore[return-value]

    def is_single_only(self, test: ast.expr) -> bool:
        """Whether the condition can hold in a single process where it fails for rank 0."""
        return any(row[0] and not row[1] for row in self.table(test))

    def is_closed_to_single(self, test: ast.expr) -> bool:
        """Whether the condition can fail in a single process where it holds for rank 0."""
        return any(row[1] and not row[0] for row in self.table(test))

    def lets_rank_0(self, test: ast.expr) -> bool:
        """Whether the condition separates rank 0 from the others as it does a single process."""
        rows = self.table(test)
        return all(row[0] == row[1] for row in rows) and any(row[1] != row[2] for row in rows)

    def is_beyond(self, test: ast.expr) -> bool:
        """Whether a condition asks the rank in a way that cannot be computed here."""
        return not self.table(test) or self._is_hidden

    def _truth(self, node: ast.expr, rank: int) -> bool:
        if node in self.opened and rank == FIRST:
            rank = SINGLE
        if isinstance(node, ast.BoolOp):  # all parts, so that every unknown is met
            parts = [self._truth(value, rank) for value in node.values]
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self._truth(node.operand, rank)
        if isinstance(node, ast.NamedExpr):
            return self._truth(node.value, rank)
        if isinstance(node, ast.Call) and last_name(node) == "bool" and len(node.args) == 1:
            return self._truth(node.args[0], rank)
        if isinstance(node, ast.Name) and node.id in self.aliases:
            return self._truth(self.aliases[node.id], rank)
        if is_main_process(node):
            return rank <= FIRST
        try:
            return bool(self._value(node, rank))
        except _UnknownValue:
            self._is_hidden |= self.names.occurs(node)
            return self._unknowns.setdefault(ast.dump(node), False)

    def _value(self, node: ast.expr, rank: int) -> Any:
        """What an expression is worth at a rank; raises `_UnknownValue`."""
        if self.names.matches(node):
            return rank
        if isinstance(node, ast.Compare):
            return self._compared(node, rank)
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return [self._value(each, rank) for each in node.elts]
        if isinstance(node, ast.NamedExpr):
            return self._value(node.value, rank)
        if isinstance(node, ast.Call) and last_name(node) == "int" and len(node.args) == 1:
            return self._value(node.args[0], rank)
        if last_name(node) in ("get_rank", "get_local_rank"):
            return max(rank, FIRST)  # such helpers give 0 without a process group
        if last_name(node) in ("rank", "global_rank", "RANK"):
            return rank
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError) as error:
            raise _UnknownValue from error

    def _compared(self, node: ast.Compare, rank: int) -> bool:
        values = [self._value(each, rank) for each in (node.left, *node.comparators)]
        try:
            pairs = zip(node.ops, itertools.pairwise(values), strict=True)
            return all(_OPERATORS[type(op)](*pair) for op, pair in pairs)
        except TypeError as error:
            raise _UnknownValue from error


def is_main_process(node: ast.AST) -> bool:
    """Whether a node is known by its name to hold for rank 0: `accelerator.is_main_process`."""
    return bool(_MAIN_PROCESS.fullmatch(last_name(node)))


def is_rank_test(names: RankNames, node: ast.AST) -> bool:
    """Whether a node compares the rank with something else, once: `local_rank == -1`."""
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return False
    return names.occurs(node.left) != names.occurs(node.comparators[0])


# ------------------------------------------------------------------------------------------------
# Whether a script reads LOCAL_RANK by itself: the first repair, made by hand or by another tool.
#
# What counts is that the launcher's rank arrives in the name that the script asks: an assignment, a
# default of the option, a keyword, or a library that does it. Reading it into a variable that
# nobody asks, or after the rank was used, does not count.


VARIABLE = "LOCAL_RANK"
_FILLERS = {"set_defaults", "dict", "update", "replace", "edict"}
_TRAINING_ARGUMENTS = {"TrainingArguments", "Seq2SeqTrainingArguments"}
_LIBRARIES = ("Accelerator", "PartialState")
_LOGGING = {"print", "info", "warning", "debug", "log", "error", "format"}


@dataclass(frozen=True, slots=True)
class Source:
    """A line that gives the rank its value, and how; `node` where the script does it itself."""

    line: int
    words: str
    node: ast.AST | None = None


def env_sources(script: Script, names: RankNames) -> list[Source]:
    """Return every place where the launcher's rank arrives in the script's own name for it."""
    fed = _fed_names(script)
    sources = [*_assigned(script, names, fed), *_passed(script, names, fed)]
    if not sources and not attribute_uses(script, names, fed):
        sources = [
            Source(node.lineno, f"{target.id} is read from {VARIABLE}", node)
            for node, target, value in _assignments(script)
            if isinstance(target, ast.Name) and target.id in names.names and _feeds(value, fed)
        ]
    return sources or list(_libraries(script, names))


def attribute_uses(
    script: Script, names: RankNames, fed: frozenset[str] = frozenset()
) -> list[ast.expr]:
    """Return where the rank is read as an attribute or key, log lines and its own source apart."""
    uses = []
    for node in script.nodes:
        is_read = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        if not is_read or isinstance(node, ast.Name) or not names.matches(node):
            continue
        whole, is_told = node, False
        for above in script.ancestors(node):
            if isinstance(getattr(above, "body", None), list):  # a block is not judged by its body
                break
            is_told |= isinstance(above, ast.Call) and last_name(above) in _LOGGING
            whole = above
        if not is_told and not _feeds(whole, fed):
            uses.append(node)
    return uses


def late_uses(script: Script, names: RankNames, source: Source, sources: list[Source]) -> list[int]:
    """Return the lines that ask the rank before its source gives it, in the same function."""
    if source.node is None:
        return []
    scope = script.scope(source.node)
    nodes = [each.node for each in sources if each.node is not None]
    around = {*nodes, *(above for node in nodes for above in script.ancestors(node))}
    return sorted(
        {
            use.lineno
            for use in attribute_uses(script, names)
            if script.scope(use) is scope
            and script.statement(use) not in around
            and script.statement(use).lineno < source.line
        }
    )


def _assignments(script: Script) -> Iterator[tuple[ast.stmt | ast.NamedExpr, ast.expr, ast.expr]]:
    """Every assignment with a target and a value, one by one."""
    for node in script.nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                inner = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
                yield from ((node, each, node.value) for each in inner)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield node, node.target, node.value


def _fed_names(script: Script) -> frozenset[str]:
    """Plain names whose value comes from the environment, by way of other names too."""
    fed: frozenset[str] = frozenset()
    while True:
        more = fed | {
            target.id
            for node, target, value in _assignments(script)
            if isinstance(target, ast.Name)
            and (_feeds(value, fed) or _is_set_up_by_a_helper(node, target, value))
        }
        if more == fed:
            return fed
        fed = more


def _is_set_up_by_a_helper(node: ast.AST, target: ast.Name, value: ast.expr) -> bool:
    """`rank, local_rank, world_size = setup()`: the helper knows the rank."""
    is_tuple = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
    return is_tuple and "local_rank" in target.id.lower() and isinstance(value, ast.Call)


def _feeds(node: ast.AST, fed: frozenset[str]) -> bool:
    """Whether a value comes from the launcher; asking only whether the variable is set does not."""
    todo = [node]  # no recursion: a long sum is a deep tree
    while todo:
        node = todo.pop()
        if _is_rank_value(node, fed):
            return True
        is_asked = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn)
        is_told = isinstance(node, ast.Call) and last_name(node) in _LOGGING
        if not (is_asked or is_told):
            todo += ast.iter_child_nodes(node)
    return False


def _is_rank_value(node: ast.AST, fed: frozenset[str]) -> bool:
    if isinstance(node, ast.Constant):
        return node.value == VARIABLE
    if isinstance(node, ast.Name):
        return node.id in fed
    if isinstance(node, ast.Call):
        return last_name(node) in ("get_rank", "get_node_local_rank", "get_local_rank")
    return isinstance(node, ast.Attribute) and node.attr == "local_process_index"


def _assigned(script: Script, names: RankNames, fed: frozenset[str]) -> Iterator[Source]:
    """Assignments to the rank, also as the default of a field."""
    others = {_holder(node) for node in attribute_uses(script, names, fed)} - {"self"}
    for node, target, value in _assignments(script):
        is_field = isinstance(script.parents[node], ast.ClassDef)
        is_rank = last_name(target) in names.attributes if is_field else names.matches(target)
        if not is_rank or not _feeds(value, fed) or (isinstance(target, ast.Name) and not is_field):
            continue
        if _holder(target) != "self" or not others:  # else an object of its own
            is_named = any(getattr(each, "value", None) == VARIABLE for each in ast.walk(value))
            how = f"is set from {VARIABLE}" if is_named else "gets the launcher's rank"
            yield Source(node.lineno, f"{script.source(target)} {how}", node)


def _holder(node: ast.AST) -> str:
    """What the rank is an attribute of: `args` in `args.local_rank`."""
    return last_name(getattr(node, "value", node))


def _passed(script: Script, names: RankNames, fed: frozenset[str]) -> Iterator[Source]:
    """Calls that hand the launcher's rank on under the script's name for it."""
    for call in script.calls:
        name = last_name(call)
        fed_keywords = {each.arg for each in call.keywords if _feeds(each.value, fed)}
        if is_rank_option(call):
            if "default" in fed_keywords:
                yield Source(call.lineno, f"the option's default reads {VARIABLE}")
        elif name == "setattr" and len(call.args) == 3:
            if getattr(call.args[1], "value", "") in names.attributes and _feeds(call.args[2], fed):
                yield Source(call.lineno, f"the rank is set from {VARIABLE}", call)
        elif (name in _FILLERS or name[:1].isupper()) and fed_keywords & names.attributes:
            yield Source(call.lineno, f"{name}() gets the rank from {VARIABLE}", call)


def is_rank_option(call: ast.Call) -> bool:
    """Whether a call declares the option: `add_argument("--local_rank", …)`, dashes or not."""
    texts = [each.value for each in call.args if isinstance(each, ast.Constant)]
    spelled = {each.lstrip("-").replace("-", "_") for each in texts if isinstance(each, str)}
    return last_name(call) == "add_argument" and "local_rank" in spelled


def _libraries(script: Script, names: RankNames) -> Iterator[Source]:
    """Libraries that find their rank themselves, where the script does not ask for it otherwise."""
    known = _TRAINING_ARGUMENTS | {
        node.name
        for node in script.nodes
        if isinstance(node, ast.ClassDef) and _TRAINING_ARGUMENTS & set(map(last_name, node.bases))
    }
    asks = any(map(is_rank_option, script.calls)) or bool(attribute_uses(script, names))
    for call in script.calls:
        name = last_name(call)
        if name == "HfArgumentParser" and known & {last_name(each) for each in ast.walk(call)}:
            yield Source(call.lineno, f"transformers' TrainingArguments reads {VARIABLE} itself")
        elif name in _LIBRARIES and not asks:
            yield Source(call.lineno, f"{name} reads {VARIABLE} itself")


# ------------------------------------------------------------------------------------------------
# Where a script's arguments are parsed, and what the parsed arguments are called there.


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
    options = [_declared(script, call) for call in script.calls if is_rank_option(call)]
    if any(last_name(call) == _DATACLASSES for call in script.calls):
        options += [
            Option(default=_code(_field_default(node.value)))
            for node in script.nodes
            if isinstance(node, ast.AnnAssign) and last_name(node.target) == "local_rank"
            if isinstance(script.parents[node], ast.ClassDef)
        ]
    return options


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
    points: dict[ast.stmt, Point] = {}
    for call in calls:
        option, is_sure = _option_of(script, call, options, alone=len(calls) == 1)
        point = _point(script, holders, call, option, is_sure) if option else None
        if point is None or point.statement in points:
            continue
        if not options and point.namespace and point.namespace not in holders:
            point = replace(point, is_sure=False)  # declared out of sight: perhaps not for this one
        points[point.statement] = point
    return list(points.values()) if calls else list(_foreign_points(script, holders))


def _is_parsing(node: ast.AST) -> bool:
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return is_method and last_name(node) in _PARSING


def _declared(script: Script, call: ast.Call) -> Option:
    values = {each.arg: each.value for each in call.keywords}
    texts = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
    usual = next((each for each in texts if each.startswith("--")), texts[0])
    dest = getattr(values.get("dest"), "value", usual.lstrip("-").replace("-", "_"))
    scope = script.scope(call)
    parser, is_of_subcommand = _root_parser(scope, base_name(call))
    is_number = last_name(values.get("type", call)) == "int"
    default = _code(values.get("default", ast.Constant(None)), is_number)
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
        origin = _value_of(scope, name)
        if not isinstance(origin, ast.Call) or last_name(origin) not in _PARTS:
            break
        is_of_subcommand |= last_name(origin) == "add_parser"
        name = base_name(origin)
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
    origin = _value_of(scope, parser)
    is_plain = isinstance(origin, ast.Call) and last_name(origin) == "ArgumentParser"
    if not is_plain or any(each.arg == "parents" for each in getattr(origin, "keywords", [])):
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
    insertion, namespace = _before(script, call, is_sure), ""
    if isinstance(parent, ast.NamedExpr) and isinstance(script.parents[parent], ast.Expr):
        insertion, namespace = "after", parent.target.id
    elif isinstance(parent, ast.Assign | ast.AnnAssign):
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        namespace = _namespace(script, holders, targets, method, gives_many)
        insertion = "after" if namespace else ""
    elif isinstance(parent, ast.Return) and method != _DATACLASSES:
        insertion, namespace = "return", "[0]" if gives_many else ""
    elif isinstance(parent, ast.Expr):
        argument = next((each.value for each in call.keywords if each.arg == "namespace"), None)
        if argument is None:  # the result is thrown away
            return None
        insertion, namespace = "after", script.source(argument)
    value = node if insertion in ("after", "return") else call
    return Point(statement, value, insertion, namespace, option, is_sure)


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
