"""Training of a task: optimizer, resume, checkpoints, measured memory; the same for all jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nbhelpers.hardware import detect_hardware
from nbhelpers.jobs import checkpoint as ck
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.loop import Hooks, Task, Trainer, TrainState
from nbhelpers.jobs.measure import GpuWatch, MemoryMeter
from nbhelpers.jobs.measure_phases import PhaseTimer, steps_to_watch
from nbhelpers.jobs.measure_run import meter_of, peaks_of, settle_budget
from nbhelpers.jobs.probe import ProbedSteps, probed_steps
from nbhelpers.jobs.track import emitter
from nbhelpers.memory import MemoryBudget
from nbhelpers.models.weights import read_state_dict

COUNTED_STEPS = 2  # on a CPU: the first step makes the optimizer's state, the second has it all


@dataclass(slots=True, kw_only=True)
class Training:
    """What training leaves behind for the result."""

    state: TrainState
    meter: MemoryMeter
    gpu: list[dict[str, Any]]
    resumed_from: int | None
    budget: MemoryBudget | None  # of the data's largest micro-batch: the measured peak's partner
    probed: ProbedSteps | None = None  # where a few steps were all that was wanted
    model: dict[str, Any] = field(default_factory=dict)  # how it computed: attention, compiled
    compiled: dict[str, Any] | None = None  # what became of compiled blocks
    energy: dict[str, Any] | None = None  # joules and mean watts of the GPUs


def train_task(
    context: RunContext,
    task: Task,
    model: Any,
    *,
    predict: Callable[[list[Any]], MemoryBudget | None],
    save_files: Callable[[Path], None],
    groups: Callable[[Any], list[dict[str, Any]]] | None = None,
) -> Training:
    """Train a task from the newest checkpoint, or from the start; the model ends as the best one.

    Args:
        model: The bare model, on the CPU.
        predict: Given the optimizer steps to come, predicts the memory of the largest micro-batch.
        save_files: Writes configuration and tokenizer into a checkpoint folder.
        groups: Given the bare model, returns the optimizer's groups; None: all parameters alike.
    """
    context.check_disk(sum(p.numel() for p in model.parameters()))
    accelerator, s = context.accelerator, context.settings
    probed = None
    if context.is_probe:
        probed = probed_steps(context, task.costs, task.windows(0), examples=task.examples)
    optimizer = adamw(context, model.parameters() if groups is None else groups(model))
    state, resumed = _resume(context, model, optimizer)
    task.start_epoch(state.epoch)  # what learns must be known before DDP looks
    wrapped, prepared = accelerator.prepare(model, optimizer)
    raw = accelerator.unwrap_model(wrapped)
    _restore_scaler(context, resumed)
    meter = meter_of(context, is_resumed=resumed is not None)
    coming = probed.windows if probed else _coming(task, state, s.epochs)
    full = max(0, task.first_full_step - state.step)  # of them: here all parameters learn
    counted = coming if context.plan.use_gpu else coming[full : full + COUNTED_STEPS]
    budget = settle_budget(context, predict(counted))
    watched = _watched(context, task, coming[full:], first=state.step + full)
    memory = peaks_of(context, meter, watched, budget)
    saver = _Saver(context, save_files, raw, prepared)
    hooks = Hooks(
        emit=emitter(context),
        save=saver,
        wants_stop=context.wants_stop,
        save_is_due=saver.is_due,
        peak_bytes=meter.peak_bytes,
        step_context=_counted(meter, raw, state.step + full),
        phases=PhaseTimer(accelerator.device, memory=memory),
        rewrap=_rewrapper(accelerator, wrapped),
    )
    trainer = Trainer(
        task=task,
        model=wrapped,
        optimizer=prepared,
        accelerator=accelerator,
        settings=s,
        plan=context.plan,
        hooks=hooks,
    )
    context.clock.phase("train")
    gpus = watched_gpus(context)
    with GpuWatch(list(gpus), context.emit) as watch:
        trainer.fit(state, only=probed.windows if probed else None)
    meter.begin_scoring()
    if probed is None:
        _load_best(context, raw)
    return Training(
        state=state,
        meter=meter,
        gpu=watch.summary(gpus),
        resumed_from=resumed["train"]["step"] if resumed else None,
        budget=budget,
        probed=probed,
    )


def adamw(context: RunContext, parameters: Any) -> torch.optim.Optimizer:
    """Return the optimizer of a run: AdamW, in one kernel on a GPU."""
    s = context.settings
    how = {"lr": s.learning_rate, "weight_decay": s.weight_decay, "eps": s.adam_epsilon}
    return torch.optim.AdamW(parameters, fused=context.plan.use_gpu, **how)


def _rewrapper(accelerator: Any, wrapped: Any) -> Callable[[], Any] | None:
    """Return what wraps the model anew: DDP learns at its start which parameters learn."""
    if accelerator.num_processes == 1:
        return None

    def rewrap() -> Any:
        accelerator._models.clear()
        return accelerator.prepare_model(accelerator.unwrap_model(wrapped, keep_fp32_wrapper=False))

    return rewrap


def _counted(
    meter: MemoryMeter, model: Any, first: int
) -> Callable[[int], AbstractContextManager[Any]]:
    """Count live bytes around some steps (on a CPU): the first that this process makes at full."""
    mode = meter.watch_steps(model)
    counted = range(first, first + COUNTED_STEPS)
    return lambda step: mode if mode and step in counted else nullcontext()


def _coming(task: Task, state: TrainState, epochs: int) -> list[Any]:
    """Return the rows of each optimizer step to come."""
    return [
        window
        for epoch in range(state.epoch, epochs)
        for window in task.windows(epoch)[state.window if epoch == state.epoch else 0 :]
    ]


def _watched(context: RunContext, task: Task, coming: list[Any], *, first: int) -> list[int]:
    """Return the steps whose phases are measured; `first`: the step whose rows come first."""
    plan = context.plan
    if not plan.use_gpu:
        return list(range(first, first + COUNTED_STEPS))
    most = plan.per_device_train_batch_size * plan.world_size
    # The longest rows of a step share its first micro-batch.
    return steps_to_watch(
        coming, lambda window: int(np.sort(task.costs[window])[-most:].sum()), first=first
    )


def watched_gpus(context: RunContext) -> dict[int, str]:
    """Return index and name of the run's GPUs that this rank can see: rank 0's node's."""
    plan = context.plan
    if not (context.is_main and plan.use_gpu):
        return {}
    # A run of several nodes is recorded before it is known which GPUs of which node it gets.
    found = detect_hardware() if plan.num_nodes > 1 else context.hardware
    return {gpu.index: gpu.name for gpu in found.gpus[: plan.processes_per_node]}


