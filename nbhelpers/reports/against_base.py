"""A fine-tuned model against its base: the run of `method=base` that lies beside it, if they match.

Two runs are compared only where model, data, decoding and signatures are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.common.display import Cell
from nbhelpers.common.formatting import count
from nbhelpers.common.json_models import read_lines
from nbhelpers.common.result_files import Generation, Result, Split
from nbhelpers.errors import DataError
from nbhelpers.metrics.registry import FINETUNE_SCORES, TITLES
from nbhelpers.presets.jobs import FINETUNE
from nbhelpers.runs.run import list_runs

if TYPE_CHECKING:
    from nbhelpers.reports.facts import RunFacts

HEADLINE = FINETUNE_SCORES.headline
SPLITS = tuple(FINETUNE_SCORES.splits)
UNCOMPARED = ("mean_new_tokens",)  # longer is neither better nor worse
SET_ASIDE = "~"  # in the name of a run that a later one replaced
NOT_COMPARABLE = "not comparable"
VERDICTS = ("better", "worse", "within noise", NOT_COMPARABLE)
RESAMPLES, MOST_RESAMPLES = 1000, 10_000
FILE_NAME = "generations.jsonl"
NO_BASE = (
    "No run of the base model on this data lies beside this one to compare with; the same "
    "command with -o method=base makes one."
)


class Pair(NamedTuple):
    """One score of two models: `first` minus `second` on the same samples, with its interval.

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

    @classmethod
    def of(
        cls,
        names: tuple[str, str, str, str],
        compared: Mapping[str, Any],
        ending: str = "",
        *,
        least: float = 0.0,
    ) -> Pair:
        """Return what `compare_runs` says of two runs as a pair.

        Args:
            names: Of both, the split and the metric.
            compared: The comparison.
            ending: `_holm` takes the verdict on all comparisons together.
            least: The smallest p that the draws can give; over seeds p comes from a distribution
                and has no such bound.
        """
        low, high = compared.get("interval") or (None, None)
        p, is_drawn = compared.get("p_value"), "degrees_of_freedom" not in compared
        return cls(
            *(*names, compared["difference"], low, high),
            *(compared.get(f"p{ending or '_value'}"), compared[f"verdict{ending}"]),
            compared.get("reason") or "",
            is_drawn and p is not None and p <= least * (1 + 1e-9),
        )

    @property
    def cell(self) -> Cell:
        """The difference with its interval."""
        form = f"+.{FINETUNE_SCORES.metric(self.metric).decimals}f"
        return Cell(self.difference, form, (self.low, self.high))

    @property
    def title(self) -> str:
        """The score's name, with its set of problems."""
        name = TITLES.get(self.metric, self.metric)
        return name if self.split == "test" else f"{name} on {TITLES.get(self.split, self.split)}"

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


class Base(NamedTuple):
    """The base run beside a run, or why there is none to compare with."""

    folder: Path | None
    result: Result
    why: str


def evaluated(result: Result) -> Iterator[tuple[str, Split]]:
    """Yield name and scores of each evaluated split: test, then the sets of problems."""
    for split in SPLITS:
        scores = result.scores.get(split)
        if scores is not None and scores.metrics:
            yield split, scores


