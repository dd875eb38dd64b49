"""Seconds of a micro-step: what there is to do, and the speed of measured runs that are alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from nbhelpers.budget.formulas import choose_compile, choose_kernel, may_graph
from nbhelpers.budget.shapes import CausalShape, find_shape, known_shape
from nbhelpers.budget.speeds import CPU, LOOP, RUN, SpeedRow
from nbhelpers.data.sources import count_rows
from nbhelpers.hardware.gpus import known_gpus
from nbhelpers.presets.jobs import ADAPTER, ENCODER, JOBS, spec_of
from nbhelpers.presets.schema import telling

if TYPE_CHECKING:
    from nbhelpers.budget.shapes import Shape
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.plan import BatchPlan
    from nbhelpers.presets.schema import Settings


@dataclass(frozen=True, slots=True)
class Range:
    """A low, an expected and a high value, in seconds or as a factor."""

    low: float
    expected: float
    high: float

    def __mul__(self, factor: float | Range) -> Range:
        other = factor if isinstance(factor, Range) else Range(factor, factor, factor)
        return Range(self.low * other.low, self.expected * other.expected, self.high * other.high)

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.expected + other.expected, self.high + other.high)


NOTHING = Range(0.0, 0.0, 0.0)


# ------------------------------------------------------------------------------------------------
# How much a run has to do: examples, tokens, answers; from earlier runs where there are any.
#
# What is known of public data sets before they are read stands here, each figure with its source.


SAMPLE = "smoke"
TASK_PROBLEMS = {"humaneval": 164, "mbpp": 500, "sample": 60}
# What changes neither the work nor its speed.
UNTIMED = {"seed", "split_seed", "lora_r", "lora_alpha", "lora_dropout", "learning_rate", "targets"}
UNTIMED |= {"lr_schedule", "warmup_ratio", "warmup_steps", "weight_decay", "adam_epsilon", "track"}
UNTIMED |= {"max_grad_norm", "dropout", "bootstrap_samples", "logging_steps", "max_skipped_steps"}
UNTIMED |= {"encoder_learning_rate", "temperature", "contrastive_weight", "priors", "prevalences"}
UNTIMED |= {"target_fpr", "target_miss_rate", "class_weights", "similarity_pooling", "pooling"}
ROWS_BY = ("data", "data_revision", "train_fraction", "max_train_samples", "on_bad_rows")
ROWS_BY += ("valid_samples", "eval_samples", "remove_duplicates", "languages", "hold_out", "split")
ROWS_BY += ("supervise",)
TOKENS_BY = ("data", "data_revision", "model", "template", "seq_len", "data_flow_length")

GRAPH_SHARE = 612 / 430  # of a pair with data flow and of one without
# Source: 20 to 35 % of the tokens were padding where samples of like length shared a batch.
PADDED_SHARE = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Examples of an epoch, useful tokens of each, and the share of computed tokens that is useful.

    `is_bound`: the tokens are an upper bound. `examples` is None while nobody knows.
    """

    examples: int | None
    example_tokens: float
    useful_share: float
    is_bound: bool
    notes: tuple[str, ...]


def training_rows(settings: Settings) -> int | None:
    """Return the rows of training as far as they are known before the data is read."""
    limit, spec, splits = settings.max_train_samples, spec_of(settings), dict[str, int]()
    whole = spec.time.train_examples.get(settings.data) if spec.time else None
    if whole is None:
        splits = count_rows(settings.data)
        whole = splits.get("train", splits.get(""))
    if whole is None:
        return limit
    if spec.formulas == ADAPTER and settings.data != SAMPLE:  # drawn where it has no such split
        held_out = {"valid": settings.valid_samples, "test": settings.eval_samples}
        whole -= sum(n for name, n in held_out.items() if name not in splits)
    elif splits and hasattr(settings, "test_share") and not {"valid", "test"} & {*splits}:
        whole = int(whole * (1.0 - settings.valid_share - settings.test_share))
    rows = int(whole * settings.train_fraction)
    return max(1, min(rows, limit) if limit else rows)


