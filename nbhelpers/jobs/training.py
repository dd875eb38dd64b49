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

from nbhelpers.budget.memory import MemoryBudget
from nbhelpers.hardware.detection import detect_hardware
from nbhelpers.jobs import checkpoint as ck
from nbhelpers.jobs.context import RunContext
from nbhelpers.jobs.forecast import steps_after
from nbhelpers.jobs.loop import Hooks, Task, Trainer, TrainState
from nbhelpers.jobs.measure import GpuWatch, MemoryMeter, told_energy
from nbhelpers.jobs.measure_phases import (
    PhaseTimer,
    meter_of,
    peaks_of,
    steps_to_watch,
)
from nbhelpers.jobs.models.weights import read_state_dict
from nbhelpers.jobs.probe import ProbedSteps, probed_steps

COUNTED_STEPS = 2  # on a CPU: the first step makes the optimizer's state, the second has it all


@dataclass(slots=True, kw_only=True)
class Training:
    """What training leaves behind for the result."""

    state: TrainState
    meter: MemoryMeter
    gpu: list[dict[str, Any]]
    resumed_from: int | None
    budget: MemoryBudget | None  # of the data's largest micro-batch: the measured peak's partner
    energy: dict[str, float] | None = None  # joules and mean watts, where NVML tells
    probed: ProbedSteps | None = None  # where a few steps were all that was wanted
    model: dict[str, Any] = field(default_factory=dict)  # how it computed: attention, compiled
    compiled: dict[str, Any] | None = None  # what became of compiled blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedWeights:
    """Which tensors of a model a checkpoint holds, and in which of its files."""

    file: str
    tensors: Callable[[Any], dict[str, torch.Tensor]]  # of the bare model
    load: Callable[[Any, dict[str, torch.Tensor]], Any]  # into the bare model


WHOLE_MODEL = SavedWeights(
    file="model.safetensors",
    tensors=lambda model: model.state_dict(),
    load=lambda model, tensors: model.load_state_dict(tensors),
)


