"""What two scores may be compared, and the words for their difference.

A verdict is "better", "worse" or "within noise" ("higher" or "lower" where neither is good). It is
"not comparable", with the reason, where a difference would mean something else than the adapter,
and it names the number of seeds where there are too few of them to tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nbhelpers.code_counts import Counts
from nbhelpers.code_metrics import LEVEL, Generated
from nbhelpers.errors import ConfigError
from nbhelpers.metric_registry import FINETUNE_SCORES
from nbhelpers.suggest import did_you_mean

METRIC_NAMES = tuple(metric.name for metric in FINETUNE_SCORES.metrics)
WITHIN_NOISE, NOT_COMPARABLE = "within noise", "not comparable"
MIN_SEEDS = 3
# Facts beside the decoding that may differ: how fast answers were made, and what the adapter's
# model is (a QLoRA run answers with its quantised base; that is what is compared).
NO_DECODING = ("batch_size", "batches", "seconds", "wall_s", "tokens_per_s")
NO_DECODING += ("precision", "quantised")

Comparison = dict[str, Any]


def why_not_comparable(
    first: Mapping[str, Any], second: Mapping[str, Any], metric: str
) -> str | None:
    """Return why two scores of a split cannot be compared, by what their results say; None if so.

    >>> one, other = ({"decoding": {"max_new_tokens": n}} for n in (256, 384))
    >>> why_not_comparable(one, other, "bleu")
    'max_new_tokens differs (256 and 384)'
    """
    one, other = (dict(each.get("decoding") or {}) for each in (first, second))
    facts = [(key, one.get(key), other.get(key)) for key in dict.fromkeys((*one, *other))]
    facts = [fact for fact in facts if fact[0] not in NO_DECODING]
    if metric in ("bleu", "chrf"):
        signed = [(each.get("signatures") or {}).get(metric) for each in (first, second)]
        facts.append((f"the {metric} signature", *signed))
    if metric == "bleu":
        facts.append(("the tokenizer", first.get("tokenizer"), second.get("tokenizer")))
    for what, left, right in facts:
        if left != right:
            return f"{what} differs ({left} and {right})"
    return None


def scored_apart(results: Sequence[Mapping[str, Any] | None], metric: str) -> str | None:
    """Return why scores cannot be compared with the first of them; None if they can."""
    if any(result is None for result in results):
        return "nothing is known of how one of them was decoded"
    known = [result for result in results if result is not None]
    reasons = (why_not_comparable(known[0], result, metric) for result in known[1:])
    return next(filter(None, reasons), None)


def mismatch(first: Generated, second: Generated) -> str | None:
    """Return why two lists of rows are not answers to the same samples; None if they are."""
    keys = [_keys(first), _keys(second)]
    for side in keys:
        repeated = next((key for key, n in Counter(side).items() if n > 1), None)
        if repeated is not None:
            return f"the id {repeated[1]} occurs more than once"
        splits = sorted({str(split) for split, _ in side})
        if len(splits) > 1:
            return f"rows of several splits ({', '.join(splits)})"
    alone = set(keys[0]) ^ set(keys[1])
    if alone:
        some = ", ".join(sorted(str(name) for _, name in alone)[:3])
        return f"samples in one run only: {len(alone)} (such as {some})"
    for column, what in (("reference", "references"), ("prompt", "prompts")):
        known = dict(zip(keys[0], first.column(column), strict=True))
        pairs = zip(keys[1], second.column(column), strict=True)
        differing = [key for key, text in pairs if known[key] != text]
        if differing:
            return f"{what} that differ: {len(differing)} (such as {differing[0][1]})"
    return None


def aligned(first: Generated, second: Generated, counts: Counts) -> Counts:
    """Return the counts of `second` in the order of `first`'s samples."""
    places = {key: at for at, key in enumerate(_keys(second))}
    return replace(counts, rows=counts.rows[[places[key] for key in _keys(first)]])


