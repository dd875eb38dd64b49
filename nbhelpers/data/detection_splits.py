"""Splits of detection rows that share no task, no author and no code, and proof of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import DataError
from .detection_draw import draw_splits
from .detection_groups import NearRows, Relations, components, largest, relations, split_place
from .detection_rows import CodeRow
from .problems import ProblemLog

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Splits = dict[str, NDArray[np.int64]]

NAMES = ("train", "valid", "test")
# Ties that hold rows together, the weakest is given up first where one group would hold nearly all.
TIES = (("task", "author", "code"), ("task", "author"), ("task", "code"), ("task",))
EXAMPLES_KEPT = 5
# Less than this share of the rows wanted, and a split counts as failed.
ENOUGH = 0.5


class Pool(NamedTuple):
    """Distinct rows, the splits they are given, and what ties them together."""

    rows: Sequence[CodeRow]
    given: Sequence[str]
    ties: Relations
    near: NearRows
    labelled: bool
    log: ProblemLog

    def labels(self, at: NDArray[np.int64]) -> Counter[str | None]:
        """Rows of each label among some."""
        return Counter(self.rows[n].label for n in at.tolist())


def make_pool(
    rows: Sequence[CodeRow],
    given: Sequence[str],
    texts: Sequence[str],
    log: ProblemLog,
    *,
    labelled: bool,
) -> Pool:
    """Rows made ready to be split; `texts` are theirs in canonical form, all distinct."""
    near = NearRows(texts)
    return Pool(rows, given, relations(rows, near), near, labelled, log)


def split_rows(
    pool: Pool, *, split: str, seed: int, valid_share: float, test_share: float
) -> tuple[Splits, dict[str, Any]]:
    """Given or drawn splits without overlap, and how they came about, as JSON.

    Raises:
        DataError: The splits that were asked for are not there, or no split is possible.
    """
    import numpy as np

    there = Counter(pool.given)
    shares = {"valid": valid_share, "test": test_share}
    has_given = there["train"] and (there["valid"] or there["test"])
    if split == "given" and not has_given:
        raise _not_given(pool, there)
    if split == "task" or not has_given:
        return draw(pool, np.arange(len(pool.rows)), shares, seed)
    splits = {n: np.flatnonzero(np.array(pool.given) == n) for n in NAMES}
    lacking = [n for n in ("valid", "test") if not len(splits[n])]
    unnamed = len(pool.rows) - sum(map(len, splits.values()))
    if unnamed:
        at = next(n for n, name in enumerate(pool.given) if name not in NAMES)
        detail = "rows without a split, left out"
        pool.log.add("unknown_split", *split_place(pool.rows[at].place), detail, n=unnamed)
    how: dict[str, Any] = {"how": "given", "unnamed": unnamed}
    if lacking:
        part = {n: shares[n] for n in lacking}
        drawn, told = draw(pool, splits["train"], part, seed)
        splits |= {n: drawn[n] for n in ("train", *lacking)}
        how |= {"how": f"given; {', '.join(lacking)} drawn from train", "drawn": told}
    splits, how["left_out"] = without_overlap(pool, splits)
    return splits, how


def _not_given(pool: Pool, there: Counter[str]) -> DataError:
    found = ", ".join(f"{n:,} {name or 'without one'}" for name, n in there.items())
    return DataError(
        f"split=given needs rows named train and valid or test; of {len(pool.rows):,} rows there "
        f"are: {found}.",
        fix="write them in a column split or into files train.*, valid.*, test.*; or set "
        "split=task, which draws them.",
    )


def draw(
    pool: Pool, at: NDArray[np.int64], shares: dict[str, float], seed: int
) -> tuple[Splits, dict[str, Any]]:
    """Draw splits among some rows by the strongest ties that allow it.

    Raises:
        DataError: Even by task alone too many rows hold together.
    """
    import numpy as np

    rows = [pool.rows[n] for n in at.tolist()]
    tried: list[str] = []
    for names in TIES:
        groups = components(len(rows), [getattr(pool.ties, name)[at] for name in names])
        drawn = draw_splits(rows, groups, shares, seed)
        splits = {name: at[np.array(found, dtype=np.int64)] for name, found in drawn.items()}
        splits, left_out = without_overlap(pool, splits, quiet=True)
        size, first = largest(groups)
        fault = _fault(pool, splits, len(rows), shares)
        if fault is None:
            _tell_drawn(pool, splits, names, tried)
            told = {"how": "drawn", "by": list(names), "n_groups": len(set(groups.tolist()))}
            return splits, told | {"largest_group": size, "left_out": left_out, "tried": tried}
        tried.append(
            f"by {', '.join(names)}: the largest group holds {size:,} of {len(rows):,} rows (that "
            f"of {rows[first].place}), and {fault}"
        )
    raise _no_split(pool, at, tried)


def _fault(pool: Pool, splits: Splits, n_rows: int, shares: dict[str, float]) -> str | None:
    """Why drawn splits cannot be used, if so."""
    wanted = {"train": 1 - sum(shares.values()), **shares}
    for name, share in wanted.items():
        found = splits[name]
        if not len(found) or len(found) < ENOUGH * share * n_rows - 1:
            return f"{name} would get {len(found):,} rows instead of about {share * n_rows:,.0f}"
        if pool.labelled and len(labels := pool.labels(found)) < 2:
            return f"{name} would get {next(iter(labels))} rows only"
    return None


def _tell_drawn(pool: Pool, splits: Splits, names: tuple[str, ...], tried: list[str]) -> None:
    place = pool.rows[0].place
    sizes = ", ".join(f"{name} {len(found):,}" for name, found in splits.items())
    pool.log.add("split_drawn", *split_place(place), sizes, n=sum(map(len, splits.values())))
    if tried:
        pool.log.add("split_weaker", *split_place(place), f"drawn by {', '.join(names)}")


def _no_split(pool: Pool, at: NDArray[np.int64], tried: list[str]) -> DataError:
    rows = [pool.rows[n] for n in at.tolist()]
    labels = Counter(row.label for row in rows)
    few = min(labels.values()) if pool.labelled else len(rows)
    n_tasks = len({row.task for row in rows if row.task})
    fix = f"give more rows (the rarer class has {few:,}) or more tasks ({n_tasks:,} here)."
    ties = {what: _most(getattr(pool.ties, what)[at]) for what in ("task", "author", "code")}
    many = max(1, len(rows) / 10)
    n, first = ties["task"]
    if pool.labelled and len(labels) < 2:
        fix = f"give rows of both classes: all of these are {next(iter(labels))}."
    elif n > len(rows) / 2:
        fix = (
            f"{n:,} rows have the task {rows[first].task!r}: give finer task ids, or leave the "
            "column out where it does not name what a program solves; or give splits of your own."
        )
    elif ties["code"][0] > many:
        n, first = ties["code"]
        fix = (
            f"{n:,} rows nearly repeat {rows[first].place}: leave out all but a few of what looks "
            "drawn from one template."
        )
    elif ties["author"][0] > many:
        n, first = ties["author"]
        fix = (
            f"{n:,} rows are by {rows[first].author}: give code of more people, or leave the "
            "column author out where it does not name people."
        )
    message = f"No split of the {len(rows):,} rows is possible in which nothing is shared."
    return DataError(message, fix=fix, details="\n".join(tried))


def _most(numbers: NDArray[np.int64]) -> tuple[int, int]:
    """How many rows the most frequent number has, and the first of them; -1 is no number."""
    counts = Counter(number for number in numbers.tolist() if number >= 0)
    if not counts:
        return 0, 0
    number, n = counts.most_common(1)[0]
    return n, numbers.tolist().index(number)


def without_overlap(
    pool: Pool, splits: Splits, *, quiet: bool = False
) -> tuple[Splits, dict[str, Any]]:
    """Leave out rows of train that share something with valid or test, and of valid with test."""
    splits, told = dict(splits), {}
    there = [name for name in ("test", "valid", "train") if name in splits]
    for n, name in enumerate(there[1:], 1):
        bad: dict[int, tuple[str, int]] = {}
        for other in there[:n]:
            for at, found in shared_rows(pool, splits[name], splits[other]).items():
                bad.setdefault(at, found)
        splits[name] = _apart(splits[name], bad)
        if bad:
            told[name] = tell_shared(pool, bad, name, quiet=quiet)
    return splits, told


def _apart(found: NDArray[np.int64], bad: dict[int, Any]) -> NDArray[np.int64]:
    import numpy as np

    return np.array([at for at in found.tolist() if at not in bad], dtype=np.int64)


def shared_rows(
    pool: Pool, some: NDArray[np.int64], others: NDArray[np.int64]
) -> dict[int, tuple[str, int]]:
    """Rows that share a task, an author or like code with one of others: what, and which row."""
    found: dict[int, tuple[str, int]] = {}
    for what in ("task", "author"):
        numbers = getattr(pool.ties, what)
        first: dict[int, int] = {}
        for at in others.tolist():
            first.setdefault(int(numbers[at]), at)
        first.pop(-1, None)
        for at in some.tolist():
            if (of := first.get(int(numbers[at]))) is not None:
                found.setdefault(at, (what, of))
    for at, of in zip(some.tolist(), pool.near.like(some, others).tolist(), strict=True):
        if of >= 0:
            found.setdefault(at, ("near_code", of))
    return found


def tell_shared(
    pool: Pool, bad: dict[int, tuple[str, int]], name: str, *, quiet: bool = False
) -> dict[str, Any]:
    """Counts of rows left out by what they share, with examples; also into the log."""
    counts = Counter(what for what, _ in bad.values())
    examples = [
        f"{pool.rows[at].place} shares its {what.replace('_', ' ')} with {pool.rows[of].place}"
        for at, (what, of) in list(bad.items())[:EXAMPLES_KEPT]
    ]
    if not quiet:
        detail = f"{name}, {', '.join(f'{n:,} by {what}' for what, n in counts.items())}"
        file, line = split_place(pool.rows[next(iter(bad))].place)
        pool.log.add("shared", file, line, detail, n=len(bad))
    return {"rows": len(bad), **dict(counts), "examples": examples}


def overlap_of(pool: Pool, splits: Splits) -> dict[str, dict[str, int]]:
    """Rows of the first split of each pair that share something with the second, counted anew.

    test and held_out are both for evaluation and may share rows.

    Raises:
        AssertionError: A fault of this module: something is shared.
    """
    names = [name for name in ("train", "valid", "test", "held_out") if name in splits]
    pairs = [(a, b) for n, a in enumerate(names) for b in names[n + 1 :]]
    found: dict[str, dict[str, int]] = {}
    for one, other in pairs:
        if (one, other) == ("test", "held_out"):
            continue
        counts = dict.fromkeys(("code", "task", "author", "near_code"), 0)
        texts = {pool.near.texts[at] for at in splits[other].tolist()}
        counts["code"] = sum(pool.near.texts[at] in texts for at in splits[one].tolist())
        for what, _ in shared_rows(pool, splits[one], splits[other]).values():
            counts[what] += 1
        assert not any(counts.values()), f"{one} and {other} share rows: {counts}"
        found[f"{one}/{other}"] = counts
    return found
