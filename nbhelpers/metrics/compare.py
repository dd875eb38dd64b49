"""Comparison of runs: on the same samples, over seeds, and what may be said of a difference."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nbhelpers.common.suggest import did_you_mean
from nbhelpers.errors import ConfigError
from nbhelpers.metrics.generation import (
    EXACT_SAMPLES,
    Counts,
    Generated,
    Row,
    paired_sums,
    swapped_sums,
)
from nbhelpers.metrics.intervals import LEVEL, holm, interval
from nbhelpers.metrics.registry import FINETUNE_SCORES, Metric
from nbhelpers.metrics.resampling import check_draws

# ------------------------------------------------------------------------------------------------
# What two scores may be compared, and the words for their difference.
#
# A verdict is "better", "worse" or "within noise" ("higher" or "lower" where neither is good). It
# is "not comparable", with the reason, where a difference would mean something else than the
# adapter, and it names the number of seeds where there are too few of them to tell.


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


def _decoded_apart(results: Sequence[Mapping[str, Any] | None], metric: str) -> str | None:
    """Return why scores cannot be compared with the first of them; None if they can."""
    if any(result is None for result in results):
        return "nothing is known of how one of them was decoded"
    known = [result for result in results if result is not None]
    reasons = (why_not_comparable(known[0], result, metric) for result in known[1:])
    return next(filter(None, reasons), None)


def _mismatch(first: Generated, second: Generated) -> str | None:
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
    for column in ("reference", "prompt"):
        known = dict(zip(keys[0], first.column(column), strict=True))
        pairs = zip(keys[1], second.column(column), strict=True)
        differing = [key for key, text in pairs if known[key] != text]
        if differing:
            return f"{column}s that differ: {len(differing)} (such as {differing[0][1]})"
    return None


def _aligned(first: Generated, second: Generated, metric: str) -> Counts | str:
    """Return the counts of `second` in the order of `first`'s samples, or why they are others."""
    if reason := _mismatch(first, second):
        return reason
    places, counts = {key: at for at, key in enumerate(_keys(second))}, second.counts(metric)
    return replace(counts, rows=counts.rows[[places[key] for key in _keys(first)]])


def _unlike(ours: Counts, theirs: Counts, metric: str) -> str | None:
    """Return why a difference of two aligned counts has no meaning; None if it has one."""
    if ours.value is None or theirs.value is None:
        return f"{metric} is not defined: no sample has what it needs"
    if ours.rows.shape[1] == 2 and (ours.rows[:, 1] != theirs.rows[:, 1]).any():
        return f"{metric} is known of other samples in one run than in the other"
    return None


def _keys(generated: Generated) -> list[tuple[Any, Any]]:
    return list(zip(generated.column("split"), generated.column("id"), strict=True))


def with_verdicts(
    against: dict[str, Comparison], baseline: str, metric: Metric
) -> dict[str, Comparison]:
    """Add the adjusted p-values and the words to comparisons, for all of them together.

    Args:
        against: By name; `difference`, `interval`, `p_value`, `reason` and, over seeds, `n_seeds`.
        baseline: What they are compared with.
        metric: Says which direction is better, if any.
    """
    direction = None if metric.is_neutral else not metric.lower_is_better
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
    if words := _too_few(each.get("n_seeds", MIN_SEEDS)):
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


def _check_names(metric: str, baseline: str, runs: Mapping[str, Any]) -> None:
    """Raise ConfigError for a metric or a baseline that is not there."""
    if metric not in METRIC_NAMES:
        hint = did_you_mean(metric, METRIC_NAMES)
        raise ConfigError(f"there is no metric {metric!r}", fix=hint)
    if baseline not in runs:
        text = f"the baseline {baseline!r} is none of the runs"
        raise ConfigError(text, fix=did_you_mean(baseline, runs) if runs else "give runs")


