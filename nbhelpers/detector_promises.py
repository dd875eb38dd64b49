"""What n human programs can promise about a false-positive rate, exactly."""

from __future__ import annotations

import math

from nbhelpers.errors import ConfigError

CONFIDENCE = 0.95


def clopper_pearson(k: int, n: int, level: float = CONFIDENCE) -> tuple[float, float]:
    """Return the exact two-sided interval of a rate of k in n independent rows.

    Source: Clopper and Pearson 1934, The Use of Confidence or Fiducial Limits.

    >>> [round(edge, 4) for edge in clopper_pearson(0, 100)]
    [0.0, 0.0362]
    """
    tail = (1 - level) / 2
    return 1 - promised_fpr(n, n - k, 1 - tail), promised_fpr(n, k, 1 - tail)


def promised_fpr(n: int, exceed: int = 0, confidence: float = CONFIDENCE) -> float:
    """Return the upper limit of the rate when `exceed` of n humans lie above the threshold.

    One-sided and exact for independent programs; many programs of few authors promise less.

    >>> round(promised_fpr(300), 4), round(promised_fpr(300, 3), 4), promised_fpr(0)
    (0.0099, 0.0256, 1.0)
    """
    from scipy.special import betaincinv

    if not 0 <= exceed <= n:
        raise ConfigError(f"{exceed} of {n} is no count", fix="Give a count from 0 to n.")
    return 1.0 if exceed == n else float(betaincinv(exceed + 1, n - exceed, confidence))


def humans_needed(target_fpr: float, confidence: float = CONFIDENCE) -> int:
    """Return how many human programs, none above the threshold, promise `target_fpr`.

    >>> humans_needed(0.05), humans_needed(0.01), humans_needed(0.001)
    (59, 299, 2995)
    """
    check_share(target_fpr, "target_fpr")
    check_share(confidence, "confidence")
    return math.ceil(math.log(1 - confidence) / math.log1p(-target_fpr))


def count_of(share: float, n: int) -> int:
    """Return the whole part of a share of n rows."""
    return math.floor(share * n + 1e-9)  # 0.29 * 100 is 28.999999999999996


def check_share(value: float, name: str) -> None:
    """Refuse what does not lie between 0 and 1."""
    if not isinstance(value, int | float) or not 0 < value < 1:
        raise ConfigError(f"{name}={value!r} is not between 0 and 1", fix="Give one such as 0.01.")
