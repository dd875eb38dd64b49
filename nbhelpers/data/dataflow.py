"""The data-flow graph of functions: which variable gets its value from which."""

from __future__ import annotations

import hashlib
import io
import json
import os
import queue
import struct
import subprocess
import sys
import tempfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar
from zipfile import BadZipFile

from nbhelpers.common.files import cache_dir, save_in_cache
from nbhelpers.data.dataflow_program import KINDS, DataFlow, Edge, Row, read_function
from nbhelpers.data.syntax import leaf_kinds, require_language, require_text, versions
from nbhelpers.errors import ConfigError, DataError, DataFlowUnavailable

if TYPE_CHECKING:
    import numpy as np


# ------------------------------------------------------------------------------------------------
# The graphs of a corpus in flat arrays: small in memory, quick to save, to cut and to join.
#
# Shapes: `n` functions, `total` tokens, `E` edges, `P` parents.


_ARRAYS = {
    "tokens": "int32",
    "token_offsets": "int64",
    "edge_token": "int32",
    "edge_kind": "uint8",
    "edge_offsets": "int64",
    "parents": "int32",
    "parent_offsets": "int64",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlowTable:
    """Graphs of many functions; `table[i]` is the graph of function i.

    Args:
        words: Distinct token texts, in the order in which they first occur.
        tokens: (total,) int32 into `words`; function i is `token_offsets[i]:token_offsets[i + 1]`.
        token_offsets: (n + 1,) int64.
        edge_token: (E,) int32 token of its function.
        edge_kind: (E,) uint8 into `KINDS`.
        edge_offsets: (n + 1,) int64 edges of function i.
        parents: (P,) int32 tokens of the same function.
        parent_offsets: (E + 1,) int64 parents of an edge.
        problems: Function -> why it has no graph, or what the parser recovered from.
    """

    words: list[str]
    tokens: np.ndarray
    token_offsets: np.ndarray
    edge_token: np.ndarray
    edge_kind: np.ndarray
    edge_offsets: np.ndarray
    parents: np.ndarray
    parent_offsets: np.ndarray
    problems: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.token_offsets) - 1

    def __getitem__(self, index: int) -> DataFlow:
        if not -len(self) <= index < len(self):
            raise IndexError(f"function {index} of {len(self)}")
        i = index % len(self)
        words = [self.words[t] for t in self.tokens[slice(*self.token_offsets[i : i + 2])].tolist()]
        first, last = self.edge_offsets[i : i + 2].tolist()
        bounds = self.parent_offsets[first : last + 1].tolist()
        parents = self.parents[bounds[0] : bounds[-1]].tolist()
        edges = [
            Edge(token, KINDS[kind], tuple(parents[start - bounds[0] : end - bounds[0]]))
            for token, kind, start, end in zip(
                self.edge_token[first:last].tolist(),
                self.edge_kind[first:last].tolist(),
                bounds[:-1],
                bounds[1:],
                strict=True,
            )
        ]
        return DataFlow(tokens=words, edges=edges, problem=self.problems.get(i, ""))

    def __repr__(self) -> str:
        counts = f"{len(self):,} functions, {len(self.tokens):,} tokens"
        return f"FlowTable({counts}, {len(self.edge_token):,} edges, {len(self.problems)} problems)"

    def take(self, rows: Sequence[int] | np.ndarray) -> FlowTable:
        """Return the functions at `rows`, in that order; a row may be taken more than once."""
        import numpy as np

        rows, had = np.asarray(rows, dtype=np.int64), self.problems
        tokens, token_offsets = _spans(self.token_offsets, rows)
        edges, edge_offsets = _spans(self.edge_offsets, rows)
        parents, parent_offsets = _spans(self.parent_offsets, edges)
        return _renumbered(
            self.words,
            self.tokens[tokens],
            token_offsets=token_offsets,
            edge_token=self.edge_token[edges],
            edge_kind=self.edge_kind[edges],
            edge_offsets=edge_offsets,
            parents=self.parents[parents],
            parent_offsets=parent_offsets,
            problems={i: had[row] for i, row in enumerate(rows.tolist()) if row in had},
        )

    def save(self, file: Path | IO[bytes], **more: np.ndarray) -> None:
        """Write an .npz file, with further arrays of the caller's."""
        import numpy as np

        texts = {"words": self.words, "problems": list(self.problems.items())}
        coded = {
            name: np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
            for name, value in texts.items()
        }
        np.savez(file, **{name: getattr(self, name) for name in _ARRAYS}, **coded, **more)


