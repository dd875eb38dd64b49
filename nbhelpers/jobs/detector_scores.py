"""Everything that is told of a trained detector: scores, edits, floors, similarity, predictions."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from nbhelpers.catalog import MODELS
from nbhelpers.data.canonical import canonical
from nbhelpers.data.detection import CodeRow
from nbhelpers.data.layout_features import layout_features
from nbhelpers.detector_edits import Edited, edit_scores
from nbhelpers.detector_floors import DetectorFloors, fit_floors
from nbhelpers.detector_metrics import OperatingPoint, choose_operating_point, score_detection
from nbhelpers.detector_slices import slice_scores
from nbhelpers.errors import ConfigError
from nbhelpers.jobs import outcome
from nbhelpers.jobs.checkpoint import find_best
from nbhelpers.jobs.detector_inputs import ABSENT, SCORED, Inputs
from nbhelpers.jobs.detector_similarity import score_similarity
from nbhelpers.json_models import read_raw
from nbhelpers.result_files import DetectorFile, Result

if TYPE_CHECKING:
    from nbhelpers.jobs.detector_task import DetectorTask
    from nbhelpers.jobs.session import Session
    from nbhelpers.jobs.training import Training

SPEED_FILES = 256  # programs whose scoring is timed


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


def score_run(
    session: Session, inputs: Inputs, task: DetectorTask, training: Training | None
) -> None:
    """Score all splits on all ranks; rank 0 writes predictions and the result."""
    numbers = _numbers(session, inputs, task)
    similarity = score_similarity(session, inputs, task, numbers)
    ranks = outcome.gather_memory(session, training)
    if not session.is_main:
        return
    session.clock.phase("scores")
    point, scores = None, {}
    if session.settings.objective != "similar":
        point = _operating_point(session, numbers)
        scores = _scores(session, inputs, numbers, point)
        write_predictions(session.run.predictions_path, numbers, point)
    parts = {
        "data": inputs.data.to_dict() | {"truncated": inputs.truncated, "further": inputs.left_out},
        "audit": inputs.audit,
        "model": _model_facts(session, inputs, task),
        "operating_point": None if point is None else point.to_dict(),
        "scores": scores,
        "similarity": similarity,
        "phases": _phases(training),
        "compile": session.compiled,
        "throughput": _throughput(session, inputs, task, training),
        "inference": numbers.speed,
    }
    outcome.write_result(session, training, ranks, parts)


def _numbers(session: Session, inputs: Inputs, task: DetectorTask) -> Numbers:
    splits = {}
    for name in SCORED:
        if name in inputs.data.splits and len(inputs.data.splits[name]):
            rows = inputs.rows[inputs.data.splits[name]]
            splits[name] = _scored(session, task, name, inputs.split_rows(name), rows)
    for name, (found, rows) in inputs.others.items():
        splits[name] = _scored(session, task, name, found, rows)
    edits = {}
    for name, rows in inputs.edits.items():
        at = np.flatnonzero(rows != ABSENT)
        logits, _ = task.batches.predict(task.raw, rows[at], session.progress(f"evaluate {name}"))
        edits[name] = (at, logits)
    return Numbers(splits=splits, edits=edits, speed=_speed(task, inputs))


def _scored(
    session: Session, task: DetectorTask, name: str, found: list[CodeRow], rows: np.ndarray
) -> Scored:
    report = session.progress(f"evaluate {name}")
    logits, vectors = task.batches.predict(task.raw, rows, report)
    return Scored(rows=found, logits=logits, vectors=vectors)


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


def _operating_point(session: Session, numbers: Numbers) -> OperatingPoint:
    """Choose on valid; an evaluation takes the point that its run froze, where there is one."""
    s, valid = session.settings, numbers.splits.get("valid")
    if session.checkpoint is not None:
        frozen = frozen_point(session.checkpoint)
        if frozen is not None:
            return frozen
        session.warn("No frozen threshold belongs to the checkpoint: it is chosen on valid anew.")
    if valid is None:
        raise ConfigError(
            "There are no valid programs to choose a threshold on.",
            fix="evaluate a run of ours, which has its own, or give data with a valid split",
        )
    point = choose_operating_point(
        valid.labels, valid.logits, target_fpr=s.target_fpr, target_miss_rate=s.target_miss_rate
    )
    for text in point.warnings:
        session.warn(text)
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
    session: Session, inputs: Inputs, numbers: Numbers, point: OperatingPoint
) -> dict[str, Any]:
    s = session.settings
    draw = {"resamples": s.bootstrap_samples, "seed": s.seed}
    floors = _fit_floors(session, inputs)
    session.clock.phase("scores")
    found = {}
    for name, split in numbers.splits.items():
        if name == "retrieval_data":
            continue
        codes = [canonical(row.code, s.canonical) for row in split.rows]
        beside = floors.score(codes) if floors is not None else None
        found[name] = score_detection(
            split.labels,
            split.logits,
            point,
            tasks=split.tasks,
            prevalences=s.prevalences,
            floors=beside,
            **draw,
        )
        found[name] |= slice_scores(split.rows, split.labels, split.logits, point, **draw)
        if name == "test" and numbers.edits:
            found[name]["edits"] = edit_scores(
                split.labels,
                split.logits,
                _edited(session, inputs, numbers, floors),
                point,
                tasks=split.tasks,
                floors=beside,
                **draw,
            )
        session.emit_main("eval", step=-1, split=name, scores=_plain(found[name]["metrics"]))
    return found


def _plain(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if value is not None}


def _fit_floors(session: Session, inputs: Inputs) -> DetectorFloors | None:
    s = session.settings
    if not s.floors:
        return None
    if "train" not in inputs.data.splits or "valid" not in inputs.data.splits:
        session.warn("The floors need train and valid programs and were left out.")
        return None
    session.clock.phase("floors")

    def of(split: str) -> tuple[list[str], list[Any]]:
        rows = [row for row in inputs.split_rows(split) if row.label is not None]
        return [canonical(row.code, s.canonical) for row in rows], [row.label for row in rows]

    return fit_floors(
        of("train"), of("valid"), features=layout_features, target_fpr=s.target_fpr, seed=s.seed
    )


def _edited(
    session: Session, inputs: Inputs, numbers: Numbers, floors: DetectorFloors | None
) -> dict[str, Edited]:
    form, found = session.settings.canonical, {}
    for name, (at, logits) in numbers.edits.items():
        codes = [canonical(inputs.edited_codes[name][row] or "", form) for row in at]
        scored = floors.score(codes) if floors is not None and len(codes) else {}
        beside = {k: v[0] for k, v in scored.items() if not isinstance(v, str)}
        found[name] = Edited(rows=at, logits=logits, floors=beside)
    return found


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


def _model_facts(session: Session, inputs: Inputs, task: DetectorTask) -> dict[str, Any]:
    s, weights = session.settings, inputs.found.weights
    return {
        "name": s.model,
        "revision": weights.revision if weights else None,
        "architecture": type(task.raw.encoder).__name__,
        "parameters": sum(p.numel() for p in task.raw.parameters()),
        "random_weights": session.checkpoint is None
        and (s.random_weights or s.model in MODELS["detector"].embedded),
        "tokenizer": inputs.found.note,
        "seq_len": s.seq_len,
        "pooling": s.pooling,
        "projection_size": s.projection_size,
        "pretrain": {"steps": s.pretrain_steps} if s.pretrain_steps else None,
    }


def _phases(training: Training | None) -> dict[str, float] | None:
    """Return seconds of the parts of training; `evaluate_s` is what scoring valid on the way took.

    Together they are what the phase `train` lasts beside its checkpoints.
    """
    if training is None:
        return None
    return {f"{name}_s": seconds for name, seconds in training.state.phases.items()}


def _throughput(
    session: Session, inputs: Inputs, task: DetectorTask, training: Training | None
) -> dict[str, Any]:
    if training is None or not training.state.examples:
        return {}
    found = outcome.throughput(training.state)
    found["programs_per_s"] = found.pop("pairs_per_s")
    found["mfu_6n"] = _mfu(session, task, training)
    return found


def _mfu(session: Session, task: DetectorTask, training: Training) -> float | None:
    """Return the share of the GPUs' half-precision peak that useful tokens need.

    Source: 6 operations per matrix element and token (forward 2, backward 4; a frozen encoder has
    2), attention left out; PaLM, appendix B.
    """
    tflops, s = session.gpu_tflops, session.settings
    if tflops is None or not session.plan.use_gpu:
        return None
    matrices = matrix_parameters(task.raw.encoder)
    frozen = min(1.0, s.freeze_epochs / s.epochs)
    per_token = matrices * (6 - 4 * frozen)
    per_s = training.state.useful_tokens / training.state.train_s * per_token
    return per_s / (tflops * 1e12 * session.plan.world_size)


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
