"""Texts and data-flow graphs as tables of token ids, and batches by length."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from nbhelpers.common.files import cached
from nbhelpers.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbhelpers.data.dataflow import FlowTable


# ------------------------------------------------------------------------------------------------
# Rows of functions of like length as tensors: what an encoder reads.
#
# Everything here is small and is made on the CPU; masks, which are large, are made on the device.


class _Tensors:
    """Moves every tensor field; other fields stay."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by field."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def to(self, put: Callable[[list[Tensor]], list[Tensor]]) -> Self:
        """Return the same with the tensors that `put` makes of its own."""
        own = self.tensors()
        return replace(self, **dict(zip(own, put(list(own.values())), strict=True)))

    def on(self, device: Any) -> Self:
        """Return the same on a device."""
        return self.to(lambda tensors: [x.to(device, non_blocking=True) for x in tensors])


@dataclass(slots=True, kw_only=True)
class TextBucket(_Tensors):
    """Functions as plain text.

    Args:
        ids: (rows, width) int64, padded on the right.
        last: (rows,) int64: position of each row's end token.
        slots: (T,) int64: row * width + column of every token that is not padding, row by row.
    """

    ids: Tensor
    last: Tensor
    slots: Tensor

    @property
    def rows(self) -> int:
        """How many functions there are."""
        return len(self.last)


@dataclass(slots=True, kw_only=True)
class GraphBucket(_Tensors):
    """Functions as code followed by the nodes of their data flow, then padding.

    Shapes: N nodes and M links over all rows, P tokens of nodes.

    Args:
        ids: (rows, width) int64; a node has the id of the unknown word.
        code: (rows,) int64: tokens of code, `<s>` and `</s>` included.
        used: (rows,) int64: tokens of code and nodes.
        node_at: (N,) int64: row * width + column of a node.
        node_start: (N,) int64: first column of the code that the node stands for.
        node_end: (N,) int64: the column after it; equal to the first where that code was cut off.
        links: (M,) int64: (row * width + node's column) * width + column of the node it reads.
        bag_ids: (P,) int64: ids of the code of all nodes, one node after the other.
        bag_starts: (N,) int64: where each node begins in `bag_ids`.
        pad_weight: (rows,) float32: log of (padding of the published form) / (padding here).
        slots: (T,) int64: row * width + column of every column that is needed, row by row.
    """

    ids: Tensor
    code: Tensor
    used: Tensor
    node_at: Tensor
    node_start: Tensor
    node_end: Tensor
    links: Tensor
    bag_ids: Tensor
    bag_starts: Tensor
    pad_weight: Tensor
    slots: Tensor

    @property
    def rows(self) -> int:
        """How many functions there are."""
        return len(self.code)


def packed_slots(lengths: NDArray[np.int64], width: int) -> Tensor:
    """Return (T,) row * width + column of the first `lengths` columns of each row.

    >>> packed_slots(np.array([2, 1]), 4).tolist()
    [0, 1, 4]
    """
    ends = np.cumsum(lengths)
    column = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
    return torch.from_numpy(np.repeat(np.arange(len(lengths)) * width, lengths) + column)


Bucket = TextBucket | GraphBucket


# ------------------------------------------------------------------------------------------------
# Text to token ids, once per distinct function, and ids to padded batches.
#
# Shapes: `n` functions, `batch` rows, `length` tokens. Ids are int32 on disk and int64 on the
# device.


SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")
ROBERTA_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
CACHE_FORMAT = 1


