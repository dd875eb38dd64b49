"""A job's context without a worker: what is not given is that of one process on a CPU."""

from __future__ import annotations

from typing import Any

from nbhelpers.jobs.context import RunContext
from nbhelpers.plan import split_batch


def make_context(**given: Any) -> RunContext:
    """Return a context of one process in fp32, whose events go nowhere."""
    usual = {"settings": None, "plan": split_batch(8, 4, 1), "accelerator": None}
    return RunContext(**(usual | {"precision": "fp32"} | given))
