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
    """Generate as `jobs.generate` does, prompts of `seq_len` tokens and the longest answers."""
    from nbhelpers.jobs.generate import _batch, _numbers, for_generation

    device = next(model.parameters()).device
    rows, width = settings.generation_batch_size, settings.seq_len
    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    with _numbers(device, precision), for_generation(bare):
        _batch(
            model,
            [[4] * width for _ in range(rows)],
            stop_ids=[],  # whether an answer ends hangs on its words
            pad_id=base.pad_id,
            max_new_tokens=2,
            device=device,
        )
        _last_token(model, base, rows, width + settings.max_new_tokens, device)


def _last_token(model: Any, base: CausalBase, rows: int, length: int, device: Any) -> None:
    from transformers import DynamicCache

    config = base.config
    cache = DynamicCache(config=config)
    dtype = next(p.dtype for p in model.parameters() if p.dtype.is_floating_point)
    shape = (rows, config.num_key_value_heads, length - 1, _head_dim(config))
    for layer in range(config.num_hidden_layers):
        keys, values = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
        cache.update(keys, values, layer)
        del keys, values
    ids = torch.full((rows, length), base.pad_id).to(device)
    logits = model(
        input_ids=ids[:, -1:],
        attention_mask=torch.ones((rows, length), dtype=torch.long).to(device),
        position_ids=torch.full((rows, 1), length - 1).to(device),
        past_key_values=cache,
        use_cache=True,
    ).logits
    torch.cat([ids, logits[:, -1].float().argmax(-1, keepdim=True)], dim=-1)


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
