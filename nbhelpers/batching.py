"""Exact batch arithmetic: how a global batch is split over GPUs and micro-steps.

`global_batch_size` is the constant of an experiment; accumulation is derived from it. A split that
does not come out even is an error that lists the choices, never a silently different batch.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from nbhelpers.checks import check_precision
from nbhelpers.errors import ConfigError, HardwareError
from nbhelpers.presets import divisors

if TYPE_CHECKING:
    from nbhelpers.hardware import Hardware
    from nbhelpers.presets import Preset

MAX_OFFERED = 16  # choices that one message lists
MAX_OFFERED_GPUS = 8  # the GPUs of one host; several hosts are not supported


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BatchPlan:
    """How one optimizer step is made: world size x per-device batch x accumulation."""

    world_size: int
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    global_batch_size: int
    is_exact: bool
    use_gpu: bool = False
    num_gpus_visible: int = 0

    def __repr__(self) -> str:
        note = f"; {self.note()}" if self.note() else ""
        return f"BatchPlan({self.formula()}, {self.world_size} x {self._device()}{note})"

    def formula(self) -> str:
        """Write the split as people do: per-device x accumulation x processes = global batch."""
        product = (
            f"{self.per_device_train_batch_size} x {self.gradient_accumulation_steps} x "
            f"{self.world_size}"
        )
        if self.is_exact:
            return f"{product} = {self.global_batch_size}"
        return f"{product}, of which {self.global_batch_size} are filled (uneven, exact mean)"

    def words(self) -> str:
        """Write the split with its units, for people who meet it for the first time.

        >>> split_batch(64, 32, 1).words()
        '32 pairs x 2 micro-steps x 1 process = 64 per optimizer step'
        """
        steps, processes = self.gradient_accumulation_steps, self.world_size
        product = (
            f"{self.per_device_train_batch_size} pairs x {steps} micro-step{'s' * (steps != 1)} x "
            f"{processes} process{'es' * (processes != 1)}"
        )
        if self.is_exact:
            return f"{product} = {self.global_batch_size} per optimizer step"
        return (
            f"{product}, of which {self.global_batch_size} are filled per optimizer step (uneven, "
            "exact mean)"
        )

    def note(self) -> str:
        """Say what several processes mean without a GPU, else nothing."""
        if self.use_gpu or self.world_size == 1:
            return ""
        return f"{self.world_size} processes share this machine's cores"

    def _device(self) -> str:
        return "GPU" if self.use_gpu else "CPU"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON keeps."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> BatchPlan:
        """Rebuild a plan that `to_dict` wrote.

        Raises:
            ConfigError: A value is missing or unknown.
        """
        odd = set(data) ^ {field.name for field in fields(cls)}
        if odd:
            text = f"A saved batch plan lacks or adds: {', '.join(sorted(odd))}."
            raise ConfigError(text, fix="use the version of nbhelpers that wrote it")
        return cls(**data)

    def _repr_html_(self) -> str:
        rows = {
            "pairs that a process holds at once": self.per_device_train_batch_size,
            "micro-steps per optimizer step": self.gradient_accumulation_steps,
            f"processes, one per {self._device()}" if self.use_gpu else "processes, on the CPU": (
                self.world_size
            ),
            "global batch: pairs per optimizer step": self.global_batch_size,
        }
        cells = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in rows.items())
        note = f"<p>{html.escape(self.note())}</p>" if self.note() else ""
        return f"<p><b>{html.escape(self.words())}</b></p>{note}<table>{cells}</table>"


def split_batch(
    global_batch_size: int,
    per_device_train_batch_size: int,
    world_size: int,
    *,
    allow_uneven: bool = False,
) -> BatchPlan:
    """Return the plan whose optimizer steps hold exactly `global_batch_size` examples.

    With `allow_uneven`, the last micro-step of a window is not full on every process; the job
    weights each example alike, so the mean stays exact.

    >>> split_batch(64, 8, 2).formula()
    '8 x 4 x 2 = 64'
    >>> split_batch(64, 16, 3, allow_uneven=True).gradient_accumulation_steps
    2

    Raises:
        ConfigError: The split is not even (the message lists the choices), or a process would get
            no example at all.
    """
    for name, value in (
        ("global_batch_size", global_batch_size),
        ("per_device_train_batch_size", per_device_train_batch_size),
        ("world_size", world_size),
    ):
        if type(value) is not int or value < 1:
            raise ConfigError(
                f"{name} must be a positive integer; it is {value!r}.", fix="set 1 or more"
            )
    step = per_device_train_batch_size * world_size
    is_exact = global_batch_size % step == 0
    if not is_exact and not (allow_uneven and global_batch_size >= world_size):
        raise _uneven(global_batch_size, per_device_train_batch_size, world_size)
    return BatchPlan(
        world_size=world_size,
        per_device_train_batch_size=per_device_train_batch_size,
        gradient_accumulation_steps=-(-global_batch_size // step),
        global_batch_size=global_batch_size,
        is_exact=is_exact,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The values that split evenly when the other two of the three stay."""

    per_device_sizes: tuple[int, ...]
    world_sizes: tuple[int, ...]
    global_batch_sizes: tuple[int, ...]
    has_uneven: bool