def answers(settings: Settings) -> int:
    """Return how many answers the evaluation of a fine-tuning generates."""
    if spec_of(settings).formulas != ADAPTER or settings.evaluate == "none":
        return 0
    problems = 0
    if settings.evaluate == "all":
        most = settings.max_task_problems
        sizes = [TASK_PROBLEMS[name] for name in settings.tasks]
        problems = sum(min(size, most) if most else size for size in sizes)
    return settings.eval_samples + problems


def work_of(
    settings: Settings,
    rows: Sequence[SpeedRow] = (),
    *,
    examples: int | None = None,
    example_tokens: float | None = None,
) -> Work:
    """Return the work of a run: what is given, else what runs on this data counted, else guesses.

    Args:
        settings: Of any job.
        rows: Measured speeds; those with settings tell examples and tokens.
        examples: Training examples, where they are known.
        example_tokens: Mean useful tokens of one, where they are known.
    """
    kind, job = type(settings), spec_of(settings).name
    values = telling(kind, settings.model_dump(mode="json"))
    notes, count, tokens, is_bound = [], examples, example_tokens, False
    for row in rows:
        if not row.settings or row.job != job:
            continue
        theirs = telling(kind, row.settings)
        if count is None and row.examples and _agree(theirs, values, ROWS_BY):
            count = row.examples
        if tokens is None and _agree(theirs, values, TOKENS_BY):
            tokens = row.example_tokens
            notes.append(f"{tokens:,.0f} tokens per example, measured by {row.source}")
    count = training_rows(settings) if count is None else count
    if tokens is None:
        tokens, is_bound, note = _guessed_tokens(settings)
        notes.append(note)
    if count is not None:
        notes.insert(0, f"{count:,} training examples x {settings.epochs} epochs")
    return Work(
        examples=count,
        example_tokens=tokens,
        useful_share=_useful_share(settings, tokens),
        is_bound=is_bound,
        notes=tuple(notes),
    )


def _agree(actual: Mapping[str, Any], wanted: Mapping[str, Any], names: Iterable[str]) -> bool:
    return all(actual.get(name) == wanted.get(name) for name in names)


def is_same_work(row: SpeedRow, settings: Settings) -> bool:
    """Whether a run did exactly this work, so that its seconds are this run's."""
    values = telling(type(settings), settings.model_dump(mode="json"))
    return bool(row.seconds) and _agree(row.settings, values, values.keys() - UNTIMED)


def _guessed_tokens(settings: Settings) -> tuple[float, bool, str]:
    """Return the tokens of an example, whether they are an upper bound, and why."""
    spec, data = spec_of(settings), settings.data
    longest = float(settings.seq_len * getattr(settings, "rows_per_example", 1))
    graph = GRAPH_SHARE if getattr(settings, "data_flow_length", None) else 1.0
    if data == SAMPLE and spec.time:
        tokens = min(spec.time.sample_tokens, longest) * graph
        return tokens, False, f"about {tokens:,.0f} tokens per example of the bundled sample"
    is_adapter = spec.formulas == ADAPTER
    if spec.time and data in spec.time.train_examples:
        tokens = _between(spec.time.example_tokens, settings.seq_len) * graph
        what = "row" if is_adapter else "example"
        return tokens, False, f"about {tokens:,.0f} tokens per {what} of {data} (estimate)"
    what = "row" if is_adapter else "text"
    return longest, True, f"every {what} as long as seq_len={settings.seq_len} (upper bound)"


def _between(points: Sequence[tuple[int, float]], at: float) -> float:
    """Return the value of a broken line; beyond its last point it is level.

    >>> _between(((0, 0.0), (10, 5.0)), 4), _between(((0, 0.0), (10, 5.0)), 40)
    (2.0, 5.0)
    """
    for (x, low), (right, high) in pairwise(points):
        if at <= right:
            return low + (high - low) * (at - x) / (right - x)
    return points[-1][1]


