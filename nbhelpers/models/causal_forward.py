"""The forward pass of training: hidden states, then the loss, through the model's own `forward`.

DDP and PEFT wrap the model, so the loss must come out of the wrapped call. The model's `forward` is
replaced on the instance; blocks may be compiled, and both are undone for generation.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutput

from nbhelpers.models.causal_attention import implementation, masks, of_any_size
from nbhelpers.models.causal_batches import Layout, MicroBatch
from nbhelpers.models.causal_loss import cross_entropy_sum


class TrainingForward:
    """Makes a causal model return the summed loss of supervised tokens.

    Args:
        model: The bare model, `Gemma2ForCausalLM` for example; adapters may live in its layers.
        kernel: eager, sdpa or flex.
        loss: chunked or plain.
        dtype: Of the residual stream, for eager's mask.
    """

    def __init__(self, model: Any, *, kernel: str, loss: str, dtype: torch.dtype) -> None:
        self.model, self.kernel, self.loss, self.dtype = model, kernel, loss, dtype
        self._layers: list[tuple[Any, Any]] = []

    def inputs(self, batch: MicroBatch) -> dict[str, Any]:
        """Return what the model is called with."""
        return {"input_ids": batch.ids, "learned": batch.learned} | self.placed(batch.layout)

    def placed(self, layout: Layout) -> dict[str, Any]:
        """Return masks and positions of a layout."""
        mask = masks(layout, kernel=self.kernel, config=self.model.config, dtype=self.dtype)
        return {"attention_mask": mask, "position_ids": layout.positions}

    def hidden(self, ids: Tensor, layout: Layout) -> Tensor:
        """Return the last hidden states, (rows, width, hidden)."""
        called = self.placed(layout)
        return self.model.model(input_ids=ids, use_cache=False, **called).last_hidden_state

    def _forward(
        self,
        model: Any,
        input_ids: Tensor,
        learned: tuple[Tensor, Tensor],
        attention_mask: Any,
        position_ids: Tensor,
    ) -> CausalLMOutput:
        states = model.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=False,
        ).last_hidden_state
        cap = getattr(model.config, "final_logit_softcapping", None)
        at, targets = learned
        if self.loss == "chunked":
            flat = states.reshape(-1, states.shape[-1])
            loss = cross_entropy_sum(flat[at], model.lm_head.weight, targets, soft_cap=cap)
        else:
            loss = plain_loss(model.lm_head(states), at, targets, cap)
        return CausalLMOutput(loss=loss)

    @contextmanager
    def active(self, *, compiled: bool = False) -> Iterator[None]:
        """Have the model compute losses inside this context, its blocks compiled or not."""
        _set_attention(self.model, implementation(self.kernel))

        def forward(
            this: Any,
            input_ids: Tensor | None = None,
            learned: Any = None,
            attention_mask: Any = None,
            position_ids: Tensor | None = None,
            **_: Any,
        ) -> CausalLMOutput:
            return self._forward(this, input_ids, learned, attention_mask, position_ids)

        self.model.forward = types.MethodType(forward, self.model)
        if compiled:
            self._compile()
        try:
            yield
        finally:
            del self.model.forward
            for layer, _ in self._layers:
                del layer.forward
            self._layers = []

    def _compile(self) -> None:
        import torch._dynamo

        # The blocks share two compiled codes, with gradients and without; some families need more.
        torch._dynamo.config.recompile_limit = 32
        for layer in self.model.model.layers:
            self._layers.append((layer, layer.forward))
            layer.forward = torch.compile(layer.forward)
        first = self.model.model.layers[0]
        first.forward = _like_the_others(first.forward)


def _like_the_others(forward: Any) -> Any:
    """Have the first block compiled so that its code serves all blocks and widths.

    It alone gets states that need no gradient, and it is the one whose sizes torch.compile sees
    first.
    """

    def call(states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and not states.requires_grad:
            states = states.detach().requires_grad_()
        of_any_size(states, 1)
        for table in kwargs.get("position_embeddings") or ():
            of_any_size(table, 1)
        if isinstance(mask := kwargs.get("attention_mask"), Tensor):
            of_any_size(mask, 2, 3)
        return forward(states, *args, **kwargs)

    return call


def plain_loss(logits: Tensor, at: Tensor, targets: Tensor, soft_cap: float | None) -> Tensor:
    """Return the summed loss from the logits of all tokens, as the library computes it.

    Args:
        logits: (rows, width, vocab).
        at: (n,) positions into the flattened rows whose next token is supervised.
    """
    if soft_cap is not None:
        logits = torch.tanh(logits / soft_cap) * soft_cap
    told = logits.reshape(-1, logits.shape[-1])[at].float()
    return torch.nn.functional.cross_entropy(told, targets, reduction="sum")


def _set_attention(model: Any, name: str) -> None:
    """Switch the attention of a model and of its parts."""
    model.config._attn_implementation = name
    for part in model.modules():
        config = getattr(part, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            config._attn_implementation = name


@contextmanager
def generating(model: Any, kernel: str) -> Iterator[None]:
    """Use a kernel that works with a cache, eager or SDPA, inside this context."""
    before = model.config._attn_implementation
    _set_attention(model, kernel)
    try:
        yield
    finally:
        _set_attention(model, before)


def generation_kernel(family: str) -> str:
    """Return the attention for generation: eager where scores are capped, else SDPA."""
    from nbhelpers.models.causal_attention import SOFT_CAPPED

    return "eager" if family in SOFT_CAPPED else "sdpa"
