"""Prepared runs on several nodes, and stand-ins for a cluster that starts them, for tests."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

from nbhelpers.runs.launcher import NodeLauncher, SlurmOptions, prepare_nodes


def prepare(folder: Path, preset: str = "h100", **changes: Any) -> NodeLauncher:
    options = {"num_nodes": 2, "gpus_per_node": 4, "main_address": "node01"} | changes
    return prepare_nodes("clones", preset, run_dir=folder, **options)


def words_of(launcher: NodeLauncher, rank: int) -> list[str]:
    """The words after the environment of a node's line."""
    words = shlex.split(launcher.line(rank))
    return words[words.index("accelerate" if launcher.use_gpu else "torchrun") :]


SRUN = """#!/bin/bash
# One process for each node of the job; the first bad exit ends the others, as --kill-on-bad-exit.
echo "srun $*" >>"$FAKES/calls"
while [ "$1" != bash ]; do shift; done
pids=()
for node in $(seq 0 $((NODES - 1))); do
  SLURM_NODEID=$node "$@" &
  pids+=($!)
done
worst=0
for _ in "${pids[@]}"; do
  code=0; wait -n || code=$?
  if [ "$code" -gt "$worst" ]; then worst=$code; fi
  if [ "$code" -ne 0 ]; then kill "${pids[@]}" 2>/dev/null; fi
done
exit "$worst"
"""
SCONTROL = """#!/bin/bash
echo "scontrol $*" >>"$FAKES/calls"
if [ "$1 $2" = "show hostnames" ]; then printf 'alpha\\nbeta\\n'; fi
"""
ACCELERATE = """#!/bin/bash
{ echo "$@"; env; } >"$FAKES/node$SLURM_NODEID.seen"
echo "words of node $SLURM_NODEID"
eval "${ACT:-true}"
"""


class Cluster:
    """Stand-ins of srun, scontrol and accelerate on PATH, and the job's environment."""

    def __init__(self, folder: Path, launcher: NodeLauncher, options: SlurmOptions) -> None:
        folder.mkdir()
        self.folder, self.launcher = folder, launcher
        programs = {"srun": SRUN, "scontrol": SCONTROL, "accelerate": ACCELERATE}
        for name, text in (programs | {"torchrun": ACCELERATE}).items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.script = folder / "job.sh"
        self.script.write_text(launcher.slurm(options))

    def start(self, act: str = "true", **changes: str) -> subprocess.Popen[str]:
        env = {"PATH": f"{self.folder}:/usr/bin:/bin", "FAKES": str(self.folder), "ACT": act}
        env |= {"NODES": "2", "SLURM_JOB_ID": "12345", "SLURM_JOB_NODELIST": "a[1-2]"}
        env |= {"RANK": "7", "WORLD_SIZE": "9", "ACCELERATE_USE_FSDP": "true", "KEPT": "yes"}
        command = ["bash", str(self.script)]
        return subprocess.Popen(
            command, env=env | changes, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, act: str = "true", **changes: str) -> tuple[int, str]:
        process = self.start(act, **changes)
        out, error = process.communicate(timeout=30)
        return process.returncode, out + error

    def seen(self, node: int) -> tuple[str, dict[str, str]]:
        """What a node's launcher was called with, and its environment."""
        words, *rest = (self.folder / f"node{node}.seen").read_text().splitlines()
        return words, dict(line.split("=", 1) for line in rest if "=" in line)

    def calls(self) -> str:
        return (self.folder / "calls").read_text()
