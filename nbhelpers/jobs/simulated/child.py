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
    *,
    preset: dict[str, Any],
    plan: dict[str, Any],
    hardware: dict[str, Any],
    shapes: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the budget of a run as plain values."""
    from nbhelpers.jobs.simulated.jobs import simulate_settings

    where = BatchPlan.from_dict(plan), Hardware.from_dict(hardware)
    return simulate_settings(Preset.from_dict(preset), *where, shapes=shapes).to_dict()


def warm_up(*, job: str, engine: str | None = None) -> dict[str, Any]:
    """Simulate a small run of a job: the libraries load some two thousand modules on the way.

    Args:
        engine: Of a fine-tuning: TRL's trainer is another library.
    """
    from nbhelpers.hardware.detection import plan_hardware
    from nbhelpers.plan import plan_batch
    from nbhelpers.presets.loading import load_preset

    hardware = plan_hardware("h100")
    changes = {"engine": engine} if engine else {}
    preset = load_preset(job, "smoke", hardware=hardware, overrides=changes)
    plan = plan_batch(preset, hardware)
    return simulate(preset=preset.to_dict(), plan=plan.to_dict(), hardware=hardware.to_dict())


def main(requests: int, replies: int) -> None:
    """Serve until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook cancels by a message
    # The step believes in its card, so nothing may tell Accelerate that it runs on a CPU.
    os.environ.pop("ACCELERATE_USE_CPU", None)
    with contextlib.suppress(OSError):
        os.nice(POLITE)
    os.environ["OMP_NUM_THREADS"] = "1"  # shapes are computed, no numbers: threads only wait
    line = Line(requests, replies)
    from nbhelpers.jobs.worker import quiet_libraries

    quiet_libraries()
    serve(line, {"simulate": simulate, "warm_up": warm_up})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
