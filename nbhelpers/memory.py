"""Predicted memory of one training process, line by line, and how it compares with the measured.

The ledger is a formula for GPT-2 encoders on function pairs, calibrated on few measurements. It
plans for the longest batch: every function as long as `seq_len`, whatever the padding saves.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from nbhelpers.batching import BatchPlan, split_batch
from nbhelpers.errors import BudgetError, ConfigError
from nbhelpers.shapes import Shape, find_shape

if TYPE_CHECKING:
    from nbhelpers.hardware import Hardware
    from nbhelpers.presets import Preset
    from nbhelpers.schema import Settings

GIB = 2**30
FITS, TIGHT, DOES_NOT_FIT, NO_GPU = "fits", "tight", "does not fit", "no GPU"
CONTEXT = "context"  # the only line that the allocator does not see
UNKNOWN = "ledger: shape unknown"
# Source: measured on an H200; a T4 reported 141 MiB. The larger one is taken for every card.
CUDA_CONTEXT_BYTES = int(0.75 * GIB)
# Source: measured, outside the allocator, with two and more processes.
NCCL_BYTES = int(0.55 * GIB)
# Source: reserved / allocated was 39.0 / 38.2 for CodeGPT 8 x 1,024 and 27.8 / 27.2 for CodeBERT;
# lengths that vary fragment more.
RESERVED_FACTOR = 1.05
# Source: the rule for verdicts: 1.10 x reserved + context within the card.
SAFETY_FACTOR = 1.10


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchExtent:
    """The size of a micro-batch as it is computed, padding included.

    `tokens`: over all rows; `squares`: sum over rows of length squared; `last_tokens`: of the
    length bucket whose backward pass begins while all activations are alive.
    """

    tokens: int
    squares: int
    last_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLine:
    """One part of the memory of a training process."""

    name: str
    size_bytes: int
    note: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MemoryBudget:
    """What one process is predicted to need, beside what its GPU has."""

    lines: tuple[MemoryLine, ...]
    total_bytes: int
    capacity_bytes: int | None
    verdict: str
    advice: tuple[str, ...]
    source: str = "ledger"

    @property
    def allocated_bytes(self) -> int:
        """The part that the allocator's peak is compared with: all lines but the context."""
        return self.total_bytes - sum(x.size_bytes for x in self.lines if x.name == CONTEXT)

    def __repr__(self) -> str:
        of = f" of {_gib(self.capacity_bytes)}" if self.capacity_bytes else ""
        return f"MemoryBudget({_gib(self.total_bytes)}{of}: {self.verdict}, {self.source})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON keeps."""
        return asdict(self) | {
            "lines": [asdict(line) for line in self.lines],
            "advice": list(self.advice),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MemoryBudget:
        """Rebuild a budget that `to_dict` wrote.

        Raises:
            ConfigError: A value is missing or unknown.
        """
        odd = set(data) ^ {field.name for field in fields(cls)}
        if odd:
            text = f"A saved memory budget lacks or adds: {', '.join(sorted(odd))}."
            raise ConfigError(text, fix="use the version of nbhelpers that wrote it")
        lines = tuple(MemoryLine(**line) for line in data["lines"])
        return cls(**{**data, "lines": lines, "advice": tuple(data["advice"])})

    def _repr_html_(self) -> str:
        cells = [(line.name, _gib(line.size_bytes), line.note) for line in self.lines]
        cells.append(("total", _gib(self.total_bytes), self.verdict))
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>"
            for row in cells
        )
        advice = "".join(f"<li>{html.escape(text)}</li>" for text in self.advice)
        title = html.escape(repr(self))
        return f"<p><b>{title}</b></p><table>{rows}</table><ul>{advice}</ul>"


