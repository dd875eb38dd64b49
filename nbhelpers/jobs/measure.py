"""What a run really used: memory of tensors, the allocator's peak, the process, the GPUs."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nbhelpers.budget.memory import held_memory
from nbhelpers.hardware.detection import detect_hardware
from nbhelpers.hardware.gpus import Gpu

# ------------------------------------------------------------------------------------------------
# What a GPU holds beside the tensors of a run: CUDA's context, and what others left there.


# A context below or above that is a sign that others took or freed memory in between.
CONTEXT_RANGE = (64 << 20, 6 << 30)


class CardMemory:
    """The GPU of this rank, read by NVML before CUDA starts and when the first steps are made.

    The context grows as kernels are loaded, and NCCL takes its part with the first collective, so
    it is read after steps, not at the start.
    """

    def __init__(self, index: int, *, notebook_pid: int | None = None) -> None:
        """Read the card; make no context.

        Args:
            index: Of the GPUs that this process sees.
            notebook_pid: The process that launched the run: what it holds is left from its cells.
        """
        self.index, self.context_bytes = index, None
        self._before = self._read()
        self.held = None
        if self._before is not None:
            self.held = held_memory(self._before, notebook_pid=notebook_pid or -1)

    def _read(self) -> Gpu | None:
        gpus = detect_hardware().gpus
        gpu = gpus[self.index] if self.index < len(gpus) else None
        return gpu if gpu is not None and gpu.memory_total_bytes else None

    def read(self, device: torch.device) -> None:
        """Measure the context now, which this process must have."""
        now = self._read()
        if now is None or self._before is None:
            return
        own = [p.memory_bytes for p in now.processes if p.pid == os.getpid() and p.memory_bytes]
        used = own[0] if own else self._before.memory_free_bytes - now.memory_free_bytes
        size = used - torch.cuda.memory_reserved(device)
        if CONTEXT_RANGE[0] <= size <= CONTEXT_RANGE[1]:
            self.context_bytes = size

    def facts(self) -> dict[str, Any]:
        """Return this card's part of a rank's line in `result.json`."""
        sizes: dict[str, Any] = {"context_bytes": self.context_bytes}
        if self.held is not None:
            sizes["other_processes_bytes"] = self.held.other_processes_bytes
            sizes["earlier_bytes"] = self.held.earlier_bytes
        return sizes


# ------------------------------------------------------------------------------------------------
# What a run really used: memory of tensors, the allocator's peak, the process, the GPUs.


# What a phase of a run is called where memory is told.
MEMORY_PHASES = {"model": "load", "evaluate": "evaluation"}


@dataclass(slots=True)
class Where:
    """What this process is doing, for the message when memory runs out."""

    phase: str = ""
    step: int | None = None  # the optimizer step that is being made, 0-based

    def enter(self, phase: str, *, step: int | None = None) -> None:
        """Begin a phase."""
        self.phase, self.step = phase, step

    def words(self) -> str:
        """Say it: "backward of optimizer step 3"; nothing before the first phase."""
        if self.phase in ("forward", "backward", "optimizer") and self.step is not None:
            return f"{self.phase} of optimizer step {self.step + 1}"
        return self.phase


HERE = Where()


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are alive on a CPU, where no allocator tells.

    Use it around a few steps: every operation passes through Python, which slows them.
    """

    def __init__(self, existing: Iterable[torch.Tensor]) -> None:
        """Start with tensors that are alive already."""
        super().__init__()
        self.live_bytes = self.peak_bytes = self.phase_bytes = 0
        self._known: set[int] = set()
        for tensor in existing:
            self._add(tensor)

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        size = storage.nbytes()
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self.phase_bytes = max(self.phase_bytes, self.live_bytes)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live_bytes -= size

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation and count what it made."""
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        return out


class MemoryMeter:
    """Peak memory of this rank's training: the CUDA allocator's, or live tensor bytes on a CPU.

    `phases` holds the peak of each phase that was noted. `take` ends a phase; the peaks over all
    of them, `peak_bytes` and `reserved_bytes`, are kept.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        card: CardMemory | None = None,
        phases: Mapping[str, int] | None = None,
    ) -> None:
        """Start counting.

        Args:
            card: Tells of the GPU what the allocator does not.
            phases: Peaks by phase that are known already.
        """
        self.device, self.card, self.mode = device, card, None
        self.phases = dict(phases or {})
        self.snapshot: dict[str, Any] | None = None
        self._peak = self._reserved = 0
        self._scores, self._has_scored = False, False
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    @property
    def where(self) -> str:
        """The device's name, for peaks of earlier attempts."""
        cuda = self.device.type == "cuda"
        return torch.cuda.get_device_name(self.device) if cuda else "cpu"

    def watch_steps(self, model: torch.nn.Module) -> LiveBytes | None:
        """Return a context for the first optimizer steps on a CPU; None on a GPU."""
        if self.device.type == "cuda":
            return None
        self.mode = LiveBytes([*model.parameters(), *model.buffers()])
        self.note("load", self.mode.live_bytes)
        return self.mode

    def peak_bytes(self) -> int:
        """Return the peak so far."""
        if self.device.type == "cuda":
            return max(self._peak, torch.cuda.max_memory_allocated(self.device))
        return self.mode.peak_bytes if self.mode else 0

    def reserved_bytes(self) -> int:
        """Return the most that the allocator took from the card so far; 0 on a CPU."""
        if self.device.type != "cuda":
            return 0
        return max(self._reserved, torch.cuda.max_memory_reserved(self.device))

    def take(self) -> int:
        """Return the peak since the last call, and begin anew; no sync: the host knows it."""
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device)
            self._peak, self._reserved = self.peak_bytes(), self.reserved_bytes()
            torch.cuda.reset_peak_memory_stats(self.device)
            return peak
        if self.mode is None:
            return 0
        peak, self.mode.phase_bytes = self.mode.phase_bytes, self.mode.live_bytes
        return peak

    def take_beside(self, hidden: tuple[int, int]) -> int:
        """Return as `take` does, with memory that the allocator does not tell of.

        A CUDA graph computes in memory that counted as allocated only when it was captured.

        Args:
            hidden: Bytes of the phase in a graph, at its peak and held at its end.
        """
        peak, held = hidden
        size = max(torch.cuda.memory_allocated(self.device) + peak, self.take() + held)
        self._peak = max(self._peak, size)
        return size

    def note(self, phase: str, size_bytes: int) -> None:
        """Keep the peak of a phase, the largest of all its times."""
        if size_bytes:
            self.phases[phase] = max(self.phases.get(phase, 0), size_bytes)

    @contextmanager
    def counted_evaluation(self) -> Iterator[bool]:
        """Note what an evaluation needs; yields whether it is counted.

        On a CPU only the first is, and it does not move `peak_bytes`, which is of training steps.
        """
        is_counted = self.device.type == "cuda" or not (self.mode is None or self._has_scored)
        if not is_counted:
            yield False
            return
        self._has_scored = True
        self.take()
        if self.mode is None:
            yield True
        else:
            peak = self.mode.peak_bytes
            with self.mode:
                yield True
            self.mode.peak_bytes = peak
        self.note("evaluation", self.take())

    def begin_scoring(self) -> None:
        """Say that training is over: what comes until `facts` is evaluation."""
        self.take()
        self._scores = self.device.type == "cuda"

    def read_context(self) -> None:
        """Measure what CUDA took beside the allocator, once."""
        if self.card is not None and self.card.context_bytes is None:
            self.card.read(self.device)

    def facts(self, rank: int) -> dict[str, Any]:
        """Return this rank's line of `result.json`."""
        if self._scores:
            self.note("evaluation", self.take())
        self.read_context()
        line = {
            "rank": rank,
            "peak_allocated_bytes": self.peak_bytes(),
            "peak_reserved_bytes": self.reserved_bytes(),
            "rss_bytes": peak_rss_bytes(),
            "phases": self.phases,
            "snapshot": self.snapshot,
        }
        return line | (self.card.facts() if self.card is not None else {})


