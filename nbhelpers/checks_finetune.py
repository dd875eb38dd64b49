"""Contradictions between the settings of a fine-tuning that are each valid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Fault = tuple[str, str, str]  # setting, what is wrong, what to type instead
ALL_LINEAR = "all-linear"
SOFT_CAPPED = ("gemma-2-2b", "gemma-2-2b-it", "smoke")  # sdpa would drop the cap on scores
TEMPLATES = ("auto", "alpaca", "plain", "chat")


def finetune_faults(values: Mapping[str, Any], model: str | None) -> Iterator[Fault]:
    """Yield each fault; `model` is the short name, None where it has none."""
    if values.get("attention") == "sdpa" and model in SOFT_CAPPED:
        text = f"attention=sdpa drops the soft-cap of {model}'s attention: another model"
        yield "attention", text, "write auto, eager or flex"
    if values.get("packing") is True and values.get("padding") == "fixed":
        text = "packing=true leaves nothing to pad, and padding is fixed"
        yield "padding", text, "write padding: dynamic, or packing: false"
    if values.get("allow_uneven_split") is True:
        text = "an uneven split is not made in a fine-tuning"
        yield "allow_uneven_split", text, "leave allow_uneven_split at false"
    if values.get("template", "auto") not in TEMPLATES and isinstance(values.get("template"), str):
        text = f"there is no template `{values['template']}`"
        yield "template", text, f"choose one of: {', '.join(TEMPLATES)}"
    names = values.get("lora_target_modules")
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        for text, fix in _target_faults(names):
            yield "lora_target_modules", text, fix


def _target_faults(names: list[str]) -> Iterator[tuple[str, str]]:
    if ALL_LINEAR in names and len(names) > 1:
        text = f"lora_target_modules names {ALL_LINEAR} beside others"
        yield text, f"keep {ALL_LINEAR} alone, or name the layers"
    if {"embed_tokens", "lm_head"} & set(names):
        text = "an adapter on the embedding or the head changes 256,000 words at once"
        yield text, "leave out embed_tokens and lm_head"
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield f"lora_target_modules names {', '.join(twice)} twice", "keep one of each"
    odd = [name for name in names if name != ALL_LINEAR and not name.isidentifier()]
    if odd:
        text = f"lora_target_modules holds {odd[0][:60]!r}, which is no layer's name"
        yield text, "write the last part of a name, such as q_proj; patterns are not read"
