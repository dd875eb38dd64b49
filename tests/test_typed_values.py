"""Promise: whatever somebody types ends at once as a setting or as one error with its fix."""

from __future__ import annotations

from typing import Any

import pytest

from nbhelpers.budget.predict import predict_memory
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.plan import plan_batch
from nbhelpers.presets.loading import load_preset
from nbhelpers.presets.parameters import check_parameters, parse_value

CELL = 'preset = "auto"  # @param {type:"string"}\nseed = None  # @param {type:"raw"}\n'


@pytest.mark.parametrize("text", ["9" * 5000, "²", "/a b"])
def test_a_text_that_is_no_value_stays_a_text(text: str) -> None:
    assert parse_value(text) == text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", float("inf")),
        ("targets", {"foo.bar.f1": 0.5}),
        ("targets", {"train.f1": 0.5}),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_setting_out_of_reach_is_refused_in_few_words(name: str, value: Any) -> None:
    preset = load_preset("clones", "smoke")
    for attempt in (
        lambda: load_preset("clones", "smoke", overrides={name: value}),
        lambda: preset.override(**{name: value}),
    ):
        with pytest.raises(ConfigError) as caught:
            attempt()
        assert caught.value.fix and len(str(caught.value)) < 2000
        assert "String should" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["f1", "test.f1", "mean.f1", "test.mean.f1", "valid.f1", "floors.tfidf_mlp.f1"]
)
def test_a_target_names_a_number_of_the_result(name: str) -> None:
    assert load_preset("clones", "smoke", overrides={"targets": {name: 0.5}}).settings.targets


@pytest.mark.parametrize("job", [3, None, "clone"], ids=repr)
def test_a_job_that_is_none_is_refused(job: Any) -> None:
    with pytest.raises(ConfigError, match="There is no job"):
        load_preset(job, "smoke")


def test_a_huge_batch_is_answered() -> None:
    hardware = plan_hardware("t4", 2)
    huge = {"global_batch_size": 2**31 - 2, "per_device_train_batch_size": 2**30 - 1}
    chosen = load_preset("clones", "t4", hardware=hardware, overrides=huge)
    predict_memory(chosen, plan_batch(chosen, hardware), hardware)
    odd = {"global_batch_size": 2**31 - 1, "per_device_train_batch_size": 2}
    chosen = load_preset("clones", "t4", hardware=hardware, overrides=odd)
    with pytest.raises(ConfigError, match="cannot be split"):
        plan_batch(chosen, hardware)


@pytest.mark.parametrize(
    "later",
    ["x = = # @param", "%pip install x  # @param", "# see @param above\nx = 1", "  y = 1 # @param"],
)
def test_a_later_cell_that_only_mentions_forms_changes_nothing(later: str) -> None:
    namespace = {"In": ["", CELL, later], "preset": "auto", "seed": 3}
    assert dict(check_parameters("clones", namespace)) == {"seed": 3}


@pytest.mark.parametrize(
    "namespace",
    [
        {},
        {"In": ["", "seed = = 1  # @param"]},
        {"In": ["", CELL], "preset": "auto"},
    ],
    ids=repr,
)
def test_a_kernel_without_parameters_says_to_run_their_cell(namespace: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_parameters("clones", namespace)
    assert "run the cell under `Parameters`" in caught.value.fix
