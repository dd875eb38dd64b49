"""Guards: cheap scorers are computed as honestly as the model, on tiny data and on real data."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nbhelpers.errors import DataError
from nbhelpers.metrics import baselines
from nbhelpers.metrics.baselines import TfidfClassifier, identifier_overlap, score_floors
from nbhelpers.metrics.pairs import best_threshold, binary_scores

TASKS = ("sum total number", "file stream buffer", "url socket host", "list sort swap")


def functions(n_each: int = 8) -> list[str]:
    """Return functions of a few tasks: a task's words, and a name that no other function has."""
    return [
        f"int f{i}x{task}(int a) {{ {'; '.join(words.split())}; return v{i % 3}; }}"
        for task, words in enumerate(TASKS)
        for i in range(n_each)
    ]


def pairs(rows: np.ndarray, n_each: int = 8) -> SimpleNamespace:
    """Return all pairs of some functions; functions of one task are clones."""
    a, b = np.triu_indices(len(rows), 1)
    left, right = rows[a], rows[b]
    return SimpleNamespace(left=left, right=right, label=(left // n_each == right // n_each) * 1)


@pytest.fixture(scope="module")
def splits() -> dict[str, SimpleNamespace]:
    number = np.arange(32) % 8
    return {
        "train": pairs(np.flatnonzero(number < 4)),
        "valid": pairs(np.flatnonzero((number >= 4) & (number < 6))),
        "test": pairs(np.flatnonzero(number >= 6)),
    }


@pytest.mark.parametrize(
    ("left", "right", "overlap"),
    [
        ("int a = b;", "a + b", 1.0),
        ("int a = b;", "int c = b;", 1 / 3),
        ("return x;", "return y;", 0.0),
        ("for (;;) {}", "while (true) {}", 1.0),
        ("aB", "ab", 0.0),
    ],
)
def test_overlap_counts_identifiers_but_not_keywords(left: str, right: str, overlap: float) -> None:
    assert identifier_overlap([left, right], [0, 0], [1, 0]).tolist() == [overlap, 1.0]


def test_overlap_in_chunks_is_the_overlap_of_the_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = functions()
    left, right = np.triu_indices(len(texts))
    names = [set(re.findall(r"[A-Za-z_]\w*", text)) - baselines.JAVA_WORDS for text in texts]
    wanted = [
        len(names[a] & names[b]) / len(names[a] | names[b])
        for a, b in zip(left, right, strict=True)
    ]
    assert identifier_overlap(texts, left, right).tolist() == wanted
    monkeypatch.setattr(baselines, "CHUNK_PAIRS", 7)
    assert identifier_overlap(texts, left, right).tolist() == wanted
    assert identifier_overlap(texts, [], []).tolist() == []


def test_tiny_data_is_learnt(splits: dict[str, Any]) -> None:
    found = score_floors(functions(), splits, seed=3)["test"]
    assert list(found) == ["always_yes", "identifier_overlap", "tfidf_mlp"]
    assert found["tfidf_mlp"]["roc_auc"] > 0.95 > found["always_yes"]["roc_auc"] == 0.5


def test_thresholds_come_from_valid_and_stay_for_test(splits: dict[str, Any]) -> None:
    code = functions()
    flipped = splits | {"test": SimpleNamespace(**vars(splits["test"]))}
    flipped["test"].label = 1 - flipped["test"].label
    found, other = (score_floors(code, each, seed=3) for each in (splits, flipped))
    valid, test = splits["valid"], splits["test"]
    p = identifier_overlap(code, valid.left, valid.right)
    threshold = best_threshold(valid.label, p)
    for name in ("identifier_overlap", "tfidf_mlp"):
        assert found["test"][name]["threshold"] == other["test"][name]["threshold"]
    p = identifier_overlap(code, test.left, test.right)
    assert (
        found["test"]["identifier_overlap"]["f1"] == binary_scores(test.label, p, threshold)["f1"]
    )


def test_the_vocabulary_is_of_train_functions_alone(splits: dict[str, Any]) -> None:
    code = [text + (" zzz" if number % 8 >= 6 else "") for number, text in enumerate(functions())]
    classifier = TfidfClassifier(seed=3).fit(code, splits["train"])
    assert "zzz" not in classifier._tfidf.vocabulary_ and "socket" in classifier._tfidf.vocabulary_


def test_a_pair_scores_the_same_in_both_orders(splits: dict[str, Any]) -> None:
    classifier = TfidfClassifier(seed=3).fit(functions(), splits["train"])
    test = splits["test"]
    given = classifier.predict(functions(), test.left, test.right)
    swapped = classifier.predict(functions(), test.right, test.left)
    assert np.array_equal(given, swapped)


def test_functions_may_be_named_by_text_ids(splits: dict[str, Any]) -> None:
    code = functions()
    names = np.array([f"id{i}" for i in range(len(code))])
    named = {
        name: SimpleNamespace(left=names[s.left], right=names[s.right], label=s.label)
        for name, s in splits.items()
    }
    by_name = score_floors(dict(zip(names.tolist(), code, strict=True)), named, seed=3)
    floor = by_name["test"]["identifier_overlap"]
    assert floor == score_floors(code, splits, seed=3)["test"]["identifier_overlap"]


def test_train_pairs_of_one_class_skip_the_classifier_and_say_so(splits: dict[str, Any]) -> None:
    train = SimpleNamespace(**vars(splits["train"]))
    train.label = np.ones_like(train.label)
    for changed in (splits | {"train": train}, {k: splits[k] for k in ("valid", "test")}):
        found = score_floors(functions(), changed, seed=3)["test"]
        assert "no train pairs of both classes" in found["tfidf_mlp"]["skipped"]
        assert found["identifier_overlap"]["f1"] >= 0


def test_without_valid_there_is_no_threshold(splits: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="need a valid split"):
        score_floors(functions(), {"test": splits["test"]}, seed=3)


def test_a_model_beside_the_floors_gets_its_lead_with_an_interval(splits: dict[str, Any]) -> None:
    perfect = {"test": (splits["test"].label * 0.8 + 0.1, 0.5)}
    given = {"seed": 3, "bootstrap_samples": 100, "model": perfect}
    found = score_floors(functions(), splits, **given)
    floor = found["test"]["always_yes"]
    assert floor["lead"]["f1"] == pytest.approx(1 - floor["f1"])
    low, high = floor["intervals"]["f1"]
    assert low < floor["f1"] < high
    assert "lead" not in found["valid"]["always_yes"]


def _real_splits(folder: Path) -> tuple[dict[str, str], dict[str, SimpleNamespace]]:
    rows = [json.loads(line) for line in (folder / "data.jsonl").open(encoding="utf-8")]
    found = {}
    for name in ("train", "valid", "test"):
        columns = zip(*(line.split() for line in (folder / f"{name}.txt").open()), strict=True)
        left, right, label = map(np.array, columns)
        found[name] = SimpleNamespace(left=left, right=right, label=label.astype(int))
    return {row["idx"]: row["func"] for row in rows}, found


@pytest.mark.slow
@pytest.mark.skipif("NBHELPERS_DATA" not in os.environ, reason="NBHELPERS_DATA is not set")
def test_tfidf_on_real_pairs_is_a_high_floor_in_less_than_90_s() -> None:
    code, found = _real_splits(Path(os.environ["NBHELPERS_DATA"]) / "bigclonebench_10pct")
    start = time.process_time()
    floors = score_floors(code, found, seed=3)["test"]
    assert time.process_time() - start < 90
    assert floors["tfidf_mlp"]["f1"] > 0.88
    assert 0.70 < floors["identifier_overlap"]["f1"] < 0.80