def train_task(
    context: RunContext,
    task: Task,
    model: Any,
    *,
    predict: Callable[[list[Any]], MemoryBudget | None],
    save_files: Callable[[Path], None],
    groups: Callable[[Any], list[dict[str, Any]]] | None = None,
    weights: SavedWeights = WHOLE_MODEL,
    load_bytes: int = 0,
) -> Training:
    """Train a task from the newest checkpoint, or from the start.

    The model ends as the best one, or as it is after the last step where a task does not select.

    Args:
        model: The bare model.
        predict: Given optimizer steps, returns the memory of the largest micro-batch on a CPU.
        save_files: Writes configuration and tokenizer into a checkpoint folder.
        groups: Given the bare model, returns the optimizer's groups; None: all parameters alike.
        weights: What a checkpoint holds of the model.
        load_bytes: The allocator's peak when the model was built; 0: what it is now.

    Raises:
        Stopped: A stop was asked for; a checkpoint was written first.
        NonFinite: A loss or gradients that are not finite.
        ConfigError: Too little disk.
    """
    context.check_disk(sum(tensor.numel() for tensor in weights.tensors(model).values()))
    accelerator, s = context.accelerator, context.settings
    if accelerator.device.type == "cuda":  # before blocks are proven on it
        load_bytes = load_bytes or torch.cuda.max_memory_allocated(accelerator.device)
    probed = None
    if context.is_probe:
        usual = task.global_batches(0)
        probed = probed_steps(context, task.costs, usual, examples=task.examples)
    optimizer = adamw(context, model.parameters() if groups is None else groups(model))
    state, resumed = _resume(context, model, optimizer, weights)
    task.start_epoch(state.epoch)  # what learns must be known before DDP looks
    wrapped = accelerator.prepare_model(model, evaluation_mode=task.averages_gradients)
    prepared = accelerator.prepare_optimizer(optimizer)
    raw = accelerator.unwrap_model(wrapped)
    _restore_scaler(context, resumed)
    meter = meter_of(context, is_resumed=resumed is not None, load_bytes=load_bytes)
    coming = probed.batches if probed else steps_after(task, state, s.epochs)
    full = max(0, task.first_full_step - state.step)  # of them: here all parameters learn
    budget, counted = context.forecast.budget, coming[full : full + COUNTED_STEPS]
    if not context.plan.use_gpu and (budget := predict(counted)) is not None:
        context.emit("memory", predicted_bytes=budget.allocated_bytes)
    watched = _watched(context, task, coming[full:], first=state.step + full)
    memory = peaks_of(context, meter, watched, budget)
    saver = _Saver(context, save_files, raw, prepared, weights)
    hooks = Hooks(
        emit=context.emit,
        save=saver,
        wants_stop=context.wants_stop,
        save_is_due=saver.is_due,
        peak_bytes=meter.peak_bytes,
        step_context=_counted(meter, raw, state.step + full, counted),
        phases=PhaseTimer(accelerator.device, memory=memory),
        rewrap=rewrapper(accelerator, wrapped),
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
        trainer.fit(state, only=probed.batches if probed else None)
    meter.begin_scoring()
    if task.selects_by is not None and probed is None:
        _load_best(context, raw, weights)
    return Training(
        state=state,
        meter=meter,
        gpu=watch.summary(gpus),
        resumed_from=resumed["train"]["step"] if resumed else None,
        budget=budget,
        probed=probed,
        energy=watch.energy(told_energy(context.earlier)),
    )


def adamw(context: RunContext, parameters: Any) -> torch.optim.Optimizer:
    """Return the optimizer of a run: AdamW, in one kernel on a GPU."""
    s = context.settings
    how = {"lr": s.learning_rate, "weight_decay": s.weight_decay, "eps": s.adam_epsilon}
    return torch.optim.AdamW(parameters, fused=context.plan.use_gpu, **how)


def rewrapper(accelerator: Any, wrapped: Any) -> Callable[[], Any] | None:
    """Return what wraps the model anew: DDP learns at its start which parameters learn."""
    if accelerator.num_processes == 1:
        return None

    def rewrap() -> Any:
        accelerator._models.clear()
        return accelerator.prepare_model(accelerator.unwrap_model(wrapped, keep_fp32_wrapper=False))

    return rewrap


def _counted(
    meter: MemoryMeter, model: Any, first: int, steps: list[Any]
) -> Callable[[int], AbstractContextManager[Any]]:
    """Count live bytes around some steps (on a CPU): the first that this process makes at full."""
    mode = meter.watch_steps(model) if steps else None  # trained to the end before: no step
    counted = range(first, first + COUNTED_STEPS)
    return lambda step: mode if mode and step in counted else nullcontext()


def _watched(context: RunContext, task: Task, coming: list[Any], *, first: int) -> list[int]:
    """Return the steps whose phases are measured; `first`: the step whose rows come first."""
    plan = context.plan
    if not plan.use_gpu:
        return list(range(first, first + COUNTED_STEPS))
    most = plan.per_device_train_batch_size * plan.world_size

    def tokens(batch_rows: np.ndarray) -> int:  # the longest rows share the first micro-batch
        return int(np.sort(task.costs[batch_rows])[-most:].sum())

    return steps_to_watch(coming, tokens, first=first)


def watched_gpus(context: RunContext) -> dict[int, str]:
    """Return index and name of the run's GPUs that this rank can see: rank 0's node's."""
    plan = context.plan
    if not (context.is_main and plan.use_gpu):
        return {}
    # A run of several nodes is recorded before it is known which GPUs of which node it gets.
    machine = detect_hardware() if plan.num_nodes > 1 else context.hardware
    return {gpu.index: gpu.name for gpu in machine.gpus[: plan.processes_per_node]}


def _resume(
    context: RunContext,
    model: Any,
    optimizer: torch.optim.Optimizer,
    weights: SavedWeights = WHOLE_MODEL,
) -> tuple[TrainState, dict[str, Any] | None]:
    """Load the newest sound checkpoint into model and optimizer; return (state, its values)."""
    folder = context.run.checkpoints_path
    path = ck.agree(context.accelerator, folder, lambda: ck.find_last(folder, context.warn))
    if path is None:
        return TrainState(), None
    tensors, optimizer_state, values = ck.load_training_state(path, weights.file)
    weights.load(model, tensors)
    model.to(context.accelerator.device)  # the optimizer's state follows its parameters' device
    optimizer.load_state_dict(optimizer_state)
    context.emit("resumed", step=values["train"]["step"], checkpoint=path.name)
    if origin := context.facts.get("continues"):
        context.warn(
            f"Steps up to {origin['step']} are those of {origin['run_id']} ({origin['changes']}): "
            "the same experiment, but not bit-equal to a run of one split."
        )
    return TrainState.from_dict(values["train"]), values


def _load_best(context: RunContext, model: Any, weights: SavedWeights = WHOLE_MODEL) -> None:
    folder = context.run.checkpoints_path
    best = ck.agree(context.accelerator, folder, lambda: ck.find_best(folder))
    weights.load(model, read_state_dict(best / weights.file))


def _restore_scaler(context: RunContext, resumed: dict[str, Any] | None) -> None:
    scaler = context.accelerator.scaler
    if scaler is not None and resumed and resumed.get("scaler"):
        scaler.load_state_dict(resumed["scaler"])


class _Saver:
    """Writes checkpoints on rank 0 and keeps the clock of `save_minutes`."""

    def __init__(
        self,
        context: RunContext,
        save_files: Callable[[Path], None],
        model: Any,
        optimizer: Any,
        weights: SavedWeights,
    ) -> None:
        self.context, self.save_files, self.weights = context, save_files, weights
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
                model_state=self.weights.tensors(self.model),
                optimizer_state=self.optimizer.state_dict(),
                state={
                    "train": state.to_dict(),
                    "scaler": scaler.state_dict() if scaler is not None else None,
                },
                extra=self.save_files,
                is_best=is_best,
                keep=context.settings.save_total_limit,
                weights_name=self.weights.file,
            )
            context.emit_rank("checkpoint", step=state.step, path=str(path), is_best=is_best)
        context.accelerator.wait_for_everyone()
