"""Promise: `auto` finds the preset for a GPU and says so, users bring their own presets, and a
notebook's parameters are as strict as a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nbhelpers.errors import ConfigError
from nbhelpers.hardware.detection import Hardware, plan_hardware
from nbhelpers.hardware.gpus import Gpu
from nbhelpers.presets.loading import list_presets, load_preset, parameter_overrides

CODEGPT = "microsoft/CodeGPT-small-java-adaptedGPT2"


def no_gpu() -> Hardware:
    return replace(plan_hardware("t4"), gpus=(), reason="no driver", is_planned=False)


def one_gpu(name: str, gib: float, capability: tuple[int, int]) -> Hardware:
    size = int(gib * 2**30)
    gpu = Gpu(
        index=0,
        uuid="",
        name=name,
        key=None,
        memory_total_bytes=size,
        memory_free_bytes=size,
        compute_capability=capability,
    )
    return replace(plan_hardware("t4"), gpus=(gpu,))


def write(folder: Path, text: str, name: str = "mine.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


# Models


def test_an_alias_becomes_its_hub_id_and_is_named():
    preset = load_preset("clones", "smoke", overrides={"model": "codegpt"})
    assert preset.settings.model == CODEGPT
    assert preset.provenance["model"] == "overrides (alias codegpt)"
    assert preset.override(seed=4).settings.model == CODEGPT


def test_another_model_on_smoke_drops_the_pretraining_and_says_so():
    preset = load_preset("clones", "smoke", overrides={"model": "codegpt"})
    assert preset.settings.pretrain_steps == 0
    assert any("pretrain_steps" in note for note in preset.notes)
    with pytest.raises(ConfigError, match="smoke models only"):
        load_preset("clones", "smoke", overrides={"model": "codegpt", "pretrain_steps": 10})


# Choosing by hardware


@pytest.mark.parametrize(
    ("gpu", "count", "name"),
    [
        ("t4", 1, "t4"),
        ("t4", 2, "t4"),
        ("l4", 1, "l4"),
        ("rtx6000ada", 1, "rtx6000ada"),
        ("rtx6000ada", 2, "2x-rtx6000ada"),
        ("rtx6000ada", 4, "rtx6000ada"),
        ("h100", 8, "h100"),
    ],
)
def test_auto_takes_the_preset_of_this_gpu_and_count(gpu, count, name):
    preset = load_preset("clones", hardware=plan_hardware(gpu, count))
    assert preset.name == name
    assert not any("no preset was made" in note for note in preset.notes)
    assert (count in (1, preset.num_target_gpus)) or any("share" in n for n in preset.notes)


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("rtx4090", "l4"),
        ("rtx3090", "l4"),
        ("rtx5090", "l4"),
        ("a10g", "l4"),
        ("rtx-a6000", "rtx6000ada"),
        ("l40s", "rtx6000ada"),
        ("v100-32gb", "t4"),
        ("quadro-rtx6000", "t4"),
        ("h200", "h100"),
        ("b200", "h100"),
        ("rtxpro6000", "h100"),
    ],
)
def test_an_unknown_gpu_gets_the_nearest_preset_and_a_note(gpu, name):
    preset = load_preset("clones", hardware=plan_hardware(gpu))
    assert preset.name == name
    assert any("no preset was made for" in note and name in note for note in preset.notes)


@pytest.mark.parametrize(
    "hardware",
    [
        one_gpu("GeForce GTX 1080", 8, (6, 1)),
        one_gpu("Tesla P100-PCIE-16GB", 16, (6, 0)),
        one_gpu("GeForce RTX 3060", 12, (8, 6)),
        one_gpu("unknown", 0, (0, 0)),
    ],
)
def test_a_gpu_below_all_presets_gets_t4_and_a_warning(hardware):
    preset = load_preset("clones", hardware=hardware)
    assert preset.name == "t4"
    assert any(note.startswith("warning: ") and "below every GPU" in note for note in preset.notes)


def test_an_a100_is_not_given_the_preset_of_a_newer_card_of_its_size():
    hardware = one_gpu("A800-SXM4-80GB", 80, (8, 0))
    assert load_preset("clones", hardware=hardware).name == "a100-80gb"


def test_of_unlike_gpus_the_smallest_decides_and_bf16_needs_all():
    small, large = plan_hardware("t4"), plan_hardware("a100-80gb")
    both = replace(large, gpus=(*large.gpus, *small.gpus))
    preset = load_preset("clones", hardware=both)
    assert preset.name == "t4" and any("unlike GPUs" in note for note in preset.notes)
    with pytest.raises(ConfigError, match="bf16"):
        load_preset("clones", hardware=both, overrides={"precision": "bf16"})


def test_without_a_gpu_auto_is_smoke_and_says_why():
    preset = load_preset("clones", hardware=no_gpu())
    assert preset.name == "smoke" and "no driver" in preset.notes[0]
    assert load_preset("clones").name == "smoke"


def test_num_gpus_decides_which_preset_a_pair_of_gpus_gets():
    hardware = plan_hardware("rtx6000ada", 2)
    assert load_preset("clones", hardware=hardware, overrides={"num_gpus": 1}).name == "rtx6000ada"


def test_a_seed_preset_is_never_chosen_by_auto():
    for count in (1, 2):
        name = load_preset("clones", hardware=plan_hardware("rtx6000ada", count)).name
        assert not name.startswith("seed-")


def test_many_gpus_share_the_global_batch_by_a_smaller_per_device_batch():
    preset = load_preset("clones", hardware=plan_hardware("h100", 8))
    assert preset.settings.per_device_train_batch_size == 8
    assert preset.settings.global_batch_size == 64
    assert preset.provenance["per_device_train_batch_size"] == "derived for 8 GPUs"
    given = {"per_device_train_batch_size": 32}
    kept = load_preset("clones", hardware=plan_hardware("h100", 8), overrides=given)
    assert kept.settings.per_device_train_batch_size == 32


@pytest.mark.parametrize("gpu", ["t4", "v100-16gb", "quadro-rtx6000"])
def test_capability_below_8_never_gets_bf16(gpu):
    hardware = plan_hardware(gpu)
    assert load_preset("clones", hardware=hardware).settings.precision != "bf16"
    with pytest.raises(ConfigError, match=r"needs 8\.0"):
        load_preset("clones", hardware=hardware, overrides={"precision": "bf16"})


def test_fp16_without_a_gpu_is_refused():
    with pytest.raises(ConfigError, match="no GPU"):
        load_preset("clones", hardware=no_gpu(), overrides={"precision": "fp16"})


# A user's own presets


def test_a_users_folder_adds_presets_and_wins_over_shipped_ones(tmp_path, monkeypatch):
    folder = tmp_path / "clones"
    folder.mkdir()
    write(folder, "extends: base\ngpu: l4\nsettings: {seed: 9}\n", "own.yaml")
    write(folder, "extends: base\ngpu: t4\nsettings: {seed: 8}\n", "t4.yaml")
    monkeypatch.setenv("NBHELPERS_CONFIGS", str(tmp_path))
    assert {"own", "h100"} <= set(list_presets("clones"))
    preset = load_preset("clones", "own")
    assert preset.settings.seed == 9 and preset.settings.epochs == 2
    assert preset.provenance["seed"].endswith("clones/own.yaml")
    assert load_preset("clones", hardware=plan_hardware("t4")).settings.seed == 8


def test_a_users_folder_that_does_not_exist_is_an_error(monkeypatch):
    monkeypatch.setenv("NBHELPERS_CONFIGS", "/no/such/place")
    with pytest.raises(ConfigError, match="does not exist"):
        list_presets("clones")


def test_a_path_to_a_yaml_file_is_a_preset(tmp_path):
    preset = load_preset("clones", write(tmp_path, "extends: base\nsettings: {seed: 6}\n"))
    assert (preset.name, preset.settings.seed) == ("mine", 6)
    with pytest.raises(ConfigError, match="does not exist"):
        load_preset("clones", str(tmp_path / "none.yaml"))


# Parameters of a notebook


def test_empty_parameters_leave_everything_to_the_preset():
    parameters = {"preset": "auto", "model": "", "seq_len": None, "run_dir": "runs", "track": ""}
    assert parameter_overrides("clones", parameters) == ("auto", {})
    assert parameter_overrides("clones", {}) == ("auto", {})


def test_given_parameters_become_overrides():
    name, overrides = parameter_overrides(
        "clones", {"preset": "t4", "num_gpus": 2, "train_fraction": 1, "seed": 0, "run_dir": "x"}
    )
    assert name == "t4"
    assert overrides == {"num_gpus": 2, "train_fraction": 1, "seed": 0}


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"epochs": True}, "truth value True"),
        ({"epochs": "3"}, "without quotes: 3"),
        ({"epochs": 2.0}, "an integer"),
        ({"epochs": 0}, "set epochs to 1 or more"),
        ({"train_fraction": "0.1"}, "0.1"),
        ({"trak": "none"}, "did you mean `track`?"),
        ({"preset": "smok"}, "did you mean `smoke`?"),
        ({"preset": 3}, "must be a text"),
        ({"run_dir": 3}, "must be a text"),
        ({"track": "mlflow"}, "'wandb'"),
        ({"model": "graphcodebret"}, "did you mean `graphcodebert`?"),
        ({"code_length": 400, "seq_len": 512}, "they are one setting"),
        ({"data_flow_length": "128"}, "without quotes: 128"),
        ({"data": "smok"}, "did you mean `smoke`?"),
        ({"data": "no"}, "check the path"),
        ({"train_fraction": 2.0}, "set train_fraction to 1 or less"),
        ({"train_fraction": 0.0}, "set train_fraction to more than 0"),
        ({"preset": False}, "must be a text"),
    ],
)
def test_a_wrong_parameter_is_refused(parameters, words):
    with pytest.raises(ConfigError) as error:
        parameter_overrides("clones", parameters)
    assert words in str(error.value)


def test_all_wrong_parameters_are_reported_at_once():
    with pytest.raises(ConfigError, match="5 problems"):
        parameter_overrides(
            "clones", {"preset": "x", "epochs": "3", "seed": 1.5, "sed": 1, "run_dir": 2}
        )
