"""A run's measuring of memory put together: from its context to its lines in `result.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import torch

from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.measure import MemoryMeter
from nbhelpers.jobs.measure_phases import PhasePeaks, phase_rows, told_phases
from nbhelpers.jobs.measure_snapshot import StepRecorder
from nbhelpers.ledger import CONTEXT
from nbhelpers.memory import MemoryBudget, compare, ledger_budget

SNAPSHOT = "memory_snapshot"  # of rank 0, with .json; those of others have their number too
SNAPSHOT_EVENT = "memory_snapshot"
SAME_SHARE = 0.01  # by which two batches may differ in the ledger and be called the same
OF_DATA, OF_BUDGET = "the largest batch of the data", "the longest possible batch"
LEFT_OVER = ("other_processes_bytes", "earlier_bytes", "context_bytes")


def meter_of(context: RunContext, *, is_resumed: bool, load_bytes: int = 0) -> MemoryMeter:
    """Return the meter of a training: it knows what loading took, and earlier attempts.

    Args:
        load_bytes: The allocator's peak when the model was built; 0: it was built on the CPU.
        is_resumed: The optimizer's state came with the model, so this loading is another one.
    """
    device = context.accelerator.device
    loaded = {}
    if device.type == "cuda" and not is_resumed:  # nothing but the model was on the device so far
        loaded["load"] = load_bytes or torch.cuda.max_memory_allocated(device)
    meter = MemoryMeter(device, card=context.card, phases=loaded)
    for name, size in told_phases(context.earlier, meter.where).items():
        meter.note(name, size)
    kept = [event for event in context.earlier if event.get("type") == SNAPSHOT_EVENT]
    meter.snapshot = kept[-1].get("snapshot") if kept else None
    return meter


def settle_budget(context: RunContext, found: MemoryBudget | None) -> MemoryBudget | None:
    """Return what the measured peak is compared with, and write it as an event.

    The simulation of before the run is of the longest possible batch. Where the data's largest one
    is as long, it stands in the place of the ledger.

    Args:
        found: The ledger of the data's largest batch.
    """
    told = _told_budget(context)
    if told is not None and told.source == "simulation" and found is not None:
        longest = ledger_budget(context.preset, context.plan, context.hardware).allocated_bytes
        found = told if abs(found.allocated_bytes / longest - 1) < SAME_SHARE else found
    if found is not None:
        context.emit("memory", predicted_bytes=found.allocated_bytes)
    return found


def peaks_of(
    context: RunContext, meter: MemoryMeter, watched: Iterable[int], budget: MemoryBudget | None
) -> PhasePeaks:
    """Return what measures the phases of a training in the steps that are watched.

    Args:
        budget: From `settle_budget`.
    """
    recorder, predicted = None, _predicted_bytes(budget or _told_budget(context))
    if meter.device.type == "cuda" and predicted:
        rank = context.rank

        def tell(found: dict[str, Any]) -> None:
            meter.snapshot = found
            context.emit_rank(SNAPSHOT_EVENT, snapshot=found)

        recorder = StepRecorder(
            meter.device,
            path=context.run.path / f"{SNAPSHOT}{f'-rank{rank}' if rank else ''}.json",
            predicted_bytes=predicted,
            tell=tell,
            warn=context.warn,
        )
    return PhasePeaks(meter, watched=watched, tell=context.emit_rank, recorder=recorder)


def _told_budget(context: RunContext) -> MemoryBudget | None:
    """Return the budget before the run; none of an evaluation, whose budget is of training."""
    if context.is_evaluation or not context.facts.get("budget"):
        return None
    return MemoryBudget.from_dict(context.facts["budget"])


def _predicted_bytes(budget: MemoryBudget | None) -> int | None:
    """Return the peak that training is predicted to have."""
    if budget is None:
        return None
    of_training = [x.size_bytes for x in budget.phases if x.name not in ("load", "evaluation")]
    return max(of_training, default=budget.allocated_bytes) or None


def memory_facts(
    context: RunContext, ranks: list[dict[str, Any]], budget: MemoryBudget | None
) -> dict[str, Any]:
    """Return `memory` of `result.json`: the prediction beside the worst rank's peak.

    `budget` is that of the data's largest batch, from `settle_budget`; None: nothing was trained.
    `phases` and `reserved` are compared with the simulation of the data's largest batch, or else
    of the budget before the run, which is of the longest possible batch: `basis` says which.
    """
    measured = max(line["peak_allocated_bytes"] for line in ranks) or None
    cuda = context.accelerator.device.type == "cuda"
    by_phase = [line.pop("phases", {}) for line in ranks]
    snapshots = [line.pop("snapshot", None) for line in ranks]
    told = budget if budget is not None and budget.phases else _told_budget(context)
    phases = {line.name: line.size_bytes for line in told.phases} if told else {}
    facts: dict[str, Any] = {
        "device": context.accelerator.device.type,
        "what": "allocator peak" if cuda else "live tensor bytes",
        "per_rank": ranks,
        "source": budget.source if budget is not None else None,
        "phases": phase_rows(phases, by_phase),
        "basis": (OF_DATA if told is budget else OF_BUDGET) if phases else None,
        "reserved": _reserved(told, ranks),
        "left_over": left_over(ranks),
        "snapshot": next(filter(None, snapshots), None),
    }
    if budget is None:
        return facts | {"predicted_bytes": None, "measured_bytes": measured, "error_percent": None}
    lines = [asdict(line) for line in budget.lines if line.name != CONTEXT]
    return facts | {"predicted_lines": lines} | compare(budget, measured)


def _reserved(told: MemoryBudget | None, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    measured = max(line["peak_reserved_bytes"] for line in ranks) or None
    predicted = told.reserved_bytes if told is not None else None
    error = 100 * (predicted - measured) / measured if predicted and measured else None
    return {"predicted_bytes": predicted, "measured_bytes": measured, "error_percent": error}


def left_over(ranks: Iterable[Mapping[str, Any]]) -> dict[str, int | None]:
    """Return what the cards held beside the tensors of the run: of each kind the largest."""
    found = {}
    for name in LEFT_OVER:
        known = [line[name] for line in ranks if line.get(name) is not None]
        found[name] = max(known, default=None)
    return found
