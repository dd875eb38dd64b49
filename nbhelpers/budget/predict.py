"""The memory of a run before it starts: simulated where a simulation is known, else an estimate.

`predict_memory` answers at once and without torch. `simulate_budget` runs the training step itself,
on a card that need not be there, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from nbhelpers.budget.formulas import GIB, estimate_lines
from nbhelpers.budget.memory import (
    DOES_NOT_FIT,
    ESTIMATE,
    INTERPOLATED,
    NO_GPU,
    SIMULATION,
    TIGHT,
    UNKNOWN,
    UNSURE,
    MemoryBudget,
    expected_reserved,
    fullest,
    safety_factor,
    verdict_of,
    with_measured_context,
)
from nbhelpers.budget.prediction_log import usual_error
from nbhelpers.budget.search import Fits, Predict, even_sizes
from nbhelpers.budget.search import advise as advice_for
from nbhelpers.budget.shapes import find_shape
from nbhelpers.budget.simulator import simulated
from nbhelpers.budget.store import (
    budget_key,
    family,
    interpolate,
    is_current,
    keep,
    kept,
    version_note,
)
from nbhelpers.errors import ConfigError, HardwareError
from nbhelpers.plan import BatchPlan
from nbhelpers.presets.jobs import JOBS

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.presets.preset import Preset
    from nbhelpers.presets.schema import Settings


def predict_memory(
    preset: Preset, plan: BatchPlan, hardware: Hardware, *, advise: bool = True
) -> MemoryBudget:
    """Return the predicted memory of one process, its verdict, and settings that would fit.

    At once and without torch: what was simulated before, on this machine or for the package's
    tables; or what lies between such; else an estimate by formulas. `source` says which. Without a
    GPU the verdict is "no GPU" and the lines mean bytes of live tensors.

    Args:
        preset: What to do.
        plan: How its batch is split.
        hardware: The card; planned, or of this machine.
        advise: Look for settings that would fit, where it does not.

    Raises:
        ConfigError: `seq_len` is more than the positions of the model, where they are known.
    """
    estimate = estimate_budget(preset, plan, hardware)
    known = _known(preset, plan, hardware)
    budget = known or estimate
    if budget.verdict in (DOES_NOT_FIT, TIGHT):
        if not advise:
            return budget
        return _advised(budget, preset, plan, hardware, _known, _known_or_estimated)
    if known is None or known.verdict != UNSURE or estimate.source == UNKNOWN:
        return budget
    size = f"{estimate.total_bytes / GIB:.1f} GiB"
    note = f"a part cannot be simulated; an estimate by formulas is {size}: {estimate.verdict}"
    return replace(known, notes=(*known.notes, note))


def estimate_budget(preset: Preset, plan: BatchPlan, hardware: Hardware) -> MemoryBudget:
    """Return what the formulas say, without advice.

    Limits: GPT-2 and RoBERTa encoders, adapters on Gemma 2 and Llama, AdamW, one node.

    Raises:
        ConfigError: `seq_len` is more than the positions of the model, where they are known.
    """
    settings = preset.settings
    shape = find_shape(settings)
    if not settings.has_own_loop:
        why = "no formulas hold for TRL's trainer"
        fix = "simulate it: `nbhelpers budget` with --exact, and --gpu where there is none"
        return _unknown(plan, hardware, why, fix)
    if shape is None:
        why = f"the sizes of {settings.model} could not be read"
        return _unknown(plan, hardware, why, "give a folder with config.json, or go online")
    if settings.seq_len > shape.code_positions:
        length, most = settings.seq_len, shape.code_positions
        raise ConfigError(
            f"seq_len={length} is more than the {most} positions of the model {settings.model}.",
            fix=f"set seq_len to {most} or less",
        )
    lines = estimate_lines(settings, plan, shape, hardware)
    total = sum(line.size_bytes for line in lines)
    budget = MemoryBudget(
        lines=lines, total_bytes=total, capacity_bytes=None, verdict="", advice=(), source=ESTIMATE
    )
    return on_this_machine(budget, preset, plan, hardware)


def _unknown(plan: BatchPlan, hardware: Hardware, why: str, fix: str) -> MemoryBudget:
    gpu = hardware.gpu if plan.use_gpu else None
    return MemoryBudget(
        lines=(),
        total_bytes=0,
        capacity_bytes=gpu.memory_total_bytes or None if gpu is not None else None,
        verdict=UNSURE if plan.use_gpu else NO_GPU,
        advice=(f"{why}: nothing is predicted; {fix}",),
        source=UNKNOWN,
    )


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
    if hardware.gpu is None or not plan.use_gpu:
        raise HardwareError(
            "There is no GPU whose memory could be simulated.",
            fix='name one: plan_hardware("t4"), or --gpu t4',
        )
    estimate_budget(preset, plan, hardware)  # what is wrong with the settings is told at once

    def simulate(preset: Preset, plan: BatchPlan, hardware: Hardware) -> MemoryBudget:
        stored = _kept(preset, plan, hardware)
        if stored is not None and is_current(preset.job, stored.versions):
            return stored
        if report is not None:
            report(f"simulating {plan.per_device_train_batch_size} x {preset.settings.seq_len}")
        budget = simulated(preset, plan, hardware, timeout_s=timeout_s)
        if (key := budget_key(preset, plan, hardware)) is not None:
            keep(key, budget)
        return on_this_machine(replace(budget, advice=()), preset, plan, hardware)

    budget = simulate(preset, plan, hardware)
    if not with_advice or budget.verdict not in (DOES_NOT_FIT, TIGHT):
        return budget
    return _advised(budget, preset, plan, hardware, simulate)


def judge(
    budget: MemoryBudget,
    settings: Settings,
    hardware: Hardware,
    *,
    use_gpu: bool = True,
    held_bytes: int = 0,
) -> MemoryBudget:
    """Return a budget with the size of a card and the verdict for it.

    Args:
        budget: What a process needs.
        settings: Of the run.
        hardware: With the card.
        use_gpu: Whether the run uses it.
        held_bytes: What others hold of it.
    """
    if not use_gpu:
        return replace(budget, capacity_bytes=None, verdict=NO_GPU)
    gpu = hardware.gpu
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
    """Return a budget as it holds here: this machine's context, what is free, and the verdict."""
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
    """A kept budget, else one between kept ones; without advice."""
    stored = _kept(preset, plan, hardware)
    key = budget_key(preset, plan, hardware)
    if stored is not None or key is None:
        return stored
    points = family(key)
    for current in (True, False):
        same = [point for point in points if point.is_current is current]
        mixed = interpolate(same, key.batch, key.seq_len)
        if mixed is not None:
            return on_this_machine(_labelled(preset.job, mixed), preset, plan, hardware)
    return None


