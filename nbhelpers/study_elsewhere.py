"""What a measured run would take and cost on other GPUs: estimates, from its own speed."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbhelpers.batching import plan_batch
from nbhelpers.budgets import predict_memory
from nbhelpers.errors import ConfigError, NbhelpersError
from nbhelpers.gpus import GpuSpec, known_gpus
from nbhelpers.hardware import plan_hardware
from nbhelpers.presets import Preset
from nbhelpers.progress import duration
from nbhelpers.runs import Run
from nbhelpers.study_time import dense_tflops
from nbhelpers.tables import left

if TYPE_CHECKING:
    from nbhelpers.runs import RunResult

OTHERS = ("t4", "l4", "a100-40gb", "a100-80gb", "rtx6000ada", "h100")


@dataclass(frozen=True, slots=True, kw_only=True)
class ElsewhereRow:
    """One GPU; `useful_tokens_per_s` and `time_s` are estimates, but on the measured GPU.

    `memory`: the predicted verdict, or why the settings cannot run there.
    """

    gpu: str
    useful_tokens_per_s: float
    time_s: float
    cost: float | None
    memory: str
    is_measured: bool

    def cells(self) -> tuple[str, ...]:
        """Return GPU, tokens per second, time, cost, basis and memory, as text."""
        cost = "" if self.cost is None else f"{self.cost:.2f}"
        basis = "measured" if self.is_measured else "estimate"
        speed = f"{self.useful_tokens_per_s:,.0f}"
        return (self.gpu, speed, duration(self.time_s), cost, basis, self.memory)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Elsewhere:
    """The same run on other GPUs."""

    run_id: str
    rows: tuple[ElsewhereRow, ...]
    assumptions: tuple[str, ...]

    HEADS = ("GPU", "useful tokens/s", "time", "cost", "basis", "memory (predicted)")

    def __repr__(self) -> str:
        return f"Elsewhere({self.run_id} on {len(self.rows)} GPUs, estimated)"

    def __str__(self) -> str:
        lines = [self.HEADS, *(row.cells() for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.HEADS))]
        table = ["  ".join(t.ljust(w) for t, w in zip(x, widths, strict=True)) for x in lines]
        return "\n".join([*(line.rstrip() for line in table), *self.assumptions])

    def _repr_html_(self) -> str:
        def cells(texts: tuple[str, ...], tag: str) -> str:
            return "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)

        body = "".join(f"<tr>{cells(row.cells(), 'td')}</tr>" for row in self.rows)
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.assumptions)
        title = html.escape(f"{self.run_id} on other GPUs (estimates)")
        head = cells(self.HEADS, "th")
        return left(f"<p><b>{title}</b></p><table><tr>{head}</tr>{body}</table><ul>{notes}</ul>")


def estimate_elsewhere(
    result: RunResult, price_per_hour: float | Mapping[str, float] | None = None
) -> Elsewhere:
    """Return what a measured run would take on the GPUs that presets are made for.

    Training is scaled by dense throughput, everything after it by memory bandwidth. Limits: the
    same settings everywhere, and one GPU there for each one here.

    Args:
        result: Of a training that ran on a GPU that gpus.yaml knows.
        price_per_hour: Of one GPU, in your currency; a mapping names a price for each key.

    Raises:
        ConfigError: The run did not train on a known GPU, or a price is for no known GPU.
    """
    here, preset, count = _measured_on(result)
    speed, train_s = result.throughput.get("useful_tokens_per_s"), result.timing.get("train_s")
    total_s = result.timing.get("total_s")
    mine = dense_tflops(here, result.data.get("precision") or "auto", "")
    if not speed or not train_s or not total_s or not mine:
        text = f"{result.run_id} measured no training speed in half precision."
        raise ConfigError(text, fix="take a run that trained on a GPU; base trains nothing")
    if isinstance(price_per_hour, Mapping):
        _check_prices(price_per_hour, here.key)
    rows = []
    for key in dict.fromkeys((here.key, *OTHERS)):
        spec = known_gpus()[key]
        ratio = (spec.bf16_tflops or spec.fp16_tflops or mine) / mine
        rest_s = (total_s - train_s) * _bandwidth(here) / _bandwidth(spec)
        time_s = total_s if spec is here else train_s / ratio + rest_s
        price = price_per_hour.get(key) if isinstance(price_per_hour, Mapping) else price_per_hour
        row = ElsewhereRow(
            gpu=key,
            useful_tokens_per_s=speed * ratio,
            time_s=time_s,
            cost=None if price is None else price * count * time_s / 3600,
            memory=_verdict(preset, key, count),
            is_measured=spec is here,
        )
        rows.append(row)
    notes = [
        f"Estimates from {speed:,.0f} useful tokens/s measured on {here.name}: training scaled by "
        "dense TFLOP/s, the rest by memory bandwidth; the share of the peak that is reached (MFU) "
        "is taken as equal"
    ]
    notes += ["Cost: your price per GPU and hour"] if price_per_hour is not None else []
    return Elsewhere(run_id=result.run_id, rows=tuple(rows), assumptions=tuple(notes))


def _measured_on(result: RunResult) -> tuple[GpuSpec, Preset, int]:
    """The GPU, the preset and the number of GPUs of a run, from its run.json."""
    record: dict[str, Any] = Run(result.path).read_json()
    gpus = (record.get("hardware") or {}).get("gpus") or []
    plan = record.get("plan") or {}
    key = gpus[0].get("key") if gpus else None
    if not plan.get("use_gpu") or key not in known_gpus():
        text = f"{result.run_id} did not run on a GPU that gpus.yaml knows."
        raise ConfigError(text, fix="take a run on a known GPU; a CPU tells nothing about one")
    preset = Preset.from_dict(record.get("preset") or {})
    return known_gpus()[key], preset, int(plan.get("world_size") or 1)


def _check_prices(prices: Mapping[str, float], here: str) -> None:
    from nbhelpers.checks import did_you_mean

    for key in prices:
        if key not in (*OTHERS, here):
            fix = did_you_mean(key, (*OTHERS, here))
            raise ConfigError(f"price_per_hour names the GPU {key!r}.", fix=fix)


def _bandwidth(spec: GpuSpec) -> float:
    return spec.memory_bandwidth_bytes_per_s


def _verdict(preset: Preset, key: str, count: int) -> str:
    """What the memory prediction says there, or why the settings cannot run there."""
    try:
        hardware = plan_hardware(key, count)
        return predict_memory(preset, plan_batch(preset, hardware), hardware).verdict
    except NbhelpersError as error:
        return error.message
