"""Stand-ins for preset, plan and hardware, and a launch of the fake worker with them.

As a program, `python fake_launch.py RUN_DIR [SEED]` launches and then sleeps: the process that a
test kills to see its run go on.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nbhelpers.common import processes
from nbhelpers.runs.run import Run, end_leftovers, list_runs
from nbhelpers.runs.starting import launch

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {
    "NBHELPERS_WORKER_MODULE": "fake_worker",
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    "NBHELPERS_STOP_GRACE_S": "300",
    "OMP_NUM_THREADS": "1",
}


@dataclass
class Preset:
    settings: dict[str, Any]
    job: str = "clones"
    name: str = "smoke"
    gpu: str | None = None
    provenance: dict[str, str] = field(default_factory=lambda: {"seed": "overrides"})

    def to_dict(self) -> dict[str, Any]:
        return {"job": self.job, "name": self.name, "settings": self.settings}


@dataclass
class Plan:
    world_size: int = 1
    use_gpu: bool = False
    num_nodes: int = 1

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


@dataclass
class Hardware:
    is_planned: bool = False
    platform: str = "shell"
    gpus: tuple[()] = ()
    ram_total_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


def launch_fake(run_dir: Path, *, seed: int = 0, world_size: int = 1, **options: Any) -> Run:
    preset = Preset({"model": "smoke", "data": "smoke", "seed": seed})
    options = {"hardware": Hardware(), "budget": None} | options
    return launch(preset, Plan(world_size), run_dir=run_dir, **options)


def folder_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> Iterator[Path]:
    """A folder for runs of a fake worker; whatever still runs at the end is killed."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    yield (runs := tmp_path / "runs")
    for run in list_runs(runs) if runs.is_dir() else ():
        end_leftovers(run)


def wait_for(condition: Callable[[], Any], limit_s: float = 120.0) -> Any:
    """The condition's first true value; a failed assertion when the time is over."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return value


def wait_for_event(run: Run, type: str) -> dict[str, Any]:
    return wait_for(lambda: next((e for e in run.events() if e["type"] == type), None))


def survivors(run: Run) -> list[int]:
    """Processes of the latest launch that still live, supervisor and guard included."""
    return processes.of_launch(run.process["launch_id"])


if __name__ == "__main__":
    launch_fake(Path(sys.argv[1]), seed=int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print("launched", flush=True)  # noqa: T201 - a test waits for it
    time.sleep(600)
