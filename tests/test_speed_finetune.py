"""Promise: the benchmark's contenders compute the same loss and gradients."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_on_a_cpu_loss_and_gradients_of_ours_are_the_librarys(tmp_path: Path):
    command = [sys.executable, "-m", "benchmarks.speed_finetune", str(tmp_path), "--cpu"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    facts = json.loads((tmp_path / "finetune.json").read_text(encoding="utf-8"))["facts"]
    apart = {name: float(value) for name, value in facts.items() if "ours" in name}
    assert len(apart) == 2
    assert all(value < 1e-5 for value in apart.values())
