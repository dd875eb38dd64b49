"""The scores of a trained detector: detection, edits, baselines, similarity, predictions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from nbhelpers.common.json_models import read_raw
from nbhelpers.common.pool import begin, worthwhile
from nbhelpers.common.processes import available_cpus
from nbhelpers.common.result_files import DetectorFile, Result
from nbhelpers.data.canonical import canonical
from nbhelpers.data.detection_rows import CodeRow
from nbhelpers.errors import ConfigError
from nbhelpers.jobs import outcome
from nbhelpers.jobs.checkpoint import find_best
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.detector_inputs import ABSENT, SCORED, Inputs
from nbhelpers.jobs.detector_stack import (
    Retrain,
    Scoring,
    choose_scoring,
    folds,
    may_begin,
    silent,
)
from nbhelpers.jobs.loop import seed_everything
from nbhelpers.jobs.models.detector import DetectorModel, build_detector
from nbhelpers.metrics.detection import (
    Floor,
    OperatingPoint,
    choose_operating_point,
    score_detection,
)
from nbhelpers.metrics.ngrams import TfidfSimilarity
from nbhelpers.metrics.retrieval import (
    Pairs,
    cosines,
    hard_pairs,
    pair_scores,
    retrieval_table,
)
from nbhelpers.metrics.slices import Edited, edit_scores, slice_scores
from nbhelpers.metrics.stack import FILE as STACK_FILE
from nbhelpers.metrics.stack import WEIGHTS, Stack
from nbhelpers.presets.jobs import DETECTOR
from nbhelpers.runs.run import RESULT_NAME
from nbhelpers.use.facts import read_stack, require_stack

if TYPE_CHECKING:
    from nbhelpers.jobs.detector_task import DetectorTask
    from nbhelpers.jobs.training import Training


# ------------------------------------------------------------------------------------------------
# Scores of the similarity space: retrieval across languages and same-task pairs, beside floors.


POOLS = ("test", "retrieval_data")
CPUS_FOR_TWO = 4  # the training's process, and two beside it
NO_WEIGHTS = "the encoder began with random weights"


@dataclass(slots=True, kw_only=True)
class Scored:
    """The numbers of one split: rows, logits and unit vectors, in the data's order."""

    rows: list[CodeRow]
    logits: np.ndarray  # the encoder's, until `_apply` makes them the score that is used
    vectors: np.ndarray
    beside: dict[str, Floor] = field(default_factory=dict)

    @property
    def labels(self) -> list[str]:
        """What each program is; code of unseen humans is human."""
        return [row.label or "human" for row in self.rows]

    @property
    def tasks(self) -> list[str]:
        """The task of each program."""
        return [row.task for row in self.rows]


@dataclass(slots=True, kw_only=True)
class Numbers:
    """All numbers of a run, the same on every rank."""

    splits: dict[str, Scored]
    edits: dict[str, Edited] = field(default_factory=dict)
    speed: dict[str, Any] = field(default_factory=dict)


def score_similarity(
    context: RunContext, inputs: Inputs, task: DetectorTask, numbers: Numbers
) -> dict[str, Any] | None:
    """Return the scores of the similarity space; all ranks encode, rank 0 returns them."""
    if context.settings.objective == "detect":
        return None
    raw = _raw_vectors(context, inputs, task, numbers)
    if not context.is_main:
        return None
    context.clock.phase("similarity")
    similarity: dict[str, Any] = {"dimensions": context.settings.projection_size, "retrieval": []}
    if inputs.similarity is None:
        baselines = _baselines(context, {name: each.rows for name, each in numbers.splits.items()})
    else:
        baselines = inputs.similarity()
    for split in POOLS:
        if split in numbers.splits:
            similarity["retrieval"] += _retrieval(context, split, numbers, baselines[split], raw)
    similarity["pairs"] = _pairs(context, numbers, baselines, raw)
    return similarity | {"headline": _headline(similarity)}


def begin_similarity(context: RunContext, inputs: Inputs) -> Callable[[], Any] | None:
    """Count and rank the baseline of the similarity space beside the training; rank 0 only.

    Return what waits for it; None where a process of its own would not pay, or the CPU trains.
    """
    if not may_begin(context) or context.settings.objective == "detect":
        return None
    rows = {
        name: inputs.split_rows(name)
        for name in ("valid", "test")
        if len(inputs.data.splits.get(name, ()))
    }
    rows |= {name: rows_of for name, (rows_of, _) in inputs.others.items()}
    size = sum(len(row.code) for row in rows.get("test", ()))
    if worthwhile(size) < 2 or available_cpus() < CPUS_FOR_TWO:
        return None
    return begin(_similarity_beside, silent(context), rows)