def predict_memory(preset: Preset, plan: BatchPlan, hardware: Hardware) -> MemoryBudget:
    """Return the predicted memory of one process, its verdict, and settings that would fit.

    Without a GPU the verdict is "no GPU" and the lines mean bytes of live tensors. Limits: GPT-2
    encoders, AdamW, one node.
    """
    shape = find_shape(preset.settings)
    gpu = hardware.gpu if plan.use_gpu else None
    capacity = gpu.memory_total_bytes or None if gpu is not None else None
    if shape is None:
        return _unknown(preset, plan, capacity)
    lines = ledger(preset.settings, plan, shape, precision=_precision(preset.settings, hardware))
    verdict, advice = _verdict(lines, capacity, plan), []
    if verdict in (DOES_NOT_FIT, TIGHT):
        advice = list(_advice(preset, plan, shape, hardware))
    total = sum(line.size_bytes for line in lines)
    if gpu is not None and capacity and gpu.memory_free_bytes < total <= capacity:
        used = _gib(capacity - gpu.memory_free_bytes)
        advice.append(f"{used} of {gpu.name} are in use by other processes: free them first")
    return MemoryBudget(
        lines=lines,
        total_bytes=total,
        capacity_bytes=capacity,
        verdict=verdict,
        advice=tuple(advice),
    )


def _precision(settings: Settings, hardware: Hardware) -> str:
    return hardware.precision if settings.precision == "auto" else settings.precision


def _verdict(lines: tuple[MemoryLine, ...], capacity: int | None, plan: BatchPlan) -> str:
    """Judge lines in three grades.

    Source: does not fit if allocated + context > card; fits if 1.10 x reserved + context <= card;
    else tight.
    """
    if not plan.use_gpu:
        return NO_GPU
    if capacity is None:
        return TIGHT
    context = sum(line.size_bytes for line in lines if line.name == CONTEXT)
    allocated = sum(line.size_bytes for line in lines) - context
    if allocated + context > capacity:
        return DOES_NOT_FIT
    wanted = SAFETY_FACTOR * RESERVED_FACTOR * allocated + context
    return FITS if wanted <= capacity else TIGHT


