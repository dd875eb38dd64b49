"""Memory of a training process by formulas, line by line, calibrated on few measurements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nbhelpers.budget.shapes import CausalShape, Shape, projections
from nbhelpers.plan import BatchPlan

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.presets.schema import FinetuneSettings, Settings


# ------------------------------------------------------------------------------------------------
# What each part of a training process needs in memory: formulas, calibrated on few measurements.
#
# They hold for GPT-2 and RoBERTa encoders on function pairs, with AdamW, on one node.


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


def estimate_lines(
    settings: Settings, plan: BatchPlan, shape: Shape | CausalShape, hardware: Hardware
) -> tuple[MemoryLine, ...]:
    """Return the lines of one process whose rows all have `seq_len` tokens."""
    precision = hardware.precision if settings.precision == "auto" else settings.precision
    if not isinstance(shape, CausalShape):
        return ledger(settings, plan, shape, precision=precision)
    kernel = choose_kernel(settings, shape, has_flex=plan.use_gpu and hardware.precision == "bf16")
    return finetune_ledger(settings, plan, shape, precision=precision, kernel=kernel)


def ledger(
    settings: Settings,
    plan: BatchPlan,
    shape: Shape,
    *,
    precision: str,
    extent: BatchExtent | None = None,
) -> tuple[MemoryLine, ...]:
    """Return the lines of one process at its peak: the start of a backward pass, or scoring.

    Args:
        extent: The largest micro-batch, where the data are known: training alone is counted. None:
            every function has `function_length` tokens.

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
    score = _scoring(settings, plan, shape, is_half=is_half)
    need = gradients.size_bytes + sum(line.size_bytes for line in train)
    if extent is None and score.size_bytes > need:
        freed = MemoryLine(name="gradients", size_bytes=0, note="freed before functions are scored")
        lines += [freed, score]
    else:
        lines += [gradients, *train]
    return (*lines, *_context(plan))


def _context(plan: BatchPlan) -> Iterator[MemoryLine]:
    """What CUDA, and with several processes NCCL, take of a GPU."""
    if plan.use_gpu:
        is_group = plan.world_size > 1
        size = CUDA_CONTEXT_BYTES + NCCL_BYTES * is_group
        note = f"CUDA{' and NCCL' * is_group}, outside the allocator"
        yield MemoryLine(name=CONTEXT, size_bytes=size, note=note)


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
    batch = known or _longest(rows, length)
    dropout = shape.dropout if settings.dropout is None else settings.dropout
    # CUDA's dropout keeps its mask as bytes, the CPU's as fp32 (torch 2.11).
    mask = 0 if not dropout else 1 if plan.use_gpu else 4
    layer = _layer_bytes(settings, shape, batch, is_half=is_half, mask_bytes=mask)
    has_scores = _has_scores(settings, plan, dropout)
    scores = shape.heads * score_bytes(is_half=is_half, mask_bytes=mask)
    layer += batch.squares * scores * has_scores
    ends = batch.tokens * shape.hidden * (8 + mask)  # embedding dropout, last norm: in and out
    if settings.data_flow_length is not None:
        ends += batch.squares * (2 if is_half else 4)  # which column sees which, as numbers
    if settings.gradient_checkpointing:
        size = layer + shape.layers * batch.tokens * shape.hidden * 4 + ends
        note = f"one of {shape.layers} layers, and the input of each (checkpointing)"
    else:
        size, note = shape.layers * layer + ends, f"{shape.layers} layers"
    kernel = "with score matrices" if has_scores else "fused attention"
    what = " (the longest batch)" if known else f" of {length:,} each"
    note = f"{batch.tokens:,} tokens{what}, {note}, {kernel}"
    yield MemoryLine(name="activations", size_bytes=size, note=note)
    inside = _temporary_bytes(settings, is_half=is_half, use_gpu=plan.use_gpu)
    size = batch.last_tokens * shape.hidden * inside
    yield MemoryLine(name="temporaries", size_bytes=size, note="inside the backward pass")


