"""The entry of a worker: `python -m nbhelpers.jobs.worker RUN_DIR`, once per training process.

It checks what it was given before it loads anything, does the job, and tells everything as events.
A failure travels as an `error` event: launchers turn exit codes into 1.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

from nbhelpers.errors import ConfigError, NbhelpersError, OutOfMemory, Stopped
from nbhelpers.events import EventWriter
from nbhelpers.jobs.checkpoint import read_index
from nbhelpers.nodes import attend
from nbhelpers.runs import Run, redirect_output
from nbhelpers.supervise import die_with_parent

BEGAN = time.perf_counter()  # imports of the libraries take longer than a small run


class StopSignal:
    """Remembers SIGTERM and SIGINT; the loop asks at each optimizer step."""

    def __init__(self, request: Path) -> None:
        """Also watch for the `stop` file that `run.stop()` writes."""
        self.request, self.seen = request, False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.seen = True

    def __call__(self) -> bool:
        """Say whether a stop was asked for."""
        return self.seen or self.request.exists()


def main(folder: str) -> int:
    """Run the job of a run folder in this process; return its exit code."""
    die_with_parent()
    rank = int(os.environ.get("RANK", "0"))
    run = Run(Path(folder))
    redirect_output(run, rank)
    writer = EventWriter(run.path, rank)
    stop = StopSignal(run.stop_path)
    try:
        from nbhelpers.jobs.session import work

        work(run, writer, stop, began=BEGAN)
    except BaseException as error:
        return _fail(run, writer, error)
    return 0


def _fail(run: Run, writer: EventWriter, error: BaseException) -> int:
    """Write what happened as an event and return the exit code."""
    trace = traceback.format_exc()
    print(trace, file=sys.stderr, flush=True)  # noqa: T201  stderr is this rank's log
    known = error if isinstance(error, NbhelpersError) else _translate(run, error)
    if isinstance(known, Stopped):
        if writer.rank == 0:
            name = read_index(run.checkpoints_path).get("last")
            step = int(name.split("-")[1]) if name else 0
            writer.write("stopped", step=step, checkpoint=name)
        return 0
    writer.write(
        "error",
        kind=type(known).__name__ if known else "JobFailed",
        message=known.message if known else f"{type(error).__name__}: {error}",
        fix=known.fix if known else "read the end of the log below",
        details=known.details if known else "",
        traceback=trace,
    )
    return known.exit_code if known else 1


def _translate(run: Run, error: BaseException) -> NbhelpersError | None:
    """Name foreign errors that have a known cause."""
    text = str(error)
    starved = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if starved or "out of memory" in text.lower() or "not enough memory" in text.lower():
        return _out_of_memory(run, text)
    if isinstance(error, OSError) and error.errno == 28:
        return NbhelpersError(f"The disk is full: {text}", fix="free space, then launch again")
    return None


def _out_of_memory(run: Run, text: str) -> OutOfMemory:
    facts: dict[str, Any] = run.read_json()
    plan, budget = facts["plan"], facts["budget"]
    size = plan["per_device_train_batch_size"]
    fix = (
        f"set per_device_train_batch_size={size // 2}: accumulation doubles, the global batch of "
        f"{plan['global_batch_size']} stays"
        if size > 1
        else "set gradient_checkpointing=true or a shorter seq_len"
    )
    predicted = (budget or {}).get("total_bytes")
    told = f" Predicted need: {predicted / 2**30:.2f} GiB." if predicted else ""
    where, measured = _where()
    told += f" Allocated at the peak: {measured / 2**30:.2f} GiB." if measured else ""
    return OutOfMemory(f"Out of memory{where}.{told}", fix=fix, details=text[:2000])


def _where() -> tuple[str, int]:
    """Say in which phase this process is, and the allocator's peak; nothing is imported for it."""
    module, peak = sys.modules.get("nbhelpers.jobs.measure"), 0
    if module is None:
        return "", 0
    if module.torch.cuda.is_initialized():
        peak = module.torch.cuda.max_memory_allocated()
    words = module.HERE.words()
    return (f" in the phase {words}" if words else ""), peak


def quiet_libraries() -> None:
    """Keep libraries from asking, counting or chatting."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"  # nothing forks here after tokenising
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)
    # Batches vary in length: growing segments keep freed blocks usable for other sizes.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # It offers to download kernels for CPUs that it does well without.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise ConfigError("usage: python -m nbhelpers.jobs.worker RUN_DIR")
    quiet_libraries()
    code = attend(sys.argv[1], main)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # no destructor of a process group may hang the others
