"""Seconds of a micro-step: what there is to do, and the speed of measured runs that are alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from nbhelpers.budget.formulas import choose_compile, choose_kernel
from nbhelpers.budget.shapes import CausalShape, find_shape, known_shape
from nbhelpers.budget.speeds import CPU, LOOP, SpeedRow
from nbhelpers.hardware.gpus import known_gpus
from nbhelpers.presets.jobs import ADAPTER, ENCODER, JOBS, spec_of

if TYPE_CHECKING:
    from nbhelpers.budget.shapes import Shape
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.plan import BatchPlan
    from nbhelpers.presets.schema import Settings


# ------------------------------------------------------------------------------------------------
# How much a run has to do: examples, tokens, answers; from earlier runs where there are any.
#
# What is known of public data sets before they are read stands here, each figure with its source.


DEFAULT_DATA = "iamtarun/python_code_instructions_18k_alpaca"
# Source: the data set's page (rows of its only split), and its rows under Gemma's tokenizer.
DEFAULT_ROWS, DEFAULT_ROW_TOKENS = 18_612, 210
SAMPLE, SAMPLE_ROWS = "smoke", 1200  # of the bundled sample's training split
TASK_PROBLEMS = {"humaneval": 164, "mbpp": 500, "sample": 60}
# What changes neither the work nor its speed.
UNTIMED = {"seed", "split_seed", "lora_r", "lora_alpha", "lora_dropout", "learning_rate", "targets"}
UNTIMED |= {"lr_schedule", "warmup_ratio", "warmup_steps", "weight_decay", "adam_epsilon", "track"}
UNTIMED |= {"max_grad_norm", "dropout", "bootstrap_samples", "logging_steps", "max_skipped_steps"}
UNTIMED |= {"encoder_learning_rate", "temperature", "contrastive_weight", "priors", "prevalences"}
UNTIMED |= {"target_fpr", "target_miss_rate", "class_weights", "similarity_pooling", "pooling"}
ROWS_BY = ("data", "data_revision", "train_fraction", "max_train_samples", "on_bad_rows")
ROWS_BY += ("valid_samples", "eval_samples", "remove_duplicates", "languages", "hold_out", "split")
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
    limit, spec = settings.max_train_samples, spec_of(settings)
    if spec.formulas == ADAPTER:
        held_out = settings.valid_samples + settings.eval_samples
        whole = {DEFAULT_DATA: DEFAULT_ROWS - held_out, SAMPLE: SAMPLE_ROWS}.get(settings.data)
    else:
        whole = spec.time.train_examples.get(settings.data) if spec.time else None
    if whole is None:
        return limit
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
    values = settings.model_dump(mode="json")
    notes, count, tokens = [], examples, example_tokens
    for row in (each for each in rows if each.settings):
        if row.job != spec_of(settings).name:
            continue
        if count is None and row.examples and _agree(row.settings, values, ROWS_BY):
            count = row.examples
        if tokens is None and _agree(row.settings, values, TOKENS_BY):
            tokens = row.example_tokens
            notes.append(f"{tokens:,.0f} tokens per example, measured by {row.source}")
    count = training_rows(settings) if count is None else count
    is_bound = False
    if tokens is None:
        tokens, is_bound, note = _guessed_tokens(settings)
        notes.append(note)
    if count is not None:
        notes.insert(0, f"{count:,} training examples x {settings.epochs} epochs")
    share = _share(settings, tokens)
    return Work(
        examples=count,
        example_tokens=tokens,
        useful_share=share,
        is_bound=is_bound,
        notes=tuple(notes),
    )


def settings_rows(settings: Settings) -> int:
    """Return the texts of one example: two of a pair of functions, else one."""
    return int(getattr(settings, "rows_per_example", 1))


def _agree(actual: Mapping[str, Any], wanted: Mapping[str, Any], names: Sequence[str]) -> bool:
    return all(actual.get(name) == wanted.get(name) for name in names)


def is_same_work(row: SpeedRow, settings: Settings) -> bool:
    """Whether a run did exactly this work, so that its seconds are this run's."""
    values = settings.model_dump(mode="json")
    return bool(row.seconds) and _agree(
        row.settings, values, [n for n in values if n not in UNTIMED]
    )


