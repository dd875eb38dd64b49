"""Reads GPU facts through NVML (nvidia-ml-py): no torch, no CUDA context.

Every call may fail by itself. `_ask` turns a failed call into "unknown"; only a lost GPU ends the
reading of that GPU, and the others are still listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from nbhelpers.hardware import machine
from nbhelpers.hardware.gpus import Gpu, GpuProcess, match_key, same_name

_LOST = {"GpuIsLost", "ResetRequired", "GpuNotFound"}
_NOT_AVAILABLE = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE as an unsigned 64-bit number

_INIT_FAILURES = {
    "LibraryNotFound": "",  # explained by `hardware`, which knows the platform
    "DriverNotLoaded": "the NVIDIA driver is installed but not loaded; "
    "run `sudo modprobe nvidia` or restart the machine, then try `nvidia-smi`",
    "LibRmVersionMismatch": "the NVIDIA driver was updated while the old one is still loaded "
    "(driver/library version mismatch); restart the machine",
    "NoPermission": "this user may not talk to the NVIDIA driver; "
    "check the permissions of /dev/nvidia* and /dev/nvidiactl, or the container's devices",
}


class NvmlUnavailable(Exception):
    """NVML cannot be used; the message says why, and is empty where there is no driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One physical GPU as the driver lists it, with its MIG instances where MIG mode is on."""

    gpu: Gpu
    is_mig_on: bool = False
    instances: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All GPUs that answered, in the driver's order, and what could not be read."""

    devices: tuple[Device, ...]
    driver_version: str | None
    notes: tuple[str, ...]
    is_complete: bool


@contextmanager
def session() -> Iterator[Any]:
    """Open NVML for a block.

    Raises:
        NvmlUnavailable: The package, the library, the driver or the permission is missing.
    """
    try:
        import pynvml
    except ImportError as error:
        raise NvmlUnavailable(
            "the package nvidia-ml-py is missing, so GPUs cannot be seen; "
            "run `pip install nvidia-ml-py`"
        ) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        unexpected = f"NVML cannot start ({error}); see what `nvidia-smi` says"
        raise NvmlUnavailable(_INIT_FAILURES.get(_kind(error), unexpected)) from error
    try:
        yield pynvml
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def read_inventory() -> Inventory:
    """Read every GPU of this machine, visible to CUDA or not.

    Raises:
        NvmlUnavailable: See `session`.
    """
    devices: list[Device] = []
    notes: list[str] = []
    with session() as nvml:
        count = int(_ask(nvml, "nvmlDeviceGetCount", default=0))
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                devices.append(_read_device(nvml, handle, index, notes))
            except nvml.NVMLError as error:
                notes.append(_left_out(index, error))
        driver = _text(_ask(nvml, "nvmlSystemGetDriverVersion")) or None
    return Inventory(
        devices=tuple(devices),
        driver_version=driver,
        notes=tuple(notes),
        is_complete=len(devices) == count,
    )


def read_utilisation(devices: Sequence[int | str]) -> list[dict[str, Any]]:
    """Load, memory in use and power of GPUs, given by index or (MIG) by UUID; None: unknown.

    A GPU that does not answer is left out; without NVML the list is empty.
    """
    loads = []
    try:
        with session() as nvml:
            for device in devices:
                by = "Index" if isinstance(device, int) else "UUID"
                with suppress(nvml.NVMLError):
                    handle = getattr(nvml, f"nvmlDeviceGetHandleBy{by}")(device)
                    loads.append({"index": device, **_load(nvml, handle)})
    except NvmlUnavailable:
        return []
    return loads


def _load(nvml: Any, handle: Any) -> dict[str, Any]:
    rates = _ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
    memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    power_mw = _ask(nvml, "nvmlDeviceGetPowerUsage", handle)
    return {
        "utilisation_percent": None if rates is None else int(rates.gpu),
        "memory_used_bytes": None if memory is None or not memory.total else int(memory.used),
        "power_w": None if power_mw is None else power_mw / 1000,
    }


def _read_device(nvml: Any, handle: Any, index: int, notes: list[str]) -> Device:
    is_mig_on, handles = _mig_instances(nvml, handle)
    capability = _ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    if not is_mig_on:
        gpu = _read_gpu(nvml, handle, index=index, capability=capability, notes=notes)
        return Device(gpu=gpu)
    # Reading the memory of a GPU in MIG mode needs rights that users and containers lack.
    whole = _read_gpu(nvml, handle, index=index, capability=capability, notes=[])
    instances = []
    for part in handles:
        with suppress(nvml.NVMLError):
            own = _ask(nvml, "nvmlDeviceGetCudaComputeCapability", part, default=capability)
            gpu = _read_gpu(
                nvml, part, index=index, capability=own, notes=notes, whole_name=whole.name
            )
            instances.append(gpu)
    return Device(gpu=whole, is_mig_on=True, instances=tuple(instances))


def _mig_instances(nvml: Any, handle: Any) -> tuple[bool, list[Any]]:
    """Whether MIG mode is on, and the handles of the instances that this process may use."""
    mode = _ask(nvml, "nvmlDeviceGetMigMode", handle)
    if mode is not None and not mode[0]:
        return False, []
    slots = int(_ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle, default=0))
    slot_handles = [
        _ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, slot) for slot in range(slots)
    ]
    handles = [slot for slot in slot_handles if slot is not None]
    return mode is not None or bool(handles), handles


