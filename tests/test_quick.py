"""Promise: a first run on a small card is small, says so, and yields to what the user sets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import nbhelpers as nb
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.detection import Hardware
from nbhelpers.notebook import expect
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.parameters import override_words

T4 = nb.plan_hardware("t4")
TEN_MINUTES_S = 600


def no_gpu() -> Hardware:
    """This machine, as if it had no GPU."""
    return replace(nb.detect_hardware(), gpus=())


@pytest.mark.parametrize("job", sorted(JOBS))
def test_a_quick_run_on_a_t4_ends_in_ten_minutes_and_names_the_full_one(job: str) -> None:
    first = expect(job, T4)
    assert first.time.expected_s < TEN_MINUTES_S < first.full.expected_s
    text = repr(first)
    assert text.startswith("quick is on (Tesla T4 has 15.0 GiB, less than 24.0 GiB): ")
    assert 'quick = "off"' in text and "downloaded once" in text
    assert override_words(nb.load_preset(job, hardware=T4, quick="auto")) == ["--quick"]


@pytest.mark.parametrize(
    ("options", "quick"),
    [
        ({}, {"epochs", "max_train_samples", "valid_samples", "eval_samples"}),
        ({"overrides": {"epochs": 2}}, {"max_train_samples", "valid_samples", "eval_samples"}),
        ({"overrides": {"max_train_samples": None}}, {"epochs", "valid_samples", "eval_samples"}),
        ({"quick": "off"}, set()),
        ({"hardware": nb.plan_hardware("l4")}, set()),
        ({"hardware": nb.plan_hardware("rtx4090")}, set()),
        ({"hardware": None}, set()),  # smoke, whose sample is small already
        ({"hardware": None, "quick": "on"}, set()),
        ({"hardware": None, "name": "t4"}, {"epochs", *JOBS["finetune"].quick}),
    ],
)
def test_quick_is_for_small_cards_and_yields_to_the_user(options: dict, quick: set) -> None:
    preset = nb.load_preset("finetune", **{"hardware": T4, "quick": "auto"} | options)
    assert preset.quick.keys() == quick
    for name, value in (options.get("overrides") or {}).items():
        assert getattr(preset.settings, name) == value
    again = preset.override(seed=3)  # as a study makes its runs
    assert again.quick == preset.quick


@pytest.mark.parametrize(("rows", "is_named"), [(60, False), (900, True)])
def test_a_full_run_is_named_where_it_is_another_and_pretraining_comes_on_top(
    rows: int, is_named: bool, tmp_path: Path
) -> None:
    lines = [json.dumps({"instruction": f"Write {n}", "output": f"{n}"}) for n in range(rows)]
    (tmp_path / "own.jsonl").write_text("\n".join(lines))
    own = {"data": str(tmp_path / "own.jsonl"), "eval_samples": 9, "valid_samples": 9, "epochs": 1}
    first = expect("finetune", no_gpu(), quick="on", adapters="r16", overrides=own)
    assert "max_train_samples = 400" in repr(first) and ("full run" in repr(first)) is is_named
    assert "; 500 steps of pre-training come on top, once, if not cached." in repr(first)
    assert "pre-training" not in repr(expect("finetune", T4))


def test_rows_of_ones_own_are_not_thinned() -> None:
    own = nb.load_preset("detector", hardware=T4, overrides={"data": "a/b"}, quick="on")
    assert own.settings.train_fraction == 1.0 and own.settings.epochs == 3


def test_what_is_no_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match="quick is 'yes'"):
        nb.load_preset("finetune", quick="yes")
