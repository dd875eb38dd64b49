"""Promise: foreign weights load from a folder or the hub, are converted once, and run no code."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from nbhelpers import load_preset
from nbhelpers.errors import ConfigError
from nbhelpers.jobs.models import weights
from nbhelpers.jobs.models.encoders import build_clone_model, build_tokenizer
from nbhelpers.jobs.models.weights import find_weights
from tests.hub_models import write_gpt2, write_roberta


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path / "cache"))


def test_a_pickle_is_converted_once_and_the_folder_stays_as_it_was(tmp_path, monkeypatch):
    folder = write_gpt2(tmp_path / "model")
    before = sorted(path.name for path in folder.iterdir())
    first = find_weights(str(folder), None)
    assert (first.folder / "model.safetensors").is_file() and first.folder != folder
    assert sorted(path.name for path in folder.iterdir()) == before
    monkeypatch.setattr(weights, "read_state_dict", lambda path: pytest.fail("read again"))
    assert find_weights(str(folder), None).folder == first.folder


def test_a_changed_pickle_is_converted_again(tmp_path):
    folder = write_gpt2(tmp_path / "model")
    first = find_weights(str(folder), None)
    state = torch.load(folder / "pytorch_model.bin", weights_only=True)
    torch.save({**state, "extra": torch.ones(9)}, folder / "pytorch_model.bin")
    assert find_weights(str(folder), None).folder != first.folder


def test_two_runs_that_convert_at_once_share_one_copy(tmp_path, monkeypatch):
    folder = write_gpt2(tmp_path / "model")
    read, others = weights.read_state_dict, []

    def overtaken(path):
        monkeypatch.setattr(weights, "read_state_dict", read)
        others.append(find_weights(str(folder), None).folder)
        return read(path)

    monkeypatch.setattr(os, "getpid", lambda: 7)  # as in two containers with one home
    monkeypatch.setattr(weights, "read_state_dict", overtaken)
    assert find_weights(str(folder), None).folder == others[0]
    assert [path.name for path in others[0].parent.iterdir()] == [others[0].name]
    assert (others[0] / "model.safetensors").is_file()


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "no-slash", "a/b/c", "~/none"])
def test_what_is_neither_folder_nor_hub_id_is_refused_at_once(name):
    with pytest.raises(ConfigError, match="hub id"):
        find_weights(name, None)


def settings_of(folder: Path):
    changes = {"model": str(folder), "seq_len": 32, "pretrain_steps": 0}
    return load_preset("clones", "smoke", overrides=changes).settings


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


DAMAGE = {
    "config.json of": lambda f: (f / "config.json").write_text("{"),
    "cannot be used: Unrecognized": lambda f: (f / "config.json").write_text("{}"),
    "tokenizer of": lambda f: (f / "tokenizer.json").write_text("{}"),
    "weights of .* used: Error no file": lambda f: (f / "model.safetensors").unlink(),
    "weights of": lambda f: (f / "model.safetensors").write_bytes(b"1234567890"),
    "multiple of": lambda f: change_config(f, num_attention_heads=5),
    "id 5 in config.json and id 1": lambda f: change_config(f, pad_token_id=5),
    "id 0 in config.json and id 1": lambda f: change_config(f, pad_token_id=0),
}


@pytest.mark.parametrize("text", DAMAGE)
def test_a_damaged_folder_is_a_config_error_that_names_its_part(tmp_path, text: str) -> None:
    folder = write_roberta(tmp_path / "model")
    settings = settings_of(folder)
    DAMAGE[text](folder)
    with pytest.raises(ConfigError, match=text) as caught:
        build_clone_model(settings, build_tokenizer(settings, []))
    assert caught.value.fix


def test_the_padding_of_the_tokenizer_counts_where_the_configuration_has_none(tmp_path) -> None:
    folder = write_roberta(tmp_path / "model")
    settings = settings_of(folder)
    change_config(folder, pad_token_id=None)
    assert build_tokenizer(settings, []).config.pad_token_id == 1