def peak_rss_bytes() -> int:
    """Return the largest resident set of this process so far, libraries included.

    Linux's `ru_maxrss` begins with what the parent held when it started this process, so the
    process's own mark is read where there is one.
    """
    import resource
    import sys

    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        mark = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(mark.split()[1]) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


class GpuWatch:
    """Samples utilisation and memory of the run's GPUs by NVML, in a thread, as `gpu` events."""

    def __init__(self, indices: list[int], emit: Callable[..., None], every_s: float = 2.0) -> None:
        """Watch the GPUs with these NVML indices; none: do nothing."""
        self.indices, self.emit, self.every_s = indices, emit, every_s
        self.samples: dict[int, list[tuple[float, int]]] = {index: [] for index in indices}
        self.watts: list[float] = []  # of all watched GPUs together
        self._since, self._lasted_s = time.monotonic(), 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> GpuWatch:
        """Start watching."""
        self._since = time.monotonic()
        if self.indices:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self._lasted_s = time.monotonic() - self._since
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _watch(self) -> None:
        from nbhelpers.hardware.detection import utilisation

        while not self._end.wait(self.every_s):
            readings = utilisation(self.indices)
            for reading in readings:
                load, used = reading["utilisation_percent"], reading["memory_used_bytes"]
                if load is not None and used is not None:
                    self.samples.setdefault(reading["index"], []).append((load, used))
            power = [reading["power_w"] for reading in readings]
            if power and None not in power:
                self.watts.append(sum(power))
            if readings:
                self.emit("gpu", gpus=readings)

    def energy(self, earlier: tuple[float, float] = (0.0, 0.0)) -> dict[str, float] | None:
        """Return joules and mean watts of the watched GPUs; None if NVML is silent.

        Args:
            earlier: Joules and seconds of earlier attempts (`told_energy`).
        """
        joules, seconds = earlier
        if self.watts:
            joules += sum(self.watts) / len(self.watts) * self._lasted_s
            seconds += self._lasted_s
        return {"joules": joules, "watts_mean": joules / seconds} if seconds else None

    def summary(self, names: dict[int, str]) -> list[dict[str, Any]]:
        """Return mean utilisation and peak memory of each GPU."""
        return [
            {
                "index": index,
                "name": names.get(index, ""),
                "mean_utilisation_percent": sum(u for u, _ in s) / len(s) if s else None,
                "peak_memory_used_bytes": max((m for _, m in s), default=None),
            }
            for index, s in self.samples.items()
        ]


