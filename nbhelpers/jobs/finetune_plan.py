"""What is decided before adapters are trained: attention, layout, compiling, and their memory."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.finetune_recipe import Recipe
from nbhelpers.jobs.parity import prove
from nbhelpers.jobs.rehearsal import is_out_of_memory, reason, rehearse
from nbhelpers.ledger_finetune import COMPILE_PAYS_TOKENS, CausalExtent, finetune_ledger
from nbhelpers.memory import MemoryBudget
from nbhelpers.models.causal import DTYPES
from nbhelpers.models.causal_attention import has_triton
from nbhelpers.models.causal_batches import padded_width, row_multiple
from nbhelpers.models.causal_forward import TrainingForward
from nbhelpers.models.causal_text import TextTable
from nbhelpers.shapes import find_shape

if TYPE_CHECKING:
    from nbhelpers.jobs.finetune_inputs import Adapted, Inputs

COUNTED_STEPS = 2  # on a CPU: the first step makes the optimizer's state, the second has it all
ROOM_SHARE = 0.8  # of the card, for a short run without compiling


def laid_out(
    context: RunContext, inputs: Inputs, adapted: Adapted, kernel: str, packed: bool
) -> tuple[TrainingForward, Recipe]:
    """Return how the loss is computed and how micro-batches are made, under a kernel."""
    loss, dtype = adapted.base.facts["loss"], DTYPES[context.precision]
    forward = TrainingForward(adapted.bare, kernel=kernel, loss=loss, dtype=dtype)
    recipe = Recipe(
        settings=context.settings.model_copy(update={"packing": packed}),
        plan=context.plan,
        table=inputs.tables["train"],
        pad_id=adapted.base.pad_id,
        multiple=row_multiple(kernel, packed),
        rank=context.rank,
    )
    return forward, recipe


def rehearsed(
    context: RunContext,
    adapted: Adapted,
    forward: TrainingForward,
    recipe: Recipe,
    *,
    is_compiled: bool,
) -> tuple[str, bool, bool]:
    """Return the kernel, whether samples are packed, and whether blocks are compiled, as it works.

    The ways are tried in turn on the first micro-batch: as planned, not compiled, eager.
    """
    kernel, packed = forward.kernel, recipe.settings.packing
    batch = recipe.batch(recipe.micro(recipe.windows(0)[0])[0])
    for compiled in (True, False) if is_compiled else (False,):
        problem = rehearse(
            adapted,
            forward,
            batch,
            accelerator=context.accelerator,
            compiled=compiled,
            checkpointing=recipe.settings.gradient_checkpointing,
        )
        if not problem:
            return kernel, packed, compiled
        what = "Compiled blocks fail" if compiled else f"attention={kernel} fails"
        context.warn(f"{what} on this machine ({problem}): a slower way is used.")
    return "eager", False, False


def proven_kernel(
    context: RunContext, inputs: Inputs, adapted: Adapted, dtype: torch.dtype
) -> tuple[str, bool, dict[str, Any]]:
    """Return the attention that may be used, whether samples are packed, and what was measured.

    Where another kernel fails, eager is used, and samples are padded: eager attention computes the
    whole square of a packed row.
    """
    kernel = adapted.base.facts["attention"]
    table, packed = inputs.tables["train"], context.settings.packing
    problem = ""
    try:
        found = prove(adapted, table, kernel=kernel, dtype=dtype, packed=packed)
    except Exception as error:
        if kernel == "eager" or is_out_of_memory(error):
            raise
        problem, found = f"fails on this machine ({reason(error)})", {"passed": False}
    if not found["passed"] and kernel != "eager":
        problem = problem or (
            "does not agree with eager attention on this machine (relative error "
            f"{found['relative_error']:.2g})"
        )
        context.warn(
            f"attention={kernel} {problem}: eager is used, and samples are padded instead of "
            "packed; the samples of each update stay the same."
        )
        kernel, packed = "eager", False
        found = prove(adapted, table, kernel=kernel, dtype=dtype, packed=packed)
    if not found["passed"]:
        error = found["relative_error"]
        context.warn(
            f"Samples in one batch do not agree with the same samples one by one (relative error "
            f"{error:.2g}): set packing=false."
            if math.isfinite(error)
            else f"The base's hidden states are not finite in {context.precision}."
        )
    context.emit("parity", **found)
    return kernel, packed, found


def compiles(context: RunContext, inputs: Inputs, recipe: Recipe, kernel: str, vocab: int) -> bool:
    """Say whether blocks are compiled: long runs gain time, and large micro-batches need the room.

    The budget before the run assumes compiled blocks wherever there is flex attention.
    """
    s = recipe.settings
    if s.compile_layers != "auto":
        return s.compile_layers == "on"
    if kernel != "flex" or not context.plan.use_gpu or not has_triton():
        return False
    if int(recipe.table.lengths.sum()) * s.epochs >= COMPILE_PAYS_TOKENS:
        return True
    plain = data_budget(context, inputs, recipe, kernel, vocab=vocab, is_compiled=False)
    total = torch.cuda.get_device_properties(context.accelerator.device).total_memory
    return plain is None or plain.total_bytes > ROOM_SHARE * total


def data_budget(
    context: RunContext,
    inputs: Inputs,
    recipe: Recipe,
    kernel: str,
    *,
    vocab: int,
    is_compiled: bool,
    first: int = 0,
) -> MemoryBudget | None:
    """Return the ledger of this rank's largest micro-batch, now that the lengths are known.

    Args:
        vocab: Words of the loaded model; before the run only a nominal number is known of a model
            whose tokenizer is trained on the data.
        first: The optimizer step that this process begins with.
    """
    shape = find_shape(context.settings)
    if shape is None:
        return None
    largest = largest_extent(recipe, first)
    lines = finetune_ledger(
        recipe.settings,
        context.plan,
        replace(shape, vocab=vocab),
        precision=context.precision,
        kernel=kernel,
        is_compiled=is_compiled,
        extent=largest,
        scoring=_scoring_extent(recipe, inputs.tables["valid"]),
        prompts=_prompt_extent(context, inputs),
    )
    total = sum(line.size_bytes for line in lines)
    return MemoryBudget(lines=lines, total_bytes=total, capacity_bytes=None, verdict="", advice=())


def _scoring_extent(recipe: Recipe, table: TextTable) -> CausalExtent | None:
    """Return the largest batch of held-out rows whose loss is computed."""
    s = recipe.settings
    if not len(table):
        return None
    longest = -np.sort(-table.lengths)[: s.per_device_eval_batch_size]
    count, width = (1, int(longest.sum())) if s.packing else (len(longest), int(longest[0]))
    width = padded_width(width, recipe.multiple)
    return CausalExtent(
        tokens=count * width, squares=count * width * width, supervised=count * width
    )


def _prompt_extent(context: RunContext, inputs: Inputs) -> CausalExtent | None:
    """Return the largest batch of prompts; the problems of pass@1 count as long as `seq_len`."""
    s, table = context.settings, inputs.tables["test"]
    if not len(table) or inputs.tasks:
        return None
    count, width = min(len(table), s.generation_batch_size), int(table.prompt_lengths.max())
    return CausalExtent(tokens=count * width, squares=count * width**2, supervised=0)


def largest_extent(recipe: Recipe, first: int = 0) -> CausalExtent:
    """Return the size of the largest micro-batch of all epochs.

    On a CPU, of the steps whose bytes are counted: a few from the `first` of this process on.
    """
    epochs = range(recipe.settings.epochs)
    windows = [window for epoch in epochs for window in recipe.windows(epoch)]
    if not recipe.plan.use_gpu:
        windows = windows[first : first + COUNTED_STEPS] or windows[-1:]
    return extent_of(windows, recipe)


def extent_of(windows: list[np.ndarray], recipe: Recipe) -> CausalExtent:
    """Return the size of this rank's largest micro-batch of some optimizer steps."""
    s, lengths, learned = recipe.settings, recipe.table.lengths, recipe.table.supervised
    largest = CausalExtent(tokens=0, squares=0, supervised=0)
    for window in windows:
        for rows in recipe.micro(window):
            if not len(rows):
                continue
            if s.packing:
                width, count = int(lengths[rows].sum()), 1
            else:
                width = s.seq_len if s.padding == "fixed" else int(lengths[rows].max())
                count = len(rows)
            width = padded_width(width, recipe.multiple)
            extent = CausalExtent(
                tokens=count * width,
                squares=count * width * width,
                supervised=int(learned[rows].sum()),
            )
            largest = max(largest, extent, key=lambda x: (x.tokens, x.squares))
    return largest