def _resume(
    context: RunContext, model: Any, optimizer: torch.optim.Optimizer
) -> tuple[TrainState, dict[str, Any] | None]:
    """Load the newest sound checkpoint into model and optimizer; return (state, its values)."""
    folder = context.run.checkpoints_path
    path = ck.agree(context.accelerator, folder, lambda: ck.find_last(folder, context.warn))
    if path is None:
        return TrainState(), None
    tensors, optimizer_state, values = ck.load_training_state(path)
    model.load_state_dict(tensors)
    model.to(context.accelerator.device)  # the optimizer's state follows its parameters' device
    optimizer.load_state_dict(optimizer_state)
    context.emit("resumed", step=values["train"]["step"], checkpoint=path.name)
    return TrainState.from_dict(values["train"]), values


def _load_best(context: RunContext, model: Any) -> None:
    folder = context.run.checkpoints_path
    best = ck.agree(context.accelerator, folder, lambda: ck.find_best(folder))
    model.load_state_dict(read_state_dict(best / "model.safetensors"))


def _restore_scaler(context: RunContext, resumed: dict[str, Any] | None) -> None:
    scaler = context.accelerator.scaler
    if scaler is not None and resumed and resumed.get("scaler"):
        scaler.load_state_dict(resumed["scaler"])


class _Saver:
    """Writes checkpoints on rank 0 and keeps the clock of `save_minutes`."""

    def __init__(
        self, context: RunContext, save_files: Callable[[Path], None], model: Any, optimizer: Any
    ) -> None:
        self.context, self.save_files = context, save_files
        self.model, self.optimizer = model, optimizer
        self._last = time.monotonic()

    def is_due(self) -> bool:
        minutes = self.context.settings.save_minutes
        return minutes is not None and time.monotonic() - self._last > 60 * minutes

    def __call__(self, state: TrainState, *, is_best: bool) -> None:
        context = self.context
        self._last = time.monotonic()
        if context.is_main:
            scaler = context.accelerator.scaler
            path = ck.save_checkpoint(
                context.run.checkpoints_path,
                step=state.step,
                model_state=self.model.state_dict(),
                optimizer_state=self.optimizer.state_dict(),
                state={
                    "train": state.to_dict(),
                    "scaler": scaler.state_dict() if scaler is not None else None,
                },
                extra=self.save_files,
                is_best=is_best,
                keep=context.settings.save_total_limit,
            )
            context.emit_rank("checkpoint", step=state.step, path=str(path), is_best=is_best)
        context.accelerator.wait_for_everyone()
