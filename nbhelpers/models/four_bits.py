"""A base in 4 bits (NF4, double quantisation) for QLoRA, by bitsandbytes."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

HEAD = "lm_head"  # stays in 16 bits: it is the embedding


def silence_bitsandbytes() -> None:
    """Keep bitsandbytes from complaining about CPU kernels that it does not need."""
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def four_bits(dtype: torch.dtype) -> Any:
    """Return QLoRA's quantisation: NF4, double quantisation, computing in `dtype`."""
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def quantise(model: Any, dtype: torch.dtype) -> None:
    """Replace the linear layers of a model in memory, but its head, by 4-bit ones.

    The numbers are quantised when the model is moved to its device. Weights from a folder take
    transformers' own way; this is for models that were made here.
    """
    import bitsandbytes as bnb

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Linear or name == HEAD:
                continue
            layer = bnb.nn.Linear4bit(
                child.in_features,
                child.out_features,
                bias=child.bias is not None,
                compute_dtype=dtype,
                compress_statistics=True,
                quant_type="nf4",
                device="meta",
            )
            layer.weight = bnb.nn.Params4bit(
                child.weight.data, requires_grad=False, compress_statistics=True, quant_type="nf4"
            )
            if child.bias is not None:
                layer.bias = nn.Parameter(child.bias.data, requires_grad=False)
            # Weights on a GPU already are quantised by moving them there once more.
            setattr(parent, name, layer.to(child.weight.device))
    model.is_loaded_in_4bit = True


def keep_as_stored(model: Any) -> None:
    """Let 4-bit layers compute on a CPU from the weights as they were quantised.

    In evaluation bitsandbytes (0.50) packs them anew on CPUs with AVX512-BF16: their scales are
    rounded to bf16, so that training after an evaluation goes on with another base, and a width
    that is no multiple of 64 fails.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
