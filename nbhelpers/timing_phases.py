"""Seconds of a run's phases: data, training, evaluation; each a range with what it comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbhelpers.formatting import duration
from nbhelpers.job_specs import ADAPTER, JobSpec, spec_of
from nbhelpers.speeds import RUN, SpeedRow, device_key
from nbhelpers.timing_cases import NOTHING, Range, case_of
from nbhelpers.timing_rate import Rate
from nbhelpers.timing_work import Work, answers, is_same_work

if TYPE_CHECKING:
    from nbhelpers.batching import BatchPlan
    from nbhelpers.hardware import Hardware
    from nbhelpers.schema import Settings

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
    def of(cls, name: str, found: Range | None, note: str = "") -> PhaseTime:
        """Return a phase of a range of seconds."""
        if found is None:
            return cls(name=name, low_s=None, expected_s=None, high_s=None, note=note)
        low, middle, high = found.low, found.expected, found.high
        return cls(name=name, low_s=low, expected_s=middle, high_s=high, note=note)

    def words(self) -> str:
        """Say the expected seconds, and the range.

        >>> PhaseTime(name="data", low_s=30, expected_s=60, high_s=90).words()
        'data 1 min 00 s'
        """
        told = "unknown" if self.expected_s is None else duration(self.expected_s)
        return f"{self.name} {told}"


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
        found = [r for r in alike if r.device == device and r.world_size == self.plan.world_size]
        if not self.plan.use_gpu:
            found = [r for r in found if r.cpu_count == self.hardware.cpu_count]
        return found


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
    found = Range.of(
        steps * low * step.low, steps * middle * step.expected, steps * high * step.high
    )
    note = (
        f"{count:,} answers of half to all of {s.max_new_tokens} tokens, "
        f"{s.generation_batch_size} at once (estimate)"
    )
    return PhaseTime.of(EVALUATION, found, note)


def _cpu_decode(asked: Plan) -> Range | None:
    """Return the seconds of one token for every answer of a batch: half of a training token."""
    step = asked.rate.micro_step_s
    if step is None:
        return None
    s: Any = asked.settings
    per = asked.plan.per_device_train_batch_size * asked.work.example_tokens
    found = step * (0.5 * s.generation_batch_size / per)
    least = Range.of(0.001, 0.002, 0.004)  # the launches of a step, of however few tokens
    return found + least
