"""`MemoryBudget`: the predicted memory of a process, its verdict, and what of a card is taken."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nbhelpers.budget.formulas import CONTEXT, GIB, MemoryLine
from nbhelpers.budget.prediction_log import EARLIER_WORDS, measured_context
from nbhelpers.common.display import Table
from nbhelpers.common.files import plain_values, rebuilt
from nbhelpers.common.formatting import gib, rounded_size
from nbhelpers.errors import BudgetError
from nbhelpers.hardware.gpus import Gpu
from nbhelpers.plan import BatchPlan

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
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
# the padding saves.


FITS, TIGHT, DOES_NOT_FIT, NO_GPU = "fits", "tight", "does not fit", "no GPU"
# A part cannot be predicted, and what can be predicted fits.
UNSURE = "unknown"
# Where a budget's figures come from: a simulated step, between such steps, the formulas of
# `formulas`, or nowhere (the sizes of the model are not known).
SIMULATION, INTERPOLATED, ESTIMATE, UNKNOWN = "simulation", "interpolated", "estimate", "unknown"
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
    (operations that could not be predicted, by name) and `versions` (of the libraries whose code
    was run) come from a simulation; an estimate has none of them. `held` is no part of the need:
    what others hold of the card, against which the verdict is judged too.
    """

    lines: tuple[MemoryLine, ...]
    total_bytes: int
    capacity_bytes: int | None
    verdict: str
    advice: tuple[str, ...]
    source: str = ESTIMATE
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
        size = "unknown" if self.source == UNKNOWN else rounded_size(self.total_bytes)
        return f"MemoryBudget({size}{of}: {self.verdict}, {self.source})"

    def need(self) -> str:
        """Return the size; `~` marks one between simulated steps, a word what no step told."""
        size = rounded_size(self.total_bytes)
        marked = {INTERPOLATED: f"~{size}", ESTIMATE: f"{size} (estimate)", UNKNOWN: "unknown"}
        return marked.get(self.source, size)

    def title(self) -> str:
        """Say in words what is needed, what there is, and the verdict."""
        needed = f"One training process is predicted to need {self.need()}"
        if self.source == UNKNOWN:
            return "The memory cannot be predicted: neither simulated nor estimated so far"
        if self.verdict == NO_GPU:
            return f"{needed} of main memory for its tensors (no GPU is used)"
        of = f" of the GPU's {rounded_size(self.capacity_bytes)}" if self.capacity_bytes else ""
        return f"{needed}{of}: {self.verdict}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON keeps."""
        return plain_values(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MemoryBudget:
        """Rebuild a budget that `to_dict` wrote.

        Raises:
            ConfigError: A field is missing, unknown or of a wrong type; names it.
        """
        budget = rebuilt(cls, data, "memory budget")
        return replace(budget, source=EARLIER_WORDS.get(budget.source, budget.source))

    def _repr_html_(self) -> str:
        rows = [(line.name, rounded_size(line.size_bytes), line.note) for line in self.lines]
        rows.append(("total", self.need(), self.verdict))
        rows += [(line.name, rounded_size(line.size_bytes), line.note) for line in self.held]
        notes = (*self.advice, *self.notes)
        return Table(("", "", ""), rows, title=self.title(), notes=notes).html()


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
