"""Several nodes: a run in a shared folder, the lines that start it, and a SLURM script.

`launch` starts processes on one machine. Here nothing is started: `prepare_nodes` writes `run.json`
once, and the `NodeLauncher` that it returns knows the line for each node and a SLURM script. They
were not run on real nodes: two nodes on one machine, and stand-ins of SLURM's programs, are what
the tests have.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from nbhelpers.common.files import expanded, is_file, kind_of, locked, write_json
from nbhelpers.common.processes import MODULE_VARIABLE, WORKER_MODULE, node_environment
from nbhelpers.errors import ConfigError, LaunchError
from nbhelpers.hardware.detection import MOST_GPUS, Hardware, detect_hardware, plan_hardware
from nbhelpers.runs.run import Run
from nbhelpers.runs.starting import (
    explained,
    go_on,
    require_room,
    reuse,
    run_record,
    write_record,
)

if TYPE_CHECKING:
    from nbhelpers.budget.memory import MemoryBudget
    from nbhelpers.plan import BatchPlan
    from nbhelpers.presets.preset import Preset

DEFAULT_PORT = 29500
THREADS = 4  # of each process: few enough for every node, and the GPU does the work
CONFIG_NAME = "accelerate.json"  # in place of what a user of Accelerate has configured
STOP_BEFORE_END_S = 120  # time for one step and one checkpoint before SLURM's time limit
NOT_TRIED = "not run on real nodes"
WRITTEN_BY = "written by nbhelpers export-launcher"
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.%\w]*")
_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|UNLIMITED|INFINITE")
_SCRIPT = Template("""\
#!/bin/bash
$options
# $run_id on $nodes nodes, $written_by ($not_tried). Submit: sbatch.
set -euo pipefail
$exports
export PATH="$$PATH:"$bin
export RUN_DIR=$run_dir
export MAIN_ADDRESS=$$(scontrol show hostnames "$$SLURM_JOB_NODELIST" | head -n 1)
export MAIN_PORT=$port

# Shortly before the time limit (USR1) the run saves, ends cleanly and waits in the queue again; the
# next start continues it. TERM ends it cleanly, and is left to whoever sent it.
again=
trap 'again=yes signal=yes; touch "$$RUN_DIR/stop"' USR1
trap 'signal=yes; touch "$$RUN_DIR/stop"' TERM
srun --nodes=$nodes --ntasks=$nodes --ntasks-per-node=1 --kill-on-bad-exit=1 \\
  --output="$$RUN_DIR/node%n.log" --open-mode=append bash -c '$launch' &
task=$$!
signal=yes
while [ -n "$$signal" ]; do  # a signal ends `wait` before the nodes have ended
  signal= code=0
  wait "$$task" || code=$$?
done
if [ "$$code" -ne 0 ]; then
  tail -n 30 "$$RUN_DIR"/node*.log >&2
  exit "$$code"
fi
if [ -n "$$again" ] && [ ! -e "$$RUN_DIR/result.json" ]; then
  scontrol requeue "$$SLURM_JOB_ID"
