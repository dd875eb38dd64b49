"""Promise: odd settings, adapters and seeds of a fine-tuning are told before anything is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nbhelpers.errors import ConfigError
from nbhelpers.hardware.detection import Hardware, plan_hardware
from nbhelpers.presets.adapters import parse_adapters, parse_seeds, parse_variants
from nbhelpers.presets.loading import load_preset
from nbhelpers.runs.study_plan import Study, plan_study


@pytest.mark.parametrize("seeds", ["²", "9" * 5000, 3.5, float("nan"), b"3", {3: 4}, object()])
def test_what_is_no_seed_is_told(seeds: Any) -> None:
    with pytest.raises(ConfigError, match="is no seed") as error:
        parse_seeds(seeds)
    assert error.value.fix


@pytest.mark.parametrize(
    "adapters", [b"r8", 3.5, ["r8", None], [{"name": "x", "method": ["lora"]}]]
)
def test_what_is_no_adapter_is_told(adapters: Any) -> None:
    with pytest.raises(ConfigError) as error:
        parse_variants(adapters)
    assert error.value.fix


def test_a_rank_out_of_range_is_not_offered_again() -> None:
    with pytest.raises(ConfigError) as error:
        parse_adapters("r1025")
    assert "did you mean" not in error.value.fix


@pytest.mark.parametrize(
    ("modules", "what"),
    [
        (["q_proj", "q_proj"], "q_proj twice"),
        ([".*_proj"], "no layer's name"),
        (["model.layers.0.mlp"], "no layer's name"),
        ([" q_proj"], "no layer's name"),
        ([""], "no layer's name"),
        ([["q_proj"]], "must be"),
        ([None], "must be"),
    ],
)
def test_target_modules_are_names_each_once(modules: list[Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        load_preset("finetune", "smoke", overrides={"lora_target_modules": modules})


def planned(adapters: Any, tmp_path: Path, **changes: Any) -> Study:
    hardware: Hardware = plan_hardware("l4")
    preset = load_preset("finetune", "smoke", hardware=hardware, overrides=changes)
    return plan_study(preset, hardware, adapters=adapters, run_dir=tmp_path)


@pytest.mark.parametrize("rank", ["8", True, 8.0, 10**30])
def test_a_rank_of_another_type_is_told_also_where_alpha_follows_it(
    tmp_path: Path, rank: Any
) -> None:
    with pytest.raises(ConfigError, match="lora_r"):
        planned([{"name": "x", "lora_r": rank}], tmp_path, lora_alpha=16.0)


@pytest.mark.parametrize(
    "adapters",
    [
        [
            {"name": "x", "lora_target_modules": ["q_proj", "v_proj"]},
            {"name": "y", "lora_target_modules": ["v_proj", "q_proj"]},
        ],
        [{"name": "x", "method": "base", "lora_r": 64}, "base"],
        [{"name": "x", "lora_r": 8, "lora_alpha": 16.0}, "r8"],
    ],
)
def test_one_run_written_in_two_ways_is_not_made_twice(tmp_path: Path, adapters: Any) -> None:
    with pytest.raises(ConfigError, match="are the same run"):
        planned(adapters, tmp_path)
