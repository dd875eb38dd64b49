"""Promise: every test pair is told exactly once, in file order, while scoring goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from contexts import make_context

from nbhelpers.common.result_files import Record, Result
from nbhelpers.data import ClonePairs
from nbhelpers.jobs import clones
from nbhelpers.metrics.pairs import best_threshold
from nbhelpers.metrics.predictions import PredictionWriter, Sink, read_predictions
from nbhelpers.reports import sections
from nbhelpers.reports.facts import RunFacts
from nbhelpers.runs.run import Run

IDS = [f"id {n}" for n in range(40)]


def pairs(seed: int, n: int) -> ClonePairs:
    rng = np.random.default_rng(seed)
    left, right = (rng.integers(0, len(IDS), n).astype(np.int32) for _ in range(2))
    return ClonePairs(left=left, right=right, label=rng.integers(0, 2, n).astype(np.int8))


class Task:
    """Scores pairs at random, in chunks of 100, and looks at the disk after each chunk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scored: list[ClonePairs] = []
        self.given: dict[int, np.ndarray] = {}

    def predict(
        self, pairs: ClonePairs, report: Callable[[int, int], None], sink: Sink | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(len(self.scored))
        self.scored.append(pairs)
        given, swapped = rng.random((2, len(pairs)), dtype=np.float32)
        self.given[id(pairs)] = given
        for start in range(0, len(pairs), 100) if sink is not None else ():
            sink(start, given[start : start + 100], swapped[start : start + 100])
        return given, swapped


def data(**splits: ClonePairs) -> Any:
    return SimpleNamespace(ids=IDS, splits=splits)


def predict(folder: Path, found: Any, **options: Any) -> tuple[Task, Any, dict[str, Any]]:
    task = Task(folder)
    predicted, threshold = clones._predict(make_context(run=Run(folder), **options), found, task)
    return task, predicted, threshold


def test_every_pair_of_every_test_split_stands_once_and_in_file_order(tmp_path: Path) -> None:
    found = data(
        train=pairs(0, 30), test=pairs(1, 950), test_unseen=pairs(2, 70), valid=pairs(3, 250)
    )
    task, predicted, threshold = predict(tmp_path, found)
    assert task.scored[0] is found.splits["valid"]  # its threshold is known when test is written
    valid = found.splits["valid"]
    value = best_threshold(valid.label, task.given[id(valid)])
    assert threshold == {"value": value, "chosen_on": "valid", "criterion": "f1"}
    columns = read_predictions(tmp_path / "predictions.jsonl")
    assert columns["split"] == ["test"] * 950 + ["test_unseen"] * 70
    assert columns["row"] == [*range(950), *range(70)]
    for name, first in (("test", 0), ("test_unseen", 950)):
        split, rows = found.splits[name], slice(first, first + len(found.splits[name]))
        assert columns["id1"][rows] == [IDS[n] for n in split.left]
        assert columns["id2"][rows] == [IDS[n] for n in split.right]
        assert columns["label"][rows] == split.label.tolist()
        assert columns["p"][rows] == predicted[name][0].astype(float).tolist()
        assert columns["p_reversed"][rows] == predicted[name][1].astype(float).tolist()
        assert columns["prediction"][rows] == (predicted[name][0] > value).astype(int).tolist()
    assert (tmp_path / "predictions.txt").read_text().count("\n") == 950


def test_without_valid_the_threshold_is_a_half_and_said_to_be(tmp_path: Path) -> None:
    context = make_context(run=Run(tmp_path))
    found = data(test=pairs(1, 120))
    _, threshold = clones._predict(context, found, Task(tmp_path))
    assert threshold == {"value": 0.5, "chosen_on": "nothing", "criterion": "fixed"}
    assert context.warnings == ["There are no valid pairs: the threshold is 0.5, not a chosen one."]


def test_only_rank_0_writes(tmp_path: Path) -> None:
    _, predicted, _ = predict(tmp_path, data(test=pairs(1, 120)), rank=1)
    assert len(predicted["test"][0]) == 120 and list(tmp_path.iterdir()) == []


def test_a_failure_while_scoring_leaves_no_predictions(tmp_path: Path) -> None:
    found = data(test=pairs(1, 120), test_unseen=pairs(2, 70))

    class Fails(Task):
        def predict(self, pairs: ClonePairs, *args: Any) -> Any:
            if self.scored:
                raise MemoryError
            return super().predict(pairs, *args)

    with pytest.raises(MemoryError):
        clones._predict(make_context(run=Run(tmp_path)), found, Fails(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_sink_writes_each_chunk_at_once(tmp_path: Path) -> None:
    found = data(test=pairs(1, 5000))
    given = np.linspace(0, 1, 5000, dtype=np.float32)
    with PredictionWriter(tmp_path / "predictions.jsonl") as writer:
        sink = clones.prediction_sink(writer, found, "test", 0.25)
        sizes = []
        for start in range(0, 5000, 1000):
            sink(start, given[start : start + 1000], given[start : start + 1000])
            (partial,) = tmp_path.glob("predictions.jsonl.*")
            sizes.append(partial.stat().st_size)
    assert all(np.diff(sizes) > 50_000) and writer.n_written == 5000
    rows = [json.loads(line) for line in writer.path.read_text().splitlines()]
    assert [row["prediction"] for row in rows] == [int(p > 0.25) for p in given]


def test_the_result_says_what_became_of_the_data_flow() -> None:
    settings = SimpleNamespace(data_flow_length=128, grammar_compat="checkpoint")
    table = SimpleNamespace(node_offsets=np.array([0, 3, 3, 9]))
    found = clones._data_flow(settings, table)
    assert found["mean_nodes"] == 3.0 and found["functions_without_nodes"] == 1
    result = Result.model_validate({"job": "clones", "model": {"data_flow": found}})
    run = Run(Path("none"))
    facts = RunFacts(run=run, status="finished", result=result, saved=Record(), events=[])
    assert sections.citation(facts)["data flow"] == (
        "3 nodes per function on average, 1 functions without any; room for 128; checkpoint grammar"
    )
    settings.data_flow_length = None
    assert clones._data_flow(settings, table) is None
