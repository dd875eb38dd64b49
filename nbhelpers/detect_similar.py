"""Which programs of a folder resemble each other: ranked pairs with the floor's score beside ours.

Ours says that two programs do the same, also across languages and names; the floor (character
n-grams) says that they share text. In a class where everybody solves one task, ours is high for
all; a pair stands out where it ranks high among them.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nbhelpers.detect_batch import checked_output, csv_note, csv_text, write_text
from nbhelpers.detect_calls import MIN_WORDS
from nbhelpers.detect_facts import DetectorFacts
from nbhelpers.detect_files import CodeFile, Skipped, chunks, find_files, shown
from nbhelpers.detect_pairs import RankedPair
from nbhelpers.detect_starter import given_runs, strip, words_of
from nbhelpers.detector_notice import NO_EVIDENCE_SIMILAR
from nbhelpers.errors import DataError
from nbhelpers.formatting import percent
from nbhelpers.paths import kind_of
from nbhelpers.tables import left

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
        n_words = len(words_of(rest.code))
        if not n_words or (n_words < MIN_WORDS and not is_small):
            share = percent(rest.removed_share)
            detail = f"{n_words} words and signs are left; {share} % of it was given code"
            skipped.append(Skipped(name=file.name, reason="too short", detail=detail))
            continue
        found.append(Member(file=file, code=rest.code, removed_share=rest.removed_share))
    return found
