"""The graph of one function as an object, and how it is made of its text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .dataflow_program import MAX_EDGES, MAX_PARENTS, NoGraph, TooLarge, compile_program
from .dataflow_run import Row, run_program
from .dataflow_tree import parse

KINDS = ("comesFrom", "computedFrom")


class Edge(NamedTuple):
    """A token and the tokens that its value comes from; a token may have several edges.

    `parent_indices` is empty for a token that is only the parent of others.
    """

    token_index: int
    kind: str  # "comesFrom" | "computedFrom"
    parent_indices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFlow:
    """Tokens of a function and the edges between them, in the order of their tokens.

    Args:
        problem: "" or what the parser recovered from, or why there are no edges, with its line.
    """

    tokens: list[str]
    edges: list[Edge]
    problem: str

    def __repr__(self) -> str:
        problem = f"; {self.problem}" if self.problem else ""
        return f"DataFlow({len(self.tokens):,} tokens, {len(self.edges):,} edges{problem})"


def read_function(code: str, language: str, compat: str) -> tuple[list[str], list[Row], str, bool]:
    """Return tokens, edges, the problem or "", and whether the graph is too large to make.

    Raises:
        DataFlowUnavailable: There are no tokens, for a reason that it names.
    """
    tree = parse(code, language, compat)
    try:
        rows = run_program(compile_program(tree, language, compat), tree)
    except NoGraph as error:
        return tree.tokens, [], str(error), False
    except TooLarge:
        reason = f"The data flow has more than {MAX_EDGES:,} edges or {MAX_PARENTS:,} parents."
        return tree.tokens, [], reason, True
    return tree.tokens, rows, tree.problem, False
