"""Which programs of a folder resemble each other: ranked pairs beside the baseline's score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import floor
from typing import TYPE_CHECKING, Any

from nbhelpers.common.code_words import code_words
from nbhelpers.common.display import Cell, Table
from nbhelpers.common.files import expanded, kind_of
from nbhelpers.common.formatting import digits_apart, number, percent
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.use.calls import MIN_WORDS
from nbhelpers.use.code_files import CodeFile, Skipped, chunks, find_files, shown
from nbhelpers.use.facts import NO_EVIDENCE_SIMILAR, DetectorFacts
from nbhelpers.use.results import SHOWN, Block, Shown, csv_text, left_out

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
    words_by_line = [code_words(line) for line in lines]
    words = [word for line in words_by_line for word in line]
    covered = _covered(words, given) if given else []
    if not any(covered):
        return Stripped(code=code, removed_share=0.0)
    rest, start, removed = [], 0, 0
    for line, inside in zip(lines, words_by_line, strict=True):
        end = start + len(inside)
        if inside and all(covered[start:end]):
            removed += len(inside)
        else:
            rest.append(line)
        start = end
    return Stripped(code="".join(rest), removed_share=removed / len(words))


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


BLOCK = 256  # rows at once: (256, files) floats
FEW = 30  # programs; of fewer, an n-gram in a single one still makes it unlike the others


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPair:
    """Two rows, their cosine and rank, and the baseline's; `n` pairs were compared."""

    rank: int
    one: int
    other: int
    cosine: float
    floor: float
    floor_rank: int
    n: int


def baseline_vectors(codes: list[str]) -> Any:
    """Return unit vectors of the baseline that a report names: sparse (programs, columns)."""
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
) -> list[RankedPair]:
    """Return the pairs with the highest cosine, highest first; equal ones in the order of rows.

    Args:
        vectors: (programs, dimensions) of length 1.
        ngrams: The baseline's, (programs, columns), sparse, of length 1.
        top: How many pairs.
        split_at: Compare only programs before this row with programs from it on.
    """
    import numpy as np

    best: list[np.ndarray] = []  # of each block, (pairs, 4): row, row, cosine, baseline
    floors: list[np.ndarray] = []  # of all pairs: 4 bytes for each
    for one, other in _blocks(len(vectors), split_at):
        cosines = np.clip(vectors[one] @ vectors[other].T, -1.0, 1.0)  # (block, programs)
        plain = np.asarray((ngrams[one] @ ngrams[other].T).todense()).clip(max=1.0)
        is_pair = np.full(cosines.shape, split_at is not None) | (one[:, None] < other[None, :])
        rows, columns = np.nonzero(is_pair)
        cosine, baseline = cosines[rows, columns], plain[rows, columns]
        floors.append(baseline.astype(np.float32))
        at = np.arange(len(cosine))
        if len(cosine) > top:
            at = at[cosine >= np.partition(cosine, len(cosine) - top)[len(cosine) - top]]
        at = at[np.argsort(-cosine[at], kind="stable")][:top]
        pairs = (one[rows[at]], other[columns[at]], cosine[at], baseline[at])
        best.append(np.column_stack([part.astype(np.float64) for part in pairs]))
    table, ordered = np.concatenate(best), np.sort(np.concatenate(floors))
    table = table[np.lexsort((table[:, 1], table[:, 0], -table[:, 2]))][:top]
    above = len(ordered) - np.searchsorted(ordered, table[:, 3].astype(np.float32), side="right")
    return [
        RankedPair(
            rank=rank,
            one=int(one),
            other=int(other),
            cosine=float(cosine),
            floor=float(baseline),
            floor_rank=int(n_above) + 1,
            n=len(ordered),
        )
        for rank, ((one, other, cosine, baseline), n_above) in enumerate(
            zip(table, above, strict=True), 1
        )
    ]


