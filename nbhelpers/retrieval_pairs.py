"""Pairs of the same task against hard negatives: told apart by cosine, or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nbhelpers.detector_metrics import interval, plain, ranking_of, rates
from nbhelpers.errors import DataError
from nbhelpers.ranking import is_positive
from nbhelpers.resampling import resampled_counts
from nbhelpers.retrieval_floors import TfidfSimilarity

if TYPE_CHECKING:
    import numpy as np

NEAREST = 10  # programs of the most similar length that a negative is drawn from
PER_TASK = 50  # positive pairs of one task at most: a large task must not be the whole test
CHUNK = 4096  # pairs whose vectors are held together

# Vectors of all programs of a split: dense (n, d), sparse, or the TF-IDF floor of their codes.
Vectors = Any


class Pairs(NamedTuple):
    """Pairs of programs of one split, half of them of the same task."""

    left: np.ndarray  # (pairs,) row numbers
    right: np.ndarray  # (pairs,)
    label: np.ndarray  # (pairs,) 1: the same task


def hard_pairs(
    tasks: Sequence[str],
    languages: Sequence[str],
    lengths: Sequence[int],
    *,
    max_pairs: int = 20_000,
    seed: int,
) -> Pairs:
    """Draw pairs of the same task, and to each a negative that looks like it.

    The negative keeps the left program; the right one becomes a program of another task, in the
    same language and of about the same length: one of the `NEAREST`. A positive for which there is
    none is left out. So neither language nor length tells the classes apart.

    Args:
        tasks: (n,) a row without a task is in no pair.
        languages: (n,)
        lengths: (n,) in characters.
        max_pairs: Both classes together.
        seed: Of the draws; equal seeds give equal pairs.
    """
    import numpy as np

    draw = np.random.default_rng(seed)
    positives = list(_positives(tasks, draw))
    chosen = draw.permutation(len(positives))[: max_pairs // 2]
    names, size = np.array(languages, dtype=object), np.asarray(lengths)
    numbers: dict[str, int] = {}
    task = np.array([numbers.setdefault(each, len(numbers)) for each in tasks], dtype=np.int64)
    has_task = np.array([bool(each) for each in tasks], dtype=bool)
    ranked = {}
    for language in set(languages):
        rows = np.flatnonzero((names == language) & has_task)
        ranked[language] = rows[np.argsort(size[rows], kind="stable")]
    found: list[tuple[int, int, int]] = []
    for left, right in (positives[at] for at in chosen):
        near = _nearest(ranked[languages[right]], size, right, task != task[left])
        if len(near):
            found += [(left, right, 1), (left, int(near[draw.integers(len(near))]), 0)]
    columns = np.array(found, dtype=np.int64).reshape(-1, 3)
    return Pairs(columns[:, 0], columns[:, 1], columns[:, 2])


def _positives(tasks: Sequence[str], draw: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Yield at most `PER_TASK` pairs of each task."""
    members: dict[str, list[int]] = {}
    for row, task in enumerate(tasks):
        if task:
            members.setdefault(task, []).append(row)
    for rows in members.values():
        every = len(rows) * (len(rows) - 1) // 2
        if every <= PER_TASK:
            yield from ((a, b) for at, a in enumerate(rows) for b in rows[at + 1 :])
            continue
        seen: set[tuple[int, int]] = set()
        while len(seen) < PER_TASK:
            a, b = (int(each) for each in draw.choice(len(rows), 2, replace=False))
            seen.add((min(a, b), max(a, b)))
        yield from ((rows[a], rows[b]) for a, b in sorted(seen))


def _nearest(ranked: np.ndarray, size: np.ndarray, row: int, is_other: np.ndarray) -> np.ndarray:
    """Return the rows of other tasks whose length is nearest to that of `row`."""
    import numpy as np

    others = ranked[is_other[ranked]]
    middle = int(np.searchsorted(size[others], size[row]))
    near = others[max(0, middle - NEAREST) : middle + NEAREST]
    return near[np.argsort(np.abs(size[near] - size[row]), kind="stable")[:NEAREST]]


def cosines(vectors: Vectors, pairs: Pairs) -> np.ndarray:
    """Return the cosine of each pair, (pairs,) float64."""
    import numpy as np

    found = np.empty(len(pairs.left))
    if isinstance(vectors, TfidfSimilarity):
        used, places = np.unique(np.concatenate([pairs.left, pairs.right]), return_inverse=True)
        vectors, _ = vectors.between(used, used)
        left, right = places[: len(pairs.left)], places[len(pairs.left) :]
    else:
        left, right = pairs.left, pairs.right
    for start in range(0, len(found), CHUNK):
        part = slice(start, start + CHUNK)
        a, b = vectors[left[part]], vectors[right[part]]
        product = a.multiply(b) if hasattr(a, "multiply") else a * b
        found[part] = np.asarray(product.sum(axis=1), dtype=np.float64).reshape(-1)
    return found


