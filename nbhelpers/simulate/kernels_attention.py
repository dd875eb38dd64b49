"""Attention kernels: flash, memory-efficient and cuDNN, forward and backward."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from nbhelpers.simulate.kernels_call import (
    OUT,
    Call,
    Events,
    Rule,
    argument,
    ceil_div,
    copies_of,
    is_half,
    round_up,
    size_of,
)

FLASH_SOURCE = "aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp"
EFFICIENT_SOURCE = "aten/src/ATen/native/transformers/cuda"
CUDNN_SOURCE = "aten/src/ATen/native/cudnn/MHA.cpp"


class Sizes(NamedTuple):
    """Sizes of one attention call; lengths of queries and of keys."""

    batch: int
    heads: int
    queries: int
    keys: int
    head_dim: int
    key_heads: int

    @property
    def rows(self) -> int:
        """Sequences times heads."""
        return self.batch * self.heads


def _sizes(query: torch.Tensor, key: torch.Tensor) -> Sizes:
    batch, heads, queries, head_dim = query.shape
    return Sizes(batch, heads, queries, key.shape[2], head_dim, key.shape[1])


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    """(batch, heads, length, dim) as kernels see it: (batch, length, heads, dim)."""
    return tensor.transpose(1, 2)


# ---------------------------------------------------------------- flash


def _rounded_head(head_dim: int) -> int:
    return round_up(head_dim, 32 if head_dim <= 128 else 64)


def flash_splits(sizes: Sizes, multiprocessors: int) -> int:
    """Into how many parts the keys are split so that few long sequences fill the card.

    Source: flash_api.cpp: set_params_splitkv, num_splits_heuristic.
    """
    block = 256 if sizes.head_dim <= 64 else 128 if sizes.head_dim <= 128 else 64
    key_blocks, slots = ceil_div(sizes.keys, block), 2 * multiprocessors
    work = sizes.rows * ceil_div(sizes.queries, 64)
    if work >= 0.8 * slots:
        return 1
    efficiency: dict[int, float] = {}
    for splits in range(1, min(128, slots, key_blocks) + 1):
        if splits == 1 or ceil_div(key_blocks, splits) != ceil_div(key_blocks, splits - 1):
            waves = work * splits / slots
            efficiency[splits] = waves / math.ceil(waves)
    best = max(efficiency.values(), default=0.0)
    return next((n for n, value in efficiency.items() if value >= 0.85 * best), 1)


def _flash_forward(call: Call) -> list[int]:
    query, key = call.args[0], call.args[1]
    sizes = _sizes(query, key)
    if argument(call, 3, "dropout_p", 0.0):
        return []  # dropout is not split
    queries = sizes.queries
    if queries == 1 and sizes.heads > sizes.key_heads:
        # One query of grouped heads: the groups stand in for the length.
        ratio = sizes.heads // sizes.key_heads
        sizes = sizes._replace(heads=sizes.key_heads, queries=ratio)
    splits = flash_splits(sizes, call.card.multiprocessors)
    if splits == 1:
        return []
    rows = splits * sizes.rows * sizes.queries
    return [4 * rows, 4 * rows * _rounded_head(sizes.head_dim)]


def _flash_backward(call: Call) -> Events:
    grad, query, key, _, out = call.args[:5]
    copies = copies_of(_transposed(grad), _transposed(out))
    return [*copies, OUT, *_flash_sums(call, query, key)]


def _flash_sums(call: Call, query: torch.Tensor, key: torch.Tensor) -> list[int]:
    sizes = _sizes(query, key)
    length = round_up(sizes.queries, 128)
    copies = 1
    if call.deterministic:
        copies = ceil_div(call.card.multiprocessors, sizes.rows)
    taken = [4 * sizes.rows * length]
    taken.append(4 * copies * sizes.rows * length * _rounded_head(sizes.head_dim))
    if sizes.heads != sizes.key_heads:
        expanded = sizes.rows * sizes.keys * sizes.head_dim * query.element_size()
        taken += [expanded, expanded]
    return taken


def _rows_forward(call: Call) -> list[int]:
    """The kernel called by its own name: (batch, length, heads, dim), or rows end to end."""
    if argument(call, 3, "cum_seq_q") is not None:
        return []  # keys of rows end to end are not split
    query, key, value = (_transposed(tensor) for tensor in call.args[:3])
    dropout = argument(call, 7, "dropout_p", 0.0)
    return _flash_forward(call._replace(args=(query, key, value, dropout), kwargs={}))


def _rows_backward(call: Call) -> Events:
    """Sums of rows end to end, of which each may be written 128 tokens beyond its end."""
    ends, (grad, query, key, _, out) = argument(call, 6, "cum_seq_q"), call.args[:5]
    made = [*copies_of(grad, out), OUT]
    if ends is None:
        return [*made, *_flash_sums(call, _transposed(query), _transposed(key))]
    tokens, heads, head_dim = query.shape
    rows = ends.numel() - 1
    sums = 4 * heads * (tokens + 128 * rows)
    copies = ceil_div(call.card.multiprocessors, rows * heads) if call.deterministic else 1
    taken = [sums, copies * sums * _rounded_head(head_dim)]
    if heads != key.shape[1]:
        taken += 2 * [key.shape[0] * heads * head_dim * query.element_size()]
    return [*made, *taken]


# ---------------------------------------------------------------- memory-efficient


class Kernel(NamedTuple):
    """A backward kernel: block of queries, block of keys, largest head, values in registers."""

    queries: int
    keys: int
    largest_head: int


_HALF_80 = ((64, 64, 32), (64, 64, 64), (128, 128, 128), (128, 64, 65536))
_HALF_86 = ((64, 64, 32), (64, 64, 64), (128, 64, 96), (64, 64, 128), (128, 64, 65536))
_HALF_OLD = ((64, 64, 32), (64, 64, 64), (128, 64, 128), (128, 64, 65536))
_FLOAT_80 = ((64, 64, 32), (64, 64, 64), (128, 64, 128), (128, 64, 65536))
_FLOAT_OLD = ((64, 64, 32), (64, 64, 64), (64, 64, 128), (64, 64, 65536))


def efficient_kernel(head_dim: int, dtype: torch.dtype, capability: int) -> Kernel:
    """The first kernel of the list that takes the head and fits in shared memory.

    Source: mem_eff_attention/kernels/cutlassB.h: dispatch_cutlassB_*. Blocks of 128 x 128 need more
    shared memory than capabilities 8.6, 8.9 and 12.0 have.
    """
    if capability < 80:
        rows = _HALF_OLD if is_half(dtype) else _FLOAT_OLD
    elif not is_half(dtype):
        rows = _FLOAT_80
    else:
        rows = _HALF_86 if capability in (86, 89, 120) else _HALF_80
    if capability == 120:  # has no kernel for heads of 96
        rows = tuple(row for row in rows if row[2] != 96)
    return next(Kernel(*row) for row in rows if head_dim <= row[2])


def efficient_workspace(
    sizes: Sizes, value_dim: int, dtype: torch.dtype, card: object, *, deterministic: bool = False
) -> int:
    """Bytes in which blocks of keys add up the gradients of queries, and of keys and values.

    Source: mem_eff_attention/kernel_backward.h: workspace_size; attention_backward.cu for the
    number of parts that the keys are split into.
    """
    kernel = efficient_kernel(max(sizes.head_dim, value_dim), dtype, card.capability)
    blocks = ceil_div(sizes.queries, kernel.queries)
    columns = ceil_div(sizes.head_dim, kernel.keys)
    floats = blocks * columns * (kernel.queries * kernel.keys + 4)
    in_registers = is_half(dtype) and kernel.largest_head <= kernel.queries
    if is_half(dtype) and not in_registers:
        splits = ceil_div(sizes.keys, kernel.keys)
        if sizes.rows >= 256 and sizes.keys <= 2 * kernel.keys:
            splits = 1
        splits = 1 if deterministic else max(1, min(splits, 200 // max(sizes.rows, 1)))
        for width in (sizes.head_dim, value_dim):
            floats += splits * kernel.keys * round_up(width, kernel.queries)
    return 4 * sizes.rows * round_up(floats, 4)


def _efficient_forward(call: Call) -> list[int]:
    query, value = call.args[0], call.args[2]
    batch, heads, length, _ = query.shape
    width = value.shape[-1]
    # A value wider than a block of keys does not stay in registers; half sums in float meanwhile.
    if is_half(query.dtype) and width > 128:
        return [4 * batch * heads * length * width]
    return []


def _efficient_backward(call: Call) -> Events:
    grad, query, key, value = call.args[:4]
    sizes, made = _sizes(query, key), [*copies_of(_transposed(grad)), OUT]
    delta = 4 * sizes.rows * sizes.queries
    space = efficient_workspace(
        sizes, value.shape[-1], query.dtype, call.card, deterministic=call.deterministic
    )
    if is_half(query.dtype):  # the kernel computes delta itself
        return [*made, delta, space]
    product = size_of(grad, torch.float32)
    # grad * out is summed over the head, and the sums are laid out anew
    if sizes.heads == 1 or sizes.queries == 1:
        return [*made, product, delta, -product, space]
    return [*made, product, delta, delta, -delta, -product, space]


# ---------------------------------------------------------------- cuDNN


def _cudnn_forward(call: Call) -> list[int]:
    return [256]


def _cudnn_backward(call: Call) -> list[int]:
    """A float copy of the query's gradient and one number a row; grouped heads as well."""
    query, key, value = call.args[1:4]
    sizes = _sizes(query, key)
    space = 4 * sizes.rows * sizes.queries * (sizes.head_dim + 1)
    if sizes.heads != sizes.key_heads:
        space += sizes.rows * sizes.keys * (sizes.head_dim + value.shape[-1]) * query.element_size()
    return [space + 256]


