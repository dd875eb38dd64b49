"""How long a run may take by phase, what it costs, and settings with which it ends in time.

The speed comes from the table of measured rows (`speeds`), which every finished run extends; what
was not measured is an estimate and says so. Nothing is read but tables and run folders.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.budget.memory import FITS, NO_GPU
from nbhelpers.budget.predict import predict_memory
from nbhelpers.budget.search import advise as advice_for
from nbhelpers.budget.speeds import RUN, SpeedRow, device_key, read_rows
from nbhelpers.budget.time_model import (
    ESTIMATE,
    MEASURED,
    NOTHING,
    Case,
    Range,
    Rate,
    Work,
    answers,
    case_of,
    is_same_work,
    measured_cases,
    of_device,
    rate_of,
    work_of,
)
from nbhelpers.common.display import Table
from nbhelpers.common.files import is_number, plain_values, rebuilt
from nbhelpers.common.formatting import duration
from nbhelpers.errors import ConfigError
from nbhelpers.presets.jobs import ADAPTER, JobSpec, spec_of

if TYPE_CHECKING:
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.plan import BatchPlan
    from nbhelpers.presets.preset import Preset
    from nbhelpers.presets.schema import Settings


DATA, TRAINING, EVALUATION = "data", "training", "evaluation"
ALONE = "the range holds where nothing else works here; beside other work a run takes longer"
UNREAD = "this data has not been read yet: nbhelpers probe reads it and measures"
IN_TIME, PERHAPS, TOO_LONG = "finishes in time", "may not finish in time", "will not finish in time"


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
        low, middle, high = (
            (None, None, None) if seconds is None else (seconds.low, seconds.expected, seconds.high)
        )
        return cls(name=name, low_s=low, expected_s=middle, high_s=high, note=note)

    def words(self) -> str:
        """Say the expected seconds.

        >>> PhaseTime(name="data", low_s=30, expected_s=60, high_s=90).words()
        'data 1 min 00 s'
        """
        text = "unknown" if self.expected_s is None else duration(self.expected_s)
        return f"{self.name} {text}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TimeBudget:
    """A run's seconds by phase, where they come from, and what they mean for a limit or a price.

    `basis`: measured on this card (or machine); on another, scaled; or estimate. `tokens_per_s`:
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
        low, expected, high = self.low_s, self.expected_s, self.high_s
        if low is None or high is None:
            return f"unknown ({self.unknown_note})" if self.unknown_note else "unknown"
        if expected is None:  # of a study that 0.1.0 planned
            return f"{duration(low)} to {duration(high)} ({self.basis})"
        return f"{duration(expected)} ({duration(low)} to {duration(high)}; {self.basis})"

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
        return plain_values(self)

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
        total = PhaseTime(
            name="total",
            low_s=self.low_s,
            expected_s=self.expected_s,
            high_s=self.high_s,
            note=self.basis,
        )
        rows = []
        for part in (*self.phases, total):
            known = part.low_s is not None and part.high_s is not None
            span = f"{duration(part.low_s)} to {duration(part.high_s)}" if known else ""
            rows.append((part.name, part.words().removeprefix(f"{part.name} "), span, part.note))
        notes = [text.strip() for text in self.lines()[1:]]
        return Table(("", "", "", ""), rows, title=f"Time: {self.words()}", notes=notes).html()


def pretraining_words(settings: Settings) -> str:
    """Say that pre-training, which no prediction counts, comes on top; nothing where there is none.

    Whether it is cached is known when the data has been read.
    """
    steps = getattr(settings, "pretrain_steps", 0)
    return f"{steps:,} steps of pre-training come on top, once, if not cached" if steps else ""


def total_time(times: Iterable[TimeBudget]) -> TimeBudget:
    """Return the time of runs that follow each other; what is unknown makes the sum unknown."""
    budgets = list(times)
    bases = {budget.basis for budget in budgets}
    return TimeBudget(
        phases=tuple(phase for budget in budgets for phase in budget.phases),
        basis=bases.pop() if len(bases) == 1 else ESTIMATE,
        notes=tuple(dict.fromkeys(note for budget in budgets for note in budget.notes)),
    )


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
        if value is not None and not (is_number(value) and value > 0):
            text = f"{name}={value!r} is no number above zero."
            raise ConfigError(text, fix=f"set {name}, say, to 3")
    rows = read_rows(run_dir) if rows is None else tuple(rows)
    work = work_of(preset.settings, rows, examples=examples, example_tokens=tokens_per_example)
    measured = measured_cases(rows)
    time_budget = replace(
        _time_of(preset, plan, hardware, rows, measured, work),
        max_s=None if max_hours is None else 3600.0 * max_hours,
        price_per_hour=price_per_hour,
        currency=currency,
    )
    if not advise or time_budget.verdict not in (TOO_LONG, PERHAPS):
        return time_budget
    goal = _EndsInTime(hardware, time_budget.max_s or 0.0, rows, measured)
    texts, is_met = advice_for(preset, plan, time_budget, goal, examples=work.examples)
    return replace(time_budget, advice=texts if is_met else ())


