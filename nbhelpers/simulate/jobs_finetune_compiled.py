"""Compiled code of our fine-tuning under simulation: what it keeps was measured, not traced.

A compiled block keeps less than an eager one, by a choice that only the compiler's partitioner
knows. So a block takes the bytes that the ledger fitted to measured peaks, and gives its adapters
their gradients; everything around it is traced as it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nbhelpers.ledger_finetune import (
    BACKWARD_BYTES,
    FORWARD_BYTES,
    RECOMPUTED_BYTES,
    CausalExtent,
    compiled_block_bytes,
)

if TYPE_CHECKING:
    from nbhelpers.batching import BatchPlan
    from nbhelpers.schema import FinetuneSettings
    from nbhelpers.shapes_causal import CausalShape

NOTE = "Compiled blocks: what each keeps is the ledger's formula, fitted to measured peaks."


class CompiledCode:
    """Stands in for the functions that our fine-tuning compiles.

    Args:
        kernel: Of attention: eager, sdpa or flex.
    """

    def __init__(
        self,
        settings: FinetuneSettings,
        plan: BatchPlan,
        shape: CausalShape,
        *,
        precision: str,
        kernel: str,
        note: Callable[[str], None],
    ) -> None:
        self.settings, self.plan, self.shape, self.note = settings, plan, shape, note
        self.how, self.width = f"{precision} {kernel}", 4 if precision == "fp32" else 2

    def find(self, function: Any) -> Callable[..., Any] | None:
        """Return what takes the place of a compiled function, None for one that is not ours."""
        module, name = getattr(function, "__module__", ""), getattr(function, "__name__", "")
        if (module, name) == ("nbhelpers.models.causal_loss", "_chunk_step"):
            return _fused_step
        layer = getattr(function, "__self__", None)
        is_block = name == "forward" and hasattr(layer, "self_attn") and hasattr(layer, "mlp")
        return self._block(layer) if is_block else None

    def _block(self, layer: Any) -> Callable[..., Any]:
        self.note(NOTE)

        def forward(states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            sizes = self._sizes(states)
            trained = [p for p in layer.parameters() if p.requires_grad]
            if not torch.is_grad_enabled():
                return _without_gradients(states, sizes["forward"])
            return _Block.apply(states, sizes, *trained)

        return forward

    def _sizes(self, states: Tensor) -> dict[str, int]:
        rows, length, _ = states.shape
        tokens = rows * length
        extent = CausalExtent(tokens=tokens, squares=rows * length**2, supervised=0)
        inner = tokens * self.shape.inner * self.width // 2
        again = self.settings.gradient_checkpointing
        kept = compiled_block_bytes(self.settings, self.plan, self.shape, extent, self.how)
        kept -= states.numel() * states.element_size()  # the output is one of its tensors
        return {
            "kept": max(kept, 0),
            "backward": inner * (RECOMPUTED_BYTES if again else BACKWARD_BYTES),
            "forward": inner * FORWARD_BYTES,
        }


def _pieces(size: int, like: Tensor) -> list[Tensor]:
    """Empty tensors of so many bytes in all, no larger than those of an MLP."""
    largest = max(4 * like.numel() * like.element_size(), 1)
    count = -(-size // largest) if size else 0
    return [like.new_empty(size // count, dtype=torch.uint8) for _ in range(count)]


def _without_gradients(states: Tensor, size: int) -> Tensor:
    inside = _pieces(size, states)
    out = torch.empty_like(states)
    del inside
    return out


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, sizes: dict[str, int], *trained: Tensor) -> Tensor:
        out = torch.empty_like(states)
        ctx.save_for_backward(states, *_pieces(sizes["kept"], states))
        ctx.sizes, ctx.trained = sizes, trained
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        states, *_ = ctx.saved_tensors
        inside = _pieces(ctx.sizes["backward"], states)
        grads = [torch.empty_like(p) for p in ctx.trained]
        before = torch.empty_like(states)
        del inside
        return (before, None, *grads)


def _fused_step(
    logits: Tensor, targets: Tensor, soft_cap: float | None, scale: float, wants: bool
) -> tuple[Tensor, Tensor | None]:
    """`causal_loss._chunk_step` in few kernels: sums per token, and the gradient by the logits."""
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    sums = [logits.new_empty((len(logits), 1), dtype=wide) for _ in range(2)]
    loss = logits.new_empty((), dtype=wide)
    slope = torch.empty_like(logits) if wants else None
    del sums
    return loss, slope


__all__ = ["NOTE", "CompiledCode"]
