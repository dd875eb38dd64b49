"""Tiny models as folders: what the hub holds of a Gemma 2, a RoBERTa and a GPT-2."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, RobertaConfig, RobertaModel

from nbhelpers.jobs.models.inputs import ROBERTA_TOKENS, train_bpe
from tests.causal_tiny import VOCAB, tiny_gemma

TEXTS = ["int f() { return 1; }", "def f(x):\n    return x"] * 9


def write_gemma(folder: Path) -> Path:
    """A causal model with its tokenizer and its weights as safetensors."""
    tiny_gemma().save_pretrained(folder)
    train_bpe(TEXTS, VOCAB, collapse=False).save_pretrained(folder)
    return folder


def write_roberta(folder: Path) -> Path:
    """An encoder: configuration, tokenizer, weights as safetensors."""
    config = RobertaConfig(
        vocab_size=300,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
    )
    RobertaModel(config, add_pooling_layer=False).save_pretrained(folder)
    train_bpe(TEXTS, 300, special_tokens=ROBERTA_TOKENS).save_pretrained(folder)
    return folder


def write_gpt2(folder: Path) -> Path:
    """A causal model as CodeGPT is on the hub: its weights are a pickle."""
    folder.mkdir()
    bpe = train_bpe(TEXTS, 300)
    bpe.save_pretrained(folder)
    config = GPT2Config(vocab_size=len(bpe), n_positions=64, n_embd=16, n_layer=1, n_head=2)
    config.save_pretrained(folder)
    torch.manual_seed(1)
    torch.save(GPT2LMHeadModel(config).state_dict(), folder / "pytorch_model.bin")
    return folder
