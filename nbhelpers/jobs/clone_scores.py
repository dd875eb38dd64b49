"""Scores of the pair job: predictions written while pairs are scored, then everything told of them.

Valid comes first, so that its threshold is known when the first test pair is written. An evaluation
needs test alone. With valid in the data the threshold is chosen on it (without, it is 0.5 and the
result says so); with train, the result also parts the pairs by what was seen in training, and the
floors have something to learn from.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from nbhelpers.data.pairs import CloneData
from nbhelpers.floors import score_floors
from nbhelpers.jobs import outcome
from nbhelpers.jobs.context import RunContext
from nbhelpers.metrics import best_threshold, is_positive, score_pairs
from nbhelpers.models.clones import CloneModel
from nbhelpers.predictions import PredictionWriter, Sink

if TYPE_CHECKING:
    from nbhelpers.jobs.pairs import Inputs, PairTask
    from nbhelpers.jobs.training import Training

Predicted = dict[str, tuple[np.ndarray, np.ndarray]]  # split -> P(clone) as given and swapped


def score_splits(
    context: RunContext,
    inputs: Inputs,
    task: PairTask,
    model: CloneModel,
    training: Training | None,
) -> None:
    """Score valid and test, write predictions and the result; all ranks encode, rank 0 writes."""
    predicted, threshold = _predict(context, inputs.data, task)
    ranks = outcome.gather_memory(context, training)
    if not context.is_main:
        return
    context.clock.phase("scores")
    scores = _scores(context, inputs.data, predicted, threshold["value"])
    if context.settings.floors:
        _add_floors(context, inputs.data, predicted, threshold["value"], scores)
    parts = {
        "data": inputs.data.to_dict() | {"truncated_functions": inputs.table.truncated},
        "model": _model_facts(context, inputs, model),
        "threshold": threshold,
        "scores": scores,
        "throughput": _throughput(training, task),
    }
    outcome.write_result(context, training, ranks, parts)


def _predict(
    context: RunContext, data: CloneData, task: PairTask
) -> tuple[Predicted, dict[str, Any]]:
    """Score every split but train, valid first; lines of test pairs are written as they come."""
    names = sorted((n for n in data.splits if n != "train"), key=lambda name: name != "valid")
    predicted: Predicted = {}
    threshold = _threshold(context, data, predicted) if "valid" not in names else {}
    path, expected = context.run.predictions_path, 0
    with PredictionWriter(path) if context.is_main else nullcontext() as writer:
        for name in names:
            pairs, sink = data.splits[name], None
            if writer is not None and name.startswith("test"):
                sink = prediction_sink(writer, data, name, threshold["value"])
                expected += len(pairs)
            report = context.progress(f"evaluate {name}")
            predicted[name] = task.predict(pairs, report, sink)
            threshold = threshold or _threshold(context, data, predicted)
        assert writer is None or writer.n_written == expected, "a pair was left out or told twice"
    return predicted, threshold


def prediction_sink(
    writer: PredictionWriter, data: CloneData, split: str, threshold: float
) -> Sink:
    """Return what takes the scores of a split in file order and writes a line per pair."""
    pairs, ids = data.splits[split], data.ids

    def write(start: int, given: np.ndarray, swapped: np.ndarray) -> None:
        rows = slice(start, start + len(given))
        writer.write_chunk(
            split=split,
            start=start,
            id1=[ids[function] for function in pairs.left[rows].tolist()],
            id2=[ids[function] for function in pairs.right[rows].tolist()],
            label=pairs.label[rows],
            p=given,
            p_reversed=swapped,
            prediction=is_positive(given, threshold),
        )

    return write


def _threshold(context: RunContext, data: CloneData, predicted: Predicted) -> dict[str, Any]:
    """Choose the threshold on valid; test never takes part."""
    if "valid" in predicted:
        value = best_threshold(data.splits["valid"].label, predicted["valid"][0])
        return {"value": float(value), "chosen_on": "valid", "criterion": "f1"}
    context.warn("There are no valid pairs: the threshold is 0.5, not a chosen one.")
    return {"value": 0.5, "chosen_on": "nothing", "criterion": "fixed"}


def _scores(
    context: RunContext, data: CloneData, predicted: Predicted, threshold: float
) -> dict[str, Any]:
    s, scores = context.settings, {}
    for name, (given, swapped) in predicted.items():
        pairs = data.splits[name]
        scores[name] = score_pairs(
            pairs.left,
            pairs.right,
            pairs.label,
            given,
            swapped,
            threshold,
            seen=data.seen_members(name) if "train" in data.splits else None,
            priors=dict(s.priors),
            bootstrap_samples=s.bootstrap_samples,
            seed=s.seed,
        )
    for name in sorted(scores, key=lambda name: name == "test"):  # last: what progress shows
        context.emit("eval", step=-1, split=name, scores=scores[name]["orders"]["given"])
    return scores


def _add_floors(
    context: RunContext,
    data: CloneData,
    predicted: Predicted,
    threshold: float,
    scores: dict[str, Any],
) -> None:
    if "train" not in data.splits or "valid" not in data.splits:
        context.warn("The floors need train and valid pairs and were left out.")
        return
    context.clock.phase("floors")
    floors = score_floors(
        data.functions,
        data.splits,
        seed=context.settings.seed,
        bootstrap_samples=context.settings.bootstrap_samples,
        model={name: (given, threshold) for name, (given, _) in predicted.items()},
    )
    for name, found in floors.items():
        scores[name]["floors"] = found


def _model_facts(context: RunContext, inputs: Inputs, model: CloneModel) -> dict[str, Any]:
    weights = inputs.found.weights
    return {
        "name": context.settings.model,
        "revision": weights.revision if weights else None,
        "architecture": type(model.encoder).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "random_weights": context.settings.random_weights and context.checkpoint is None,
        "tokenizer": inputs.found.note,
        "seq_len": context.settings.seq_len,
        "data_flow": _data_flow(context.settings, inputs.table),
    }


def _data_flow(settings: Any, table: Any) -> dict[str, Any] | None:
    """Return what became of the data flow; None where the code is read as plain text."""
    if settings.data_flow_length is None:
        return None
    nodes = np.diff(table.node_offsets)
    return {
        "data_flow_length": settings.data_flow_length,
        "grammar_compat": settings.grammar_compat,
        "mean_nodes": float(nodes.mean()) if len(nodes) else 0.0,
        "functions_without_nodes": int((nodes == 0).sum()),
    }


def _throughput(training: Training | None, task: PairTask) -> dict[str, float]:
    if training is None or not training.state.examples:
        return {}
    # With every function of every pair padded to seq_len, as the legacy script does.
    fixed = float(task.costs.mean()) / (2 * task.table.seq_len)
    return outcome.throughput(training.state) | {"fixed_padding_useful_share": fixed}
