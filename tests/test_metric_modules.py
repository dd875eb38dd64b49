"""Guards: our scores work as `evaluate` metrics, without a hub and without meeting in a cache."""

from __future__ import annotations

import threading
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


@pytest.fixture(scope="module")
def modules() -> Any:
    return pytest.importorskip("nbhelpers.jobs.metric_modules")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens a connection fails."""

    def refuse(*_: Any) -> None:
        raise AssertionError("a metric asked the network")

    monkeypatch.setattr("socket.socket.connect", refuse)


def wanted() -> dict[str, dict[str, Any]]:
    return {
        "syntax_accuracy": {
            "syntax_accuracy": generation.syntax_accuracy(ANSWERS),
            "syntax_errors": generation.syntax_errors(ANSWERS),
        },
        "code_bleu": {
            "bleu": generation.code_bleu(ANSWERS, REFERENCES),
            "bleu_signature": generation.bleu_signature(),
        },
        "code_chrf": {
            "chrf": generation.code_chrf(ANSWERS, REFERENCES),
            "chrf_signature": generation.chrf_signature(),
        },
        "exact_match": {"exact_match": generation.exact_match(ANSWERS, REFERENCES)},
        "pass_at_1": {"pass@1": 0.5},
    }


def test_a_runs_answers_are_scored_by_these_objects(
    modules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the plain functions say of the figures is not what a result holds."""
    from nbhelpers.jobs import finetune_evaluate

    rows = [
        {"split": "test", "answer": a, "reference": r, "outcome": None}
        | {"new_tokens": 3, "stopped": True}
        for a, r in zip(ANSWERS, REFERENCES, strict=True)
    ]
    rows += [
        {**row, "split": "sample", "outcome": o} for row, o in zip(rows, OUTCOMES, strict=True)
    ]
    settings = load_preset("finetune", "smoke").settings
    adapted = SimpleNamespace(base=SimpleNamespace(facts={"quantised": False}))
    context = make_context(settings=settings)
    plain = finetune_evaluate._scores(context, rows, adapted)
    for name in ("score_generations", "score_tasks"):
        score = getattr(generation, name)

        def spoilt(part: Any, score: Any = score, **how: Any) -> dict[str, Any]:
            scores = score(part, **how)
            texts = {k: v if "token" in k or k == "stopped" else -1.0 for k, v in
                     scores["metrics"].items()}  # fmt: skip
            return scores | {"metrics": texts, "syntax_errors": {}}

        monkeypatch.setattr(finetune_evaluate, name, spoilt)
    assert finetune_evaluate._scores(context, rows, adapted) == plain
    metrics = plain["test"]["metrics"]
    assert metrics["bleu"] == generation.code_bleu(ANSWERS, REFERENCES) > 0
    assert plain["sample"]["metrics"]["pass@1"] == 0.5


NAMES = ("syntax_accuracy", "code_bleu", "code_chrf", "exact_match", "pass_at_1")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keep_in_memory", [True, False])
def test_every_way_of_adding_gives_the_plain_functions_score(
    modules: Any, tmp_path: Path, name: str, keep_in_memory: bool
) -> None:
    options = {"keep_in_memory": keep_in_memory, "cache_dir": str(tmp_path)}
    metric = modules.load_metric(name, **options)
    columns = {column: COLUMNS[column] for column in metric.inputs}
    assert metric.compute(**columns) == wanted()[name]

    for at in range(len(ANSWERS)):
        metric.add(**{column[:-1]: values[at] for column, values in columns.items()})
    assert metric.compute() == wanted()[name], "one by one, and the metric can be used again"

    for part in (slice(0, 2), slice(2, 2), slice(2, 5)):
        metric.add_batch(**{column: values[part] for column, values in columns.items()})
    assert metric.compute() == wanted()[name], "in batches, one of them empty"
    assert not list(tmp_path.rglob("*.arrow"))