RULES: dict[str, Rule] = {
    "_scaled_dot_product_flash_attention.default": Rule(
        _flash_forward, f"{FLASH_SOURCE}: mha_fwd, set_params_splitkv"
    ),
    "_scaled_dot_product_flash_attention_backward.default": Rule(
        _flash_backward, f"{FLASH_SOURCE}: mha_bwd"
    ),
    "_flash_attention_forward.default": Rule(
        _rows_forward, f"{FLASH_SOURCE}: mha_varlen_fwd, mha_fwd"
    ),
    "_flash_attention_backward.default": Rule(
        _rows_backward, f"{FLASH_SOURCE}: mha_varlen_bwd, mha_bwd"
    ),
    "_scaled_dot_product_efficient_attention.default": Rule(
        _efficient_forward, f"{EFFICIENT_SOURCE}/attention.cu: _efficient_attention_forward"
    ),
    "_scaled_dot_product_efficient_attention_backward.default": Rule(
        _efficient_backward,
        f"{EFFICIENT_SOURCE}/attention_backward.cu: _efficient_attention_backward",
    ),
    "_scaled_dot_product_cudnn_attention.default": Rule(
        _cudnn_forward, f"{CUDNN_SOURCE}: run_cudnn_SDP_fprop"
    ),
    "_scaled_dot_product_cudnn_attention_backward.default": Rule(
        _cudnn_backward,
        f"{CUDNN_SOURCE}: run_cudnn_SDP_bprop; measured with cuDNN 9.19",
    ),
}
