"""What a headless run must reach: read before anything runs, checked after the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nbhelpers.errors import ConfigError, RequirementMissed
from nbhelpers.presets.targets import Requirement, parse_requirement


def parse_requirements(texts: Sequence[str], job: str | None = None) -> list[Requirement]:
    """Read every condition, such as `f1>=0.9`.

    Args:
        texts: One condition each; a single one may be a text.
        job: Whose scores they may name; None: those of any job.

    Raises:
        ConfigError: One of them cannot be read.
    """
    texts = [texts] if isinstance(texts, str) else texts
    return [parse_requirement(text, job) for text in texts]


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
