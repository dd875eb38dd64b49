"""What the simulation must know of a GPU: capability, multiprocessors, what a process costs.

Every GPU of `configs/gpus.yaml` has a row here; any other is described by its compute capability
and memory, as in `sm_86:24GiB`, and takes the rest from the nearest known GPU of its generation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from nbhelpers.errors import ConfigError
from nbhelpers.hardware.gpus import GIB, Gpu, GpuSpec, known_gpus, planned_gpu

# Source: "Streaming multiprocessors" in NVIDIA's whitepapers and datasheets of each GPU; the driver
# reports the same (an H100 80GB HBM3 and an H200 reported 132).
_MULTIPROCESSORS = {
    "t4": 40,
    "v100-16gb": 80,
    "v100-32gb": 80,
    "l4": 58,
    "a10g": 80,
    "a100-40gb": 108,
    "a100-80gb": 108,
    "quadro-rtx6000": 72,
    "rtx-a6000": 84,
    "rtx6000ada": 142,
    "rtxpro6000": 188,
    "rtx3090": 82,
    "rtx4090": 128,
    "rtx5090": 170,
    "rtx3060": 28,
    "rtx3070": 46,
    "rtx3080": 68,
    "rtx4060": 24,
    "rtx4070": 46,
    "rtx4080": 76,
    "rtx5070": 48,
    "rtx5080": 84,
    "l40s": 142,
    "h100": 132,
    "h100-pcie": 114,
    "h100-nvl": 132,
    "h200": 132,
    "b200": 148,
}
# Capability: threads that a multiprocessor can hold.
# Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
_THREADS = {70: 2048, 75: 1024, 80: 2048, 86: 1536, 87: 1536, 89: 1536}
_THREADS |= {90: 2048, 100: 2048, 103: 2048, 120: 1536}
# Multiprocessors of one compute slice of a MIG instance. Source: NVIDIA's MIG user guide.
_SLICE = {80: 14, 90: 16, 100: 18}

# Source: measured outside the allocator, torch 2.11, after training on an H200.
_H200_CONTEXT_BYTES, _H200_THREADS = int(0.75 * GIB), 132 * 2048
# Source: 141 MiB were reported on a T4. The context keeps local memory for every thread that can be
# resident, so other cards are set on the line between the two; kernels are loaded at their first
# use, so nothing below a quarter of a GiB is believed.
_T4_CONTEXT_BYTES, _T4_THREADS = 141 * 2**20, 40 * 1024
_LEAST_CONTEXT_BYTES = GIB // 4
# Source: measured outside the allocator, on two GPUs and more.
NCCL_BYTES = int(0.55 * GIB)

_MIG_SLICES = re.compile(r"\b(\d)g\.\d+gb", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU as kernels and the allocator meet it.

    `capability` is 10 x major + minor (90 for an H100). `context_bytes` and `nccl_bytes` (only with
    several processes) are what a process takes outside the allocator. `is_exact`: the GPU is in the
    table; else its multiprocessors are those of the nearest one that is.
    """

    name: str
    capability: int
    multiprocessors: int
    threads_per_multiprocessor: int
    memory_total_bytes: int
    context_bytes: int
    nccl_bytes: int = NCCL_BYTES
    is_exact: bool = True


def find_card(gpu: str | Gpu | Card) -> Card:
    """Return the card that a name, a description such as `sm_86:24GiB`, or a `Gpu` means.

    Raises:
        ConfigError: The name is unknown or means several GPUs, or the generation is unknown.
    """
    if isinstance(gpu, Card):
        return gpu
    return _card_of(gpu if isinstance(gpu, Gpu) else planned_gpu(gpu))


def describe_card(capability: int, memory_total_bytes: int, *, name: str) -> Card:
    """Return a card that no table knows: its generation's limits, its nearest relative's size.

    Args:
        capability: 10 x major + minor.

    Raises:
        ConfigError: The generation is older than Volta, or has none of its kind in the table.
    """
    family = [spec for spec in known_gpus().values() if _capability(spec) == capability]
    if not family:
        major = [x for x in known_gpus().values() if _capability(x) // 10 == capability // 10]
        family = major if capability in _THREADS else []
    if not family:
        known = ", ".join(f"{each / 10:.1f}" for each in sorted(_THREADS))
        raise ConfigError(
            f"GPUs of compute capability {capability / 10:.1f} are not known to the simulation.",
            fix=f"name one of {known}, or a GPU of gpus.yaml",
        )
    nearest = min(family, key=lambda x: abs(x.memory_total_bytes - memory_total_bytes))
    return _card(
        name,
        capability,
        _MULTIPROCESSORS[nearest.key],
        memory_total_bytes,
        is_exact=False,
    )


def _card_of(gpu: Gpu) -> Card:
    if gpu.key is not None:
        known = _known(known_gpus()[gpu.key])
        return replace(known, memory_total_bytes=gpu.memory_total_bytes or known.memory_total_bytes)
    major, minor = gpu.compute_capability
    card = describe_card(10 * major + minor, gpu.memory_total_bytes, name=gpu.name)
    slices = _MIG_SLICES.search(gpu.name) if gpu.is_mig else None
    if slices is None or card.capability not in _SLICE:
        return card
    return replace(card, multiprocessors=int(slices[1]) * _SLICE[card.capability])


def _known(spec: GpuSpec) -> Card:
    if spec.key not in _MULTIPROCESSORS:
        return describe_card(_capability(spec), spec.memory_total_bytes, name=spec.name)
    size = spec.memory_total_bytes
    return _card(spec.name, _capability(spec), _MULTIPROCESSORS[spec.key], size)


def _card(
    name: str, capability: int, multiprocessors: int, memory: int, *, is_exact: bool = True
) -> Card:
    threads = _THREADS[capability]
    return Card(
        name=name,
        capability=capability,
        multiprocessors=multiprocessors,
        threads_per_multiprocessor=threads,
        memory_total_bytes=memory,
        context_bytes=_context_bytes(multiprocessors * threads),
        is_exact=is_exact,
    )


def _context_bytes(threads: int) -> int:
    """Return the context of a card that can hold so many threads.

    >>> _context_bytes(132 * 2048) / 2**30, _context_bytes(40 * 1024) / 2**30
    (0.75, 0.25)
    """
    slope = (_H200_CONTEXT_BYTES - _T4_CONTEXT_BYTES) / (_H200_THREADS - _T4_THREADS)
    estimate = _T4_CONTEXT_BYTES + slope * (threads - _T4_THREADS)
    return max(int(estimate), _LEAST_CONTEXT_BYTES)


def _capability(spec: GpuSpec) -> int:
    major, minor = spec.compute_capability
    return 10 * major + minor
