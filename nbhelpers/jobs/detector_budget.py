"""The memory of the largest micro-batch of a detector run, now that the lengths are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbhelpers.jobs.schedule import micro_batches
from nbhelpers.ledger import BatchExtent, ledger
from nbhelpers.memory import MemoryBudget
from nbhelpers.shapes import find_shape

if TYPE_CHECKING:
    from nbhelpers.jobs.detector_task import DetectorTask
    from nbhelpers.jobs.session import Session


def largest_batch_budget(
    session: Session, task: DetectorTask, windows: list[np.ndarray]
) -> MemoryBudget | None:
    """Return the ledger of this rank's largest micro-batch; None where the sizes are not known."""
    s, plan, shape = session.settings, session.plan, find_shape(session.settings)
    if shape is None or not windows:
        return None
    forms, batches = task.forms.reshape(-1), task.batches
    largest = BatchExtent(tokens=0, padded_tokens=0, squares=0, last_tokens=0)
    for window in windows:
        for rows in micro_batches(
            window,
            task.costs,
            rank=session.writer.rank,
            world_size=plan.world_size,
            per_device=plan.per_device_train_batch_size,
        ):
            if len(rows):
                found = batches.extent(forms[rows])
                largest = max(largest, found, key=lambda x: (x.tokens, x.squares))
    scored = np.argsort(-batches.lengths[task.inputs.rows])[: s.per_device_eval_batch_size]
    scoring = batches.extent(task.inputs.rows[scored])
    lines = ledger(
        s, plan, shape, precision=session.precision, extent=largest, scoring=(scoring, scoring)
    )
    total = sum(line.size_bytes for line in lines)
    return MemoryBudget(lines=lines, total_bytes=total, capacity_bytes=None, verdict="", advice=())