def _known_or_estimated(preset: Preset, plan: BatchPlan, hardware: Hardware) -> MemoryBudget | None:
    budget = _known(preset, plan, hardware) or estimate_budget(preset, plan, hardware)
    return None if budget.source == UNKNOWN else budget


def _kept(preset: Preset, plan: BatchPlan, hardware: Hardware) -> MemoryBudget | None:
    key = budget_key(preset, plan, hardware)
    budget = kept(key) if key is not None else None
    if budget is None:
        return None
    return on_this_machine(_labelled(preset.job, budget), preset, plan, hardware)


def _labelled(job: str, budget: MemoryBudget) -> MemoryBudget:
    """A budget of other versions says so in its notes."""
    note = version_note(job, budget.versions)
    return replace(budget, notes=(note, *budget.notes)) if note else budget


def _advised(
    budget: MemoryBudget,
    preset: Preset,
    plan: BatchPlan,
    hardware: Hardware,
    *sources: Predict,
) -> MemoryBudget:
    """Add what would fit, by the first source that knows of something that does.

    What helps and is not enough is a note; a smaller setting that no source knows is named.
    """
    texts: tuple[str, ...] = ()
    for predict in sources:
        texts, is_met = advice_for(preset, plan, budget, Fits(hardware, predict))
        if is_met:
            return replace(budget, advice=(*budget.advice, *texts))
    least = min(even_sizes(plan), default=0)
    if not texts and 0 < least < plan.per_device_train_batch_size:
        text = f"a smaller batch (per_device_train_batch_size={least}): not simulated yet"
        return replace(budget, advice=(*budget.advice, f"{text}, --exact does it"))
    return replace(budget, notes=(*budget.notes, *texts))


def is_exact(budget: MemoryBudget, job: str) -> bool:
    """Whether a simulation would tell nothing new: it was simulated with what is here."""
    return budget.source == SIMULATION and is_current(job, budget.versions)


def source_words(budget: MemoryBudget, job: str) -> str:
    """Say in words where the figures of a budget come from."""
    if budget.source in (SIMULATION, INTERPOLATED):
        how = "a simulated step" if budget.source == SIMULATION else "between simulated steps"
        known = ((name, budget.versions.get(name)) for name in JOBS[job].libraries)
        library_versions = ", ".join(f"{name} {version}" for name, version in known if version)
        return f"{how} ({library_versions})" if library_versions else how
    if budget.source == UNKNOWN:
        return "nothing: neither simulated nor estimated so far"
    if budget.verdict == NO_GPU:
        return "an estimate by formulas"
    return "an estimate by formulas: not simulated yet for these settings on this card"
