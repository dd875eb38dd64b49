"""Data sets on the hub: find the files of one commit, fetch only those, and say why where it fails.

What was fetched is read by `datasets` (`tables`). One request with a short time limit comes first,
so that a missing network is told at once instead of after the retries of a download. No message
here contains a token.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from nbhelpers.common.hub_errors import Asked, explain_refusal, is_unreachable, network_errors
from nbhelpers.data.findings import Findings
from nbhelpers.errors import DataError
from nbhelpers.hardware.secrets import HF_TOKEN, find_secret

REQUEST_TIMEOUT_S = 10.0
# Terms that the hub's own tag does not tell, or tells differently from the origin of the data.
KNOWN_LICENCES = {
    "google/code_x_glue_cc_clone_detection_big_clone_bench": "C-UDA",
    "semeru/Code-Code-CloneDetection-BigCloneBench": "tagged MIT; C-UDA at its origin, CodeXGLUE",
    "google-research-datasets/mbpp": "CC-BY-4.0",
    "christopher/rosetta-code": "GFDL-1.2 or later (Rosetta Code)",
    "isThisYouLLM/H-AIRosettaMP": "tagged MIT; human code GFDL-1.2 (Rosetta Code)",
}
_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


CARD = "README.md"
CARD_LOST = "its head is damaged, so the files' own names say which splits they are"


class Files(NamedTuple):
    """Files of one data set on the local disk, and what is known of it.

    `names` are relative to the folder, or those of `tables` where it was written by `save_to_disk`.
    `splits` are those that the data set's card or the user gives to files. `choice` is how one of
    several splits is named as the data, up to its name.
    """

    folder: Path
    names: list[str]
    source: str
    revision: str | None  # the commit on the hub
    licence: str
    tables: Mapping[str, Any] = MappingProxyType({})
    splits: Mapping[str, str] = MappingProxyType({})
    choice: str = ""


def is_repo_id(source: str) -> bool:
    """Whether a text has the form `owner/name`.

    >>> is_repo_id("semeru/Code-Code-CloneDetection-BigCloneBench"), is_repo_id("./data/x")
    (True, False)
    """
    return bool(_REPO_ID.fullmatch(source)) and "--" not in source and ".." not in source


def fetch(
    repo_id: str,
    revision: str | None,
    findings: Findings,
    *,
    choose: Callable[[list[str], Mapping[str, Any]], list[str]],
    lack: str,
    look: bool = False,
) -> Files:
    """Fetch the data files of a hub data set into the hub's own cache.

    Without a network the cached copy is used, with a note; without a copy that is an error.

    Args:
        repo_id: `owner/name`.
        revision: Branch, tag or commit; None: the default branch.
        findings: Get a note where the cache was used.
        choose: Which of the data set's files are the data, by their names and its card.
        lack: What the data set has not where nothing is chosen.
        look: Only ask whether the files may be had.

    Raises:
        DataError: Offline and not cached, no such data set or revision, gated, a refused or
            missing token.
    """
    import huggingface_hub as hub

    token = find_secret(HF_TOKEN)
    api = hub.HfApi(token=token)
    try:
        info = api.dataset_info(repo_id, revision=revision, timeout=REQUEST_TIMEOUT_S)
        there = [sibling.rfilename for sibling in info.siblings or []]
        card = info.card_data.to_dict() if info.card_data else {}
        names = choose(there, card)
        if not names:
            raise DataError(
                f"The hub's data set {repo_id} has {lack}; it has "
                f"{', '.join(there[:10]) or 'no files'}.",
                fix="name another data set, or download it and give a local file or folder.",
            )
        if look:
            api.auth_check(repo_id, repo_type="dataset")
            return Files(Path(), names, repo_id, info.sha, _licence(repo_id, card))
        folder = Path(
            hub.snapshot_download(
                repo_id,
                repo_type="dataset",
                revision=revision,
                # The card too where it sorts the files: without a network it is asked again.
                allow_patterns=[*map(glob.escape, names), *([CARD] * bool(card.get("configs")))],
                token=token,
            )
        )
    except network_errors() as error:
        if is_unreachable(error):
            cached = _from_cache(repo_id, revision, findings, choose)
            if cached is not None:
                return cached
        # Its chain may quote request headers.
        raise _explain(repo_id, revision, error, token) from None
    names = [name for name in names if (folder / name).is_file()]
    return Files(folder, names, repo_id, folder.name, _licence(repo_id, card))


def _licence(repo_id: str, card: Mapping[str, Any]) -> str:
    if repo_id in KNOWN_LICENCES:
        return KNOWN_LICENCES[repo_id]
    tag = card.get("license")
    return ", ".join(map(str, tag)) if isinstance(tag, list) else str(tag) if tag else "not stated"


def _from_cache(
    repo_id: str,
    revision: str | None,
    findings: Findings,
    choose: Callable[[list[str], Mapping[str, Any]], list[str]],
) -> Files | None:
    """The cached commit of this revision, if any of its data files is there."""
    from huggingface_hub import constants, metadata_load

    root = Path(constants.HF_HUB_CACHE) / f"datasets--{repo_id.replace('/', '--')}"
    commit = revision or "main"
    if not _COMMIT.fullmatch(commit):
        reference = root / "refs" / commit
        if not reference.is_file():
            return None
        commit = reference.read_text().strip()
    folder = root / "snapshots" / commit
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    try:
        card = (metadata_load(folder / CARD) or {}) if (folder / CARD).is_file() else {}
    except Exception:  # of YAML, of text, of the library: as many as ways to damage it
        findings.add("ignored_file", CARD, None, CARD_LOST)
        card = {}
    files = choose(sorted(names), card)
    if not files:
        return None
    findings.add("from_cache", repo_id, None, f"commit {commit[:12]}")
    return Files(folder, files, repo_id, commit, _licence(repo_id, card))


def _explain(repo_id: str, revision: str | None, error: Exception, token: str | None) -> DataError:
    """Turn what the hub client raised into one error that says what to do."""
    message, fix = explain_refusal(Asked("data set", repo_id, revision, bool(token)), error)
    return DataError(message, fix=fix)