def load_table(file: Path | IO[bytes]) -> tuple[FlowTable, dict[str, Any]]:
    """Return a table and the further arrays that were saved with it.

    Raises:
        OSError: The file cannot be read.
        ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error: It holds no table.
    """
    import numpy as np

    with np.load(file, allow_pickle=False) as saved:
        arrays = {name: saved[name] for name in saved.files}
    words = json.loads(arrays.pop("words").tobytes())
    problems = {int(i): str(text) for i, text in json.loads(arrays.pop("problems").tobytes())}
    own = {name: arrays.pop(name) for name in _ARRAYS}
    table = FlowTable(words=words, problems=problems, **own)
    if fault := _fault(table):
        raise ValueError(fault)
    return table, arrays


def make_table(graphs: Iterable[tuple[list[str], list[Row], str]]) -> FlowTable:
    """Return the table of (tokens, edges, problem) of each function."""
    import numpy as np

    words: dict[str, int] = {}
    flat: dict[str, array[int]] = {
        "tokens": array("i"),
        "edge_token": array("i"),
        "edge_kind": array("B"),
        "parents": array("i"),
    }
    ends: dict[str, array[int]] = {
        name: array("q", [0]) for name in ("token_offsets", "edge_offsets", "parent_offsets")
    }
    problems = {}
    for tokens, rows, problem in graphs:
        if problem:
            problems[len(ends["token_offsets"]) - 1] = problem
        flat["tokens"].extend(words.setdefault(token, len(words)) for token in tokens)
        flat["edge_token"].extend(row[0] for row in rows)
        flat["edge_kind"].extend(row[1] for row in rows)
        for row in rows:
            flat["parents"].extend(row[2])
            ends["parent_offsets"].append(len(flat["parents"]))
        ends["token_offsets"].append(len(flat["tokens"]))
        ends["edge_offsets"].append(len(flat["edge_token"]))
    arrays = {
        name: np.frombuffer(values, dtype=_ARRAYS[name]) if values else np.zeros(0, _ARRAYS[name])
        for name, values in chain(flat.items(), ends.items())
    }
    return FlowTable(words=list(words), problems=problems, **arrays)


def join(tables: Sequence[FlowTable]) -> FlowTable:
    """Return the functions of all tables, one after the other."""
    import numpy as np

    words: dict[str, int] = {}
    tokens = []
    for table in tables:
        number = [words.setdefault(word, len(words)) for word in table.words]
        tokens.append(np.array(number, dtype=np.int32)[table.tokens])
    problems, start = {}, 0
    for table in tables:
        problems |= {start + i: problem for i, problem in table.problems.items()}
        start += len(table)
    flat = {
        name: np.concatenate([getattr(table, name) for table in tables])
        for name in ("edge_token", "edge_kind", "parents")
    }
    offsets = {
        name: _joined([getattr(table, name) for table in tables])
        for name in ("token_offsets", "edge_offsets", "parent_offsets")
    }
    flow = np.concatenate(tokens)
    return _renumbered(list(words), flow, problems=problems, **flat, **offsets)


