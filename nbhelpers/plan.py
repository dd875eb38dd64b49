"""Exact batch arithmetic: how a global batch is split over GPUs and micro-steps.

`global_batch_size` is the constant of an experiment; accumulation is derived from it. A split that
does not come out even is an error that lists the choices, never a silently different batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nbhelpers.common.display import Table
from nbhelpers.common.files import plain_values, rebuilt
from nbhelpers.errors import ConfigError, HardwareError
from nbhelpers.presets.checks import check_precision
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.preset import OVERRIDES, divisors, shared_size
from nbhelpers.presets.schema import OWN_ENGINE

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.presets.preset import Preset

# What TRL's trainer does not promise as the loop of this package does.
TRL_NOTE = (
    "TRL trains: a resumed run is not bit-equal, rows come in its own order and may repeat at the "
    "end of an epoch, packed rows count as samples, the validation loss is a mean over batches"
)
MAX_OFFERED = 16  # choices that one message lists
MAX_OFFERED_GPUS = 8  # of one node; a plan for more processes offers up to twice their number


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BatchPlan:
    """How one optimizer step is made: world size x per-device batch x accumulation.

    `world_size` counts the processes of all nodes; each node runs the same number of them.
    """

    world_size: int
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    global_batch_size: int
    is_exact: bool
    use_gpu: bool = False
    num_gpus_visible: int = 0
    num_nodes: int = 1
    unit: str = "pairs"  # what the batch counts, for people
    engine: str = OWN_ENGINE

    def __repr__(self) -> str:
        note = f"; {self.note()}" if self.note() else ""
        nodes = f"{self.num_nodes} nodes x " if self.num_nodes > 1 else ""
        where = f"{nodes}{self.processes_per_node} x {self._device()}"
        return f"BatchPlan({self.formula()}, {where}{note})"

    @property
    def processes_per_node(self) -> int:
        """Training processes of each node."""
        return self.world_size // self.num_nodes

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
            f"{self.per_device_train_batch_size} {self.unit} x {steps} "
            f"micro-step{'s' * (steps != 1)} x {processes} process{'es' * (processes != 1)}"
        )
        product += f" on {self.num_nodes} nodes" if self.num_nodes > 1 else ""
        if self.is_exact:
            return f"{product} = {self.global_batch_size} per optimizer step"
        text = f"{product}, of which {self.global_batch_size} are filled per optimizer step"
        return f"{text} (uneven, exact mean)"

    def note(self) -> str:
        """Say what several processes mean without a GPU, and what TRL does not promise."""
        notes = [] if self.engine == OWN_ENGINE else [TRL_NOTE]
        if not self.use_gpu and self.processes_per_node > 1:
            whose = "this machine's" if self.num_nodes == 1 else "each node's"
            notes.append(f"{self.processes_per_node} processes share {whose} cores")
        return "; ".join(notes)

    def _device(self) -> str:
        return "GPU" if self.use_gpu else "CPU"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON keeps."""
        values = plain_values(self)
        return {n: v for n, v in values.items() if n != "engine" or v != OWN_ENGINE}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> BatchPlan:
        """Rebuild a plan that `to_dict` wrote.

        Raises:
            ConfigError: A field is missing, unknown or of a wrong type; names it.
        """
        return rebuilt(cls, data, "batch plan")

    def _repr_html_(self) -> str:
        rows = [
            (f"{self.unit} that a process holds at once", self.per_device_train_batch_size),
            ("micro-steps per optimizer step", self.gradient_accumulation_steps),
            (f"processes, {'one per GPU' if self.use_gpu else 'on the CPU'}", self.world_size),
            (f"global batch: {self.unit} per optimizer step", self.global_batch_size),
        ]
        rows += [("nodes", self.num_nodes)] if self.num_nodes > 1 else []
        return Table(
            ("", ""), rows, title=self.words(), notes=[*filter(None, [self.note()])]
        ).html()


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
    most = MAX_OFFERED_GPUS if world_size <= MAX_OFFERED_GPUS else 2 * world_size
    micro_steps, rest = divmod(global_batch_size, per_device_train_batch_size)
    worlds = () if rest else tuple(n for n in divisors(micro_steps) if n <= most)
    step = per_device_train_batch_size * world_size
    below = global_batch_size // step * step
    return Choices(
        per_device_sizes=sizes,
        world_sizes=worlds,
        global_batch_sizes=tuple(n for n in (below, below + step) if n > 0),
        has_uneven=global_batch_size >= world_size,
    )


