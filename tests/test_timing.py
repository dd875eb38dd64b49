"""A predicted time names its source, holds where it was measured, and changes as the work does."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import nbhelpers as nb
from nbhelpers.budget import speeds
from nbhelpers.budget.speeds import SpeedRow, shipped_rows
from nbhelpers.budget.time import COMPILE_S, TimeBudget, compare_time, predict_time, steps_of
from nbhelpers.budget.time_model import ESTIMATE, MEASURED, SCALED
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.detection import Hardware, plan_hardware
from nbhelpers.hardware.gpus import known_gpus

H100 = plan_hardware("h100")


def predicted(
    job: str = "clones", name: str = "h100", hardware: Hardware = H100, **options: Any
) -> TimeBudget:
    wishes = {k: options.pop(k) for k in list(options) if k in _WISHES}
    preset = nb.load_preset(job, name, hardware=hardware, overrides=options)
    plan = nb.plan_batch(preset, hardware)
    return predict_time(preset, plan, hardware, **{"rows": shipped_rows(), **wishes})


_WISHES = ("rows", "examples", "tokens_per_example", "max_hours", "price_per_hour", "currency")
_WISHES += ("advise",)


def row(**changes: Any) -> SpeedRow:
    """A speed of our own: CodeGPT, 64 pairs of 1,024 tokens, 200,000 useful tokens/s."""
    preset = nb.load_preset("clones", "h100", hardware=H100)
    values = {
        "job": "clones",
        "model": preset.settings.model,
        "method": "full",
        "precision": "bf16",
        "attention": "auto",
        "batch": 64,
        "seq_len": 1024,
        "device": "h100",
        "tokens_per_s": 200_000.0,
        "useful_share": 0.84,
        "example_tokens": 538.0,
        "source": "clones-codegpt-0123456789",
        "settings": preset.settings.model_dump(mode="json"),
        "examples": 1_000,
    }
    return SpeedRow(**(values | changes))


def test_the_measured_run_of_the_benchmarks_is_predicted_within_its_range() -> None:
    # 249 s in all: 55 until the training, 158 of it, 37 after. The row of its speed is left out;
    # what data and evaluation take in `presets.jobs` is from this run.
    rows = [row for row in shipped_rows() if "the seed's job" not in row.source]
    seeds = {"examples": 38_018, "tokens_per_example": 239, "rows": rows}
    found = predicted("detector", "h100", plan_hardware("h200"), **seeds)
    assert found.basis == MEASURED and found.low_s < 249 < found.high_s
    for phase, measured in zip(found.phases, (55, 158, 37), strict=True):
        assert phase.low_s < measured < phase.high_s
    assert found.phases[1].expected_s == pytest.approx(158, rel=0.25)
    assert found.expected_s == pytest.approx(249, rel=0.25)


@pytest.mark.parametrize(
    ("job", "gpu", "basis"),
    [
        ("clones", "h100", SCALED),
        ("detector", "a100-40gb", SCALED),
        ("finetune", "l4", SCALED),
    ],
)
def test_the_basis_says_where_the_speed_is_from(job: str, gpu: str, basis: str) -> None:
    found = predicted(job, gpu, plan_hardware(gpu))
    assert found.basis == basis and found.low_s < found.expected_s < found.high_s
    assert basis in repr(found)


def test_a_slower_card_takes_longer_and_its_range_is_wider() -> None:
    found = {gpu: predicted("detector", gpu, plan_hardware(gpu)) for gpu in ("t4", "a100-40gb")}
    ratio = found["t4"].phases[1].expected_s / found["a100-40gb"].phases[1].expected_s
    specs = known_gpus()
    peaks = specs["a100-40gb"].bf16_tflops / specs["t4"].fp16_tflops
    assert 0.7 * peaks < ratio < 1.5 * peaks
    assert predicted("clones", "l4", plan_hardware("l4")).basis in (SCALED, ESTIMATE)


def test_without_any_like_row_it_is_an_estimate_from_the_card_alone() -> None:
    found = predicted(rows=())
    assert found.basis == ESTIMATE and "assumed" in " ".join(found.notes)
    # 90,102 pairs x 2 x 538 / .84 tokens, 6 x 86.1 M operations each, not compiled, 20 % of peak.
    tokens, flops = 90_102 * 2 * 538 / 0.84, 6 * 86_115_840
    assert found.phases[1].expected_s == pytest.approx(tokens * flops / (0.2 * 989.4e12), rel=0.1)


def test_a_run_of_ones_own_decides_and_narrows_the_range() -> None:
    found = predicted(rows=(row(), *shipped_rows()), examples=10_000)
    expected = 10_000 * 2 * 538 / 200_000
    assert found.phases[1].expected_s == pytest.approx(expected, rel=0.15)
    assert found.basis == MEASURED and "clones-codegpt-0123456789" in " ".join(found.notes)
    assert found.phases[1].high_s / found.phases[1].low_s < 1.5


@pytest.mark.parametrize("is_here", [True, False])
def test_of_a_model_of_unknown_size_only_its_own_runs_tell_the_time(is_here: bool) -> None:
    hardware = H100 if is_here else Hardware.from_dict(H100.to_dict() | {"gpus": []})
    changes = {"model": "someone/odd-model", "num_gpus": 1}
    preset = nb.load_preset("clones", "base", hardware=hardware, overrides=changes)
    plan = nb.plan_batch(preset, hardware)
    unknown = predict_time(preset, plan, hardware, rows=shipped_rows())
    assert "the size of someone/odd-model is unknown" in unknown.words()
    device = {"device": "h100"} if is_here else {"device": "cpu", "precision": "fp32"}
    own = row(model="someone/odd-model", cpu_count=hardware.cpu_count, batch=8, **device)
    known = predict_time(preset, plan, hardware, rows=(own, *shipped_rows()))
    assert known.low_s < known.expected_s < known.high_s


def test_a_run_that_did_just_this_gives_its_own_seconds() -> None:
    seconds = {"start": 20.0, "data": 10.0, "train": 100.0, "scores": 5.0, "total": 135.0}
    found = predicted(rows=(row(seconds=seconds),))
    assert [p.expected_s for p in found.phases] == pytest.approx([30.0, 100.0, 5.0])
    other = predicted(rows=(row(seconds=seconds),), epochs=4)
    assert other.phases[1].expected_s > 1.5 * 3.0 and other.phases[1].expected_s != 100.0


@pytest.mark.parametrize("method", ["base", "lora"])
def test_a_start_is_as_in_all_runs_that_load_the_same_libraries(method: str) -> None:
    def seconds(way: str, *starts: float) -> list[SpeedRow]:
        s = nb.load_preset("finetune", "h100", hardware=H100).settings.model_dump(mode="json")
        s |= {"method": way, "epochs": 7}
        options = {"job": "finetune", "model": s["model"], "method": way, "settings": s}
        return [row(**options, seconds={"start": start}) for start in starts]

    rows = (*seconds("base", 3.0, 6.0), *seconds("lora", 10.0, 40.0))
    found = predicted("finetune", rows=rows, method=method).phases[0]
    low, high = {"base": (3.0, 6.0), "lora": (10.0, 40.0)}[method]
    assert (found.low_s, found.high_s) == (low, high) and found.note.endswith("and 1 more")
    alone = predicted("finetune", rows=seconds("lora", 10.0), method="base").phases[0]
    assert "as in" not in alone.note


def test_two_gpus_are_nearly_twice_as_fast_and_four_are_said_to_be_assumed() -> None:
    one, two, four = (
        predicted("detector", "h100", plan_hardware("h100", n), per_device_train_batch_size=64)
        for n in (1, 2, 4)
    )
    ratio = one.tokens_per_s / two.tokens_per_s
    assert 1 / ratio == pytest.approx(1.875, rel=0.05)
    assert "measured for two: 1.86 to 2.03" in " ".join(two.notes)
    assert "assumed" in " ".join(four.notes)


def test_a_small_micro_step_is_bound_by_its_launches_and_a_larger_one_is_advised() -> None:
    found = predicted("clones", "h100", max_hours=0.5, per_device_train_batch_size=1)
    assert "bound by the CPU" in " ".join(found.notes)
    assert "per_device_train_batch_size=" in found.advice[0]
    assert "changes the experiment" not in found.advice[0]


@pytest.mark.parametrize("job", ["clones", "detector"])
@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_more_gpus_or_a_smaller_micro_step_never_make_a_step_much_longer(job, gpu) -> None:
    """Bound by launches, a further GPU gains nothing, and what it loses is what DDP takes."""

    def training_s(count: int = 1, **changes: int) -> float:
        return predicted(job, "h100", plan_hardware(gpu, count), **changes).phases[1].expected_s

    of_runs = [training_s(count) for count in (1, 2, 4, 8)]
    assert all(after < 1.05 * before for before, after in pairwise(of_runs))
    sizes = (8, 16, 32, 64)
    of_steps = [size * training_s(per_device_train_batch_size=size) for size in sizes]
    assert all(smaller < 1.05 * larger for smaller, larger in pairwise(of_steps))


def test_adapters_whose_blocks_are_launched_singly_are_advised_to_compile_them() -> None:
    """Compiled, they are replayed as CUDA graphs, which no CPU holds up."""
    changes = {"per_device_train_batch_size": 1, "compile_layers": "off"}
    found = predicted("finetune", "h100", max_hours=2.0, **changes)
    assert "bound by the CPU" in " ".join(found.notes)
    assert "compile_layers=" in found.advice[0]
    assert "changes the experiment" not in found.advice[0]
    short = {"compile_layers": "on", "tokens_per_example": 141}
    graphed = predicted("finetune", "h100", **short)
    assert "bound by the CPU" not in " ".join(graphed.notes)
    singly = predicted("finetune", "h100", **short, cuda_graphs=False)
    assert "bound by the CPU" in " ".join(singly.notes)
    assert singly.phases[1].expected_s > 1.5 * graphed.phases[1].expected_s
    late = predicted("finetune", "h100", **short, cuda_graphs=False, max_hours=0.3)
    assert "CUDA graphs (cuda_graphs=True)" in late.advice[0]
    assert "changes the experiment" not in late.advice[0]


def test_a_graphed_run_of_a_model_of_unknown_size_is_predicted_by_itself() -> None:
    changes = {"model": "someone/odd-model", "compile_layers": "on", "num_gpus": 1}
    preset = nb.load_preset("finetune", "h100", hardware=H100, overrides=changes)
    plan, settings = nb.plan_batch(preset, H100), preset.settings.model_dump(mode="json")
    result = {"settings": settings, "job": "finetune", "precision": "bf16"}
    result |= {"model": {"attention": "sdpa", "compiled": True, "cuda_graphs": True}}
    result |= {"plan": plan.to_dict(), "training": {"optimizer_steps": 100}}
    speed = {"useful_tokens_per_s": 35_000.0, "samples_per_s": 250.0, "useful_share": 1.0}
    record = {"mode": "probe", "run_id": "a", "hardware": H100.to_dict()}
    own = speeds.row_of(record, result | {"throughput": speed})
    assert own.graphed
    found = predict_time(preset, plan, H100, rows=(own, *shipped_rows()), examples=20_000)
    exact = 3 * 20_000 / 250
    assert found.phases[1].expected_s == pytest.approx(exact + COMPILE_S.expected, rel=0.15)


def test_answers_are_shared_out_among_the_gpus() -> None:
    one, two = (
        predicted("finetune", "h100", plan_hardware("h100", count)).phases[2] for count in (1, 2)
    )
    assert one.expected_s == pytest.approx(2 * two.expected_s, rel=0.05)
    assert "on each of 2" in two.note and "on each" not in one.note


def test_checkpointing_and_longer_training_take_longer() -> None:
    plain = predicted("finetune", "h100", per_device_train_batch_size=16)
    again = predicted("finetune", "h100", gradient_checkpointing=True)
    assert again.phases[1].expected_s > plain.phases[1].expected_s
    more = predicted("finetune", "h100", epochs=6).phases[1].expected_s - COMPILE_S.expected
    assert more == pytest.approx(2 * (plain.phases[1].expected_s - COMPILE_S.expected), rel=0.01)


def test_what_ends_in_time_is_predicted_again_and_says_what_it_changes() -> None:
    found = predicted("finetune", "t4", plan_hardware("t4"), max_hours=3.0)
    assert found.verdict == "will not finish in time"
    assert "It will not finish in your 3 h 00 min; these settings do:" in found.lines()
    assert found.advice and all("changes the experiment" in text for text in found.advice)
    for text in found.advice:
        follow = {n: json.loads(v.lower()) for n, v in re.findall(r"(\w+)=([\w.]+)", text)}
        shorter = predicted("finetune", "t4", plan_hardware("t4"), max_hours=3.0, **follow)
        assert shorter.verdict == "finishes in time" and shorter.high_s <= 3 * 3600
    assert predicted("finetune", "t4", plan_hardware("t4"), max_hours=100.0).advice == ()


@pytest.mark.parametrize(
    ("examples", "epochs", "steps"),
    [(64, 1, 1), (65, 1, 2), (128, 2, 4), (1, 3, 3), (90102, 2, 2816), (0, 2, 0)],
)
def test_the_last_partial_window_of_an_epoch_is_a_step(
    examples: int, epochs: int, steps: int
) -> None:
    preset = nb.load_preset("clones", "base", overrides={"epochs": epochs})
    assert preset.settings.global_batch_size == 64
    assert steps_of(preset.settings, examples) == steps


def test_a_price_gives_a_cost_in_the_users_own_words() -> None:
    found = predicted(price_per_hour=2.0, currency="EUR")
    low, expected, high = found.cost
    assert expected == pytest.approx(found.expected_s / 1800) and low < expected < high
    assert found.lines()[-1].startswith("Cost: ") and "at 2 EUR per hour" in found.lines()[-1]
    assert predicted().cost is None


@pytest.mark.parametrize("name", ["max_hours", "price_per_hour"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "3"])
def test_a_limit_that_is_no_number_above_zero_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name}="):
        predicted(**{name: value})


def test_data_that_nobody_has_seen_is_unknown_unless_its_size_is_given() -> None:
    unknown = predicted("finetune", "h100", data="someone/their-data")
    assert unknown.expected_s is None and "unknown" in repr(unknown) and unknown.verdict == ""
    known = predicted("finetune", "h100", data="someone/their-data", examples=500)
    assert known.low_s < known.high_s and "at most" in known.phases[1].note


def test_a_time_budget_survives_json_and_says_what_is_missing() -> None:
    found = predicted(max_hours=1.0, price_per_hour=3.0)
    assert TimeBudget.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert "<table>" in found._repr_html_()
    for damaged in ({}, found.to_dict() | {"odd": 1}, found.to_dict() | {"phases": [3]}):
        with pytest.raises(ConfigError):
            TimeBudget.from_dict(damaged)


def test_predicted_stands_beside_measured_with_the_error() -> None:
    found = predicted(advise=False)
    measured = {
        "start_s": 10.0,
        "data_s": 20.0,
        "train_s": 400.0,
        "scores_s": 4.0,
        "total_s": 434.0,
    }
    rows = {each["phase"]: each for each in compare_time(found, measured)}
    assert rows["data"]["measured_s"] == 30.0 and rows["total"]["measured_s"] == 434.0
    error = 100 * (found.phases[1].expected_s / 400.0 - 1)
    assert rows["training"]["error_percent"] == pytest.approx(error)


def test_the_tables_rows_are_sound_and_their_mfu_is_that_of_their_speed() -> None:
    rows = shipped_rows()
    raw = json.loads(Path(speeds.__file__).with_name("speeds.json").read_text())["rows"]
    assert len(rows) == len(raw) > 30 and {r.job for r in rows} == {
        "clones",
        "finetune",
        "detector",
    }
    for each in (r for r in rows if r.job == "finetune" and r.mfu):
        flops = 4 * 2_614_341_888 * each.tokens_per_s
        assert flops / 989.4e12 == pytest.approx(each.mfu, rel=0.05), each.source


def test_a_users_table_grows_a_line_at_a_time_and_damage_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "speeds.jsonl"
    speeds.add_row(row(), path)
    with path.open("ab") as file:
        file.write(b'{"job": 3}\n\xff\xfe\n{"tokens_per_s": 1e999}\n[]\n{"job"')
        file.write(b"\n")
    speeds.add_row(replace(row(), source="second", tokens_per_s=1.0), path)
    assert [each.source for each in speeds.user_rows(path)] == ["second", row().source]
    speeds.add_row(row(), Path("/proc/none/speeds.jsonl"))  # cannot be written: nothing happens
    assert speeds.user_rows(tmp_path / "none") == ()


def test_runs_of_too_few_steps_and_evaluations_measure_no_speed() -> None:
    result = {
        "job": "clones",
        "precision": "bf16",
        "settings": row().settings,
        "plan": {"per_device_train_batch_size": 64, "world_size": 1, "use_gpu": False}
        | {"gradient_accumulation_steps": 1},
        "throughput": {"useful_tokens_per_s": 100.0, "pairs_per_s": 2.0, "useful_share": 0.5},
        "training": {"optimizer_steps": 10, "epochs": 2, "examples": 40},
    }
    record = {"mode": "train", "run_id": "a", "hardware": {"cpu_count": 2}}
    found = speeds.row_of(record, result)
    assert (found.example_tokens, found.examples, found.device) == (50.0, 20, "cpu")
    assert speeds.row_of(record | {"mode": "evaluate"}, result) is None
    few = result | {"training": {"optimizer_steps": 3}}
    assert speeds.row_of(record, few) is None
    assert speeds.row_of(record, result | {"throughput": {}}) is None
