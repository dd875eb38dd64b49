"""Scores of the similarity space: retrieval across languages and same-task pairs, beside floors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nbhelpers.data.canonical import canonical
from nbhelpers.data.detection import CodeRow
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.loop import seed_everything
from nbhelpers.models.detector import DetectorModel
from nbhelpers.models.detector_build import build_detector
from nbhelpers.retrieval_floors import TfidfSimilarity
from nbhelpers.retrieval_metrics import retrieval_table
from nbhelpers.retrieval_pairs import hard_pairs, pair_scores

if TYPE_CHECKING:
    from nbhelpers.jobs.detector_inputs import Inputs
    from nbhelpers.jobs.detector_task import DetectorTask

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
    found: dict[str, Any] = {"dimensions": context.settings.projection_size, "retrieval": []}
    floors = {
        split: TfidfSimilarity(_texts(context, numbers.splits[split].rows))
        for split in ("valid", *POOLS)
        if split in numbers.splits
    }
    for split in POOLS:
        if split in numbers.splits:
            found["retrieval"] += _retrieval(context, split, numbers, floors[split], raw)
    found["pairs"] = _pairs(context, numbers, floors, raw)
    return found | {"headline": _headline(found)}


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
    found = {}
    for split in ("valid", *POOLS):
        if split in numbers.splits:
            rows = _rows_of(inputs, split)
            _, found[split] = task.batches.predict(model, rows)
    return found


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
    context: RunContext, numbers: Numbers, floors: dict[str, TfidfSimilarity], raw: dict[str, Any]
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
            "tfidf": (floors["test"], floors["valid"]),
            "raw_encoder": reason or tuple(plain),
        },
        resamples=s.bootstrap_samples,
        seed=s.seed,
    )


def _headline(found: dict[str, Any]) -> dict[str, float | None]:
    """Return one number each: retrieval among all programs of the test split, and its pairs."""
    rows = found["retrieval"]
    whole = next((row for row in rows if row["query"] == "all" and row["split"] == "test"), None)
    whole, pairs = whole or {}, found["pairs"] or {}
    return {
        "mrr": whole.get("mrr"),
        "map_at_r": whole.get("map_at_r"),
        "pair_roc_auc": pairs.get("roc_auc"),
        "pair_accuracy": pairs.get("accuracy"),
        "pair_f1": pairs.get("f1"),
    }
