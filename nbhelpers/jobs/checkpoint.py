"""Checkpoints that survive a kill: written aside, hashed, renamed; the one before stays.

::

    checkpoints/index.json             {"last": "step-00000120", "best": "step-00000080"}
    checkpoints/step-00000120/         model.safetensors  optimizer.pt  state.json  manifest.json
                                       config.json  tokenizer.json ...
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.common.files import write_json
from nbhelpers.common.json_models import read_raw
from nbhelpers.common.result_files import CheckpointIndex
from nbhelpers.errors import DataError, JobFailed
from nbhelpers.use.facts import file_sha256

if TYPE_CHECKING:
    from accelerate import Accelerator

INDEX, MANIFEST = "index.json", "manifest.json"
SEEN_WITHIN_S = 180.0  # by default an NFS client may go by an old listing for a minute


def save_checkpoint(
    folder: Path,
    *,
    step: int,
    model_state: dict[str, Any],
    optimizer_state: dict[str, Any],
    state: dict[str, Any],
    extra: Callable[[Path], None],
    is_best: bool,
    keep: int,
    weights_name: str = "model.safetensors",
) -> Path:
    """Write one checkpoint and drop those beyond `keep` (the best is always kept).

    Args:
        extra: Writes the configuration and the tokenizer into the folder that it is given.
        weights_name: The file of the tensors; adapters have a name of their own.

    Raises:
        JobFailed: The disk is full; earlier checkpoints are untouched.
    """
    target = folder / f"step-{step:08d}"
    part = folder / f"{target.name}.part"
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        state = {**state, "is_best": is_best}
        _write_parts(part, model_state, optimizer_state, state, extra, weights_name)
        adopt(folder, part, step=step, is_best=is_best, keep=keep)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise JobFailed(
                f"The disk of {folder} is full; the checkpoint of step {step} was not written.",
                fix="free space or set run_dir to another disk, then launch again: the run goes on "
                "from the last checkpoint",
            ) from error
        raise
    return target


def adopt(folder: Path, part: Path, *, step: int, is_best: bool, keep: int) -> Path:
    """Make a folder that is written whole the checkpoint of a step; drop those beyond `keep`.

    Its state.json says `is_best` too: `find_last` mends an index that a kill left behind.
    """
    target = folder / f"step-{step:08d}"
    files = sorted(p for p in part.iterdir() if p.is_file())
    for file in files:
        _flush(file)
    manifest = {p.name: {"bytes": p.stat().st_size, "sha256": file_sha256(p)} for p in files}
    write_json(part / MANIFEST, manifest)
    if target.exists():
        shutil.rmtree(target)
    part.replace(target)
    _point(folder, target.name, is_best)
    _prune(folder, keep)
    return target


def _write_parts(
    part: Path, model: Any, optimizer: Any, state: Any, extra: Any, weights_name: str
) -> None:
    import torch
    from safetensors.torch import save_file

    tensors = {key: value.detach().cpu().contiguous() for key, value in model.items()}
    save_file(tensors, part / weights_name, metadata={"format": "pt"})
    torch.save(optimizer, part / "optimizer.pt")
    (part / "state.json").write_text(json.dumps(state, default=float), encoding="utf-8")
    extra(part)


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def read_index(folder: Path) -> dict[str, str]:
    """Return {"last": name, "best": name}, with what is known.

    Raises:
        DataError: The file is damaged; names the field.
    """
    return read_raw(CheckpointIndex, folder / INDEX)


def _point(folder: Path, name: str, is_best: bool) -> None:
    index = {**read_index(folder), "last": name}
    if is_best:
        index["best"] = name
    write_json(folder / INDEX, index)


def _prune(folder: Path, keep: int) -> None:
    index = read_index(folder)
    spare = [p for p in list_checkpoints(folder) if p.name not in index.values()]
    others = max(0, keep - len(set(index.values())))
    for path in spare[: max(0, len(spare) - others)]:
        shutil.rmtree(path, ignore_errors=True)


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoint folders, oldest step first."""
    return sorted(p for p in folder.glob("step-*") if p.suffix != ".part" and p.is_dir())


