"""Attention of causal models on packed rows: which kernel, which mask, and the proof that it fits.

A row may hold several samples end to end. `segments` numbers them, and a token sees the tokens of
its own sample that are not after it. The mask is built here, once per batch, for eager, SDPA and
flex_attention alike, so that all three see the same.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from nbhelpers.errors import ConfigError

FLEX = "nbhelpers_flex"  # the name under which transformers finds our kernel
SOFT_CAPPED = ("gemma2",)  # families whose attention scores are capped
BLOCK = 128  # rows of flex_attention's blocks; packed rows are padded to a multiple


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
    from torch.nn.attention.flex_attention import flex_attention

    def capped(score: Tensor, *_: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    is_plain = torch.compiler.is_compiling() or query.device.type == "cpu"
    attend = flex_attention if is_plain else _compiled_flex()
    out = attend(
        query,
        key,
        value,
        score_mod=capped if softcap else None,
        block_mask=attention_mask,
        scale=scaling,
        enable_gqa=key.shape[1] != query.shape[1],
    )
    return out.transpose(1, 2).contiguous(), None


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the samples of a batch lie: (batch, seq_len) numbers; padding is a sample of its own.

    `positions` count from 0 in each sample.
    """

    segments: Tensor
    positions: Tensor


def masks(layout: Layout, *, kernel: str, config: Any, dtype: torch.dtype) -> Any:
    """Return what the model's `attention_mask` takes: one mask, or one per kind of layer.

    Args:
        kernel: eager, sdpa or flex.
        config: The model's; `sliding_window` limits how far a token sees on some layers.
        dtype: Of eager's additive mask.
    """
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if window is not None and layout.segments.shape[1] <= window:
        window = None  # nothing is out of its reach
    make = _block_mask if kernel == "flex" else _dense_mask
    full = make(layout, None, dtype)
    if "sliding_attention" not in kinds:
        return full
    near = make(layout, window, dtype) if window is not None else full
    return {"full_attention": full, "sliding_attention": near}


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
    from torch.nn.attention.flex_attention import create_block_mask

    rows, length = layout.segments.shape
    segments = layout.segments

    def visible(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        seen = (segments[b, q] == segments[b, kv]) & (q >= kv)
        return seen if window is None else seen & (q - kv < window)

    return create_block_mask(
        visible, rows, None, length, length, device=segments.device, BLOCK_SIZE=BLOCK
    )
