"""One optimizer step of our own loop under simulation: `jobs.loop.Trainer` as it trains.

The parts that a run folder would hold (events, checkpoints, a wish to stop) are left out; the loop,
the task, Accelerate's precision and scaler, and the fused AdamW are the ones that train.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedDataParallelKwargs

from nbhelpers.batching import BatchPlan
from nbhelpers.jobs.loop import Hooks, Task, Trainer, TrainState
from nbhelpers.jobs.session import DDP_OPTIONS
from nbhelpers.jobs.training import adamw
from nbhelpers.schema import Settings

# One step with gradients of an earlier micro-step is like every later one.
MOST_MICRO_STEPS = 2


@contextmanager
def accelerated(precision: str, plan: BatchPlan) -> Iterator[Accelerator]:
    """Set up torch and Accelerate as `jobs.session` does for a GPU, and undo it afterwards.

    Args:
        precision: bf16, fp16 or fp32.
    """
    shared = [kind._shared_state for kind in (PartialState, AcceleratorState, GradientState)]
    before = [dict(values) for values in shared]
    cudnn, products = torch.backends.cuda.cudnn_sdp_enabled(), torch.get_float32_matmul_precision()
    for values in shared:
        values.clear()
    ranks = {}
    if plan.world_size > 1:
        ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(plan.world_size)}
        ranks |= {"LOCAL_WORLD_SIZE": str(plan.processes_per_node)}
    try:
        with mock.patch.dict(os.environ, ranks):
            torch.set_float32_matmul_precision("high")
            torch.backends.cuda.enable_cudnn_sdp(False)
            ddp = DistributedDataParallelKwargs(**DDP_OPTIONS)
            amp = "no" if precision == "fp32" else precision
            yield Accelerator(mixed_precision=amp, kwargs_handlers=[ddp])
    finally:
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        torch.set_float32_matmul_precision(products)
        for values, old in zip(shared, before, strict=True):
            values.clear()
            values.update(old)


class _Done(Exception):
    """A step has ended."""


class OneStep(Trainer):
    """The loop, stopped after each optimizer step, before anything is evaluated or saved."""

    def _after_step(self, state: TrainState, *, stop: bool, due: bool) -> None:
        raise _Done

    def step(self, epoch: int) -> None:
        """Make one optimizer step of an epoch, in full."""
        try:
            self.fit(TrainState(epoch=epoch))
        except _Done:
            return
        raise AssertionError("the loop went past its step")


def one_step(
    task: Task,
    model: Any,
    accelerator: Accelerator,
    settings: Settings,
    plan: BatchPlan,
    *,
    groups: Callable[[Any], list[dict[str, Any]]] | None = None,
) -> OneStep:
    """Return the loop for a bare model, in the order in which `jobs.training` sets it up."""
    model.to(accelerator.device)  # the optimizer must see the parameters that will be trained
    session: Any = SimpleNamespace(settings=settings, plan=plan, accelerator=accelerator)
    optimizer = adamw(session, model.parameters() if groups is None else groups(model))
    task.start_epoch(task_epoch(task, settings))
    wrapped, prepared = accelerator.prepare(model, optimizer)
    hooks = Hooks(
        emit=lambda *args, **fields: None,
        save=lambda *args, **fields: None,
        wants_stop=lambda: False,
        save_is_due=lambda: False,
        peak_bytes=lambda: 0,
        step_context=lambda step: nullcontext(),
    )
    return OneStep(
        task=task,
        model=wrapped,
        optimizer=prepared,
        accelerator=accelerator,
        settings=settings,
        plan=plan,
        hooks=hooks,
    )


def task_epoch(task: Task, settings: Settings) -> int:
    """Return the first epoch in which all parameters learn, where there is one."""
    frozen = getattr(settings, "freeze_epochs", 0)
    return min(frozen, settings.epochs - 1)


def step_examples(plan: BatchPlan) -> int:
    """Return the examples of a step with as many micro-steps as the memory can tell apart."""
    steps = min(plan.gradient_accumulation_steps, MOST_MICRO_STEPS)
    examples = plan.world_size * plan.per_device_train_batch_size * steps
    return min(examples, plan.global_batch_size) if steps == 1 else examples


def whole(examples: int) -> Callable[[int], list[np.ndarray]]:
    """Return the windows of any epoch: each optimizer step sees all examples."""
    return lambda epoch: [np.arange(examples, dtype=np.int64)]
