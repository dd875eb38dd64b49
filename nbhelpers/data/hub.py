"""Data sets on the hub: find the files of one commit, fetch only those, and say why where it fails.

One request with a short time limit comes first, so that a missing network is told at once instead
of after the retries of a download. No message here contains a token.
"""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import DataError
from .problems import ProblemLog

REQUEST_TIMEOUT_S = 10.0
# Files of the two forms; `test_*` are further splits.
CODEXGLUE_FILES = ("data.jsonl", "train.txt", "valid.txt", "test.txt", "test_*.txt")
CLONE_FILES = (
    "neither data.jsonl nor Parquet files",
    "name a data set in the CodeXGLUE layout or with Parquet files of function pairs.",
)
# Terms that the hub's own tag does not tell, or tells differently from the origin of the data.
KNOWN_LICENCES = {
    "google/code_x_glue_cc_clone_detection_big_clone_bench": "C-UDA",
    "semeru/Code-Code-CloneDetection-BigCloneBench": "tagged MIT; C-UDA at its origin, CodeXGLUE",
    "google-research-datasets/mbpp": "CC-BY-4.0",
}
_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFolder:
    """Files of one commit, on the local disk."""

    folder: Path
    files: tuple[str, ...]
    commit: str
    licence: str


def is_repo_id(source: str) -> bool:
    """Whether a text has the form `owner/name`.

    >>> is_repo_id("semeru/Code-Code-CloneDetection-BigCloneBench"), is_repo_id("./data/x")
    (True, False)
    """
    return bool(_REPO_ID.fullmatch(source)) and "--" not in source and ".." not in source


def choose_files(names: list[str]) -> list[str]:
    """Files to fetch: the CodeXGLUE layout around `data.jsonl`, else all Parquet files."""
    functions = [name for name in names if PurePosixPath(name).name == "data.jsonl"]
    if functions:
        root = min(functions, key=lambda name: name.count("/"))
        folder = PurePosixPath(root).parent
        return [
            name
            for name in names
            if PurePosixPath(name).parent == folder
            and any(
                fnmatch.fnmatch(PurePosixPath(name).name, pattern) for pattern in CODEXGLUE_FILES
            )
        ]
    return [name for name in names if name.endswith(".parquet")]


def fetch(
    repo_id: str,
    revision: str | None,
    log: ProblemLog,
    *,
    choose: Callable[[list[str]], list[str]] = choose_files,
    wanted: tuple[str, str] = CLONE_FILES,
) -> HubFolder:
    """Fetch the data files of a hub data set into the hub's own cache.

    Without a network the cached copy is used, with a note; without a copy that is an error.

    Args:
        repo_id: `owner/name`.
        revision: Branch, tag or commit; None: the default branch.
        log: Gets a note where the cache was used.
        choose: Which of the data set's files are the data.
        wanted: What `choose` looks for, told where it finds nothing: the lack, and the fix.

    Raises:
        DataError: Offline and not cached, no such data set or revision, gated, a refused or
            missing token.
    """
    import huggingface_hub as hub
    from huggingface_hub import errors

    # The base of the hub's HTTP errors belongs to the HTTP client in use (httpx or a successor).
    network = (OSError, ValueError, errors.HfHubHTTPError.__mro__[1])
    try:
        info = hub.HfApi().dataset_info(repo_id, revision=revision, timeout=REQUEST_TIMEOUT_S)
        there = [sibling.rfilename for sibling in info.siblings or []]
        names = choose(there)
        if not names:
            raise _no_files(repo_id, there, wanted)
        folder = Path(
            hub.snapshot_download(
                repo_id,
                repo_type="dataset",
                revision=revision,
                allow_patterns=[glob.escape(name) for name in names],
            )
        )
    except network as error:
        if _is_unreachable(error):
            cached = _from_cache(repo_id, revision, log, choose)
            if cached is not None:
                return cached
        raise _explain(repo_id, revision, error) from None  # its chain may quote request headers
    return HubFolder(
        folder=folder,
        files=tuple(name for name in names if (folder / name).is_file()),
        commit=folder.name,
        licence=_licence(repo_id, info.card_data),
    )


def _licence(repo_id: str, card: Any) -> str:
    if repo_id in KNOWN_LICENCES:
        return KNOWN_LICENCES[repo_id]
    tag = (card or {}).get("license") if hasattr(card or {}, "get") else None
    return ", ".join(tag) if isinstance(tag, list) else str(tag) if tag else "not stated"