def _useful_share(settings: Settings, tokens: float) -> float:
    """Return the share of useful tokens among those that are computed."""
    spec, is_packed = spec_of(settings), bool(getattr(settings, "packing", False))
    nodes = getattr(settings, "data_flow_length", None) or 0
    filled = min(
        1.0, tokens / (settings.seq_len + nodes) / getattr(settings, "rows_per_example", 1)
    )
    if settings.padding == "fixed" and not is_packed:
        return filled
    if spec.formulas == ADAPTER:
        return 1.0 if is_packed else max(PADDED_SHARE, filled)
    return spec.time.useful_share if spec.time else 1.0


# ------------------------------------------------------------------------------------------------
# Seconds of one micro-step on a card: from measured speeds of runs that are alike.
#
# A step takes what its arithmetic takes at a share of the card's speed, or what the CPU takes to
# launch it, whichever is more. A measured row says by how much that is off; the nearest rows give
# the middle and the range of that factor.


MEASURED = "measured on this card"
SCALED = "measured on another card, scaled"
ESTIMATE = "estimate"
# Operations per parameter and useful token. Source: adapters need no gradients of frozen weights
# (2 N forward, 2 N backward); training all takes 6 N (Kaplan et al. 2020, PaLM appendix B).
ADAPTER_FLOPS, FULL_FLOPS = 4, 6
SOME_FLOPS = 5e8  # of a model whose sizes are unknown: about an encoder of 12 blocks of 768
# How much longer a step takes. Sources, all measured: Gemma 8 x 768 with and without checkpointing
# (18.7k and 13.0k tokens/s), encoders 8 N of 6 N; packed micro-steps of Gemma not compiled (17.8k)
# and compiled (33.4k), CodeBERT 128 x 512 (466k and 570k); QLoRA and LoRA 8 x 768 (11.1k, 13.0k);
# fp32: CodeGPT 8 x 1,024 (141k, 42k), GraphCodeBERT (312k, 70k), CodeBERT (466k, 71k).
CHECKPOINTING = {ADAPTER: 18.7 / 13.0, ENCODER: 8 / 6}
NOT_COMPILED = {ADAPTER: 33.4 / 17.8, ENCODER: 570 / 466}
QLORA, FP32 = 13.0 / 11.1, 4.5
# Seconds that launching one block's kernels takes the CPU, forward and backward. Source: CodeGPT's
# 12 blocks in 35 to 51 ms; Gemma's 26 in 204 ms, and compiled in 138 (2.2k tokens at 16.0k/s). A
# CUDA graph is two launches.
LAUNCH_S = {ADAPTER: 0.0078, ENCODER: 0.0035}
COMPILED_LAUNCH = {ADAPTER: 138 / 204, ENCODER: 1.0}
# The share of a card's peak that was reached where the GPU was the limit. Source: Gemma compiled
# .35 to .41 (not compiled, times that factor, .36 to .39), CodeBERT compiled .33.
CEILING = {ADAPTER: 0.37, ENCODER: 0.32}
BYTES_PER_OPERATION = 3.35e12 / 989.4e12  # of an H100, whose speed is its peak
CPU_FLOPS_PER_CORE = 2.0e10
MFU_RANGE = (0.10, 0.2, 0.35)  # of a GPU where no measured row is alike at all; of a CPU's cores:
CPU_RANGE = (0.5, 1.0, 2.0)
# How many times as fast as one two processes were; of adapters 1.95. More than twice is not
# promised. More than two were not measured: as much lost again with each doubling.
TWO_PROCESSES = Range(1.86, 1.95, 2.03)
# How far two measurements of the same differ: one's own; on another host with such a card (source:
# docs/LOG.md, 285 and 218 pairs/s; ranks 8, 16 and 32 of an adapter at 7.6k, 5.6k and 8.9k
# tokens/s); on other cores (source: preset smoke, 49 s on idle and 119 on busy ones).
OWN_SPREAD, HOST_SPREAD, CPU_SPREAD = 1.08, 1.3, 2.0
# Added to a row's distance: a run that was made here, of the same job, says more.
ANOTHER_HOST, ANOTHER_JOB = 0.25, 0.2
MOST_ROWS, NEAR, FAR = 5, 0.2, 4.0  # rows that count, their weight's reach, and the farthest
# What makes a row a worse witness, and by how much: about the log of how wrong it may be.
COSTS = {"card": 0.6, "model": 0.1, "method": 0.4, "fp32": 1.0, "half precision": 0.1}
COSTS |= {"checkpointing": 0.4, "compiled blocks": 0.5, "attention": 0.1, "padding": 0.2}
COSTS |= {"processes": 0.1, "a plain loop": 0.5, "what bounds it": 0.5}
TOKENS_COST, SIZE_COST = 0.3, 0.4  # times the log of the ratio
# Differences that leave a measurement a measurement; any other makes it an estimate.
EASY = {"processes", "tokens per micro-step", "half precision", "a plain loop", "attention"}
EASY |= {"card", "model", "what bounds it"}