def _guessed_tokens(settings: Settings) -> tuple[float, bool, str]:
    spec, length = spec_of(settings), settings.seq_len
    if settings.data == SAMPLE and spec.time:
        tokens = float(min(spec.time.sample_tokens, settings.seq_len * settings_rows(settings)))
        tokens *= GRAPH_SHARE if getattr(settings, "data_flow_length", None) else 1.0
        return tokens, False, f"about {tokens:,.0f} tokens per example of the bundled sample"
    if spec.formulas == ADAPTER:
        if settings.data == DEFAULT_DATA:
            tokens = float(min(DEFAULT_ROW_TOKENS, length))
            return (
                tokens,
                False,
                f"about {tokens:,.0f} tokens per row of {settings.data} (estimate)",
            )
        return float(length), True, f"every row as long as seq_len={length} (upper bound)"
    if spec.time is None or settings.data not in spec.time.train_examples:
        tokens = float(settings_rows(settings) * length)
        return tokens, True, f"every text as long as seq_len={length} (upper bound)"
    tokens = _between(spec.time.example_tokens, length) * (
        GRAPH_SHARE if getattr(settings, "data_flow_length", None) else 1.0
    )
    return tokens, False, f"about {tokens:,.0f} tokens per example of {settings.data} (estimate)"


def _between(points: Sequence[tuple[int, float]], at: float) -> float:
    """Return the value of a broken line; beyond its last point it is level.

    >>> _between(((0, 0.0), (10, 5.0)), 4), _between(((0, 0.0), (10, 5.0)), 40)
    (2.0, 5.0)
    """
    for (x, low), (right, high) in pairwise(points):
        if at <= right:
            return low + (high - low) * (at - x) / (right - x)
    return points[-1][1]


def _share(settings: Settings, tokens: float) -> float:
    """Return the share of useful tokens among those that are computed."""
    spec = spec_of(settings)
    nodes = getattr(settings, "data_flow_length", None) or 0
    full = (settings.seq_len + nodes) * settings_rows(settings)
    if settings.padding == "fixed" and not getattr(settings, "packing", False):
        return min(1.0, tokens / full)
    if spec.formulas == ADAPTER:
        return 1.0 if settings.packing else max(PADDED_SHARE, min(1.0, tokens / full))
    return spec.time.useful_share if spec.time else 1.0


# ------------------------------------------------------------------------------------------------
# What the time of a micro-step depends on, of a measured run and of one to come.