@dataclass(frozen=True, slots=True)
class _EndsInTime:
    """The goal that a run, which has to fit its card too, ends within a limit."""

    hardware: Hardware
    max_s: float
    rows: Sequence[SpeedRow]
    measured: Sequence[Case]
    helped_by: tuple[str, ...] = (
        *("no checkpointing", "attention", "precision", "padding", "compiled"),
        *("epochs", "rows", "length"),
    )

    def predict(self, preset: Preset, plan: BatchPlan) -> TimeBudget | None:
        memory = predict_memory(preset, plan, self.hardware, advise=False)
        if memory.verdict not in (FITS, NO_GPU):
            return None
        work = work_of(preset.settings, self.rows)
        time_budget = _time_of(preset, plan, self.hardware, self.rows, self.measured, work)
        return None if time_budget.high_s is None else time_budget

    def size(self, prediction: TimeBudget) -> float:
        return prediction.expected_s or 0.0

    def is_met(self, prediction: TimeBudget) -> bool:
        return prediction.high_s is not None and prediction.high_s <= self.max_s

    def words(self, prediction: TimeBudget) -> str:
        expected, high = prediction.expected_s or 0.0, prediction.high_s or 0.0
        return f"{duration(expected)}, at most {duration(high)}"

    def note(self, prediction: TimeBudget) -> str:
        return ""


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
# Seconds of a run's phases: data, training, evaluation; each a range with what it comes from.


# Processes, imports and loading the weights, not downloading them; of the embedded models nothing
# is loaded.
START_S, EMBEDDED_START_S = Range(20.0, 40.0, 90.0), Range(3.0, 8.0, 20.0)
DATA_RANGE = Range(0.5, 1.0, 2.0)
# Source: docs/LOG.md. Blocks of Gemma compiled in 23 to 114 s; with kernels cached in 9.
COMPILE_S = Range(9.0, 35.0, 114.0)
# Source: docs/LOG.md. The detector's frozen steps took .044 s where others took .125.
FROZEN_SHARE = 0.044 / 0.125
# Source: docs/LOG.md. Ten validations and six checkpoints of an encoder: 30 s.
VALIDATION_S, CPU_VALIDATION_S = Range(1.0, 3.0, 5.0), Range(0.1, 0.3, 1.0)
# Of one token for every answer of a batch: small kernels, so the CPU's speed counts too. On a CPU,
# half of a training token, and the launches of a step, of however few tokens.
DECODE_STEP_S, CPU_DECODE_S = Range(0.025, 0.06, 0.12), Range(0.001, 0.002, 0.004)
ANSWER_SHARE = Range(0.5, 0.75, 1.0)  # of max_new_tokens: tuned answers end earlier
SOURCES = Range(2.0, 4.0, 8.0)  # of a detector's data, before they are read
FORWARD_SHARE = 1 / 3  # of a training step: the backward pass takes twice the forward
EVALUATED_BY = ("evaluate", "tasks", "eval_samples", "max_task_problems", "max_new_tokens")
EVALUATED_BY += ("generation_batch_size", "run_generated_code", "floors", "edit_suite", "data")
EVALUATED_BY += ("evaluate_sources",)
EVALUATED_BY += ("seq_len", "model", "max_retrieval_pool", "retrieval_data")
_DATA_PHASES = ("start", "check", "data", "model")
_SINGLE = 1.15  # one run's seconds, of phases that other programs on the machine slow down


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """All that the phases of one run are predicted from."""

    settings: Settings
    plan: BatchPlan
    work: Work
    case: Case
    rate: Rate
    past: Sequence[SpeedRow]  # runs of this job on this device with their seconds, newest first

    @property
    def spec(self) -> JobSpec:
        return spec_of(self.settings)

    @property
    def examples_at_once(self) -> int:
        return self.plan.per_device_train_batch_size * self.plan.world_size


