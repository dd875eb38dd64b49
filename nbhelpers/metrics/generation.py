"""Scores of generated code: syntax accuracy, BLEU, exact match, pass@1, with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np

from nbhelpers.metrics.intervals import LEVEL, divide, interval, plain, wilson
from nbhelpers.metrics.python_code import (
    MAX_CODE_CHARS,
    TOKENIZER,
    code_tokens,
    syntax_errors_of,
    with_deep_stack,
)
from nbhelpers.metrics.registry import FINETUNE_SCORES, TASKS
from nbhelpers.metrics.resampling import BLOCK, resampled_sums

# ------------------------------------------------------------------------------------------------
# What each sample adds to a score, so that scores are resampled without reading a text again.
#
# Every score here is a function of sums over samples: a share of (passed, counted), a mean of
# (value, counted), corpus BLEU of n-gram counts, chrF of character n-gram counts. `Counts` holds
# one row per sample and that function; a sample without the needed facts (no reference, no outcome)
# is a row of zeros and so takes no part.


BLEU_ORDER = 4
EXACT_SAMPLES = 12  # that differ: all 4,096 ways to swap them are tried instead of drawn


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counts:
    """Rows of one metric, (samples, columns), and the score of their sums.

    `score` maps (m, columns) sums to (m,) scores, NaN where undefined.
    """

    rows: np.ndarray
    score: Callable[[np.ndarray], np.ndarray]
    is_share: bool = False

    @property
    def value(self) -> float | None:
        """The score of all samples; None where it is undefined."""
        return plain(self.score(self.rows.sum(axis=0)[None, :])[0])


def shares(flags: Sequence[bool | None]) -> Counts:
    """Return the counts of a share of samples; None takes no part."""
    return Counts(rows=_values(flags), score=_ratio, is_share=True)


def means(values: Sequence[float | None]) -> Counts:
    """Return the counts of a mean; None takes no part."""
    return Counts(rows=_values(values), score=_ratio)


def bleu_counts(hypotheses: Sequence[str], references: Sequence[str | None]) -> Counts:
    """Return the counts of corpus BLEU over `code_tokens`: 2 lengths, 4 matches, 4 totals."""
    pairs = [
        None if reference is None else (_joined(hypothesis), _joined(reference))
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    metric = _bleu()
    return Counts(rows=_extracted(metric, pairs, 2 + 2 * BLEU_ORDER), score=bleu_scores)


def chrf_counts(hypotheses: Sequence[str], references: Sequence[str | None]) -> Counts:
    """Return the counts of chrF: hypothesis, reference and matches of each of 6 orders."""
    pairs = [
        None if reference is None else (hypothesis, reference)
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    metric = _chrf()
    score = partial(chrf_scores, beta=metric.beta)
    return Counts(rows=_extracted(metric, pairs, 3 * metric.char_order), score=score)


def signatures() -> dict[str, str]:
    """Return sacrebleu's signatures; ours of BLEU names the cut made before sacrebleu's."""
    bleu, chrf = _bleu(), _chrf()
    for metric in (bleu, chrf):
        metric.corpus_score(["a"], [["a"]])  # sacrebleu knows the number of references only now
    return {
        "bleu": f"{bleu.get_signature()}|pretok:{TOKENIZER}",
        "chrf": str(chrf.get_signature()),
    }


def bleu_scores(sums: np.ndarray) -> np.ndarray:
    """Return corpus BLEU, 0 to 100, of (m, 10) sums; NaN where no reference has a token.

    Source: Papineni et al. 2002, with the exponential smoothing of mteval-v13a, as in sacrebleu's
    `BLEU.compute_bleu(smooth_method="exp")`; a test compares both.
    """
    length, wanted = sums[:, 0], sums[:, 1]
    correct, total = sums[:, 2 : 2 + BLEU_ORDER], sums[:, 2 + BLEU_ORDER :]
    with np.errstate(divide="ignore", invalid="ignore"):
        brevity = np.where(length < wanted, np.exp(1 - wanted / length), 1.0)
        halvings = np.cumsum(correct == 0, axis=1)  # each order without a match halves its floor
        matched = np.where(correct == 0, 0.5**halvings, correct)
        precision = np.where(total > 0, matched / total, 0.0)
        score = 100 * brevity * np.exp(np.log(precision).mean(axis=1))
    score = np.where((correct > 0).any(axis=1), score, 0.0)
    return np.where(wanted > 0, score, np.nan)


def chrf_scores(sums: np.ndarray, *, beta: float) -> np.ndarray:
    """Return chrF, 0 to 100, of (m, 18) sums; NaN where no reference has a character.

    Source: Popović 2015, averaged over the orders that occur on both sides, as sacrebleu's `CHRF`
    without epsilon smoothing; a test compares both.
    """
    hypothesis, wanted, matched = (sums[:, at::3] for at in range(3))
    occurs = (hypothesis > 0) & (wanted > 0)
    orders = np.maximum(occurs.sum(axis=1), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(occurs, matched / hypothesis, 0.0).sum(axis=1) / orders
        recall = np.where(occurs, matched / wanted, 0.0).sum(axis=1) / orders
        score = (1 + beta**2) * precision * recall / (beta**2 * precision + recall)
    score = 100 * np.where(precision + recall > 0, score, 0.0)
    return np.where(wanted[:, 0] > 0, score, np.nan)


def paired_sums(tables: Sequence[np.ndarray], *, resamples: int, seed: int) -> list[np.ndarray]:
    """Return per table the (resamples, columns) sums of rows drawn with replacement.

    All tables are (samples, columns) of the same samples and share every draw: differences between
    them are paired.
    """
    sums = resampled_sums(np.concatenate(tables, axis=1), resamples, seed)
    return np.split(sums, np.cumsum([table.shape[1] for table in tables])[:-1], axis=1)


def swapped_sums(
    first: np.ndarray, second: np.ndarray, *, resamples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of both tables after each sample changed sides with probability 1/2.

    Where at most `EXACT_SAMPLES` differ, every way to change them stands there once, instead of
    `resamples` draws.
    """
    changed = np.flatnonzero((first != second).any(axis=1))
    if len(changed) <= EXACT_SAMPLES:
        every = np.arange(1 << len(changed))[:, None] >> np.arange(len(changed)) & 1
        moved = every.astype(float) @ (second - first)[changed]
        return first.sum(axis=0) + moved, second.sum(axis=0) - moved
    generator = np.random.default_rng(seed)
    flips = (generator.integers(2, size=len(first)).astype(float) for _ in range(resamples))
    blocks = iter(lambda: list(islice(flips, BLOCK)), [])
    moved = np.concatenate([np.stack(block) @ (second - first) for block in blocks])
    return first.sum(axis=0) + moved, second.sum(axis=0) - moved