@dataclass(frozen=True, slots=True)
class Case:
    """What a micro-step's time depends on: of a measured row, or of one without a speed to come.

    `flops`: operations per computed token, None where the model's sizes are unknown. `peak`: dense
    operations per second of the card, of a CPU by its cores; `speed`: of a GPU between what its
    peak and what its memory allows; both None of an unknown card.
    """

    row: SpeedRow
    flops: float | None
    blocks: int
    peak: float | None
    speed: float | None

    @classmethod
    def of(cls, row: SpeedRow, shape: Shape | CausalShape | None) -> Case:
        """Return the case of a row whose model has these sizes."""
        flops = None
        if isinstance(shape, CausalShape):
            flops = float(ADAPTER_FLOPS * shape.parameters())
        elif shape is not None:
            flops = float(FULL_FLOPS * shape.matrix_parameters())
        peak = speed = (row.cpu_count or 1) * CPU_FLOPS_PER_CORE if row.device == CPU else None
        if (spec := known_gpus().get(row.device)) and (
            tflops := spec.bf16_tflops or spec.fp16_tflops
        ):
            peak = tflops * 1e12
            bandwidth = spec.memory_bandwidth_bytes_per_s
            speed = math.sqrt(peak * bandwidth / BYTES_PER_OPERATION)
        return cls(row, flops, getattr(shape, "layers", 12), peak, speed)

    @property
    def family(self) -> str:
        """The formulas of time that hold for the job; an encoder's where nobody knows."""
        return (JOBS[self.row.job].formulas if self.row.job in JOBS else "") or ENCODER

    @property
    def is_gpu(self) -> bool:
        """Whether it runs on a GPU."""
        return self.row.device != CPU

    def traits(self) -> dict[str, Any]:
        """Return what two cases may differ in, by the names of `COSTS`."""
        row = self.row
        return {
            "model": row.model,
            "method": row.method,
            "fp32": row.precision == "fp32",
            "half precision": row.precision,
            "checkpointing": row.checkpointing,
            "compiled blocks": row.compiled,
            "attention": "sdpa" if row.attention == "auto" else row.attention,
            "padding": row.packed,
            "processes": row.world_size,
            "a plain loop": row.kind == LOOP,
            "what bounds it": self.is_launch_bound,
        }

    @property
    def operations(self) -> float:
        """Operations of a micro-step, times what makes them slower."""
        row, slow = self.row, 1.0
        slow *= CHECKPOINTING[self.family] if row.checkpointing else 1.0
        slow *= QLORA if row.method == "qlora" else 1.0
        if self.is_gpu:
            slow *= 1.0 if row.compiled else NOT_COMPILED[self.family]
            slow *= FP32 if row.precision == "fp32" else 1.0
        return (self.flops or 0.0) * row.micro_tokens * slow

    @property
    def launch_s(self) -> float:
        """Seconds in which the CPU launches a micro-step; none where it computes or replays it."""
        if not self.is_gpu or self.row.graphed:
            return 0.0
        slow = 4 / 3 if self.row.checkpointing else 1.0
        slow *= COMPILED_LAUNCH[self.family] if self.row.compiled else 1.0
        return LAUNCH_S[self.family] * self.blocks * slow

    @property
    def arithmetic_s(self) -> float:
        """Seconds of a micro-step's arithmetic at the share of the card's speed that is reached."""
        share = CEILING[self.family] if self.is_gpu else 1.0
        return self.operations / ((self.speed or 1e14) * share)

    @property
    def step_s(self) -> float:
        """Seconds of a micro-step of one process alone, before any row corrects them."""
        return max(self.arithmetic_s, self.launch_s)

    @property
    def is_launch_bound(self) -> bool:
        """Whether the CPU that launches the kernels is what takes long."""
        return self.launch_s > self.arithmetic_s


