"""Whether the GPUs of a study are back at their baseline after a run: nothing must be left behind.

Memory in use is the driver's own figure, so it holds whatever process keeps it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from nbhelpers.common.files import rebuilt
from nbhelpers.errors import DataError
from nbhelpers.hardware import nvml
from nbhelpers.hardware.detection import utilisation
from nbhelpers.hardware.gpus import Gpu

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.plan import BatchPlan

TOLERANCE_BYTES = 50 * 2**20
PATIENCE_S = 20.0  # the driver frees a dead process's memory late
_POLL_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineCheck:
    """Memory in use of a run's GPUs, summed: before the study's first run, and after this one.

    `excess_bytes` is that of the worst GPU; `holders` names who holds memory, where it is not back.
    """

    before_bytes: int
    after_bytes: int
    excess_bytes: int
    is_back: bool
    waited_s: float
    holders: tuple[str, ...] = ()

    def words(self) -> str:
        """Say in a few words whether the GPU is free again."""
        state = "back" if self.is_back else "NOT back"
        return f"{state} ({self.excess_bytes / 2**20:+.0f} MiB)"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON keeps."""
        return asdict(self) | {"holders": list(self.holders)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> BaselineCheck:
        """Rebuild what `to_dict` wrote.

        Raises:
            DataError: A field is missing, unknown or of a wrong type; names it.
        """
        return rebuilt(cls, data, "check of the GPU's memory", error=DataError)


def gpus_of(plan: BatchPlan, hardware: Hardware) -> tuple[Gpu, ...]:
    """Return the GPUs that a run of this plan uses; none on a CPU."""
    return hardware.gpus[: plan.processes_per_node] if plan.use_gpu else ()


def memory_in_use(gpus: Sequence[Gpu]) -> dict[str, int]:
    """Return the bytes in use of each GPU by its key; a GPU that does not answer is left out."""
    handles = {(gpu.uuid if gpu.is_mig else gpu.index): _key(gpu) for gpu in gpus}
    loads = utilisation(list(handles))
    used = {handles[load["index"]]: load["memory_used_bytes"] for load in loads}
    return {key: size for key, size in used.items() if size is not None}


def _key(gpu: Gpu) -> str:
    return gpu.uuid or f"GPU {gpu.index}"


def check_baseline(
    gpus: Sequence[Gpu],
    baseline: Mapping[str, int],
    *,
    patience_s: float = PATIENCE_S,
    sleep: Callable[[float], None] = time.sleep,
) -> BaselineCheck | None:
    """Wait until every GPU is back at its baseline, or for `patience_s`, and tell how it stands.

    Returns:
        None where no GPU tells its memory, or none has a baseline.
    """
    start = time.monotonic()
    while True:
        now = memory_in_use(gpus)
        known = [key for key in now if key in baseline]
        if not known:
            return None
        excess = max(now[key] - baseline[key] for key in known)
        waited = time.monotonic() - start
        if excess <= TOLERANCE_BYTES or waited >= patience_s:
            break
        sleep(_POLL_S)
    is_back = excess <= TOLERANCE_BYTES
    return BaselineCheck(
        before_bytes=sum(baseline[key] for key in known),
        after_bytes=sum(now[key] for key in known),
        excess_bytes=excess,
        is_back=is_back,
        waited_s=round(waited, 2),
        holders=() if is_back else holders(known),
    )


def holders(keys: Sequence[str]) -> tuple[str, ...]:
    """Name the processes that hold memory of these GPUs, as far as the driver tells them."""
    try:
        devices = nvml.read_inventory().devices
    except nvml.NvmlUnavailable:
        return ()
    gpus = [gpu for device in devices for gpu in (device.gpu, *device.instances)]
    words = []
    for gpu in gpus:
        for process in gpu.processes if _key(gpu) in keys else ():
            size = f", {process.memory_bytes / 2**30:.1f} GiB" if process.memory_bytes else ""
            words.append(f"{process.name or 'a process'} (pid {process.pid}{size})")
    return tuple(dict.fromkeys(words))
