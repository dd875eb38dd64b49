"""What the time of a micro-step depends on, of a measured run and of one to come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbhelpers.job_specs import ADAPTER, ENCODER, JOBS, spec_of
from nbhelpers.ledger_finetune import choose_compile, choose_kernel
from nbhelpers.shapes import find_shape, known_shape
from nbhelpers.shapes_causal import CausalShape
from nbhelpers.speeds import CPU, SpeedRow

if TYPE_CHECKING:
    from nbhelpers.batching import BatchPlan
    from nbhelpers.hardware import Hardware
    from nbhelpers.schema import Settings
    from nbhelpers.shapes import Shape
    from nbhelpers.timing_work import Work

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
