"""Where weights come from: a hub id or a folder, read without unpickling code.

Weights that exist only as `pytorch_model.bin` are read with `weights_only=True` and converted once
to safetensors in the cache.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from nbhelpers.common.files import cache_dir
from nbhelpers.common.hub_errors import Asked, explain_refusal, is_unreachable, network_errors
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.hardware.secrets import HF_TOKEN, find_secret
from nbhelpers.use.hub import cached_model
from nbhelpers.use.weight_files import SAVE, require_model, require_weights

REQUEST_TIMEOUT_S = 10.0
SMALL_FILES = ["*.json", "*.txt", "*.model"]
_WRAPPERS = ("module.", "_orig_mod.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A folder that `from_pretrained` reads, and where it came from."""

    folder: Path
    name: str
    revision: str | None


def find_weights(name: str, revision: str | None, *, with_weights: bool = True) -> Weights:
    """Return the folder of a model: the local one, or the hub's, fetched and converted when needed.

    Raises:
        ConfigError: No such folder, or the hub has no such model or does not let us in.
    """
    local = Path(name).expanduser()
    if local.is_dir():
        slug = f"local-{local.name}"
        folder = _safe_folder(name, local, slug) if with_weights else local
        return Weights(folder=folder, name=name, revision=None)
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise ConfigError(
            f"There is no model folder {name!r}, and it is not a hub id of the form owner/name.",
            fix="give the folder that holds config.json, or a hub id",
        )
    folder = _from_hub(name, revision, with_weights)
    commit = folder.name
    slug = f"{name.replace('/', '--')}-{commit[:12]}"
    safe = _safe_folder(name, folder, slug) if with_weights else folder
    return Weights(folder=safe, name=name, revision=commit)


def _from_hub(name: str, revision: str | None, with_weights: bool) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    patterns, token = list(SMALL_FILES), find_secret(HF_TOKEN)
    try:
        if with_weights:
            patterns.append(_weight_pattern(HfApi(token=token), name, revision))
        options = {"revision": revision, "allow_patterns": patterns, "token": token}
        return Path(snapshot_download(name, **options))
    except network_errors() as error:
        if is_unreachable(error) and (folder := cached_model(name, revision)):
            return folder  # the client itself looks there after some of these errors only
        asked = Asked("model", name, revision, bool(token))
        message, fix = explain_refusal(asked, error)
        raise ConfigError(message, fix=fix) from None  # its chain may quote request headers


def _weight_pattern(api: Any, name: str, revision: str | None) -> str:
    """Prefer safetensors; without the hub's answer, take whatever the cache holds."""
    try:
        # One request without the client's retries, so that a missing network is told at once.
        info = api.model_info(name, revision=revision, timeout=REQUEST_TIMEOUT_S)
    except network_errors() as error:
        if not is_unreachable(error):
            raise
        return "*model*"
    safe = any(each.rfilename.endswith(".safetensors") for each in info.siblings or [])
    return "*.safetensors" if safe else "pytorch_model*.bin"


def _reason(error: Exception) -> str:
    text = str(error).splitlines()
    return text[0][:300] if text else type(error).__name__


def _safe_folder(name: str, folder: Path, slug: str) -> Path:
    """Return the folder, or a converted copy when it holds only pickled weights."""
    require_model(name, folder)
    pickled = folder / "pytorch_model.bin"
    if any(folder.glob("*.safetensors")) or not pickled.is_file():
        return folder
    stamp = pickled.stat()
    target = cache_dir() / "models" / f"{slug}-{stamp.st_size}-{int(stamp.st_mtime)}"
    if not (target / "model.safetensors").is_file():
        _convert(folder, target)
    return target


def _convert(folder: Path, target: Path) -> None:
    from safetensors.torch import save_file

    part = target.with_name(f"{target.name}.{uuid4().hex}.part")  # nodes may have equal pids
    part.mkdir(parents=True, exist_ok=True)
    state = read_state_dict(folder / "pytorch_model.bin")
    tensors = {key: value.clone().contiguous() for key, value in state.items()}
    save_file(tensors, part / "model.safetensors", metadata={"format": "pt"})
    for pattern in SMALL_FILES:
        for file in folder.glob(pattern):
            shutil.copy2(file, part / file.name)
    put_in_place(part, target)


def put_in_place(part: Path, target: Path) -> None:
    """Rename a finished model folder; one that another run made meanwhile is as good."""
    try:
        part.replace(target)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        if not (target / "model.safetensors").is_file():  # else another run was faster
            raise


def read_state_dict(path: Path) -> dict[str, Any]:
    """Return the tensors of a checkpoint file (.bin, .pt or .safetensors); no code is unpickled.

    Raises:
        DataError: The file is missing, is not a checkpoint, or would need code to be unpickled.
    """
    import torch
    from safetensors.torch import load_file

    if not path.is_file():
        raise DataError(f"There is no checkpoint file {path}.", fix="check the path")
    require_weights(path)
    try:
        if path.suffix == ".safetensors":
            return _bare_names(load_file(path))
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch's own advice on a refused file is to load it with its code; it is not passed on
        reason = "" if "weights_only" in str(error) else f": {_reason(error)}"
        if foreign := re.search(r"GLOBAL ([\w.]+)", str(error)):
            reason = f": it holds a pickled object ({foreign[1]}), not only tensors"
        text = f"{path} could not be read as a plain state dict{reason}."
        raise DataError(text, fix=SAVE) from error
    for name in ("model", "state_dict", "model_state_dict"):  # saved beside other things
        if isinstance(state, dict) and isinstance(state.get(name), dict):
            state = state[name]
    named = isinstance(state, dict) and all(isinstance(key, str) for key in state)
    if not named or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise DataError(
            f"{path} holds something else than named tensors.",
            fix=SAVE,
        )
    return _bare_names(state)


def _bare_names(state: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors without the prefixes of wrappers: DataParallel's and torch.compile's."""
    tensors = {}
    for key, value in state.items():
        while key.startswith(_WRAPPERS):
            key = key.partition(".")[2]
        tensors[key] = value
    return tensors


def raise_unlike(model: Any, state: dict[str, Any], source: str) -> None:
    """Do nothing where a state dict belongs to a model.

    Raises:
        ConfigError: Keys or shapes differ; the first are named.
    """
    own = model.state_dict()
    missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    shapes = [
        f"{k} {tuple(state[k].shape)} for {tuple(own[k].shape)}"
        for k in sorted(own.keys() & state.keys())
        if own[k].shape != state[k].shape
    ]
    if missing or unknown or shapes:
        facts = {"missing": missing, "unknown": unknown, "other shape": shapes}
        differences = "; ".join(
            f"{k}: {', '.join(v[:3])} ({len(v)})" for k, v in facts.items() if v
        )
        raise ConfigError(
            f"{source} does not belong to this model. {differences}",
            fix="give --model the architecture that the checkpoint was trained from",
        )
