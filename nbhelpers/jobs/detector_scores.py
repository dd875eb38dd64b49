"""The scores of a trained detector: detection, edits, baselines, similarity, predictions."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from nbhelpers.common.json_models import read_raw
from nbhelpers.common.result_files import DetectorFile, Result
from nbhelpers.data.canonical import canonical
from nbhelpers.data.detection_rows import CodeRow
from nbhelpers.data.layout_features import layout_features
from nbhelpers.errors import ConfigError
from nbhelpers.jobs import outcome
from nbhelpers.jobs.checkpoint import find_best
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.detector_inputs import ABSENT, SCORED, Inputs
from nbhelpers.jobs.loop import seed_everything
from nbhelpers.jobs.models.detector import DetectorModel, build_detector
from nbhelpers.metrics.baselines import DetectorFloors, fit_floors
from nbhelpers.metrics.detection import OperatingPoint, choose_operating_point, score_detection
from nbhelpers.metrics.ngrams import TfidfSimilarity
from nbhelpers.metrics.retrieval import hard_pairs, pair_scores, retrieval_table
from nbhelpers.metrics.slices import Edited, edit_scores, slice_scores
from nbhelpers.presets.jobs import DETECTOR

if TYPE_CHECKING:
    from nbhelpers.jobs.detector_task import DetectorTask
    from nbhelpers.jobs.training import Training


# ------------------------------------------------------------------------------------------------
# Scores of the similarity space: retrieval across languages and same-task pairs, beside floors.


POOLS = ("test", "retrieval_data")
NO_WEIGHTS = "the encoder began with random weights"


@dataclass(slots=True, kw_only=True)
class Scored:
    """The numbers of one split: rows, logits and unit vectors, in the data's order."""

    rows: list[CodeRow]
    logits: np.ndarray
    vectors: np.ndarray

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
    edits: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # rows, logits
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
    baselines = {
        split: TfidfSimilarity(_texts(context, numbers.splits[split].rows))
        for split in ("valid", *POOLS)
        if split in numbers.splits
    }
    for split in POOLS:
        if split in numbers.splits:
            similarity["retrieval"] += _retrieval(context, split, numbers, baselines[split], raw)
    similarity["pairs"] = _pairs(context, numbers, baselines, raw)
    return similarity | {"headline": _headline(similarity)}


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
        rows = numbers.splits[split].rows
        pairs[split] = hard_pairs(
            [row.task for row in rows],
            [row.language for row in rows],
            [len(row.code) for row in rows],
            seed=s.seed,
        )
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
    context: RunContext, inputs: Inputs, task: DetectorTask, training: Training | None
) -> None:
    """Score all splits on all ranks; rank 0 writes predictions and the result."""
    numbers = _numbers(context, inputs, task)
    similarity = score_similarity(context, inputs, task, numbers)
    ranks = outcome.gather_memory(context, training)
    if not context.is_main:
        return
    context.clock.phase("scores")
    point, scores = None, {}
    if context.settings.objective != "similar":
        point = _operating_point(context, numbers)
        scores = _scores(context, inputs, numbers, point)
        write_predictions(context.run.predictions_path, numbers, point)
    parts = {
        "data": inputs.data.to_dict() | {"truncated": inputs.truncated, "further": inputs.left_out},
        "audit": inputs.audit,
        "model": _model_facts(context, inputs, task),
        "operating_point": None if point is None else point.to_dict(),
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
        edits[name] = (at, logits)
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


def frozen_point(weights: Path) -> OperatingPoint | None:
    """Return the operating point of the run, or the export, that weights belong to.

    A run chose it with its best checkpoint: another one of its checkpoints has none.
    """
    folder = weights.parent.parent
    if folder.name == "checkpoints" and find_best(folder) != weights.parent:
        return None
    for folder in list(weights.parents)[:4]:
        for kind, name in ((Result, "result.json"), (DetectorFile, "detector.json")):
            if point := read_raw(kind, folder / name).get("operating_point"):
                return OperatingPoint.from_dict(point)
    return None


def _scores(
    context: RunContext, inputs: Inputs, numbers: Numbers, point: OperatingPoint
) -> dict[str, Any]:
    s = context.settings
    draw = {"resamples": s.bootstrap_samples, "seed": s.seed}
    baselines = _fit_floors(context, inputs)
    context.clock.phase("scores")
    split_scores = {}
    for name, split in numbers.splits.items():
        if name == "retrieval_data":
            continue
        codes = [canonical(row.code, s.canonical) for row in split.rows]
        beside = baselines.score(codes) if baselines is not None else None
        split_scores[name] = score_detection(
            split.labels,
            split.logits,
            point,
            tasks=split.tasks,
            prevalences=s.prevalences,
            floors=beside,
            **draw,
        )
        split_scores[name] |= slice_scores(split.rows, split.labels, split.logits, point, **draw)
        if name == "test" and numbers.edits:
            split_scores[name]["edits"] = edit_scores(
                split.labels,
                split.logits,
                _edited(context, inputs, numbers, baselines),
                point,
                tasks=split.tasks,
                floors=beside,
                **draw,
            )
        context.emit("eval", step=-1, split=name, scores=_plain(split_scores[name]["metrics"]))
    return split_scores


def _plain(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if value is not None}


def _fit_floors(context: RunContext, inputs: Inputs) -> DetectorFloors | None:
    s = context.settings
    if not s.floors:
        return None
    if "train" not in inputs.data.splits or "valid" not in inputs.data.splits:
        context.warn("The baselines need train and valid programs and were left out.")
        return None
    context.clock.phase("floors")

    def of(split: str) -> tuple[list[str], list[Any]]:
        rows = [row for row in inputs.split_rows(split) if row.label is not None]
        return [canonical(row.code, s.canonical) for row in rows], [row.label for row in rows]

    return fit_floors(
        of("train"), of("valid"), features=layout_features, target_fpr=s.target_fpr, seed=s.seed
    )


def _edited(
    context: RunContext, inputs: Inputs, numbers: Numbers, baselines: DetectorFloors | None
) -> dict[str, Edited]:
    form, edited = context.settings.canonical, {}
    for name, (at, logits) in numbers.edits.items():
        codes = [canonical(inputs.edited_codes[name][row] or "", form) for row in at]
        scored = baselines.score(codes) if baselines is not None and len(codes) else {}
        beside = {k: v[0] for k, v in scored.items() if not isinstance(v, str)}
        edited[name] = Edited(rows=at, logits=logits, floors=beside)
    return edited


def write_predictions(path: Path, numbers: Numbers, point: OperatingPoint) -> None:
    """Write one line per scored program, split by split, in the data's order."""
    draft = path.with_name(f".{path.name}.partial")
    with draft.open("w", encoding="utf-8") as file:
        for split, scored in numbers.splits.items():
            if split == "retrieval_data":
                continue
            p_ai, calls = point.probabilities(scored.logits), point.calls(scored.logits)
            for row, logit, p, call in zip(scored.rows, scored.logits, p_ai, calls, strict=True):
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