fi
""")


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

    def words(self, machine_rank: str, *, address: str, port: str, folder: str) -> list[str]:
        """Return the launcher's words for one node; all four are quoted, or variables of a shell.

        `accelerate launch` started a single process when it was asked for two on a CPU, hence
        torchrun there.
        """
        module = os.environ.get(MODULE_VARIABLE, WORKER_MODULE)
        worker = ["-m", module, folder]
        if not self.use_gpu:
            options = {"--nnodes": self.num_nodes, "--nproc-per-node": self.processes_per_node}
            options |= {"--node-rank": machine_rank, "--master-addr": address}
            options |= {"--master-port": port, "--rdzv-backend": "static", "--max-restarts": 0}
            return ["torchrun", *_flags(options), *worker]
        options = {"--num_machines": self.num_nodes, "--machine_rank": machine_rank}
        options |= {"--num_processes": self.num_nodes * self.processes_per_node}
        options |= {"--main_process_ip": address, "--main_process_port": port}
        options |= {"--rdzv_backend": "static", "--max_restarts": 0, "--gpu_ids": "all"}
        options |= {"--mixed_precision": self.mixed_precision, "--dynamo_backend": "no"}
        options |= {"--num_cpu_threads_per_process": THREADS}
        config = ["--config_file", f"{folder}/{CONFIG_NAME}"]
        return ["accelerate", "launch", *config, "--multi_gpu", *_flags(options), *worker]

    @property
    def mixed_precision(self) -> str:
        """The precision in Accelerate's word."""
        return "no" if self.precision == "fp32" else self.precision

    def line(self, machine_rank: int) -> str:
        """Return the whole line of a shell that starts one node."""
        address, port = shlex.quote(self.main_address), str(self.port or DEFAULT_PORT)
        folder = shlex.quote(str(self.run.path))
        words = self.words(str(machine_rank), address=address, port=port, folder=folder)
        return " ".join(["env", *self._environment(), *words])

    def _environment(self) -> list[str]:
        """What every worker must find in its environment, as assignments of a shell."""
        environment = node_environment(self.use_gpu)
        return [f"{name}={shlex.quote(value)}" for name, value in environment.items()]

    def head(self) -> str:
        """Return what a person must know of the prepared run."""
        return (
            f"{self.run.id} is prepared, not started: {self.run.path}\n"
            "Every node must see this folder under this path, and have the same environment; "
            f"{NOT_TRIED}."
        )

    def text(self) -> str:
        """Return the lines of all nodes with what a person must know."""
        port = self.port or DEFAULT_PORT
        lines = [self.head()]
        lines.append(f"Node 0 is {self.main_address}; the others reach it at port {port}.")
        for rank in range(self.num_nodes):
            lines += ["", f"# on node {rank}", self.line(rank)]
        run = self.run.typed
        watch = f"Watch: nbhelpers follow {run}   Stop: nbhelpers stop {run}"
        return "\n".join([*lines, "", watch, "The same lines again continue a run that ended."])

    def slurm(self, options: Sequence[str] = ()) -> str:
        """Return a batch script that starts all nodes, and continues the run when requeued.

        Args:
            options: For sbatch, such as `--time=04:00:00`; they come after, and so win over, ours.

        Raises:
            ConfigError: One of them is no option of sbatch, or a path does not fit into a script.
        """
        path = str(self.run.path)
        if set("\"'\\\n") & set(path):
            text = f"The run folder {path!r} cannot stand in a SLURM script."
            raise ConfigError(text, fix="set --run-dir to a path without quotes and backslashes")
        require_sbatch(options)
        gpus = self.processes_per_node if self.use_gpu else 0
        head = [f"--job-name={self.run.id}", f"--nodes={self.num_nodes}", "--ntasks-per-node=1"]
        if gpus and not any(option.startswith("--g") for option in options):
            head.append(f"--gpus-per-node={gpus}")
        # One task holds all processes of a node, and SLURM gives a task one CPU where nothing is
        # said.
        if not any(option.startswith("--cpus-per") for option in options):
            head.append(f"--cpus-per-task={THREADS * max(gpus, 1)}")
        head += ["--requeue", "--open-mode=append", f'--output="{path}/slurm-%j.log"']
        head += [f"--signal=B:USR1@{STOP_BEFORE_END_S}", *options]
        places = {"address": "$MAIN_ADDRESS", "port": "$MAIN_PORT", "folder": '"$RUN_DIR"'}
        return _SCRIPT.substitute(
            options="\n".join(f"#SBATCH {option}" for option in head),
            run_id=self.run.id,
            nodes=self.num_nodes,
            written_by=WRITTEN_BY,
            not_tried=NOT_TRIED,
            exports="\n".join(f"export {assignment}" for assignment in self._environment()),
            bin=shlex.quote(str(Path(sys.executable).parent)),
            run_dir=shlex.quote(path),
            port=self.port or "$((20000 + SLURM_JOB_ID % 20000))",
            launch=" ".join(self.words("$SLURM_NODEID", **places)),
        )

    def write_slurm(self, path: Path, options: Sequence[str] = ()) -> None:
        """Write the SLURM script, over an earlier one of ours only.

        Raises:
            ConfigError: Another file is there, it cannot be written, or as for `slurm`.
        """
        script = self.slurm(options)
        try:
            if kind_of(path):
                is_ours = is_file(path) and WRITTEN_BY in path.read_text("utf-8", errors="replace")
                if not is_ours:
                    text = f"{path} exists, and export-launcher has not written it."
                    raise ConfigError(text, fix="name another file with --slurm, or - to print it")
            path.write_text(script, encoding="utf-8")
            path.chmod(0o755)
        except OSError as error:
            text = f"{path} cannot be written ({error.strerror or error})."
            raise ConfigError(text, fix="name a file in a folder that you may write to") from error


