"""The named numbers of a result, and whether the targets of a preset were reached.

Which names there are stands in `metrics.registry`; here they are looked up by the job of a result.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from nbhelpers.errors import ConfigError
from nbhelpers.metrics.registry import Scores, part
from nbhelpers.presets.jobs import CLONES, JOBS


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
        measured = [short for short in scores.short_names() if short in known]
        raise ConfigError(
            f"the run {scores.unmeasured} no {name}, so it cannot be compared",
            fix=f"{scores.to_measure} Measured: {', '.join(measured)}.",
        )
    raise unknown(name, list(known), scores.listed())


def unknown(name: str, known: list[str], listed: str) -> ConfigError:
    """Return the error of a name that no number has."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    near = close[0] if close else max(filter(name.startswith, known), key=len, default="")
    hint = f"Did you mean {near!r}? " if near else ""
    return ConfigError(f"no score is called {name!r}", fix=hint + listed)


def target_rows(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the targets of a result's settings beside what was measured.

    Each row: `metric`, `op` (<= of errors and costs), `target`, `value`, `passed`, and a `note`
    where there is no value.
    """
    scores, measured, rows = scores_of(data), available(data), []
    for metric, target in part(part(data, "settings"), "targets").items():
        value = measured.get(metric)
        missing = f"not {scores.unmeasured}" if scores.may_exist(metric) else "no such score"
        row = {"metric": metric, "op": "<=" if scores.is_upper_bound(metric) else ">="}
        row |= {"target": target, "value": value}
        row |= {"passed": target is not None and scores.is_reached(metric, value, target)}
        rows.append(row | {"note": "" if metric in measured else missing})
    return rows