def _ratio(sums: np.ndarray) -> np.ndarray:
    return divide(sums[:, 0], sums[:, 1])


def _values(values: Sequence[float | None]) -> np.ndarray:
    rows = [(0.0, 0.0) if value is None else (float(value), 1.0) for value in values]
    return np.array(rows, dtype=np.float64).reshape(-1, 2)


def _joined(code: str) -> str:
    return " ".join(code_tokens(code))


def _bleu() -> Any:
    from sacrebleu.metrics import BLEU

    # `force`: it would warn of code that ends in a full stop
    return BLEU(tokenize="none", smooth_method="exp", max_ngram_order=BLEU_ORDER, force=True)


def _chrf() -> Any:
    from sacrebleu.metrics import CHRF

    return CHRF()


def _extracted(metric: Any, pairs: list[tuple[str, str] | None], columns: int) -> np.ndarray:
    """Return what sacrebleu counts in each pair, as its own significance tests read it."""
    rows = np.zeros((len(pairs), columns))
    known = [at for at, pair in enumerate(pairs) if pair is not None]
    if known:
        hypotheses, references = zip(*(pairs[at] for at in known), strict=True)
        rows[known] = metric._extract_corpus_statistics(hypotheses, [references])
    return rows


# ------------------------------------------------------------------------------------------------
# Scores of generated code: of a run's rows.
#
# Read is the *code* of a text, `extract_code` of it, so an answer in fences with prose around it is
# judged by its code; answers and references are treated alike. An answer without a statement does
# not parse here, although `ast.parse` accepts it. BLEU is sacrebleu's with `tokenize="none"` on
# texts that were cut by `code_tokens` before; it is not CodeBLEU, which also compares trees and
# data flow. With one greedy answer a task the share that passed is what is called pass@1; every
# other outcome is a failure, also a timeout. Shares are between 0 and 1; BLEU and chrF are between
# 0 and 100, as their literature has them. What is not defined (no rows, no references, nothing was
# run) is None, never 0.
#
# All scores are of texts that the model generated freely. The scores of a run carry 95 % intervals
# over samples: Wilson's for shares, which stays honest at 0 and 1, and a percentile bootstrap for
# the rest. They say what other samples of the same kind would do to the score; what another seed
# would do is a separate question (`compare.compare_over_seeds`).


GENERATION_METRICS, TASK_METRICS = FINETUNE_SCORES.names("test"), FINETUNE_SCORES.names(TASKS[0])
PASSED, NOT_RUN = "passed", "not run"

Row = Mapping[str, Any]


