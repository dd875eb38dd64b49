"""What this machine offers for training: `Hardware`, read without torch and without CUDA."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from nbhelpers.common.display import Table
from nbhelpers.common.files import rebuilt
from nbhelpers.common.formatting import gib
from nbhelpers.errors import ConfigError
from nbhelpers.hardware import machine, nvml
from nbhelpers.hardware.gpus import GIB, Gpu, planned_gpu
from nbhelpers.hardware.machine import detect_platform
from nbhelpers.hardware.nvml import Device

# ------------------------------------------------------------------------------------------------
# Which GPUs a CUDA process sees: `CUDA_VISIBLE_DEVICES` and MIG, read as CUDA reads them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """The GPUs that one CUDA process sees, in its order, and what was left out and why."""

    gpus: tuple[Gpu, ...]
    notes: tuple[str, ...]


def select_visible(devices: Sequence[Device], setting: str | None) -> Visible:
    """Apply `CUDA_VISIBLE_DEVICES` (None: not set) and the limits of MIG to a list of GPUs.

    Entries are indices, or full or abbreviated UUIDs (GPU-…, MIG-…); the first decides which. One
    that names nothing ends the list, and a repeated one empties it.

    Source:
        CUDA C++ Programming Guide, "CUDA Environment Variables"; torch 2.13,
        `torch/cuda/__init__.py` (`_parse_visible_devices`, `_transform_uuid_to_ordinals`); NVIDIA
        MIG User Guide, "CUDA Device Enumeration": one MIG instance, and then no whole GPU.
    """
    notes: list[str] = []
    if setting is None:
        chosen: list[Gpu | Device] = list(devices)
    else:
        chosen = _chosen(devices, setting, notes)
    gpus = []
    for device in chosen:
        if isinstance(device, Gpu):
            gpus.append(device)
        elif not device.is_mig_on:
            gpus.append(device.gpu)
        elif device.instances:
            gpus.extend(device.instances)
        else:
            whole = device.gpu
            notes.append(
                f"GPU {whole.index} ({whole.name}) is in MIG mode and has no instance; "
                f"create one (nvidia-smi mig -i {whole.index} -cgi …), or turn MIG off"
            )
    return Visible(gpus=_one_instance(gpus, notes), notes=tuple(notes))


def _one_instance(gpus: list[Gpu], notes: list[str]) -> tuple[Gpu, ...]:
    """Keep the first MIG instance alone, where there is one."""
    instances = [gpu for gpu in gpus if gpu.is_mig]
    if not instances:
        return tuple(gpus)
    first, others = instances[0], len(gpus) - 1
    if others:
        notes.append(
            f"a CUDA process sees one MIG instance and no other GPU, so {first.uuid or first.name} "
            f"is used and {others} more {'is' if others == 1 else 'are'} not; to use another, set "
            "CUDA_VISIBLE_DEVICES to its UUID (nvidia-smi -L)"
        )
    return (first,)


def _chosen(devices: Sequence[Device], setting: str, notes: list[str]) -> list[Gpu | Device]:
    gpus: list[Gpu | Device] = []
    by_uuid = setting.startswith(("GPU-", "MIG-"))
    for entry in (part.strip() for part in setting.split(",")):
        match = _find(devices, entry, by_uuid=by_uuid)
        if match is None:
            if entry not in ("", "-1", "NoDevFiles"):  # the last is Slurm's word for "none"
                notes.append(
                    f"CUDA_VISIBLE_DEVICES={setting}: {entry!r} names no single GPU here, so CUDA "
                    "ignores it and everything after it"
                )
            break
        if any(match is gpu for gpu in gpus):
            text = f"CUDA_VISIBLE_DEVICES={setting}: {entry} stands twice, so CUDA shows no GPU"
            notes.append(text)
            return []
        gpus.append(match)
    return gpus


def _find(devices: Sequence[Device], entry: str, *, by_uuid: bool) -> Gpu | Device | None:
    """The one GPU or MIG instance that an entry names; None for no match and for several."""
    if not by_uuid:
        index = int(entry) if entry.isascii() and entry.isdigit() else len(devices)
        return devices[index] if index < len(devices) else None
    whole: list[Gpu | Device] = [x for x in devices if x.gpu.uuid.startswith(entry)]
    parts = [gpu for x in devices for gpu in x.instances if gpu.uuid.startswith(entry)]
    matches = whole + parts
    return matches[0] if len(matches) == 1 else None


# ------------------------------------------------------------------------------------------------
# What this machine offers for training, read without torch and without a CUDA context.
#
# `detect_hardware` reads a machine, `plan_hardware` invents one from `configs/gpus.yaml`; both give
# the same `Hardware`, so everything after it works without a GPU. Single node, NVIDIA GPUs only.


MOST_GPUS = 4096  # of one plan, or machines: far beyond any cluster here
_PRECISIONS = ("fp32", "fp16", "bf16")
_BUSY_SHARE = 0.05  # of a GPU's memory, from which other processes are worth a note
_GPU_SWITCH = {
    "colab": "in Colab choose Runtime > Change runtime type > a GPU",
    "kaggle": "on Kaggle choose Settings > Accelerator > a GPU",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The GPUs that a training process would see, and the machine around them.

    `gpus` stands in CUDA's order with `CUDA_DEVICE_ORDER=PCI_BUS_ID`. `reason` is empty when there
    are GPUs, else it says why there are none and what to do. `notes` holds what a user should know:
    a lost GPU, unlike GPUs, hidden ones, memory that others use.
    """

    gpus: tuple[Gpu, ...]
    driver_version: str | None
    reason: str
    is_planned: bool
    platform: str
    cpu_count: int
    ram_total_bytes: int
    ram_available_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def gpu(self) -> Gpu | None:
        """The GPU with the least memory, which limits every plan; None without a GPU."""
        known = [gpu for gpu in self.gpus if gpu.memory_total_bytes]
        return min(known or self.gpus, key=lambda gpu: gpu.memory_total_bytes, default=None)

    @property
    def precision(self) -> str:
        """What "auto" means here: bf16, fp16 or fp32. The weakest GPU decides."""
        return min((gpu.precision for gpu in self.gpus), key=_PRECISIONS.index, default="fp32")

    @property
    def is_uniform(self) -> bool:
        """Whether all GPUs have the same name and memory."""
        return len({(gpu.name, gpu.memory_total_bytes) for gpu in self.gpus}) <= 1

    def to_dict(self) -> dict[str, Any]:
        """JSON form, as it stands in `run.json`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {
            "gpus": [gpu.to_dict() for gpu in self.gpus],
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Hardware:
        """Rebuild what `to_dict` wrote; fields of a newer version are left out.

        Raises:
            ConfigError: A field is missing or of a wrong type; names it.
        """
        fix = "start the run again with `fresh=True`, or restore run.json"
        return rebuilt(cls, data, "hardware record", ignore_unknown=True, fix=fix)

    def __repr__(self) -> str:
        driver = f", driver {self.driver_version}" if self.driver_version else ""
        return f"Hardware({_gpus_line(self)}, {self.precision}{driver}, {_machine_line(self)})"

    def _repr_html_(self) -> str:
        head = "Planned hardware" if self.is_planned else "Hardware"
        driver = f"driver {self.driver_version}, " if self.driver_version else ""
        facts = f"{_gpus_line(self)}; {driver}precision {self.precision}; {_machine_line(self)}"
        lines = [f"<p><b>{head}</b>: {html.escape(facts)}</p>"]
        if self.gpus:
            lines.append(_gpu_table(self.gpus).html())
        if self.notes:
            notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
            lines.append(f"<ul>{notes}</ul>")
        return "".join(lines)


def detect_hardware() -> Hardware:
    """Read the GPUs that a training process would see; never fails for want of one.

    Returns:
        The hardware; without a usable GPU its `reason` says why and what to do.
    """
    platform = detect_platform()
    try:
        inventory = nvml.read_inventory()
    except nvml.NvmlUnavailable as error:
        return _hardware(platform, reason=str(error) or _no_driver(platform))
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = select_visible(inventory.devices, setting)
    notes = inventory.notes + visible.notes + _remarks(inventory, visible, setting)
    return _hardware(
        platform,
        gpus=visible.gpus,
        driver_version=inventory.driver_version,
        reason="" if visible.gpus else _none_visible(inventory, visible, setting, platform),
        notes=notes,
    )


def plan_hardware(gpu: str, count: int = 1) -> Hardware:
    """Plan for GPUs that are not here, such as `plan_hardware("t4", 2)`.

    A card that `gpus.yaml` does not know is described by its compute capability and memory, such
    as `sm_86:12GiB`. CPUs and RAM are this machine's.

    Raises:
        ConfigError: The name is unknown or means several GPUs, the card is too old, or `count` is
            no number from 1 up to `MOST_GPUS`.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_GPUS:
        fix = f"give a whole number from 1 to {MOST_GPUS}"
        raise ConfigError(f"count={count!r} is not a number of GPUs.", fix=fix)
    first = planned_gpu(gpu)
    return _hardware(
        detect_platform(),
        gpus=tuple(replace(first, index=index) for index in range(count)),
        is_planned=True,
        notes=("planned, not measured; CPUs and RAM are those of the machine you plan on",),
    )


