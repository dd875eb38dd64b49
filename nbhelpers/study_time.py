"""Predicted times of a study's runs: `predict_time` for each, and their sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nbhelpers.files import rebuilt
from nbhelpers.formatting import duration
from nbhelpers.timing import ESTIMATE, TimeBudget, range_words
from nbhelpers.timing_phases import EVALUATION

UNKNOWN, FINISHED = "unknown", "finished"
REFUSED = "refused"  # predicted not to fit: it will not start


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEstimate:
    """Seconds of a run, or of runs that follow each other; None: no bound on that side.

    `basis`: as of a `TimeBudget`, or unknown; or finished or refused: nothing will run. Studies
    saved by 0.1.0 have no `expected_s`, and their basis is measured, estimate or unknown.
    """

    low_s: float | None
    high_s: float | None
    basis: str
    notes: tuple[str, ...] = ()
    expected_s: float | None = None

    @classmethod
    def of(cls, budget: TimeBudget) -> TimeEstimate:
        """Return what a study keeps of a run's predicted time."""
        if budget.expected_s is None:
            return cls(low_s=None, high_s=None, basis=UNKNOWN, notes=(budget.unknown_note,))
        answers = (phase.note for phase in budget.phases if phase.name == EVALUATION and phase.note)
        return cls(
            low_s=budget.low_s,
            expected_s=budget.expected_s,
            high_s=budget.high_s,
            basis=budget.basis,
            notes=tuple(dict.fromkeys((*budget.notes, *answers))),
        )

    def words(self) -> str:
        """Say the expected time with its range and its basis.

        >>> TimeEstimate(low_s=60, expected_s=90, high_s=150, basis="estimate").words()
        '1 min 30 s (1 min 00 s to 2 min 30 s; estimate)'
        """
        if self.basis == FINISHED:
            return "finished: its result is used"
        if self.basis == REFUSED:
            return "none: it does not fit"
        if self.high_s is None:
            return UNKNOWN + (f" ({self.notes[0]})" if self.notes else "")
        if self.low_s is None:
            return f"up to {duration(self.high_s)} ({self.basis})"
        if self.expected_s is None:
            return f"{duration(self.low_s)} to {duration(self.high_s)} ({self.basis})"
        return range_words(self.low_s, self.expected_s, self.high_s, self.basis)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON keeps."""
        return asdict(self) | {"notes": list(self.notes)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TimeEstimate:
        """Rebuild what `to_dict` wrote.

        Raises:
            ConfigError: A field is missing, unknown or of a wrong type; names it.
        """
        return rebuilt(cls, data, "time")


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
    bases = {each.basis for each in times}
    return TimeEstimate(
        low_s=_sum(each.low_s for each in times),
        expected_s=_sum(each.expected_s for each in times),
        high_s=_sum(each.high_s for each in times),
        basis=bases.pop() if len(bases) == 1 else ESTIMATE,
        notes=notes,
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known else sum(known)  # type: ignore[arg-type]
