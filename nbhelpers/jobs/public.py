"""What may leave this machine: names of the hub, no paths of local folders."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from nbhelpers.catalog import SAMPLES
from nbhelpers.data.hub import is_repo_id
from nbhelpers.files import read_json, write_json
from nbhelpers.job_specs import FINETUNE
from nbhelpers.schema import FinetuneSettings
from nbhelpers.trained import ADAPTER_CONFIG

LOCAL = "local"
_NAMES = (*FINETUNE.models.embedded, *FINETUNE.models.packaged, *SAMPLES, "humaneval", "mbpp")
# An absolute path, a home's, a drive or a share; not the slash of a unit or of an address.
_PATH = re.compile(
    r"(?<![\w:/.\\])(?:~[\w.-]*/|/(?=[\w.~-]+/)|file:/+|[A-Za-z]:[\\/]|\\\\)[^\s\"'`<>|,;)\]]*"
)


def is_public(source: str | None) -> bool:
    """Whether a model or a data set is one that others can get: a hub id or one of our names.

    >>> is_public("google/gemma-2-2b"), is_public("smoke"), is_public("./mine"), is_public(None)
    (True, True, False, False)
    """
    if not source or source in _NAMES:
        return bool(source)
    return is_repo_id(source) and not Path(source).expanduser().exists()


def is_on_hub(source: str | None) -> bool:
    """Whether it is a hub id."""
    return is_public(source) and source not in _NAMES


def without_paths(text: str) -> str:
    """Return a text whose paths are cut to their last part.

    >>> without_paths("read /home/me/data/rows.jsonl at 3 tokens/s; see https://a.b/c/d")
    'read rows.jsonl at 3 tokens/s; see https://a.b/c/d'
    """

    def last(match: re.Match[str]) -> str:
        parts = [part for part in re.split(r"[\\/]+", match[0]) if part]
        return parts[-1] if parts else ""

    return _PATH.sub(last, text)


def public_settings(settings: FinetuneSettings) -> dict[str, Any]:
    """Return the settings without the names of local folders; a local model has no name at all."""
    values = settings.model_dump(mode="json")
    for name in ("data", "mbpp_data"):
        values[name] = values[name] if is_public(values[name]) else LOCAL
    if not is_public(values["model"]):
        del values["model"]
    return values


def scrub(folder: Path, settings: FinetuneSettings) -> None:
    """Take local paths out of the JSON files that libraries wrote."""
    for path in sorted(folder.glob("*.json")):
        data = read_json(path)
        if data is None:
            continue
        before = json.dumps(data)
        for key in ("_name_or_path", "name_or_path"):
            data.pop(key, None)
        if path.name == ADAPTER_CONFIG:
            is_named = is_on_hub(settings.model)
            data["base_model_name_or_path"] = settings.model if is_named else None
            data["revision"] = settings.model_revision if is_named else None
        if json.dumps(data) != before:
            write_json(path, data)
