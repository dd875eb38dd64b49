"""What a job is given in one process: settings and plan in force, and how the run speaks.

`worker` makes a context once the processes have found each other; the simulation and the tests make
one of the same class, where what is not given is silent.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs

from nbhelpers.budget.memory import MemoryBudget
from nbhelpers.errors import ConfigError, Stopped
from nbhelpers.hardware.detection import Hardware
from nbhelpers.hardware.gpus import known_gpus
from nbhelpers.jobs.measure import CardMemory, Clock
from nbhelpers.plan import BatchPlan
from nbhelpers.presets.preset import Preset
from nbhelpers.runs.run import Run

# Few large buckets: on short micro-steps their launches cost more than they hide.
DDP_OPTIONS = {
    "gradient_as_bucket_view": True,
    "broadcast_buffers": False,
    "bucket_cap_mb": 100,
}


def _silent(kind: str, **fields: Any) -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the largest batch of the data was simulated to need; the same on every rank.

    Attributes:
        budget: None: nothing was simulated, or it failed.
        is_compiled: Whether blocks were taken for compiled.
        seconds: How long the run waited for it.
    """

    budget: MemoryBudget | None = None
    is_compiled: bool | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What a job needs to know of its run, in one process.

    Attributes:
        settings: Those in force; `preset` has them as they were launched.
        precision: bf16, fp16 or fp32.
        run: The run's folder; None where there is none, under simulation.
        facts: `run.json`.
        rank: Of this process.
        emit_rank: Writes an event of this rank: (type, **fields).
        wants_stop: Whether a stop was asked for.
        clock: Seconds by phase.
        earlier: Events of earlier attempts at this run, as this rank wrote them.
        card: What the GPU held before this process; None without a GPU.
        checkpoint: The weights that an evaluation scores; None where the run trains.
        forecast: The memory of the largest batch, as it was simulated before the model was loaded.
        warnings: What was warned of so far.
        early: What `JobSpec.early` returned; None: nothing was begun.
    """

    settings: Any
    plan: BatchPlan
    accelerator: Any
    precision: str
    run: Run | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    rank: int = 0
    emit_rank: Callable[..., None] = _silent
    wants_stop: Callable[[], bool] = bool
    clock: Clock = field(default_factory=lambda: Clock(_silent))
    earlier: Sequence[Mapping[str, Any]] = ()
    card: CardMemory | None = None
    checkpoint: Path | None = None
    forecast: Forecast = Forecast()
    warnings: list[str] = field(default_factory=list)
    early: Any = None

    @property
    def is_evaluation(self) -> bool:
        """Whether a checkpoint is scored, and nothing is trained."""
        return self.facts.get("mode") == "evaluate"

    @property
    def is_probe(self) -> bool:
        """Whether a few steps are all that is wanted."""
        return self.facts.get("mode") == "probe"

    @property
    def preset(self) -> Preset:
        """The preset, as it was launched."""
        return Preset.from_dict(self.facts["preset"])

    @property
    def hardware(self) -> Hardware:
        """The machine, as it was recorded at the launch."""
        return Hardware.from_dict(self.facts["hardware"])

    @property
    def gpu_tflops(self) -> float | None:
        """The GPU's dense half-precision throughput, where the table knows it."""
        gpu = self.hardware.gpu
        spec = known_gpus().get(gpu.key) if gpu and gpu.key else None
        return (spec.bf16_tflops or spec.fp16_tflops) if spec else None

    @property
    def is_main(self) -> bool:
        """Rank 0 writes what the whole job has once."""
        return self.rank == 0

    def emit(self, kind: str, **fields: Any) -> None:
        """Write an event, on rank 0 only."""
        if self.is_main:
            self.emit_rank(kind, **fields)

    def warn(self, message: str) -> None:
        """Tell the user something that does not stop the run, once."""
        if message not in self.warnings:
            self.warnings.append(message)
            self.emit("warning", message=message)

    def warn_all(self, messages: Sequence[str]) -> None:
        """Tell each of them, such as what is said of data while they are read."""
        for message in messages:
            self.warn(message)

    def progress(self, name: str) -> Callable[[int, int], None]:
        """Return a reporter that writes a `progress` event about twice a second."""
        last = [0.0]

        def report(done: int, total: int) -> None:
            now = time.monotonic()
            if now - last[0] > 0.5 or done == total:
                last[0] = now
                self.emit("progress", name=name, done=done, total=total)
            if self.wants_stop() and self.plan.world_size == 1:
                raise Stopped(f"Stopped on request during {name}.", fix="launch again to go on")

        return report

    def pretraining(self) -> Callable[[int, int], None]:
        """Return a reporter that makes pre-training a phase: it is done once, then cached."""
        progress, began = self.progress("pretrain"), []

        def report(done: int, total: int) -> None:
            if not began:
                began.append(done)
                self.clock.phase("pretrain")
            progress(done, total)
            if done == total:
                self.clock.phase("model")

        return report

    def check_disk(self, parameters: int) -> None:
        """Stop before training when the checkpoints cannot fit the disk.

        Raises:
            ConfigError: They cannot; names the sizes.
        """
        need = 4 * parameters * 3 * (self.settings.save_total_limit + 2)
        free = shutil.disk_usage(self.run.path).free
        if self.is_main and free < need:
            raise ConfigError(
                f"Checkpoints need {need / 2**30:.1f} GiB of disk at {self.run.path}; "
                f"{free / 2**30:.1f} GiB are free.",
                fix="free space, set save_total_limit=1, or set run_dir to another disk",
            )


def start_accelerator(precision: str, plan: BatchPlan, **options: Any) -> Accelerator:
    """Set torch's switches as every run has them, and let the processes find each other.

    Args:
        precision: bf16, fp16 or fp32.
        options: Further ones of `Accelerator`.
    """
    torch.set_float32_matmul_precision("high")
    # cuDNN's attention makes a plan for each new shape, and length buckets have many shapes.
    torch.backends.cuda.enable_cudnn_sdp(False)
    ddp = DistributedDataParallelKwargs(**DDP_OPTIONS)
    # Rank 0 may download or pre-train for long while the others wait in a barrier.
    patience = InitProcessGroupKwargs(timeout=timedelta(hours=3))
    return Accelerator(
        mixed_precision="no" if precision == "fp32" else precision,
        cpu=not plan.use_gpu,
        kwargs_handlers=[ddp, patience],
        **options,
    )
