"""`MemoryBudget`: the predicted memory of a process, its verdict, and what of a card is taken."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nbhelpers.budget.formulas import (
    CONTEXT,
    GIB,
    MemoryLine,
    choose_kernel,
    finetune_ledger,
    ledger,
)
from nbhelpers.budget.prediction_log import measured_context, usual_error
from nbhelpers.budget.shapes import CausalShape, Shape, find_shape
from nbhelpers.common.display import left
from nbhelpers.common.files import rebuilt
from nbhelpers.common.formatting import gib, rounded_size
from nbhelpers.errors import BudgetError, ConfigError
from nbhelpers.hardware.gpus import Gpu
from nbhelpers.plan import BatchPlan, split_batch
from nbhelpers.presets.preset import divisors

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.presets.preset import Preset
    from nbhelpers.presets.schema import Settings


# ------------------------------------------------------------------------------------------------
# What of a card is not free for a run: memory of other processes and of the notebook's own cells.
#
# A budget says what a process needs; the card may have less than its size. The verdict is judged
# against what is left.


OTHERS = "held by other processes"
EARLIER = "left over from earlier cells"
# Below that share of a card and without a process to name, it is the driver's own.
DRIVERS_SHARE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes of a card that others hold, and that this notebook's process holds from earlier."""

    other_processes_bytes: int
    earlier_bytes: int
    users: str = ""  # the other processes, in words

    @property
    def size_bytes(self) -> int:
        """Both together."""
        return self.other_processes_bytes + self.earlier_bytes

    def advice(self, card: str) -> str:
        """Say what to free first."""
        if self.earlier_bytes > self.other_processes_bytes:
            size = gib(self.earlier_bytes)
            return f"{size} of {card} are left over from earlier cells: restart the kernel first"
        return f"{gib(self.size_bytes)} of {card} are in use by other processes: free them first"

    def lines(self) -> tuple[MemoryLine, ...]:
        """Return a line for each part that is not zero."""
        parts = []
        if self.earlier_bytes:
            note = "by this notebook's process: restart its kernel to free it"
            parts.append(MemoryLine(name=EARLIER, size_bytes=self.earlier_bytes, note=note))
        if self.other_processes_bytes:
            note = self.users or "the driver does not tell by whom"
            size = self.other_processes_bytes
            parts.append(MemoryLine(name=OTHERS, size_bytes=size, note=note))
        return tuple(parts)


def held_memory(gpu: Gpu, *, notebook_pid: int | None = None) -> Held:
    """Return what is in use of a card before a run begins.

    Args:
        notebook_pid: The process whose memory was left over from earlier cells; None: this one.
    """
    used = max(0, gpu.memory_total_bytes - gpu.memory_free_bytes)
    if not gpu.processes and used < DRIVERS_SHARE * gpu.memory_total_bytes:
        return Held(other_processes_bytes=0, earlier_bytes=0)
    own = os.getpid() if notebook_pid is None else notebook_pid
    sizes = [process.memory_bytes for process in gpu.processes]
    earlier = sum(p.memory_bytes or 0 for p in gpu.processes if p.pid == own)
    names = [f"{p.name or 'a process'} (pid {p.pid})" for p in gpu.processes if p.pid != own]
    earlier = min(earlier, used)
    if None not in sizes and used - sum(sizes) < DRIVERS_SHARE * gpu.memory_total_bytes:
        used = min(used, sum(sizes))  # the driver's own part is no one's
    others = max(0, used - earlier)
    return Held(other_processes_bytes=others, earlier_bytes=earlier, users=", ".join(names[:3]))


def fullest(plan: BatchPlan, hardware: Hardware) -> Held:
    """Return what is held of the card that has the least left, of those a run would use."""
    gpus = hardware.gpus[: plan.world_size] if plan.use_gpu else ()
    in_use = [held_memory(gpu) for gpu in gpus if gpu.memory_total_bytes]
    return max(
        in_use, key=lambda h: h.size_bytes, default=Held(other_processes_bytes=0, earlier_bytes=0)
    )


def with_measured_context(
    lines: Sequence[MemoryLine], plan: BatchPlan, hardware: Hardware
) -> tuple[MemoryLine, ...]:
    """Return lines whose context is the one that an earlier run measured on this machine.

    A planned card keeps the table's: it is not here.
    """
    gpu = hardware.gpu
    if gpu is None or hardware.is_planned or not plan.use_gpu:
        return tuple(lines)
    context_bytes = measured_context(gpu.key or gpu.name, world_size=plan.world_size)
    if context_bytes is None:
        return tuple(lines)
    note = "CUDA and NCCL" if plan.world_size > 1 else "CUDA"
    note += ", outside the allocator; measured on this machine"
    return tuple(
        replace(line, size_bytes=context_bytes, note=note) if line.name == CONTEXT else line
        for line in lines
    )


