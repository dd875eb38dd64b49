"""How fast runs were: a table of measured speeds that comes with the package, and the user's own.

Every finished run and every probe adds a line to the user's file. Lines that cannot be read are
left out: a table of measurements is a help, never a reason to fail.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from nbhelpers.common.files import (
    LARGEST,
    append_line,
    cache_dir,
    is_folder,
    parsed,
    plain_values,
    read_json,
    rebuilt,
)
from nbhelpers.common.json_models import read_raw
from nbhelpers.common.result_files import Record, Result
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.schema import OWN_ENGINE

SPEEDS_VARIABLE = "NBHELPERS_SPEEDS"
LEAST_STEPS = 5  # fewer are warm-up
MOST_RUNS = 40  # of a folder that are read
RUN, PROBE, LOOP = "run", "probe", "plain loop"
CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRow:
    """One measured speed, and all that it depends on.

    `tokens_per_s` counts useful tokens (no padding) over all processes; `useful_share` of what was
    computed was useful; `example_tokens` are the useful tokens of an example. `device` is a key of
    `gpus.yaml`, the driver's name of another GPU, or "cpu". `kind`: a run or a probe of this
    package, or a plain loop around the same model, as TRL's is. `settings` and `seconds` (by
    phase) are those of the run; the rows of the package have none.
    """

    job: str
    model: str
    method: str
    precision: str
    attention: str
    batch: int
    seq_len: int
    device: str
    tokens_per_s: float
    useful_share: float
    example_tokens: float
    source: str
    kind: str = RUN
    checkpointing: bool = False
    compiled: bool = False
    graphed: bool = False
    packed: bool = True
    world_size: int = 1
    micro_steps: int = 1
    cpu_count: int | None = None
    mfu: float | None = None
    examples: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def micro_tokens(self) -> float:
        """Tokens that one process computes in one micro-step, padding included."""
        return self.batch * self.example_tokens / self.useful_share

    @property
    def micro_step_s(self) -> float:
        """Seconds of a micro-step of one process, its share of the optimizer step included."""
        return self.micro_tokens * self.world_size * self.useful_share / self.tokens_per_s

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON keeps."""
        return plain_values(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SpeedRow | None:
        """Rebuild a row; None where it is no row, fields of a newer version are left out."""
        try:
            row = rebuilt(cls, data, "speed", ignore_unknown=True)
        except ConfigError:
            return None
        positive = (row.batch, row.seq_len, row.tokens_per_s, row.useful_share)
        positive += (row.example_tokens, row.world_size, row.micro_steps)
        is_sound = all(0 < number < LARGEST for number in positive) and row.useful_share <= 1.001
        return row if is_sound else None


@cache
def shipped_rows() -> tuple[SpeedRow, ...]:
    """Return the speeds that were measured for this package; each names its source."""
    data = read_json(Path(__file__).with_name("speeds.json")) or {}
    rows = (SpeedRow.from_dict(line) for line in data.get("rows") or [])
    return tuple(row for row in rows if row is not None)


def speeds_path() -> Path:
    """Return the user's table: `NBHELPERS_SPEEDS`, else a file in the cache folder."""
    named = os.environ.get(SPEEDS_VARIABLE)
    return Path(named) if named else cache_dir() / "speeds.jsonl"


def user_rows(path: Path | None = None) -> tuple[SpeedRow, ...]:
    """Return the rows of the user's table, newest first; damaged lines are left out."""
    rows = []
    with contextlib.suppress(OSError):
        for line in (path or speeds_path()).read_bytes().splitlines():
            entry = parsed(line)
            row = SpeedRow.from_dict(entry) if entry else None
            rows += [row] if row is not None else []
    return tuple(reversed(rows))


def add_row(row: SpeedRow, path: Path | None = None) -> None:
    """Append a row; a home that cannot be written to keeps nothing."""
    append_line(path or speeds_path(), row.to_dict())


def read_rows(run_dir: str | Path | None = None) -> tuple[SpeedRow, ...]:
    """Return every row that is known here: the user's, those of a folder of runs, the package's."""
    rows: dict[str, SpeedRow] = {}
    for row in (*user_rows(), *(_rows_of_runs(run_dir) if run_dir is not None else ())):
        rows.setdefault(f"{row.source} {row.kind} {row.seconds.get('total')}", row)
    return (*rows.values(), *shipped_rows())


def _rows_of_runs(run_dir: str | Path) -> Iterable[SpeedRow]:
    root, dated_files = Path(run_dir).expanduser(), []
    for file in root.glob("*/result.json") if is_folder(root) else ():
        with contextlib.suppress(OSError):  # deleted meanwhile
            dated_files.append((file.stat().st_mtime, file))
    for _, file in sorted(dated_files, reverse=True)[:MOST_RUNS]:
        with contextlib.suppress(DataError):
            record = read_raw(Record, file.with_name("run.json"))
            result = read_raw(Result, file)
            if record and result and (row := row_of(record, result)) is not None:
                yield row


def device_key(use_gpu: bool, hardware: Mapping[str, Any] | None) -> str:
    """Return what a row calls the device: the slowest kind of GPU is not known, so the first."""
    gpus = (hardware or {}).get("gpus") or []
    if not use_gpu or not gpus:
        return CPU
    return str(gpus[0].get("key") or gpus[0].get("name") or "GPU")


def row_of(record: Mapping[str, Any], result: Mapping[str, Any]) -> SpeedRow | None:
    """Return the speed that a finished run or probe measured; None where it measured none.

    Args:
        record: What `run.json` holds.
        result: What `result.json` holds.
    """
    settings, plan = result.get("settings") or {}, result.get("plan") or {}
    speed, training = result.get("throughput") or {}, result.get("training") or {}
    mode = record.get("mode")
    steps = training.get("optimizer_steps") or 0
    if mode not in ("train", "probe") or (mode == "train" and steps < LEAST_STEPS):
        return None
    hardware = record.get("hardware") or {}
    model = result.get("model") or {}
    units = (*(spec.unit for spec in JOBS.values()), "examples")
    counted = (speed.get(f"{unit}_per_s") for unit in units)
    use_gpu, examples_per_s = bool(plan.get("use_gpu")), next(filter(None, counted), None)
    useful = speed.get("useful_tokens_per_s")
    if not useful or not examples_per_s:
        return None
    timing = result.get("timing") or {}
    seconds = {k.removesuffix("_s"): v for k, v in timing.items() if v}
    is_ours = settings.get("engine", OWN_ENGINE) == OWN_ENGINE
    kind = (PROBE if mode == "probe" else RUN) if is_ours else LOOP
    return SpeedRow.from_dict(
        {
            "job": result.get("job"),
            "model": settings.get("model"),
            "method": settings.get("method") or "full",
            "precision": result.get("precision"),
            "attention": model.get("attention") or settings.get("attention") or "",
            "batch": plan.get("per_device_train_batch_size"),
            "seq_len": settings.get("seq_len"),
            "device": device_key(use_gpu, hardware),
            "tokens_per_s": useful,
            "useful_share": min(float(speed.get("useful_share") or 1.0), 1.0),
            "example_tokens": useful / examples_per_s,
            "source": str(record.get("run_id")),
            "kind": kind,
            "checkpointing": bool(settings.get("gradient_checkpointing")),
            "compiled": _was_compiled(result),
            "graphed": bool(model.get("cuda_graphs")),
            "packed": settings.get("padding") != "fixed",
            "world_size": plan.get("world_size"),
            "micro_steps": plan.get("gradient_accumulation_steps"),
            "cpu_count": hardware.get("cpu_count"),
            "examples": _examples(result, mode),
            "settings": dict(settings),
            "seconds": seconds if kind == RUN else {},
        }
    )


def _was_compiled(result: Mapping[str, Any]) -> bool:
    model, compile_facts = result.get("model") or {}, result.get("compile") or {}
    return bool(model.get("compiled") or compile_facts.get("is_on"))


def _examples(result: Mapping[str, Any], mode: object) -> int | None:
    """Return the training examples of an epoch: a probe tells them, a run has seen them all."""
    if mode == "probe":
        return (result.get("probe") or {}).get("examples")
    training = result.get("training") or {}
    epochs, seen = training.get("epochs"), training.get("examples")
    return round(seen / epochs) if epochs and seen else None


def remember(record: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Add a finished run's speed to the user's table."""
    if (row := row_of(record, result)) is not None:
        add_row(row)
