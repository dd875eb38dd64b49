"""The detector's training and scoring under simulation, with the encoder learning."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nbhelpers.data.detection_rows import CodeRow
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.detector import parameter_groups, token_rarity
from nbhelpers.jobs.detector_inputs import Inputs
from nbhelpers.jobs.detector_task import DetectorTask
from nbhelpers.jobs.models.detector import build_detector
from nbhelpers.jobs.simulated.inputs import text_table
from nbhelpers.jobs.simulated.step import OneStep, one_step, parts_of
from nbhelpers.plan import BatchPlan
from nbhelpers.presets.schema import DetectorSettings

if TYPE_CHECKING:
    from nbhelpers.jobs.models.encoders import Tokeniser

SCORED_BATCHES = 2
STATES = 64  # programs whose states are made at once, to see how the heads' input is scaled


def build_detector_step(
    context: RunContext, tokeniser: Tokeniser, shapes: dict[str, Any] | None
) -> tuple[OneStep, Any]:
    """Return the loop over synthetic programs, and what scores the longest of them.

    Args:
        shapes: As `jobs.detector.batch_shapes` says; None: as long as the settings allow.
    """
    settings, world = context.settings, context.plan.world_size
    shapes = shapes or _longest_shapes(settings, context.plan)
    train = np.repeat(shapes["lengths"], world)
    inputs = _inputs(settings, tokeniser, train, shapes["states"], shapes["scored"])
    model = build_detector(settings.model_copy(update={"random_weights": True}), inputs.found)
    task = DetectorTask(settings, inputs, context.accelerator, model)
    if model.rarity is not None:
        model.rarity.copy_(token_rarity(inputs))
    model.to(context.accelerator.device)
    states, scored = np.split(inputs.rows[len(train) :], [len(shapes["states"])])
    model.standardise(task.batches.states(model, states))
    step = one_step(
        context,
        task,
        model,
        len(train),
        groups=lambda bare: parameter_groups(bare, settings, task),
    )

    def evaluate() -> None:
        if not len(scored):
            return
        raw_encoder, like = [], model.centre
        if shapes["has_raw_encoder"]:
            raw_encoder = [torch.empty_like(p) for p in model.encoder.parameters()]
        # The outputs of the programs that are not scored here.
        others = like.new_empty(shapes["scored_rows"] - len(scored), 1 + settings.projection_size)
        task.batches.predict(model, scored)
        del others, raw_encoder

    return step, evaluate


def _longest_shapes(settings: DetectorSettings, plan: BatchPlan) -> dict[str, Any]:
    parts = parts_of(plan)
    train, scored = sum(parts), settings.per_device_eval_batch_size * SCORED_BATCHES
    return {
        "lengths": [settings.seq_len] * train,
        "parts": parts,
        "states": [settings.seq_len] * min(STATES, train + scored),
        "scored": [settings.seq_len] * scored,
        "scored_rows": scored,
        "has_raw_encoder": False,
    }


def _inputs(
    settings: DetectorSettings,
    tokeniser: Tokeniser,
    train: np.ndarray,
    states: list[int],
    scored: list[int],
) -> Inputs:
    """Return programs of both classes, four of a task, in one language."""
    lengths = np.concatenate([train, states, scored])
    rows = [
        CodeRow(
            id=str(at),
            code="",
            language="python",
            label=("human", "ai")[at % 2],
            task=str(at // settings.members_per_task),
            source="simulated",
        )
        for at in range(len(lengths))
    ]
    order = np.arange(len(lengths), dtype=np.int64)
    splits = {"train": order[: len(train)], "valid": order[len(train) + len(states) :]}
    data: Any = SimpleNamespace(rows=rows, splits=splits)
    vocab = tokeniser.config.vocab_size
    table = text_table(lengths, seq_len=settings.seq_len, vocab=vocab)
    return Inputs(data=data, audit=None, table=table, found=tokeniser, rows=order)