def score_generations(rows: Sequence[Row], *, seed: int, resamples: int) -> dict[str, Any]:
    """Return everything that the report says about the generations of one split.

    Args:
        rows: As in a run's generations.jsonl: `answer`, `reference` (None: takes no part in BLEU,
            chrF and exact match), `new_tokens`, `stopped`.
        seed: Of the resampling.
        resamples: Of the samples, for the intervals of BLEU, chrF and the mean length.

    Returns:
        `n_samples`, `n_references`, `metrics` and `intervals` by `GENERATION_METRICS`,
        `interval_methods`, `level`, `signatures`, `tokenizer` and `syntax_errors` by kind.

    Raises:
        ConfigError: `seed` or `resamples` cannot be used.
    """
    generated = Generated(rows)
    scores = _scores(generated, GENERATION_METRICS, seed=seed, resamples=resamples)
    return scores | {
        "n_references": sum(reference is not None for reference in generated.references),
        "signatures": signatures(),
        "tokenizer": TOKENIZER,
        "syntax_errors": generated.error_counts,
    }


def score_tasks(rows: Sequence[Row], *, seed: int = 0, resamples: int = 1000) -> dict[str, Any]:
    """Return everything that the report says about tasks that were run, one greedy answer each.

    `outcomes` counts every status, "not run" among them; `metrics` go by `TASK_METRICS`. The rest
    is as in `score_generations`.
    """
    generated = Generated(rows)
    scores = _scores(generated, TASK_METRICS, seed=seed, resamples=resamples)
    outcomes = _tally(outcome or NOT_RUN for outcome in generated.column("outcome"))
    return scores | {"outcomes": outcomes, "syntax_errors": generated.error_counts}


class Generated:
    """The rows of one split, with code, references and syntax errors read once."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self._counts: dict[str, Counts] = {}

    @cached_property
    def answers(self) -> list[str]:
        """The code of each answer."""
        return codes([row["answer"] for row in self.rows])

    @cached_property
    def references(self) -> list[str | None]:
        """The code of each reference, None where there is none."""
        return codes(self.column("reference"))

    @cached_property
    def errors(self) -> list[str | None]:
        """The kind of syntax error of each answer, None where it parses."""
        return syntax_errors_of(self.answers)

    @property
    def error_counts(self) -> dict[str, int]:
        """How many answers have which kind of syntax error, most frequent first."""
        return _tally(error for error in self.errors if error is not None)

    def column(self, name: str) -> list[Any]:
        """One value of each row, None where the row lacks it."""
        return [row.get(name) for row in self.rows]

    def counts(self, metric: str) -> Counts:
        """What each row adds to a metric; read once."""
        if metric not in self._counts:
            self._counts[metric] = self._counted(metric)
        return self._counts[metric]

    def _counted(self, metric: str) -> Counts:
        counters: dict[str, Callable[[], Counts]] = {
            "pass@1": lambda: shares(_passes(self.column("outcome"))),
            "syntax_accuracy": lambda: shares([error is None for error in self.errors]),
            "bleu": lambda: bleu_counts(self.answers, self.references),
            "chrf": lambda: chrf_counts(self.answers, self.references),
            "exact_match": lambda: shares(_matches(self.answers, self.references)),
            "stopped": lambda: shares(self.column("stopped")),
            "mean_new_tokens": lambda: means(self.column("new_tokens")),
        }
        return counters[metric]()


def codes(texts: Sequence[str | None]) -> list[Any]:
    """Return the code of each text; None stays None; a text too long to parse stays whole."""
    return with_deep_stack(_extracted_answer, texts)


def _scores(
    generated: Generated, names: Sequence[str], *, seed: int, resamples: int
) -> dict[str, Any]:
    counts = {name: generated.counts(name) for name in names}
    drawn = {name: each for name, each in counts.items() if not each.is_share}
    tables = [each.rows for each in drawn.values()]
    sums = dict(zip(drawn, paired_sums(tables, resamples=resamples, seed=seed), strict=True))
    has_spread = len(generated.rows) > 1
    intervals = {
        name: wilson(*each.rows.sum(axis=0).tolist())
        if each.is_share
        else interval(each.score(sums[name]))
        if has_spread
        else None
        for name, each in counts.items()
    }
    return {
        "n_samples": len(generated.rows),
        "metrics": {name: each.value for name, each in counts.items()},
        "intervals": intervals,
        "interval_methods": {
            name: "wilson" if each.is_share else "bootstrap" for name, each in counts.items()
        },
        "level": LEVEL,
    }


def _extracted_answer(texts: Sequence[str | None]) -> list[Any]:
    from nbhelpers.metrics.answers import extract_code

    return [
        text if text is None or len(text) > MAX_CODE_CHARS else extract_code(text) for text in texts
    ]


def _matches(answers: Sequence[str], references: Sequence[str | None]) -> list[bool | None]:
    return [
        None if reference is None else _bare(answer) == _bare(reference)
        for answer, reference in zip(answers, references, strict=True)
    ]


def _bare(code: str) -> str:
    """Set aside what ends lines, and blank lines at the end; indentation counts."""
    lines = code.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).rstrip("\n")


def _passes(outcomes: Sequence[str | None]) -> list[bool | None]:
    return [None if outcome is None else outcome == PASSED for outcome in outcomes]


def _tally(kinds: Iterable[str]) -> dict[str, int]:
    return dict(Counter(kinds).most_common())
