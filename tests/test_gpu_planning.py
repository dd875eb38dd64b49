"""Promise: a plan without a GPU uses sourced figures, and a name means one GPU or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbhelpers.budget.predict import predict_memory
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.hardware.gpus import find_gpu, known_gpus
from nbhelpers.plan import plan_batch
from nbhelpers.presets.loading import load_preset
from nbhelpers.simulate.cards import find_card

EXPECTED = {
    *("t4", "v100-16gb", "v100-32gb", "l4", "a10g", "a100-40gb", "a100-80gb", "rtx6000ada"),
    *("rtx-a6000", "quadro-rtx6000", "rtx3090", "rtx4090", "rtx5090", "l40s", "h100"),
    *("h100-nvl", "h100-pcie", "h200", "b200", "rtxpro6000"),
    *("rtx3060", "rtx3070", "rtx3080", "rtx4060", "rtx4070", "rtx4080", "rtx5070", "rtx5080"),
}


def test_the_table_holds_the_gpus_it_promises() -> None:
    assert set(known_gpus()) == EXPECTED


@pytest.mark.parametrize("key", sorted(EXPECTED))
def test_every_entry_is_whole_plausible_and_sourced(key: str) -> None:
    spec = known_gpus()[key]
    assert set(spec.source) == {"memory_total_bytes", "memory_bandwidth_bytes_per_s", "tflops"}
    assert spec.memory_total_bytes % 2**20 == 0
    assert str(spec.memory_total_bytes // 2**20) in spec.source["memory_total_bytes"]
    assert 1e11 < spec.memory_bandwidth_bytes_per_s < 1e13
    assert (spec.bf16_tflops is not None) == (spec.compute_capability >= (8, 0))
    assert spec.bf16_tflops in (None, spec.fp16_tflops)
    # Above this many operations per byte no card of any generation stands: a doubled figure would.
    assert 50 < spec.fp16_tflops * 1e12 / spec.memory_bandwidth_bytes_per_s < 450
    gpu = plan_hardware(key).gpu
    assert (gpu.key, gpu.compute_capability) == (key, spec.compute_capability)
    assert gpu.memory_free_bytes == gpu.memory_total_bytes == spec.memory_total_bytes


def test_a_plan_is_marked_as_one() -> None:
    hardware = plan_hardware("t4", count=2)
    assert [gpu.index for gpu in hardware.gpus] == [0, 1]
    assert (hardware.is_planned, hardware.precision, hardware.reason) == (True, "fp16", "")
    assert repr(hardware).startswith("Hardware(planned 2 x Tesla T4 15.0 GiB, fp16, ")
    assert "Planned" in hardware._repr_html_()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("T4", "t4"),
        ("Tesla T4", "t4"),
        ("NVIDIA Tesla T4", "t4"),
        ("rtx 6000 ada", "rtx6000ada"),
        ("RTX6000Ada", "rtx6000ada"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
        ("quadro rtx 6000", "quadro-rtx6000"),
        ("RTX A6000", "rtx-a6000"),
        ("RTX PRO 6000 Blackwell", "rtxpro6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
        ("A100 80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("h100", "h100"),
        ("H100 PCIe", "h100-pcie"),
        ("4090", "rtx4090"),
        ("GeForce RTX 3090", "rtx3090"),
    ],
)
def test_people_may_write_a_name_their_way(text: str, key: str) -> None:
    assert find_gpu(text).key == key


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("a100", ["a100-40gb", "a100-80gb"]),
        ("Tesla V100", ["v100-16gb", "v100-32gb"]),
        ("rtx 6000", ["quadro-rtx6000", "rtx6000ada", "rtxpro6000"]),
    ],
)
def test_a_name_of_several_gpus_is_refused_with_the_choices(text: str, keys: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_hardware(text)
    assert caught.value.fix == "name one: " + " or ".join(f'gpu="{key}"' for key in keys)


@pytest.mark.parametrize(
    ("text", "guess"),
    [("rtx 4080 ti", "rtx4080"), ("a10", "a10g"), ("l40", "l40s"), ("rtx 3090 ti", "rtx3090")],
)
def test_an_unknown_name_is_refused_with_the_nearest(text: str, guess: str) -> None:
    with pytest.raises(ConfigError, match="not a GPU that") as caught:
        plan_hardware(text)
    assert guess in caught.value.fix.split("?")[0]


@pytest.mark.parametrize("text", ["", "   ", "potato", None, 4090])
def test_a_name_like_nothing_lists_what_is_known(text: object) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_hardware(text)  # type: ignore[arg-type]
    assert caught.value.fix.startswith("Known: t4, ")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("2xT4", "--gpu t4 --count 2"),
        ("4 × A100 80GB", "--gpu a100-80gb --count 4"),
        ("rtx 3090x2", "--gpu rtx3090 --count 2"),
        ("2xP100", "t4"),
        ("P100", "t4"),
        ("Tesla P100-PCIE-16GB", "t4"),
        ("K80", "t4"),
        ("GTX 1080 Ti", "t4"),
        ("sm_60:16GiB", "t4"),
    ],
)
def test_what_cannot_be_planned_is_answered_with_what_can(text: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_hardware(text)
    assert fix in caught.value.fix
    assert ("no kernels" in caught.value.message) == ("--count" not in fix)


@pytest.mark.parametrize(
    "text", ["RTX 2070", "rtx3060ti", "NVIDIA GeForce RTX 4070 SUPER", "a4000"]
)
def test_a_card_that_no_table_knows_is_named_as_typed_with_the_form_to_take(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_hardware(text)
    assert text in caught.value.message
    assert "sm_86:12GiB" in caught.value.fix


@pytest.mark.parametrize("size", ["0GiB", "0.5GiB", "1025GiB", "9999999GB"])
def test_a_card_with_a_memory_that_none_has_is_none(size: str) -> None:
    with pytest.raises(ConfigError, match="no memory that a card has: 1 to 1024 GiB"):
        plan_hardware(f"sm_86:{size}")


@pytest.mark.parametrize("text", ["sm_86:12GiB", "8.6, 12 gib", "cc86 12", "12GiB"])
def test_a_card_that_no_table_knows_is_described_as_for_a_simulation(text: str) -> None:
    hardware = plan_hardware(text, 2)
    gpu = hardware.gpus[1]
    assert (gpu.compute_capability, gpu.memory_total_bytes) == ((8, 6), 12 * 2**30)
    assert (gpu.index, gpu.key, hardware.precision) == (1, None, "bf16")
    assert plan_hardware(gpu.name).gpu == hardware.gpus[0]  # the name is how it is asked for
    preset = load_preset("finetune", "base", hardware=hardware)
    budget = predict_memory(preset, plan_batch(preset, hardware), hardware)
    assert (budget.source, budget.capacity_bytes) == ("estimate", 12 * 2**30)
    assert find_card(text) == find_card(gpu)


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "2"])
def test_a_count_must_be_a_whole_number_from_one(count: object) -> None:
    with pytest.raises(ConfigError, match="not a number of GPUs"):
        plan_hardware("t4", count)  # type: ignore[arg-type]


def test_an_entry_with_a_missing_or_unread_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gpus.yaml"
    path.write_text("mine:\n  name: Mine\n  colour: green\n")
    with pytest.raises(ConfigError, match=r"'mine' lacks aliases.*does not know colour"):
        known_gpus(path)
