"""A fine-tuned model against its base: the run of `method=base` that lies beside it, if they match.

Two runs are compared only where model, data, decoding and signatures are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.formatting import count
from nbhelpers.job_specs import FINETUNE
from nbhelpers.metric_registry import FINETUNE_SCORES, TITLES, written
from nbhelpers.report_facts import RunFacts, dig
from nbhelpers.report_finetune_samples import rows_by_split
from nbhelpers.report_finetune_tables import SPLITS, evaluated
from nbhelpers.result_files import Result
from nbhelpers.results import sound_results

if TYPE_CHECKING:
    import pandas as pd

# What the head of a report compares; its table has all scores.
HEADLINE = FINETUNE_SCORES.headline
NAMED = (*HEADLINE, ("test", "exact_match"))
UNCOMPARED = ("mean_new_tokens",)  # longer is neither better nor worse
SET_ASIDE = "~"  # in the name of a run that a later one replaced
VERDICTS = ("better", "worse", "within noise", "not comparable")
RESAMPLES, MOST_RESAMPLES = 1000, 10_000
_SAME = {
    "the model": (("model", "name"), ("model", "revision"), ("model", "random_weights")),
    "the data": (("data", "fingerprint"), ("data", "template")),
}
SIDES = ("ours", "other")
_READ = ("result.json", "generations.jsonl")


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

    def said(self) -> str:
        """Return the difference in words."""
        text = TITLES.get(self.metric, self.metric)
        if self.difference is None:
            return f"{text} {self.verdict}" + (f" ({self.reason})" if self.reason else "")
        text += f" {signed(self.metric, self.difference)}"
        if self.low is not None and self.high is not None:
            text += f" ({signed(self.metric, self.low)} to {signed(self.metric, self.high)})"
        return f"{text}, {self.verdict}"


def signed(metric: str, value: float | None) -> str:
    """Write a difference with its sign.

    >>> signed("bleu", 1.26), signed("pass@1", -0.02)
    ('+1.3', '-0.020')
    """
    text = written(metric, value)
    return text if value is None or value < 0 else f"+{text}"


class Base(NamedTuple):
    """The base run beside a run, or why there is none to compare with."""

    folder: Path | None
    data: Mapping[str, Any]
    why: str


def find_base(facts: RunFacts) -> Base:
    """Return the newest finished base run in the same folder of runs that matches."""
    from nbhelpers.runs import list_runs

    why = (
        "No run of the base model on this data lies beside this one to compare with; the same "
        "command with -o method=base makes one."
    )
    runs = [run.path for run in list_runs(facts.run.path.parent) if SET_ASIDE not in run.id]
    for result in sound_results(path for path in runs if path != facts.run.path):
        data = result.data
        if result.job != "finetune" or _method(data) != "base":
            continue
        if _is_of_other_data(facts.data, data):  # another experiment: nobody would compare
            continue
        if differs := unlike(facts.data, data):
            why = f"The base run {result.path.name} is not comparable: {differs}."
            continue
        return Base(result.path, data, "")
    return Base(None, {}, why)


def _is_of_other_data(ours: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return any(dig(ours, *at) != dig(other, *at) for places in _SAME.values() for at in places)


def _method(data: Mapping[str, Any]) -> Any:
    return dig(data, "adapter", "method") or dig(data, "settings", "method")


def unlike(ours: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Say what makes two results incomparable, or nothing where they can be compared."""
    for what, places in _SAME.items():
        if any(dig(ours, *place) != dig(other, *place) for place in places):
            return f"{what} differs"
    is_embedded = dig(ours, "settings", "model") in FINETUNE.models.embedded
    has_own_words = dig(ours, "model", "random_weights") and not is_embedded
    if has_own_words and dig(ours, "seed") != dig(other, "seed"):
        return "its tokenizer was trained on the rows of another seed"
    return ""


def differences(facts: RunFacts) -> tuple[Difference, ...]:
    """Return this run minus its base run; nothing without a comparable one."""
    if facts.adapter == "base" or not list(evaluated(facts)):
        return ()
    base = find_base(facts)
    return () if base.folder is None else between(facts.run.path, base.folder)


def between(ours: Path, other: Path) -> tuple[Difference, ...]:
    """Return the differences of two comparable runs, split by split, on the same samples."""
    marks = [_mark(folder / name) for folder in (ours, other) for name in _READ]
    return _between(ours, other, *marks)


