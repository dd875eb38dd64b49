"""Claims: how the ranks of a run say that they work on it where no supervisor of ours does.

On several nodes each rank keeps a file in the run folder: rank 0 `process.json`, as a supervisor
would, and the others `process-rank<r>.json`. Its time is the rank's heartbeat; a rank that ends
adds its exit code. Clocks of nodes differ: a heartbeat counts as alive when it is seen to move.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ATTENDED = "attended"  # in process.json: rank 0 signed itself, there is no supervisor
START_WINDOW_S = 600.0  # nodes of one launch start within ten minutes of each other
_NAME = re.compile(r"process-rank(\d+)\.json")


def claim_path(folder: Path, rank: int) -> Path:
    """Return the file in which a rank says that it works on the run."""
    return folder / ("process.json" if rank == 0 else f"process-rank{rank}.json")


def read_claim(folder: Path, rank: int) -> dict[str, Any]:
    """Return what a rank said last; {} when it never came.

    Raises:
        DataError: Its file is damaged; names the field.
    """
    from nbhelpers.common.result_files import Process

    process = Process.read(claim_path(folder, rank))
    return {} if process is None else process.raw


def has_ended(record: Mapping[str, Any]) -> bool:
    """Whether the rank said how it ended."""
    return record.get("returncode") is not None


def beat_of(folder: Path, rank: int) -> int | None:
    """Return the time stamp of a rank's heartbeat, for comparison with an earlier one."""
    with contextlib.suppress(OSError):
        return claim_path(folder, rank).stat().st_mtime_ns
    return None


def claims_of_launch(folder: Path, process: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the claims of the ranks that started together with rank 0's, itself left out."""
    begin = float(process.get("started_at") or 0.0) - START_WINDOW_S
    ranks = (int(m[1]) for path in folder.glob("process-rank*.json") if (m := _match(path)))
    records = {rank: read_claim(folder, rank) for rank in sorted(ranks)}
    return {r: c for r, c in records.items() if float(c.get("started_at") or 0.0) >= begin}


def _match(path: Path) -> re.Match[str] | None:
    return _NAME.fullmatch(path.name)


def later_offsets(folder: Path, process: Mapping[str, Any]) -> dict[str, int]:
    """Return where the other ranks' files begin in this launch, as each rank saw its own."""
    offsets: dict[str, int] = {}
    for record in claims_of_launch(folder, process).values():
        offsets |= record.get("offsets") or {}
    return offsets


def lost_ranks(folder: Path, process: Mapping[str, Any]) -> dict[int, str]:
    """Return rank and host of those that have not said how they ended, once the run has."""
    if not process.get(ATTENDED):
        return {}
    records = {0: dict(process)} | claims_of_launch(folder, process)
    return {rank: c.get("host") or "?" for rank, c in records.items() if not has_ended(c)}
