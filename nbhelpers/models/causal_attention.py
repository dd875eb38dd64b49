"""Attention of causal models on packed rows: which kernel, which mask, and the proof that it fits.

A row may hold several samples end to end. `segments` numbers them, and a token sees the tokens of
its own sample that are not after it. The mask is built here, once per batch, for eager, SDPA and
flex_attention alike, so that all three see the same.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nbhelpers.errors import ConfigError
from nbhelpers.models.causal_batches import BLOCK, Layout, send

FLEX = "nbhelpers_flex"  # the name under which transformers finds our kernel
SOFT_CAPPED = ("gemma2",)  # families whose attention scores are capped
BLOCK_LISTS = (
    *("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"),
    *("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"),
)


def has_triton() -> bool:
    """Whether torch.compile can make GPU kernels here."""
    return find_spec("triton") is not None


def choose_attention(asked: str, family: str, device: torch.device) -> str:
    """Return eager, sdpa or flex for a model family on a device.

    `auto` takes flex_attention where the family caps its scores and the GPU has bf16 and Triton,
    SDPA where nothing is capped, else eager.

    Raises:
        ConfigError: SDPA for a family whose scores are capped.
    """
    if asked == "sdpa" and family in SOFT_CAPPED:
        raise ConfigError(
            f"attention=sdpa drops the soft-cap of {family}'s attention: another model.",
            fix="set attention=auto, eager or flex",
        )
    if asked != "auto":
        return asked
    if family not in SOFT_CAPPED:
        return "sdpa"
    modern = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "flex" if modern and has_triton() else "eager"


def implementation(kernel: str) -> str:
    """Return the name that transformers knows a kernel by; registers ours."""
    if kernel != "flex":
        return kernel
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(FLEX, flex_attention_forward)
    AttentionMaskInterface.register(FLEX, _refuse_mask)
    return FLEX


def _refuse_mask(*args: Any, **kwargs: Any) -> Any:
    """Transformers makes no mask for our kernel: batches bring their own."""
    raise RuntimeError("a batch for flex attention lacks its masks (causal_attention.masks)")


@functools.cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def flex_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend with a soft-cap on the scores.

    Args:
        query: (batch, heads, seq_len, head_dim); `key`, `value` with fewer heads.
        attention_mask: A BlockMask of (batch, 1, seq_len, seq_len).

    Returns:
        (batch, seq_len, heads, head_dim), and no weights.
    """
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    def capped(score: Tensor, *_: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    is_plain = torch.compiler.is_compiling() or query.device.type == "cpu"
    attend = flex_attention if is_plain else _compiled_flex()
    # The lengths as those of the tensors: plain numbers would be compiled in, each anew.
    mask = BlockMask(
        (query.shape[2], key.shape[2]),
        *(getattr(attention_mask, name) for name in BLOCK_LISTS),
        BLOCK_SIZE=attention_mask.BLOCK_SIZE,
        mask_mod=attention_mask.mask_mod,
    )
    out = attend(
        query,
        key,
        value,
        score_mod=capped if softcap else None,
        block_mask=mask,
        scale=scaling,
        enable_gqa=key.shape[1] != query.shape[1],
    )
    return out.transpose(1, 2).contiguous(), None


def masks(layout: Layout, *, kernel: str, config: Any, dtype: torch.dtype) -> Any:
    """Return what the model's `attention_mask` takes: one mask, or one per kind of layer.

    Args:
        kernel: eager, sdpa or flex.
        config: The model's; `sliding_window` limits how far a token sees on some layers.
        dtype: Of eager's additive mask.
    """
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if window is not None and _reach(layout) <= window:
        window = None  # nothing is out of its reach
    make = _block_mask if kernel == "flex" else _dense_mask
    full = make(layout, None, dtype)
    if "sliding_attention" not in kinds:
        return full
    near = make(layout, window, dtype) if window is not None else full
    return {"full_attention": full, "sliding_attention": near}


def _reach(layout: Layout) -> int:
    """Return the tokens of the longest sample, padding included."""
    starts = layout.first_tokens()
    return int((np.arange(starts.shape[1]) - starts).max()) + 1


def _visible(layout: Layout, window: int | None, b: Any, q: Any, kv: Any) -> Tensor:
    same = layout.segments[b, q] == layout.segments[b, kv]
    seen = same & (q >= kv)
    return seen if window is None else seen & (q - kv < window)


def _dense_mask(layout: Layout, window: int | None, dtype: torch.dtype) -> Tensor:
    """Return (batch, 1, seq_len, seq_len), 0 where a token sees another, else the lowest number."""
    rows, length = layout.segments.shape
    at = torch.arange(length, device=layout.segments.device)
    batch = torch.arange(rows, device=at.device)[:, None, None]
    seen = _visible(layout, window, batch, at[None, :, None], at[None, None, :])
    mask = torch.zeros(seen.shape, dtype=dtype, device=at.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)[:, None]


def _block_mask(layout: Layout, window: int | None, dtype: torch.dtype) -> Any:
    """Return flex_attention's mask; what `create_block_mask` finds by trying every pair of tokens.

    Its lists of blocks are made on the host, as a token sees an unbroken span that ends in itself.
    """
    from torch.nn.attention.flex_attention import BlockMask

    starts = layout.first_tokens()
    length = starts.shape[1]
    if window is not None:
        starts = np.maximum(starts, np.arange(length) - window + 1)
    device = layout.segments.device
    first = of_any_size(send(torch.from_numpy(starts.astype(np.int32)), device), 1)

    def visible(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (kv >= first[b, q]) & (q >= kv)

    partial, full = _blocks(starts)
    lists = [
        of_any_size(send(torch.from_numpy(array).unsqueeze(1), device), *range(2, array.ndim + 1))
        for blocks in (partial, full, partial.swapaxes(1, 2), full.swapaxes(1, 2))
        for array in _ordered(blocks)
    ]
    return BlockMask((length, length), *lists, BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=visible)


def _blocks(starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (batch, blocks, blocks): which blocks are seen in part, and which by every query.

    Args:
        starts: (batch, seq_len) first token that each sees; it never falls along a row.
    """
    length = starts.shape[1]
    count = -(-length // BLOCK)
    of_keys = np.arange(count)  # (keys' blocks,)
    at = of_keys[:, None]  # (queries' blocks, 1)
    lowest = starts[:, ::BLOCK, None] // BLOCK  # (batch, queries' blocks, 1)
    highest = starts[:, np.minimum(BLOCK * (of_keys + 1), length) - 1, None]
    seen = (lowest <= of_keys) & (of_keys <= at)
    whole = BLOCK * (at + 1) <= length  # the last block may be cut
    full = seen & (highest <= BLOCK * of_keys) & (of_keys < at) & whole
    return seen & ~full, full


def _ordered(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how many blocks each row has, and their numbers before those of the others."""
    numbers = np.argsort(~blocks, axis=-1, kind="stable")
    return blocks.sum(-1, dtype=np.int32), numbers.astype(np.int32)


def of_any_size(tensor: Tensor, *dims: int) -> Tensor:
    """Tell torch.compile that these dimensions vary; else it makes code for the first sizes too."""
    import torch._dynamo

    torch._dynamo.maybe_mark_dynamic(tensor, list(dims))
    return tensor
