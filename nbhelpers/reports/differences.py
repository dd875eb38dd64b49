"""Two runs on the same samples: the difference of each score, with its interval and a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.common.display import Cell
from nbhelpers.common.formatting import count
from nbhelpers.common.json_models import read_lines
from nbhelpers.common.result_files import DetectorPrediction, Generation, Result, Split
from nbhelpers.metrics.registry import FINETUNE_SCORES, Scores
from nbhelpers.presets.jobs import CLONES, DETECTOR, FINETUNE, JOBS
from nbhelpers.reports.blocks import Table

if TYPE_CHECKING:
    from nbhelpers.metrics.compare_predictions import Calls

NOT_COMPARABLE = "not comparable"
SPACE = "similarity"  # where a detector's scores of its similarity space stand, as if of a split
UNCOMPARED = ("mean_new_tokens",)  # longer is neither better nor worse
RESAMPLES, MOST_RESAMPLES = 1000, 10_000
GENERATIONS, PREDICTIONS = "generations.jsonl", "predictions.jsonl"


@dataclass(frozen=True, eq=False)
class Side:
    """One of the runs that are compared: its name there, its result, its folder, all its facts."""

    name: str
    result: Result
    folder: Path
    facts: Any = None  # `RunFacts`, where a whole folder was read

    @property
    def scores(self) -> Scores:
        """The scores of its job."""
        return JOBS.get(str(self.result.job), CLONES).scores

    @property
    def time_s(self) -> float | None:
        """Seconds without pre-training, which is done once for many runs, and never predicted."""
        total = self.result.timing.get("total_s")
        return None if total is None else total - (self.result.timing.get("pretrain_s") or 0.0)

    def split_data(self, split: str) -> dict[str, Any]:
        """Return what its result holds of a split."""
        return (self.result.raw.get("scores") or {}).get(split) or {}

    def value(self, split: str, metric: str) -> float | None:
        """Return a score of a split, or None."""
        return self._numbers.get(f"{split}.{metric}")

    @cached_property
    def _numbers(self) -> dict[str, float | None]:
        return self.scores.available(self.result.raw)

    def edges(self, split: str, metric: str) -> Sequence[float | None] | None:
        """Return the interval of a score over samples, or None."""
        if split == SPACE:
            value, found = self.value(split, metric), self.result.similarity.retrieval
            edges = (
                getattr(each, f"{metric}_interval", None) for each in found if each.mrr == value
            )
            return next(edges, None)
        return self.result.scores.get(split, Split()).intervals.get(metric)


class Pair(NamedTuple):
    """One score of two runs: `first` minus `second` on the same samples, with its interval.

    `p_is_bound`: no draw reached the difference, so that more draws might give a smaller p.
    """

    first: str
    second: str
    split: str
    metric: str
    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    verdict: str
    reason: str
    p_is_bound: bool = False
    scores: Scores = FINETUNE_SCORES

    @classmethod
    def of(
        cls,
        names: tuple[str, str, str, str],
        compared: Mapping[str, Any],
        ending: str = "",
        *,
        least: float = 0.0,
        scores: Scores = FINETUNE_SCORES,
    ) -> Pair:
        """Return what `compare_runs` says of two runs as a pair.

        Args:
            names: Of both, the split and the metric.
            compared: The comparison.
            ending: `_holm` takes the verdict on all comparisons together.
            least: The smallest p that the draws can give; over seeds p comes from a distribution
                and has no such bound.
            scores: Of the job.
        """
        low, high = compared.get("interval") or (None, None)
        p, is_drawn = compared.get("p_value"), "degrees_of_freedom" not in compared
        return cls(
            *(*names, compared["difference"], low, high),
            *(compared.get(f"p{ending or '_value'}"), compared[f"verdict{ending}"]),
            compared.get("reason") or "",
            is_drawn and p is not None and 0 < p <= least * (1 + 1e-9),
            scores,
        )

    @property
    def cell(self) -> Cell:
        """The difference with its interval."""
        form = f"+.{self.scores.metric(self.metric).decimals}f"
        return Cell(self.difference, form, (self.low, self.high))

    @property
    def is_headline(self) -> bool:
        """Whether it is of a score that runs of its job are compared in first."""
        return (self.split, self.metric) in self.scores.compared

    @property
    def title(self) -> str:
        """The score's name, with its set of problems."""
        name, split = self.scores.title(self.metric), self.scores.splits.get(self.split, self.split)
        return name if self.split == "test" else f"{name} on {split}"

    def p_words(self) -> str:
        """Return p, or nothing where none was computed.

        >>> line = ("r32", "r16", "test", "bleu", 2.0, 1.0, 3.0)
        >>> Pair(*line, 1 / 201, "better", "", True).p_words()
        'p <= 0.005'
        """
        p = self.p
        if p is None:
            return ""
        if self.p_is_bound:
            return f"p <= {p:.3f}" if p >= 0.001 else f"p <= {p:.1g}"
        return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def paired(first: Side, second: Side, split: str) -> dict[str, dict[str, Any]]:
    """Return second minus first by score of a split, on the same samples.

    As `compare_runs` has them, without verdicts; one that cannot be made has a `reason`. Nothing
    for a job that saves no predictions.

    Raises:
        DataError: A file of predictions is damaged; names the line.
    """
    how = draws(second.result)
    if second.result.job == FINETUNE.name:
        return _of_generations(first, second, split, how)
    calls = {CLONES.name: _pair_calls, DETECTOR.name: _program_calls}.get(str(second.result.job))
    return {} if calls is None else _of_calls(calls, first, second, split, how)


