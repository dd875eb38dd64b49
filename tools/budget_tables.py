"""Make and check the shipped budgets: every preset on every card of configs/gpus.yaml.

`build` simulates them, in children, with the libraries that are installed; what was simulated here
before is taken from the user's cache. `check`: all are there, under today's keys, and small ones
say the same when they are simulated anew, where the libraries are those that they were made with.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from budget_build import build  # noqa: E402
from budget_cases import Case, cases, today  # noqa: E402

from nbhelpers.budget.memory import MemoryBudget  # noqa: E402
from nbhelpers.budget.simulator import Simulator, has_libraries  # noqa: E402
from nbhelpers.budget.store import (  # noqa: E402
    budget_key,
    installed_versions,
    of_the_package,
    public,
    shipped,
)
from nbhelpers.errors import NbhelpersError  # noqa: E402
from nbhelpers.presets.jobs import JOBS  # noqa: E402

SAMPLES = (("clones", "smoke", "t4"), ("detector", "smoke", "h100"))  # a second each
SAMPLE_LIBRARIES = ("torch", "transformers")
SAMPLE_TIMEOUT_S = 120.0
LEAST_CHANGE = 0.005


def problems(job: str) -> list[str]:
    """Say what a shipped table lacks, and what in it is of presets as they were."""
    table = shipped(job)
    if not table:
        return [f"{job}: there is no table"]
    found = []
    for case in cases(job):
        kept = table["presets"].get(case.preset_name, {}).get(case.place)
        now = today(case)
        if kept is None:
            found.append(f"{case}: not in the table")
        elif kept != now:
            found.append(f"{case}: the preset has changed since")
        elif case.preset is not None and _in_table(case) is None:
            found.append(f"{case}: its budget is missing")
    return found


def _in_table(case: Case) -> MemoryBudget | None:
    key = budget_key(case.preset, case.plan, case.hardware)
    at = (key.batch, key.seq_len)
    same = (p.budget for p in of_the_package(key) if (p.batch, p.seq_len) == at)
    return next(same, None)


def has_same_libraries(job: str) -> bool:
    """Whether what decides most is installed here as it was when a table was made."""
    made, here = shipped(job).get("versions", {}), installed_versions()
    is_same = all(public(made.get(name)) == public(here.get(name)) for name in SAMPLE_LIBRARIES)
    return is_same and has_libraries()


def stale(samples: Iterable[tuple[str, str, str]] = SAMPLES) -> Iterator[str]:
    """Simulate (job, preset, card) anew, where the libraries are the same; say what is not."""
    samples = [each for each in samples if has_same_libraries(each[0])]
    simulator = Simulator()
    try:
        for job, name, card in samples:
            case = next(c for c in cases(job) if (c.preset_name, c.place) == (name, card))
            kept = _in_table(case)
            if kept is None:
                continue  # `problems` says so
            asked = (case.preset, case.plan, case.hardware)
            try:
                anew = simulator.ask(*asked, timeout_s=SAMPLE_TIMEOUT_S)
            except NbhelpersError as error:
                yield f"{case}: it cannot be simulated: {error}"
            else:
                yield from _differences(str(case), kept, anew)
    finally:
        simulator.close()


def _differences(where: str, kept: MemoryBudget, anew: MemoryBudget) -> Iterator[str]:
    for name in ("total_bytes", "reserved_bytes"):
        was, now = getattr(kept, name), getattr(anew, name)
        if abs(now - was) > LEAST_CHANGE * was:
            yield f"{where}: {name} is {now:,} now, {now / was - 1:+.1%} of what is shipped"


def check(jobs: Iterable[str]) -> int:
    """Print what is wrong; 1 if something is."""
    jobs = tuple(jobs)
    found = [text for job in jobs for text in problems(job)]
    found += stale(sample for sample in SAMPLES if sample[0] in jobs)
    for text in found[:20]:
        print(text)
    if found:
        print(f"{len(found)} problems in nbhelpers/budget_tables. Fix: run make budgets")
        return 1
    how = "" if all(map(has_same_libraries, jobs)) else " (none simulated anew: other libraries)"
    print(f"shipped budgets: every preset on every card, as the presets are today{how}")
    return 0


def main() -> int:
    """Build or check; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("build", "check"))
    parser.add_argument("--job", action="append", choices=JOBS, help="default: all")
    parser.add_argument("--preset", action="append", help="build these only; others stay")
    parser.add_argument("--missing", action="store_true", help="only what the tables lack")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="at once")
    parser.add_argument("--seconds", type=float, help="stop then, and write what is done")
    parser.add_argument(
        "--stages", type=int, default=3, choices=(1, 2, 3), help="presets, advice, grids"
    )
    options = parser.parse_args()
    jobs = options.job or JOBS
    if options.what == "check":
        return check(jobs)
    how = {"workers": options.workers, "seconds": options.seconds, "stages": options.stages}
    how |= {"presets": options.preset or (), "only_missing": options.missing}
    return min(1, build(jobs, **how))


if __name__ == "__main__":
    sys.exit(main())