def _blocks(n: int, split_at: int | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    import numpy as np

    last = n if split_at is None else split_at
    for start in range(0, last, BLOCK):
        rows = np.arange(start, min(start + BLOCK, last))
        yield rows, np.arange(start if split_at is None else split_at, n)


# ------------------------------------------------------------------------------------------------
# Which programs of a folder resemble each other: ranked pairs with both scores side by side.
#
# Ours says that two programs do the same, also across languages and names; the baseline (character
# n-grams, called floor in tables) says that they share text. In a class where everybody solves one
# task, ours is high for all; a pair stands out where it ranks high among them.


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
class Similar(Shown):
    """The most similar pairs among programs; `n_pairs` were compared."""

    ENDINGS = (".csv", ".json")

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
        values = {
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
        return {name: values[name] for name in COLUMNS}

    @property
    def _digits(self) -> int:
        limit = self.facts.pair_threshold
        return 4 if limit is None else digits_apart(limit, (pair.cosine for pair in self.pairs))

    def summary(self) -> list[str]:
        """What must be read before the table, as sentences."""
        limit = self.facts.pair_threshold
        given = sum(member.removed_share for member in self.members) / len(self.members)
        lines = [
            f"{len(self.members)} programs, {number(self.n_pairs, 'pair')} compared, "
            f"{number(len(self.skipped), 'file')} left out; on average {percent(given)} % of a "
            "program was given code and taken out.",
            "similarity: cosine of the model's vectors, -1 to 1; floor: cosine of character "
            f"n-grams (shared text), and its rank among the {self.n_pairs} pairs.",
        ]
        if limit is not None:
            lines.append(
                f"same task: similarity above {limit:.{self._digits}f}, the threshold that told "
                "same-task pairs apart in the run's validation."
            )
        if self.facts.data_note:
            lines.append(self.facts.data_note)
        return [*lines, NO_EVIDENCE_SIMILAR]

    def blocks(self, top: int = SHOWN) -> list[Block]:
        """Return the summary and the pairs."""
        heads = ("rank", "similarity", "same task", "floor", "floor rank", "file", "file", "note")
        rows = [
            (
                row["rank"],
                Cell(row["similarity"], f".{self._digits}f"),
                {True: "yes", False: "no", None: "-"}[row["same_task"]],
                Cell(row["floor"], ".4f"),
                row["floor_rank"],
                row["file_a"],
                row["file_b"],
                _note(row),
            )
            for row in self.rows()[:top]
        ]
        table = [Table(heads, rows)] if rows else []
        return ["\n".join(self.summary()), *table, *left_out(self.skipped)]

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
            "skipped": [file.to_dict() for file in self.skipped],
            "seconds": self.seconds,
        }

    def csv(self) -> str:
        """Return the pairs as CSV."""
        return csv_text(self.rows(), COLUMNS, self.facts.sample_note)

    def __len__(self) -> int:
        return len(self.pairs)

    def __repr__(self) -> str:
        return f"Similar({self.place}: {len(self.members)} programs, {self.n_pairs} pairs)"


def _note(row: dict[str, Any]) -> str:
    languages = (row["language_a"], row["language_b"])
    notes = [" and ".join(languages)] if len(set(languages)) == 2 else []
    return ", ".join(notes + ["the same bytes"] * row["same_bytes"])


def read_members(
    places: list[Any], starter: Any, language: str
) -> tuple[list[Member], list[Skipped], int]:
    """Return the programs of one or two places without given code, and where the second begins.

    Args:
        places: A folder, or two files or folders.
        starter: A file or folder of code that was handed out; None for none.
        language: What every file is written in; "" asks its ending.

    Raises:
        ConfigError: There is nothing at a place, or one of two lies in the other.
        DataError: There are not two programs to compare.
    """
    skipped: list[Skipped] = []
    groups = read_places(places, language, skipped)
    handed_out = [] if starter is None else [file.code for file in _programs(starter, "", [])]
    files = [file for group in groups for file in group]
    given = given_runs(handed_out, [f.code for f in files if len(f.code) <= MAX_CHARACTERS])
    is_small = len(files) == 2
    members = [_members(group, given, is_small, skipped) for group in groups]
    if sum(map(len, members)) < 2 or not all(members):
        reasons = "; ".join(f"{file.name}: {file.reason}" for file in skipped[:5])
        raise DataError(
            f"There are not two programs to compare{f' ({reasons})' if reasons else ''}.",
            fix="name a folder with programs, or two files",
        )
    return [member for group in members for member in group], skipped, len(members[0])


def read_places(
    places: Sequence[Any], language: str, skipped: list[Skipped]
) -> list[list[CodeFile]]:
    """Return the programs of one or two places; of two, each is called by its whole path.

    Raises:
        ConfigError: There is nothing at a place, or one of two lies in the other.
    """
    groups = [_programs(place, language, skipped) for place in places]
    if len(places) == 1:
        return groups
    names = [shown(str(place)).rstrip("/") for place in places]
    one, other = (expanded(place).resolve() for place in places)
    if one.is_relative_to(other) or other.is_relative_to(one):
        text = f"{' and '.join(names)} are one place, or one lies in the other."
        fix = "name one place alone, for all its pairs, or two that share no file"
        raise ConfigError(text, fix=fix)
    return [
        [replace(f, name=name if kind_of(place) == "file" else f"{name}/{f.name}") for f in files]
        for place, name, files in zip(places, names, groups, strict=True)
    ]


def _programs(place: Any, language: str, skipped: list[Skipped]) -> list[CodeFile]:
    entries, left_out = find_files(place, language=language)
    files = [file for chunk in chunks(entries, left_out) for file in chunk]
    skipped += left_out
    return files


def _members(
    files: list[CodeFile], given: set[int], is_small: bool, skipped: list[Skipped]
) -> list[Member]:
    members = []
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
        members.append(Member(file=file, code=rest.code, removed_share=rest.removed_share))
    return members
