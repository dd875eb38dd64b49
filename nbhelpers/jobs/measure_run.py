"""A run's measuring of memory put together: from its session to its lines in `result.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from nbhelpers.hardware import Hardware
from nbhelpers.jobs.measure import MemoryMeter
from nbhelpers.jobs.measure_phases import PhasePeaks, phase_rows, told_phases
from nbhelpers.jobs.measure_snapshot import StepRecorder
from nbhelpers.ledger import CONTEXT
from nbhelpers.memory import MemoryBudget, compare, ledger_budget

if TYPE_CHECKING:
    from nbhelpers.jobs.session import Session

SNAPSHOT = "memory_snapshot"  # of rank 0, with .json; those of others have their number too
SNAPSHOT_EVENT = "memory_snapshot"
SAME_SHARE = 0.01  # by which two batches may differ in the ledger and be called the same
OF_DATA, OF_BUDGET = "the largest batch of the data", "the longest possible batch"
LEFT_OVER = ("other_processes_bytes", "earlier_bytes", "context_bytes")


def meter_of(session: Session, *, is_resumed: bool) -> MemoryMeter:
    """Return the meter of a training: it knows what loading took, and earlier attempts.

    Args:
        is_resumed: The optimizer's state came with the model, so this loading is another one.
    """
    device = session.accelerator.device
    loaded = {}
    if device.type == "cuda" and not is_resumed:  # nothing but the model was on the device so far
        loaded["load"] = session.load_peak_bytes or torch.cuda.max_memory_allocated(device)
    meter = MemoryMeter(device, card=session.card, phases=loaded)
    for name, size in told_phases(session.told, meter.where).items():
        meter.note(name, size)
    kept = [event for event in session.told if event.get("type") == SNAPSHOT_EVENT]
    meter.snapshot = kept[-1].get("snapshot") if kept else None
    return meter


def settle_budget(session: Session, found: MemoryBudget | None) -> None:
    """Choose what the measured peak is compared with, and tell it.

    The simulation of before the run is of the longest possible batch. Where the data's largest one
    is as long, it stands in the place of the ledger.

    Args:
        found: The ledger of the data's largest batch.
    """
    told = _told_budget(session)
    if told is not None and told.source == "simulation" and found is not None:
        hardware = Hardware.from_dict(session.facts["hardware"])
        longest = ledger_budget(session.preset, session.plan, hardware).allocated_bytes
        found = told if abs(found.allocated_bytes / longest - 1) < SAME_SHARE else found
    session.data_budget = found
    if found is not None:
        session.emit_main("memory", predicted_bytes=found.allocated_bytes)


def peaks_of(session: Session, meter: MemoryMeter, watched: Iterable[int]) -> PhasePeaks:
    """Return what measures the phases of a training in the steps that are watched."""
    recorder, predicted = None, _predicted_bytes(session)
    if meter.device.type == "cuda" and predicted:
        rank = session.writer.rank

        def tell(found: dict[str, Any]) -> None:
            meter.snapshot = found
            session.writer.write(SNAPSHOT_EVENT, snapshot=found)

        recorder = StepRecorder(
            meter.device,
            path=session.run.path / f"{SNAPSHOT}{f'-rank{rank}' if rank else ''}.json",
            predicted_bytes=predicted,
            tell=tell,
            warn=session.warn,
        )
    return PhasePeaks(meter, watched=watched, tell=session.writer.write, recorder=recorder)


def _told_budget(session: Session) -> MemoryBudget | None:
    """Return the budget before the run; none of an evaluation, whose budget is of training."""
    if session.facts["mode"] == "evaluate" or not session.facts.get("budget"):
        return None
    return MemoryBudget.from_dict(session.facts["budget"])


def _predicted_bytes(session: Session) -> int | None:
    """Return the peak that training is predicted to have."""
    budget = session.data_budget or _told_budget(session)
    if budget is None:
        return None
    of_training = [x.size_bytes for x in budget.phases if x.name not in ("load", "evaluation")]
    return max(of_training, default=budget.allocated_bytes) or None


def memory_facts(session: Session, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return `memory` of `result.json`: the prediction beside the worst rank's peak.

    `phases` and `reserved` are compared with the simulation of the data's largest batch, or else
    of the budget before the run, which is of the longest possible batch: `basis` says which.
    """
    measured = max(line["peak_allocated_bytes"] for line in ranks) or None
    budget, cuda = session.data_budget, session.accelerator.device.type == "cuda"
    by_phase = [line.pop("phases", {}) for line in ranks]
    snapshots = [line.pop("snapshot", None) for line in ranks]
    told = budget if budget is not None and budget.phases else _told_budget(session)
    phases = {line.name: line.size_bytes for line in told.phases} if told else {}
    facts: dict[str, Any] = {
        "device": session.accelerator.device.type,
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
