"""The budget before a run: the simulation's where one is kept, between kept ones, else the ledger.

`predict_memory` is the one to ask: it answers at once and without torch. `simulate_budget` runs the
training step itself, on a card that need not be there, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbhelpers.budget.formulas import GIB
from nbhelpers.budget.memory import (
    DOES_NOT_FIT,
    TIGHT,
    UNKNOWN,
    UNSURE,
    MemoryBudget,
    expected_reserved,
    fullest,
    ledger_budget,
    safety_factor,
    verdict_of,
    with_measured_context,
)
from nbhelpers.budget.prediction_log import usual_error
from nbhelpers.budget.search import Predict, advise
from nbhelpers.budget.simulator import simulated
from nbhelpers.budget.store import (
    SOURCE,
    Key,
    budget_key,
    family,
    interpolate,
    is_current,
    keep,
    kept,
    version_note,
)
from nbhelpers.errors import HardwareError
from nbhelpers.plan import BatchPlan
from nbhelpers.presets.jobs import JOBS

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.presets.preset import Preset
    from nbhelpers.presets.schema import Settings

SIMULATION = "simulation"


def predict_memory(preset: Preset, plan: BatchPlan, hardware: Hardware) -> MemoryBudget:
    """Return the predicted memory of one process, its verdict, and settings that would fit.

    At once and without torch: a budget that was simulated before, with the package's shipped ones,
    or one between such; else the ledger's formulas. `source` says which. Without a GPU the verdict
    is "no GPU" and the lines mean bytes of live tensors.

    Raises:
        ConfigError: `seq_len` is more than the positions of the model, where they are known.
    """
    plain = ledger_budget(preset, plan, hardware)
    known = known_budget(preset, plan, hardware)
    if known is None or known.verdict != UNSURE or plain.source == UNKNOWN:
        return known or plain
    size = plain.total_bytes / GIB
    note = f"a part cannot be simulated; the ledger's formulas say {size:.1f} GiB: {plain.verdict}"
    return replace(known, notes=(*known.notes, note))


def known_budget(preset: Preset, plan: BatchPlan, hardware: Hardware) -> MemoryBudget | None:
    """Return a kept budget or one between kept ones, with advice; None where there is neither."""
    budget = _known(preset, plan, hardware)
    return None if budget is None else _advised(budget, preset, plan, hardware)


def find_budget(preset: Preset, plan: BatchPlan, hardware: Hardware) -> MemoryBudget | None:
    """Return the kept simulation of exactly this run on this card; None where there is none.

    One that other library versions made says so in its notes.
    """
    budget = _kept(preset, plan, hardware)
    return None if budget is None else _advised(budget, preset, plan, hardware)


def simulate_budget(
    preset: Preset,
    plan: BatchPlan,
    hardware: Hardware,
    *,
    timeout_s: float = 600.0,
    with_advice: bool = True,
    report: Callable[[str], None] | None = None,
) -> MemoryBudget:
    """Run one training step without its card and return what it needs there; it is then kept.

    Args:
        preset: What to do.
        plan: How the global batch is split.
        hardware: The card, which need not be here.
        timeout_s: Limit for one simulation; the first of a process also imports the libraries.
        with_advice: Simulate what would help too, where the run does not fit.
        report: Is told what is simulated next.

    Raises:
        HardwareError: There is no GPU to simulate.
        LaunchError: The libraries of a training are not installed, or no process can be started.
        Killed: The time is over, or the process was killed.
        JobFailed: The simulation failed; its log is told.
    """
    _require_gpu(plan, hardware)
    ledger_budget(preset, plan, hardware)  # what is wrong with the settings is told at once

    def simulate(preset: Preset, plan: BatchPlan, hardware: Hardware) -> MemoryBudget:
        stored = _kept(preset, plan, hardware)
        if stored is not None and is_current(preset.job, stored.versions):
            return stored
        if report is not None:
            report(f"simulating {plan.per_device_train_batch_size} x {preset.settings.seq_len}")
        return _simulated(preset, plan, hardware, timeout_s)

    budget = simulate(preset, plan, hardware)
    if not with_advice:
        return budget
    return _advised(budget, preset, plan, hardware, simulate, is_complete=True)


def judge(
    budget: MemoryBudget,
    settings: Settings,
    hardware: Hardware,
    *,
    use_gpu: bool = True,
    held_bytes: int = 0,
) -> MemoryBudget:
    """Return a simulated budget with the size of a card and the verdict for it.

    Args:
        budget: What a process needs.
        settings: Of the run.
        hardware: With the card.
        use_gpu: Whether the run uses it.
        held_bytes: What others hold of it.
    """
    gpu = hardware.gpu if use_gpu else None
    capacity = gpu.memory_total_bytes or None if gpu is not None else None
    allocated = budget.allocated_bytes
    verdict = verdict_of(
        allocated_bytes=allocated,
        reserved_bytes=budget.reserved_bytes or expected_reserved(allocated, settings),
        context_bytes=budget.total_bytes - allocated,
        room_bytes=capacity - held_bytes if capacity is not None else None,
        safety=safety_factor(settings),
        is_complete=not budget.opaque,
    )
    return replace(budget, capacity_bytes=capacity, verdict=verdict)


def on_this_machine(
    budget: MemoryBudget, preset: Preset, plan: BatchPlan, hardware: Hardware
) -> MemoryBudget:
    """Return a simulated budget as it holds here: this machine's context, and what is free."""
    in_use = fullest(plan, hardware)
    lines = with_measured_context(budget.lines, plan, hardware)
    more = sum(x.size_bytes for x in lines) - sum(x.size_bytes for x in budget.lines)
    gpu = hardware.gpu if plan.use_gpu and not hardware.is_planned else None
    usual = usual_error(preset.job, gpu.key or gpu.name, budget.source) if gpu else None
    here = replace(
        budget,
        lines=lines,
        total_bytes=budget.total_bytes + more,
        held=in_use.lines(),
        notes=(*budget.notes, *((usual,) if usual else ())),
    )
    here = judge(
        here, preset.settings, hardware, use_gpu=plan.use_gpu, held_bytes=in_use.size_bytes
    )
    room = (here.capacity_bytes or 0) - in_use.size_bytes
    if hardware.gpu and here.capacity_bytes and in_use.size_bytes and room < here.total_bytes:
        return replace(here, advice=(in_use.advice(hardware.gpu.name), *here.advice))
    return here


