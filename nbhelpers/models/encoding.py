"""How an encoder turns a bucket of functions into one state per function.

Three forms: GPT-2 at the end token (CodeGPT), RoBERTa at `<s>` (CodeBERT), and RoBERTa at `<s>`
with data-flow nodes behind the code (GraphCodeBERT). Masks are made here, on the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nbhelpers.models.buckets import Bucket, GraphBucket, TextBucket
from nbhelpers.models.packed import (
    BlockMath,
    Ragged,
    Segment,
    can_pack,
    has_ragged_kernel,
    run_blocks,
    wide,
)

# What the published checkpoints were trained with. It is finite, so a row that sees nothing stays
# a number, and it fits fp16.
HIDDEN = -1e4
Poolings = tuple[str | Tensor, ...]


def encode(
    encoder: nn.Module,
    buckets: list[Bucket],
    *,
    packed: bool,
    poolings: Poolings = ("token",),
    math: BlockMath | None = None,
) -> Tensor:
    """Return (rows of all buckets, poolings * hidden): the states that stand for each function.

    Args:
        packed: Work on tokens without padding (see `packed`); else as the published modules do.
        poolings: Each `token`, GPT-2's end token, else the first; or, of plain text, `mean` or
            `max` over the tokens, or (vocabulary,) weights of a mean by the tokens' ids.
        math: Compiled parts of the packed blocks.
    """
    if not (packed and can_pack(encoder.config)):
        return torch.cat([_pooled(encoder, bucket, poolings) for bucket in buckets])
    device = buckets[0].ids.device
    dtype = _compute_dtype(device, encoder)
    with torch.autocast(device.type, enabled=False):
        return _packed_states(encoder, buckets, dtype, poolings=poolings, math=math)


def _pooled(encoder: nn.Module, bucket: Bucket, poolings: Poolings) -> Tensor:
    states = hidden_states(encoder, bucket)
    found = []
    for pooling in poolings:
        if not isinstance(pooling, str) or pooling != "token":
            found.append(pooled(states, token_weights(bucket, pooling), pooling))
        elif encoder.config.model_type == "gpt2":
            found.append(states[torch.arange(bucket.rows, device=states.device), bucket.last])
        else:
            found.append(states[:, 0])
    return torch.cat(found, dim=1)


def token_weights(bucket: TextBucket, pooling: str | Tensor) -> Tensor:
    """Return (rows, width): the weight of each token in a mean, 0 for padding."""
    column = torch.arange(bucket.ids.shape[1], device=bucket.ids.device)
    is_token = column <= bucket.last[:, None]
    if isinstance(pooling, str):
        return is_token.float()
    return torch.where(is_token, pooling[bucket.ids], 0.0)


def pooled(states: Tensor, weights: Tensor, pooling: str | Tensor) -> Tensor:
    """(rows, width, hidden) to (rows, hidden), at least fp32: a weighted mean, or the maximum.

    Args:
        weights: (rows, width) of each token, 0 for padding; without any weight a mean is 0.
    """
    x = wide(states)
    if isinstance(pooling, str) and pooling == "max":
        return x.masked_fill((weights == 0)[..., None], float("-inf")).amax(1)
    total = (x * weights[..., None]).sum(1)
    return total / weights.sum(1, keepdim=True).clamp(min=1e-6)


def _packed_states(
    encoder: nn.Module,
    buckets: list[Bucket],
    dtype: torch.dtype,
    *,
    poolings: Poolings,
    math: BlockMath | None,
) -> Tensor:
    is_causal = encoder.config.model_type == "gpt2"
    is_text = all(isinstance(bucket, TextBucket) for bucket in buckets)
    ragged = None
    if is_text and not is_causal and has_ragged_kernel(buckets[0].ids.device, dtype):
        ragged = _ragged(buckets, encoder)
    embed = _gpt2_embeddings if is_causal else _roberta_embeddings
    segments, found, first_tokens, first = [], [], [], 0
    for bucket in buckets:
        width = bucket.ids.shape[1]
        bias = None if is_causal or ragged is not None else _bias(bucket, dtype)
        segments.append(
            Segment(first=first, slots=bucket.slots, rows=bucket.rows, width=width, bias=bias)
        )
        found.append(embed(encoder, bucket))
        start = torch.searchsorted(
            bucket.slots, torch.arange(bucket.rows, device=bucket.slots.device) * width
        )
        first_tokens.append(first + start + (bucket.last if is_causal else 0))
        first += len(bucket.slots)
    x = torch.cat(found) if len(found) > 1 else found[0]
    states = run_blocks(encoder, x, ragged or segments, dtype, math=math)
    if poolings != ("token",):
        parts = states.split([len(bucket.slots) for bucket in buckets])
        pairs = zip(parts, buckets, strict=True)
        return torch.cat([_pooled_tokens(part, bucket, poolings) for part, bucket in pairs])
    states = states.index_select(0, torch.cat(first_tokens))
    return encoder.ln_f(states) if is_causal else states


def _pooled_tokens(states: Tensor, bucket: TextBucket, poolings: Poolings) -> Tensor:
    """(T, hidden) of a RoBERTa to (rows, poolings * hidden).

    Sums run over the padded form, in an order that repeats bit by bit.
    """
    rows, width = bucket.ids.shape
    padded = states.new_zeros(rows * width, states.shape[1]).index_copy(0, bucket.slots, states)
    padded = padded.view(rows, width, -1)
    found = [
        padded[:, 0]
        if isinstance(pooling, str) and pooling == "token"
        else pooled(padded, token_weights(bucket, pooling), pooling)
        for pooling in poolings
    ]
    return torch.cat(found, dim=1)


def _ragged(buckets: list[TextBucket], encoder: nn.Module) -> Ragged:
    lengths = torch.cat([bucket.last + 1 for bucket in buckets])
    ends = nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    return Ragged(ends=ends, longest=encoder.config.max_position_embeddings)


def _gpt2_embeddings(encoder: nn.Module, bucket: TextBucket) -> Tensor:
    """Return (T, hidden) of the packed tokens."""
    column = bucket.slots % bucket.ids.shape[1]
    words = encoder.wte(bucket.ids.flatten().index_select(0, bucket.slots))
    return encoder.drop(words + encoder.wpe(column))


def _roberta_embeddings(encoder: nn.Module, bucket: Bucket) -> Tensor:
    """Return (T, hidden) of the packed tokens; a node's word is the mean of its code."""
    table = encoder.embeddings.word_embeddings
    pad = _before_first_position(encoder.config)
    found = table(bucket.ids.flatten().index_select(0, bucket.slots))
    if isinstance(bucket, GraphBucket):
        at = torch.searchsorted(bucket.slots, bucket.node_at)
        found = found.index_copy(0, at, _node_means(table, bucket))
        positions = graph_positions(bucket, pad).flatten().index_select(0, bucket.slots)
    else:
        positions = bucket.slots % bucket.ids.shape[1] + pad + 1
    types = torch.zeros_like(positions)
    return encoder.embeddings(
        inputs_embeds=found[None], position_ids=positions[None], token_type_ids=types[None]
    )[0]


