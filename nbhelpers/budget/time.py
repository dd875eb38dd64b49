"""How long a run may take by phase, what it costs, and settings with which it ends in time."""

from __future__ import annotations

import contextlib
import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.budget.memory import FITS, NO_GPU
from nbhelpers.budget.predict import predict_memory
from nbhelpers.budget.speeds import RUN, SpeedRow, device_key, read_rows
from nbhelpers.budget.time_model import (
    ESTIMATE,
    MEASURED,
    NOTHING,
    Range,
    Rate,
    Work,
    answers,
    case_of,
    is_same_work,
    rate_of,
    work_of,
)
from nbhelpers.common.display import left
from nbhelpers.common.files import is_number, rebuilt
from nbhelpers.common.formatting import duration
from nbhelpers.errors import ConfigError, NbhelpersError
from nbhelpers.plan import plan_batch
from nbhelpers.presets.jobs import ADAPTER, JobSpec, spec_of
from nbhelpers.presets.preset import divisors

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.plan import BatchPlan
    from nbhelpers.presets.preset import Preset
    from nbhelpers.presets.schema import Settings


# ------------------------------------------------------------------------------------------------
# Seconds of a run's phases: data, training, evaluation; each a range with what it comes from.


DATA, TRAINING, EVALUATION = "data", "training", "evaluation"
# Processes, imports and loading the weights, not downloading them; of the embedded models nothing
# is loaded.
START_S = Range.of(20.0, 40.0, 90.0)
EMBEDDED_START_S = Range.of(3.0, 8.0, 20.0)
DATA_RANGE = (0.5, 1.0, 2.0)
# Source: docs/LOG.md. Blocks of Gemma compiled in 23 to 114 s; with kernels cached in 9.
COMPILE_S = Range.of(9.0, 35.0, 114.0)
# Source: docs/LOG.md. The detector's frozen steps took .044 s where others took .125.
FROZEN_SHARE = 0.044 / 0.125
# Source: docs/LOG.md. Ten validations and six checkpoints of an encoder: 30 s.
VALIDATION_S = Range.of(1.0, 3.0, 5.0)
# Of one token for every answer of a batch: small kernels, so the CPU's speed counts too.
DECODE_STEP_S = Range.of(0.025, 0.06, 0.12)
ANSWER_SHARE = (0.5, 0.75, 1.0)  # of max_new_tokens: tuned answers end earlier
FORWARD_SHARE = 1 / 3  # of a training step: the backward pass takes twice the forward
EVALUATED_BY = ("evaluate", "tasks", "eval_samples", "max_task_problems", "max_new_tokens")
EVALUATED_BY += ("generation_batch_size", "run_generated_code", "floors", "edit_suite", "data")
EVALUATED_BY += ("seq_len", "model", "max_retrieval_pool", "retrieval_data")
_DATA_PHASES = ("start", "check", "data", "model")
_SINGLE = 1.15  # one run's seconds, of phases that other programs on the machine slow down


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTime:
    """Seconds of one phase, as a range; None: unknown."""

    name: str
    low_s: float | None
    expected_s: float | None
    high_s: float | None
    note: str = ""

    @classmethod
    def of(cls, name: str, seconds: Range | None, note: str = "") -> PhaseTime:
        """Return a phase of a range of seconds."""
        if seconds is None:
            return cls(name=name, low_s=None, expected_s=None, high_s=None, note=note)
        low, middle, high = seconds.low, seconds.expected, seconds.high
        return cls(name=name, low_s=low, expected_s=middle, high_s=high, note=note)

    def words(self) -> str:
        """Say the expected seconds, and the range.

        >>> PhaseTime(name="data", low_s=30, expected_s=60, high_s=90).words()
        'data 1 min 00 s'
        """
        text = "unknown" if self.expected_s is None else duration(self.expected_s)
        return f"{self.name} {text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that the phases of one run are predicted from."""

    settings: Settings
    plan: BatchPlan
    hardware: Hardware
    work: Work
    rate: Rate
    rows: Sequence[SpeedRow]

    @property
    def spec(self) -> JobSpec:
        """The job."""
        return spec_of(self.settings)

    @property
    def is_embedded(self) -> bool:
        """Whether the model is one of those that are built here."""
        return self.settings.model in self.spec.models.embedded

    def past(self) -> list[SpeedRow]:
        """Return runs of this job on this device with their seconds, newest first."""
        device = device_key(self.plan.use_gpu, self.hardware.to_dict())
        alike = (r for r in self.rows if r.seconds and r.kind == RUN and r.job == self.spec.name)
        runs = [r for r in alike if r.device == device and r.world_size == self.plan.world_size]
        if not self.plan.use_gpu:
            runs = [r for r in runs if r.cpu_count == self.hardware.cpu_count]
        return runs


