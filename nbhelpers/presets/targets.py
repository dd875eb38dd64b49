"""The named numbers of a result, targets of a preset, and the requirements of a nightly run.

Which names there are stands in `metrics.registry`; here they are looked up by the job of a result.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nbhelpers.errors import ConfigError, RequirementMissed
from nbhelpers.metrics.registry import Scores
from nbhelpers.presets.jobs import CLONES, JOBS

_COMPARE = {
    ">=": lambda value, bound: value >= bound,
    "<=": lambda value, bound: value <= bound,
    ">": lambda value, bound: value > bound,
    "<": lambda value, bound: value < bound,
    "==": lambda value, bound: value == bound,
}
_FORM = re.compile(r"^\s*([A-Za-z_][\w.@\- ]*?)\s*(>=|<=|==|>|<)\s*([^\s<>=]+)\s*$")


def scores_of(data: Mapping[str, Any]) -> Scores:
    """Return the metrics of a result's job; one split's scores alone are read as those of pairs."""
    return JOBS.get(str(data.get("job")), CLONES).scores


def available(data: Mapping[str, Any]) -> dict[str, float | None]:
    """Return every named number of a result, or of one split's scores (read as the test split).

    A score that is undefined, such as the ROC-AUC of a single class, is there with None.
    """
    return scores_of(data).available(data)


def lookup(data: Mapping[str, Any], name: str) -> float | None:
    """Return the number called `name` in a result or in one split's scores.

    Raises:
        ConfigError: There is no such number; the message names the nearest and all there are.
    """
    scores, known = scores_of(data), available(data)
    if name in known:
        return known[name]
    if scores.to_measure and scores.may_exist(name):
        text = f"the run {scores.unmeasured} no {name}, so it cannot be compared"
        raise ConfigError(text, fix=f"{scores.to_measure} {scores.measured(known)}")
    raise _unknown(name, known, scores)


def check_targets(
    targets: Mapping[str, float], scores_test: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return per target its measured value and whether it was reached, see `Scores.is_reached`.

    Raises:
        ConfigError: A target names a score that does not exist.
    """
    rows, scores = [], scores_of(scores_test)
    for metric, target in targets.items():
        value = lookup(scores_test, metric)
        passed = scores.is_reached(metric, value, target)
        rows.append({"metric": metric, "target": target, "value": value, "passed": passed})
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One condition on a finished run, such as `f1>=0.9`."""

    metric: str
    op: str
    value: float

    def __str__(self) -> str:
        """Return it as it is typed."""
        return f"{self.metric}{self.op}{self.value:g}"

    def check(self, result_data: Mapping[str, Any]) -> dict[str, Any]:
        """Return metric, op, target, the measured value and whether it passed; undefined fails.

        Raises:
            ConfigError: The result has no number of that name.
        """
        measured = lookup(result_data, self.metric)
        passed = measured is not None and _COMPARE[self.op](measured, self.value)
        row = {"metric": self.metric, "op": self.op, "target": self.value}
        return row | {"value": measured, "passed": passed}

    def enforce(self, result_data: Mapping[str, Any]) -> None:
        """Do nothing when the condition holds.

        Raises:
            RequirementMissed: It does not hold, or the number is undefined.
        """
        row = self.check(result_data)
        if row["passed"]:
            return
        so = "undefined here" if row["value"] is None else f"{row['value']:.6g}"
        raise RequirementMissed(
            f"required {self}, but {self.metric} is {so}",
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
    match = _FORM.match(text)
    usage = "Write NAME OP NUMBER, for example 'f1>=0.9'; OP is one of >= <= > < ==."
    if match is None:
        fix = f"{usage} {_listed(score_names(job), JOBS[job].scores if job else None)}"
        raise ConfigError(f"cannot read the requirement {text!r}", fix=fix)
    metric, op, number = match.groups()
    try:
        value = math.nan if "_" in number else float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{number!r} in the requirement {text!r} is not a number", fix=usage)
    if not any(scores.may_exist(metric) for scores in _of(job)):
        raise _unknown(metric, score_names(job), JOBS[job].scores if job else None)
    return Requirement(metric=metric, op=op, value=value)


def _of(job: str | None) -> list[Scores]:
    """Return the metrics of a job; None: of every job."""
    return [spec.scores for spec in ([JOBS[job]] if job else JOBS.values())]


def score_names(job: str | None = None) -> list[str]:
    """Return every name that a result of the job can hold by its form; None: of any job."""
    names = [name for scores in _of(job) for name in scores.score_names()]
    names += [name for scores in _of(job) for name in scores.beside_names()]
    return list(dict.fromkeys(names))


def _listed(known: Iterable[str], scores: Scores | None) -> str:
    """Return the names that a message offers; of any job, those that none of them leaves out."""
    if scores is not None:
        return scores.listed(known)
    short = [name for name in known if not any(each.is_long(name) for each in _of(None))]
    return CLONES.scores.listed(short)


def _unknown(name: str, known: Iterable[str], scores: Scores | None) -> ConfigError:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    near = near or sorted((k for k in known if name.startswith(k)), key=len, reverse=True)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return ConfigError(f"no score is called {name!r}", fix=f"{hint}{_listed(known, scores)}")
