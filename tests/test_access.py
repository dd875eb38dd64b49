"""Promise: before a download it is told whether the model may be read, and what is missing if not.

The hub is a server on this machine. `huggingface_hub` reads its environment when it is imported, so
what needs the hub runs in one process for each environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nbhelpers.presets.loading import load_preset
from nbhelpers.use.hub import check_access
from tests.local_hub import LocalHub

PROBE = """
import json, os, sys
from nbhelpers.use.hub import check_access
from nbhelpers.presets.loading import load_preset
from nbhelpers.errors import ConfigError
from nbhelpers.jobs.models.weights import find_weights
for name in json.loads(sys.argv[1]):
    found = []
    preset = load_preset("finetune", "t4", overrides={"model": name})
    for ask in (lambda: check_access(preset).why, lambda: str(find_weights(name, None).folder)):
        try:
            found.append(ask())
        except ConfigError as error:
            found.append({"message": error.message, "fix": error.fix})
    print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "smoke"}, "made on this machine"),
        ({"model": "smollm2"}, "comes with a Python package"),
        ({"model": "gemma-2-2b", "random_weights": True}, "random weights"),
    ],
)
def test_a_model_that_needs_no_hub_asks_none(
    changes: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "huggingface_hub.get_hf_file_metadata", lambda *_, **__: pytest.fail("the hub was asked")
    )
    found = check_access(load_preset("finetune", "smoke", overrides=changes))
    assert why in found.why and found.model in repr(found) and "no token" in found._repr_html_()


def test_a_local_folder_needs_no_token(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gemma2"}')
    found = check_access(load_preset("finetune", "smoke", overrides={"model": str(tmp_path)}))
    assert found.why == "a local folder, so it needs no token"


def test_a_token_of_the_platform_reaches_the_runs_and_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: list[tuple[str, str]] = []
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr("nbhelpers.use.hub.find_token", lambda: "hf_secret")
    monkeypatch.setattr(
        "huggingface_hub.get_hf_file_metadata",
        lambda url, *, token, timeout: requests.append((url, token)),
    )
    found = check_access(load_preset("finetune", "t4"))
    ((url, token),) = requests
    assert url.endswith("/google/gemma-2-2b/resolve/main/config.json") and token == "hf_secret"
    assert os.environ["HF_TOKEN"] == "hf_secret"
    assert "with your token" in found.why and "hf_secret" not in repr(found) + found._repr_html_()


NAMES = ("own/gated", "own/closed", "own/missing", "own/open")


def probe(environment: dict[str, str], *names: str) -> list[list[Any]]:
    """What the kernel and what a worker is told about each model, in one fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(names)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    token = environment["HF_TOKEN"]
    assert not token or token not in done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, list[Any]]]]:
    """What is told with no token, a good and a bad one, offline with a cache, and without a hub."""
    root = tmp_path_factory.mktemp("hub")
    (root / "model").mkdir()
    (root / "model" / "config.json").write_text("{}")
    (root / "model" / "model.safetensors").write_bytes(b"none that anybody reads")
    with LocalHub() as hub:
        hub.add("own/open", root / "model", repo_type="model")
        hub.add("own/gated", root / "model", repo_type="model", is_gated=True)
        closed = {"refuses_token": True}
        hub.add("own/closed", root / "model", repo_type="model", is_gated=True, card=closed)
        places = {
            "none": hub.environment(root / "a"),
            "good": hub.environment(root / "b", token=hub.token),
            "bad": hub.environment(root / "c", token="hf_wrong"),
            "offline": hub.environment(root / "b", offline=True),
        }
        found = {
            case: dict(zip(NAMES, probe(place, *NAMES), strict=True))
            for case, place in places.items()
        }
    # The server is gone now: what was fetched with the good token is in the cache, the rest is not.
    names = ("own/gated", "own/missing")
    found["down"] = dict(zip(names, probe(places["good"], *names), strict=True))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "name", "message", "fix"),
    [
        (
            "none",
            "own/gated",
            "is gated, and no token is set",
            "co/own/gated, then set",
        ),
        ("none", "own/missing", "does not exist, or it is private", "check owner/name"),
        ("good", "own/closed", "account may not read it yet", "accept its terms at https://"),
        ("good", "own/missing", "does not exist, or your token may not", "check owner/name"),
        ("bad", "own/gated", "refuses your token (HTTP 401)", "renew HF_TOKEN"),
        ("offline", "own/missing", "offline mode is on", "unset HF_HUB_OFFLINE"),
        ("down", "own/missing", "the hub cannot be reached", "name a local folder instead"),
    ],
)
def test_the_kernel_and_the_worker_tell_the_same_cause(
    told: dict[str, dict[str, list[Any]]], case: str, name: str, message: str, fix: str
) -> None:
    for said in told[case][name]:
        assert message in said["message"] and fix in said["fix"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "name", "why"),
    [
        ("none", "own/open", "the hub lets it be read without a token"),
        ("good", "own/gated", "the hub lets it be read with your token"),
        ("offline", "own/gated", "the hub is out of reach; the local cache has it"),
        ("down", "own/gated", "the hub is out of reach; the local cache has it"),
    ],
)
def test_what_may_be_read_is_said_to_be_readable(
    told: dict[str, dict[str, list[Any]]], case: str, name: str, why: str
) -> None:
    said, folder = told[case][name]
    assert said == why and "snapshots" in folder
