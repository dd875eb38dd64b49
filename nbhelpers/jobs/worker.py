"""The entry of a worker: `python -m nbhelpers.jobs.worker RUN_DIR`, once per training process.

It checks what it was given before it loads anything, does the job, and tells everything as events.
A failure travels as an `error` event: launchers turn exit codes into 1.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from nbhelpers.common.child import Child
from nbhelpers.common.processes import collect_garbage_again, die_with_parent
from nbhelpers.errors import (
    ConfigError,
    HardwareError,
    NbhelpersError,
    OutOfMemory,
    Stopped,
    is_out_of_memory,
)
from nbhelpers.hardware.detection import Hardware
from nbhelpers.jobs.checkpoint import read_index
from nbhelpers.plan import BatchPlan
from nbhelpers.presets.jobs import JOBS, resolve
from nbhelpers.presets.preset import Preset, shared_size
from nbhelpers.runs.events import EventWriter, phase_seconds, read_events
from nbhelpers.runs.run import Run, redirect_output
from nbhelpers.runs.unsupervised import attend

if TYPE_CHECKING:
    from nbhelpers.jobs.context import RunContext
    from nbhelpers.jobs.measure import CardMemory

SIMULATOR = "nbhelpers.jobs.simulated.child"
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
        work(run, writer, stop, began=BEGAN)
    except BaseException as error:
        return _fail(run, writer, error)
    return 0


def job_module(name: str) -> Any:
    """Return the five functions of a job; only that job's libraries are imported."""
    return importlib.import_module(JOBS[name].worker)


def _load_transformers(name: str) -> None:
    """Import what all models of transformers need, before Python looks for garbage again.

    Left out is what no job of ours uses, though a user's own may: scikit-learn, for assisted
    generation (5.17; 5.24 imports it later), and SciPy's optimisers, for losses of detection.
    """
    spec = JOBS[name]
    if "transformers" not in spec.libraries or not spec.worker.startswith("nbhelpers."):
        return
    from transformers import utils

    checks = "is_sklearn_available", "is_scipy_available"
    spared = {key: getattr(utils, key) for key in checks if hasattr(utils, key)}
    try:
        for key in spared:
            setattr(utils, key, lambda: False)
        from transformers import AutoTokenizer, PreTrainedModel  # noqa: F401
    finally:
        for key, value in spared.items():
            setattr(utils, key, value)


def work(
    run: Run, writer: EventWriter, stop: Callable[[], bool], *, began: float | None = None
) -> None:
    """Do the job of a run folder, in this process and rank; `began`: see `Clock`.

    Raises:
        HardwareError: Other processes, devices or precision than planned.
        ConfigError: Settings that this job refuses, all at once.
        NbhelpersError: Whatever ends the job.
    """
    facts = run.read_json()
    gpu = _begin_gpu(facts)
    early = _begin_early(facts, writer.rank)
    with _simulator(facts, writer.rank) as child:  # its libraries load while this one's do
        from nbhelpers.jobs import outcome
        from nbhelpers.jobs.forecast import make_forecast
        from nbhelpers.jobs.loop import seed_everything

        job = job_module(facts["job"])
        context = _start(run, writer, stop, job, facts, began, gpu)
        context.clock.phase("data")
        context = replace(_in_mode(context), early=early)
        _load_transformers(facts["job"])
        collect_garbage_again()
        with context.accelerator.main_process_first():
            inputs = job.build_data(context)
        if _is_simulated(facts):
            context = replace(context, forecast=make_forecast(context, job, inputs, child))
    context.clock.phase("model")
    seed_everything(context.settings.seed)
    with context.accelerator.main_process_first():
        model = job.build_model(context, inputs)
    training = None
    if context.checkpoint is None:
        training = job.train(context, inputs, model)
    else:
        model.to(context.accelerator.device)
    if context.is_probe:
        outcome.write_probe(context, training)
        return
    context.clock.phase("evaluate")
    job.evaluate(context, inputs, model, training)


def _begin_early(facts: dict[str, Any], rank: int) -> Any:
    """Begin what a job does without its libraries, which take as long to load; rank 0 only.

    Where the CPU trains, nothing: its cores have other work.

    Args:
        facts: `run.json`.
    """
    place = JOBS[facts["job"]].early
    if rank or not place or facts["mode"] != "train" or not facts["plan"]["use_gpu"]:
        return None
    return resolve(place)(Preset.from_dict(facts["preset"]).settings)


