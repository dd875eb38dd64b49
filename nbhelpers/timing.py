"""How long a run may take, in minutes for data, training and evaluation, and what that costs.

The speed comes from the table of measured rows (`speeds`), which every finished run extends; what
was not measured is an estimate and says so. Nothing is read but tables and run folders.
"""

from __future__ import annotations

import contextlib
import html
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.errors import ConfigError
from nbhelpers.files import is_number, rebuilt
from nbhelpers.formatting import duration
from nbhelpers.speeds import SpeedRow, read_rows
from nbhelpers.tables import left
from nbhelpers.timing_phases import PhaseTime, Plan, phases_of
from nbhelpers.timing_rate import ESTIMATE, MEASURED, SCALED, rate_of
from nbhelpers.timing_work import work_of

if TYPE_CHECKING:
    from nbhelpers.batching import BatchPlan
    from nbhelpers.hardware import Hardware
    from nbhelpers.presets import Preset

__all__ = [
    "ESTIMATE",
    "MEASURED",
    "SCALED",
    "PhaseTime",
    "TimeBudget",
    "compare_time",
    "predict_time",
    "time_lines",
]
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
        found = [f"Time: {self.words()}: {parts}"]
        found += [f"  {note}" for note in self.notes]
        if said := self.verdict_words():
            found += [said, *(f"  {text}" for text in self.advice)]
        if self.cost is not None:
            low, expected, high = self.cost
            unit = f" {self.currency}" if self.currency else ""
            found.append(
                f"Cost: {expected:.2f}{unit} ({low:.2f} to {high:.2f}) at "
                f"{self.price_per_hour:g}{unit} per hour"
            )
        return found

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
    found = TimeBudget(
        phases=phases,
        basis=MEASURED if is_same else rate.basis if trains else ESTIMATE,
        notes=(phases[0].note,) if is_same else (*work.notes, *rate.notes) if trains else (),
        tokens_per_s=speed,
        mfu=rate.mfu if trains else None,
        max_s=None if max_hours is None else 3600.0 * max_hours,
        price_per_hour=price_per_hour,
        currency=currency,
    )
    if advise and found.verdict in (TOO_LONG, PERHAPS):
        from dataclasses import replace

        from nbhelpers.timing_advice import advice_for

        return replace(found, advice=advice_for(preset, found, asked))
    return found


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
    from nbhelpers.timing_phases import by_phase

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
