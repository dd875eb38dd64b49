"""What of a detector's run may leave this machine: figures and names of the hub, no local paths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbhelpers.catalog import MODELS, SAMPLES
from nbhelpers.files import read_json, write_json
from nbhelpers.jobs.public import LOCAL, is_on_hub, without_paths
from nbhelpers.json_models import read_raw
from nbhelpers.result_files import CalibrationFile
from nbhelpers.trained_detector import TrainedDetector

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
    source = MODELS["detector"].aliases.get(source, source)
    return source if is_on_hub(source) else None


def public_name(source: Any) -> str:
    """Return how a model or a data set is called in public.

    >>> public_name("smoke"), public_name("/home/me/rows.jsonl"), public_name(None)
    ('smoke', 'a local copy named rows.jsonl', 'not recorded')
    """
    if not source:
        return "not recorded"
    if source in (*SAMPLES, *MODELS["detector"].embedded, *MODELS["detector"].packaged):
        return source
    return hub_name(source) or f"a local copy named {Path(source).name}"


def public_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which local files and folders have no name."""
    found = dict(settings)
    for name in _SOURCES:
        value = found.get(name)
        if value and public_name(value).startswith("a local copy"):
            found[name] = LOCAL
    return scrubbed(found)


def public_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of `result.json` that belongs to the model; no programs, no people's names.

    What `nbhelpers detect` reads of a run is kept under the same names.
    """
    found = {name: result[name] for name in _KEPT if result.get(name) is not None}
    found["settings"] = public_settings(result.get("settings") or {})
    found["data"] = _picked(result.get("data"), _OF_DATA)
    found["audit"] = _picked(result.get("audit"), _OF_AUDIT)
    if "source" in found["data"]:
        found["data"]["source"] = public_name(found["data"]["source"])
    if found.get("model"):
        found["model"] = {**found["model"], "name": public_name(found["model"].get("name"))}
    return scrubbed(found)


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
            kept = {k: v for k, v in data.items() if k not in ("_name_or_path", "name_or_path")}
            write_json(folder / name, kept)


def copy_calibration(trained: TrainedDetector, part: Path) -> dict[str, Any] | None:
    """Write the calibration of a run beside its model, where there is one; return it."""
    home = trained.scored or trained.folder
    told = read_raw(CalibrationFile, home / CALIBRATION)
    if not told:
        return None
    if not (source := told.get("source")) or public_name(source).startswith("a local copy"):
        told["source"] = "known-human code of the one who exported this"
    write_json(part / CALIBRATION, scrubbed(told))
    return told
