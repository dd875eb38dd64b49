"""Edits that change how a program looks and not what it does: of one program, of many."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from nbhelpers.common.files import cache_dir, save_in_cache
from nbhelpers.data.dataflow import run_chunks, serve_with, start_child
from nbhelpers.data.edit_java import reformat_java
from nbhelpers.data.edit_layout import LANGUAGES as BRACE_LANGUAGES
from nbhelpers.data.edit_layout import draw_of, draw_style, reformat_braces, strip_braces
from nbhelpers.data.edit_python import reformat_python, same_strings
from nbhelpers.data.edit_rename import rename_java, rename_python
from nbhelpers.data.edit_tree import Syntax, Unsure, parse_clean, strip_tree
from nbhelpers.errors import ConfigError

# ------------------------------------------------------------------------------------------------
# One program under one edit, checked against what it was; `EDITS` says what the edits are.


EDITS = ("reformat", "strip_comments", "rename", "rename_reformat")
MAX_CHARACTERS = 100_000
_TREES = ("python", "java")
# Blanks to the parser, or where statements on one line were parted.
_LAYOUT = {"python": (";", "line_continuation"), "java": ()}


def edited(code: str, language: str, edit: str, *, seed: int = 0) -> str | None:
    r"""Return a program after an edit, or None where it cannot be edited so.

    None: the language is unknown, the program does not parse, has more than `MAX_CHARACTERS`
    characters (a second of work; four for a text that is no program) or is nested too deep, the
    edit would leave nothing, or would have to guess.
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
    if edit not in EDITS:
        raise ConfigError(f"The edit is {edit!r}.", fix=f"take one of: {', '.join(EDITS)}")
    if not isinstance(code, str) or not code.strip() or len(code) > MAX_CHARACTERS:
        return None
    try:
        if language in _TREES:
            return _edit_tree(code, language, edit, seed)
        if language in BRACE_LANGUAGES:
            return _edit_braces(code, language, edit, seed)
    except (Unsure, RecursionError, MemoryError):
        return None
    return None


def _edit_tree(code: str, language: str, edit: str, seed: int) -> str:
    syntax = parse_clean(code, language)
    if edit == "strip_comments":
        return _stripped(syntax, language)
    text = code
    if edit != "reformat":
        rename = rename_python if language == "python" else rename_java
        text, new = rename(syntax, draw_of(code, "rename", seed))
        renamed = parse_clean(text, language)
        _require_renamed(syntax, renamed, new)
        syntax = renamed
    return text if edit == "rename" else _reformatted(syntax, code, language, seed)


def _reformatted(syntax: Syntax, code: str, language: str, seed: int) -> str:
    """The style belongs to the program as it was written, so that both edits share it."""
    draw = draw_of(code, "reformat", seed)
    reformat = reformat_python if language == "python" else reformat_java
    text = reformat(syntax, draw_style(draw), draw)
    _require_same(syntax, parse_clean(text, language), language)
    return text


def _stripped(syntax: Syntax, language: str) -> str:
    text = strip_tree(syntax, language)
    if not text.strip():
        raise Unsure  # nothing but comments
    after = parse_clean(text, language)
    if any(True for _ in after.comments()) or strip_tree(after, language) != text:
        raise Unsure
    ignored = ("string", "pass", ";") if language == "python" else ()
    if _tokens(syntax, ignored) != _tokens(after, ignored):
        raise Unsure
    return text


def _tokens(syntax: Syntax, ignored: Sequence[str]) -> list[str]:
    return [syntax.text(t) for t in syntax.tokens() if syntax.kinds[t] not in ignored]


def _require_same(before: Syntax, after: Syntax, language: str) -> None:
    """The trees, tokens and comments are those of one program.

    Raises:
        Unsure: They are not.
    """
    ignored = _LAYOUT[language]
    if before.shape(ignored) != after.shape(ignored):
        raise Unsure
    same = same_strings if language == "python" else str
    if [same(t) for t in _tokens(before, ignored)] != [same(t) for t in _tokens(after, ignored)]:
        raise Unsure
    if [before.text(c).split() for c in before.comments()] != [
        after.text(c).split() for c in after.comments()
    ]:
        raise Unsure


def _require_renamed(before: Syntax, after: Syntax, new: dict[str, str]) -> None:
    """The trees are the same, and each name is its old or its one new name.

    Raises:
        Unsure: They are not.
    """
    if before.kinds != after.kinds or before.parents != after.parents:
        raise Unsure
    for node in (*before.leaves, *before.inner):
        old = before.text(node)
        if "string" in before.kinds[node] and before.lasts[node] > node + 1:
            continue  # its parts are compared instead
        if after.text(node) not in (old, new.get(old)):
            raise Unsure


def _edit_braces(code: str, language: str, edit: str, seed: int) -> str | None:
    if edit == "strip_comments":
        return strip_braces(code, language)
    if edit == "reformat":
        draw = draw_of(code, "reformat", seed)
        return reformat_braces(code, language, draw_style(draw), draw)
    return None


# ------------------------------------------------------------------------------------------------
# Edits of many programs: each distinct one once, what is known from the cache, by processes.
#
# The cache is 16 files for each edit and seed, by the content of the programs. A file that cannot
# be read counts as absent. Two writers at once may lose each other's programs, which are then
# edited again: nothing is ever wrong, only slower.


# Part of the cache's key: raise it when the same program and seed give another result than before.
FORMAT = 1
CHUNK_CHARACTERS = 150_000  # about 0.5 s of work
PROCESS_CHARACTERS = 400_000  # a further process, which takes 0.5 s to start, is worth this much

