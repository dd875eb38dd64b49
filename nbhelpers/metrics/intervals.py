"""Intervals of rates and of resampled scores, and p-values of many comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

import numpy as np

from nbhelpers.errors import ConfigError

LEVEL = 0.95


def interval(values: np.ndarray, level: float = LEVEL) -> list[float] | None:
    """Return the percentile interval of resampled values, NaN left out; None without any."""
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    tail = (1 - level) / 2
    return [float(edge) for edge in np.quantile(known, [tail, 1 - tail])]


def moved_interval(values: np.ndarray, level: float = LEVEL) -> list[float] | None:
    """Return the percentile interval of resampled values; None where all of them are alike."""
    edges = interval(values, level)
    return None if edges is None or edges[0] == edges[1] else edges


def rate_interval(
    k: int, n: int, resampled: np.ndarray, n_groups: int, level: float = LEVEL
) -> list[float] | None:
    """Return the interval of k in n from its resamples, or exactly where they cannot vary.

    Where all rows count, or none, it is that of as many independent rows as there are groups.
    """
    if not n:
        return None
    if k in (0, n):
        return list(clopper_pearson(n_groups if k else 0, n_groups, level))
    return moved_interval(resampled, level)


def clopper_pearson(k: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact two-sided interval of a rate of k in n independent rows.

    Source: Clopper and Pearson 1934, The Use of Confidence or Fiducial Limits.

    >>> [round(edge, 4) for edge in clopper_pearson(0, 100)]
    [0.0, 0.0362]
    """
    tail = (1 - level) / 2
    return 1 - promised_fpr(n, n - k, 1 - tail), promised_fpr(n, k, 1 - tail)


def promised_fpr(n: int, exceed: int = 0, confidence: float = LEVEL) -> float:
    """Return the upper limit of the rate when `exceed` of n humans lie above the threshold.

    One-sided and exact for independent programs; many programs of few authors promise less.

    >>> round(promised_fpr(300), 4), round(promised_fpr(300, 3), 4), promised_fpr(0)
    (0.0099, 0.0256, 1.0)
    """
    from scipy.special import betaincinv

    if not 0 <= exceed <= n:
        raise ConfigError(f"{exceed} of {n} is no count", fix="Give a count from 0 to n.")
    return 1.0 if exceed == n else float(betaincinv(exceed + 1, n - exceed, confidence))


def humans_needed(target_fpr: float, confidence: float = LEVEL) -> int:
    """Return how many human programs, none above the threshold, promise `target_fpr`.

    >>> humans_needed(0.05), humans_needed(0.01), humans_needed(0.001)
    (59, 299, 2995)
    """
    check_share(target_fpr, "target_fpr")
    check_share(confidence, "confidence")
    return math.ceil(math.log(1 - confidence) / math.log1p(-target_fpr))


def wilson(successes: float, n: float, level: float = LEVEL) -> list[float] | None:
    """Return Wilson's score interval of a share; None without a trial.

    Source: Wilson 1927, Probable inference, J. Am. Stat. Assoc. 22, equation for the limits.

    >>> [round(edge, 4) for edge in wilson(10, 10)]
    [0.7225, 1.0]
    """
    if n <= 0:
        return None
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, widening = successes / n, z * z / n
    centre = (share + widening / 2) / (1 + widening)
    half = z / (1 + widening) * math.sqrt(share * (1 - share) / n + widening / (4 * n))
    # exact at the edges, where rounding would leave 1e-17
    return [centre - half if successes > 0 else 0.0, centre + half if successes < n else 1.0]


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values adjusted for their number; each may be read against the usual limit.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    adjusted: dict[str, float] = {}
    highest = 0.0
    for at, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        highest = max(highest, min(1.0, (len(p_values) - at) * p_values[name]))
        adjusted[name] = highest
    return {name: adjusted[name] for name in p_values}


def divide(above: np.ndarray, below: np.ndarray, empty: float = np.nan) -> np.ndarray:
    """Return the ratio, `empty` where there is nothing to divide by."""
    return np.divide(above, below, out=np.full(np.shape(below), empty), where=below > 0)


def plain(value: float) -> float | None:
    """Return a float for JSON; None for NaN."""
    return None if value != value else float(value)


def count_of(share: float, n: int) -> int:
    """Return the whole part of a share of n rows."""
    return math.floor(share * n + 1e-9)  # 0.29 * 100 is 28.999999999999996


def check_share(value: float, name: str) -> None:
    """Refuse what does not lie between 0 and 1."""
    if not isinstance(value, int | float) or not 0 < value < 1:
        raise ConfigError(f"{name}={value!r} is not between 0 and 1", fix="Give one such as 0.01.")
