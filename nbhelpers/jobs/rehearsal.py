"""One forward and backward pass before training: what a GPU's compiler cannot do shows here.

A kernel or a compiled block that fails is told and left for a slower way that gives the same
numbers; running out of memory is no such failure and ends the run as always.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from nbhelpers.models.causal import Adapted
    from nbhelpers.models.causal_batches import MicroBatch
    from nbhelpers.models.causal_forward import TrainingForward

LONGEST_REASON = 300  # characters of a compiler's message


def rehearse(
    adapted: Adapted,
    forward: TrainingForward,
    batch: MicroBatch,
    *,
    accelerator: Any,
    compiled: bool,
    checkpointing: bool = False,
) -> str:
    """Return why a pass over a micro-batch fails, or nothing where it works; no gradient stays.

    Args:
        batch: Of the training, on any device.
        compiled: Compile the blocks, as the training would.
        checkpointing: Compute blocks anew in the backward pass, as the training would; it stays on.

    Raises:
        torch.OutOfMemoryError: The micro-batch is too large.
    """
    model = adapted.model
    if checkpointing:
        how = {"use_reentrant": False}
        adapted.bare.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
    model.train()
    try:
        with forward.active(compiled=compiled), accelerator.autocast():
            loss = model(**forward.inputs(batch.to(accelerator.device))).loss
            loss.backward()
        problem = "" if bool(torch.isfinite(loss)) else "the loss is not finite"
    except Exception as error:
        if is_out_of_memory(error):
            raise
        problem = reason(error)
    for parameter in model.parameters():
        parameter.grad = None
    return problem


def is_out_of_memory(error: Exception) -> bool:
    """Say whether an error is want of memory, whichever library words it."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        "out of memory" in str(error).lower()
    )


def reason(error: Exception) -> str:
    """Return an error in one short line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:LONGEST_REASON]
