"""What a script calls its rank, where the rank comes from, and what a condition on it lets run."""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nbhelpers.legacy.source import Script, base_name, last_name

SINGLE, FIRST, SECOND = -1, 0, 1  # a process without a launcher, and two with one
VARIABLE = "LOCAL_RANK"
MAX_UNKNOWNS = 10  # 1,024 cases; no condition of a script comes near
_RANK_CALLS = {"get_rank", "get_local_rank", "get_node_local_rank"}
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


@dataclass(frozen=True, slots=True)
class RankNames:
    """The identifiers that stand for the rank, as names, attributes or keys."""

    identifiers: frozenset[str] = frozenset({"local_rank", VARIABLE, "global_rank"})

    def matches(self, node: ast.AST) -> bool:
        """Whether a node is the rank: `args.local_rank`, `args["local_rank"]`, `get_rank()`."""
        if isinstance(node, ast.Attribute | ast.Name):
            return last_name(node) in self.identifiers
        key: ast.AST | None = None
        if isinstance(node, ast.Subscript):
            key = node.slice
        elif isinstance(node, ast.Call):
            if last_name(node) in _RANK_CALLS:
                return True
            is_getattr = last_name(node) in ("getattr", "get", "getenv") and node.args
            key = (
                node.args[len(node.args) > 1 and last_name(node) == "getattr"]
                if is_getattr
                else None
            )
        return isinstance(key, ast.Constant) and key.value in {*self.identifiers, "RANK"}

    def occurs(self, node: ast.AST) -> bool:
        """Whether the rank stands anywhere in a node."""
        return any(self.matches(each) for each in ast.walk(node))


def assignments(script: Script) -> Iterator[tuple[ast.stmt, ast.expr, ast.expr]]:
    """Yield every assignment as statement, target and value; tuples and choices by parts."""
    for node in script.nodes:
        if isinstance(node, ast.Assign):
            for target, value in itertools.product(node.targets, branches(node.value)):
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    yield from (
                        (node, *pair) for pair in zip(target.elts, value.elts, strict=False)
                    )
                else:
                    yield node, target, value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node, node.target, node.value


def branches(node: ast.expr) -> list[ast.expr]:
    """Return what `x if y else z` may be; anything else is itself."""
    if isinstance(node, ast.IfExp):
        return [*branches(node.body), *branches(node.orelse)]
    return [node]


def rank_names(script: Script, option: str) -> RankNames:
    """Return how a script calls the rank: by its option, and by what it assigns the rank to."""
    names = RankNames(RankNames().identifiers | {option})
    while True:
        more = names.identifiers | {
            last_name(target)
            for _, target, value in assignments(script)
            if isinstance(target, ast.Name | ast.Attribute) and _is_rank(value, names)
        }
        if more == names.identifiers:
            return names
        names = RankNames(more)


def _is_rank(value: ast.expr, names: RankNames) -> bool:
    """Whether a value is the rank itself: as it is, as a number, or within its machine."""
    if isinstance(value, ast.Call) and last_name(value) == "int" and value.args:
        return _is_rank(value.args[0], names)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mod):
        return _is_rank(value.left, names)
    return names.matches(value)


def condition_names(script: Script, names: RankNames) -> dict[str, ast.expr]:
    """Return the identifiers that are assigned once, a condition on the rank: `main = rank < 1`."""
    stored = [last_name(n) for n in script.nodes if isinstance(getattr(n, "ctx", None), ast.Store)]
    return {
        last_name(target): value
        for _, target, value in assignments(script)
        if isinstance(value, ast.Compare | ast.BoolOp | ast.UnaryOp) and names.occurs(value)
        if stored.count(last_name(target)) == 1
    }


# ------------------------------------------------------------------------------------------------
# A condition is computed for a single process and for ranks 0 and 1, with everything else that it
# asks free to be true or false. So every spelling of "only a single process" is the same.