@contextmanager
def _simulator(facts: dict[str, Any], rank: int) -> Iterator[Child | None]:
    """Hold the process that simulates the largest batch: one for all ranks."""
    if rank or not _is_simulated(facts):
        yield None
        return
    child = Child(use_gpu=False, module=SIMULATOR)

    def warm_up() -> None:
        with suppress(NbhelpersError):  # the simulation itself will say so
            engine = facts["preset"]["settings"].get("engine")
            child.call("warm_up", job=facts["job"], engine=engine)

    threading.Thread(target=warm_up, daemon=True).start()
    try:
        yield child
    finally:
        child.kill()


def _is_simulated(facts: dict[str, Any]) -> bool:
    """Whether the largest batch of a run is simulated: it trains on a GPU, and its job knows how.

    Args:
        facts: `run.json`.
    """
    is_training, uses_gpu = facts["mode"] != "evaluate", facts["plan"]["use_gpu"]
    return is_training and uses_gpu and bool(JOBS[facts["job"]].simulation)


def _start(
    run: Run,
    writer: EventWriter,
    stop: Callable[[], bool],
    job: Any,
    facts: dict[str, Any],
    began: float | None,
    gpu: Future[CardMemory] | None,
) -> RunContext:
    """Compare the world with the plan before anything is loaded, and let the processes meet."""
    from nbhelpers.jobs.context import RunContext, start_accelerator
    from nbhelpers.jobs.measure import Clock
    from nbhelpers.jobs.track import check_tracker, start_tracker

    settings, plan = Preset.from_dict(facts["preset"]).settings, BatchPlan.from_dict(facts["plan"])
    hardware = Hardware.from_dict(facts["hardware"])
    precision = settings.precision
    if precision == "auto":
        precision = hardware.precision if plan.use_gpu else "fp32"

    def emit(kind: str, **fields: Any) -> None:
        if writer.rank == 0:
            writer.write(kind, **fields)

    earlier = read_events(writer.path)
    clock = Clock(emit, earlier=phase_seconds(earlier), began=began)
    clock.phase("check")
    _check_world(plan)
    card = _check_gpu(precision, gpu.result()) if gpu is not None else None
    track = "none" if facts["mode"] == "probe" else settings.track
    problems = [*job.check(settings), *check_tracker(track)]
    if problems:
        raise ConfigError("; ".join(problems), fix="change these settings and launch again")
    trackers = None if track == "none" else [track]
    accelerator = start_accelerator(precision, plan, log_with=trackers, project_dir=str(run.path))
    _check_processes(accelerator, plan)
    writer.write(
        "start",
        rank=writer.rank,
        world_size=plan.world_size,
        device=str(accelerator.device),
        pid=os.getpid(),
    )
    if trackers and writer.rank == 0:
        start_tracker(accelerator, writer, run, facts, earlier)
    return RunContext(
        settings=settings,
        plan=plan,
        accelerator=accelerator,
        precision=precision,
        run=run,
        facts=facts,
        rank=writer.rank,
        emit_rank=writer.write,
        wants_stop=stop,
        clock=clock,
        earlier=earlier,
        card=card,
    )


def _check_world(plan: BatchPlan) -> None:
    real = int(os.environ.get("WORLD_SIZE", "1"))
    if real != plan.world_size:
        raise HardwareError(
            f"The plan is for {plan.world_size} processes, but {real} were started.",
            fix="launch again; if it repeats, read launcher.log in the run folder",
        )


def _begin_gpu(facts: dict[str, Any]) -> Future[CardMemory] | None:
    """Begin to read what this rank's GPU holds and to start CUDA, while libraries load."""
    if not facts["plan"]["use_gpu"]:
        return None
    executor = ThreadPoolExecutor(1)
    future = executor.submit(_card_then_cuda, facts.get("launched_by"))
    executor.shutdown(wait=False)
    return future


