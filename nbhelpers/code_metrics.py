"""Scores of generated code: plain functions on lists of texts, and the scores of a run's rows.

Every function reads the *code* of a text, `extract_code` of it, so an answer in fences with prose
around it is judged by its code; answers and references are treated alike. Shares and pass rates are
between 0 and 1; BLEU and chrF are between 0 and 100, as their literature has them. What is not
defined (no rows, no references, nothing was run) is None, never 0.

All scores are of texts that the model generated freely. The scores of a run carry 95 % intervals
over samples: Wilson's for shares, which stays honest at 0 and 1, and a percentile bootstrap for
the rest. They say what other samples of the same kind would do to the score; what another seed
would do is a separate question (`code_compare.compare_over_seeds`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from nbhelpers.code_counts import (
    Counts,
    bleu_counts,
    chrf_counts,
    means,
    resampled_sums,
    shares,
    signatures,
)
from nbhelpers.code_syntax import MAX_CODE_CHARS, syntax_errors_of, with_deep_stack
from nbhelpers.code_tokens import TOKENIZER
from nbhelpers.errors import DataError
from nbhelpers.files import is_number
from nbhelpers.metric_registry import FINETUNE_SCORES, TASKS

if TYPE_CHECKING:
    import numpy as np

GENERATION_METRICS, TASK_METRICS = FINETUNE_SCORES.names("test"), FINETUNE_SCORES.names(TASKS[0])
PASSED, NOT_RUN = "passed", "not run"
LEVEL = 0.95
MAX_NEW_TOKENS = 10**9  # far beyond any answer

Row = Mapping[str, Any]


def syntax_accuracy(answers: Sequence[str]) -> float | None:
    """Return the share of answers whose code parses; see `code_syntax` for what that means.

    An answer without a statement is wrong, although `ast.parse` accepts it.
    """
    return shares([error is None for error in syntax_errors_of(codes(answers))]).value


def syntax_errors(answers: Sequence[str]) -> dict[str, int]:
    """Return how many answers have which kind of syntax error, most frequent first."""
    return _tally_errors(syntax_errors_of(codes(answers)))


def code_bleu(answers: Sequence[str], references: Sequence[str | None]) -> float | None:
    """Return corpus BLEU, 0 to 100, over the tokens of `code_tokens`; None without a reference.

    This is sacrebleu's BLEU with `tokenize="none"` on texts that were cut before
    (`bleu_signature`). It is not CodeBLEU, which also compares trees and data flow. An answer
    without a reference takes no part.
    """
    _check_lengths(answers, references)
    return bleu_counts(codes(answers), codes(references)).value


def code_chrf(answers: Sequence[str], references: Sequence[str | None]) -> float | None:
    """Return chrF, 0 to 100, of the code as it stands; white space does not count."""
    _check_lengths(answers, references)
    return chrf_counts(codes(answers), codes(references)).value


def bleu_signature() -> str:
    """Return sacrebleu's signature of `code_bleu` with the name of our cut; others don't compare.

    >>> bleu_signature().split("|")[:3], bleu_signature().split("|")[-1]
    (['nrefs:1', 'case:mixed', 'eff:no'], 'pretok:nb-python-1')
    """
    return signatures()["bleu"]


def chrf_signature() -> str:
    """Return sacrebleu's signature of `code_chrf`."""
    return signatures()["chrf"]


def exact_match(answers: Sequence[str], references: Sequence[str | None]) -> float | None:
    """Return the share of answers whose code is the reference's, character by character.

    White space at the ends of lines, blank lines at the end and the style of line ends are set
    aside; indentation and blank lines in between count. An answer without a reference takes no
    part.
    """
    _check_lengths(answers, references)
    return shares(_matches(codes(answers), codes(references))).value


