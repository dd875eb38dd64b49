"""Generation of our fine-tuning under simulation: the prompts, then an answer's last token.

The cache grows by one token at a time, so memory is highest at the first pass over the prompts or
at the last token of the longest answers; what lies between is not computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from nbhelpers.models.causal import CausalBase
    from nbhelpers.schema import FinetuneSettings


@torch.inference_mode()
def generate_longest(
    model: Any, base: CausalBase, settings: FinetuneSettings, precision: str
) -> None:
    """Compute as `jobs.generate` does with prompts of `seq_len` tokens and the longest answers."""
    from transformers import DynamicCache

    from nbhelpers.jobs.generate import _numbers, for_generation

    device = next(model.parameters()).device
    rows, width = settings.generation_batch_size, settings.seq_len
    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    with _numbers(device, precision), for_generation(bare):
        _next_token(model, DynamicCache(config=base.config), rows, width, width, device)
        length = width + settings.max_new_tokens
        _next_token(model, _full_cache(model, base, rows, length), rows, 1, length, device)


def _next_token(
    model: Any, cache: Any, rows: int, width: int, length: int, device: torch.device
) -> None:
    """Compute the word behind `length` tokens, of which the last `width` are not in the cache."""
    ids = torch.full((rows, length), 4).to(device)
    mask = torch.ones((rows, length), dtype=torch.long).to(device)
    positions = mask.cumsum(-1) - 1
    logits = model(
        input_ids=ids[:, -width:],
        attention_mask=mask,
        position_ids=positions[:, -width:],
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits
    scores = logits[:, -1].to(torch.float32, copy=True)
    torch.cat([ids, scores.argmax(-1, keepdim=True)], dim=-1)


def _full_cache(model: Any, base: CausalBase, rows: int, length: int) -> Any:
    """Return keys and values of all but the last token."""
    from transformers import DynamicCache

    config = base.config
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shape = (rows, config.num_key_value_heads, length - 1, size)
    weight = model.get_input_embeddings().weight
    cache = DynamicCache(config=config)
    for layer in range(config.num_hidden_layers):
        cache.update(*(weight.new_empty(shape) for _ in range(2)), layer)
    return cache
