"""One optimizer step of our own loop under simulation: `jobs.loop.Trainer` as it trains.

The parts that a run folder would hold (events, checkpoints, a wish to stop) are left out; the loop,
the task, Accelerate's precision and scaler, and the fused AdamW are the ones that train.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from nbhelpers.hardware.detection import Hardware
from nbhelpers.jobs.context import RunContext, start_accelerator
from nbhelpers.jobs.loop import Hooks, Task, Trainer, TrainState
from nbhelpers.jobs.training import adamw
from nbhelpers.plan import BatchPlan
from nbhelpers.presets.schema import Settings

# One step with gradients of an earlier micro-step is like every later one.
MOST_MICRO_STEPS = 2


@contextmanager
def simulated_context(
    settings: Settings, plan: BatchPlan, hardware: Hardware, *, precision: str
) -> Iterator[RunContext]:
    """Set up torch and Accelerate as a worker does, for a run without a folder.

    The simulation gives back what this changes of both.

    Args:
        precision: bf16, fp16 or fp32.
    """
    ranks = {}
    if plan.world_size > 1:
        ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(plan.world_size)}
        ranks |= {"LOCAL_WORLD_SIZE": str(plan.processes_per_node)}
    with mock.patch.dict(os.environ, ranks):
        yield RunContext(
            settings=settings,
            plan=plan,
            accelerator=start_accelerator(precision, plan),
            precision=precision,
            facts={"hardware": hardware.to_dict()},
        )


@dataclass(frozen=True, slots=True)
class OneStep:
    """The loop, which makes one optimizer step of so many examples at each call."""

    trainer: Trainer
    examples: int

    def __call__(self) -> None:
        """Make one optimizer step in full; nothing is evaluated or saved."""
        epoch = task_epoch(self.trainer.task, self.trainer.settings)
        global_batch = np.arange(self.examples, dtype=np.int64)
        self.trainer.fit(TrainState(epoch=epoch), only=[global_batch])


def one_step(
    context: RunContext,
    task: Task,
    model: Any,
    examples: int,
    *,
    groups: Callable[[Any], list[dict[str, Any]]] | None = None,
) -> OneStep:
    """Return the loop for a bare model, in the order in which `jobs.training` sets it up.

    Its micro-batches take the examples in their order, those of each rank in turn.
    """
    task.costs = np.arange(examples, 0, -1)
    accelerator, settings = context.accelerator, context.settings
    model.to(accelerator.device)  # the optimizer must see the parameters that will be trained
    optimizer = adamw(context, model.parameters() if groups is None else groups(model))
    task.start_epoch(task_epoch(task, settings))
    wrapped, prepared = accelerator.prepare(model, optimizer)
    trainer = Trainer(
        task=task,
        model=wrapped,
        optimizer=prepared,
        accelerator=accelerator,
        settings=settings,
        plan=context.plan,
        hooks=Hooks(),
    )
    return OneStep(trainer, examples)


def task_epoch(task: Task, settings: Settings) -> int:
    """Return the first epoch in which all parameters learn, where there is one."""
    frozen = getattr(settings, "freeze_epochs", 0)
    return min(frozen, settings.epochs - 1)


def parts_of(plan: BatchPlan) -> list[int]:
    """Return the examples of each micro-step of a rank, as many as the memory can tell apart."""
    steps = min(plan.gradient_accumulation_steps, MOST_MICRO_STEPS)
    each = min(plan.per_device_train_batch_size, -(-plan.global_batch_size // plan.world_size))
    return [each] * steps