def case_of(settings: Settings, plan: BatchPlan, hardware: Hardware, work: Work) -> Case:
    """Return the case of a run to come."""
    shape, gpu = find_shape(settings), hardware.gpu if plan.use_gpu else None
    precision = hardware.precision if settings.precision == "auto" else settings.precision
    attention = settings.attention
    # The detector's compiled blocks prove themselves first, and are not counted on.
    is_compiled = getattr(settings, "compile_layers", "off") == "on"
    if isinstance(shape, CausalShape) and settings.has_own_loop:
        has_flex = plan.use_gpu and hardware.precision == "bf16"
        attention = choose_kernel(settings, shape, has_flex=has_flex)
        is_compiled = choose_compile(settings, attention)
    is_adapter = spec_of(settings).formulas == ADAPTER and settings.has_own_loop
    row = SpeedRow(
        job=spec_of(settings).name,
        model=settings.model,
        method=getattr(settings, "method", "full"),
        precision=precision if plan.use_gpu else "fp32",
        attention=attention,
        batch=plan.per_device_train_batch_size,
        seq_len=settings.seq_len,
        device=(gpu.key or gpu.name) if gpu else CPU,
        tokens_per_s=math.nan,
        useful_share=work.useful_share,
        example_tokens=work.example_tokens,
        source="",
        kind=RUN if settings.has_own_loop else LOOP,
        checkpointing=settings.gradient_checkpointing,
        compiled=plan.use_gpu and is_compiled,
        graphed=is_adapter and is_compiled and may_graph(settings, plan, precision),
        packed=settings.padding != "fixed" or bool(getattr(settings, "packing", False)),
        world_size=plan.world_size,
        cpu_count=hardware.cpu_count,
    )
    return Case.of(row, shape)


