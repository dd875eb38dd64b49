"""What a headless run must reach: read before anything runs, checked after the report."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbhelpers.errors import ConfigError, RequirementMissed
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.targets import lookup, unknown

_COMPARE = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}
_FORM = re.compile(r"^\s*([A-Za-z_][\w.@\- ]*?)\s*(>=|<=|==|>|<)\s*([^\s<>=_]+)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One condition on a finished run, such as `f1>=0.9`."""

    metric: str
    op: str
    value: float

    def __str__(self) -> str:
        """Return it as it is typed."""
        return f"{self.metric}{self.op}{self.value:g}"

    def enforce(self, data: Mapping[str, Any]) -> None:
        """Do nothing when a result, or one split's scores, meets the condition.

        Raises:
            RequirementMissed: It does not, or the number is undefined.
            ConfigError: The result has no number of that name.
        """
        value = lookup(data, self.metric)
        if value is None or not _COMPARE[self.op](value, self.value):
            measured = "undefined here" if value is None else f"{value:.6g}"
            raise RequirementMissed(
                f"required {self}, but {self.metric} is {measured}",
                fix="Read the report of the run, or change the value after --require.",
            )


def parse_requirement(text: str, job: str | None = None) -> Requirement:
    """Read a condition such as `f1>=0.9` or `memory.error_percent < 10` before anything runs.

    Args:
        text: The condition.
        job: Whose scores it may name; None: those of any job.

    >>> parse_requirement("test.mean.f1 >= 0.9")
    Requirement(metric='test.mean.f1', op='>=', value=0.9)

    Raises:
        ConfigError: It is not NAME OP NUMBER, or the name cannot exist in any result.
    """
    jobs = [spec.scores for spec in ([JOBS[job]] if job else JOBS.values())]
    names = dict.fromkeys(name for scores in jobs for name in scores.short_names())
    listed = jobs[0].listed() if job else f"Names: {', '.join(names)}."
    usage = "Write NAME OP NUMBER, for example 'f1>=0.9'; OP is one of >= <= > < ==."
    match = _FORM.match(text)
    if match is None:
        raise ConfigError(f"cannot read the requirement {text!r}", fix=f"{usage} {listed}")
    metric, op, number = match.groups()
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{number!r} in the requirement {text!r} is not a number", fix=usage)
    if not any(scores.may_exist(metric) for scores in jobs):
        raise unknown(metric, [n for scores in jobs for n in scores.score_names()], listed)
    return Requirement(metric=metric, op=op, value=value)


def parse_requirements(texts: str | Sequence[str], job: str | None = None) -> list[Requirement]:
    """Read one condition or several; see `parse_requirement`."""
    return [parse_requirement(t, job) for t in ([texts] if isinstance(texts, str) else texts)]


def require_scores(result: Any, conditions: Sequence[Requirement]) -> None:
    """Do nothing when a result meets every condition; of a study, each trained run must.

    Args:
        result: A `RunResult`, a `StudyResult`, or None where a notebook started no run.
        conditions: From `parse_requirements`.

    Raises:
        RequirementMissed: With all that are missed.
        ConfigError: There is no result, or it has no number of that name.
    """
    if not conditions:
        return
    if result is None:
        raise ConfigError(
            "--require needs a run, and this notebook started none.",
            fix="leave --require out, or name a notebook that trains or evaluates",
        )
    missed: list[RequirementMissed] = []
    for name, data in _judged(result):
        for condition in conditions:
            try:
                condition.enforce(data)
            except RequirementMissed as error:
                missed.append(RequirementMissed(f"{name}{error.message}", fix=error.fix))
    if missed:
        raise RequirementMissed("; ".join(e.message for e in missed), fix=missed[0].fix)


def _judged(result: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the results that a condition is about, each with its name and a colon.

    Of a study: the runs that trained; the model as it is, where nothing did.
    """
    rows = getattr(result, "finished", None)
    if rows is None:
        return [("", result.data)]
    trained = [row for row in rows if row.settings.method != "base"]
    return [(f"{row.name}: ", row.result.data) for row in trained or rows]
