"""What a person chooses in the picker: preset, plan and adapters, with budget and time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args, get_origin

from nbhelpers.budget.memory import FITS
from nbhelpers.budget.predict import is_exact, predict_memory, simulate_budget
from nbhelpers.budget.simulator import missing_libraries
from nbhelpers.budget.time import predict_time
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.detection import Hardware, detect_hardware, plan_hardware
from nbhelpers.hardware.gpus import known_gpus
from nbhelpers.plan import BatchPlan, plan_batch
from nbhelpers.presets.adapters import ALL, adapter_name, parse_variants
from nbhelpers.presets.checks import settings_class
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.loading import list_presets, load_preset
from nbhelpers.presets.preset import Preset, divisors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbhelpers.budget.memory import MemoryBudget


# ------------------------------------------------------------------------------------------------
# What a person chooses in the picker, and the preset, plan and adapters that the choice means.
#
# A choice is plain values. `resolve` turns it into the objects of a run, by the functions that a
# notebook calls; a value that equals the preset's own is no override.


HERE = ""  # the GPU of this machine
ADAPTERS = (*(adapter_name(*each) for each in ALL), "all")
COUNTS = (1, 2, 4, 8)
LENGTHS = (128, 256, 400, 512, 768, 1024, 2048, 4096)
# Settings that the widget offers, in its order; a job without one of them does not show it.
OFFERED = (
    "model",
    "per_device_train_batch_size",
    "seq_len",
    "gradient_checkpointing",
    "loss",
    "precision",
    "attention",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is chosen: a job, a preset, a GPU, and what differs from the preset.

    `gpu` is a key of `gpus.yaml` with the `count` of such GPUs, or "" for this machine. `adapters`
    are names as in `parse_adapters`, for a job that varies them. `kept` names the overrides that
    stay when another preset is chosen: those of the notebook's parameters. `any_job`: the picker
    stands in the notebook about budgets, where the job itself is a parameter. `wishes` are the
    limit and the price of its parameters, by their names.
    """

    job: str
    preset: str = "auto"
    gpu: str = HERE
    count: int = 1
    adapters: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    any_job: bool = False
    wishes: Mapping[str, float] = field(default_factory=dict)

    def with_preset(self, name: str) -> Choice:
        """Choose another preset; its own values replace those chosen in the widget."""
        return replace(self, preset=name, overrides=self._kept(), adapters=self.adapters)

    def with_job(self, job: str) -> Choice:
        """Choose another job, with the preset for this GPU and nothing changed."""
        plain = replace(self, preset="auto", adapters="", overrides={}, kept=frozenset())
        return replace(plain, job=job)

    def with_value(self, name: str, value: Any) -> Choice:
        """Set one setting."""
        return replace(self, overrides={**self.overrides, name: value})

    def without(self, *names: str) -> Choice:
        """Leave settings to the preset."""
        left = {name: value for name, value in self.overrides.items() if name not in names}
        return replace(self, overrides=left)

    def _kept(self) -> dict[str, Any]:
        return {name: value for name, value in self.overrides.items() if name in self.kept}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The objects that a choice means.

    `variants` holds the preset of every adapter by its name, of a job without adapters the one
    preset under its own name.
    """

    choice: Choice
    hardware: Hardware
    preset: Preset
    plan: BatchPlan
    variants: Mapping[str, Preset]


def hardware_of(choice: Choice, here: Hardware) -> Hardware:
    """Return the planned hardware of a choice, or this machine's.

    Raises:
        ConfigError: There is no such GPU.
    """
    return here if choice.gpu == HERE else plan_hardware(choice.gpu, choice.count)


def choose_hardware(gpu: str = "auto", count: int = 1) -> Hardware:
    """Return the hardware that a notebook plans for.

    Args:
        gpu: `auto` (this machine's GPUs, or one T4 where there is none), `here` (this machine as
            it is), or a GPU as people name it.
        count: How many such GPUs, where they are planned.

    Raises:
        ConfigError: The GPU is unknown, or the name means several.
    """
    if gpu not in ("auto", "here", ""):
        return plan_hardware(gpu, count)
    hardware = detect_hardware()
    if hardware.gpus or gpu == "here":
        return hardware
    note = f"{hardware.reason or 'no GPU'}: a T4 is planned; name another one with `gpu`"
    planned = plan_hardware("t4", count)
    return replace(planned, notes=(note, *planned.notes))


def resolve(choice: Choice, here: Hardware) -> Resolved:
    """Load the preset of a choice and plan its batch.

    Raises:
        NbhelpersError: A value is wrong, or the batch cannot be split; with the fix.
    """
    hardware = hardware_of(choice, here)
    preset = load_preset(
        choice.job, choice.preset, hardware=hardware, overrides=dict(choice.overrides)
    )
    plan = plan_batch(preset, hardware)
    variants = {preset.name: preset}
    if JOBS[choice.job].has_adapters:
        names = choice.adapters or preset.settings.adapter
        variants = {
            variant.name: preset.override(**_changes(preset, variant.changes))
            for variant in parse_variants(names)
        }
    return Resolved(choice=choice, hardware=hardware, preset=preset, plan=plan, variants=variants)


def _changes(preset: Preset, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What a variant changes; as in a study, a typed alpha follows the rank."""
    settings, wanted = preset.settings, dict(changes)
    if settings.lora_alpha is not None and "lora_r" in changes:
        scaled = settings.lora_alpha * changes["lora_r"] / settings.lora_r
        wanted = {"lora_alpha": scaled} | wanted
    return {name: value for name, value in wanted.items() if getattr(settings, name) != value}