def measured_cases(rows: Iterable[SpeedRow]) -> list[Case]:
    """Return the cases of measured rows."""
    return [Case.of(row, known_shape(row.job, row.model)) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Seconds of a micro-step of one process, where they come from, and the share of the peak."""

    micro_step_s: Range | None
    basis: str
    notes: tuple[str, ...]
    mfu: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Witness:
    """A measured row, how far it is from the run that is asked for, and what it says of it."""

    row: SpeedRow
    distance: float
    step_s: Range
    differs: frozenset[str]


def rate_of(wanted: Case, measured: Iterable[Case]) -> Rate:
    """Return the seconds of a micro-step of one process, with the name of their source."""
    model, is_known, measured = wanted.row.model, wanted.flops is not None, list(measured)
    if not is_known:  # only runs with this very model tell anything, and they count as alike
        measured = [case for case in measured if case.row.model == model]
        wanted = replace(wanted, flops=SOME_FLOPS)
    witnesses = [w for case in measured if (w := _witness(wanted, case)) is not None]
    if witnesses:
        rate = _from_witnesses(wanted, sorted(witnesses, key=lambda w: w.distance))
        if wanted.is_launch_bound:  # then a larger micro-step takes as long, and no less
            larger = replace(wanted, row=replace(wanted.row, batch=2 * wanted.row.batch))
            most = rate_of(larger, measured)
            if most.micro_step_s and most.micro_step_s.expected < rate.micro_step_s.expected:
                mfu = most.mfu and most.mfu / 2  # half of its tokens
                rate = replace(rate, micro_step_s=most.micro_step_s, mfu=mfu)
        return rate if is_known else replace(rate, mfu=None)
    if is_known and wanted.peak is not None:
        return _from_peak(wanted)
    note = f"the throughput of {wanted.row.device} is unknown, and no run on it was measured"
    if not is_known:
        note = f"the size of {model} is unknown, and no run with it was measured"
    return Rate(micro_step_s=None, basis=ESTIMATE, notes=(note,))


def _witness(wanted: Case, case: Case) -> _Witness | None:
    """Return what a measured row says of a run to come; None where it says nothing."""
    row = case.row
    if (case.family, case.is_gpu) != (wanted.family, wanted.is_gpu):
        return None
    if case.flops is None:
        if row.model != wanted.row.model:
            return None
        case = replace(case, flops=wanted.flops, blocks=wanted.blocks)  # the model is as large
    is_here = row.device == wanted.row.device
    if not is_here and None in (case.speed, wanted.speed):
        return None
    asked = wanted.traits()
    costs = {name: COSTS[name] for name, value in case.traits().items() if value != asked[name]}
    if not is_here or (not case.is_gpu and not row.settings):
        costs["card"] = COSTS["card"]  # another machine's CPU, whatever the number of its cores
    tokens = abs(math.log(wanted.row.micro_tokens / row.micro_tokens))
    costs |= {"tokens per micro-step": TOKENS_COST * tokens} if tokens > math.log(1.25) else {}
    each = [(c.flops or SOME_FLOPS) / c.blocks for c in (wanted, case)]
    size = abs(math.log(each[0] / each[1]))
    costs |= {"size": SIZE_COST * size} if size > math.log(1.1) else {}
    distance = sum(costs.values()) + (0.0 if row.settings else ANOTHER_HOST)
    distance += 0.0 if row.job == wanted.row.job else ANOTHER_JOB
    if distance > FAR:
        return None
    alone_s = row.micro_step_s * _ddp(case).expected  # without others to wait for
    step = _card_range(wanted, case) * (wanted.step_s * alone_s / case.step_s)
    return _Witness(row=row, distance=distance, step_s=step, differs=frozenset(costs))


def of_device(basis: str, *, is_gpu: bool) -> str:
    """Return where a time was measured, in words for a GPU or for a machine without one."""
    return basis if is_gpu else basis.replace("card", "machine")


def _card_range(wanted: Case, case: Case) -> Range:
    """How far two cards' ratio is open: by arithmetic or by memory; by cores, or by one of them."""
    if wanted.is_gpu and wanted.row.device != case.row.device:
        ratio = abs(math.log((case.peak / wanted.peak) / (case.speed / wanted.speed)))
        return Range(math.exp(-ratio), 1.0, math.exp(ratio))
    cores = [case.row.cpu_count or 1, wanted.row.cpu_count or 1]
    if not wanted.is_gpu and cores[0] != cores[1]:
        ratio = abs(math.log(cores[0] / cores[1])) / 2
        return Range(math.exp(-ratio), 1.0, 2 * math.exp(ratio))
    return Range(1.0, 1.0, 1.0)


def _from_witnesses(wanted: Case, witnesses: list[_Witness]) -> Rate:
    """Return the mean of the nearest rows, weighted by nearness, and the range that they span."""
    best = witnesses[0]
    weights = [math.exp((best.distance - w.distance) / NEAR) for w in witnesses[:MOST_ROWS]]
    logs = [math.log(w.step_s.expected) for w in witnesses[:MOST_ROWS]]
    mean = math.exp(sum(w * x for w, x in zip(weights, logs, strict=True)) / sum(weights))
    close = [w for w, weight in zip(witnesses, weights, strict=False) if weight > 0.3]
    is_own = bool(best.row.settings)
    width = OWN_SPREAD if is_own else HOST_SPREAD if wanted.is_gpu else CPU_SPREAD
    width *= math.exp(0.25 * min(best.distance - (0.0 if is_own else ANOTHER_HOST), 2.0))
    low = min(min(w.step_s.low for w in close), mean / width)
    high = max(max(w.step_s.high for w in close), mean * width)
    easy = EASY - {"a plain loop"} if wanted.row.kind == LOOP else EASY  # ours is quicker
    basis = SCALED if "card" in best.differs else MEASURED
    basis = ESTIMATE if best.differs - easy else of_device(basis, is_gpu=wanted.is_gpu)
    others = f" and {len(close) - 1} more like it" if len(close) > 1 else ""
    notes = [
        f"{best.row.tokens_per_s:,.0f} useful tokens/s on {best.row.device} ({best.row.source})"
        + others
    ]
    if changed := sorted(best.differs - {"a plain loop"}):
        notes.append(f"brought to this run: {', '.join(changed)}")
    return _rate(wanted, Range(low, mean, high), basis, notes)


def _from_peak(wanted: Case) -> Rate:
    """Return an estimate from the throughput alone: no measured run is alike."""
    low, expected, high = MFU_RANGE if wanted.is_gpu else CPU_RANGE
    plain = replace(wanted, row=replace(wanted.row, compiled=True))  # the shares are of any
    seconds = plain.operations / (wanted.peak or 1.0)
    seconds = Range(seconds / high, seconds / expected, seconds / low)
    step = Range(*(max(s, wanted.launch_s) for s in (seconds.low, seconds.expected, seconds.high)))
    share = f"{low:.0%} to {high:.0%} of {(wanted.peak or 0.0) / 1e12:g} TFLOP/s"
    return _rate(wanted, step, ESTIMATE, [f"{share} (assumed: no measured run is alike)"])


def _rate(wanted: Case, alone: Range, basis: str, notes: list[str]) -> Rate:
    """Return the rate of one of several processes from its seconds alone."""
    ddp, count = _ddp(wanted), wanted.row.world_size
    step = Range(alone.low / ddp.high, alone.expected / ddp.expected, alone.high / ddp.low)
    if wanted.is_launch_bound:
        notes.append("bound by the CPU that launches the kernels: a larger micro-step costs little")
    if count > 1 and not wanted.is_gpu:
        notes.append(f"{count} processes share the cores")
    elif count > 1:
        end = ")" if count == 2 else "; more is assumed)"
        text = f"{count} processes as {count * ddp.expected:.2f} (measured for two: "
        notes.append(f"{text}{TWO_PROCESSES.low} to {TWO_PROCESSES.high}{end}")
    mfu = None
    if wanted.is_gpu and wanted.peak and wanted.flops:
        mfu = wanted.flops * wanted.row.micro_tokens / step.expected / wanted.peak
    return Rate(micro_step_s=step, basis=basis, notes=tuple(notes), mfu=mfu)


def _ddp(case: Case) -> Range:
    """Return the share of its own speed that each of several processes keeps.

    Processes without a GPU share the cores that one of them would have had.
    """
    count = case.row.world_size
    if not case.is_gpu:
        return Range(0.8 / count, 1.0 / count, 1.0 / count)
    two, doublings = TWO_PROCESSES, math.log2(count)
    return Range(*(min(x / 2, 1.0) ** doublings for x in (two.low, two.expected, two.high)))
