"""Which programs of a folder resemble each other: ranked pairs beside the baseline's score."""

from __future__ import annotations

import heapq
import html
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.common.code_words import code_words
from nbhelpers.common.display import left
from nbhelpers.common.files import kind_of
from nbhelpers.common.formatting import percent
from nbhelpers.errors import DataError
from nbhelpers.use.calls import MIN_WORDS
from nbhelpers.use.code_files import CodeFile, Skipped, chunks, find_files, shown
from nbhelpers.use.facts import NO_EVIDENCE_SIMILAR, DetectorFacts
from nbhelpers.use.sheets import checked_output, csv_note, csv_text, write_text

if TYPE_CHECKING:
    import numpy as np


# ------------------------------------------------------------------------------------------------
# Code that was handed out, or that most files share, is taken out before files are compared.
#
# What everybody was given says nothing about who worked with whom. A line goes when every word of
# it lies in a run of words that the given code holds too, so that a lone brace stays where it is.


RUN_WORDS = 8  # words and signs in a row; shorter runs are shared by chance
COMMON_SHARE = 0.5  # what stands in more files than this is taken for given
MIN_FILES = 8  # with fewer, "most files" may be the very ones that were copied


@dataclass(frozen=True, slots=True, kw_only=True)
class Stripped:
    """A program without given code, and the share of its words that was taken out."""

    code: str
    removed_share: float


def runs(words: Sequence[str]) -> list[int]:
    """Return a hash for each run of `RUN_WORDS` words; a shorter text is one run."""
    if not words:
        return []
    count = max(1, len(words) - RUN_WORDS + 1)
    return [hash(tuple(words[i : i + RUN_WORDS])) for i in range(count)]


def given_runs(starter: Iterable[str], codes: Sequence[str]) -> set[int]:
    """Return the runs of the starter code, and those that most of many files hold."""
    given = {run for text in starter for run in runs(code_words(text))}
    if len(codes) >= MIN_FILES:
        counts: Counter[int] = Counter()
        for code in codes:
            counts.update(set(runs(code_words(code))))
        limit = floor(COMMON_SHARE * len(codes))
        given |= {run for run, count in counts.items() if count > limit}
    return given


def strip(code: str, given: set[int]) -> Stripped:
    """Return a program without the lines that lie in given runs altogether.

    >>> strip("a = 1", set())
    Stripped(code='a = 1', removed_share=0.0)
    """
    lines = code.splitlines(keepends=True)
    found = [code_words(line) for line in lines]
    words = [word for line in found for word in line]
    covered = _covered(words, given) if given else []
    if not any(covered):
        return Stripped(code=code, removed_share=0.0)
    kept, start, removed = [], 0, 0
    for line, inside in zip(lines, found, strict=True):
        end = start + len(inside)
        if inside and all(covered[start:end]):
            removed += len(inside)
        else:
            kept.append(line)
        start = end
    return Stripped(code="".join(kept), removed_share=removed / len(words))


def _covered(words: Sequence[str], given: set[int]) -> list[bool]:
    """Say of each word whether a given run covers it."""
    covered = [False] * len(words)
    until = 0  # words before it are marked
    for start, run in enumerate(runs(words)):
        if run in given:
            end = min(start + RUN_WORDS, len(words))
            for place in range(max(start, until), end):
                covered[place] = True
            until = end
    return covered


# ------------------------------------------------------------------------------------------------
# Pairs of programs by similarity: arithmetic on blocks, so that thousands of files fit.
#
# Only the best pairs are kept. How every other pair scored is kept as a histogram, which tells the
# rank of a pair among all of them to a ten-thousandth of the score.


BLOCK = 256  # rows at once: (256, files) floats
BINS = 20_000  # of cosines from -1 to 1
FEW = 30  # programs; of fewer, an n-gram in a single one still makes it unlike the others

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPair:
    """Two rows, their cosine and rank, and the floor's; `n` pairs were compared."""

    rank: int
    one: int
    other: int
    cosine: float
    floor: float
    floor_rank: int
    n: int


