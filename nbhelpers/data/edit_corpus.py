"""Edits of many programs: each distinct one once, what is known from the cache, by processes.

The cache is 16 files for each edit and seed, by the content of the programs. A file that cannot be
read counts as absent. Two writers at once may lose each other's programs, which are then edited
again: nothing is ever wrong, only slower.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from ..cache import cache_dir, save_in_cache
from .dataflow_processes import run_chunks, serve_with, start_child
from .edit_program import edited

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
    found = []
    for name in ("tree-sitter", "tree-sitter-java", "tree-sitter-python"):
        try:
            found.append(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            found.append("none")
    return " ".join(found)


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
            found = json.loads(self._path(bucket).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(found, dict):
            return {}
        return {k: v for k, v in found.items() if v is None or isinstance(v, str)}


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