def _read_gpu(
    nvml: Any,
    handle: Any,
    *,
    index: int,
    capability: Sequence[int] | None,
    notes: list[str],
    whole_name: str = "",
) -> Gpu:
    """Facts of a GPU, or of a MIG instance where `whole_name` names the GPU that it is part of."""
    is_mig = bool(whole_name)
    name = _text(_ask(nvml, "nvmlDeviceGetName", handle))
    name = name or (f"{whole_name} MIG" if is_mig else "unknown GPU")
    if is_mig and "MIG" not in name:
        name += " MIG"
    shown = f"GPU {index} ({name})"
    specs = [] if is_mig else same_name(name)
    if capability is None:
        capability = _capability_by_name(shown, specs, notes)
    total, free = _memory(nvml, handle)
    if total is None and not is_mig and not specs:
        total, free = _shared_memory(shown, notes)
    elif not total and specs:
        total = free = min(spec.memory_total_bytes for spec in specs)
        notes.append(f"{shown}: the driver does not tell the memory; taken from its name")
    if not total:
        notes.append(f"{shown}: the driver does not tell the memory; it counts as unknown")
    major, minor = int(capability[0]), int(capability[1])
    return Gpu(
        index=index,
        uuid=_text(_ask(nvml, "nvmlDeviceGetUUID", handle)),
        name=name,
        key=None if is_mig else match_key(name, (major, minor), total or 0),
        memory_total_bytes=total or 0,
        memory_free_bytes=free,
        compute_capability=(major, minor),
        processes=_processes(nvml, handle),
        is_mig=is_mig,
    )


def _capability_by_name(shown: str, specs: Sequence[Any], notes: list[str]) -> tuple[int, int]:
    if specs:
        notes.append(
            f"{shown}: the driver does not tell the compute capability; taken from its name"
        )
        return min(spec.compute_capability for spec in specs)
    notes.append(f"{shown}: the driver does not tell the compute capability; fp32 is assumed")
    return (0, 0)


def _memory(nvml: Any, handle: Any) -> tuple[int | None, int]:
    """Total and free bytes: 0 where the driver refuses, None where the GPU may have none."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        if _kind(error) in _LOST:
            raise
        return (None if _kind(error) == "NotSupported" else 0), 0
    return int(memory.total) or None, int(memory.free)


def _shared_memory(shown: str, notes: list[str]) -> tuple[int, int]:
    """The machine's RAM, for a GPU without memory of its own (GB10, Jetson).

    NVML answers NotSupported there, or a total of 0.
    """
    total, available = machine.ram_bytes()
    if total:
        notes.append(f"{shown} has no memory of its own: it shares the machine's RAM, shown here")
    return total, available


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    """Who holds memory of this GPU, largest first; other containers' processes may be hidden."""
    used_by_pid: dict[int, int | None] = {}
    for kind in ("Compute", "Graphics"):
        for process in _running(nvml, f"nvmlDeviceGet{kind}RunningProcesses", handle):
            used = process.usedGpuMemory
            used = None if used is None or used >= _NOT_AVAILABLE else int(used)
            known = used_by_pid.get(process.pid)
            used_by_pid[process.pid] = used if known is None else max(known, used or 0)
    ordered = sorted(used_by_pid.items(), key=lambda item: (-(item[1] or 0), item[0]))
    return tuple(
        GpuProcess(pid=pid, name=_process_name(nvml, pid), memory_bytes=used)
        for pid, used in ordered
    )


def _running(nvml: Any, function: str, handle: Any) -> Sequence[Any]:
    """The list of processes; an older driver knows only the older form of the call."""
    for name in (function, f"{function}_v2"):
        processes = _ask(nvml, name, handle)
        if processes is not None:
            return processes
    return ()


def _process_name(nvml: Any, pid: int) -> str:
    """The program's file name; empty where it runs in another container or as another user."""
    words = _text(_ask(nvml, "nvmlSystemGetProcessName", pid)).split(" -")[0]
    return PurePath(words.replace("\\", "/")).name


def _ask(nvml: Any, function: str, *arguments: Any, default: Any = None) -> Any:
    """One fact, or `default` where the driver or an older nvidia-ml-py does not tell it."""
    call = getattr(nvml, function, None)
    if call is None:
        return default
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        if _kind(error) in _LOST:
            raise
        return default
    except UnicodeDecodeError:
        return default


def _kind(error: Exception) -> str:
    """`NVMLError_GpuIsLost` is "GpuIsLost"."""
    return type(error).__name__.removeprefix("NVMLError_")


def _text(value: str | bytes | None) -> str:
    """One line of text: older releases return bytes, and names may end in NULs."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return re.sub(r"[\s\0]+", " ", value or "").strip()


def _left_out(index: int, error: Exception) -> str:
    if _kind(error) in _LOST:
        return f"GPU {index} is lost ({error}) and left out; restart the machine to get it back"
    return f"GPU {index} cannot be read ({error}) and is left out"
