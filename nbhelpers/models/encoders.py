"""Build encoder and tokenizer: the hub's weights, a local folder, or the small `smoke` model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nbhelpers.errors import ConfigError
from nbhelpers.models.clones import CloneModel, set_dropout
from nbhelpers.models.inputs import train_bpe
from nbhelpers.models.weights import Weights, find_weights
from nbhelpers.schema import ClonesSettings
from nbhelpers.shapes import SMOKE

NEW_TOKENIZER_VOCAB = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokeniser:
    """A tokenizer and the model configuration that it belongs to."""

    tokenizer: Any
    config: Any
    weights: Weights | None
    note: str


def build_tokenizer(settings: ClonesSettings, train_texts: Sequence[str]) -> Tokeniser:
    """Return tokenizer and configuration; `smoke` and bare folders train a tokenizer first.

    Raises:
        ConfigError: Not an architecture that this job encodes, or seq_len exceeds its positions.
    """
    is_smoke = settings.model == "smoke"
    found = _smoke(train_texts) if is_smoke else _pretrained(settings, train_texts)
    positions = found.config.n_positions
    if settings.seq_len > positions:
        raise ConfigError(
            f"seq_len={settings.seq_len} exceeds the {positions} positions of {settings.model}.",
            fix=f"set seq_len to {positions} or less",
        )
    set_dropout(found.config, settings.dropout)
    return found


def _smoke(train_texts: Sequence[str]) -> Tokeniser:
    from transformers import GPT2Config

    tokenizer = train_bpe(train_texts, SMOKE.vocab)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=SMOKE.positions,
        n_embd=SMOKE.hidden,
        n_layer=SMOKE.layers,
        n_head=SMOKE.heads,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    note = f"byte-level BPE of {len(tokenizer)} words, trained on the train functions"
    return Tokeniser(tokenizer=tokenizer, config=config, weights=None, note=note)


def _pretrained(settings: ClonesSettings, train_texts: Sequence[str]) -> Tokeniser:
    from transformers import AutoConfig, AutoTokenizer

    weights = find_weights(
        settings.model, settings.model_revision, with_weights=not settings.random_weights
    )
    if not (weights.folder / "config.json").is_file():
        raise ConfigError(
            f"{settings.model} holds no config.json.", fix="give the folder of a Hugging Face model"
        )
    config = AutoConfig.from_pretrained(weights.folder)
    if config.model_type != "gpt2":
        raise ConfigError(
            f"{settings.model} is a {config.model_type!r} model; this job encodes GPT-2 models.",
            fix="use model=codegpt or another GPT-2 checkpoint",
        )
    if list(weights.folder.glob("tokenizer.json")) or (weights.folder / "vocab.json").is_file():
        tokenizer = AutoTokenizer.from_pretrained(weights.folder)
        note = f"{type(tokenizer).__name__} of {weights.name}"
    elif settings.random_weights:
        tokenizer = train_bpe(train_texts, NEW_TOKENIZER_VOCAB)
        config.vocab_size = len(tokenizer)
        note = f"byte-level BPE of {len(tokenizer)} words, trained on the train functions"
    else:
        raise ConfigError(
            f"{settings.model} holds no tokenizer.", fix="put tokenizer.json beside config.json"
        )
    # With a pad id, transformers looks for padding in every forward pass: a host-device sync.
    config.pad_token_id = None
    return Tokeniser(tokenizer=tokenizer, config=config, weights=weights, note=note)


def build_clone_model(
    settings: ClonesSettings,
    found: Tokeniser,
    *,
    pretrain: Callable[[Any], Any] | None = None,
) -> CloneModel:
    """Return the clone model in fp32: pretrained encoder, new head. Seed before you call.

    Args:
        pretrain: Given the `smoke` configuration, returns its pre-trained encoder.
    """
    import torch
    from transformers import AutoModel, GPT2Model

    attention = "eager" if settings.attention == "eager" else "sdpa"
    found.config._attn_implementation = attention
    if attention == "sdpa" and found.config.activation_function == "gelu_new":
        # The same formula in one kernel; under autocast `gelu_new` computes it in fp32, in eight.
        found.config.activation_function = "gelu_pytorch_tanh"
    if settings.model == "smoke" and settings.pretrain_steps and pretrain is not None:
        encoder = pretrain(found.config)
    elif settings.model == "smoke" or settings.random_weights:
        encoder = GPT2Model(found.config)
    else:
        encoder = AutoModel.from_pretrained(
            found.weights.folder,
            config=found.config,
            dtype=torch.float32,
            attn_implementation=attention,
        )
    if settings.gradient_checkpointing:
        encoder.gradient_checkpointing_enable({"use_reentrant": False})
    return CloneModel(encoder, dropout=found.config.attn_pdrop)
