"""Promise: work in another process gives what it gives here, and none outlives its starter."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from nbhelpers.common import pool
from nbhelpers.common.pool import begin, begin_chain
from nbhelpers.common.processes import is_alive, start_time


def _other(here: int, is_killed: bool) -> bool:
    if is_killed and os.getpid() != here:
        os._exit(9)
    return os.getpid() != here


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_is_begun_is_done_elsewhere_and_here_where_that_process_was_killed(
    is_killed: bool,
) -> None:
    assert begin(_other, os.getpid(), is_killed)() is not is_killed


def _pids(here: int) -> list[int]:
    return [here, os.getpid()]


def _further(pids: list[int]) -> list[int]:
    if pids[0] < 0:
        os._exit(9)
    return [*pids, os.getpid()]


def _killed_elsewhere(pids: list[int]) -> list[int]:
    if os.getpid() != pids[0]:
        os._exit(9)
    return [*pids, os.getpid()]


def test_a_chain_is_done_in_one_other_process_and_here_where_that_was_killed() -> None:
    here, steps = os.getpid(), (_further, _killed_elsewhere, _further)
    first, second, third, fourth = begin_chain(partial(_pids, here), *steps)
    there = first()[1]
    assert there != here and second() == [here, there, there]
    assert third()[-1] == here and fourth()[-1] == here
    assert first() is first()


def _sizes(here: int, is_killed: bool, texts: list[str]) -> list[int]:
    _other(here, is_killed)
    return [len(text) for text in texts]


@pytest.mark.parametrize("way", ["killed", "no shared memory", "no main module", "no pickle"])
def test_what_other_processes_cannot_do_is_done_here(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_pool(count: int) -> None:
        raise OSError("Read-only file system")

    monkeypatch.setattr(pool, "PROCESS_CHARACTERS", 1)
    monkeypatch.setattr(pool, "CHUNK_CHARACTERS", 4)
    monkeypatch.setattr(pool, "available_cpus", lambda: 2)
    if way == "no shared memory":
        monkeypatch.setattr(pool, "_new_pool", no_pool)
    if way == "no main module":
        monkeypatch.delitem(sys.modules, "__main__")
    work = partial(_sizes, os.getpid(), way == "killed")
    if way == "no pickle":
        work = lambda texts: [len(text) for text in texts]  # noqa: E731
    texts = ["one", "three", "ninety", "a"]
    assert pool.map_chunks(work, texts, len) == [[3, 5], [6], [1]]
    assert begin(work, texts)() == [3, 5, 6, 1]
    assert ("__main__" in sys.modules) == (way != "no main module")


SCRIPT = """
import multiprocessing, os, time
from nbhelpers.common.pool import begin
begin(time.sleep, 600)
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_killed_process_leaves_none_behind() -> None:
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    started = start_time(pid)
    time.sleep(3)  # it has told the system by now
    assert is_alive(pid, started)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while is_alive(pid, started) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_alive(pid, started)


@pytest.mark.slow
def test_floors_fitted_beside_a_training_are_those_fitted_after_it(tmp_path, monkeypatch) -> None:
    from types import SimpleNamespace

    from nbhelpers.data.detection import load_detection_data
    from nbhelpers.jobs import detector_stack
    from nbhelpers.jobs.context import RunContext
    from nbhelpers.jobs.detector_inputs import Inputs
    from nbhelpers.presets.loading import load_preset

    monkeypatch.setattr(detector_stack, "worthwhile", lambda characters: 2)
    settings = load_preset("detector", "smoke").settings
    data = load_detection_data("smoke")
    plan = SimpleNamespace(use_gpu=True)
    context = RunContext(settings=settings, plan=plan, accelerator=None, precision="fp32")
    rows = np.arange(len(data.rows))
    inputs = Inputs(data=data, audit=None, table=None, found=None, rows=rows)
    beside = replace(inputs, floors=detector_stack.begin_floors(context, inputs))
    codes = [row.code for row in inputs.split_rows("test")]
    fit = partial(detector_stack.fit_scorers, context, frozen=None, encoder={})
    (ours, sources), (theirs, other_sources) = fit(beside), fit(inputs)
    assert pickle.dumps(sources) == pickle.dumps(other_sources)
    for name, (scores, threshold) in theirs.score(codes).items():
        assert (ours.score(codes)[name][0] == scores).all()
        assert ours.thresholds[name] == threshold and ours.strengths == theirs.strengths
    on_cpu = replace(context, plan=SimpleNamespace(use_gpu=False))
    assert detector_stack.begin_floors(on_cpu, inputs) is None


