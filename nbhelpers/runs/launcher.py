"""Several nodes: a run in a shared folder, the lines that start it, and a SLURM script."""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbhelpers.common.files import expanded, locked, write_json
from nbhelpers.common.processes import (
    FOREIGN_NAMES,
    FOREIGN_PATTERN,
    MODULE_VARIABLE,
    WORKER_MODULE,
    node_environment,
)
from nbhelpers.errors import ConfigError, LaunchError
from nbhelpers.hardware.detection import MOST_GPUS, Hardware, detect_hardware, plan_hardware
from nbhelpers.runs.run import Run
from nbhelpers.runs.starting import explained, require_room, reuse, run_record, write_record

if TYPE_CHECKING:
    from nbhelpers.budget.memory import MemoryBudget
    from nbhelpers.plan import BatchPlan
    from nbhelpers.presets.preset import Preset


# ------------------------------------------------------------------------------------------------
# The SLURM script of a run on several nodes.


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
    body = re.sub(f"@({'|'.join(parts)})@", lambda match: parts[match[1]], _BODY)
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


# ------------------------------------------------------------------------------------------------
# Several nodes: prepare a run in a shared folder, and write what starts it on each of them.
#
# `launch` starts processes on one machine. Here nothing is started: `prepare_nodes` writes
# `run.json` once, and the `NodeLauncher` that it returns knows the line for each node and a SLURM
# script. The lines name everything that counts, and take nothing from Accelerate's own
# configuration file.


DEFAULT_PORT = 29500
CONFIG_NAME = "accelerate.json"
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.%\w]*")
THREADS = 4  # of each process: few enough for every node, and the GPU does the work


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLauncher:
    """What starts a prepared run on several nodes; nothing has been started."""

    run: Run
    num_nodes: int
    processes_per_node: int
    use_gpu: bool
    precision: str
    main_address: str
    port: int | None

    def __repr__(self) -> str:
        device = "GPU" if self.use_gpu else "CPU"
        nodes = f"{self.num_nodes} nodes x {self.processes_per_node} x {device}"
        return f"NodeLauncher({self.run.id}, {nodes}, main node {self.main_address})"

    def words(self, machine_rank: str, *, address: str, port: str) -> list[str]:
        """Return the launcher's words for one node; the three may be variables of a shell.

        `accelerate launch` started a single process when it was asked for two on a CPU, hence
        torchrun there.
        """
        module = os.environ.get(MODULE_VARIABLE, WORKER_MODULE)
        start = ["-m", module, shlex.quote(str(self.run.path))]
        if not self.use_gpu:
            options = {"--nnodes": self.num_nodes, "--nproc-per-node": self.processes_per_node}
            options |= {"--node-rank": machine_rank, "--master-addr": address}
            options |= {"--master-port": port, "--rdzv-backend": "static", "--max-restarts": 0}
            return ["torchrun", *_flags(options), *start]
        options = {"--config_file": shlex.quote(str(self.run.path / CONFIG_NAME))}
        flags = [*_flags(options), "--multi_gpu"]
        options = {"--num_machines": self.num_nodes, "--machine_rank": machine_rank}
        options |= {"--num_processes": self.num_nodes * self.processes_per_node}
        options |= {"--main_process_ip": address, "--main_process_port": port}
        options |= {"--rdzv_backend": "static", "--max_restarts": 0, "--gpu_ids": "all"}
        options |= {"--mixed_precision": self.mixed_precision, "--dynamo_backend": "no"}
        options |= {"--num_cpu_threads_per_process": THREADS}
        return ["accelerate", "launch", *flags, *_flags(options), *start]

    @property
    def mixed_precision(self) -> str:
        """The precision in Accelerate's word."""
        return "no" if self.precision == "fp32" else self.precision

    def line(self, machine_rank: int) -> str:
        """Return the whole line of a shell that starts one node."""
        unset = [word for name in FOREIGN_NAMES for word in ("-u", name)]
        setting = [f"{name}={shlex.quote(value)}" for name, value in self.environment().items()]
        port = str(self.port or DEFAULT_PORT)
        address = shlex.quote(self.main_address)
        words = self.words(str(machine_rank), address=address, port=port)
        return " ".join(["env", *unset, *setting, *words])

    def environment(self) -> dict[str, str]:
        """Return what every worker must find in its environment."""
        return node_environment(self.use_gpu)

    def text(self) -> str:
        """Return the lines of all nodes with what a person must know."""
        lines = [
            f"{self.run.id} is prepared, not started: {self.run.path}",
            "Every node must see this folder under this path, and have the same environment.",
            f"Node 0 is {self.main_address}; the others reach it at port "
            f"{self.port or DEFAULT_PORT}.",
        ]
        for rank in range(self.num_nodes):
            lines += ["", f"# on node {rank}", self.line(rank)]
        path = shlex.quote(str(self.run.path))
        watch = f"Watch: nbhelpers follow {path}   Stop: nbhelpers stop {path}"
        return "\n".join([*lines, "", watch, "The same lines again continue a run that ended."])

    def slurm(self, options: SlurmOptions) -> str:
        """Return a batch script that starts all nodes, and continues the run when requeued."""
        port = str(self.port) if self.port else "$((20000 + SLURM_JOB_ID % 20000))"
        words = self.words('"$SLURM_NODEID"', address='"$MAIN_ADDRESS"', port='"$MAIN_PORT"')
        return slurm_script(
            self.run,
            words,
            num_nodes=self.num_nodes,
            gpus_per_node=self.processes_per_node if self.use_gpu else 0,
            port=port,
            environment=self.environment(),
            options=options,
        )


