"""Edits that change how a program looks and not what it does.

A detector that loses its hits under them had learnt layout, comments or names. Training can use
them too: each seed draws another style and other names, for both classes alike.

| edit | what changes |
|---|---|
| reformat | indentation, line ends, blanks, braces, quotes in Python; no token and no comment |
| strip_comments | comments go, and docstrings in Python |
| rename | local names, parameters, and what the program defines for itself alone |
| rename_reformat | both, under one seed |

Python (3, and 2 as far as the grammar reads it) and Java are edited through their syntax trees. C,
C++, C#, JavaScript, TypeScript, Go, Rust and Kotlin are laid out anew and stripped token by token;
their names stay. Every result is parsed again and compared with the program: where more than the
edit has changed, there is no result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import ConfigError
from .edit_corpus import edit_all
from .edit_program import EDITS, MAX_CHARACTERS, edited

__all__ = ["EDITS", "MAX_CHARACTERS", "edit_rows", "edited"]


def edit_rows(
    codes: Sequence[str],
    languages: Sequence[str],
    edit: str,
    *,
    seed: int = 0,
    report: Callable[[int, int], None] | None = None,
    processes: int | None = None,
) -> list[str | None]:
    """Return what `edited` returns for each program, from the cache where it is known.

    Args:
        codes: The programs.
        languages: The language of each.
        edit: One of `EDITS`.
        seed: Draws another style and other names.
        report: Called with (done, total) distinct programs.
        processes: The most processes; None takes what pays.

    Raises:
        ConfigError: `edit` is none of `EDITS`, or the two lists differ in length.
        DataError: A process ended before its work was done.
    """
    if edit not in EDITS:
        raise ConfigError(f"The edit is {edit!r}.", fix=f"take one of: {', '.join(EDITS)}")
    if len(codes) != len(languages):
        raise ConfigError(
            f"There are {len(codes)} programs and {len(languages)} languages.",
            fix="give the language of each program",
        )
    pairs = list(zip(codes, languages, strict=True))
    return edit_all(pairs, edit, seed, processes, report or (lambda done, total: None))
