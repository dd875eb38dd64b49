"""The predicted time of a run beside the measured one, by phase, as a report shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nbhelpers.formatting import duration
from nbhelpers.report_facts import RunFacts
from nbhelpers.timing import TimeBudget, compare_time

if TYPE_CHECKING:
    import pandas as pd


def predicted_time(facts: RunFacts) -> TimeBudget | None:
    """Return the prediction that was saved when the run was launched; None without one."""
    return None if facts.is_evaluation else TimeBudget.from_record(facts.record)


def _compared(facts: RunFacts) -> list[dict[str, Any]]:
    budget = predicted_time(facts)
    if budget is None or budget.expected_s is None or not facts.is_complete:
        return []
    timing = facts.get("timing") or {}
    return compare_time(budget, {k: v for k, v in timing.items() if v is not None})


def time_table(facts: RunFacts) -> pd.DataFrame:
    """Return predicted and measured time of each phase, as text; pre-training is left out."""
    import pandas as pd

    rows = [
        {
            "phase": row["phase"],
            "predicted": duration(row["predicted_s"]),
            "range": f"{duration(row['low_s'])} to {duration(row['high_s'])}",
            "measured": duration(row["measured_s"]),
            "error": "" if row["error_percent"] is None else f"{row['error_percent']:+.0f} %",
        }
        for row in _compared(facts)
    ]
    return pd.DataFrame(rows)


def makers() -> dict[str, Callable[[RunFacts], pd.DataFrame]]:
    """Return the tables of this module, by name."""
    return {"time": time_table}


def time_said(facts: RunFacts) -> list[str]:
    """Return a sentence on the predicted and the measured time; none without both."""
    rows, budget = _compared(facts), predicted_time(facts)
    if not rows or budget is None or rows[-1]["error_percent"] is None:
        return []
    total = rows[-1]
    span = f"{duration(total['low_s'])} to {duration(total['high_s'])}"
    once = facts.get("timing", "pretrain_s")
    apart = f" without {duration(once)} of pre-training, done once" if once else ""
    return [
        f"Predicted before the run: {duration(total['predicted_s'])} ({span}; {budget.basis}), "
        f"measured {duration(total['measured_s'])}{apart}, error {total['error_percent']:+.0f} %."
    ]
