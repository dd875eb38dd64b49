"""A tiny Gemma 2 and samples for it, for tests of the worker side."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from nbhelpers.jobs.models.causal import CausalBase
from nbhelpers.jobs.models.causal_batches import TextTable

VOCAB, END, PAD = 300, 2, 0


def tiny_gemma(*, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Any:
    """Return a Gemma 2 with two layers; a larger `scale` of the weights makes the caps matter."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        query_pre_attn_scalar=8,
        max_position_embeddings=256,
        sliding_window=16,
        pad_token_id=PAD,
        eos_token_id=END,
        bos_token_id=1,
        attn_implementation="eager",
    )
    torch.manual_seed(seed)
    model = Gemma2ForCausalLM(config).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "proj" in name:
                parameter.mul_(scale)
    return model.requires_grad_(False).eval()


def tiny_base(**options: Any) -> CausalBase:
    """Return the tiny model as a base; its tokenizer knows two tokens."""
    model = tiny_gemma(**options)
    tokenizer = SimpleNamespace(pad_token_id=PAD, eos_token_id=END)
    return CausalBase(model=model, tokenizer=tokenizer, config=model.config)


def tiny_table(count: int = 12, *, seed: int = 0, longest: int = 40) -> TextTable:
    """Return samples of random words: a prompt of a third, and an answer with its end."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(6, longest, size=count)
    ids = [np.append(draw.integers(5, VOCAB, size=n - 1), END) for n in lengths]
    return TextTable(
        ids=[row.astype(np.int64) for row in ids],
        prompt_lengths=lengths // 3,
        rows=list(range(count)),
        full_lengths=lengths,
    )