def verify(path: Path, *, with_hashes: bool = True) -> str:
    """Return "" when every file of the checkpoint is as written, else what is wrong.

    Args:
        with_hashes: Also read the files' contents; else their sizes are enough.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"{path.name}: no readable manifest ({error})"
    for name, facts in manifest.items():
        file = path / name
        if not file.is_file() or file.stat().st_size != facts["bytes"]:
            return f"{path.name}: {name} is missing or cut short"
        if with_hashes and file_sha256(file) != facts["sha256"]:
            return f"{path.name}: {name} has changed since it was written"
    return ""


def find_last(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """Return the newest sound checkpoint; a damaged one is skipped with a warning.

    What a run left that was killed while it saved is mended: half a folder goes, and an index that
    does not know the newest checkpoint yet is brought up to it.
    """
    for left in folder.glob("step-*.part"):
        shutil.rmtree(left, ignore_errors=True)
    for path in reversed(list_checkpoints(folder)):
        problem = verify(path)
        if not problem:
            _catch_up(folder, path)
            return path
        warn(f"A checkpoint is damaged and was not used: {problem}.")
    return None


def _catch_up(folder: Path, path: Path) -> None:
    with contextlib.suppress(DataError):  # a damaged index is told where it is needed
        if path.name > read_index(folder).get("last", ""):
            state = json.loads((path / "state.json").read_text(encoding="utf-8"))
            _point(folder, path.name, bool(state.get("is_best")))


def find_best(folder: Path) -> Path:
    """Return the best checkpoint, else the last.

    Raises:
        DataError: There is none.
    """
    index = read_index(folder)
    for name in (index.get("best"), index.get("last")):
        if name and (folder / name).is_dir():
            return folder / name
    raise DataError(f"{folder} holds no checkpoint.", fix="train first, or give another run")


def agree(accelerator: Accelerator, folder: Path, choose: Callable[[], Path | None]) -> Path | None:
    """Have rank 0 choose a checkpoint, and return that one on every rank.

    Another node may list a shared folder as it was some time ago. So the other ranks do not look
    for themselves: they wait until they see whole what rank 0 has chosen.

    Args:
        folder: Where the checkpoints lie, under the same path on every node.
        choose: Returns a checkpoint in `folder`, or None; called on rank 0 only.

    Raises:
        JobFailed: This rank does not see it within `SEEN_WITHIN_S`.
    """
    if accelerator.num_processes == 1:
        return choose()
    from accelerate.utils import broadcast_object_list

    chosen = choose() if accelerator.is_main_process else None
    names = [chosen.name if chosen else None]
    broadcast_object_list(names)
    if names[0] is None:
        return None
    path = folder / names[0]
    if not accelerator.is_main_process:
        _wait_to_see(path, SEEN_WITHIN_S)
    return path


def _wait_to_see(path: Path, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while problem := _unseen(path):
        if time.monotonic() > end:
            host = socket.gethostname()
            raise JobFailed(
                f"Rank 0 goes on from the checkpoint {path}, but {host} does not see it whole "
                f"after {limit_s:.0f} s: {problem}.",
                fix=f"check on {host} that run_dir is the file system that all nodes share, then "
                "launch again",
            )
        time.sleep(min(1.0, limit_s / 10))


def _unseen(path: Path) -> str:
    try:
        os.listdir(path.parent)  # noqa: PTH208  makes NFS ask the server again
        return verify(path, with_hashes=False)
    except OSError as error:  # a handle that another node has made stale, for example
        return f"{path.name}: {error}"


def load_training_state(
    path: Path, weights_name: str = "model.safetensors"
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return (model tensors, optimizer state, state values) of a checkpoint, on the CPU."""
    import torch
    from safetensors.torch import load_file

    model = load_file(path / weights_name)
    optimizer = torch.load(path / "optimizer.pt", map_location="cpu", weights_only=True)
    return model, optimizer, json.loads((path / "state.json").read_text(encoding="utf-8"))
