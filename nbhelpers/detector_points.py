"""Where a detector draws its line: the threshold of a promised false-positive rate, and its band.

One decision rule: a program is called AI when its probability is *above* the threshold
(`ranking.is_positive`). The threshold comes from human code alone, so it holds for people like
those it was chosen on, and for nobody else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from nbhelpers.detector_calibration import (
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
    fit_temperature,
    probabilities,
)
from nbhelpers.detector_promises import (
    CONFIDENCE,
    check_share,
    clopper_pearson,
    count_of,
    humans_needed,
    promised_fpr,
)
from nbhelpers.detector_rows import checked_rows
from nbhelpers.errors import DataError
from nbhelpers.files import rebuilt
from nbhelpers.ranking import is_positive

if TYPE_CHECKING:
    import numpy as np


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
            DataError: A field is missing, unknown or of a wrong type; names it.
        """
        fix = "Take the file that the run or `nbhelpers calibrate` wrote, unchanged."
        return rebuilt(cls, values, "operating point", error=DataError, fix=fix)


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


def _on_humans(
    humans: np.ndarray,
    target_fpr: float,
    temperature: float,
    low: float | None,
    target_miss_rate: float,
    chosen_on: str,
) -> OperatingPoint:
    threshold_logit = threshold_at_fpr(humans, target_fpr)
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


def threshold_at_fpr(human_scores: Sequence[float] | np.ndarray, target_fpr: float) -> float:
    """Return the lowest threshold above which at most `target_fpr` of the human scores lie.

    With n humans, floor(target_fpr n) of them may lie above it; the next one sets it. Equal scores
    stay together, below.

    >>> threshold_at_fpr([0.1, 0.2, 0.3, 0.9], 0.25)
    0.3
    >>> threshold_at_fpr([0.1, 0.2, 0.9, 0.9], 0.25)
    0.9

    Raises:
        ConfigError: The target is not between 0 and 1.
        DataError: There is no human score.
    """
    import numpy as np

    check_share(target_fpr, "target_fpr")
    scores = np.sort(np.asarray(human_scores, dtype=np.float64))
    if not len(scores):
        raise DataError(
            "there is no human row, so no threshold can promise a false-positive rate",
            fix="Give validation rows of human code.",
        )
    return float(scores[len(scores) - 1 - count_of(target_fpr, len(scores))])


def _band_start(machines: np.ndarray, rate: float, temperature: float) -> float | None:
    """Return the highest probability below which at most `rate` of the AI rows score."""
    import numpy as np

    check_share(rate, "target_miss_rate")
    if not len(machines):
        return None
    return float(probabilities(np.sort(machines), temperature)[count_of(rate, len(machines))])