# ------------------------------------------------------------------------------------------------
# Predicted memory of one training process, line by line, and how it compares with the measured.
#
# The budget before a run plans for the longest batch: every sample as long as `seq_len`, whatever
# the padding saves. The formulas stand in `formulas`.


FITS, TIGHT, DOES_NOT_FIT, NO_GPU = "fits", "tight", "does not fit", "no GPU"
# A part cannot be predicted, and what can be predicted fits.
UNSURE = "unknown"
UNKNOWN = "ledger: shape unknown"
TUPLES = ("lines", "advice", "phases", "opaque", "notes", "held")
# Source: reserved / allocated was 39.0 / 38.2 for CodeGPT 8 x 1,024 and 27.8 / 27.2 for CodeBERT;
# lengths that vary fragment more.
RESERVED_FACTOR = 1.05
# Source: 13.8 / 12.3 and 30.5 / 26.4 for Gemma-2-2B with checkpointing; 1.03 to 1.08 without.
FINETUNE_RESERVED_FACTOR = 1.15
# Source: the rule for verdicts: 1.10 x reserved + context within the card; 1.25 for QLoRA, whose
# unpacked weights fragment.
SAFETY_FACTOR, QLORA_SAFETY_FACTOR = 1.10, 1.25


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MemoryBudget:
    """What one process is predicted to need, beside what its GPU has.

    `total_bytes` is the allocator's peak and the context. `reserved_bytes` (what the allocator
    takes from the card), `phases` (peak of allocated bytes in each part of a step), `opaque`
    (operations that could not be predicted, by name), `notes` and `versions` (of the libraries
    whose code was run) come from a simulation; a ledger has none of them. `held` is no part of the
    need: what others hold of the card, against which the verdict is judged too.
    """

    lines: tuple[MemoryLine, ...]
    total_bytes: int
    capacity_bytes: int | None
    verdict: str
    advice: tuple[str, ...]
    source: str = "ledger"
    reserved_bytes: int | None = None
    phases: tuple[MemoryLine, ...] = ()
    opaque: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    held: tuple[MemoryLine, ...] = ()

    @property
    def allocated_bytes(self) -> int:
        """The part that the allocator's peak is compared with: all lines but the context."""
        return self.total_bytes - sum(x.size_bytes for x in self.lines if x.name == CONTEXT)

    def __repr__(self) -> str:
        of = f" of {rounded_size(self.capacity_bytes)}" if self.capacity_bytes else ""
        return f"MemoryBudget({rounded_size(self.total_bytes)}{of}: {self.verdict}, {self.source})"

    def title(self) -> str:
        """Say in words what is needed, what there is, and the verdict."""
        needed = f"One training process is predicted to need {rounded_size(self.total_bytes)}"
        if self.source == UNKNOWN:
            return "The memory cannot be predicted: the model's sizes are not known"
        if self.verdict == NO_GPU:
            return f"{needed} of main memory for its tensors (no GPU is used)"
        of = f" of the GPU's {rounded_size(self.capacity_bytes)}" if self.capacity_bytes else ""
        return f"{needed}{of}: {self.verdict}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON keeps."""
        plain = asdict(self)
        return plain | {n: list(plain[n]) for n in TUPLES}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MemoryBudget:
        """Rebuild a budget that `to_dict` wrote.

        Raises:
            ConfigError: A field is missing, unknown or of a wrong type; names it.
        """
        return rebuilt(cls, data, "memory budget")

    def _repr_html_(self) -> str:
        cells = [(line.name, rounded_size(line.size_bytes), line.note) for line in self.lines]
        cells.append(("total", rounded_size(self.total_bytes), self.verdict))
        cells += [(line.name, rounded_size(line.size_bytes), line.note) for line in self.held]
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>"
            for row in cells
        )
        advice = "".join(f"<li>{html.escape(text)}</li>" for text in (*self.advice, *self.notes))
        return left(
            f"<p><b>{html.escape(self.title())}</b></p><table>{rows}</table><ul>{advice}</ul>"
        )