def _card_then_cuda(launched_by: int | None) -> CardMemory:
    """Return what this rank's GPU held before CUDA started; a CUDA that cannot is told later."""
    import torch

    from nbhelpers.jobs.measure import CardMemory

    card = CardMemory(_local_rank(), notebook_pid=launched_by)
    with suppress(RuntimeError, AssertionError):
        torch.cuda.init()
    return card


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def _check_gpu(precision: str, card: CardMemory) -> CardMemory:
    """Return what this rank's GPU held before CUDA started; the GPU must do for the run."""
    import torch

    n_gpus, local = torch.cuda.device_count(), _local_rank()
    if local >= n_gpus:
        raise HardwareError(
            f"Process {local} needs a GPU of its own; torch {torch.__version__} sees {n_gpus}.",
            fix="check CUDA_VISIBLE_DEVICES, and that torch was built for this driver",
        )
    capability = torch.cuda.get_device_capability(local)
    if not has_kernels(capability, torch.cuda.get_arch_list()):
        raise HardwareError(
            f"{torch.cuda.get_device_name(local)} has the compute capability "
            f"{capability[0]}.{capability[1]}, for which torch {torch.__version__} has no kernels.",
            fix="take a card from 7.5 on, such as a T4 (on Kaggle: GPU T4 x2), or install a build "
            "of torch that has them: https://pytorch.org/get-started/previous-versions",
        )
    if precision == "bf16" and capability < (8, 0):
        raise HardwareError(
            f"{torch.cuda.get_device_name(local)} has no native bf16.", fix="set precision=fp16"
        )
    return card


def has_kernels(capability: tuple[int, int], built_for: Sequence[str]) -> bool:
    """Whether a build of PyTorch runs on a GPU; True where it does not tell what it is built for.

    Kernels run on the same generation's later chips, code that is compiled on the spot (`compute_`)
    on any later chip. Source: CUDA C++ Programming Guide, binary and PTX compatibility.

    >>> built_for = ["sm_75", "sm_80", "sm_90", "compute_90"]
    >>> [has_kernels(chip, built_for) for chip in ((6, 0), (7, 0), (7, 5), (8, 9), (12, 0))]
    [False, False, True, True, True]
    """
    number = 10 * capability[0] + capability[1]
    kinds = [re.fullmatch(r"(sm|compute)_(\d+)[af]?", name) for name in built_for]
    return not any(kinds) or any(
        int(kind[2]) <= number and (kind[1] == "compute" or int(kind[2]) // 10 == number // 10)
        for kind in kinds
        if kind
    )


def _check_processes(accelerator: Any, plan: BatchPlan) -> None:
    if accelerator.num_processes != plan.world_size:
        raise HardwareError(
            f"Accelerate made {accelerator.num_processes} processes of "
            f"{plan.world_size} planned ones.",
            fix="report this with launcher.log: the processes did not find each other",
        )


def _in_mode(context: RunContext) -> RunContext:
    """Return the context with what an evaluation or a probe changes."""
    from nbhelpers.jobs import outcome, probe

    if context.is_probe:
        return replace(context, settings=probe.shortened(context.settings))
    if not context.is_evaluation:
        return context
    path = outcome.checkpoint_file(Path(context.facts["checkpoint"]))
    settings = outcome.settings_for_checkpoint(context.facts["job"], context.settings, path)
    return replace(context, settings=settings, checkpoint=path)


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
    if is_out_of_memory(error):
        return _out_of_memory(run, text)
    if isinstance(error, OSError) and error.errno == 28:
        return NbhelpersError(f"The disk is full: {text}", fix="free space, then launch again")
    return None


def _out_of_memory(run: Run, text: str) -> OutOfMemory:
    facts: dict[str, Any] = run.read_json()
    plan, budget = facts["plan"], facts["budget"]
    size = plan["per_device_train_batch_size"]
    total, settings = plan["global_batch_size"], (facts.get("preset") or {}).get("settings") or {}
    if size > 1:
        smaller = shared_size(total, size // 2, plan.get("world_size") or 1) or size // 2
        fix = f"set per_device_train_batch_size={smaller}: the global batch of {total} stays, by "
        fix += "accumulation; --resume (resume=True) goes on from a checkpoint"
    elif settings.get("gradient_checkpointing"):
        fix = "set a shorter seq_len"
    else:
        fix = "set gradient_checkpointing=true or a shorter seq_len"
    predicted = (budget or {}).get("total_bytes")
    memory_text = f" Predicted need: {predicted / 2**30:.2f} GiB." if predicted else ""
    where, measured = _where()
    memory_text += f" Allocated at the peak: {measured / 2**30:.2f} GiB." if measured else ""
    return OutOfMemory(f"Out of memory{where}.{memory_text}", fix=fix, details=text[:2000])


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
    gc.disable()  # until the libraries are loaded
    code = attend(sys.argv[1], main)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # no destructor of a process group may hang the others