def require_sbatch(options: Sequence[str]) -> None:
    """Stop on what sbatch would refuse.

    Raises:
        ConfigError: It is no option of sbatch, or its time limit is none.
    """
    for option in options:
        if not option.startswith("--") or not option.isprintable():
            raise ConfigError(f"{option!r} is no option of sbatch.", fix="write --name=value")
        name, _, value = option.partition("=")
        if name == "--time" and not _TIME.fullmatch(value):
            fix = "write minutes, hours:minutes:seconds or days-hours, such as --time 04:00:00"
            raise ConfigError(f"{value!r} is no time limit of SLURM.", fix=fix)


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
    resume: bool = False,
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
        resume: Go on from a run that ended early and differs in how its batch was split only.
        main_address: A name or address of node 0; default: this machine's name.
        port: Of node 0; default: 29500 in the lines, made from the job's number in a SLURM script.
        command: The shell command that does the same, for the report.

    Raises:
        BudgetError: The memory is predicted not to suffice.
        ConfigError: The batch does not split, no GPU can be chosen, or a name is no host's.
        HardwareError: The settings ask for another number of GPUs.
        LaunchError: The run is running, or its folder cannot be used.
    """
    if main_address and not _HOST.fullmatch(main_address):
        raise ConfigError(
            f"main_address={main_address!r} is no name or address of a machine.",
            fix="write its host name or IP address alone, without a port; the port has --port",
        )
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
    _write_folder(launcher, record | {"command": command or ""}, fresh=fresh, resume=resume)
    return launcher


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
    if not node.gpus and changes.get("num_gpus") in (None, "auto"):
        changes["num_gpus"] = total  # without a GPU, `auto` means one process
    chosen = load_preset(job, preset, hardware=_repeated(node, total), overrides=changes)
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
    gpus = tuple(replace(hardware.gpu, index=index) for index in range(count))
    return replace(hardware, gpus=gpus)


def _write_folder(
    launcher: NodeLauncher, record: dict[str, Any], *, fresh: bool, resume: bool
) -> None:
    run, root = launcher.run, launcher.run.path.parent
    with explained(root):
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / ".lock"):
            if run.path.exists() and run.is_running:
                fix = f"follow it ({run.shell('follow')}), or stop it first"
                raise LaunchError(f"{run.id} is running.", fix=fix)
            if reuse(run, fresh=fresh):
                return
            facts = {} if fresh else go_on(run, record, resume=resume)
            write_record(run, record | facts)
            if launcher.use_gpu:
                config = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU"}
                config |= {"mixed_precision": launcher.mixed_precision, "use_cpu": False}
                config |= {"num_machines": launcher.num_nodes, "debug": False}
                config |= {"num_processes": launcher.num_nodes * launcher.processes_per_node}
                write_json(run.path / CONFIG_NAME, config)
