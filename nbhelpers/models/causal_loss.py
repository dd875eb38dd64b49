"""Cross-entropy over a large vocabulary, some tokens at a time: the whole logits never exist.

Only supervised tokens reach the head. Each chunk's logits, loss and gradient are computed and
dropped before the next, so memory does not grow with the tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Source: 2,048 x 256,000 logits are 1 GiB in bf16; larger chunks gained nothing on an H100.
CHUNK_BYTES = 2**30
# The gradients of single logits are below fp16's smallest numbers; powers of two lose nothing.
FP16_SCALE = 1024.0


def chunk_size(vocab_size: int, bytes_per_logit: int) -> int:
    """Return how many tokens' logits fit into `CHUNK_BYTES`, a multiple of 128."""
    return max(128, CHUNK_BYTES // (vocab_size * bytes_per_logit) // 128 * 128)


def cross_entropy_sum(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    soft_cap: float | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Return the summed cross-entropy of a linear head, as a scalar in fp32 (fp64 for fp64).

    Args:
        hidden: (n, hidden) inputs of the head; its gradient is computed.
        weight: (vocab, hidden) of the head, frozen: it gets no gradient.
        targets: (n,) right words.
        soft_cap: Gemma-2's cap on the logits, cap x tanh(logits / cap).
        chunk: Tokens at a time; None: by `CHUNK_BYTES`.

    Source: the gradient of the loss by the logits is softmax - one-hot; through the cap it is
    multiplied by 1 - tanh^2.
    """
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    hidden = hidden.to(weight.dtype)
    size = chunk or chunk_size(weight.shape[0], weight.element_size())
    return _ChunkedCrossEntropy.apply(hidden, weight, targets, soft_cap, size)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Computes the gradient in the forward pass, when a chunk's logits are there."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        soft_cap: float | None,
        chunk: int,
    ) -> Tensor:
        wants = hidden.requires_grad
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        total = torch.zeros((), dtype=wide, device=hidden.device)
        gradient = torch.empty_like(hidden) if wants else None
        scale = FP16_SCALE if hidden.dtype == torch.float16 else 1.0
        step = _step(hidden)
        for start in range(0, len(targets), chunk):
            part, wanted = hidden[start : start + chunk], targets[start : start + chunk]
            loss, slope = step(part @ weight.T, wanted, soft_cap, scale, wants)
            total += loss
            if gradient is not None:
                gradient[start : start + chunk] = (slope @ weight).div_(scale)
            del slope  # else it is alive beside the next chunk's logits
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        if gradient is None:
            return None, None, None, None, None
        # A scaled loss may hand down more than fp16 can hold.
        wide = gradient if gradient.dtype == torch.float64 else gradient.float()
        return (wide * upstream).to(gradient.dtype), None, None, None, None


def _chunk_step(
    logits: Tensor, targets: Tensor, soft_cap: float | None, scale: float, wants: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the summed loss of a chunk, and its gradient by the logits times `scale`."""
    values = logits if logits.dtype == torch.float64 else logits.float()
    bent = None
    if soft_cap is not None:
        bent = torch.tanh(values / soft_cap)
        values = soft_cap * bent
    log_sum = torch.logsumexp(values, dim=-1, keepdim=True)
    loss = (log_sum - values.gather(-1, targets[:, None])).sum()
    if not wants:
        return loss, None
    slope = torch.exp(values - log_sum)
    columns = torch.arange(values.shape[-1], device=values.device)
    slope = slope - (columns == targets[:, None]).to(slope.dtype)
    if bent is not None:
        slope = slope * (1 - bent * bent)
    return loss, (slope * scale).to(logits.dtype)


_compiled: dict[str, Callable[..., Any]] = {}


def _step(hidden: Tensor) -> Callable[..., Any]:
    """Return the step, compiled into few kernels on a GPU with Triton."""
    from nbhelpers.models.causal_attention import has_triton

    if hidden.device.type != "cuda" or not has_triton():
        return _chunk_step
    if "step" not in _compiled:
        _compiled["step"] = torch.compile(_chunk_step, dynamic=True)
    return _compiled["step"]