# Operations per parameter and useful token. Source: adapters need no gradients of frozen weights
# (2 N forward, 2 N backward); training all takes 6 N (Kaplan et al. 2020, PaLM appendix B).
ADAPTER_FLOPS, FULL_FLOPS = 4, 6
# How much longer a step takes. Sources, all measured: Gemma 8 x 768 with and without checkpointing
# (18.7k and 13.0k tokens/s); for encoders the forward pass counted twice, 8 N of 6 N.
CHECKPOINTING = {"adapter": 18.7 / 13.0, "encoder": 8 / 6}
# Source: packed micro-steps of Gemma not compiled (17.8k) and compiled (33.4k); CodeBERT 128 x 512
# (466k and 570k).
NOT_COMPILED = {"adapter": 33.4 / 17.8, "encoder": 570 / 466}
QLORA = 13.0 / 11.1  # source: LoRA and QLoRA 8 x 768 with checkpointing
# Source: CodeGPT 8 x 1,024 (141k, 42k), GraphCodeBERT (312k, 70k), CodeBERT (466k, 71k).
FP32 = 4.5
# Seconds that launching one block's kernels takes the CPU, forward and backward. Source: CodeGPT's
# 12 blocks in 35 to 51 ms, GraphCodeBERT's in 56 to 74; Gemma's 26 in 204 ms, compiled or not.
LAUNCH_S = {"adapter": 0.0078, "encoder": 0.0042}


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A low, an expected and a high value, in seconds or a rate."""

    low: float
    expected: float
    high: float

    def __mul__(self, factor: float) -> Range:
        return Range(
            low=self.low * factor, expected=self.expected * factor, high=self.high * factor
        )

    def __add__(self, other: Range) -> Range:
        return Range(
            low=self.low + other.low,
            expected=self.expected + other.expected,
            high=self.high + other.high,
        )

    @classmethod
    def of(cls, low: float, expected: float, high: float) -> Range:
        """Return the range of three values in order."""
        return cls(low=low, expected=expected, high=high)


NOTHING = Range(low=0.0, expected=0.0, high=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a micro-step's time depends on; of a measured row, or of a run to come."""

    family: str  # adapter or encoder
    model: str
    method: str
    precision: str
    attention: str
    device: str
    flops: float | None  # per token that is computed; None: the model's sizes are unknown
    blocks: int
    tokens: float  # computed in a micro-step
    checkpointing: bool
    compiled: bool
    packed: bool
    world_size: int = 1
    cpu_count: int | None = None
    kind: str = ""

    @property
    def is_gpu(self) -> bool:
        """Whether it runs on a GPU."""
        return self.device != CPU

    @property
    def is_fp32(self) -> bool:
        """Whether it computes in fp32."""
        return self.precision == "fp32"

    @property
    def launch_s(self) -> float:
        """Seconds in which the CPU launches a micro-step; none where the CPU computes it."""
        return LAUNCH_S[self.family] * self.launches if self.is_gpu else 0.0

    @property
    def launches(self) -> float:
        """Blocks whose kernels are launched: checkpointing repeats the forward third of them."""
        return self.blocks * (4 / 3 if self.checkpointing else 1.0)

    @property
    def weight(self) -> float:
        """Operations of a micro-step, times what makes them slower."""
        slow = CHECKPOINTING[self.family] if self.checkpointing else 1.0
        slow *= 1.0 if self.compiled or not self.is_gpu else NOT_COMPILED[self.family]
        slow *= QLORA if self.method == "qlora" else 1.0
        slow *= FP32 if self.is_fp32 and self.is_gpu else 1.0
        return (self.flops or 0.0) * self.tokens * slow


def family_of(job: str) -> str:
    """Return the formulas of time that hold for a job; an encoder's where nobody knows."""
    return (JOBS[job].formulas if job in JOBS else "") or ENCODER


def case_of(settings: Settings, plan: BatchPlan, hardware: Hardware, work: Work) -> Case:
    """Return the case of a run to come."""
    shape = find_shape(settings)
    precision = hardware.precision if settings.precision == "auto" else settings.precision
    attention, compiled = _kernel(settings, plan, hardware, shape)
    gpu = hardware.gpu if plan.use_gpu else None
    return Case(
        family=family_of(spec_of(settings).name),
        model=settings.model,
        method=getattr(settings, "method", "full"),
        precision=precision if plan.use_gpu else "fp32",
        attention=attention,
        device=(gpu.key or gpu.name) if gpu else CPU,
        flops=_flops(shape),
        blocks=getattr(shape, "layers", 12),
        tokens=plan.per_device_train_batch_size * work.example_tokens / work.useful_share,
        checkpointing=settings.gradient_checkpointing,
        compiled=compiled,
        packed=settings.padding != "fixed" or bool(getattr(settings, "packing", False)),
        world_size=plan.world_size,
        cpu_count=hardware.cpu_count,
    )


def _kernel(
    s: Settings, plan: BatchPlan, hardware: Hardware, shape: Shape | CausalShape | None
) -> tuple[str, bool]:
    """Return the attention and whether blocks are compiled, as the jobs choose."""
    if spec_of(s).formulas == ADAPTER and isinstance(shape, CausalShape):
        has_flex = plan.use_gpu and hardware.precision == "bf16"
        kernel = choose_kernel(s, shape, has_flex=has_flex)
        return kernel, plan.use_gpu and choose_compile(s, kernel)
    # The detector's compiled blocks prove themselves first, and are not counted on.
    return s.attention, plan.use_gpu and getattr(s, "compile_layers", "off") == "on"