def _scoring(settings: Settings, plan: BatchPlan, shape: Shape, *, is_half: bool) -> MemoryLine:
    """What scoring a batch of functions adds to the weights and the optimizer.

    On a CPU the live bytes of training steps are counted, not those of scoring.
    """
    rows = settings.rows_per_example * settings.per_device_eval_batch_size
    longest = _longest(rows, settings.function_length)
    dropout = shape.dropout if settings.dropout is None else settings.dropout
    per_token = shape.hidden * scoring_bytes(settings, shape, is_half) * plan.use_gpu
    per_square = shape.heads * 8 * _has_scores(settings, plan, dropout)
    size = longest.tokens * per_token + longest.squares * per_square
    what = f"{settings.function_length:,} tokens each"
    note = f"scoring {rows} functions, {what} (more than training needs)"
    return MemoryLine(name="activations", size_bytes=size, note=note)


def _layer_bytes(
    settings: Settings, shape: Shape, batch: BatchExtent, *, is_half: bool, mask_bytes: int
) -> int:
    """Return what one block keeps for its backward pass, without score matrices."""
    if is_packed(settings):
        dense, padded = packed_bytes_per_token(shape, is_half=is_half, mask_bytes=mask_bytes)
        return batch.tokens * dense + batch.padded_tokens * padded
    is_fused = settings.attention != "eager"
    return batch.tokens * layer_bytes_per_token(
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
    """Whether linear layers and norms run without padding (`models.encoding`)."""
    return settings.padding == "dynamic" and settings.attention != "eager"


def packed_bytes_per_token(shape: Shape, *, is_half: bool, mask_bytes: int) -> tuple[int, int]:
    """Return what one block of packed tokens keeps: per token, and per column of attention.

    Source: saved tensors of `models.encoding`. Per token: the inputs of both norms in fp32, the
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


# ------------------------------------------------------------------------------------------------
# What each part of a fine-tuning process needs in memory: LoRA or QLoRA on a causal model.
#
# The formulas list what autograd keeps of Gemma 2 and Llama as transformers 5 and peft 0.21 compute
# them, under autocast with adapters in fp32, AdamW, one node.
#
# Source: the saved tensors of each module, read; 36 settings of Gemma-2-2B, of which the ones that
# were measured on an H200 are rows of `tests/test_finetune_memory.py`.


# The chunked loss holds the logits of so many bytes at once, and their gradient beside them
# (`models.causal_forward`, fused into few kernels on a GPU).
LOGIT_CHUNK_BYTES = 2**30
# On a CPU its steps are not fused: four arrays in fp32 are alive at once, two more with a soft-cap.
CPU_LOGIT_BYTES, CPU_CAPPED_LOGIT_BYTES = 16, 24
# Source: bitsandbytes NF4 with double quantisation: 4 bits, a byte for each 64 elements, and four
# bytes for each 256 of those.
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
# Source: an H100's cuBLAS takes 32 MiB in each of two threads; other cards 8 MiB.
WORKSPACE_BYTES = 64 * 2**20
# Useful tokens of a run after which compiling its blocks has paid. Source: 88 s on an H200, from
# then on 33.4k instead of 17.8k tokens a second.
COMPILE_PAYS_TOKENS = 3_400_000
# Bytes per token and unit of the MLP that a block's backward pass holds beside what it keeps, where
# a block is computed anew (checkpointing), and where not. Source: fitted, see above.
RECOMPUTED_BYTES, BACKWARD_BYTES = 6, 5
# Projections that read the same states: a compiled block keeps a dropped copy for all but one.
SAME_INPUTS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
# Bytes per token and unit of the MLP inside a compiled block: computed anew in the backward pass,
# and without gradients. Source: fitted to a checkpointed run of 12,288 tokens on an H200; one of
# 2,400 tokens agrees.
COMPILED_RECOMPUTED_BYTES, COMPILED_FORWARD_BYTES = 9, 9
# Bytes per token and unit of the MLP inside a block without gradients. Source: as RECOMPUTED_BYTES.
FORWARD_BYTES = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalExtent:
    """The size of a micro-batch as it is computed.

    `tokens`: over all rows, padding included; `squares`: sum over rows of the squared length;
    `supervised`: tokens whose loss is computed.
    """

    tokens: int
    squares: int
    supervised: int


def longest_extent(settings: FinetuneSettings, rows: int) -> CausalExtent:
    """Return the micro-batch whose samples all have `seq_len` tokens.

    Packed, its samples lie end to end in one row. At most all but the first token are supervised.

    >>> from nbhelpers.presets.loading import load_preset
    >>> s = load_preset("finetune", "base", overrides={"seq_len": 512}).settings
    >>> longest_extent(s, 4)
    CausalExtent(tokens=2048, squares=4194304, supervised=2048)
    """
    tokens = rows * settings.seq_len
    length = tokens if settings.packing else settings.seq_len
    return CausalExtent(tokens=tokens, squares=tokens * length, supervised=tokens)


def choose_kernel(settings: FinetuneSettings, shape: CausalShape, *, has_flex: bool) -> str:
    """Return the attention that `auto` means: as `models.causal_forward` chooses on the device.

    A GPU with native bf16 has flex attention. On a CPU and older GPUs a model with capped scores is
    computed eagerly.
    """
    if settings.attention != "auto":
        return settings.attention
    if not shape.is_capped:
        return "sdpa"
    return "flex" if has_flex else "eager"


def choose_compile(settings: FinetuneSettings, kernel: str) -> bool:
    """Return whether blocks are compiled; `auto`: with flex attention, where it pays.

    Before the rows are known only a limit on them tells that it cannot pay.
    """
    if settings.compile_layers != "auto":
        return settings.compile_layers == "on"
    rows = settings.max_train_samples
    is_short = rows is not None and rows * settings.seq_len * settings.epochs < COMPILE_PAYS_TOKENS
    return kernel == "flex" and not is_short


def may_graph(settings: FinetuneSettings, plan: BatchPlan, precision: str) -> bool:
    """Whether micro-steps with compiled blocks are captured as CUDA graphs.

    A scaled loss, and blocks that are computed anew, need the host between kernels.
    """
    is_plain = settings.loss == "plain" or settings.gradient_checkpointing
    return settings.cuda_graphs and plan.use_gpu and precision != "fp16" and not is_plain


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One process: what the formulas depend on."""

    settings: FinetuneSettings
    plan: BatchPlan
    shape: CausalShape
    precision: str
    kernel: str
    is_compiled: bool

    @property
    def width(self) -> int:
        """Bytes of a number of the base model and of its activations."""
        return 4 if self.precision == "fp32" else 2

    @property
    def adapters(self) -> int:
        """Trained elements."""
        s = self.settings
        if s.method == "base":
            return 0
        return self.shape.adapter_parameters(s.lora_r, s.lora_target_modules)

    @property
    def mask(self) -> int:
        """Bytes of dropout's mask: CUDA keeps bytes, the CPU fp32 (torch 2.11)."""
        if not self.settings.lora_dropout:
            return 0
        return 1 if self.plan.use_gpu else 4


def finetune_ledger(
    settings: FinetuneSettings,
    plan: BatchPlan,
    shape: CausalShape,
    *,
    precision: str,
    kernel: str,
    is_compiled: bool | None = None,
    extent: CausalExtent | None = None,
) -> tuple[MemoryLine, ...]:
    """Return the lines of one process at its peak: in a training step, scoring or generating.

    Args:
        precision: bf16, fp16 or fp32, of the base model and of autocast.
        kernel: eager, sdpa or flex: `choose_kernel`, or what the worker found to be right.
        is_compiled: Whether each block is compiled; None: by `choose_compile`.
        extent: The largest micro-batch, where the data are known: training alone is counted. None:
            `longest_extent`.
    """
    case = _Case(
        settings=settings,
        plan=plan,
        shape=shape,
        precision=precision,
        kernel=kernel,
        is_compiled=choose_compile(settings, kernel) if is_compiled is None else is_compiled,
    )
    lines = [_weights(case), *_adapters(case)]
    phases = [list(_finetune_training(case, extent))] if case.adapters else []
    phases += [[line] for line in _finetune_scoring(case)] if extent is None else []
    lines += max(phases, key=lambda phase: sum(line.size_bytes for line in phase))
    if plan.use_gpu:
        text = "of the matrix library"
        lines.append(MemoryLine(name="workspace", size_bytes=WORKSPACE_BYTES, note=text))
    return (*lines, *_context(plan))


def weight_bytes(shape: CausalShape, *, precision: str, is_quantised: bool) -> int:
    """Return the bytes of the base model as it is trained on.

    >>> from nbhelpers.budget.shapes import GEMMA_2_2B
    >>> round(weight_bytes(GEMMA_2_2B, precision="bf16", is_quantised=False) / 1e9, 2)
    5.23
    """
    width, matrices = (4 if precision == "fp32" else 2), shape.matrix_parameters()
    each = NF4_BYTES if is_quantised else width
    return int((shape.parameters() - matrices) * width + matrices * each)


def _weights(case: _Case) -> MemoryLine:
    is_quantised, count = case.settings.method == "qlora", case.shape.parameters()
    size = weight_bytes(case.shape, precision=case.precision, is_quantised=is_quantised)
    note = f"{count:,} parameters in {case.precision}, frozen"
    if is_quantised:
        note = (
            f"{case.shape.matrix_parameters():,} parameters in 4 bits, embedding and norms in "
            f"{case.precision}, frozen"
        )
    return MemoryLine(name="weights", size_bytes=size, note=note)


def _adapters(case: _Case) -> Iterator[MemoryLine]:
    """Adapters with what the optimizer keeps of them.

    Source: AdamW in fp32 keeps 8 bytes a parameter, and the fused one makes no copy. Gradients are
    complete when all activations are gone: they count where an earlier micro-step or DDP's buckets
    hold them.
    """
    count = case.adapters
    if not count:
        return
    text = f"{count:,} trained parameters in fp32"
    yield MemoryLine(name="adapters", size_bytes=4 * count, note=text)
    yield MemoryLine(name="optimizer", size_bytes=8 * count, note="AdamW: two moments in fp32")
    is_held = case.plan.gradient_accumulation_steps > 1 or case.plan.world_size > 1
    note = "of earlier micro-steps, or in DDP's buckets" if is_held else "made as activations go"
    yield MemoryLine(name="gradients", size_bytes=4 * count * is_held, note=note)
    if case.precision != "fp32":
        note = f"autocast keeps the adapters in {case.precision} for a step"
        yield MemoryLine(name="cached casts", size_bytes=2 * count, note=note)


def _finetune_training(case: _Case, known: CausalExtent | None) -> Iterator[MemoryLine]:
    """Activations, and the larger of the loss and the backward pass of one block."""
    s, shape = case.settings, case.shape
    batch = known or longest_extent(s, case.plan.per_device_train_batch_size)
    layer = (_kept_compiled if case.is_compiled else _kept)(case, batch)
    inputs = shape.layers * batch.tokens * shape.hidden * case.width
    activations = inputs if s.gradient_checkpointing else shape.layers * layer
    how = "the input of each layer (checkpointing)" if s.gradient_checkpointing else "all layers"
    ends = batch.tokens * shape.hidden * (4 + case.width)  # the last norm
    what = f"{batch.tokens:,} tokens{' (the longest batch)' if known else ''}"
    note = f"{what}, {how} of {shape.layers}, {_KERNELS[case.kernel]}"
    note += ", compiled" if case.is_compiled else ""
    yield MemoryLine(name="activations", size_bytes=activations + ends, note=note)
    loss, text = _loss(case, batch)
    unit = batch.tokens * shape.inner * (1 if case.precision != "fp32" else 2)
    backward = unit * BACKWARD_BYTES
    if s.gradient_checkpointing:
        inside = COMPILED_RECOMPUTED_BYTES if case.is_compiled else RECOMPUTED_BYTES
        backward = layer + max(unit * inside, _score_temporaries(case, batch))
    if backward - ends > loss:
        note = "of one block computed anew" if s.gradient_checkpointing else "of one block"
        note = f"inside the backward pass {note}"
        yield MemoryLine(name="temporaries", size_bytes=backward - ends, note=note)
    else:
        yield MemoryLine(name="logits and loss", size_bytes=loss, note=text)


_KERNELS = {
    "eager": "eager attention keeps its scores",
    "sdpa": "fused attention",
    "flex": "flex attention",
}


def _kept(case: _Case, batch: CausalExtent) -> int:
    """Return the bytes that one block keeps for its backward pass.

    Source: the saved tensors. Each norm keeps its input in fp32. A frozen layer keeps nothing; an
    adapter keeps its dropped input with the mask, and what its A gives. The gated MLP keeps three
    tensors. Attention keeps queries, keys, values and, fused, its output; eager keeps keys and
    values repeated for each head, the capped scores, their softmax in fp32, and that in the width
    of the activations.
    """
    shape, width = case.shape, case.width
    per_token = shape.norms * 4 * shape.hidden + 3 * width * shape.inner
    per_token += _adapter_inputs(case) + width * shape.query_size
    if case.kernel == "eager":
        per_token += 2 * width * shape.query_size
    else:
        # SDPA with a mask repeats keys and values, flex attention does not.
        pairs = shape.query_size if case.kernel == "sdpa" else shape.key_size
        per_token += width * (2 * pairs + shape.query_size) + 4 * shape.heads
    size = batch.tokens * per_token
    if case.kernel == "eager":
        per_score = width * shape.is_capped + 4 + (2 if width == 2 else 0)
        size += shape.heads * batch.squares * per_score
    return size


def _kept_compiled(case: _Case, batch: CausalExtent) -> int:
    """Return the bytes that one compiled block keeps for its backward pass.

    Source: the saved tensors that torch 2.13's partitioner chooses. Norms, activations and dropped
    inputs are computed again: it keeps the input, both residual sums, what o_proj and down_proj
    give, gate, up and their dropped product, queries, keys and values, attention's output twice,
    and with dropout, of projections that read the same states, all but one dropped copy with its
    mask, and one mask more where both kinds have adapters. Eager attention keeps one score each,
    and no softmax.
    """
    s, shape, width = case.settings, case.shape, case.width
    norms = shape.norms + 1  # their inputs, and the block's output
    per_token = width * (norms * shape.hidden + 3 * shape.inner + 3 * shape.query_size)
    names = projections(s.lora_target_modules)
    groups = [len(set(group) & set(names)) for group in SAME_INPUTS]
    copies = sum(max(0, size - 1) for size in groups)
    masks = copies + all(groups)
    per_token += bool(case.mask) * (copies * width + masks) * shape.hidden
    per_token += len(names) * s.lora_r * width
    if case.kernel != "eager":
        return batch.tokens * (per_token + 2 * width * shape.key_size)
    scores = shape.heads * batch.squares * width
    return batch.tokens * (per_token + 2 * width * shape.query_size) + scores


def compiled_block_bytes(
    settings: FinetuneSettings, plan: BatchPlan, shape: CausalShape, batch: CausalExtent, how: str
) -> int:
    """Return the bytes that one compiled block keeps; `how`: "bf16 flex", precision and kernel."""
    precision, kernel = how.split()
    case = dict(settings=settings, plan=plan, shape=shape, precision=precision, kernel=kernel)
    return _kept_compiled(_Case(is_compiled=True, **case), batch)


def _adapter_inputs(case: _Case) -> int:
    """Return the bytes per token that the adapters of one block keep."""
    s, shape, width = case.settings, case.shape, case.width
    names = projections(s.lora_target_modules)
    size = len(names) * s.lora_r * width
    if case.mask:  # each adapter has an input of its own, dropped by chance
        return size + sum(shape.linear(name)[0] for name in names) * (width + case.mask)
    shared = [("down_proj",), ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")]
    shared += [("o_proj",)] if case.kernel == "eager" else []  # fused attention keeps its output
    used = [group for group in shared if set(group) & set(names)]
    return size + sum(shape.linear(group[0])[0] for group in used) * width


def _score_temporaries(case: _Case, batch: CausalExtent) -> int:
    """Return what eager attention's scores add inside the backward pass of one block.

    Source: the softmax's gradient in fp32 and its product with the softmax, less the MLP's tensors
    and its adapters' inputs, which are gone when the pass comes to attention.
    """
    if case.kernel != "eager":
        return 0
    gone = batch.tokens * case.shape.inner * (4 * case.width + case.mask)
    return batch.squares * 8 * case.shape.heads - gone


def _loss(case: _Case, batch: CausalExtent) -> tuple[int, str]:
    """Return what the loss holds beside all activations, in bytes and words.

    Source: plain: the capped logits, and for supervised tokens the log-softmax and its two
    gradients in fp32, or what the forward pass holds before.
    Chunked: logits and their gradient, of some tokens; the supervised hidden states with gradient.
    """
    shape, width = case.shape, case.width
    if case.settings.loss == "plain":
        capped = batch.tokens * width * shape.is_capped
        forward = 2 * capped + batch.supervised * (8 if width == 4 else 10)
        size = shape.vocab * max(forward, capped + 12 * batch.supervised)
        return size, f"logits of {batch.tokens:,} x {shape.vocab:,}, whole, in fp32 with gradients"
    fits = max(128, LOGIT_CHUNK_BYTES // (shape.vocab * width) // 128 * 128)
    chunk = min(fits, batch.supervised)
    per_logit = CPU_CAPPED_LOGIT_BYTES if shape.is_capped else CPU_LOGIT_BYTES
    if case.plan.use_gpu:
        per_logit = 2 * width
    size = chunk * shape.vocab * per_logit
    size += (2 * batch.supervised + chunk) * shape.hidden * width
    return size, f"logits of {chunk:,} x {shape.vocab:,} at a time, with their gradient"


def _finetune_scoring(case: _Case) -> Iterator[MemoryLine]:
    """The passes without gradients: the loss on held-out rows, and generation.

    On a CPU the live bytes of training steps are counted, not those of scoring. Generation computes
    capped scores eagerly: flex attention has no cache.
    """
    s, shape, width = case.settings, case.shape, case.width
    if case.adapters and not case.plan.use_gpu:
        return
    more = " (more than training needs)" if case.adapters else ""
    batch = longest_extent(s, s.per_device_eval_batch_size)
    size = _forward(case, batch) + _loss(case, batch)[0]
    note = f"the loss of {s.per_device_eval_batch_size} held-out samples{more}"
    yield MemoryLine(name="activations", size_bytes=size, note=note)
    if s.evaluate == "none":
        return
    rows = s.generation_batch_size
    batch = CausalExtent(tokens=rows * s.seq_len, squares=rows * s.seq_len**2, supervised=rows)
    tokens = batch.tokens + rows * s.max_new_tokens
    cache = tokens * 2 * shape.key_size * width * (shape.layers + 1)  # one layer's while it grows
    eager = replace(case, kernel="eager" if shape.is_capped else "sdpa")
    size = cache + _forward(eager, batch) + rows * shape.vocab * 12
    note = f"generating {rows} answers of {s.max_new_tokens} tokens{more}"
    yield MemoryLine(name="activations", size_bytes=size, note=note)


def _forward(case: _Case, batch: CausalExtent) -> int:
    """Return the bytes alive inside one block without gradients."""
    scale = 1 if case.width == 2 else 2
    size = batch.tokens * case.shape.inner * FORWARD_BYTES * scale
    if case.kernel == "eager":
        size = max(size, batch.squares * (8 * case.shape.heads + case.width))
    return size
