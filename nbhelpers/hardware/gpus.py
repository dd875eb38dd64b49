"""What a GPU is to this package, and the table of GPUs known by name (`configs/gpus.yaml`)."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from nbhelpers.common.formatting import gib
from nbhelpers.errors import ConfigError

GIB = 2**30
NATIVE_BF16 = (8, 0)
FP16_TENSOR_CORES = (7, 0)
# From which capability every build of PyTorch has kernels, and how the names of older cards begin.
# Source: its CUDA support matrix; of releases from 2.8 on only builds for CUDA 12.6 hold 5.0 to
# 6.x, and none holds 3.7. What the build that is installed holds, a run's worker asks.
WITH_KERNELS = (7, 0)
_WITHOUT_KERNELS = {
    **{"k80": (3, 7), "m40": (5, 2), "m60": (5, 2), "p100": (6, 0), "p4": (6, 1)},
    **{"gtx9": (5, 2), "gtx10": (6, 1), "titanx": (6, 1), "quadrop": (6, 1)},
}
_DESCRIBED = re.compile(
    r"(?:(?:sm|cc)?[ _]?(?P<major>\d{1,2})\.?(?P<minor>\d)[:,@ ]+)?"
    r"(?P<size>\d+(?:\.\d+)?)\s*(?P<unit>gib|gb)?",
    re.IGNORECASE,
)
_COUNTED = re.compile(r"(?:(\d+) *[x×*] *(.+)|(.+?) *[x×*] *(\d{1,2}))", re.IGNORECASE)
# ECC, the driver's release and vGPU set a few per cent aside; the nearest other size of a name is
# 17 % away (H100 80 GB and H100 NVL).
MEMORY_TOLERANCE = (0.92, 1.08)
# Turing chips TU116 and TU117: capability 7.5 without tensor cores.
# Source: NVIDIA's product pages of GTX 16, MX450/550, T400 to T2000.
_TURING_WITHOUT_TENSOR_CORES = re.compile(
    r"\bGTX 16\d\d|\bMX\s?\d{3}|\bT(?:400|500|550|600|1000|1200|2000)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU; `memory_bytes` is None where the driver hides it."""

    pid: int
    name: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Facts of one GPU, or of one MIG instance of a GPU.

    `index` is the driver's (PCI bus order); a MIG instance carries the index of its GPU and its own
    `uuid`. `key` names the entry of `gpus.yaml`, None for a GPU that is not there and for every
    MIG instance. Unknown facts: `memory_total_bytes` 0, `compute_capability` (0, 0).
    """

    index: int
    uuid: str
    name: str
    key: str | None
    memory_total_bytes: int
    memory_free_bytes: int
    compute_capability: tuple[int, int]
    processes: tuple[GpuProcess, ...] = ()
    is_mig: bool = False

    @property
    def has_bf16(self) -> bool:
        """Native bf16. A T4 has none, whatever `torch.cuda.is_bf16_supported()` says."""
        return self.compute_capability >= NATIVE_BF16

    @property
    def has_fp16_tensor_cores(self) -> bool:
        """Tensor cores for fp16; the small Turing chips (GTX 16, MX, T400 to T2000) lack them."""
        if self.compute_capability == (7, 5) and _TURING_WITHOUT_TENSOR_CORES.search(self.name):
            return False
        return self.compute_capability >= FP16_TENSOR_CORES

    @property
    def has_kernels(self) -> bool:
        """Whether every build of PyTorch has kernels for it; True where it is not known."""
        return self.compute_capability == (0, 0) or self.compute_capability >= WITH_KERNELS

    @property
    def precision(self) -> str:
        """The fastest precision that this GPU computes natively: bf16, fp16 or fp32."""
        if self.has_bf16:
            return "bf16"
        return "fp16" if self.has_fp16_tensor_cores else "fp32"

    @property
    def memory_total_gib(self) -> float:
        """Total memory in GiB (2**30 bytes)."""
        return self.memory_total_bytes / GIB

    @property
    def memory_free_gib(self) -> float:
        """Free memory in GiB (2**30 bytes)."""
        return self.memory_free_bytes / GIB

    def to_dict(self) -> dict[str, Any]:
        """JSON form, read back by `from_dict`."""
        return asdict(self) | {
            "compute_capability": list(self.compute_capability),
            "processes": [asdict(process) for process in self.processes],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One entry of `gpus.yaml`; throughputs are dense, with fp32 accumulation."""

    key: str
    name: str
    nvml_names: tuple[str, ...]
    aliases: tuple[str, ...]
    compute_capability: tuple[int, int]
    memory_total_bytes: int
    memory_bandwidth_bytes_per_s: float
    bf16_tflops: float | None
    fp16_tflops: float | None
    source: dict[str, str]

    def is_named(self, name: str) -> bool:
        """Whether the driver's `name` is one of this GPU's names."""
        bare = re.sub(r"^NVIDIA[ -]", "", name)
        return any(re.fullmatch(pattern, bare, re.IGNORECASE) for pattern in self.nvml_names)

    def has_memory(self, memory_total_bytes: int) -> bool:
        """Whether a reported total is this GPU's, ECC and driver releases allowed for."""
        low, high = MEMORY_TOLERANCE
        return low <= memory_total_bytes / self.memory_total_bytes <= high

    def planned(self, index: int) -> Gpu:
        """A GPU of this kind that nobody else uses, for planning."""
        return Gpu(
            index=index,
            uuid="",
            name=self.name,
            key=self.key,
            memory_total_bytes=self.memory_total_bytes,
            memory_free_bytes=self.memory_total_bytes,
            compute_capability=self.compute_capability,
        )


