"""Weights that other scripts saved: which file is meant, and is it one; told without torch.

Whether a pickle holds only tensors, torch says when it is read (`weights_only`).
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

from nbhelpers.common.files import is_file, is_folder
from nbhelpers.errors import ConfigError, DataError

SUFFIXES = (".bin", ".pt", ".pth", ".safetensors")
BEST = "checkpoint-best-f1"  # where CodeXGLUE's and GraphCodeBERT's scripts keep their best model
_BESIDE = ("optimizer", "scheduler", "scaler", "training_args", "rng_state")
SAVE = "save it as `torch.save(model.state_dict(), path)`; pickled objects are not loaded"
_AGAIN = "fetch or copy the file again"
_HEADS = (
    (b"version https://git-lfs", "is a Git LFS pointer, not the weights", "run: git lfs pull"),
    (b"<", "is a web page, not weights", _AGAIN),
)


def weights_file(place: Path) -> Path:
    """Return the file of weights that a path means; a run, checkpoint or export of ours stays.

    In a folder that holds several, `checkpoint-best-f1/model.bin` is meant: the scripts of
    CodeXGLUE and GraphCodeBERT save their best model there, inside their output folder.

    Raises:
        DataError: The folder holds no weights or several, or the file is something else.
    """
    if is_folder(place):
        ours = (place / "manifest.json", place / "nbhelpers.json")
        if any(map(is_file, ours)) or is_folder(place / "checkpoints"):
            return place
        place = _inside(place)
    if is_file(place):
        require_weights(place)
    return place


def _inside(folder: Path) -> Path:
    files = sorted(path for path in _nearby(folder) if _may_be_weights(path))
    best = [path for path in files if path.parent.name == BEST]
    for choice in (best, files):
        if len(choice) == 1:
            return choice[0]
    if files:
        names = [str(path.relative_to(folder)) for path in files]
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        raise DataError(
            f"{folder} holds {len(files)} files of weights: {', '.join(names[:8])}{more}.",
            fix=f"name one of them: --checkpoint {files[0]}",
        )
    there = sorted(path.name for path in folder.iterdir())
    named = ", ".join(there[:12]) + (", …" if len(there) > 12 else "")
    raise DataError(
        f"{folder} holds no file of weights ({', '.join(SUFFIXES)}); it has {named or 'nothing'}.",
        fix=f"name the file or the folder it is in, such as saved_models/{BEST}/model.bin",
    )


def _nearby(folder: Path) -> Iterator[Path]:
    """Files of the folder, of its folders and of theirs."""
    for pattern in ("*", "*/*", "*/*/*"):
        yield from (path for path in folder.glob(pattern) if is_file(path))


def _may_be_weights(path: Path) -> bool:
    return path.suffix in SUFFIXES and not path.name.startswith(_BESIDE)


def require_weights(path: Path) -> None:
    """Stop where a file is visibly no weights; what only torch can see is left to torch.

    Raises:
        DataError: It is empty, cut short or something else.
    """
    try:
        with path.open("rb") as file:
            fault, fix = _fault(path, file.read(64))
    except OSError as error:
        fault, fix = f"cannot be read: {error.strerror or error}", "make it readable"
    if fault:
        raise DataError(f"{path} {fault}.", fix=fix)


def require_model(name: str, folder: Path) -> None:
    """Stop where a model's weights, in a folder or in the hub's cache, are visibly damaged.

    Raises:
        ConfigError: Names the file, and for the cache what to delete.
    """
    safe = sorted(folder.glob("*.safetensors"))
    for path in safe or sorted(folder.glob("pytorch_model*.bin")):
        try:
            require_weights(path)
        except DataError as error:
            is_cached = folder.parent.name == "snapshots"
            again = f"delete {path.resolve()}: the next run fetches it again"
            text = f"The weights of {name} cannot be used: {error.message}"
            raise ConfigError(text, fix=again if is_cached else error.fix) from None


def _fault(path: Path, head: bytes) -> tuple[str, str]:
    if not head:
        return "is empty", _AGAIN
    is_safe = path.suffix == ".safetensors"
    if is_safe and _is_whole(path):
        return "", ""
    for start, what, fix in _HEADS:
        if head.startswith(start):
            return what, fix
    if is_safe:
        return "is cut short or damaged", _AGAIN
    if head.startswith(b"PK\x03\x04"):
        return ("", "") if zipfile.is_zipfile(path) else ("is cut short or damaged", _AGAIN)
    if head.startswith(b"\x80"):
        return "", ""
    return f"was not written by torch.save (it begins with {head[:12]!r})", SAVE


def _is_whole(path: Path) -> bool:
    """Whether a file of safetensors is as long as its head says.

    Source: the format's description, https://github.com/huggingface/safetensors#format.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            head_bytes = int.from_bytes(file.read(8), "little")
            head = json.loads(file.read(head_bytes)) if head_bytes <= size - 8 else {}
        ends = [head[name]["data_offsets"][1] for name in head if name != "__metadata__"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
    return bool(head) and size == 8 + head_bytes + max(ends, default=0)