def collapse_whitespace(code: str) -> str:
    """Return the code with every run of whitespace as one blank, as CodeXGLUE feeds it.

    >>> collapse_whitespace("int  f() {\\n\\treturn 1; }")
    'int f() { return 1; }'
    """
    return " ".join(code.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """Token ids of many functions in one flat array, without special tokens.

    Args:
        ids: (total_tokens,) int32.
        offsets: (n + 1,) int64; function i is `ids[offsets[i]:offsets[i + 1]]`.
        bos_id: Put before each function, or None.
        eos_id: Put after each function.
        pad_id: Fills a batch on the right.
        seq_len: Tokens per function at most, `bos` and `eos` included.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    bos_id: int | None
    eos_id: int
    pad_id: int
    seq_len: int

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(n,) tokens of each function after truncation, special tokens included."""
        special = 1 + (self.bos_id is not None)
        return np.minimum(np.diff(self.offsets) + special, self.seq_len)

    def sizes(self, rows: NDArray[Any]) -> list[list[int]]:
        """Return [tokens of code, nodes] of each of these functions; there are no nodes."""
        return [[int(length), 0] for length in self.lengths[rows]]

    @property
    def is_cut(self) -> NDArray[np.bool_]:
        """(n,) whether each function is longer than `seq_len`."""
        special = 1 + (self.bos_id is not None)
        return np.diff(self.offsets) + special > self.seq_len

    @property
    def truncated(self) -> int:
        """Number of functions longer than `seq_len`."""
        return int(self.is_cut.sum())

    def bucket(self, rows: NDArray[Any], width: int) -> TextBucket:
        """Return these functions as tensors of `width` columns, on the CPU."""
        import torch

        lengths = self.lengths[rows]
        return TextBucket(
            ids=torch.from_numpy(self.pad(rows, width)),
            last=torch.from_numpy(lengths - 1),
            slots=packed_slots(lengths, width),
        )

    @property
    def used(self) -> NDArray[np.int64]:
        """(n,) tokens that are not padding."""
        return self.lengths

    def pad(self, rows: Sequence[int] | NDArray[Any], width: int) -> NDArray[np.int64]:
        """Return (len(rows), width) ids, padded on the right."""
        out = np.full((len(rows), width), self.pad_id, dtype=np.int64)
        first = self.bos_id is not None
        room = self.seq_len - 1 - first
        for line, row in enumerate(rows):
            body = self.ids[self.offsets[row] : self.offsets[row + 1]][:room]
            if first:
                out[line, 0] = self.bos_id
            out[line, first : first + len(body)] = body
            out[line, first + len(body)] = self.eos_id
        return out


def train_words(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: Sequence[str],
    *,
    splits_digits: bool = False,
) -> Any:
    """Return a byte-level BPE of the tokenizers library, trained on the texts.

    Args:
        splits_digits: Each digit is a word of its own, as in Gemma's, so that a number is copied
            digit by digit.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if splits_digits:
        digits = pre_tokenizers.Digits(individual_digits=True)
        bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, bpe.pre_tokenizer])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return bpe


def train_bpe(
    texts: Sequence[str],
    vocab_size: int,
    *,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
    collapse: bool = True,
) -> Any:
    """Return a byte-level BPE tokenizer trained on the texts.

    Args:
        special_tokens: `<pad>`, `<s>`, `</s>` and `<unk>`, in the order of their ids.
        collapse: Read any white space as one blank.
    """
    from transformers import PreTrainedTokenizerFast

    texts = map(collapse_whitespace, texts) if collapse else texts
    bpe = train_words(texts, vocab_size, special_tokens)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        unk_token="<unk>",
    )


def _fingerprint(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(text.encode()).hexdigest()


def _encode(
    texts: Sequence[str], tokenizer: Any, report: Callable[[int, int], None], *, collapse: bool
) -> list[Any]:
    """Tokenise in blocks; text that looks like a special token stays text."""
    rows: list[Any] = []
    for start in range(0, len(texts), 1000):
        block = list(texts[start : start + 1000])
        block = [collapse_whitespace(text) for text in block] if collapse else block
        encoded = tokenizer(
            block, add_special_tokens=False, split_special_tokens=True, verbose=False
        )
        rows += [np.asarray(ids, dtype=np.int32) for ids in encoded["input_ids"]]
        report(len(rows), len(texts))
    return rows


def tokenise(
    texts: Sequence[str],
    tokenizer: Any,
    *,
    seq_len: int,
    vocab_size: int,
    collapse: bool = True,
    is_cached: bool = True,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> TokenTable:
    """Tokenise each distinct text once, from the cache when these texts were seen before.

    Args:
        texts: Source code, one string per function.
        tokenizer: A Hugging Face tokenizer.
        seq_len: Tokens per function at most, special tokens included.
        vocab_size: Rows of the model's embedding; an id beyond it is an error, not a GPU crash.
        collapse: Read any white space as one blank.
        is_cached: Keep the ids on disk for the next time.
        report: Called with (done, total) as blocks are tokenised.

    Raises:
        ConfigError: The tokenizer does not belong to the model.
    """
    distinct: dict[str, int] = {}
    place = np.array([distinct.setdefault(text, len(distinct)) for text in texts], dtype=np.int64)

    def make() -> tuple[Any, Any]:
        rows = _encode(list(distinct), tokenizer, report, collapse=collapse)
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        return np.concatenate([*rows, np.zeros(0, dtype=np.int32)]), offsets

    if is_cached:
        key = [f"{CACHE_FORMAT} {collapse} {_fingerprint(tokenizer)}", *distinct]
        ids, offsets = cached("tokens", key, make, load=_load, save=_save, suffix=".npz")
    else:
        ids, offsets = make()
    return _table(ids, offsets, place, tokenizer, seq_len=seq_len, vocab_size=vocab_size)


def _load(path: Path) -> tuple[Any, Any]:
    with np.load(path, allow_pickle=False) as saved:
        return saved["ids"], saved["offsets"]


def _save(path: Path, ids_and_offsets: tuple[Any, Any]) -> None:
    ids, offsets = ids_and_offsets
    np.savez(path, ids=ids, offsets=offsets)


def _table(
    ids: Any, offsets: Any, place: Any, tokenizer: Any, *, seq_len: int, vocab_size: int
) -> TokenTable:
    eos = tokenizer.eos_token_id
    if eos is None:
        raise ConfigError(
            "The tokenizer has no end token, and the clone model pools the end token.",
            fix="use a tokenizer with eos_token set",
        )
    bos, pad = tokenizer.bos_token_id, tokenizer.pad_token_id
    pad = eos if pad is None or pad >= vocab_size else pad
    highest = max(int(ids.max(initial=0)), eos, bos or 0)
    if highest >= vocab_size:
        raise ConfigError(
            f"The tokenizer gives id {highest}, but the model's embedding has {vocab_size} rows.",
            fix="take tokenizer and model from the same folder or hub id",
        )
    if len(place) == len(offsets) - 1:
        return TokenTable(
            ids=ids, offsets=offsets, bos_id=bos, eos_id=eos, pad_id=pad, seq_len=seq_len
        )
    spans = [ids[offsets[i] : offsets[i + 1]] for i in place]
    flat = np.concatenate([*spans, np.zeros(0, dtype=np.int32)])
    ends = np.concatenate([[0], np.cumsum([len(span) for span in spans])]).astype(np.int64)
    return TokenTable(ids=flat, offsets=ends, bos_id=bos, eos_id=eos, pad_id=pad, seq_len=seq_len)


def length_buckets(
    lengths: NDArray[np.int64], *, ratio: float, min_tokens: int
) -> list[NDArray[np.int64]]:
    """Split rows into groups of like length, longest first, so that little is padded.

    A group ends where a row is shorter than `ratio` of the group's longest row, once the group
    holds `min_tokens` padded tokens (small groups leave a GPU waiting for kernel launches).

    >>> [g.tolist() for g in length_buckets(np.array([9, 100, 90]), ratio=0.7, min_tokens=0)]
    [[1, 2], [0]]
    """
    order = np.argsort(-lengths, kind="stable")
    groups, start = [], 0
    for end in range(1, len(order) + 1):
        head = lengths[order[start]]
        closes = end == len(order) or (
            lengths[order[end]] < ratio * head and (end - start) * head >= min_tokens
        )
        if closes:
            groups.append(order[start:end])
            start = end
    return groups


# ------------------------------------------------------------------------------------------------
# Data-flow graphs to GraphCodeBERT's input: `<s>` code `</s>` nodes, positions, spans, links.
#
# Source: GraphCodeBERT (Guo et al. 2021, arXiv 2009.08366) and its published clone-detection script
# (microsoft/CodeBERT, GraphCodeBERT/clonedetection/run.py), whose cutting and numbering this
# follows. Shapes: `n` functions, `length` = code_length + data_flow_length tokens per function at
# most.


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
        is_cut: (n,) whether each function's code was cut.
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
    is_cut: NDArray[np.bool_]
    pad_id: int
    unk_id: int
    seq_len: int

    @property
    def truncated(self) -> int:
        """Number of functions whose code was cut."""
        return int(self.is_cut.sum())

    @property
    def used(self) -> NDArray[np.int64]:
        """(n,) tokens of code and nodes."""
        return np.diff(self.offsets) + np.diff(self.node_offsets)

    def sizes(self, rows: NDArray[Any]) -> list[list[int]]:
        """Return [tokens of code, nodes] of each of these functions."""
        counts = np.stack([np.diff(self.offsets)[rows], np.diff(self.node_offsets)[rows]], axis=1)
        return counts.tolist()

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
        is_cut=total > code,
        pad_id=special["pad"],
        unk_id=special["unk"],
        seq_len=length,
    )


def _special_ids(tokenizer: Any) -> dict[str, int]:
    names = {"cls": "cls_token", "sep": "sep_token", "pad": "pad_token", "unk": "unk_token"}
    ids = {short: getattr(tokenizer, f"{name}_id") for short, name in names.items()}
    missing = [names[short] for short, value in ids.items() if value is None]
    if missing:
        raise ConfigError(
            f"The tokenizer has no {', '.join(missing)}, which the data-flow input needs.",
            fix="take a RoBERTa tokenizer, or leave data_flow_length out",
        )
    if ids["pad"] == 0:
        raise ConfigError(
            "The tokenizer's padding has id 0, which is also the position of data-flow nodes.",
            fix="take a RoBERTa tokenizer (its padding is 1), or leave data_flow_length out",
        )
    return ids


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
    later = _inputs_encode([BEFORE_WORD + word for word in flows.words], tokenizer)
    mark = len(_inputs_encode([BEFORE_WORD.strip()], tokenizer)[0])
    size = np.diff(later[1]) - mark
    at, _ = _ragged(later[1][:-1] + mark, size)
    later = (later[0][at], _offsets(size))
    firsts = np.unique(flows.tokens[flows.token_offsets[:-1][np.diff(flows.token_offsets) > 0]])
    ids, ends = _inputs_encode([flows.words[word] for word in firsts], tokenizer)
    sizes = np.zeros(len(flows.words), dtype=np.int64)
    sizes[firsts] = np.diff(ends)
    return later, (ids, _offsets(sizes))


def _inputs_encode(texts: Sequence[str], tokenizer: Any) -> Encoded:
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
