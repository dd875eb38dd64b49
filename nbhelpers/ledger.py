"""What each part of a training process needs in memory: formulas, calibrated on few measurements.

They hold for GPT-2 and RoBERTa encoders on function pairs, with AdamW, on one node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbhelpers.batching import BatchPlan
from nbhelpers.shapes import Shape

if TYPE_CHECKING:
    from nbhelpers.schema import Settings

GIB = 2**30
CONTEXT = "context"  # the only line that the allocator does not see
# Source: measured on an H200; a T4 reported 141 MiB. The larger one is taken for every card.
CUDA_CONTEXT_BYTES = int(0.75 * GIB)
# Source: measured, outside the allocator, with two and more processes.
NCCL_BYTES = int(0.55 * GIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchExtent:
    """The size of a micro-batch as it is computed.

    `tokens`: over all rows, as linear layers and norms see them; `padded_tokens`: as attention sees
    them; `squares`: sum over rows of attention's length squared; `last_tokens`: those whose
    backward pass begins while all activations are alive (a length bucket, or all if packed).
    """

    tokens: int
    padded_tokens: int
    squares: int
    last_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLine:
    """One part of the memory of a training process."""

    name: str
    size_bytes: int
    note: str


def ledger(
    settings: Settings,
    plan: BatchPlan,
    shape: Shape,
    *,
    precision: str,
    extent: BatchExtent | None = None,
    scoring: tuple[BatchExtent, BatchExtent] | None = None,
) -> tuple[MemoryLine, ...]:
    """Return the lines of one process at its peak: the start of a backward pass, or scoring.

    Args:
        extent: The largest micro-batch, where the data are known; None: every function has
            `function_length` tokens.
        scoring: The same of the largest batch of functions that is scored: between optimizer
            steps, and at the end, when the optimizer is gone.

    Source: AdamW in fp32 keeps 12 bytes a parameter (weight, two moments), with autocast too; the
    fused optimizer on a GPU makes no copy. Gradients (4 bytes) are alive at the peak only when an
    earlier micro-step left them, or DDP's buckets hold them (gradient_as_bucket_view). Activations:
    see `layer_bytes_per_token`.
    """
    count, is_half = shape.parameters(), precision != "fp32"
    lines = [
        MemoryLine(name="weights", size_bytes=4 * count, note=f"{count:,} parameters in fp32"),
        MemoryLine(name="optimizer", size_bytes=8 * count, note="AdamW: two moments in fp32"),
    ]
    if is_half:
        size = 2 * shape.matrix_parameters()
        note = f"autocast keeps the matrices in {precision} for a step"
        lines.append(MemoryLine(name="cached casts", size_bytes=size, note=note))
    train = list(_training(settings, plan, shape, extent, is_half=is_half))
    gradients = _gradients(plan, 4 * count, sum(line.size_bytes for line in train))
    score = _scoring(settings, plan, shape, scoring, is_half=is_half)
    if score.size_bytes > gradients.size_bytes + sum(line.size_bytes for line in train):
        freed = MemoryLine(name="gradients", size_bytes=0, note="freed before functions are scored")
        lines += [freed, score]
    else:
        lines += [gradients, *train]
    if plan.use_gpu:
        size, note = CUDA_CONTEXT_BYTES, "CUDA, outside the allocator"
        if plan.world_size > 1:
            size, note = size + NCCL_BYTES, "CUDA and NCCL, outside the allocator"
        lines.append(MemoryLine(name=CONTEXT, size_bytes=size, note=note))
    return tuple(lines)


def _gradients(plan: BatchPlan, size_bytes: int, working_bytes: int) -> MemoryLine:
    """What gradients add at the peak: all of them, or what exceeds the activations they replace."""
    if plan.gradient_accumulation_steps > 1:
        return MemoryLine(name="gradients", size_bytes=size_bytes, note="of earlier micro-steps")
    if plan.world_size > 1:
        return MemoryLine(name="gradients", size_bytes=size_bytes, note="DDP's buckets hold them")
    note = "take the place of activations during the backward pass"
    return MemoryLine(name="gradients", size_bytes=max(0, size_bytes - working_bytes), note=note)


def _longest(rows: int, length: int) -> BatchExtent:
    tokens = rows * length
    return BatchExtent(
        tokens=tokens, padded_tokens=tokens, squares=tokens * length, last_tokens=tokens
    )


def _has_scores(settings: Settings, plan: BatchPlan, dropout: float) -> bool:
    """Whether attention keeps full score matrices: with dropout the CPU's fused one does too."""
    return settings.attention == "eager" or (dropout > 0 and not plan.use_gpu)