def pass_at_1(outcomes: Sequence[str | None]) -> float | None:
    """Return the share of tasks whose one answer passed; tasks that were not run take no part.

    With one greedy answer a task this is what is called pass@1. Every outcome other than "passed"
    is a failure, also a timeout.
    """
    return shares(_passes(outcomes)).value


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
        DataError: A row has no answer.
        ConfigError: `seed` or `resamples` cannot be used.
    """
    generated = Generated(rows)
    scores = _scores(generated, GENERATION_METRICS, seed=seed, resamples=resamples)
    return scores | {
        "n_references": sum(reference is not None for reference in generated.references),
        "signatures": signatures(),
        "tokenizer": TOKENIZER,
        "syntax_errors": _tally_errors(generated.errors),
    }


def score_tasks(rows: Sequence[Row], *, seed: int = 0, resamples: int = 1000) -> dict[str, Any]:
    """Return everything that the report says about tasks that were run, one greedy answer each.

    `outcomes` counts every status, "not run" among them; `metrics` go by `TASK_METRICS`. The rest
    is as in `score_generations`.
    """
    generated = Generated(rows)
    scores = _scores(generated, TASK_METRICS, seed=seed, resamples=resamples)
    outcomes = _tally(outcome or NOT_RUN for outcome in generated.column("outcome"))
    return scores | {"outcomes": outcomes, "syntax_errors": _tally_errors(generated.errors)}


class Generated:
    """The rows of one split, with code, references and syntax errors read once.

    Raises:
        DataError: A row has no answer, or a value of another kind than a run writes.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        for at, row in enumerate(rows):
            if fault := _row_fault(row):
                name = f" (id {row.get('id')!r:.60})" if isinstance(row, Mapping) else ""
                raise DataError(
                    f"row {at}{name} {fault}",
                    fix="Give rows as generations.jsonl has them; an empty answer is an empty text",
                )
        self.rows = rows

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

    def column(self, name: str) -> list[Any]:
        """One value of each row, None where the row lacks it."""
        return [row.get(name) for row in self.rows]

    def counts(self, metric: str) -> Counts:
        """What each row adds to a metric."""
        made: dict[str, Callable[[], Counts]] = {
            "pass@1": lambda: shares(_passes(self.column("outcome"))),
            "syntax_accuracy": lambda: shares([error is None for error in self.errors]),
            "bleu": lambda: bleu_counts(self.answers, self.references),
            "chrf": lambda: chrf_counts(self.answers, self.references),
            "exact_match": lambda: shares(_matches(self.answers, self.references)),
            "stopped": lambda: shares(self.column("stopped")),
            "mean_new_tokens": lambda: means(self.column("new_tokens")),
        }
        return made[metric]()


def _row_fault(row: object) -> str:
    """What is wrong with a row; empty for one as a run writes it."""
    if not isinstance(row, Mapping):
        return f"is {type(row).__name__}, no object"
    if not isinstance(row.get("answer"), str):
        return "has no answer"
    kinds = {"reference": str, "stopped": bool, "outcome": str, "id": str | int, "split": str}
    for name, kind in kinds.items():
        if row.get(name) is not None and not isinstance(row[name], kind):
            return f"has {type(row[name]).__name__} as its {name}"
    count = row.get("new_tokens")
    if count is not None and not (is_number(count) and 0 <= count <= MAX_NEW_TOKENS):
        return f"has new_tokens={count!r:.40}, no number of tokens"
    return ""


def codes(texts: Sequence[str | None]) -> list[Any]:
    """Return the code of each text; None stays None; a text too long to parse stays whole."""
    return with_deep_stack(_extracted, texts)


def interval(values: np.ndarray, level: float = LEVEL) -> list[float] | None:
    """Return the percentile interval of resampled values, NaN left out; None without any."""
    import numpy as np

    known = values[~np.isnan(values)]
    if not len(known):
        return None
    tail = (1 - level) / 2
    return [float(edge) for edge in np.quantile(known, [tail, 1 - tail])]


def _scores(
    generated: Generated, names: Sequence[str], *, seed: int, resamples: int
) -> dict[str, Any]:
    counts = {name: generated.counts(name) for name in names}
    drawn = {name: each for name, each in counts.items() if not each.is_share}
    tables = [each.rows for each in drawn.values()]
    sums = dict(zip(drawn, resampled_sums(tables, resamples=resamples, seed=seed), strict=True))
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


def _extracted(texts: Sequence[str | None]) -> list[Any]:
    from nbhelpers.data.templates import extract_code

    return [
        text if text is None or len(text) > MAX_CODE_CHARS else extract_code(text) for text in texts
    ]


def _matches(answers: Sequence[str], references: Sequence[str | None]) -> list[bool | None]:
    return [
        None if reference is None else _bare(answer) == _bare(reference)
        for answer, reference in zip(answers, references, strict=True)
    ]


def _bare(code: str) -> str:
    lines = code.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).rstrip("\n")


def _passes(outcomes: Sequence[str | None]) -> list[bool | None]:
    return [None if outcome is None else outcome == PASSED for outcome in outcomes]


def _tally_errors(errors: Iterable[str | None]) -> dict[str, int]:
    return _tally(error for error in errors if error is not None)


def _tally(kinds: Iterable[str]) -> dict[str, int]:
    return dict(Counter(kinds).most_common())


def _check_lengths(answers: Sequence[Any], references: Sequence[Any]) -> None:
    if len(answers) != len(references):
        raise DataError(
            f"{len(answers)} answers and {len(references)} references",
            fix="Give one reference to each answer; None where there is none.",
        )