def floor_vectors(codes: list[str]) -> Any:
    """Return unit vectors of the floor that a report names: sparse (programs, columns)."""
    from nbhelpers.metrics.ngrams import TfidfSimilarity

    least = 1 if len(codes) < FEW else 2
    everyone = range(len(codes))
    return TfidfSimilarity(codes, min_programs=least).between(everyone, everyone)[0]


def best_pairs(
    vectors: np.ndarray,
    ngrams: Any,
    *,
    top: int,
    split_at: int | None = None,
    progress: Progress | None = None,
) -> list[RankedPair]:
    """Return the pairs with the highest cosine, highest first.

    Args:
        vectors: (programs, dimensions) of length 1.
        ngrams: The floor's, (programs, columns), sparse, of length 1.
        top: How many pairs.
        split_at: Compare only programs before this row with programs from it on.
        progress: Called with rows done and rows in all.
    """
    import numpy as np

    counts = np.zeros(BINS, dtype=np.int64)
    floors = np.zeros(BINS, dtype=np.int64)
    best: list[tuple[float, int, int, float]] = []  # a heap: its first is the lowest that is kept
    for start, one, other in _blocks(len(vectors), split_at):
        cosines = np.clip(vectors[one] @ vectors[other].T, -1.0, 1.0)  # (block, programs)
        plain = np.asarray((ngrams[one] @ ngrams[other].T).todense())
        is_pair = _is_pair(one, other, split_at)
        counts += _histogram(cosines[is_pair])
        floors += _histogram(plain[is_pair])
        _keep(best, top, np.where(is_pair, cosines, -np.inf), plain, (one, other))
        if progress is not None:
            progress(start + len(one), split_at or len(vectors))
    found = sorted(best, key=lambda each: (-each[0], -each[1], -each[2]))
    n, above = int(counts.sum()), np.append(np.cumsum(floors[::-1])[::-1], 0)
    return [
        RankedPair(
            rank=rank,
            one=-one,
            other=-other,
            cosine=float(cosine),
            floor=float(plain),
            floor_rank=int(above[_bin(plain) + 1]) + 1,
            n=n,
        )
        for rank, (cosine, one, other, plain) in enumerate(found, 1)
    ]


def _blocks(n: int, split_at: int | None) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    import numpy as np

    last = n if split_at is None else split_at
    for start in range(0, last, BLOCK):
        rows = np.arange(start, min(start + BLOCK, last))
        yield start, rows, np.arange(start if split_at is None else split_at, n)


def _is_pair(one: np.ndarray, other: np.ndarray, split_at: int | None) -> np.ndarray:
    """(block, programs): each pair once, and no program with itself."""
    import numpy as np

    if split_at is not None:
        return np.ones((len(one), len(other)), dtype=bool)
    return one[:, None] < other[None, :]


def _keep(
    best: list[tuple[float, int, int, float]],
    top: int,
    cosines: np.ndarray,
    plain: np.ndarray,
    rows: tuple[np.ndarray, np.ndarray],
) -> None:
    """Put the best pairs of a block into the heap; among equal ones the earlier rows stay."""
    import numpy as np

    flat = cosines.ravel()
    # Once the heap is full, an equal pair of a later row changes nothing.
    floor = best[0][0] if len(best) >= top else -np.inf
    found = np.flatnonzero(flat > floor)
    if len(found) > top:
        least = np.partition(flat[found], len(found) - top)[len(found) - top]
        found = found[flat[found] >= least]
    for at in found[np.argsort(-flat[found], kind="stable")][:top]:
        i, j = divmod(int(at), cosines.shape[1])
        item = (float(flat[at]), -int(rows[0][i]), -int(rows[1][j]), float(plain[i, j]))
        if len(best) < top:
            heapq.heappush(best, item)
        elif item > best[0]:
            heapq.heapreplace(best, item)


