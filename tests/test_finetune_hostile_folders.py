"""Promise: hostile folders and places of a fine-tuning are told, and nothing is overwritten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from trained_on_disk import STEP, point_to, settings, write_adapter_files, write_run

from nbhelpers.errors import ConfigError, DataError
from nbhelpers.hardware.detection import Hardware, plan_hardware
from nbhelpers.jobs.export import draft
from nbhelpers.metrics.generation import score_generations
from nbhelpers.presets.loading import load_preset
from nbhelpers.runs.studies import StudyFolder, open_study
from nbhelpers.runs.study_plan import Study, plan_study
from nbhelpers.use.model import export, load, merge
from nbhelpers.use.trained import Trained, find_trained, place_for


def planned(adapters: Any, tmp_path: Path, **changes: Any) -> Study:
    hardware: Hardware = plan_hardware("l4")
    preset = load_preset("finetune", "smoke", hardware=hardware, overrides=changes)
    return plan_study(preset, hardware, adapters=adapters, run_dir=tmp_path)


PLACES = [
    ("id",),
    ("notes",),
    ("rows", 0, "name"),
    ("rows", 0, "run_id"),
    ("rows", 0, "plan", "world_size"),
    ("rows", 0, "budget", "total_bytes"),
    ("rows", 0, "budget", "advice"),
    ("rows", 0, "time", "low_s"),
    ("rows", 0, "preset", "why"),
    ("rows", 0, "preset", "settings", "seed"),
]


@pytest.mark.parametrize("way", PLACES, ids=lambda way: ".".join(map(str, way)))
def test_a_damaged_study_opens_or_is_told(tmp_path: Path, way: tuple[Any, ...]) -> None:
    study = planned("r8", tmp_path)
    folder = StudyFolder(tmp_path / study.id, study)
    folder.begin()
    good = json.loads((folder.path / "study.json").read_text())
    refused = 0
    for junk in (None, 5, "x", [], {}, [1], [[]], {"a": 1}, True, 10**400):
        data = json.loads(json.dumps(good))
        inside = data["study"]
        for key in way[:-1]:
            inside = inside[key]
        inside[way[-1]] = junk
        (folder.path / "study.json").write_text(json.dumps(data))
        try:
            found = open_study(folder.path)
            assert str(found) and found._repr_html_() and found.study._repr_html_()
        except (ConfigError, DataError) as error:
            refused += 1
            assert "study.json" in error.message and "plan the study again" in error.fix
    assert refused >= 1
    folder.begin()  # planning again mends it
    assert open_study(folder.path).study == study


# Scores


def test_scores_of_empty_texts_are_json() -> None:
    for answer, reference in (("", ""), (" \n", "x"), ("x", "\n")):
        found = [{"answer": answer, "reference": reference, "new_tokens": 0, "stopped": False}] * 3
        assert json.dumps(score_generations(found, seed=0, resamples=20), allow_nan=False)


# What was trained, and where it may be written


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    run = write_run(tmp_path / "runs" / "finetune-r4-1", settings("gemma-2-2b"))
    write_adapter_files(run / "checkpoints" / STEP)
    point_to(run)
    return find_trained(run)


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("result.json", {"data": "x"}, "data: should be a valid dictionary, is 'x'"),
        ("result.json", {"data": {"template": [5]}}, "data.template"),
        ("run.json", {"mode": 5}, "mode: should be a valid string, is 5"),
        ("checkpoints/index.json", {"best": 5}, "best: should be a valid string, is 5"),
    ],
)
def test_a_damaged_file_of_a_run_is_told_by_its_field(
    trained: Trained, name: str, values: dict[str, Any], said: str
) -> None:
    file = trained.run / name
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    with pytest.raises(DataError) as error:
        find_trained(trained.run)
    assert f"{name}: {said}" in error.value.message and error.value.fix


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": ["q_proj", 5]},
        {"target_modules": [None]},
        {"base_model_name_or_path": ["x"]},
        {"r": "8"},
    ],
)
def test_a_foreign_adapter_of_odd_values_is_told(tmp_path: Path, config: Any) -> None:
    named = {"base_model_name_or_path": "gemma-2-2b"} | config
    folder = write_adapter_files(tmp_path / "adapter", **named)
    with pytest.raises(DataError, match=rf"adapter_config\.json: {next(iter(config))}"):
        find_trained(folder)


@pytest.mark.parametrize(
    "told", [[], {"template": 5}, {"settings": 5}, {"settings": {"seq_len": []}}]
)
def test_damaged_facts_of_an_export_are_told(tmp_path: Path, told: Any) -> None:
    folder = write_adapter_files(tmp_path / "adapter", base_model_name_or_path="gemma-2-2b")
    (folder / "nbhelpers.json").write_text(json.dumps(told))
    with pytest.raises(DataError, match=r"JSON files in|nbhelpers\.json: "):
        find_trained(folder)


def test_an_unknown_template_of_an_export_is_none(tmp_path: Path) -> None:
    folder = write_adapter_files(tmp_path / "adapter", base_model_name_or_path="gemma-2-2b")
    (folder / "nbhelpers.json").write_text(json.dumps({"template": "nope"}))
    assert find_trained(folder).template == "none"


def test_no_place_is_taken_that_others_need(trained: Trained, tmp_path: Path) -> None:
    run = trained.run
    for taken in (run, run / "checkpoints", run / "checkpoints" / "x", trained.adapter, tmp_path):
        with pytest.raises(ConfigError, match=r"is|holds|lies in"):
            place_for(taken, trained)
    base = tmp_path / "base"
    base.mkdir()
    own = Trained.from_dict(trained.to_dict() | {"settings": _with_model(trained, base)})
    (tmp_path / "link").symlink_to(base)
    for taken in (base, base / "merged", tmp_path / "link", tmp_path / "link" / "x"):
        with pytest.raises(ConfigError, match="the base model"):
            place_for(taken, own)
    assert place_for(run / "merged", trained) == run / "merged"


def _with_model(trained: Trained, base: Path) -> dict[str, Any]:
    return trained.settings.model_dump(mode="json") | {"model": str(base)}


def test_a_place_that_cannot_be_is_told_before_any_process(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "nbhelpers.use.model.start_process", None
    )  # calling it would be another error
    file = tmp_path / "file"
    file.write_text("mine")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for out in (file, file / "sub", tmp_path / "loop", "/", "a\0b", "x" * 300, None, 5):
        for write in (merge, export):
            with pytest.raises(ConfigError) as error:
                write(trained.run, out)
            assert error.value.fix
    assert file.read_text() == "mine"
    for prompts in ([], 5, [""]):
        with pytest.raises(ConfigError):
            merge(trained.run, tmp_path / "new", prompts=prompts)
    for name in ("x", "", 5):
        with pytest.raises(ConfigError, match="no repository's name"):
            export(trained.run, tmp_path / "new", push_to=name)
    with pytest.raises(ConfigError, match="template='nope'"):
        load(trained.run, template="nope")


def test_a_broken_link_is_written_where_it_leads(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert place_for(tmp_path / "link", trained) == tmp_path / "target"


def test_only_a_draft_of_ours_is_removed(tmp_path: Path) -> None:
    theirs = tmp_path / "model.part"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("three years")
    with pytest.raises(ConfigError, match="something else lies there"), draft(tmp_path / "model"):
        pytest.fail("it was begun")
    with draft(tmp_path / "own") as part:
        (part / "half").write_text("of a model")
        copy = shutil.copytree(part, tmp_path / "kept")
    copy.rename(part)  # as a process that was killed leaves it
    with draft(tmp_path / "own") as part:
        assert not (part / "half").exists()
    assert (theirs / "thesis.txt").read_text() == "three years"
