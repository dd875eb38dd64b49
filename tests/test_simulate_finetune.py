"""Promise: our own fine-tuning, simulated without a GPU, needs what it was measured to need."""

from __future__ import annotations

import pytest
from causal_tiny import tiny_gemma

pytest.importorskip("peft")

from nbhelpers.budget.memory import MemoryBudget
from nbhelpers.budget.predict import estimate_budget
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.hardware.gpus import known_gpus
from nbhelpers.jobs.simulated.finetune import simulate_finetune
from nbhelpers.plan import plan_batch
from nbhelpers.presets.loading import load_preset
from tools.budget_cases import ASKED

pytestmark = pytest.mark.slow
GIB = 2**30


def simulated(name: str, lengths: list[int] | None, **changes: object) -> MemoryBudget:
    preset = load_preset("finetune", name, overrides={"evaluate": "none"} | changes)
    hardware = plan_hardware(name)
    plan = plan_batch(preset, hardware)
    shapes = {"vocab": None, "parts": [16], "valid": [[512, 0]] * 16, "prompts": []}
    shapes |= {"samples": [[length, 0] for length in lengths or ()]}
    shapes = shapes if lengths else None
    return simulate_finetune(preset, plan, hardware, gpu=hardware.gpu, shapes=shapes)


@pytest.mark.parametrize(
    ("preset", "lengths", "changes", "measured_gib"),
    [
        # Compiled blocks: fitted, not traced; replayed as graphs (benchmarks/speed_finetune.py).
        ("h100", [1024] * 16, {"compile_layers": "on", "seq_len": 1024}, 54.63),
        ("h100", [768] * 16, {"compile_layers": "on", "gradient_checkpointing": True}, 9.057),
        ("h100", [150] * 16, {"compile_layers": "off", "method": "qlora"}, 14.56),
    ],
)
def test_the_simulated_job_needs_what_the_real_one_needed(preset, lengths, changes, measured_gib):
    """benchmarks/finetune_gpu.py on an H200. Of the last run's largest batch only the mean length
    of its samples is written down."""
    budget = simulated(preset, lengths, **changes)
    assert budget.allocated_bytes / GIB == pytest.approx(measured_gib, rel=0.025)
    assert budget.opaque == ()
    assert {line.name for line in budget.phases} >= {"load", "forward", "backward", "optimizer"}


def test_checkpointing_needs_less_on_a_card_of_each_kind_whose_blocks_are_compiled(tmp_path):
    tiny_gemma().config.save_pretrained(tmp_path)
    wrong = {}
    cards = {spec.compute_capability: key for key, spec in known_gpus().items() if key not in ASKED}
    for card in cards.values():
        hardware, sizes = plan_hardware(card), []
        for checkpointing in (True, False):
            changes = {"compile_layers": "on", "gradient_checkpointing": checkpointing}
            changes |= {"evaluate": "none", "seq_len": 256}
            preset = load_preset("finetune", "base", hardware=hardware, overrides=changes)
            plan = plan_batch(preset, hardware)
            estimate = estimate_budget(preset, plan, hardware)
            small = preset.override(model=str(tmp_path))
            simulated = simulate_finetune(small, plan, hardware, gpu=hardware.gpu)
            sizes.append((estimate.allocated_bytes, simulated.allocated_bytes))
        if not all(less < more for less, more in zip(*sizes, strict=True)):
            wrong[card] = sizes
    assert not wrong
