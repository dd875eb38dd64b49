"""Proof before training: packed samples under the chosen attention agree with single ones."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch

from nbhelpers.errors import is_out_of_memory
from nbhelpers.jobs.models.causal_batches import TextTable, make_batch, row_multiple
from nbhelpers.jobs.models.causal_forward import TrainingForward

if TYPE_CHECKING:
    from nbhelpers.jobs.models.causal import Adapted
    from nbhelpers.jobs.models.causal_batches import MicroBatch


# ------------------------------------------------------------------------------------------------
# Proof before training: samples in one batch under the chosen attention, against one by one.
#
# Where a model's scores stay far below its soft-cap, hidden states cannot tell whether a kernel
# caps them. So such a kernel is also asked with larger queries: it has to be nearer to eager
# attention with the cap than to eager attention without it, whatever the weights are.


SAMPLES, MOST_TOKENS = 4, 2048
# Of the last hidden states, as ||a - b|| / ||b||. Source: rounding of 26 layers gave .020 in bf16
# and .002 in fp16; samples that see each other give more than a tenth.
LIMITS = {torch.float32: 5e-4, torch.bfloat16: 4e-2, torch.float16: 1e-2}

# Factors of the queries, until the soft-cap moves what the block attends to by this share.
STRESSES, CAP_MATTERS = tuple(2.0**n for n in range(17)), 0.2


@torch.no_grad()
def prove(
    adapted: Adapted, table: TextTable, *, kernel: str, dtype: torch.dtype, packed: bool
) -> dict[str, Any]:
    """Compare samples in one batch under a kernel with the same one by one under eager attention.

    Args:
        packed: Lay the samples of the batch end to end.

    Returns:
        {attention, samples, tokens, relative_error, limit, top1_agreement, passed}; the agreement
        is of the most likely next token. For another kernel than eager of a model with a soft-cap
        also {stress, from_capped, from_uncapped}: relative errors with queries times `stress`.
    """
    rows = _some_samples(table)
    model, bare = adapted.model, adapted.bare
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
        batch_states = _hidden(adapted, table, rows, kernel, dtype, device, packed=packed)
        alone = [
            _hidden(adapted, table, rows[i : i + 1], "eager", dtype, device, packed=False)
            for i in range(len(rows))
        ]
        single_states = torch.cat(alone)
        error = _distance(batch_states, single_states)
        head = bare.lm_head
        same = head(batch_states).argmax(-1) == head(single_states).argmax(-1)
        cap = {} if kernel == "eager" else _cap_is_kept(adapted, table, rows, kernel, dtype, packed)
    model.train(was_training)
    limit = LIMITS[dtype]
    keeps_cap = not cap or cap["from_capped"] < cap["from_uncapped"] / 2
    return cap | {
        "attention": kernel,
        "samples": len(rows),
        "tokens": len(single_states),
        "relative_error": error,
        "limit": limit,
        "top1_agreement": float(same.float().mean()),
        "passed": bool(error <= limit and keeps_cap),
    }


def _cap_is_kept(
    adapted: Adapted,
    table: TextTable,
    rows: np.ndarray,
    kernel: str,
    dtype: torch.dtype,
    packed: bool,
) -> dict[str, float]:
    """Compare a kernel with eager attention, with the soft-cap and without, where it matters.

    In the first block: its inputs are the same for all kernels, while the rounding of many blocks
    grows beyond what the cap does. Returns nothing where no cap can be told from the outside: there
    is none, or no `STRESSES` moves the block's attention before its numbers overflow.
    """
    if not getattr(adapted.bare.config, "attn_logit_softcapping", None):
        return {}
    device = next(adapted.model.parameters()).device
    part = adapted.bare.model.layers[0].self_attn

    def attended(name: str) -> torch.Tensor:
        how = {"packed": packed, "into": part.o_proj}
        return _hidden(adapted, table, rows, name, dtype, device, **how)

    for stress in STRESSES:
        with part.q_proj.register_forward_hook(partial(_times, stress)):
            capped = attended("eager")
            with mock.patch.object(part, "attn_logit_softcapping", None):
                uncapped = attended("eager")
            if not _distance(uncapped, capped) >= CAP_MATTERS:  # NaN is not, either
                continue
            outputs = attended(kernel)
        from_capped, from_uncapped = _distance(outputs, capped), _distance(outputs, uncapped)
        return {"stress": stress, "from_capped": from_capped, "from_uncapped": from_uncapped}
    return {}


def _times(factor: float, layer: Any, inputs: Any, out: torch.Tensor) -> torch.Tensor:
    return out * factor


def _distance(states: torch.Tensor, reference: torch.Tensor) -> float:
    return float((states - reference).float().norm() / reference.float().norm())


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
    into: torch.nn.Module | None = None,
) -> torch.Tensor:
    """Return the last hidden states of all tokens of the samples, (tokens, hidden).

    Args:
        into: Return what this layer is called with, (tokens, its inputs).
    """
    forward = TrainingForward(adapted.bare, kernel=kernel, loss="chunked", dtype=dtype)
    multiple = row_multiple(kernel, packed)
    batch = make_batch(
        table, rows, pad_id=adapted.base.pad_id, packed=packed, multiple=multiple
    ).to(device)
    layer_inputs: list[torch.Tensor] = []
    watch: AbstractContextManager[Any] = nullcontext()
    if into is not None:
        watch = into.register_forward_pre_hook(lambda _, inputs: layer_inputs.append(inputs[0]))
    with forward.active(), watch:
        states = forward.hidden(batch.ids, batch.layout)
    return (layer_inputs[0] if into is not None else states)[batch.layout.segments >= 0]


# ------------------------------------------------------------------------------------------------
# One forward and backward pass before training: what a GPU's compiler cannot do shows here.
#
# A kernel or a compiled block that fails is told and left for a slower way that gives the same
# numbers; running out of memory is no such failure and ends the run as always.


LONGEST_REASON = 300  # characters of a compiler's message


def rehearse(
    adapted: Adapted,
    forward: TrainingForward,
    batch: MicroBatch,
    *,
    accelerator: Any,
    compiled: bool,
) -> str:
    """Return why a pass over a micro-batch fails, or nothing where it works; no gradient stays.

    Args:
        batch: Of the training, on any device.
        compiled: Compile the blocks, as the training would.

    Raises:
        torch.OutOfMemoryError: The micro-batch is too large.
    """
    model = adapted.model
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


def reason(error: Exception) -> str:
    """Return an error in one short line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:LONGEST_REASON]
