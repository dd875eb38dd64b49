"""Promise: the global batch is the constant; a split is exact, or an error whose every choice
works, or uneven by request."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from nbhelpers.batching import (
    BatchPlan,
    optimizer_steps,
    plan_batch,
    split_batch,
    valid_choices,
)
from nbhelpers.config import load_preset
from nbhelpers.errors import ConfigError, HardwareError
from nbhelpers.hardware import plan_hardware

GRID = [(g, d, w) for g in (1, 6, 16, 48, 63, 64) for d in (1, 3, 8, 16, 64) for w in range(1, 9)]


@pytest.mark.parametrize(
    ("per_device", "world_size", "accumulation", "total"),
    [
        (8, 2, 4, 64),
        (16, 1, 4, 64),
        (16, 2, 2, 64),
        (16, 4, 1, 64),
        (16, 1, 1, 16),
        (8, 1, 8, 64),
        (4, 2, 8, 64),
    ],
)
def test_the_seeds_tables_come_out(per_device, world_size, accumulation, total):
    plan = split_batch(total, per_device, world_size)
    assert plan.gradient_accumulation_steps == accumulation and plan.is_exact
    assert plan.formula() == f"{per_device} x {accumulation} x {world_size} = {total}"


def test_three_gpus_cannot_share_batch_64():
    with pytest.raises(ConfigError) as error:
        split_batch(64, 16, 3)
    found = str(error.value)
    assert "16 x 3 = 48" in found and "64 % 48 = 16" in found
    assert "global_batch_size=48 or 96" in found
    assert "num_gpus=1, 2 or 4" in found
    assert "allow_uneven_split=True" in found
    assert "per_device_train_batch_size=" not in found.split("Fix:")[1]  # none works: 64 % 3 = 1


def test_three_gpus_share_batch_64_unevenly_by_request():
    plan = split_batch(64, 16, 3, allow_uneven=True)
    assert plan.gradient_accumulation_steps == 2 and not plan.is_exact
    assert plan.global_batch_size == 64 and "uneven" in plan.formula()


def test_a_per_device_size_that_divides_is_offered():
    with pytest.raises(ConfigError, match="per_device_train_batch_size=1, 2, 3, 4, 6, 8, 12 or 24"):
        split_batch(48, 32, 2)


@pytest.mark.parametrize(("total", "per_device", "world_size"), GRID)
def test_a_split_is_exact_or_every_choice_offered_is_valid(total, per_device, world_size):
    try:
        plan = split_batch(total, per_device, world_size)
    except ConfigError as error:
        choices = valid_choices(total, per_device, world_size)
        for size in choices.per_device_sizes:
            assert split_batch(total, size, world_size).is_exact
        for number in choices.world_sizes:
            assert split_batch(total, per_device, number).is_exact
        for other in choices.global_batch_sizes:
            assert split_batch(other, per_device, world_size).is_exact
        assert choices.global_batch_sizes
        offered = {int(n) for n in re.findall(r"\d+", error.fix)}
        for values in (choices.per_device_sizes, choices.world_sizes, choices.global_batch_sizes):
            assert set(values) <= offered
        assert choices.has_uneven == ("allow_uneven_split" in error.fix)
    else:
        product = plan.per_device_train_batch_size * plan.gradient_accumulation_steps
        assert product * plan.world_size == total


@pytest.mark.parametrize(("total", "per_device", "world_size"), GRID)
def test_an_uneven_split_has_room_for_all_and_none_to_spare(total, per_device, world_size):
    if total < world_size:
        with pytest.raises(ConfigError):
            split_batch(total, per_device, world_size, allow_uneven=True)
        return
    plan = split_batch(total, per_device, world_size, allow_uneven=True)
    step = per_device * world_size
    assert (plan.gradient_accumulation_steps - 1) * step < total
    assert total <= plan.gradient_accumulation_steps * step
    assert plan.is_exact == (total % step == 0)


@pytest.mark.parametrize("values", [(0, 1, 1), (8, 0, 1), (8, 1, 0), (-8, 1, 1), (True, 1, 1)])
def test_numbers_below_one_and_truth_values_are_refused(values):
    with pytest.raises(ConfigError, match="positive integer"):
        split_batch(*values)


@pytest.mark.parametrize(
    ("examples", "epochs", "steps"),
    [(64, 1, 1), (65, 1, 2), (128, 2, 4), (1, 3, 3), (90102, 2, 2816), (0, 2, 0)],
)
def test_the_last_partial_window_of_an_epoch_is_a_step(examples, epochs, steps):
    assert optimizer_steps(examples, split_batch(64, 8, 2), epochs) == steps


def test_one_process_per_visible_gpu():
    hardware = plan_hardware("t4", 2)
    plan = plan_batch(load_preset("clones", hardware=hardware), hardware)
    assert (plan.world_size, plan.num_gpus_visible, plan.use_gpu) == (2, 2, True)
    assert plan.formula() == "8 x 4 x 2 = 64"


def test_num_gpus_uses_fewer_than_are_visible():
    hardware = plan_hardware("t4", 4)
    preset = load_preset("clones", "t4", hardware=hardware, overrides={"num_gpus": 2})
    plan = plan_batch(preset, hardware)
    assert (plan.world_size, plan.num_gpus_visible) == (2, 4)


def test_more_gpus_than_are_visible_is_a_hardware_error():
    hardware = plan_hardware("t4")
    with pytest.raises(HardwareError, match="1 is visible") as error:
        plan_batch(load_preset("clones", "seed-2x-rtx6000ada"), hardware)
    assert "num_gpus" in error.value.fix


@pytest.mark.parametrize(("num_gpus", "world_size"), [(None, 1), (2, 2)])
def test_on_a_cpu_num_gpus_counts_processes(num_gpus, world_size):
    hardware = replace(plan_hardware("t4"), gpus=(), reason="no driver")
    preset = load_preset("clones", "smoke", overrides={"num_gpus": num_gpus})
    plan = plan_batch(preset, hardware)
    assert (plan.world_size, plan.use_gpu, plan.num_gpus_visible) == (world_size, False, 0)


def test_a_plan_refuses_three_gpus_and_takes_them_unevenly():
    hardware = plan_hardware("t4", 3)
    preset = load_preset("clones", hardware=hardware)
    with pytest.raises(ConfigError, match="cannot be split"):
        plan_batch(preset, hardware)
    plan = plan_batch(preset.override(allow_uneven_split=True), hardware)
    assert plan.global_batch_size == 64 and not plan.is_exact


def test_a_plan_refuses_bf16_on_a_t4():
    preset = load_preset("clones", "t4").override(precision="bf16")
    with pytest.raises(ConfigError, match="bf16"):
        plan_batch(preset, plan_hardware("t4"))


def test_a_plan_survives_json_and_shows_itself():
    plan = split_batch(64, 8, 2)
    assert BatchPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert (
        "8 x 4 x 2 = 64" in repr(plan) and plan.note() == "2 processes share this machine's cores"
    )
    shown = plan._repr_html_()
    assert "8 pairs x 4 micro-steps x 2 processes = 64 per optimizer step" in shown
    assert "is_exact" not in shown and "use_gpu" not in shown
    with pytest.raises(ConfigError, match="lacks or adds"):
        BatchPlan.from_dict({"world_size": 1})