def rows_by_split(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the generations of a file by split, in its order; {} where there is no file.

    Raises:
        DataError: A line is damaged; names it.
    """
    by_split: dict[str, list[dict[str, Any]]] = {}
    for row in read_lines(Generation, path):
        if row["split"] in SPLITS:
            by_split.setdefault(row["split"], []).append(row)
    return by_split


@functools.lru_cache(maxsize=8)  # opening and sections ask for it, and a comparison resamples
def differences(facts: RunFacts) -> tuple[Pair, ...]:
    """Return this run minus its base run; nothing without a comparable one."""
    if facts.adapter == "base" or not list(evaluated(facts.result)):
        return ()
    base = find_base(facts)
    if base.folder is None:
        return ()
    results = {"ours": facts.result, "other": base.result}
    rows = {
        "ours": rows_by_split(facts.run.path / FILE_NAME),
        "other": rows_by_split(base.folder / FILE_NAME),
    }
    return tuple(_differences(results, rows))


def missing_base(facts: RunFacts) -> str:
    """Return why there is no comparison with the base model, or nothing."""
    if facts.adapter == "base" or not list(evaluated(facts.result)):
        return ""
    return find_base(facts).why


@functools.lru_cache(maxsize=8)
def find_base(facts: RunFacts) -> Base:
    """Return the newest finished base run in the same folder of runs that matches."""
    why = NO_BASE
    runs = [run for run in list_runs(facts.run.path.parent) if SET_ASIDE not in run.id]
    for run in (run for run in runs if run.path != facts.run.path):
        try:
            result = Result.read(run.result_path)
        except DataError:
            continue
        if result is None or result.job != FINETUNE.name or _method(result) != "base":
            continue
        if _other_experiment(facts.result, result):  # nobody would compare
            continue
        if differs := unlike(facts.result, result):
            why = f"The base run {run.id} is not comparable: {differs}."
            continue
        return Base(run.path, result, "")
    return Base(None, Result(), why)


def _method(result: Result) -> str | None:
    return result.adapter.method or result.settings.method


def unlike(ours: Result, other: Result) -> str:
    """Say what makes two results incomparable, or nothing where they can be compared."""
    if differs := _other_experiment(ours, other):
        return differs
    is_embedded = ours.settings.model in FINETUNE.models.embedded
    if ours.model.random_weights and not is_embedded and ours.seed != other.seed:
        return "its tokenizer was trained on the rows of another seed"
    return ""


def _other_experiment(ours: Result, other: Result) -> str:
    model, data = (
        [(r.model.name, r.model.revision, r.model.random_weights) for r in (ours, other)],
        [(r.data.fingerprint, r.data.template) for r in (ours, other)],
    )
    names = {"the model differs": model, "the data differs": data}
    return next((text for text, (one, two) in names.items() if one != two), "")


def _differences(
    results: Mapping[str, Result], rows: Mapping[str, Mapping[str, list[dict[str, Any]]]]
) -> Iterator[Pair]:
    from nbhelpers.metrics.compare import compare_runs

    for split in SPLITS:
        splits = {name: result.scores.get(split, Split()) for name, result in results.items()}
        scored = {name: (r.raw.get("scores") or {}).get(split) for name, r in results.items()}
        if not all(scored.values()):
            continue
        of_split = {name: by_split.get(split, []) for name, by_split in rows.items()}
        why = _missing_rows(of_split, splits)
        for metric in FINETUNE_SCORES.names(split):
            if metric in UNCOMPARED or splits["ours"].metrics.get(metric) is None:
                continue
            compared = {"difference": None, "verdict": NOT_COMPARABLE, "reason": why}
            if not why:
                compared = compare_runs(
                    of_split,
                    metric=metric,
                    baseline="other",
                    scored=scored,
                    **draws(results["ours"]),
                )["against"]["ours"]
            yield Pair.of(("this run", "base", split, metric), compared)


def _missing_rows(rows: Mapping[str, list[Any]], splits: Mapping[str, Split]) -> str:
    """Say which generations cannot be read: without them a difference is of other samples."""
    for name, whose in {"ours": "this run", "other": "the other run"}.items():
        read, wanted = len(rows[name]), splits[name].n_samples
        if not read or (wanted is not None and read != wanted):
            whole = "" if wanted is None else f" of {count(wanted)}"
            return f"{count(read)}{whole} generations of {whose} can be read"
    return ""


def draws(result: Result) -> dict[str, int]:
    """Return seed and number of resamples for a comparison, by the settings of a run."""
    resamples = result.settings.bootstrap_samples or RESAMPLES
    resamples = RESAMPLES if resamples > MOST_RESAMPLES else resamples
    return {"seed": result.settings.seed or 0, "resamples": resamples}


def by_verdict(differences: Iterable[Pair]) -> str:
    """Return which scores are better, worse and within noise.

    >>> even = Pair("r8", "base", "mbpp", "pass@1", 0, -0.1, 0.1, None, "within noise", "")
    >>> by_verdict([even._replace(split="test", metric="bleu", verdict="better"), even])
    'better in BLEU, within noise in pass@1 on MBPP'
    """
    names: dict[str, list[str]] = {}
    for each in differences:
        names.setdefault(each.verdict, []).append(each.title)
    kinds = [kind for kind in VERDICTS if kind in names]
    return ", ".join(f"{kind} in {' and '.join(names[kind])}" for kind in kinds)


def difference_rows(facts: RunFacts) -> Iterator[dict[str, Any]]:
    """Yield this run minus its base run as rows of a table."""
    results = {"base": find_base(facts).result, "this run": facts.result}
    for pair in differences(facts):
        scores = {name: result.scores.get(pair.split, Split()) for name, result in results.items()}
        form = f".{FINETUNE_SCORES.metric(pair.metric).decimals}f"
        yield {
            "split": Cell(pair.split, label=TITLES.get(pair.split, pair.split)),
            "metric": Cell(pair.metric, label=TITLES.get(pair.metric, pair.metric)),
            **{name: Cell(each.metrics.get(pair.metric), form) for name, each in scores.items()},
            "difference": pair.cell,
            "verdict": pair.verdict,
            "reason": pair.reason,
        }
