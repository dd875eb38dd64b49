"""Where a detector draws its line: the threshold of a promised false-positive rate, and its band.

One decision rule: a program is called AI when its probability is *above* the threshold
(`ranking.is_positive`). The threshold comes from human code alone, so it holds for people like
those it was chosen on, and for nobody else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from nbhelpers.errors import ConfigError, DataError
from nbhelpers.ranking import is_positive

if TYPE_CHECKING:
    import numpy as np

LABELS = ("human", "ai")
CONFIDENCE = 0.95
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 100.0
MAX_SCALED_LOGIT = 30.0  # beyond about 36 a float64 probability is exactly 1 and orders nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """A threshold, what it promises and for whom; frozen once it is chosen.

    Attributes:
        threshold: Probability above which a program is called AI.
        threshold_logit: The same line before scaling: a logit.
        temperature: Logits are divided by it.
        target_fpr: False-positive rate that was asked for.
        n_humans: Human programs that the threshold was chosen on.
        valid_fpr: False-positive rate on those.
        valid_fpr_interval: Its Clopper-Pearson interval.
        promised_fpr: Upper limit of the rate that `n_humans` can promise with `CONFIDENCE`.
        abstain: [low, high] of the probabilities without a call, ends included; None without a
            band.
        target_miss_rate: Share of AI rows that may score below the band.
        chosen_on: Whose code it was chosen on, in words.
        warnings: What a reader has to know, as sentences.
    """

    threshold: float
    threshold_logit: float
    temperature: float
    target_fpr: float
    n_humans: int
    valid_fpr: float
    valid_fpr_interval: tuple[float, float]
    promised_fpr: float
    abstain: tuple[float, float] | None
    target_miss_rate: float
    chosen_on: str
    warnings: tuple[str, ...] = ()

    def probabilities(self, logits: Sequence[float] | np.ndarray) -> np.ndarray:
        """Return p_ai of each logit, (n,) float64."""
        return probabilities(logits, self.temperature)

    def is_ai(self, logits: Sequence[float] | np.ndarray) -> np.ndarray:
        """Return which programs are called AI, (n,) bool."""
        return is_positive(self.probabilities(logits), self.threshold)

    def is_undecided(self, logits: Sequence[float] | np.ndarray) -> np.ndarray:
        """Return which programs get no call, (n,) bool."""
        import numpy as np

        p = self.probabilities(logits)
        if self.abstain is None:
            return np.zeros(len(p), dtype=bool)
        return (p >= self.abstain[0]) & ~is_positive(p, self.threshold)

    def calls(self, logits: Sequence[float] | np.ndarray) -> list[str]:
        """Return "ai", "undecided" or "human" of each logit."""
        import numpy as np

        undecided = self.is_undecided(logits)
        return np.where(
            self.is_ai(logits), "ai", np.where(undecided, "undecided", "human")
        ).tolist()

    def to_dict(self) -> dict[str, Any]:
        """Return the point as JSON."""
        found = asdict(self)
        for name in ("valid_fpr_interval", "abstain", "warnings"):
            found[name] = None if found[name] is None else list(found[name])
        return found

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> OperatingPoint:
        """Return the point that `to_dict` wrote.

        Raises:
            DataError: A field is missing, unknown or no number.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(values, Mapping) or set(values) != names:
            odd = names ^ set(values) if isinstance(values, Mapping) else names
            raise DataError(
                f"the operating point does not have the fields it must have: {sorted(odd)}",
                fix="Take the file that the run or `nbhelpers calibrate` wrote, unchanged.",
            )
        found = dict(values)
        try:
            for name in ("threshold", "threshold_logit", "temperature", "target_fpr", "valid_fpr"):
                found[name] = float(found[name])
            low, high = found["valid_fpr_interval"]
            found["valid_fpr_interval"] = (float(low), float(high))
            if found["abstain"] is not None:
                low, high = found["abstain"]
                found["abstain"] = (float(low), float(high))
            found["warnings"] = tuple(str(text) for text in found["warnings"])
        except (TypeError, ValueError) as error:
            raise DataError(
                f"the operating point holds what is no number: {error}",
                fix="Take the file that the run or `nbhelpers calibrate` wrote, unchanged.",
            ) from error
        return cls(**found)


