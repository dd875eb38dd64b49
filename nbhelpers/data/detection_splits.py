"""Splits of detection rows that share no task, no author and no code, and proof of it."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nbhelpers.common.files import cached
from nbhelpers.data.canonical import canonical
from nbhelpers.data.detection_rows import CodeRow
from nbhelpers.data.findings import Findings
from nbhelpers.data.languages import AI, HUMAN, language_of
from nbhelpers.data.near_duplicates import SHINGLE_TOKENS, THRESHOLD, ShingleIndex
from nbhelpers.errors import ConfigError, DataError

Numbers = NDArray[np.int64]
Splits = dict[str, Numbers]


# ------------------------------------------------------------------------------------------------
# Draws whole groups of rows into splits, so that labels, languages and sources stay in proportion.
#
# A draw follows from the texts of a group and a seed: rows more or less leave the order of the
# other groups as it is.


ROOM = 1.15  # a split may become this much larger than asked for
Stratum = tuple[str, ...]


def group_order(rows: Sequence[CodeRow], groups: Numbers, seed: int) -> dict[int, list[int]]:
    """Rows of each group, the groups in an order that follows from their texts and the seed."""
    members: dict[int, list[int]] = defaultdict(list)
    for at, group in enumerate(groups.tolist()):
        members[group].append(at)
    keys = {
        group: min(_key(rows[at], seed) for at in numbers) for group, numbers in members.items()
    }
    return {group: members[group] for group in sorted(members, key=lambda g: (keys[g], g))}


def _key(row: CodeRow, seed: int) -> bytes:
    text = f"{seed}\0{row.label}\0{row.task}\0{row.code}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def draw_splits(
    rows: Sequence[CodeRow],
    groups: Numbers,
    shares: dict[str, float],
    seed: int,
) -> dict[str, list[int]]:
    """Deal groups to splits, each to the one that lacks such rows most.

    Large groups go first; one that would overfill a split goes to another.

    Args:
        rows: All rows to be dealt.
        groups: Group of each row.
        shares: Share of the rows for each split but "train", which gets the rest.
        seed: Of the order of the groups.
    """
    shares = {"train": 1 - sum(shares.values()), **shares}
    strata = [_strata(row) for row in rows]
    total = Counter(stratum for own in strata for stratum in own)
    filled = {name: Counter[Stratum]() for name in shares}
    sizes = dict.fromkeys(shares, 0)
    done: dict[str, list[int]] = {name: [] for name in shares}
    ordered = group_order(rows, groups, seed)
    for group in sorted(ordered.values(), key=lambda one: -len(one).bit_length()):
        counts = Counter(stratum for at in group for stratum in strata[at])

        def lack(name: str, counts: Counter[Stratum] = counts) -> float:
            return sum(
                n * max(-1.0, 1 - filled[name][stratum] / (shares[name] * total[stratum]))
                for stratum, n in counts.items()
            )

        free = [
            name
            for name, size in sizes.items()
            if name == "train"
            or size + len(group) <= ROOM * shares[name] * len(rows)
            or (not size and len(group) <= 2 * shares[name] * len(rows) + 1)
        ]
        chosen = max(free, key=lack)  # the first of equals: train
        filled[chosen].update(counts)
        sizes[chosen] += len(group)
        done[chosen] += group
    return {name: sorted(numbers) for name, numbers in done.items()}


def _strata(row: CodeRow) -> tuple[Stratum, ...]:
    """A row counts on its own, by label, and by label, language and source: rare strata stay."""
    return (), (str(row.label),), (str(row.label), row.language, row.source)


def draw_train(
    rows: Sequence[CodeRow],
    groups: Numbers,
    *,
    fraction: float,
    max_samples: int | None,
    seed: int,
) -> list[int]:
    """Numbers of the rows of whole groups up to a share of the rows and an upper limit.

    Languages and sources stay in proportion as far as whole groups allow; a group that does not fit
    is passed over.
    """
    wanted = max(1, int(len(rows) * fraction + 1e-9))
    wanted = min(wanted, max_samples or wanted)
    if wanted >= len(rows):
        return list(range(len(rows)))
    share = wanted / len(rows)
    room = {kind: share * n for kind, n in Counter(_kind(row) for row in rows).items()}
    groups_left = list(group_order(rows, groups, seed).values())
    drawn: list[int] = []
    for is_in_proportion in (True, False):  # first each kind its part, then what still fits
        passed_over = []
        for group in groups_left:
            kinds = Counter(_kind(rows[at]) for at in group)
            is_due = all(n <= room[kind] for kind, n in kinds.items()) or not is_in_proportion
            if is_due and len(drawn) + len(group) <= wanted:
                drawn += group
                room |= {kind: room[kind] - n for kind, n in kinds.items()}
            else:
                passed_over.append(group)
        groups_left = passed_over
    return sorted(drawn)


def _kind(row: CodeRow) -> Stratum:
    return row.language, row.source


# ------------------------------------------------------------------------------------------------
# Which rows of code belong together: one text, near-duplicates, one task, one author.
#
# Rows are known by their text in canonical form, so that neither their order nor their place in a
# file decides what is drawn.


EVALUATED_FIRST = {"test": 0, "valid": 1, "train": 2}  # which copy of a repeated row is kept
NEAR_FORMAT = 1  # of the cached files


class Distinct(NamedTuple):
    """Rows with the repeats left out: numbers of those kept, their texts, and what was left out."""

    kept: list[int]
    texts: list[str]
    n_same: int
    n_conflicts: int


def digest(text: str) -> bytes:
    """Name of a text, also of one that cannot be stored."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def distinct_rows(
    rows: Sequence[CodeRow],
    form: str,
    findings: Findings,
    *,
    labelled: bool = True,
) -> Distinct:
    """One row of each text in canonical form, in file order.

    The copy in test is kept before one in valid and that before one in train. A text with both
    labels teaches nothing and is left out altogether, where labels count. One that the canonical
    form leaves nothing of is a problem.
    """
    members: dict[bytes, list[int]] = {}
    texts: dict[int, str] = {}
    for at, row in enumerate(rows):
        text = canonical(row.code, form)
        if not text.strip():
            findings.add(
                "empty_code", *split_place(row.place), f"nothing is left in the form {form}"
            )
            continue
        same = members.setdefault(digest(text), [])
        same.append(at)
        if len(same) == 1:
            texts[at] = text
    chosen, n_same, n_conflicts = [], 0, 0
    for same in members.values():
        if labelled and len({rows[at].label for at in same} - {None}) > 1:
            n_conflicts += len(same)
            _tell(findings, "both_classes", rows, same, len(same))
            continue
        best = min(same, key=lambda at: (EVALUATED_FIRST.get(rows[at].split, 3), at))
        texts[best] = texts[same[0]]
        chosen.append(best)
        if len(same) > 1:
            n_same += len(same) - 1
            _tell(
                findings,
                "same_code",
                rows,
                [at for at in same if at != best] + [best],
                len(same) - 1,
            )
    chosen.sort()
    return Distinct(chosen, [texts[at] for at in chosen], n_same, n_conflicts)