def _too_few(n_seeds: int) -> str | None:
    """Return the words for too few seeds; None for enough."""
    named = {0: "no seed", 1: "one seed", 2: "two seeds"}.get(n_seeds)
    return f"{named}: no verdict about seeds" if named else None


# ------------------------------------------------------------------------------------------------
# Comparison of adapters over seeds, with the luck of the seeds and of the samples.


def compare_over_seeds(
    runs: Mapping[str, Mapping[int, Sequence[Row]]],
    *,
    metric: str,
    baseline: str,
    seed: int,
    resamples: int,
    fixed: Collection[str] = ("base",),
    scored: Mapping[str, Mapping[int, Mapping[str, Any]]] | None = None,
) -> dict[str, Any]:
    """Compare adapters with the luck of the seeds and of the samples together.

    All seeds answer the same samples, so a drawn sample counts in every seed at once: drawing
    samples afresh for each seed would treat one test set as many. The variance of the mean
    difference is that of the seeds (their differences' variance over their number) plus that of the
    samples (bootstrap), less what both contain (how samples and seeds interact). Seeds are few:
    redrawing three of them has ten outcomes and no tail, so their part enters by its variance and
    the interval is Student's, with Satterthwaite's degrees of freedom.

    Arguments and what is returned are as in `compare_runs`, with `per_seed` and `n_seeds`. No seed
    changes the adapters in `fixed`: their one score stands for every seed. `adapters` has `mean`,
    `std` (None below two seeds), `range`, `n_seeds`, and a `verdict` on whether seeds can tell
    anything; `spread` has the standard error that each source alone would give. Fewer than three
    common seeds give the interval over samples only, and no verdict.

    Source: Owen 2007, The pigeonhole bootstrap (rows and columns that cross); Satterthwaite 1946,
    An approximate distribution of estimates of variance components.
    """
    _check_names(metric, baseline, runs)
    check_draws(resamples, seed)
    read = {name: {at: Generated(rows) for at, rows in of.items()} for name, of in runs.items()}
    against: dict[str, Comparison] = {}
    for name in (name for name in runs if name != baseline):
        reason = None if scored is None else _scored_apart(scored, name, baseline, metric)
        pairs = _by_seed(read[baseline], read[name], (baseline, name), fixed)
        options = {"metric": metric, "seed": seed, "resamples": resamples}
        against[name] = refused(reason) if reason else _crossed(pairs, **options)
    scores = {
        name: [value for each in of.values() if (value := each.counts(metric).value) is not None]
        for name, of in read.items()
    }
    return {
        "metric": metric,
        "baseline": baseline,
        "level": LEVEL,
        "adapters": {name: _spread(of, name in fixed) for name, of in scores.items()},
        "against": with_verdicts(against, baseline, FINETUNE_SCORES.metric(metric)),
    }


def _scored_apart(
    scored: Mapping[str, Mapping[int, Mapping[str, Any]]], name: str, baseline: str, metric: str
) -> str | None:
    """Return why the seeds' results cannot be compared; all of them must agree."""
    sides = [scored.get(baseline) or {}, scored.get(name) or {}]
    return _decoded_apart([result for of in sides for result in (of.values() or [None])], metric)


def _crossed(
    pairs: Mapping[int, tuple[Generated, Generated]], *, metric: str, seed: int, resamples: int
) -> Comparison:
    """Compare two adapters by seed; all answers are brought into the order of the first."""
    if not pairs:
        return refused("no seed in common")
    origin = next(iter(pairs.values()))[0]
    matched: dict[int, tuple[Counts, Counts]] = {}
    for at, (first, second) in pairs.items():
        sides = [_aligned(origin, side, metric) for side in (first, second)]
        reason = next((side for side in sides if isinstance(side, str)), None)
        reason = reason or _unlike(*sides, metric)
        if reason:
            return refused(f"seed {at}: {reason}")
        matched[at] = sides[0], sides[1]
    resampled = _resampled(list(matched.values()), resamples=resamples, seed=seed)
    together = resampled.mean(axis=0)
    variance = float(together.var())
    comparison = _over_seeds(
        {at: second.value - first.value for at, (first, second) in matched.items()},
        variance,
        overlap=float(resampled.var(axis=1).mean()) - variance,
        n_samples=len(origin.rows),
    )
    if len(matched) < MIN_SEEDS:
        comparison["interval"] = interval(together)
    return comparison


