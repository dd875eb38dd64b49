"""A worker that is profiled from its start to its first optimizer step.

NBHELPERS_WORKER_MODULE=benchmarks.profiled_worker; the profile lies in the run's folder.
"""

from __future__ import annotations

import cProfile
import io
import os
import pstats
import sys

PROFILE = cProfile.Profile()
LINES = 70


def write(folder: str) -> None:
    """Write the calls that took longest, with what they called."""
    PROFILE.disable()
    text = io.StringIO()
    stats = pstats.Stats(PROFILE, stream=text)
    stats.sort_stats("cumulative").print_stats(LINES)
    stats.sort_stats("tottime").print_stats(30)
    with open(os.path.join(folder, "profile.txt"), "w", encoding="utf-8") as file:
        file.write(text.getvalue())


def main() -> None:
    """Run the worker; the profile ends when the first step is told."""
    PROFILE.enable()
    from nbhelpers.jobs import loop
    from nbhelpers.jobs.worker import main as work
    from nbhelpers.jobs.worker import quiet_libraries
    from nbhelpers.runs.unsupervised import attend

    real = loop.Trainer._emit_step

    def emit_step(self, *parts):
        real(self, *parts)
        if PROFILE is not None and not emit_step.is_done:
            emit_step.is_done = True
            write(sys.argv[1])

    emit_step.is_done = False
    loop.Trainer._emit_step = emit_step
    quiet_libraries()
    code = attend(sys.argv[1], work)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
