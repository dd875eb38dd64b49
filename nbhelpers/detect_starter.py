"""Code that was handed out, or that most files share, is taken out before files are compared.

What everybody was given says nothing about who worked with whom. A line goes when every word of it
lies in a run of words that the given code holds too, so that a lone brace stays where it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import floor

RUN_WORDS = 8  # words and signs in a row; shorter runs are shared by chance
COMMON_SHARE = 0.5  # what stands in more files than this is taken for given
MIN_FILES = 8  # with fewer, "most files" may be the very ones that were copied
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stripped:
    """A program without given code, and the share of its words that was taken out."""

    code: str
    removed_share: float


def words_of(line: str) -> list[str]:
    """Words and signs of a line.

    >>> words_of("  return x+1")
    ['return', 'x', '+', '1']
    """
    return _WORD.findall(line)


def runs(words: Sequence[str]) -> list[int]:
    """Return a hash for each run of `RUN_WORDS` words; a shorter text is one run."""
    if not words:
        return []
    count = max(1, len(words) - RUN_WORDS + 1)
    return [hash(tuple(words[i : i + RUN_WORDS])) for i in range(count)]


def given_runs(starter: Iterable[str], codes: Sequence[str]) -> set[int]:
    """Return the runs of the starter code, and those that most of many files hold."""
    given = {run for text in starter for run in runs(words_of(text))}
    if len(codes) >= MIN_FILES:
        counts: Counter[int] = Counter()
        for code in codes:
            counts.update(set(runs(words_of(code))))
        limit = floor(COMMON_SHARE * len(codes))
        given |= {run for run, count in counts.items() if count > limit}
    return given


def strip(code: str, given: set[int]) -> Stripped:
    """Return a program without the lines that lie in given runs altogether.

    >>> strip("a = 1", set())
    Stripped(code='a = 1', removed_share=0.0)
    """
    lines = code.splitlines(keepends=True)
    found = [words_of(line) for line in lines]
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