class _UnknownValue(Exception):
    """An expression has no value that follows from the rank alone."""


@dataclass(slots=True)
class Judge:
    """Computes conditions for a rank.

    Args:
        names: How the script calls the rank.
        aliases: Identifiers that stand for a condition on the rank.
        single: The rank's value without a launcher.
        opened: Parts of conditions to compute as if they let rank 0 do what a single process does.
        constants: Parameters whose value is known in the call that is looked at.
    """

    names: RankNames
    aliases: Mapping[str, ast.expr] = field(default_factory=dict)
    single: Any = SINGLE
    opened: frozenset[ast.expr] = frozenset()
    constants: Mapping[str, Any] = field(default_factory=dict)
    unknowns: dict[str, bool] = field(default_factory=dict)
    is_hidden: bool = False  # an unknown part of the last condition holds the rank

    def asks(self, test: ast.AST) -> bool:
        """Whether a condition asks the rank, or a name that stands for a condition on it."""
        return any(
            self.names.matches(node) or last_name(node) in self.aliases or is_main_process(node)
            for node in ast.walk(test)
        )

    def table(self, test: ast.expr) -> list[tuple[bool, bool, bool]]:
        """Return the condition in a single process and at ranks 0 and 1, a row per unknown case.

        Empty for a condition with too many unknown parts.
        """
        self.unknowns, self.is_hidden = {}, False
        for rank in (SINGLE, FIRST, SECOND):  # meets the unknown parts
            self._truth(test, rank)
        keys, rows = list(self.unknowns), []
        if len(keys) > MAX_UNKNOWNS:
            self.is_hidden = True
            return []
        for values in itertools.product((False, True), repeat=len(keys)):
            self.unknowns = dict(zip(keys, values, strict=True))
            rows.append(tuple(self._truth(test, rank) for rank in (SINGLE, FIRST, SECOND)))
        return rows  # type: ignore[return-value]

    def openings(self, test: ast.expr) -> dict[ast.Compare, bool]:
        """Return the comparisons to open for rank 0, each with whether it says "single" (or "not").

        Empty if that would not make rank 0 do exactly what a single process does, or would change
        anything for the other ranks.
        """
        before, parts = self.table(test), {}
        quoted = {n for f in ast.walk(test) if isinstance(f, ast.JoinedStr) for n in ast.walk(f)}
        for node in ast.walk(test):
            if isinstance(node, ast.Compare) and len(node.ops) == 1 and node not in quoted:
                sides = [self.names.matches(side) for side in (node.left, node.comparators[0])]
                rows = self.table(node)
                if any(sides) and rows in ([(True, False, False)], [(False, True, True)]):
                    parts[node] = rows[0][0]
        after = Judge(self.names, self.aliases, self.single, self.opened | {*parts}, self.constants)
        pairs = zip(before, after.table(test), strict=True)
        is_right = all(new == (old[0], old[0], old[2]) for old, new in pairs)
        is_needed = any(old[0] != old[1] for old in before)
        return parts if is_needed and is_right else {}

    def _truth(self, node: ast.expr, rank: int) -> bool:
        if node in self.opened and rank == FIRST:
            rank = SINGLE
        if isinstance(node, ast.BoolOp):  # all parts, so that every unknown is met
            parts = [self._truth(value, rank) for value in node.values]
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self._truth(node.operand, rank)
        if last_name(node) in self.aliases and not isinstance(node, ast.Call):
            return self._truth(self.aliases[last_name(node)], rank)
        if is_main_process(node):
            return rank <= FIRST
        try:
            return bool(self._value(node, rank))
        except _UnknownValue:
            self.is_hidden |= self.asks(node)
            return self.unknowns.setdefault(ast.dump(node), False)

    def _value(self, node: ast.expr, rank: int) -> Any:
        """What an expression is worth at a rank; raises `_UnknownValue`."""
        name = last_name(node)
        if isinstance(node, ast.Call) and name in _RANK_CALLS:
            return max(rank, FIRST)  # such helpers give 0 without a process group
        if self.names.matches(node):
            return self.single if rank == SINGLE else rank
        if name in ("world_size", "get_world_size"):
            return 1 if rank == SINGLE else 2
        if name == "is_initialized":
            return rank != SINGLE
        if isinstance(node, ast.Name) and name in self.constants:
            return self.constants[name]
        if isinstance(node, ast.Compare):
            return self._compared(node, rank)
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return [self._value(each, rank) for each in node.elts]
        if isinstance(node, ast.Call) and name in ("int", "bool") and len(node.args) == 1:
            return self._value(node.args[0], rank)
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
    return bool(_MAIN_PROCESS.fullmatch(last_name(node))) and last_name(node) != "main"