def _resampled(matched: list[tuple[Counts, Counts]], *, resamples: int, seed: int) -> np.ndarray:
    """Return (seeds, draws) differences; a draw in which one of them is undefined is left out."""
    flat = [side for sides in matched for side in sides]
    drawn = paired_sums([side.rows for side in flat], resamples=resamples, seed=seed)
    scores = np.stack([side.score(sums) for side, sums in zip(flat, drawn, strict=True)])
    differences = scores[1::2] - scores[::2]
    return differences[:, ~np.isnan(differences).any(axis=0)]


def _over_seeds(
    differences: Mapping[int, float], sample_variance: float, *, overlap: float, n_samples: int
) -> Comparison:
    """Return the mean difference with Student's interval.

    `overlap` is the mean of the variances over samples of single seeds, less `sample_variance`: the
    part of it that seeds and samples share, which the variance over seeds holds already.
    """
    from scipy.special import stdtr, stdtrit

    values, n = list(differences.values()), len(differences)
    mean = math.fsum(values) / n
    comparison = {"difference": mean, "per_seed": dict(differences), "n_seeds": n, "reason": None}
    if n < MIN_SEEDS:
        return comparison | {"interval": None, "p_value": None}
    seeds = math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n
    both = seeds + sample_variance - overlap / (n - 1)
    variance = max(seeds, sample_variance, both)
    parts = seeds**2 / (n - 1) + sample_variance**2 / max(n_samples - 1, 1)
    freedom = max(variance**2 / parts, n - 1) if parts else n - 1
    spread = {"seeds": math.sqrt(seeds), "samples": math.sqrt(sample_variance)}
    comparison["spread"] = spread if sample_variance else {"seeds": spread["seeds"]}
    error = math.sqrt(variance)
    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * error
    p = 2 * float(stdtr(freedom, -abs(mean) / error)) if error else float(mean == 0)
    return comparison | {
        "interval": [mean - half, mean + half],
        "p_value": p,
        "degrees_of_freedom": freedom,
    }


def _spread(values: list[float], is_fixed: bool) -> dict[str, Any]:
    n = len(values)
    mean = math.fsum(values) / n if n else None
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1)) if n > 1 else None
    verdict = "no seed takes part" if is_fixed else _too_few(n)
    return {
        "mean": mean,
        "std": std,
        "range": [min(values), max(values)] if n else None,
        "n_seeds": n,
        "verdict": verdict,
    }


def _by_seed(
    first: Mapping[int, Any],
    second: Mapping[int, Any],
    names: tuple[str, str],
    fixed: Collection[str],
) -> dict[int, tuple[Any, Any]]:
    """Return both sides per common seed; the one run of a fixed adapter stands for every seed."""
    if names[0] in fixed and len(first) == 1 and names[1] not in fixed:
        first = dict.fromkeys(second, next(iter(first.values())))
    if names[1] in fixed and len(second) == 1 and names[0] not in fixed:
        second = dict.fromkeys(first, next(iter(second.values())))
    return {seed: (first[seed], second[seed]) for seed in first if seed in second}


# ------------------------------------------------------------------------------------------------
# Whether one run is better than another, or only luckier: on the same samples, and over seeds.
#
# Two sources of luck are kept apart and then added. *Samples*: other questions would have given
# other scores. Runs that answered the same questions are compared pair by pair (`compare_runs`), so
# what is hard for both cancels out. *Seeds*: another seed would have trained another adapter
# (`compare_over_seeds` knows both).
#
# Every interval and every `verdict` is for its own comparison. Among many comparisons some exceed
# their interval by chance: `p_holm` and `verdict_holm` account for all comparisons of one call
# (Holm 1979, A simple sequentially rejective multiple test procedure).


