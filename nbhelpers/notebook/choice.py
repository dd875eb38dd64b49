"""What a person chooses in the picker, and the answer: preset, plan, adapters, memory and time.

A choice is plain values. `resolve` turns it into the objects of a run, by the functions that a
notebook calls; a value that equals the preset's own is no override.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args, get_origin

from nbhelpers.budget.memory import FITS
from nbhelpers.budget.predict import is_exact, predict_memory, simulate_budget
from nbhelpers.budget.time import predict_time
from nbhelpers.errors import ConfigError
from nbhelpers.hardware.detection import Hardware, detect_hardware, plan_hardware
from nbhelpers.hardware.gpus import known_gpus
from nbhelpers.plan import BatchPlan, plan_batch
from nbhelpers.presets.adapters import ALL, adapter_name, parse_variants
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.loading import list_presets, load_preset
from nbhelpers.presets.preset import Preset, divisors

if TYPE_CHECKING:
    from nbhelpers.budget.memory import MemoryBudget

HERE = ""  # the GPU of this machine
COUNTS = (1, 2, 4, 8)
LENGTHS = (128, 256, 400, 512, 768, 1024, 2048, 4096)
# Settings that the widget offers, in its order; a job without one of them does not show it.
OFFERED = (
    *("model", "per_device_train_batch_size", "seq_len", "gradient_checkpointing", "loss"),
    *("precision", "attention"),
)
OF_CHOICE = ("job", "preset", "gpu", "count", "adapters")  # what is chosen and is no setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is chosen: a job, a preset, a GPU, and what differs from the preset.

    `gpu` is a key of `gpus.yaml` with the `count` of such GPUs, or "" for this machine. `adapters`
    are names as in `parse_adapters`, for a job that varies them. `fixed` names the overrides that
    stay when another preset is chosen: those of the notebook's parameters. `any_job`: the picker
    stands in the notebook about budgets, where the job itself is a parameter. `wishes` are the
    limit and the price of its parameters, by their names. `quick` is as `load_preset` takes it.
    """

    job: str
    preset: str = "auto"
    gpu: str = HERE
    count: int = 1
    adapters: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    any_job: bool = False
    wishes: Mapping[str, float] = field(default_factory=dict)
    quick: str = "off"

    def with_value(self, name: str, value: Any) -> Choice:
        """Choose a job, preset, GPU, number or adapters, or set a setting; None: the preset's own.

        Another preset drops the settings chosen before but those of the parameters; another job
        begins with the preset for the GPU.
        """
        if name == "job":
            plain = {"preset": "auto", "adapters": "", "overrides": {}, "fixed": frozenset()}
            return replace(self, job=value, **plain)
        if name == "preset":
            fixed = {key: item for key, item in self.overrides.items() if key in self.fixed}
            return replace(self, preset=value, overrides=fixed)
        if name in OF_CHOICE:
            return replace(self, **{name: value})
        others = {key: item for key, item in self.overrides.items() if key != name}
        return replace(self, overrides=others if value is None else others | {name: value})


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The objects that a choice means, with the memory and the time that it needs.

    `variants` holds the preset of every adapter by its name; of a job without adapters the one
    preset under its own name. `exact` holds the budgets that were simulated for this choice.
    """

    choice: Choice
    hardware: Hardware
    preset: Preset
    plan: BatchPlan
    variants: Mapping[str, Preset]
    exact: Mapping[str, MemoryBudget] = field(default_factory=dict)

    @property
    def run_preset(self) -> Preset:
        """The one preset that runs; of several adapters the preset that their runs share."""
        presets = list(self.variants.values())
        return presets[0] if len(presets) == 1 else self.preset

    @cached_property
    def budgets(self) -> dict[str, MemoryBudget]:
        """A budget for each variant: simulated, else what is known at once.

        Raises:
            ConfigError: `seq_len` is more than the positions of the model.
        """
        return {
            name: self.exact.get(name) or predict_memory(preset, self.plan, self.hardware)
            for name, preset in self.variants.items()
        }

    @property
    def is_exact(self) -> bool:
        """Whether a simulation would tell nothing new: all is simulated, or no GPU is used."""
        return not self.plan.use_gpu or all(
            is_exact(budget, self.choice.job) for budget in self.budgets.values()
        )

    def simulated(
        self, *, with_advice: bool = True, report: Callable[[str], None] | None = None
    ) -> Answer:
        """Return the answer with all budgets simulated, in a process beside this one.

        Args:
            with_advice: Simulate what would help too, where something does not fit.
            report: Is told before each simulation.

        Raises:
            NbhelpersError: A simulation could not be run.
        """
        exact = dict(self.budgets)
        for name, budget in self.budgets.items():
            needs_advice = with_advice and budget.verdict != FITS
            if needs_advice or not is_exact(budget, self.choice.job):
                needs = (self.variants[name], self.plan, self.hardware)
                exact[name] = simulate_budget(*needs, with_advice=with_advice, report=report)
        return replace(self, exact=exact)

    def advised_like(self, earlier: Answer) -> Answer:
        """Return the answer with the earlier advice where something does not fit and has none."""
        exact = {
            name: replace(budget, advice=earlier.budgets[name].advice)
            if budget.verdict != FITS and not budget.advice
            else budget
            for name, budget in self.budgets.items()
        }
        return replace(self, exact=exact)

    @cached_property
    def time_lines(self) -> list[str]:
        """How long each run may take, what that costs, and whether it is too long.

        Raises:
            ConfigError: A limit or price that is no number above zero.
        """
        is_one = len(self.variants) == 1
        lines: list[str] = []
        for name, preset in self.variants.items():
            options = {"advise": is_one, **self.choice.wishes}
            time = predict_time(preset, self.plan, self.hardware, **options)
            texts = time.lines()
            notes = {f"  {note}" for note in time.notes}
            lines += texts if is_one else [f"{name}: {text}" for text in texts if text not in notes]
        return lines


def resolve(choice: Choice, here: Hardware) -> Answer:
    """Load the preset of a choice and plan its batch.

    Raises:
        NbhelpersError: A value is wrong, or the batch cannot be split; with the fix.
    """
    preset, hardware = _loaded(choice, here)
    plan, variants = plan_batch(preset, hardware), {preset.name: preset}
    if JOBS[choice.job].has_adapters:
        variants = {
            variant.name: preset.override(**_changes(preset, variant.changes))
            for variant in parse_variants(choice.adapters or preset.settings.adapter)
        }
    elif choice.adapters:
        text = f"The job {choice.job} has no adapters."
        raise ConfigError(text, fix="choose a preset only")
    return Answer(choice=choice, hardware=hardware, preset=preset, plan=plan, variants=variants)


def _loaded(choice: Choice, here: Hardware) -> tuple[Preset, Hardware]:
    hardware = here if choice.gpu == HERE else plan_hardware(choice.gpu, choice.count)
    options = {"hardware": hardware, "overrides": dict(choice.overrides), "quick": choice.quick}
    return load_preset(choice.job, choice.preset, **options), hardware


def _changes(preset: Preset, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What a variant changes; as in a study, a typed alpha follows the rank."""
    settings, wanted = preset.settings, dict(changes)
    if settings.lora_alpha is not None and "lora_r" in changes:
        scaled = settings.lora_alpha * changes["lora_r"] / settings.lora_r
        wanted = {"lora_alpha": scaled} | wanted
    return {name: value for name, value in wanted.items() if getattr(settings, name) != value}


