"""The simulating process without a simulation: sums that any hand can check, and ways to fail."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from nbhelpers.budget.formulas import CONTEXT, MemoryLine
from nbhelpers.budget.memory import MemoryBudget

VERSIONS = {"torch": "2.11.0", "transformers": "5.17.0", "accelerate": "1.15.0"}
VERSIONS |= {"peft": "0.21.0", "trl": "0.29.1", "bitsandbytes": "0.50.0"}
GIB = 2**30
KILLED, SLOW, REFUSED, OPAQUE, SCORES = 13, 14, 15, 16, 17  # seeds


def synthetic(preset: Any, plan: Any, hardware: Any = None) -> MemoryBudget:
    """Return 5 GiB of weights and context, 2 MiB a token, and what the settings save of it."""
    s = preset.settings
    tokens = plan.per_device_train_batch_size * s.seq_len
    activations = tokens * 2**21 // (4 if s.gradient_checkpointing else 1)
    logits = tokens * 2**21 // (1 if getattr(s, "loss", "") == "plain" else 8)
    phases = {"backward": 4 * GIB + activations + logits}
    if s.seed == SCORES:
        phases["evaluation"] = 4 * GIB + s.per_device_eval_batch_size * s.seq_len * 2**20
        activations, logits = max(phases.values()) - 4 * GIB, 0
    sizes = {"weights": 4 * GIB, "activations": activations, "logits and loss": logits}
    lines = [MemoryLine(name=n, size_bytes=size, note="told") for n, size in sizes.items()]
    lines.append(MemoryLine(name=CONTEXT, size_bytes=GIB, note="told"))
    total = sum(line.size_bytes for line in lines)
    return MemoryBudget(
        lines=tuple(lines),
        total_bytes=total,
        capacity_bytes=None,
        verdict="",
        advice=(),
        source="simulation",
        reserved_bytes=total - GIB,
        phases=tuple(MemoryLine(name=n, size_bytes=x, note="") for n, x in phases.items()),
        opaque=("a kernel of nobody: not known",) if s.seed == OPAQUE else (),
        versions=dict(VERSIONS),
    )


def simulate(*, preset: Any, plan: Any, hardware: Any) -> dict[str, Any]:
    """Answer as `nbhelpers.jobs.simulated.child` does, or fail as a seed asks."""
    from nbhelpers.errors import ConfigError
    from nbhelpers.plan import BatchPlan
    from nbhelpers.presets.preset import Preset

    asked = Preset.from_dict(preset)
    if asked.settings.seed == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if asked.settings.seed == SLOW:
        time.sleep(60)
    if asked.settings.seed == REFUSED:
        raise ConfigError("The sizes cannot be read.", fix="go online")
    budget = synthetic(asked, BatchPlan.from_dict(plan))
    pid = {"name": "pid", "size_bytes": os.getpid(), "note": ""}
    return budget.to_dict() | {"phases": [pid]}


if __name__ == "__main__":
    from nbhelpers.jobs.serve import Line, serve

    serve(Line(int(sys.argv[1]), int(sys.argv[2])), {"simulate": simulate})