def _flops(shape: Shape | CausalShape | None) -> float | None:
    """Return the operations per token of training a model."""
    if shape is None:
        return None
    if isinstance(shape, CausalShape):
        return float(ADAPTER_FLOPS * shape.parameters())
    return float(FULL_FLOPS * shape.matrix_parameters())


def case_of_row(row: SpeedRow, wanted: Case) -> Case | None:
    """Return the case of a measured row; None where its model's sizes are unknown."""
    shape = known_shape(row.job, row.model)
    if shape is None and row.model != wanted.model:
        return None
    return Case(
        family=family_of(row.job),
        model=row.model,
        method=row.method,
        precision=row.precision,
        attention=row.attention,
        device=row.device,
        flops=_flops(shape) if shape is not None else wanted.flops,
        blocks=shape.layers if shape is not None else wanted.blocks,
        tokens=row.micro_tokens,
        checkpointing=row.checkpointing,
        compiled=row.compiled,
        packed=row.packed,
        world_size=row.world_size,
        cpu_count=row.cpu_count,
        kind=row.kind,
    )


# ------------------------------------------------------------------------------------------------
# Seconds of one micro-step on a card: from measured speeds of runs that are alike.
#
# A measured row is brought to the run that is asked for by one factor for each thing that differs;
# the nearest rows give the middle and the range. The result is the larger of what the arithmetic
# takes and what the CPU takes to launch it.


MEASURED = "measured on this card"
SCALED = "measured on another card, scaled"
ESTIMATE = "estimate"
# The share of a card's peak that was reached where the GPU was the limit, what slows a step counted
# in; a step below half of it is bound by the CPU that launches its kernels. Source: Gemma compiled
# .35 to .41 (not compiled, times that factor, .36 to .39), CodeBERT compiled .33.
CEILING, LAUNCHING = {"adapter": 0.37, "encoder": 0.32}, 0.5
# Two processes were 1.86 to 1.89 times as fast as one. More were not measured: as much lost again
# with each doubling.
DDP_SHARE = (1.86 / 2, 1.875 / 2, 1.89 / 2)
CPU_FLOPS_PER_CORE = (1.0e10, 2.0e10, 4.0e10)
MFU_RANGE = (0.10, 0.2, 0.35)  # where no measured row is alike at all
SPREAD = 1.08  # of one's own measurement: two runs of the same settings differ by so much
# Of a measurement on another host with such a card. Source: docs/LOG.md, 285 and 218 pairs/s; ranks
# 8, 16 and 32 of an adapter, whose arithmetic is the same, at 7.6k, 5.6k and 8.9k tokens/s.
HOST_SPREAD = 1.3
CPU_SPREAD = (
    2.0  # of another machine's cores. Source: preset smoke, 49 s on idle and 119 on busy ones
)
ANOTHER_HOST = 0.25  # added to a row's distance: a run made here says more
NEAR = 0.35  # rows that are this much farther away than the nearest count too
MOST_ROWS = 5
FAR = 4.0  # nothing is learnt from rows beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Seconds of a micro-step of one process, where they come from, and what bounds them."""

    micro_step_s: Range | None
    basis: str
    notes: tuple[str, ...]
    is_launch_bound: bool = False
    mfu: float | None = None


