"""An adapter as a folder for others, with tokenizer and card; and its way to the hub."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

from nbhelpers.data.hub import is_repo_id
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.files import write_json
from nbhelpers.jobs import checkpoint as ck
from nbhelpers.jobs import drafts
from nbhelpers.jobs.model_card import CARD, write_card
from nbhelpers.jobs.public import public_settings, scrub
from nbhelpers.json_models import read_raw
from nbhelpers.result_files import ExportFile
from nbhelpers.trained import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    FACTS_NAME,
    Trained,
    require_adapter,
)

# Of a checkpoint, only what a reader of the folder needs: no optimizer, no training state.
TOKENIZER_FILES = (
    *("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("*.model", "*.jinja", "generation_config.json"),
)
COMMIT_MESSAGE = "Adapter, tokenizer and model card"


def export_adapter(
    trained: Trained,
    *,
    out: Path,
    push_to: str | None = None,
    private: bool = True,
    token: str | None = None,
    api: Any = None,
) -> dict[str, Any]:
    """Write the folder, and push it where a repository is named; return its files and address.

    Args:
        api: In the place of the hub's client; for tests.

    Raises:
        ConfigError: No adapter, `out` holds something else, or the hub refuses.
        DataError: The checkpoint is damaged.
    """
    source = require_adapter(trained, "export")
    if push_to is not None:
        require_push(push_to, token)
    require_place(out, trained.name, kind="adapter")
    if (source / ck.MANIFEST).is_file() and (problem := ck.verify(source)):
        raise DataError(f"The checkpoint is damaged: {problem}.", fix="name another checkpoint")
    part = drafts.require_ours(out.with_name(f"{out.name}.part"))
    drafts.start(part)
    try:
        files = _write(trained, source, part, push_to)
        drafts.open_up(part)
        if out.exists():
            shutil.rmtree(out)  # an earlier export of ours, with no file of anybody else
        part.replace(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    url = push(out, push_to, files, token=token, private=private, api=api) if push_to else None
    return {"files": files, "url": url}


def require_place(out: Path, name: str, *, kind: str) -> None:
    """Refuse a folder with anything but an earlier export of the same run in it.

    Raises:
        ConfigError: It holds something else, or its card was changed since.
    """
    if not out.exists():
        return
    told = read_raw(ExportFile, out / FACTS_NAME)
    there = {path.name for path in out.iterdir()} if out.is_dir() else {out.name}
    is_ours = told.get("kind") == kind and told.get("name") == name
    foreign = there - {FACTS_NAME, *(told.get("files") or [])} if is_ours else there
    if not foreign and _card_was_edited(out, told):
        raise ConfigError(
            f"{out / CARD} was changed since it was written, and would be lost.",
            fix="name another folder, or move the card away first",
        )
    if foreign:
        held = ", ".join(sorted(foreign)[:8])
        raise ConfigError(
            f"{out} exists and holds what is no export of {name}: {held}.",
            fix="name another folder, or empty this one",
        )


def _card_was_edited(out: Path, told: dict[str, Any]) -> bool:
    card, written = out / CARD, told.get("card_sha256")
    return bool(written) and card.is_file() and digest(card) != written


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write(trained: Trained, source: Path, part: Path, push_to: str | None) -> list[str]:
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        shutil.copy2(source / name, part / name)
    for pattern in TOKENIZER_FILES:
        for path in source.glob(pattern):
            shutil.copy2(path, part / path.name)
    scrub(part, trained.settings)
    write_card(part, trained, repo_id=push_to)
    files = sorted(path.name for path in part.iterdir() if path.name != FACTS_NAME)
    told = {
        "schema": 1,
        "kind": "adapter",
        "name": trained.name,
        "template": trained.template,
        "settings": public_settings(trained.settings),
        "files": files,
        "card_sha256": digest(part / CARD),
    }
    write_json(part / FACTS_NAME, told)
    return sorted([*files, FACTS_NAME])


def require_push(repo_id: str, token: str | None) -> None:
    """Stop before anything is written where a push cannot work.

    Raises:
        ConfigError: The name is no `owner/name`, or there is no token.
    """
    if not is_repo_id(repo_id):
        raise ConfigError(f"push_to={repo_id!r} is no repository's name.", fix="write OWNER/NAME")
    if not token:
        raise ConfigError(
            f"Pushing to {repo_id} needs a token, and none is set.",
            fix="set HF_TOKEN, as a secret on Colab or Kaggle or in the environment, to a token "
            "that may write",
        )


def push(
    folder: Path,
    repo_id: str,
    files: list[str],
    *,
    token: str | None,
    private: bool,
    api: Any = None,
    message: str = COMMIT_MESSAGE,
) -> str:
    """Upload the named files of a folder as a model repository; return its address.

    Raises:
        ConfigError: The hub cannot be reached or refuses; no message holds the token.
    """
    import huggingface_hub as hub
    from huggingface_hub import errors

    api = api or hub.HfApi(token=token)
    # The base of the hub's HTTP errors belongs to the HTTP client in use.
    network = (OSError, ValueError, errors.HfHubHTTPError.__mro__[1])
    try:
        url = api.create_repo(repo_id, repo_type="model", private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo_id,
            repo_type="model",
            folder_path=str(folder),
            allow_patterns=files,
            commit_message=message,
        )
    except network as error:
        raise _refused(repo_id, folder, error) from None  # its chain may quote request headers
    return str(url)


def _refused(repo_id: str, folder: Path, error: Exception) -> ConfigError:
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    written = f"The folder is written: {folder}."
    if isinstance(error, errors.OfflineModeIsEnabled):
        why, fix = "offline mode is on (HF_HUB_OFFLINE)", "unset HF_HUB_OFFLINE"
    elif isinstance(error, errors.HFValidationError):
        why, fix = "the hub takes no such name", "write OWNER/NAME"
    elif status in (401, 403):
        why = f"the hub refuses the token (HTTP {status})"
        fix = "use a token that may write to this owner's repositories"
    elif status is not None:
        why, fix = f"the hub answers HTTP {status}", "check owner/name, or try again later"
    else:
        why, fix = f"the hub cannot be reached ({type(error).__name__})", "check the network"
    return ConfigError(f"{repo_id} was not pushed: {why}. {written}", fix=fix)