def _similarity_beside(
    context: RunContext, rows: dict[str, list[CodeRow]]
) -> dict[str, TfidfSimilarity]:
    """Return the baselines with the answers that the scores will ask for."""
    s, baselines = context.settings, _baselines(context, rows)
    for split in POOLS:
        if split in baselines:
            tasks, languages = zip(*((row.task, row.language) for row in rows[split]), strict=True)
            draw = {"max_pool": s.max_retrieval_pool, "resamples": 1, "seed": s.seed}
            retrieval_table(baselines[split], tasks, languages, **draw)
    if {"valid", "test"} <= set(baselines):
        for split in ("valid", "test"):
            cosines(baselines[split], _hard_pairs(rows[split], s.seed))
    return baselines


def _baselines(
    context: RunContext, rows: Mapping[str, Sequence[CodeRow]]
) -> dict[str, TfidfSimilarity]:
    return {
        split: TfidfSimilarity(_texts(context, rows[split]))
        for split in ("valid", *POOLS)
        if split in rows
    }


def _hard_pairs(rows: Sequence[CodeRow], seed: int) -> Pairs:
    columns = zip(*((row.task, row.language, len(row.code)) for row in rows), strict=True)
    return hard_pairs(*columns, seed=seed)


def _raw_vectors(
    context: RunContext, inputs: Inputs, task: DetectorTask, numbers: Numbers
) -> dict[str, Any]:
    """Return by split the unit vectors of the encoder as it was before training, or why not.

    The state that stands for a program is pooled in the same way, and nothing is learnt.
    """
    s = context.settings
    if context.checkpoint is not None:
        return dict.fromkeys(numbers.splits, "an evaluation has the trained weights alone")
    if inputs.found.weights is None or s.random_weights:
        return dict.fromkeys(numbers.splits, NO_WEIGHTS)
    seed_everything(s.seed)
    way = {"similarity_pooling": "same", "pooling": "first" if s.pooling == "first" else "mean"}
    plain = s.model_copy(update=way)
    model: DetectorModel = build_detector(plain, inputs.found)
    model.projector = None  # `project` then gives the states' own directions
    model.to(context.accelerator.device)
    vectors = {}
    for split in ("valid", *POOLS):
        if split in numbers.splits:
            rows = _rows_of(inputs, split)
            _, vectors[split] = task.batches.predict(model, rows)
    return vectors


def _rows_of(inputs: Inputs, split: str) -> np.ndarray:
    if split in inputs.others:
        return inputs.others[split][1]
    return inputs.rows[inputs.data.splits[split]]


def _texts(context: RunContext, rows: Sequence[CodeRow]) -> list[str]:
    return [canonical(row.code, context.settings.canonical) for row in rows]


def _retrieval(
    context: RunContext, split: str, numbers: Numbers, tfidf: TfidfSimilarity, raw: dict[str, Any]
) -> list[dict[str, Any]]:
    s, scored = context.settings, numbers.splits[split]
    table = retrieval_table(
        scored.vectors,
        scored.tasks,
        [row.language for row in scored.rows],
        floors={
            "tfidf": tfidf,
            "raw_encoder": raw.get(split, NO_WEIGHTS),
        },
        max_pool=s.max_retrieval_pool,
        resamples=s.bootstrap_samples,
        seed=s.seed,
    )
    return [{"split": split} | row for row in table]


def _pairs(
    context: RunContext,
    numbers: Numbers,
    baselines: dict[str, TfidfSimilarity],
    raw: dict[str, Any],
) -> dict[str, Any] | None:
    """Return the scores of same-task pairs of the test split; the threshold comes from valid."""
    if "valid" not in numbers.splits or "test" not in numbers.splits:
        return None
    s, pairs = context.settings, {}
    for split in ("valid", "test"):
        pairs[split] = _hard_pairs(numbers.splits[split].rows, s.seed)
        if not pairs[split].label.any():
            context.warn(f"No two programs of {split} solve the same task: no pairs are scored.")
            return None
    plain = [raw.get(split, NO_WEIGHTS) for split in ("test", "valid")]
    reason = next((value for value in plain if isinstance(value, str)), None)
    return pair_scores(
        numbers.splits["test"].vectors,
        pairs["test"],
        numbers.splits["test"].tasks,
        valid=(numbers.splits["valid"].vectors, pairs["valid"]),
        floors={
            "tfidf": (baselines["test"], baselines["valid"]),
            "raw_encoder": reason or tuple(plain),
        },
        resamples=s.bootstrap_samples,
        seed=s.seed,
    )


