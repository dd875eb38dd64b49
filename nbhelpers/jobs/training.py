"""Training of a task: optimizer, resume, checkpoints, measured memory; the same for all jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nbhelpers.hardware import Hardware, detect_hardware
from nbhelpers.jobs import checkpoint as ck
from nbhelpers.jobs.loop import Hooks, Task, Trainer, TrainState
from nbhelpers.jobs.measure import GpuWatch, MemoryMeter, told_energy
from nbhelpers.jobs.measure_phases import PhaseTimer, steps_to_watch
from nbhelpers.jobs.measure_run import meter_of, peaks_of, settle_budget
from nbhelpers.jobs.track import emitter
from nbhelpers.memory import MemoryBudget
from nbhelpers.models.weights import read_state_dict

if TYPE_CHECKING:
    from nbhelpers.jobs.session import Session

COUNTED_STEPS = 2  # on a CPU: the first step makes the optimizer's state, the second has it all


@dataclass(slots=True, kw_only=True)
class Training:
    """What training leaves behind for the result."""

    state: TrainState
    meter: MemoryMeter
    gpu: list[dict[str, Any]]
    resumed_from: int | None
    energy: dict[str, float] | None = None  # joules and mean watts, where NVML tells


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
    session: Session,
    task: Task,
    model: Any,
    *,
    predict: Callable[[list[Any]], MemoryBudget | None],
    save_files: Callable[[Path], None],
    groups: Callable[[Any], list[dict[str, Any]]] | None = None,
    weights: SavedWeights = WHOLE_MODEL,
) -> Training:
    """Train a task from the newest checkpoint, or from the start.

    The model ends as the best one, or as it is after the last step where a task does not select.

    Args:
        model: The bare model.
        predict: Given the optimizer steps to come, predicts the memory of the largest micro-batch.
        save_files: Writes configuration and tokenizer into a checkpoint folder.
        groups: Given the bare model, returns the optimizer's groups; None: all parameters alike.
        weights: What a checkpoint holds of the model.

    Raises:
        Stopped: A stop was asked for; a checkpoint was written first.
        NonFinite: A loss or gradients that are not finite.
        ConfigError: Too little disk.
    """
    session.check_disk(sum(tensor.numel() for tensor in weights.tensors(model).values()))
    accelerator, s = session.accelerator, session.settings
    if session.probe is not None:
        session.probe.take_over(task)
    optimizer = adamw(session, model.parameters() if groups is None else groups(model))
    state, resumed = _resume(session, model, optimizer, weights)
    task.start_epoch(state.epoch)  # what learns must be known before DDP looks
    wrapped, prepared = accelerator.prepare(model, optimizer)
    raw = accelerator.unwrap_model(wrapped)
    _restore_scaler(session, resumed)
    meter = meter_of(session, is_resumed=resumed is not None)
    measured = _measured_steps(session, task, state)
    settle_budget(session, predict(measured))
    saver = _Saver(session, save_files, raw, prepared, weights)
    hooks = Hooks(
        emit=emitter(session),
        save=saver,
        wants_stop=session.wants_stop,
        save_is_due=saver.is_due,
        peak_bytes=meter.peak_bytes,
        step_context=_counted(meter, raw, max(state.step, task.first_full_step), measured),
        phases=_phases(session, task, state, meter),
        rewrap=_rewrapper(accelerator, wrapped),
    )
    trainer = Trainer(
        task=task,
        model=wrapped,
        optimizer=prepared,
        accelerator=accelerator,
        settings=s,
        plan=session.plan,
        hooks=hooks,
    )
    session.clock.phase("train")
    gpus = watched_gpus(session)
    with GpuWatch(list(gpus), session.emit_main) as watch:
        trainer.fit(state)
    meter.begin_scoring()
    if task.selects_by is not None:
        _load_best(session, raw, weights)
    return Training(
        state=state,
        meter=meter,
        gpu=watch.summary(gpus),
        resumed_from=resumed["train"]["step"] if resumed else None,
        energy=watch.energy(told_energy(session.told)),
    )


def adamw(session: Session, parameters: Any) -> torch.optim.Optimizer:
    """Return the optimizer of a run: AdamW, in one kernel on a GPU."""
    s = session.settings
    how = {"lr": s.learning_rate, "weight_decay": s.weight_decay, "eps": s.adam_epsilon}
    return torch.optim.AdamW(parameters, fused=session.plan.use_gpu, **how)


def _rewrapper(accelerator: Any, wrapped: Any) -> Callable[[], Any] | None:
    """Return what wraps the model anew: DDP learns at its start which parameters learn."""
    if accelerator.num_processes == 1:
        return None

    def rewrap() -> Any:
        accelerator._models.clear()
        return accelerator.prepare_model(accelerator.unwrap_model(wrapped, keep_fp32_wrapper=False))

    return rewrap


def _counted(
    meter: MemoryMeter, model: Any, first: int, measured: list[Any]
) -> Callable[[int], AbstractContextManager[Any]]:
    """Count live bytes around some steps (on a CPU): the first that this process makes at full."""
    mode = meter.watch_steps(model) if measured else None  # trained to the end before: no step
    counted = range(first, first + COUNTED_STEPS)
    return lambda step: mode if mode and step in counted else nullcontext()


def _measured_steps(session: Session, task: Task, state: TrainState) -> list[Any]:
    """Return the optimizer steps whose memory is measured: all, or those counted on a CPU."""
    s = session.settings
    batches = [
        batch_rows
        for epoch in range(state.epoch, s.epochs)
        for batch_rows in task.global_batches(epoch)[state.window if epoch == state.epoch else 0 :]
    ]
    first = max(0, task.first_full_step - state.step)
    return batches if session.plan.use_gpu else batches[first : first + COUNTED_STEPS]


def _phases(session: Session, task: Task, state: TrainState, meter: MemoryMeter) -> PhaseTimer:
    """Return what times the phases of every step and measures the memory of some."""
    plan, full = session.plan, max(state.step, task.first_full_step)
    watched = list(range(full, full + COUNTED_STEPS))
    if plan.use_gpu:
        most = plan.per_device_train_batch_size * plan.world_size
        watched = steps_to_watch(
            _measured_steps(session, task, state)[full - state.step :],
            # The longest rows of a step share its first micro-batch.
            lambda batch_rows: int(np.sort(task.costs[batch_rows])[-most:].sum()),
            first=full,
        )
    memory = peaks_of(session, meter, watched)
    return PhaseTimer(session.accelerator.device, memory=memory)


def watched_gpus(session: Session) -> dict[int, str]:
    """Return index and name of the run's GPUs that this rank can see: rank 0's node's."""
    plan = session.plan
    if not (session.is_main and plan.use_gpu):
        return {}
    recorded = Hardware.from_dict(session.facts["hardware"])
    # A run of several nodes is recorded before it is known which GPUs of which node it gets.
    found = detect_hardware() if plan.num_nodes > 1 else recorded
    return {gpu.index: gpu.name for gpu in found.gpus[: plan.processes_per_node]}


