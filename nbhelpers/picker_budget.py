"""The budget and the time of a choice: at once from what is known, exactly a moment later.

At once means the cache, else an interpolation between simulated budgets, else formulas; each budget
says which. The exact simulation runs in a process beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nbhelpers.budgets import is_exact, predict_memory, simulate_budget
from nbhelpers.budgets_child import missing_libraries
from nbhelpers.memory import FITS
from nbhelpers.timing import predict_time

if TYPE_CHECKING:
    from nbhelpers.memory import MemoryBudget
    from nbhelpers.picker_state import Resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a choice needs: a budget for each adapter (or the one preset), and the time in words."""

    found: Resolved
    budgets: Mapping[str, MemoryBudget]
    time_lines: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether a simulation would tell nothing new: all is simulated, or no GPU is used."""
        return not self.found.plan.use_gpu or all(
            is_exact(budget, self.found.choice.job) for budget in self.budgets.values()
        )

    @property
    def can_simulate(self) -> bool:
        """Whether the libraries of a training are here, without which nothing is simulated."""
        return not missing_libraries()


def quick_estimate(
    found: Resolved, *, price_per_hour: float | None = None, max_hours: float | None = None
) -> Estimate:
    """Return what is known of a choice without a simulation.

    Args:
        found: The choice with its objects.
        price_per_hour: Of the machine; a cost is then shown, in the same currency.
        max_hours: What a run may take; more is said, with what would be shorter.

    Raises:
        ConfigError: `seq_len` is more than the positions of the model.
    """
    budgets = {
        name: predict_memory(preset, found.plan, found.hardware)
        for name, preset in found.variants.items()
    }
    lines = time_lines(found, price_per_hour=price_per_hour, max_hours=max_hours)
    return Estimate(found=found, budgets=budgets, time_lines=lines)


def exact_estimate(
    estimate: Estimate,
    *,
    with_advice: bool = True,
    report: Callable[[str], None] | None = None,
) -> Estimate:
    """Return an estimate whose budgets are all simulated, in a process beside this one.

    Args:
        estimate: What is known.
        with_advice: Simulate what would help too, where something does not fit.
        report: Is told before each simulation.

    Raises:
        NbhelpersError: A simulation could not be run.
    """
    found, exact = estimate.found, {}
    for name, budget in estimate.budgets.items():
        preset = found.variants[name]
        is_done = is_exact(budget, found.choice.job) and (budget.verdict == FITS or not with_advice)
        exact[name] = (
            budget
            if is_done
            else simulate_budget(
                preset, found.plan, found.hardware, with_advice=with_advice, report=report
            )
        )
    return replace(estimate, budgets=exact)


def time_lines(
    found: Resolved, *, price_per_hour: float | None = None, max_hours: float | None = None
) -> tuple[str, ...]:
    """Say how long each run of a choice may take, what that costs, and whether it is too long.

    Raises:
        ConfigError: A limit or price that is no number above zero.
    """
    is_one = len(found.variants) == 1
    lines: list[str] = []
    for name, preset in found.variants.items():
        time = predict_time(
            preset,
            found.plan,
            found.hardware,
            max_hours=max_hours,
            price_per_hour=price_per_hour,
            advise=is_one,
        )
        told = time.lines()
        notes = {f"  {note}" for note in time.notes}
        lines += told if is_one else [f"{name}: {text}" for text in told if text not in notes]
    return tuple(lines)
