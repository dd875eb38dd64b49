"""The data-flow graph of functions: which variable gets its value from which."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from nbhelpers.common.files import cached
from nbhelpers.common.pool import map_chunks
from nbhelpers.data.dataflow_program import (
    KINDS,
    DataFlow,
    Edge,
    Row,
    read_function,
    require_language,
)
from nbhelpers.data.syntax import versions
from nbhelpers.errors import DataFlowUnavailable

if TYPE_CHECKING:
    import numpy as np

# Part of the cache's key: raise it when the same code and grammar give another graph than before.
FORMAT = 2


# ------------------------------------------------------------------------------------------------
# The data-flow graph of a function: which variable gets its value from which.
#
# `extract_dataflow` gives what GraphCodeBERT's clone detection makes of a function: its tokens (the
# leaves of the syntax tree, comments and docstrings removed) and the edges between them.
# "comesFrom" names where a value was last set, "computedFrom" what an assignment computes it from.
# The result is that of the original's rules on the tree of today's grammars, oddities included,
# with these differences, each of them on purpose:
#
# - text beyond ASCII keeps its tokens whole (the original takes byte columns for characters);
# - Python that is indented with tabs is read as it stands (the original's preparation writes one
#   blank per tab from a block's second line on, and so loses the block);
# - a Java piece that parses only inside a class (a constructor) is read as if inside one;
# - where the original fails halfway and silently gives no edges, `problem` says so; in text with
#   parse errors the rules go on with what is there;
# - depth costs no exponential time (the original walks a loop's body twice for each loop around it
#   and overflows on deep expressions), and a graph beyond `MAX_SIZE` is refused.
#
# Source: Guo et al., "GraphCodeBERT: Pre-training Code Representations with Data Flow" (2021), 3;
# `extract_dataflow` in microsoft/CodeBERT, GraphCodeBERT/clonedetection/run.py at commit 0db870f.


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


# ------------------------------------------------------------------------------------------------
# The graphs of a corpus in flat arrays: small in memory, quick to save, to cut and to join.
#
# Shapes: `n` functions, `total` tokens, `E` edges, `P` parents.


_ARRAYS = {
    "tokens": "int32",
    "token_offsets": "int64",
    "edge_token": "int32",
    "edge_kind": "uint8",
    "edge_offsets": "int64",
    "parents": "int32",
    "parent_offsets": "int64",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlowTable:
    """Graphs of many functions; `table[i]` is the graph of function i.

    Args:
        words: Distinct token texts, in the order in which they first occur.
        tokens: (total,) int32 into `words`; function i is `token_offsets[i]:token_offsets[i + 1]`.
        token_offsets: (n + 1,) int64.
        edge_token: (E,) int32 token of its function.
        edge_kind: (E,) uint8 into `KINDS`.
        edge_offsets: (n + 1,) int64 edges of function i.
        parents: (P,) int32 tokens of the same function.
        parent_offsets: (E + 1,) int64 parents of an edge.
        problems: Function -> why it has no graph, or what the parser recovered from.
    """

    words: list[str]
    tokens: np.ndarray
    token_offsets: np.ndarray
    edge_token: np.ndarray
    edge_kind: np.ndarray
    edge_offsets: np.ndarray
    parents: np.ndarray
    parent_offsets: np.ndarray
    problems: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.token_offsets) - 1

    def __getitem__(self, index: int) -> DataFlow:
        if not -len(self) <= index < len(self):
            raise IndexError(f"function {index} of {len(self)}")
        i = index % len(self)
        words = [self.words[t] for t in self.tokens[slice(*self.token_offsets[i : i + 2])].tolist()]
        first, last = self.edge_offsets[i : i + 2].tolist()
        bounds = self.parent_offsets[first : last + 1].tolist()
        parents = self.parents[bounds[0] : bounds[-1]].tolist()
        edges = [
            Edge(token, KINDS[kind], tuple(parents[start - bounds[0] : end - bounds[0]]))
            for token, kind, start, end in zip(
                self.edge_token[first:last].tolist(),
                self.edge_kind[first:last].tolist(),
                bounds[:-1],
                bounds[1:],
                strict=True,
            )
        ]
        return DataFlow(tokens=words, edges=edges, problem=self.problems.get(i, ""))

    def __repr__(self) -> str:
        counts = f"{len(self):,} functions, {len(self.tokens):,} tokens"
        return f"FlowTable({counts}, {len(self.edge_token):,} edges, {len(self.problems)} problems)"

    def take(self, rows: Sequence[int]) -> FlowTable:
        """Return the functions at `rows`, in that order; a row may be taken more than once."""
        import numpy as np

        at, had = np.asarray(rows, dtype=np.int64), self.problems
        tokens, token_offsets = _spans(self.token_offsets, at)
        edges, edge_offsets = _spans(self.edge_offsets, at)
        parents, parent_offsets = _spans(self.parent_offsets, edges)
        return FlowTable(
            words=self.words,
            tokens=self.tokens[tokens],
            token_offsets=token_offsets,
            edge_token=self.edge_token[edges],
            edge_kind=self.edge_kind[edges],
            edge_offsets=edge_offsets,
            parents=self.parents[parents],
            parent_offsets=parent_offsets,
            problems={i: had[row] for i, row in enumerate(rows) if row in had},
        )


def _spans(offsets: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the items of `rows`, one row after the other, and the rows' new offsets."""
    import numpy as np

    sizes = offsets[rows + 1] - offsets[rows]
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return np.repeat(offsets[rows] - ends[:-1], sizes) + np.arange(ends[-1]), ends


