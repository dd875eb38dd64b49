"""Work that may take seconds, beside a widget: only the newest request counts."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Any

from nbhelpers.errors import JobFailed, NbhelpersError

LAST_S = 5.0  # for what is being drawn when the process ends
Check = Callable[[str], None]
Work = Callable[[Check], Any]
Done = Callable[[Any], None]


class ReplacedError(Exception):
    """A newer request has come: the work ends at its next step."""


class Latest:
    """One thread that does the newest piece of work and forgets those that waited before it.

    Work gets a function to call between its steps, with a word on what comes next: it raises
    `ReplacedError` once there is a newer request. `done` gets the result, or the `NbhelpersError`
    that ended the work; it is called in the thread, and not for work that was replaced.
    """

    def __init__(self) -> None:
        self._lock, self._doing = threading.Condition(), threading.Lock()
        self._next: tuple[int, Work, Done] | None = None
        self._number = 0
        self._thread: threading.Thread | None = None

    def ask(self, work: Work, done: Done) -> None:
        """Do this next, instead of whatever waits."""
        with self._lock:
            self._number += 1
            self._next = (self._number, work, done)
            if self._thread is None:
                atexit.unregister(self.close)
                atexit.register(self.close)
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()

    def forget(self) -> None:
        """Drop what waits, and the result of what is being done."""
        with self._lock:
            self._number += 1
            self._next = None

    def close(self) -> None:
        """Begin nothing more, and let a `done` end: a thread that dies while it draws aborts."""
        self.forget()
        if self._doing.acquire(timeout=LAST_S):
            self._doing.release()

    def wait(self, timeout_s: float) -> bool:
        """Wait until nothing is left to do; whether that came in time."""
        with self._lock:
            return self._lock.wait_for(lambda: self._thread is None, timeout_s)

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._next is None:
                    self._thread = None
                    self._lock.notify_all()
                    return
                number, work, done = self._next
                self._next = None
            result = self._result(number, work)
            with self._doing:
                if number == self._number:
                    done(result)

    def _result(self, number: int, work: Work) -> Any:
        def check(_: str) -> None:
            if number != self._number:
                raise ReplacedError

        try:
            return work(check)
        except NbhelpersError as error:
            return error
        except ReplacedError:
            return None
        except Exception as error:  # a thread has nobody to raise to; it is told like the rest
            return JobFailed(f"{type(error).__name__}: {error}")
