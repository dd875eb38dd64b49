"""Promise: the hub's forms load into the same data as the folder, or fail at once and say why.

The hub is a server on this machine. `huggingface_hub` reads its environment when it is imported, so
what needs the hub runs in one process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nbhelpers.data import load_clone_data
from nbhelpers.data.hub import is_repo_id
from nbhelpers.data.pair_sources import choose_files
from tests.local_hub import LocalHub

folders = pytest.importorskip("tests.parquet_folder", reason="needs pyarrow")
pytestmark = pytest.mark.slow


def test_only_the_files_of_one_form_are_chosen() -> None:
    original = [
        "README.md",
        "d/data.jsonl",
        "d/train.txt",
        "d/test_x.txt",
        "d/notes.txt",
        "train.txt",
    ]
    assert choose_files(original) == ["d/data.jsonl", "d/train.txt", "d/test_x.txt"]
    assert choose_files(["README.md", "a/train.parquet", "x.csv"]) == ["a/train.parquet"]


@pytest.mark.parametrize("text", ["owner", "a/b/c", "./a", "a b/c", "a/b@main", "owner/", "a/../b"])
def test_what_is_no_hub_name_is_not_asked_for(text: str) -> None:
    assert not is_repo_id(text)


PROBE = """
import json, sys, time, traceback
from nbhelpers.data import load_clone_data
from nbhelpers.errors import DataError
for arguments in json.loads(sys.argv[1]):
    began = time.perf_counter()
    try:
        data = load_clone_data(**arguments)
        names = ("revision", "fingerprint", "licence", "source")
        found = {name: getattr(data, name) for name in names} | {"counts": data.problems.counts}
    except DataError as error:
        traceback.print_exc()
        found = {"error": str(error), "is_chained": not error.__suppress_context__}
    print(json.dumps(found | {"elapsed_s": time.perf_counter() - began}))
"""


def probe(environment: dict[str, str], *cases: dict[str, Any]) -> list[dict[str, Any]]:
    """Load each case in one fresh process and return what came of it."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(cases)],
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
        online = probe(hub.environment(root / "cache"), *cases)
        asked = list(hub.requests)
        n_before = len(hub.requests)
        offline = probe(
            hub.environment(root / "cache", offline=True),
            {"source": "own/parquet"},
            {"source": "own/parquet", "revision": repo.commit},
            {"source": "own/missing"},
        )
        n_offline = len(hub.requests) - n_before
    down = probe(hub.environment(root / "empty"), {"source": "own/parquet"})
    down += probe(hub.environment(root / "cache"), {"source": "own/original"})
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
        ("own/text", "neither data.jsonl nor Parquet files; it has README.md"),
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


def test_a_token_opens_what_it_may_and_is_never_printed(tmp_path: Path) -> None:
    folder = folders.write_folder_form(tmp_path / "folder")
    with LocalHub() as hub:
        hub.add("own/gated", folder, is_gated=True)
        hub.add("own/closed", folder, is_gated=True, card={"refuses_token": True})
        good = hub.environment(tmp_path / "cache", token=hub.token)
        names = ("own/gated", "own/closed", "own/missing")
        opened, closed, missing = probe(good, *({"source": name} for name in names))
        (refused,) = probe(
            hub.environment(tmp_path / "cache2", token="hf_wrong"), {"source": "own/gated"}
        )
        (broken,) = probe(
            hub.environment(tmp_path / "cache2", token="hf_\u00e9"), {"source": "own/gated"}
        )
    assert len(opened["revision"]) == 40
    assert not any(found["is_chained"] for found in (closed, missing, refused, broken))
    assert "is gated, and your token's account may not read it yet" in closed["error"]
    assert "does not exist, or your token may not see it" in missing["error"]
    assert "the hub refuses your token (HTTP 401)" in refused["error"]
    assert "HF_TOKEN is not plain ASCII" in broken["error"]


def test_a_hub_in_trouble_is_told_with_its_answer(tmp_path: Path) -> None:
    with LocalHub(status=503) as hub:
        began = time.perf_counter()
        (found,) = probe(hub.environment(tmp_path / "cache"), {"source": "own/any"})
    assert "the hub answers HTTP 503" in found["error"] and time.perf_counter() - began < 60


def test_a_mirror_without_error_codes_is_understood(tmp_path: Path) -> None:
    with LocalHub(is_mirror=True) as hub:
        (found,) = probe(hub.environment(tmp_path / "cache"), {"source": "own/any"})
    assert "does not exist, or it is private and no token is set" in found["error"]


MODEL_PROBE = """
import sys
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
api = HfApi()
assert api.model_info("own/model").sha == sys.argv[1]
assert open(hf_hub_download("own/model", "sub/part.bin"), "rb").read() == bytes(range(256)) * 999
assert [item.path for item in api.list_repo_tree("own/model")] == ["config.json", "sub"]
assert api.file_exists("own/model", "config.json") and not api.file_exists("own/model", "nope")
for name, error in (("own/none", RepositoryNotFoundError), ("own/gated", GatedRepoError)):
    try:
        hf_hub_download(name, "config.json")
        raise SystemExit(f"{name} was served")
    except error:
        pass
"""


def test_the_local_hub_serves_models_as_the_client_expects(tmp_path: Path) -> None:
    (tmp_path / "model" / "sub").mkdir(parents=True)
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "sub" / "part.bin").write_bytes(bytes(range(256)) * 999)
    with LocalHub() as hub:
        repo = hub.add("own/model", tmp_path / "model", repo_type="model")
        hub.add("own/gated", tmp_path / "model", repo_type="model", is_gated=True)
        done = subprocess.run(
            [sys.executable, "-c", MODEL_PROBE, repo.commit],
            env={**os.environ, **hub.environment(tmp_path / "cache")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
