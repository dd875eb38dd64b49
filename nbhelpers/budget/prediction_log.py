"""The calibration log: one line per finished run, the predicted memory beside the measured.

The log lies in the cache folder, one JSON object a line. Writers append whole lines, so two runs
may end at once; readers leave out what they cannot read. What the log teaches is shown beside a
budget and never changes its numbers, with one exception that is a measurement: the CUDA context of
this machine's cards.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from nbhelpers.common.files import append_line, cache_dir, parsed
from nbhelpers.common.json_models import Number, Part, Plains, Text

FILE_NAME = "calibration.jsonl"
MOST_BYTES = 8 << 20  # of the log's end that is read: thousands of runs
FEWEST_RUNS = 3  # of which a usual error is told
EARLIER_WORDS = {"ledger": "estimate", "ledger: shape unknown": "unknown"}  # sources in 0.1.0
LIBRARIES = ("torch", "transformers", "peft", "trl", "accelerate", "bitsandbytes")


class PhaseError(Part):
    """The prediction of one phase beside its measurement, in bytes and per cent."""

    phase: Text = None
    predicted_bytes: Number = None
    measured_bytes: Number = None
    error_percent: Number = None


class LogLine(Part):
    """A line of the log: a finished run."""

    run_id: str
    finished_at: Annotated[float, Field(strict=True)]
    job: Text = None
    preset: Text = None
    model: Text = None
    method: Text = None
    device: Text = None
    gpu: Text = None
    gpu_name: Text = None
    driver: Text = None
    source: Text = None
    basis: Text = None
    world_size: Number = None
    predicted_bytes: Number = None
    measured_bytes: Number = None
    error_percent: Number = None
    reserved_predicted_bytes: Number = None
    reserved_measured_bytes: Number = None
    context_bytes: Number = None
    budget_bytes: Number = None
    other_processes_bytes: Number = None
    earlier_bytes: Number = None
    phases: list[PhaseError] | None = None
    versions: Plains | None = None


Line = dict[str, Any]
_seen: dict[Path, tuple[tuple[int, int], list[Line]]] = {}  # path: (its state, its lines)


def log_path() -> Path:
    """Return the file of the log; it may not exist."""
    return cache_dir() / FILE_NAME


def read_log(path: Path | None = None) -> list[Line]:
    """Return the log's lines, oldest first, each run once; empty where nothing can be read.

    A run is known by its id and the time at which it ended: the same settings may run again.
    """
    path = path or log_path()
    try:
        facts = path.stat()
        state = (facts.st_mtime_ns, facts.st_size)
        if path not in _seen or _seen[path][0] != state:
            _seen[path] = state, list(_parsed(path))
    except OSError:
        return []
    return [dict(line) for line in _seen[path][1]]


def _parsed(path: Path) -> Iterable[Line]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - MOST_BYTES))
        raw = file.read()
    lines_by_run: dict[tuple[str, float], Line] = {}
    for text in raw.splitlines():
        try:
            LogLine.model_validate(line := parsed(text))
        except ValidationError:  # torn by a crash or a full disk, or cut above
            continue
        line["source"] = EARLIER_WORDS.get(line.get("source"), line.get("source"))
        lines_by_run[line["run_id"], line["finished_at"]] = line
    return sorted(lines_by_run.values(), key=lambda line: line["finished_at"])


def append(result: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    """Add a finished run to the log, once; return whether a line was written.

    Args:
        result: What `result.json` holds.
        record: What `run.json` holds.

    A log that cannot be written costs a line, not the run.
    """
    line = log_line(result, record)
    key = line["run_id"], line["finished_at"]
    if None in key or any((x["run_id"], x["finished_at"]) == key for x in read_log()):
        return False
    return append_line(log_path(), line)


def log_line(result: Mapping[str, Any], record: Mapping[str, Any]) -> Line:
    """Return what the log keeps of a run; sizes in bytes, errors in per cent of the measured."""
    memory, settings = result.get("memory") or {}, result.get("settings") or {}
    is_cuda = memory.get("device") == "cuda"
    gpus = _dig(record, "hardware", "gpus") or [{}]
    gpu = gpus[0] if is_cuda else {}
    left = memory.get("left_over") or {}
    versions = result.get("versions") or {}
    return {
        "schema": 1,
        "run_id": result.get("run_id"),
        "finished_at": result.get("finished_at"),
        "job": result.get("job"),
        "mode": result.get("mode"),
        "preset": result.get("preset"),
        "model": settings.get("model"),
        "method": settings.get("method"),
        "device": memory.get("device"),
        "gpu": gpu_key(gpu),
        "gpu_name": gpu.get("name"),
        "driver": _dig(record, "hardware", "driver_version"),
        "world_size": _dig(result, "plan", "world_size"),
        "source": memory.get("source"),
        "basis": memory.get("basis"),
        **{k: memory.get(k) for k in ("predicted_bytes", "measured_bytes", "error_percent")},
        "reserved_predicted_bytes": _dig(memory, "reserved", "predicted_bytes"),
        "reserved_measured_bytes": _dig(memory, "reserved", "measured_bytes"),
        "budget_bytes": _dig(result, "budget", "total_bytes"),
        **{k: left.get(k) for k in ("context_bytes", "other_processes_bytes", "earlier_bytes")},
        "phases": memory.get("phases") or [],
        "versions": {name: versions[name] for name in LIBRARIES if name in versions},
    }


def gpu_key(gpu: Mapping[str, Any]) -> str | None:
    """Return the word by which the log knows a card: its key, or its name where it has none."""
    return gpu.get("key") or gpu.get("name")


def measured_context(gpu: str | None, *, world_size: int = 1) -> int | None:
    """Return the bytes that CUDA's context took in this machine's newest run on such a card.

    Args:
        gpu: See `gpu_key`.
        world_size: With several processes NCCL's memory is part of it.
    """
    is_group = world_size > 1
    for line in reversed(read_log()) if gpu else ():
        same = line.get("gpu") == gpu and ((line.get("world_size") or 1) > 1) == is_group
        if same and line.get("context_bytes"):
            return int(line["context_bytes"])
    return None


def summary(lines: Sequence[Line] | None = None) -> list[dict[str, Any]]:
    """Return the errors of the predictions by job, card and source, the most runs first.

    A positive error means that too much was predicted.
    """
    groups: dict[tuple[str, str, str], list[float]] = {}
    for line in read_log() if lines is None else lines:
        if line.get("error_percent") is not None:
            key = (line.get("job"), line.get("gpu") or line.get("device"), line.get("source"))
            group = groups.setdefault(tuple(part or "unknown" for part in key), [])
            group.append(line["error_percent"])
    rows = [
        {
            "job": job,
            "gpu": gpu,
            "source": source,
            "runs": len(errors),
            "median_error_percent": statistics.median(errors),
            "lowest_percent": min(errors),
            "highest_percent": max(errors),
        }
        for (job, gpu, source), errors in groups.items()
    ]
    return sorted(rows, key=lambda row: -row["runs"])


def usual_error(job: str, gpu: str | None, source: str) -> str | None:
    """Say how far earlier predictions of this kind were off here; None with too few runs."""
    kind = (job, gpu, source)
    row = next((r for r in summary() if (r["job"], r["gpu"], r["source"]) == kind), None)
    if row is None or row["runs"] < FEWEST_RUNS:
        return None
    low, high = row["lowest_percent"], row["highest_percent"]
    return (
        f"{row['runs']} earlier runs of this job on this card: the prediction was off by "
        f"{row['median_error_percent']:+.1f} % (median; {low:+.1f} to {high:+.1f}); "
        "the numbers here are not corrected for that"
    )


def _dig(data: Any, *keys: str) -> Any:
    for key in keys:
        data = (data or {}).get(key)
    return data
