"""Data-flow graphs to GraphCodeBERT's input: `<s>` code `</s>` nodes, positions, spans, links.

Source: GraphCodeBERT (Guo et al. 2021, arXiv 2009.08366) and its published clone-detection script
(microsoft/CodeBERT, GraphCodeBERT/clonedetection/run.py), whose cutting and numbering this follows.
Shapes: `n` functions, `length` = code_length + data_flow_length tokens per function at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from nbhelpers.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbhelpers.data.dataflow import FlowTable
    from nbhelpers.models.buckets import GraphBucket

BEFORE_WORD = "@ "  # one token and a blank: every leaf but the first is tokenised as a later word
SPARE_POSITIONS = 3  # of the positions after padding's: the published script leaves them unused


@dataclass(frozen=True, kw_only=True)
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

    @cached_property
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

        from nbhelpers.models.buckets import GraphBucket, packed_slots

        rows = np.asarray(rows, dtype=np.int64)
        code = self.offsets[rows + 1] - self.offsets[rows]
        at, row = _ragged(self.offsets[rows], code)
        ids = np.full((len(rows), width), self.pad_id, dtype=np.int64)
        ids[row, _ranks(code)] = self.ids[at]
        count = self.node_offsets[rows + 1] - self.node_offsets[rows]
        nodes, node_row = _ragged(self.node_offsets[rows], count)
        column = code[node_row] + _ranks(count)
        ids[node_row, column] = self.unk_id
        start, end = self.node_start[nodes].astype(np.int64), self.node_end[nodes].astype(np.int64)
        span = np.repeat(start, end - start) + _ranks(end - start)
        bag_row = np.repeat(node_row, end - start)
        links, link_row = _ragged(
            self.link_offsets[rows], self.link_offsets[rows + 1] - self.link_offsets[rows]
        )
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
        tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}
        return GraphBucket(**tensors, slots=packed_slots(self.lengths[rows], width))


def _ragged(starts: NDArray[Any], count: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the flat indices of groups that begin at `starts`, and the group of each.

    >>> [x.tolist() for x in _ragged(np.array([5, 0]), np.array([2, 1]))]
    [[5, 6, 0], [0, 0, 1]]
    """
    return np.repeat(starts, count) + _ranks(count), np.repeat(np.arange(len(count)), count)


def _offsets(count: NDArray[Any]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(count)]).astype(np.int64)


