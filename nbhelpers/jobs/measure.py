"""What a run really used: memory of tensors, the allocator's peak, the process, the GPUs."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are alive on a CPU, where no allocator tells.

    Use it around a few steps: every operation passes through Python, which slows them.
    """

    def __init__(self, existing: Iterable[torch.Tensor]) -> None:
        """Start with tensors that are alive already."""
        super().__init__()
        self.live_bytes = self.peak_bytes = 0
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
    """Peak memory of this rank's training: the CUDA allocator's, or live tensor bytes on a CPU."""

    def __init__(self, device: torch.device) -> None:
        """Start counting."""
        self.device, self.mode = device, None
        self._live_peak = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def watch_steps(self, model: torch.nn.Module) -> LiveBytes | None:
        """Return a context for the first optimizer steps on a CPU; None on a GPU."""
        if self.device.type == "cuda":
            return None
        self.mode = LiveBytes([*model.parameters(), *model.buffers()])
        return self.mode

    def peak_bytes(self) -> int:
        """Return the peak so far."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return self.mode.peak_bytes if self.mode else 0

    def facts(self, rank: int) -> dict[str, int]:
        """Return this rank's line of `result.json`."""
        cuda = self.device.type == "cuda"
        reserved = torch.cuda.max_memory_reserved(self.device) if cuda else 0
        return {
            "rank": rank,
            "peak_allocated_bytes": self.peak_bytes(),
            "peak_reserved_bytes": reserved,
            "rss_bytes": peak_rss_bytes(),
        }


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
        from nbhelpers.hardware import utilisation

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
        if name:
            self.emit("phase", name=name)

    def result(self) -> dict[str, float]:
        """End the last phase; return `{phase}_s` and `total_s`, earlier attempts included."""
        self.phase("")
        total = sum(self.seconds.values())
        return {f"{name}_s": s for name, s in self.seconds.items()} | {"total_s": total}