def _headline(similarity: dict[str, Any]) -> dict[str, float | None]:
    """Return one number each: retrieval among all programs of the test split, and its pairs."""
    rows = similarity["retrieval"]
    whole = next((row for row in rows if row["query"] == "all" and row["split"] == "test"), None)
    whole, pairs = whole or {}, similarity["pairs"] or {}
    return {
        "mrr": whole.get("mrr"),
        "map_at_r": whole.get("map_at_r"),
        "pair_roc_auc": pairs.get("roc_auc"),
        "pair_accuracy": pairs.get("accuracy"),
        "pair_f1": pairs.get("f1"),
    }


# ------------------------------------------------------------------------------------------------
# Everything that is told of a trained detector: scores, edits, floors, similarity, predictions.


SPEED_FILES = 256  # programs whose scoring is timed


def score_run(
    context: RunContext,
    inputs: Inputs,
    task: DetectorTask,
    training: Training | None,
    retrain: Retrain,
) -> None:
    """Score all splits on all ranks; rank 0 writes predictions and the result."""
    numbers = _numbers(context, inputs, task)
    similarity = score_similarity(context, inputs, task, numbers)
    ranks = outcome.gather_memory(context, training)
    encoders = _without_sources(context, inputs, task, training, retrain)
    if not context.is_main:
        return
    point, scores, scoring = None, {}, None
    if context.settings.objective != "similar":
        scoring = _apply(context, inputs, numbers, encoders)
        context.clock.phase("scores")
        point = _operating_point(context, numbers)
        scores = _scores(context, inputs, numbers, point)
        write_predictions(context.run.predictions_path, numbers, point)
    parts = {
        "data": inputs.data.to_dict() | {"truncated": inputs.truncated, "further": inputs.left_out},
        "audit": inputs.audit,
        "model": _model_facts(context, inputs, task),
        "operating_point": None if point is None else point.to_dict(),
        "score": None if scoring is None else scoring.to_dict(),
        "sources": None if scoring is None else scoring.sources,
        "scores": scores,
        "similarity": similarity,
        "phases": _phases(training),
        "compile": training.compiled if training else None,
        "throughput": _throughput(context, inputs, task, training),
        "inference": numbers.speed,
    }
    outcome.write_result(context, training, ranks, parts)


def _numbers(context: RunContext, inputs: Inputs, task: DetectorTask) -> Numbers:
    splits = {}
    for name in SCORED:
        if name in inputs.data.splits and len(inputs.data.splits[name]):
            rows = inputs.rows[inputs.data.splits[name]]
            splits[name] = _scored(context, task, name, inputs.split_rows(name), rows)
    for name, (code_rows, rows) in inputs.others.items():
        splits[name] = _scored(context, task, name, code_rows, rows)
    edits = {}
    for name, rows in inputs.edits.items():
        at = np.flatnonzero(rows != ABSENT)
        logits, _ = task.batches.predict(task.raw, rows[at], context.progress(f"evaluate {name}"))
        edits[name] = Edited(rows=at, logits=logits)
    return Numbers(splits=splits, edits=edits, speed=_speed(task, inputs))


def _scored(
    context: RunContext, task: DetectorTask, name: str, code_rows: list[CodeRow], rows: np.ndarray
) -> Scored:
    report = context.progress(f"evaluate {name}")
    logits, vectors = task.batches.predict(task.raw, rows, report)
    return Scored(rows=code_rows, logits=logits, vectors=vectors)


def _speed(task: DetectorTask, inputs: Inputs) -> dict[str, Any]:
    """Time the scoring of programs in batches and one by one, token ids at hand."""
    test = inputs.data.splits.get("test", np.zeros(0, dtype=np.int64))
    rows = inputs.rows[test][:SPEED_FILES]
    if not len(rows):
        return {}
    began = time.perf_counter()
    task.batches.predict(task.raw, rows)
    took_s = time.perf_counter() - began
    single = rows[:16]
    began = time.perf_counter()
    for row in single:
        task.batches.predict(task.raw, np.array([row]))
    alone_s = (time.perf_counter() - began) / len(single)
    return {
        "ms_per_file": 1000 * took_s / len(rows),
        "files_per_s": len(rows) / took_s,
        "batch_size": task.settings.per_device_eval_batch_size,
        "n_files": len(rows),
        "ms_alone": 1000 * alone_s,
    }