def phases_of(asked: Plan) -> tuple[tuple[PhaseTime, ...], bool]:
    """Return the phases of a run, and whether runs that did just this tell all of them."""
    same = [row for row in asked.past() if is_same_work(row, asked.settings)]
    if same:
        source = same[0].source + (f" and {len(same) - 1} more" if len(same) > 1 else "")
        groups = [by_phase(row.seconds) for row in same]
        names = (DATA, TRAINING, EVALUATION)
        return tuple(
            PhaseTime.of(n, _spread([g[n] for g in groups]), f"as in {source}") for n in names
        ), True
    return (_data(asked), _training(asked), _evaluation(asked)), False


def by_phase(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return a run's seconds by our three phases; pre-training is done once, and cached."""
    data = sum(seconds.get(name, 0.0) for name in _DATA_PHASES)
    training = seconds.get("train", 0.0)
    left_out = ("total", "pretrain", "train", *_DATA_PHASES)
    rest = sum(value for name, value in seconds.items() if name not in left_out)
    return {DATA: data, TRAINING: training, EVALUATION: rest}


def _spread(values: Sequence[float]) -> Range:
    low, high = min(values), max(values)
    middle = math.exp(sum(math.log(max(v, 1e-3)) for v in values) / len(values))
    return Range.of(min(low, middle / _SINGLE), middle, max(high, middle * _SINGLE))


def _data(asked: Plan) -> PhaseTime:
    s, work = asked.settings, asked.work
    for row in asked.past():
        if row.settings.get("data") == s.data and row.settings.get("model") == s.model:
            taken = by_phase(row.seconds)[DATA]
            if row.examples and work.examples:
                taken *= max(1.0, work.examples / row.examples) ** 0.5
            return PhaseTime.of(DATA, _spread([taken]), f"as in {row.source}")
    start = EMBEDDED_START_S if asked.is_embedded else START_S
    if work.examples is None:
        return PhaseTime.of(DATA, None, "the data is not known yet")
    if (time := asked.spec.time) is None:
        return PhaseTime.of(DATA, None, f"unknown of the job {asked.spec.name}")
    share = work.examples / time.data_examples
    share = min(share, 1.0) if time.examples_repeat else share
    low, middle, high = (time.data_s * share * each for each in DATA_RANGE)
    note = "start, reading and tokens (estimate); no downloads"
    return PhaseTime.of(DATA, start + Range.of(low, middle, high), note)


def _training(asked: Plan) -> PhaseTime:
    s, work, rate = asked.settings, asked.work, asked.rate
    if getattr(s, "method", "") == "base":
        return PhaseTime.of(TRAINING, NOTHING, "nothing is trained")
    if rate.micro_step_s is None:
        return PhaseTime.of(TRAINING, None, rate.notes[0])
    if work.examples is None:
        return PhaseTime.of(TRAINING, None, "unknown until the data is read")
    plan = asked.plan
    step = plan.per_device_train_batch_size * plan.world_size
    epochs = float(s.epochs)
    epochs -= (1.0 - FROZEN_SHARE) * min(getattr(s, "freeze_epochs", 0), s.epochs)
    seconds = rate.micro_step_s * (work.examples * epochs / step)
    seconds = seconds + _validations(asked)
    if asked.spec.formulas == ADAPTER and case_of(s, plan, asked.hardware, work).compiled:
        seconds = seconds + COMPILE_S
    note = f"{steps_of(s, work.examples):,} optimizer steps"
    if work.is_bound:
        seconds = Range.of(0.0, seconds.expected, seconds.high)
        note += ", at most: the lengths of the texts are not known"
    return PhaseTime.of(TRAINING, seconds, note)


def steps_of(settings: Settings, examples: int) -> int:
    """Return the optimizer steps of a run; the last, smaller one of each epoch counts."""
    return -(-examples // settings.global_batch_size) * settings.epochs


def _validations(asked: Plan) -> Range:
    """Return the seconds of validation and checkpoints during training."""
    s, step = asked.settings, asked.rate.micro_step_s
    one = step * (FORWARD_SHARE / (asked.plan.per_device_train_batch_size * asked.plan.world_size))
    if asked.spec.formulas == ADAPTER:
        return one * (1.5 * s.epochs * s.valid_samples)
    if (time := asked.spec.time) is None:
        return NOTHING
    held_out = min(time.valid_share * (asked.work.examples or 0), time.most_valid)
    fixed = VALIDATION_S if asked.plan.use_gpu else Range.of(0.1, 0.3, 1.0)
    return (one * held_out + fixed) * s.epochs


def _evaluation(asked: Plan) -> PhaseTime:
    s = asked.settings
    values = s.model_dump(mode="json")
    for row in asked.past():
        if all(row.settings.get(name) == values.get(name) for name in EVALUATED_BY):
            taken = by_phase(row.seconds)[EVALUATION]
            return PhaseTime.of(EVALUATION, _spread([taken]), f"as in {row.source}")
    if asked.spec.formulas == ADAPTER:
        return _generation(asked)
    if (time := asked.spec.time) is None:
        return PhaseTime.of(EVALUATION, None, f"unknown of the job {asked.spec.name}")
    examples = asked.work.examples or 0
    share = max(examples / time.data_examples, 0.05)
    fixed = Range.of(*time.evaluate_s) * (min(share, 1.0) if time.examples_repeat else share)
    if time.floors_s is not None and s.floors:
        fixed = fixed + Range.of(*time.floors_s) * min(share, 1.0)
    if asked.rate.micro_step_s is not None:
        per = asked.plan.per_device_train_batch_size * asked.plan.world_size
        scored = min(time.scored_share * examples, time.most_scored)
        fixed = fixed + asked.rate.micro_step_s * (FORWARD_SHARE * scored / per)
    return PhaseTime.of(EVALUATION, fixed, "scores and floors (estimate)")


def _generation(asked: Plan) -> PhaseTime:
    s: Any = asked.settings
    count = answers(s)
    if not count:
        return PhaseTime.of(EVALUATION, NOTHING, "no answers are generated")
    step = DECODE_STEP_S if asked.plan.use_gpu else _cpu_decode(asked)
    if step is None:
        return PhaseTime.of(EVALUATION, None, f"the size of {s.model} is unknown")
    steps = -(-count // s.generation_batch_size) * s.max_new_tokens
    low, middle, high = ANSWER_SHARE
    seconds = Range.of(
        steps * low * step.low, steps * middle * step.expected, steps * high * step.high
    )
    note = (
        f"{count:,} answers of half to all of {s.max_new_tokens} tokens, "
        f"{s.generation_batch_size} at once (estimate)"
    )
    return PhaseTime.of(EVALUATION, seconds, note)


def _cpu_decode(asked: Plan) -> Range | None:
    """Return the seconds of one token for every answer of a batch: half of a training token."""
    step = asked.rate.micro_step_s
    if step is None:
        return None
    s: Any = asked.settings
    per = asked.plan.per_device_train_batch_size * asked.work.example_tokens
    seconds = step * (0.5 * s.generation_batch_size / per)
    least = Range.of(0.001, 0.002, 0.004)  # the launches of a step, of however few tokens
    return seconds + least


# ------------------------------------------------------------------------------------------------
# How long a run may take, in minutes for data, training and evaluation, and what that costs.
#
# The speed comes from the table of measured rows (`speeds`), which every finished run extends; what
# was not measured is an estimate and says so. Nothing is read but tables and run folders.


IN_TIME, PERHAPS, TOO_LONG = "finishes in time", "may not finish in time", "will not finish in time"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TimeBudget:
    """A run's seconds by phase, where they come from, and what they mean for a limit or a price.

    `basis`: measured on this card; measured on another card, scaled; or estimate. `tokens_per_s`:
    useful tokens of all processes while training. `max_s` is the user's limit, `price_per_hour`
    the user's price of the whole machine, in `currency`. `advice`: settings that finish in time.
    """

    phases: tuple[PhaseTime, ...]
    basis: str
    notes: tuple[str, ...] = ()
    tokens_per_s: float | None = None
    mfu: float | None = None
    max_s: float | None = None
    price_per_hour: float | None = None
    currency: str = ""
    advice: tuple[str, ...] = ()

    @property
    def low_s(self) -> float | None:
        """Seconds at least; None while a phase is unknown."""
        return self._sum("low_s")

    @property
    def expected_s(self) -> float | None:
        """Seconds that are likely; None while a phase is unknown."""
        return self._sum("expected_s")

    @property
    def high_s(self) -> float | None:
        """Seconds at most; None while a phase is unknown."""
        return self._sum("high_s")

    def _sum(self, name: str) -> float | None:
        values = [getattr(phase, name) for phase in self.phases]
        return None if None in values else sum(values)

    @property
    def verdict(self) -> str:
        """Whether it finishes within the user's limit; empty without a limit or a prediction."""
        if self.max_s is None or self.low_s is None or self.high_s is None:
            return ""
        if self.high_s <= self.max_s:
            return IN_TIME
        return TOO_LONG if (self.expected_s or 0.0) > self.max_s else PERHAPS

    @property
    def cost(self) -> tuple[float, float, float] | None:
        """The price of the low, the expected and the high time; None without a price."""
        seconds = (self.low_s, self.expected_s, self.high_s)
        if self.price_per_hour is None or None in seconds:
            return None
        low, expected, high = (each / 3600 * self.price_per_hour for each in seconds)
        return low, expected, high

    @property
    def unknown_note(self) -> str:
        """Why the time is unknown; empty where it is known."""
        return next((p.note for p in self.phases if p.expected_s is None), "")

    def words(self) -> str:
        """Say the expected time with its range and its source."""
        if self.expected_s is None:
            return f"unknown ({self.unknown_note})"
        return range_words(self.low_s or 0.0, self.expected_s, self.high_s or 0.0, self.basis)

    def __repr__(self) -> str:
        return f"TimeBudget({self.words()})"

    def lines(self) -> list[str]:
        """Return what there is to say, a line each: time, sources, limit, cost."""
        parts = ", ".join(phase.words() for phase in self.phases)
        texts = [f"Time: {self.words()}: {parts}"]
        texts += [f"  {note}" for note in self.notes]
        if verdict := self.verdict_words():
            texts += [verdict, *(f"  {text}" for text in self.advice)]
        if self.cost is not None:
            low, expected, high = self.cost
            unit = f" {self.currency}" if self.currency else ""
            texts.append(
                f"Cost: {expected:.2f}{unit} ({low:.2f} to {high:.2f}) at "
                f"{self.price_per_hour:g}{unit} per hour"
            )
        return texts

    def verdict_words(self) -> str:
        """Say whether it finishes within the user's limit, and what would."""
        if not self.verdict or self.max_s is None:
            return ""
        limit = duration(self.max_s)
        if self.verdict == IN_TIME:
            return f"It finishes in your {limit}."
        verb = "will not" if self.verdict == TOO_LONG else "may not"
        what = "; these settings do:" if self.advice else "; no smaller setting was found that does"
        return f"It {verb} finish in your {limit}{what}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON keeps."""
        return asdict(self) | {
            "phases": [asdict(phase) for phase in self.phases],
            "notes": list(self.notes),
            "advice": list(self.advice),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TimeBudget:
        """Rebuild what `to_dict` wrote.

        Raises:
            ConfigError: A field is missing, unknown or of a wrong type; names it.
        """
        return rebuilt(cls, data, "time budget")

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> TimeBudget | None:
        """Return what was predicted when a run was launched; None where nothing readable was."""
        saved = record.get("time")
        if isinstance(saved, Mapping):
            with contextlib.suppress(ConfigError):
                return cls.from_dict(saved)
        return None

    def _repr_html_(self) -> str:
        def row(*texts: str) -> str:
            return "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in texts) + "</tr>"

        def span(low: float | None, high: float | None) -> str:
            return "" if low is None or high is None else f"{duration(low)} to {duration(high)}"

        rows = "".join(
            row(p.name, p.words().removeprefix(f"{p.name} "), span(p.low_s, p.high_s), p.note)
            for p in self.phases
        )
        total = "unknown" if self.expected_s is None else duration(self.expected_s)
        rows += row("total", total, span(self.low_s, self.high_s), self.basis)
        head = f"<p><b>{html.escape(f'Time: {self.words()}')}</b></p>"
        rest = "".join(f"<li>{html.escape(text.strip())}</li>" for text in self.lines()[1:])
        return left(f"{head}<table>{rows}</table><ul>{rest}</ul>")


def range_words(low_s: float, expected_s: float, high_s: float, basis: str) -> str:
    """Write the seconds that are expected, with their range and their source.

    >>> range_words(60, 90, 150, "estimate")
    '1 min 30 s (1 min 00 s to 2 min 30 s; estimate)'
    """
    return f"{duration(expected_s)} ({duration(low_s)} to {duration(high_s)}; {basis})"


def predict_time(
    preset: Preset,
    plan: BatchPlan,
    hardware: Hardware,
    *,
    rows: Sequence[SpeedRow] | None = None,
    run_dir: str | Path | None = None,
    examples: int | None = None,
    tokens_per_example: float | None = None,
    max_hours: float | None = None,
    price_per_hour: float | None = None,
    currency: str = "",
    advise: bool = True,
) -> TimeBudget:
    """Return how long a run of this preset may take on this hardware, of any job.

    Args:
        preset: What to do.
        plan: How its batch is split.
        hardware: Where it would run.
        rows: Measured speeds; None: the package's, the user's and those of `run_dir`.
        run_dir: A folder of runs, whose results count too.
        examples: Training examples, where they are known.
        tokens_per_example: Mean useful tokens of one, where they are known.
        max_hours: The time that there is: a limit of yours or of your session.
        price_per_hour: Of the machine, in `currency`.
        currency: What the price is in, as you write it.
        advise: Look for settings that finish in `max_hours`.

    Raises:
        ConfigError: A limit or price that is no number above zero.
    """
    for name, value in (("max_hours", max_hours), ("price_per_hour", price_per_hour)):
        _check_positive(name, value)
    rows = read_rows(run_dir) if rows is None else tuple(rows)
    settings = preset.settings
    work = work_of(settings, rows, examples=examples, example_tokens=tokens_per_example)
    rate = rate_of(settings, plan, hardware, work, rows)
    asked = Plan(settings=settings, plan=plan, hardware=hardware, work=work, rate=rate, rows=rows)
    phases, is_same = phases_of(asked)
    trains = getattr(settings, "method", "") != "base"
    speed = None
    if trains and rate.micro_step_s is not None:
        per_step = plan.per_device_train_batch_size * plan.world_size * work.example_tokens
        speed = per_step / rate.micro_step_s.expected
    time_budget = TimeBudget(
        phases=phases,
        basis=MEASURED if is_same else rate.basis if trains else ESTIMATE,
        notes=(phases[0].note,) if is_same else (*work.notes, *rate.notes) if trains else (),
        tokens_per_s=speed,
        mfu=rate.mfu if trains else None,
        max_s=None if max_hours is None else 3600.0 * max_hours,
        price_per_hour=price_per_hour,
        currency=currency,
    )
    if advise and time_budget.verdict in (TOO_LONG, PERHAPS):
        from dataclasses import replace

        return replace(time_budget, advice=advice_for(preset, time_budget, asked))
    return time_budget


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not (is_number(value) and value > 0):
        raise ConfigError(
            f"{name}={value!r} is no number above zero.", fix=f"set {name}, say, to 3"
        )


def time_lines(
    preset: Preset,
    plan: BatchPlan,
    hardware: Hardware,
    *,
    run_dir: str | Path | None = None,
    max_hours: float | None = None,
    price_per_hour: float | None = None,
    currency: str = "",
) -> list[str]:
    """Return the predicted time as lines for a terminal, beside the memory budget.

    Raises:
        ConfigError: A limit or price that is no number above zero.
    """
    return predict_time(
        preset,
        plan,
        hardware,
        run_dir=run_dir,
        max_hours=max_hours,
        price_per_hour=price_per_hour,
        currency=currency,
    ).lines()


def compare_time(budget: TimeBudget, seconds: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return predicted beside measured seconds by phase, with the error in %.

    Args:
        budget: Predicted before the run.
        seconds: A run's seconds by phase, as `result.json` has them (`train_s` and the like).
    """

    measured = by_phase({name.removesuffix("_s"): value for name, value in seconds.items()})
    rows = []
    for phase in budget.phases:
        rows.append(_compared(phase.name, phase, measured.get(phase.name)))
    total = (
        None
        if budget.expected_s is None
        else PhaseTime(
            name="total", low_s=budget.low_s, expected_s=budget.expected_s, high_s=budget.high_s
        )
    )
    if total is not None:
        rows.append(_compared("total", total, sum(measured.values())))
    return rows


def _compared(name: str, phase: PhaseTime, measured: float | None) -> dict[str, Any]:
    error = None
    if phase.expected_s and measured:
        error = 100 * (phase.expected_s / measured - 1)
    return {
        "phase": name,
        "predicted_s": phase.expected_s,
        "low_s": phase.low_s,
        "high_s": phase.high_s,
        "measured_s": measured,
        "error_percent": error,
    }


# ------------------------------------------------------------------------------------------------
# Settings with which a run ends within the user's time, each predicted again, none guessed.
#
# What leaves the experiment as it is comes first; what changes it says so.


Changes = dict[str, Any]
CHANGES = "changes the experiment"
SAME = "the same experiment"
MOST = 4  # settings that are named
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0.02, 0.01)
LENGTHS = (1024, 768, 512, 400, 256, 128)


def advice_for(preset: Preset, time_budget: TimeBudget, asked: Plan) -> tuple[str, ...]:
    """Return settings whose predicted time ends within the limit, the mildest first."""
    texts: list[str] = []
    free = _best_of_free(preset, time_budget, asked)
    if free is not None and _ends(free[1], time_budget):
        texts.append(_words(free[0], free[1], SAME))
    base = free[0] if free is not None else {}
    for changes in _harder(preset, base, time_budget, asked):
        if len(texts) >= MOST:
            break
        texts.append(_words(changes[0], changes[1], CHANGES))
    return tuple(texts)


def _ends(time: TimeBudget, limit: TimeBudget) -> bool:
    return time.high_s is not None and limit.max_s is not None and time.high_s <= limit.max_s


def _words(changes: Changes, time: TimeBudget, what: str) -> str:
    text = ", ".join(f"{name}={value!r}" for name, value in changes.items())
    expected, high = duration(time.expected_s or 0), duration(time.high_s or 0)
    return f"{text}: {expected}, at most {high} ({what})"


def _predicted(preset: Preset, changes: Changes, time_budget: TimeBudget, asked: Plan) -> Any:
    """Return the time with some settings changed; None where they do not do or do not fit."""

    try:
        other = preset.override(**changes)
        plan = plan_batch(other, asked.hardware)
        budget = predict_memory(other, plan, asked.hardware)
    except NbhelpersError:
        return None
    if budget.verdict not in (FITS, NO_GPU):
        return None
    time = predict_time(other, plan, asked.hardware, rows=asked.rows, advise=False)
    return replace(time, max_s=time_budget.max_s)


def _free(preset: Preset, asked: Plan) -> Iterator[Changes]:
    """Changes that leave what is learnt as it is, one at a time."""
    s = preset.settings
    if asked.spec.formulas == ADAPTER and not s.packing and asked.plan.use_gpu:
        yield {"packing": True}
    if s.padding == "fixed":
        yield {"padding": "dynamic"}
    if s.precision == "fp32" and asked.hardware.precision != "fp32":
        yield {"precision": "auto"}
    if s.attention == "eager" and asked.hardware.precision == "bf16":
        yield {"attention": "auto"}
    if getattr(s, "compile_layers", "") == "off" and asked.spec.formulas == ADAPTER:
        yield {"compile_layers": "auto"}
    if s.gradient_checkpointing:
        yield {"gradient_checkpointing": False}
    if asked.rate.is_launch_bound:
        per_gpu = asked.plan.global_batch_size // asked.plan.world_size
        sizes = [n for n in divisors(per_gpu) if n > asked.plan.per_device_train_batch_size]
        for size in reversed(sizes):
            yield {"per_device_train_batch_size": size}


def _best_of_free(
    preset: Preset, time_budget: TimeBudget, asked: Plan
) -> tuple[Changes, TimeBudget] | None:
    """Take every free change that is faster than what was taken before; None: there is none."""
    taken: Changes = {}
    best: TimeBudget | None = None
    for change in _free(preset, asked):
        if set(change) & set(taken):
            continue
        time = _predicted(preset, taken | change, time_budget, asked)
        before = (best or time_budget).expected_s
        if time is not None and time.expected_s and before and time.expected_s < 0.98 * before:
            taken, best = taken | change, time
    return None if best is None else (taken, best)


def _harder(
    preset: Preset, base: Changes, time_budget: TimeBudget, asked: Plan
) -> Iterator[tuple[Changes, TimeBudget]]:
    """The most epochs, rows, and tokens that end in time, with the free changes and without."""
    for start in [{}, base] if base else [{}]:
        for options in (_epochs(preset), _rows(preset, asked), _lengths(preset)):
            for change in options:
                time = _predicted(preset, start | change, time_budget, asked)
                if time is not None and _ends(time, time_budget):
                    yield start | change, time
                    break


def _epochs(preset: Preset) -> Iterator[Changes]:
    most = preset.settings.epochs
    # A detector that is frozen in all its epochs would train the heads alone.
    least = getattr(preset.settings, "freeze_epochs", 0) + 1
    yield from ({"epochs": n} for n in range(most - 1, least - 1, -1))


def _rows(preset: Preset, asked: Plan) -> Iterator[Changes]:
    """As many training rows as end in time, by a share where one is set, else by their number."""
    examples, s = asked.work.examples, preset.settings
    if not examples:
        return
    for share in SHARES:
        if s.max_train_samples is None:
            yield {"train_fraction": round(s.train_fraction * share, 6)}
        else:
            rows = int(examples * share) // s.global_batch_size * s.global_batch_size
            yield {"max_train_samples": max(rows, s.global_batch_size)}


def _lengths(preset: Preset) -> Iterator[Changes]:
    yield from ({"seq_len": n} for n in LENGTHS if n < preset.settings.seq_len)