def compare_runs(
    runs: Mapping[str, Sequence[Row]],
    *,
    metric: str,
    baseline: str,
    seed: int,
    resamples: int,
    scored: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Compare each run with the baseline on the same samples, matched by id.

    The interval is a percentile bootstrap of the paired difference over samples, the same draws for
    every run. `p_value` is a paired randomisation test: how often a difference as large arises when
    each sample's two answers change sides at random: counted over all ways to change them where few
    samples differ (`EXACT_SAMPLES`). A difference is called only where the interval
    leaves 0 out *and* the test rejects: of few samples the bootstrap alone claims too much (four
    samples that differ, all in favour, leave 0 out, yet have p = 0.125).

    Intervals are per comparison; `verdict_holm` is for all comparisons of this call together.

    Args:
        runs: Rows of one split per run, as in generations.jsonl.
        metric: One of `METRIC_NAMES`.
        baseline: The run that the others are compared with.
        seed: Of the draws.
        resamples: Number of draws.
        scored: Per run what its result says of this split (`decoding`, `signatures`); runs with
            different ones are not compared. Without it the caller vouches for equal decoding.

    Returns:
        `metric`, `baseline`, `level`, `n_samples`, `scores` by run, and `against` by run other than
        the baseline: `difference`, `interval`, `p_value`, `p_holm`, `verdict`, `verdict_holm`,
        `reason`, `sentence`. Differences are run minus baseline.

    Raises:
        ConfigError: No such metric or baseline, or numbers that cannot be drawn with.

    Source: Koehn 2004, Statistical significance tests for machine translation evaluation (paired
    bootstrap); Riezler and Maxwell 2005, On some pitfalls in automatic evaluation (randomisation).
    """
    _check_names(metric, baseline, runs)
    check_draws(resamples, seed)
    read = {name: Generated(rows) for name, rows in runs.items()}
    against: dict[str, Comparison] = {}
    for name in (name for name in runs if name != baseline):
        reason = None
        if scored is not None:
            reason = _decoded_apart([scored.get(baseline), scored.get(name)], metric)
        first = read[baseline].counts(metric)
        second = reason or _aligned(read[baseline], read[name], metric)
        reason = second if isinstance(second, str) else _unlike(first, second, metric)
        options = {"seed": seed, "resamples": resamples}
        against[name] = refused(reason) if reason else _paired((first, second), **options)
    return {
        "metric": metric,
        "baseline": baseline,
        "level": LEVEL,
        "n_samples": len(runs[baseline]),
        "scores": {name: rows.counts(metric).value for name, rows in read.items()},
        "against": with_verdicts(against, baseline, FINETUNE_SCORES.metric(metric)),
    }


def _paired(pair: tuple[Counts, Counts], *, seed: int, resamples: int) -> Comparison:
    first, second = pair
    difference = second.value - first.value
    drawn = paired_sums([first.rows, second.rows], resamples=resamples, seed=seed)
    differences = second.score(drawn[1]) - first.score(drawn[0])
    swapped = swapped_sums(first.rows, second.rows, resamples=resamples, seed=seed)
    by_chance = np.abs(second.score(swapped[1]) - first.score(swapped[0]))
    reached = int(
        (by_chance >= abs(difference) - 1e-9).sum()
    )  # sums of floats differ in their last bits
    spread = interval(differences) if len(first.rows) > 1 else None
    differing = int((first.rows != second.rows).any(axis=1).sum())
    drawn_once = 0 if differing <= EXACT_SAMPLES else 1  # what was seen is one draw more
    return {
        "difference": difference,
        "interval": spread,
        "p_value": (reached + drawn_once) / (len(by_chance) + drawn_once),
        "n_differing": differing,
        "reason": None,
    }
