"""The memory of the largest micro-batch of a detector run, now that the lengths are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.pairs import largest_extent
from nbhelpers.ledger import ledger
from nbhelpers.memory import MemoryBudget
from nbhelpers.shapes import find_shape

if TYPE_CHECKING:
    from nbhelpers.jobs.detector_task import DetectorTask


def largest_batch_budget(
    context: RunContext, task: DetectorTask, windows: list[np.ndarray]
) -> MemoryBudget | None:
    """Return the ledger of this rank's largest micro-batch; None where the sizes are not known."""
    s, plan, shape = context.settings, context.plan, find_shape(context.settings)
    if shape is None or not windows:
        return None
    forms, batches = task.forms.reshape(-1), task.batches
    largest = largest_extent(context, task.costs, windows, lambda rows: batches.extent(forms[rows]))
    scored = np.argsort(-batches.lengths[task.inputs.rows])[: s.per_device_eval_batch_size]
    scoring = batches.extent(task.inputs.rows[scored])
    lines = ledger(
        s, plan, shape, precision=context.precision, extent=largest, scoring=(scoring, scoring)
    )
    total = sum(line.size_bytes for line in lines)
    return MemoryBudget(lines=lines, total_bytes=total, capacity_bytes=None, verdict="", advice=())
