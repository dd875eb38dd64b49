"""The process that simulates for others: `python -m nbhelpers.jobs.simulated.child IN OUT`.

It speaks as `jobs.serve` does: JSON lines over two pipes, one request at a time, until a pipe or
the process that started it ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any

from nbhelpers.hardware.detection import Hardware
from nbhelpers.jobs.serve import Line, serve
from nbhelpers.plan import BatchPlan
from nbhelpers.presets.preset import Preset

POLITE = 5  # the notebook and its widgets come first


def simulate(
    *, preset: dict[str, Any], plan: dict[str, Any], hardware: dict[str, Any]
) -> dict[str, Any]:
    """Return the budget of a run as plain values."""
    from nbhelpers.jobs.simulated.jobs import simulate_settings

    budget = simulate_settings(
        Preset.from_dict(preset), BatchPlan.from_dict(plan), Hardware.from_dict(hardware)
    )
    return budget.to_dict()


def ready() -> dict[str, Any]:
    """Import what a simulation needs, so that the next request is answered sooner."""
    import nbhelpers.jobs.simulated.jobs  # noqa: F401

    return {}


def main(requests: int, replies: int) -> None:
    """Serve until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook cancels by a message
    # The step believes in its card, so nothing may tell Accelerate that it runs on a CPU.
    os.environ.pop("ACCELERATE_USE_CPU", None)
    with contextlib.suppress(OSError):
        os.nice(POLITE)
    line = Line(requests, replies)
    from nbhelpers.jobs.worker import quiet_libraries

    quiet_libraries()
    serve(line, {"simulate": simulate, "ready": ready})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