def test_metrics_combine_although_their_inputs_differ(modules: Any) -> None:
    import evaluate

    combined = evaluate.combine([modules.load_metric(name) for name in NAMES])
    merged = {key: value for scores in wanted().values() for key, value in scores.items()}
    assert combined.compute(**COLUMNS) == merged
    combined.add_batch(**{name: values[:4] for name, values in COLUMNS.items()})
    combined.add(prediction=ANSWERS[4], reference=REFERENCES[4], outcomes=OUTCOMES[4])
    assert combined.compute() == merged


@pytest.mark.parametrize("keep_in_memory", [True, False])
def test_nothing_added_is_none_not_zero(modules: Any, tmp_path: Path, keep_in_memory: bool) -> None:
    options = {"keep_in_memory": keep_in_memory, "cache_dir": str(tmp_path)}
    assert modules.load_metric("exact_match", **options).compute() == {"exact_match": None}
    assert modules.load_metric("code_bleu", **options).compute(predictions=[], references=[])[
        "bleu"
    ] is (None)


def test_in_memory_a_metric_makes_no_folder(modules: Any, tmp_path: Path) -> None:
    cache = tmp_path / "none"
    metric = modules.load_metric("exact_match", cache_dir=str(cache))
    assert metric.compute(predictions=["x"], references=["x"]) == {"exact_match": 1.0}
    assert not cache.exists()


def test_two_metrics_at_once_never_share_a_file(modules: Any, tmp_path: Path) -> None:
    options = {"keep_in_memory": False, "cache_dir": str(tmp_path)}
    first, second = (modules.load_metric("exact_match", **options) for _ in range(2))
    first.add(prediction="x", reference="x")
    second.add(prediction="x", reference="y")
    assert len(list(tmp_path.rglob("*.arrow"))) == 2
    assert second.compute() == {"exact_match": 0.0}
    assert first.compute() == {"exact_match": 1.0}


def test_processes_of_one_evaluation_add_to_one_score(modules: Any, tmp_path: Path) -> None:
    """As two processes do: they share the folder and the name of the evaluation, nothing else."""
    found: dict[int, Any] = {}

    def work(process: int) -> None:
        options = {"num_process": 2, "process_id": process, "timeout": 30}
        options |= {"experiment_id": "run-1", "cache_dir": str(tmp_path)}
        metric = modules.load_metric("code_bleu", **options)
        share = slice(process * 2, process * 2 + 2 + process)
        metric.add_batch(predictions=ANSWERS[share], references=REFERENCES[share])
        found[process] = metric.compute()

    threads = [threading.Thread(target=work, args=(process,)) for process in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: wanted()["code_bleu"], 1: None}


def test_processes_without_a_common_name_are_refused(modules: Any) -> None:
    with pytest.raises(ConfigError, match="no experiment_id"):
        modules.load_metric("code_bleu", num_process=2, process_id=1)


def test_wrong_use_is_told_and_loses_nothing(modules: Any) -> None:
    with pytest.raises(ConfigError, match="did you mean `code_bleu`"):
        modules.load_metric("code_blue")
    metric = modules.load_metric("exact_match")
    metric.add(prediction="x", reference="x")
    with pytest.raises(ConfigError, match="no argument 'refrences'"):
        metric.compute(refrences=["x"])
    with pytest.raises(ConfigError, match="ExactMatch got no references"):
        metric.add_batch(predictions=["x"])
    with pytest.raises(ValueError, match="Mismatch in the number"):
        metric.add_batch(predictions=["x"], references=["x", "y"])
    with pytest.raises(ConfigError, match="3 is no text"):
        metric.add_batch(predictions=[3], references=["x"])
    assert metric.compute() == {"exact_match": 1.0}


def test_each_metric_says_what_it_is(modules: Any) -> None:
    for name, module in modules.MODULES.items():
        metric = modules.load_metric(name)
        assert isinstance(metric, module)
        assert metric.description == module.meaning
        assert set(metric.features) == set(metric.inputs)