def choose_operating_point(
    labels: Sequence[Any] | np.ndarray,
    logits: Sequence[float] | np.ndarray,
    *,
    target_fpr: float,
    target_miss_rate: float,
    chosen_on: str = "the validation humans of this run",
) -> OperatingPoint:
    """Fit the temperature and fix the threshold and the band of abstention on validation rows.

    The threshold is the lowest at which at most `target_fpr` of the human rows are called AI. The
    band starts at the highest probability below which at most `target_miss_rate` of the AI rows
    score, and ends at the threshold.

    Args:
        labels: (n,) "human" or "ai" (or 0 and 1).
        logits: (n,) ai minus human.
        target_fpr: Between 0 and 1.
        target_miss_rate: Between 0 and 1.
        chosen_on: Whose code this is, for the reader.

    Raises:
        DataError: There is no human row, or a logit is not finite.
    """
    y, z = checked_rows(labels, logits)
    humans, machines = z[y == 0], z[y == 1]
    temperature = fit_temperature(y, z)
    warnings = []
    if not len(machines):
        warnings.append(
            "There is no AI row in validation: the temperature is 1 and there is no band of "
            "abstention."
        )
    elif temperature in (MIN_TEMPERATURE, MAX_TEMPERATURE):
        warnings.append(
            f"The temperature stands at its limit ({temperature:g}): read the probabilities as "
            "ranks."
        )
    low = _band_start(machines, target_miss_rate, temperature)
    point = _on_humans(humans, target_fpr, temperature, low, target_miss_rate, chosen_on)
    return replace(point, warnings=(*warnings, *point.warnings))


def recalibrate(
    point: OperatingPoint,
    human_logits: Sequence[float] | np.ndarray,
    *,
    target_fpr: float | None = None,
    confidence: float | None = None,
    chosen_on: str,
) -> OperatingPoint:
    """Return the point with its threshold fixed anew on other people's human code.

    The temperature stays, and so does the start of the band where it lies below the new threshold.
    A higher FPR than asked for on the next programs is as likely as a lower one, unless
    `confidence` asks for a threshold that keeps the promise.

    Args:
        point: Of the trained model.
        human_logits: (n,) of code that is known to be human.
        target_fpr: None keeps that of the point.
        confidence: With which the target has to hold (see `allowed_above`); None: on these rows.
        chosen_on: Whose code this is, for the reader.

    Raises:
        DataError: There is no row, or a logit is not finite.
    """
    _, z = checked_rows([0] * len(human_logits), human_logits)
    low = None if point.abstain is None else point.abstain[0]
    target = point.target_fpr if target_fpr is None else target_fpr
    settings = (target, point.temperature, low, point.target_miss_rate, chosen_on)
    return _on_humans(z, *settings, confidence=confidence)


def _on_humans(
    humans: np.ndarray,
    target_fpr: float,
    temperature: float,
    low: float | None,
    target_miss_rate: float,
    chosen_on: str,
    confidence: float | None = None,
) -> OperatingPoint:
    threshold_logit = threshold_at_fpr(humans, target_fpr, confidence)
    threshold = float(probabilities([threshold_logit], temperature)[0])
    exceed, n = int((probabilities(humans, temperature) > threshold).sum()), len(humans)
    promised = promised_fpr(n, exceed)
    warnings = []
    if n < humans_needed(target_fpr):
        warnings.append(
            f"{n} human programs ({exceed} above the threshold) promise a false-positive rate of "
            f"at most {promised:.2%} with {CONFIDENCE:.0%} confidence, not {target_fpr:.2%}; that "
            f"takes {humans_needed(target_fpr)} with none above it."
        )
    if low is not None and low >= threshold:
        low = None
        warnings.append(
            f"There is no band of abstention: at most {target_miss_rate:.1%} of the AI rows score "
            "below the threshold."
        )
    return OperatingPoint(
        threshold=threshold,
        threshold_logit=threshold_logit,
        temperature=temperature,
        target_fpr=float(target_fpr),
        n_humans=n,
        valid_fpr=exceed / n,
        valid_fpr_interval=clopper_pearson(exceed, n),
        promised_fpr=promised,
        abstain=None if low is None else (low, threshold),
        target_miss_rate=float(target_miss_rate),
        chosen_on=chosen_on,
        warnings=tuple(warnings),
    )


def threshold_at_fpr(
    human_scores: Sequence[float] | np.ndarray, target_fpr: float, confidence: float | None = None
) -> float:
    """Return the lowest threshold above which at most `allowed_above` human scores lie.

    The highest score that is not allowed above it sets it. Equal scores stay together, below.

    >>> threshold_at_fpr([0.1, 0.2, 0.3, 0.9], 0.25)
    0.3
    >>> threshold_at_fpr([0.1, 0.2, 0.9, 0.9], 0.25)
    0.9

    Raises:
        ConfigError: The target is not between 0 and 1.
        DataError: There is no human score.
    """
    import numpy as np

    scores = np.sort(np.asarray(human_scores, dtype=np.float64))
    if not len(scores):
        raise DataError(
            "there is no human row, so no threshold can promise a false-positive rate",
            fix="Give validation rows of human code.",
        )
    return float(scores[len(scores) - 1 - allowed_above(len(scores), target_fpr, confidence)])