def _before_first_position(config: Any) -> int:
    """Return the position before the first token's: RoBERTa counts from after its padding."""
    return -1 if config.model_type == "bert" else config.pad_token_id


def _node_means(table: nn.Embedding, bucket: GraphBucket) -> Tensor:
    """Return (N, hidden); an empty bag, of a node whose code was cut off, gives zeros."""
    return nn.functional.embedding_bag(bucket.bag_ids, table.weight, bucket.bag_starts, mode="mean")


def hidden_states(encoder: nn.Module, bucket: Bucket) -> Tensor:
    """Return (rows, width, hidden): the last state of every token."""
    if isinstance(bucket, GraphBucket):
        return _graph_states(encoder, bucket)
    if encoder.config.model_type == "gpt2":
        # No mask is passed: attention is causal and padding stands on the right, so no token that
        # counts ever sees padding, and the fast causal kernels stay available.
        return encoder(input_ids=bucket.ids, use_cache=False).last_hidden_state
    if encoder.config.model_type == "roberta":
        return _text_states(encoder, bucket)
    column = torch.arange(bucket.ids.shape[1], device=bucket.ids.device)
    is_token = (column <= bucket.last[:, None]).long()
    return encoder(input_ids=bucket.ids, attention_mask=is_token).last_hidden_state