def _flags(options: Mapping[str, Any]) -> list[str]:
    return [str(word) for option in options.items() for word in option]


def prepare_nodes(
    job: str,
    preset: str = "auto",
    *,
    num_nodes: int,
    gpus_per_node: int,
    gpu: str = "",
    overrides: Mapping[str, Any] | None = None,
    run_dir: str | Path = "runs",
    fresh: bool = False,
    main_address: str = "",
    port: int | None = None,
    command: str | None = None,
) -> NodeLauncher:
    """Write the run folder of a run on several nodes, and return what starts it.

    Args:
        job: Such as `clones`.
        preset: A preset's name, a path to a .yaml file, or `auto`: by the GPU.
        num_nodes: Machines that train together.
        gpus_per_node: Training processes on each.
        gpu: The key of the nodes' GPU; default: the preset's, else this machine's.
        overrides: Settings to change.
        run_dir: Where run folders lie, on a file system that all nodes share.
        fresh: Set an earlier run of this configuration aside, and start anew.
        main_address: A name or address of node 0; default: this machine's name.
        port: Of node 0; default: 29500 in the lines, made from the job's number in a SLURM script.
        command: The shell command that does the same, for the report.

    Raises:
        BudgetError: The memory is predicted not to suffice.
        ConfigError: The batch does not split, no GPU can be chosen, or a name is no host's.
        HardwareError: The settings ask for another number of GPUs.
        LaunchError: The run is running, or its folder cannot be used.
    """
    _check_address(main_address)
    hardware, chosen, plan, budget = plan_nodes(
        job, preset, num_nodes=num_nodes, gpus_per_node=gpus_per_node, gpu=gpu, overrides=overrides
    )
    record = run_record(chosen, plan, budget, hardware=hardware, mode="train", checkpoint=None)
    asked = chosen.settings.precision
    precision = hardware.precision if asked == "auto" else asked
    launcher = NodeLauncher(
        run=Run(expanded(run_dir, "run_dir").absolute() / record["run_id"]),
        num_nodes=num_nodes,
        processes_per_node=gpus_per_node,
        use_gpu=plan.use_gpu,
        precision=precision if plan.use_gpu else "fp32",
        main_address=main_address or socket.gethostname(),
        port=port,
    )
    require_room(budget, hardware, force=False)
    _write_folder(launcher, record | {"command": command or ""}, fresh=fresh)
    return launcher