def _known(preset: Preset, plan: BatchPlan, hardware: Hardware) -> MemoryBudget | None:
    """A kept budget, else one between kept ones; judged, without advice."""
    stored = _kept(preset, plan, hardware)
    key = budget_key(preset, plan, hardware)
    if stored is not None or key is None:
        return stored
    points = family(key)
    for current in (True, False):
        same = [point for point in points if point.is_current is current]
        mixed = interpolate(same, key.batch, key.seq_len)
        if mixed is not None:
            return on_this_machine(_labelled(key, mixed), preset, plan, hardware)
    return None


def _kept(preset: Preset, plan: BatchPlan, hardware: Hardware) -> MemoryBudget | None:
    key = budget_key(preset, plan, hardware)
    budget = kept(key) if key is not None else None
    if key is None or budget is None:
        return None
    return on_this_machine(_labelled(key, budget), preset, plan, hardware)


def _labelled(key: Key, budget: MemoryBudget) -> MemoryBudget:
    note = version_note(key.job, budget.versions)
    return replace(budget, notes=(note, *budget.notes)) if note else budget


def _simulated(
    preset: Preset, plan: BatchPlan, hardware: Hardware, timeout_s: float
) -> MemoryBudget:
    budget = simulated(preset, plan, hardware, timeout_s=timeout_s)
    key = budget_key(preset, plan, hardware)
    if key is not None:
        keep(key, budget)
    return on_this_machine(replace(budget, advice=()), preset, plan, hardware)


def _advised(
    budget: MemoryBudget,
    preset: Preset,
    plan: BatchPlan,
    hardware: Hardware,
    predict: Predict = _known,
    *,
    is_complete: bool = False,
) -> MemoryBudget:
    """Add advice; where kept budgets know of none that fits, the ledger's, named as such."""
    if budget.verdict not in (DOES_NOT_FIT, TIGHT):
        return budget
    suggestions, has_fit = advise(preset, plan, hardware, budget, predict)
    if not has_fit and not is_complete:
        plain = ledger_budget(preset, plan, hardware)
        suggestions += tuple(f"{text} [by the ledger, not simulated]" for text in plain.advice)
    return replace(budget, advice=(*suggestions, *budget.advice))


def _require_gpu(plan: BatchPlan, hardware: Hardware) -> None:
    if hardware.gpu is None or not plan.use_gpu:
        raise HardwareError(
            "There is no GPU whose memory could be simulated.",
            fix='name one: plan_hardware("t4"), or --gpu t4',
        )


def is_exact(budget: MemoryBudget, job: str) -> bool:
    """Whether a simulation would tell nothing new: it was simulated with what is here."""
    return budget.source == SIMULATION and is_current(job, budget.versions)


def ledger_beside(
    budget: MemoryBudget | None, preset: Preset, plan: BatchPlan, hardware: Hardware
) -> dict[str, Any] | None:
    """Return what the ledger says beside a simulated budget, for a record of both; else None."""
    if not isinstance(budget, MemoryBudget) or budget.source not in (SIMULATION, SOURCE):
        return None
    return ledger_budget(preset, plan, hardware).to_dict()


def source_words(budget: MemoryBudget, job: str) -> str:
    """Say in words where the figures of a budget come from."""
    if budget.source in (SIMULATION, SOURCE):
        how = "a simulated step" if budget.source == SIMULATION else "between simulated steps"
        known = ((name, budget.versions.get(name)) for name in JOBS[job].libraries)
        library_versions = ", ".join(f"{name} {version}" for name, version in known if version)
        return f"{how} ({library_versions})" if library_versions else how
    return "formulas (ledger): not simulated yet for these settings on this card"