def _uneven(
    total: int, per_device: int, world_size: int, worlds: tuple[int, ...] = ()
) -> ConfigError:
    step = per_device * world_size
    choices = valid_choices(total, per_device, world_size)
    parts = []
    if choices.per_device_sizes:
        parts.append(f"per_device_train_batch_size={_either(choices.per_device_sizes)}")
    if worlds := worlds or choices.world_sizes:
        parts.append(f"num_gpus={_either(worlds)}")
    parts.append(
        f"global_batch_size={_either(choices.global_batch_sizes)} (changes the experiment)"
    )
    if choices.has_uneven:
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


def plan_batch(preset: Preset, hardware: Hardware, *, num_nodes: int = 1) -> BatchPlan:
    """Return the plan of a preset: one process per GPU, or CPU processes.

    Args:
        preset: What to do; its `num_gpus` counts the processes of all nodes.
        hardware: The GPUs of this machine, or of each node where there are several.
        num_nodes: Machines that train together; `launch` starts one only.

    Raises:
        HardwareError: More GPUs are asked for than are visible, or the nodes would differ.
        ConfigError: The global batch does not split evenly, or the GPUs lack the precision.
    """
    settings, visible = preset.settings, len(hardware.gpus)
    check_precision(settings, hardware, preset)
    _check_nodes(settings.num_gpus, visible, num_nodes)
    world_size = settings.num_gpus
    if world_size == "auto":
        world_size = max(visible, 1) * num_nodes
    total, size = settings.global_batch_size, settings.per_device_train_batch_size
    try:
        plan = split_batch(total, size, world_size, allow_uneven=settings.allow_uneven_split)
    except ConfigError:  # a smaller size per GPU would split too, unless the size was typed
        is_typed = preset.provenance["per_device_train_batch_size"] == OVERRIDES
        most, alike = visible * num_nodes or MAX_OFFERED_GPUS, divisors(total)
        counts = () if is_typed else (n for n in alike if n <= most and n % num_nodes == 0)
        raise _uneven(total, size, world_size, tuple(counts)) from None
    here = {"use_gpu": visible > 0, "num_gpus_visible": visible, "num_nodes": num_nodes}
    here["engine"] = getattr(settings, "engine", OWN_ENGINE)
    return replace(plan, **here, unit=JOBS[preset.job].unit)


