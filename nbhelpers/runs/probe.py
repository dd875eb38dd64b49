"""A probe from the kernel's side: a few real steps, then time and memory as they were measured."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from nbhelpers.budget.speeds import read_rows, row_of
from nbhelpers.budget.time import TimeBudget, predict_time
from nbhelpers.common.formatting import size
from nbhelpers.errors import JobFailed
from nbhelpers.runs.following import follow
from nbhelpers.runs.starting import launch

if TYPE_CHECKING:
    from nbhelpers.budget.memory import MemoryBudget
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.plan import BatchPlan
    from nbhelpers.presets.preset import Preset


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProbeResult:
    """What a few steps measured, and the time of the whole run that follows from it.

    `before`: the prediction before the probe. Bytes are the peak of the worst process; on a CPU
    those of live tensors.
    """

    run_id: str
    steps: int
    tokens_per_s: float
    measured_bytes: int | None
    predicted_bytes: int | None
    reserved_bytes: int | None
    before: TimeBudget
    time: TimeBudget

    def __repr__(self) -> str:
        return f"ProbeResult({self.steps} steps, {self.tokens_per_s:,.0f} useful tokens/s)"

    def lines(self) -> list[str]:
        """Return what the probe found, a line each."""
        texts = [f"Probe of {self.steps} steps: {self.tokens_per_s:,.0f} useful tokens/s"]
        if self.before.tokens_per_s:
            error = 100 * (self.before.tokens_per_s / self.tokens_per_s - 1)
            texts[0] += f"; predicted {self.before.tokens_per_s:,.0f} ({error:+.0f} %)"
        texts += [*filter(None, [self.memory_words()]), *self.time.lines()]
        if self.before.expected_s is not None:
            texts.append(f"  before the probe: {self.before.words()}")
        return texts

    def memory_words(self) -> str:
        """Say the measured peak on the longest examples beside the predicted one."""
        if not self.measured_bytes:
            return ""
        text = f"Memory on the longest examples: {size(self.measured_bytes)} measured"
        if self.predicted_bytes:
            error = 100 * (self.predicted_bytes / self.measured_bytes - 1)
            text += f", {size(self.predicted_bytes)} predicted ({error:+.1f} %)"
        return text + (f"; {size(self.reserved_bytes)} reserved" if self.reserved_bytes else "")

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{html.escape(text.strip())}</li>" for text in self.lines())
        return f"<ul>{items}</ul>"


def probe(
    preset: Preset,
    plan: BatchPlan,
    budget: MemoryBudget | None,
    *,
    hardware: Hardware,
    run_dir: str | Path = "runs",
    force: bool = False,
    stream: TextIO | None = None,
    max_hours: float | None = None,
    price_per_hour: float | None = None,
    currency: str = "",
) -> ProbeResult | None:
    """Make some 20 steps of a run, on its longest examples and on typical ones, and predict anew.

    The probe is a run of its own: the same worker, data, model and training, without validation,
    checkpoints and scores. Its speed is added to the user's table. None where it is interrupted.

    Args:
        preset: What to do.
        plan: How the global batch is split.
        budget: The predicted memory.
        hardware: Of this machine.
        run_dir: Where run folders lie.
        force: Probe although the memory is predicted not to suffice.
        stream: Where progress is written; None: where it is usual.
        max_hours: The time that there is.
        price_per_hour: Of the machine, in `currency`.
        currency: What the price is in.

    Raises:
        BudgetError: The memory is predicted not to suffice.
        OutOfMemory: It did not suffice.
        JobFailed: The probe failed, or its data has too few examples to measure a speed.
    """
    wishes = {"max_hours": max_hours, "price_per_hour": price_per_hour, "currency": currency}
    before = predict_time(preset, plan, hardware, run_dir=run_dir, advise=False)
    run = launch(
        preset,
        plan,
        budget,
        hardware=hardware,
        run_dir=run_dir,
        fresh=True,
        job_mode="probe",
        force=force,
    )
    result = follow(run, stream=stream)
    if result is None:
        return None
    row = row_of(run.record or {}, result.data)
    if row is None:
        fix = "give more examples, or a smaller global_batch_size"
        raise JobFailed(f"The probe {run.id} made too few steps to measure a speed.", fix=fix)
    rows = (row, *(other for other in read_rows(run_dir) if other.source != row.source))
    time = predict_time(preset, plan, hardware, rows=rows, **wishes)
    return _result(run.id, result.data, row.tokens_per_s, before, time)


def _result(
    run_id: str, data: Mapping[str, Any], speed: float, before: TimeBudget, time: TimeBudget
) -> ProbeResult:
    memory = data.get("memory") or {}
    return ProbeResult(
        run_id=run_id,
        steps=int((data.get("training") or {}).get("optimizer_steps") or 0),
        tokens_per_s=speed,
        measured_bytes=memory.get("measured_bytes"),
        predicted_bytes=memory.get("predicted_bytes"),
        reserved_bytes=memory.get("reserved_bytes"),
        before=before,
        time=time,
    )