def own_value(choice: Choice, here: Hardware, name: str) -> Any:
    """Return what a setting would be if it were not overridden.

    Raises:
        NbhelpersError: See `resolve`.
    """
    plain = choice.without(name)
    preset = load_preset(
        plain.job,
        plain.preset,
        hardware=hardware_of(plain, here),
        overrides=dict(plain.overrides),
    )
    return getattr(preset.settings, name)


def offered(resolved: Resolved) -> dict[str, list[Any]]:
    """Return the values of each setting that a picker offers, its present one among them."""
    known = settings_class(resolved.choice.job).model_fields
    names = [name for name in OFFERED if name in known]
    return {name: _values(resolved, name) for name in names}


def _values(resolved: Resolved, name: str) -> list[Any]:
    settings = resolved.preset.settings
    now = getattr(settings, name)
    if name == "model":
        return _with(_model(settings.model, resolved), JOBS[resolved.choice.job].models.names)
    if name == "per_device_train_batch_size":
        share = settings.global_batch_size // resolved.plan.world_size
        return _in_order(now, divisors(share) if share else ())
    if name == "seq_len":
        return _in_order(now, (n for n in LENGTHS if n <= most_tokens(resolved.preset)))
    kind = settings_class(resolved.choice.job).model_fields[name].annotation
    return [True, False] if kind is bool else _with(now, literals(kind))


def most_tokens(preset: Preset) -> int:
    """Return the longest `seq_len` that the model can number; all lengths where that is unknown."""
    from nbhelpers.budget.shapes import find_shape

    shape = find_shape(preset.settings)
    return LENGTHS[-1] if shape is None else shape.code_positions


def literals(kind: Any) -> tuple[Any, ...]:
    """Return the words that a field of settings may hold.

    >>> from typing import Literal
    >>> literals(Literal["auto", "plain"]), literals(int)
    (('auto', 'plain'), ())
    """
    return get_args(kind) if get_origin(kind) is not None else ()


def _model(model: str, resolved: Resolved) -> str:
    return JOBS[resolved.choice.job].models.short_name(model) or model


def _with(now: Any, values: Iterable[Any]) -> list[Any]:
    """The offered values, after the present one where they lack it."""
    listed = list(values)
    return listed if now in listed else [now, *listed]


def _in_order(now: int, values: Iterable[int]) -> list[int]:
    return sorted({now, *values})


def presets_of(choice: Choice) -> list[str]:
    """Return the presets that a picker offers; a file of one's own among them."""
    return _with(choice.preset, ["auto", *list_presets(choice.job)])


