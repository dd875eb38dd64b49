"""The detector's training and scoring under simulation, with the encoder learning."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from nbhelpers.data.detection_rows import CodeRow
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.detector import parameter_groups, token_rarity
from nbhelpers.jobs.detector_inputs import Inputs
from nbhelpers.jobs.detector_task import DetectorTask
from nbhelpers.jobs.models.detector import build_detector
from nbhelpers.jobs.simulated.inputs import longest, text_table
from nbhelpers.jobs.simulated.step import OneStep, one_step, step_examples
from nbhelpers.presets.schema import DetectorSettings

if TYPE_CHECKING:
    from nbhelpers.jobs.models.encoders import Tokeniser

SCORED_BATCHES = 2
STATES = 64  # programs whose states are made at once, to see how the heads' input is scaled


def build_detector_step(
    context: RunContext, tokeniser: Tokeniser, *, lengths: Sequence[int] | None = None
) -> tuple[OneStep, Any]:
    """Return the loop over synthetic programs, and what scores the longest of them.

    Args:
        lengths: Of the programs of one optimizer step; None: each as long as the settings allow, in
            at most two micro-steps.
    """
    settings, plan = context.settings, context.plan
    train = longest(settings, step_examples(plan)) if lengths is None else np.asarray(lengths)
    scored = longest(settings, settings.per_device_eval_batch_size * SCORED_BATCHES)
    inputs = _inputs(settings, tokeniser, train, scored)
    model = build_detector(settings.model_copy(update={"random_weights": True}), inputs.found)
    task = DetectorTask(settings, inputs, context.accelerator, model)
    if model.rarity is not None:
        model.rarity.copy_(token_rarity(inputs))
    model.to(context.accelerator.device)
    model.standardise(task.batches.states(model, inputs.rows[-STATES:]))
    step = one_step(
        context,
        task,
        model,
        len(train),
        groups=lambda bare: parameter_groups(bare, settings, task),
    )

    def evaluate() -> None:
        task.batches.predict(model, inputs.rows[len(train) :])

    return step, evaluate


def _inputs(
    settings: DetectorSettings, tokeniser: Tokeniser, train: np.ndarray, scored: np.ndarray
) -> Inputs:
    """Return programs of both classes, four of a task, in one language."""
    count = len(train) + len(scored)
    rows = [
        CodeRow(
            id=str(at),
            code="",
            language="python",
            label=("human", "ai")[at % 2],
            task=str(at // settings.members_per_task),
            source="simulated",
        )
        for at in range(count)
    ]
    order = np.arange(count, dtype=np.int64)
    data: Any = SimpleNamespace(
        rows=rows, splits={"train": order[: len(train)], "valid": order[len(train) :]}
    )
    table = text_table(
        np.concatenate([train, scored]), seq_len=settings.seq_len, vocab=tokeniser.config.vocab_size
    )
    return Inputs(data=data, audit=None, table=table, found=tokeniser, rows=order)
