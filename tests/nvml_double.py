"""A stand-in for the module `pynvml`: GPUs and failures as a test describes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

MIB = 2**20


class NVMLError(Exception):
    """Root of the driver's errors, as in nvidia-ml-py."""


ERRORS = {
    kind: type(f"NVMLError_{kind}", (NVMLError,), {})
    for kind in (
        "LibraryNotFound",
        "DriverNotLoaded",
        "LibRmVersionMismatch",
        "NoPermission",
        "GpuIsLost",
        "NotSupported",
        "NotFound",
        "FunctionNotFound",
        "Unknown",
    )
}


@dataclass(kw_only=True)
class FakeGpu:
    """What the driver would answer; `fails` maps a call to the kind of error that it raises."""

    name: str | bytes = "Tesla T4"
    uuid: str | bytes = "GPU-11111111-aaaa"
    total: int = 15360 * MIB
    free: int = 15000 * MIB
    capability: tuple[int, int] = (7, 5)
    compute: list[tuple[int, int | None]] = field(default_factory=list)
    graphics: list[tuple[int, int | None]] = field(default_factory=list)
    mig: list[FakeGpu | None] | None = None
    load_percent: int = 42
    power_mw: int = 70500
    fails: dict[str, str] = field(default_factory=dict)


T4 = {"name": "Tesla T4", "capability": (7, 5), "total": 15360 * MIB, "free": 15000 * MIB}
ADA = {
    "name": "NVIDIA RTX 6000 Ada Generation",
    "capability": (8, 9),
    "total": 49140 * MIB,
    "free": 48000 * MIB,
}


def a_slice(uuid: str = "MIG-1", **more: Any) -> FakeGpu:
    facts = {"name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "uuid": uuid, "capability": (8, 0)}
    return FakeGpu(**facts | {"total": 4864 * MIB, "free": 4864 * MIB} | more)


def an_a100(mig: list[FakeGpu | None], **more: Any) -> FakeGpu:
    facts = {"name": "NVIDIA A100-SXM4-40GB", "uuid": "GPU-a100", "capability": (8, 0)}
    return FakeGpu(**facts | {"total": 40960 * MIB, "free": 40960 * MIB, "mig": mig} | more)


class FakeNvml(ModuleType):
    """`pynvml` with the calls that nbhelpers makes; MIG handles are `FakeGpu`s too."""

    NVMLError = NVMLError

    def __init__(self, *gpus: FakeGpu, init: str = "", driver: str | bytes = "580.65.06") -> None:
        super().__init__("pynvml")
        self.gpus, self.init, self.driver = gpus, init, driver
        self.process_names: dict[int, str | bytes] = {}
        self.open_sessions = 0
        for kind, error in ERRORS.items():
            setattr(self, f"NVMLError_{kind}", error)

    def _check(self, gpu: FakeGpu, call: str) -> None:
        if call in gpu.fails:
            raise ERRORS[gpu.fails[call]](gpu.fails[call])

    def nvmlInit(self) -> None:
        if self.init:
            raise ERRORS[self.init](self.init)
        self.open_sessions += 1

    def nvmlShutdown(self) -> None:
        self.open_sessions -= 1

    def nvmlSystemGetDriverVersion(self) -> str | bytes:
        return self.driver

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        if index >= len(self.gpus):
            raise ERRORS["NotFound"]("NotFound")
        self._check(self.gpus[index], "nvmlDeviceGetHandleByIndex")
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        for gpu in self.gpus:
            for each in [gpu, *(gpu.mig or [])]:
                if each is not None and each.uuid == uuid:
                    return each
        raise ERRORS["NotFound"]("NotFound")

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str | bytes:
        self._check(gpu, "nvmlDeviceGetName")
        return gpu.name

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str | bytes:
        self._check(gpu, "nvmlDeviceGetUUID")
        return gpu.uuid

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> tuple[int, int]:
        self._check(gpu, "nvmlDeviceGetCudaComputeCapability")
        return gpu.capability

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> Any:
        self._check(gpu, "nvmlDeviceGetMemoryInfo")
        return SimpleNamespace(total=gpu.total, free=gpu.free, used=gpu.total - gpu.free)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[Any]:
        self._check(gpu, "nvmlDeviceGetComputeRunningProcesses")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.compute]

    def nvmlDeviceGetComputeRunningProcesses_v2(self, gpu: FakeGpu) -> list[Any]:
        self._check(gpu, "nvmlDeviceGetComputeRunningProcesses_v2")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.compute]

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu: FakeGpu) -> list[Any]:
        self._check(gpu, "nvmlDeviceGetGraphicsRunningProcesses")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.graphics]

    def nvmlSystemGetProcessName(self, pid: int) -> str | bytes:
        if pid not in self.process_names:
            raise ERRORS["NotFound"]("NotFound")
        return self.process_names[pid]

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:
        self._check(gpu, "nvmlDeviceGetMigMode")
        if gpu.mig is None:
            raise ERRORS["NotSupported"]("NotSupported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:
        return 0 if gpu.mig is None else len(gpu.mig)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, slot: int) -> FakeGpu:
        instance = (gpu.mig or [])[slot]
        if instance is None:
            raise ERRORS["NotFound"]("NotFound")
        return instance

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Any:
        self._check(gpu, "nvmlDeviceGetUtilizationRates")
        return SimpleNamespace(gpu=gpu.load_percent, memory=1)

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        self._check(gpu, "nvmlDeviceGetPowerUsage")
        return gpu.power_mw