def told_energy(events: Iterable[Mapping[str, Any]]) -> tuple[float, float]:
    """Return (joules, seconds) of training that `gpu` events tell: of earlier attempts at a run.

    Each reading stands for the time since the one before, or since its attempt began to train.
    """
    joules = seconds = 0.0
    since: float | None = None
    for event in events:
        if event.get("type") == "phase":
            since = event["t"] if event.get("name") == "train" else None
        elif event.get("type") == "gpu" and since is not None:
            power = [gpu.get("power_w") for gpu in event.get("gpus") or []]
            if power and None not in power:
                joules += sum(power) * (event["t"] - since)
                seconds += event["t"] - since
            since = event["t"]
    return joules, seconds


class Clock:
    """Seconds by phase of a run; entering a phase ends the one before."""

    def __init__(
        self,
        emit: Callable[..., None],
        *,
        earlier: Mapping[str, float] | None = None,
        began: float | None = None,
    ) -> None:
        """Announce each phase with `emit`.

        Args:
            earlier: Seconds by phase of earlier attempts at this run, which count too.
            began: When this process began, by `time.perf_counter`: its imports are a phase of
                their own, `start`.
        """
        now = time.perf_counter()
        self.emit, self.seconds = emit, dict(earlier or {})
        if began is not None:
            self.seconds["start"] = self.seconds.get("start", 0.0) + now - began
        self._name, self._since = "", now

    def phase(self, name: str) -> None:
        """Begin a phase."""
        now = time.perf_counter()
        if self._name:
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + now - self._since
        self._name, self._since = name, now
        HERE.enter(MEMORY_PHASES.get(name, name))
        if name:
            self.emit("phase", name=name)

    def result(self) -> dict[str, float]:
        """End the last phase; return `{phase}_s` and `total_s`, earlier attempts included."""
        self.phase("")
        total = sum(self.seconds.values())
        return {f"{name}_s": s for name, s in self.seconds.items()} | {"total_s": total}