def _joined(offsets: Sequence[np.ndarray]) -> np.ndarray:
    """(a + 1,), (b + 1,), … offsets as those of one array after the other."""
    import numpy as np

    sizes = np.concatenate([np.diff(part) for part in offsets])
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _spans(offsets: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the items of `rows`, one row after the other, and the rows' new offsets."""
    import numpy as np

    sizes = offsets[rows + 1] - offsets[rows]
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return np.repeat(offsets[rows] - ends[:-1], sizes) + np.arange(ends[-1]), ends


def _renumbered(words: list[str], tokens: np.ndarray, **rest: Any) -> FlowTable:
    """The table with only the words in use, in the order in which they first occur."""
    import numpy as np

    first = np.full(len(words), len(tokens), dtype=np.int64)
    first[tokens[::-1]] = np.arange(len(tokens))[::-1]  # the last write of an index stays
    order = np.argsort(first, kind="stable")
    order = order[: int((first < len(tokens)).sum())]
    number = np.zeros(len(words), dtype=np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    return FlowTable(words=[words[i] for i in order.tolist()], tokens=number[tokens], **rest)


def _fault(table: FlowTable) -> str:
    """Say what does not fit in a table that was read, or ""."""
    if not isinstance(table.words, list) or not all(isinstance(w, str) for w in table.words):
        return "words are no list of str"
    for name, dtype in _ARRAYS.items():
        values = getattr(table, name)
        if values.dtype != dtype or values.ndim != 1:
            return f"{name} is {values.dtype} {values.shape}"
    for name, target in (
        ("token_offsets", table.tokens),
        ("edge_offsets", table.edge_token),
        ("parent_offsets", table.parents),
    ):
        offsets = getattr(table, name)
        rising = len(offsets) > 0 and offsets[0] == 0 and (offsets[1:] >= offsets[:-1]).all()
        if not rising or offsets[-1] != len(target):
            return f"{name} do not fit"
    same = len(table.edge_offsets) == len(table.token_offsets)
    same = same and len(table.parent_offsets) == len(table.edge_token) + 1
    same = same and len(table.edge_kind) == len(table.edge_token)
    if not same or table.tokens.max(initial=-1) >= len(table.words):
        return "sizes do not fit"
    flat = (table.tokens, table.edge_token, table.parents)
    low = min(int(values.min(initial=0)) for values in flat)
    if low < 0 or table.edge_kind.max(initial=0) >= len(KINDS):
        return "negative index"
    return "" if _indices_fit(table) else "index beyond its function"


def _indices_fit(table: FlowTable) -> bool:
    """Whether edges and parents name tokens of their own function."""
    import numpy as np

    room = np.repeat(np.diff(table.token_offsets), np.diff(table.edge_offsets))  # (E,)
    own = np.repeat(room, np.diff(table.parent_offsets))  # (P,)
    return bool((table.edge_token < room).all() and (table.parents < own).all())


# ------------------------------------------------------------------------------------------------
# Chunks of functions read, or edited, by several child processes.
#
# The children are plain Python processes that talk over pipes, not those of `multiprocessing`: they
# import nothing but the data layer whatever the parent is (a worker that holds torch, a notebook, a
# test), do not fork a process with threads or CUDA, and end when the parent's pipe closes.


T = TypeVar("T")
_LENGTH = struct.Struct(">Q")  # precedes each message
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {module} import serve; serve()"
)
_STDERR_SHOWN = 2000


def start_child(module: str, *arguments: str) -> _Child:
    """Start a process that runs `serve` of a module; it finds the arguments in `sys.argv[2:]`."""
    return _Child(module, *arguments)


def run_chunks(
    chunks: Sequence[Sequence[Any]],
    *,
    start: Callable[[], _Child],
    count: int,
    read: Callable[[bytes], T],
    here: Callable[[Sequence[Any]], T],
) -> Iterator[tuple[int, T]]:
    """Yield each chunk's number and its answer as they are done, from up to `count` children.

    Args:
        chunks: Lists that JSON can hold.
        start: Starts a child.
        count: The most children.
        read: Makes a result of a child's answer.
        here: Makes a result in this process, where no child can be started.

    Raises:
        DataError: A child ended before its work was done.
    """
    children: list[_Child] = []
    pool: ThreadPoolExecutor | None = None
    try:
        _start(children, start, count)
        if not children:
            yield from ((i, here(chunk)) for i, chunk in enumerate(chunks))
            return
        pool = ThreadPoolExecutor(len(children))
        jobs = _submit(pool, children, chunks)
        for job in as_completed(jobs):
            yield jobs[job], read(job.result())
    finally:
        for child in children:
            child.stop()
        if pool:
            pool.shutdown(cancel_futures=True)


def _start(children: list[_Child], start: Callable[[], _Child], count: int) -> None:
    """Add up to `count` children to the list; it is the caller's, who ends them."""
    with suppress(OSError):  # no permission to fork, no memory, no folder for temporary files
        while sys.executable and len(children) < count:
            children.append(start())


def _submit(
    pool: ThreadPoolExecutor, children: Sequence[_Child], chunks: Sequence[Sequence[Any]]
) -> dict[Future[bytes], int]:
    """Have each chunk read by the next child that is idle; return the chunk of each job."""
    idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
    for child in children:
        idle.put(child)

    def work(chunk: Sequence[Any]) -> bytes:
        child = idle.get()
        try:
            return child.read(chunk)
        finally:
            idle.put(child)

    return {pool.submit(work, chunk): i for i, chunk in enumerate(chunks)}


class _Child:
    """A process that runs `serve` of a module."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - goes with this object
        paths = json.dumps([path for path in sys.path if isinstance(path, str)])
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START.format(module=module), paths, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
        )

    def read(self, chunk: Sequence[Any]) -> bytes:
        """Send a chunk and wait for the answer."""
        assert self.process.stdin and self.process.stdout
        try:
            _send(self.process.stdin, json.dumps(chunk).encode())
            answer = _receive(self.process.stdout)
        except (OSError, ValueError):  # the pipe is broken, or closed by `stop`
            answer = None
        if answer is None:
            raise DataError(
                f"A process that reads code ended with {self.process.wait()} before its "
                f"{len(chunk)} functions were done.",
                fix="try again with processes=1, which needs less memory and shows where it fails",
                details=self._tail(),
            )
        return answer

    def _tail(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode("utf-8", "replace")[-_STDERR_SHOWN:]

    def stop(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                if stream:
                    stream.close()


def serve_with(answer: Callable[[list[Any]], bytes | memoryview]) -> None:
    """Answer each chunk that comes in, until the pipe ends."""
    while (message := _receive(sys.stdin.buffer)) is not None:
        _send(sys.stdout.buffer, answer(json.loads(message)))


def _send(stream: IO[bytes], message: bytes | memoryview) -> None:
    stream.write(_LENGTH.pack(len(message)))
    stream.write(message)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes | None:
    """Return the next message, or None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    message = stream.read(length)
    return message if len(message) == length else None


# ------------------------------------------------------------------------------------------------
# Graphs that were made before, by the content of their function.
#
# A function's key names one of 16 files, each a table with the keys of its rows. A file that cannot
# be read counts as absent and is written anew. Two writers at once may lose each other's functions,
# which are then read again: nothing is ever wrong, only slower.


KEY_BYTES = 16
_UNREADABLE = (OSError, ValueError, KeyError, EOFError, TypeError, BadZipFile, zlib.error)
_UNREADABLE += (MemoryError, RecursionError)  # sizes and depths that no table of ours has


class FlowCache:
    """The graphs made by one version of everything, which `stamp` describes."""

    def __init__(self, stamp: str) -> None:
        name = hashlib.sha256(stamp.encode()).hexdigest()[:16]
        self.folder = cache_dir() / "dataflow" / name

    def load(self, keys: Sequence[bytes]) -> tuple[list[int], FlowTable]:
        """Return for each key its row in the table, or -1, and the table of those found."""
        wanted: dict[int, list[int]] = {}
        for i, key in enumerate(keys):
            wanted.setdefault(key[0] >> 4, []).append(i)
        rows, tables, start = [-1] * len(keys), [make_table([])], 0
        for bucket, members in sorted(wanted.items()):
            known, table = self._read(bucket)
            hits = [i for i in members if keys[i] in known]
            for row, i in enumerate(hits, start=start):
                rows[i] = row
            start += len(hits)
            tables.append(table.take([known[keys[i]] for i in hits]))
        return rows, join(tables)

    def add(self, keys: Sequence[bytes], table: FlowTable) -> None:
        """Keep the rows of a table under their keys."""
        new: dict[int, list[int]] = {}
        for i, key in enumerate(keys):
            new.setdefault(key[0] >> 4, []).append(i)
        for bucket, members in new.items():
            known, old = self._read(bucket)
            fresh = [i for i in members if keys[i] not in known]
            if fresh:
                self._write(
                    bucket, [*known, *(keys[i] for i in fresh)], join([old, table.take(fresh)])
                )

    def _path(self, bucket: int) -> Path:
        return self.folder / f"{bucket:x}.npz"

    def _read(self, bucket: int) -> tuple[dict[bytes, int], FlowTable]:
        """The rows of a file by their keys; nothing where it cannot be read."""
        try:
            table, more = load_table(self._path(bucket))
            flat = more["keys"].tobytes()
            keys = [flat[i : i + KEY_BYTES] for i in range(0, len(flat), KEY_BYTES)]
        except _UNREADABLE:
            return {}, make_table([])
        known = {key: row for row, key in enumerate(keys)}
        return (known, table) if len(known) == len(table) else ({}, make_table([]))

    def _write(self, bucket: int, keys: Sequence[bytes], table: FlowTable) -> None:
        import numpy as np

        flat = np.frombuffer(b"".join(keys), dtype=np.uint8)

        def write(path: Path) -> None:
            with path.open("wb") as file:
                table.save(file, keys=flat)

        save_in_cache(self._path(bucket), write)


# ------------------------------------------------------------------------------------------------
# Many functions: each distinct text once, what is known from the cache, the rest by processes.


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


# ------------------------------------------------------------------------------------------------
# The data-flow graph of a function: which variable gets its value from which.
#
# `extract_dataflow` gives what GraphCodeBERT's clone detection makes of a function: its tokens (the
# leaves of the syntax tree, comments and docstrings removed) and the edges between them.
# "comesFrom" names where a value was last set, "computedFrom" what an assignment computes it from.
# The result is that of the original's rules on the tree of today's grammars, oddities included,
# with these differences, each of them on purpose:
#
# - text beyond ASCII keeps its tokens whole (the original takes byte columns for characters);
# - a Java piece that parses only inside a class (a constructor) is read as if inside one;
# - where the original fails halfway and silently gives no edges, `problem` says so; in text with
#   parse errors the rules go on with what is there;
# - depth costs no exponential time (the original walks a loop's body twice for each loop around it
#   and overflows on deep expressions), and a graph beyond `MAX_EDGES` is refused.
#
# Source: Guo et al., "GraphCodeBERT: Pre-training Code Representations with Data Flow" (2021), 3;
# `extract_dataflow` in microsoft/CodeBERT, GraphCodeBERT/clonedetection/run.py at commit 0db870f.


def extract_dataflow(code: str, language: str, *, grammar_compat: str = "maintained") -> DataFlow:
    """Return the data-flow graph of one function, the same for the same code everywhere.

    Args:
        code: The function as written, with its comments and line ends.
        language: "java" or "python".
        grammar_compat: "maintained" takes the grammar's leaves as they are; "checkpoint" keeps a
            literal as one token, as the grammar did with which the published checkpoint was
            trained.

    Raises:
        DataFlowUnavailable: The language is unknown, its grammar is not installed, the code is no
            str or has no token, or the graph is too large.
        ConfigError: `grammar_compat` is unknown.

    >>> extract_dataflow("int f(int a) { return a; }", "java").edges
    [Edge(token_index=4, kind='comesFrom', parent_indices=()), \
Edge(token_index=8, kind='comesFrom', parent_indices=(4,))]
    """
    tokens, rows, problem, is_too_large = read_function(code, language, grammar_compat)
    if is_too_large:
        raise DataFlowUnavailable(problem, fix="split this function, or leave it out")
    edges = [Edge(token, KINDS[kind], parents) for token, kind, parents in rows]
    return DataFlow(tokens=tokens, edges=edges, problem=problem)


def extract_corpus(
    codes: Sequence[str],
    language: str,
    *,
    grammar_compat: str = "maintained",
    processes: int | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> FlowTable:
    """Return the graphs of many functions in their order, each distinct text read once.

    Graphs come from the cache where the text, the versions of the parser and grammar and
    `grammar_compat` are the same. A function without a graph has no edges, and its reason stands in
    `problems`.

    Args:
        codes: The functions as written; any number of them may be equal.
        language: "java" or "python".
        grammar_compat: As in `extract_dataflow`.
        processes: How many read at the same time; None takes the CPUs at hand, and one for a
            small corpus. They are children without torch and end with this call.
        report: Called with (done, total) distinct functions.

    Raises:
        DataFlowUnavailable: The language is unknown, its grammar is not installed, or `codes` is
            no list of str.
        ConfigError: `grammar_compat` or `processes` is no valid value.
        DataError: A child ended before its work was done.
    """
    return read_corpus(codes, language, compat=grammar_compat, processes=processes, report=report)
