"""Work on many texts, by several processes where that pays."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import cache, partial
from types import ModuleType
from typing import Any, TypeVar

from nbhelpers.common.processes import available_cpus, die_with
from nbhelpers.errors import ConfigError, DataError

Item = TypeVar("Item")
Result = TypeVar("Result")

CHUNK_CHARACTERS = 200_000  # some tenths of a second of work
PROCESS_CHARACTERS = 600_000  # a further process, which takes 0.5 s to start, is worth this much


def map_chunks(
    work: Callable[[list[Item]], Result],
    items: Sequence[Item],
    size: Callable[[Item], int],
    *,
    processes: int | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[Result]:
    """Return what `work` makes of each chunk of the items, in their order.

    The processes are new ones that import the module of `work` and nothing of this process, so
    neither its threads, nor CUDA, nor torch are in them.

    Args:
        work: A function of a module, or a `partial` of one.
        items: The items.
        size: The characters of an item.
        processes: The most processes; None takes the CPUs at hand, one for little work, and does
            here what another process could not.
        report: Called with (done, total) items.

    Raises:
        ConfigError: `processes` is no number from 1.
        DataError: One of `processes` ended before its work was done.
    """
    if processes is not None and (type(processes) is not int or processes < 1):
        raise ConfigError(f"processes is {processes!r}.", fix="give a whole number from 1, or None")
    chunks = list(_chunks(items, size))
    count = min(processes or worthwhile(sum(map(size, items))), len(chunks))
    results: dict[int, Result] = {}
    done = 0
    report(0, len(items))
    for number, result in _results(work, chunks, count, is_asked=processes is not None):
        results[number] = result
        done += len(chunks[number])
        report(done, len(items))
    return [results[number] for number in range(len(chunks))]


def _chunks(items: Sequence[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    chunk: list[Item] = []
    characters = 0
    for item in items:
        chunk.append(item)
        characters += size(item)
        if characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def worthwhile(characters: int) -> int:
    """How many processes are worth starting."""
    return max(1, min(available_cpus(), characters // PROCESS_CHARACTERS))


def begin(work: Callable[..., Result], *args: Any) -> Callable[[], Result]:
    """Begin work in a process of its own; return what waits for its result.

    What cannot be done there, as where a process is killed for want of memory, is done where the
    result is asked for.

    Args:
        work: A function of a module.
        args: What it is given; they and the result are pickled.
    """
    return begin_chain(partial(work, *args))[0]


def begin_chain(
    first: Callable[[], Any], *following: Callable[[Any], Any]
) -> list[Callable[[], Any]]:
    """Begin work as `begin`, then what is made of its result in the same process, in turn.

    Return what waits for each result.

    Args:
        first: A function of a module, or a `partial` of one.
        following: Functions of modules, each given what `first` returned.
    """

    def here(work: Callable[[Any], Any]) -> Any:
        return work(waits[0]())

    try:
        pool = _new_pool(1)
        with _no_main_module():
            job = pool.submit(_remembered, first)
            jobs = [pool.submit(_of_remembered, work) for work in following]
        pool.shutdown(wait=False)
    except Exception:  # no shared memory, or this process may start none
        waits: list[Callable[[], Any]] = [cache(first)]
        return waits + [partial(here, work) for work in following]
    waits = [cache(partial(_result, job, first))]
    pairs = zip(jobs, following, strict=True)
    return waits + [partial(_result, job, here, work) for job, work in pairs]


_LAST: list[Any] = []  # in that process: what the first of a chain returned


def _remembered(work: Callable[[], Any]) -> Any:
    _LAST[:] = [work()]
    return _LAST[0]


def _of_remembered(work: Callable[[Any], Any]) -> Any:
    return work(_LAST[0])


def _new_pool(count: int) -> ProcessPoolExecutor:
    """Processes that end with this one, however it ends."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(
        count, mp_context=context, initializer=die_with, initargs=(os.getpid(),)
    )


def _result(job: Future[Result], work: Callable[..., Result], *args: Any) -> Result:
    try:
        return job.result()
    except Exception:  # an error of the work itself is raised again here
        return work(*args)


def _results(
    work: Callable[[list[Item]], Result], chunks: list[list[Item]], count: int, *, is_asked: bool
) -> Iterator[tuple[int, Result]]:
    """Yield number and result of each chunk; `is_asked`: the processes were, and must do it."""
    pool, jobs = None, {}
    try:
        if count > 1:
            with suppress(*() if is_asked else (Exception,)), _no_main_module():
                pool = _new_pool(count)  # the processes start with the first job
                for number, chunk in enumerate(chunks):
                    jobs[pool.submit(work, chunk)] = number
        for job in as_completed(jobs):
            number = jobs[job]
            yield number, job.result() if is_asked else _result(job, work, chunks[number])
        for number in sorted({*range(len(chunks))} - {*jobs.values()}):
            yield number, work(chunks[number])
    except BrokenProcessPool as error:
        raise DataError(
            "A process that reads code ended before its work was done.",
            fix="try again with processes=1, which needs less memory and shows where it fails",
        ) from error
    finally:
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _no_main_module() -> Iterator[None]:
    """Hide the main module, which a new process would import: a worker's, or a user's script."""
    main = sys.modules.get("__main__")
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        if main is None:
            del sys.modules["__main__"]
        else:
            sys.modules["__main__"] = main
