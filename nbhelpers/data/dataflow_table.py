"""The graphs of a corpus in flat arrays: small in memory, quick to save, to cut and to join.

Shapes: `n` functions, `total` tokens, `E` edges, `P` parents.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from .dataflow_graph import KINDS, DataFlow, Edge
from .dataflow_run import Row

if TYPE_CHECKING:
    import numpy as np

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

    def take(self, rows: Sequence[int] | np.ndarray) -> FlowTable:
        """Return the functions at `rows`, in that order; a row may be taken more than once."""
        import numpy as np

        rows, had = np.asarray(rows, dtype=np.int64), self.problems
        tokens, token_offsets = _spans(self.token_offsets, rows)
        edges, edge_offsets = _spans(self.edge_offsets, rows)
        parents, parent_offsets = _spans(self.parent_offsets, edges)
        return _renumbered(
            self.words,
            self.tokens[tokens],
            token_offsets=token_offsets,
            edge_token=self.edge_token[edges],
            edge_kind=self.edge_kind[edges],
            edge_offsets=edge_offsets,
            parents=self.parents[parents],
            parent_offsets=parent_offsets,
            problems={i: had[row] for i, row in enumerate(rows.tolist()) if row in had},
        )

    def save(self, file: Path | IO[bytes], **more: np.ndarray) -> None:
        """Write an .npz file, with further arrays of the caller's."""
        import numpy as np

        texts = {"words": self.words, "problems": list(self.problems.items())}
        coded = {
            name: np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
            for name, value in texts.items()
        }
        np.savez(file, **{name: getattr(self, name) for name in _ARRAYS}, **coded, **more)


def load_table(file: Path | IO[bytes]) -> tuple[FlowTable, dict[str, Any]]:
    """Return a table and the further arrays that were saved with it.

    Raises:
        OSError: The file cannot be read.
        ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error: It holds no table.
    """
    import numpy as np

    with np.load(file, allow_pickle=False) as saved:
        arrays = {name: saved[name] for name in saved.files}
    words = json.loads(arrays.pop("words").tobytes())
    problems = {int(i): str(text) for i, text in json.loads(arrays.pop("problems").tobytes())}
    own = {name: arrays.pop(name) for name in _ARRAYS}
    table = FlowTable(words=words, problems=problems, **own)
    if fault := _fault(table):
        raise ValueError(fault)
    return table, arrays


def make_table(graphs: Iterable[tuple[list[str], list[Row], str]]) -> FlowTable:
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


def join(tables: Sequence[FlowTable]) -> FlowTable:
    """Return the functions of all tables, one after the other."""
    import numpy as np

    words: dict[str, int] = {}
    tokens = []
    for table in tables:
        number = [words.setdefault(word, len(words)) for word in table.words]
        tokens.append(np.array(number, dtype=np.int32)[table.tokens])
    problems, start = {}, 0
    for table in tables:
        problems |= {start + i: problem for i, problem in table.problems.items()}
        start += len(table)
    flat = {
        name: np.concatenate([getattr(table, name) for table in tables])
        for name in ("edge_token", "edge_kind", "parents")
    }
    offsets = {
        name: _joined([getattr(table, name) for table in tables])
        for name in ("token_offsets", "edge_offsets", "parent_offsets")
    }
    flow = np.concatenate(tokens)
    return _renumbered(list(words), flow, problems=problems, **flat, **offsets)


def _joined(offsets: Sequence[np.ndarray]) -> np.ndarray:
    """(a + 1,), (b + 1,), … offsets as those of one array after the other."""
    import numpy as np

    sizes = np.concatenate([np.diff(part) for part in offsets])
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _spans(offsets: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the items of `rows`, one row after the other, and the rows' new offsets."""
    import numpy as np

    sizes = offsets[rows + 1] - offsets[rows]
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return np.repeat(offsets[rows] - ends[:-1], sizes) + np.arange(ends[-1]), ends


def _renumbered(words: list[str], tokens: np.ndarray, **rest: Any) -> FlowTable:
    """The table with only the words in use, in the order in which they first occur."""
    import numpy as np

    first = np.full(len(words), len(tokens), dtype=np.int64)
    first[tokens[::-1]] = np.arange(len(tokens))[::-1]  # the last write of an index stays
    order = np.argsort(first, kind="stable")
    order = order[: int((first < len(tokens)).sum())]
    number = np.zeros(len(words), dtype=np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    return FlowTable(words=[words[i] for i in order.tolist()], tokens=number[tokens], **rest)


def _fault(table: FlowTable) -> str:
    """Say what does not fit in a table that was read, or ""."""
    if not isinstance(table.words, list) or not all(isinstance(w, str) for w in table.words):
        return "words are no list of str"
    for name, dtype in _ARRAYS.items():
        values = getattr(table, name)
        if values.dtype != dtype or values.ndim != 1:
            return f"{name} is {values.dtype} {values.shape}"
    for name, target in (
        ("token_offsets", table.tokens),
        ("edge_offsets", table.edge_token),
        ("parent_offsets", table.parents),
    ):
        offsets = getattr(table, name)
        rising = len(offsets) > 0 and offsets[0] == 0 and (offsets[1:] >= offsets[:-1]).all()
        if not rising or offsets[-1] != len(target):
            return f"{name} do not fit"
    same = len(table.edge_offsets) == len(table.token_offsets)
    same = same and len(table.parent_offsets) == len(table.edge_token) + 1
    same = same and len(table.edge_kind) == len(table.edge_token)
    if not same or table.tokens.max(initial=-1) >= len(table.words):
        return "sizes do not fit"
    flat = (table.tokens, table.edge_token, table.parents)
    low = min(int(values.min(initial=0)) for values in flat)
    if low < 0 or table.edge_kind.max(initial=0) >= len(KINDS):
        return "negative index"
    return "" if _indices_fit(table) else "index beyond its function"


def _indices_fit(table: FlowTable) -> bool:
    """Whether edges and parents name tokens of their own function."""
    import numpy as np

    room = np.repeat(np.diff(table.token_offsets), np.diff(table.edge_offsets))  # (E,)
    own = np.repeat(room, np.diff(table.parent_offsets))  # (P,)
    return bool((table.edge_token < room).all() and (table.parents < own).all())