def gpus_of(here: Hardware) -> list[tuple[str, str]]:
    """Return label and key of this machine and of every known GPU."""
    if here.is_planned and here.gpu is not None:
        first = f"{len(here.gpus)} x {here.gpu.name} (of the notebook)"
    elif here.gpu is not None:
        first = f"this machine: {len(here.gpus)} x {here.gpu.name}"
    else:
        first = "this machine: no GPU"
    others = [(f"planned: {spec.name}", key) for key, spec in known_gpus().items()]
    return [(first, HERE), *others]


def check_choice(choice: Choice) -> None:
    """Refuse a job, a preset's name or adapters that do not exist.

    Raises:
        ConfigError: With the nearest name that exists.
    """
    settings_class(choice.job)
    if JOBS[choice.job].has_adapters and choice.adapters:
        parse_variants(choice.adapters)
    elif choice.adapters:
        text = f"The job {choice.job} has no adapters."
        raise ConfigError(text, fix="choose a preset only")
    if choice.preset != "auto":
        load_preset(choice.job, choice.preset)


# ------------------------------------------------------------------------------------------------
# The budget and the time of a choice: at once from what is known, exactly a moment later.
#
# At once means the cache, else an interpolation between simulated budgets, else formulas; each
# budget says which. The exact simulation runs in a process beside this one.


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a choice needs: a budget for each adapter (or the one preset), and the time in words."""

    found: Resolved
    budgets: Mapping[str, MemoryBudget]
    time_lines: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether a simulation would tell nothing new: all is simulated, or no GPU is used."""
        return not self.found.plan.use_gpu or all(
            is_exact(budget, self.found.choice.job) for budget in self.budgets.values()
        )

    @property
    def can_simulate(self) -> bool:
        """Whether the libraries of a training are here, without which nothing is simulated."""
        return not missing_libraries()


def quick_estimate(
    resolved: Resolved, *, price_per_hour: float | None = None, max_hours: float | None = None
) -> Estimate:
    """Return what is known of a choice without a simulation.

    Args:
        resolved: The choice with its objects.
        price_per_hour: Of the machine; a cost is then shown, in the same currency.
        max_hours: What a run may take; more is said, with what would be shorter.

    Raises:
        ConfigError: `seq_len` is more than the positions of the model.
    """
    budgets = {
        name: predict_memory(preset, resolved.plan, resolved.hardware)
        for name, preset in resolved.variants.items()
    }
    lines = time_lines(resolved, price_per_hour=price_per_hour, max_hours=max_hours)
    return Estimate(found=resolved, budgets=budgets, time_lines=lines)


def exact_estimate(
    estimate: Estimate,
    *,
    with_advice: bool = True,
    report: Callable[[str], None] | None = None,
) -> Estimate:
    """Return an estimate whose budgets are all simulated, in a process beside this one.

    Args:
        estimate: What is known.
        with_advice: Simulate what would help too, where something does not fit.
        report: Is told before each simulation.

    Raises:
        NbhelpersError: A simulation could not be run.
    """
    resolved, exact = estimate.found, {}
    for name, budget in estimate.budgets.items():
        preset = resolved.variants[name]
        is_done = is_exact(budget, resolved.choice.job) and (
            budget.verdict == FITS or not with_advice
        )
        exact[name] = (
            budget
            if is_done
            else simulate_budget(
                preset, resolved.plan, resolved.hardware, with_advice=with_advice, report=report
            )
        )
    return replace(estimate, budgets=exact)


def time_lines(
    resolved: Resolved, *, price_per_hour: float | None = None, max_hours: float | None = None
) -> tuple[str, ...]:
    """Say how long each run of a choice may take, what that costs, and whether it is too long.

    Raises:
        ConfigError: A limit or price that is no number above zero.
    """
    is_one = len(resolved.variants) == 1
    lines: list[str] = []
    for name, preset in resolved.variants.items():
        time = predict_time(
            preset,
            resolved.plan,
            resolved.hardware,
            max_hours=max_hours,
            price_per_hour=price_per_hour,
            advise=is_one,
        )
        texts = time.lines()
        notes = {f"  {note}" for note in time.notes}
        lines += texts if is_one else [f"{name}: {text}" for text in texts if text not in notes]
    return tuple(lines)