def utilisation(indices: Sequence[int | str]) -> list[dict[str, Any]]:
    """Read load, memory in use and power of GPUs now.

    Args:
        indices: `Gpu.index`, or for a MIG instance its `Gpu.uuid`.

    Returns:
        One {index, utilisation_percent, memory_used_bytes, power_w} per GPU that answers, with None
        for what the driver does not tell; empty without a driver.
    """
    return nvml.read_utilisation(indices)


def _hardware(
    platform: str,
    *,
    gpus: tuple[Gpu, ...] = (),
    driver_version: str | None = None,
    reason: str = "",
    is_planned: bool = False,
    notes: tuple[str, ...] = (),
) -> Hardware:
    total, available = machine.ram_bytes()
    return Hardware(
        gpus=gpus,
        driver_version=driver_version,
        reason=reason,
        is_planned=is_planned,
        platform=platform,
        cpu_count=machine.cpu_count(),
        ram_total_bytes=total,
        ram_available_bytes=available,
        notes=notes,
    )


def _no_driver(platform: str) -> str:
    """Why there is no NVIDIA driver, in words for this machine."""
    other = machine.foreign_accelerator()
    if platform in _GPU_SWITCH:
        return f"no NVIDIA driver: this session has no GPU; {_GPU_SWITCH[platform]}"
    if other == "Apple":
        return "this is a Mac: Apple GPUs are not used, training runs on the CPU"
    if machine.has_nvidia_hardware():
        return (
            "an NVIDIA GPU is in this machine, but its driver is not to be found; install the "
            "driver, or start the container with `--gpus all`"
        )
    if other == "AMD":
        return "an AMD GPU (ROCm) is here, but only NVIDIA GPUs are used; training runs on the CPU"
    return "no NVIDIA driver on this machine (libnvidia-ml is not found); training runs on the CPU"


