"""Inputs of our jobs without data files and without a hub: configurations, and rows of token ids.

A row is as long as it is asked for; which words stand in it does not matter to the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nbhelpers.budget.shapes import Shape, find_shape
from nbhelpers.common.files import expanded, is_folder
from nbhelpers.errors import ConfigError
from nbhelpers.jobs.models.clones import set_dropout
from nbhelpers.jobs.models.encoders import NEW_TOKENIZER_VOCAB, Tokeniser
from nbhelpers.jobs.models.inputs import GraphTable, TokenTable, code_room

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbhelpers.presets.schema import Settings

PAD, BOS, EOS, UNKNOWN = 1, 0, 2, 3
# Every node of the data flow stands for one word and reads the node before it.
_ENDS = 2
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


def simulated_tokeniser(settings: Settings) -> Tokeniser:
    """Return the configuration of a model, in the place of what `build_tokenizer` reads.

    Raises:
        ConfigError: The sizes are not known and cannot be read here.
    """
    config = _config(settings)
    if settings.random_weights and not _has_tokenizer(settings.model):
        config.vocab_size = min(config.vocab_size, NEW_TOKENIZER_VOCAB)
    if config.model_type == "gpt2":
        config.pad_token_id = None  # as `models.encoders` sets it
    set_dropout(config, settings.dropout)
    return Tokeniser(tokenizer=None, config=config, weights=None, note="simulated")


def _config(settings: Settings) -> Any:
    import transformers

    if is_folder(settings.model):
        return _read(settings.model, str(expanded(settings.model)))
    if settings.model == "Salesforce/codet5-base":
        return transformers.T5Config(**_CODET5)
    if settings.model == "answerdotai/ModernBERT-base":
        return transformers.ModernBertConfig()  # the class's defaults are this checkpoint's
    shape = find_shape(settings)
    if isinstance(shape, Shape):
        return _of_shape(shape)
    return _read(settings.model, settings.model)


def _read(name: str, place: str) -> Any:
    """Return what a folder's or the hub's config.json says."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(place)
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


def _of_shape(shape: Shape) -> Any:
    import transformers

    if shape.family == "gpt2":
        return transformers.GPT2Config(
            vocab_size=shape.vocab,
            n_positions=shape.positions,
            n_embd=shape.hidden,
            n_layer=shape.layers,
            n_head=shape.heads,
            n_inner=shape.inner,
            resid_pdrop=shape.dropout,
            embd_pdrop=shape.dropout,
            attn_pdrop=shape.dropout,
        )
    build = transformers.BertConfig if shape.family == "bert" else transformers.RobertaConfig
    return build(
        vocab_size=shape.vocab,
        max_position_embeddings=shape.positions,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner,
        type_vocab_size=shape.token_types,
        hidden_dropout_prob=shape.dropout,
        attention_probs_dropout_prob=shape.dropout,
        pad_token_id=max(0, shape.spare_positions - 1),
    )


def longest(settings: Settings, rows: int) -> NDArray[np.int64]:
    """Return (rows,) the length of the longest row that the settings allow, as often as asked."""
    return np.full(rows, settings.function_length, dtype=np.int64)


def text_table(lengths: Sequence[int] | NDArray[Any], *, seq_len: int, vocab: int) -> TokenTable:
    """Return rows of these lengths, ends included, of words without a meaning."""
    body = np.maximum(np.minimum(np.asarray(lengths, dtype=np.int64), seq_len) - _ENDS, 0)
    offsets = np.concatenate([[0], np.cumsum(body)]).astype(np.int64)
    ids = (UNKNOWN + np.arange(offsets[-1]) % max(1, vocab - UNKNOWN)).astype(np.int32)
    return TokenTable(ids=ids, offsets=offsets, bos_id=BOS, eos_id=EOS, pad_id=PAD, seq_len=seq_len)


def graph_table(
    lengths: Sequence[int] | NDArray[Any],
    *,
    seq_len: int,
    data_flow_length: int,
    positions: int,
    vocab: int,
) -> GraphTable:
    """Return functions of these columns, code and nodes, as full of nodes as the cutting leaves."""
    length = seq_len + data_flow_length
    columns = np.minimum(np.asarray(lengths, dtype=np.int64), length)
    room = code_room(length, np.full(1, length), data_flow_length, positions, PAD)[0] + _ENDS
    code = np.clip(columns * room // length, _ENDS, room)
    code = np.where(columns == length, room, code)
    nodes = np.where(code > _ENDS, np.maximum(columns - code, 0), 0)
    words = text_table(code, seq_len=length, vocab=vocab)
    total = int(code.sum())
    ends = np.concatenate([[0], np.cumsum(code)]).astype(np.int64)
    ids = np.resize(words.ids, total).astype(np.int32) if len(words.ids) else np.zeros(total, int)
    rank = np.arange(int(nodes.sum())) - np.repeat(np.cumsum(nodes) - nodes, nodes)
    start = 1 + rank % np.maximum(np.repeat(code, nodes) - _ENDS, 1)
    links = np.maximum(nodes - 1, 0)
    reader = np.arange(int(links.sum())) - np.repeat(np.cumsum(links) - links, links) + 1
    return GraphTable(
        ids=ids,
        offsets=ends,
        node_start=start.astype(np.int32),
        node_end=(start + 1).astype(np.int32),
        node_offsets=np.concatenate([[0], np.cumsum(nodes)]).astype(np.int64),
        link_from=reader.astype(np.int32),
        link_to=(reader - 1).astype(np.int32),
        link_offsets=np.concatenate([[0], np.cumsum(links)]).astype(np.int64),
        truncated=0,
        pad_id=PAD,
        unk_id=UNKNOWN,
        seq_len=length,
    )
