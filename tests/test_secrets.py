"""Promise: a secret comes from the first place that has it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_launch import Hardware, Plan, Preset

from nbhelpers.errors import ConfigError
from nbhelpers.hardware.secrets import find_secret, share_secret
from nbhelpers.runs import starting

KAGGLE, COLAB = {"KAGGLE_KERNEL_RUN_TYPE": "Batch"}, {"COLAB_RELEASE_TAG": "x"}


def no_answer(name: str) -> str:
    raise TimeoutError(name)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Colab's secrets without an answer, Kaggle's with one, a stored login, no variable."""
    client = SimpleNamespace(get_secret=lambda name: f"{name} of kaggle"[-6:])
    kaggle = SimpleNamespace(UserSecretsClient=lambda: client)
    colab = SimpleNamespace(userdata=SimpleNamespace(get=no_answer))
    monkeypatch.setitem(sys.modules, "kaggle_secrets", kaggle)
    monkeypatch.setattr("nbhelpers.hardware.secrets.is_notebook", lambda: True)
    (tmp_path / "token").write_text("stored\n")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", *KAGGLE, *COLAB):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "google", SimpleNamespace(colab=colab))
    return monkeypatch


@pytest.mark.parametrize(
    ("name", "environment", "secret"),
    [
        ("HF_TOKEN", KAGGLE | {"HF_TOKEN": "env"}, "kaggle"),
        ("WANDB_API_KEY", KAGGLE, "kaggle"),
        ("HF_TOKEN", COLAB | {"HF_TOKEN": " env\n"}, "env"),
        ("HF_TOKEN", {"HUGGING_FACE_HUB_TOKEN": "old"}, "old"),
        ("HF_TOKEN", {}, "stored"),
        ("WANDB_API_KEY", {}, None),
    ],
)
def test_a_secret_comes_from_the_first_place_that_has_one(
    name: str, environment: dict[str, str], secret: str | None, places: pytest.MonkeyPatch
) -> None:
    for key, value in environment.items():
        places.setenv(key, value)
    assert find_secret(name) == secret


def test_colab_s_secrets_are_asked_in_a_notebook_and_shared_with_the_processes_of_a_run(
    places: pytest.MonkeyPatch,
) -> None:
    colab = sys.modules["google"].colab
    places.setitem(sys.modules, "google.colab", colab)
    places.setattr(colab.userdata, "get", lambda name: f"{name.lower()}\n")
    places.setenv("WANDB_API_KEY", "env")
    assert share_secret("WANDB_API_KEY") == os.environ["WANDB_API_KEY"] == "wandb_api_key"
    places.setattr("nbhelpers.hardware.secrets.is_notebook", lambda: False)
    assert find_secret("HF_TOKEN") == "stored"


def test_what_no_token_looks_like_is_refused_and_not_shown(places: pytest.MonkeyPatch) -> None:
    places.setenv("HF_TOKEN", "s\u00e9cret")
    with pytest.raises(ConfigError, match="characters that no token has") as error:
        find_secret("HF_TOKEN")
    assert "cret" not in str(error.value).replace("secret HF_TOKEN", "")


@pytest.mark.parametrize(("track", "key"), [("wandb", "kaggle"), ("none", None)])
def test_a_launch_hands_the_key_of_its_tracker_to_the_run_and_stores_it_nowhere(
    track: str, key: str | None, places: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys: list[str | None] = []
    places.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    places.setattr(starting, "_start", lambda *_: keys.append(os.environ.get("WANDB_API_KEY")))
    preset = Preset({"model": "smoke", "data": "smoke", "seed": 0, "track": track})
    run = starting.launch(preset, Plan(), None, hardware=Hardware(), run_dir=tmp_path / "runs")
    assert keys == [key] and "kaggle" not in run.record_path.read_text()
