"""Guards: floors are as strong as their kind allows, and treated like the model."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import roc_auc_score

from nbhelpers.data.layout_features import layout_features
from nbhelpers.errors import DataError
from nbhelpers.metrics import baselines
from nbhelpers.metrics.baselines import FLOORS, fit_floors
from nbhelpers.metrics.ngrams import NgramVectors

DATA = Path(os.environ.get("NBHELPERS_DATA", "/nowhere")) / "detector" / "paired.jsonl"
TEXTS = ["for i in x:\n\ty", "for j in y:\n\tx", "abc", "", "a", "é = 'ü'", "é = 1"]


def programs(seed: int, n: int) -> tuple[list[str], list[str]]:
    """AI programs write `value_1 = 3`, humans mostly `value_1=  3`."""
    draw = np.random.default_rng(seed)
    codes, kinds = [], []
    for at in range(n):
        is_ai = at % 2
        sign = " = " if draw.random() < (0.95 if is_ai else 0.2) else "=  "
        lines = draw.integers(3, 12)
        codes.append(
            "".join(f"v{draw.integers(9)}{sign}{draw.integers(99)}\n" for _ in range(lines))
        )
        kinds.append("ai" if is_ai else "human")
    return codes, kinds


def labels(rows) -> np.ndarray:
    return np.array([label == "ai" for label in rows[1]]).astype(int)


def fitted(train, valid, **options):
    options = {"features": layout_features, "target_fpr": 0.1, "seed": 0} | options
    return fit_floors(train, valid, **options)


def test_vectors_equal_scikit_learn() -> None:
    texts = [text.expandtabs(1).replace("\n ", "\n") for text in TEXTS if text.isascii()]
    ours = NgramVectors(sizes=(1, 2, 3), min_texts=2)
    theirs = TfidfVectorizer(
        analyzer="char", ngram_range=(1, 3), min_df=2, sublinear_tf=True, lowercase=False
    )
    a, b = ours.fit_transform(texts).toarray(), theirs.fit_transform(texts).toarray()
    assert a.shape == b.shape
    for side in (slice(None), slice(3, 4)):  # all, and the empty text
        assert a[side] @ a.T == pytest.approx(b[side] @ b.T, abs=1e-6)
    new = ["for k in z", "@@@"]
    a, b = ours.transform(new).toarray(), theirs.transform(new).toarray()
    assert np.sort(a, axis=1) == pytest.approx(np.sort(b, axis=1), abs=1e-6)


def test_any_text_has_a_vector_and_nothing_in_common_is_an_error() -> None:
    vectors = NgramVectors(sizes=(1, 2), min_texts=2)
    length = np.linalg.norm(vectors.fit_transform(TEXTS).toarray(), axis=1)
    assert length == pytest.approx([1, 1, 1, 0, 1, 1, 1], abs=1e-6)
    assert vectors.transform([]).shape[0] == 0
    assert vectors.transform(["\ud800", "\x00" * 9]).shape[0] == 2
    with pytest.raises(DataError, match="no run of characters"):
        NgramVectors(sizes=(2,), min_texts=2).fit_transform(["ab", "cd"])


def test_only_the_most_frequent_ngrams_are_kept() -> None:
    vectors = NgramVectors(sizes=(1,), min_texts=1, max_columns=2)
    found = vectors.fit_transform(["ab", "ab", "ac", "ad"]).toarray()
    assert found.shape == (4, 2) and (found[2:] > 0).sum() == 2


def test_floors_are_frozen_at_the_rate_of_the_model() -> None:
    valid, test = programs(2, 100), programs(3, 200)
    floors = fitted(programs(1, 300), valid)
    assert tuple(floors.thresholds) == FLOORS
    humans = [code for code, label in zip(*valid, strict=True) if label == "human"]
    for name, (scores, threshold) in floors.score(humans).items():
        assert threshold == floors.thresholds[name]
        assert (scores > threshold).sum() <= 5
    y = labels(test)
    areas = {name: roc_auc_score(y, found[0]) for name, found in floors.score(test[0]).items()}
    assert min(areas["tfidf"], areas["layout"]) > 0.8 and areas["length"] < 0.65
    assert all(scores.shape == (0,) for scores, _ in floors.score([]).values())
    assert all(np.isfinite(scores).all() for scores, _ in floors.score(["", "\x00" * 99]).values())


def test_more_rows_than_the_strength_is_chosen_on_are_all_fitted(monkeypatch) -> None:
    monkeypatch.setattr(baselines, "MAX_CHOICE_ROWS", 40)
    train, valid, test = programs(1, 300), programs(2, 60), programs(3, 20)
    known = (train[0], labels(train), valid[0], labels(valid))
    found = []
    for limit in (300, 300, 40):
        monkeypatch.setattr(baselines, "MAX_TRAIN_ROWS", limit)
        member, _ = baselines.fit_ngrams("tfidf", *known, 0)
        found.append(member.score(test[0]))
    assert (found[0] == found[1]).all() and (found[0] != found[2]).any()
    monkeypatch.setattr(baselines, "MAX_CHOICE_ROWS", 300)
    once, _ = baselines.fit_ngrams("tfidf", *known, 0)
    assert (
        np.corrcoef(once.score(test[0]), found[0])[0, 1] > 0.99
    )  # the same rows, as strong or not


@pytest.mark.parametrize(
    ("train", "valid", "reason"),
    [
        ("human", "human", "of one class"),
        ("both", "ai", "no human row"),
        ("", "human", "one class"),
    ],
)
def test_floors_that_cannot_be_fitted_say_why(train: str, valid: str, reason: str) -> None:
    codes, kinds = programs(1, 40)
    sides = []
    for kind in (train, valid):
        rows = [at for at in range(40) if kind == "both" or kinds[at] == kind]
        sides.append(([codes[at] for at in rows], [kinds[at] for at in rows]))
    found = fitted(*sides).score(["x"])
    assert set(found) == set(FLOORS)
    assert all(isinstance(value, str) and reason in value for value in found.values())


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="NBHELPERS_DATA does not hold detector/paired.jsonl")
def test_character_ngrams_already_pass_the_usual_target() -> None:
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    splits = {}
    for name, step in (("train", 8), ("val", 4), ("test", 4)):
        chosen = [row for row in rows if row["split"] == name][::step]
        splits[name] = ([row["code"] for row in chosen], [row["label"] for row in chosen])
    floors = fitted(splits["train"], splits["val"], target_fpr=0.01)
    y = labels(splits["test"])
    found = floors.score(splits["test"][0])
    areas = {name: roc_auc_score(y, scores) for name, (scores, _) in found.items()}
    assert areas["tfidf"] > 0.88 and 0.7 < areas["layout"] < 0.9 and areas["length"] < 0.7


def test_floors_that_are_fitted_side_by_side_are_those_fitted_in_turn(monkeypatch) -> None:
    """On many cores the second n-gram floor has a process of its own."""
    train, valid = programs(0, 120), programs(1, 60)
    alone, begun = fitted(train, valid), []
    begin = baselines.begin
    monkeypatch.setattr(baselines, "worthwhile", lambda characters: baselines.MANY_CPUS)
    monkeypatch.setattr(baselines, "begin", lambda *a: begun.append(a[1]) or begin(*a))
    beside = fitted(train, valid)
    assert begun == ["masked_tfidf"]
    assert (beside.strengths, beside.thresholds) == (alone.strengths, alone.thresholds)
    for name in FLOORS:
        assert np.array_equal(beside.scores(name, valid[0]), alone.scores(name, valid[0]))
