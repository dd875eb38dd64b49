"""Which rows of code belong together: one text, near-duplicates, one task, one author.

Rows are known by their text in canonical form, so that neither their order nor their place in a
file decides what is drawn.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..cache import cache_dir, save_in_cache
from .canonical import canonical
from .detection_rows import CodeRow
from .near_duplicates import SHINGLE_TOKENS, THRESHOLD, ShingleIndex
from .problems import ProblemLog

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
    given: Sequence[str],
    form: str,
    log: ProblemLog,
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
            log.add("empty_code", *split_place(row.place), f"nothing is left in the form {form}")
            continue
        same = members.setdefault(digest(text), [])
        same.append(at)
        if len(same) == 1:
            texts[at] = text
    kept, n_same, n_conflicts = [], 0, 0
    for same in members.values():
        if labelled and len({rows[at].label for at in same} - {None}) > 1:
            n_conflicts += len(same)
            _tell(log, "both_classes", rows, same, len(same))
            continue
        best = min(same, key=lambda at: (EVALUATED_FIRST.get(given[at], 3), at))
        texts[best] = texts[same[0]]
        kept.append(best)
        if len(same) > 1:
            n_same += len(same) - 1
            _tell(log, "same_code", rows, [at for at in same if at != best] + [best], len(same) - 1)
    kept.sort()
    return Distinct(kept, [texts[at] for at in kept], n_same, n_conflicts)


def _tell(log: ProblemLog, kind: str, rows: Sequence[CodeRow], same: list[int], n: int) -> None:
    log.add(kind, *split_place(rows[same[0]].place), f"as {rows[same[-1]].place}", n=n)


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
        head = f"{NEAR_FORMAT} {THRESHOLD} {SHINGLE_TOKENS}\n".encode()
        self._key = hashlib.sha256(head + b"".join(digests)).hexdigest()
        self._index: ShingleIndex | None = None

    def stars(self) -> NDArray[np.int64]:
        """For each text the one that it resembles, itself where there is none before it.

        Two texts that resemble a third need not resemble each other, and a text may resemble two
        that stand for themselves: `like` finds those that stars leave apart.
        """
        import numpy as np

        def search() -> NDArray[np.int64]:
            found = np.arange(len(self.texts))
            for match in self._ready().repeats(self._order):
                found[match.row] = match.of
            return found

        return self._cached("stars", b"", search, len(self.texts))

    def like(self, rows: NDArray[np.int64], references: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each row a reference that it resembles, or -1."""
        import numpy as np

        def search() -> NDArray[np.int64]:
            at = {int(row): n for n, row in enumerate(rows)}
            found = np.full(len(rows), -1)
            for match in self._ready().matches(at, map(int, references)):
                found[at[match.row]] = match.of
            return found

        if not len(rows) or not len(references):
            return np.full(len(rows), -1)
        asked = rows.astype("<i8").tobytes() + b"|" + references.astype("<i8").tobytes()
        return self._cached("like", asked, search, len(rows))

    def _ready(self) -> ShingleIndex:
        if self._index is None:
            self._index = ShingleIndex(self.texts)
        return self._index

    def _cached(self, what: str, asked: bytes, search: object, size: int) -> NDArray[np.int64]:
        import numpy as np

        name = hashlib.sha256(f"{what} {self._key} ".encode() + asked).hexdigest()[:40]
        path = cache_dir() / "near_rows" / f"{name}.npy"
        with contextlib.suppress(OSError, ValueError, EOFError):
            known = np.load(path, allow_pickle=False)
            if known.shape == (size,) and known.dtype == np.int64 and _in_range(known, self.texts):
                return known
        found = search()  # type: ignore[operator]
        save_in_cache(path, lambda part: _save(part, found))
        return found


def _in_range(known: NDArray[np.int64], texts: Sequence[str]) -> bool:
    return not len(known) or (int(known.min()) >= -1 and int(known.max()) < len(texts))


def _save(path: Path, numbers: NDArray[np.int64]) -> None:
    import numpy as np

    with path.open("wb") as stream:
        np.save(stream, numbers)


class Relations(NamedTuple):
    """What ties rows together: per relation a number for each row, -1 where it has none."""

    task: NDArray[np.int64]
    author: NDArray[np.int64]
    code: NDArray[np.int64]  # near-duplicates, as stars


def relations(rows: Sequence[CodeRow], near: NearRows) -> Relations:
    """Relations of distinct rows.

    An author counts where human or unlabelled code has that author: the model that is named as the
    author of AI code ties its rows to nothing.
    """
    people = {row.author.casefold() for row in rows if row.label != "ai"}
    return Relations(
        task=_numbers(row.task for row in rows),
        author=_numbers(a if (a := row.author.casefold()) in people else "" for row in rows),
        code=near.stars(),
    )


def _numbers(words: Iterable[str]) -> NDArray[np.int64]:
    import numpy as np

    known: dict[str, int] = {}
    return np.array([known.setdefault(w, len(known)) if w else -1 for w in words], dtype=np.int64)


def components(n: int, tied: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Number of the connected component of each of n rows: equal numbers >= 0 tie rows together.

    >>> import numpy as np
    >>> components(4, [np.array([0, 0, 1, -1]), np.array([-1, 5, 5, -1])]).tolist()
    [0, 0, 0, 3]
    """
    import numpy as np

    parent = list(range(n))

    def root(at: int) -> int:
        while parent[at] != at:
            parent[at] = parent[parent[at]]
            at = parent[at]
        return at

    for numbers in tied:
        first: dict[int, int] = {}
        for at, number in enumerate(numbers.tolist()):
            if number >= 0:
                one, other = root(first.setdefault(number, at)), root(at)
                parent[max(one, other)] = min(one, other)
    return np.array([root(at) for at in range(n)], dtype=np.int64)


def largest(groups: NDArray[np.int64]) -> tuple[int, int]:
    """Size of the largest group and one of its rows."""
    group, size = Counter(groups.tolist()).most_common(1)[0]
    return size, group
