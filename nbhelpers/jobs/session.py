"""One worker's life: check, data, model, train, evaluate, result. The same order for every job."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs

from nbhelpers.batching import BatchPlan
from nbhelpers.config import Preset
from nbhelpers.errors import ConfigError, HardwareError, Stopped
from nbhelpers.events import EventWriter
from nbhelpers.hardware import Hardware, known_gpus
from nbhelpers.jobs import checkpoint as ck
from nbhelpers.jobs import clones, outcome
from nbhelpers.jobs.loop import Hooks, Trainer, TrainState, seed_everything
from nbhelpers.jobs.measure import Clock, GpuWatch, MemoryMeter
from nbhelpers.jobs.schedule import epoch_windows
from nbhelpers.memory import MemoryBudget
from nbhelpers.models.weights import read_state_dict
from nbhelpers.runs import Run

COUNTED_STEPS = 2  # on a CPU: the first step makes the optimizer's state, the second has it all
VERSIONS = (
    "nbhelpers",
    "torch",
    "transformers",
    "accelerate",
    "tokenizers",
    "numpy",
    "scikit-learn",
)


class Session:
    """What a job needs in one process."""

    def __init__(self, run: Run, writer: EventWriter, stop: Callable[[], bool]) -> None:
        """Read the run folder; nothing heavy happens yet."""
        self.run, self.writer, self.wants_stop = run, writer, stop
        self.facts = run.read_json()
        self.preset = Preset.from_dict(self.facts["preset"])
        self.plan = BatchPlan.from_dict(self.facts["plan"])
        self.settings = self.preset.settings
        self.warnings: list[str] = []
        self.clock = Clock(self.emit_main)
        self.accelerator: Accelerator | None = None
        self.data_budget: MemoryBudget | None = None

    @property
    def is_main(self) -> bool:
        """Rank 0 writes what the whole job has once."""
        return self.writer.rank == 0

    def emit_main(self, kind: str, **fields: Any) -> None:
        """Write an event, on rank 0 only."""
        if self.is_main:
            self.writer.write(kind, **fields)

    def warn(self, message: str) -> None:
        """Tell the user something that does not stop the run, once."""
        if message not in self.warnings:
            self.warnings.append(message)
            self.emit_main("warning", message=message)

    def progress(self, name: str) -> Callable[[int, int], None]:
        """Return a reporter that writes a `progress` event about twice a second."""
        last = [0.0]

        def report(done: int, total: int) -> None:
            now = time.monotonic()
            if now - last[0] > 0.5 or done == total:
                last[0] = now
                self.emit_main("progress", name=name, done=done, total=total)
            if self.wants_stop() and self.plan.world_size == 1:
                raise Stopped(f"Stopped on request during {name}.", fix="launch again to go on")

        return report

    def check(self) -> None:
        """Compare the world with the plan before anything is loaded.

        Raises:
            HardwareError: Other processes, devices or precision than planned.
            ConfigError: Settings that this job refuses, all at once.
        """
        self.clock.phase("check")
        real = int(os.environ.get("WORLD_SIZE", "1"))
        if real != self.plan.world_size:
            raise HardwareError(
                f"The plan is for {self.plan.world_size} processes, but {real} were started.",
                fix="launch again; if it repeats, read launcher.log in the run folder",
            )
        if self.plan.use_gpu:
            self._check_gpu()
        problems = [*clones.check(self.settings), *outcome.check_tracker(self.settings.track)]
        if problems:
            raise ConfigError("; ".join(problems), fix="change these settings and launch again")
        self._start_accelerator()

    def _check_gpu(self) -> None:
        found = torch.cuda.device_count()
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= found:
            raise HardwareError(
                f"Process {local} needs a GPU of its own; torch {torch.__version__} sees {found}.",
                fix="check CUDA_VISIBLE_DEVICES, and that torch was built for this driver",
            )
        if self.precision == "bf16" and torch.cuda.get_device_capability(local) < (8, 0):
            raise HardwareError(
                f"{torch.cuda.get_device_name(local)} has no native bf16.", fix="set precision=fp16"
            )

    @property
    def precision(self) -> str:
        """The precision in force: the setting, or by capability for `auto`."""
        chosen = self.settings.precision
        if chosen != "auto":
            return chosen
        hardware = Hardware.from_dict(self.facts["hardware"])
        return hardware.precision if self.plan.use_gpu else "fp32"

    def _start_accelerator(self) -> None:
        precision = "no" if self.precision == "fp32" else self.precision
        torch.set_float32_matmul_precision("high")
        # cuDNN's attention makes a plan for each new shape, and length buckets have many shapes.
        torch.backends.cuda.enable_cudnn_sdp(False)
        ddp = DistributedDataParallelKwargs(gradient_as_bucket_view=True, broadcast_buffers=False)
        # Rank 0 may download or pre-train for long while the others wait in a barrier.
        patience = InitProcessGroupKwargs(timeout=timedelta(hours=3))
        trackers = None if self.settings.track == "none" else [self.settings.track]
        self.accelerator = Accelerator(
            mixed_precision=precision,
            cpu=not self.plan.use_gpu,
            kwargs_handlers=[ddp, patience],
            log_with=trackers,
            project_dir=str(self.run.path),
        )
        if self.accelerator.num_processes != self.plan.world_size:
            raise HardwareError(
                f"Accelerate made {self.accelerator.num_processes} processes of "
                f"{self.plan.world_size} planned ones.",
                fix="report this with launcher.log: the processes did not find each other",
            )
        self.writer.write(
            "start",
            rank=self.writer.rank,
            world_size=self.plan.world_size,
            device=str(self.accelerator.device),
            pid=os.getpid(),
        )
        if trackers:
            outcome.start_tracker(self)

    def check_disk(self, parameters: int) -> None:
        """Stop before training when the checkpoints cannot fit the disk."""
        need = 4 * parameters * 3 * (self.settings.save_total_limit + 2)
        free = shutil.disk_usage(self.run.path).free
        if self.is_main and free < need:
            raise ConfigError(
                f"Checkpoints need {need / 2**30:.1f} GiB of disk at {self.run.path}; "
                f"{free / 2**30:.1f} GiB are free.",
                fix="free space, set save_total_limit=1, or set run_dir to another disk",
            )


def work(run: Run, writer: EventWriter, stop: Callable[[], bool]) -> None:
    """Do the job of a run folder, in this process and rank."""
    session = Session(run, writer, stop)
    session.check()
    session.clock.phase("data")
    evaluate_only = session.facts["mode"] == "evaluate"
    require = ("test",) if evaluate_only else ("train", "valid", "test")
    if evaluate_only:
        session.settings = outcome.settings_for_checkpoint(session)
    with session.accelerator.main_process_first():
        inputs = clones.build_data(
            session.settings, require=require, report=session.progress("tokenise")
        )
    if inputs.table.truncated:
        share = inputs.table.truncated / len(inputs.data.functions)
        session.warn(
            f"{inputs.table.truncated} functions ({share:.1%}) are longer than "
            f"seq_len={session.settings.seq_len} and are cut."
        )
    session.clock.phase("model")
    seed_everything(session.settings.seed)
    with session.accelerator.main_process_first():
        model = clones.build_model(session.settings, inputs, report=session.progress("pretrain"))
    if evaluate_only:
        path = outcome.checkpoint_file(session)
        clones.load_weights(model, read_state_dict(path), str(path))
        model.to(session.accelerator.device)
        state, task = (
            TrainState(),
            clones.PairTask(session.settings, inputs, session.accelerator, model),
        )
        outcome.finish(session, inputs, task, state, MemoryMeter(session.accelerator.device), [])
        return
    _train(session, inputs, model)


def _train(session: Session, inputs: clones.Inputs, model: Any) -> None:
    session.check_disk(sum(p.numel() for p in model.parameters()))
    accelerator, s = session.accelerator, session.settings
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=s.learning_rate,
        weight_decay=s.weight_decay,
        eps=s.adam_epsilon,
        fused=session.plan.use_gpu,
    )
    state, resumed = _resume(session, model, optimizer)
    wrapped, prepared = accelerator.prepare(model, optimizer)
    raw = accelerator.unwrap_model(wrapped)
    _restore_scaler(session, resumed)
    task = clones.PairTask(s, inputs, accelerator, raw, gpu_tflops=_tflops(session))
    meter = MemoryMeter(accelerator.device)
    saver = _Saver(session, inputs, raw, prepared)
    trainer = Trainer(
        task=task,
        model=wrapped,
        optimizer=prepared,
        accelerator=accelerator,
        settings=s,
        plan=session.plan,
        hooks=Hooks(
            emit=outcome.emitter(session),
            save=saver,
            wants_stop=session.wants_stop,
            save_is_due=saver.is_due,
            peak_bytes=meter.peak_bytes,
            step_context=_counted(meter, raw, state.step),
        ),
    )
    session.data_budget = outcome.predict_for_data(session, task, _windows(session, task, state))
    if session.data_budget is not None:
        session.emit_main("memory", predicted_bytes=session.data_budget.allocated_bytes)
    session.clock.phase("train")
    with GpuWatch(_gpu_indices(session), session.emit_main) as watch:
        trainer.fit(state)
        session.clock.phase("evaluate")
        best = ck.find_best(session.run.checkpoints_path)
        raw.load_state_dict(read_state_dict(best / "model.safetensors"))
        names = {g["index"]: g["name"] for g in session.facts["hardware"]["gpus"]}
        outcome.finish(session, inputs, task, state, meter, watch.summary(names), resumed=resumed)


def _counted(
    meter: MemoryMeter, model: Any, first: int
) -> Callable[[int], AbstractContextManager[Any]]:
    """Count live bytes around the first steps that this process makes (on a CPU)."""
    mode = meter.watch_steps(model)
    return lambda step: mode if mode and step < first + COUNTED_STEPS else nullcontext()


def _windows(session: Session, task: clones.PairTask, state: TrainState) -> list[Any]:
    """Return the optimizer steps whose memory is measured: all, or those counted on a CPU."""
    s = session.settings
    windows = [
        window
        for epoch in range(state.epoch, s.epochs)
        for window in epoch_windows(len(task.costs), s.global_batch_size, seed=s.seed, epoch=epoch)[
            state.window if epoch == state.epoch else 0 :
        ]
    ]
    return windows if session.plan.use_gpu else windows[:COUNTED_STEPS]


def _tflops(session: Session) -> float | None:
    """Return the GPU's dense half-precision throughput, where the table knows it."""
    gpu = Hardware.from_dict(session.facts["hardware"]).gpu
    spec = known_gpus().get(gpu.key) if gpu and gpu.key else None
    return (spec.bf16_tflops or spec.fp16_tflops) if spec else None


