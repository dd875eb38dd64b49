"""How far predicted speeds are off: each measured row of the package predicted from the others.

python benchmarks/time_error.py
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

from nbhelpers.budget.speeds import CPU, RUN, SpeedRow, shipped_rows
from nbhelpers.budget.time_model import measured_cases, rate_of


def errors() -> list[tuple[SpeedRow, float, bool]]:
    """Return each row with the log of predicted by measured seconds, and whether it is in range."""
    found, cases = [], measured_cases(shipped_rows())
    for case in cases:
        row = case.row
        wanted = replace(case, row=replace(row, kind=RUN))  # a run to come is no plain loop
        step = rate_of(wanted, [other for other in cases if other is not case]).micro_step_s
        measured = row.micro_step_s
        error = math.log(step.expected / measured)
        found.append((row, error, step.low <= measured <= step.high))
    return found


def main() -> None:
    """Print the error of each row, then of all and of those on a GPU."""
    found = errors()
    for row, error, is_inside in found:
        mark = "in range" if is_inside else "outside "
        print(f"{100 * (math.exp(error) - 1):+6.0f} % {mark} {row.device:5} {row.source}")
    for name, some in (("all", found), ("on a GPU", [f for f in found if f[0].device != CPU])):
        sizes = [abs(error) for _, error, _ in some]
        inside = sum(is_inside for *_, is_inside in some)
        middle, mean = statistics.median(sizes), statistics.mean(sizes)
        print(
            f"{name}: {inside} of {len(some)} in range; |log error| {middle:.3f} median, "
            f"{mean:.3f} mean"
        )


if __name__ == "__main__":
    main()
