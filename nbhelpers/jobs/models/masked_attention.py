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
def _odd(numbers, at, length):
    """(places,) uint32: random odd numbers of some tokens of a row."""
    return tl.load(numbers + at, mask=at < length, other=0).to(tl.uint32) | 1


@triton.jit
def _beyond(j, length):
    """(keys,) what is added to scores: -inf beyond the row."""
    return tl.where(j < length, 0.0, float("-inf"))


@triton.jit
def _added(mask, row, i, j, length, width):
    """The mask where queries i look at keys j, times log2(e); i and j are spread over two axes."""
    at = mask + row.to(tl.int64) * width * width + i * width + j
    is_there = (i < length) & (j < length)
    return tl.load(at, mask=is_there, other=0.0).to(tl.float32) * 1.4426950408889634


@triton.jit
def _rows(base, at, d, length, step):
    """(places, head size): some tokens of a row, zeros beyond it."""
    return tl.load(base + at[:, None] * step + d[None, :], mask=at[:, None] < length, other=0.0)


@triton.jit(do_not_specialize=["tokens"])
def _forward(
    qkv, mask, ends, numbers, out, lse, tokens, width, scale, threshold, kept_scale,
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
        own = numbers + head * tokens + first
        q = _rows(base, i, d, length, 3 * HEADS * D)
        if DROPS:
            of_queries = _odd(own, i, length)[:, None]
        highest = tl.full([M], float("-inf"), tl.float32)
        total = tl.zeros([M], tl.float32)
        sums = tl.zeros([M, D], tl.float32)
        for start in range(0, length, N):
            j = start + tl.arange(0, N)
            k = _rows(base + HEADS * D, j, d, length, 3 * HEADS * D)
            v = _rows(base + 2 * HEADS * D, j, d, length, 3 * HEADS * D)
            s = tl.dot(q, tl.trans(k)) * scale + _beyond(j, length)[None, :]
            if MASKED:
                s += _added(mask, row, i[:, None], j[None, :], length, width)
            new = tl.maximum(highest, tl.max(s, 1))
            p = tl.exp2(s - new[:, None])
            shrink = tl.exp2(highest - new)
            total = total * shrink + tl.sum(p, 1)
            if DROPS:
                of_keys = _odd(own + HEADS * tokens, j, length)[None, :]
                p = tl.where(of_queries * of_keys >= threshold.to(tl.uint32), p, 0.0)
            sums = sums * shrink[:, None] + tl.dot(p.to(v.dtype), v)
            highest = new
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
def _backward(
    qkv, mask, ends, numbers, grad, lse, delta, sums, dqkv, tokens, width, scale, raw_scale,
    threshold, kept_scale,
    HEADS: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, DROPS: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """A head of a row: keys outside, queries inside, whose gradients wait in sums (tokens, hidden).

    All tiles of scores are (keys, queries).
    """
    head, row = tl.program_id(0), tl.program_id(1)
    first = tl.load(ends + row)
    length = tl.load(ends + row + 1) - first
    d = tl.arange(0, D)
    base = qkv + first.to(tl.int64) * (3 * HEADS * D) + head * D
    dbase = dqkv + first.to(tl.int64) * (3 * HEADS * D) + head * D
    outer = first.to(tl.int64) * (HEADS * D) + head * D
    of_head = head * tokens + first
    kind = dqkv.dtype.element_ty
    for begin in range(0, length, N):
        j = begin + tl.arange(0, N)
        k = _rows(base + HEADS * D, j, d, length, 3 * HEADS * D)
        v = _rows(base + 2 * HEADS * D, j, d, length, 3 * HEADS * D)
        if DROPS:
            of_keys = _odd(numbers + HEADS * tokens + of_head, j, length)[:, None]
        dk, dv = tl.zeros([N, D], tl.float32), tl.zeros([N, D], tl.float32)
        for start in range(0, length, M):
            i = start + tl.arange(0, M)
            q = _rows(base, i, d, length, 3 * HEADS * D)
            g = _rows(grad + outer, i, d, length, HEADS * D)
            high = tl.load(lse + of_head + i, mask=i < length, other=0.0)
            own = tl.load(delta + of_head + i, mask=i < length, other=0.0)
            s = tl.dot(k, tl.trans(q)) * scale + _beyond(j, length)[:, None]
            if MASKED:
                s += _added(mask, row, i[None, :], j[:, None], length, width)
            p = tl.exp2(s - high[None, :])
            seen, dp = p, tl.dot(v, tl.trans(g))
            if DROPS:
                of_queries = _odd(numbers + of_head, i, length)[None, :]
                is_kept = of_queries * of_keys >= threshold.to(tl.uint32)
                seen, dp = tl.where(is_kept, p, 0.0), tl.where(is_kept, dp, 0.0)
            dv += tl.dot(seen.to(g.dtype), g)
            ds = (p * (dp * kept_scale - own[None, :])).to(q.dtype)
            dk += tl.dot(ds, q)
            at, is_there = i[:, None] * (HEADS * D) + d[None, :], i[:, None] < length
            dq = tl.load(sums + outer + at, mask=is_there & (begin > 0), other=0.0)
            dq += tl.dot(tl.trans(ds), k)
            is_last = begin + N >= length
            tl.store(sums + outer + at, dq, mask=is_there & (not is_last))
            at = dbase + i[:, None] * (3 * HEADS * D) + d[None, :]
            tl.store(at, (dq * raw_scale).to(kind), mask=is_there & is_last)
        at = dbase + j[:, None] * (3 * HEADS * D) + d[None, :]
        tl.store(at + HEADS * D, (dk * raw_scale).to(kind), mask=j[:, None] < length)
        tl.store(at + 2 * HEADS * D, (dv * kept_scale).to(kind), mask=j[:, None] < length)
        tl.debug_barrier()  # the next keys' threads read what others wrote to the sums


class _Attention(torch.autograd.Function):
    """The kernels in the order of the passes; keeps inputs, outputs and a sum per score row."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, mask: Tensor, ends: Tensor, numbers: Tensor, heads: int,
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
        ctx.save_for_backward(qkv, mask, ends, numbers, out, lse)
        grid = (triton.cdiv(width, QUERIES), heads, rows)
        _forward[grid](
            qkv, mask, ends, numbers, out, lse, tokens, width, ctx.scales[0], *ctx.dropout,
            **ctx.shape, **(FORWARD if is_masked else UNMASKED),
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        qkv, mask, ends, numbers, out, lse = ctx.saved_tensors
        grad, delta, dqkv = grad.contiguous(), torch.empty_like(lse), torch.empty_like(qkv)
        tokens, rows, heads, size = len(qkv), len(ends) - 1, ctx.shape["HEADS"], ctx.shape["D"]
        sums = torch.empty_like(grad, dtype=torch.float32)
        _output_sums[(triton.cdiv(tokens, QUERIES), heads)](
            out, grad, delta, tokens, HEADS=heads, D=size, M=QUERIES
        )
        _backward[(heads, rows)](
            qkv, mask, ends, numbers, grad, lse, delta, sums, dqkv, tokens, ctx.width, *ctx.scales,
            *ctx.dropout, **ctx.shape, **BACKWARD,
        )  # fmt: skip
        return dqkv, *[None] * 7


def dropout_numbers(heads: int, tokens: int, device: torch.device) -> Tensor:
    """Draw (2, heads, tokens) int32: a number of each token as a query, and one as a key.

    Made odd, their product modulo 2^32 says whether a probability is kept: two operations for each.
    Any three of these products are independent.
    """
    shape = (2, heads, tokens)
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, device=device)


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
    numbers = dropout_numbers(heads, len(qkv) if dropout else 0, qkv.device)
    if mask is None:
        return _Attention.apply(qkv, qkv, ends, numbers, heads, dropout, longest, False)
    return _Attention.apply(qkv, mask, ends, numbers, heads, dropout, mask.shape[-1], True)
