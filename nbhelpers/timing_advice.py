"""Settings with which a run ends within the user's time, each predicted again, none guessed.

What leaves the experiment as it is comes first; what changes it says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbhelpers.batching import plan_batch
from nbhelpers.budgets import predict_memory
from nbhelpers.errors import NbhelpersError
from nbhelpers.formatting import duration
from nbhelpers.job_specs import ADAPTER
from nbhelpers.memory import FITS, NO_GPU
from nbhelpers.presets import divisors

if TYPE_CHECKING:
    from nbhelpers.presets import Preset
    from nbhelpers.timing import TimeBudget
    from nbhelpers.timing_phases import Plan

Changes = dict[str, Any]
CHANGES = "changes the experiment"
SAME = "the same experiment"
MOST = 4  # settings that are named
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0.02, 0.01)
LENGTHS = (1024, 768, 512, 400, 256, 128)


def advice_for(preset: Preset, found: TimeBudget, asked: Plan) -> tuple[str, ...]:
    """Return settings whose predicted time ends within the limit, the mildest first."""
    said: list[str] = []
    free = _best_of_free(preset, found, asked)
    if free is not None and _ends(free[1], found):
        said.append(_words(free[0], free[1], SAME))
    base = free[0] if free is not None else {}
    for changes in _harder(preset, base, found, asked):
        if len(said) >= MOST:
            break
        said.append(_words(changes[0], changes[1], CHANGES))
    return tuple(said)


def _ends(time: TimeBudget, limit: TimeBudget) -> bool:
    return time.high_s is not None and limit.max_s is not None and time.high_s <= limit.max_s


def _words(changes: Changes, time: TimeBudget, what: str) -> str:
    text = ", ".join(f"{name}={value!r}" for name, value in changes.items())
    expected, high = duration(time.expected_s or 0), duration(time.high_s or 0)
    return f"{text}: {expected}, at most {high} ({what})"


def _predicted(preset: Preset, changes: Changes, found: TimeBudget, asked: Plan) -> Any:
    """Return the time with some settings changed; None where they do not do or do not fit."""
    from nbhelpers.timing import predict_time

    try:
        other = preset.override(**changes)
        plan = plan_batch(other, asked.hardware)
        budget = predict_memory(other, plan, asked.hardware)
    except NbhelpersError:
        return None
    if budget.verdict not in (FITS, NO_GPU):
        return None
    time = predict_time(other, plan, asked.hardware, rows=asked.rows, advise=False)
    return replace(time, max_s=found.max_s)


def _free(preset: Preset, asked: Plan) -> Iterator[Changes]:
    """Changes that leave what is learnt as it is, one at a time."""
    s = preset.settings
    if asked.spec.formulas == ADAPTER and not s.packing and asked.plan.use_gpu:
        yield {"packing": True}
    if s.padding == "fixed":
        yield {"padding": "dynamic"}
    if s.precision == "fp32" and asked.hardware.precision != "fp32":
        yield {"precision": "auto"}
    if s.attention == "eager" and asked.hardware.precision == "bf16":
        yield {"attention": "auto"}
    if getattr(s, "compile_layers", "") == "off" and asked.spec.formulas == ADAPTER:
        yield {"compile_layers": "auto"}
    if s.gradient_checkpointing:
        yield {"gradient_checkpointing": False}
    if asked.rate.is_launch_bound:
        per_gpu = asked.plan.global_batch_size // asked.plan.world_size
        sizes = [n for n in divisors(per_gpu) if n > asked.plan.per_device_train_batch_size]
        for size in reversed(sizes):
            yield {"per_device_train_batch_size": size}


def _best_of_free(
    preset: Preset, found: TimeBudget, asked: Plan
) -> tuple[Changes, TimeBudget] | None:
    """Take every free change that is faster than what was taken before; None: there is none."""
    taken: Changes = {}
    best: TimeBudget | None = None
    for change in _free(preset, asked):
        if set(change) & set(taken):
            continue
        time = _predicted(preset, taken | change, found, asked)
        before = (best or found).expected_s
        if time is not None and time.expected_s and before and time.expected_s < 0.98 * before:
            taken, best = taken | change, time
    return None if best is None else (taken, best)


def _harder(
    preset: Preset, base: Changes, found: TimeBudget, asked: Plan
) -> Iterator[tuple[Changes, TimeBudget]]:
    """The most epochs, rows, and tokens that end in time, with the free changes and without."""
    for start in [{}, base] if base else [{}]:
        for options in (_epochs(preset), _rows(preset, asked), _lengths(preset)):
            for change in options:
                time = _predicted(preset, start | change, found, asked)
                if time is not None and _ends(time, found):
                    yield start | change, time
                    break


def _epochs(preset: Preset) -> Iterator[Changes]:
    most = preset.settings.epochs
    # A detector that is frozen in all its epochs would train the heads alone.
    least = getattr(preset.settings, "freeze_epochs", 0) + 1
    yield from ({"epochs": n} for n in range(most - 1, least - 1, -1))


def _rows(preset: Preset, asked: Plan) -> Iterator[Changes]:
    """As many training rows as end in time, by a share where one is set, else by their number."""
    examples, s = asked.work.examples, preset.settings
    if not examples:
        return
    for share in SHARES:
        if s.max_train_samples is None:
            yield {"train_fraction": round(s.train_fraction * share, 6)}
        else:
            rows = int(examples * share) // s.global_batch_size * s.global_batch_size
            yield {"max_train_samples": max(rows, s.global_batch_size)}


def _lengths(preset: Preset) -> Iterator[Changes]:
    yield from ({"seq_len": n} for n in LENGTHS if n < preset.settings.seq_len)
