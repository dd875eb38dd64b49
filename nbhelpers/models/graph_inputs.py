"""Data-flow graphs to GraphCodeBERT's input: `<s>` code `</s>` nodes, positions, spans, links.

Source: GraphCodeBERT (Guo et al. 2021, arXiv 2009.08366) and its published clone-detection script
(microsoft/CodeBERT, GraphCodeBERT/clonedetection/run.py), whose cutting and numbering this follows.
Shapes: `n` functions, `length` = code_length + data_flow_length tokens per function at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nbhelpers.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbhelpers.data.dataflow import FlowTable
    from nbhelpers.models.buckets import GraphBucket

BEFORE_WORD = "@ "  # one token and a blank: every leaf but the first is tokenised as a later word
SPARE_POSITIONS = 3  # of the positions after padding's: the published script leaves them unused


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTable:
    """The input of many functions in flat arrays.

    Args:
        ids: (total,) int32: `<s>` code `</s>` of all functions.
        offsets: (n + 1,) int64 into `ids`.
        node_start: (total nodes,) int32: first column of the code a node stands for.
        node_end: (total nodes,) int32: the column after it; 0 with a start of 0 where it was cut.
        node_offsets: (n + 1,) int64.
        link_from: (total links,) int32: a node, counted within its function.
        link_to: (total links,) int32: the node that its value comes from.
        link_offsets: (n + 1,) int64.
        truncated: Functions whose code was cut.
        pad_id: Of the tokenizer; also the position of padding.
        unk_id: The id of a node.
        seq_len: Tokens per function at most, code and nodes.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    node_start: NDArray[np.int32]
    node_end: NDArray[np.int32]
    node_offsets: NDArray[np.int64]
    link_from: NDArray[np.int32]
    link_to: NDArray[np.int32]
    link_offsets: NDArray[np.int64]
    truncated: int
    pad_id: int
    unk_id: int
    seq_len: int

    @property
    def used(self) -> NDArray[np.int64]:
        """(n,) tokens of code and nodes."""
        return np.diff(self.offsets) + np.diff(self.node_offsets)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(n,) columns that each function needs.

        A node that may look at nothing looks, in the published form, at everything, padding
        included. One column of padding then stands for all of them.
        """
        blind = np.zeros(len(self.offsets) - 1, dtype=bool)
        owner = np.repeat(np.arange(len(blind)), np.diff(self.node_offsets))
        linked = np.zeros(len(self.node_start), dtype=bool)
        linked[self.link_from + self.node_offsets[:-1].repeat(np.diff(self.link_offsets))] = True
        blind[owner[(self.node_end == self.node_start) & ~linked]] = True
        return np.minimum(self.used + blind, self.seq_len)

    def bucket(self, rows: NDArray[Any], width: int) -> GraphBucket:
        """Return these functions as tensors of `width` columns, on the CPU."""
        import torch

        from nbhelpers.models.buckets import GraphBucket

        rows = np.asarray(rows, dtype=np.int64)
        code = self.offsets[rows + 1] - self.offsets[rows]
        at, row = _ragged(self.offsets, rows)
        ids = np.full((len(rows), width), self.pad_id, dtype=np.int64)
        ids[row, _ranks(code)] = self.ids[at]
        nodes, node_row = _ragged(self.node_offsets, rows)
        count = self.node_offsets[rows + 1] - self.node_offsets[rows]
        column = code[node_row] + _ranks(count)
        ids[node_row, column] = self.unk_id
        start, end = self.node_start[nodes].astype(np.int64), self.node_end[nodes].astype(np.int64)
        span = np.repeat(start, end - start) + _ranks(end - start)
        bag_row = np.repeat(node_row, end - start)
        links, link_row = _ragged(self.link_offsets, rows)
        first = link_row * width + code[link_row]
        spare = np.maximum(width - code - count, 1)
        weight = np.log(np.maximum(self.seq_len - code - count, 1) / spare)
        arrays = {
            "ids": ids,
            "code": code,
            "used": code + count,
            "node_at": node_row * width + column,
            "node_start": start,
            "node_end": end,
            "links": (first + self.link_from[links]) * width + code[link_row] + self.link_to[links],
            "bag_ids": ids[bag_row, span],
            "bag_starts": np.cumsum(end - start) - (end - start),
            "pad_weight": weight.astype(np.float32),
        }
        return GraphBucket(**{name: torch.from_numpy(value) for name, value in arrays.items()})


def _ragged(offsets: NDArray[Any], rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the flat indices of the rows' elements, and to which of the rows each belongs."""
    count = offsets[rows + 1] - offsets[rows]
    return np.repeat(offsets[rows], count) + _ranks(count), np.repeat(np.arange(len(rows)), count)


