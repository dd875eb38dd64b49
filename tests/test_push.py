"""Promise: what is pushed lies on the hub whole, with a card whose scores its client reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from detector_folder import make_run
from huggingface_hub import ModelCard, snapshot_download
from job_runs import prepare, work_here
from local_hub import LocalHub, Trouble
from trained_on_disk import STEP, make_adapter, make_base, point_to, settings, write_run

from nbhelpers.errors import ConfigError
from nbhelpers.jobs.export import export_folder
from nbhelpers.jobs.merge import merge_adapter
from nbhelpers.use.trained import find_any

pytestmark = pytest.mark.slow
PLACE = "me/mine"


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lora")
    base = make_base(root / "base")
    write_run(root / "run", settings(str(base)))
    make_adapter(root / "run" / "checkpoints" / STEP, base)
    point_to(root / "run")
    return root / "run"


@pytest.fixture(scope="module")
def clones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = prepare("clones", tmp_path_factory.mktemp("runs"), epochs=1)
    work_here(run)
    return run.path


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "detector-tiny")


def write_export(run: Path, out: Path, **options: Any) -> dict[str, Any]:
    return export_folder(find_any(run), out=out, push_to=PLACE, **options)


def write_merge(run: Path, out: Path, **options: Any) -> dict[str, Any]:
    how = {"prompts": None, "device": "cpu", "report": lambda _: None, "push_to": PLACE}
    return merge_adapter(find_any(run), out=out, **how, **options)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    with LocalHub() as hub:
        hub.use_here(monkeypatch, tmp_path / "cache", token=hub.token)
        yield hub


@pytest.mark.parametrize("is_gated", [False, True], ids=["new", "gated"])
@pytest.mark.parametrize(
    ("write", "name", "loader", "metric"),
    [
        (write_export, "lora", "adapter_config.json", "bleu"),
        (write_merge, "lora", "config.json", "bleu"),
        (write_export, "detector", "detector.json", "roc_auc"),
        (write_export, "clones", "clones.json", "f1"),
    ],
    ids=["adapter", "merged", "detector", "clones"],
)
def test_a_push_lies_on_the_hub_whole_with_its_scores(
    request: pytest.FixtureRequest,
    hub: LocalHub,
    tmp_path: Path,
    write: Callable[..., dict[str, Any]],
    name: str,
    loader: str,
    metric: str,
    is_gated: bool,
) -> None:
    run, out = request.getfixturevalue(name), tmp_path / "out"
    if is_gated:
        (tmp_path / "there").mkdir()
        hub.add(PLACE, tmp_path / "there", repo_type="model", is_gated=True)
    told = write(run, out, token=hub.token)
    assert told["url"] == f"{hub.endpoint}/{PLACE}"
    assert hub.repos["model", PLACE].is_private is not is_gated
    here = Path(snapshot_download(PLACE, token=hub.token))
    sent = {p.relative_to(here).as_posix(): p.read_bytes() for p in here.rglob("*") if p.is_file()}
    written = {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert sent == written and loader in sent
    card = ModelCard.load(PLACE, token=hub.token)
    scores = {
        r.metric_type: r.metric_value for r in card.data.eval_results if r.dataset_split == "test"
    }
    result = json.loads((run / "result.json").read_text())["scores"]["test"]
    of_run = result.get("metrics") or result["orders"]["given"]
    assert scores[metric] == of_run[metric]
    assert PLACE in card.text
    for content in sent.values():
        assert hub.token.encode() not in content


@pytest.mark.parametrize("write", [write_export, write_merge], ids=["export", "merge"])
@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (Trouble(path="/create", status=401), "refuses the token (HTTP 401)"),
        (Trouble(path="/commit/main", status=403), "refuses the token (HTTP 403)"),
        (Trouble(path="/create", status=404), "answers HTTP 404"),
        (Trouble(path="/create", cut=True), "cannot be reached"),
    ],
    ids=["token", "rights", "owner", "cut"],
)
def test_a_push_that_fails_leaves_the_folder_and_says_why(
    hub: LocalHub,
    lora: Path,
    tmp_path: Path,
    write: Callable[..., dict[str, Any]],
    trouble: Trouble,
    words: str,
) -> None:
    hub.troubles.append(trouble)
    with pytest.raises(ConfigError) as error:
        write(lora, tmp_path / "out", token=hub.token)
    assert words in error.value.message and "The folder is written" in error.value.message
    assert hub.token not in str(error.value) and error.value.fix
    assert (tmp_path / "out" / "README.md").is_file()
    hub.troubles.clear()  # the same again goes on from the folder
    assert write(lora, tmp_path / "out", token=hub.token)["url"]


def test_nothing_is_pushed_unless_it_is_asked_for(
    hub: LocalHub, lora: Path, tmp_path: Path
) -> None:
    told = export_folder(find_any(lora), out=tmp_path / "out", token=hub.token)
    assert told["url"] is None and hub.requests == []
    with pytest.raises(ConfigError, match="no repository's name"):
        export_folder(find_any(lora), out=tmp_path / "b", push_to="mine", token=hub.token)
    assert hub.requests == [] and not (tmp_path / "b").exists()


@pytest.mark.parametrize("write", [write_export, write_merge], ids=["export", "merge"])
def test_a_push_without_a_token_stops_before_anything_is_written(
    lora: Path, tmp_path: Path, write: Callable[..., dict[str, Any]]
) -> None:
    with pytest.raises(ConfigError, match="needs a token") as error:
        write(lora, tmp_path / "out")
    assert "HF_TOKEN" in error.value.fix and not (tmp_path / "out").exists()