def _make_table(graphs: Iterable[tuple[list[str], list[Row], str]]) -> FlowTable:
    """Return the table of (tokens, edges, problem) of each function."""
    import numpy as np

    words: dict[str, int] = {}
    flat: dict[str, array[int]] = {
        "tokens": array("i"),
        "edge_token": array("i"),
        "edge_kind": array("B"),
        "parents": array("i"),
    }
    ends: dict[str, array[int]] = {
        name: array("q", [0]) for name in ("token_offsets", "edge_offsets", "parent_offsets")
    }
    problems = {}
    for tokens, rows, problem in graphs:
        if problem:
            problems[len(ends["token_offsets"]) - 1] = problem
        flat["tokens"].extend(words.setdefault(token, len(words)) for token in tokens)
        flat["edge_token"].extend(row[0] for row in rows)
        flat["edge_kind"].extend(row[1] for row in rows)
        for row in rows:
            flat["parents"].extend(row[2])
            ends["parent_offsets"].append(len(flat["parents"]))
        ends["token_offsets"].append(len(flat["tokens"]))
        ends["edge_offsets"].append(len(flat["edge_token"]))
    arrays = {
        name: np.frombuffer(values, dtype=_ARRAYS[name]) if values else np.zeros(0, _ARRAYS[name])
        for name, values in chain(flat.items(), ends.items())
    }
    return FlowTable(words=list(words), problems=problems, **arrays)


def _join(tables: Sequence[FlowTable]) -> FlowTable:
    """Return the functions of all tables, one after the other."""
    import numpy as np

    words: dict[str, int] = {}
    problems: dict[int, str] = {}
    flat: dict[str, list[np.ndarray]] = {name: [] for name in _ARRAYS}
    functions = 0
    for table in tables:
        problems |= {functions + i: problem for i, problem in table.problems.items()}
        functions += len(table)
        for name, parts in flat.items():
            values = getattr(table, name)
            if name == "tokens":
                number = [words.setdefault(word, len(words)) for word in table.words]
                values = np.array(number, dtype=np.int32)[values]
            elif name.endswith("_offsets") and parts:
                values = values[1:] + parts[-1][-1]
            parts.append(values)
    arrays = {name: np.concatenate(parts) for name, parts in flat.items()}
    return FlowTable(words=list(words), problems=problems, **arrays)


def _save(path: Path, table: FlowTable) -> None:
    import numpy as np

    texts = json.dumps([table.words, list(table.problems.items())]).encode()
    arrays = {name: getattr(table, name) for name in _ARRAYS}
    np.savez(path, texts=np.frombuffer(texts, dtype=np.uint8), **arrays)


def _load(path: Path) -> FlowTable:
    import numpy as np

    with np.load(path, allow_pickle=False) as saved:
        words, problems = json.loads(saved["texts"].tobytes())
        arrays = {name: saved[name] for name in _ARRAYS}
    return FlowTable(words=words, problems=dict(problems), **arrays)


def extract_corpus(
    codes: Sequence[str],
    language: str,
    *,
    grammar_compat: str = "maintained",
    processes: int | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> FlowTable:
    """Return the graphs of many functions in their order, each distinct text read once.

    The table comes from the cache where the texts, the versions of the parser and grammar and
    `grammar_compat` are the same. A function without a graph has no edges, and its reason stands in
    `problems`.

    Args:
        codes: The functions as written; any number of them may be equal.
        language: "java" or "python".
        grammar_compat: As in `extract_dataflow`.
        processes: How many read at the same time; None takes the CPUs at hand, and one for a
            small corpus. They are processes without torch and end with this call.
        report: Called with (done, total) distinct functions.

    Raises:
        DataFlowUnavailable: The language is unknown or its grammar is not installed.
        ConfigError: `grammar_compat` or `processes` is no valid value.
        DataError: A process ended before its work was done.
    """
    require_language(language, grammar_compat)
    number = {code: i for i, code in enumerate(dict.fromkeys(codes))}
    read = partial(_read_chunk, language=language, compat=grammar_compat)

    def read_all() -> FlowTable:
        options = {"processes": processes, "report": report}
        return _join([_make_table([]), *map_chunks(read, list(number), len, **options)])

    key = [f"{FORMAT} {language} {grammar_compat} {versions(language)}", *number]
    table = cached("dataflow", key, read_all, load=_load, save=_save, suffix=".npz")
    return table if len(number) == len(codes) else table.take([number[code] for code in codes])


def _read_chunk(codes: Sequence[str], language: str, compat: str) -> FlowTable:
    """Return the graphs of a few functions, a function without one as its reason."""
    graphs: list[tuple[list[str], list[Row], str]] = []
    for code in codes:
        try:
            graphs.append(read_function(code, language, compat)[:3])
        except DataFlowUnavailable as error:
            graphs.append(([], [], error.message))
    return _make_table(graphs)