def _check_address(address: str) -> None:
    """Refuse what no host is called: every node would wait for it until the time is up."""
    if address and not _HOST.fullmatch(address):
        raise ConfigError(
            f"main_address={address!r} is no name or address of a machine.",
            fix="write its host name or IP address alone, without a port; the port has --port",
        )


def plan_nodes(
    job: str,
    preset: str,
    *,
    num_nodes: int,
    gpus_per_node: int,
    gpu: str = "",
    overrides: Mapping[str, Any] | None = None,
) -> tuple[Hardware, Preset, BatchPlan, MemoryBudget]:
    """Return one node's hardware, and the preset, plan and budget for all nodes.

    Raises:
        ConfigError: As for `prepare_nodes`.
        HardwareError: As for `prepare_nodes`.
    """
    from nbhelpers.budget.predict import predict_memory
    from nbhelpers.plan import plan_batch
    from nbhelpers.presets.loading import load_preset

    for name, value in (("num_nodes", num_nodes), ("gpus_per_node", gpus_per_node)):
        if type(value) is not int or not 1 <= value <= MOST_GPUS:
            fix = f"set a number from 1 to {MOST_GPUS}"
            raise ConfigError(f"{name}={value!r} is no number of machines or GPUs.", fix=fix)
    total, changes = num_nodes * gpus_per_node, dict(overrides or {})
    if total == 1:
        text = "One process on one node needs no launcher of its own."
        raise ConfigError(text, fix=f"nbhelpers train {job}, or set more nodes or GPUs")
    node = _node_hardware(job, preset, gpu, gpus_per_node, changes)
    everything = _repeated(node, total)
    if not node.gpus and changes.get("num_gpus") in (None, "auto"):
        changes["num_gpus"] = total  # without a GPU, `auto` means one process
    chosen = load_preset(job, preset, hardware=everything, overrides=changes)
    plan = plan_batch(chosen, node, num_nodes=num_nodes)
    if plan.world_size != total:
        raise ConfigError(
            f"num_gpus={plan.world_size}, but {num_nodes} nodes x {gpus_per_node} are {total} "
            "processes.",
            fix=f'set num_gpus to "auto" for {total} processes, or plan for '
            f"{plan.world_size // num_nodes} on each of {num_nodes} nodes",
        )
    return node, chosen, plan, predict_memory(chosen, plan, node)


def _node_hardware(
    job: str, preset: str, gpu: str, count: int, overrides: Mapping[str, Any]
) -> Hardware:
    """What each node has: as named, as the preset says, or as this machine."""
    from nbhelpers.presets.loading import load_preset

    if preset != "auto" and not gpu:
        gpu = load_preset(job, preset, overrides=overrides).gpu or ""
    if gpu:
        return plan_hardware(gpu, count)
    here = detect_hardware()
    if here.gpus:
        return replace(_repeated(here, count), is_planned=True)
    if preset == "auto":
        raise ConfigError(
            f"`auto` cannot choose a preset for the nodes: {here.reason}.",
            fix="name their GPU, such as --gpu h100, or a preset",
        )
    return here


def _repeated(hardware: Hardware, count: int) -> Hardware:
    """The same hardware with `count` GPUs like its smallest, or as it is without one."""
    if hardware.gpu is None:
        return hardware
    return replace(
        hardware, gpus=tuple(replace(hardware.gpu, index=index) for index in range(count))
    )


def _write_folder(launcher: NodeLauncher, record: dict[str, Any], *, fresh: bool) -> None:
    run, root = launcher.run, launcher.run.path.parent
    with explained(root):
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / ".lock"):
            if run.path.exists() and run.is_running:
                fix = f"follow it (nbhelpers follow {run.path}), or stop it first"
                raise LaunchError(f"{run.id} is running.", fix=fix)
            if reuse(run, fresh=fresh):
                return
            write_record(run, record)
            config = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU"}
            config |= {"mixed_precision": launcher.mixed_precision, "use_cpu": False}
            config |= {"num_machines": launcher.num_nodes, "debug": False}
            config |= {"num_processes": launcher.num_nodes * launcher.processes_per_node}
            if launcher.use_gpu:
                write_json(run.path / CONFIG_NAME, config)