def _histogram(values: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.bincount(_bin(values), minlength=BINS)


def _bin(values: Any) -> Any:
    """Number of the bin of a cosine, or of an array of them."""
    import numpy as np

    found = np.clip(((np.asarray(values) + 1.0) * (BINS / 2)).astype(np.int64), 0, BINS - 1)
    return found if found.ndim else int(found)


# ------------------------------------------------------------------------------------------------
# Which programs of a folder resemble each other: ranked pairs with the floor's score beside ours.
#
# Ours says that two programs do the same, also across languages and names; the floor (character
# n-grams) says that they share text. In a class where everybody solves one task, ours is high for
# all; a pair stands out where it ranks high among them.


SHOWN = 50
MAX_CHARACTERS = 200_000  # a longer one is a bundle or a table, and its n-grams take seconds
COLUMNS = ("rank", "file_a", "file_b", "similarity", "floor", "floor_rank", "language_a")
COLUMNS += ("language_b", "same_task", "starter_share_a", "starter_share_b", "same_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A program that is compared: `code` is without given code, `removed_share` of it was given."""

    file: CodeFile
    code: str
    removed_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Similar:
    """The most similar pairs among programs; `n_pairs` were compared."""

    place: str
    pairs: tuple[RankedPair, ...]
    members: tuple[Member, ...]
    skipped: tuple[Skipped, ...]
    facts: DetectorFacts
    n_pairs: int
    seconds: float

    def rows(self) -> list[dict[str, Any]]:
        """JSON values of each pair, in the order of `COLUMNS`."""
        return [self._row(pair) for pair in self.pairs]

    def _row(self, pair: RankedPair) -> dict[str, Any]:
        one, other = self.members[pair.one], self.members[pair.other]
        limit = self.facts.pair_threshold
        told = {
            "rank": pair.rank,
            "file_a": one.file.name,
            "file_b": other.file.name,
            "similarity": pair.cosine,
            "floor": pair.floor,
            "floor_rank": pair.floor_rank,
            "language_a": one.file.language,
            "language_b": other.file.language,
            "same_task": None if limit is None else pair.cosine > limit,
            "starter_share_a": one.removed_share,
            "starter_share_b": other.removed_share,
            "same_bytes": one.file.sha256 == other.file.sha256,
        }
        return {name: told[name] for name in COLUMNS}

    def summary(self) -> list[str]:
        """What must be read before the table, as sentences."""
        limit = self.facts.pair_threshold
        given = sum(member.removed_share for member in self.members) / len(self.members)
        lines = [
            f"{len(self.members)} programs, {self.n_pairs} pairs compared, {len(self.skipped)} "
            f"files left out; on average {percent(given)} % of a program was given code and taken "
            "out.",
            "similarity: cosine of the model's vectors, -1 to 1; floor: cosine of character "
            f"n-grams (shared text), and its rank among the {self.n_pairs} pairs.",
        ]
        if limit is not None:
            lines.append(
                f"same task: similarity above {limit:.3f}, the threshold that told same-task "
                "pairs apart in the run's validation."
            )
        if self.facts.data_note:
            lines.append(self.facts.data_note)
        return [*lines, NO_EVIDENCE_SIMILAR]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "format": 1,
            "notice": NO_EVIDENCE_SIMILAR,
            "data_note": self.facts.data_note,
            "place": self.place,
            "summary": self.summary(),
            "model": self.facts.to_dict(),
            "pair_threshold": self.facts.pair_threshold,
            "n_programs": len(self.members),
            "n_pairs": self.n_pairs,
            "pairs": self.rows(),
            "skipped": [each.to_dict() for each in self.skipped],
            "seconds": self.seconds,
        }

    def save(self, place: str | Path) -> Path:
        """Write the pairs as .csv or .json, by the ending.

        Raises:
            ConfigError: Another ending, or the place cannot be written.
        """
        path = checked_output(place)
        if path.suffix.lower() == ".csv":
            text = csv_note(self.facts) + csv_text(COLUMNS, self.rows())
            return write_text(path, text)
        return write_text(path, json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")

    def text(self) -> str:
        """Return the summary and the pairs as text."""
        head = " rank  similarity  same task   floor  floor rank  files"
        lines = ["", head] if self.pairs else []
        for row in self.rows():
            spoken = f" ({row['language_a']} and {row['language_b']})"
            spoken = spoken if row["language_a"] != row["language_b"] else ""
            same = "  the same bytes" if row["same_bytes"] else ""
            lines.append(
                f"{row['rank']:>5}  {row['similarity']:>10.4f}  {_same_task(row):>9}  "
                f"{row['floor']:>6.4f}  "
                f"{row['floor_rank']:>10}  {row['file_a']}  {row['file_b']}{spoken}{same}"
            )
        if self.skipped:
            kinds = Counter(each.reason for each in self.skipped)
            told = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
            lines += ["", f"Left out: {told}."]
            lines += [f"  {each.name}: {each.reason} ({each.detail})" for each in self.skipped[:10]]
        return "\n".join([*self.summary(), *lines])

    def __len__(self) -> int:
        return len(self.pairs)

    def __repr__(self) -> str:
        return f"Similar({self.place}: {len(self.members)} programs, {self.n_pairs} pairs)"

    def _repr_html_(self) -> str:
        names = ("", "similarity", "same task", "floor", "floor's rank", "file", "file")
        head = "".join(f"<th>{name}</th>" for name in names)
        body = "".join(_html_row(row) for row in self.rows()[:SHOWN])
        notes = "".join(f"<p>{html.escape(line)}</p>" for line in self.summary())
        return left(f"<table><tr>{head}</tr>{body}</table>") + notes


def _same_task(row: dict[str, Any]) -> str:
    return {True: "yes", False: "no", None: "-"}[row["same_task"]]


def _html_row(row: dict[str, Any]) -> str:
    cells = (str(row["rank"]), f"{row['similarity']:.4f}", _same_task(row))
    cells += (f"{row['floor']:.4f}",)
    cells += (str(row["floor_rank"]), row["file_a"], row["file_b"])
    return f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"


def read_members(
    places: list[Any], starter: Any, language: str
) -> tuple[list[Member], list[Skipped], int]:
    """Return the programs of one or two places without given code, and where the second begins.

    Args:
        places: A folder, or two files or folders.
        starter: A file or folder of code that was handed out; None for none.
        language: What every file is written in; "" asks its ending.

    Raises:
        ConfigError: There is nothing at a place.
        DataError: There are not two programs to compare.
    """
    skipped: list[Skipped] = []
    groups = [_read(place, language, skipped, is_one=len(places) == 1) for place in places]
    handed_out = [] if starter is None else [file.code for file in _read(starter, "", [])]
    files = [file for group in groups for file in group]
    given = given_runs(handed_out, [f.code for f in files if len(f.code) <= MAX_CHARACTERS])
    is_small = len(files) == 2
    kept = [_members(group, given, is_small, skipped) for group in groups]
    if sum(map(len, kept)) < 2 or not all(kept):
        told = "; ".join(f"{each.name}: {each.reason}" for each in skipped[:5])
        raise DataError(
            f"There are not two programs to compare{f' ({told})' if told else ''}.",
            fix="name a folder with programs, or two files",
        )
    return [member for group in kept for member in group], skipped, len(kept[0])


def _read(
    place: Any, language: str, skipped: list[Skipped], *, is_one: bool = True
) -> list[CodeFile]:
    """Return the programs of a place; of two places, each is called by its whole path."""
    entries, left_out = find_files(place, language=language)
    files = [file for chunk in chunks(entries, left_out) for file in chunk]
    skipped += left_out
    if is_one:
        return files
    name, is_file = shown(str(place)).rstrip("/"), kind_of(place) == "file"
    return [replace(file, name=name if is_file else f"{name}/{file.name}") for file in files]


def _members(
    files: list[CodeFile], given: set[int], is_small: bool, skipped: list[Skipped]
) -> list[Member]:
    found = []
    for file in files:
        if len(file.code) > MAX_CHARACTERS:
            detail = f"{len(file.code)} characters; at most {MAX_CHARACTERS} are compared"
            skipped.append(Skipped(name=file.name, reason="too long", detail=detail))
            continue
        rest = strip(file.code, given)
        n_words = len(code_words(rest.code))
        if not n_words or (n_words < MIN_WORDS and not is_small):
            share = percent(rest.removed_share)
            detail = f"{n_words} words and signs are left; {share} % of it was given code"
            skipped.append(Skipped(name=file.name, reason="too short", detail=detail))
            continue
        found.append(Member(file=file, code=rest.code, removed_share=rest.removed_share))
    return found
