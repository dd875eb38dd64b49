"""What a condition says of the process that runs it: the only one, rank 0, or another.

A condition is read as logic over the rank: it is computed for the ranks -1 (a single process), 0
and 1, with everything else that it asks free to be true or false. So every spelling of "only a
single process" is the same, and one that lets rank 0 pass by another test is recognised.
"""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .syntax import last_name

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
