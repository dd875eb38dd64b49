"""Promise: the hub's data sets load like local files, by commit and from the cache.

The hub is a server on this machine, asked from a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.instruction_rows import ROWS, load, write, write_parquet
from tests.local_hub import LocalHub

PROBE = """
import json, sys, time
from nbhelpers.data import load_instructions
from nbhelpers.data.coding_tasks import load_tasks
from nbhelpers.errors import DataError
for case in json.loads(sys.argv[1]):
    began = time.perf_counter()
    try:
        if "mbpp_data" in case:
            tasks = load_tasks("mbpp", **case)
            found = {"ids": [task.id for task in tasks], "source": tasks[0].source}
        else:
            data = load_instructions(**case)
            found = {name: getattr(data, name) for name in ("revision", "fingerprint", "licence")}
            found |= {"counts": data.problems["counts"], "test": data.splits["test"]}
    except DataError as error:
        found = {"error": str(error)}
    print(json.dumps(found | {"elapsed_s": time.perf_counter() - began}))
"""


def probe(environment: dict[str, str], *cases: dict[str, Any]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(cases)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def write_hub_sets(root: Path) -> None:
    """The columns and file names of the two data sets that are the defaults."""
    rows = [{**r, "prompt": f"Below… {r['instruction']} {r['output']}"} for r in ROWS]
    write_parquet(root / "code" / "data" / "train-00000-of-00001-8b6e212f3e1ece96.parquet", rows)
    write(root / "code" / "README.md", "card")
    problem = {"code": "def f(x):\n    return x", "test_list": ["assert f(1) == 1"]}
    for split, ids_ in (
        ("train", (601,)),
        ("validation", (511,)),
        ("test", (11, 12)),
        ("prompt", (1,)),
    ):
        for folder, question in (("full", "text"), ("sanitized", "prompt")):
            some = [{question: f"Problem {n}", "task_id": n, **problem} for n in ids_]
            if folder == "sanitized":
                some = [{**row, "test_imports": ["import math"]} for row in some[:1]]
            write_parquet(root / "mbpp" / folder / f"{split}-00000-of-00001.parquet", some)


@pytest.mark.slow
def test_the_hubs_data_sets_load_by_commit_and_from_the_cache(tmp_path: Path) -> None:
    write_hub_sets(tmp_path)
    code, mbpp = "iamtarun/python_code_instructions_18k_alpaca", "google-research-datasets/mbpp"
    few = {"source": code, "valid_samples": 4, "eval_samples": 6}
    cases = [
        few,
        {**few, "revision": "nope"},
        {"source": "own/none"},
        {"mbpp_data": mbpp},
        {"mbpp_data": f"{mbpp}:sanitized"},
        {"source": mbpp, "valid_samples": 1, "eval_samples": 2},
        {"source": "own/text"},
    ]
    write(tmp_path / "text" / "README.md", "nothing")
    with LocalHub() as hub:
        repo = hub.add(code, tmp_path / "code")
        hub.add(mbpp, tmp_path / "mbpp")
        hub.add("own/text", tmp_path / "text")
        online = probe(hub.environment(tmp_path / "cache"), *cases)
        fetched = [path for method, path in hub.requests if method == "GET" and "resolve" in path]
    data, nope, none, full, sanitized, rows, text = online
    (cached,) = probe(hub.environment(tmp_path / "cache", offline=True), few)
    local = load(tmp_path / "code")
    assert data["revision"] == repo.commit and data["licence"] == "not stated"
    assert data["fingerprint"] == cached["fingerprint"] == local.fingerprint
    assert data["test"] == cached["test"] and cached["counts"]["from_cache"] == 1
    assert not any("Below…" in prompt for _, prompt, _ in data["test"])
    assert "has no revision 'nope'" in nope["error"] and "does not exist" in none["error"]
    assert full["ids"] == ["MBPP/11", "MBPP/12"] and sanitized["ids"] == ["MBPP/11"]
    assert "mbpp:full at" in full["source"] and "test split" in full["source"]
    assert [len(rows["test"]), rows["licence"]] == [2, "CC-BY-4.0"]
    assert "no files of rows" in text["error"] and "README.md" in text["error"]
    assert not any("README" in path for path in fetched)
    assert all(found["elapsed_s"] < 10 for found in online)
