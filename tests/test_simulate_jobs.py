"""Promise: a preset of clones or detector is simulated by the very code that trains it.

Tiny models; what a step must hold is known by counting, and what must change, changes.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from nbhelpers.budget.memory import MemoryBudget
from nbhelpers.budget.shapes import find_shape
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.jobs.simulated.jobs import COMPILED, simulate_settings
from nbhelpers.plan import plan_batch
from nbhelpers.presets.loading import load_preset

pytestmark = pytest.mark.slow

SMALL = {"seq_len": 256, "per_device_eval_batch_size": 4, "precision": "bf16"}
SMALL |= {"global_batch_size": 16, "per_device_train_batch_size": 16}
CLONES = SMALL | {"model": "smoke", "max_eval_pairs": 8, "dropout": 0.1}
DETECTOR = SMALL | {"dropout": 0.1}
_FOUND: dict[str, MemoryBudget] = {}  # by what was asked: several tests look at one


def simulate(
    job: str, changes: dict[str, Any], *, gpu: str = "h100", count: int = 1, **how: Any
) -> MemoryBudget:
    key = json.dumps([job, changes, gpu, count, how], sort_keys=True)
    if key not in _FOUND:
        preset = load_preset(job, "smoke", overrides=changes)
        hardware = plan_hardware(gpu, count)
        _FOUND[key] = simulate_settings(preset, plan_batch(preset, hardware), hardware, **how)
    return _FOUND[key]


def lines(budget: MemoryBudget) -> dict[str, int]:
    return {line.name: line.size_bytes for line in budget.lines}


def phases(budget: MemoryBudget) -> dict[str, int]:
    return {line.name: line.size_bytes for line in budget.phases}


def test_graphs_that_are_computed_end_to_end_need_less_and_nothing_is_refused():
    graphs = CLONES | {"model": "graphcodebert", "data_flow_length": 32, "pretrain_steps": 0}
    padded, ragged = (
        simulate("clones", graphs | {"compile_layers": wish}) for wish in ("off", "on")
    )
    assert not ragged.opaque and ragged.allocated_bytes < padded.allocated_bytes
    assert [budget.notes for budget in (padded, ragged)] == [(), (COMPILED,)]


@pytest.mark.parametrize(
    ("job", "changes"),
    [
        ("clones", CLONES),
        ("clones", CLONES | {"model": "smoke-graphcodebert", "data_flow_length": 32}),
        ("detector", DETECTOR),
    ],
)
def test_weights_and_moments_are_what_the_parameters_say(job, changes):
    preset = load_preset(job, "smoke", overrides=changes)
    count = find_shape(preset.settings).parameters()
    found = simulate(job, changes)
    told = lines(found)
    assert told["weights"] == pytest.approx(4 * count, rel=0.03)  # each tensor is rounded up
    assert told["optimizer"] == pytest.approx(8 * count, rel=0.03)
    assert set(phases(found)) == {"load", "forward", "backward", "optimizer", "evaluation"}
    assert found.opaque == ()
    assert found.allocated_bytes <= found.reserved_bytes
    assert found.source == "simulation"


def test_activations_follow_the_tokens_and_checkpointing_saves_half_of_them():
    long = CLONES | {"padding": "fixed", "seq_len": 512}
    whole, half, thin = (
        simulate("clones", long | changes)
        for changes in ({}, {"seq_len": 256}, {"gradient_checkpointing": True})
    )
    kept = [sum(lines(x).get(n, 0) for n in ("activations", "attention")) for x in (whole, half)]
    assert kept[0] == pytest.approx(2 * kept[1], rel=0.1)
    assert phases(thin)["forward"] < 0.7 * phases(whole)["forward"]


def test_gradients_of_earlier_micro_steps_and_buckets_are_counted():
    count = 4 * find_shape(load_preset("clones", "smoke").settings).parameters()
    alone, twice, two = (
        simulate("clones", CLONES | {"global_batch_size": size}, count=gpus)
        for size, gpus in ((16, 1), (64, 1), (32, 2))
    )
    assert lines(twice)["gradients"] == pytest.approx(count, rel=0.03)
    assert lines(two)["communication"] == pytest.approx(count, rel=0.03)
    assert lines(alone).get("gradients", 0) < 0.5 * count
    context = [x.total_bytes - x.allocated_bytes for x in (alone, two)]
    assert context[1] > context[0]


def test_shapes_of_a_run_need_less_than_the_longest():
    sizes = [[length, 0] for length in (256, 192, *[64] * 14, *[32] * 16)]
    shapes = {"vocab": 1000, "functions": sizes, "parts": [16], "scored": sizes[:8]}
    shapes |= {"pairs": [[at, at + 1] for at in range(0, 32, 2)]}
    shapes |= {"scored_functions": 8, "scored_pairs": 8}
    some, longest = simulate("clones", CLONES, shapes=shapes), simulate("clones", CLONES)
    kept = [lines(x)["activations"] for x in (some, longest)]
    assert 0.2 < kept[0] / kept[1] < 0.5  # 23 % of the tokens, attention as padded as before


def test_a_card_without_bf16_pads_for_its_attention():
    shapes = {"vocab": 1000, "lengths": [250, *[64] * 15], "parts": [16], "states": [64] * 16}
    shapes |= {"scored": [64] * 4, "scored_rows": 9, "has_raw_encoder": False}
    found = [
        simulate("detector", DETECTOR | {"precision": "auto"}, gpu=gpu, shapes=shapes)
        for gpu in ("t4", "h100")
    ]
    assert found[0].opaque == found[1].opaque == ()
    kept = [x.allocated_bytes - lines(x)["workspace"] for x in found]
    assert kept[0] > 1.2 * kept[1]


def test_an_objective_has_the_heads_that_it_needs():
    sizes = [
        lines(simulate("detector", DETECTOR | changes))["weights"]
        for changes in ({"objective": "detect"}, {})
    ]
    assert sizes[1] - sizes[0] == pytest.approx(4 * 96 * 96 + 4 * 1000, rel=0.3)


def test_scoring_large_batches_can_be_the_peak():
    many = simulate("clones", CLONES | {"per_device_eval_batch_size": 128})
    assert many.allocated_bytes == phases(many)["evaluation"] > phases(many)["backward"]


def test_what_the_run_would_change_is_as_it_was_afterwards():
    from accelerate.state import AcceleratorState, PartialState

    before = [dict(kind._shared_state) for kind in (PartialState, AcceleratorState)]
    cudnn = torch.backends.cuda.cudnn_sdp_enabled()
    simulate("clones", CLONES | {"seed": 4})  # not one that was kept
    assert [dict(kind._shared_state) for kind in (PartialState, AcceleratorState)] == before
    assert torch.backends.cuda.cudnn_sdp_enabled() == cudnn
    assert not torch.cuda.is_available()


def test_a_plan_without_a_gpu_and_a_model_without_sizes_are_refused(tmp_path):
    preset = load_preset("clones", "smoke")
    hardware = plan_hardware("t4")
    plan = plan_batch(preset, hardware)
    with pytest.raises(ConfigError, match="the plan uses none"):
        simulate_settings(preset, replace(plan, use_gpu=False), hardware)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"sizes of .* cannot be read"):
        simulate("clones", CLONES | {"model": str(tmp_path)})
