"""Prepared runs on several nodes, and stand-ins for a cluster that starts them, for tests."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nbhelpers.runs.launcher import NodeLauncher, prepare_nodes


def prepare(folder: Path, preset: str = "h100", **changes: Any) -> NodeLauncher:
    options = {"num_nodes": 2, "gpus_per_node": 4, "main_address": "node01"} | changes
    return prepare_nodes("clones", preset, run_dir=folder, **options)


def words_of(launcher: NodeLauncher, rank: int) -> list[str]:
    """The words after the environment of a node's line."""
    words = shlex.split(launcher.line(rank))
    return words[words.index("accelerate" if launcher.use_gpu else "torchrun") :]


SRUN = """#!/bin/bash
# One process for each node of the job; the worst exit code is srun's own.
echo "srun $*" >>"$FAKES/calls"
while [ "$1" != bash ]; do
  case "$1" in --output=*) log=${1#--output=} ;; esac
  shift
done
pids=()
for node in 0 1; do
  SLURM_NODEID=$node "$@" >>"${log//%n/$node}" 2>&1 &
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
# Slow enough that the nodes end while the script handles its signal.
TOUCH = """#!/bin/bash
/usr/bin/touch "$@"
sleep 0.3
"""
ACCELERATE = """#!/bin/bash
echo "$@" >"$FAKES/node$SLURM_NODEID.seen"
echo "words of node $SLURM_NODEID"
eval "${ACT:-true}"
"""


class Cluster:
    """Stand-ins of srun, scontrol and accelerate on PATH, and the job's environment."""

    def __init__(self, folder: Path, launcher: NodeLauncher, options: Sequence[str] = ()) -> None:
        folder.mkdir()
        self.folder, self.launcher = folder, launcher
        programs = {"srun": SRUN, "scontrol": SCONTROL, "accelerate": ACCELERATE, "touch": TOUCH}
        for name, text in programs.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.script = folder / "job.sh"
        self.script.write_text(launcher.slurm(options))

    def start(self, act: str = "true", **changes: str) -> subprocess.Popen[str]:
        env = {"PATH": f"{self.folder}:/usr/bin:/bin", "FAKES": str(self.folder), "ACT": act}
        env |= {"SLURM_JOB_ID": "12345", "SLURM_JOB_NODELIST": "a[1-2]"}
        command = ["bash", str(self.script)]
        return subprocess.Popen(
            command, env=env | changes, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def calls(self) -> str:
        return (self.folder / "calls").read_text()