def _gpu_indices(session: Session) -> list[int]:
    if not (session.is_main and session.plan.use_gpu):
        return []
    return [g["index"] for g in session.facts["hardware"]["gpus"]][: session.plan.world_size]


def _resume(
    session: Session, model: Any, optimizer: torch.optim.Optimizer
) -> tuple[TrainState, dict[str, Any] | None]:
    """Load the newest sound checkpoint into model and optimizer; return (state, its values)."""
    path = ck.find_last(session.run.checkpoints_path, session.warn)
    if path is None:
        return TrainState(), None
    tensors, optimizer_state, values = ck.load_training_state(path)
    model.load_state_dict(tensors)
    model.to(session.accelerator.device)  # the optimizer's state follows its parameters' device
    optimizer.load_state_dict(optimizer_state)
    session.emit_main("resumed", step=values["train"]["step"], checkpoint=path.name)
    return TrainState(**values["train"]), values


def _restore_scaler(session: Session, resumed: dict[str, Any] | None) -> None:
    scaler = session.accelerator.scaler
    if scaler is not None and resumed and resumed.get("scaler"):
        scaler.load_state_dict(resumed["scaler"])


class _Saver:
    """Writes checkpoints on rank 0 and keeps the clock of `save_minutes`."""

    def __init__(self, session: Session, inputs: clones.Inputs, model: Any, optimizer: Any) -> None:
        self.session, self.inputs, self.model, self.optimizer = session, inputs, model, optimizer
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
                model_state=self.model.state_dict(),
                optimizer_state=self.optimizer.state_dict(),
                state={
                    "train": state.to_dict(),
                    "scaler": scaler.state_dict() if scaler is not None else None,
                },
                extra=self._write_model_files,
                is_best=is_best,
                keep=session.settings.save_total_limit,
            )
            session.writer.write("checkpoint", step=state.step, path=str(path), is_best=is_best)
        session.accelerator.wait_for_everyone()

    def _write_model_files(self, folder: Path) -> None:
        self.inputs.found.config.save_pretrained(folder)
        self.inputs.found.tokenizer.save_pretrained(folder)


def library_versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    found = {"python": platform.python_version(), "cuda": torch.version.cuda or "none"}
    for name in VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed as a package"
    return found