def rate_of(
    settings: Settings,
    plan: BatchPlan,
    hardware: Hardware,
    work: Work,
    rows: Sequence[SpeedRow],
) -> Rate:
    """Return the seconds of a micro-step of one process, with the name of their source."""
    wanted = case_of(settings, plan, hardware, work)
    if wanted.flops is None and not any(row.model == wanted.model for row in rows):
        note = f"the size of {wanted.model} is unknown, and no run with it was measured"
        return Rate(micro_step_s=None, basis=ESTIMATE, notes=(note,))
    transfers = sorted(
        _transfers(wanted, rows, spec_of(settings).name), key=lambda each: each.distance
    )
    return (
        _rate_from(wanted, transfers, _floor(wanted, rows))
        if transfers
        else _from_mfu(wanted, hardware)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transfer:
    """A measured row brought to the case that is asked for."""

    row: SpeedRow
    distance: float  # 0: the same run; about the log of how wrong it may be
    micro_step_s: Range
    differs: tuple[str, ...]
    is_here: bool
    is_launch_bound: bool


def _transfers(wanted: Case, rows: Sequence[SpeedRow], job: str) -> list[_Transfer]:
    transfers = []
    for row in rows:
        case = case_of_row(row, wanted)
        if case is None or case.family != wanted.family or case.is_gpu != wanted.is_gpu:
            continue
        moved = _transfer(wanted, case, row, 0.0 if row.job == job else 0.15)
        transfers += [moved] if moved is not None else []
    return transfers


def _transfer(wanted: Case, case: Case, row: SpeedRow, distance: float) -> _Transfer | None:
    """Return what a row says of the case; None where it says nothing."""
    taken_s, card = _alone_s(row), _card_factor(wanted, case)
    if card is None or not (case.weight and wanted.weight):
        return None
    differs = _differences(wanted, case)
    if not wanted.is_gpu and not row.settings:
        differs["card"] = 0.5  # another machine's CPU, whatever the number of its cores
    is_here, is_launching = "card" not in differs, _is_launching(case, taken_s)
    if is_launching:
        # What the CPU took tells nothing of the arithmetic of another card, or of a larger step.
        if not is_here or abs(math.log(wanted.tokens / case.tokens)) > math.log(1.5):
            return None
        step = Range.of(1.0, 1.0, 1.0) * (taken_s * wanted.launches / case.launches)
    else:
        step = card * (taken_s * wanted.weight / case.weight)
    distance += sum(differs.values()) + (0.0 if row.settings else ANOTHER_HOST)
    if distance > FAR:
        return None
    return _Transfer(
        row=row,
        distance=distance,
        micro_step_s=step,
        differs=tuple(differs),
        is_here=is_here,
        is_launch_bound=is_launching,
    )


def _alone_s(row: SpeedRow) -> float:
    """Return the seconds that a micro-step would take without other processes to wait for."""
    return row.micro_step_s * _ddp(row.world_size, row.device != CPU).expected


def _is_launching(case: Case, taken_s: float) -> bool:
    """Whether a step took the GPU far less time than it took the CPU to launch it."""
    peak = _peak(case)
    if peak is None or not case.is_gpu or not case.weight:
        return False
    return case.weight / (taken_s * peak) < LAUNCHING * CEILING[case.family]


def _floor(wanted: Case, rows: Sequence[SpeedRow]) -> Range:
    """Return what launching a micro-step takes the CPU: as measured here, else anywhere."""
    if not wanted.is_gpu:
        return Range.of(0.0, 0.0, 0.0)
    launch_times: list[tuple[bool, float]] = []
    for row in rows:
        case = case_of_row(row, wanted)
        if case is not None and case.family == wanted.family and case.blocks and row.kind != LOOP:
            taken_s = _alone_s(row)
            if _is_launching(case, taken_s):
                launch_times.append(
                    (case.device == wanted.device and bool(row.settings), taken_s / case.launches)
                )
    here = [seconds for is_here, seconds in launch_times if is_here]
    seconds = sorted(here or [seconds for _, seconds in launch_times]) or [LAUNCH_S[wanted.family]]
    middle = seconds[len(seconds) // 2]
    return Range.of(seconds[0], middle, max(seconds[-1], middle * SPREAD)) * wanted.launches


def _differences(wanted: Case, case: Case) -> dict[str, float]:
    """Return what differs, and by how much each makes a row a worse witness."""
    fused = {"auto": "sdpa"}
    pairs = {
        "card": (_place(wanted), _place(case), 0.5),
        "model": (wanted.model, case.model, 0.1),
        "method": (wanted.method, case.method, 0.4),
        "precision": (wanted.is_fp32, case.is_fp32, 1.0),
        "half precision": (wanted.precision, case.precision, 0.1),
        "checkpointing": (wanted.checkpointing, case.checkpointing, 0.4),
        "compiled blocks": (wanted.compiled, case.compiled, 0.5),
        "attention": (
            fused.get(wanted.attention, wanted.attention),
            fused.get(case.attention, case.attention),
            0.1,
        ),
        "padding": (wanted.packed, case.packed, 0.2),
        "processes": (wanted.world_size, case.world_size, 0.1),
    }
    differences = {name: cost for name, (a, b, cost) in pairs.items() if a != b}
    if case.kind == LOOP:
        differences["a plain loop"] = 0.5
    if (size := abs(math.log(wanted.tokens / case.tokens))) > math.log(1.25):
        differences["tokens per micro-step"] = 0.3 * size
    work = (wanted.flops or 1.0) * (case.blocks or 1), (case.flops or 1.0) * (wanted.blocks or 1)
    if (scale := abs(math.log(work[0] / work[1]))) > math.log(1.1):
        differences["size"] = 0.4 * scale
    return differences


def _place(case: Case) -> tuple[Any, ...]:
    return (case.device, None if case.is_gpu else case.cpu_count)


def _card_factor(wanted: Case, case: Case) -> Range | None:
    """Return how much longer a step takes on the wanted card; None where a card is unknown.

    Between the ratio of arithmetic and that of memory bandwidth: steps are bound by some of each.
    """
    if not wanted.is_gpu:
        cores = (case.cpu_count or wanted.cpu_count or 1) / (wanted.cpu_count or 1)
        same = cores == 1.0
        low, high = (1.0, 1.0) if same else sorted((cores, 1.0))
        return Range.of(low, math.sqrt(low * high), high if same else 2 * high)
    if wanted.device == case.device:
        return Range.of(1.0, 1.0, 1.0)
    here, there = known_gpus().get(wanted.device), known_gpus().get(case.device)
    if here is None or there is None:
        return None
    peaks = [each.bf16_tflops or each.fp16_tflops for each in (here, there)]
    if None in peaks:
        return None
    ratios = sorted(
        (
            peaks[1] / peaks[0],
            there.memory_bandwidth_bytes_per_s / here.memory_bandwidth_bytes_per_s,
        )
    )
    return Range.of(ratios[0], math.sqrt(ratios[0] * ratios[1]), ratios[1])


def _rate_from(wanted: Case, transfers: list[_Transfer], launch: Range) -> Rate:
    """Return the mean of the nearest rows, weighted by nearness, and the range that they span."""
    first = transfers[0]
    near = [each for each in transfers if each.distance <= first.distance + NEAR][:MOST_ROWS]
    weights = [math.exp(-(each.distance - first.distance) / 0.15) for each in near]
    logs = [math.log(each.micro_step_s.expected) for each in near]
    mean = math.exp(sum(w * x for w, x in zip(weights, logs, strict=True)) / sum(weights))
    close = [e for e, w in zip(near, weights, strict=True) if w > 0.3]
    # A row that had to be changed is right within about this much: see FAR, CHECKPOINTING.
    width = HOST_SPREAD if wanted.is_gpu else CPU_SPREAD
    width = SPREAD if first.row.settings else width
    far = first.distance - (0.0 if first.row.settings else ANOTHER_HOST)
    width *= math.exp(0.25 * min(far, 2.0))
    low = min(min(each.micro_step_s.low for each in close), mean / width)
    high = max(max(each.micro_step_s.high for each in close), mean * width)
    ddp, is_launching = _ddp(wanted.world_size, wanted.is_gpu), first.is_launch_bound
    if not is_launching and launch.expected >= mean:
        low, mean, high = max(low, launch.low), launch.expected, max(high, launch.high)
        is_launching = True
    step = Range.of(low / ddp.high, mean / ddp.expected, high / ddp.low)
    return Rate(
        micro_step_s=step,
        basis=_basis(first),
        notes=tuple(_told(wanted, first, len(close), is_launching)),
        is_launch_bound=is_launching,
        mfu=_mfu(wanted, step.expected),
    )


EASY = {"processes", "tokens per micro-step", "half precision", "a plain loop", "attention"}


def _basis(best: _Transfer) -> str:
    """Name the source: anything that changed the arithmetic makes it an estimate."""
    hard = set(best.differs) - EASY - {"card"}
    if family_of(best.row.job) == ADAPTER:
        hard -= {"model"} if "size" not in best.differs else set()
    if hard - {"model"}:
        return ESTIMATE
    return MEASURED if best.is_here else SCALED


def _told(wanted: Case, best: _Transfer, count: int, is_launching: bool) -> list[str]:
    row = best.row
    others = f" and {count - 1} more like it" if count > 1 else ""
    notes = [f"{row.tokens_per_s:,.0f} useful tokens/s on {row.device} ({row.source}){others}"]
    changed = [name for name in best.differs if name != "a plain loop"]
    if changed:
        notes.append(f"brought to this run: {', '.join(changed)}")
    if is_launching:
        notes.append("bound by the CPU that launches the kernels: a larger micro-step costs little")
    if wanted.world_size > 1 and not wanted.is_gpu:
        notes.append(f"{wanted.world_size} processes share the cores")
    elif wanted.world_size > 1:
        scale = wanted.world_size * _ddp(wanted.world_size, wanted.is_gpu).expected
        notes.append(
            f"{wanted.world_size} processes as {scale:.2f} (measured for two: 1.86 to 1.89"
            + (")" if wanted.world_size == 2 else "; more is assumed)")
        )
    return notes


def _ddp(world_size: int, is_gpu: bool) -> Range:
    """Return the share of its own speed that each of several processes keeps.

    Processes without a GPU share the cores that one of them would have had.
    """
    if not is_gpu:
        return Range.of(0.8 / world_size, 1.0 / world_size, 1.0 / world_size)
    doublings = math.log2(max(world_size, 1))
    low, expected, high = (share**doublings for share in DDP_SHARE)
    return Range.of(low, expected, high)


def _peak(wanted: Case) -> float | None:
    """Return the card's dense operations per second; of a CPU, by its cores."""
    if not wanted.is_gpu:
        return (wanted.cpu_count or 1) * CPU_FLOPS_PER_CORE[1]
    spec = known_gpus().get(wanted.device)
    tflops = (spec.bf16_tflops or spec.fp16_tflops) if spec else None
    return tflops * 1e12 if tflops else None


def _mfu(wanted: Case, micro_step_s: float) -> float | None:
    peak = _peak(wanted)
    if peak is None or not wanted.flops or not wanted.is_gpu:
        return None
    return wanted.flops * wanted.tokens / micro_step_s / peak


def _from_mfu(wanted: Case, hardware: Hardware) -> Rate:
    """Return an estimate from the card's throughput alone: no measured run is alike."""
    peak = _peak(wanted)
    if peak is None:
        name = hardware.gpu.name if hardware.gpu is not None else "this GPU"
        note = f"the throughput of {name} is unknown, and no run on it was measured"
        return Rate(micro_step_s=None, basis=ESTIMATE, notes=(note,))
    weight = replace(wanted, compiled=True).weight
    if wanted.is_gpu:
        shares, assumption = (
            MFU_RANGE,
            f"{MFU_RANGE[0]:.0%} to {MFU_RANGE[2]:.0%} of {peak / 1e12:g} TFLOP/s",
        )
    else:
        cores = wanted.cpu_count or 1
        shares = tuple(each / CPU_FLOPS_PER_CORE[1] for each in CPU_FLOPS_PER_CORE)
        assumption = (
            f"{shares[0] * peak / 1e9:.0f} to {shares[2] * peak / 1e9:.0f} GFLOP/s of {cores} cores"
        )
    launch_time, ddp = wanted.launch_s, _ddp(wanted.world_size, wanted.is_gpu)
    seconds = [max(weight / (peak * share), launch_time) for share in reversed(shares)]
    step = Range.of(seconds[0] / ddp.high, seconds[1] / ddp.expected, seconds[2] / ddp.low)
    return Rate(
        micro_step_s=step,
        basis=ESTIMATE,
        notes=(f"{assumption} (assumed: no measured run is alike)",),
        is_launch_bound=seconds[1] <= launch_time,
        mfu=_mfu(wanted, step.expected),
    )
