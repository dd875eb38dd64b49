"""Promise: an evaluation scores a detector as it was trained, on programs that it never saw."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from contexts import make_context

from nbhelpers.common.result_files import DetectorFile
from nbhelpers.data.detection import load_detection_data
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.detector_inputs import data_arguments, require_alike, without_known
from nbhelpers.presets.loading import load_preset

TOLD = {"data": "smoke", "data_revision": None, "objective": "both", "languages": [], "seed": 3}
TOLD |= {"on_bad_rows": "stop", "canonical": "text", "split": "auto", "split_seed": 0}
TOLD |= {"valid_share": 0.1, "test_share": 0.1, "hold_out": None}
TOLD |= {"train_fraction": 1.0, "max_train_samples": None}


FACTS = {"format": 1, "objective": "both", "pooling": "mean", "canonical": "text", "seq_len": 64}
FACTS |= {"projection_size": 8}


def evaluation(run: Path, **changes: Any) -> RunContext:
    """An evaluation of a run that was made with `TOLD`, with other settings."""
    step = run / "checkpoints" / "step-00000001"
    step.mkdir(parents=True, exist_ok=True)
    (run / "run.json").write_text(json.dumps({"preset": {"settings": TOLD}}))
    (step / "detector.json").write_text(json.dumps(FACTS))
    settings = SimpleNamespace(**(TOLD | changes), model_dump=lambda: TOLD | changes)
    return make_context(checkpoint=step / "model.safetensors", settings=settings)


def test_the_splits_of_the_run_stay_as_they_are(tmp_path: Path) -> None:
    own = evaluation(tmp_path)
    data = load_detection_data(**data_arguments(TOLD))
    assert without_known(own, data) is data and not own.warnings


def test_programs_of_the_training_leave_a_test_of_other_data(tmp_path: Path) -> None:
    trained = load_detection_data(**data_arguments(TOLD))
    names = {"train": "test", "test": "test", "valid": "valid"}
    rows = [
        {"code": row.code, "label": row.label, "task": row.task, "split": names[split]}
        for split, picked in trained.splits.items()
        for row in (trained.rows[at] for at in picked[:40])
    ]
    rows += [{"code": f"v{at} = {at}\n" * 9, "label": at, "split": "train"} for at in range(2)]
    file = tmp_path / "other.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    own = evaluation(tmp_path / "run", data=str(file), split="given")
    data = load_detection_data(**data_arguments(own.settings))
    found = without_known(own, data)
    before, after = ({one.rows[at].code for at in one.splits["test"]} for one in (data, found))
    known = {trained.rows[at].code for at in trained.splits["train"]}
    assert before & known and after == before - known and "known from train" in own.warnings[0]


def test_a_test_of_known_programs_alone_is_no_test(tmp_path: Path) -> None:
    own = evaluation(tmp_path, split="task")
    data = load_detection_data(**data_arguments(TOLD))
    data.splits["test"] = data.splits["train"]
    with pytest.raises(DataError, match="every program is known to the detector"):
        without_known(own, data)


def test_another_form_than_that_of_the_training_is_refused(tmp_path: Path) -> None:
    checkpoint = evaluation(tmp_path).checkpoint
    require_alike(checkpoint, {"objective": "both", "pooling": "mean"})
    require_alike(None, {"objective": "similar"})
    with pytest.raises(ConfigError, match="trained with pooling=mean") as error:
        require_alike(checkpoint, {"objective": "both", "pooling": "first"})
    assert error.value.fix == "-o pooling=mean"


@pytest.mark.parametrize(
    ("name", "value"), [("pooling", "median"), ("objective", "zz"), ("seq_len", -3)]
)
def test_facts_that_this_version_does_not_know_are_named(
    tmp_path: Path, name: str, value: Any
) -> None:
    told = FACTS | {"canonical": "text+marks"}
    file = tmp_path / "detector.json"
    file.write_text(json.dumps(told))
    assert DetectorFile.read(file).raw == told
    file.write_text(json.dumps(told | {name: value}))
    with pytest.raises(DataError, match=f"{name}: .*, is '?{value}"):
        DetectorFile.read(file)


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("languages", "[java, C]", 'languages=["java", "C"]'),
        ("prevalences", 0.5, "prevalences=[0.5]"),
        ("unseen_humans", "nowhere", "unseen_humans: the data `nowhere`"),
        ("unseen_humans", " ", "unseen_humans: the name of the data is empty"),
    ],
)
def test_a_wrong_setting_is_named_with_what_to_type(setting: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_preset("detector", "smoke", overrides={setting: value})
    assert said in f"{error.value} {error.value.fix}"