def _of_generations(
    first: Side, second: Side, split: str, how: dict[str, int]
) -> dict[str, dict[str, Any]]:
    from nbhelpers.metrics.compare import compare_runs, refused

    rows = {
        side.name: rows_by_split(side.folder / GENERATIONS).get(split, [])
        for side in (first, second)
    }
    scored = {side.name: side.split_data(split) for side in (first, second)}
    why = _missing_rows(rows, (second, first), split)
    known = second.result.scores.get(split, Split()).metrics
    options = {"baseline": first.name, "scored": scored, **how}
    return {
        metric: refused(why)
        if why
        else compare_runs(rows, metric=metric, **options)["against"][second.name]
        for metric in FINETUNE_SCORES.names(split)
        if metric not in UNCOMPARED and known.get(metric) is not None
    }


def rows_by_split(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the generations of a file by split, in its order; {} where there is no file.

    Raises:
        DataError: A line is damaged; names it.
    """
    by_split: dict[str, list[dict[str, Any]]] = {}
    for row in read_lines(Generation, path):
        if row["split"] in FINETUNE_SCORES.splits:
            by_split.setdefault(row["split"], []).append(row)
    return by_split


def _missing_rows(rows: Mapping[str, list[Any]], sides: Iterable[Side], split: str) -> str:
    """Say which generations cannot be read: without them a difference is of other samples."""
    for side in sides:
        read = len(rows[side.name])
        wanted = side.result.scores.get(split, Split()).n_samples
        if not read or (wanted is not None and read != wanted):
            whole = "" if wanted is None else f" of {count(wanted)}"
            return f"{count(read)}{whole} generations of {side.name} can be read"
    return ""


def _of_calls(
    calls: Any, first: Side, second: Side, split: str, how: dict[str, int]
) -> dict[str, dict[str, Any]]:
    from nbhelpers.metrics.compare import refused
    from nbhelpers.metrics.compare_predictions import compare_calls
    from nbhelpers.metrics.detection import rates
    from nbhelpers.metrics.ranking import ratios

    metrics = ratios if calls is _pair_calls else rates
    read = [calls(side, split) for side in (first, second)]
    missing = [side.name for side, rows in zip((first, second), read, strict=True) if rows is None]
    compared = f"no predictions of {missing[0]}" if missing else ""
    compared = compared or compare_calls(*read, metrics, **how)
    if isinstance(compared, dict):
        return compared
    return {
        metric.name: refused(compared) for metric in JOBS[str(second.result.job)].scores.metrics
    }


def _pair_calls(side: Side, split: str) -> Calls | None:
    """Return the calls of clones, pair by pair; None where there are none."""
    import numpy as np

    from nbhelpers.metrics.compare_predictions import Calls
    from nbhelpers.metrics.predictions import read_predictions

    if not (side.folder / PREDICTIONS).is_file():
        return None
    names = ("id1", "id2", "label", "p", "prediction")
    rows = read_predictions(side.folder / PREDICTIONS, split=split, fields=names)
    left, right, label, p, called = (rows[name] for name in names)
    keys = list(zip(left, right, strict=True))
    arrays = np.array(label), np.array(p, dtype=float), np.array(called) == 1
    return Calls(keys, *arrays, left, right) if keys else None


def _program_calls(side: Side, split: str) -> Calls | None:
    """Return the calls of a detector on labelled programs; None where there are none."""
    import numpy as np

    from nbhelpers.metrics.compare_predictions import Calls
    from nbhelpers.metrics.detection import is_positive, task_groups

    rows = read_lines(DetectorPrediction, side.folder / PREDICTIONS)
    rows = [row for row in rows if row["split"] == split and row.get("label")]
    threshold = side.result.operating_point.threshold
    if not rows or threshold is None:
        return None
    p = np.array([row["p_ai"] for row in rows])
    logits = [row.get("logit") for row in rows]
    scores = p if None in logits else np.array(logits)
    labels = np.array([row["label"] == "ai" for row in rows], dtype=np.int64)
    tasks = task_groups([str(row.get("task") or "") for row in rows], len(rows))
    keys = [row.get("id") for row in rows]
    return Calls(keys, labels, scores, is_positive(p, threshold), tasks, tasks)


def draws(result: Result) -> dict[str, int]:
    """Return seed and number of resamples for a comparison, by the settings of a run."""
    resamples = result.settings.bootstrap_samples or RESAMPLES
    resamples = RESAMPLES if resamples > MOST_RESAMPLES else resamples
    return {"seed": result.settings.seed or 0, "resamples": resamples}


def pair_table(pairs: Iterable[Pair], first: str = "run", *, code: str = "pairs") -> Table:
    """Return the pairs as a table; `first` is the title of what is compared."""
    rows = [
        {
            "first": pair.first,
            "second": pair.second,
            "score": Cell(f"{pair.split}.{pair.metric}", label=pair.title),
            "difference": pair.cell,
            "p_holm": Cell(pair.p, label=pair.p_words()),
            "verdict": pair.verdict,
            "reason": pair.reason,
        }
        for pair in pairs
    ]
    return Table(code, rows, {"first": first, "second": "against", "p_holm": "p"})
