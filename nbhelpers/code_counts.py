"""What each sample adds to a score, so that scores are resampled without reading a text again.

Every score here is a function of sums over samples: a share of (passed, counted), a mean of
(value, counted), corpus BLEU of n-gram counts, chrF of character n-gram counts. `Counts` holds one
row per sample and that function; a sample without the needed facts (no reference, no outcome) is a
row of zeros and so takes no part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from nbhelpers.code_tokens import TOKENIZER, code_tokens
from nbhelpers.errors import ConfigError
from nbhelpers.resampling import drawn_counts

if TYPE_CHECKING:
    import numpy as np

BLEU_ORDER = 4
AT_ONCE = 250  # resamples whose draws are held together


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
    import numpy as np

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
    import numpy as np

    made, wanted, matched = (sums[:, at::3] for at in range(3))
    occurs = (made > 0) & (wanted > 0)
    orders = np.maximum(occurs.sum(axis=1), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(occurs, matched / made, 0.0).sum(axis=1) / orders
        recall = np.where(occurs, matched / wanted, 0.0).sum(axis=1) / orders
        score = (1 + beta**2) * precision * recall / (beta**2 * precision + recall)
    score = 100 * np.where(precision + recall > 0, score, 0.0)
    return np.where(wanted[:, 0] > 0, score, np.nan)


def resampled_sums(tables: Sequence[np.ndarray], *, resamples: int, seed: int) -> list[np.ndarray]:
    """Return per table the (resamples, columns) sums of rows drawn with replacement.

    All tables are (samples, columns) of the same samples and share every draw: differences between
    them are paired.

    Raises:
        ConfigError: `resamples` or `seed` cannot be used.
    """
    import numpy as np

    check_draws(resamples, seed)
    draws = drawn_counts(len(tables[0]), resamples, seed)
    joined = np.concatenate(tables, axis=1)
    sums = [block @ joined for block in _blocks(draws)]
    edges = np.cumsum([table.shape[1] for table in tables])[:-1]
    return np.split(np.concatenate(sums), edges, axis=1)


def swapped_sums(
    first: np.ndarray, second: np.ndarray, *, resamples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of both tables after each sample changed sides with probability 1/2."""
    import numpy as np

    generator = np.random.default_rng(seed)
    flips = (generator.integers(2, size=len(first)).astype(float) for _ in range(resamples))
    moved = np.concatenate([block @ (second - first) for block in _blocks(flips)])
    return first.sum(axis=0) + moved, second.sum(axis=0) - moved


def check_draws(resamples: int, seed: int) -> None:
    """Raise ConfigError for numbers that cannot be drawn with."""
    if type(resamples) is not int or type(seed) is not int or resamples < 1 or seed < 0:
        text = f"resamples={resamples!r} and seed={seed!r} cannot be used"
        raise ConfigError(text, fix="Give whole numbers, resamples from 1 and a seed from 0 up.")


def plain(value: float) -> float | None:
    """Return a float, or None for NaN."""
    return None if value != value else float(value)


def _blocks(draws: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    import numpy as np

    while block := list(islice(draws, AT_ONCE)):
        yield np.stack(block)


def _ratio(sums: np.ndarray) -> np.ndarray:
    import numpy as np

    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(sums[:, 1] > 0, sums[:, 0] / sums[:, 1], np.nan)


def _values(values: Sequence[float | None]) -> np.ndarray:
    import numpy as np

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
    import numpy as np

    rows = np.zeros((len(pairs), columns))
    known = [at for at, pair in enumerate(pairs) if pair is not None]
    if known:
        hypotheses, references = zip(*(pairs[at] for at in known), strict=True)
        rows[known] = metric._extract_corpus_statistics(hypotheses, [references])
    return rows
