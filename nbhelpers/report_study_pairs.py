"""The comparisons of a study's report: every pair of adapters, and the spread over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.errors import NbhelpersError
from nbhelpers.metric_registry import TITLES
from nbhelpers.report_finetune_base import signed
from nbhelpers.study_table import SHOWN, StudyResult

if TYPE_CHECKING:
    import pandas as pd

SETTLED = ("better", "worse")
WITHIN_NOISE = "within noise"


class Pair(NamedTuple):
    """One score of two adapters: `first` minus `second` on the same samples."""

    first: str
    second: str
    split: str
    metric: str
    difference: float | None
    low: float | None
    high: float | None
    p_holm: float | None
    verdict: str
    reason: str
    p_is_bound: bool = False  # no draw reached the difference: more draws might give a smaller p

    @property
    def title(self) -> str:
        """The score's name, with its set of problems."""
        name = TITLES.get(self.metric, self.metric)
        return name if self.split == "test" else f"{name} on {TITLES.get(self.split, self.split)}"

    def measured(self) -> str:
        """Return the difference with its interval, in brackets."""
        if self.difference is None:
            return f"({self.reason})" if self.reason else ""
        text = signed(self.metric, self.difference)
        if self.low is not None and self.high is not None:
            text += f", {signed(self.metric, self.low)} to {signed(self.metric, self.high)}"
        return f"({text})"

    def p_words(self) -> str:
        """Return p, or nothing where none was computed.

        >>> line = ("r32", "r16", "test", "bleu", 2.0, 1.0, 3.0)
        >>> Pair(*line, 1 / 201, "better", "", True).p_words()
        'p <= 0.005'
        """
        p = self.p_holm
        if p is None:
            return ""
        if self.p_is_bound:
            return f"p <= {p:.3f}" if p >= 0.001 else f"p <= {p:.1g}"
        return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def pairs_of(study: StudyResult) -> list[Pair]:
    """Return every pair of adapters that has generations, score by score, later minus earlier.

    The verdicts account for all comparisons of a score with the same adapter (Holm), so they are
    those of `StudyResult.verdicts`.
    """
    return [pair for key in scores_of(study) for pair in _pairs(study, *key)]


def scores_of(study: StudyResult) -> list[tuple[str, str]]:
    """Return the scores, as (split, metric), that at least one run of a study has."""
    rows = study.finished
    return [
        (split, metric)
        for split, metric in SHOWN
        if any(row.number("scores", split, "metrics", metric) is not None for row in rows)
    ]


def adapters_of(study: StudyResult) -> list[str]:
    """Return the adapters with a result, in the order of the study; seeds do not count."""
    return list(dict.fromkeys(row.planned.adapter for row in study.finished))


def _pairs(study: StudyResult, split: str, metric: str) -> Iterator[Pair]:
    names = [
        name
        for name in adapters_of(study)
        if any(
            row.planned.adapter == name
            and row.number("scores", split, "metrics", metric) is not None
            for row in study.finished
        )
    ]
    for at, second in enumerate(names[:-1]):
        try:
            against = study.compare(f"{split}.{metric}", baseline=second)["against"]
        except NbhelpersError as error:
            for first in names[at + 1 :]:
                values = (None, None, None, None, "not comparable", error.message)
                yield Pair(first, second, split, metric, *values)
            continue
        for first in (name for name in names[at + 1 :] if name in against):
            each = against[first]
            yield _pair(first, second, split, metric, each, _least_p(study, each))


def _least_p(study: StudyResult, each: Mapping[str, Any]) -> float:
    """The smallest p that the draws can give; 0 over seeds, where p comes from a distribution."""
    draws = study.rows[0].settings.bootstrap_samples
    return 0.0 if "degrees_of_freedom" in each else 1 / (draws + 1)


def _pair(
    first: str, second: str, split: str, metric: str, each: Mapping[str, Any], least: float
) -> Pair:
    low, high = each.get("interval") or (None, None)
    values = (each["difference"], low, high, each.get("p_holm"), each["verdict_holm"])
    p = each.get("p_value")
    is_bound = p is not None and p <= least * (1 + 1e-9)
    return Pair(first, second, split, metric, *values, each.get("reason") or "", is_bound)


def pairs_table(pairs: Iterable[Pair]) -> pd.DataFrame:
    """Return the pairs as a table of numbers."""
    import pandas as pd

    return pd.DataFrame([pair._asdict() for pair in pairs])


def seeds_table(study: StudyResult) -> pd.DataFrame:
    """Return mean, spread and range of each adapter's scores over seeds; empty for one seed."""
    import statistics

    import pandas as pd

    rows = []
    for name in adapters_of(study):
        runs = [row for row in study.finished if row.planned.adapter == name]
        if len({row.settings.seed for row in runs}) < 2:
            continue
        for split, metric in scores_of(study):
            found = [row.number("scores", split, "metrics", metric) for row in runs]
            values = [value for value in found if value is not None]
            if len(values) > 1:
                row = {"adapter": name, "split": split, "metric": metric, "seeds": len(values)}
                row |= {"mean": statistics.mean(values), "std": statistics.stdev(values)}
                rows.append(row | {"lowest": min(values), "highest": max(values)})
    return pd.DataFrame(rows)
