"""What may be said of one score: a call, no call, or an abstention with its reasons.

Pure: numbers in, words out. A call needs a calibration on the user's own people; without it a score
only ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nbhelpers.common.formatting import percent
from nbhelpers.use.calibrate import Calibration
from nbhelpers.use.code_files import CodeFile
from nbhelpers.use.facts import DetectorFacts, Rate

AI, UNDECIDED, NOT_JUDGED, HUMAN = "ai", "undecided", "not judged", "human"
# Words and signs. Measured: 5 % of 14,540 programs from four paired data sets are shorter.
MIN_WORDS = 24
MIN_READ = 0.5  # of a program's tokens, before a call is given on the part that was read
MIN_OF_LANGUAGE = 20  # known-human programs in a language, before a call is given in it
NO_CALIBRATION = (
    "no calibration on your own people's code: a threshold does not carry over to other people "
    "(measured with an n-gram detector on unseen authors: one that promised 1 % called 42 to "
    "98.6 % of human code AI). The score ranks files; it flags none. Fix a threshold: nbhelpers "
    "calibrate --humans FOLDER"
)

MADE_UP = (
    "the model learnt the bundled sample: it cannot judge real code, and calibrating it "
    "(nbhelpers calibrate) does not change that. "
)
OF_OTHERS = (
    "the calibration in this folder came with it: it was fixed by the one who exported the model, "
    "on other people. If they are yours too, name it: --calibration FILE; else fix a threshold on "
    "your own people's code: nbhelpers calibrate --humans FOLDER"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What the model said of one program: `tokens` are all of its tokens, special ones too."""

    logit: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A program's score and what may be said of it.

    `call`: "ai", "undecided" (its score lies where both kinds are found), "not judged" (something
    other than its score forbids a call), "human" (scores below the band, which proves no author),
    or None where nothing is called. `reasons`: why there is no call. `is_doubted`: something other
    than the score forbids a call.
    """

    p_ai: float
    logit: float
    tokens: int
    truncated_share: float
    call: str | None
    reasons: tuple[str, ...]
    is_doubted: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        scores = {"p_ai": self.p_ai, "logit": self.logit, "call": self.call}
        scores |= {"tokens": self.tokens, "truncated_share": self.truncated_share}
        return scores | {"reasons": list(self.reasons)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """A model with the calibration that is in force, if any, and why there is none."""

    facts: DetectorFacts
    calibration: Calibration | None
    why_none: str = NO_CALIBRATION

    @property
    def can_call(self) -> bool:
        """Whether anything may be called AI."""
        is_fixed = self.calibration is not None and self.calibration.is_met
        return is_fixed and not self.facts.is_sample

    @property
    def no_call(self) -> str:
        """Why nothing is called; "" where calls are given."""
        if self.facts.is_sample:
            return MADE_UP + self.facts.data_note.rstrip(".")
        if self.calibration is None:
            return self.why_none
        return f"the calibration is too small: {self.calibration.lack}" if not self.can_call else ""

    @property
    def no_call_kind(self) -> str:
        """`no_call` in a few words, as a row of a table says it."""
        if self.facts.is_sample:
            return "trained on the bundled sample"
        if self.calibration is None:
            return "no calibration of your own" if self.why_none == OF_OTHERS else "no calibration"
        return "" if self.can_call else "calibration too small"

    @property
    def fixed_on(self) -> str:
        """On whose code the threshold in force was fixed, and when."""
        if self.calibration is None:
            return "the run's validation"
        fixed = self.calibration
        return f"{fixed.n} known-human programs ({fixed.source}, {fixed.created[:10]})"

    @property
    def rates(self) -> tuple[Rate, ...]:
        """False-positive rates of the threshold in force: the first is the one to expect."""
        if self.facts.is_sample:
            return ()  # those of two invented styles are of nobody
        return (self.calibration.rate,) if self.calibration is not None else self.facts.rates

    @property
    def threshold_logit(self) -> float | None:
        """The threshold in force: the calibration's, else the run's own."""
        if self.calibration is not None:
            return self.calibration.threshold_logit
        return self.facts.threshold_logit

    def verdict(self, file: CodeFile, scored: Scored) -> Verdict:
        """Return what may be said of a program."""
        doubts = reasons = tuple(self.doubts(file, scored))
        if not self.can_call:
            call, reasons = None, (*doubts, self.no_call_kind)
        elif doubts:
            call = NOT_JUDGED
        else:
            call, reason = self.called(scored.logit)
            reasons = (reason,) if reason else ()
        return Verdict(
            p_ai=self.facts.probability(scored.logit),
            logit=scored.logit,
            tokens=scored.tokens,
            truncated_share=self._cut(scored),
            call=call,
            reasons=reasons,
            is_doubted=bool(doubts),
        )

    def called(self, logit: float) -> tuple[str | None, str]:
        """Return the call that a logit alone gives, and the reason of an abstention."""
        limit, low = self.threshold_logit, self.facts.band_logit
        if not self.can_call or limit is None:
            return None, ""
        if logit > limit and (low is None or logit >= low):
            return AI, ""
        if logit > limit:
            p = self.facts.probability(low or 0.0)
            return UNDECIDED, (
                f"in the band: it lies above the scores of your own people, and below {p:.3g}, "
                "where AI code scored in the run's validation"
            )
        if low is not None and logit >= low:
            edges = f"{self.facts.probability(low):.3g} to {self.facts.probability(limit):.3g}"
            return (
                UNDECIDED,
                f"in the band: it lies in the band {edges}, where both kinds are found",
            )
        return HUMAN, ""

    def _cut(self, scored: Scored) -> float:
        """Share of a program's tokens that the model did not read."""
        return max(0, scored.tokens - self.facts.seq_len) / max(scored.tokens, 1)

    def doubts(self, file: CodeFile, scored: Scored) -> list[str]:
        """Return the reasons against any call that hold whatever the score is."""
        doubts, cut = [], self._cut(scored)
        if file.n_words < MIN_WORDS:
            doubts.append(f"too short: {file.n_words} words and signs, fewer than {MIN_WORDS}")
        if 1 - cut < MIN_READ:
            doubts.append(
                f"too long: the model read the first {self.facts.seq_len} of {scored.tokens} "
                f"tokens, {percent(1 - cut)} % of the program"
            )
        doubts += language_doubts(file.language, self.facts, self.calibration)
        return doubts


