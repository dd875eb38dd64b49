"""The errors a user can meet, each with its fix and the exit code of a headless run.

::

    NbhelpersError              1
    ├── ConfigError             2   a preset, a parameter, a name
    ├── HardwareError           3   the GPU or the driver is not what the plan needs
    ├── DataError               5   a data set that cannot be used as it is
    │   └── DataFlowUnavailable 5   a function for which no data flow can be had
    ├── BudgetError             8   predicted not to fit: stopped before the model loads
    ├── LaunchError            11   the worker could not be started, or its folder is in use
    ├── RequirementMissed       7   finished, but a score is below what `--require` asks
    └── JobFailed               1   the worker ended without a result
        ├── OutOfMemory         4
        ├── Killed              6   a signal, a dead rank, a dead kernel, a time limit
        ├── Stopped             9   stopped on request: resumable
        └── NonFinite          12   NaN or infinity in a loss or a gradient
"""

from __future__ import annotations


class NbhelpersError(Exception):
    """Base of all errors that this package raises on purpose.

    Args:
        message: What was asked, what is so, and why that fails.
        fix: What to type or change; shown on a line of its own.
        details: Further lines, such as the end of a worker's log.
    """

    exit_code = 1

    def __init__(self, message: str, *, fix: str = "", details: str = "") -> None:
        super().__init__(message)
        self.message, self.fix, self.details = message, fix, details

    def __str__(self) -> str:
        parts = [self.message]
        if self.fix:
            parts.append(f"Fix: {self.fix}")
        if self.details:
            parts.append(self.details)
        return "\n".join(parts)


class ConfigError(NbhelpersError):
    """A preset, a parameter or a name is wrong."""

    exit_code = 2


class HardwareError(NbhelpersError):
    """The GPU or its driver is not what the plan needs."""

    exit_code = 3


class DataError(NbhelpersError):
    """The data set cannot be used as it is."""

    exit_code = 5


class DataFlowUnavailable(DataError):
    """No data-flow graph can be had for a function; the message is the reason."""


class BudgetError(NbhelpersError):
    """The run is predicted not to fit the GPU's memory."""

    exit_code = 8


class LaunchError(NbhelpersError):
    """The worker could not be started, or its run folder is in use."""

    exit_code = 11


class RequirementMissed(NbhelpersError):
    """The run finished, but a score misses what was required of it."""

    exit_code = 7


class JobFailed(NbhelpersError):
    """The worker ended without a result."""

    exit_code = 1


class OutOfMemory(JobFailed):
    """The GPU (or the machine) ran out of memory."""

    exit_code = 4


class Killed(JobFailed):
    """A signal, a dead rank, a dead kernel or a time limit ended the run."""

    exit_code = 6


class Stopped(JobFailed):
    """The run was stopped on request and can be resumed."""

    exit_code = 9


class NonFinite(JobFailed):
    """A loss or a gradient was NaN or infinite."""

    exit_code = 12


_STARVED = ("out of memory", "not enough memory", "can't allocate memory")  # of a GPU, of a CPU


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is want of memory, whichever library words it.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."))
    True
    """
    is_named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return is_named or any(words in str(error).lower() for words in _STARVED)


def _tree(root: type[NbhelpersError]) -> dict[str, type[NbhelpersError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


def from_kind(kind: str, message: str, *, fix: str = "", details: str = "") -> NbhelpersError:
    """Rebuild the error that a worker wrote as an event; an unknown kind becomes `JobFailed`.

    >>> from_kind("OutOfMemory", "asked for 2 GiB").exit_code
    4
    >>> type(from_kind("KeyError", "'x'")).__name__
    'JobFailed'
    """
    return _tree(NbhelpersError).get(kind, JobFailed)(message, fix=fix, details=details)
