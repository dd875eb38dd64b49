"""Inputs of our jobs without data files and without a hub: configurations, and rows of token ids.

A row is as long as it is asked for; which words stand in it does not matter to the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nbhelpers.budget.shapes import Shape, find_shape
from nbhelpers.common.files import expanded, is_folder
from nbhelpers.errors import ConfigError
from nbhelpers.jobs.models.clones import set_dropout
from nbhelpers.jobs.models.encoders import (
    NEW_TOKENIZER_VOCAB,
    Tokeniser,
    config_of,
    read_config,
)
from nbhelpers.jobs.models.inputs import GraphTable, TokenTable, code_room

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbhelpers.presets.schema import Settings

PAD, BOS, EOS, UNKNOWN = 1, 0, 2, 3
_ENDS = 2  # tokens around the code
# Source: config.json of the checkpoints; what is not named here is the class's own default.
_CODET5 = {
    "vocab_size": 32100,
    "d_model": 768,
    "d_kv": 64,
    "d_ff": 3072,
    "num_layers": 12,
    "num_decoder_layers": 12,
    "num_heads": 12,
    "n_positions": 512,
    "feed_forward_proj": "relu",
    "dropout_rate": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def simulated_tokeniser(settings: Settings, *, vocab: int | None = None) -> Tokeniser:
    """Return the configuration of a model, in the place of what `build_tokenizer` reads.

    Args:
        vocab: Words of the model, where they are known.

    Raises:
        ConfigError: The sizes are not known and cannot be read here.
    """
    config = _config(settings)
    if settings.random_weights and not _has_tokenizer(settings.model):
        config.vocab_size = min(config.vocab_size, NEW_TOKENIZER_VOCAB)
    if vocab is not None:
        config.vocab_size = vocab
    if config.model_type == "gpt2":
        config.pad_token_id = None  # as `models.encoders` sets it
    set_dropout(config, settings.dropout)
    return Tokeniser(tokenizer=None, config=config, weights=None, note="simulated")


def _config(settings: Settings) -> Any:
    import transformers

    if is_folder(settings.model):
        return _read(settings.model, lambda: read_config(expanded(settings.model)))
    if settings.model == "Salesforce/codet5-base":
        return transformers.T5Config(**_CODET5)
    if settings.model == "answerdotai/ModernBERT-base":
        return transformers.ModernBertConfig()  # the class's defaults are this checkpoint's
    shape = find_shape(settings)
    if isinstance(shape, Shape):
        return config_of(shape)
    from transformers import AutoConfig

    return _read(settings.model, lambda: AutoConfig.from_pretrained(settings.model))


def _read(name: str, read: Callable[[], Any]) -> Any:
    """Return what a folder's or the hub's config.json says."""
    try:
        return read()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"The sizes of {name} cannot be read, so its memory cannot be simulated.",
            fix="give a folder with config.json, or go online",
        ) from error


def _has_tokenizer(model: str) -> bool:
    """Whether a bare architecture keeps its own words; only a folder without them gets new ones."""
    if not is_folder(model):
        return True
    return any((expanded(model) / name).is_file() for name in ("tokenizer.json", "vocab.json"))


def longest_sizes(settings: Settings, rows: int, config: Any) -> list[list[int]]:
    """Return [tokens of code, nodes] of rows that are as long as the settings allow."""
    nodes = getattr(settings, "data_flow_length", None)
    if nodes is None:
        return [[settings.seq_len, 0]] * rows
    length = settings.seq_len + nodes
    positions = config.max_position_embeddings
    code = int(code_room(length, np.full(1, length), nodes, positions, PAD)[0]) + _ENDS
    return [[code, length - code]] * rows


def text_table(lengths: Sequence[int] | NDArray[Any], *, seq_len: int, vocab: int) -> TokenTable:
    """Return rows of these lengths, ends included, of words without a meaning."""
    body = np.maximum(np.minimum(np.asarray(lengths, dtype=np.int64), seq_len) - _ENDS, 0)
    offsets = np.concatenate([[0], np.cumsum(body)]).astype(np.int64)
    ids = (UNKNOWN + np.arange(offsets[-1]) % max(1, vocab - UNKNOWN)).astype(np.int32)
    return TokenTable(ids=ids, offsets=offsets, bos_id=BOS, eos_id=EOS, pad_id=PAD, seq_len=seq_len)


def graph_table(sizes: Sequence[Sequence[int]], *, length: int, vocab: int) -> GraphTable:
    """Return functions of so many tokens of code and so many nodes.

    Every node of the data flow stands for one word and reads the node before it.

    Args:
        length: Columns of a function at most.
    """
    code, nodes = np.asarray(sizes, dtype=np.int64).reshape(-1, 2).T
    ends = np.concatenate([[0], np.cumsum(code)]).astype(np.int64)
    rank = np.arange(int(nodes.sum())) - np.repeat(np.cumsum(nodes) - nodes, nodes)
    start = 1 + rank % np.maximum(np.repeat(code, nodes) - _ENDS, 1)
    links = np.maximum(nodes - 1, 0)
    reader = np.arange(int(links.sum())) - np.repeat(np.cumsum(links) - links, links) + 1
    return GraphTable(
        ids=(UNKNOWN + np.arange(ends[-1]) % max(1, vocab - UNKNOWN)).astype(np.int32),
        offsets=ends,
        node_start=start.astype(np.int32),
        node_end=(start + 1).astype(np.int32),
        node_offsets=np.concatenate([[0], np.cumsum(nodes)]).astype(np.int64),
        link_from=reader.astype(np.int32),
        link_to=(reader - 1).astype(np.int32),
        link_offsets=np.concatenate([[0], np.cumsum(links)]).astype(np.int64),
        is_cut=np.zeros(len(code), dtype=bool),
        pad_id=PAD,
        unk_id=UNKNOWN,
        seq_len=length,
    )