def undefined(pair: tuple[Counts, Counts], metric: str) -> str | None:
    """Return why a difference of two aligned counts has no meaning; None if it has one."""
    first, second = pair
    if first.value is None or second.value is None:
        return f"{metric} is not defined: no sample has what it needs"
    if first.rows.shape[1] == 2 and (first.rows[:, 1] != second.rows[:, 1]).any():
        return f"{metric} is known of other samples in one run than in the other"
    return None


def _keys(generated: Generated) -> list[tuple[Any, Any]]:
    return list(zip(generated.column("split"), generated.column("id"), strict=True))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values adjusted for their number; each may be read against the usual limit.

    Source: Holm 1979, Scand. J. Stat. 6.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    adjusted: dict[str, float] = {}
    highest = 0.0
    for at, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        highest = max(highest, min(1.0, (len(p_values) - at) * p_values[name]))
        adjusted[name] = highest
    return {name: adjusted[name] for name in p_values}


def with_verdicts(
    against: dict[str, Comparison], baseline: str, *, direction: bool | None
) -> dict[str, Comparison]:
    """Add the adjusted p-values and the words to comparisons with one baseline.

    Args:
        against: By name; `difference`, `interval`, `p_value`, `reason` and, over seeds, `n_seeds`.
        baseline: Its name.
        direction: See `direction`.
    """
    tested = {
        name: each["p_value"] for name, each in against.items() if each["p_value"] is not None
    }
    adjusted = holm(tested)
    for name, each in against.items():
        each["p_holm"] = adjusted.get(name)
        each["verdict"] = _verdict(each, each["p_value"], direction)
        each["verdict_holm"] = _verdict(each, each["p_holm"], direction)
        if each["verdict"] == WITHIN_NOISE and not _holds_zero(each["interval"]):
            few = f"only {each['n_differing']} samples differ, " if "n_differing" in each else ""
            each["reason"] = f"{few}p = {each['p_value']:.2f}"
        reason = f" ({each['reason']})" if each["reason"] else ""
        each["sentence"] = f"{name} against {baseline}: {each['verdict']}{reason}"
    return against


def _verdict(each: Comparison, p_value: float | None, direction: bool | None) -> str:
    if each["difference"] is None:
        return NOT_COMPARABLE
    if words := too_few(each.get("n_seeds", MIN_SEEDS)):
        return words
    if _holds_zero(each["interval"]) or p_value is None or p_value >= 1 - LEVEL:
        return WITHIN_NOISE
    rises = each["difference"] > 0
    if direction is None:
        return "higher" if rises else "lower"
    return "better" if rises == direction else "worse"


def _holds_zero(interval: list[float] | None) -> bool:
    return interval is None or interval[0] <= 0 <= interval[1]


def refused(reason: str) -> Comparison:
    """Return the record of a comparison that is not made."""
    return {"difference": None, "interval": None, "p_value": None, "reason": reason}


def direction(metric: str) -> bool | None:
    """Return whether higher is better; None where neither direction is good."""
    found = FINETUNE_SCORES.metric(metric)
    return None if found.is_neutral else not found.lower_is_better


def check_names(metric: str, baseline: str, runs: Mapping[str, Any]) -> None:
    """Raise ConfigError for a metric or a baseline that is not there."""
    if metric not in METRIC_NAMES:
        hint = did_you_mean(metric, METRIC_NAMES)
        raise ConfigError(f"there is no metric {metric!r}", fix=hint)
    check_baseline(baseline, runs)


def check_baseline(baseline: str, runs: Mapping[str, Any]) -> None:
    """Raise ConfigError for a baseline that is not there."""
    if baseline not in runs:
        text = f"the baseline {baseline!r} is none of the runs"
        raise ConfigError(text, fix=did_you_mean(baseline, runs) if runs else "give runs")


def too_few(n_seeds: int) -> str | None:
    """Return the words for too few seeds; None for enough."""
    named = {0: "no seed", 1: "one seed", 2: "two seeds"}.get(n_seeds)
    return f"{named}: no verdict about seeds" if named else None