Pair = tuple[str, str]  # a program and its language
Report = Callable[[int, int], None]


def edit_all(
    pairs: Sequence[Pair], edit: str, seed: int, processes: int | None, report: Report
) -> list[str | None]:
    """Return the edited programs in order; see `edit_rows`."""
    distinct = list(dict.fromkeys(pairs))
    keys = [_key(code, language) for code, language in distinct]
    cache = _Cache(edit, seed)
    known = cache.load(keys)
    missing = [i for i, key in enumerate(keys) if key not in known]
    report(len(distinct) - len(missing), len(distinct))
    if missing:
        todo = [distinct[i] for i in missing]
        new = _edit(todo, edit, seed, processes, report, len(distinct))
        fresh = {keys[i]: text for i, text in zip(missing, new, strict=True)}
        cache.add(fresh)
        known |= fresh
    place = {pair: key for pair, key in zip(distinct, keys, strict=True)}
    return [known[place[pair]] for pair in pairs]


def edit_chunk(pairs: Sequence[Sequence[str]], edit: str, seed: int) -> list[str | None]:
    """Edit a few programs in this process."""
    return [edited(code, language, edit, seed=seed) for code, language in pairs]


def serve() -> None:
    """Answer the parent: programs come in, what they became goes out, until the pipe ends.

    `sys.argv` holds the paths, the edit and the seed.
    """
    _, _, edit, seed = sys.argv
    serve_with(lambda chunk: json.dumps(edit_chunk(chunk, edit, int(seed))).encode())


def _edit(
    pairs: Sequence[Pair],
    edit: str,
    seed: int,
    processes: int | None,
    report: Report,
    total: int,
) -> list[str | None]:
    """Edit chunk by chunk, here or in several children, and put them in order again."""
    chunks = list(_chunks(pairs))
    count = min(processes or _processes(pairs), len(chunks))
    if count == 1:
        results = ((i, edit_chunk(chunk, edit, seed)) for i, chunk in enumerate(chunks))
    else:
        results = run_chunks(
            chunks,
            start=lambda: start_child(__name__, edit, str(seed)),
            count=count,
            read=json.loads,
            here=lambda chunk: edit_chunk(chunk, edit, seed),
        )
    texts: dict[int, list[str | None]] = {}
    done = total - len(pairs)
    with closing(results):
        for i, answer in results:
            texts[i] = answer
            done += len(answer)
            report(done, total)
    return [text for i in range(len(chunks)) for text in texts[i]]


def _chunks(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    chunk: list[Pair] = []
    size = 0
    for pair in pairs:
        chunk.append(pair)
        size += len(pair[0])
        if size >= CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _processes(pairs: Sequence[Pair]) -> int:
    """How many processes are worth starting."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cpus = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min(cpus, sum(len(code) for code, _ in pairs) // PROCESS_CHARACTERS))


def _key(code: str, language: str) -> str:
    text = f"{language}\0{code}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:32]


def _versions() -> str:
    """What decides a tree, as far as it is installed; without a grammar nothing is edited."""
    versions = []
    for name in ("tree-sitter", "tree-sitter-java", "tree-sitter-python"):
        try:
            versions.append(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            versions.append("none")
    return " ".join(versions)


class _Cache:
    """The programs after one edit with one seed."""

    def __init__(self, edit: str, seed: int) -> None:
        stamp = f"{FORMAT} {_versions()} {sys.version_info[:2]} {edit} {seed}"
        name = hashlib.sha256(stamp.encode()).hexdigest()[:16]
        self.folder = cache_dir() / "edits" / name

    def load(self, keys: Sequence[str]) -> dict[str, str | None]:
        """Return what is known of these programs."""
        known: dict[str, str | None] = {}
        for bucket in sorted({key[0] for key in keys}):
            known |= self._read(bucket)
        return known

    def add(self, texts: dict[str, str | None]) -> None:
        """Keep what programs became."""
        for bucket in sorted({key[0] for key in texts}):
            more = {key: text for key, text in texts.items() if key[0] == bucket}
            whole = json.dumps(self._read(bucket) | more)
            save_in_cache(self._path(bucket), lambda path, whole=whole: _write(path, whole))

    def _path(self, bucket: str) -> Path:
        return self.folder / f"{bucket}.json"

    def _read(self, bucket: str) -> dict[str, str | None]:
        """The programs of a file; none where it cannot be read."""
        try:
            programs = json.loads(self._path(bucket).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(programs, dict):
            return {}
        return {k: v for k, v in programs.items() if v is None or isinstance(v, str)}


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


# ------------------------------------------------------------------------------------------------
# Edits that change how a program looks and not what it does.
#
# A detector that loses its hits under them had learnt layout, comments or names. Training can use
# them too: each seed draws another style and other names, for both classes alike.
#
# | edit | what changes |
# |---|---|
# | reformat | indentation, line ends, blanks, braces, quotes in Python; no token and no comment |
# | strip_comments | comments go, and docstrings in Python |
# | rename | local names, parameters, and what the program defines for itself alone |
# | rename_reformat | both, under one seed |
#
# Python (3, and 2 as far as the grammar reads it) and Java are edited through their syntax trees.
# C, C++, C#, JavaScript, TypeScript, Go, Rust and Kotlin are laid out anew and stripped token by
# token; their names stay. Every result is parsed again and compared with the program: where more
# than the edit has changed, there is no result.


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