def valid_choices(
    global_batch_size: int, per_device_train_batch_size: int, world_size: int
) -> Choices:
    """Return the per-device sizes, GPU counts and nearest global batches that split evenly.

    >>> valid_choices(64, 16, 3).global_batch_sizes, valid_choices(64, 16, 3).world_sizes
    ((48, 96), (1, 2, 4))
    """
    per_process, rest = divmod(global_batch_size, world_size)
    sizes = () if rest else divisors(per_process)
    worlds = tuple(
        n
        for n in range(1, MAX_OFFERED_GPUS + 1)
        if global_batch_size % (n * per_device_train_batch_size) == 0
    )
    step = per_device_train_batch_size * world_size
    below = global_batch_size // step * step
    return Choices(
        per_device_sizes=sizes,
        world_sizes=worlds,
        global_batch_sizes=tuple(n for n in (below, below + step) if n > 0),
        has_uneven=global_batch_size >= world_size,
    )


def _uneven(total: int, per_device: int, world_size: int) -> ConfigError:
    step = per_device * world_size
    found = valid_choices(total, per_device, world_size)
    parts = []
    if found.per_device_sizes:
        parts.append(f"per_device_train_batch_size={_either(found.per_device_sizes)}")
    if found.world_sizes:
        parts.append(f"num_gpus={_either(found.world_sizes)}")
    parts.append(f"global_batch_size={_either(found.global_batch_sizes)} (changes the experiment)")
    if found.has_uneven:
        parts.append(
            "allow_uneven_split=True (the last micro-step is not full; the mean stays exact)"
        )
    return ConfigError(
        f"global_batch_size={total} cannot be split over world_size={world_size} with "
        f"per_device_train_batch_size={per_device}: {per_device} x {world_size} = {step}, and "
        f"{total} % {step} = {total % step}.",
        fix="set one of: " + "; ".join(parts),
    )


def _either(values: tuple[int, ...]) -> str:
    texts = [str(value) for value in values]
    if len(texts) > MAX_OFFERED:
        half = MAX_OFFERED // 2
        texts = [*texts[:half], "…", *texts[-half:]]
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " or " + texts[-1]


def plan_batch(preset: Preset, hardware: Hardware) -> BatchPlan:
    """Return the plan of a preset on this hardware: one process per GPU, or CPU processes.

    Raises:
        HardwareError: More GPUs are asked for than are visible.
        ConfigError: The global batch does not split evenly, or the GPUs lack the precision.
    """
    settings, visible = preset.settings, len(hardware.gpus)
    check_precision(settings, hardware)
    if visible and settings.num_gpus != "auto" and settings.num_gpus > visible:
        raise HardwareError(
            f"num_gpus={settings.num_gpus} was asked for, but {visible} "
            f"{'is' if visible == 1 else 'are'} visible.",
            fix=f'set num_gpus to {visible} or "auto", or check CUDA_VISIBLE_DEVICES',
        )
    plan = split_batch(
        settings.global_batch_size,
        settings.per_device_train_batch_size,
        max(visible, 1) if settings.num_gpus == "auto" else settings.num_gpus,
        allow_uneven=settings.allow_uneven_split,
    )
    return BatchPlan(**(plan.to_dict() | {"use_gpu": visible > 0, "num_gpus_visible": visible}))


def optimizer_steps(examples: int, plan: BatchPlan, epochs: int) -> int:
    """Return the optimizer steps of a run; the last partial window of each epoch counts.

    >>> optimizer_steps(130, split_batch(64, 8, 2), 2)
    6
    """
    return -(-examples // plan.global_batch_size) * epochs