def known_gpus(path: Path | None = None) -> dict[str, GpuSpec]:
    """Read `gpus.yaml`: key to specification, in the file's order.

    Raises:
        ConfigError: The file is missing, or an entry lacks a field or has one too many.
    """
    if path is None:
        from nbhelpers.common.yaml_files import configs_dir

        path = configs_dir() / "gpus.yaml"
    return _load(path)


@functools.cache
def _load(path: Path) -> dict[str, GpuSpec]:
    from nbhelpers.common.yaml_files import read_yaml

    return {key: _spec(key, entry, path.name) for key, entry in read_yaml(path).items()}


def _spec(key: str, entry: Any, file: str) -> GpuSpec:
    wanted = {field.name for field in fields(GpuSpec)} - {"key"}
    field_names = set(entry) if isinstance(entry, dict) else set()
    if field_names != wanted:
        wrong = [f"lacks {name}" for name in sorted(wanted - field_names)]
        wrong += [f"does not know {name}" for name in sorted(field_names - wanted)]
        raise ConfigError(
            f"{file}: the GPU {key!r} {', '.join(wrong)}.",
            fix=f"give it exactly these fields: {', '.join(sorted(wanted))}",
        )
    major, minor = entry["compute_capability"]
    return GpuSpec(
        key=key,
        **entry
        | {
            "compute_capability": (int(major), int(minor)),
            "nvml_names": tuple(entry["nvml_names"]),
            "aliases": tuple(entry["aliases"]),
        },
    )


def match_key(
    name: str, compute_capability: tuple[int, int], memory_total_bytes: int
) -> str | None:
    """Decide which known GPU this is by name, capability and memory together.

    Returns:
        The key in `gpus.yaml`, or None: a name alone proves nothing (an A100 has 40 or 80 GB, a
        laptop's RTX 4090 has 16).
    """
    for key, spec in known_gpus().items():
        if (
            spec.is_named(name)
            and spec.compute_capability == compute_capability
            and spec.has_memory(memory_total_bytes)
        ):
            return key
    return None


def same_name(name: str) -> list[GpuSpec]:
    """The known GPUs that the driver calls `name`."""
    return [spec for spec in known_gpus().values() if spec.is_named(name)]


