"""Promise: a run that this machine cannot carry is refused before anything starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import nbhelpers as nb
from nbhelpers.errors import BudgetError, HardwareError
from nbhelpers.hardware.detection import Hardware

GIB = 2**30


@pytest.fixture
def no_gpu() -> Hardware:
    found = nb.detect_hardware()
    return replace(found, gpus=(), reason="no NVIDIA driver", ram_total_bytes=8 * GIB)


def launch(name: str, hardware: Hardware, run_dir: Path, **overrides: object) -> None:
    preset = nb.load_preset("clones", name, hardware=hardware, overrides=overrides)
    plan = nb.plan_batch(preset, hardware)
    budget = nb.predict_memory(preset, plan, hardware)
    nb.launch(preset, plan, budget, hardware=hardware, run_dir=run_dir)


@pytest.mark.parametrize("name", ["t4", "2x-rtx6000ada", "seed-legacy"])
def test_a_preset_for_a_gpu_is_refused_without_one(name: str, no_gpu: Hardware, tmp_path: Path):
    with pytest.raises(HardwareError, match="no GPU here: no NVIDIA driver") as error:
        launch(name, no_gpu, tmp_path / "runs")
    assert "smoke" in error.value.fix and not (tmp_path / "runs").exists()


def test_more_tensors_than_memory_are_refused_on_a_cpu(no_gpu: Hardware, tmp_path: Path):
    small = replace(no_gpu, ram_total_bytes=GIB // 10)
    with pytest.raises(BudgetError, match=r"this machine has 0\.1 GiB"):
        launch("smoke", small, tmp_path / "runs")
    assert not list(tmp_path.glob("runs/*/process.json"))
