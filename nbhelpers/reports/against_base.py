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
from nbhelpers.metrics.registry import FINETUNE_SCORES, TITLES, written
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


class Difference(NamedTuple):
    """One score of two runs on the same samples, ours minus the other's, with its interval."""

    split: str
    metric: str
    ours: float | None
    other: float | None
    difference: float | None
    low: float | None
    high: float | None
    verdict: str
    reason: str = ""
    p_value: float | None = None


class Base(NamedTuple):
    """The base run beside a run, or why there is none to compare with."""

    folder: Path | None
    result: Result
    why: str


def signed(metric: str, value: float | None) -> str:
    """Write a difference with its sign.

    >>> signed("bleu", 1.26), signed("pass@1", -0.02)
    ('+1.3', '-0.020')
    """
    text = written(metric, value)
    return text if value is None or value < 0 else f"+{text}"


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
def differences(facts: RunFacts) -> tuple[Difference, ...]:
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
) -> Iterator[Difference]:
    from nbhelpers.metrics.compare import compare_runs

    for split in SPLITS:
        splits = {name: result.scores.get(split, Split()) for name, result in results.items()}
        scored = {name: (r.raw.get("scores") or {}).get(split) for name, r in results.items()}
        if not all(scored.values()):
            continue
        of_split = {name: by_split.get(split, []) for name, by_split in rows.items()}
        why = _missing_rows(of_split, splits)
        for metric in FINETUNE_SCORES.names(split):
            ours, other = (each.metrics.get(metric) for each in splits.values())
            if metric in UNCOMPARED or ours is None:
                continue
            if why:
                values = (None, None, None)
                yield Difference(split, metric, ours, other, *values, NOT_COMPARABLE, why)
                continue
            compared = compare_runs(
                of_split, metric=metric, baseline="other", scored=scored, **draws(results["ours"])
            )["against"]["ours"]
            values = (compared["difference"], *(compared["interval"] or (None, None)))
            verdict, reason = compared["verdict"], compared["reason"] or ""
            yield Difference(
                split, metric, ours, other, *values, verdict, reason, compared["p_value"]
            )


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


def by_verdict(all_differences: Iterable[Difference]) -> str:
    """Return which scores are better, worse and within noise.

    >>> even = Difference("mbpp", "pass@1", 0.5, 0.5, 0, -0.1, 0.1, "within noise")
    >>> by_verdict([Difference("test", "bleu", 9, 5, 4, 1, 7, "better"), even])
    'better in BLEU, within noise in pass@1 on MBPP'
    """
    names: dict[str, list[str]] = {}
    for each in all_differences:
        title = TITLES.get(each.metric, each.metric)
        where = "" if each.split == "test" else f" on {TITLES.get(each.split, each.split)}"
        names.setdefault(each.verdict, []).append(title + where)
    kinds = [kind for kind in VERDICTS if kind in names]
    return ", ".join(f"{kind} in {' and '.join(names[kind])}" for kind in kinds)


def difference_rows(
    all_differences: Iterable[Difference], *, ours: str, other: str
) -> list[dict[str, Any]]:
    """Return differences as rows of a table; `ours` and `other` head the two scores."""
    rows = []
    for each in all_differences:
        form = f".{FINETUNE_SCORES.metric(each.metric).decimals}f"
        edges = (each.low, each.high)
        rows.append(
            {
                "split": Cell(each.split, label=TITLES.get(each.split, each.split)),
                "metric": Cell(each.metric, label=TITLES.get(each.metric, each.metric)),
                other: Cell(each.other, form),
                ours: Cell(each.ours, form),
                "difference": Cell(each.difference, f"+{form}", edges),
                "verdict": each.verdict,
                "reason": each.reason,
            }
        )
    return rows
