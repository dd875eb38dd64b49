"""Guards: ranks and pairs equal the definitions, ties never flatter, negatives are hard."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.metrics import average_precision_score, roc_auc_score

from nbhelpers.errors import DataError
from nbhelpers.metrics import retrieval as retrieval_metrics
from nbhelpers.metrics.ngrams import TfidfSimilarity, similarity_text
from nbhelpers.metrics.retrieval import (
    Pairs,
    cosines,
    hard_pairs,
    pair_scores,
    pair_threshold,
    rank_queries,
    retrieval,
    retrieval_table,
)

DATA = Path(os.environ.get("NBHELPERS_DATA", "/nowhere")) / "detector" / "rosetta_2021_human.jsonl"
DRAW = {"resamples": 200, "seed": 1}


def space(seed: int, n: int, n_tasks: int, noise: float):
    """Return unit vectors around one centre per task, and the tasks."""
    draw = np.random.default_rng(seed)
    tasks = draw.integers(0, n_tasks, n)
    vectors = draw.normal(size=(n_tasks, 8))[tasks] + noise * draw.normal(size=(n, 8))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit.astype(np.float32), [f"t{task}" for task in tasks]


def by_definition(query, task, pool, pool_tasks, itself) -> tuple[float, float]:
    """Sort by similarity, wrong programs first among equals; read both values off the list."""
    others = [at for at in range(len(pool)) if at != itself]
    order = sorted(others, key=lambda at: (-float(pool[at] @ query), pool_tasks[at] == task))
    hits = np.array([pool_tasks[at] == task for at in order], dtype=float)
    size = int(hits.sum())
    if not size:
        return np.nan, np.nan
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return 1 / (1 + int(hits.argmax())), float((precision * hits)[:size].sum() / size)


@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_ranks_equal_their_definition(monkeypatch, has_ties: bool, is_sparse: bool) -> None:
    vectors, tasks = space(1, 90, 25, noise=0.8)
    if has_ties:
        vectors = np.round(2 * vectors)  # whole numbers: equal similarities are exactly equal
    tasks[3] = ""
    monkeypatch.setattr(retrieval_metrics, "BLOCK_VALUES", 7 * 60)
    given = csr_matrix(vectors) if is_sparse else vectors
    same = [at if at < 60 else -1 for at in range(90)]
    found = rank_queries(given, tasks, given[:60], tasks[:60], same=same)
    for at in range(90):
        wanted = by_definition(vectors[at], tasks[at] or "-", vectors[:60], tasks[:60], same[at])
        got = (found.reciprocal_rank[at], found.average_precision[at])
        assert got == pytest.approx(wanted, nan_ok=True)


def test_a_space_in_which_all_is_alike_finds_the_right_program_last() -> None:
    ones = np.ones((10, 4), dtype=np.float32) / 2
    tasks = ["a", "a"] + ["b"] * 8
    found = rank_queries(ones, tasks, ones, tasks, same=range(10))
    assert found.reciprocal_rank[0] == pytest.approx(1 / 9)
    assert found.average_precision[0] == 0.0
    assert found.reciprocal_rank[5] == pytest.approx(1 / 3)  # two wrong ones before


def test_queries_that_can_find_nothing_are_counted_apart() -> None:
    vectors, tasks = space(2, 60, 10, noise=0.5)
    tasks[:5] = ["", "", "alone", "elsewhere", "t-none"]
    every, first = np.arange(60), np.arange(3)
    found = retrieval(vectors, tasks, every, every, **DRAW)
    assert (found["n_queries"], found["n_without"], found["pool_size"]) == (55, 5, 60)
    assert found["mrr_interval"][0] < found["mrr"] < found["mrr_interval"][1]
    nothing = retrieval(vectors, tasks, first, every[3:], **DRAW)
    assert (nothing["n_queries"], nothing["mrr"], nothing["mrr_interval"]) == (0, None, None)
    with pytest.raises(DataError, match="59 and 60 tasks"):
        rank_queries(vectors, tasks[1:], vectors, tasks)


def test_a_lead_is_paired_over_queries() -> None:
    vectors, tasks = space(3, 200, 30, noise=0.9)
    worse = vectors + 0.15 * np.random.default_rng(1).normal(size=vectors.shape)
    floors = {"itself": vectors, "worse": worse, "tfidf": "no text"}
    every = np.arange(200)
    found = retrieval(vectors, tasks, every, every, floors=floors, **DRAW)
    assert found["floors"]["itself"]["lead"] == [0.0, 0.0, 0.0]
    assert found["floors"]["tfidf"] == {"skipped": "no text"}
    worse = found["floors"]["worse"]
    middle, low, high = worse["lead"]
    assert middle == pytest.approx(found["mrr"] - worse["mrr"]) and low < middle < high
    assert high - low < np.diff(found["mrr_interval"])
    assert worse["lead_map_at_r"][0] == pytest.approx(found["map_at_r"] - worse["map_at_r"])


def test_directions_hold_their_languages_and_pools_are_capped() -> None:
    vectors, tasks = space(4, 300, 20, noise=0.5)
    languages = ["python" if at < 140 else "java" if at < 290 else "go" for at in range(300)]
    found = retrieval_table(vectors, tasks, languages, floors={"x": vectors, "y": "no"}, **DRAW)
    rows = {(row["query"], row["pool"]): row for row in found}
    assert ("go", "java") not in rows and ("python", "go") in rows  # ten queries say too little
    there = rows["python", "java"]
    alone = retrieval(vectors, tasks, np.arange(140), np.arange(140, 290), **DRAW)
    assert there["mrr"] == alone["mrr"] and there["pool_size"] == 150
    assert there["floors"] == {
        "x": {"mrr": there["mrr"], "lead": [0.0] * 3}
        | {"map_at_r": there["map_at_r"], "lead_map_at_r": [0.0] * 3},
        "y": {"skipped": "no"},
    }
    assert rows["all", "all"]["n_queries"] == 300
    capped = retrieval_table(vectors, tasks, languages, max_pool=50, **DRAW)
    assert max(row["pool_size"] for row in capped) == 50
    assert capped == retrieval_table(vectors, tasks, languages, max_pool=50, **DRAW)


def test_negatives_look_like_the_positives() -> None:
    draw = np.random.default_rng(5)
    _, tasks = space(5, 600, 60, noise=1)
    languages = [("python", "java", "go")[at] for at in draw.integers(0, 3, 600)]
    lengths = np.exp(draw.normal(6, 1, 600)).astype(int)
    tasks[:20] = [""] * 20
    pairs = hard_pairs(tasks, languages, lengths, max_pairs=1000, seed=1)
    assert len(pairs.label) == 1000 and pairs.label.mean() == 0.5
    assert min(pairs.left.min(), pairs.right.min()) >= 20
    for left, right, label in zip(*pairs, strict=True):
        assert left != right and (tasks[left] == tasks[right]) == bool(label)
    positive, negative = pairs.right[pairs.label == 1], pairs.right[pairs.label == 0]
    assert [languages[at] for at in positive] == [languages[at] for at in negative]
    ratio = np.log(lengths[positive] / lengths[negative])
    assert np.median(np.abs(ratio)) < 0.1
    again = hard_pairs(tasks, languages, lengths, max_pairs=1000, seed=1)
    assert all((a == b).all() for a, b in zip(pairs, again, strict=True))
    whole = hard_pairs(["a"] * 400, ["go"] * 400, [5] * 400, seed=1)
    assert len(whole.label) == 0  # nothing of another task
    large = hard_pairs(["a"] * 400 + ["b"], ["go"] * 401, [5] * 401, seed=1)
    assert large.label.sum() == 50  # one large task is not the whole test


@pytest.mark.parametrize("seed", range(6))
def test_the_pair_threshold_has_the_highest_accuracy(seed: int) -> None:
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 2, 40) if seed else np.ones(40, dtype=int)
    scores = np.round(draw.normal(size=40) + (y if seed != 1 else -y), 1)
    tried = [scores.min() - 1, *scores]
    best = max(((scores > t) == (y == 1)).mean() for t in tried)
    assert ((scores > pair_threshold(y, scores)) == (y == 1)).mean() == best


def test_pair_scores_equal_scikit_learn_and_keep_the_threshold_of_valid() -> None:
    vectors, tasks = space(6, 200, 30, noise=0.9)
    held, held_tasks = space(7, 200, 30, noise=0.9)
    same = (["go"] * 200, [9] * 200)
    pairs, valid = hard_pairs(tasks, *same, seed=1), hard_pairs(held_tasks, *same, seed=2)
    noise = np.random.default_rng(3).normal(size=(200, 8))
    floors = {"itself": (vectors, held), "noise": (noise, noise), "tfidf": "no text"}
    found = pair_scores(vectors, pairs, tasks, valid=(held, valid), floors=floors, **DRAW)
    scores = (vectors[pairs.left] * vectors[pairs.right]).sum(axis=1)
    assert found["n_positive"] * 2 == found["n_pairs"] == len(pairs.label)
    assert found["roc_auc"] == pytest.approx(roc_auc_score(pairs.label, scores))
    wanted = average_precision_score(pairs.label, scores)
    assert found["average_precision"] == pytest.approx(wanted)
    assert found["threshold"] == pair_threshold(valid.label, cosines(held, valid))
    right = (scores > found["threshold"]) == (pairs.label == 1)
    assert found["accuracy"] == pytest.approx(right.mean())
    assert found["roc_auc_interval"][0] < found["roc_auc"] < found["roc_auc_interval"][1]
    assert found["floors"]["itself"]["lead"] == [0.0, 0.0, 0.0]
    assert found["floors"]["noise"]["lead"][1] > 0.2
    assert found["floors"]["tfidf"] == {"skipped": "no text"}
    sparse = csr_matrix(vectors)
    assert cosines(sparse, pairs) == pytest.approx(cosines(vectors, pairs), abs=1e-6)
    none = Pairs(*(np.zeros(0, dtype=np.int64),) * 3)
    with pytest.raises(DataError, match="no pair of programs"):
        pair_scores(vectors, none, tasks, valid=(held, valid), **DRAW)


def test_the_floor_sees_words_whatever_the_language_does_to_them() -> None:
    codes = [
        "def maxValue(items):\n    return sorted(items)[-1]\n",
        "int max_value(int[] items) { return sorted(items)[length - 1]; }",
        "print('bottles of beer on the wall')",
        'puts("bottles of BEER on the wall")',
        "",
        "日本語 = 1",
    ]
    assert similarity_text(codes[5]) == " 日本語 = 1 "
    floor = TfidfSimilarity(codes)
    left, right = floor.between(range(6), [1, 3])
    cosine = (left @ right.T).toarray()
    assert cosine[1, 0] == pytest.approx(1) == cosine[3, 1]
    assert cosine[0, 0] > 0.5 > 0.2 > cosine[2, 0] and cosine[2, 1] > 0.5
    assert (cosine[4] == 0).all()
    tasks = ["a", "a", "b", "b", "", ""]
    vectors = np.ones((6, 2), dtype=np.float32)
    floors = {"tfidf": floor}
    table = retrieval_table(vectors, tasks, ["x", "y"] * 3, floors=floors, min_queries=1, **DRAW)
    assert [(row["query"], row["pool"]) for row in table] == [
        ("x", "y"),
        ("y", "x"),
        ("all", "all"),
    ]
    assert all(row["floors"]["tfidf"]["mrr"] == 1.0 > row["mrr"] for row in table)


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason=f"NBHELPERS_DATA does not hold {DATA.name}")
def test_the_floor_on_rosetta_is_at_least_the_published_one() -> None:
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["language"] in ("java", "csharp")]
    floor = TfidfSimilarity([row["code"] for row in rows])
    languages = np.array([row["language"] for row in rows])
    java, csharp = (np.flatnonzero(languages == name) for name in ("java", "csharp"))
    found = retrieval(floor, [row["task"] for row in rows], java, csharp, **DRAW)
    assert found["pool_size"] == 294 and found["n_queries"] == 269
    assert 0.79 < found["mrr"] < 0.85
