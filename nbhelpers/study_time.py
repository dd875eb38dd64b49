"""How long a fine-tuning run may take here: from earlier runs where there are any, else estimated.

A time is a range with the name of its source. Nothing is read but run folders and `gpus.yaml`; an
estimate lists what it assumes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.errors import NbhelpersError
from nbhelpers.gpus import GpuSpec, known_gpus
from nbhelpers.job_specs import FINETUNE
from nbhelpers.progress import duration
from nbhelpers.results import RunResult
from nbhelpers.runs import list_runs
from nbhelpers.speeds import read_rows
from nbhelpers.timing_rate import rate_of
from nbhelpers.timing_work import (
    DEFAULT_DATA,
    DEFAULT_ROW_TOKENS,
    ROWS_BY,
    TOKENS_BY,
    UNTIMED,
    answers,
    training_rows,
    work_of,
)

if TYPE_CHECKING:
    from nbhelpers.batching import BatchPlan
    from nbhelpers.hardware import Hardware
    from nbhelpers.presets import Preset
    from nbhelpers.schema import Settings

MEASURED, ESTIMATE, UNKNOWN, FINISHED = "measured", "estimate", "unknown", "finished"
REFUSED = "refused"  # predicted not to fit: it will not start
# Source: LoRA needs about 4 N operations a token: no gradients of frozen weights, and recomputed
# activations do not count (facts of NVIDIA's and PEFT's own benchmarks: 41 % and 16 %).
FLOPS_PER_PARAMETER = {"lora": 4, "qlora": 4}
MFU_RANGE = (0.10, 0.35)  # of a model whose sizes are unknown
CPU_FLOPS_PER_CORE = (1.0e10, 4.0e10)
# Of one token for every answer of a batch: small kernels, so the CPU's speed counts too.
DECODE_STEP_S = (0.025, 0.12)
START_S = (20.0, 90.0)  # processes, imports and loading the weights, not downloading them
EMBEDDED_S = (15.0, 60.0)  # a run of the embedded model on two cores
SPEED_BY = ("model", "method", "precision")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEstimate:
    """A range of seconds and where it comes from; None: no bound on that side.

    `basis`: measured (earlier runs), estimate, unknown; or finished or refused: nothing will run.
    """

    low_s: float | None
    high_s: float | None
    basis: str
    notes: tuple[str, ...] = ()

    def words(self) -> str:
        """Say the range with its basis.

        >>> TimeEstimate(low_s=60, high_s=150, basis="estimate").words()
        '1 min 00 s to 2 min 30 s (estimate)'
        """
        if self.basis == FINISHED:
            return "finished: its result is used"
        if self.basis == REFUSED:
            return "none: it does not fit"
        if self.high_s is None:
            return UNKNOWN + (f" ({self.notes[0]})" if self.notes else "")
        if self.low_s is None:
            return f"up to {duration(self.high_s)} ({self.basis})"
        low, high = duration(self.low_s), duration(self.high_s)
        return f"about {high} ({self.basis})" if low == high else f"{low} to {high} ({self.basis})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON keeps."""
        return asdict(self) | {"notes": list(self.notes)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TimeEstimate:
        """Rebuild what `to_dict` wrote."""
        return cls(**{**data, "notes": tuple(data.get("notes") or ())})


def total_time(times: Iterable[TimeEstimate]) -> TimeEstimate:
    """Return the sum of runs that follow each other; what is unknown makes the sum unknown."""
    given = list(times)
    times = [each for each in given if each.basis not in (FINISHED, REFUSED)]
    if not times:
        basis = REFUSED if any(each.basis == REFUSED for each in given) else FINISHED
        return TimeEstimate(low_s=0.0, high_s=0.0, basis=basis)
    notes = tuple(dict.fromkeys(note for each in times for note in each.notes))
    if any(each.high_s is None for each in times):
        return TimeEstimate(low_s=None, high_s=None, basis=UNKNOWN, notes=notes)
    is_measured = all(each.basis == MEASURED for each in times)
    is_bounded = all(each.low_s is not None for each in times)
    return TimeEstimate(
        low_s=sum(each.low_s or 0.0 for each in times) if is_bounded else None,
        high_s=sum(each.high_s or 0.0 for each in times),
        basis=MEASURED if is_measured else ESTIMATE,
        notes=notes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """An earlier finished run: what it did, on what, and what it took."""

    settings: Mapping[str, Any]
    device: tuple[Any, ...]
    result: RunResult

    def number(self, *path: str) -> float | None:
        """Return a positive number of its result, else None."""
        value: Any = self.result.data
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number and value > 0 else None

    def taken_s(self) -> float | None:
        """Return its seconds without pre-training, which is done once and cached, or None."""
        total = self.number("timing", "total_s")
        return total and total - (self.number("timing", "pretrain_s") or 0.0)


def device_of(
    use_gpu: bool, world_size: int, hardware: Mapping[str, Any] | None
) -> tuple[Any, ...]:
    """Return what must be equal for two runs' speeds to be comparable."""
    hardware = hardware or {}
    gpus = [gpu for gpu in hardware.get("gpus") or [] if isinstance(gpu, Mapping)]
    names = [gpu.get("name") for gpu in gpus]
    if use_gpu:
        return ("gpu", world_size, *names[:world_size])
    return ("cpu", world_size, hardware.get("cpu_count"))


def past_runs(run_dir: str | Path, job: str = "finetune") -> tuple[PastRun, ...]:
    """Return the finished training runs of a folder, newest first; unreadable ones are left out."""
    found = []
    for run in list_runs(run_dir):
        record = run.record or {}
        if (record.get("job"), record.get("mode")) == (job, "train") and run.result_path.exists():
            with contextlib.suppress(NbhelpersError):
                found.append(_past_run(record, RunResult.from_path(run.path)))
    return tuple(found)


def _past_run(record: Mapping[str, Any], result: RunResult) -> PastRun:
    plan, hardware = record.get("plan") or {}, record.get("hardware")
    device = device_of(
        bool(plan.get("use_gpu")),
        int(plan.get("world_size") or 1),
        hardware if isinstance(hardware, Mapping) else None,
    )
    settings = (record.get("preset") or {}).get("settings") or {}
    return PastRun(settings=settings, device=device, result=result)


def estimate_time(
    preset: Preset,
    plan: BatchPlan,
    hardware: Hardware,
    *,
    past: Iterable[PastRun] = (),
    parameters: int | None = None,
) -> TimeEstimate:
    """Return how long a run of this preset may take on this hardware.

    Args:
        preset: Of the job finetune.
        plan: How its batch is split.
        hardware: Where it would run.
        past: Earlier runs, newest first, from `past_runs`.
        parameters: Of the model, with its embedding; None: unknown.
    """
    s, values = preset.settings, preset.settings.model_dump(mode="json")
    device = device_of(plan.use_gpu, plan.world_size, hardware.to_dict())
    past = tuple(past)
    alike = [
        each
        for each in past
        if each.device == device and all(each.settings.get(n) == values[n] for n in SPEED_BY)
    ]
    same = [each for each in alike if _is_same_work(each, values)]
    if times := [taken for p in same if (taken := p.taken_s())]:
        note = f"measured: {len(times)} earlier run{'s' * (len(times) > 1)} like this one"
        return TimeEstimate(low_s=min(times), high_s=max(times), basis=MEASURED, notes=(note,))
    if s.model in FINETUNE.models.embedded:
        low, high = EMBEDDED_S
        note = f"the embedded model: {low:.0f} to {high:.0f} s a run on two cores (estimate)"
        return TimeEstimate(low_s=low, high_s=high, basis=ESTIMATE, notes=(note,))
    work = _Work.of(s, past)
    speed = _Speed.of(s, plan, hardware, alike, parameters)
    return _combine(s, work, speed, alike)


def _is_same_work(past: PastRun, values: Mapping[str, Any]) -> bool:
    """Whether it did the same in one go: a resumed run started twice, and did some steps twice."""
    if (past.result.training or {}).get("resumed_from") is not None:
        return False
    return all(past.settings.get(n) == v for n, v in values.items() if n not in UNTIMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Rows of training and tokens per row; `is_bound`: no more than so many."""

    rows: int | None
    row_tokens: float
    is_bound: bool
    notes: tuple[str, ...]

    @classmethod
    def of(cls, s: Settings, past: tuple[PastRun, ...]) -> _Work:
        values, notes = s.model_dump(mode="json"), []
        rows, row_tokens, is_bound = training_rows(s), float(s.seq_len), True
        for each in past:
            counted = each.number("data", "splits", "train", "samples")
            tokens = each.number("data", "splits", "train", "tokens")
            if counted and all(each.settings.get(n) == values.get(n) for n in ROWS_BY):
                rows = int(counted)
            if not (counted and tokens and is_bound):
                continue
            if all(each.settings.get(n) == values.get(n) for n in TOKENS_BY):
                row_tokens, is_bound = tokens / counted, False
                notes.append(f"{row_tokens:,.0f} tokens per row, measured by {each.result.run_id}")
        if is_bound and s.data == DEFAULT_DATA:
            row_tokens, is_bound = float(min(DEFAULT_ROW_TOKENS, s.seq_len)), False
            notes.append(f"about {row_tokens:,.0f} tokens per row of {s.data} (estimate)")
        elif is_bound:
            notes.append(f"every row as long as seq_len={s.seq_len} (upper bound)")
        if rows is not None:
            notes.insert(0, f"{rows:,} training rows x {s.epochs} epochs")
        return cls(rows=rows, row_tokens=row_tokens, is_bound=is_bound, notes=tuple(notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Speed:
    """Useful tokens per second of training, and seconds of one step of generation, as ranges."""

    tokens_per_s: tuple[float, float] | None
    step_s: tuple[float, float] | None
    is_measured: bool
    note: str

    @classmethod
    def of(
        cls,
        s: Settings,
        plan: BatchPlan,
        hardware: Hardware,
        alike: list[PastRun],
        parameters: int | None,
    ) -> _Speed:
        step_s: tuple[float, float] | None = DECODE_STEP_S
        if not plan.use_gpu:
            step_s = _cpu_step_s(s, hardware, parameters)
        rates = [r for p in alike if (r := p.number("throughput", "useful_tokens_per_s"))]
        if rates:
            note = f"{rates[0]:,.0f} useful tokens/s, measured by {alike[0].result.run_id}"
            speed = (min(rates), max(rates))
            return cls(tokens_per_s=speed, step_s=step_s, is_measured=True, note=note)
        speed, note = _estimated_speed(s, plan, hardware, parameters)
        return cls(tokens_per_s=speed, step_s=step_s, is_measured=False, note=note)


def _estimated_speed(
    s: Settings, plan: BatchPlan, hardware: Hardware, parameters: int | None
) -> tuple[tuple[float, float] | None, str]:
    """Return the speed as the plan of one run has it, from measured runs that are alike."""
    if s.method == "base":
        return (1.0, 1.0), ""
    work = work_of(s)
    rate = rate_of(s, plan, hardware, work, read_rows())
    if rate.micro_step_s is None:
        return _speed_by_size(s, plan, hardware, parameters)
    tokens = plan.per_device_train_batch_size * plan.world_size * work.example_tokens
    speed = (tokens / rate.micro_step_s.high, tokens / rate.micro_step_s.low)
    return speed, f"{rate.notes[0]} ({rate.basis})"


def _speed_by_size(
    s: Settings, plan: BatchPlan, hardware: Hardware, parameters: int | None
) -> tuple[tuple[float, float] | None, str]:
    if not parameters:
        return None, f"the size of {s.model} is unknown"
    needed = FLOPS_PER_PARAMETER[s.method] * parameters
    if not plan.use_gpu:
        low, high = (hardware.cpu_count * each for each in CPU_FLOPS_PER_CORE)
        text = f"{low / 1e9:.0f} to {high / 1e9:.0f} GFLOP/s of this CPU at 4 N per token"
        return (low / needed, high / needed), text
    gpu = hardware.gpu
    spec = known_gpus().get(gpu.key) if gpu is not None and gpu.key else None
    tflops = dense_tflops(spec, s.precision, hardware.precision) if spec else None
    if tflops is None:
        name = gpu.name if gpu is not None else "this GPU"
        return None, f"the throughput of {name} in this precision is unknown"
    low, high = (tflops * 1e12 * plan.world_size * mfu / needed for mfu in MFU_RANGE)
    share = f"{MFU_RANGE[0]:.0%} to {MFU_RANGE[1]:.0%}"
    return (low, high), f"{share} of {tflops:g} TFLOP/s at 4 N per token (MFU, assumed)"


def dense_tflops(spec: GpuSpec, asked: str, native: str) -> float | None:
    """Return a GPU's dense throughput in a precision; None where it has no tensor cores for it."""
    precision = native if asked == "auto" else asked
    return {"bf16": spec.bf16_tflops, "fp16": spec.fp16_tflops}.get(precision)


def _cpu_step_s(
    s: Settings, hardware: Hardware, parameters: int | None
) -> tuple[float, float] | None:
    """Seconds of one token for every answer of a batch: 2 N operations each."""
    if not parameters:
        return None
    needed = 2 * parameters * s.generation_batch_size
    low, high = (needed / (hardware.cpu_count * each) for each in reversed(CPU_FLOPS_PER_CORE))
    return low, high


def _combine(s: Settings, work: _Work, speed: _Speed, alike: list[PastRun]) -> TimeEstimate:
    notes: list[str] = []
    low, high = START_S
    if s.method != "base":
        if work.rows is None:
            return _unknown("unknown until the data is read")
        if speed.tokens_per_s is None:
            return _unknown(speed.note)
        tokens = work.rows * s.epochs * work.row_tokens
        low, high = low + tokens / speed.tokens_per_s[1], high + tokens / speed.tokens_per_s[0]
        notes += [*work.notes, speed.note]
    if count := answers(s):
        if speed.step_s is None:
            return _unknown(f"the size of {s.model} is unknown")
        first, last, note = _generation(s, count, speed.step_s, alike)
        low, high = low + first, high + last
        notes.append(note)
    is_bound = work.is_bound and s.method != "base"
    return TimeEstimate(
        low_s=None if is_bound else low, high_s=high, basis=ESTIMATE, notes=tuple(notes)
    )


def _generation(
    s: Settings, count: int, step_s: tuple[float, float], alike: list[PastRun]
) -> tuple[float, float, str]:
    """Seconds of generation: of an earlier run with the same work, else steps x their time."""
    same = ("evaluate", "tasks", "eval_samples", "max_task_problems", "max_new_tokens")
    same += ("generation_batch_size", "run_generated_code")
    values = s.model_dump(mode="json")
    for past in alike:
        taken = past.number("timing", "evaluate_s")
        if taken and all(past.settings.get(name) == values[name] for name in same):
            return taken, taken, f"evaluation {duration(taken)}, as in {past.result.run_id}"
    steps = -(-count // s.generation_batch_size) * s.max_new_tokens
    note = (
        f"{count:,} answers of half to all of {s.max_new_tokens} tokens, {s.generation_batch_size} "
        f"at once, {step_s[0] * 1e3:.0f} to {step_s[1] * 1e3:.0f} ms per step (assumed)"
    )
    return steps / 2 * step_s[0], steps * step_s[1], note


def _unknown(why: str) -> TimeEstimate:
    return TimeEstimate(low_s=None, high_s=None, basis=UNKNOWN, notes=(why,))
