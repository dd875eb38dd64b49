"""What may leave this machine: names of the hub and figures, no local paths."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbhelpers.common.files import read_json, write_json
from nbhelpers.common.json_models import read_raw
from nbhelpers.common.result_files import CalibrationFile
from nbhelpers.data.hub import is_repo_id
from nbhelpers.presets.catalog import SAMPLES
from nbhelpers.presets.jobs import DETECTOR, FINETUNE
from nbhelpers.presets.schema import FinetuneSettings
from nbhelpers.use.trained import ADAPTER_CONFIG, TrainedDetector

# ------------------------------------------------------------------------------------------------
# What may leave this machine: names of the hub, no paths of local folders.


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


# ------------------------------------------------------------------------------------------------
# What of a detector's run may leave this machine: figures and names of the hub, no local paths.


CALIBRATION = "calibration.json"
_KEPT = ("run_id", "job", "mode", "preset", "precision", "seed", "command", "git_commit")
_KEPT += ("finished_at", "versions", "model", "operating_point", "scores", "similarity")
_KEPT += ("throughput", "inference", "warnings")
_OF_DATA = ("source", "revision", "licence", "fingerprint", "note", "canonical", "splits")
_OF_DATA += ("overlap", "truncated", "further")
_OF_AUDIT = ("verdict", "reasons", "warnings")
_SOURCES = ("data", "unseen_humans", "retrieval_data", "model")


def hub_name(source: Any) -> str | None:
    """Return the hub id that a model or a data set stands for; None where others cannot get it.

    >>> hub_name("codebert"), hub_name("smoke"), hub_name("/home/me/rows.jsonl")
    ('microsoft/codebert-base', None, None)
    """
    if not isinstance(source, str):
        return None
    source = DETECTOR.models.aliases.get(source, source)
    return source if is_on_hub(source) else None


def public_name(source: Any) -> str:
    """Return how a model or a data set is called in public.

    >>> public_name("smoke"), public_name("/home/me/rows.jsonl"), public_name(None)
    ('smoke', 'a local copy named rows.jsonl', 'not recorded')
    """
    if not source:
        return "not recorded"
    if source in (*SAMPLES, *DETECTOR.models.embedded, *DETECTOR.models.packaged):
        return source
    return hub_name(source) or f"a local copy named {Path(source).name}"


def public_detector_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which local files and folders have no name."""
    published = dict(settings)
    for name in _SOURCES:
        value = published.get(name)
        if value and public_name(value).startswith("a local copy"):
            published[name] = LOCAL
    return scrubbed(published)


def public_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of `result.json` that belongs to the model; no programs, no people's names.

    What `nbhelpers detect` reads of a run is kept under the same names.
    """
    published = {name: result[name] for name in _KEPT if result.get(name) is not None}
    published["settings"] = public_detector_settings(result.get("settings") or {})
    published["data"] = _picked(result.get("data"), _OF_DATA)
    published["audit"] = _picked(result.get("audit"), _OF_AUDIT)
    if "source" in published["data"]:
        published["data"]["source"] = public_name(published["data"]["source"])
    if published.get("model"):
        published["model"] = {
            **published["model"],
            "name": public_name(published["model"].get("name")),
        }
    return scrubbed(published)


def _picked(data: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: data[name] for name in names if name in (data or {})}


def scrubbed(value: Any) -> Any:
    """Return a JSON value whose texts hold no paths.

    >>> scrubbed({"note": ["read /home/me/rows.jsonl", 3]})
    {'note': ['read rows.jsonl', 3]}
    """
    if isinstance(value, Mapping):
        return {name: scrubbed(each) for name, each in value.items()}
    if isinstance(value, list):
        return [scrubbed(each) for each in value]
    return without_paths(value) if isinstance(value, str) else value


def scrub_names(folder: Path) -> None:
    """Take out the places of the model that libraries note in their files."""
    for name in ("config.json", "tokenizer_config.json"):
        data = read_json(folder / name)
        if data is not None and {"_name_or_path", "name_or_path"} & set(data):
            remaining = {
                k: v for k, v in data.items() if k not in ("_name_or_path", "name_or_path")
            }
            write_json(folder / name, remaining)


def copy_calibration(trained: TrainedDetector, part: Path) -> dict[str, Any] | None:
    """Write the calibration of a run beside its model, where there is one; return it."""
    home = trained.scored or trained.folder
    calibration = read_raw(CalibrationFile, home / CALIBRATION)
    if not calibration:
        return None
    if not (source := calibration.get("source")) or public_name(source).startswith("a local copy"):
        calibration["source"] = "known-human code of the one who exported this"
    write_json(part / CALIBRATION, scrubbed(calibration))
    return calibration