def language_doubts(
    language: str, facts: DetectorFacts, calibration: Calibration | None
) -> list[str]:
    """Return why a language allows no call, as a list of at most one reason."""
    if not language:
        return ["unknown language: say which with language='python', or --language"]
    if facts.languages and language not in facts.languages:
        known = ", ".join(facts.languages)
        return [f"unknown language: the detector was trained on {known}, not on {language}"]
    count = calibration.languages.get(language, 0) if calibration is not None else MIN_OF_LANGUAGE
    if count < MIN_OF_LANGUAGE:
        return [
            f"few of its language: {count} of the calibration's programs are in {language}, fewer "
            f"than {MIN_OF_LANGUAGE}; the threshold says nothing about it"
        ]
    return []


def short_reasons(verdict: Verdict) -> list[str]:
    """Return why there is no call in a few words, for a column of a table."""
    kinds = [reason.partition(":")[0] for reason in verdict.reasons]
    read = f"{percent(1 - verdict.truncated_share)} % read"
    return [read if kind == "too long" else kind for kind in kinds]


def threshold_facts(judge: Judge) -> dict[str, Any]:
    """Return the threshold in force and its realised rates, as JSON values."""
    limit = judge.threshold_logit
    return {
        "kind": "none" if limit is None else "calibration" if judge.calibration else "run",
        "logit": limit,
        "p_ai": None if limit is None else judge.facts.probability(limit),
        "can_call": judge.can_call,
        "promise": judge.calibration.promise if judge.calibration and judge.rates else None,
        "false_positive_rates": [rate.to_dict() for rate in judge.rates],
    }