def own_value(choice: Choice, here: Hardware, name: str) -> Any:
    """Return what a setting would be if it were not overridden; None for no such setting.

    Raises:
        NbhelpersError: See `resolve`.
    """
    return getattr(_loaded(choice.with_value(name, None), here)[0].settings, name, None)


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
    note = f"{hardware.reason or 'no GPU'}: a T4 is planned; the parameter gpu names another one"
    planned = plan_hardware("t4", count)
    return replace(planned, notes=(note, *planned.notes))


# ------------------------------------------------------------------------------------------------
# What a picker offers.


def offered(answer: Answer, here: Hardware) -> dict[str, tuple[list[tuple[str, Any]], Any]]:
    """Return for each control its options, as label and value, and the value that is in force."""
    choice, settings = answer.choice, answer.preset.settings
    jobs = list(JOBS) if choice.any_job else [choice.job]
    counts = [choice.count] if choice.gpu == HERE else sorted({*COUNTS, choice.count})
    names: list[Any] = _with(choice.preset, ["auto", *list_presets(choice.job)])
    if choice.preset == "auto":
        names = [(f"auto: {answer.preset.name}", "auto"), *names[1:]]
    adapters = answer.choice.adapters or getattr(settings, "adapter", None)
    plain = [adapter_name(*adapter) for adapter in ALL]
    controls: dict[str, tuple[list[Any], Any]] = {
        "job": (jobs, choice.job),
        "gpu": (_gpus(here), choice.gpu),
        "count": (counts, choice.count),
        "preset": (names, choice.preset),
        "adapters": ([] if adapters is None else _with(adapters, [*plain, "all"]), adapters),
    }
    for setting in OFFERED:
        controls[setting] = _setting(answer, setting)
    return {
        name: (
            [option if isinstance(option, tuple) else (str(option), option) for option in options],
            value,
        )
        for name, (options, value) in controls.items()
    }


def _setting(answer: Answer, name: str) -> tuple[list[Any], Any]:
    """The values of a setting, its present one among them; none for a job that has it not."""
    settings, models = answer.preset.settings, JOBS[answer.choice.job].models
    if name not in type(settings).model_fields:
        return [], None
    now = getattr(settings, name)
    if name == "model":
        now = models.short_name(now) or now
        return _with(now, models.names), now
    if name == "per_device_train_batch_size":
        share = settings.global_batch_size // answer.plan.world_size
        return sorted({now, *(divisors(share) if share else ())}), now
    if name == "seq_len":
        return sorted({now, *(n for n in LENGTHS if n <= most_tokens(answer.preset))}), now
    kind = type(settings).model_fields[name].annotation
    if kind is bool:
        return [("on", True), ("off", False)], now
    return _with(now, get_args(kind) if get_origin(kind) is not None else ()), now


def most_tokens(preset: Preset) -> int:
    """Return the longest `seq_len` that the model can number; all lengths where that is unknown."""
    from nbhelpers.budget.shapes import find_shape

    shape = find_shape(preset.settings)
    return LENGTHS[-1] if shape is None else shape.code_positions


def _with(now: Any, values: Iterable[Any]) -> list[Any]:
    """The offered values, after the present one where they lack it."""
    listed = list(values)
    return listed if now in listed else [now, *listed]


def _gpus(here: Hardware) -> list[tuple[str, str]]:
    """Label and key of this machine and of every known GPU."""
    first = "this machine: no GPU"
    if here.gpu is not None:
        cards = f"{len(here.gpus)} x {here.gpu.name}"
        first = f"{cards} (of the notebook)" if here.is_planned else f"this machine: {cards}"
    return [(first, HERE), *((f"planned: {spec.name}", key) for key, spec in known_gpus().items())]
