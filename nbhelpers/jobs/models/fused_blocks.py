"""RoBERTa's blocks between their attentions, and means over tokens, as few Triton kernels.

A plain block runs some thirty small kernels around its products, each of which reads and writes all
tokens: bias, dropout, sum, norm, casts, and in the backward pass a sum over tokens for each bias
and norm. Here a sum and norm is one kernel with its dropout and its casts, and its backward pass
one that gives the sums over tokens as well. Dropout is drawn from a hash and drawn again in the
backward pass, so no mask is kept. Sums and norms are in fp32, products in half precision, as in the
plain block; sums over tokens are in a fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, MLP_ROWS = 2, 4  # tokens of a tile
PROGRAMS = 2048  # at most, of kernels that sum over tokens: each leaves one partial sum
COLUMNS = 1024  # of a tile where columns are apart
LAUNCH = {"num_warps": 4}


@triton.jit
def _is_kept(seeds, place, threshold):
    """Whether dropout keeps the value at a place: a hash of the place and two seeds.

    Source: the finaliser of MurmurHash3 (Appleby, public domain).
    """
    x = place.to(tl.uint32) * 0x9E3779B1 + tl.load(seeds).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13) ^ tl.load(seeds + 1).to(tl.uint32)) * 0xC2B2AE35
    return (x ^ (x >> 16)) >= threshold.to(tl.uint32)


def _thresholds(p: float) -> tuple[int, float]:
    """Return the hash below which a value is dropped, and what the others are multiplied with."""
    return int(p * 2**32), 1 / (1 - p)


@triton.jit(do_not_specialize=["rows"])
def _norm_forward(
    y, x, weight, bias, seeds, total, wide, half, mean, rstd, rows, threshold, kept_scale, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, R: tl.constexpr, DROPS: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """total = dropout(y) + x; wide and half: its norm in fp32 and in half precision."""
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.arange(0, BLOCK)
    is_there = (row[:, None] < rows) & (column[None, :] < WIDTH)
    place = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    value = tl.load(y + place, mask=is_there, other=0.0).to(tl.float32)
    if DROPS:
        value = tl.where(_is_kept(seeds, place, threshold), value * kept_scale, 0.0)
    z = value + tl.load(x + place, mask=is_there, other=0.0)
    tl.store(total + place, z, mask=is_there)
    middle = tl.sum(z, 1) / WIDTH
    apart = tl.where(is_there, z - middle[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(apart * apart, 1) / WIDTH + eps)
    w = tl.load(weight + column, mask=column < WIDTH, other=0.0)
    b = tl.load(bias + column, mask=column < WIDTH, other=0.0)
    normed = apart * scale[:, None] * w[None, :] + b[None, :]
    tl.store(wide + place, normed, mask=is_there)
    if HALF:
        tl.store(half + place, normed.to(half.dtype.element_ty), mask=is_there)
    tl.store(mean + row, middle, mask=row < rows)
    tl.store(rstd + row, scale, mask=row < rows)


@triton.jit(do_not_specialize=["rows"])
def _norm_backward(
    g_wide, g_half, total, mean, rstd, weight, seeds, dx, dy, sums, rows, threshold, kept_scale,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, R: tl.constexpr, DROPS: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """dx and dy of `_norm_forward`; sums (programs, 3, WIDTH): of weight, bias, and y's columns."""
    column = tl.arange(0, BLOCK)
    w = tl.load(weight + column, mask=column < WIDTH, other=0.0)
    of_weight = tl.zeros([BLOCK], tl.float32)
    of_bias, of_y = of_weight, of_weight
    for tile in range(tl.program_id(0), tl.cdiv(rows, R), tl.num_programs(0)):
        row = tile * R + tl.arange(0, R)
        is_there = (row[:, None] < rows) & (column[None, :] < WIDTH)
        place = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
        g = tl.load(g_wide + place, mask=is_there, other=0.0)
        if HALF:
            g += tl.load(g_half + place, mask=is_there, other=0.0).to(tl.float32)
        middle = tl.load(mean + row, mask=row < rows, other=0.0)
        scale = tl.load(rstd + row, mask=row < rows, other=0.0)
        z = tl.load(total + place, mask=is_there, other=0.0)
        normed = tl.where(is_there, (z - middle[:, None]) * scale[:, None], 0.0)
        inner = g * w[None, :]
        along = tl.sum(inner * normed, 1) / WIDTH
        whole = tl.sum(inner, 1) / WIDTH
        dz = (inner - normed * along[:, None] - whole[:, None]) * scale[:, None]
        dz = tl.where(is_there, dz, 0.0)
        tl.store(dx + place, dz, mask=is_there)
        dropped = dz
        if DROPS:
            dropped = tl.where(_is_kept(seeds, place, threshold), dz * kept_scale, 0.0)
        tl.store(dy + place, dropped.to(dy.dtype.element_ty), mask=is_there)
        of_weight += tl.sum(g * normed, 0)
        of_bias += tl.sum(g, 0)
        of_y += tl.sum(dropped, 0)
    out = sums + tl.program_id(0) * (3 * WIDTH) + column
    tl.store(out, of_weight, mask=column < WIDTH)
    tl.store(out + WIDTH, of_bias, mask=column < WIDTH)
    tl.store(out + 2 * WIDTH, of_y, mask=column < WIDTH)