def ledger_budget(preset: Preset, plan: BatchPlan, hardware: Hardware) -> MemoryBudget:
    """Return the memory of one process by the ledger's formulas, with what would fit by them.

    `predict.predict_memory` prefers a simulation, where one is known.

    Without a GPU the verdict is "no GPU" and the lines mean bytes of live tensors. Limits: GPT-2
    and RoBERTa encoders, adapters on Gemma 2 and Llama, AdamW, one node.

    Raises:
        ConfigError: `seq_len` is more than the positions of the model, where they are known.
    """
    shape = find_shape(preset.settings)
    if shape is not None and preset.settings.seq_len > shape.code_positions:
        model, length, most = preset.settings.model, preset.settings.seq_len, shape.code_positions
        raise ConfigError(
            f"seq_len={length} is more than the {most} positions of the model {model}.",
            fix=f"set seq_len to {most} or less",
        )
    gpu = hardware.gpu if plan.use_gpu else None
    capacity = gpu.memory_total_bytes or None if gpu is not None else None
    if shape is None:
        return _unknown(preset, plan, capacity)
    lines, in_use = _lines(preset.settings, plan, shape, hardware), fullest(plan, hardware)
    room = capacity - in_use.size_bytes if capacity else capacity
    verdict, advice = _verdict(lines, room, plan, preset.settings), []
    if verdict in (DOES_NOT_FIT, TIGHT):
        advice = list(_advice(preset, plan, shape, hardware, room))
    total = sum(line.size_bytes for line in lines)
    if gpu is not None and capacity and room < total <= capacity:
        advice.insert(0, in_use.advice(gpu.name))
    return MemoryBudget(
        lines=lines,
        total_bytes=total,
        capacity_bytes=capacity,
        verdict=verdict,
        advice=tuple(advice),
        held=in_use.lines(),
        notes=_earlier_runs(preset.job, hardware, plan),
    )


def _earlier_runs(job: str, hardware: Hardware, plan: BatchPlan) -> tuple[str, ...]:
    """Say how far the ledger was off on this machine before; shown, never applied."""
    gpu = hardware.gpu if plan.use_gpu and not hardware.is_planned else None
    note = usual_error(job, gpu.key or gpu.name, "ledger") if gpu else None
    return (note,) if note else ()


def _precision(settings: Settings, hardware: Hardware) -> str:
    return hardware.precision if settings.precision == "auto" else settings.precision


def _lines(
    settings: Settings, plan: BatchPlan, shape: Shape | CausalShape, hardware: Hardware
) -> tuple[MemoryLine, ...]:
    precision = _precision(settings, hardware)
    if isinstance(shape, CausalShape):
        kernel = choose_kernel(
            settings, shape, has_flex=plan.use_gpu and hardware.precision == "bf16"
        )
        lines = finetune_ledger(settings, plan, shape, precision=precision, kernel=kernel)
    else:
        lines = ledger(settings, plan, shape, precision=precision)
    return with_measured_context(lines, plan, hardware)


def safety_factor(settings: Settings) -> float:
    """Return how many times its reserved bytes a run must find on a card for the verdict "fits"."""
    is_quantised = getattr(settings, "method", "") == "qlora"
    return QLORA_SAFETY_FACTOR if is_quantised else SAFETY_FACTOR


def expected_reserved(allocated_bytes: float, settings: Settings) -> float:
    """Return the bytes that the allocator is expected to take from the card for such a peak."""
    from nbhelpers.presets.schema import FinetuneSettings

    is_adapter = isinstance(settings, FinetuneSettings)
    return allocated_bytes * (FINETUNE_RESERVED_FACTOR if is_adapter else RESERVED_FACTOR)


def verdict_of(
    *,
    allocated_bytes: float,
    reserved_bytes: float,
    context_bytes: float,
    room_bytes: float | None,
    safety: float,
    is_complete: bool = True,
) -> str:
    """Return the verdict on a process for a card; the only place that holds the rule.

    Source: does not fit if allocated + context > room; fits if safety x reserved + context <= room;
    else tight. A part that cannot be predicted leaves open whether it fits.

    Args:
        allocated_bytes: Peak of the allocator, without the context.
        reserved_bytes: What the allocator takes from the card for it.
        context_bytes: Memory of CUDA outside the allocator.
        room_bytes: What is free of the card; None: its size is not known.
        safety: See `safety_factor`.
        is_complete: Whether every part could be predicted.
    """
    if room_bytes is not None and allocated_bytes + context_bytes > room_bytes:
        return DOES_NOT_FIT
    if not is_complete:
        return UNSURE
    if room_bytes is None:
        return TIGHT
    return FITS if safety * reserved_bytes + context_bytes <= room_bytes else TIGHT