def _from_cache(
    repo_id: str,
    revision: str | None,
    log: ProblemLog,
    choose: Callable[[list[str]], list[str]],
) -> HubFolder | None:
    """The cached commit of this revision, if any of its data files is there."""
    from huggingface_hub import constants

    root = Path(constants.HF_HUB_CACHE) / f"datasets--{repo_id.replace('/', '--')}"
    commit = revision or "main"
    if not _COMMIT.fullmatch(commit):
        reference = root / "refs" / commit
        if not reference.is_file():
            return None
        commit = reference.read_text().strip()
    folder = root / "snapshots" / commit
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    files = choose(sorted(names))
    if not files:
        return None
    log.add("from_cache", repo_id, None, f"commit {commit[:12]}")
    return HubFolder(
        folder=folder, files=tuple(files), commit=commit, licence=_licence(repo_id, None)
    )


def _is_unreachable(error: Exception) -> bool:
    """Whether the hub gave no answer: no network, offline mode, or trouble of its own."""
    status = _status(error)
    if isinstance(error, ValueError) or _is_of_the_disk(error):
        return False
    return status is None or status == 429 or status >= 500


def _is_of_the_disk(error: Exception) -> bool:
    """Whether the system refused to store a file: no space, no permission."""
    is_system = isinstance(error, OSError) and not isinstance(error, ConnectionError)
    return is_system and _status(error) is None and bool(error.errno)


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _no_files(repo_id: str, names: list[str], wanted: tuple[str, str]) -> DataError:
    return DataError(
        f"The hub's data set {repo_id} has {wanted[0]}; it has "
        f"{', '.join(names[:10]) or 'no files'}.",
        fix=wanted[1],
    )


def _explain(repo_id: str, revision: str | None, error: Exception) -> DataError:
    """Turn what the hub client raised into one error that says what to do."""
    from huggingface_hub import errors, get_token

    try:
        has_token = bool(get_token())
    except OSError:
        has_token = False
    name, token_fix = (
        f"The hub's data set {repo_id}",
        "set HF_TOKEN (on Colab: Secrets) to a token that may read it",
    )
    if isinstance(error, errors.OfflineModeIsEnabled):
        return DataError(
            f"{name} is not in the local cache, and offline mode is on (HF_HUB_OFFLINE).",
            fix="unset HF_HUB_OFFLINE, or give a local folder as data=...",
        )
    if isinstance(error, errors.GatedRepoError):
        terms = f"accept its terms at https://huggingface.co/datasets/{repo_id}"
        if has_token:
            return DataError(
                f"{name} is gated, and your token's account may not read it yet.", fix=f"{terms}."
            )
        return DataError(
            f"{name} is gated, and no token is set.", fix=f"{terms}, then {token_fix}."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return DataError(
            f"{name} has no revision {revision!r}.", fix="give a branch, tag or commit that it has."
        )
    # A hub answers 401 to whoever has no token and asks for what is private or not there.
    is_hidden = _status(error) == 401 and not has_token
    if is_hidden or isinstance(error, errors.RepositoryNotFoundError):
        if has_token:
            return DataError(
                f"{name} does not exist, or your token may not see it.", fix="check owner/name."
            )
        return DataError(
            f"{name} does not exist, or it is private and no token is set.",
            fix=f"check owner/name (a local folder: ./folder); if it is private, {token_fix}.",
        )
    return _explain_answer(name, error)


def _explain_answer(name: str, error: Exception) -> DataError:
    from huggingface_hub import errors

    status = _status(error)
    if status in (401, 403):
        return DataError(
            f"{name} cannot be read: the hub refuses your token (HTTP {status}).",
            fix="renew HF_TOKEN, or unset it if the data set is public.",
        )
    if _is_of_the_disk(error):
        return DataError(
            f"{name} cannot be stored in the hub's cache: {getattr(error, 'strerror', error)}.",
            fix="free some space, or point HF_HOME to a folder that can be written.",
        )
    if isinstance(error, UnicodeError):
        return DataError(
            f"{name} cannot be asked for: HF_TOKEN is not plain ASCII.",
            fix="paste the token again.",
        )
    if isinstance(error, errors.HFValidationError):
        return DataError(f"{name} has no valid name.", fix="write owner/name.")
    if status is not None:
        return DataError(
            f"{name} cannot be read: the hub answers HTTP {status}.", fix="try again later."
        )
    return DataError(
        f"{name} is not in the local cache, and the hub cannot be reached "
        f"({type(error).__name__}).",
        fix="check the network, or give a local folder as data=...",
    )
