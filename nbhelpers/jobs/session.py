"""One worker's life: check, build data, build model, train, evaluate; the same for every job."""

from __future__ import annotations

import importlib
import os
import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs

from nbhelpers.batching import BatchPlan
from nbhelpers.config import Preset
from nbhelpers.errors import ConfigError, HardwareError, Stopped
from nbhelpers.events import EventWriter, phase_seconds, read_events
from nbhelpers.hardware import Hardware, known_gpus
from nbhelpers.job_specs import JOBS
from nbhelpers.jobs import outcome
from nbhelpers.jobs.loop import seed_everything
from nbhelpers.jobs.measure import Clock
from nbhelpers.jobs.measure_context import CardMemory
from nbhelpers.jobs.track import check_tracker, start_tracker
from nbhelpers.memory import MemoryBudget
from nbhelpers.runs import Run

if TYPE_CHECKING:
    from nbhelpers.jobs.probe import Probe

# Few large buckets: on short micro-steps their launches cost more than they hide.
DDP_OPTIONS = {
    "gradient_as_bucket_view": True,
    "broadcast_buffers": False,
    "bucket_cap_mb": 100,
}


def job_module(name: str) -> Any:
    """Return the five functions of a job; only that job's libraries are imported."""
    return importlib.import_module(JOBS[name].worker)


class Session:
    """What a job needs in one process."""

    def __init__(
        self,
        run: Run,
        writer: EventWriter,
        stop: Callable[[], bool],
        *,
        began: float | None = None,
    ) -> None:
        """Read the run folder; nothing heavy happens yet."""
        self.run, self.writer, self.wants_stop = run, writer, stop
        self.facts = run.read_json()
        self.preset = Preset.from_dict(self.facts["preset"])
        self.plan = BatchPlan.from_dict(self.facts["plan"])
        self.settings = self.preset.settings
        self.job = job_module(self.facts["job"])
        self.checkpoint: Path | None = None  # the weights that an evaluation run scores
        self.warnings: list[str] = []
        self.told = read_events(writer.path)  # by earlier attempts at this run
        self.clock = Clock(self.emit_main, earlier=phase_seconds(self.told), began=began)
        self.accelerator: Accelerator | None = None
        self.data_budget: MemoryBudget | None = None
        self.compiled: dict[str, Any] | None = None  # what became of compiled blocks
        self.probe: Probe | None = None  # where a few steps are all that is wanted
        self.load_peak_bytes = 0  # of the allocator, where the model was built on the GPU
        self.card: CardMemory | None = None  # what the GPU held before this process

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

    def pretraining(self) -> Callable[[int, int], None]:
        """Return a reporter that makes pre-training a phase: it is done once, then cached."""
        tell, began = self.progress("pretrain"), []

        def report(done: int, total: int) -> None:
            if not began:
                began.append(done)
                self.clock.phase("pretrain")
            tell(done, total)
            if done == total:
                self.clock.phase("model")

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
        problems = [*self.job.check(self.settings), *check_tracker(self.settings.track)]
        if problems:
            raise ConfigError("; ".join(problems), fix="change these settings and launch again")
        self._start_accelerator()

    def _check_gpu(self) -> None:
        found = torch.cuda.device_count()
        local = int(os.environ.get("LOCAL_RANK", "0"))
        self.card = CardMemory(local, notebook_pid=self.facts.get("launched_by"))
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

    @property
    def gpu_tflops(self) -> float | None:
        """The GPU's dense half-precision throughput, where the table knows it."""
        gpu = Hardware.from_dict(self.facts["hardware"]).gpu
        spec = known_gpus().get(gpu.key) if gpu and gpu.key else None
        return (spec.bf16_tflops or spec.fp16_tflops) if spec else None

    def _start_accelerator(self) -> None:
        precision = "no" if self.precision == "fp32" else self.precision
        torch.set_float32_matmul_precision("high")
        # cuDNN's attention makes a plan for each new shape, and length buckets have many shapes.
        torch.backends.cuda.enable_cudnn_sdp(False)
        ddp = DistributedDataParallelKwargs(**DDP_OPTIONS)
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
            start_tracker(self)

    def note_loaded(self) -> None:
        """Remember what building the model took of the GPU, before anything else is tried on it."""
        if self.accelerator.device.type == "cuda":
            self.load_peak_bytes = torch.cuda.max_memory_allocated(self.accelerator.device)

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


def work(
    run: Run, writer: EventWriter, stop: Callable[[], bool], *, began: float | None = None
) -> None:
    """Do the job of a run folder, in this process and rank; `began`: see `Clock`."""
    session = Session(run, writer, stop, began=began)
    job = session.job
    session.check()
    session.clock.phase("data")
    if session.facts["mode"] == "evaluate":
        session.checkpoint = outcome.checkpoint_file(Path(session.facts["checkpoint"]))
        session.settings = outcome.settings_for_checkpoint(
            session.facts["job"], session.settings, session.checkpoint
        )
    if session.facts["mode"] == "probe":
        from nbhelpers.jobs.probe import Probe

        session.probe = Probe(session)
    with session.accelerator.main_process_first():
        inputs = job.build_data(session)
    session.clock.phase("model")
    seed_everything(session.settings.seed)
    with session.accelerator.main_process_first():
        model = job.build_model(session, inputs)
    session.note_loaded()
    if session.probe is not None:
        session.probe.run(lambda: job.train(session, inputs, model))
        return
    if session.checkpoint:
        training = None
        model.to(session.accelerator.device)
    else:
        training = job.train(session, inputs, model)
    session.clock.phase("evaluate")
    job.evaluate(session, inputs, model, training)