def _none_visible(
    inventory: nvml.Inventory, visible: Visible, setting: str | None, platform: str
) -> str:
    if not inventory.devices:
        lost = "; ".join(inventory.notes)
        hint = f"; {_GPU_SWITCH[platform]}" if platform in _GPU_SWITCH else ""
        return lost or f"the NVIDIA driver runs, but it lists no GPU{hint}"
    if setting is None:
        return "; ".join(visible.notes)
    count = len(inventory.devices)
    why = "; ".join(visible.notes) or f"CUDA_VISIBLE_DEVICES={setting!r}"
    return (
        f"{count} GPU{' is' if count == 1 else 's are'} hidden: {why}. "
        "Unset CUDA_VISIBLE_DEVICES, or set it to an index from 0 on"
    )


def _remarks(inventory: nvml.Inventory, visible: Visible, setting: str | None) -> tuple[str, ...]:
    """What a user should know beside the table."""
    notes = []
    hidden = len(inventory.devices) - len({gpu.index for gpu in visible.gpus})
    if setting is not None and hidden and visible.gpus:
        notes.append(
            f"CUDA_VISIBLE_DEVICES={setting} hides {hidden} of {len(inventory.devices)} GPUs"
        )
    if setting and not inventory.is_complete:
        notes.append(
            "a GPU is missing, so the numbers in CUDA_VISIBLE_DEVICES may have moved; use UUIDs "
            "(nvidia-smi -L)"
        )
    names = {device.gpu.name for device in inventory.devices}
    if len(names) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        notes.append(
            "the GPUs are unlike and listed in PCI bus order; CUDA itself sorts the fastest first "
            "unless CUDA_DEVICE_ORDER=PCI_BUS_ID, which a launched run sets"
        )
    if len({gpu.name for gpu in visible.gpus}) > 1:
        notes.append("the GPU with the least memory limits the plan, and the slowest sets the pace")
    for gpu in visible.gpus:
        if not gpu.has_kernels:
            major, minor = gpu.compute_capability
            notes.append(
                f"GPU {gpu.index} ({gpu.name}) has the compute capability {major}.{minor}: of "
                "today's builds of PyTorch only those for CUDA 12.6 have kernels for 5.0 to 6.x, "
                "and none has for older ones; take a card from 7.5 on, such as a T4"
            )
        used = gpu.memory_total_bytes - gpu.memory_free_bytes
        if gpu.processes and used > _BUSY_SHARE * gpu.memory_total_bytes:
            notes.append(
                f"GPU {gpu.index}: {used / GIB:.1f} GiB of {gpu.memory_total_gib:.1f} GiB "
                f"are in use by {_users(gpu)}"
            )
    return tuple(notes)


