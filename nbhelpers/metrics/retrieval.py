"""Retrieval of programs of the same task by similarity, and pairs against hard negatives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nbhelpers.errors import DataError
from nbhelpers.metrics.detection import ranking_of, rates, task_groups
from nbhelpers.metrics.intervals import divide, interval, plain
from nbhelpers.metrics.ngrams import TfidfSimilarity
from nbhelpers.metrics.ranking import is_positive
from nbhelpers.metrics.resampling import resampled_counts, resampled_sums

# ------------------------------------------------------------------------------------------------
# Programs that solve the same task, found by similarity: ranks, and pairs against hard negatives.
#
# Vectors are dense (n, d) arrays of unit length, or sparse matrices of unit rows (TF-IDF). Ties
# count against us: a space in which everything is alike ranks the right program last.


BLOCK_VALUES = 16_000_000  # similarities held at once: 64 MB in float32
MIN_QUERIES = 20  # of a pair of languages: fewer say too little for a row of the table


# Vectors of programs: dense (n, d), sparse, or `TfidfSimilarity` of their codes.
Vectors = Any


class Ranks(NamedTuple):
    """What each query found; NaN where the pool holds no program of its task."""

    reciprocal_rank: np.ndarray  # (queries,) of the first program of the same task
    average_precision: np.ndarray  # (queries,) at R, the number of such programs


def rank_queries(
    query_vectors: Any,
    query_tasks: Sequence[str],
    pool_vectors: Any,
    pool_tasks: Sequence[str],
    *,
    same: Sequence[int] | np.ndarray | None = None,
) -> Ranks:
    """Rank the pool by similarity for each query.

    Works block by block: similarities of all pairs never exist at once.

    Args:
        query_vectors: (queries, d) unit vectors, dense or sparse.
        query_tasks: (queries,) a query without a task has no rank.
        pool_vectors: (pool, d).
        pool_tasks: (pool,)
        same: (queries,) position of the query itself in the pool, which it must not find; -1 where
            it is not there. None: no query is in the pool.

    Source: average precision at R as in Musgrave et al. 2020, A Metric Learning Reality Check,
    section 3.2.

    Raises:
        DataError: Lengths do not fit.
    """
    n_queries, n_pool = query_vectors.shape[0], pool_vectors.shape[0]
    if len(query_tasks) != n_queries or len(pool_tasks) != n_pool:
        raise DataError(
            f"{len(query_tasks)} and {len(pool_tasks)} tasks for {n_queries} queries and a pool of "
            f"{n_pool}",
            fix="Give one task to each vector; '' for none.",
        )
    itself = np.full(n_queries, -1) if same is None else np.asarray(same, dtype=np.int64)
    places: dict[str, list[int]] = {}
    for at, task in enumerate(pool_tasks):
        if task:
            places.setdefault(task, []).append(at)
    query_ranks = Ranks(np.full(n_queries, np.nan), np.full(n_queries, np.nan))
    for start, block in similarity_blocks(query_vectors, pool_vectors):
        wanted = []
        for at, row in enumerate(block, start=start):
            right = [place for place in places.get(query_tasks[at], ()) if place != itself[at]]
            wanted.append(np.sort(row[right])[::-1])  # a copy, falling
            row[right] = -np.inf
            if itself[at] >= 0:
                row[itself[at]] = -np.inf
        block.sort(axis=1)
        for at, (row, scores) in enumerate(zip(block, wanted, strict=True), start=start):
            if not len(scores):
                continue
            order = np.arange(1, len(scores) + 1)
            ranks = order + n_pool - np.searchsorted(row, scores, "left")
            query_ranks.reciprocal_rank[at] = 1 / ranks[0]
            precision = np.where(ranks <= len(scores), order / ranks, 0.0)
            query_ranks.average_precision[at] = precision.mean()
    return query_ranks


def similarity_blocks(left: Any, right: Any) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first row, (rows, n_right) float32 similarities) for all rows of `left` in turn."""
    size = max(1, BLOCK_VALUES // max(1, right.shape[0]))
    turned = right.T
    for start in range(0, left.shape[0], size):
        block = left[start : start + size] @ turned
        block = block.toarray() if hasattr(block, "toarray") else np.asarray(block)
        yield start, np.ascontiguousarray(block, dtype=np.float32)


def retrieval(
    vectors: Vectors,
    tasks: Sequence[str],
    queries: np.ndarray,
    pool: np.ndarray,
    *,
    floors: Mapping[str, Vectors | str] | None = None,
    resamples: int,
    seed: int,
) -> dict[str, Any]:
    """Return MRR and MAP@R with intervals from resampling tasks, and the lead over each baseline.

    Queries without a program of their task in the pool are left out and counted in `n_without`. A
    lead is our MRR minus the baseline's, on the same queries and resamples: [lead, low, high];
    `lead_map_at_r` likewise.

    Args:
        vectors: Of all programs.
        tasks: (n,) of all programs.
        queries: (queries,) positions of the programs that look for others.
        pool: (pool,) positions of the programs that are looked through.
        floors: By name, other vectors of all programs, or why there are none.
        resamples: Number of resamples.
        seed: Of the resamples.
    """
    place = np.full(len(tasks), -1)
    place[pool] = np.arange(len(pool))
    sides = [[tasks[at] for at in positions] for positions in (queries, pool)]

    def ranked(of: Vectors) -> Ranks:
        def rank() -> Ranks:
            left, right = _sides(of, queries, pool)
            return rank_queries(left, sides[0], right, sides[1], same=place[queries])

        is_counted = isinstance(of, TfidfSimilarity)
        return of.answer(rank, queries, pool, *sides) if is_counted else rank()

    ours = ranked(vectors)
    known = np.flatnonzero(~np.isnan(ours.reciprocal_rank))
    groups = task_groups([sides[0][at] for at in known], len(known))
    spread = _spread(ours, known, groups, resamples, seed)
    result: dict[str, Any] = {
        "n_queries": len(known),
        "n_without": len(queries) - len(known),
        "n_tasks": len(set(groups.tolist())),
        "pool_size": len(pool),
    }
    for at, name in enumerate(("mrr", "map_at_r")):
        result[name] = float(ours[at][known].mean()) if len(known) else None
        result[f"{name}_interval"] = interval(spread[at])
    result["floors"] = {}
    for name, other in (floors or {}).items():
        if isinstance(other, str):
            result["floors"][name] = {"skipped": other}
            continue
        theirs, scores = ranked(other), {}
        other_spread = _spread(theirs, known, groups, resamples, seed)
        for at, (key, lead) in enumerate((("mrr", "lead"), ("map_at_r", "lead_map_at_r"))):
            scores[key] = float(theirs[at][known].mean()) if len(known) else None
            edges = interval(spread[at] - other_spread[at])
            scores[lead] = None if edges is None else [result[key] - scores[key], *edges]
        result["floors"][name] = scores
    return result


def _spread(
    ranks: Ranks, known: np.ndarray, groups: np.ndarray, resamples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the resampled means of both values, (resamples,) each."""
    if not len(known):
        return np.full(1, np.nan), np.full(1, np.nan)
    columns = np.stack([ranks[0][known], ranks[1][known], np.ones(len(known))], axis=1)
    sums = resampled_sums(columns, resamples, seed, groups)
    return divide(sums[:, 0], sums[:, 2]), divide(sums[:, 1], sums[:, 2])


def _sides(vectors: Vectors, left: np.ndarray, right: np.ndarray) -> tuple[Any, Any]:
    """Return the vectors of two lists of programs."""
    if isinstance(vectors, TfidfSimilarity):
        return vectors.between(left, right)
    return vectors[left], vectors[right]


def retrieval_table(
    vectors: Vectors,
    tasks: Sequence[str],
    languages: Sequence[str],
    *,
    floors: Mapping[str, Vectors | str] | None = None,
    max_pool: int | None = None,
    min_queries: int = MIN_QUERIES,
    resamples: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Return `retrieval` from every language to every other one, and from all to all.

    Directions with fewer than `min_queries` queries that can find something are left out.

    Args:
        vectors: Of all programs.
        tasks: (n,)
        languages: (n,) "" is in no direction but the last.
        floors: As for `retrieval`.
        max_pool: A larger pool is reduced to as many programs by one draw with `seed`.
        min_queries: See above.
        resamples: Number of resamples.
        seed: Of the resamples and of the draw.
    """
    names = np.array(languages, dtype=object)
    known = sorted(set(languages) - {""})
    rows = []
    for query, pool in [(a, b) for a in known for b in known if a != b] + [("all", "all")]:
        queries = np.flatnonzero(names == query) if query != "all" else np.arange(len(tasks))
        members = np.flatnonzero(names == pool) if pool != "all" else np.arange(len(tasks))
        if max_pool is not None and len(members) > max_pool:
            members = np.sort(np.random.default_rng(seed).permutation(members)[:max_pool])
            queries = queries if query != "all" else members
        # a query that stands in the pool itself needs another one of its task there
        counts, inside = Counter(tasks[at] for at in members), set(members.tolist())
        able = [bool(tasks[at]) and counts[tasks[at]] > (at in inside) for at in queries.tolist()]
        queries = queries[np.array(able, dtype=bool)]
        if len(queries) >= min_queries:
            scores = retrieval(
                vectors, tasks, queries, members, floors=floors, resamples=resamples, seed=seed
            )
            rows.append({"query": query, "pool": pool} | scores)
    return rows


# ------------------------------------------------------------------------------------------------
# Pairs of the same task against hard negatives: told apart by cosine, or not.


NEAREST = 10  # programs of the most similar length that a negative is drawn from
PER_TASK = 50  # positive pairs of one task at most: a large task must not be the whole test
CHUNK = 4096  # pairs whose vectors are held together


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
    triples: list[tuple[int, int, int]] = []
    for left, right in (positives[at] for at in chosen):
        near = _nearest(ranked[languages[right]], size, right, task != task[left])
        if len(near):
            triples += [(left, right, 1), (left, int(near[draw.integers(len(near))]), 0)]
    columns = np.array(triples, dtype=np.int64).reshape(-1, 3)
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
    others = ranked[is_other[ranked]]
    middle = int(np.searchsorted(size[others], size[row]))
    near = others[max(0, middle - NEAREST) : middle + NEAREST]
    return near[np.argsort(np.abs(size[near] - size[row]), kind="stable")[:NEAREST]]


def cosines(vectors: Vectors, pairs: Pairs) -> np.ndarray:
    """Return the cosine of each pair, (pairs,) float64."""
    if isinstance(vectors, TfidfSimilarity):
        return vectors.answer(lambda: _cosines(vectors, pairs), pairs.left, pairs.right)
    return _cosines(vectors, pairs)


def _cosines(vectors: Vectors, pairs: Pairs) -> np.ndarray:
    values = np.empty(len(pairs.left))
    used, places = np.unique(np.concatenate([pairs.left, pairs.right]), return_inverse=True)
    vectors, _ = _sides(vectors, used, used)
    left, right = places[: len(pairs.left)], places[len(pairs.left) :]
    for start in range(0, len(values), CHUNK):
        part = slice(start, start + CHUNK)
        a, b = vectors[left[part]], vectors[right[part]]
        product = a.multiply(b) if hasattr(a, "multiply") else a * b
        values[part] = np.asarray(product.sum(axis=1), dtype=np.float64).reshape(-1)
    return values


def pair_threshold(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the threshold of the highest accuracy; a pair above it counts as the same task.

    The middle between two scores; the lowest among equals. 0.5 without pairs.

    >>> import numpy as np
    >>> pair_threshold(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.6, 0.9]))
    0.5
    """
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
    if not len(pairs.label):
        raise DataError(
            "there is no pair of programs of the same task to score",
            fix="Give a split in which some tasks have two programs or more.",
        )
    known = {name: value for name, value in (floors or {}).items() if not isinstance(value, str)}
    scorers, thresholds = [], []
    for each, valid_vectors in [(vectors, valid[0]), *known.values()]:
        scorers.append(cosines(each, pairs))
        thresholds.append(pair_threshold(valid[1].label, cosines(valid_vectors, valid[1])))
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
    result: dict[str, Any] = {"n_pairs": len(pairs.label), "n_positive": int(pairs.label.sum())}
    result |= tables[0] | {"n_tasks": len(set(sides[0].tolist()) | set(sides[1].tolist()))}
    result["floors"] = {
        name: {"skipped": value} for name, value in (floors or {}).items() if isinstance(value, str)
    }
    for name, table, rows in zip(known, tables[1:], counts[1:], strict=True):
        edges = interval(rates(counts[0])["roc_auc"] - rates(rows)["roc_auc"])
        difference = None if edges is None else [tables[0]["roc_auc"] - table["roc_auc"], *edges]
        result["floors"][name] = table | {"lead": difference}
    return result


def _table(ranking: Any, counts: np.ndarray, threshold: float) -> dict[str, Any]:
    once, spread = rates(ranking.counts(None)[None, :]), rates(counts)
    names = {"roc_auc": "roc_auc", "pr_auc": "average_precision"}
    names |= {"accuracy": "accuracy", "f1": "f1"}
    scores: dict[str, Any] = {}
    for key, name in names.items():
        scores[name] = plain(once[key][0])
        scores[f"{name}_interval"] = interval(spread[key])
    return scores | {"threshold": float(threshold)}