def _resume(
    session: Session,
    model: Any,
    optimizer: torch.optim.Optimizer,
    weights: SavedWeights = WHOLE_MODEL,
) -> tuple[TrainState, dict[str, Any] | None]:
    """Load the newest sound checkpoint into model and optimizer; return (state, its values)."""
    folder = session.run.checkpoints_path
    path = ck.agree(session.accelerator, folder, lambda: ck.find_last(folder, session.warn))
    if path is None:
        return TrainState(), None
    tensors, optimizer_state, values = ck.load_training_state(path, weights.file)
    weights.load(model, tensors)
    model.to(session.accelerator.device)  # the optimizer's state follows its parameters' device
    optimizer.load_state_dict(optimizer_state)
    session.emit_main("resumed", step=values["train"]["step"], checkpoint=path.name)
    return TrainState.from_dict(values["train"]), values


def _load_best(session: Session, model: Any, weights: SavedWeights = WHOLE_MODEL) -> None:
    folder = session.run.checkpoints_path
    best = ck.agree(session.accelerator, folder, lambda: ck.find_best(folder))
    weights.load(model, read_state_dict(best / weights.file))


def _restore_scaler(session: Session, resumed: dict[str, Any] | None) -> None:
    scaler = session.accelerator.scaler
    if scaler is not None and resumed and resumed.get("scaler"):
        scaler.load_state_dict(resumed["scaler"])


class _Saver:
    """Writes checkpoints on rank 0 and keeps the clock of `save_minutes`."""

    def __init__(
        self,
        session: Session,
        save_files: Callable[[Path], None],
        model: Any,
        optimizer: Any,
        weights: SavedWeights,
    ) -> None:
        self.session, self.save_files, self.weights = session, save_files, weights
        self.model, self.optimizer = model, optimizer
        self._last = time.monotonic()

    def is_due(self) -> bool:
        minutes = self.session.settings.save_minutes
        return minutes is not None and time.monotonic() - self._last > 60 * minutes

    def __call__(self, state: TrainState, *, is_best: bool) -> None:
        session = self.session
        self._last = time.monotonic()
        if session.is_main:
            scaler = session.accelerator.scaler
            path = ck.save_checkpoint(
                session.run.checkpoints_path,
                step=state.step,
                model_state=self.weights.tensors(self.model),
                optimizer_state=self.optimizer.state_dict(),
                state={
                    "train": state.to_dict(),
                    "scaler": scaler.state_dict() if scaler is not None else None,
                },
                extra=self.save_files,
                is_best=is_best,
                keep=session.settings.save_total_limit,
                weights_name=self.weights.file,
            )
            session.writer.write("checkpoint", step=state.step, path=str(path), is_best=is_best)
        session.accelerator.wait_for_everyone()
