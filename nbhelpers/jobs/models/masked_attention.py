"""Attention with an additive mask on rows end to end, as Triton kernels: no padding, few launches.

Flash attention (Dao 2023, arXiv 2307.08691: online softmax; scores are computed anew in the
backward pass) with a mask that is read tile by tile, and dropout on the probabilities. A row of
`length` tokens looks at itself alone. Products in half precision, sums in fp32, exponents of two.
Gradients are sums in a fixed order. The head size is a power of two of at least 16.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Of a tile, and how a kernel is launched. Source: the fastest of twelve on an H200.
QUERIES, KEYS = 64, 64
FORWARD, BACKWARD = ({"num_warps": 4, "num_stages": stages} for stages in (2, 1))
UNMASKED = {"num_warps": 4, "num_stages": 3}  # both passes: 1.66 ms a block, with 2 stages 1.80
LOG2_E = math.log2(math.e)


@triton.jit
def is_kept(seeds, place, threshold):
    """Whether dropout keeps the value at a place: a hash of the place and two seeds.

    Source: the finaliser of MurmurHash3 (Appleby, public domain).
    """
    x = place.to(tl.uint32) * 0x9E3779B1 + tl.load(seeds).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13) ^ tl.load(seeds + 1).to(tl.uint32)) * 0xC2B2AE35
    return (x ^ (x >> 16)) >= threshold.to(tl.uint32)


def thresholds(p: float) -> tuple[int, float]:
    """Return the hash below which a value is dropped, and what the others are multiplied with."""
    return int(p * 2**32), 1 / (1 - p)


@triton.jit
def _is_kept(seeds, plane, i, j, width, threshold):
    """(queries, keys) bool: whether a probability is kept."""
    place = plane * width * width + i[:, None] * width + j[None, :]
    return is_kept(seeds, place, threshold)


@triton.jit
def _scores(q, k, mask, row, i, j, length, width, scale, MASKED: tl.constexpr):
    """(queries, keys) scores times log2(e); -inf beyond the row."""
    is_there = (i[:, None] < length) & (j[None, :] < length)
    scores = tl.dot(q, tl.trans(k)) * scale
    if MASKED:
        at = mask + row.to(tl.int64) * width * width + i[:, None] * width + j[None, :]
        scores += tl.load(at, mask=is_there, other=0.0).to(tl.float32) * 1.4426950408889634
    return tl.where(is_there, scores, float("-inf"))


@triton.jit
def _rows(base, at, d, length, step):
    """(places, head size): some tokens of a row, zeros beyond it."""
    return tl.load(base + at[:, None] * step + d[None, :], mask=at[:, None] < length, other=0.0)


@triton.jit(do_not_specialize=["tokens"])
def _forward(
    qkv, mask, ends, seeds, out, lse, tokens, width, scale, threshold, kept_scale,
    HEADS: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, DROPS: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(2), tl.program_id(1)
    first = tl.load(ends + row)
    length = tl.load(ends + row + 1) - first
    begin = tl.program_id(0) * M
    if begin < length:
        i, d = begin + tl.arange(0, M), tl.arange(0, D)
        base = qkv + first.to(tl.int64) * (3 * HEADS * D) + head * D
        q = _rows(base, i, d, length, 3 * HEADS * D)
        highest = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        sums = tl.zeros([M, D], tl.float32)
        for start in range(0, length, N):
            j = start + tl.arange(0, N)
            k = _rows(base + HEADS * D, j, d, length, 3 * HEADS * D)
            v = _rows(base + 2 * HEADS * D, j, d, length, 3 * HEADS * D)
            s = _scores(q, k, mask, row, i, j, length, width, scale, MASKED)
            new = tl.maximum(highest, tl.max(s, 1))
            new = tl.where(i < length, new, 0.0)
            p = tl.exp2(s - new[:, None])
            shrink = tl.exp2(highest - new)
            total = total * shrink + tl.sum(p, 1)
            if DROPS:
                p = tl.where(_is_kept(seeds, row * HEADS + head, i, j, width, threshold), p, 0.0)
            sums = sums * shrink[:, None] + tl.dot(p.to(v.dtype), v)
            highest = new
        total = tl.where(i < length, total, 1.0)
        sums = sums * (kept_scale / total)[:, None]
        places = out + (first + i).to(tl.int64)[:, None] * (HEADS * D) + head * D + d[None, :]
        tl.store(places, sums.to(out.dtype.element_ty), mask=i[:, None] < length)
        tl.store(lse + head * tokens + first + i, highest + tl.log2(total), mask=i < length)


@triton.jit(do_not_specialize=["tokens"])
def _output_sums(
    out, grad, delta, tokens, HEADS: tl.constexpr, D: tl.constexpr, M: tl.constexpr
):  # fmt: skip
    """delta (heads, tokens): the sum over a head of output times its gradient."""
    i, head, d = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1), tl.arange(0, D)
    o = _rows(out + head * D, i.to(tl.int64), d, tokens, HEADS * D).to(tl.float32)
    g = _rows(grad + head * D, i.to(tl.int64), d, tokens, HEADS * D).to(tl.float32)
    tl.store(delta + head * tokens + i, tl.sum(o * g, 1), mask=i < tokens)


@triton.jit(do_not_specialize=["tokens"])
def _backward_keys(
    qkv, mask, ends, seeds, grad, lse, delta, dqkv, tokens, width, scale, raw_scale, threshold,
    kept_scale,
    HEADS: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, DROPS: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(2), tl.program_id(1)
    first = tl.load(ends + row)
    length = tl.load(ends + row + 1) - first
    begin = tl.program_id(0) * N
    if begin < length:
        j, d = begin + tl.arange(0, N), tl.arange(0, D)
        base = qkv + first.to(tl.int64) * (3 * HEADS * D) + head * D
        outer = grad + first.to(tl.int64) * (HEADS * D) + head * D
        k = _rows(base + HEADS * D, j, d, length, 3 * HEADS * D)
        v = _rows(base + 2 * HEADS * D, j, d, length, 3 * HEADS * D)
        dk, dv = tl.zeros([N, D], tl.float32), tl.zeros([N, D], tl.float32)
        for start in range(0, length, M):
            i = start + tl.arange(0, M)
            q = _rows(base, i, d, length, 3 * HEADS * D)
            g = _rows(outer, i, d, length, HEADS * D)
            high = tl.load(lse + head * tokens + first + i, mask=i < length, other=0.0)
            own = tl.load(delta + head * tokens + first + i, mask=i < length, other=0.0)
            s = _scores(q, k, mask, row, i, j, length, width, scale, MASKED)
            p = tl.exp2(s - high[:, None])
            dp = tl.dot(g, tl.trans(v))
            if DROPS:
                is_kept = _is_kept(seeds, row * HEADS + head, i, j, width, threshold)
                dp = tl.where(is_kept, dp * kept_scale, 0.0)
                seen = tl.where(is_kept, p * kept_scale, 0.0)
            else:
                seen = p
            dv += tl.dot(tl.trans(seen.to(g.dtype)), g)
            ds = p * (dp - own[:, None])
            dk += tl.dot(tl.trans(ds.to(q.dtype)), q)
        at = dqkv + (first + j).to(tl.int64)[:, None] * (3 * HEADS * D) + head * D + d[None, :]
        kind = dqkv.dtype.element_ty
        tl.store(at + HEADS * D, (dk * raw_scale).to(kind), mask=j[:, None] < length)
        tl.store(at + 2 * HEADS * D, dv.to(kind), mask=j[:, None] < length)


@triton.jit(do_not_specialize=["tokens"])
def _backward_queries(
    qkv, mask, ends, seeds, grad, lse, delta, dqkv, tokens, width, scale, raw_scale, threshold,
    kept_scale,
    HEADS: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, DROPS: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(2), tl.program_id(1)
    first = tl.load(ends + row)
    length = tl.load(ends + row + 1) - first
    begin = tl.program_id(0) * M
    if begin < length:
        i, d = begin + tl.arange(0, M), tl.arange(0, D)
        base = qkv + first.to(tl.int64) * (3 * HEADS * D) + head * D
        outer = grad + first.to(tl.int64) * (HEADS * D) + head * D
        q = _rows(base, i, d, length, 3 * HEADS * D)
        g = _rows(outer, i, d, length, HEADS * D)
        high = tl.load(lse + head * tokens + first + i, mask=i < length, other=0.0)
        own = tl.load(delta + head * tokens + first + i, mask=i < length, other=0.0)
        dq = tl.zeros([M, D], tl.float32)
        for start in range(0, length, N):
            j = start + tl.arange(0, N)
            k = _rows(base + HEADS * D, j, d, length, 3 * HEADS * D)
            v = _rows(base + 2 * HEADS * D, j, d, length, 3 * HEADS * D)
            p = tl.exp2(
                _scores(q, k, mask, row, i, j, length, width, scale, MASKED) - high[:, None]
            )
            dp = tl.dot(g, tl.trans(v))
            if DROPS:
                is_kept = _is_kept(seeds, row * HEADS + head, i, j, width, threshold)
                dp = tl.where(is_kept, dp * kept_scale, 0.0)
            dq += tl.dot((p * (dp - own[:, None])).to(k.dtype), k)
        at = dqkv + (first + i).to(tl.int64)[:, None] * (3 * HEADS * D) + head * D + d[None, :]
        tl.store(at, (dq * raw_scale).to(dqkv.dtype.element_ty), mask=i[:, None] < length)


class _Attention(torch.autograd.Function):
    """The kernels in the order of the passes; keeps inputs, outputs and a sum per score row."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, mask: Tensor, ends: Tensor, seeds: Tensor, heads: int,
        dropout: float, width: int, is_masked: bool,
    ) -> Tensor:  # fmt: skip
        tokens, size = len(qkv), qkv.shape[1] // (3 * heads)
        out = qkv.new_empty(tokens, heads * size)
        lse = torch.empty(heads, tokens, dtype=torch.float32, device=qkv.device)
        rows, ctx.width = len(ends) - 1, width
        ctx.shape = {"HEADS": heads, "D": size, "M": QUERIES, "N": KEYS, "DROPS": dropout > 0}
        ctx.shape["MASKED"] = is_masked
        ctx.scales = size**-0.5 * LOG2_E, size**-0.5
        ctx.dropout = thresholds(dropout)
        ctx.save_for_backward(qkv, mask, ends, seeds, out, lse)
        grid = (triton.cdiv(width, QUERIES), heads, rows)
        _forward[grid](
            qkv, mask, ends, seeds, out, lse, tokens, width, ctx.scales[0], *ctx.dropout,
            **ctx.shape, **(FORWARD if is_masked else UNMASKED),
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        qkv, mask, ends, seeds, out, lse = ctx.saved_tensors
        grad, delta, dqkv = grad.contiguous(), torch.empty_like(lse), torch.empty_like(qkv)
        tokens, rows, width = len(qkv), len(ends) - 1, ctx.width
        heads, size = ctx.shape["HEADS"], ctx.shape["D"]
        _output_sums[(triton.cdiv(tokens, QUERIES), heads)](
            out, grad, delta, tokens, HEADS=heads, D=size, M=QUERIES
        )
        inputs = (qkv, mask, ends, seeds, grad, lse, delta, dqkv, tokens, width)
        inputs = (*inputs, *ctx.scales, *ctx.dropout)
        how = ctx.shape | (BACKWARD if ctx.shape["MASKED"] else UNMASKED)
        _backward_keys[(triton.cdiv(width, KEYS), heads, rows)](*inputs, **how)
        _backward_queries[(triton.cdiv(width, QUERIES), heads, rows)](*inputs, **how)
        return dqkv, *[None] * 7


def attend_masked(
    qkv: Tensor,
    mask: Tensor | None,
    ends: Tensor,
    *,
    heads: int,
    dropout: float,
    longest: int | None = None,
) -> Tensor:
    """Return (T, hidden): the attention of each row's tokens to those of the same row.

    Args:
        qkv: (T, 3 * hidden) queries, keys, values, contiguous.
        mask: (rows, width, width), contiguous: what is added to the scores; only the corner of a
            row's length is read. None: nothing is added.
        ends: (rows + 1,) int32: 0, then the token after each row.
        dropout: Of the probabilities; drawn from torch's generator of the device.
        longest: Without a mask: an upper limit on the tokens of a row.
    """
    seeds = torch.randint(2**31 - 1, (2,), dtype=torch.int32, device=qkv.device)
    if mask is None:
        return _Attention.apply(qkv, qkv, ends, seeds, heads, dropout, longest, False)
    return _Attention.apply(qkv, mask, ends, seeds, heads, dropout, mask.shape[-1], True)
