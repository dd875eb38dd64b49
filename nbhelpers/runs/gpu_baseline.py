"""Whether the GPUs of a study are back at their baseline after a run: nothing must be left behind.

Memory in use is the driver's own figure, so it holds whatever process keeps it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbhelpers.common.files import rebuilt
from nbhelpers.errors import DataError
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
    """How many bytes more than before the study the worst GPU holds after a run."""

    excess_bytes: int
    is_back: bool

    def words(self) -> str:
        """Say in a few words whether the GPU is free again."""
        state = "back" if self.is_back else "NOT back"
        return f"{state} ({self.excess_bytes / 2**20:+.0f} MiB)"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> BaselineCheck:
        """Rebuild what `asdict` made.

        Raises:
            DataError: A field is missing or of a wrong type; names it.
        """
        what = "check of the GPU's memory"
        return rebuilt(cls, data, what, ignore_unknown=True, error=DataError)


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
    gpus: Sequence[Gpu], baseline: Mapping[str, int], *, patience_s: float = PATIENCE_S
) -> BaselineCheck | None:
    """Wait until every GPU is back at its baseline, or for `patience_s`, and tell how it stands.

    Returns:
        None where no GPU tells its memory, or none has a baseline.
    """
    end = time.monotonic() + patience_s
    while True:
        now = memory_in_use(gpus)
        excess = max((now[key] - baseline[key] for key in now if key in baseline), default=None)
        if excess is None:
            return None
        if excess <= TOLERANCE_BYTES or time.monotonic() >= end:
            return BaselineCheck(excess_bytes=excess, is_back=excess <= TOLERANCE_BYTES)
        time.sleep(_POLL_S)
