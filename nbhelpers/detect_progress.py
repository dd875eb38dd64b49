"""How far a batch is: one line that is rewritten on a terminal, else a line at each tenth."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from nbhelpers.formatting import duration
from nbhelpers.progress import bar

LOG_EVERY_SHARE = 0.1
MIN_S = 0.2  # between two drawings on a terminal

Tick = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    """Show nothing."""


def progress(what: str, *, is_on: bool = True, stream: TextIO | None = None) -> Tick:
    """Return a function that is told what is done of what, and shows it on stderr.

    Args:
        what: What is counted, such as `files`.
        is_on: False shows nothing.
        stream: Where; None is stderr.
    """
    if not is_on:
        return silent
    target = sys.stderr if stream is None else stream
    is_terminal = hasattr(target, "isatty") and target.isatty()
    start, shown = time.monotonic(), {"at": -1.0, "share": -1.0}

    def tick(done: int, total: int) -> None:
        now, share = time.monotonic(), done / total if total else 1.0
        is_last = done >= total
        if is_terminal and not is_last and now - shown["at"] < MIN_S:
            return
        if not is_terminal and not is_last and share - shown["share"] < LOG_EVERY_SHARE:
            return
        shown["at"], shown["share"] = now, share
        left = duration((now - start) * (1 - share) / share) if share else "?"
        line = f"[{bar(share)}] {done} of {total} {what}, {'done' if is_last else left + ' left'}"
        end = "\n" if is_last or not is_terminal else ""
        target.write(f"\r{line}\x1b[K{end}" if is_terminal else f"{line}\n")
        target.flush()

    return tick
