"""What of a card is not free for a run: memory of other processes and of the notebook's own cells.

A budget says what a process needs; the card may have less than its size. The verdict is judged
against what is left.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nbhelpers.calibration import measured_context
from nbhelpers.formatting import gib
from nbhelpers.gpus import Gpu
from nbhelpers.ledger import CONTEXT, MemoryLine

if TYPE_CHECKING:
    from nbhelpers.batching import BatchPlan
    from nbhelpers.hardware import Hardware

OTHERS = "held by other processes"
EARLIER = "left over from earlier cells"
# Below that share of a card and without a process to name, it is the driver's own.
DRIVERS_SHARE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes of a card that others hold, and that this notebook's process holds from earlier."""

    other_processes_bytes: int
    earlier_bytes: int
    users: str = ""  # the other processes, in words

    @property
    def size_bytes(self) -> int:
        """Both together."""
        return self.other_processes_bytes + self.earlier_bytes

    def advice(self, card: str) -> str:
        """Say what to free first."""
        if self.earlier_bytes > self.other_processes_bytes:
            size = gib(self.earlier_bytes)
            return f"{size} of {card} are left over from earlier cells: restart the kernel first"
        return f"{gib(self.size_bytes)} of {card} are in use by other processes: free them first"

    def lines(self) -> tuple[MemoryLine, ...]:
        """Return a line for each part that is not zero."""
        found = []
        if self.earlier_bytes:
            note = "by this notebook's process: restart its kernel to free it"
            found.append(MemoryLine(name=EARLIER, size_bytes=self.earlier_bytes, note=note))
        if self.other_processes_bytes:
            note = self.users or "the driver does not tell by whom"
            size = self.other_processes_bytes
            found.append(MemoryLine(name=OTHERS, size_bytes=size, note=note))
        return tuple(found)


def held_memory(gpu: Gpu, *, notebook_pid: int | None = None) -> Held:
    """Return what is in use of a card before a run begins.

    Args:
        notebook_pid: The process whose memory was left over from earlier cells; None: this one.
    """
    used = max(0, gpu.memory_total_bytes - gpu.memory_free_bytes)
    if not gpu.processes and used < DRIVERS_SHARE * gpu.memory_total_bytes:
        return Held(other_processes_bytes=0, earlier_bytes=0)
    own = os.getpid() if notebook_pid is None else notebook_pid
    told = [process.memory_bytes for process in gpu.processes]
    earlier = sum(p.memory_bytes or 0 for p in gpu.processes if p.pid == own)
    names = [f"{p.name or 'a process'} (pid {p.pid})" for p in gpu.processes if p.pid != own]
    earlier = min(earlier, used)
    if None not in told and used - sum(told) < DRIVERS_SHARE * gpu.memory_total_bytes:
        used = min(used, sum(told))  # the driver's own part is no one's
    others = max(0, used - earlier)
    return Held(other_processes_bytes=others, earlier_bytes=earlier, users=", ".join(names[:3]))


def fullest(plan: BatchPlan, hardware: Hardware) -> Held:
    """Return what is held of the card that has the least left, of those a run would use."""
    gpus = hardware.gpus[: plan.world_size] if plan.use_gpu else ()
    found = [held_memory(gpu) for gpu in gpus if gpu.memory_total_bytes]
    return max(
        found, key=lambda h: h.size_bytes, default=Held(other_processes_bytes=0, earlier_bytes=0)
    )


def with_measured_context(
    lines: Sequence[MemoryLine], plan: BatchPlan, hardware: Hardware
) -> tuple[MemoryLine, ...]:
    """Return lines whose context is the one that an earlier run measured on this machine.

    A planned card keeps the table's: it is not here.
    """
    gpu = hardware.gpu
    if gpu is None or hardware.is_planned or not plan.use_gpu:
        return tuple(lines)
    found = measured_context(gpu.key or gpu.name, world_size=plan.world_size)
    if found is None:
        return tuple(lines)
    note = "CUDA and NCCL" if plan.world_size > 1 else "CUDA"
    note += ", outside the allocator; measured on this machine"
    return tuple(
        replace(line, size_bytes=found, note=note) if line.name == CONTEXT else line
        for line in lines
    )
