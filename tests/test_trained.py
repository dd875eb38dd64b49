"""Promise: a path to something trained is understood, or the error says what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trained_on_disk import STEP, point_to, settings, write_adapter_files, write_run

from nbhelpers.errors import ConfigError, DataError
from nbhelpers.use.trained import RAW, Trained, find_trained, require_adapter


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write_run(tmp_path / "runs" / "finetune-r4-1", settings("google/gemma-2-2b"))
    write_adapter_files(folder / "checkpoints" / STEP)
    point_to(folder)
    return folder


def test_a_run_is_found_by_id_and_by_folder(run: Path) -> None:
    found = find_trained("finetune-r4-1", run.parent)
    assert found == find_trained(run) and found.kind == "run"
    assert found.adapter == run / "checkpoints" / STEP
    assert found.template == "alpaca" and found.title == "r4 on google/gemma-2-2b"
    assert Trained.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_a_checkpoint_in_a_run_has_the_settings_of_the_run(run: Path) -> None:
    other = write_adapter_files(run / "checkpoints" / "step-00000004")
    found = find_trained(other)
    assert (found.kind, found.run, found.adapter) == ("checkpoint", run, other)
    assert found.settings.model == "google/gemma-2-2b"


def test_a_base_run_has_no_adapter_and_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "finetune-base-1", settings("smoke", method="base"))
    found = find_trained(folder)
    assert found.kind == "base" and found.adapter is None
    with pytest.raises(ConfigError, match=r"merge needs an adapter.*method=base"):
        require_adapter(found, "merge")


def test_an_adapter_alone_needs_a_base(tmp_path: Path) -> None:
    folder = write_adapter_files(tmp_path / "foreign")
    with pytest.raises(ConfigError, match="names no base model") as error:
        find_trained(folder)
    assert "base=" in error.value.fix
    found = find_trained(folder, base="gemma-2-2b", template="plain")
    assert found.settings.model == "google/gemma-2-2b" and found.template == "plain"
    named = write_adapter_files(tmp_path / "named", base_model_name_or_path="a/b", revision="v1")
    found = find_trained(named)
    assert (found.settings.model, found.settings.model_revision) == ("a/b", "v1")
    assert found.template == RAW and "no template is known" in found.notes[0]


@pytest.mark.parametrize("peft_type", ["IA3", None])
def test_another_kind_of_adapter_is_refused(tmp_path: Path, peft_type: str | None) -> None:
    folder = write_adapter_files(tmp_path / "x", peft_type=peft_type)
    with pytest.raises(ConfigError, match="not LORA"):
        find_trained(folder, base="a/b")


def test_what_is_missing_is_named(run: Path, tmp_path: Path) -> None:
    (run / "checkpoints" / STEP / "adapter_model.safetensors").unlink()
    with pytest.raises(DataError, match=r"lacks adapter_model\.safetensors"):
        find_trained(run)
    (run / "checkpoints" / STEP / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(DataError, match="lacks") as error:
        find_trained(run)
    assert "pickled" in error.value.fix
    (run / "checkpoints" / "index.json").unlink()
    with pytest.raises(ConfigError, match="no checkpoint yet") as error:
        find_trained(run)
    assert "nbhelpers train finetune" in error.value.fix
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no run \(run.json\), no adapter .* holds nothing"):
        find_trained(tmp_path / "empty")
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(DataError, match="no weights in safetensors"):
        find_trained(tmp_path / "empty")
    with pytest.raises(ConfigError, match="No run"):
        find_trained(tmp_path / "nowhere", tmp_path)


def test_a_run_of_another_job_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "clones-1"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"job": "clones", "mode": "train"}))
    with pytest.raises(ConfigError, match="job clones, which makes no adapter"):
        find_trained(folder)


def test_a_merged_folder_is_its_own_base(tmp_path: Path) -> None:
    folder = tmp_path / "merged"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"0")
    (folder / "nbhelpers.json").write_text(
        json.dumps({"template": "plain", "settings": {"max_new_tokens": 77, "gone": 1}})
    )
    found = find_trained(folder)
    assert (found.kind, found.settings.model, found.template) == ("merged", str(folder), "plain")
    assert found.settings.max_new_tokens == 77 and found.title == "merged"
