"""Promise: the hub's sets of code load under their own column names, and so does the sample.

The hub is a server on this machine, asked from a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nbhelpers.data.detection import load_detection_data
from tests.detection_on_disk import program, write_rows
from tests.local_hub import LocalHub

pytestmark = pytest.mark.slow

PROBE = """
import json, sys
from nbhelpers.data.detection import load_detection_data, read_rows
from nbhelpers.errors import DataError
for case in json.loads(sys.argv[1]):
    try:
        if case.pop("only_rows", False):
            rows = read_rows(**case)
            found = {"rows": [row._replace(code="") for row in rows]}
        else:
            data = load_detection_data(**case)
            found = data.to_dict() | {"rows": [row._replace(code="") for row in data.rows]}
    except DataError as error:
        found = {"error": str(error)}
    print(json.dumps(found))
"""
PAIRED = "isThisYouLLM/H-AIRosettaMP"
ROSETTA = "christopher/rosetta-code"
PROBLEMS = "google/code_x_glue_cc_clone_detection_poj104"


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


def write_sets(root: Path) -> None:
    """The three data sets with their own columns; the human rows of the first stand in two sets."""
    paired = []
    for i in range(30):
        row = {"task_name": f"Knight's tour {i}", "language_name": ("Go", "C++")[i % 2]}
        human = row | {"code": program(i), "target": "Human_written"}
        paired += [human | {"set": "Go_from_C"}, human | {"set": "Go_from_Rust"}]
        paired += [row | {"code": program(i + 100), "target": "Ai_generated", "set": "Go_from_C"}]
    write_rows(root / "paired" / "dataset.jsonl", paired)
    rosetta = [
        {
            "task_url": f"http://x/{i // 2}",
            "task_name": f"Knight's tour {i // 2}",
            "task_description": "Do it.",
            "language_url": "#Python",
            "language_name": "Python",
            "code": program(i),
        }
        for i in range(40)
    ]
    write_table(root / "rosetta" / "data" / "train-00000-of-00001.parquet", rosetta)
    for split, tasks in (("train", range(1, 9)), ("validation", (9, 10)), ("test", (11, 12))):
        rows = [
            {"id": n, "code": program(task * 10 + n), "label": str(task)}
            for task in tasks
            for n in range(3)
        ]
        write_table(root / "problems" / "data" / f"{split}-00000-of-00001.parquet", rows)


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def test_the_hubs_sets_load_under_their_own_columns(tmp_path: Path) -> None:
    write_sets(tmp_path)
    with LocalHub() as hub:
        repo = hub.add(PAIRED, tmp_path / "paired")
        hub.add(ROSETTA, tmp_path / "rosetta")
        hub.add(PROBLEMS, tmp_path / "problems")
        environment = hub.environment(tmp_path / "hub") | {"NBHELPERS_CACHE": str(tmp_path)}
        paired, rosetta, unlabelled, problems, no_task, local = probe(
            environment,
            {"source": PAIRED},
            {"source": ROSETTA, "only_rows": True},
            {"source": PROBLEMS},
            {"source": PROBLEMS, "labelled": False},
            {"source": str(tmp_path / "problems" / "data"), "only_rows": True},
            {"source": str(tmp_path / "problems"), "labelled": False},
        )
    assert paired["revision"] == repo.commit and "GFDL" in paired["licence"]
    assert paired["n_rows"] == 60 and paired["problems"]["duplicates"]["same_code"] == 30
    fields = ("language", "label", "task", "generator", "source")
    names = ("id", "code", "language", "label", "task", "author", "generator", "source")
    last = dict(zip(names, paired["rows"][-1], strict=False))
    assert [last[name] for name in fields] == [
        *("cpp", "ai", "rosetta-knights-tour-29", "starcoder2", "h-airosettamp")
    ]
    human = dict(zip(names, rosetta["rows"][0], strict=False))
    assert len(rosetta["rows"]) == 40 and human["task"] == "rosetta-knights-tour-0"
    assert (human["label"], human["language"]) == ("human", "python")
    assert "have no label" in unlabelled["error"] and "objective=similar" in unlabelled["error"]
    sizes = {name: counts["rows"] for name, counts in problems["splits"].items()}
    assert sizes == {"train": 24, "valid": 6, "test": 6} and problems["problems"]["split"]
    assert problems["rows"][0][2] == "c" and problems["rows"][0][4] == "poj104-11"
    assert "label is not known" in no_task["error"]
    assert {name: counts["rows"] for name, counts in local["splits"].items()} == sizes
    assert {row[4] for row in local["rows"]} == {str(task) for task in range(1, 13)}


def test_the_bundled_sample_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path))
    data = load_detection_data("smoke")
    assert data.note and data.problems["counts"].get("both_classes") is None
    for name in ("train", "valid", "test"):
        labels = data.to_dict()["splits"][name]
        assert labels["human"] and labels["ai"] and labels["tasks"]
    assert not any(n for counts in data.overlap.values() for n in counts.values())