def _mark(path: Path) -> float:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@functools.lru_cache(maxsize=64)  # one report asks several times, and a comparison resamples
def _between(ours: Path, other: Path, *_marks: float) -> tuple[Difference, ...]:
    found = [Result.read(folder / "result.json") for folder in (ours, other)]
    results = [{} if each is None else each.raw for each in found]
    rows = [rows_by_split(folder / "generations.jsonl") for folder in (ours, other)]
    found = []
    for split in (name for name in SPLITS if all(dig(r, "scores", name) for r in results)):
        scored = {name: dig(r, "scores", split) for name, r in zip(SIDES, results, strict=True)}
        of_split = {name: each.get(split, []) for name, each in zip(SIDES, rows, strict=True)}
        for metric in FINETUNE_SCORES.names(split):
            if metric not in UNCOMPARED and dig(scored["ours"], "metrics", metric) is not None:
                found.append(_compared(split, metric, of_split, scored, results[0]))
    return tuple(found)


def _compared(
    split: str,
    metric: str,
    rows: Mapping[str, list[dict[str, Any]]],
    scored: Mapping[str, Mapping[str, Any]],
    result: Mapping[str, Any],
) -> Difference:
    from nbhelpers.code_compare import compare_runs

    ours, other = (dig(scored[name], "metrics", metric) for name in SIDES)
    if why := _missing_rows(rows, scored):
        return Difference(split, metric, ours, other, None, None, None, VERDICTS[-1], why)
    found = compare_runs(rows, metric=metric, baseline="other", scored=scored, **draws(result))
    found = found["against"]["ours"]
    low, high = found["interval"] or (None, None)
    verdict, reason = found["verdict"], found["reason"] or ""
    values = (ours, other, found["difference"], low, high)
    return Difference(split, metric, *values, verdict, reason, found["p_value"])


def _missing_rows(
    rows: Mapping[str, list[dict[str, Any]]], scored: Mapping[str, Mapping[str, Any]]
) -> str:
    """Say which generations cannot be read: without them a difference is of other samples."""
    for name, whose in zip(SIDES, ("this run", "the other run"), strict=True):
        read, wanted = len(rows[name]), dig(scored[name], "n_samples")
        if not read or (wanted is not None and read != wanted):
            whole = "" if wanted is None else f" of {count(wanted)}"
            return f"{count(read)}{whole} generations of {whose} can be read"
    return ""


def draws(result: Mapping[str, Any]) -> dict[str, int]:
    """Return seed and number of resamples for a comparison, by the settings of a run."""
    settings = result.get("settings") or {}
    resamples = settings.get("bootstrap_samples") or RESAMPLES
    if resamples > MOST_RESAMPLES:
        resamples = RESAMPLES
    return {"seed": settings.get("seed") or 0, "resamples": resamples}


def against_base(facts: RunFacts) -> str:
    """Return one short sentence on the base model for the headline."""
    found = [each for each in differences(facts) if (each.split, each.metric) in HEADLINE]
    if not found:
        return "This is the base model as it is." if facts.adapter == "base" else ""
    return f"Against the base model it is {by_verdict(found)}."


def by_verdict(found: Iterable[Difference]) -> str:
    """Return which scores are better, worse and within noise.

    >>> even = Difference("mbpp", "pass@1", 0.5, 0.5, 0, -0.1, 0.1, "within noise")
    >>> by_verdict([Difference("test", "bleu", 9, 5, 4, 1, 7, "better"), even])
    'better in BLEU; within noise in pass@1 on MBPP'
    """
    names: dict[str, list[str]] = {}
    for each in found:
        title = TITLES.get(each.metric, each.metric)
        where = "" if each.split == "test" else f" on {TITLES.get(each.split, each.split)}"
        names.setdefault(each.verdict, []).append(title + where)
    kinds = [kind for kind in VERDICTS if kind in names]
    return "; ".join(f"{kind} in {', '.join(names[kind])}" for kind in kinds)


def missing_base(facts: RunFacts) -> str:
    """Return why there is no comparison with the base model, or nothing."""
    if facts.adapter == "base" or not list(evaluated(facts)):
        return ""
    return find_base(facts).why


def base_table(facts: RunFacts) -> pd.DataFrame:
    """Return each score of this run and of the base run, and the difference with its verdict."""
    return difference_table(differences(facts), ours="this run", other="base")


def difference_table(found: tuple[Difference, ...], *, ours: str, other: str) -> pd.DataFrame:
    """Return differences as a table; `ours` and `other` head the columns of the two scores."""
    import pandas as pd

    rows = []
    for each in found:
        row = {"split": each.split, "metric": each.metric, other: each.other, ours: each.ours}
        row |= {"difference": each.difference, "low": each.low, "high": each.high}
        rows.append(row | {"verdict": each.verdict})
    return pd.DataFrame(rows)