def _ranks(count: NDArray[Any]) -> NDArray[np.int64]:
    """Return 0, 1, … for each of the groups of these sizes.

    >>> _ranks(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    ends = np.cumsum(count)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - count, count)


def code_room(length: int, nodes: int, data_flow_length: int, positions: int, pad_id: int) -> int:
    """Return how many tokens of code fit, `<s>` and `</s>` not counted.

    Args:
        length: Tokens of code and nodes together.
        nodes: Data-flow nodes that the function has.
        data_flow_length: Nodes that room is kept for.
        positions: Rows of the model's table of positions.
        pad_id: Positions of code begin after it.

    Source: microsoft/CodeBERT, GraphCodeBERT/clonedetection/run.py, `convert_examples_to_features`.

    >>> code_room(528, 40, 128, 514, 1), code_room(528, 300, 128, 514, 1)
    (485, 397)
    >>> code_room(640, 0, 128, 514, 1)
    509
    """
    return min(length - 3 - min(nodes, data_flow_length), positions - pad_id - 1 - SPARE_POSITIONS)


def graph_table(
    flows: FlowTable,
    tokenizer: Any,
    *,
    seq_len: int,
    data_flow_length: int,
    positions: int,
    vocab_size: int,
) -> GraphTable:
    """Turn the data-flow graphs of a corpus into the model's input.

    Nodes take whatever room the code leaves, which may be more than `data_flow_length`, as in the
    published script; with `data_flow_length=0` there are none.

    Args:
        flows: The graphs.
        tokenizer: RoBERTa's, or one with its special tokens: `<s>`, `</s>`, `<pad>`, `<unk>`.
        seq_len: Tokens of code per function (the published script's code_length).
        data_flow_length: Tokens kept for nodes.
        positions: Rows of the model's table of positions.
        vocab_size: Rows of the model's table of words.

    Raises:
        ConfigError: The tokenizer lacks a special token, or does not belong to the model.
    """
    special = _special_ids(tokenizer)
    later, first = _word_pieces(flows, tokenizer)
    highest = max([*special.values(), *(int(p.max(initial=0)) for p in (later[0], first[0]))])
    if highest >= vocab_size:
        raise ConfigError(
            f"The tokenizer gives id {highest}, but the model's embedding has {vocab_size} rows.",
            fix="take tokenizer and model from the same folder or hub id",
        )
    length = seq_len + data_flow_length
    parts: dict[str, list[Any]] = {name: [] for name in ("ids", "start", "end", "from", "to")}
    truncated = 0
    for index in range(len(flows)):
        pieces, ends = _function_pieces(flows, index, later, first)
        edges, parents, parent_ends = _function_edges(flows, index, keep=data_flow_length > 0)
        room = code_room(length, len(edges), data_flow_length, positions, special["pad"])
        truncated += len(pieces) > room
        pieces = pieces[: max(room, 0)]
        parts["ids"].append(np.concatenate([[special["cls"]], pieces, [special["sep"]]]))
        keep = min(len(edges), length - len(pieces) - 2)
        start, end = ends[edges[:keep]] + 1, ends[edges[:keep] + 1] + 1
        is_seen = end < len(pieces) + 2
        parts["start"].append(np.where(is_seen, start, 0))
        parts["end"].append(np.where(is_seen, end, 0))
        source, target = _links(edges[:keep], parents, parent_ends)
        parts["from"].append(source)
        parts["to"].append(target)
    flat = {name: _join(values) for name, values in parts.items()}
    return GraphTable(
        ids=flat["ids"][0],
        offsets=flat["ids"][1],
        node_start=flat["start"][0],
        node_end=flat["end"][0],
        node_offsets=flat["start"][1],
        link_from=flat["from"][0],
        link_to=flat["to"][0],
        link_offsets=flat["from"][1],
        truncated=truncated,
        pad_id=special["pad"],
        unk_id=special["unk"],
        seq_len=length,
    )


def _join(values: list[Any]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    offsets = np.concatenate([[0], np.cumsum([len(v) for v in values])]).astype(np.int64)
    flat = np.concatenate([*values, np.zeros(0, dtype=np.int32)])
    return flat.astype(np.int32), offsets


def _special_ids(tokenizer: Any) -> dict[str, int]:
    names = {"cls": "cls_token", "sep": "sep_token", "pad": "pad_token", "unk": "unk_token"}
    found = {short: getattr(tokenizer, f"{name}_id") for short, name in names.items()}
    missing = [names[short] for short, value in found.items() if value is None]
    if missing:
        raise ConfigError(
            f"The tokenizer has no {', '.join(missing)}, which the data-flow input needs.",
            fix="take a RoBERTa tokenizer, or leave data_flow_length out",
        )
    if found["pad"] == 0:
        raise ConfigError(
            "The tokenizer's padding has id 0, which is also the position of data-flow nodes.",
            fix="take a RoBERTa tokenizer (its padding is 1), or leave data_flow_length out",
        )
    return found


Pieces = tuple[Any, Any]  # ids of many words (flat), and where each word begins (words + 1)


def _word_pieces(flows: FlowTable, tokenizer: Any) -> tuple[Pieces, Pieces]:
    """Tokenise each distinct leaf once: as a later word, and as the first word of a function."""
    later = _encode([BEFORE_WORD + word for word in flows.words], tokenizer)
    mark = len(_encode([BEFORE_WORD.strip()], tokenizer)[0])
    starts, ends = later[1][:-1] + mark, later[1][1:]
    keep = np.repeat(starts, ends - starts) + _ranks(ends - starts)
    later = (later[0][keep], np.concatenate([[0], np.cumsum(ends - starts)]))
    firsts = flows.tokens[flows.token_offsets[:-1][np.diff(flows.token_offsets) > 0]]
    used = np.zeros(len(flows.words), dtype=bool)
    used[firsts] = True
    texts = [word if known else "" for word, known in zip(flows.words, used, strict=True)]
    return later, _encode(texts, tokenizer)


def _encode(texts: Sequence[str], tokenizer: Any) -> Pieces:
    """Return the ids of all texts; text that looks like a special token stays text."""
    if not texts:
        return np.zeros(0, dtype=np.int32), np.zeros(1, dtype=np.int64)
    rows = tokenizer(
        list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False
    )["input_ids"]
    return _join([np.asarray(row, dtype=np.int32) for row in rows])


def _function_pieces(
    flows: FlowTable, index: int, later: Pieces, first: Pieces
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the ids of a function's code, and where each leaf begins, (leaves + 1,)."""
    words = flows.tokens[flows.token_offsets[index] : flows.token_offsets[index + 1]]
    if not len(words):
        return np.zeros(0, dtype=np.int32), np.zeros(1, dtype=np.int64)
    ids, starts = first
    head = ids[starts[words[0]] : starts[words[0] + 1]]
    at, _ = _ragged(later[1], words[1:].astype(np.int64))
    counts = np.diff(later[1])[words[1:]]
    ends = np.concatenate([[0, len(head)], len(head) + np.cumsum(counts)])
    return np.concatenate([head, later[0][at]]), ends


def _function_edges(
    flows: FlowTable, index: int, *, keep: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the leaf of each edge, and all parents with the end of each edge's parents."""
    low, high = flows.edge_offsets[index], flows.edge_offsets[index + 1] if keep else None
    high = low if high is None else high
    ends = flows.parent_offsets[low : high + 1]
    return (
        flows.edge_token[low:high].astype(np.int64),
        flows.parents[ends[0] : ends[-1]],
        ends - ends[0],
    )


def _links(
    edges: NDArray[Any], parents: NDArray[Any], ends: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return (node, node it reads); of several nodes of one leaf, the last one is read."""
    if not len(edges):
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32)
    parents = parents[: ends[len(edges)]]
    size = 1 + max(int(edges.max()), int(parents.max(initial=0)))
    last = np.full(size, -1)
    last[edges] = np.arange(len(edges))  # numpy keeps the last of several values
    source, target = np.repeat(np.arange(len(edges)), np.diff(ends)[: len(edges)]), last[parents]
    known = target >= 0
    return source[known], target[known]