def _users(gpu: Gpu) -> str:
    """Who holds memory, in words: "python (pid 7, 3.0 GiB)"."""
    words = []
    for process in gpu.processes:
        size = f", {process.memory_bytes / GIB:.1f} GiB" if process.memory_bytes else ""
        words.append(f"{process.name or 'a process'} (pid {process.pid}{size})")
    return ", ".join(words)


def _gpus_line(hardware: Hardware) -> str:
    if not hardware.gpus:
        return f"no GPU: {hardware.reason}" if hardware.reason else "no GPU"
    counts: dict[str, int] = {}
    for gpu in hardware.gpus:
        size = _size(gpu.memory_total_bytes)
        counts[f"{gpu.name} {size}"] = counts.get(f"{gpu.name} {size}", 0) + 1
    planned = "planned " if hardware.is_planned else ""
    return planned + " + ".join(f"{count} x {name}" for name, count in counts.items())


def _machine_line(hardware: Hardware) -> str:
    cpus = f"{hardware.cpu_count} CPU{'' if hardware.cpu_count == 1 else 's'}"
    return f"{hardware.platform}, {cpus}, {_size(hardware.ram_total_bytes)} RAM"


def _size(size_bytes: int) -> str:
    return gib(size_bytes) if size_bytes else "unknown size"


def _gpu_table(gpus: Sequence[Gpu]) -> Table:
    heads = ("GPU", "name", "known as", "memory", "free", "capability", "precision", "in use by")
    rows = []
    for gpu in gpus:
        major, minor = gpu.compute_capability
        free = gib(gpu.memory_free_bytes) if gpu.memory_total_bytes else "unknown"
        key = gpu.key or ("a MIG instance" if gpu.is_mig else "not in gpus.yaml")
        facts = (str(gpu.index), gpu.name, key, _size(gpu.memory_total_bytes), free)
        capability = f"{major}.{minor}" if major else "unknown"
        rows.append((*facts, capability, gpu.precision, _users(gpu) or "nobody"))
    return Table(heads, rows)
