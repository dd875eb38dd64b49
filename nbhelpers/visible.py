"""Which GPUs a CUDA process sees: `CUDA_VISIBLE_DEVICES` and MIG, read as CUDA reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nbhelpers.gpus import Gpu
from nbhelpers.nvml import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """The GPUs that one CUDA process sees, in its order, and what was left out and why."""

    gpus: tuple[Gpu, ...]
    notes: tuple[str, ...]


def select_visible(devices: Sequence[Device], setting: str | None) -> Visible:
    """Apply `CUDA_VISIBLE_DEVICES` (None: not set) and the limits of MIG to a list of GPUs.

    Entries are indices, or full or abbreviated UUIDs (GPU-…, MIG-…); the first entry decides which.
    An entry that names nothing ends the list, and a repeated one empties it.

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
    for each in chosen:
        if isinstance(each, Gpu):
            gpus.append(each)
        elif not each.is_mig_on:
            gpus.append(each.gpu)
        elif each.instances:
            gpus.extend(each.instances)
        else:
            notes.append(
                f"GPU {each.gpu.index} ({each.gpu.name}) is in MIG mode and has no instance; "
                f"create one (nvidia-smi mig -i {each.gpu.index} -cgi …), or turn MIG off"
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
    entries = setting.split(",")
    prefix = next((each for each in ("GPU-", "MIG-") if setting.startswith(each)), "")
    wanted: list[int | str] = []
    for entry in entries:
        name = _name(entry, prefix)
        if name in wanted:
            notes.append(_repeated(setting, entry))
            return []
        if name is None:
            break
        wanted.append(name)
    found: list[Gpu | Device] = []
    for name in wanted:
        match = _find(devices, name)
        if match is None:
            break
        if any(match is each for each in found):
            notes.append(_repeated(setting, str(name)))
            return []
        found.append(match)
    ignored = ",".join(entries[len(found) :]).strip(", ")
    if ignored not in ("", "-1", "NoDevFiles"):  # the last is Slurm's word for "none"
        notes.append(
            f"CUDA_VISIBLE_DEVICES={setting}: {entries[len(found)].strip()!r} names no single GPU "
            "here, so CUDA ignores it and everything after it"
        )
    return found


def _repeated(setting: str, entry: str) -> str:
    return f"CUDA_VISIBLE_DEVICES={setting}: {entry.strip()} stands twice, so CUDA shows no GPU"


def _name(entry: str, prefix: str) -> int | str | None:
    """An entry as CUDA understands it; None ends the list.

    >>> _name(" 1", ""), _name("2gpu", ""), _name("-1", "")
    (1, 2, None)
    >>> _name("GPU-8", "GPU-"), _name("0", "GPU-")
    ('GPU-8', None)
    """
    if prefix:
        return entry if entry.startswith(prefix) else None
    number = re.match(r"[+-]?[0-9]+", entry.strip())
    # A longer one names no GPU either, and Python refuses to read thousands of digits.
    index = -1 if number is None else int(number.group()[:12])
    return None if index < 0 else index


def _find(devices: Sequence[Device], name: int | str) -> Gpu | Device | None:
    """The one GPU or MIG instance that an entry names; None for no match and for several."""
    if isinstance(name, int):
        return devices[name] if name < len(devices) else None
    whole: list[Gpu | Device] = [each for each in devices if each.gpu.uuid.startswith(name)]
    parts = [gpu for each in devices for gpu in each.instances if gpu.uuid.startswith(name)]
    matches = whole + parts
    return matches[0] if len(matches) == 1 else None
