"""Promise: the global batch is the constant; a split is exact, or an error whose every choice
works, or uneven by request."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from nbhelpers.errors import ConfigError, HardwareError
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.plan import BatchPlan, plan_batch, scaling_table, split_batch, valid_choices
from nbhelpers.presets.loading import load_preset

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


@pytest.mark.parametrize("typed", [None, 32])
def test_a_plan_offers_the_numbers_of_gpus_that_work_as_the_table_does(typed):
    hardware = plan_hardware("h100", 6)
    changed = {"model": "graphcodebert"} | ({"per_device_train_batch_size": typed} if typed else {})
    preset = load_preset("clones", "h100", hardware=hardware, overrides=changed)
    offered = "num_gpus=1 or 2;" if typed else "num_gpus=1, 2 or 4;"
    with pytest.raises(ConfigError, match=offered):
        plan_batch(preset, hardware)
    if not typed:
        with pytest.raises(ConfigError, match="num_gpus=2, 4 or 8;"):
            plan_batch(preset, hardware, num_nodes=2)
    works = load_preset("clones", "h100", hardware=hardware, overrides=changed | {"num_gpus": 2})
    assert plan_batch(works, hardware).is_exact


def test_a_per_device_size_that_divides_is_offered():
    with pytest.raises(ConfigError, match="per_device_train_batch_size=1, 2, 3, 4, 6, 8, 12 or 24"):
        split_batch(48, 32, 2)


def test_a_split_is_exact_or_every_choice_offered_is_valid():
    for total, per_device, world_size in GRID:
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
            numbers = {int(n) for n in re.findall(r"\d+", error.fix)}
            assert {*choices.per_device_sizes, *choices.world_sizes} <= numbers
            assert set(choices.global_batch_sizes) <= numbers
            assert choices.has_uneven == ("allow_uneven_split" in error.fix)
        else:
            product = plan.per_device_train_batch_size * plan.gradient_accumulation_steps
            assert product * plan.world_size == total


def test_an_uneven_split_has_room_for_all_and_none_to_spare():
    for total, per_device, world_size in GRID:
        if total < world_size:
            with pytest.raises(ConfigError):
                split_batch(total, per_device, world_size, allow_uneven=True)
            continue
        plan = split_batch(total, per_device, world_size, allow_uneven=True)
        step = per_device * world_size
        assert (plan.gradient_accumulation_steps - 1) * step < total
        assert total <= plan.gradient_accumulation_steps * step
        assert plan.is_exact == (total % step == 0)


@pytest.mark.parametrize("values", [(0, 1, 1), (8, 0, 1), (8, 1, 0), (-8, 1, 1), (True, 1, 1)])
def test_numbers_below_one_and_truth_values_are_refused(values):
    with pytest.raises(ConfigError, match="positive integer"):
        split_batch(*values)


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
    with pytest.raises(ConfigError, match="per_device_train_batch_size is missing"):
        BatchPlan.from_dict({"world_size": 1})


# Several nodes


@pytest.mark.parametrize(
    ("gpus", "nodes", "num_gpus", "shown"),
    [
        (2, 2, "auto", "2 nodes x 2 x GPU"),
        (4, 2, 4, "2 nodes x 2 x GPU"),
        (1, 4, "auto", "4 nodes x 1 x GPU"),
    ],
)
def test_a_plan_counts_the_processes_of_all_nodes(gpus, nodes, num_gpus, shown):
    preset = load_preset("clones", "t4", overrides={"num_gpus": num_gpus})
    plan = plan_batch(preset, plan_hardware("t4", gpus), num_nodes=nodes)
    assert (plan.world_size, plan.num_nodes, plan.num_gpus_visible) == (4, nodes, gpus)
    assert shown in repr(plan) and f"on {nodes} nodes" in plan.words()
    assert "nodes" in plan._repr_html_()
    assert BatchPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_processes_on_the_cores_of_several_nodes_are_counted_by_node():
    hardware = replace(plan_hardware("t4"), gpus=(), reason="no driver")
    given = {"num_gpus": 4, "per_device_train_batch_size": 16}
    preset = load_preset("clones", "smoke", overrides=given)
    assert "2 processes share each node's cores" in repr(plan_batch(preset, hardware, num_nodes=2))
    assert plan_batch(preset, hardware, num_nodes=4).note() == ""


@pytest.mark.parametrize(
    ("num_gpus", "nodes", "words"),
    [(3, 2, "cannot be shared by 2 nodes alike"), (8, 2, "4 are visible on 2 nodes")],
)
def test_nodes_that_would_differ_or_lack_gpus_are_refused(num_gpus, nodes, words):
    preset = load_preset("clones", "t4", overrides={"num_gpus": num_gpus})
    with pytest.raises(HardwareError, match=words):
        plan_batch(preset, plan_hardware("t4", 2), num_nodes=nodes)


@pytest.mark.parametrize("nodes", [0, -1, True, "2", 1.0])
def test_a_number_of_nodes_is_a_whole_number_from_one(nodes):
    with pytest.raises(ConfigError, match="no number of nodes"):
        plan_batch(load_preset("clones", "t4"), plan_hardware("t4"), num_nodes=nodes)


# The table of several numbers of GPUs

SEED_TABLE = {1: (16, 4), 2: (16, 2), 4: (16, 1), 8: (8, 1)}


@pytest.mark.parametrize("visible", [1, 3, 8])
def test_the_seeds_auto_scaling_is_exact_or_says_what_to_choose(visible):
    """Whatever this machine has, the table is the same; 3 GPUs never make a batch of 48."""
    hardware = plan_hardware("rtx6000ada", visible)
    table = scaling_table(load_preset("clones", "seed-graphcodebert", hardware=hardware))
    assert [row.world_size for row in table.rows] == list(range(1, 9))
    for row in table.rows:
        if row.world_size in SEED_TABLE:
            plan = row.plan
            sizes = (plan.per_device_train_batch_size, plan.gradient_accumulation_steps)
            assert sizes == SEED_TABLE[row.world_size] and row.note == "exact"
            assert plan.global_batch_size == sizes[0] * sizes[1] * row.world_size == 64
        else:
            assert row.plan is None and "allow_uneven_split=true" in row.note
            assert "global_batch_size=" in row.note and "another experiment" in row.note


def test_every_choice_that_the_table_offers_works():
    preset = load_preset("clones", "seed-graphcodebert")
    for row in scaling_table(preset, range(1, 20)).rows:
        if row.plan is not None:
            continue
        for number in offered(row.note, "num_gpus"):
            assert next(r for r in scaling_table(preset, [number]).rows).plan.is_exact
        for total in offered(row.note, "global_batch_size"):
            assert split_batch(total, 16, row.world_size).is_exact
        uneven = preset.override(allow_uneven_split=True)
        plan = scaling_table(uneven, [row.world_size]).rows[0].plan
        assert plan.global_batch_size == 64 and not plan.is_exact


def offered(note: str, name: str) -> list[int]:
    """The numbers behind a setting in a row's note."""
    found = re.search(rf"{name}=([\d, or]+)", note)
    return [int(number) for number in re.findall(r"\d+", found[1])] if found else []