def _time_of(
    preset: Preset,
    plan: BatchPlan,
    hardware: Hardware,
    rows: Sequence[SpeedRow],
    measured: Sequence[Case],
    work: Work,
) -> TimeBudget:
    """Return a run's time without a limit."""
    settings, job = preset.settings, preset.job
    past = _past(job, plan, hardware, rows)
    if same := [row for row in past if is_same_work(row, settings)]:
        groups, note = [by_phase(row.seconds) for row in same], _as_in(same)
        phases = [PhaseTime.of(n, _spread([g[n] for g in groups]), note) for n in groups[0]]
        basis, notes = of_device(MEASURED, is_gpu=plan.use_gpu), (note, ALONE)
    case = case_of(settings, plan, hardware, work)
    rate = rate_of(case, measured)
    asked = _Asked(settings=settings, plan=plan, work=work, case=case, rate=rate, past=past)
    trains, speed = getattr(settings, "method", "") != "base", None
    if trains and rate.micro_step_s is not None:
        speed = asked.examples_at_once * work.example_tokens / rate.micro_step_s.expected
    if not same:
        phases = [_data(asked), _training(asked), _evaluation(asked)]
        basis, notes = (rate.basis, (*work.notes, *rate.notes)) if trains else (ESTIMATE, ())
    return TimeBudget(
        phases=tuple(phases),
        basis=basis,
        notes=tuple(filter(None, [*notes, pretraining_words(settings)])),
        tokens_per_s=speed,
        mfu=rate.mfu if trains else None,
    )


def _past(
    job: str, plan: BatchPlan, hardware: Hardware, rows: Iterable[SpeedRow]
) -> list[SpeedRow]:
    device = device_key(plan.use_gpu, hardware.to_dict())
    runs = [r for r in rows if r.seconds and r.kind == RUN and r.job == job and r.device == device]
    runs = [row for row in runs if row.world_size == plan.world_size]
    return [row for row in runs if plan.use_gpu or row.cpu_count == hardware.cpu_count]


