"""Promise: a run's answers are scored by `evaluate` metrics, without a hub or a file of theirs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nbhelpers.errors import ConfigError
from nbhelpers.metrics import generation
from nbhelpers.presets.loading import load_preset
from tests.contexts import make_context

pytestmark = pytest.mark.slow  # importing evaluate loads torch

ANSWERS = ["x = 1", "y = (", "", "z = '\ud800'", "def f():\n    return 1\n"]
REFERENCES = [None, "y = 2", "x = 3", "z = '\udc01'", "def f():\n    return 1"]
OUTCOMES = ["passed", "failed", None, "timeout", "passed"]
COLUMNS = {"predictions": ANSWERS, "references": REFERENCES, "outcomes": OUTCOMES}
ROWS = [
    {"answer": a, "reference": r, "outcome": o, "new_tokens": 3, "stopped": True}
    for a, r, o in zip(ANSWERS, REFERENCES, OUTCOMES, strict=True)
]
NAMES = ("syntax_accuracy", "bleu", "chrf", "exact_match", "pass@1")


@pytest.fixture(scope="module")
def modules() -> Any:
    return pytest.importorskip("nbhelpers.jobs.metric_modules")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens a connection fails."""

    def refuse(*_: Any) -> None:
        raise AssertionError("a metric asked the network")

    monkeypatch.setattr("socket.socket.connect", refuse)


def wanted(name: str) -> dict[str, Any]:
    """What the package's own functions say, to the last digit."""
    scores = generation.score_generations(ROWS, seed=0, resamples=100)
    if name == "syntax_accuracy":
        extra = {"syntax_errors": scores["syntax_errors"]}
    else:
        extra = {f"{n}_signature": text for n, text in scores["signatures"].items() if n == name}
    tasks = generation.score_tasks(ROWS, resamples=100)["metrics"]
    return {name: (scores["metrics"] | tasks)[name]} | extra


def test_a_runs_answers_are_scored_by_these_objects(
    modules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the plain functions say of the figures is not what a result holds."""
    from nbhelpers.jobs import finetune_evaluate

    rows = [row | {"split": split} for split in ("test", "sample") for row in ROWS]
    adapted = SimpleNamespace(base=SimpleNamespace(facts={"quantised": False}))
    context = make_context(settings=load_preset("finetune", "smoke").settings)
    plain = finetune_evaluate._scores(context, rows, adapted)
    for name in ("score_generations", "score_tasks"):
        score = getattr(generation, name)

        def spoilt(part: Any, score: Any = score, **how: Any) -> dict[str, Any]:
            scores = score(part, **how)
            metrics = {k: -1.0 if k in NAMES else v for k, v in scores["metrics"].items()}
            return scores | {"metrics": metrics, "syntax_errors": {}}

        monkeypatch.setattr(finetune_evaluate, name, spoilt)
    assert finetune_evaluate._scores(context, rows, adapted) == plain
    assert plain["sample"]["metrics"]["pass@1"] == 0.5 and plain["test"]["metrics"]["bleu"] > 0
    assert plain["test"]["syntax_errors"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keep_in_memory", [True, False])
def test_every_way_of_adding_gives_the_same_score(
    modules: Any, tmp_path: Path, name: str, keep_in_memory: bool
) -> None:
    cache = tmp_path / "cache"
    metric = modules.load_metric(name, keep_in_memory=keep_in_memory, cache_dir=str(cache))
    columns = {column: COLUMNS[column] for column in metric.inputs}
    assert metric.compute(**columns) == wanted(name)
    for at in range(len(ANSWERS)):
        metric.add(**{column[:-1]: values[at] for column, values in columns.items()})
    assert metric.compute() == wanted(name), "one by one, and the metric can be used again"
    for part in (slice(0, 2), slice(2, 2), slice(2, 5)):
        metric.add_batch(**{column: values[part] for column, values in columns.items()})
    assert metric.compute() == wanted(name), "in batches, one of them empty"
    assert not list(tmp_path.rglob("*.arrow")) and cache.exists() is not keep_in_memory
    assert metric.compute()[name] is None, "nothing added is no zero"


def test_metrics_combine_although_their_inputs_differ(modules: Any) -> None:
    import evaluate

    combined = evaluate.combine([modules.load_metric(name) for name in NAMES])
    merged = {key: value for name in NAMES for key, value in wanted(name).items()}
    assert combined.compute(**COLUMNS) == merged
    combined.add_batch(**{name: values[:4] for name, values in COLUMNS.items()})
    combined.add(prediction=ANSWERS[4], reference=REFERENCES[4], outcomes=OUTCOMES[4])
    assert combined.compute() == merged


def test_wrong_use_is_told_and_loses_nothing(modules: Any) -> None:
    with pytest.raises(ConfigError, match="did you mean `bleu`"):
        modules.load_metric("blue")
    metric = modules.load_metric("exact_match")
    metric.add(prediction="x", reference="x")
    with pytest.raises(ConfigError, match="no column 'refrences'"):
        metric.compute(refrences=["x"])
    with pytest.raises(ConfigError, match="exact_match got no references"):
        metric.add_batch(predictions=["x"])
    with pytest.raises(ValueError, match="Mismatch in the number"):
        metric.add_batch(predictions=["x"], references=["x", "y"])
    with pytest.raises(ConfigError, match="3 is no text"):
        metric.add_batch(predictions=[3], references=["x"])
    assert metric.compute() == {"exact_match": 1.0}
