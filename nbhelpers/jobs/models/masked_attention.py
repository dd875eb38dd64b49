"""Attention with an additive mask on rows end to end, as Triton kernels: no padding, few launches.

Flash attention (Dao 2023, arXiv 2307.08691: online softmax; scores are computed anew in the
backward pass) with a mask that is read tile by tile, and dropout on the probabilities. A row of
`length` tokens looks at itself alone. Products in half precision, sums in fp32, exponents of two.
All gradients of a row's head are made by one program, so scores are computed anew only once, and
sums are in a fixed order. The head size is a power of two of at least 16.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

QUERIES, MOST_KEYS = 64, 128  # of a tile; N below are its keys
# How a kernel is launched, without a mask and with one. Source: the fastest of six and of eight on
# an H200, 256 programs and 912 functions of 241 and 230 tokens (docs/log/speed.md).
FORWARD = {
    False: {"N": 32, "num_warps": 4, "num_stages": 2},
    True: {"N": 64, "num_warps": 4, "num_stages": 2},
}
BACKWARD = {
    False: {"N": 128, "num_warps": 8, "num_stages": 2},
    True: {"N": 64, "num_warps": 4, "num_stages": 2},
}
LOG2_E = math.log2(math.e)


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


@triton.jit
def _forward(
    qkv, mask, ends, numbers, out, lse, spread, width, columns, scale, threshold, kept_scale,
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
        if DROPS:
            plane = tl.load(numbers + 2 * columns + row * HEADS + head)
            of_queries = (tl.load(numbers + i) * plane)[:, None]
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
                of_keys = tl.load(numbers + columns + j)[None, :]
                p *= tl.where(of_queries * of_keys >= threshold, kept_scale, 0.0)
            sums = sums * shrink[:, None] + tl.dot(p.to(v.dtype), v)
            highest = new
        sums = sums / total[:, None]
        places = out + (first + i).to(tl.int64)[:, None] * (HEADS * D) + head * D + d[None, :]
        tl.store(places, sums.to(out.dtype.element_ty), mask=i[:, None] < length)
        tl.store(lse + head * spread + (first // M + row) * M + i, highest + tl.log2(total))


@triton.jit
def _output_sums(
    out, grad, ends, delta, spread, HEADS: tl.constexpr, D: tl.constexpr, M: tl.constexpr
):  # fmt: skip
    """delta: the sum over a head of output times its gradient."""
    row, head = tl.program_id(2), tl.program_id(1)
    first = tl.load(ends + row)
    length = tl.load(ends + row + 1) - first
    begin = tl.program_id(0) * M
    if begin < length:
        i, d = begin + tl.arange(0, M), tl.arange(0, D)
        outer = first.to(tl.int64) * (HEADS * D) + head * D
        o = _rows(out + outer, i, d, length, HEADS * D).to(tl.float32)
        g = _rows(grad + outer, i, d, length, HEADS * D).to(tl.float32)
        tl.store(delta + head * spread + (first // M + row) * M + i, tl.sum(o * g, 1))


@triton.jit
def _backward(
    qkv, mask, ends, numbers, grad, lse, delta, sums, dqkv, spread, width, columns, scale,
    raw_scale, threshold, kept_scale,
    HEADS: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, DROPS: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """A head of a row: keys outside, queries inside, whose gradients wait in `sums`.

    All tiles of scores are (keys, queries).
    """
    head, row = tl.program_id(0), tl.program_id(1)
    first = tl.load(ends + row)
    length = tl.load(ends + row + 1) - first
    d = tl.arange(0, D)
    base = qkv + first.to(tl.int64) * (3 * HEADS * D) + head * D
    dbase = dqkv + first.to(tl.int64) * (3 * HEADS * D) + head * D
    outer = grad + first.to(tl.int64) * (HEADS * D) + head * D
    places = head * spread + (first // M + row) * M
    waiting = sums + places.to(tl.int64) * D
    kind = dqkv.dtype.element_ty
    for begin in range(0, length, N):
        j = begin + tl.arange(0, N)
        k = _rows(base + HEADS * D, j, d, length, 3 * HEADS * D)
        v = _rows(base + 2 * HEADS * D, j, d, length, 3 * HEADS * D)
        if DROPS:
            plane = tl.load(numbers + 2 * columns + row * HEADS + head)
            of_keys = (tl.load(numbers + columns + j) * plane)[:, None]
        dk, dv = tl.zeros([N, D], tl.float32), tl.zeros([N, D], tl.float32)
        for start in range(0, length, M):
            i = start + tl.arange(0, M)
            q = _rows(base, i, d, length, 3 * HEADS * D)
            g = _rows(outer, i, d, length, HEADS * D)
            s = tl.dot(k, tl.trans(q)) * scale + _beyond(j, length)[:, None]
            if MASKED:
                s += _added(mask, row, i[None, :], j[:, None], length, width)
            p = tl.exp2(s - tl.load(lse + places + i)[None, :])
            seen, dp = p, tl.dot(v, tl.trans(g))
            if DROPS:
                is_kept = tl.load(numbers + i)[None, :] * of_keys >= threshold
                kept = tl.where(is_kept, kept_scale, 0.0)
                seen, dp = p * kept, dp * kept
            dv += tl.dot(seen.to(g.dtype), g)
            ds = (p * (dp - tl.load(delta + places + i)[None, :])).to(q.dtype)
            dk += tl.dot(ds, q)
            dq = tl.dot(tl.trans(ds), k)
            so_far = waiting + i[:, None] * D + d[None, :]
            if begin > 0:
                dq += tl.load(so_far)
            if begin + N < length:
                tl.store(so_far, dq)
            else:
                places_of_q = dbase + i[:, None] * (3 * HEADS * D) + d[None, :]
                tl.store(places_of_q, (dq * raw_scale).to(kind), mask=i[:, None] < length)
        at = dbase + j[:, None] * (3 * HEADS * D) + d[None, :]
        tl.store(at + HEADS * D, (dk * raw_scale).to(kind), mask=j[:, None] < length)
        tl.store(at + 2 * HEADS * D, dv.to(kind), mask=j[:, None] < length)
        tl.debug_barrier()  # with the next keys a thread reads what another one stored


class _Attention(torch.autograd.Function):
    """The kernels in the order of the passes; keeps inputs, outputs and a sum per score row.

    What is kept of a score row stands in whole tiles: a row begins at (first // M + number) * M.
    """

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, mask: Tensor, ends: Tensor, numbers: Tensor, heads: int,
        dropout: float, width: int, is_masked: bool,
    ) -> Tensor:  # fmt: skip
        tokens, rows, size = len(qkv), len(ends) - 1, qkv.shape[1] // (3 * heads)
        out = qkv.new_empty(tokens, heads * size)
        spread = (tokens // QUERIES + rows) * QUERIES
        lse = torch.empty(heads, spread, dtype=torch.float32, device=qkv.device)
        ctx.shape = {"HEADS": heads, "D": size, "M": QUERIES, "DROPS": dropout > 0}
        ctx.shape["MASKED"] = is_masked
        ctx.sizes = spread, width, number_columns(width)
        ctx.scales = size**-0.5 * LOG2_E, size**-0.5
        ctx.dropout = int(dropout * 2**32) - 2**31, 1 / (1 - dropout)
        ctx.save_for_backward(qkv, mask, ends, numbers, out, lse)
        _forward[triton.cdiv(width, QUERIES), heads, rows](
            qkv, mask, ends, numbers, out, lse, *ctx.sizes, ctx.scales[0], *ctx.dropout,
            **ctx.shape, **FORWARD[is_masked],
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        qkv, mask, ends, numbers, out, lse = ctx.saved_tensors
        grad, delta, dqkv = grad.contiguous(), torch.empty_like(lse), torch.empty_like(qkv)
        heads, size, (spread, width, _) = ctx.shape["HEADS"], ctx.shape["D"], ctx.sizes
        sums, rows = lse.new_empty(heads, spread, size), len(ends) - 1
        _output_sums[triton.cdiv(width, QUERIES), heads, rows](
            out, grad, ends, delta, spread, HEADS=heads, D=size, M=QUERIES
        )
        _backward[heads, rows](
            qkv, mask, ends, numbers, grad, lse, delta, sums, dqkv, *ctx.sizes, *ctx.scales,
            *ctx.dropout, **ctx.shape, **BACKWARD[ctx.shape["MASKED"]],
        )  # fmt: skip
        return dqkv, *[None] * 7


def number_columns(width: int) -> int:
    """Return how many numbers there are for the queries, and for the keys, of a row."""
    return triton.cdiv(width, MOST_KEYS) * MOST_KEYS


def dropout_numbers(width: int, planes: int, device: torch.device) -> Tensor:
    """Draw (2 * `number_columns` + planes,) int32: of queries, of keys, of rows and their heads.

    A probability is kept if the product of its three numbers, modulo 2^32, is not below a
    threshold: two operations each, where a hash of the place takes twelve. Any two such products
    are independent.
    """
    shape = (2 * number_columns(width) + planes,)
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
    width = longest if mask is None else mask.shape[-1]
    numbers = dropout_numbers(width, (len(ends) - 1) * heads, qkv.device)
    inputs = (qkv, qkv if mask is None else mask, ends, numbers)
    return _Attention.apply(*inputs, heads, dropout, width, mask is not None)