def by_phase(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return a run's seconds by our three phases; pre-training is done once, and cached."""
    data = sum(seconds.get(name, 0.0) for name in _DATA_PHASES)
    left_out = ("total", "pretrain", "train", *_DATA_PHASES)
    rest = sum(value for name, value in seconds.items() if name not in left_out)
    return {DATA: data, TRAINING: seconds.get("train", 0.0), EVALUATION: rest}


def _spread(values: Sequence[float]) -> Range:
    middle = math.exp(sum(math.log(max(v, 1e-3)) for v in values) / len(values))
    return Range(min(*values, middle / _SINGLE), middle, max(*values, middle * _SINGLE))


def _as_in(rows: Sequence[SpeedRow]) -> str:
    return f"as in {rows[0].source}" + (f" and {len(rows) - 1} more" if len(rows) > 1 else "")


def _as_before(
    asked: _Asked, phase: str, is_alike: Callable[[SpeedRow], bool], growth: float = 0.0
) -> PhaseTime | None:
    """Return a phase as earlier runs took it; with more examples by that power of their ratio."""
    rows = [row for row in asked.past if is_alike(row)]
    if not rows:
        return None
    seconds = [
        by_phase(row.seconds)[phase]
        * max(1.0, (asked.work.examples or 0) / (row.examples or math.inf)) ** growth
        for row in rows
    ]
    return PhaseTime.of(phase, _spread(seconds), _as_in(rows))


def _data(asked: _Asked) -> PhaseTime:
    s, time, examples = asked.settings, asked.spec.time, asked.work.examples
    known = {"data": s.data, "model": s.model}
    trains = getattr(s, "method", "") != "base"  # else the libraries of training are not loaded

    def is_alike(row: SpeedRow) -> bool:
        is_known = known.items() <= row.settings.items()
        return is_known and trains == (row.settings.get("method") != "base")

    before = _as_before(asked, DATA, is_alike, 0.5)
    if before is not None:
        return before
    if examples is None:
        return PhaseTime.of(DATA, None, UNREAD)
    if time is None:
        return PhaseTime.of(DATA, None, f"unknown of the job {asked.spec.name}")
    start = EMBEDDED_START_S if s.model in asked.spec.models.embedded else START_S
    share = examples / time.data_examples
    share = min(share, 1.0) if time.examples_repeat else share
    note = "start, reading and tokens (estimate); no downloads"
    return PhaseTime.of(DATA, start + DATA_RANGE * (time.data_s * share), note)


def _training(asked: _Asked) -> PhaseTime:
    s, work, step = asked.settings, asked.work, asked.rate.micro_step_s
    if getattr(s, "method", "") == "base":
        return PhaseTime.of(TRAINING, NOTHING, "nothing is trained")
    if step is None:
        return PhaseTime.of(TRAINING, None, asked.rate.notes[0])
    if work.examples is None:
        return PhaseTime.of(TRAINING, None, "unknown until the data is read")
    epochs = s.epochs - (1.0 - FROZEN_SHARE) * min(getattr(s, "freeze_epochs", 0), s.epochs)
    seconds = step * (work.examples * epochs / asked.examples_at_once) + _validations(asked, step)
    if asked.spec.formulas == ADAPTER and asked.case.row.compiled:
        seconds = seconds + COMPILE_S
    note = f"{steps_of(s, work.examples):,} optimizer steps"
    if work.is_bound:
        seconds = Range(0.0, seconds.expected, seconds.high)
        note += ", at most: the lengths of the texts are not known"
    return PhaseTime.of(TRAINING, seconds, note)


def steps_of(settings: Settings, examples: int) -> int:
    """Return the optimizer steps of a run; the last, smaller one of each epoch counts."""
    return -(-examples // settings.global_batch_size) * settings.epochs


def _validations(asked: _Asked, step: Range) -> Range:
    """Return the seconds of validation and checkpoints during training."""
    s, time = asked.settings, asked.spec.time
    one = step * (FORWARD_SHARE / asked.examples_at_once)
    if asked.spec.formulas == ADAPTER:
        return one * (1.5 * s.epochs * s.valid_samples)
    if time is None:
        return NOTHING
    held_out = min(time.valid_share * (asked.work.examples or 0), time.most_valid)
    fixed = VALIDATION_S if asked.plan.use_gpu else CPU_VALIDATION_S
    return (one * held_out + fixed) * s.epochs


def _evaluation(asked: _Asked) -> PhaseTime:
    s, time, step = asked.settings, asked.spec.time, asked.rate.micro_step_s
    values = s.model_dump(mode="json")
    same = {name: values.get(name) for name in EVALUATED_BY}
    before = _as_before(
        asked, EVALUATION, lambda row: all(row.settings.get(n) == v for n, v in same.items())
    )
    if before is not None:
        return before
    if asked.spec.formulas == ADAPTER:
        return _generation(asked)
    if time is None:
        return PhaseTime.of(EVALUATION, None, f"unknown of the job {asked.spec.name}")
    examples = asked.work.examples or 0
    share = max(examples / time.data_examples, 0.05)
    fixed = Range(*time.evaluate_s) * (min(share, 1.0) if time.examples_repeat else share)
    if time.floors_s is not None and s.floors:
        fixed = fixed + Range(*time.floors_s) * min(share, 1.0)
    if step is not None:
        scored = min(time.scored_share * examples, time.most_scored)
        fixed = fixed + step * (FORWARD_SHARE * scored / asked.examples_at_once)
    if getattr(s, "evaluate_sources", "") != "full":
        return PhaseTime.of(EVALUATION, fixed, "scores and baselines (estimate)")
    once = _training(asked)
    known = once.expected_s is not None
    again = Range(once.low_s, once.expected_s, once.high_s) * SOURCES if known else NOTHING
    note = "scores, baselines, and for each source a training without it, of 2 to 8 (estimate)"
    return PhaseTime.of(EVALUATION, fixed + again if known else None, note)


def _generation(asked: _Asked) -> PhaseTime:
    s: Any = asked.settings
    count, step = answers(s), asked.rate.micro_step_s
    if not count:
        return PhaseTime.of(EVALUATION, NOTHING, "no answers are generated")
    decode = DECODE_STEP_S
    if not asked.plan.use_gpu:
        if step is None:
            return PhaseTime.of(EVALUATION, None, f"the size of {s.model} is unknown")
        tokens = asked.plan.per_device_train_batch_size * asked.work.example_tokens
        decode = step * (0.5 * s.generation_batch_size / tokens) + CPU_DECODE_S
    world = asked.plan.world_size  # each process generates its share
    steps = -(-count // (world * s.generation_batch_size)) * s.max_new_tokens
    at_once = f"{s.generation_batch_size} at once" + f" on each of {world}" * (world > 1)
    note = f"{count:,} answers of half to all of {s.max_new_tokens} tokens, {at_once} (estimate)"
    return PhaseTime.of(EVALUATION, decode * ANSWER_SHARE * steps, note)
