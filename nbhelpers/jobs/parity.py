"""Proof before training: samples in one batch under the chosen attention, against one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nbhelpers.models.causal_batches import make_batch, row_multiple
from nbhelpers.models.causal_forward import TrainingForward
from nbhelpers.models.causal_text import TextTable

if TYPE_CHECKING:
    from nbhelpers.jobs.finetune import Adapted

SAMPLES, MOST_TOKENS = 4, 2048
# Of the last hidden states, as ||a - b|| / ||b||. Source: rounding of 26 layers in bf16 gives some
# thousandths; a dropped soft-cap or samples that see each other give more than a tenth.
LIMITS = {torch.float32: 5e-4, torch.bfloat16: 4e-2, torch.float16: 1e-2}


@torch.no_grad()
def prove(
    adapted: Adapted, table: TextTable, *, kernel: str, dtype: torch.dtype, packed: bool
) -> dict[str, Any]:
    """Compare samples in one batch under a kernel with the same one by one under eager attention.

    Args:
        packed: Lay the samples of the batch end to end.

    Returns:
        {attention, samples, tokens, relative_error, limit, top1_agreement, passed}; the agreement
        is of the most likely next token, on supervised positions.
    """
    rows = _some_samples(table)
    model, bare = adapted.model, adapted.bare
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
        found = _hidden(adapted, table, rows, kernel, dtype, device, packed=packed)
        alone = [
            _hidden(adapted, table, rows[i : i + 1], "eager", dtype, device, packed=False)
            for i in range(len(rows))
        ]
        wanted = torch.cat(alone)
        error = float((found - wanted).float().norm() / wanted.float().norm())
        head = bare.lm_head
        same = head(found).argmax(-1) == head(wanted).argmax(-1)
    model.train(was_training)
    limit = LIMITS[dtype]
    return {
        "attention": kernel,
        "samples": len(rows),
        "tokens": len(wanted),
        "relative_error": error,
        "limit": limit,
        "top1_agreement": float(same.float().mean()),
        "passed": bool(error <= limit),
    }


def _some_samples(table: TextTable) -> np.ndarray:
    """Return a few samples of middling length, `MOST_TOKENS` in all at most."""
    order = np.argsort(table.lengths, kind="stable")
    middle = order[len(order) // 2 :][:SAMPLES]
    while len(middle) > 1 and table.lengths[middle].sum() > MOST_TOKENS:
        middle = middle[:-1]
    return middle


def _hidden(
    adapted: Adapted,
    table: TextTable,
    rows: np.ndarray,
    kernel: str,
    dtype: torch.dtype,
    device: torch.device,
    *,
    packed: bool,
) -> torch.Tensor:
    """Return the last hidden states of all tokens of the samples, (tokens, hidden)."""
    forward = TrainingForward(adapted.bare, kernel=kernel, loss="chunked", dtype=dtype)
    multiple = row_multiple(kernel, packed)
    batch = make_batch(
        table, rows, pad_id=adapted.base.pad_id, packed=packed, multiple=multiple
    ).to(device)
    with forward.active():
        states = forward.hidden(batch.ids, batch.layout)
    return states[batch.layout.segments >= 0]