def test_data_read_while_a_worker_loads_its_libraries_are_those_read_after() -> None:
    from nbhelpers.data.audit import audit
    from nbhelpers.data.detection import data_arguments, load_detection_data
    from nbhelpers.jobs.worker import _begin_early
    from nbhelpers.presets.loading import load_preset

    preset = load_preset("detector", "smoke", overrides={"valid_share": 0.2})
    facts = {"job": "detector", "mode": "train", "preset": preset.to_dict()}
    facts["plan"] = {"use_gpu": True}
    facts["preset"]["settings"].pop("data_revision")  # of a run before there was such a setting
    begun = _begin_early(facts, 0)
    early, after = begun.data(), load_detection_data(**data_arguments(preset.settings))
    report, expected = begun.audit(), audit(after)
    unlike = {"seconds": None}
    assert report.facts | unlike == expected.facts | unlike and report.verdict == expected.verdict
    assert early.rows == after.rows and early.to_dict() == after.to_dict()
    assert early.splits.keys() == after.splits.keys() and early.warnings == after.warnings
    assert all((early.splits[name] == rows).all() for name, rows in after.splits.items())
    for other in ({"mode": "evaluate"}, {"job": "clones"}, {"plan": {"use_gpu": False}}):
        assert _begin_early(facts | other, 0) is None
    assert _begin_early(facts, 1) is None


@pytest.mark.slow
def test_the_baseline_of_similarity_counted_beside_a_training_gives_the_same_scores(
    monkeypatch,
) -> None:
    from types import SimpleNamespace

    from nbhelpers.data.detection import load_detection_data
    from nbhelpers.jobs import detector_scores
    from nbhelpers.jobs.context import RunContext
    from nbhelpers.jobs.detector_inputs import Inputs
    from nbhelpers.metrics.ngrams import TfidfSimilarity
    from nbhelpers.presets.loading import load_preset

    monkeypatch.setattr(detector_scores, "worthwhile", lambda characters: 2)
    monkeypatch.setattr(detector_scores, "available_cpus", lambda: 4)
    monkeypatch.setattr(detector_scores, "_raw_vectors", lambda *_: {})
    settings = load_preset("detector", "smoke").settings
    data = load_detection_data("smoke")
    plan = SimpleNamespace(use_gpu=True)
    context = RunContext(settings=settings, plan=plan, accelerator=None, precision="fp32")
    inputs = Inputs(data=data, audit=None, table=None, found=None, rows=np.arange(len(data.rows)))
    splits = {}
    for number, name in enumerate(("valid", "test")):
        rows = inputs.split_rows(name)
        vectors = np.random.default_rng(number).standard_normal((len(rows), 8))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        splits[name] = detector_scores.Scored(rows=rows, logits=vectors[:, 0], vectors=vectors)
    numbers = detector_scores.Numbers(splits=splits)
    score = partial(detector_scores.score_similarity, context, task=None, numbers=numbers)
    after = score(inputs)
    beside = replace(inputs, similarity=detector_scores.begin_similarity(context, inputs))
    baselines = beside.similarity()
    beside = replace(beside, similarity=lambda: baselines)
    for name in ("__init__", "between"):  # all answers were given there
        monkeypatch.setattr(TfidfSimilarity, name, lambda *_: pytest.fail("counted again"))
    assert pickle.dumps(score(beside)) == pickle.dumps(after)
    on_cpu = replace(context, plan=SimpleNamespace(use_gpu=False))
    assert detector_scores.begin_similarity(on_cpu, inputs) is None


def test_an_audit_by_several_processes_or_from_the_cache_is_that_of_one(
    tmp_path: Path, monkeypatch
) -> None:
    from nbhelpers.data import audit
    from nbhelpers.data.detection import read_rows

    monkeypatch.setenv("NBHELPERS_CACHE", str(tmp_path))
    monkeypatch.setattr(audit, "CACHED_CHARACTERS", 1000)
    rows, started, new_pool = read_rows("smoke")[:100], [], pool._new_pool
    alone = audit.collect(rows, form="text")
    assert audit._collected(rows[:-1], "text", ()) != alone
    monkeypatch.setattr(pool, "PROCESS_CHARACTERS", 1000)
    monkeypatch.setattr(pool, "CHUNK_CHARACTERS", 20_000)
    monkeypatch.setattr(pool, "available_cpus", lambda: 2)
    monkeypatch.setattr(pool, "_new_pool", lambda n: started.append(n) or new_pool(n))
    for _ in range(2):  # the second is from the cache
        assert audit._collected(rows, "text", ()) == alone and started == [1, 2]
    for path in tmp_path.glob("audit/*.json"):
        path.write_text("{}")
    assert audit._collected(rows, "text", ()) == alone and started == [1, 2, 1, 2]
