"""A fine-tuned model against its base: the run of `method=base` that lies beside it, if they match.

Two runs are compared only where model, data, decoding and signatures are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.common.display import Cell
from nbhelpers.common.result_files import Result, Split
from nbhelpers.errors import DataError
from nbhelpers.metrics.registry import FINETUNE_SCORES, TITLES
from nbhelpers.presets.jobs import FINETUNE
from nbhelpers.reports.differences import NOT_COMPARABLE, Pair, Side, paired
from nbhelpers.runs.run import list_runs

if TYPE_CHECKING:
    from nbhelpers.reports.facts import RunFacts

HEADLINE = FINETUNE_SCORES.headline
SPLITS = tuple(FINETUNE_SCORES.splits)
SET_ASIDE = "~"  # in the name of a run that a later one replaced
VERDICTS = ("better", "worse", "within noise", NOT_COMPARABLE)
NO_BASE = (
    "No run of the base model on this data lies beside this one to compare with; the same "
    "command with -o method=base makes one."
)


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


@functools.lru_cache(maxsize=8)  # opening and sections ask for it, and a comparison resamples
def differences(facts: RunFacts) -> tuple[Pair, ...]:
    """Return this run minus its base run; nothing without a comparable one."""
    if facts.adapter == "base" or not list(evaluated(facts.result)):
        return ()
    base = find_base(facts)
    if base.folder is None:
        return ()
    ours = Side("this run", facts.result, facts.run.path)
    return tuple(_differences(ours, Side("base", base.result, base.folder)))


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


def _differences(ours: Side, base: Side) -> Iterator[Pair]:
    from nbhelpers.metrics.compare import with_verdicts

    for split in SPLITS:
        if not (ours.result.raw.get("scores") or {}).get(split):
            continue
        if not (base.result.raw.get("scores") or {}).get(split):
            continue
        for metric, compared in paired(base, ours, split).items():
            named = with_verdicts({ours.name: compared}, base.name, FINETUNE_SCORES.metric(metric))
            yield Pair.of((ours.name, base.name, split, metric), named[ours.name])


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
