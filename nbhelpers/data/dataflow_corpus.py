"""Many functions: each distinct text once, what is known from the cache, the rest by processes."""

from __future__ import annotations

import hashlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing

from ..errors import ConfigError, DataFlowUnavailable
from .dataflow_cache import FlowCache
from .dataflow_graph import read_function
from .dataflow_processes import run_chunks, serve_with, start_child
from .dataflow_table import FlowTable, join, load_table, make_table
from .dataflow_tree import leaf_kinds, require_language, require_text, versions

# Part of the cache's key: raise it when the same code and grammar give another graph than before.
FORMAT = 1

CHUNK_CHARACTERS = 200_000  # about 0.2 s of work
PROCESS_CHARACTERS = 600_000  # a further process, which takes 0.5 s to start, is worth this much

Report = Callable[[int, int], None]


def read_corpus(
    codes: Sequence[str], language: str, *, compat: str, processes: int | None, report: Report
) -> FlowTable:
    """Return the graphs of `codes`; see `extract_corpus`."""
    whole = isinstance(processes, int) and not isinstance(processes, bool)
    if processes is not None and (not whole or processes < 1):
        raise ConfigError(f"processes is {processes!r}.", fix="give a whole number from 1, or None")
    leaf_kinds(require_language(language), compat)
    distinct, place = _distinct(codes)
    texts = list(distinct)
    keys = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16] for text in texts]
    cache = FlowCache(f"{FORMAT} {language} {compat} {versions(language)}")
    rows, table = cache.load(keys)
    missing = [i for i, row in enumerate(rows) if row < 0]
    report(len(texts) - len(missing), len(texts))
    if missing:
        new = _read([texts[i] for i in missing], language, compat, processes, report, len(texts))
        cache.add([keys[i] for i in missing], new)
        for number, i in enumerate(missing, start=len(table)):
            rows[i] = number
        table = join([table, new])
    return table.take([rows[i] for i in place])


def _distinct(codes: Sequence[str]) -> tuple[dict[str, int], list[int]]:
    """Return each text with its number, and the numbers of all functions."""
    if isinstance(codes, str | bytes) or not isinstance(codes, Iterable):
        raise DataFlowUnavailable(
            f"The functions are one {type(codes).__name__}, not a list of str.",
            fix="give a list; for one function call extract_dataflow",
        )
    distinct: dict[str, int] = {}
    place: list[int] = []
    for number, code in enumerate(codes):
        require_text(code, f"Function {number}")
        place.append(distinct.setdefault(code, len(distinct)))
    return distinct, place


def read_chunk(codes: Sequence[str], language: str, compat: str) -> FlowTable:
    """Return the graphs of a few functions, a function without one as its reason."""

    def graphs() -> Iterator[tuple]:
        for code in codes:
            try:
                yield read_function(code, language, compat)[:3]
            except DataFlowUnavailable as error:
                yield [], [], error.message

    return make_table(graphs())


def read_chunks(
    chunks: Sequence[Sequence[str]], language: str, compat: str, count: int
) -> Iterator[tuple[int, FlowTable]]:
    """Yield each chunk's number and its graphs as they are done, from up to `count` children.

    Where the machine lets no further child start, those that run do the work; without any, this
    process does.

    Raises:
        DataError: A child ended before its work was done.
    """
    return run_chunks(
        chunks,
        start=lambda: start_child(__name__, language, compat),
        count=count,
        read=lambda answer: load_table(io.BytesIO(answer))[0],
        here=lambda chunk: read_chunk(chunk, language, compat),
    )


def serve() -> None:
    """Answer the parent: a list of functions comes in, their table goes out, until the pipe ends.

    `sys.argv` holds the paths, the language and the grammar's compatibility.
    """
    _, _, language, compat = sys.argv

    def answer(chunk: list[str]) -> memoryview:
        file = io.BytesIO()
        read_chunk(chunk, language, compat).save(file)
        return file.getbuffer()

    serve_with(answer)


def _read(
    texts: Sequence[str],
    language: str,
    compat: str,
    processes: int | None,
    report: Report,
    total: int,
) -> FlowTable:
    """Read chunk by chunk, here or in several children, and put them in order again."""
    chunks = list(_chunks(texts))
    count = min(processes or _processes(texts), len(chunks))
    if count == 1:
        results = ((i, read_chunk(chunk, language, compat)) for i, chunk in enumerate(chunks))
    else:
        results = read_chunks(chunks, language, compat, count)
    tables: dict[int, FlowTable] = {}
    done = total - len(texts)
    with closing(results):
        for i, table in results:
            tables[i] = table
            done += len(table)
            report(done, total)
    return join([tables[i] for i in range(len(chunks))])


def _chunks(texts: Sequence[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for text in texts:
        chunk.append(text)
        size += len(text)
        if size >= CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _processes(texts: Sequence[str]) -> int:
    """How many processes are worth starting."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cpus = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min(cpus, sum(map(len, texts)) // PROCESS_CHARACTERS))
