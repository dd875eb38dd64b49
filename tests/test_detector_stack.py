"""Guards: a detector's score is one thing wherever it is used, and says why it is that one."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from nbhelpers.common.result_files import Result
from nbhelpers.errors import DataError
from nbhelpers.jobs.detector_scores import frozen_stack
from nbhelpers.jobs.detector_stack import chosen
from nbhelpers.metrics import stack
from nbhelpers.metrics.baselines import NgramFolds, fit_ngrams
from nbhelpers.metrics.ngrams import NgramVectors
from nbhelpers.metrics.stack import ENCODER, NGRAMS, WEIGHTS, Stack, masked
from nbhelpers.presets.loading import load_preset
from nbhelpers.use.calibrate import fix_threshold, require_same_model
from nbhelpers.use.facts import detector_facts, read_stack
from nbhelpers.use.trained import find_detector

NEW = ["for k in z:\n    pass", "@@@", "", "\ud800", "élan = 'ü'"]


def programs(n: int) -> tuple[list[str], np.ndarray]:
    """AI programs write `value_1 = 3`, humans mostly `value_1=  3`."""
    draw, y = np.random.default_rng(0), np.arange(n) % 2
    signs = np.where(draw.random(n) < np.where(y, 0.9, 0.2), " = ", "=  ")
    return [f"v{at % 7}{sign}{draw.integers(99)}\n" * 3 for at, sign in enumerate(signs)], y


def fitted() -> tuple[Stack, list[str], np.ndarray]:
    codes, y = programs(80)
    members = {name: fit_ngrams(name, codes, y, codes, y, 0)[0] for name in NGRAMS}
    scores = {name: each.score(codes) for name, each in members.items()}
    scores[ENCODER] = np.linspace(-1, 1, 80)
    return Stack.fixed_on(scores, y, weights=WEIGHTS, form="text", ngrams=members), codes, y


@pytest.mark.parametrize("is_masked", [False, True])
def test_ngrams_alone_score_as_the_regression_on_their_vectors(is_masked: bool) -> None:
    codes, y = programs(60)
    texts = [masked(code) if is_masked else code for code in codes]
    vectors = NgramVectors(sizes=(1, 2, 3), min_texts=2)
    model = LogisticRegression(C=3.0).fit(vectors.fit_transform(texts), y)
    read = [masked(code) if is_masked else code for code in [*codes, *NEW]]
    expected = model.decision_function(vectors.transform(read))
    ours = vectors.classifier(model, is_masked=is_masked).score([*codes, *NEW])
    assert ours == pytest.approx(expected, abs=1e-5)


def test_a_sum_is_saved_whole(tmp_path: Path) -> None:
    ours, codes, _ = fitted()
    ours.save(tmp_path / stack.FILE)
    encoder = np.linspace(-3, 3, len(codes) + len(NEW))
    again = read_stack(tmp_path / stack.FILE)
    assert (again.score([*codes, *NEW], encoder) == ours.score([*codes, *NEW], encoder)).all()
    assert ours.score(codes[:9], encoder[:9]) == pytest.approx(
        ours.score([*codes, *NEW], encoder)[:9]
    )


def shorten(path: Path) -> None:
    ours = Stack.load(path)
    ours.ngrams["tfidf"].weights = ours.ngrams["tfidf"].weights[:-1]
    ours.save(path)


def lose_a_member(path: Path) -> None:
    ours = Stack.load(path)
    del ours.ngrams["tfidf"]
    ours.save(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-400]),
        lambda path: path.write_bytes(bytes(range(256)) * 9),
        shorten,
        lose_a_member,
    ],
)
def test_a_damaged_sum_is_refused(damage: Callable[[Path], Any], tmp_path: Path) -> None:
    path = tmp_path / stack.FILE
    fitted()[0].save(path)
    damage(path)
    with pytest.raises(DataError, match="cannot be read: it is damaged") as caught:
        read_stack(path)
    assert "pickle" not in str(caught.value)


def test_members_count_as_their_weights_say_whatever_their_scale() -> None:
    scores = {"encoder": np.array([0.0, 4, 0, 4]), "tfidf": np.array([0.1, 0.1, 0.3, 0.3])}
    both = Stack.fixed_on(scores, np.array([0, 0, 1, 1]), weights={"encoder": 1.0, "tfidf": 2.0})
    assert both.combined(scores) == pytest.approx([-1, -1 / 3, 1 / 3, 1])
    assert both.name == "stack"
    assert Stack.fixed_on(scores, np.array([0, 0, 1, 1]), weights={"tfidf": 1.0}).name == "tfidf"


def test_a_fit_on_counts_without_a_part_is_the_fit_without_it() -> None:
    codes, y = programs(60)
    train, rest = np.arange(40), np.arange(40, 60)
    folds = NgramFolds("masked_tfidf", codes, y, 3.0)
    alone = NgramFolds("masked_tfidf", [*codes[:40], *codes[40:]], y, 3.0)
    alone.scores(rest, train)  # another fit before changes nothing
    assert (folds.scores(train, rest) == alone.scores(train, rest)).all()
    changed = NgramFolds("masked_tfidf", [*codes[:40], *["x\n" * at for at in rest]], y, 3.0)
    assert changed.scores(train, train) == pytest.approx(folds.scores(train, train), abs=1e-6)


MEANS = {"stack": 0.69, "tfidf": 0.63, "masked_tfidf": 0.64, "encoder": 0.68}


@pytest.mark.parametrize(
    ("asked", "sources", "uses", "words"),
    [
        ("encoder", None, "encoder", "was asked for"),
        ("auto", None, "stack", "evaluate_sources=full measures"),
        ("auto", {"retrained": False, "mean": MEANS, "left_out": {}}, "stack", "fixed before"),
        ("auto", {"retrained": True, "mean": MEANS, "left_out": {"a": 0}}, "stack", ".690"),
        (
            "auto",
            {"retrained": True, "mean": MEANS | {"stack": 0.67}, "left_out": {}},
            "encoder",
            "",
        ),
        ("stack", {"retrained": True, "mean": MEANS | {"stack": 0.6}, "left_out": {}}, "stack", ""),
    ],
)
def test_the_sum_gives_way_only_to_a_member_that_was_measured_better(
    asked: str, sources: dict | None, uses: str, words: str
) -> None:
    settings = load_preset("detector", "smoke", overrides={"score": asked}).settings
    name, reason = chosen(settings, sources)
    assert name == uses and words in reason


def test_a_score_that_lost_its_file_or_got_another_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes(b"{}")
    facts = {"format": 1, "objective": "detect", "canonical": "text", "seq_len": 64}
    facts |= {"pooling": "mean", "projection_size": 8}
    (folder / "detector.json").write_text(json.dumps(facts))
    point = {"threshold": 0.5, "temperature": 1.0, "threshold_logit": 0.0}
    score = {"uses": "stack", "reason": "because"}
    Result.write(folder / "result.json", {"operating_point": point, "score": score})
    weights = folder / "model.safetensors"
    for read in (lambda: detector_facts(find_detector(folder)), lambda: frozen_stack(weights)):
        with pytest.raises(DataError, match="lacks stack"):
            read()
    ours, _codes, _y = fitted()
    ours.save(folder / stack.FILE)
    assert frozen_stack(weights)[0] is not None
    own = detector_facts(find_detector(folder))
    counts = {"n_files": 9, "n_duplicates": 0, "left_out": {}}
    options = {"target_fpr": 0.2, "confidence": 0.5, "source": "x", "counts": counts}
    fixed = fix_threshold([0.1] * 9, [""] * 9, own, **options)
    assert require_same_model(fixed, own, "x") is fixed and "because" in own.score_words
    ours.weights["tfidf"] = 3.0
    ours.save(folder / stack.FILE)
    with pytest.raises(DataError, match="another sum"):
        require_same_model(fixed, detector_facts(find_detector(folder)), "x")


def test_what_an_export_carries_needs_numpy_alone() -> None:
    tree = ast.parse(Path(stack.__file__).read_text(encoding="utf-8"))
    modules = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert modules <= {
        "__future__",
        "json",
        "string",
        "collections",
        "dataclasses",
        "pathlib",
        "numpy",
    }
