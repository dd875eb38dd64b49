"""The data-flow graph of a function: which variable gets its value from which.

`extract_dataflow` gives what GraphCodeBERT's clone detection makes of a function: its tokens (the
leaves of the syntax tree, comments and docstrings removed) and the edges between them. "comesFrom"
names where a value was last set, "computedFrom" what an assignment computes it from. The result is
that of the original's rules on the tree of today's grammars, oddities included, with these
differences, each of them on purpose:

- text beyond ASCII keeps its tokens whole (the original takes byte columns for characters);
- a Java piece that parses only inside a class (a constructor) is read as if inside one;
- where the original fails halfway and silently gives no edges, `problem` says so; in text with
  parse errors the rules go on with what is there;
- depth costs no exponential time (the original walks a loop's body twice for each loop around it
  and overflows on deep expressions), and a graph beyond `MAX_EDGES` is refused.

Source: Guo et al., "GraphCodeBERT: Pre-training Code Representations with Data Flow" (2021), 3;
`extract_dataflow` in microsoft/CodeBERT, GraphCodeBERT/clonedetection/run.py at commit 0db870f.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import DataFlowUnavailable
from .dataflow_corpus import read_corpus
from .dataflow_graph import KINDS, DataFlow, Edge, read_function
from .dataflow_table import FlowTable

__all__ = ["KINDS", "DataFlow", "Edge", "FlowTable", "extract_corpus", "extract_dataflow"]


def extract_dataflow(code: str, language: str, *, grammar_compat: str = "maintained") -> DataFlow:
    """Return the data-flow graph of one function, the same for the same code everywhere.

    Args:
        code: The function as written, with its comments and line ends.
        language: "java" or "python".
        grammar_compat: "maintained" takes the grammar's leaves as they are; "checkpoint" keeps a
            literal as one token, as the grammar did with which the published checkpoint was
            trained.

    Raises:
        DataFlowUnavailable: The language is unknown, its grammar is not installed, the code is no
            str or has no token, or the graph is too large.
        ConfigError: `grammar_compat` is unknown.

    >>> extract_dataflow("int f(int a) { return a; }", "java").edges
    [Edge(token_index=4, kind='comesFrom', parent_indices=()), \
Edge(token_index=8, kind='comesFrom', parent_indices=(4,))]
    """
    tokens, rows, problem, is_too_large = read_function(code, language, grammar_compat)
    if is_too_large:
        raise DataFlowUnavailable(problem, fix="split this function, or leave it out")
    edges = [Edge(token, KINDS[kind], parents) for token, kind, parents in rows]
    return DataFlow(tokens=tokens, edges=edges, problem=problem)


def extract_corpus(
    codes: Sequence[str],
    language: str,
    *,
    grammar_compat: str = "maintained",
    processes: int | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> FlowTable:
    """Return the graphs of many functions in their order, each distinct text read once.

    Graphs come from the cache where the text, the versions of the parser and grammar and
    `grammar_compat` are the same. A function without a graph has no edges, and its reason stands in
    `problems`.

    Args:
        codes: The functions as written; any number of them may be equal.
        language: "java" or "python".
        grammar_compat: As in `extract_dataflow`.
        processes: How many read at the same time; None takes the CPUs at hand, and one for a
            small corpus. They are children without torch and end with this call.
        report: Called with (done, total) distinct functions.

    Raises:
        DataFlowUnavailable: The language is unknown, its grammar is not installed, or `codes` is
            no list of str.
        ConfigError: `grammar_compat` or `processes` is no valid value.
        DataError: A child ended before its work was done.
    """
    return read_corpus(codes, language, compat=grammar_compat, processes=processes, report=report)