def _text_states(encoder: nn.Module, bucket: TextBucket) -> Tensor:
    """RoBERTa on plain text; every token sees every token that is not padding."""
    column = torch.arange(bucket.ids.shape[1], device=bucket.ids.device)
    pad = encoder.config.pad_token_id
    positions = torch.where(column <= bucket.last[:, None], column + pad + 1, pad)
    bias = _bias(bucket, _compute_dtype(column.device, encoder))
    found = encoder(input_ids=bucket.ids, position_ids=positions, attention_mask=bias)
    return found.last_hidden_state


def _graph_states(encoder: nn.Module, bucket: GraphBucket) -> Tensor:
    """RoBERTa on code and nodes."""
    table = encoder.embeddings.word_embeddings
    found = table(bucket.ids)  # (rows, width, hidden)
    means = _node_means(table, bucket)
    found = found.flatten(0, 1).index_copy(0, bucket.node_at, means).view_as(found)
    return encoder(
        inputs_embeds=found,
        position_ids=graph_positions(bucket, encoder.config.pad_token_id),
        attention_mask=_bias(bucket, _compute_dtype(found.device, encoder)),
    ).last_hidden_state


def _bias(bucket: Bucket, dtype: torch.dtype) -> Tensor:
    """Return (rows, 1, width, width): what is added to the attention scores."""
    if isinstance(bucket, GraphBucket):
        return graph_bias(bucket, dtype)
    column = torch.arange(bucket.ids.shape[1], device=bucket.ids.device)
    bias = torch.where(column <= bucket.last[:, None], 0.0, HIDDEN).to(dtype)
    return bias[:, None, None, :].expand(-1, 1, len(column), -1)


def graph_positions(bucket: GraphBucket, pad_id: int) -> Tensor:
    """Return (rows, width): pad_id + 1, + 2, … for code, 0 for nodes, pad_id for padding.

    Source: microsoft/CodeBERT, GraphCodeBERT/clonedetection/run.py, `position_idx`.
    """
    column = torch.arange(bucket.ids.shape[1], device=bucket.ids.device)
    positions = torch.where(column < bucket.used[:, None], 0, pad_id)
    return torch.where(column < bucket.code[:, None], column + pad_id + 1, positions)


def graph_sees(bucket: GraphBucket) -> Tensor:
    """Return (rows, width, width) bool: True where the first column may look at the second.

    Code sees code; `<s>` and `</s>` see all that is not padding; a node and its code see each
    other; a node sees the nodes that its value comes from.

    Source: Guo et al. 2021, "graph-guided masked attention"; the script's `__getitem__`.
    """
    rows, width = bucket.ids.shape
    column = torch.arange(width, device=bucket.ids.device)
    code, used = bucket.code[:, None], bucket.used[:, None]
    is_code = column < code
    is_special = (column == 0) | (column == code - 1)
    start = torch.zeros(rows * width, dtype=torch.int64, device=column.device)
    end = start.index_copy(0, bucket.node_at, bucket.node_end).view(rows, width, 1)
    start = start.index_copy(0, bucket.node_at, bucket.node_start).view(rows, width, 1)
    is_own = (column >= start) & (column < end)
    sees = is_code[:, :, None] & is_code[:, None, :]
    sees |= is_special[:, :, None] & (column < used)[:, None, :]
    sees |= is_own | is_own.transpose(1, 2)
    sees.view(-1).index_fill_(0, bucket.links, True)
    return sees


def graph_bias(bucket: GraphBucket, dtype: torch.dtype) -> Tensor:
    """Return (rows, 1, width, width): what is added to the attention scores.

    A row that sees nothing (a node whose code was cut off, or padding) has the same offset
    everywhere in the published form, so it looks at all columns alike, padding included. Here it
    gets 0 everywhere, and the padding that is present weighs as much as the published form's.
    """
    sees = graph_sees(bucket)
    column = torch.arange(sees.shape[-1], device=sees.device)
    is_padding = column >= bucket.used[:, None]
    blind = torch.where(is_padding, bucket.pad_weight[:, None], 0.0)[:, None, :]
    hidden = torch.where(sees.any(-1, keepdim=True), HIDDEN, blind)
    return torch.where(sees, 0.0, hidden).to(dtype)[:, None]


def _compute_dtype(device: torch.device, encoder: nn.Module) -> torch.dtype:
    """The dtype of queries: autocast's where it is on, else the weights'."""
    if torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return next(encoder.parameters()).dtype
