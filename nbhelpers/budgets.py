"""The budget before a run: the simulation's where one is kept, between kept ones, else the ledger.

`predict_memory` is the one to ask: it answers at once and without torch. `simulate_budget` runs the
training step itself, on a card that need not be there, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbhelpers.batching import BatchPlan, plan_batch
from nbhelpers.budgets_advice import advise
from nbhelpers.budgets_child import simulated
from nbhelpers.budgets_interpolate import SOURCE, interpolate
from nbhelpers.budgets_key import Key, budget_key
from nbhelpers.budgets_search import Predict, Search, State, even_sizes
from nbhelpers.budgets_store import family, is_current, keep, kept, version_note
from nbhelpers.errors import HardwareError
from nbhelpers.job_specs import JOBS
from nbhelpers.ledger import GIB
from nbhelpers.memory import (
    DOES_NOT_FIT,
    FITS,
    QLORA_SAFETY_FACTOR,
    RESERVED_FACTOR,
    SAFETY_FACTOR,
    TIGHT,
    UNKNOWN,
    UNSURE,
    MemoryBudget,
    ledger_budget,
)
from nbhelpers.memory_held import on_this_machine
from nbhelpers.shapes import find_shape

if TYPE_CHECKING:
    from nbhelpers.hardware import Hardware
    from nbhelpers.presets import Preset
    from nbhelpers.schema import Settings

SIMULATION = "simulation"
LENGTH_STEP, MOST_TOKENS = 64, 131_072


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
    said = f"a part cannot be simulated; the ledger's formulas say {size:.1f} GiB: {plain.verdict}"
    return replace(known, notes=(*known.notes, said))


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
        found = _kept(preset, plan, hardware)
        if found is not None and is_current(preset.job, found.versions):
            return found
        if report is not None:
            report(f"simulating {plan.per_device_train_batch_size} x {preset.settings.seq_len}")
        return _simulated(preset, plan, hardware, timeout_s)

    budget = simulate(preset, plan, hardware)
    if not with_advice:
        return budget
    return _advised(budget, preset, plan, hardware, simulate, is_complete=True)


def judge(
    budget: MemoryBudget, settings: Settings, hardware: Hardware, *, use_gpu: bool = True
) -> MemoryBudget:
    """Return a simulated budget with the size of a card and the verdict for it.

    Source: does not fit if allocated + context > card; fits if 1.10 x reserved (1.25 for QLoRA) +
    context <= card; else tight. A part that cannot be predicted leaves open whether it fits.
    """
    gpu = hardware.gpu if use_gpu else None
    capacity = gpu.memory_total_bytes or None if gpu is not None else None
    context = budget.total_bytes - budget.allocated_bytes
    is_quantised = getattr(settings, "method", "") == "qlora"
    factor = QLORA_SAFETY_FACTOR if is_quantised else SAFETY_FACTOR
    reserved = budget.reserved_bytes or round(RESERVED_FACTOR * budget.allocated_bytes)
    if capacity is None:
        verdict = UNSURE if budget.opaque else TIGHT
    elif budget.total_bytes > capacity:
        verdict = DOES_NOT_FIT
    elif budget.opaque:
        verdict = UNSURE
    else:
        verdict = FITS if factor * reserved + context <= capacity else TIGHT
    return replace(budget, capacity_bytes=capacity, verdict=verdict)


def _known(preset: Preset, plan: BatchPlan, hardware: Hardware) -> MemoryBudget | None:
    """A kept budget, else one between kept ones; judged, without advice."""
    found = _kept(preset, plan, hardware)
    key = budget_key(preset, plan, hardware)
    if found is not None or key is None:
        return found
    points = family(key)
    for current in (True, False):
        same = [point for point in points if point.is_current is current]
        mixed = interpolate(same, key.batch, key.seq_len)
        if mixed is not None:
            return _placed(_labelled(key, mixed), preset, plan, hardware)
    return None


def _kept(preset: Preset, plan: BatchPlan, hardware: Hardware) -> MemoryBudget | None:
    key = budget_key(preset, plan, hardware)
    budget = kept(key) if key is not None else None
    if key is None or budget is None:
        return None
    return _placed(_labelled(key, budget), preset, plan, hardware)


def _placed(
    budget: MemoryBudget, preset: Preset, plan: BatchPlan, hardware: Hardware
) -> MemoryBudget:
    """Judge a budget for a card, and for what is free of it on this machine."""
    judged = judge(budget, preset.settings, hardware, use_gpu=plan.use_gpu)
    return on_this_machine(judged, preset, plan, hardware)


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
    return _placed(replace(budget, advice=()), preset, plan, hardware)


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
    found, has_fit = advise(preset, plan, hardware, budget, predict)
    if not has_fit and not is_complete:
        plain = ledger_budget(preset, plan, hardware)
        found += tuple(f"{text} [by the ledger, not simulated]" for text in plain.advice)
    return replace(budget, advice=(*found, *budget.advice))


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
        made = ", ".join(f"{name} {version}" for name, version in known if version)
        return f"{how} ({made})" if made else how
    return "formulas (ledger): not simulated yet for these settings on this card"


def max_batch(preset: Preset, hardware: Hardware, *, exact: bool = False) -> int | None:
    """Return the largest per-device batch whose verdict is "fits"; the global batch stays.

    Args:
        preset: What to do.
        hardware: The card.
        exact: Simulate each batch that is tried, unless it was; else take what is known.

    Returns:
        The batch; None where not even the smallest one fits.

    Raises:
        HardwareError: There is no GPU.
    """
    search, state = _search(preset, hardware, exact)
    sizes = [{"per_device_train_batch_size": n} for n in even_sizes(state.plan)]
    found = search.largest(state, sizes)
    return None if found is None else found[1].batch


def max_seq_len(preset: Preset, hardware: Hardware, *, exact: bool = False) -> int | None:
    """Return the largest length, a multiple of 64, whose verdict is "fits"; all batches stay.

    Args:
        preset: What to do.
        hardware: The card.
        exact: Simulate each length that is tried, unless it was; else take what is known.

    Returns:
        Tokens, at most the model's positions; None where not even 64 fit.

    Raises:
        HardwareError: There is no GPU.
    """
    search, state = _search(preset, hardware, exact)
    shape = find_shape(preset.settings)
    nodes = getattr(preset.settings, "data_flow_length", None) or 0
    most = shape.code_positions - nodes if shape is not None else MOST_TOKENS
    lengths = [{"seq_len": n} for n in range(LENGTH_STEP, most + 1, LENGTH_STEP)]
    found = search.largest(state, lengths)
    return None if found is None else found[1].preset.settings.seq_len


def _search(preset: Preset, hardware: Hardware, exact: bool) -> tuple[Search, State]:
    plan = plan_batch(preset, hardware)
    _require_gpu(plan, hardware)

    def simulate(preset: Preset, plan: BatchPlan, hardware: Hardware) -> MemoryBudget:
        return simulate_budget(preset, plan, hardware, with_advice=False)

    predict = simulate if exact else predict_memory
    return Search(hardware, predict), State(preset, plan, predict(preset, plan, hardware))
