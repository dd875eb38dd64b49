"""What a headless run must reach: read before anything runs, checked after the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbhelpers.errors import ConfigError, RequirementMissed
from nbhelpers.targets import Requirement, parse_requirement

if TYPE_CHECKING:
    from nbhelpers.runs import RunResult


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


def require_scores(result: RunResult | None, conditions: Sequence[Requirement]) -> None:
    """Do nothing when a result meets every condition.

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
    for condition in conditions:
        try:
            condition.enforce(result.data)
        except RequirementMissed as error:
            missed.append(error)
    if missed:
        raise RequirementMissed("; ".join(e.message for e in missed), fix=missed[0].fix)