def _training(
    settings: Settings,
    plan: BatchPlan,
    shape: Shape,
    known: BatchExtent | None,
    *,
    is_half: bool,
) -> Iterator[MemoryLine]:
    """The activations and temporaries of training."""
    length = settings.function_length
    rows = settings.rows_per_example * plan.per_device_train_batch_size
    extent = known or _longest(rows, length)
    dropout = shape.dropout if settings.dropout is None else settings.dropout
    # CUDA's dropout keeps its mask as bytes, the CPU's as fp32 (torch 2.11).
    mask = 0 if not dropout else 1 if plan.use_gpu else 4
    layer = _layer_bytes(settings, shape, extent, is_half=is_half, mask_bytes=mask)
    has_scores = _has_scores(settings, plan, dropout)
    scores = shape.heads * score_bytes(is_half=is_half, mask_bytes=mask)
    layer += extent.squares * scores * has_scores
    ends = extent.tokens * shape.hidden * (8 + mask)  # embedding dropout, last norm: in and out
    if settings.data_flow_length is not None:
        ends += extent.squares * (2 if is_half else 4)  # which column sees which, as numbers
    if settings.gradient_checkpointing:
        size = layer + shape.layers * extent.tokens * shape.hidden * 4 + ends
        note = f"one of {shape.layers} layers, and the input of each (checkpointing)"
    else:
        size, note = shape.layers * layer + ends, f"{shape.layers} layers"
    kernel = "with score matrices" if has_scores else "fused attention"
    what = " (the longest batch)" if known else f" of {length:,} each"
    note = f"{extent.tokens:,} tokens{what}, {note}, {kernel}"
    yield MemoryLine(name="activations", size_bytes=size, note=note)
    inside = _temporary_bytes(settings, is_half=is_half, use_gpu=plan.use_gpu)
    size = extent.last_tokens * shape.hidden * inside
    yield MemoryLine(name="temporaries", size_bytes=size, note="inside the backward pass")


def _scoring(
    settings: Settings,
    plan: BatchPlan,
    shape: Shape,
    known: tuple[BatchExtent, BatchExtent] | None,
    *,
    is_half: bool,
) -> MemoryLine:
    """What scoring a batch of functions adds to the weights and the optimizer.

    On a CPU the live bytes of training steps are counted, not those of scoring.
    """
    rows = settings.rows_per_example * settings.per_device_eval_batch_size
    longest = _longest(rows, settings.function_length)
    dropout = shape.dropout if settings.dropout is None else settings.dropout
    per_token = shape.hidden * scoring_bytes(settings, shape, is_half) * plan.use_gpu
    per_square = shape.heads * 8 * _has_scores(settings, plan, dropout)
    during, after = (
        extent.tokens * per_token + extent.squares * per_square
        for extent in known or (longest, longest)
    )
    size = max(during, after - 8 * shape.parameters())
    what = "the longest of them" if known else f"{settings.function_length:,} tokens each"
    note = f"scoring {rows} functions, {what} (more than training needs)"
    return MemoryLine(name="activations", size_bytes=size, note=note)


