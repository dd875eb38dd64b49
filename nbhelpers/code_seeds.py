"""Comparison of adapters over seeds, with the luck of the seeds and of the samples."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbhelpers.code_counts import Counts, check_draws, resampled_sums
from nbhelpers.code_metrics import LEVEL, Generated, Row, interval
from nbhelpers.code_verdicts import (
    MIN_SEEDS,
    Comparison,
    aligned,
    check_names,
    direction,
    mismatch,
    refused,
    scored_apart,
    too_few,
    undefined,
    with_verdicts,
)

if TYPE_CHECKING:
    import numpy as np


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
    check_names(metric, baseline, runs)
    check_draws(resamples, seed)
    read = {name: {at: Generated(rows) for at, rows in of.items()} for name, of in runs.items()}
    counts = {
        name: {at: generated.counts(metric) for at, generated in of.items()}
        for name, of in read.items()
    }
    against: dict[str, Comparison] = {}
    for name in runs:
        if name != baseline:
            pairs = _by_seed(read[baseline], read[name], (baseline, name), fixed)
            tables = _by_seed(counts[baseline], counts[name], (baseline, name), fixed)
            reason = None if scored is None else _scored_apart(scored, name, baseline, metric)
            options = {"metric": metric, "seed": seed, "resamples": resamples}
            against[name] = refused(reason) if reason else _crossed(pairs, tables, **options)
    scores = {
        name: [each.value for each in of.values() if each.value is not None]
        for name, of in counts.items()
    }
    return {
        "metric": metric,
        "baseline": baseline,
        "level": LEVEL,
        "adapters": {name: _spread(of, name in fixed) for name, of in scores.items()},
        "against": with_verdicts(against, baseline, direction=direction(metric)),
    }


def _scored_apart(
    scored: Mapping[str, Mapping[int, Mapping[str, Any]]], name: str, baseline: str, metric: str
) -> str | None:
    """Return why the seeds' results cannot be compared; all of them must agree."""
    sides = [scored.get(baseline) or {}, scored.get(name) or {}]
    return scored_apart([result for of in sides for result in (of.values() or [None])], metric)


def _crossed(
    pairs: Mapping[int, tuple[Generated, Generated]],
    tables: Mapping[int, tuple[Counts, Counts]],
    *,
    metric: str,
    seed: int,
    resamples: int,
) -> Comparison:
    if not pairs:
        return refused("no seed in common")
    origin = next(iter(pairs.values()))[0]
    matched: list[tuple[Counts, Counts]] = []
    for at, sides in pairs.items():
        reason = next(filter(None, (mismatch(origin, side) for side in sides)), None)
        if not reason:
            both = zip(sides, tables[at], strict=True)
            first, second = (aligned(origin, side, counts) for side, counts in both)
            matched.append((first, second))
            reason = undefined(matched[-1], metric)
        if reason:
            return refused(f"seed {at}: {reason}")
    values = [second.value - first.value for first, second in matched]
    resampled = _resampled(matched, resamples=resamples, seed=seed)
    together = resampled.mean(axis=0)
    variance = float(together.var())
    found = _over_seeds(
        dict(zip(pairs, values, strict=True)),
        variance,
        overlap=float(resampled.var(axis=1).mean()) - variance,
        n_samples=len(origin.rows),
    )
    if len(values) < MIN_SEEDS:
        found["interval"] = interval(together)
    return found


def _resampled(matched: list[tuple[Counts, Counts]], *, resamples: int, seed: int) -> np.ndarray:
    """Return (seeds, draws) differences; a draw in which one of them is undefined is left out."""
    import numpy as np

    flat = [side for sides in matched for side in sides]
    drawn = resampled_sums([side.rows for side in flat], resamples=resamples, seed=seed)
    scores = np.stack([side.score(sums) for side, sums in zip(flat, drawn, strict=True)])
    found = scores[1::2] - scores[::2]
    return found[:, ~np.isnan(found).any(axis=0)]


def _over_seeds(
    differences: Mapping[int, float],
    sample_variance: float,
    *,
    overlap: float = 0.0,
    n_samples: int = 2,
) -> Comparison:
    """Return the mean difference with Student's interval.

    `overlap` is the mean of the variances over samples of single seeds, less `sample_variance`: the
    part of it that seeds and samples share, which the variance over seeds holds already.
    """
    values, n = list(differences.values()), len(differences)
    if not n:
        return refused("no seed in common")
    mean = math.fsum(values) / n
    found = {"difference": mean, "per_seed": dict(differences), "n_seeds": n, "reason": None}
    if n < MIN_SEEDS:
        return found | {"interval": None, "p_value": None}
    seeds = math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n
    both = seeds + sample_variance - overlap / (n - 1)
    variance = max(seeds, sample_variance, both)
    parts = seeds**2 / (n - 1) + sample_variance**2 / max(n_samples - 1, 1)
    freedom = max(variance**2 / parts, n - 1) if parts else n - 1
    spread = {"seeds": math.sqrt(seeds), "samples": math.sqrt(sample_variance)}
    found["spread"] = spread if sample_variance else {"seeds": spread["seeds"]}
    return found | _student(mean, math.sqrt(variance), freedom)


def _student(mean: float, error: float, freedom: float) -> Comparison:
    from scipy.special import stdtr, stdtrit

    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * error
    p = 2 * float(stdtr(freedom, -abs(mean) / error)) if error else float(mean == 0)
    return {"interval": [mean - half, mean + half], "p_value": p, "degrees_of_freedom": freedom}


def _spread(values: list[float], is_fixed: bool) -> dict[str, Any]:
    n = len(values)
    mean = math.fsum(values) / n if n else None
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1)) if n > 1 else None
    verdict = "no seed takes part" if is_fixed else too_few(n)
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