def _verdict(
    lines: tuple[MemoryLine, ...], room: int | None, plan: BatchPlan, settings: Settings
) -> str:
    """Judge the lines of a ledger, which knows no reserved bytes."""
    if not plan.use_gpu:
        return NO_GPU
    context = sum(line.size_bytes for line in lines if line.name == CONTEXT)
    allocated = sum(line.size_bytes for line in lines) - context
    return verdict_of(
        allocated_bytes=allocated,
        reserved_bytes=expected_reserved(allocated, settings),
        context_bytes=context,
        room_bytes=room,
        safety=safety_factor(settings),
    )


def _advice(
    preset: Preset,
    plan: BatchPlan,
    shape: Shape | CausalShape,
    hardware: Hardware,
    capacity: int | None,
) -> Iterator[str]:
    """Settings that fit with the same global batch, recomputed; the largest saving first."""
    is_causal = isinstance(shape, CausalShape)
    candidates = (_finetune_candidates if is_causal else _candidates)(preset, plan, hardware)
    options: list[tuple[int, str]] = []
    for changes in candidates:
        try:
            other = preset.override(**changes).settings
            split = _resplit(other, plan)
        except ConfigError:
            continue
        lines = _lines(other, split, shape, hardware)
        if _verdict(lines, capacity, split, other) == FITS:
            total = sum(line.size_bytes for line in lines)
            text = ", ".join(f"{name}={value!r}" for name, value in changes.items())
            same = split.global_batch_size == plan.global_batch_size
            effect = f"same global batch of {plan.global_batch_size}" if same else "other batch"
            if {"seq_len", "method"} & changes.keys():
                effect += "; changes the experiment"
            options.append((total, f"{text}: {rounded_size(total)}, fits ({effect})"))
            if len(changes) > 1:
                break
    yield from (text for _, text in sorted(options))


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
    smaller = [n for n in reversed(divisors(per_gpu)) if n < plan.per_device_train_batch_size]
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


def _finetune_candidates(
    preset: Preset, plan: BatchPlan, hardware: Hardware
) -> Iterator[dict[str, Any]]:
    """Single changes, then all together at ever smaller batches, then 4 bits, last a shorter text.

    `attention="auto"` is a saving where it means flex attention: on a GPU with bf16.
    """
    s = preset.settings
    free: dict[str, Any] = {}
    if not s.gradient_checkpointing:
        free["gradient_checkpointing"] = True
    if s.loss == "plain":
        free["loss"] = "chunked"
    if s.attention == "eager" and hardware.precision == "bf16":
        free["attention"] = "auto"
    if s.precision == "fp32" and hardware.precision != "fp32":
        free["precision"] = "auto"
    per_gpu = plan.global_batch_size // plan.world_size
    smaller = [n for n in reversed(divisors(per_gpu)) if n < plan.per_device_train_batch_size]
    scored = {"per_device_eval_batch_size": 1, "generation_batch_size": 1}
    few = {name: least for name, least in scored.items() if getattr(s, name) > least}
    yield from ({name: value} for name, value in free.items())
    yield from ({"per_device_train_batch_size": size} for size in smaller)
    yield from ({name: max(getattr(s, name) // 4, 1)} for name in few)
    if len(free) > 1:
        yield dict(free)
    for size in smaller:
        if free:
            yield free | {"per_device_train_batch_size": size}
    smallest = free | ({"per_device_train_batch_size": 1} if smaller else {}) | few
    yield smallest
    if s.method == "lora":
        yield {"method": "qlora"}
        yield free | {"method": "qlora"}
        smallest |= {"method": "qlora"}
        yield smallest
    yield from (smallest | {"seq_len": n} for n in (768, 512, 384, 256, 128) if n < s.seq_len)


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
    parts = (*budget.lines, *budget.held)
    lines = [f"  {line.name}: {rounded_size(line.size_bytes)} ({line.note})" for line in parts]
    in_use_bytes = sum(line.size_bytes for line in budget.held)
    less = f", of which {rounded_size(in_use_bytes)} are in use" if in_use_bytes else ""
    needs, has = rounded_size(budget.total_bytes), rounded_size(budget.capacity_bytes or 0)
    if needs == has:  # a hair too much
        needs, has = (f"{x / GIB:.4f} GiB" for x in (budget.total_bytes, budget.capacity_bytes))
    raise BudgetError(
        f"The run needs {needs} (predicted); the GPU has {has}{less}.",
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
