"""Promise: every preset of the detector loads, plans and fits its GPU; the experiment is the same
on every card; what the seed decided is kept, or it is said why not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nbhelpers.budget.predict import predict_memory
from nbhelpers.common.yaml_files import configs_dir, read_yaml
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.detection import Hardware, plan_hardware
from nbhelpers.plan import plan_batch
from nbhelpers.presets.loading import list_presets, load_preset, parameter_overrides

GPUS = sorted(read_yaml(configs_dir() / "gpus.yaml"))
FITTED = [name for name in list_presets("detector") if name != "smoke"]
SPLIT = {"per_device_train_batch_size", "per_device_eval_batch_size"}
NO_GPU = replace(plan_hardware("t4"), gpus=(), reason="no driver")


def budget_of(name: str, hardware: Hardware, **overrides: object) -> object:
    preset = load_preset("detector", name, hardware=hardware, overrides=overrides)
    return predict_memory(preset, plan_batch(preset, hardware), hardware)


def test_the_presets_are_those_that_the_documents_name():
    assert FITTED == ["a100-40gb", "a100-80gb", "h100", "l4", "rtx6000ada", "t4"]


@pytest.mark.parametrize("model", ["codebert", "unixcoder", "minilm"])
@pytest.mark.parametrize("name", FITTED)
def test_every_preset_fits_its_gpu_with_every_encoder(name, model):
    budget = budget_of(name, plan_hardware(name), model=model)
    assert budget.verdict == "fits" and not budget.advice


@pytest.mark.parametrize("name", FITTED)
def test_no_larger_power_of_two_would_fit(name):
    settings = load_preset("detector", name).settings
    size = settings.per_device_train_batch_size
    if size < settings.global_batch_size:
        larger = budget_of(name, plan_hardware(name), per_device_train_batch_size=2 * size)
        assert larger.verdict != "fits"


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("gpu", GPUS)
def test_auto_fits_on_every_gpu_that_we_know_and_keeps_the_global_batch(gpu, count):
    hardware = plan_hardware(gpu, count)
    preset = load_preset("detector", hardware=hardware)
    plan = plan_batch(preset, hardware)
    assert plan.global_batch_size == 256 and plan.is_exact
    assert predict_memory(preset, plan, hardware).verdict == "fits"


@pytest.mark.parametrize("name", FITTED)
def test_the_experiment_is_the_same_on_every_card(name):
    base = load_preset("detector", "base").settings.model_dump()
    other = load_preset("detector", name).settings.model_dump()
    assert {key for key in base if base[key] != other[key]} <= SPLIT


def test_the_a100_40gb_carries_the_decisions_of_the_seed():
    preset = load_preset("detector", "a100-40gb")
    s = preset.settings
    assert s.per_device_train_batch_size * 2 == s.global_batch_size == 256
    assert (s.model, s.epochs, s.freeze_epochs) == ("microsoft/codebert-base", 10, 2)
    assert (s.encoder_learning_rate, s.max_grad_norm, s.seq_len) == (3e-5, 1.0, 512)
    assert s.precision == "auto" and plan_hardware("a100-40gb").precision == "bf16"
    assert s.targets == {
        **{"roc_auc": 0.88, "pr_auc": 0.85, "accuracy": 0.85, "f1": 0.82, "fpr": 0.12},
        **{"similarity.pair_f1": 0.8, "similarity.mrr": 0.75, "similarity.pair_accuracy": 0.82},
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("warmup_ratio", "two thirds of its 1,490"),
        ("compile_layers", "#169545"),
        ("padding", "8 workers"),
        ("members_per_task", "the seed took the label"),
        ("data", "no machine-written row"),
        ("per_device_train_batch_size", "the seed's 128"),
    ],
)
def test_what_had_to_change_against_the_seed_says_why(name, words):
    preset = load_preset("detector", "a100-40gb")
    assert words in preset.why[name]
    assert words in preset._repr_html_().replace("&#x27;", "'")


def test_the_sample_has_no_targets_and_runs_without_a_gpu():
    preset = load_preset("detector", hardware=NO_GPU)
    assert preset.name == "smoke" and preset.settings.targets == {}
    assert preset.settings.precision == "fp32"
    assert 1 <= preset.settings.freeze_epochs < preset.settings.epochs
    assert predict_memory(preset, plan_batch(preset, NO_GPU), NO_GPU).total_bytes < 2 * 2**30


def test_real_weights_take_the_sample_with_values_of_their_own():
    smoke = load_preset("detector", "smoke")
    preset = load_preset("detector", "smoke", overrides={"model": "minilm"})
    assert preset.settings.encoder_learning_rate < smoke.settings.encoder_learning_rate
    assert preset.settings.pretrain_steps == 0 and preset.settings.data == "smoke"
    assert "(models: minilm)" in preset.where("encoder_learning_rate")


def test_parameters_of_a_notebook_reach_the_preset(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text("{}\n")
    given = {"preset": "t4", "objective": "similar", "hold_out": "source=set-1", "data": str(file)}
    name, overrides = parameter_overrides("detector", given | {"train_fraction": 0.5, "model": ""})
    s = load_preset("detector", name, overrides=overrides).settings
    assert (s.objective, s.hold_out, s.train_fraction) == ("similar", "source=set-1", 0.5)
    assert s.data == str(file)
    with pytest.raises(ConfigError, match="did you mean `hold_out`"):
        parameter_overrides("detector", {"hold_outt": "x"})
    with pytest.raises(ConfigError, match=r"none\.jsonl"):
        parameter_overrides("detector", {"data": str(tmp_path / "none.jsonl")})


@pytest.mark.parametrize("target", ["similarity.mrr", "unseen_humans.fpr", "edits.rename.tpr"])
def test_targets_may_name_what_a_detector_measures(target):
    preset = load_preset("detector", "t4", overrides={"targets": {target: 0.5}})
    assert preset.settings.targets == {target: 0.5}


def test_an_unknown_target_is_refused():
    with pytest.raises(ConfigError, match="targets names an unknown score `auc`"):
        load_preset("detector", "t4", overrides={"targets": {"auc": 0.5}})