def planned_gpu(text: str, index: int = 0) -> Gpu:
    """Return a GPU for planning: one that `find_gpu` knows, or one described as `sm_86:12GiB`.

    A memory alone, as `12GiB`, is that of a card of the capability 8.6, the oldest of GeForce that
    computes bf16.

    Raises:
        ConfigError: As of `find_gpu`.
    """
    described = _DESCRIBED.fullmatch(text.strip()) if isinstance(text, str) else None
    if described is None or not (described["major"] or described["unit"]):
        return find_gpu(text).planned(index)
    size = float(described["size"]) * (10**9 if (described["unit"] or "").lower() == "gb" else GIB)
    if not 1 <= size / GIB <= 1024:  # the largest that are sold have less than a third
        text = f"gpu={text!r} has no memory that a card has: 1 to 1024 GiB."
        raise ConfigError(text, fix="give its GiB, as in sm_86:12GiB")
    capability = int(described["major"] or 8), int(described["minor"] or 6)
    _require_kernels(text, capability)
    return Gpu(
        index=index,
        uuid="",
        name="sm_{}{}:{:g}GiB".format(*capability, int(size) / GIB),
        key=None,
        memory_total_bytes=int(size),
        memory_free_bytes=int(size),
        compute_capability=capability,
    )


def _require_kernels(text: str, capability: tuple[int, int]) -> None:
    if capability < WITH_KERNELS:
        raise ConfigError(
            f"gpu={text!r} has the compute capability {capability[0]}.{capability[1]}, for which "
            "today's PyTorch has no kernels.",
            fix="take a card from 7.5 on, such as t4 (Colab's, and Kaggle's T4 x2) or l4",
        )


def find_gpu(text: str) -> GpuSpec:
    """Find the GPU that a person means by `text`: a key, an alias or a name as the driver says it.

    Raises:
        ConfigError: The name is unknown (the nearest ones are listed) or means several GPUs.
    """
    known = known_gpus()
    names = _names(known.values())
    asked = _bare(text) if isinstance(text, str) else ""
    keys = names.get(asked, []) or [s.key for s in known.values() if asked and s.is_named(text)]
    exact = [key for key in keys if _bare(key) == asked]
    if len(exact or keys) == 1:
        return known[(exact or keys)[0]]
    if keys:
        sizes = ", ".join(f"{known[k].name} ({gib(known[k].memory_total_bytes)})" for k in keys)
        raise ConfigError(
            f"gpu={text!r} means {len(keys)} GPUs: {sizes}.",
            fix="name one: " + " or ".join(f'gpu="{key}"' for key in keys),
        )
    older = (chip for name, chip in _WITHOUT_KERNELS.items() if asked.startswith(name))
    _require_kernels(text, next(older, WITH_KERNELS))
    if counted := _COUNTED.fullmatch(text.strip()) if asked else None:
        count, card = counted[1] or counted[4], counted[2] or counted[3]
        key = find_gpu(card).key
        raise ConfigError(
            f"gpu={text!r} names {count} GPUs; a number of them stands apart.",
            fix=f'--gpu {key} --count {count}; in Python plan_hardware("{key}", {count})',
        )
    near = difflib.get_close_matches(asked, names, n=3, cutoff=0.6)
    guess = list(dict.fromkeys(key for name in near for key in names[name]))[:3]
    raise ConfigError(
        f"gpu={text!r} is not a GPU that gpus.yaml knows.",
        fix=(f"did you mean {' or '.join(guess)}? " if guess else "")
        + f"Known: {', '.join(known)}; another one by its capability and memory: sm_86:12GiB",
    )


def _names(specs: Iterable[GpuSpec]) -> dict[str, list[str]]:
    """Every spelling, bare, with the keys that it may mean."""
    keys_by_name: dict[str, list[str]] = {}
    for spec in specs:
        for name in dict.fromkeys(
            _bare(spelling) for spelling in (spec.key, spec.name, *spec.aliases)
        ):
            keys_by_name.setdefault(name, []).append(spec.key)
    return keys_by_name


def _bare(text: str) -> str:
    """Letters and digits alone, without the maker's words.

    >>> _bare("NVIDIA GeForce RTX 3090"), _bare("Tesla-T4")
    ('rtx3090', 't4')
    """
    return re.sub(r"nvidia|tesla|geforce|[^a-z0-9]", "", text.lower())