def ledger(
    settings: Settings,
    plan: BatchPlan,
    shape: Shape,
    *,
    precision: str,
    extent: BatchExtent | None = None,
) -> tuple[MemoryLine, ...]:
    """Return the lines of one process at its peak, the start of a backward pass.

    Args:
        extent: The largest micro-batch, where the data are known; None: every function has
            `seq_len` tokens.

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
    extent, known = extent or _longest(settings, plan), extent is not None
    working = list(_working_set(settings, plan, shape, extent, is_half=is_half, is_known=known))
    lines += [_gradients(plan, 4 * count, sum(line.size_bytes for line in working)), *working]
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


def _longest(settings: Settings, plan: BatchPlan) -> BatchExtent:
    rows, seq_len = 2 * plan.per_device_train_batch_size, settings.seq_len
    tokens = rows * seq_len
    return BatchExtent(tokens=tokens, squares=tokens * seq_len, last_tokens=tokens)


def _working_set(
    settings: Settings,
    plan: BatchPlan,
    shape: Shape,
    extent: BatchExtent,
    *,
    is_half: bool,
    is_known: bool,
) -> Iterator[MemoryLine]:
    """The activations and temporaries of training, or of scoring where that needs more."""
    seq_len, tokens = settings.seq_len, extent.tokens
    dropout = shape.dropout if settings.dropout is None else settings.dropout
    # CUDA's dropout keeps its mask as bytes, the CPU's as fp32 (torch 2.11).
    mask = 0 if not dropout else 1 if plan.use_gpu else 4
    layer = tokens * layer_bytes_per_token(
        shape, is_half=is_half, mask_bytes=mask, is_fused=settings.attention != "eager"
    )
    # With dropout the CPU's fused attention falls back to full score matrices.
    has_scores = settings.attention == "eager" or (dropout > 0 and not plan.use_gpu)
    scores = shape.heads * score_bytes(is_half=is_half, mask_bytes=mask)
    layer += extent.squares * scores * has_scores
    ends = tokens * shape.hidden * (8 + mask)  # embedding dropout, last norm: input and output
    if settings.gradient_checkpointing:
        size = layer + shape.layers * tokens * shape.hidden * 4 + ends
        note = f"one of {shape.layers} layers, and the input of each (checkpointing)"
    else:
        size, note = shape.layers * layer + ends, f"{shape.layers} layers"
    # Measured: inside the first block of the backward pass.
    temporary = (8 if settings.attention == "eager" else 4) * extent.last_tokens * shape.hidden * 4
    eval_rows = 2 * settings.per_device_eval_batch_size
    # On a CPU the live bytes of training steps are counted, not those of scoring.
    scoring = eval_rows * seq_len * shape.hidden * scoring_bytes(settings, is_half) * plan.use_gpu
    scoring += eval_rows * shape.heads * seq_len**2 * 8 * has_scores
    if scoring > size + temporary:
        note = f"scoring {eval_rows} functions of {seq_len:,} tokens (more than training needs)"
        yield MemoryLine(name="activations", size_bytes=scoring, note=note)
        return
    kernel = "with score matrices" if has_scores else "fused attention"
    what = f"{tokens:,} tokens" + (" (the longest batch)" if is_known else f" of {seq_len:,} each")
    note = f"{what}, {note}, {kernel}"
    yield MemoryLine(name="activations", size_bytes=size, note=note)
    yield MemoryLine(name="temporaries", size_bytes=temporary, note="inside the backward pass")


def layer_bytes_per_token(shape: Shape, *, is_half: bool, mask_bytes: int, is_fused: bool) -> int:
    """Return what one GPT-2 block keeps per token for its backward pass, without score matrices.

    Source: saved tensors of transformers 5's GPT2Block. fp32: inputs and outputs of both norms,
    q, k, v and attention output (8 x hidden); input and output of the fused GELU (2 x inner), or
    c_fc, tanh, 1 + tanh, x / 2 and the product of `gelu_new` (5 x inner). Autocast: the residual
    stream and everything after the `pow` of `gelu_new` stay fp32. Two dropout masks.
    """
    hidden, inner = shape.hidden, shape.inner
    masks = 2 * mask_bytes * hidden
    if is_half:
        return 20 * hidden + (4 if is_fused else 16) * inner + masks
    return 4 * (8 * hidden + (2 if is_fused else 5) * inner) + masks


def scoring_bytes(settings: Settings, is_half: bool) -> int:
    """Return the bytes per token and hidden unit alive inside an MLP without gradients.

    Source: `gelu_new` holds four fp32 tensors of the MLP's width; the fused GELU its input and
    output, beside the residual stream and the normed input in fp32.
    """
    if settings.attention == "eager":
        return 64
    return 24 if is_half else 40


def score_bytes(*, is_half: bool, mask_bytes: int) -> int:
    """Return the bytes kept per attention score: fp32 softmax, dropout's output and mask."""
    return 4 + ((2 if is_half else 4) + mask_bytes if mask_bytes else 0)


def _advice(preset: Preset, plan: BatchPlan, shape: Shape, hardware: Hardware) -> Iterator[str]:
    """Settings that fit with the same global batch, recomputed; the largest saving first."""
    capacity = hardware.gpu.memory_total_bytes if hardware.gpu else None
    found: list[tuple[int, str]] = []
    for changes in _candidates(preset, plan, hardware):
        try:
            other = preset.override(**changes).settings
            split = _resplit(other, plan)
        except ConfigError:
            continue
        lines = ledger(other, split, shape, precision=_precision(other, hardware))
        if _verdict(lines, capacity, split) == FITS:
            total = sum(line.size_bytes for line in lines)
            text = ", ".join(f"{name}={value!r}" for name, value in changes.items())
            same = split.global_batch_size == plan.global_batch_size
            kept = f"same global batch of {plan.global_batch_size}" if same else "other batch"
            if "seq_len" in changes:
                kept += "; changes the experiment"
            found.append((total, f"{text}: {_gib(total)}, fits ({kept})"))
            if len(changes) > 1:
                break
    yield from (text for _, text in sorted(found))


