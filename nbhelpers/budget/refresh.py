"""A budget that other library versions made, simulated anew while nobody waits for it.

A shell's command answers at once and leaves this behind: a polite process that simulates one run,
keeps the result, and ends. One at a time; a second one gives way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from nbhelpers.budget.simulator import has_libraries
from nbhelpers.budget.store import user_folder
from nbhelpers.common.processes import with_package

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.plan import BatchPlan
    from nbhelpers.presets.preset import Preset

SWITCH = "NBHELPERS_REFRESH"  # "0" in the environment: never
NICE = 10


def refresh_later(preset: Preset, plan: BatchPlan, hardware: Hardware) -> bool:
    """Have a run simulated by a process that outlives this one; say whether one was started.

    None is where the libraries of a training are missing, or where the environment forbids it.
    """
    if os.environ.get(SWITCH) == "0" or not has_libraries():
        return False
    what = {"preset": preset.to_dict(), "plan": plan.to_dict(), "hardware": hardware.to_dict()}
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "nbhelpers.budget.refresh"],
            env=with_package(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with process.stdin:  # type: ignore[union-attr]
            process.stdin.write(json.dumps(what).encode())  # type: ignore[union-attr]
    except OSError:
        return False
    return True


def main() -> None:
    """Simulate the run that stands on stdin, unless another such process is at work."""
    from nbhelpers.budget.predict import simulate_budget
    from nbhelpers.common.files import locked
    from nbhelpers.errors import NbhelpersError
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.plan import BatchPlan
    from nbhelpers.presets.preset import Preset

    what = json.loads(sys.stdin.buffer.read())
    os.nice(NICE)
    folder = user_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / ".refresh", timeout_s=0):
            simulate_budget(
                Preset.from_dict(what["preset"]),
                BatchPlan.from_dict(what["plan"]),
                Hardware.from_dict(what["hardware"]),
            )
    except (NbhelpersError, OSError):
        sys.exit(1)  # nobody is there to be told; the old budget stays, with its label


if __name__ == "__main__":
    main()