def pair_threshold(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the threshold of the highest accuracy; a pair above it counts as the same task.

    The middle between two scores; the lowest among equals. 0.5 without pairs.

    >>> import numpy as np
    >>> pair_threshold(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.6, 0.9]))
    0.5
    """
    import numpy as np

    if not len(scores):
        return 0.5
    order = np.argsort(scores, kind="stable")
    ranked, y = scores[order], labels[order]
    # right when the first k are called different: the zeros among them, the ones behind them
    right = np.concatenate([[0], np.cumsum(1 - y)]) + y.sum() - np.concatenate([[0], np.cumsum(y)])
    ends = np.flatnonzero(np.append(True, np.append(np.diff(ranked) > 0, True)))
    best = int(ends[np.argmax(right[ends])])
    if best == 0:
        return float(np.nextafter(ranked[0], -np.inf))
    return float(ranked[-1]) if best == len(y) else float((ranked[best - 1] + ranked[best]) / 2)


def pair_scores(
    vectors: Vectors,
    pairs: Pairs,
    tasks: Sequence[str],
    *,
    valid: tuple[Vectors, Pairs],
    floors: Mapping[str, tuple[Vectors, Vectors] | str] | None = None,
    resamples: int,
    seed: int,
) -> dict[str, Any]:
    """Return how well cosines tell pairs of the same task from hard negatives.

    The threshold is the best on valid and frozen. Intervals and leads come from resampling tasks,
    all scorers on the same resamples: a pair counts as often as its tasks are drawn.

    Args:
        vectors: Of the split.
        pairs: Of the split (`hard_pairs`).
        tasks: Of the split's rows.
        valid: Vectors and pairs of the validation split.
        floors: By name, vectors of the split and of valid, or why there are none.
        resamples: Number of resamples.
        seed: Of the resamples.

    Raises:
        DataError: There is no pair, or a cosine is not finite.
    """
    import numpy as np

    if not len(pairs.label):
        raise DataError(
            "there is no pair of programs of the same task to score",
            fix="Give a split in which some tasks have two programs or more.",
        )
    known = {name: value for name, value in (floors or {}).items() if not isinstance(value, str)}
    scorers, thresholds = [], []
    for each, held in [(vectors, valid[0]), *known.values()]:
        scorers.append(cosines(each, pairs))
        thresholds.append(pair_threshold(valid[1].label, cosines(held, valid[1])))
        if not np.isfinite(scorers[-1]).all():
            raise DataError("a cosine is not finite", fix="Look for vectors that are not finite.")
    rankings = [
        ranking_of(pairs.label, scores, is_positive(scores, threshold))
        for scores, threshold in zip(scorers, thresholds, strict=True)
    ]
    names = np.array(tasks, dtype=object)
    sides = [names[rows].astype(str) for rows in (pairs.left, pairs.right)]
    counts = resampled_counts(*sides, rankings, resamples, seed)
    tables = [_table(*each) for each in zip(rankings, counts, thresholds, strict=True)]
    found: dict[str, Any] = {"n_pairs": len(pairs.label), "n_positive": int(pairs.label.sum())}
    found |= tables[0] | {"n_tasks": len(set(sides[0].tolist()) | set(sides[1].tolist()))}
    found["floors"] = {
        name: {"skipped": value} for name, value in (floors or {}).items() if isinstance(value, str)
    }
    for name, table, rows in zip(known, tables[1:], counts[1:], strict=True):
        edges = interval(rates(counts[0])["roc_auc"] - rates(rows)["roc_auc"])
        lead = None if edges is None else [tables[0]["roc_auc"] - table["roc_auc"], *edges]
        found["floors"][name] = table | {"lead": lead}
    return found


def _table(ranking: Any, counts: np.ndarray, threshold: float) -> dict[str, Any]:
    once, spread = rates(ranking.counts(None)[None, :]), rates(counts)
    names = {
        "roc_auc": "roc_auc",
        "pr_auc": "average_precision",
        "accuracy": "accuracy",
        "f1": "f1",
    }
    found: dict[str, Any] = {}
    for key, name in names.items():
        found[name] = plain(once[key][0])
        found[f"{name}_interval"] = interval(spread[key])
    return found | {"threshold": float(threshold)}
