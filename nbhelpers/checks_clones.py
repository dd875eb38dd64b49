"""Contradictions between the settings of clone detection that are each valid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nbhelpers.catalog import GPT2_MODELS, POSITIONS

Fault = tuple[str, str, str]  # setting, what is wrong, what to type instead


def length_faults(values: Mapping[str, Any], model: str | None) -> Iterator[Fault]:
    """Yield that `seq_len` is more than the positions of a model that is known by name."""
    limit, seq_len = POSITIONS.get(model or ""), values.get("seq_len")
    if limit is not None and type(seq_len) is int and seq_len > limit:
        text = f"seq_len={seq_len} is more than the {limit} positions of {values['model']}"
        yield "seq_len", text, f"set seq_len to {limit} or less"


def clones_faults(values: Mapping[str, Any], model: str | None) -> Iterator[Fault]:
    """Yield each fault; `model` is the short name, None where it has none."""
    yield from length_faults(values, model)
    nodes = values.get("data_flow_length")
    if nodes is not None and model in GPT2_MODELS:
        text = (
            f"data_flow_length={nodes}: the model {model} is a GPT-2, which reads plain text only"
        )
        other = "smoke-graphcodebert" if model == "smoke" else "graphcodebert"
        yield "data_flow_length", text, f"leave data_flow_length out, or set model to {other}"
    if values.get("attention") == "flex":
        yield "attention", "attention=flex is for fine-tuning", "write auto or sdpa"
