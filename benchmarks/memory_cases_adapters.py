"""Adapters and quantised bases of the memory grid, made as PEFT's and bitsandbytes' users do."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import nn

_PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def quantise(model: nn.Module, case: dict[str, Any], device: str) -> None:
    """Replace the linear layers, all but the head, by 4-bit or 8-bit ones, one after the other."""
    compute = getattr(torch, case["compute"] or case["autocast"] or case["weights"])
    for name, linear in list(model.named_modules()):
        if not isinstance(linear, nn.Linear) or "head" in name:
            continue
        parent, _, last = name.rpartition(".")
        new = _four_bits if case["quantise"] == "nf4" else _eight_bits
        setattr(model.get_submodule(parent), last, new(linear, compute, device))
    if case["quantise"] == "nf4":
        model.is_loaded_in_4bit = True
    else:
        model.is_loaded_in_8bit = True
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def _four_bits(linear: nn.Linear, compute: torch.dtype, device: str) -> nn.Module:
    import bitsandbytes as bnb

    sizes = (linear.in_features, linear.out_features)
    options = {"quant_type": "nf4", "compress_statistics": True}
    layer = bnb.nn.Linear4bit(
        *sizes, bias=linear.bias is not None, compute_dtype=compute, device="meta", **options
    )
    layer.weight = bnb.nn.Params4bit(
        linear.weight.data, requires_grad=False, module=layer, **options
    ).to(device)
    layer.bias = linear.bias
    return layer


def _eight_bits(linear: nn.Linear, compute: torch.dtype, device: str) -> nn.Module:
    import bitsandbytes as bnb

    layer = bnb.nn.Linear8bitLt(
        linear.in_features,
        linear.out_features,
        bias=linear.bias is not None,
        has_fp16_weights=False,
        threshold=6.0,
        device="meta",
    )
    layer.weight = bnb.nn.Int8Params(
        linear.weight.data, requires_grad=False, has_fp16_weights=False
    ).to(device)
    layer.bias = linear.bias
    return layer


def prepare(model: nn.Module, case: dict[str, Any]) -> nn.Module:
    """Make a quantised model ready as PEFT's guide says: norms and embedding in fp32."""
    from peft import prepare_model_for_kbit_training

    options: dict[str, Any] = {"use_gradient_checkpointing": bool(case["checkpointing"])}
    if case["checkpointing"]:
        reentrant = case["checkpointing"] == "reentrant"
        options["gradient_checkpointing_kwargs"] = {"use_reentrant": reentrant}
    return prepare_model_for_kbit_training(model, **options)


def adapt(model: nn.Module, adapter: dict[str, Any]) -> nn.Module:
    """Wrap a model with the adapter that a case describes."""
    import peft

    values = dict(adapter)
    kind, in_fp32 = values.pop("kind"), values.pop("fp32", True)
    values = {"task_type": "CAUSAL_LM"} | values
    if kind == "lora":
        values = {"r": 16, "lora_dropout": 0.05, "target_modules": _PROJECTIONS} | values
        values.setdefault("lora_alpha", 2 * values["r"])
    elif kind in ("vera", "loha"):
        values = {"r": 16, "target_modules": ["q_proj", "v_proj"]} | values
    names = {"lora": "LoraConfig", "ia3": "IA3Config", "prefix": "PrefixTuningConfig"}
    names |= {"prompt": "PromptTuningConfig", "vera": "VeraConfig", "loha": "LoHaConfig"}
    config = getattr(peft, names[kind])(**values)
    return peft.get_peft_model(model, config, autocast_adapter_dtype=in_fp32)
