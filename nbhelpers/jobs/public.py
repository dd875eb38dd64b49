"""What may leave this machine: names of the hub and figures, no local paths."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbhelpers.common.files import read_json, write_json
from nbhelpers.data.hub import is_repo_id
from nbhelpers.presets.jobs import JOBS, bundled
from nbhelpers.use.trained import ADAPTER_CONFIG

LOCAL = "local"
# Settings that may name a file or a folder.
_SOURCES = ("model", "data", "mbpp_data", "unseen_humans", "retrieval_data")
_KEPT = ("run_id", "job", "mode", "preset", "precision", "seed", "command", "git_commit")
_KEPT += ("finished_at", "versions", "model", "operating_point", "scores", "similarity")
_KEPT += ("threshold", "score", "sources")
_KEPT += ("throughput", "inference", "warnings")
_OF_DATA = ("source", "revision", "licence", "fingerprint", "note", "canonical", "splits")
_OF_DATA += ("overlap", "truncated", "further")
_OF_AUDIT = ("verdict", "reasons", "warnings")
_LIBRARY_NAMES = ("_name_or_path", "name_or_path")  # where libraries note a model's place
# An absolute path, a home's, a drive or a share; not the slash of a unit or of an address.
_PATH = re.compile(
    r"(?<![\w:/.\\])(?:~[\w.-]*/|/(?=[\w.~-]+/)|file:/+|[A-Za-z]:[\\/]|\\\\)[^\s\"'`<>|,;)\]]*"
)


def hub_name(source: Any) -> str | None:
    """Return the hub id that a model or a data set stands for; None where others cannot get it.

    >>> hub_name("codebert"), hub_name("smoke"), hub_name("/home/me/rows.jsonl")
    ('microsoft/codebert-base', None, None)
    """
    if not isinstance(source, str) or source in bundled():
        return None
    for spec in JOBS.values():
        source = spec.models.aliases.get(source, source)
    is_there = is_repo_id(source) and not Path(source).expanduser().exists()
    return source if is_there else None


def is_public(source: Any) -> bool:
    """Whether a model or a data set is one that others can get: a hub id or one of our names.

    >>> is_public("google/gemma-2-2b"), is_public("smoke"), is_public("./mine"), is_public(None)
    (True, True, False, False)
    """
    return source in (*bundled(), "humaneval", "mbpp") or hub_name(source) is not None


def public_name(source: Any) -> str:
    """Return how a model or a data set is called in public.

    >>> public_name("smoke"), public_name("/home/me/rows.jsonl"), public_name(None)
    ('smoke', 'a local copy named rows.jsonl', 'not recorded')
    """
    if not source:
        return "not recorded"
    if is_public(source):
        return hub_name(source) or source
    return f"a local copy named {Path(source).name}"


def without_paths(value: Any) -> Any:
    """Return a JSON value in whose texts each path is cut to its last part.

    >>> without_paths("read /home/me/data/rows.jsonl at 3 tokens/s; see https://a.b/c/d")
    'read rows.jsonl at 3 tokens/s; see https://a.b/c/d'
    >>> without_paths({"note": ["read /home/me/rows.jsonl", 3]})
    {'note': ['read rows.jsonl', 3]}
    """
    if isinstance(value, Mapping):
        return {name: without_paths(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_paths(item) for item in value]
    return _PATH.sub(_last_part, value) if isinstance(value, str) else value


def _last_part(path: re.Match[str]) -> str:
    parts = [part for part in re.split(r"[\\/]+", path[0]) if part]
    return parts[-1] if parts else ""


def public_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which local files and folders have no name; a local model is left out."""
    published = dict(settings)
    for name in _SOURCES:
        if published.get(name) and not is_public(published[name]):
            published[name] = LOCAL
    if published.get("model") == LOCAL:
        del published["model"]
    return without_paths(published)


def public_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of `result.json` that belongs to the model; no programs, no people's names.

    What `nbhelpers detect` reads of a run is kept under the same names.
    """
    published = {name: result[name] for name in _KEPT if result.get(name) is not None}
    published["settings"] = public_settings(result.get("settings") or {})
    published["data"] = _picked(result.get("data"), _OF_DATA)
    published["audit"] = _picked(result.get("audit"), _OF_AUDIT)
    for part, key in (("data", "source"), ("model", "name")):
        if key in published.get(part, {}):
            published[part] = {**published[part], key: public_name(published[part][key])}
    return without_paths(published)


def _picked(values: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in (values or {})}


def scrub(folder: Path, model: str | None = None, revision: str | None = None) -> None:
    """Take local paths out of the JSON files that libraries wrote.

    Args:
        model: The base that an adapter's configuration is to name, where the hub has it.
        revision: Of the base.
    """
    for path in sorted(folder.glob("*.json")):
        before = read_json(path)
        if before is None:
            continue
        after = {key: value for key, value in before.items() if key not in _LIBRARY_NAMES}
        if path.name == ADAPTER_CONFIG:
            after["base_model_name_or_path"] = hub_name(model)
            after["revision"] = revision if hub_name(model) else None
        if after != before:
            write_json(path, after)
