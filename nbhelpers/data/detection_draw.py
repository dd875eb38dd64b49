"""Draws whole groups of rows into splits, so that labels, languages and sources stay in proportion.

A draw follows from the texts of a group and a seed: rows more or less leave the order of the other
groups as it is.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .detection_rows import CodeRow

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROOM = 1.15  # a split may become this much larger than asked for
Stratum = tuple[str, ...]


def group_order(
    rows: Sequence[CodeRow], groups: NDArray[np.int64], seed: int
) -> dict[int, list[int]]:
    """Rows of each group, the groups in an order that follows from their texts and the seed."""
    members: dict[int, list[int]] = defaultdict(list)
    for at, group in enumerate(groups.tolist()):
        members[group].append(at)
    keys = {group: min(_key(rows[at], seed) for at in found) for group, found in members.items()}
    return {group: members[group] for group in sorted(members, key=lambda g: (keys[g], g))}


def _key(row: CodeRow, seed: int) -> bytes:
    text = f"{seed}\0{row.label}\0{row.task}\0{row.code}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def draw_splits(
    rows: Sequence[CodeRow],
    groups: NDArray[np.int64],
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
    total = Counter(stratum for found in strata for stratum in found)
    filled = {name: Counter[Stratum]() for name in shares}
    sizes = dict.fromkeys(shares, 0)
    done: dict[str, list[int]] = {name: [] for name in shares}
    ordered = group_order(rows, groups, seed)
    for found in sorted(ordered.values(), key=lambda one: -len(one).bit_length()):
        counts = Counter(stratum for at in found for stratum in strata[at])

        def lack(name: str, counts: Counter[Stratum] = counts) -> float:
            return sum(
                n * max(-1.0, 1 - filled[name][stratum] / (shares[name] * total[stratum]))
                for stratum, n in counts.items()
            )

        free = [
            name
            for name, size in sizes.items()
            if name == "train"
            or size + len(found) <= ROOM * shares[name] * len(rows)
            or (not size and len(found) <= 2 * shares[name] * len(rows) + 1)
        ]
        chosen = max(free, key=lack)  # the first of equals: train
        filled[chosen].update(counts)
        sizes[chosen] += len(found)
        done[chosen] += found
    return {name: sorted(found) for name, found in done.items()}


def _strata(row: CodeRow) -> tuple[Stratum, ...]:
    """A row counts on its own, by label, and by label, language and source: rare strata stay."""
    return (), (str(row.label),), (str(row.label), row.language, row.source)


def draw_train(
    rows: Sequence[CodeRow],
    groups: NDArray[np.int64],
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
        for found in groups_left:
            kinds = Counter(_kind(rows[at]) for at in found)
            is_due = all(n <= room[kind] for kind, n in kinds.items()) or not is_in_proportion
            if is_due and len(drawn) + len(found) <= wanted:
                drawn += found
                room |= {kind: room[kind] - n for kind, n in kinds.items()}
            else:
                passed_over.append(found)
        groups_left = passed_over
    return sorted(drawn)


def _kind(row: CodeRow) -> Stratum:
    return row.language, row.source
