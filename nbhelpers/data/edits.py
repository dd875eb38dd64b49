"""Edits that change how a program looks and not what it does: of one program, of many.

A detector that loses its hits under them had learnt layout, comments or names. Training can use
them too: each seed draws another style and other names, for both classes alike.

| edit | what changes |
|---|---|
| reformat | indentation, line ends, blanks, braces, quotes in Python; no token and no comment |
| strip_comments | comments go, and docstrings in Python |
| rename | local names, parameters, and what the program defines for itself alone |
| rename_reformat | both, under one seed |

Python (3, and 2 as far as the grammar reads it) and Java are edited through their syntax trees. In
C, C++, C#, JavaScript, TypeScript, Go, Rust and Kotlin only comments can be stripped. Every result
is read again and compared with the program: where more than the edit has changed, there is none.
"""

from __future__ import annotations

import importlib.metadata
import json
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

from nbhelpers.common.files import cached
from nbhelpers.common.pool import map_chunks
from nbhelpers.data.edit_comments import LEXERS, strip_text, strip_tree
from nbhelpers.data.edit_java import reformat_java
from nbhelpers.data.edit_layout import draw_style
from nbhelpers.data.edit_python import reformat_python
from nbhelpers.data.edit_rename import rename_java, rename_python
from nbhelpers.data.edit_tree import Unsure, parse_clean, require_renamed, require_same
from nbhelpers.data.syntax import PACKAGES
from nbhelpers.errors import ConfigError

EDITS = ("reformat", "strip_comments", "rename", "rename_reformat")
FULL_LANGUAGES = tuple(PACKAGES)  # they have all edits
MAX_CHARACTERS = 100_000

# Part of the cache's key: raise it when the same program and seed give another result than before.
FORMAT = 2
_PARSERS = ("tree-sitter", *PACKAGES.values(), "pygments")


def edited(code: str, language: str, edit: str, *, seed: int = 0) -> str | None:
    r"""Return a program after an edit, or None where it cannot be edited so.

    None: the language does not have the edit, the program does not parse, has more than
    `MAX_CHARACTERS` characters (a second of work; four for a text that is no program) or is nested
    too deep, the edit would leave nothing, or would have to guess.
    A program without comments, or without a name that may change, is returned as it is. The same
    code, edit and seed give the same result.

    Args:
        code: The text of a program.
        language: Its language in lower case, as data rows have it.
        edit: One of `EDITS`.
        seed: Draws another style and other names.

    Raises:
        ConfigError: `edit` is none of `EDITS`.

    >>> edited("def f(x):\n    # one more\n    return x+1\n", "python", "strip_comments")
    'def f(x):\n    return x+1\n'
    """
    _require_edit(edit)
    if not isinstance(code, str) or not code.strip() or len(code) > MAX_CHARACTERS:
        return None
    try:
        if language in FULL_LANGUAGES:
            return _edit_tree(code, language, edit, seed)
        if language in LEXERS and edit == "strip_comments":
            return strip_text(code, language)
    except (Unsure, RecursionError, MemoryError):
        return None
    return None


def _require_edit(edit: str) -> None:
    if edit not in EDITS:
        raise ConfigError(f"The edit is {edit!r}.", fix=f"take one of: {', '.join(EDITS)}")


def _edit_tree(code: str, language: str, edit: str, seed: int) -> str:
    tree = parse_clean(code, language)
    if edit == "strip_comments":
        return strip_tree(tree, language)
    text = code
    if edit != "reformat":
        rename = rename_python if language == "python" else rename_java
        text, new = rename(tree, _draw(code, "rename", seed))
        renamed = parse_clean(text, language)
        require_renamed(tree, renamed, new)
        tree = renamed
    if edit == "rename":
        return text
    # The style belongs to the program as it was written, so that both edits share it.
    draw = _draw(code, "reformat", seed)
    reformat = reformat_python if language == "python" else reformat_java
    text = reformat(tree, draw_style(draw), draw)
    require_same(tree, parse_clean(text, language), language)
    return text


def _draw(code: str, what: str, seed: int) -> random.Random:
    """Return the random numbers that belong to a program, an edit and a seed."""
    key = f"{seed} {what} ".encode() + code.encode("utf-8", "surrogatepass")
    return random.Random(sha256(key).digest())


def edit_rows(
    codes: Sequence[str],
    languages: Sequence[str],
    edit: str,
    *,
    seed: int = 0,
    report: Callable[[int, int], None] = lambda done, total: None,
    processes: int | None = None,
) -> list[str | None]:
    """Return what `edited` returns for each program, from the cache where all are known.

    Args:
        codes: The programs.
        languages: The language of each.
        edit: One of `EDITS`.
        seed: Draws another style and other names.
        report: Called with (done, total) distinct programs.
        processes: The most processes; None takes what pays.

    Raises:
        ConfigError: `edit` is none of `EDITS`, or `processes` no number from 1.
        DataError: A process ended before its work was done.
    """
    _require_edit(edit)
    pairs = list(zip(codes, languages, strict=True))
    distinct = list(dict.fromkeys(pairs))
    work = partial(_edit_chunk, edit=edit, seed=seed)

    def edit_all() -> list[str | None]:
        chunks = map_chunks(work, distinct, _size, processes=processes, report=report)
        return [text for chunk in chunks for text in chunk]

    stamp = f"{FORMAT} {_versions()} {sys.version_info[:2]} {edit} {seed}"
    key = [stamp, *(part for pair in distinct for part in pair)]
    texts = cached("edits", key, edit_all, load=_load, save=_save, suffix=".json")
    place = dict(zip(distinct, texts, strict=True))
    return [place[pair] for pair in pairs]


def _size(pair: tuple[str, str]) -> int:
    return len(pair[0])


def _edit_chunk(pairs: Sequence[tuple[str, str]], edit: str, seed: int) -> list[str | None]:
    return [edited(code, language, edit, seed=seed) for code, language in pairs]


def _versions() -> str:
    """What decides a tree, as far as it is installed; without a grammar nothing is edited."""
    versions = []
    for name in _PARSERS:
        try:
            versions.append(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            versions.append("none")
    return " ".join(versions)


def _load(path: Path) -> list[str | None]:
    return json.loads(path.read_text(encoding="utf-8"))


def _save(path: Path, texts: list[str | None]) -> None:
    path.write_text(json.dumps(texts), encoding="utf-8")