def test_the_plan_in_force_is_marked_and_added_where_it_is_missing():
    hardware = plan_hardware("h100", 2)
    preset = load_preset("clones", hardware=hardware)
    plan = plan_batch(preset, hardware)
    table = scaling_table(preset, plan=plan)
    assert [row.world_size for row in table.rows if row.is_here] == [2]
    assert "this plan; exact" in table.text() and "this plan; exact" in table._repr_html_()
    far = plan_batch(preset.override(per_device_train_batch_size=4), hardware, num_nodes=8)
    assert [row.world_size for row in scaling_table(preset, [1], plan=far).rows] == [1, 16]
    smoke = load_preset("clones", "smoke")
    cpu = plan_batch(smoke, replace(hardware, gpus=()))
    assert "this plan, on the CPU; exact" in scaling_table(smoke, plan=cpu).text()


def test_a_size_that_you_typed_is_kept_in_every_row():
    given = {"per_device_train_batch_size": 16}
    preset = load_preset("clones", "h100", overrides=given)
    rows = {row.world_size: row for row in scaling_table(preset).rows}
    assert rows[8].plan is None
    assert offered(rows[8].note, "per_device_train_batch_size") == [1, 2, 4, 8]
    assert rows[4].plan.per_device_train_batch_size == 16


def test_the_limit_of_a_shared_preset_survives_other_changes():
    preset = load_preset("clones", "h100", hardware=plan_hardware("h100", 8))
    assert (preset.settings.per_device_train_batch_size, preset.per_device_limit) == (8, 64)
    assert preset.override(seed=4).per_device_limit == 64
    assert scaling_table(preset.override(seed=4), [1]).rows[0].plan.formula() == "64 x 1 x 1 = 64"
    assert preset.override(per_device_train_batch_size=2).per_device_limit is None


def test_the_table_is_one_line_in_a_list_and_aligned_as_text():
    table = scaling_table(load_preset("clones", "seed-graphcodebert"))
    assert repr(table) == (
        "ScalingTable(global batch of 64 on any number of GPUs: exact on 1, 2, 4 or 8)"
    )
    lines = table.text().splitlines()
    assert " ".join(lines[0].split()) == "GPUs pairs per GPU micro-steps global batch"
    assert len(lines) == 9 and " ".join(lines[1].split()) == "1 16 4 64 exact"
    assert table._repr_html_().count("<tr>") == 9