def _tell(findings: Findings, kind: str, rows: Sequence[CodeRow], same: list[int], n: int) -> None:
    findings.add(kind, *split_place(rows[same[0]].place), f"as {rows[same[-1]].place}", n=n)


def split_place(place: str) -> tuple[str, int | None]:
    """File and line of a place; a code file has no line.

    >>> split_place("a/b.jsonl:12"), split_place("a.py")
    (('a/b.jsonl', 12), ('a.py', None))
    """
    file, _, line = place.rpartition(":")
    return (file, int(line)) if file and line.isdigit() else (place, None)


class NearRows:
    """Near-duplicates among texts, looked for once: the answers are kept in the user's cache.

    Source: `near_duplicates` (exact Jaccard similarity of token shingles, at its threshold).
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        digests = [digest(text) for text in texts]
        # By content, so that another order of the rows gives the same stars.
        self._order = sorted(range(len(texts)), key=digests.__getitem__)
        self._key = [f"{NEAR_FORMAT} {THRESHOLD} {SHINGLE_TOKENS}", *digests]

    @cached_property
    def _index(self) -> ShingleIndex:
        return ShingleIndex(self.texts)

    def stars(self) -> Numbers:
        """For each text the one that it resembles, itself where there is none before it.

        Two texts that resemble a third need not resemble each other, and a text may resemble two
        that stand for themselves: `like` finds those that stars leave apart.
        """

        def search() -> Numbers:
            stars = np.arange(len(self.texts))
            for match in self._index.repeats(self._order):
                stars[match.row] = match.of
            return stars

        return self._kept(["stars"], search)

    def like(self, rows: Numbers, references: Numbers) -> Numbers:
        """For each row a reference that it resembles, or -1."""

        def search() -> Numbers:
            at = {int(row): n for n, row in enumerate(rows)}
            like = np.full(len(rows), -1)
            for match in self._index.matches(at, map(int, references)):
                like[at[match.row]] = match.of
            return like

        if not len(rows) or not len(references):
            return np.full(len(rows), -1)
        numbers = [part.astype("<i8").tobytes() for part in (rows, references)]
        return self._kept(["like", *numbers], search)

    def _kept(self, asked: list[str | bytes], search: Callable[[], Numbers]) -> Numbers:
        return cached(
            "near_rows", [*asked, *self._key], search, load=np.load, save=np.save, suffix=".npy"
        )


class Relations(NamedTuple):
    """What ties rows together: per relation a number for each row, -1 where it has none."""

    task: Numbers
    author: Numbers
    code: Numbers  # near-duplicates, as stars


def relations(rows: Sequence[CodeRow], near: NearRows) -> Relations:
    """Relations of distinct rows.

    An author counts where human or unlabelled code has that author: the model that is named as the
    author of AI code ties its rows to nothing.
    """
    people = {row.author.casefold() for row in rows if row.label != "ai"}
    return Relations(
        task=numbers_of(row.task for row in rows),
        author=numbers_of(a if (a := row.author.casefold()) in people else "" for row in rows),
        code=near.stars(),
    )


def numbers_of(words: Iterable[str]) -> Numbers:
    """The same number for equal words, -1 for an empty one."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(w, len(known)) if w else -1 for w in words], dtype=np.int64)