def _check_nodes(num_gpus: int | str, visible: int, num_nodes: int) -> None:
    if type(num_nodes) is not int or num_nodes < 1:
        raise ConfigError(f"num_nodes={num_nodes!r} is no number of nodes.", fix="set 1 or more")
    if num_gpus == "auto":
        return
    if num_gpus % num_nodes:
        raise HardwareError(
            f"num_gpus={num_gpus} processes cannot be shared by {num_nodes} nodes alike.",
            fix=f'set num_gpus to "auto", or to a multiple of {num_nodes}',
        )
    most = visible * num_nodes
    if not visible or num_gpus <= most:
        return
    where = f" on {num_nodes} nodes" if num_nodes > 1 else ""
    raise HardwareError(
        f"num_gpus={num_gpus} was asked for, but {most} "
        f"{'is' if most == 1 else 'are'} visible{where}.",
        fix=f'set num_gpus to {most} or "auto", or check CUDA_VISIBLE_DEVICES',
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """One number of GPUs: the split of the global batch, or None and what to choose instead."""

    world_size: int
    plan: BatchPlan | None
    note: str
    is_here: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ScalingTable:
    """The same experiment on several numbers of GPUs, each with its exact split."""

    global_batch_size: int
    rows: tuple[ScalingRow, ...]
    unit: str

    def __repr__(self) -> str:
        exact = [row.world_size for row in self.rows if row.plan and row.plan.is_exact]
        on = _either(tuple(exact)) if exact else "none"
        return f"ScalingTable({self.title()}: exact on {on})"

    def title(self) -> str:
        """Say what stays the same in every row."""
        return f"global batch of {self.global_batch_size} on any number of GPUs"

    def table(self, title: str = "") -> Table:
        """Return GPUs, batch per GPU, micro-steps, global batch and note of each row."""
        rows = []
        for row in self.rows:
            split = ["-", "-", "-"]
            if plan := row.plan:
                split = [plan.per_device_train_batch_size, plan.gradient_accumulation_steps]
                split += [plan.global_batch_size]
            rows.append([str(n) for n in (row.world_size, *split, row.note)])
        heads = ("GPUs", f"{self.unit} per GPU", "micro-steps", "global batch", "")
        return Table(heads, rows, title=title)

    def text(self) -> str:
        """Return the table in aligned columns."""
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table(f"The {self.title()}").html()


def scaling_table(
    preset: Preset, counts: Iterable[int] = range(1, 9), *, plan: BatchPlan | None = None
) -> ScalingTable:
    """Return how a preset's global batch is split over each number of GPUs.

    The preset's per-device batch is an upper limit: more GPUs take less each, and never another
    global batch. A number that does not divide it says what to choose instead.

    Args:
        preset: What to do.
        counts: Numbers of GPUs, over all nodes.
        plan: The plan in force; its row is marked, and added where `counts` lacks it.
    """
    s = preset.settings
    here, mark, unit = None, "", JOBS[preset.job].unit
    if plan is not None:
        here, mark = plan.world_size, "this plan; " if plan.use_gpu else "this plan, on the CPU; "
    numbers = sorted({*counts, *([here] if here else [])})
    most = preset.per_device_limit or s.per_device_train_batch_size
    is_typed = preset.provenance["per_device_train_batch_size"] == OVERRIDES
    sizes = {n: (None if is_typed else shared_size(s.global_batch_size, most, n)) for n in numbers}
    exact = [n for n in numbers if sizes[n] or s.global_batch_size % (most * n) == 0]
    rows = []
    for number in numbers:
        size = sizes[number] or most
        try:
            split = split_batch(
                s.global_batch_size, size, number, allow_uneven=s.allow_uneven_split
            )
            note = (
                "exact" if split.is_exact else "uneven: some micro-steps are not full; exact mean"
            )
        except ConfigError:
            split, note = None, _instead(s.global_batch_size, size, number, exact)
        note = mark + note if number == here else note
        rows.append(ScalingRow(world_size=number, plan=split, note=note, is_here=number == here))
    return ScalingTable(global_batch_size=s.global_batch_size, rows=tuple(rows), unit=unit)


def _instead(total: int, size: int, number: int, exact: list[int]) -> str:
    """What to choose where `number` GPUs do not divide the global batch; the nearest first."""
    choices, parts = valid_choices(total, size, number), []
    if choices.has_uneven:
        parts.append("allow_uneven_split=true (exact mean)")
    near = (max((n for n in exact if n < number), default=0), *(n for n in exact if n > number))
    if counts := tuple(n for n in near[:2] if n):
        parts.append(f"num_gpus={_either(counts)}")
    if choices.per_device_sizes:
        parts.append(f"per_device_train_batch_size={_either(choices.per_device_sizes)}")
    parts.append(f"global_batch_size={_either(choices.global_batch_sizes)} (another experiment)")
    return f"{total} does not split: set {'; or '.join(parts)}"
