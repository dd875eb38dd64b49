"""What the seeds' reports said a run would take, beside our prediction for the same work.

The claims are quoted as they were. Ours is for our preset of the same job and card, and for the
same examples; a seed's preset that does not fit its card is predicted as if it did.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nbhelpers.budget.speeds import SpeedRow
from nbhelpers.budget.time import TimeBudget, predict_time
from nbhelpers.common.display import left
from nbhelpers.common.formatting import duration
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.plan import plan_batch
from nbhelpers.presets.loading import load_preset

if TYPE_CHECKING:
    from nbhelpers.presets.preset import Preset

MINUTE, HOUR = 60.0, 3600.0
_A100, _T4 = "a100-40gb", "t4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A time that a seed's report names: the run, the card, and the range in seconds."""

    run: str
    job: str
    preset: str
    gpu: str
    low_s: float
    high_s: float
    count: int = 1
    overrides: tuple[tuple[str, Any], ...] = ()
    examples: int | None = None


def _adapter(run: str, preset: str, gpu: str, low_s: float, high_s: float, **changes: Any) -> Claim:
    return Claim(
        run=run,
        job="finetune",
        preset=preset,
        gpu=gpu,
        low_s=low_s,
        high_s=high_s,
        overrides=tuple(changes.items()),
    )


def _detector(count: int, seconds: float) -> Claim:
    return Claim(
        run="CodeBERT detector, 10 epochs" + (f" on {count} GPUs" if count > 1 else ""),
        job="detector",
        preset=_A100,
        gpu=_A100,
        low_s=seconds,
        high_s=seconds,
        count=count,
        examples=38_018,  # four fifths of the 47,523 programs
        overrides=(() if count == 1 else (("per_device_train_batch_size", 256 // count // 2),)),
    )


# Source: the report on LoRA and QLoRA of Gemma-2-2B ("Per-Model Estimates"), and the one on the
# detector ("Training Time Estimates" and "For Even Faster Training").
CLAIMS = (
    _adapter("LoRA r=8", "seed-t4", _T4, 1.5 * HOUR, 1.5 * HOUR, lora_r=8),
    _adapter("LoRA r=16", "seed-t4", _T4, 2 * HOUR, 3 * HOUR, lora_r=16),
    _adapter("LoRA r=32", "seed-t4", _T4, 3 * HOUR, 3 * HOUR, lora_r=32),
    _adapter("QLoRA r=16", "seed-t4", _T4, 3 * HOUR, 4 * HOUR, method="qlora"),
    _adapter("LoRA r=8", "seed-a100", _A100, 25 * MINUTE, 25 * MINUTE, lora_r=8),
    _adapter("LoRA r=16", "seed-a100", _A100, 30 * MINUTE, 40 * MINUTE, lora_r=16),
    _adapter("LoRA r=32", "seed-a100", _A100, 45 * MINUTE, 45 * MINUTE, lora_r=32),
    _adapter("QLoRA r=16", "seed-a100", _A100, 40 * MINUTE, 50 * MINUTE, method="qlora"),
    _detector(1, 105 * MINUTE),
    _detector(2, 50 * MINUTE),
    _detector(4, 30 * MINUTE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRow:
    """A claim, our prediction for the very settings, and for our own preset of that card."""

    claim: Claim
    quoted: TimeBudget
    ours: TimeBudget

    def cells(self) -> tuple[str, ...]:
        """Return run, card, the seed's time, and our two predictions, as text."""
        reference = self.claim
        cards = f"{reference.count} x {reference.gpu}" if reference.count > 1 else reference.gpu
        return (
            reference.run,
            cards,
            _span(reference.low_s, reference.high_s),
            _span(self.quoted.low_s, self.quoted.high_s),
            _span(self.ours.low_s, self.ours.high_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SeedTimes:
    """The seeds' time tables, with our predictions beside them."""

    rows: tuple[SeedRow, ...]
    heads = ("run", "card", "the seed said", "predicted, its settings", "predicted, our preset")

    def __repr__(self) -> str:
        return f"SeedTimes({len(self.rows)} claims)"

    def text(self) -> str:
        """Return the table in aligned columns."""
        lines = [self.heads, *(row.cells() for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.heads))]
        aligned = ("  ".join(t.ljust(w) for t, w in zip(x, widths, strict=True)) for x in lines)
        return "\n".join(line.rstrip() for line in aligned)

    def _repr_html_(self) -> str:
        def row(texts: Sequence[str], tag: str) -> str:
            cells = "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)
            return f"<tr>{cells}</tr>"

        body = "".join(row(each.cells(), "td") for each in self.rows)
        return left(f"<table>{row(self.heads, 'th')}{body}</table>")


def _span(low_s: float | None, high_s: float | None) -> str:
    if low_s is None or high_s is None:
        return "unknown"
    if high_s >= HOUR:
        low, high = duration(low_s), duration(high_s)
        return low if low == high else f"{low} to {high}"
    low, high = f"{low_s / MINUTE:.0f}", f"{high_s / MINUTE:.0f}"
    return f"{high} min" if low == high else f"{low} to {high} min"


def seed_times(rows: Sequence[SpeedRow] | None = None, *, job: str = "") -> SeedTimes:
    """Return the seeds' time tables beside our predictions.

    Args:
        rows: Measured speeds; None: all that are known here.
        job: Of this job only; empty: of all.
    """
    table = []
    for reference in CLAIMS:
        if job and reference.job != job:
            continue
        quoted = _predicted(reference, reference.preset, dict(reference.overrides), rows)
        changes = {n: v for n, v in reference.overrides if n in ("lora_r", "method")}
        ours = (
            quoted
            if reference.preset == reference.gpu
            else _predicted(reference, reference.gpu, changes, rows)
        )
        table.append(SeedRow(claim=reference, quoted=quoted, ours=ours))
    return SeedTimes(rows=tuple(table))


def _predicted(
    reference: Claim, name: str, overrides: dict[str, Any], rows: Sequence[SpeedRow] | None
) -> TimeBudget:
    hardware = plan_hardware(reference.gpu, reference.count)
    preset: Preset = load_preset(reference.job, name, hardware=hardware, overrides=overrides)
    plan = plan_batch(preset, hardware)
    time_budget = predict_time(preset, plan, hardware, rows=rows, examples=reference.examples)
    return replace(time_budget, notes=())
