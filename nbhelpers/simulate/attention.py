"""Which kernel `scaled_dot_product_attention` takes on a card, and what it is given.

Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (order and conditions) and
attention.cpp (masks, padding of head sizes) of PyTorch; on an H200 with torch 2.11 every fp16 and
bf16 call took cuDNN's kernel, every fp32 call the memory-efficient one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from nbhelpers.simulate.cards import Card
from nbhelpers.simulate.kernels_call import torch_version

aten = torch.ops.aten
MATH, FLASH, EFFICIENT, CUDNN = 0, 1, 2, 3  # as torch.nn.attention.SDPBackend counts
_HALF = (torch.float16, torch.bfloat16)


class Attention(NamedTuple):
    """The arguments of one call, after autocast."""

    query: torch.Tensor  # (batch, heads, length, head size)
    key: torch.Tensor  # (batch, key heads, key length, head size)
    value: torch.Tensor
    attn_mask: torch.Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def needs_grad(self) -> bool:
        """Whether a backward pass will follow."""
        inputs = (self.query, self.key, self.value)
        return torch.is_grad_enabled() and any(t.requires_grad for t in inputs)


def choose(call: Attention, card: Card) -> int:
    """Return the number of the kernel, as `torch._fused_sdp_choice` does."""
    order = [FLASH, EFFICIENT, MATH]
    if card.capability // 10 in (9, 10) and torch_version() >= (2, 9):
        order.insert(0, CUDNN)
    else:
        order.append(CUDNN)
    fits = {FLASH: _flash, EFFICIENT: _efficient, CUDNN: _cudnn}
    for kernel in order:
        if kernel == MATH:
            if torch.backends.cuda.math_sdp_enabled():
                return MATH
        elif fits[kernel](call, card):
            return kernel
    raise RuntimeError("No available kernel. Aborting execution.")  # as torch says it


def _dense(call: Attention, *, grouped: bool, singleton_strides: bool) -> bool:
    q, k, v = call.query, call.key, call.value
    if not all(t.dim() == 4 for t in (q, k, v)) or 0 in (q.shape[2], k.shape[2]):
        return False
    if q.dtype != k.dtype or q.dtype != v.dtype or not q.shape[0] == k.shape[0] == v.shape[0]:
        return False
    if not all(t.stride(-1) == 1 or (singleton_strides and t.shape[-1] == 1) for t in (q, k, v)):
        return False
    if q.shape[1] == k.shape[1] == v.shape[1]:
        return True
    return grouped and call.enable_gqa and q.shape[1] % k.shape[1] == 0


def _flash(call: Attention, card: Card) -> bool:
    q, size = call.query, call.query.shape[-1]
    if not torch.backends.cuda.flash_sdp_enabled() or call.attn_mask is not None:
        return False
    if card.capability < 80 or q.dtype not in _HALF or size > 256:
        return False
    if not size == call.key.shape[-1] == call.value.shape[-1]:
        return False
    # The backward kernel of these cards lacks shared memory for wide heads.
    is_small = card.capability // 10 in (8, 12) and card.capability != 80
    if is_small and call.needs_grad and size > 192 and (call.dropout_p > 0 or size <= 224):
        return False
    if call.is_causal and q.shape[-2] != call.key.shape[-2]:
        return False
    return _dense(call, grouped=True, singleton_strides=True)


def _efficient(call: Attention, card: Card) -> bool:
    q, size = call.query, call.query.shape[-1]
    if not torch.backends.cuda.mem_efficient_sdp_enabled() or size != call.key.shape[-1]:
        return False
    if q.dtype not in (*_HALF, torch.float32) or (
        q.dtype is torch.bfloat16 and card.capability < 80
    ):
        return False
    if call.attn_mask is not None and call.attn_mask.requires_grad:
        return False  # a learned bias: measured with T5 in torch 2.11
    is_half = q.dtype in _HALF
    alignment = 4 if card.capability >= 80 else 1
    if card.capability >= 80 or (card.capability >= 70 and is_half):
        alignment = max(alignment, 8 if is_half else 4)
    if size % alignment or call.value.shape[-1] % alignment:
        return False
    return _dense(call, grouped=torch_version() >= (2, 13), singleton_strides=False)


def _cudnn(call: Attention, card: Card) -> bool:
    q, size = call.query, call.query.shape[-1]
    if not torch.backends.cuda.cudnn_sdp_enabled() or q.dtype not in _HALF or card.capability < 80:
        return False
    most = 256 if card.capability // 10 in (9, 10) else 128
    if max(size, call.value.shape[-1]) > most or size % 8 or call.value.shape[-1] % 8:
        return False
    if call.key.shape[2] == 1 or (call.dropout_p and q.shape[2] == 1):
        return False
    if torch.are_deterministic_algorithms_enabled():
        return False
    if call.attn_mask is not None and (
        call.attn_mask.requires_grad or call.attn_mask.dim() not in (2, 4)
    ):
        return False
    if torch_version() >= (2, 13) and (call.dropout_p * 16) % 1:
        return False  # cuDNN draws dropout in steps of 1/16
    return _dense(call, grouped=True, singleton_strides=True)


def attend(call: Attention, card: Card) -> torch.Tensor:
    """Run the kernel that the card would take; (batch, heads, length, value's head size)."""
    kernel = choose(call, card)
    q, k, v, mask = call.query, call.key, call.value, call.attn_mask
    if kernel == FLASH:
        return _run_flash(call)
    if mask is not None and mask.dtype is torch.bool:
        mask = _as_bias(mask, q)
    if kernel == CUDNN:
        return aten._scaled_dot_product_cudnn_attention(
            q, k, v, mask, call.needs_grad, call.dropout_p, call.is_causal, False, scale=call.scale
        )[0]
    if kernel == EFFICIENT:
        if mask is not None:
            mask = _aligned(mask).expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        return aten._scaled_dot_product_efficient_attention(
            q, k, v, mask, call.needs_grad, call.dropout_p, call.is_causal, scale=call.scale
        )[0]
    return _run_math(call, mask)


def _run_math(call: Attention, mask: torch.Tensor | None) -> torch.Tensor:
    """Attention from plain operations: half precision is computed in fp32.

    Source: aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math; its
    additions in place and its fused dropout are CUDA's, not those of tensors without storage.
    """
    q, k, v, dtype = call.query, call.key, call.value, call.query.dtype
    if dtype in _HALF and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
        q, k, v = q.float(), k.float(), v.float()
    root = (q.shape[-1] ** -0.5 if call.scale is None else abs(call.scale)) ** 0.5
    if call.enable_gqa:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    q = q * root
    if call.is_causal:
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        mask = _as_bias(seen, q)
    scores = torch.matmul(q, k.transpose(-2, -1) * root)
    if mask is not None:
        if mask.dtype is not scores.dtype and not mask.is_floating_point():
            mask = mask.to(scores.dtype)
        scores = scores.add_(mask)
    weights = aten._safe_softmax(scores, -1)
    if call.dropout_p > 0:
        weights = torch.native_dropout(weights, call.dropout_p, True)[0]
    out = torch.matmul(weights, v)
    return out.to(dtype)


def _as_bias(seen: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Turn "is seen" into what is added to scores: zero, or minus infinity."""
    lowest = torch.full((), -float("inf"), dtype=query.dtype, device=query.device)
    return torch.where(seen, query.new_zeros(()), lowest)


def _run_flash(call: Attention) -> torch.Tensor:
    """Flash attention takes head sizes that are multiples of 8; others are padded."""
    inputs, size = (call.query, call.key, call.value), call.query.shape[-1]
    scale = call.scale
    if size % 8:
        scale = size**-0.5 if scale is None else scale
        inputs = tuple(F.pad(t, (0, 8 - size % 8)) for t in inputs)
    out = aten._scaled_dot_product_flash_attention(
        *inputs, call.dropout_p, call.is_causal, False, scale=scale
    )[0]
    return out[..., :size] if size % 8 else out


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """Lay a mask out so that each row begins at a multiple of 16 elements."""
    length = mask.shape[-1]
    if length % 16 == 0:
        return mask
    return F.pad(mask, (0, 16 - length % 16))[..., :length]
