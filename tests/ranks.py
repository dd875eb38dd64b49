"""Several processes that train together, forked from this one, which has torch already; no GPU."""

from __future__ import annotations

import os
import signal
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from nbhelpers.common.processes import free_port


def in_ranks(world: int, work: Callable[[], object]) -> None:
    """Do something as each of `world` processes; the first that fails fails the test."""
    port, children = free_port(), {}
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(world):
            log = Path(folder) / f"{rank}"
            child = os.fork()
            if child == 0:
                _be_rank(rank, world, port, work, log)
            children[child] = log
        failed = None
        while children:
            child, status = os.waitpid(-1, 0)
            if (log := children.pop(child, None)) is None or status == 0 or failed is not None:
                continue
            failed = log.read_text() if log.is_file() else f"wait status {status}"
            for other in children:  # it waits for the one that failed
                os.kill(other, signal.SIGKILL)
    assert failed is None, failed


def _be_rank(rank: int, world: int, port: int, work: Callable[[], object], log: Path) -> None:
    """Work as a rank that torchrun started, then end this process."""
    try:
        from accelerate.state import AcceleratorState

        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in place.items()})
        os.environ |= {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
        AcceleratorState._reset_state(reset_partial_state=True)
        work()
    except BaseException:
        log.write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)
