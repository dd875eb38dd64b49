"""The SLURM script of a run on several nodes."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbhelpers.errors import ConfigError
from nbhelpers.runs import Run
from nbhelpers.workers import FOREIGN_PATTERN

CPUS_PER_PROCESS = 4  # as many as the threads that `launcher` gives each of them
_WORD = re.compile(r"[\w.,:+/=@%-]+")
WRITTEN_BY = "written by nbhelpers export-launcher"
STOP_BEFORE_END_S = 120  # time for one step and one checkpoint before the time limit
# The parts of the script that no setting changes. `@NAME@` marks what `slurm_script` fills in.
_BODY = """\
set -euo pipefail

# What a launcher around this job may have left in the environment would count as ours.
for name in $(compgen -e); do
  if [[ $name =~ ^@FOREIGN@$ ]]; then unset "$name"; fi
done
@EXPORTS@
export PATH="$PATH:"@BIN@

export RUN_DIR=@RUN_DIR@
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
if [ "$(wc -l <<<"$hosts")" -ne @NODES@ ]; then
  echo "the plan is for @NODES@ nodes, but the job has: ${hosts//$'\\n'/ }" >&2
  exit 3
fi
export MAIN_ADDRESS=${hosts%%$'\\n'*}
export MAIN_PORT=@PORT@
export FIRST_FAILURE="$RUN_DIR/slurm-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}.failed"
rm -f "$FIRST_FAILURE"

# On every node; the first to fail leaves its exit code for the whole job.
read -r -d '' on_node <<'ON_NODE' || true
set -euo pipefail
exec >>"$RUN_DIR/node$SLURM_NODEID.log" 2>&1
echo "== $(date) $(hostname): node $SLURM_NODEID of job $SLURM_JOB_ID"
code=0
@LAUNCH@ || code=$?
if [ "$code" -ne 0 ]; then
  (set -o noclobber; echo "$code $SLURM_NODEID" >"$FIRST_FAILURE") 2>/dev/null || true
fi
exit "$code"
ON_NODE

# Shortly before the time limit (USR1) the run saves, ends cleanly and waits in the queue again; the
# next start continues it. TERM ends it cleanly, and is left to whoever sent it.
again=
trap 'again=yes; touch "$RUN_DIR/stop"' USR1
trap 'touch "$RUN_DIR/stop"' TERM
srun --nodes=@NODES@ --ntasks=@NODES@ --ntasks-per-node=1 --kill-on-bad-exit=1 --wait=0 \\
  ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} --export=ALL bash -c "$on_node" &
task=$!
code=0
wait "$task" || code=$?
while kill -0 "$task" 2>/dev/null; do  # a signal ends `wait` before the nodes have ended
  code=0
  wait "$task" || code=$?
done

if [ "$code" -ne 0 ]; then
  if [ -s "$FIRST_FAILURE" ]; then
    read -r code node <"$FIRST_FAILURE"
    echo "node $node failed first, with exit code $code; the end of $RUN_DIR/node$node.log:" >&2
    tail -n 30 "$RUN_DIR/node$node.log" >&2
  fi
  exit "$code"
fi
if [ -n "$again" ] && [ ! -e "$RUN_DIR/result.json" ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """What sbatch is told beside nodes and GPUs; "" leaves it to the cluster."""

    partition: str = ""
    time: str = ""
    account: str = ""
    others: tuple[str, ...] = ()  # whole options, such as `--gres=gpu:4`

    def lines(self) -> Iterator[str]:
        """Yield the options of sbatch."""
        named = {"partition": self.partition, "time": self.time, "account": self.account}
        for name, value in named.items():
            if value:
                if not _WORD.fullmatch(value):
                    text = f"--{name} {value!r} cannot stand in a SLURM script."
                    raise ConfigError(text, fix="write it without blanks, quotes and line breaks")
                yield f"--{name}={value}"
        yield from self.others


def slurm_script(
    run: Run,
    words: Sequence[str],
    *,
    num_nodes: int,
    gpus_per_node: int,
    port: str,
    environment: Mapping[str, str],
    options: SlurmOptions,
) -> str:
    """Return a batch script; it exits with the code of the first node that failed.

    Args:
        run: The prepared run.
        words: The launcher's words on a node, quoted for a shell.
        num_nodes: As planned.
        gpus_per_node: 0 on CPUs.
        port: Of node 0; may be a shell's expression.
        environment: What every worker must find.
        options: For sbatch.

    Raises:
        ConfigError: An option would break its line.
    """
    if set('"\\') & set(str(run.path)) or not str(run.path).isprintable():
        raise ConfigError(
            f"The run folder {str(run.path)!r} cannot stand in an option of sbatch.",
            fix="set --run-dir to a path without double quotes, backslashes and line breaks",
        )
    head = [f"--job-name={run.id}", f"--nodes={num_nodes}", "--ntasks-per-node=1"]
    if gpus_per_node and not any(line.startswith("--g") for line in options.others):
        head.append(f"--gpus-per-node={gpus_per_node}")
    # One task holds all processes of a node, and SLURM gives a task one CPU where nothing is said.
    if not any(line.startswith("--cpus-per") for line in options.others):
        head.append(f"--cpus-per-task={CPUS_PER_PROCESS * max(gpus_per_node, 1)}")
    log = str(run.path / "slurm-%j.log")
    head += ["--requeue", "--open-mode=append", f'--output="{_escaped(log)}"']
    head += [f"--signal=B:USR1@{STOP_BEFORE_END_S}", *options.lines()]
    for line in head:
        if not line.startswith("--") or not line.isprintable():
            raise ConfigError(f"{line!r} is no option of sbatch.", fix="write --name=value")
    parts = {
        "FOREIGN": FOREIGN_PATTERN,
        "EXPORTS": "\n".join(f"export {n}={shlex.quote(v)}" for n, v in environment.items()),
        "BIN": shlex.quote(str(Path(sys.executable).parent)),
        "RUN_DIR": shlex.quote(str(run.path)),
        "NODES": str(num_nodes),
        "PORT": port,
        "LAUNCH": _broken_up(words),
    }
    # In one pass: a run folder may hold such a mark itself.
    body = re.sub(f"@({'|'.join(parts)})@", lambda found: parts[found[1]], _BODY)
    first = f"# {run.id} on {num_nodes} nodes, {WRITTEN_BY}. Submit: sbatch."
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in head), first, body])


def _escaped(path: str) -> str:
    """A path for sbatch, which replaces `%j` but no other `%`."""
    folder, name = path.rsplit("/", 1)
    return folder.replace("%", "%%") + "/" + name


def _broken_up(words: Sequence[str]) -> str:
    """A command of a shell over several lines, an option with its value on each."""
    lines, line = [], ""
    for word in words:
        if line and (word.startswith("--") or word == "-m"):
            lines.append(line)
            line = "  " + word
        else:
            line = f"{line} {word}" if line else word
    return " \\\n".join([*lines, line])
