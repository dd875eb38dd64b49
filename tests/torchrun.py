"""Starts a probe in several processes of this machine, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def torchrun(probe: Path, world: int, *words: str | Path) -> None:
    """Run a program in `world` processes; what it says at its failure fails the test."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    cpu = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    roots = [str(probe.parent.parent), str(probe.parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [*start, str(world), str(probe), *map(str, words)],
        env=os.environ | cpu | {"PYTHONPATH": os.pathsep.join(roots)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