@triton.jit
def _normal(x):
    """The normal distribution below x, within 1.3e-7: a third of the work of erf.

    The logarithm of what lies beyond |x| is fitted, to base 2, by a polynomial over 0 to 8.
    """
    z = tl.abs(x)
    tail = -4.99488015e-05 + z * (1.09893526e-05 + z * -5.58888189e-07)
    tail = -0.0527566597 + z * (0.00746724941 + z * (-0.000460167154 + z * tail))
    tail = tl.exp2(-0.999999821 + z * (-1.15111387 + z * (-0.459129721 + z * tail)))
    return tl.where(x < 0, tail, 1 - tail)


@triton.jit
def _gelu_forward(u, out, values, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(u + place, mask=place < values, other=0.0).to(tl.float32)
    tl.store(out + place, (x * _normal(x)).to(out.dtype.element_ty), mask=place < values)


@triton.jit(do_not_specialize=["rows"])
def _gelu_backward(
    g, u, du, sums, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, R: tl.constexpr
):  # fmt: skip
    """du of `_gelu_forward`; sums (programs, WIDTH): of its columns."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(rows, R), tl.num_programs(0)):
        row = tile * R + tl.arange(0, R)
        is_there = (row[:, None] < rows) & (column[None, :] < WIDTH)
        place = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
        x = tl.load(u + place, mask=is_there, other=0.0).to(tl.float32)
        slope = _normal(x) + x * tl.exp2(-0.7213475204444817 * x * x) * 0.3989422804014327
        d = tl.load(g + place, mask=is_there, other=0.0).to(tl.float32) * slope
        tl.store(du + place, d.to(du.dtype.element_ty), mask=is_there)
        total += tl.sum(d, 0)
    tl.store(sums + tl.program_id(0) * WIDTH + column, total, mask=column < WIDTH)


@triton.jit(do_not_specialize=["rows"])
def _column_sums(x, sums, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, R: tl.constexpr):
    """sums (programs, WIDTH): of the columns of x (rows, WIDTH)."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(rows, R), tl.num_programs(0)):
        row = tile * R + tl.arange(0, R)
        is_there = (row[:, None] < rows) & (column[None, :] < WIDTH)
        place = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
        total += tl.sum(tl.load(x + place, mask=is_there, other=0.0).to(tl.float32), 0)
    tl.store(sums + tl.program_id(0) * WIDTH + column, total, mask=column < WIDTH)


def _shape(width: int, p: float, *, has_half: bool) -> dict[str, Any]:
    block = triton.next_power_of_2(width)
    return {"WIDTH": width, "BLOCK": block, "R": ROWS, "DROPS": p > 0, "HALF": has_half, **LAUNCH}


def _programs(rows: int, columns: int = 1) -> int:
    return max(1, min(PROGRAMS // columns, triton.cdiv(rows, ROWS)))


def norm(
    y: Tensor, x: Tensor, weight: Tensor, bias: Tensor, seeds: Tensor, p: float, eps: float,
    *, has_half: bool,
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Return the norm of dropout(y) + x in fp32 and in y's dtype, and what its backward needs."""
    rows, width = y.shape
    total, wide = torch.empty_like(x), torch.empty_like(x)
    half = torch.empty_like(y) if has_half else y
    mean, rstd = x.new_empty(rows), x.new_empty(rows)
    _norm_forward[(triton.cdiv(rows, ROWS),)](
        y, x, weight, bias, seeds, total, wide, half, mean, rstd, rows, *_thresholds(p), eps,
        **_shape(width, p, has_half=has_half),
    )  # fmt: skip
    return wide, half, (total, mean, rstd)


def norm_gradients(
    g_wide: Tensor, g_half: Tensor | None, saved: tuple[Tensor, ...], weight: Tensor, seeds: Tensor,
    p: float, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of x and y, and (3, width): of weight, of bias, and y's summed."""
    total, mean, rstd = saved
    rows, width = total.shape
    dx, dy = torch.empty_like(total), torch.empty_like(total, dtype=dtype)
    sums = total.new_empty(_programs(rows), 3, width)
    _norm_backward[(len(sums),)](
        g_wide, dy if g_half is None else g_half, total, mean, rstd, weight, seeds, dx, dy, sums,
        rows, *_thresholds(p), **_shape(width, p, has_half=g_half is not None),
    )  # fmt: skip
    return dx, dy, sums.sum(0)


def gelu(u: Tensor) -> Tensor:
    """Return the exact GELU."""
    out = torch.empty_like(u)
    _gelu_forward[(triton.cdiv(u.numel(), 1024),)](u, out, u.numel(), BLOCK=1024, **LAUNCH)
    return out


def gelu_gradients(g: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of u, and its sum over tokens in fp32."""
    du, (rows, width) = torch.empty_like(u), u.shape
    parts = triton.cdiv(width, COLUMNS)
    sums = torch.empty(_programs(rows, parts), width, dtype=torch.float32, device=u.device)
    _gelu_backward[(len(sums), parts)](
        g, u, du, sums, rows, WIDTH=width, BLOCK=COLUMNS, R=MLP_ROWS, **LAUNCH
    )
    return du, sums.sum(0)


def column_sums(x: Tensor) -> Tensor:
    """Return (width,) fp32: the sum over tokens."""
    rows, width = x.shape
    parts = triton.cdiv(width, COLUMNS)
    sums = torch.empty(_programs(rows, parts), width, dtype=torch.float32, device=x.device)
    _column_sums[(len(sums), parts)](
        x, sums, rows, WIDTH=width, BLOCK=COLUMNS, R=2 * ROWS, **LAUNCH
    )
    return sums.sum(0)


class _Between(torch.autograd.Function):
    """From one attention's output to the next one's input, or to the last states."""

    @staticmethod
    def forward(
        ctx: Any, attention: Tensor, x: Tensor, seeds: Tensor, p: float, eps: float,
        tw: Tensor, tb: Tensor, mw: Tensor, mb: Tensor, ow: Tensor, ob: Tensor,
        aw: Tensor, ab: Tensor, bw: Tensor, bb: Tensor, *coming: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        attention, x = attention.contiguous(), x.contiguous()
        y = torch.addmm(tb, attention, tw.t())
        x, half, first = norm(y, x, aw, ab, seeds[0], p, eps, has_half=True)
        u = torch.addmm(mb, half, mw.t())
        inner = gelu(u)
        y = torch.addmm(ob, inner, ow.t())
        x, last_half, second = norm(y, x, bw, bb, seeds[1], p, eps, has_half=bool(coming))
        ctx.p = p
        saved = (attention, seeds, half, u, inner, tw, mw, ow, aw, bw, *first, *second)
        if not coming:
            ctx.save_for_backward(*saved)
            return (x,)
        qw, qb = coming
        ctx.save_for_backward(*saved, last_half, qw)
        return x, torch.addmm(qb, last_half, qw.t())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        attention, seeds, half, u, inner, tw, mw, ow, aw, bw, *rest = ctx.saved_tensors
        first, second, coming = rest[:3], rest[3:6], rest[6:]
        g, g_half, dtype = gradients[0].contiguous(), None, u.dtype
        of_coming: tuple[Tensor, ...] = ()
        if coming:
            last_half, qw = coming
            g_qkv = gradients[1].contiguous()
            g_half = g_qkv @ qw
            of_coming = g_qkv.t() @ last_half, column_sums(g_qkv).to(dtype)
        g, dy, (dbw, dbb, dob) = norm_gradients(g, g_half, second, bw, seeds[1], ctx.p, dtype)
        dow = dy.t() @ inner
        du, dmb = gelu_gradients(dy @ ow, u)
        dmw = du.t() @ half
        g, dy, (daw, dab, dtb) = norm_gradients(g, du @ mw, first, aw, seeds[0], ctx.p, dtype)
        return (
            dy @ tw, g, None, None, None,
            dy.t() @ attention, dtb.to(dtype), dmw, dmb.to(dtype), dow, dob.to(dtype),
            daw, dab, dbw, dbb, *of_coming,
        )  # fmt: skip


def between(
    attention: Tensor,
    x: Tensor,
    weights: tuple[Tensor, ...],
    norms: tuple[Tensor, ...],
    p: float,
    eps: float,
    seeds: Tensor,
    coming: tuple[Tensor, ...] = (),
) -> tuple[Tensor, ...]:
    """Return a block's states (T, hidden) in fp32, and with `coming` the next one's queries.

    Args:
        attention: (T, hidden) in half precision.
        x: (T, hidden) fp32: the states before the block.
        weights: Of the attention's output, and of the MLP's two layers, in half precision.
        norms: Weight and bias of both, fp32.
        p: Dropout of both sums.
        seeds: (2, 2) int32: of both.
        coming: Matrix and bias for queries, keys and values of the next block, in half precision.
    """
    return _Between.apply(attention, x, seeds, p, eps, *weights, *norms, *coming)


def new_seeds(blocks: int, device: torch.device) -> Tensor:
    """Draw (blocks, 2, 2) int32 from torch's generator of the device."""
    return torch.randint(2**31 - 1, (blocks, 2, 2), dtype=torch.int32, device=device)


# ------------------------------------------------------------------------------------------------
# Weighted means over the tokens of each row, several at once, without a padded copy.


TOKENS = 16  # of a tile


@triton.jit
def _mean_forward(
    x, weights, ends, out, totals, tokens, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    R: tl.constexpr, MEANS: tl.constexpr,
):  # fmt: skip
    row, mean = tl.program_id(0), tl.program_id(2)
    first, end = tl.load(ends + row), tl.load(ends + row + 1)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sums, total = tl.zeros([BLOCK], tl.float32), tl.zeros([R], tl.float32)
    for start in range(first, end, R):
        at = start + tl.arange(0, R)
        w = tl.load(weights + mean * tokens + at, mask=at < end, other=0.0)
        is_there = (at[:, None] < end) & (column[None, :] < WIDTH)
        place = at.to(tl.int64)[:, None] * WIDTH + column[None, :]
        sums += tl.sum(tl.load(x + place, mask=is_there, other=0.0) * w[:, None], 0)
        total += w
    whole = tl.maximum(tl.sum(total, 0), 1e-6)
    tl.store(out + (row * MEANS + mean) * WIDTH + column, sums / whole, mask=column < WIDTH)
    tl.store(totals + row * MEANS + mean, whole)


@triton.jit
def _mean_backward(
    g, weights, ends, totals, dx, tokens, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    R: tl.constexpr, MEANS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    first, end = tl.load(ends + row), tl.load(ends + row + 1)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    for start in range(first, end, R):
        at = start + tl.arange(0, R)
        d = tl.zeros([R, BLOCK], tl.float32)
        for mean in tl.static_range(MEANS):
            share = tl.load(weights + mean * tokens + at, mask=at < end, other=0.0)
            share = share / tl.load(totals + row * MEANS + mean)
            own = tl.load(g + (row * MEANS + mean) * WIDTH + column, mask=column < WIDTH, other=0.0)
            d += share[:, None] * own[None, :]
        is_there = (at[:, None] < end) & (column[None, :] < WIDTH)
        tl.store(dx + at.to(tl.int64)[:, None] * WIDTH + column[None, :], d, mask=is_there)


class _Means(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
        rows, (tokens, width), means = len(ends) - 1, x.shape, len(weights)
        ctx.shape = {"WIDTH": width, "BLOCK": 256, "R": TOKENS, "MEANS": means, **LAUNCH}
        out, totals = x.new_empty(rows, means * width), x.new_empty(rows, means)
        grid = (rows, triton.cdiv(width, 256), means)
        _mean_forward[grid](x.contiguous(), weights, ends, out, totals, tokens, **ctx.shape)
        ctx.save_for_backward(weights, ends, totals)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        weights, ends, totals = ctx.saved_tensors
        tokens, width = weights.shape[1], ctx.shape["WIDTH"]
        dx = g.new_empty(tokens, width)
        grid = (len(totals), triton.cdiv(width, 256))
        _mean_backward[grid](g.contiguous(), weights, ends, totals, dx, tokens, **ctx.shape)
        return dx, None, None


def means(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Return (rows, means * width): weighted means over each row's tokens.

    Args:
        x: (T, width) fp32.
        weights: (means, T) fp32, contiguous; a row without any has the mean 0.
        ends: (rows + 1,) int32: 0, then the token after each row.
    """
    return _Means.apply(x, weights, ends)
