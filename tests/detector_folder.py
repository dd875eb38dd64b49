"""Tiny detectors with random weights, as checkpoints of a made-up run."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from detector_on_disk import write_detector

from nbhelpers.data.samples.styles import load_style_rows

STEP = "step-00000200"
SEQ_LEN, WORDS, SIZE = 60, 300, 16


@cache
def tokenizer() -> Any:
    """A tokenizer of a few words, trained on the sample."""
    from nbhelpers.jobs.models.inputs import ROBERTA_TOKENS, train_bpe

    texts = [row["code"] for row in load_style_rows()[:60]]
    return train_bpe(texts, WORDS, special_tokens=ROBERTA_TOKENS, collapse=False)


def tiny_config(family: str) -> Any:
    """The configuration of an encoder of one layer (ModernBERT: a global and a local one)."""
    import transformers as tf

    sizes = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 4, "intermediate_size": 64, "pad_token_id": 1}
    if family == "t5":
        inner = {"d_model": 32, "d_kv": 8, "num_layers": 1, "num_heads": 4, "d_ff": 64}
        return tf.T5Config(vocab_size=WORDS, pad_token_id=1, eos_token_id=2, **inner)
    if family == "modernbert":
        ends = {"bos_token_id": 0, "cls_token_id": 0, "eos_token_id": 2, "sep_token_id": 2}
        local = {"local_attention": 8, "global_attn_every_n_layers": 2}
        sizes |= {"num_hidden_layers": 2, "max_position_embeddings": SEQ_LEN}
        return tf.ModernBertConfig(**sizes, **ends, **local)
    if family == "bert":
        return tf.BertConfig(max_position_embeddings=SEQ_LEN, **sizes)
    return tf.RobertaConfig(max_position_embeddings=SEQ_LEN + 2, type_vocab_size=1, **sizes)


def make_detector(
    folder: Path,
    family: str = "roberta",
    *,
    objective: str = "both",
    pooling: str = "mean",
    similarity_pooling: str = "same",
) -> Path:
    """Write a folder that `load_detector` reads."""
    import torch
    from safetensors.torch import save_file

    from nbhelpers.jobs.models.detector import HEADS, DetectorModel
    from nbhelpers.jobs.models.encoders import new_encoder

    folder.mkdir(parents=True)
    torch.manual_seed(0)
    config = tiny_config(family)
    heads = {"dropout": 0.1, "projection_size": SIZE, "pooling": pooling, "objective": objective}
    heads |= {"similarity_pooling": similarity_pooling}
    model = DetectorModel(new_encoder(config), **heads)
    with torch.no_grad():
        for parameter in model.parameters():  # logits of a size that trained models have
            parameter.add_(torch.randn_like(parameter) * 0.3)
        model.standardise(torch.randn(50, len(model.centre)) * 0.2 + 3.0)
        if model.has_rarity:
            model.rarity.copy_(torch.rand(WORDS))
    state = {name: value.contiguous().clone() for name, value in model.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    told = {"format": 1, "canonical": "text", "seq_len": SEQ_LEN, "heads": list(HEADS[objective])}
    told |= {"pooling": pooling, "objective": objective, "projection_size": SIZE}
    told |= {"similarity_pooling": similarity_pooling}
    (folder / "detector.json").write_text(json.dumps(told))
    return folder


def make_run(folder: Path, family: str = "roberta", **options: Any) -> Path:
    """Write a finished run with one checkpoint."""
    write_detector(folder)
    make_detector(folder / "checkpoints" / STEP, family, **options)
    index = json.dumps({"last": STEP, "best": STEP})
    (folder / "checkpoints" / "index.json").write_text(index)
    return folder
