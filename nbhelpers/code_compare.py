"""Whether one run is better than another, or only luckier: on the same samples, and over seeds.

Two sources of luck are kept apart and then added. *Samples*: other questions would have given
other scores. Runs that answered the same questions are compared pair by pair (`compare_runs`), so
what is hard for both cancels out. *Seeds*: another seed would have trained another adapter
(`compare_over_seeds` knows both). Verdicts: `code_verdicts`.

Every interval and every `verdict` is for its own comparison. Among many comparisons some exceed
their interval by chance: `p_holm` and `verdict_holm` account for all comparisons of one call
(Holm 1979, A simple sequentially rejective multiple test procedure).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nbhelpers.code_counts import Counts, check_draws, resampled_sums, swapped_sums
from nbhelpers.code_metrics import LEVEL, Generated, Row, interval
from nbhelpers.code_seeds import compare_over_seeds
from nbhelpers.code_verdicts import (
    METRIC_NAMES,
    Comparison,
    aligned,
    check_names,
    direction,
    holm,
    mismatch,
    refused,
    scored_apart,
    undefined,
    why_not_comparable,
    with_verdicts,
)

__all__ = [
    "METRIC_NAMES",
    "compare_over_seeds",
    "compare_runs",
    "holm",
    "why_not_comparable",
]


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
    each sample's two answers change sides at random. A difference is called only where the interval
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
        DataError: A row has no answer.

    Source: Koehn 2004, Statistical significance tests for machine translation evaluation (paired
    bootstrap); Riezler and Maxwell 2005, On some pitfalls in automatic evaluation (randomisation).
    """
    check_names(metric, baseline, runs)
    check_draws(resamples, seed)
    read = {name: Generated(rows) for name, rows in runs.items()}
    counts = {name: generated.counts(metric) for name, generated in read.items()}
    against: dict[str, Comparison] = {}
    for name in (name for name in runs if name != baseline):
        reason = None
        if scored is not None:
            reason = scored_apart([scored.get(baseline), scored.get(name)], metric)
        reason = reason or mismatch(read[baseline], read[name])
        if reason:
            against[name] = refused(reason)
            continue
        pair = (counts[baseline], aligned(read[baseline], read[name], counts[name]))
        reason = undefined(pair, metric)
        found = None if reason else _paired(pair, seed=seed, resamples=resamples)
        against[name] = found or refused(str(reason))
    return {
        "metric": metric,
        "baseline": baseline,
        "level": LEVEL,
        "n_samples": len(runs[baseline]),
        "scores": {name: each.value for name, each in counts.items()},
        "against": with_verdicts(against, baseline, direction=direction(metric)),
    }


def _paired(pair: tuple[Counts, Counts], *, seed: int, resamples: int) -> Comparison:
    import numpy as np

    first, second = pair
    found = second.value - first.value
    drawn = resampled_sums([first.rows, second.rows], resamples=resamples, seed=seed)
    differences = second.score(drawn[1]) - first.score(drawn[0])
    swapped = swapped_sums(first.rows, second.rows, resamples=resamples, seed=seed)
    by_chance = np.abs(second.score(swapped[1]) - first.score(swapped[0]))
    reached = int(
        (by_chance >= abs(found) - 1e-9).sum()
    )  # sums of floats differ in their last bits
    spread = interval(differences) if len(first.rows) > 1 else None
    return {
        "difference": found,
        "interval": spread,
        "p_value": (reached + 1) / (resamples + 1),
        "n_differing": int((first.rows != second.rows).any(axis=1).sum()),
        "reason": None,
    }
