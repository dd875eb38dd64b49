"""`launch`: start a run in processes of their own, re-attach to it, or return it when finished.

The kernel's part ends once the supervisor is up (`supervise.py` draws the processes). One id is one
folder: launching the same configuration again finds the same run, whatever state it is in.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.budget.disk import require_supplies
from nbhelpers.budget.time import predict_time
from nbhelpers.common import processes
from nbhelpers.common.files import expanded, is_file, kind_of, locked
from nbhelpers.common.processes import with_package
from nbhelpers.errors import BudgetError, ConfigError, HardwareError, LaunchError
from nbhelpers.hardware.machine import OWNER_PID_VARIABLE, find_owner
from nbhelpers.hardware.secrets import TRACKER_KEYS, share_secret
from nbhelpers.presets.checks import no_gpu_for
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.packages import PACKAGES, packaged_folder
from nbhelpers.presets.parameters import override_words
from nbhelpers.presets.schema import Settings
from nbhelpers.runs.identity import folder_stamp, git_commit, run_id, versions
from nbhelpers.runs.run import Run, end_leftovers
from nbhelpers.runs.siblings import find_sibling, newest_step, take_checkpoints
from nbhelpers.runs.supervise import LOG_START_VARIABLE, OWNER_VARIABLE

if TYPE_CHECKING:
    from nbhelpers.budget.memory import MemoryBudget
    from nbhelpers.hardware.detection import Hardware
    from nbhelpers.plan import BatchPlan
    from nbhelpers.presets.preset import Preset

FRESH_VARIABLE = "NBHELPERS_FRESH"
# A headless runner names a file here, and learns from it which runs a notebook uses.
LAUNCHED_VARIABLE = "NBHELPERS_LAUNCHED"
START_LIMIT_S = 60.0
DRIVE = "/content/drive"  # where Colab mounts Google Drive
_TROUBLE = {
    errno.ENOSPC: ("the disk is full", "Free some space, or set run_dir to another disk."),
    errno.EDQUOT: ("your disk quota is used up", "Free some space, or set run_dir elsewhere."),
    errno.EROFS: ("the file system is read-only", "Set run_dir to a folder you can write to."),
    errno.EACCES: ("writing is not permitted", "Set run_dir to a folder you can write to."),
    errno.EPERM: ("writing is not permitted", "Set run_dir to a folder you can write to."),
    errno.ENAMETOOLONG: ("the path is too long", "Set run_dir to a shorter path."),
    errno.ENOTDIR: ("a file is in the place of a folder", "Set run_dir to a folder."),
    errno.EEXIST: ("a file is in the place of a folder", "Set run_dir to a folder."),
}


def launch(
    preset: Preset,
    plan: BatchPlan,
    budget: MemoryBudget | None,
    *,
    hardware: Hardware,
    run_dir: str | Path = "runs",
    fresh: bool = False,
    resume: bool | None = None,
    job_mode: str = "train",
    checkpoint: str | Path | None = None,
    command: str | None = None,
    owner_pid: int | None = None,
    force: bool = False,
) -> Run:
    """Start the run of this configuration and return at once; it outlives this process.

    A finished run is returned as it is, a running one is re-attached, and one that stopped, failed
    or died is started again, from its last checkpoint.

    Args:
        preset: What to do.
        plan: How the global batch is split.
        budget: The predicted memory; None when nothing was predicted.
        hardware: The GPUs of this machine, as detected.
        run_dir: Where run folders lie; a mounted drive will do.
        fresh: Set an earlier run of this configuration aside as `<id>~1` and start anew.
        resume: Go on from a run that ended early and differs in how its global batch was split
            only; by default it is named, and `nbhelpers run --resume` goes on from it.
        job_mode: "train"; "probe" for a few steps of it; or "evaluate" with a checkpoint.
        checkpoint: The checkpoint to evaluate.
        command: The shell command that does the same, for the report.
        owner_pid: The run is stopped when this process ends. By default a headless run (papermill,
            nbconvert, `nbhelpers run`) owns its runs, and a notebook in use does not.
        force: Start although the memory is predicted not to suffice.

    Raises:
        BudgetError: The memory is predicted not to suffice.
        ConfigError: An evaluation without its checkpoint, an unknown mode, or a model whose
            package is not installed.
        HardwareError: The hardware or the plan is for other machines, or the preset's GPU is not
            here.
        LaunchError: The folder cannot be used, or the worker cannot be started.
    """
    path = _checked_checkpoint(job_mode, checkpoint)
    require_detected(hardware)
    if plan.num_nodes > 1:
        raise HardwareError(
            f"The plan is for {plan.num_nodes} nodes, and this machine is one.",
            fix="for several nodes: nbhelpers export-launcher; for one: plan_batch without "
            "num_nodes",
        )
    command = command or _default_command(preset, job_mode, path)
    record = run_record(preset, plan, budget, hardware=hardware, mode=job_mode, checkpoint=path)
    root = expanded(run_dir, "run_dir").absolute()
    record |= {"command": command}
    if job_mode == "train" and isinstance(preset.settings, Settings):
        record["time"] = predict_time(preset, plan, hardware, run_dir=root).to_dict()
    run = Run(root / record["run_id"])
    if job_mode != "evaluate" and not force and needs_start(run, fresh=fresh):
        require_gpu(preset, plan, hardware)
    require_drive(hardware.platform, root)
    if warning := " ".join(lost_disk(hardware.platform, root)).strip():
        _say(warning)
    with explained(root):
        root.mkdir(parents=True, exist_ok=True)
        if job_mode != "evaluate" and not force and not run.result_path.is_file():
            require_supplies(preset, hardware, root)
            if (model := getattr(preset.settings, "model", "")) in PACKAGES:
                packaged_folder(model)
        with locked(root / ".lock"):
            fresh = fresh or _starts_anew(run)
            if fresh:  # before anything is set aside
                require_room(budget, hardware, force=force)
            if not reuse(run, fresh=fresh):
                require_room(budget, hardware, force=force)
                if job_mode == "train" and not fresh:
                    record |= go_on(run, record, resume=resume)
                write_record(run, record)
                if key := TRACKER_KEYS.get(record["preset"]["settings"].get("track")):
                    share_secret(key)
                _start(run, _owner(owner_pid))
    tell_runner(run.path)
    return run


def _checked_checkpoint(mode: str, checkpoint: str | Path | None) -> str | None:
    if mode not in ("train", "probe", "evaluate"):
        fix = 'Use "train", "probe" or "evaluate".'
        raise ConfigError(f"job_mode={mode!r} is unknown.", fix=fix)
    if mode != "evaluate":
        if checkpoint is not None:
            raise ConfigError("Training takes no checkpoint.", fix='Set job_mode="evaluate".')
        return None
    if checkpoint is None:
        raise ConfigError("An evaluation needs a checkpoint.", fix="Give checkpoint=<path>.")
    path = expanded(checkpoint, "the checkpoint").absolute()
    if kind_of(path) not in ("file", "folder"):
        raise ConfigError(f"There is no checkpoint {path}.", fix="Check the path.")
    return str(path)


def run_record(
    preset: Preset,
    plan: BatchPlan,
    budget: MemoryBudget | None,
    *,
    hardware: Hardware,
    mode: str,
    checkpoint: str | None,
) -> dict[str, Any]:
    """Return what `run.json` holds, but for the command."""
    facts = preset.to_dict()
    settings = facts["settings"]
    places = (settings.get(name) for name in ("data", "model", *JOBS[preset.job].further_data))
    stamp = folder_stamp(*places, checkpoint)
    name = run_id(preset.job, settings, mode=mode, checkpoint=checkpoint, stamp=stamp)
    return {
        "schema": 1,
        "run_id": name,
        "job": preset.job,
        "mode": mode,
        "preset": facts,
        "plan": plan.to_dict(),
        "budget": budget.to_dict() if budget is not None else None,
        "hardware": hardware.to_dict(),
        "checkpoint": checkpoint,
        "launched_by": os.getpid(),  # what it holds of a GPU is left over from a notebook's cells
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "git_commit": git_commit(),
        "data_fingerprint_hint": stamp or None,
    }


def _default_command(preset: Preset, mode: str, checkpoint: str | None) -> str:
    words = ["nbhelpers", mode, preset.job, "--preset", preset.name]
    if checkpoint:
        words = ["nbhelpers", mode, preset.job, "--checkpoint", checkpoint]
    return shlex.join([*words, *override_words(preset)])


def is_fresh_by_default() -> bool:
    """Whether a headless runner asks for new runs."""
    return os.environ.get(FRESH_VARIABLE) == "1"


def needs_start(run: Run, *, fresh: bool) -> bool:
    """Say whether a launch of this run would do more than use its result."""
    return fresh or _starts_anew(run) or run.status != "finished"


def _starts_anew(run: Run) -> bool:
    """Whether a headless runner asks for a new run, once for each run of a notebook."""
    launched = os.environ.get(LAUNCHED_VARIABLE)
    known = Path(launched).read_text("utf-8") if launched and is_file(launched) else ""
    return is_fresh_by_default() and str(run.path) not in known.splitlines()


def reuse(run: Run, *, fresh: bool) -> bool:
    """Say what an existing folder means; True when nothing is to be started."""
    if not run.path.exists():
        return False
    status = run.status
    if status == "running":
        if fresh:
            fix = f"Stop it first: run.stop(), or: {run.shell('stop')}"
            raise LaunchError(f"{run.id} is running, so it cannot be started anew.", fix=fix)
        _say(f"{run.id} is running already: re-attached.")
        return True
    end_leftovers(run)
    if fresh:
        _say(f"{run.id} ({status}) is kept as {_set_aside(run).name}; starting anew.")
        return False
    _check_same(run)
    if status == "finished":
        _say(
            f"{run.id} is finished: its result is used. To start anew: "
            "nb.launch(..., fresh=True), in a shell train --fresh."
        )
        return True
    if status != "new":
        _say(f"{run.id} ({status}) starts again, from its last checkpoint if it has one.")
    return False


def go_on(run: Run, record: dict[str, Any], *, resume: bool | None) -> dict[str, Any]:
    """Give a run the checkpoints of one that differs in its split only, or name that one.

    Returns:
        What `run.json` holds of it.
    """
    earlier = (run.record or {}).get("continues")
    facts = {"continues": earlier} if earlier else {}
    sibling = find_sibling(run, record)
    if sibling is None:
        if resume and not newest_step(run):
            _say(f"No run that ended early differs from {run.id} in its split alone: from step 0.")
        return facts
    other, changes = sibling
    step, own = newest_step(other), newest_step(run)
    what = f"{other.id} ({other.status} after step {step}) is the same experiment: {changes}"
    if resume is None:
        resume = os.environ.get(FRESH_VARIABLE) == "0"
    if not resume:
        _say(
            f"{what}. {run.id} starts from step {own} all the same; to go on from step {step}, "
            "stop it and launch with --resume, or in Python nb.launch(..., resume=True)."
        )
        return facts
    take_checkpoints(other, run)
    _say(
        f"{what}. {run.id} goes on from its step {step}, with the same rows in every step; sums "
        "are made in another order, so the result is near, not bit-equal."
    )
    return {"continues": {"run_id": other.id, "step": step, "changes": changes}}


def _set_aside(run: Run) -> Path:
    number = 1
    while (place := run.path.with_name(f"{run.id}~{number}")).exists():
        number += 1
    run.path.rename(place)
    return place


def _check_same(run: Run) -> None:
    if not any(run.path.iterdir()):
        return
    from nbhelpers.common.result_files import Record

    fix = Record.FIX
    record = run.record
    if record is None:
        raise LaunchError(f"{run.path} has no run.json that can be read.", fix=fix)
    if record.get("run_id") != run.id:
        raise LaunchError(f"{run.path} holds the run {record.get('run_id')!r}.", fix=fix)


def write_record(run: Run, record: dict[str, Any]) -> None:
    """Make the run folder ready for a start."""
    from nbhelpers.common.result_files import Record

    run.path.mkdir(exist_ok=True)
    run.stop_path.unlink(missing_ok=True)
    first = (run.record or {}).get("created_at", record["created_at"])
    Record.write(run.record_path, record | {"created_at": first})


def _start(run: Run, owner: tuple[int, str] | None) -> None:
    """Start the supervisor in a session of its own and wait until it has started the worker."""
    if not hasattr(os, "fork"):
        fix = "On Windows, run the notebook inside WSL 2."
        raise LaunchError("A run needs Linux or macOS.", fix=fix)
    launch_id = uuid.uuid4().hex
    env = with_package(os.environ) | {processes.LAUNCH_VARIABLE: launch_id}
    env[OWNER_VARIABLE] = f"{owner[0]}:{owner[1]}" if owner else ""
    command = [sys.executable, "-m", "nbhelpers.runs.supervise", str(run.path)]
    with run.launcher_log_path.open("ab") as log:
        start = log.tell()
        env[LOG_START_VARIABLE] = str(start)
        starter = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    with contextlib.suppress(subprocess.TimeoutExpired):
        starter.wait(START_LIMIT_S)
    if starter.poll() == 0 and run.process.get("launch_id") == launch_id:
        return
    if starter.poll() is None:
        starter.kill()
        starter.wait()
    log_text = run.launcher_log_path.read_bytes()[start:].decode(errors="replace")
    processes.end(lambda: processes.of_launch(launch_id), grace_s=0)
    raise LaunchError(
        f"The supervisor of {run.id} did not start.",
        fix=f"Read the lines below; the whole log is {run.launcher_log_path}.",
        details="\n".join(log_text.splitlines()[-20:]),
    )


def _owner(pid: int | None) -> tuple[int, str] | None:
    """The owner with its start time, so that a recycled pid is not mistaken for it."""
    if pid is None:
        named = os.environ.get(OWNER_PID_VARIABLE, "")
        pid = int(named) if named.isdigit() else find_owner()
    if pid is None:
        return None
    started = processes.start_time(pid)
    if started is None:
        fix = f"Unset {OWNER_PID_VARIABLE}, or give the pid of a living process."
        raise LaunchError(f"The owner (process {pid}) is gone.", fix=fix)
    return pid, started


def require_detected(hardware: Hardware) -> None:
    """Refuse planned hardware.

    Raises:
        HardwareError: The hardware is a plan.
    """
    if hardware.is_planned:
        fix = "Use nb.detect_hardware() for a run, nb.plan_hardware() for planning only."
        raise HardwareError("This hardware is a plan, not this machine's.", fix=fix)


def require_gpu(preset: Preset, plan: BatchPlan, hardware: Hardware) -> None:
    """A preset for a GPU would take days on a CPU, and nobody asks for that on purpose.

    Raises:
        HardwareError: The preset is for a GPU, and the plan uses none.
    """
    if preset.gpu and not plan.use_gpu:
        raise no_gpu_for(preset, hardware)


def require_room(budget: MemoryBudget | None, hardware: Hardware, *, force: bool) -> None:
    """Stop where the memory is predicted not to suffice.

    Raises:
        BudgetError: Names the settings that fit.
    """
    if budget is None or force:
        return
    if budget.verdict == "does not fit":
        from nbhelpers.budget.memory import require_fit

        require_fit(budget)
    ram = hardware.ram_total_bytes
    if ram and not hardware.gpus and budget.total_bytes > ram:
        raise BudgetError(
            f"The run needs {budget.total_bytes / 2**30:.1f} GiB (predicted) for tensors alone; "
            f"this machine has {ram / 2**30:.1f} GiB of memory and no GPU.",
            fix='take preset="smoke" and model="smoke", lower seq_len or '
            "per_device_train_batch_size (in a notebook: in more_settings), or launch where a GPU "
            "is",
        )


@contextlib.contextmanager
def explained(root: Path) -> Iterator[None]:
    """Turn what the system refuses below a folder of runs into an error with its fix."""
    try:
        yield
    except OSError as error:
        default = (error.strerror or str(error), "Set run_dir to a folder you can write to.")
        why, fix = _TROUBLE.get(error.errno or 0, default)
        place = error.filename or root
        raise LaunchError(f"The run folder {place} cannot be used: {why}.", fix=fix) from error


def lost_disk(platform: str, root: Path) -> tuple[str, str]:
    """Say that a platform deletes the disk of a folder of runs, and what to do; else two blanks."""
    if platform == "colab" and not root.is_relative_to(DRIVE):
        return (
            "Colab deletes this machine's disk, this run included, when the session ends.",
            f"To keep runs, mount Google Drive and set run_dir='{DRIVE}/MyDrive/runs'.",
        )
    if platform == "kaggle":
        is_kept = root.is_relative_to("/kaggle/working")
        where = "this run" if is_kept else f"{root} is lost in any case, and /kaggle/working"
        return (
            f"Kaggle deletes this machine's disk when the session ends: {where} is kept only by "
            "'Save Version'.",
            "" if is_kept else "Set run_dir='/kaggle/working/runs'.",
        )
    return "", ""


def require_drive(platform: str, root: Path) -> None:
    """Stop where runs are to lie on a Google Drive that is not mounted: they would be lost.

    Raises:
        LaunchError: With the lines that mount it.
    """
    if platform == "colab" and root.is_relative_to(DRIVE) and not os.path.ismount(DRIVE):
        raise LaunchError(
            f"Google Drive is not mounted, and the run folder {root} lies on it.",
            fix=f"run `from google.colab import drive; drive.mount('{DRIVE}')` in a cell, or set "
            "another run_dir",
        )


def tell_runner(path: Path) -> None:
    """Tell a headless runner which folder, of a run or of a study, its notebook uses."""
    if name := os.environ.get(LAUNCHED_VARIABLE):
        with contextlib.suppress(OSError), Path(name).open("a", encoding="utf-8") as file:
            file.write(f"{path}\n")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
