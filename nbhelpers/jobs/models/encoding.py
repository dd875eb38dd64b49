"""Encoders without padding: blocks on packed tokens, and the states of many programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout as drop_out
from torch.nn.functional import layer_norm, linear, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from nbhelpers.jobs.models.inputs import Bucket, GraphBucket, TextBucket

# ------------------------------------------------------------------------------------------------
# The encoder's blocks on packed tokens: no padding anywhere but inside attention.
#
# The modules and weights are transformers'; only the order of work differs. Linear layers, norms
# and MLPs run once over all tokens of a micro-batch; attention runs per length bucket. Weights are
# cast to half precision block by block in one kernel, where autocast would launch one for each
# matrix and bias: on short batches the launches, not the arithmetic, are what a GPU waits for
# (docs/LOG.md). Numbers are the same up to rounding; `tests/test_graph_model.py` compares them with
# the published form.


Attend = Callable[[Tensor], Tensor]  # (T, 3 * hidden) queries, keys, values -> (T, hidden)


def wide(x: Tensor) -> Tensor:
    """Return half precision as fp32; other dtypes stay."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def can_pack(config: Any) -> bool:
    """Whether the blocks of this configuration are the plain ones that stand below."""
    if config._attn_implementation != "sdpa" or getattr(config, "add_cross_attention", False):
        return False
    if config.model_type == "gpt2":
        odd = config.scale_attn_by_inverse_layer_idx or config.reorder_and_upcast_attn
        return config.scale_attn_weights and not odd
    return config.model_type in ("roberta", "bert") and not config.is_decoder


@dataclass(slots=True, kw_only=True)
class Segment:
    """One length bucket in the stream of packed tokens.

    Args:
        first: Its first token.
        slots: (tokens,) int64: row * width + column of each of its tokens.
        rows: Functions.
        width: Columns of the padded form.
        bias: What is added to the scores, (rows, 1, width, width) or one that expands to it; None:
            causal attention, or no padding at all.
    """

    first: int
    slots: Tensor
    rows: int
    width: int
    bias: Tensor | None


@dataclass(slots=True, kw_only=True)
class Ragged:
    """Rows end to end, for kernels that need no padding: a token sees its own row and no other.

    Args:
        ends: (rows + 1,) int32: 0, then the token after each row.
        longest: An upper limit on the tokens of a row; constant, so that nothing is recompiled.
        bias: What is added to the scores, (rows, width, width); None: nothing.
    """

    ends: Tensor
    longest: int
    bias: Tensor | None = None


def has_ragged_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether attention can run on rows end to end: flash attention, half precision, from 8.0."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return False
    cuda = torch.backends.cuda
    is_there = cuda.is_flash_attention_available() and cuda.flash_sdp_enabled()
    return is_there and torch.cuda.get_device_capability(device) >= (8, 0)


