"""Promise: the hub's forms load into the same data as the folder, or fail at once and say why.

The hub is a server on this machine.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from nbhelpers.data import load_clone_data
from nbhelpers.data.hub import is_repo_id
from nbhelpers.data.pair_sources import layout
from nbhelpers.errors import NbhelpersError
from tests.local_hub import LocalHub, Trouble

folders = pytest.importorskip("tests.parquet_folder", reason="needs pyarrow")


def test_the_original_layout_is_known_by_its_files() -> None:
    original = [
        "README.md",
        "d/data.jsonl",
        "d/train.txt",
        "d/test_x.txt",
        "d/notes.txt",
        "train.txt",
    ]
    assert layout(original) == ["d/data.jsonl", "d/train.txt", "d/test_x.txt"]
    assert layout(["README.md", "a/train.parquet", "x.csv"]) == []


@pytest.mark.parametrize("text", ["owner", "a/b/c", "./a", "a b/c", "a/b@main", "owner/", "a/../b"])
def test_what_is_no_hub_name_is_not_asked_for(text: str) -> None:
    assert not is_repo_id(text)


def told(**arguments: Any) -> dict[str, Any]:
    """What comes of loading clone data, and in which time."""
    began = time.perf_counter()
    try:
        data = load_clone_data(**arguments)
        names = ("revision", "fingerprint", "licence", "source")
        found = {name: getattr(data, name) for name in names} | {"counts": data.problems.counts}
    except NbhelpersError as error:
        found = {"error": str(error), "is_chained": not error.__suppress_context__}
    return found | {"elapsed_s": time.perf_counter() - began}


def told_by(
    hub: LocalHub, cache: Path, *cases: dict[str, Any], **options: Any
) -> list[dict[str, Any]]:
    """What comes of each case in this process, which uses the hub meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        hub.use_here(patch, cache, **options)
        return [told(**case) for case in cases]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Answers of one process to the cases that need no token, and of one offline after it."""
    root = tmp_path_factory.mktemp("hub")
    parquet, folder = (
        folders.write_hub_form(root / "parquet"),
        folders.write_folder_form(root / "folder"),
    )
    names = ["own/parquet", "own/original", "own/gated", "own/missing", "own/private", "own/text"]
    (root / "text").mkdir()
    (root / "text" / "README.md").write_text("nothing here")
    with LocalHub() as hub:
        repo = hub.add("own/parquet", parquet, card={"license": "c-uda"})
        hub.add("own/original", folder)
        hub.add("own/gated", folder, is_gated=True)
        hub.add("own/private", folder, is_private=True)
        hub.add("own/text", root / "text")
        cases = [{"source": name} for name in names]
        cases += [{"source": "own/parquet", "revision": r} for r in ("nope", repo.commit)]
        cases += [{"source": "hf://datasets/own/original"}]
        online = told_by(hub, root / "cache", *cases)
        asked = list(hub.requests)
        n_before = len(hub.requests)
        offline = told_by(
            hub,
            root / "cache",
            {"source": "own/parquet"},
            {"source": "own/parquet", "revision": repo.commit},
            {"source": "own/missing"},
            offline=True,
        )
        n_offline = len(hub.requests) - n_before
    down = told_by(hub, root / "empty", {"source": "own/parquet"})
    down += told_by(hub, root / "cache", {"source": "own/original"})
    return {
        "online": dict(zip([*names, "nope", "commit", "hf"], online, strict=True)),
        "offline": offline,
        "down": down,
        "asked": asked,
        "n_offline": n_offline,
        "commit": repo.commit,
        "fingerprint": load_clone_data(str(folder)).fingerprint,
    }


@pytest.mark.parametrize("case", ["own/parquet", "own/original", "commit", "hf"])
def test_both_hub_forms_load_and_record_the_commit(served: dict[str, Any], case: str) -> None:
    found = served["online"][case]
    assert found["fingerprint"] == served["fingerprint"] and len(found["revision"]) == 40
    if case in ("own/parquet", "commit"):
        assert found["revision"] == served["commit"] and found["licence"] == "c-uda"
    else:
        assert found["source"] == "own/original" and found["licence"] == "not stated"


def test_only_data_files_are_fetched(served: dict[str, Any]) -> None:
    fetched = {path for method, path in served["asked"] if method == "GET" and "/resolve/" in path}
    assert fetched and not any("README" in path for path in fetched)


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("own/gated", "is gated, and no token is set"),
        ("own/missing", "does not exist, or it is private and no token is set"),
        ("own/private", "does not exist, or it is private and no token is set"),
        ("own/text", "neither data.jsonl nor files of rows; it has README.md"),
        ("nope", "has no revision 'nope'"),
    ],
)
def test_what_cannot_be_read_is_explained_within_seconds(
    served: dict[str, Any], case: str, told: str
) -> None:
    found = served["online"][case]
    assert told in found["error"] and "Fix: " in found["error"] and found["elapsed_s"] < 30


def test_offline_mode_uses_the_cache_with_a_note_and_asks_nobody(served: dict[str, Any]) -> None:
    branch, commit, missing = served["offline"]
    for found in (branch, commit):
        assert found["fingerprint"] == served["fingerprint"] and found["counts"]["from_cache"] == 1
        assert found["revision"] == served["commit"]
    assert "offline mode is on (HF_HUB_OFFLINE)" in missing["error"]
    assert served["n_offline"] == 0 and missing["elapsed_s"] < 30


def test_without_a_network_the_cache_serves_or_the_error_comes_at_once(
    served: dict[str, Any],
) -> None:
    uncached, cached = served["down"]
    assert "the hub cannot be reached" in uncached["error"] and uncached["elapsed_s"] < 30
    assert cached["fingerprint"] == served["fingerprint"] and cached["counts"]["from_cache"] == 1


def test_a_token_opens_what_it_may_and_is_never_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, (cache, other) = folders.write_folder_form(tmp_path / "folder"), ("cache", "cache2")
    names = ("own/gated", "own/closed", "own/missing")
    with LocalHub() as hub:
        hub.add("own/gated", folder, is_gated=True)
        hub.add("own/closed", folder, is_gated=True, card={"refuses_token": True})
        cases = [{"source": name} for name in names]
        opened, closed, missing = told_by(hub, tmp_path / cache, *cases, token=hub.token)
        tokens = ("hf_wrong", "hf_\u00e9")
        refused, broken = (told_by(hub, tmp_path / other, cases[0], token=t)[0] for t in tokens)
    output = "".join(capfd.readouterr())
    assert not any(token in output for token in (hub.token, *tokens))
    assert len(opened["revision"]) == 40
    assert not any(found["is_chained"] for found in (closed, missing, refused))
    assert "is gated, and your token's account may not read it yet" in closed["error"]
    assert "does not exist, or your token may not see it" in missing["error"]
    assert "the hub refuses your token (HTTP 401)" in refused["error"]
    assert "HF_TOKEN holds characters that no token has" in broken["error"]


@pytest.mark.parametrize(
    ("hub", "text"),
    [
        (LocalHub(Trouble(status=503)), "the hub answers HTTP 503"),
        (LocalHub(Trouble(status=429)), "HTTP 429, too many requests"),
        (LocalHub(Trouble(method="GET", cut=True)), "the hub cannot be reached"),
        (LocalHub(is_mirror=True), "does not exist, or it is private and no token is set"),
    ],
)
def test_a_hub_in_trouble_is_told_with_its_answer(hub: LocalHub, text: str, tmp_path: Path) -> None:
    with hub:
        (found,) = told_by(hub, tmp_path / "cache", {"source": "own/any"})
    assert text in found["error"] and found["elapsed_s"] < 10


def test_the_local_hub_serves_models_as_the_client_expects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import HfApi, hf_hub_download

    content = bytes(range(256)) * 999
    (tmp_path / "model" / "sub").mkdir(parents=True)
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "sub" / "part.bin").write_bytes(content)
    with LocalHub() as hub:
        repo = hub.add("own/model", tmp_path / "model", repo_type="model")
        hub.use_here(monkeypatch, tmp_path / "cache")
        api = HfApi()
        assert api.model_info("own/model").sha == repo.commit
        assert Path(hf_hub_download("own/model", "sub/part.bin")).read_bytes() == content
        paths = [item.path for item in api.list_repo_tree("own/model")]
        assert paths == ["config.json", "sub"]
        is_there = [api.file_exists("own/model", name) for name in ("config.json", "nope")]
        assert is_there == [True, False]
