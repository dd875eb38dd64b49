"""Promise: code and data flow become the published form's ids, positions, spans and mask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from nbhelpers.errors import ConfigError
from nbhelpers.jobs.models.encoding import graph_bias, graph_positions, graph_sees
from nbhelpers.jobs.models.inputs import (
    ROBERTA_TOKENS,
    GraphTable,
    code_room,
    graph_table,
    train_bpe,
)

WORDS = ["int", "f", "(", "a", ")", "{", "return", "+", "1", ";", "}", "someLongName", "<s>", "é"]


@dataclass
class Flows:
    """The arrays of a `FlowTable`, from [(words, [(leaf, parents)])]."""

    functions: list

    def __post_init__(self) -> None:
        self.words = WORDS
        leaves = [words for words, _ in self.functions]
        edges = [found for _, found in self.functions]
        parents = [p for found in edges for _, p in found]
        self.tokens = np.array([w for words in leaves for w in words], dtype=np.int32)
        self.token_offsets = np.cumsum([0, *map(len, leaves)])
        self.edge_token = np.array([i for found in edges for i, _ in found], dtype=np.int32)
        self.edge_offsets = np.cumsum([0, *map(len, edges)])
        self.parents = np.array([p for found in parents for p in found], dtype=np.int32)
        self.parent_offsets = np.cumsum([0, *map(len, parents)])

    def __len__(self) -> int:
        return len(self.functions)


SHORT = ([0, 1, 2, 0, 3, 4, 5, 6, 3, 7, 8, 9, 10], [(4, []), (8, [4]), (9, [4, 8])])
EMPTY: tuple = ([0, 1, 2, 4], [])
NO_LEAF: tuple = ([], [])
# Several edges of one leaf: the last one is what others read. Late leaves are cut off.
LONG = (
    [0, 1, 2, 0, 3, 4, 5, 6, 3, 7, *[11] * 8, 9],
    [(4, []), (8, [4]), (8, [8]), (16, [8]), (16, [4]), (17, []), (18, [17, 3])],
)
SPECIAL = ([12, 13, 12, 3], [(1, []), (3, [1])])
ALL = [SHORT, EMPTY, NO_LEAF, LONG, SPECIAL]


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe(["int f(int a){return a+1;}"], 290, special_tokens=ROBERTA_TOKENS)


def table(tokenizer, functions=ALL, **changes) -> GraphTable:
    sizes = {"seq_len": 24, "data_flow_length": 6, "positions": 514, "vocab_size": 290}
    return graph_table(Flows(functions), tokenizer, **sizes | changes)


def by_hand(function, tokenizer, seq_len: int, data_flow_length: int, positions: int = 514):
    """One function as the paper and its script describe it, in plain loops at full width.

    Returns:
        ids, position numbers, and who sees whom.
    """
    words, edges = function
    length = seq_len + data_flow_length
    edges = edges if data_flow_length else []
    pieces, span = [], []
    for place, word in enumerate(words):
        text = WORDS[word] if place == 0 else f"@ {WORDS[word]}"
        found = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        found = found if place == 0 else found[1:]
        span.append((len(pieces) + 1, len(pieces) + 1 + len(found)))
        pieces += found
    room = min(length - 3 - min(len(edges), data_flow_length), positions - 5)
    ids = [0, *pieces[:room], 2]
    code = len(ids)
    edges = edges[: length - code]
    ids += [3] * len(edges) + [1] * (length - code - len(edges))
    places = [*range(2, code + 2), *[0] * len(edges), *[1] * (length - code - len(edges))]
    sees = np.zeros((length, length), dtype=bool)
    sees[:code, :code] = True
    sees[[0, code - 1], : code + len(edges)] = True
    last = {leaf: node for node, (leaf, _) in enumerate(edges)}
    for node, (leaf, parents) in enumerate(edges):
        first, end = span[leaf]
        if end < code:
            sees[code + node, first:end] = sees[first:end, code + node] = True
        for parent in parents:
            if parent in last:
                sees[code + node, code + last[parent]] = True
    return np.array(ids), np.array(places), sees


@pytest.mark.parametrize(("seq_len", "nodes"), [(24, 6), (14, 4), (40, 20), (24, 0), (9, 1)])
def test_ids_positions_and_mask_are_the_published_ones(tokenizer, seq_len, nodes) -> None:
    found = table(tokenizer, seq_len=seq_len, data_flow_length=nodes)
    bucket = found.bucket(np.arange(len(ALL)), seq_len + nodes)
    positions, sees = graph_positions(bucket, 1).numpy(), graph_sees(bucket).numpy()
    for row, function in enumerate(ALL):
        ids, places, expected = by_hand(function, tokenizer, seq_len, nodes)
        assert bucket.ids[row].tolist() == ids.tolist()
        assert positions[row].tolist() == places.tolist()
        assert (sees[row] == expected).all()


def test_rows_in_any_order_and_width_are_the_same_functions(tokenizer) -> None:
    found = table(tokenizer)
    rows = np.array([3, 0, 4, 3, 1])
    width = int(found.lengths[rows].max())
    bucket, sees = found.bucket(rows, width), graph_sees(found.bucket(rows, width)).numpy()
    for line, row in enumerate(rows):
        ids, _, expected = by_hand(ALL[row], tokenizer, 24, 6)
        assert bucket.ids[line].tolist() == ids[:width].tolist()
        assert (sees[line] == expected[:width, :width]).all()


def test_a_node_is_the_mean_of_its_code(tokenizer) -> None:
    found = table(tokenizer)
    bucket = found.bucket(np.array([0, 3]), 30)
    ends = [*bucket.bag_starts.tolist()[1:], len(bucket.bag_ids)]
    for node, (first, end) in enumerate(zip(bucket.bag_starts.tolist(), ends, strict=True)):
        row = int(bucket.node_at[node]) // 30
        start, stop = int(bucket.node_start[node]), int(bucket.node_end[node])
        assert bucket.bag_ids[first:end].tolist() == bucket.ids[row, start:stop].tolist()


def test_a_node_without_anything_to_look_at_weighs_padding_as_the_full_width_does(
    tokenizer,
) -> None:
    # The table of positions, not the length, cuts the code: then there is much padding.
    found = table(tokenizer, [LONG], seq_len=18, data_flow_length=14, positions=20)
    width = int(found.lengths[0])
    assert width == found.used[0] + 1 < 30  # one column of padding stands for all
    narrow = graph_bias(found.bucket(np.array([0]), width), torch.float32)[0, 0]
    full = graph_bias(found.bucket(np.array([0]), 32), torch.float32)[0, 0]
    used, blind = int(found.used[0]), ~graph_sees(found.bucket(np.array([0]), 32))[0].any(-1)
    assert blind[:used].any()  # else this test shows nothing
    scores = torch.linspace(-1, 1, used)
    for row in torch.nonzero(blind[:used]).flatten().tolist():
        at_full = torch.softmax(torch.cat([scores, torch.zeros(32 - used)]) + full[row], -1)
        at_width = torch.softmax(torch.cat([scores, torch.zeros(1)]) + narrow[row], -1)
        assert torch.allclose(at_full[:used], at_width[:used], atol=1e-6)


def test_text_that_looks_like_a_special_token_stays_text(tokenizer) -> None:
    bucket = table(tokenizer).bucket(np.array([4]), 30)
    code = bucket.ids[0, 1 : int(bucket.code[0]) - 1].tolist()
    assert not set(code) & {0, 1, 2, 3}


def test_room_for_code_shrinks_by_the_nodes_up_to_their_share() -> None:
    nodes = np.array([0, 10, 128, 500])
    assert code_room(528, nodes, 128, 514, 1).tolist() == [509, 509, 397, 397]


@pytest.mark.parametrize(
    ("change", "text"),
    [({"pad_token": None}, "pad_token"), ({"unk_token": None}, "unk_token")],
)
def test_a_tokenizer_without_its_special_tokens_is_refused(tokenizer, change, text) -> None:
    from copy import deepcopy

    other = deepcopy(tokenizer)
    for name, value in change.items():
        setattr(other, name, value)
    with pytest.raises(ConfigError, match=text):
        table(other)


def test_padding_with_id_0_would_be_a_node_and_is_refused() -> None:
    other = train_bpe(["int a"], 280)
    with pytest.raises(ConfigError, match="id 0"):
        table(other)


def test_a_tokenizer_of_another_model_is_refused(tokenizer) -> None:
    with pytest.raises(ConfigError, match="rows"):
        table(tokenizer, vocab_size=100)