def _without_sources(
    context: RunContext,
    inputs: Inputs,
    task: DetectorTask,
    training: Training | None,
    retrain: Retrain,
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return by source the logits of an encoder that was trained without it; on all ranks."""
    s = context.settings
    if training is None or s.evaluate_sources != "full" or s.objective == "similar":
        return {}
    context.clock.phase("sources")
    task.raw.to("cpu")  # its scores are at hand: its place is the next encoder's
    parts, report, logits = folds(inputs), context.progress("train anew"), {}
    for number, fold in enumerate(parts, 1):
        logits[fold.source] = retrain(fold)
        report(number, len(parts))
    return logits


def _apply(
    context: RunContext,
    inputs: Inputs,
    numbers: Numbers,
    encoders: dict[str, tuple[np.ndarray, np.ndarray]],
) -> Scoring:
    """Make the score that is used of the encoder's logits, everywhere; save what it needs."""
    form, valid = context.settings.canonical, numbers.splits.get("valid")
    frozen, is_known = frozen_stack(context.checkpoint)
    logits = None if valid is None else valid.logits
    scoring = choose_scoring(context, inputs, logits, frozen, encoders)
    if not is_known and context.checkpoint is not None:
        scoring.reason = "no result of a run belongs to these weights, so its score is not known"
    for name, split in numbers.splits.items():
        if name != "retrieval_data":
            codes = [canonical(row.code, form) for row in split.rows]
            split.beside, split.logits = scoring.score(codes, split.logits)
    for name, (at, logits, _) in numbers.edits.items():
        codes = [canonical(inputs.edited_codes[name][row] or "", form) for row in at]
        beside, logits = scoring.score(codes, logits) if len(codes) else ({}, logits)
        beside = {k: v[0] for k, v in beside.items() if not isinstance(v, str)}
        numbers.edits[name] = Edited(rows=at, logits=logits, floors=beside)
    if scoring.stack is not None and frozen is None:
        scoring.stack.save(context.run.path / STACK_FILE)
    return scoring


def _operating_point(context: RunContext, numbers: Numbers) -> OperatingPoint:
    """Choose on valid; an evaluation takes the point that its run froze, where there is one."""
    s, valid = context.settings, numbers.splits.get("valid")
    if context.checkpoint is not None:
        frozen = frozen_point(context.checkpoint)
        if frozen is not None:
            return frozen
        context.warn("No frozen threshold belongs to the checkpoint: it is chosen on valid anew.")
    if valid is None:
        raise ConfigError(
            "There are no valid programs to choose a threshold on.",
            fix="evaluate a run of ours, which has its own, or give data with a valid split",
        )
    point = choose_operating_point(
        valid.labels, valid.logits, target_fpr=s.target_fpr, target_miss_rate=s.target_miss_rate
    )
    for text in point.warnings:
        context.warn(text)
    return point


def frozen_home(weights: Path) -> Path | None:
    """Return the folder of the run, or the export, whose operating point weights belong to.

    A run chose it with its best checkpoint: another one of its checkpoints has none.
    """
    folder = weights.parent.parent
    if folder.name == "checkpoints" and find_best(folder) != weights.parent:
        return None
    return next((each for each in list(weights.parents)[:4] if _point_in(each)), None)


def frozen_stack(weights: Path | None) -> tuple[Stack | None, bool]:
    """Return the sum that weights of an evaluation are scored with, and whether its run is known.

    Raises:
        DataError: It is missing or damaged.
    """
    home = None if weights is None else frozen_home(weights)
    if home is None:
        return None, False
    require_stack(home, (read_raw(Result, home / RESULT_NAME).get("score") or {}).get("uses"))
    path = home / STACK_FILE
    return (read_stack(path) if path.exists() else None), True


def _point_in(folder: Path) -> dict[str, Any] | None:
    files = ((Result, "result.json"), (DetectorFile, "detector.json"))
    points = (read_raw(kind, folder / name).get("operating_point") for kind, name in files)
    return next(filter(None, points), None)


def frozen_point(weights: Path) -> OperatingPoint | None:
    """Return the operating point of the run, or the export, that weights belong to."""
    home = frozen_home(weights)
    return None if home is None else OperatingPoint.from_dict(_point_in(home))


def _scores(
    context: RunContext, inputs: Inputs, numbers: Numbers, point: OperatingPoint
) -> dict[str, Any]:
    s = context.settings
    draw = {"resamples": s.bootstrap_samples, "seed": s.seed}
    split_scores = {}
    for name, split in numbers.splits.items():
        if name == "retrieval_data":
            continue
        split_scores[name] = score_detection(
            split.labels,
            split.logits,
            point,
            tasks=split.tasks,
            prevalences=s.prevalences,
            floors=split.beside,
            **draw,
        )
        split_scores[name] |= slice_scores(split.rows, split.labels, split.logits, point, **draw)
        if name == "test" and numbers.edits:
            split_scores[name]["edits"] = edit_scores(
                split.labels,
                split.logits,
                numbers.edits,
                point,
                tasks=split.tasks,
                floors=split.beside,
                **draw,
            )
        context.emit("eval", step=-1, split=name, scores=_plain(split_scores[name]["metrics"]))
    return split_scores


def _plain(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if value is not None}


def write_predictions(path: Path, numbers: Numbers, point: OperatingPoint) -> None:
    """Write one line per scored program, split by split, in the data's order."""
    draft = path.with_name(f".{path.name}.partial")
    with draft.open("w", encoding="utf-8") as file:
        for split, scored in numbers.splits.items():
            if split == "retrieval_data":
                continue
            p_ai, calls = point.probabilities(scored.logits), point.calls(scored.logits)
            members = {n: each[0] for n, each in scored.beside.items() if n in WEIGHTS}
            rows = zip(scored.rows, scored.logits, p_ai, calls, strict=True)
            for at, (row, logit, p, call) in enumerate(rows):
                line = {
                    "split": split,
                    "id": row.id,
                    "place": row.place,
                    "language": row.language,
                    "label": row.label,
                    "task": row.task,
                    "source": row.source,
                    "generator": row.generator,
                    "logit": float(logit),
                    "p_ai": float(p),
                    "call": call,
                }
                line |= {name: float(scores[at]) for name, scores in members.items()}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
    draft.replace(path)


def _model_facts(context: RunContext, inputs: Inputs, task: DetectorTask) -> dict[str, Any]:
    s, is_embedded = context.settings, context.settings.model in DETECTOR.models.embedded
    facts = outcome.model_facts(context, inputs.found, task.raw) | {
        "pooling": s.pooling,
        "projection_size": s.projection_size,
        "pretrain": {"steps": s.pretrain_steps} if s.pretrain_steps else None,
    }
    return facts | ({"random_weights": context.checkpoint is None} if is_embedded else {})


def _phases(training: Training | None) -> dict[str, float] | None:
    """Return seconds of the parts of training; `evaluate_s` is what scoring valid on the way took.

    Together they are what the phase `train` lasts beside its checkpoints.
    """
    if training is None:
        return None
    return {f"{name}_s": seconds for name, seconds in training.state.phases.items()}


def _throughput(
    context: RunContext, inputs: Inputs, task: DetectorTask, training: Training | None
) -> dict[str, Any]:
    if training is None or not training.state.examples:
        return {}
    rates = outcome.throughput(training.state)
    rates["programs_per_s"] = rates.pop("pairs_per_s")
    rates["mfu_6n"] = _mfu(context, task, training)
    return rates


def _mfu(context: RunContext, task: DetectorTask, training: Training) -> float | None:
    """Return the share of the GPUs' half-precision peak that useful tokens need.

    Source: 6 operations per matrix element and token (forward 2, backward 4; a frozen encoder has
    2), attention left out.
    """
    frozen = min(1.0, context.settings.freeze_epochs / context.settings.epochs)
    per_token = matrix_parameters(task.raw.encoder) * (6 - 4 * frozen)
    return outcome.mfu(context, training.state.useful_tokens / training.state.train_s * per_token)


def matrix_parameters(encoder: nn.Module) -> int:
    """Return the parameters that each token is multiplied with; tables of embeddings are looked up.

    >>> matrix_parameters(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)))
    12
    """
    return sum(
        p.numel()
        for module in encoder.modules()
        if not isinstance(module, nn.Embedding)
        for p in module.parameters(recurse=False)
        if p.dim() == 2
    )
