"""What a detector's job does with its data before training, part by part, on the CPU.

    python benchmarks/detector_data.py seed PROGRAMS.jsonl FILE.jsonl    the seed's 47,523 programs
    python benchmarks/detector_data.py time FILE.jsonl                   seconds, and a digest each

PYTHONPATH chooses the package: two versions agree where their digests do. CPU seconds are those of
this process; wall seconds mean little on a machine that others use. The cache is a fresh one.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nbhelpers.data.audit import audit
from nbhelpers.data.detection import load_detection_data


def timed(name: str, work: Callable[[], Any], shown: Callable[[Any], Any]) -> Any:
    """Do it and print its seconds, and the digest of what is shown of it."""
    wall, cpu = time.perf_counter(), time.process_time()
    value = work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    text = json.dumps(shown(value), sort_keys=True, default=lambda array: array.tolist())
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{name:12} {wall:7.1f} s wall {cpu:7.1f} s cpu {mib:6} MiB  {digest}", flush=True)
    return value


def main(file: str) -> None:
    """Time reading with splits, the audit, and both once more from the cache."""

    def read() -> Any:
        return load_detection_data(file, on_bad_rows="drop", seed=3)

    def facts(one: Any) -> Any:
        return {name: fact for name, fact in one.facts.items() if name != "seconds"}

    for again in ("", " again"):
        data = timed(f"data{again}", read, lambda data: [data.to_dict(), data.splits])
        timed(f"audit{again}", lambda data=data: audit(data), facts)


if __name__ == "__main__":
    if sys.argv[1] == "seed":
        from detector_gpu import seed_rows

        seed_rows(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["NBHELPERS_CACHE"] = cache
            main(sys.argv[2])
