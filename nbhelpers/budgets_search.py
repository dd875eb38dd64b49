"""Presets that differ from one another in a few settings, each with its predicted memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nbhelpers.batching import BatchPlan, split_batch
from nbhelpers.errors import ConfigError
from nbhelpers.memory import FITS, MemoryBudget
from nbhelpers.presets import divisors

if TYPE_CHECKING:
    from nbhelpers.hardware import Hardware
    from nbhelpers.presets import Preset
    from nbhelpers.schema import Settings

Predict = Callable[["Preset", BatchPlan, "Hardware"], MemoryBudget | None]


@dataclass(frozen=True, slots=True)
class State:
    """A preset with its plan and what that needs."""

    preset: Preset
    plan: BatchPlan
    budget: MemoryBudget

    @property
    def fits(self) -> bool:
        """Whether the verdict is "fits"."""
        return self.budget.verdict == FITS

    @property
    def batch(self) -> int:
        """Examples that a process holds at once."""
        return self.plan.per_device_train_batch_size

    def gain(self, after: State) -> float:
        """Return the share of the memory that another state saves."""
        need = self.budget.total_bytes
        return (need - after.budget.total_bytes) / need if need else 0.0


@dataclass(frozen=True, slots=True)
class Search:
    """How states are predicted: `predict` gives None where it does not know."""

    hardware: Hardware
    predict: Predict

    def changed(self, state: State, changes: dict[str, Any]) -> State | None:
        """Return the state with settings changed; None: not possible, or not known."""
        try:
            preset = state.preset.override(**changes)
            plan = replan(preset.settings, state.plan)
        except ConfigError:
            return None
        budget = self.predict(preset, plan, self.hardware)
        return None if budget is None else State(preset, plan, budget)

    def largest(
        self, state: State, changes: Sequence[dict[str, Any]]
    ) -> tuple[dict[str, Any], State] | None:
        """Return the last of ascending changes that fits: a later one never needs less."""
        low, high, best = 0, len(changes) - 1, None
        while low <= high:
            middle = (low + high) // 2
            after = self.changed(state, changes[middle])
            if after is not None and after.fits:
                best, low = (changes[middle], after), middle + 1
            else:
                high = middle - 1
        return best


def replan(settings: Settings, plan: BatchPlan) -> BatchPlan:
    """Return a plan with the settings' batch and the same processes.

    Raises:
        ConfigError: The global batch does not split evenly.
    """
    split = split_batch(
        settings.global_batch_size,
        settings.per_device_train_batch_size,
        plan.world_size,
        allow_uneven=settings.allow_uneven_split,
    )
    return replace(
        plan,
        per_device_train_batch_size=split.per_device_train_batch_size,
        gradient_accumulation_steps=split.gradient_accumulation_steps,
        global_batch_size=split.global_batch_size,
        is_exact=split.is_exact,
    )


def even_sizes(plan: BatchPlan) -> list[int]:
    """Return the per-device batches that split the global batch evenly, ascending."""
    share, rest = divmod(plan.global_batch_size, plan.world_size)
    return [] if rest or not share else list(divisors(share))