def allowed_above(n: int, target_fpr: float, confidence: float | None = None) -> int:
    """Return how many of n humans may lie above a threshold for a false-positive rate.

    Without `confidence`, floor(target_fpr n): the rate holds on these rows. With it, the largest
    number whose upper limit (`promised_fpr`) keeps the target; 0 where even that is too many.

    >>> allowed_above(1000, 0.01), allowed_above(1000, 0.01, 0.95), allowed_above(50, 0.01)
    (10, 4, 0)
    """
    _share(target_fpr, "target_fpr")
    allowed = _floor(target_fpr, n)
    while confidence is not None and allowed and promised_fpr(n, allowed, confidence) > target_fpr:
        allowed -= 1
    return allowed


def _band_start(machines: np.ndarray, rate: float, temperature: float) -> float | None:
    """Return the highest probability below which at most `rate` of the AI rows score."""
    import numpy as np

    _share(rate, "target_miss_rate")
    if not len(machines):
        return None
    return float(probabilities(np.sort(machines), temperature)[_floor(rate, len(machines))])


def _floor(share: float, n: int) -> int:
    return math.floor(share * n + 1e-9)  # 0.29 * 100 is 28.999999999999996


def _share(value: float, name: str) -> None:
    if not isinstance(value, int | float) or not 0 < value < 1:
        raise ConfigError(f"{name}={value!r} is not between 0 and 1", fix="Give one such as 0.01.")


def probabilities(logits: Sequence[float] | np.ndarray, temperature: float) -> np.ndarray:
    """Return sigmoid(logit / temperature), (n,) float64, without overflow.

    >>> probabilities([-800.0, 0.0, 800.0], 1.0).tolist()
    [0.0, 0.5, 1.0]
    """
    import numpy as np
    from scipy.special import expit

    return expit(np.asarray(logits, dtype=np.float64) / temperature)


def fit_temperature(
    labels: Sequence[Any] | np.ndarray, logits: Sequence[float] | np.ndarray
) -> float:
    """Return the temperature of least cross-entropy; 1.0 when there is one class alone.

    Labels are softened by one pseudo-row of each class, so that rows without a single error have a
    finite optimum too. The result keeps `MIN_TEMPERATURE` and `MAX_TEMPERATURE`, and no row's
    logit is scaled above `MAX_SCALED_LOGIT`, where probabilities would no longer order rows. The
    cross-entropy is convex in 1 / temperature: its slope is bisected.

    Source: Guo et al. 2017, On Calibration of Modern Neural Networks, section 4.2; soft labels as
    in Platt 1999, Probabilistic Outputs for Support Vector Machines, equation 4.
    """
    import numpy as np
    from scipy.special import expit

    y, z = checked_rows(labels, logits)
    n_ai, n_human = int(y.sum()), int((1 - y).sum())
    if not n_ai or not n_human or not np.any(z):
        return 1.0
    soft = np.where(y == 1, (n_ai + 1) / (n_ai + 2), 1 / (n_human + 2))
    least = max(MIN_TEMPERATURE, float(np.abs(z).max()) / MAX_SCALED_LOGIT)
    if least >= MAX_TEMPERATURE:
        return least
    cold, hot = 1 / least, 1 / MAX_TEMPERATURE  # of 1 / temperature: highest and lowest

    def slope(inverse: float) -> float:
        return float(((expit(inverse * z) - soft) * z).sum())

    if slope(cold) <= 0:
        return least
    if slope(hot) >= 0:
        return MAX_TEMPERATURE
    for _ in range(60):
        middle = math.sqrt(cold * hot)
        cold, hot = (middle, hot) if slope(middle) > 0 else (cold, middle)
    return 1 / math.sqrt(cold * hot)


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
    _share(target_fpr, "target_fpr")
    _share(confidence, "confidence")
    return math.ceil(math.log(1 - confidence) / math.log1p(-target_fpr))


def checked_rows(
    labels: Sequence[Any] | np.ndarray, scores: Sequence[float] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (n,) labels as 0 (human) and 1 (ai), and (n,) float64 scores.

    Raises:
        DataError: Lengths differ, a label is another one, or a score is not finite (rows count
            from 1).
    """
    import numpy as np

    numbers = {"human": 0, "ai": 1, 0: 0, 1: 1}
    try:
        y = np.array([numbers[label] for label in labels], dtype=np.int64)
        z = np.asarray(scores, dtype=np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"a label or a score cannot be used: {error}", fix='Labels are "human" or "ai".'
        ) from error
    if y.shape != z.shape:
        raise DataError(f"{len(y)} labels for scores {z.shape}", fix="Give one score to each row.")
    bad = np.flatnonzero(~np.isfinite(z))
    if len(bad):
        raise DataError(
            f"score {z[bad[0]]} in row {bad[0] + 1} is not finite ({len(bad)} such rows)",
            fix="Look for non-finite weights: the model has not produced a score there.",
        )
    return y, z