def _candidates(preset: Preset, plan: BatchPlan, hardware: Hardware) -> Iterator[dict[str, Any]]:
    """Single changes, then all together at ever smaller batches, last a shorter sequence."""
    settings = preset.settings
    free: dict[str, Any] = {}
    if settings.attention == "eager":
        free["attention"] = "sdpa"
    if settings.precision == "fp32" and hardware.precision != "fp32":
        free["precision"] = "auto"
    if not settings.gradient_checkpointing:
        free["gradient_checkpointing"] = True
    per_gpu = plan.global_batch_size // plan.world_size
    smaller = [n for n in range(plan.per_device_train_batch_size - 1, 0, -1) if per_gpu % n == 0]
    scoring = settings.per_device_eval_batch_size
    yield from ({name: value} for name, value in free.items())
    yield from ({"per_device_train_batch_size": size} for size in smaller[:2])
    yield from (
        {"per_device_eval_batch_size": size} for size in (scoring // 2, scoring // 4) if size
    )
    if len(free) > 1:
        yield dict(free)
    for size in smaller or [plan.per_device_train_batch_size]:
        sizes = {"per_device_train_batch_size": size} if smaller else {}
        if scoring > 8 * size:
            sizes["per_device_eval_batch_size"] = 8 * size
        if len(free | sizes) > 1:
            yield free | sizes
    smallest = free | ({"per_device_train_batch_size": 1} if smaller else {})
    lengths = (n for n in (768, 512, 400, 256, 128) if n < settings.seq_len)
    yield from (smallest | {"seq_len": n, "per_device_eval_batch_size": 1} for n in lengths)


def _resplit(settings: Settings, plan: BatchPlan) -> BatchPlan:
    split = split_batch(
        settings.global_batch_size,
        settings.per_device_train_batch_size,
        plan.world_size,
        allow_uneven=settings.allow_uneven_split,
    )
    seen = {"use_gpu": plan.use_gpu, "num_gpus_visible": plan.num_gpus_visible}
    return BatchPlan(**(split.to_dict() | seen))


def _unknown(preset: Preset, plan: BatchPlan, capacity: int | None) -> MemoryBudget:
    note = f"the sizes of {preset.settings.model} could not be read: nothing is predicted"
    return MemoryBudget(
        lines=(MemoryLine(name="unknown", size_bytes=0, note=note),),
        total_bytes=0,
        capacity_bytes=capacity,
        verdict=TIGHT if plan.use_gpu else NO_GPU,
        advice=(f"{note}; give a folder with config.json, or go online",),
        source=UNKNOWN,
    )


def require_fit(budget: MemoryBudget) -> None:
    """Stop before the model loads if the run is predicted not to fit.

    Raises:
        BudgetError: Names the settings that fit, recomputed.
    """
    if budget.verdict != DOES_NOT_FIT:
        return
    lines = [f"  {line.name}: {_gib(line.size_bytes)} ({line.note})" for line in budget.lines]
    raise BudgetError(
        f"The run needs {_gib(budget.total_bytes)} (predicted); the GPU has "
        f"{_gib(budget.capacity_bytes or 0)}.",
        fix="set one of: " + "; or ".join(budget.advice) if budget.advice else "use a larger GPU",
        details="\n".join(lines),
    )


def compare(budget: MemoryBudget, measured_bytes: int | None) -> dict[str, Any]:
    """Put the prediction beside a measured peak of the allocator (or of live tensors on a CPU).

    Returns:
        predicted_bytes, measured_bytes, error_percent; None where nothing was predicted or
        measured. A positive error means that too much was predicted.
    """
    predicted = None if budget.source == UNKNOWN else budget.allocated_bytes
    error = None
    if predicted is not None and measured_bytes:
        error = 100 * (predicted - measured_bytes) / measured_bytes
    return {
        "predicted_bytes": predicted,
        "measured_bytes": measured_bytes,
        "error_percent": error,
    }


def _gib(size_bytes: int) -> str:
    return (
        f"{size_bytes / GIB:.1f} GiB"
        if size_bytes >= 0.1 * GIB
        else f"{size_bytes / 2**20:.0f} MiB"
    )
