"""The encoder's blocks on packed tokens: no padding anywhere but inside attention.

The modules and weights are transformers'; only the order of work differs. Linear layers, norms and
MLPs run once over all tokens of a micro-batch; attention runs per length bucket. Weights are cast
to half precision block by block in one kernel, where autocast would launch one for each matrix and
bias: on short batches the launches, not the arithmetic, are what a GPU waits for (docs/LOG.md).
Numbers are the same up to rounding; `tests/test_graph_model.py` compares them with the published
form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout as drop_out
from torch.nn.functional import layer_norm, linear, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

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
    """Rows end to end, for kernels that need no padding: every token sees all of its own row.

    Args:
        ends: (rows + 1,) int32: 0, then the token after each row.
        longest: An upper limit on the tokens of a row; constant, so that nothing is recompiled.
    """

    ends: Tensor
    longest: int


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
        found = [torch.empty_like(x, dtype=dtype) for x in tensors]
        torch._foreach_copy_(found, list(tensors))
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        found = [
            torch.empty_like(x, dtype=dtype) for x, dtype in zip(gradients, ctx.dtypes, strict=True)
        ]
        torch._foreach_copy_(found, list(gradients))
        return (None, *found)


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
        found = gradient.new_zeros(ctx.columns, gradient.shape[1])
        return found.index_copy_(0, *ctx.saved_tensors, gradient), None


def _weights(modules: Sequence[nn.Module], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return weight and bias of each module in the dtype of the computation."""
    tensors = [x for module in modules for x in (module.weight, module.bias)]
    return tuple(tensors) if tensors[0].dtype == dtype else _InDtype.apply(dtype, *tensors)


@dataclass(frozen=True, slots=True)
class BlockMath:
    """The parts of a RoBERTa block around its attention, plain or compiled."""

    before: Callable[..., Tensor]
    after: Callable[..., Tensor]


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
        math: What stands around RoBERTa's attention; None: as it is written below.
    """
    config = encoder.config
    is_causal = config.model_type == "gpt2"
    drop = config.attn_pdrop if is_causal else config.attention_probs_dropout_prob
    heads, drop = config.num_attention_heads, drop if encoder.training else 0.0

    def attend(qkv: Tensor) -> Tensor:
        if isinstance(segments, Ragged):
            return _attend_ragged(qkv, segments, heads=heads, dropout=drop)
        return _attend(qkv, segments, heads=heads, dropout=drop, is_causal=is_causal)

    block = _gpt2_block if is_causal else partial(_roberta_block, math=math or PLAIN)
    saves_memory = encoder.training and _is_checkpointing(encoder)
    for layer in encoder.h if is_causal else encoder.encoder.layer:
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
        found = scaled_dot_product_attention(
            q, k, v, attn_mask=s.bias, dropout_p=dropout, is_causal=is_causal
        )
        flat = found.transpose(1, 2).reshape(s.rows * s.width, -1)
        parts.append(_Unpad.apply(flat, s.slots))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_ragged(qkv: Tensor, ragged: Ragged, *, heads: int, dropout: float) -> Tensor:
    q, k, v = qkv.view(len(qkv), 3, heads, -1).unbind(1)
    # The kernel behind scaled_dot_product_attention, which itself takes padded rows only. Nested
    # tensors reach it too, and cost the CPU more than the kernel takes.
    found = torch.ops.aten._flash_attention_forward(
        q, k, v, ragged.ends, ragged.ends, ragged.longest, ragged.longest, dropout, False, False
    )
    return found[0].flatten(1)


def _before(x: Tensor, qw: Tensor, qb: Tensor, kw: Tensor, kb: Tensor, vw: Tensor, vb: Tensor):
    """(T, hidden) to (T, 3 * hidden): queries, keys and values."""
    half = x.to(qw.dtype)
    return torch.cat([linear(half, qw, qb), linear(half, kw, kb), linear(half, vw, vb)], dim=-1)


def _after(
    found: Tensor,
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
    x = layer_norm(drop_out(linear(found, tw, tb), p) + x, size, aw, ab, eps)
    inner = act(linear(x.to(tw.dtype), mw, mb))
    return layer_norm(drop_out(linear(inner, ow, ob), p) + x, size, bw, bb, eps)


PLAIN = BlockMath(_before, _after)


def compiled_math() -> BlockMath:
    """Return the block's parts compiled once for any number of tokens."""
    return BlockMath(torch.compile(_before, dynamic=True), torch.compile(_after, dynamic=True))


def _roberta_block(
    x: Tensor, layer: nn.Module, attend: Attend, dtype: torch.dtype, *, math: BlockMath
) -> Tensor:
    """Post-norm block. Source: RobertaLayer and BertLayer of transformers 5."""
    seen, told, middle, out = (
        layer.attention.self,
        layer.attention.output,
        layer.intermediate,
        layer.output,
    )
    modules = (seen.query, seen.key, seen.value, told.dense, middle.dense, out.dense)
    weights = _weights(modules, dtype)
    norm, last = told.LayerNorm, out.LayerNorm
    p = out.dropout.p if layer.training else 0.0
    return math.after(
        attend(math.before(x, *weights[:6])),
        x,
        weights[6:],
        (norm.weight, norm.bias, last.weight, last.bias),
        middle.intermediate_act_fn,
        p,
        norm.eps,
    )


def _gpt2_block(x: Tensor, layer: nn.Module, attend: Attend, dtype: torch.dtype) -> Tensor:
    """Pre-norm block; its weights are (in, out). Source: GPT2Block of transformers 5."""
    attention, mlp = layer.attn, layer.mlp
    modules = (attention.c_attn, attention.c_proj, mlp.c_fc, mlp.c_proj)
    aw, ab, pw, pb, fw, fb, ow, ob = _weights(modules, dtype)
    qkv = torch.addmm(ab, layer.ln_1(x).to(dtype), aw)
    x = attention.resid_dropout(torch.addmm(pb, attend(qkv), pw)) + x
    inner = mlp.act(torch.addmm(fb, layer.ln_2(x).to(dtype), fw))
    return mlp.dropout(torch.addmm(ob, inner, ow)) + x