# ------------------------------------------------------------------------------------------------
# The option, the statement that parses it, and whether the script reads LOCAL_RANK by itself.


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of the rank's option: its attribute, default (code), parser and place."""

    attribute: str
    default: str
    parser: str
    call: ast.Call

    @property
    def single(self) -> Any:
        """The rank without a launcher."""
        return ast.literal_eval(self.default) if self.default else SINGLE


def rank_option(script: Script) -> Option | None:
    """Return the first declaration of the option: `add_argument("--local_rank", …)`."""
    for call in script.calls:
        texts = [str(getattr(each, "value", "")) for each in call.args]
        spelled = {each.lstrip("-").replace("-", "_") for each in texts}
        if last_name(call) == "add_argument" and "local_rank" in spelled:
            values = {each.arg: each.value for each in call.keywords}
            usual = next((each for each in texts if each.startswith("--")), texts[0])
            attribute = getattr(values.get("dest"), "value", usual.lstrip("-").replace("-", "_"))
            default = _code(values.get("default", ast.Constant(None)))
            return Option(str(attribute), default, base_name(call), call)
    return None


def _code(node: ast.expr) -> str:
    """The code of a default; empty where it is computed."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        return ""
    is_digits = isinstance(value, str) and value.strip().lstrip("-").isdigit()
    return repr(int(value) if is_digits else value)


def parse_statement(script: Script, option: Option) -> tuple[ast.stmt, str] | None:
    """Return the one statement that parses the option, and how it calls the arguments.

    Known are `args = parser.parse_args(…)`, `args, rest = parser.parse_known_args(…)` and
    `return parser.parse_args(…)`, for which the name is empty; None for any other form, and for
    more than one statement.
    """
    own = [c for c in script.calls if last_name(c) in ("parse_args", "parse_known_args")]
    own = [c for c in own if isinstance(c.func, ast.Attribute)]
    if len(own) > 1:
        own = [call for call in own if base_name(call) == option.parser]
    if len(own) != 1:
        return None
    call, parent = own[0], script.parents[own[0]]
    is_known = last_name(call) == "parse_known_args"
    if isinstance(parent, ast.Return) and not is_known:
        return parent, ""
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
        return None
    target = parent.targets[0]
    if is_known:
        target = target.elts[0] if isinstance(target, ast.Tuple) else None  # type: ignore[assignment]
    known = isinstance(target, ast.Name | ast.Attribute)
    return (parent, script.source(target)) if known else None


def reading_line(script: Script, statement: ast.stmt, option: Option) -> int:
    """Return the line that gives the rank the launcher's value already; 0 for none.

    That is the option's own default, or the statement behind the one that parses.
    """
    holder = script.parents[statement]
    body = next(b for _, b in ast.iter_fields(holder) if isinstance(b, list) and statement in b)
    behind = body[body.index(statement) + 1 :][:1]
    default = [each.value for each in option.call.keywords if each.arg == "default"]
    for node in (*default, *behind):
        text = script.source(node)
        if VARIABLE in text and (
            node in default or re.search(rf"{option.attribute}\s*=[^=]", text)
        ):
            return node.lineno
    return 0
