"""Calls that take another path on CUDA than on tensors without storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from nbhelpers.simulate import attention
from nbhelpers.simulate.autocast import Autocast, without_autocast
from nbhelpers.simulate.shadow import is_small

if TYPE_CHECKING:
    from nbhelpers.simulate.tracker import Tracker

aten = torch.ops.aten
_T = torch.Tensor
HALF_TO_FLOAT = {
    function: op
    for op, functions in (
        (aten._softmax, (torch.softmax, _T.softmax)),
        (aten._log_softmax, (torch.log_softmax, _T.log_softmax)),
    )
    for function in functions
}


class CudaPaths:
    """The part of the masquerade that does what only CUDA does."""

    tracker: Tracker
    casts: Autocast

    def _softmax(self, func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        """CUDA reads fp16 and writes fp32 in one kernel, without a copy of the input."""
        x = args[0]
        if kwargs.get("dtype") is torch.float32 and x.dtype is torch.float16 and x.is_meta:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            return HALF_TO_FLOAT[func](x, dim, True)
        return func(*args, **kwargs)

    def _cross_entropy(
        self, x: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """Under autocast its log-softmax keeps the input's type, and its nll_loss is in fp32.

        Source: aten/src/ATen/native/LossNLL.cpp, cross_entropy_loss_prob_target's neighbours;
        measured with BERT in bf16.
        """
        function = torch._C._nn.cross_entropy_loss
        if not (torch.is_autocast_enabled("cuda") and x.dtype in (torch.float16, torch.bfloat16)):
            return function(x, target, *args, **kwargs)
        names = ("weight", "reduction", "ignore_index", "label_smoothing")
        given = dict(zip(names, args, strict=False)) | kwargs
        if target.is_floating_point():
            return function(x, target, **given)
        smoothing = given.pop("label_smoothing", 0.0)
        dim = 0 if x.dim() == 1 else 1
        logs = torch.log_softmax(x, dim)
        loss = torch._C._nn.nll_loss_nd(logs.float(), target, **given)
        if smoothing:
            smooth = -logs.sum(dim, dtype=torch.float32)
            loss = (1 - smoothing) * loss + smooth.mean() * smoothing
        return loss

    def _one_hot(self, x: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        """CUDA scatters ones into zeros."""
        if not x.is_meta or num_classes <= 0:
            return torch._C._nn.one_hot(self._real(x), num_classes).to(x.device)
        made = torch.zeros((*x.shape, num_classes), dtype=x.dtype, device="meta")
        return made.scatter_(-1, x.unsqueeze(-1), 1)

    def _rms_norm(
        self, x: torch.Tensor, shape: Any, weight: Any = None, eps: float | None = None
    ) -> torch.Tensor:
        """CUDA has a kernel of its own from torch 2.9 on, where the types agree."""
        fused = getattr(aten, "_fused_rms_norm", None)
        same = weight is None or weight.dtype is x.dtype
        if not x.is_meta or fused is None or attention.torch_version() < (2, 9) or not same:
            return torch.rms_norm(x, shape, weight, eps)
        return fused(x, list(shape), weight, eps)[0]

    def _dropout(self, x: torch.Tensor, p: float = 0.5, train: bool = True) -> torch.Tensor:
        if x.is_meta and train and 0 < p < 1 and x.numel():
            return torch.native_dropout(x, p, True)[0]
        return torch.dropout(x, p, train)

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
            query, key, value = (self.casts.cast(t, dtype) for t in (query, key, value))
            attn_mask = self.casts.cast(attn_mask, dtype)
        if not query.is_meta:
            return F.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask,
                dropout_p,
                is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
            )
        call = attention.Attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        )
        with self, without_autocast():  # what it does inside is seen too
            return attention.attend(call, self.tracker.state.card)

    def _attention_choice(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> int:
        call = attention.Attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        )
        return attention.choose(call, self.tracker.state.card)

    def _assumed(self, x: torch.Tensor, truth: bool) -> torch.Tensor:
        """A step that goes well has finite numbers only."""
        out = torch.isfinite(x) if truth else torch.isnan(x)
        if x.is_meta and not self.tracker.shadows.has(out) and is_small(out):
            self.tracker.shadows.keep(out, torch.full(out.shape, truth))
        return out