def _ranks(count: NDArray[Any]) -> NDArray[np.int64]:
    """Return 0, 1, … for each of the groups of these sizes.

    >>> _ranks(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    ends = np.cumsum(count)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - count, count)


def code_room(
    length: int, nodes: NDArray[Any], data_flow_length: int, positions: int, pad_id: int
) -> NDArray[np.int64]:
    """Return how many tokens of code fit, `<s>` and `</s>` not counted.

    Args:
        length: Tokens of code and nodes together.
        nodes: (n,) data-flow nodes that each function has.
        data_flow_length: Nodes that room is kept for.
        positions: Rows of the model's table of positions.
        pad_id: Positions of code begin after it.

    Source: microsoft/CodeBERT, GraphCodeBERT/clonedetection/run.py, `convert_examples_to_features`.

    >>> code_room(528, np.array([40, 300]), 128, 514, 1).tolist()
    [485, 397]
    >>> code_room(640, np.array([0]), 128, 514, 1).tolist()
    [509]
    """
    by_length = length - 3 - np.minimum(nodes, data_flow_length)
    return np.minimum(by_length, positions - pad_id - 1 - SPARE_POSITIONS)


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
    pieces = _pieces(flows, later, first)
    edges = np.diff(flows.edge_offsets) * (data_flow_length > 0)
    room = code_room(length, edges, data_flow_length, positions, special["pad"])
    total = np.diff(pieces.offsets)
    code = np.minimum(total, np.maximum(room, 0))
    nodes = np.minimum(edges, length - code - 2)
    node_offsets = _offsets(nodes)
    edge, owner = _ragged(flows.edge_offsets[:-1], nodes)
    leaf = flows.token_offsets[owner] + flows.edge_token[edge]  # counted over the corpus
    start, end = (pieces.ends[leaf + side] - pieces.offsets[owner] + 1 for side in (0, 1))
    is_seen = end < code[owner] + 2
    source, target, links = _links(flows, edge, owner, leaf, node_offsets)
    ids, offsets = _with_ends(pieces, code, special)
    return GraphTable(
        ids=ids,
        offsets=offsets,
        node_start=np.where(is_seen, start, 0).astype(np.int32),
        node_end=np.where(is_seen, end, 0).astype(np.int32),
        node_offsets=node_offsets,
        link_from=source,
        link_to=target,
        link_offsets=links,
        truncated=int((total > code).sum()),
        pad_id=special["pad"],
        unk_id=special["unk"],
        seq_len=length,
    )


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


Encoded = tuple[Any, Any]  # ids of many words (flat), and where each word begins (words + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pieces:
    """The code of all functions as ids, uncut.

    Args:
        ids: (total pieces,) int32.
        ends: (leaves + 1,) int64: where each leaf of the corpus begins in `ids`.
        offsets: (n + 1,) int64: where each function begins in `ids`.
    """

    ids: NDArray[np.int32]
    ends: NDArray[np.int64]
    offsets: NDArray[np.int64]


def _word_pieces(flows: FlowTable, tokenizer: Any) -> tuple[Encoded, Encoded]:
    """Tokenise each distinct leaf once: as a later word, and as the first word of a function."""
    later = _encode([BEFORE_WORD + word for word in flows.words], tokenizer)
    mark = len(_encode([BEFORE_WORD.strip()], tokenizer)[0])
    size = np.diff(later[1]) - mark
    at, _ = _ragged(later[1][:-1] + mark, size)
    later = (later[0][at], _offsets(size))
    firsts = np.unique(flows.tokens[flows.token_offsets[:-1][np.diff(flows.token_offsets) > 0]])
    ids, ends = _encode([flows.words[word] for word in firsts], tokenizer)
    sizes = np.zeros(len(flows.words), dtype=np.int64)
    sizes[firsts] = np.diff(ends)
    return later, (ids, _offsets(sizes))


def _encode(texts: Sequence[str], tokenizer: Any) -> Encoded:
    """Return the ids of all texts; text that looks like a special token stays text."""
    if not texts:
        return np.zeros(0, dtype=np.int32), np.zeros(1, dtype=np.int64)
    rows = tokenizer(
        list(texts),
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )["input_ids"]
    flat = np.fromiter((piece for row in rows for piece in row), dtype=np.int32)
    return flat, _offsets(np.array([len(row) for row in rows]))


def _pieces(flows: FlowTable, later: Encoded, first: Encoded) -> _Pieces:
    words = flows.tokens.astype(np.int64)
    is_first = np.zeros(len(words), dtype=bool)
    is_first[flows.token_offsets[:-1][np.diff(flows.token_offsets) > 0]] = True
    pool = np.concatenate([later[0], first[0]])
    size = np.where(is_first, np.diff(first[1])[words], np.diff(later[1])[words])
    begin = np.where(is_first, first[1][words] + len(later[0]), later[1][words])
    at, _ = _ragged(begin, size)
    ends = _offsets(size)
    return _Pieces(ids=pool[at], ends=ends, offsets=ends[flows.token_offsets])


def _with_ends(
    pieces: _Pieces, code: NDArray[np.int64], special: dict[str, int]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return `<s>` code `</s>` of all functions, cut to `code` pieces each."""
    offsets = _offsets(code + 2)
    ids = np.empty(offsets[-1], dtype=np.int32)
    ids[offsets[:-1]], ids[offsets[1:] - 1] = special["cls"], special["sep"]
    at, owner = _ragged(pieces.offsets[:-1], code)
    ids[offsets[owner] + 1 + _ranks(code)] = pieces.ids[at]
    return ids, offsets


def _links(
    flows: FlowTable,
    edge: NDArray[np.int64],
    owner: NDArray[np.int64],
    leaf: NDArray[np.int64],
    node_offsets: NDArray[np.int64],
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """Return (node, node it reads) and the links per function, as offsets.

    Of several nodes of one leaf, the last one is read. Nodes are counted within their function.

    Args:
        edge: (nodes,) the edge of each node, and its function (`owner`) and `leaf`.
    """
    rank = np.arange(len(edge)) - node_offsets[owner]
    last = np.full(len(flows.tokens), -1)
    last[leaf] = rank  # numpy keeps the last of several values
    size = flows.parent_offsets[edge + 1] - flows.parent_offsets[edge]
    at, reader = _ragged(flows.parent_offsets[edge], size)
    target = last[flows.token_offsets[owner[reader]] + flows.parents[at]]
    known = target >= 0
    count = np.bincount(owner[reader][known], minlength=len(flows))
    source = rank[reader][known].astype(np.int32)
    return source, target[known].astype(np.int32), _offsets(count)