def _layer_bytes(
    settings: Settings, shape: Shape, extent: BatchExtent, *, is_half: bool, mask_bytes: int
) -> int:
    """Return what one block keeps for its backward pass, without score matrices."""
    if is_packed(settings):
        dense, padded = packed_bytes_per_token(shape, is_half=is_half, mask_bytes=mask_bytes)
        return extent.tokens * dense + extent.padded_tokens * padded
    is_fused = settings.attention != "eager"
    return extent.tokens * layer_bytes_per_token(
        shape, is_half=is_half, mask_bytes=mask_bytes, is_fused=is_fused
    )


def _temporary_bytes(settings: Settings, *, is_half: bool, use_gpu: bool) -> int:
    """Return the bytes per token and hidden unit inside the first block of the backward pass.

    Source: measured on an H100 (module by module) and an H200 (packed); on a CPU by counting.
    """
    if is_packed(settings) and use_gpu:
        return 24 if is_half else 40
    return 32 if settings.attention == "eager" else 16


def is_packed(settings: Settings) -> bool:
    """Whether linear layers and norms run without padding (`models.packed`)."""
    return settings.padding == "dynamic" and settings.attention != "eager"


def packed_bytes_per_token(shape: Shape, *, is_half: bool, mask_bytes: int) -> tuple[int, int]:
    """Return what one block of packed tokens keeps: per token, and per column of attention.

    Source: saved tensors of `models.packed`. Per token: the inputs of both norms in fp32, the
    inputs of four linear layers, input and output of the fused GELU, two dropout masks; in fp32
    the outputs of both norms are inputs of linear layers. Per column: queries, keys, values and
    the attention's output.
    """
    hidden, inner, masks = shape.hidden, shape.inner, 2 * mask_bytes * shape.hidden
    if is_half:
        return 14 * hidden + 4 * inner + masks, 8 * hidden
    return 20 * hidden + 8 * inner + masks, 16 * hidden


def layer_bytes_per_token(shape: Shape, *, is_half: bool, mask_bytes: int, is_fused: bool) -> int:
    """Return what one block keeps per token for its backward pass, without score matrices.

    Source: saved tensors of transformers 5's GPT2Block. fp32: inputs and outputs of both norms,
    q, k, v and attention output (8 x hidden); input and output of the fused GELU (2 x inner), or
    c_fc, tanh, 1 + tanh, x / 2 and the product of `gelu_new` (5 x inner). Autocast: the residual
    stream and everything after the `pow` of `gelu_new` stay fp32. Two dropout masks. RobertaLayer
    keeps the same in fp32; its GELU is fused in any case, and autocast casts the input three times,
    for query, key and value.
    """
    hidden, inner = shape.hidden, shape.inner
    masks = 2 * mask_bytes * hidden
    if shape.family in ("roberta", "bert"):
        return (24 * hidden + 4 * inner if is_half else 32 * hidden + 8 * inner) + masks
    if is_half:
        return 20 * hidden + (4 if is_fused else 16) * inner + masks
    return 4 * (8 * hidden + (2 if is_fused else 5) * inner) + masks


def scoring_bytes(settings: Settings, shape: Shape, is_half: bool) -> int:
    """Return the bytes per token and hidden unit alive inside a block without gradients.

    Source: GPT-2: `gelu_new` holds four fp32 tensors of the MLP's width; the fused GELU in bf16:
    measured, 512 functions of 1,024 tokens on an H100. RoBERTa: measured on an H100 and an H200,
    32 to 512 functions of 528 tokens; eager counts the attention's part, and data flow keeps the
    embeddings alive and adds the mask. Packed in fp32: measured for RoBERTa only.
    """
    if settings.attention == "eager":
        bytes_per_token = 28 if shape.family in ("roberta", "bert") else 64
    elif is_half:
        bytes_per_token = 30 if shape.family in ("roberta", "bert") else 34
    else:
        bytes_per_token = 58 if is_packed(settings) else 47
    return bytes_per_token + (0 if settings.data_flow_length is None else 6)


def score_bytes(*, is_half: bool, mask_bytes: int) -> int:
    """Return the bytes kept per attention score: fp32 softmax, dropout's output and mask."""
    return 4 + ((2 if is_half else 4) + mask_bytes if mask_bytes else 0)