class _InDtype(torch.autograd.Function):
    """Casts many tensors in one kernel, and their gradients back."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtypes = [x.dtype for x in tensors]
        copies = [torch.empty_like(x, dtype=dtype) for x in tensors]
        torch._foreach_copy_(copies, list(tensors))
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        copies = [
            torch.empty_like(x, dtype=dtype) for x, dtype in zip(gradients, ctx.dtypes, strict=True)
        ]
        torch._foreach_copy_(copies, list(gradients))
        return (None, *copies)


class _Pad(torch.autograd.Function):
    """(T, width) to (columns, width) with zeros; keeps nothing but the places."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slots: Tensor, columns: int) -> Tensor:
        ctx.save_for_backward(slots)
        return x.new_zeros(columns, x.shape[1]).index_copy_(0, slots, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return gradient.index_select(0, *ctx.saved_tensors), None, None


class _Unpad(torch.autograd.Function):
    """(columns, width) to (T, width): the inverse, whose gradient needs no sums."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slots: Tensor) -> Tensor:
        ctx.save_for_backward(slots)
        ctx.columns = len(x)
        return x.index_select(0, slots)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        padded = gradient.new_zeros(ctx.columns, gradient.shape[1])
        return padded.index_copy_(0, *ctx.saved_tensors, gradient), None


def _weights(modules: Sequence[nn.Module], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return weight and bias of each module in the dtype of the computation."""
    return _cast([x for module in modules for x in (module.weight, module.bias)], dtype)


def _cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(tensors) if tensors[0].dtype == dtype else _InDtype.apply(dtype, *tensors)


@dataclass(frozen=True, slots=True)
class BlockMath:
    """The parts of a block around its attention, plain or compiled: RoBERTa's, or GPT-2's.

    Args:
        before: As `_before`, or `_gpt2_before`.
        after: As `_after`, or `_gpt2_after`.
        between: As `_between`, or `_gpt2_between`: what stands between the attentions of two
            blocks, in one part. None: block by block.
        masked: Attention with a mask on rows end to end; None: there is none.
        ragged: Attention without a mask on rows end to end; None: flash attention.
        chain: All blocks in half precision, as `_fused_chain`; None: there is no such form.
    """

    before: Callable[..., Tensor]
    after: Callable[..., Tensor]
    between: Callable[..., tuple[Tensor, Tensor]] | None = None
    masked: Callable[..., Tensor] | None = None
    ragged: Callable[..., Tensor] | None = None
    chain: Callable[..., Tensor] | None = None


def run_blocks(
    encoder: nn.Module,
    x: Tensor,
    segments: list[Segment] | Ragged,
    dtype: torch.dtype,
    *,
    math: BlockMath | None = None,
) -> Tensor:
    """Return (T, hidden): the states after the last block, before GPT-2's last norm.

    Args:
        x: (T, hidden) embeddings of all tokens, in the dtype of the weights.
        segments: Where each bucket's tokens stand, or where each row ends.
        dtype: Of the matrix products.
        math: What stands around the attention; None: as it is written below.
    """
    config = encoder.config
    is_causal = config.model_type == "gpt2"
    drop = config.attn_pdrop if is_causal else config.attention_probs_dropout_prob
    heads, drop = config.num_attention_heads, drop if encoder.training else 0.0

    def attend(qkv: Tensor) -> Tensor:
        if isinstance(segments, Ragged) and segments.bias is not None:
            return math.masked(qkv, segments.bias, segments.ends, heads=heads, dropout=drop)
        if isinstance(segments, Ragged) and math.ragged is not None:
            sizes = {"heads": heads, "dropout": drop, "longest": segments.longest}
            return math.ragged(qkv.contiguous(), None, segments.ends, **sizes)
        if isinstance(segments, Ragged):
            return _attend_ragged(qkv, segments, heads=heads, dropout=drop, is_causal=is_causal)
        return _attend(qkv, segments, heads=heads, dropout=drop, is_causal=is_causal)

    math = math or plain_math(encoder)
    block = partial(_gpt2_block if is_causal else _roberta_block, math=math)
    saves_memory = encoder.training and _is_checkpointing(encoder)
    layers = encoder.h if is_causal else encoder.encoder.layer
    if math.chain is not None and not saves_memory and dtype != torch.float32:
        return math.chain(x, layers, attend, dtype)
    if not (saves_memory or math.between is None):
        chain = _gpt2_chain if is_causal else _roberta_chain
        return chain(x, layers, attend, dtype, math)
    for layer in layers:
        if saves_memory:
            x = checkpoint(block, x, layer, attend, dtype, use_reentrant=False)
        else:
            x = block(x, layer, attend, dtype)
    return x


def _is_checkpointing(encoder: nn.Module) -> bool:
    # transformers renamed the property; remove the second when 5.17 is no longer supported.
    names = ("is_activation_checkpointing", "is_gradient_checkpointing")
    return getattr(encoder, next(name for name in names if hasattr(type(encoder), name)))


def _attend(
    qkv: Tensor, segments: list[Segment], *, heads: int, dropout: float, is_causal: bool
) -> Tensor:
    parts = []
    for s in segments:
        own = qkv if len(segments) == 1 else qkv[s.first : s.first + len(s.slots)]
        padded = _Pad.apply(own, s.slots, s.rows * s.width)
        padded = padded.view(s.rows, s.width, 3, heads, -1)
        q, k, v = padded.permute(2, 0, 3, 1, 4).unbind()  # (rows, heads, width, head size)
        outputs = scaled_dot_product_attention(
            q, k, v, attn_mask=s.bias, dropout_p=dropout, is_causal=is_causal
        )
        flat = outputs.transpose(1, 2).reshape(s.rows * s.width, -1)
        parts.append(_Unpad.apply(flat, s.slots))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_ragged(
    qkv: Tensor, ragged: Ragged, *, heads: int, dropout: float, is_causal: bool
) -> Tensor:
    q, k, v = qkv.view(len(qkv), 3, heads, -1).unbind(1)
    # The kernel behind scaled_dot_product_attention, which itself takes padded rows only. Nested
    # tensors reach it too, and cost the CPU more than the kernel takes.
    ends, longest = ragged.ends, ragged.longest
    outputs = torch.ops.aten._flash_attention_forward(
        q, k, v, ends, ends, longest, longest, dropout, is_causal, False
    )
    return outputs[0].flatten(1)


def _before(x: Tensor, *weights: Tensor) -> Tensor:
    """(T, hidden) to (T, 3 * hidden): queries, keys and values, by three matrices or by one."""
    half = x.to(weights[0].dtype)
    parts = [linear(half, w, b) for w, b in zip(weights[::2], weights[1::2], strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _after(
    attention: Tensor,
    x: Tensor,
    weights: tuple[Tensor, ...],
    norms: tuple[Tensor, ...],
    act: Callable[[Tensor], Tensor],
    p: float,
    eps: float,
) -> Tensor:
    """Return (T, hidden): the attention's output through the rest of the block."""
    tw, tb, mw, mb, ow, ob = weights
    aw, ab, bw, bb = norms
    size = (x.shape[-1],)
    x = layer_norm(drop_out(linear(attention, tw, tb), p) + x, size, aw, ab, eps)
    inner = act(linear(x.to(tw.dtype), mw, mb))
    return layer_norm(drop_out(linear(inner, ow, ob), p) + x, size, bw, bb, eps)


def _between(
    attention: Tensor,
    x: Tensor,
    weights: tuple[Tensor, ...],
    norms: tuple[Tensor, ...],
    act: Callable[[Tensor], Tensor],
    p: float,
    eps: float,
    coming: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """Return `_after` of a block, and of it `_before` of the next, by one matrix `coming`."""
    x = _after(attention, x, weights, norms, act, p, eps)
    return x, _before(x, *coming)


PLAIN = BlockMath(_before, _after)


def _gpt2_before(x: Tensor, nw: Tensor, nb: Tensor, aw: Tensor, ab: Tensor, eps: float) -> Tensor:
    """(T, hidden) to (T, 3 * hidden): queries, keys and values of the normed states."""
    return torch.addmm(ab, layer_norm(x, (x.shape[-1],), nw, nb, eps).to(aw.dtype), aw)


def _gpt2_after(
    attention: Tensor,
    x: Tensor,
    weights: tuple[Tensor, ...],
    norm: tuple[Tensor, ...],
    act: Callable[[Tensor], Tensor],
    p: tuple[float, float],
    eps: float,
) -> Tensor:
    """Return (T, hidden): the attention's output through the rest of the block."""
    pw, pb, fw, fb, ow, ob = weights
    x = drop_out(torch.addmm(pb, attention, pw), p[0]) + x
    half = layer_norm(x, (x.shape[-1],), *norm, eps).to(fw.dtype)
    return drop_out(torch.addmm(ob, act(torch.addmm(fb, half, fw)), ow), p[1]) + x


def _gpt2_between(
    attention: Tensor,
    x: Tensor,
    weights: tuple[Tensor, ...],
    norm: tuple[Tensor, ...],
    act: Callable[[Tensor], Tensor],
    p: tuple[float, float],
    eps: float,
    coming: tuple[Any, ...],
) -> tuple[Tensor, Tensor]:
    """Return `_gpt2_after` of a block, and of it `_gpt2_before` of the next."""
    x = _gpt2_after(attention, x, weights, norm, act, p, eps)
    return x, _gpt2_before(x, *coming)


PLAIN_GPT2 = BlockMath(_gpt2_before, _gpt2_after)


def plain_math(encoder: nn.Module) -> BlockMath:
    """Return the block's parts as they are written."""
    return PLAIN_GPT2 if encoder.config.model_type == "gpt2" else PLAIN


HEAD_SIZES = (16, 32, 64, 128)  # of `models.masked_attention`


def masked_attention(encoder: nn.Module) -> Callable[..., Tensor] | None:
    """Return attention with a mask on rows end to end; None where there are no such kernels."""
    size = encoder.config.hidden_size // encoder.config.num_attention_heads
    if size not in HEAD_SIZES or encoder.device.type != "cuda" or find_spec("triton") is None:
        return None
    from nbhelpers.jobs.models.masked_attention import attend_masked

    return attend_masked


def compiled_math(encoder: nn.Module) -> BlockMath:
    """Return the block's parts compiled once for any number of tokens.

    What stands between two attentions is one part: its sums and casts, forward and backward, are
    parts of other kernels.
    """
    parts = (_before, _after, _between)
    if encoder.config.model_type == "gpt2":
        parts = (_gpt2_before, _gpt2_after, _gpt2_between)
    return BlockMath(*(torch.compile(part, dynamic=True) for part in parts))


def fused_math(encoder: nn.Module) -> BlockMath | None:
    """Return RoBERTa's blocks as few kernels; None where these are not written for it.

    They are compiled in a second or two, where `compiled_math` takes half a minute.
    """
    config, device = encoder.config, encoder.device
    is_written = config.model_type in ("roberta", "bert") and config.hidden_act == "gelu"
    if not is_written or device.type != "cuda" or find_spec("triton") is None:
        return None
    if torch.cuda.get_device_capability(device) < (8, 0):
        return None
    return BlockMath(_before, _after, ragged=masked_attention(encoder), chain=_fused_chain)


def _fused_chain(
    x: Tensor, layers: Sequence[nn.Module], attend: Attend, dtype: torch.dtype
) -> Tensor:
    """All blocks, as `_roberta_block` one after the other; dropout is drawn in another way."""
    from nbhelpers.jobs.models.fused_blocks import between, new_seeds

    seeds = new_seeds(len(layers), x.device)
    coming, weights = _chained_weights(layers[0], dtype)
    qkv = _before(x, *coming)
    for layer, own, following in zip(layers, seeds, [*layers[1:], None], strict=True):
        coming, coming_weights = (
            ((), ()) if following is None else _chained_weights(following, dtype)
        )
        norms, _, p, eps = _constants(layer)
        x, *inputs = between(attend(qkv), x, weights, norms, p, eps, own, coming)
        weights, qkv = coming_weights, inputs[0] if inputs else None
    return x


def _roberta_block(
    x: Tensor, layer: nn.Module, attend: Attend, dtype: torch.dtype, *, math: BlockMath
) -> Tensor:
    """Post-norm block. Source: RobertaLayer and BertLayer of transformers 5."""
    weights = _weights([*_readers(layer), *_others(layer)], dtype)
    return math.after(attend(math.before(x, *weights[:6])), x, weights[6:], *_constants(layer))


def _roberta_chain(
    x: Tensor, layers: Sequence[nn.Module], attend: Attend, dtype: torch.dtype, math: BlockMath
) -> Tensor:
    """All blocks, cut at their attentions: as `_roberta_block` one after the other."""
    coming, weights = _chained_weights(layers[0], dtype)
    qkv = math.before(x, *coming)
    for layer, following in pairwise(layers):
        coming, weights_after = _chained_weights(following, dtype)
        x, qkv = math.between(attend(qkv), x, weights, *_constants(layer), coming)
        weights = weights_after
    return math.after(attend(qkv), x, weights, *_constants(layers[-1]))


def _chained_weights(
    layer: nn.Module, dtype: torch.dtype
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return one matrix and bias for queries, keys and values, and the block's other weights."""
    readers = _readers(layer)
    joined = [torch.cat([getattr(m, name) for m in readers]) for name in ("weight", "bias")]
    others = [x for module in _others(layer) for x in (module.weight, module.bias)]
    weights = _cast([*joined, *others], dtype)
    return weights[:2], weights[2:]


def _readers(layer: nn.Module) -> tuple[nn.Module, ...]:
    """Return the linear layers that read a block's states: queries, keys, values."""
    seen = layer.attention.self
    return seen.query, seen.key, seen.value


def _others(layer: nn.Module) -> tuple[nn.Module, ...]:
    return layer.attention.output.dense, layer.intermediate.dense, layer.output.dense


def _constants(layer: nn.Module) -> tuple[Any, ...]:
    """Return what `_after` takes behind the matrices: norms, activation, dropout, epsilon."""
    norm, last = layer.attention.output.LayerNorm, layer.output.LayerNorm
    norms = (norm.weight, norm.bias, last.weight, last.bias)
    p = layer.output.dropout.p if layer.training else 0.0
    return norms, layer.intermediate.intermediate_act_fn, p, norm.eps


def _gpt2_block(
    x: Tensor, layer: nn.Module, attend: Attend, dtype: torch.dtype, *, math: BlockMath
) -> Tensor:
    """Pre-norm block; its weights are (in, out). Source: GPT2Block of transformers 5."""
    before, after = _gpt2_parts(layer, dtype)
    return math.after(attend(math.before(x, *before)), x, *after)


def _gpt2_chain(
    x: Tensor, layers: Sequence[nn.Module], attend: Attend, dtype: torch.dtype, math: BlockMath
) -> Tensor:
    """All blocks, cut at their attentions: as `_gpt2_block` one after the other."""
    before, after = _gpt2_parts(layers[0], dtype)
    qkv = math.before(x, *before)
    for layer in layers[1:]:
        coming, after_next = _gpt2_parts(layer, dtype)
        x, qkv = math.between(attend(qkv), x, *after, coming)
        after = after_next
    return math.after(attend(qkv), x, *after)


def _gpt2_parts(layer: nn.Module, dtype: torch.dtype) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return what `_gpt2_before` and `_gpt2_after` take behind the states."""
    attention, mlp, first, second = layer.attn, layer.mlp, layer.ln_1, layer.ln_2
    modules = (attention.c_attn, attention.c_proj, mlp.c_fc, mlp.c_proj)
    weights = _weights(modules, dtype)
    drops = (attention.resid_dropout.p, mlp.dropout.p) if layer.training else (0.0, 0.0)
    norm = (second.weight, second.bias)
    before = (first.weight, first.bias, *weights[:2], first.eps)
    return before, (weights[2:], norm, mlp.act, drops, second.eps)


# ------------------------------------------------------------------------------------------------
# How an encoder turns a bucket of functions into one state per function.
#
# Three forms: GPT-2 at the end token (CodeGPT), RoBERTa at `<s>` (CodeBERT), and RoBERTa at `<s>`
# with data-flow nodes behind the code (GraphCodeBERT). Masks are made here, on the device.


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
        packed: Work on tokens without padding; else as the published modules do.
        poolings: Each `token`, GPT-2's end token, else the first; or, of plain text, `mean` or
            `max` over the tokens, or (vocabulary,) weights of a mean by the tokens' ids.
        math: Compiled or fused parts of the packed blocks.
    """
    if not (packed and can_pack(encoder.config)):
        return torch.cat([_pooled(encoder, bucket, poolings) for bucket in buckets])
    device = buckets[0].ids.device
    dtype = _compute_dtype(device, encoder)
    with torch.autocast(device.type, enabled=False):
        return _packed_states(encoder, buckets, dtype, poolings=poolings, math=math)


def _pooled(encoder: nn.Module, bucket: Bucket, poolings: Poolings) -> Tensor:
    states = hidden_states(encoder, bucket)
    parts = []
    for pooling in poolings:
        if not isinstance(pooling, str) or pooling != "token":
            parts.append(pooled(states, token_weights(bucket, pooling), pooling))
        elif encoder.config.model_type == "gpt2":
            parts.append(states[torch.arange(bucket.rows, device=states.device), bucket.last])
        else:
            parts.append(states[:, 0])
    return torch.cat(parts, dim=1)


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
    is_ragged = has_ragged_kernel(buckets[0].ids.device, dtype)
    is_masked = math is not None and math.masked is not None and len(buckets) == 1
    is_ragged &= is_text or is_masked
    embed = _gpt2_embeddings if is_causal else _roberta_embeddings
    segments, embeddings, starts, first = [], [], [], 0
    for bucket in buckets:
        width = bucket.ids.shape[1]
        has_bias = not (is_causal or (is_text and is_ragged))
        bias = _bias(bucket, dtype, is_packed=True) if has_bias else None
        segments.append(
            Segment(first=first, slots=bucket.slots, rows=bucket.rows, width=width, bias=bias)
        )
        embeddings.append(embed(encoder, bucket))
        start = torch.searchsorted(
            bucket.slots, torch.arange(bucket.rows, device=bucket.slots.device) * width
        )
        starts.append(first + start)
        first += len(bucket.slots)
    x = torch.cat(embeddings) if len(embeddings) > 1 else embeddings[0]
    first_tokens = torch.cat(starts)
    places: list[Segment] | Ragged = segments
    if is_ragged:
        ends = nn.functional.pad(first_tokens, (0, 1), value=first).to(torch.int32)
        longest = encoder.config.max_position_embeddings
        places = Ragged(ends=ends, longest=longest)
        if not is_text:
            places.bias = segments[0].bias.squeeze(1)
    states = run_blocks(encoder, x, places, dtype, math=math)
    are_means = all(not isinstance(each, str) or each == "mean" for each in poolings)
    if isinstance(places, Ragged) and are_means and math is not None and math.chain is not None:
        return _ragged_means(states, buckets, poolings, places)
    if poolings != ("token",):
        parts = states.split([len(bucket.slots) for bucket in buckets])
        pairs = zip(parts, buckets, strict=True)
        return torch.cat([_pooled_tokens(part, bucket, poolings) for part, bucket in pairs])
    if is_causal:
        first_tokens = first_tokens + torch.cat([bucket.last for bucket in buckets])
    states = states.index_select(0, first_tokens)
    return encoder.ln_f(states) if is_causal else states


def _ragged_means(
    states: Tensor, buckets: list[TextBucket], poolings: Poolings, ragged: Ragged
) -> Tensor:
    """(T, hidden) to (rows, poolings * hidden), as `_pooled_tokens`, without a padded copy."""
    from nbhelpers.jobs.models.fused_blocks import means

    ids = torch.cat([bucket.ids.flatten().index_select(0, bucket.slots) for bucket in buckets])
    weights = [
        torch.ones_like(ids, dtype=torch.float32) if isinstance(pooling, str) else pooling[ids]
        for pooling in poolings
    ]
    return means(wide(states), torch.stack(weights).float(), ragged.ends)


def _pooled_tokens(states: Tensor, bucket: TextBucket, poolings: Poolings) -> Tensor:
    """(T, hidden) of a RoBERTa to (rows, poolings * hidden).

    Sums run over the padded form, in an order that repeats bit by bit.
    """
    rows, width = bucket.ids.shape
    padded = states.new_zeros(rows * width, states.shape[1]).index_copy(0, bucket.slots, states)
    padded = padded.view(rows, width, -1)
    parts = [
        padded[:, 0]
        if isinstance(pooling, str) and pooling == "token"
        else pooled(padded, token_weights(bucket, pooling), pooling)
        for pooling in poolings
    ]
    return torch.cat(parts, dim=1)


def _gpt2_embeddings(encoder: nn.Module, bucket: TextBucket) -> Tensor:
    """Return (T, hidden) of the packed tokens."""
    column = bucket.slots % bucket.ids.shape[1]
    words = encoder.wte(bucket.ids.flatten().index_select(0, bucket.slots))
    return encoder.drop(words + encoder.wpe(column))


def _roberta_embeddings(encoder: nn.Module, bucket: Bucket) -> Tensor:
    """Return (T, hidden) of the packed tokens; a node's word is the mean of its code."""
    table = encoder.embeddings.word_embeddings
    pad = _before_first_position(encoder.config)
    vectors = table(bucket.ids.flatten().index_select(0, bucket.slots))
    if isinstance(bucket, GraphBucket):
        at = torch.searchsorted(bucket.slots, bucket.node_at)
        vectors = vectors.index_copy(0, at, _node_means(table, bucket))
        positions = graph_positions(bucket, pad).flatten().index_select(0, bucket.slots)
    else:
        positions = bucket.slots % bucket.ids.shape[1] + pad + 1
    types = torch.zeros_like(positions)
    return encoder.embeddings(
        inputs_embeds=vectors[None], position_ids=positions[None], token_type_ids=types[None]
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
    outputs = encoder(input_ids=bucket.ids, position_ids=positions, attention_mask=bias)
    return outputs.last_hidden_state


def _graph_states(encoder: nn.Module, bucket: GraphBucket) -> Tensor:
    """RoBERTa on code and nodes."""
    table = encoder.embeddings.word_embeddings
    vectors = table(bucket.ids)  # (rows, width, hidden)
    means = _node_means(table, bucket)
    vectors = vectors.flatten(0, 1).index_copy(0, bucket.node_at, means).view_as(vectors)
    return encoder(
        inputs_embeds=vectors,
        position_ids=graph_positions(bucket, encoder.config.pad_token_id),
        attention_mask=_bias(bucket, _compute_dtype(vectors.device, encoder)),
    ).last_hidden_state


def _bias(bucket: Bucket, dtype: torch.dtype, *, is_packed: bool = False) -> Tensor:
    """Return (rows, 1, width, width): what is added to the attention scores."""
    if isinstance(bucket, GraphBucket):
        return graph_bias(bucket, dtype, is_packed=is_packed)
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


def graph_bias(bucket: GraphBucket, dtype: torch.dtype, *, is_packed: bool = False) -> Tensor:
    """Return (rows, 1, width, width): what is added to the attention scores.

    A row that sees nothing (a node whose code was cut off, or padding) has the same offset
    everywhere in the published form, so it looks at all columns alike, padding included. Here it
    gets 0 everywhere, and the padding that is present weighs as much as the published form's.

    Args:
        is_packed: Of the padding only a row's first column is there, and stands for all.
    """
    sees = graph_sees(bucket)
    width = sees.shape[-1]
    column, used = torch.arange(width, device=sees.device), bucket.used[:, None]
    weight, after = bucket.pad_weight[:, None], used
    if is_packed:
        weight, after = weight + (width - used).clamp(min=1).log(), used + 1
    blind = torch.where(column >= used, weight, 0.0)
    blind = torch.where(column >= after, HIDDEN, blind)[:, None, :] if is_packed else blind[:, None]
    hidden = torch.where(sees.any(-1, keepdim=True), HIDDEN, blind)
    return torch.where(sees, 0.0, hidden).to(dtype)[:, None]


def _compute_dtype(device: torch.device, encoder: nn.Module) -> torch.dtype:
    """The dtype of queries: autocast's where it is on, else the weights'."""
    if torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return next(encoder.parameters()).dtype
