"""What a GPU holds beside the tensors of a run: CUDA's context, and what others left there."""

from __future__ import annotations

import os
from typing import Any

import torch

from nbhelpers.gpus import Gpu
from nbhelpers.hardware import detect_hardware
from nbhelpers.memory_held import held_memory

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
        found = gpus[self.index] if self.index < len(gpus) else None
        return found if found is not None and found.memory_total_bytes else None

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
        found: dict[str, Any] = {"context_bytes": self.context_bytes}
        if self.held is not None:
            found["other_processes_bytes"] = self.held.other_processes_bytes
            found["earlier_bytes"] = self.held.earlier_bytes
        return found
