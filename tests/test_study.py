"""Promise: a study's runs differ in their adapter alone, and its plan says what they will take."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fake_adapter import answers_of, result_of
from fake_study import GEMMA, make_preset, no_gpu

from nbhelpers.budget.predict import predict_memory
from nbhelpers.budget.speeds import shipped_rows
from nbhelpers.budget.time import PhaseTime, TimeBudget, predict_time, total_time
from nbhelpers.budget.time_model import ESTIMATE, MEASURED, SCALED, training_rows
from nbhelpers.errors import BudgetError, ConfigError
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.plan import plan_batch
from nbhelpers.presets.adapters import VARIED, parse_adapters, parse_seeds, parse_variants
from nbhelpers.presets.loading import load_preset
from nbhelpers.presets.parameters import parse_assignments
from nbhelpers.presets.preset import Preset
from nbhelpers.reports.facts import read_facts
from nbhelpers.reports.sections import predicted_time
from nbhelpers.reports.study import OTHERS, other_gpus
from nbhelpers.runs.run import Run, write_json
from nbhelpers.runs.studies import StudyFolder, open_study
from nbhelpers.runs.study_plan import FINISHED, Study, plan_study, saved_time
from nbhelpers.runs.study_results import StudyResult

ALL = ["base", "r8", "r16", "r32", "qlora-r16"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("all", [("base", None), ("lora", 8), ("lora", 16), ("lora", 32), ("qlora", 16)]),
        ("r16", [("lora", 16)]),
        (" r8, R32,qlora-r16", [("lora", 8), ("lora", 32), ("qlora", 16)]),
        (["base", "lora-r4", "qlora16"], [("base", None), ("lora", 4), ("qlora", 16)]),
    ],
)
def test_adapters_are_read_as_people_write_them(text: Any, found: list[Any]) -> None:
    assert parse_adapters(text) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("r8,r8", "names r8 twice"),
        ("all,r16", "names r16 twice .`all` holds it"),
        ("bse", "no adapter `bse`(.|\n)*did you mean `base`"),
        ("8,16", "no adapter `8`(.|\n)*did you mean `r8`"),
        ("qlra-r16", "did you mean `qlora-r16`"),
        ("r0", "ranks go from 1 to 1024"),
        ("r2000", "ranks go from 1 to 1024"),
        ("", "names no adapter"),
        ([16], "did you mean `r16`"),
        ("zzz", "Fix: Write base, r8"),
        ("48", "did you mean `r48`"),
        (b"r8", "Fix: "),
        (3.5, "Fix: "),
        (["r8", None], "Fix: "),
        ([{"name": "x", "method": ["lora"]}], "Fix: "),
    ],
)
def test_a_wrong_adapter_is_an_error_that_says_what_to_write(text: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_variants(text)


def test_a_rank_out_of_range_is_not_offered_again() -> None:
    with pytest.raises(ConfigError) as error:
        parse_adapters("r1025")
    assert "did you mean" not in error.value.fix


SEEDS = ["3,3", "a", [-1], [True], [1.5], [], "²", "9" * 5000, 3.5, float("nan"), b"3", {3: 4}]


@pytest.mark.parametrize("seeds", [*SEEDS, object()])
def test_a_wrong_seed_is_an_error(seeds: Any) -> None:
    with pytest.raises(ConfigError, match="seed") as error:
        parse_seeds(seeds)
    assert error.value.fix


def planned(adapters: Any, tmp_path: Path, hardware: Any = None, **options: Any) -> Study:
    changes = options.pop("changes", {})
    hardware = hardware or no_gpu()
    preset = make_preset(**changes)
    return plan_study(preset, hardware, adapters=adapters, run_dir=tmp_path, **options)


def names(study: Study) -> list[str]:
    return [row.name for row in study.rows]


def test_runs_differ_in_nothing_but_adapter_and_seed(tmp_path: Path) -> None:
    study = planned("all", tmp_path, seeds="3,4")
    first = study.rows[0].preset.settings.model_dump()
    for row in study.rows:
        values = row.preset.settings.model_dump()
        assert {name for name in values if values[name] != first[name]} <= set(VARIED)
    adapters = [row.preset.settings.adapter for row in study.rows]
    assert adapters == [*ALL, *ALL[1:]]  # base once: no seed changes it
    assert names(study)[0] == "base" and names(study)[1] == "r8-seed3" and len(study.rows) == 9
    assert len({row.run_id for row in study.rows}) == 9
    assert "base is evaluated once" in study.text()


def test_random_weights_make_a_base_of_their_own_for_each_seed(tmp_path: Path) -> None:
    changes = GEMMA | {"random_weights": True}
    study = planned("r8", tmp_path, seeds=[1, 2], changes=changes)
    assert names(study) == ["base-seed1", "r8-seed1", "base-seed2", "r8-seed2"]


def test_base_comes_first_unless_nothing_is_evaluated(tmp_path: Path) -> None:
    assert names(planned("r16", tmp_path)) == ["base", "r16"]
    assert names(planned("base", tmp_path)) == ["base"]
    none = planned("all", tmp_path, changes={"evaluate": "none"})
    assert names(none) == ALL[1:] and "nothing to do" in none.text()


def test_own_variants_bring_alpha_and_target_modules(tmp_path: Path) -> None:
    mine = {"name": "r16-attention", "lora_r": 16, "lora_alpha": 8.0}
    mine |= {"lora_target_modules": ["q_proj", "v_proj"]}
    study = planned(["r16", mine], tmp_path)
    assert names(study) == ["base", "r16", "r16-attention"]
    s = study.rows[2].preset.settings
    assert (s.method, s.alpha, s.lora_target_modules) == ("lora", 8.0, ["q_proj", "v_proj"])
    assert study.rows[1].preset.settings.alpha == 32


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ({"lora_r": 4}, "has the name None"),
        ({"name": "x", "learning_rate": 1e-3}, "varies only the adapter"),
        ({"name": "x", "lora_alfa": 8}, "did you mean `lora_alpha`"),
        ({"name": "r16", "lora_r": 4}, "Two adapters are named `r16`"),
        ({"name": "x", "lora_r": 16}, "r16 and x are the same run"),
        ({"name": "x", "lora_r": "many"}, "`lora_r` must be"),
        *(({"name": "x", "lora_r": rank}, "lora_r") for rank in ("8", True, 8.0, 10**30)),
        ({"name": "x", "method": "base", "lora_r": 64}, "are the same run"),
    ],
)
def test_a_wrong_variant_is_refused(tmp_path: Path, variant: dict, message: str) -> None:
    for changes in ({}, {"lora_alpha": 16.0}):  # an alpha of the preset follows the rank
        with pytest.raises(ConfigError, match=message):
            planned(["base", "r16", variant], tmp_path, changes=changes)


@pytest.mark.parametrize(
    "modules", [["q_proj"] * 2, [".*_proj"], ["layers.0.mlp"], [" q_proj"], [""], [["x"]], [None]]
)
def test_target_modules_are_names_each_once(modules: list[Any]) -> None:
    with pytest.raises(ConfigError, match=r"q_proj twice|no layer's name|must be"):
        load_preset("finetune", "smoke", overrides={"lora_target_modules": modules})


def test_modules_in_another_order_are_the_same_run(tmp_path: Path) -> None:
    modules = (["q_proj", "v_proj"], ["v_proj", "q_proj"])
    twice = [{"name": f"x{at}", "lora_target_modules": m} for at, m in enumerate(modules)]
    with pytest.raises(ConfigError, match="are the same run"):
        planned(twice, tmp_path)


def test_a_study_is_for_fine_tuning(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="clones has none"):
        plan_study(load_preset("clones", "smoke"), no_gpu(), adapters="r8", run_dir=tmp_path)


def test_the_same_study_has_the_same_id_and_survives_a_file(tmp_path: Path) -> None:
    study = planned("r8,r16", tmp_path)
    assert planned("r8,r16", tmp_path).id == study.id != planned("r8,r32", tmp_path).id
    assert Study.from_dict(json.loads(json.dumps(study.to_dict()))) == study


def test_the_plan_shows_memory_and_time_before_it_starts(tmp_path: Path) -> None:
    study = planned("all", tmp_path, plan_hardware("a100-40gb"), changes=GEMMA)
    page, text = study._repr_html_(), study.text()
    for name in ALL:
        assert f">{name}</td>" in page
    assert "\n" not in repr(study) and "; estimate)" in repr(study)
    assert "useful tokens/s on h200 (" in text and "GiB (estimate): " in text
    assert "18,548 training examples x 2 epochs" in text
    assert study.time.high_s == pytest.approx(sum(row.time.high_s for row in study.rows))


def test_an_alpha_of_the_preset_follows_the_rank(tmp_path: Path) -> None:
    study = planned("r8,r16", tmp_path, changes={"lora_alpha": 48.0})
    assert [row.preset.settings.alpha for row in study.rows] == [48, 24, 48]
    assert "alpha / rank stays" in study.text()


def test_a_run_that_does_not_fit_takes_no_time_and_names_what_does(tmp_path: Path) -> None:
    too_large = GEMMA | {"seq_len": 2048, "per_device_train_batch_size": 16, "loss": "plain"}
    study = planned("r8", tmp_path, plan_hardware("t4"), changes=too_large)
    assert study.rows[1].time_words() == "none: it does not fit"
    assert study.time.phases == study.rows[0].time.phases
    assert "r8 is predicted not to fit and will not start: " in study.text()
    assert study.is_hopeless and "; time: no " in repr(study)
    with pytest.raises(
        BudgetError, match=r"No adapter of the study fits .predicted: r8 "
    ) as caught:
        study.require_fit()
    assert caught.value.fix.startswith("set one of: ")
    time = spent(60, 80, 90)
    fits = replace(study.rows[1], time=time, name="fits")
    both = replace(study, rows=(*study.rows, fits))
    both.require_fit()
    assert both.time_words().startswith("without base, r8 (does not fit): 1 min")


@pytest.mark.parametrize("preset", [make_preset(), make_preset(**GEMMA)])
def test_a_study_predicts_the_time_that_the_launch_of_each_run_does(
    tmp_path: Path, preset: Preset
) -> None:
    hardware = replace(plan_hardware("a100-40gb"), is_planned=False)
    study = plan_study(preset, hardware, adapters="all", run_dir=tmp_path)
    for row in study.rows:
        budget = predict_time(row.preset, row.plan, hardware, run_dir=tmp_path)
        assert (row.time.low_s, row.time.expected_s, row.time.high_s, row.time.basis) == (
            budget.low_s,
            budget.expected_s,
            budget.high_s,
            budget.basis,
        )
        assert row.time.words() == budget.words()


def test_a_study_shows_the_prediction_that_the_report_of_a_run_shows(tmp_path: Path) -> None:
    study = planned("r8", tmp_path)
    for row in study.rows:
        run = finished_run(tmp_path, row, no_gpu())
        at_launch = predict_time(row.preset, row.plan, no_gpu(), rows=shipped_rows(), examples=7)
        write_json(run.record_path, (run.record or {}) | {"time": at_launch.to_dict()})
    r8 = begun(tmp_path, study).rows[1]
    assert (
        r8.predicted is not None
        and r8.predicted.words() == predicted_time(read_facts(r8.run)).words()
    )
    assert r8.predicted.expected_s != study.rows[1].time.expected_s


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"data": "someone/their-data"},
            "unknown (this data has not been read yet: nbhelpers probe",
        ),
        ({"data": "someone/their-data", "max_train_samples": 100}, " to "),
        ({}, " to "),
    ],
)
def test_what_is_not_known_is_not_made_up(tmp_path: Path, changes: dict, words: str) -> None:
    study = planned("r8", tmp_path, plan_hardware("l4"), changes=GEMMA | changes)
    assert words in study.rows[1].time.words()
    assert (study.time.high_s is None) == ("unknown" in words)


def test_the_rows_of_the_sample_are_counted_right() -> None:
    from nbhelpers.data.samples.instructions import load_instruction_rows
    from nbhelpers.presets.jobs import FINETUNE

    assert len(load_instruction_rows()["train"]) == FINETUNE.time.train_examples["smoke"]
    assert training_rows(make_preset(max_train_samples=50).settings) == 50


def finished_run(run_dir: Path, row: Any, hardware: Any, **changes: Any) -> Run:
    """Leave the folder of a run that finished."""
    run = Run(run_dir / row.run_id)
    run.path.mkdir(parents=True)
    settings = row.preset.settings.model_dump(mode="json")
    record = {"run_id": run.id, "job": "finetune", "mode": "train", "plan": row.plan.to_dict()}
    record |= {"preset": row.preset.to_dict(), "hardware": hardware.to_dict()}
    write_json(run.record_path, record)
    facts = {"plan": row.plan.to_dict(), "precision": "bf16"}
    write_json(run.result_path, result_of(run, settings) | facts | changes)
    return run


def begun(run_dir: Path, study: Study) -> StudyResult:
    """Write the folder of a study, and return what its runs found."""
    StudyFolder(run_dir / study.id, study).begin()
    return open_study(study.id, run_dir)


def test_earlier_runs_tell_the_time_and_finished_ones_take_none(tmp_path: Path) -> None:
    first = planned("r8", tmp_path)
    assert first.rows[1].time.basis == "measured on another machine, scaled"
    finished_run(tmp_path, first.rows[1], no_gpu())
    again = planned("r8,r16", tmp_path)
    assert again.rows[1].time.basis == "finished"
    time = again.rows[2].time
    assert time.basis == (here := "measured on this machine")
    assert time.low_s < time.expected_s < time.high_s
    assert time.expected_s == pytest.approx(4.0 + 2.0, rel=0.01)  # training and evaluation
    other = planned("r16", tmp_path, no_gpu(cpu_count=64))
    assert other.rows[1].time.basis != here  # another machine's seconds are not this one's


def test_a_measured_speed_and_row_length_replace_the_assumed_ones(tmp_path: Path) -> None:
    hardware = replace(plan_hardware("l4"), is_planned=False)
    short = planned("r8", tmp_path, hardware, changes=GEMMA | {"max_train_samples": 100})
    finished_run(tmp_path, short.rows[1], hardware)
    time = planned("r16", tmp_path, hardware, changes=GEMMA).rows[1].time
    assert any(f"1,008 useful tokens/s on l4 ({short.rows[1].run_id})" in n for n in time.notes)
    assert any("50 tokens per example, measured by" in note for note in time.notes)
    assert time.basis == MEASURED and time.low_s < 18_548 * 2 * 50 / 1008 < time.high_s


def test_a_run_that_was_finished_before_has_no_prediction_and_pretraining_is_no_time_of_it(
    tmp_path: Path,
) -> None:
    first = planned("r8", tmp_path)
    timing = {"total_s": 55.0, "pretrain_s": 24.0}
    finished_run(tmp_path, first.rows[0], no_gpu(), timing=timing)
    study = planned("r8", tmp_path)
    assert study.rows[0].time.basis == "finished"
    finished_run(tmp_path, study.rows[1], no_gpu())
    found = begun(tmp_path, study)
    base, r8 = found.cells()
    assert (str(base["time_s"]), str(base["predicted_time"])) == ("31 s", "")
    assert str(r8["predicted_time"]) == study.rows[1].time.words() and str(r8["time_s"]) == "10 s"
    assert found.table.set_index("run").loc["base", ["time_s", "pretrain_s"]].tolist() == [31, 24]
    note = "Times leave out the pre-training of the smoke model, done once for all runs"
    note += " (24 s in base)."
    assert found.notes() == [note] and note in str(found) and note in found._repr_html_()


@pytest.mark.parametrize(
    ("adapters", "seeds", "overrides"),
    [
        ("r8,qlora-r16", None, {}),
        ("r8,r32", "3,4", {"lora_alpha": 8.0, "lora_r": 4, "epochs": 1}),
        ("lora16", "7", {"evaluate": "none", "lora_target_modules": ["q_proj"]}),
        ("r8,r4", None, {"evaluate": "none", "lora_alpha": 8.0}),
    ],
)
def test_one_command_repeats_a_study(
    tmp_path: Path, adapters: str, seeds: str | None, overrides: dict[str, Any]
) -> None:
    preset = load_preset("finetune", "smoke", overrides=overrides)
    options = {"run_dir": tmp_path, "hardware": no_gpu()}
    study = plan_study(preset, adapters=adapters, seeds=seeds, **options)
    words = shlex.split(study.command())
    assert words[:4] == ["nbhelpers", "study", "--preset", "smoke"]
    typed = dict(pairwise(words))
    values = parse_assignments([b for a, b in pairwise(words) if a == "-o"], "-o")
    assert set(values) <= {*overrides, "lora_r"}
    again = load_preset("finetune", "smoke", overrides=values)
    named = {"adapters": typed["--adapters"], "seeds": typed["--seeds"]}
    repeated = plan_study(again, **named, **options)
    assert [row.run_id for row in repeated.rows] == [row.run_id for row in study.rows]


def test_a_study_of_own_variants_has_no_command(tmp_path: Path) -> None:
    assert planned([{"name": "mine", "lora_r": 4}], tmp_path).command() == ""
    assert planned([{"name": "r4", "lora_r": 4, "lora_alpha": 4.0}], tmp_path).command() == ""


def test_seeds_are_compared_with_base_standing_for_each(tmp_path: Path) -> None:
    study = planned("r8,r32", tmp_path, seeds="3,4,5")
    for row in study.rows:
        run = finished_run(tmp_path, row, no_gpu())
        answers_of(run, row.preset.settings.model_dump())
    found = begun(tmp_path, study)
    assert len(found.finished) == 7 and "seed" in found.cells()[0]
    against = found.compare()["against"]
    assert against["r8"]["n_seeds"] == 3 and against["r8"]["difference"] == pytest.approx(14 / 32)
    assert against["r8"]["interval"][0] > 0
    for metric, baseline, message in (
        ("blue", None, "no metric 'blue'"),
        ("syntax_accuracy", "r4", "baseline 'r4' is none"),
        ("valid.bleu", None, "no split `valid`"),
        ("pass@1", None, "has answers of the split humaneval"),
    ):
        with pytest.raises(ConfigError, match=message):
            found.compare(metric, baseline=baseline)


def spent(low_s: float | None, expected_s: float | None, high_s: float | None) -> TimeBudget:
    times = {"low_s": low_s, "expected_s": expected_s, "high_s": high_s}
    return TimeBudget(phases=(PhaseTime(name="training", note="no data", **times),), basis=ESTIMATE)


def test_sums_keep_what_is_unknown() -> None:
    likely, unknown = spent(60, 80, 90), spent(None, None, None)
    assert total_time([likely, replace(likely, basis=SCALED)]).words() == (
        "2 min 40 s (2 min 00 s to 3 min 00 s; estimate)"
    )
    saved = saved_time({"low_s": 60, "high_s": 90, "basis": "estimate", "notes": []})  # of 0.1.0
    assert saved.words() == "1 min 00 s to 1 min 30 s (estimate)"
    assert total_time([likely, unknown]).words() == "unknown (no data)"
    assert saved_time({"low_s": 0, "high_s": 0, "basis": FINISHED}).phases == ()
    assert saved_time(likely.to_dict()) == likely


def test_other_gpus_are_predicted_from_the_runs_own_speed(tmp_path: Path) -> None:
    hardware = replace(plan_hardware("a100-80gb"), is_planned=False)
    study = planned("r8", tmp_path, hardware, changes=GEMMA)
    for row in study.rows:
        finished_run(tmp_path, row, hardware)
    rows = other_gpus(begun(tmp_path, study))
    assert rows[0]["GPU"] == "a100-80gb" and {row["GPU"] for row in rows} == {*OTHERS}
    cells = {row["GPU"]: row for row in rows}
    assert "measured on this card" in cells["a100-80gb"]["time (predicted)"]
    assert "scaled" in cells["h100"]["time (predicted)"]
    t4, preset = plan_hardware("t4"), study.rows[1].preset
    verdict = predict_memory(preset, plan_batch(preset, t4), t4).verdict
    assert cells["t4"]["memory (predicted)"].endswith(f": {verdict}")


def test_a_cpu_run_tells_nothing_about_gpus(tmp_path: Path) -> None:
    study = planned("r8", tmp_path)
    for row in study.rows:
        finished_run(tmp_path, row, no_gpu())
    assert other_gpus(begun(tmp_path, study)) == []