def components(n: int, tied: Iterable[Numbers]) -> Numbers:
    """Number of the connected component of each of n rows: equal numbers >= 0 tie rows together.

    >>> import numpy as np
    >>> components(4, [np.array([0, 0, 1, -1]), np.array([-1, 5, 5, -1])]).tolist()
    [0, 0, 0, 3]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = [np.zeros((2, 0), dtype=np.int64)]
    for numbers in tied:
        rows = np.flatnonzero(numbers >= 0)
        _, first, group = np.unique(numbers[rows], return_index=True, return_inverse=True)
        edges.append(np.stack([rows, rows[first[group]]]))
    ends = np.concatenate(edges, axis=1)
    graph = coo_array((np.ones(ends.shape[1]), tuple(ends)), shape=(n, n))
    count, component = connected_components(graph, directed=False)
    smallest = np.full(count, n)
    np.minimum.at(smallest, component, np.arange(n))
    return smallest[component]


def largest(numbers: Numbers) -> tuple[int, int]:
    """How many rows the most frequent number has, and the first of them; -1 is no number."""
    counts = Counter(number for number in numbers.tolist() if number >= 0)
    if not counts:
        return 0, 0
    number, n = counts.most_common(1)[0]
    return n, numbers.tolist().index(number)


# ------------------------------------------------------------------------------------------------
# Splits of detection rows that share no task, no author and no code, and proof of it.


NAMES = ("train", "valid", "test")
# Ties that hold rows together, the weakest is given up first where one group would hold nearly all.
TIES = (("task", "author", "code"), ("task", "author"), ("task", "code"), ("task",))
EXAMPLES_KEPT = 5
# Less than this share of the rows wanted, and a split counts as failed.
ENOUGH = 0.5


class Pool(NamedTuple):
    """Distinct rows, and what ties them together."""

    rows: Sequence[CodeRow]
    ties: Relations
    near: NearRows
    labelled: bool
    findings: Findings

    def labels(self, at: Numbers) -> Counter[str | None]:
        """Rows of each label among some."""
        return Counter(self.rows[n].label for n in at.tolist())


def make_pool(
    rows: Sequence[CodeRow],
    texts: Sequence[str],
    findings: Findings,
    *,
    labelled: bool,
) -> Pool:
    """Rows made ready to be split; `texts` are theirs in canonical form, all distinct."""
    near = NearRows(texts)
    return Pool(rows, relations(rows, near), near, labelled, findings)


def split_rows(
    pool: Pool, *, split: str, seed: int, valid_share: float, test_share: float
) -> tuple[Splits, dict[str, Any]]:
    """Given or drawn splits without overlap, and how they came about, as JSON.

    Raises:
        DataError: The splits that were asked for are not there, or no split is possible.
    """
    given = np.array([row.split for row in pool.rows])
    there = Counter(given.tolist())
    shares = {"valid": valid_share, "test": test_share}
    has_given = there["train"] and (there["valid"] or there["test"])
    if split == "given" and not has_given:
        raise _not_given(pool, there)
    if split == "task" or not has_given:
        return draw(pool, np.arange(len(pool.rows)), shares, seed)
    splits = {n: np.flatnonzero(given == n) for n in NAMES}
    lacking = [n for n in ("valid", "test") if not len(splits[n])]
    unnamed = len(pool.rows) - sum(map(len, splits.values()))
    if unnamed:
        at = next(n for n, name in enumerate(given) if name not in NAMES)
        detail = "rows without a split, left out"
        pool.findings.add("unknown_split", *split_place(pool.rows[at].place), detail, n=unnamed)
    how: dict[str, Any] = {"how": "given", "unnamed": unnamed}
    if lacking:
        part = {n: shares[n] for n in lacking}
        drawn, facts = draw(pool, splits["train"], part, seed)
        splits |= {n: drawn[n] for n in ("train", *lacking)}
        how |= {"how": f"given; {', '.join(lacking)} drawn from train", "drawn": facts}
    splits, how["left_out"] = without_overlap(pool, splits)
    return splits, how


def _not_given(pool: Pool, there: Counter[str]) -> DataError:
    counts = ", ".join(f"{n:,} {name or 'without one'}" for name, n in there.items())
    return DataError(
        f"split=given needs rows named train and valid or test; of {len(pool.rows):,} rows there "
        f"are: {counts}.",
        fix="write them in a column split or into files train.*, valid.*, test.*; or set "
        "split=task, which draws them.",
    )


def draw(
    pool: Pool, at: Numbers, shares: dict[str, float], seed: int
) -> tuple[Splits, dict[str, Any]]:
    """Draw splits among some rows by the strongest ties that allow it.

    Raises:
        DataError: Even by task alone too many rows hold together.
    """
    rows = [pool.rows[n] for n in at.tolist()]
    tried: list[str] = []
    for names in TIES:
        groups = components(len(rows), [getattr(pool.ties, name)[at] for name in names])
        drawn = draw_splits(rows, groups, shares, seed)
        splits = {name: at[np.array(numbers, dtype=np.int64)] for name, numbers in drawn.items()}
        splits, left_out = without_overlap(pool, splits, quiet=True)
        size, first = largest(groups)
        fault = _fault(pool, splits, len(rows), shares)
        if fault is None:
            _tell_drawn(pool, splits, names, tried)
            facts = {"how": "drawn", "by": list(names), "n_groups": len(set(groups.tolist()))}
            return splits, facts | {"largest_group": size, "left_out": left_out, "tried": tried}
        tried.append(
            f"by {', '.join(names)}: the largest group holds {size:,} of {len(rows):,} rows (that "
            f"of {rows[first].place}), and {fault}"
        )
    raise _no_split(pool, at, tried)


def _fault(pool: Pool, splits: Splits, n_rows: int, shares: dict[str, float]) -> str | None:
    """Why drawn splits cannot be used, if so."""
    wanted = {"train": 1 - sum(shares.values()), **shares}
    for name, share in wanted.items():
        numbers = splits[name]
        if not len(numbers) or len(numbers) < ENOUGH * share * n_rows - 1:
            return f"{name} would get {len(numbers):,} rows instead of about {share * n_rows:,.0f}"
        if pool.labelled and len(labels := pool.labels(numbers)) < 2:
            return f"{name} would get {next(iter(labels))} rows only"
    return None


def _tell_drawn(pool: Pool, splits: Splits, names: tuple[str, ...], tried: list[str]) -> None:
    place = pool.rows[0].place
    sizes = ", ".join(f"{name} {len(numbers):,}" for name, numbers in splits.items())
    pool.findings.add("split_drawn", *split_place(place), sizes, n=sum(map(len, splits.values())))
    if tried:
        pool.findings.add("split_weaker", *split_place(place), f"drawn by {', '.join(names)}")


def _no_split(pool: Pool, at: Numbers, tried: list[str]) -> DataError:
    rows = [pool.rows[n] for n in at.tolist()]
    labels = Counter(row.label for row in rows)
    few = min(labels.values()) if pool.labelled else len(rows)
    n_tasks = len({row.task for row in rows if row.task})
    fix = f"give more rows (the rarer class has {few:,}) or more tasks ({n_tasks:,} here)."
    ties = {what: largest(getattr(pool.ties, what)[at]) for what in ("task", "author", "code")}
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


def without_overlap(
    pool: Pool, splits: Splits, *, quiet: bool = False
) -> tuple[Splits, dict[str, Any]]:
    """Leave out rows of train that share something with valid or test, and of valid with test."""
    splits, facts = dict(splits), {}
    there = [name for name in ("test", "valid", "train") if name in splits]
    for n, name in enumerate(there[1:], 1):
        bad: dict[int, tuple[str, int]] = {}
        for other in there[:n]:
            for at, shared in shared_rows(pool, splits[name], splits[other]).items():
                bad.setdefault(at, shared)
        splits[name] = splits[name][~_is_in(splits[name], bad)]
        if bad:
            facts[name] = tell_shared(pool, bad, name, quiet=quiet)
    return splits, facts


def _is_in(numbers: Numbers, chosen: Iterable[int]) -> NDArray[np.bool_]:
    return np.isin(numbers, np.fromiter(chosen, dtype=np.int64))


def shared_rows(pool: Pool, some: Numbers, others: Numbers) -> dict[int, tuple[str, int]]:
    """Rows that share a task, an author or like code with one of others: what, and which row."""
    shared: dict[int, tuple[str, int]] = {}
    for what in ("task", "author"):
        numbers = getattr(pool.ties, what)
        first: dict[int, int] = {}
        for at in others.tolist():
            first.setdefault(int(numbers[at]), at)
        first.pop(-1, None)
        for at in some.tolist():
            if (of := first.get(int(numbers[at]))) is not None:
                shared.setdefault(at, (what, of))
    for at, of in zip(some.tolist(), pool.near.like(some, others).tolist(), strict=True):
        if of >= 0:
            shared.setdefault(at, ("near_code", of))
    return shared


def tell_shared(
    pool: Pool, bad: dict[int, tuple[str, int]], name: str, *, quiet: bool = False
) -> dict[str, Any]:
    """Counts of rows left out by what they share, with examples; also into the findings."""
    counts = Counter(what for what, _ in bad.values())
    examples = [
        f"{pool.rows[at].place} shares its {what.replace('_', ' ')} with {pool.rows[of].place}"
        for at, (what, of) in list(bad.items())[:EXAMPLES_KEPT]
    ]
    if not quiet:
        detail = f"{name}, {', '.join(f'{n:,} by {what}' for what, n in counts.items())}"
        file, line = split_place(pool.rows[next(iter(bad))].place)
        pool.findings.add("shared", file, line, detail, n=len(bad))
    return {"rows": len(bad), **dict(counts), "examples": examples}


def overlap_of(pool: Pool, splits: Splits) -> dict[str, dict[str, int]]:
    """Rows of the first split of each pair that share something with the second, counted anew.

    test and held_out are both for evaluation and may share rows.

    Raises:
        AssertionError: A fault of this module: something is shared.
    """
    names = [name for name in ("train", "valid", "test", "held_out") if name in splits]
    pairs = [(a, b) for n, a in enumerate(names) for b in names[n + 1 :]]
    overlaps: dict[str, dict[str, int]] = {}
    for one, other in pairs:
        if (one, other) == ("test", "held_out"):
            continue
        counts = dict.fromkeys(("code", "task", "author", "near_code"), 0)
        texts = {pool.near.texts[at] for at in splits[other].tolist()}
        counts["code"] = sum(pool.near.texts[at] in texts for at in splits[one].tolist())
        for what, _ in shared_rows(pool, splits[one], splits[other]).values():
            counts[what] += 1
        assert not any(counts.values()), f"{one} and {other} share rows: {counts}"
        overlaps[f"{one}/{other}"] = counts
    return overlaps


# ------------------------------------------------------------------------------------------------
# Leave one source, generator or language out: its rows are tested apart and never trained on.


FIELDS = ("source", "generator", "language")
# Where leaving out the tasks of the held rows would take more of train than this, the held rows
# are cut to the tasks of test instead.
MOST_LOST = 0.5


def hold_out_values(rows: Iterable[CodeRow]) -> list[str]:
    """Every `hold_out` that leaves rows to train on: `source=...`, `generator=...`, `language=...`.

    Generators are those of AI rows.
    """
    values_of: dict[str, set[str]] = {field: set() for field in FIELDS}
    for row in rows:
        for field in FIELDS:
            value = getattr(row, field)
            if value and (field != "generator" or row.label == AI):
                values_of[field].add(value)
    return [
        f"{field}={value}"
        for field in FIELDS
        if len(values_of[field]) > 1
        for value in sorted(values_of[field])
    ]


def wanted_rows(rows: Sequence[CodeRow], hold_out: str) -> set[int]:
    """Numbers of the rows that `hold_out` names.

    Raises:
        ConfigError: It is not of that form, or no row has that value.
    """
    field, is_there, value = str(hold_out).partition("=")
    field, value = field.strip().lower(), value.strip()
    choices = hold_out_values(rows)
    if field not in FIELDS or not is_there or not value:
        raise ConfigError(
            f"hold_out={hold_out!r} is none of source=NAME, generator=NAME, language=NAME.",
            fix=f"write one of {', '.join(choices[:12]) or 'these with a name of the data'}.",
        )
    asked = language_of(value) if field == "language" else value.casefold()
    numbers = {
        at
        for at, row in enumerate(rows)
        if getattr(row, field).casefold() == asked and (field != "generator" or row.label == AI)
    }
    if not numbers:
        raise ConfigError(
            f"hold_out={hold_out!r}: no row has this {field}.",
            fix=f"write one of {', '.join(choices[:12])}."
            if choices
            else "leave it out: the data has one source, one generator and one language at most.",
        )
    return numbers


def hold_out_rows(pool: Pool, splits: Splits, hold_out: str) -> tuple[Splits, dict[str, Any]]:
    """Move the rows that `hold_out` names into a split "held_out".

    Rows of train and valid that share a task, an author or like code with them are left out. Where
    that would take more than half of train (the same tasks in every language, say), the held rows
    are those of test alone. For a generator the human rows of test that are like its own in source
    and language go into held_out too (they stay in test), so that both classes are there.

    Raises:
        ConfigError: No row is so named.
        DataError: Nothing would be left to train on or to hold out.
    """
    wanted = wanted_rows(pool.rows, hold_out)
    masks = {name: _is_in(numbers, wanted) for name, numbers in splits.items()}
    rest = {name: numbers[~masks[name]] for name, numbers in splits.items()}
    every = np.sort(np.concatenate([splits[name][mask] for name, mask in masks.items()]))
    of_test = splits["test"][masks["test"]]
    new_splits, facts = _without(pool, rest, every)
    facts["rows_of"] = "all splits"
    if not _is_enough(pool, rest, new_splits):
        new_splits, facts = _without(pool, rest, of_test)
        facts |= {"rows_of": "test", "dropped": len(every) - len(of_test)}
    held_out = new_splits["held_out"]
    if not len(held_out) or not _is_enough(pool, rest, new_splits):
        raise DataError(
            f"hold_out={hold_out} cannot be held out: its tasks are those of the rows to train on, "
            f"and test has {len(of_test):,} of its {len(every):,} rows.",
            fix="hold out another value, or give data with tasks of its own for each.",
        )
    if hold_out.strip().lower().startswith("generator"):
        humans = _humans_like(pool, new_splits["test"], held_out)
        new_splits["held_out"] = np.sort(np.concatenate([held_out, humans]))
        facts["humans_of_test"] = len(humans)
    _tell_hold_out(pool, new_splits, facts, hold_out)
    return new_splits, facts | {"hold_out": hold_out, "held_out": len(new_splits["held_out"])}


def _without(pool: Pool, rest: Splits, held_out: Numbers) -> tuple[Splits, dict[str, Any]]:
    new_splits, left_out = dict(rest), {}
    for name in ("train", "valid"):
        bad = shared_rows(pool, rest[name], held_out)
        new_splits[name] = rest[name][~_is_in(rest[name], bad)]
        if bad:
            left_out[name] = tell_shared(pool, bad, name, quiet=True)
    return new_splits | {"held_out": held_out}, {"left_out": left_out}


def _is_enough(pool: Pool, before: Splits, after: Splits) -> bool:
    for name in ("train", "valid"):
        if len(after[name]) < (1 - MOST_LOST) * len(before[name]) or not len(after[name]):
            return False
        if pool.labelled and len(pool.labels(after[name])) < len(pool.labels(before[name])):
            return False
    return True


def _humans_like(pool: Pool, test: Numbers, held_out: Numbers) -> Numbers:
    """Human rows of test in the sources and languages of the held rows, else all human rows."""
    humans = [at for at in test.tolist() if pool.rows[at].label == HUMAN]
    kinds = {(pool.rows[at].source, pool.rows[at].language) for at in held_out.tolist()}
    like = [at for at in humans if (pool.rows[at].source, pool.rows[at].language) in kinds]
    return np.array(like or humans, dtype=np.int64)


def _tell_hold_out(pool: Pool, splits: Splits, facts: dict[str, Any], hold_out: str) -> None:
    held_out = splits["held_out"]
    left_out = {name: shared["rows"] for name, shared in facts["left_out"].items()}
    detail = f"{hold_out}, rows of {facts['rows_of']}"
    if left_out:
        counts = ", ".join(f"{n:,} of {name}" for name, n in left_out.items())
        detail += f"; left out as they share tasks, authors or code: {counts}"
    pool.findings.add(
        "hold_out", *split_place(pool.rows[int(held_out[0])].place), detail, n=len(held_out)
    )
