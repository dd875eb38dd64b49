"""What a fine-tuning works on: its texts as tokens, and a base model with its adapter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nbhelpers.data.coding_tasks import CodingTask
from nbhelpers.data.instructions import InstructionData
from nbhelpers.models.causal import CausalBase
from nbhelpers.models.causal_text import TextTable


@dataclass(slots=True, kw_only=True)
class Inputs:
    """The data of one run: texts, their tokens by split, and the problems of pass@1."""

    data: InstructionData
    tables: dict[str, TextTable]
    tokenizer: Any
    tasks: dict[str, list[CodingTask]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Adapted:
    """A base model with its adapter: `model` is what is called, `bare` the model inside."""

    base: CausalBase
    model: Any
    facts: dict[str, Any]

    @property
    def bare(self) -> Any:
        """The language model itself; adapters live in its layers."""
        return self.base.model

    def to(self, device: Any) -> Adapted:
        """Move what is called to a device."""
        self.model.to(device)
        return self
