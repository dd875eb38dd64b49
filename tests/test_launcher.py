"""Promise: a run on several nodes is planned like any other and prepared once, each node's line
names everything that counts, and the SLURM script starts, stops and continues all of them."""

from __future__ import annotations

import itertools
import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import nbhelpers as nb
from nbhelpers.common.files import write_json
from nbhelpers.errors import BudgetError, ConfigError, HardwareError, LaunchError
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.plan import BatchPlan
from nbhelpers.runs.launcher import plan_nodes
from tests.fake_launch import wait_for
from tests.node_cluster import Cluster, prepare, words_of

ROOT = Path(__file__).resolve().parent.parent

# The plan


@pytest.mark.parametrize(
    ("nodes", "gpus", "formula", "shown"),
    [
        (2, 4, "8 x 1 x 8 = 64", "2 nodes x 4 x GPU"),
        (4, 1, "16 x 1 x 4 = 64", "4 nodes x 1 x GPU"),
        (1, 2, "32 x 1 x 2 = 64", "2 x GPU"),
    ],
)
def test_the_global_batch_is_shared_by_all_nodes(nodes, gpus, formula, shown):
    hardware, preset, plan, budget = plan_nodes(
        "clones", "h100", num_nodes=nodes, gpus_per_node=gpus
    )
    assert plan.formula() == formula and shown in repr(plan)
    assert (len(hardware.gpus), plan.num_nodes) == (gpus, nodes)
    assert plan.processes_per_node == gpus and budget.verdict == "fits"
    assert preset.settings.num_gpus == "auto"  # the same experiment, so the same run as on one node


def test_the_nodes_gpu_is_the_named_one_or_the_presets():
    assert plan_nodes("clones", "l4", num_nodes=2, gpus_per_node=1)[0].gpu.key == "l4"
    named = plan_nodes("clones", "auto", num_nodes=2, gpus_per_node=2, gpu="t4")
    assert (named[0].gpu.key, named[1].name, named[0].precision) == ("t4", "t4", "fp16")
    with pytest.raises(ConfigError, match="cannot choose a preset for the nodes") as error:
        plan_nodes("clones", "auto", num_nodes=2, gpus_per_node=1)
    assert "--gpu" in error.value.fix


@pytest.mark.parametrize(
    ("preset", "nodes", "gpus", "overrides", "kind", "words"),
    [
        ("h100", 3, 1, {}, ConfigError, "cannot be split over world_size=3"),
        ("seed-2x-rtx6000ada", 2, 2, {}, ConfigError, "num_gpus=2, but 2 nodes x 2 are 4"),
        ("h100", 2, 1, {"num_gpus": 3}, HardwareError, "cannot be shared by 2 nodes alike"),
        ("h100", 0, 1, {}, ConfigError, "num_nodes=0"),
        ("h100", 1, 1, {}, ConfigError, "needs no launcher"),
        ("h100", 2, 999_999_999, {}, ConfigError, "gpus_per_node=999999999"),
        ("t4", 2, 1, {"precision": "bf16"}, ConfigError, "needs 8.0"),
    ],
)
def test_what_cannot_be_planned_is_an_error_with_its_fix(
    preset, nodes, gpus, overrides, kind, words
):
    with pytest.raises(kind) as error:
        plan_nodes("clones", preset, num_nodes=nodes, gpus_per_node=gpus, overrides=overrides)
    assert words in str(error.value) and error.value.fix


def test_a_plan_for_nodes_is_not_launched_on_one_machine(tmp_path):
    _, preset, plan, _ = plan_nodes("clones", "smoke", num_nodes=2, gpus_per_node=1)
    here = replace(plan_hardware("t4"), gpus=(), is_planned=False, reason="no driver")
    with pytest.raises(HardwareError, match="2 nodes") as error:
        nb.launch(preset, plan, None, hardware=here, run_dir=tmp_path)
    assert "export-launcher" in error.value.fix and not list(tmp_path.iterdir())


def test_a_plan_of_an_earlier_version_has_one_node():
    saved = plan_nodes("clones", "h100", num_nodes=2, gpus_per_node=1)[2].to_dict()
    assert BatchPlan.from_dict(saved).num_nodes == 2
    del saved["num_nodes"]
    assert BatchPlan.from_dict(saved).num_nodes == 1


# The folder


def test_the_folder_is_written_once_and_nothing_is_started(tmp_path, monkeypatch):
    launcher = prepare(tmp_path, command="nbhelpers export-launcher clones")
    run = launcher.run
    assert run.status == "new" and not run.process_path.exists()
    record = run.read_json()
    assert (record["plan"]["world_size"], record["plan"]["num_nodes"]) == (8, 2)
    assert record["hardware"]["is_planned"] and len(record["hardware"]["gpus"]) == 4
    assert record["command"] == "nbhelpers export-launcher clones"
    assert prepare(tmp_path).run == run == prepare(tmp_path, num_nodes=1, gpus_per_node=8).run
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1
    monkeypatch.setattr("nbhelpers.runs.run.Run.status", "running")
    with pytest.raises(LaunchError, match="is running"):
        prepare(tmp_path)


def test_a_run_that_cannot_fit_is_refused_before_its_folder_exists(tmp_path):
    overrides = {"per_device_train_batch_size": 32}
    with pytest.raises(BudgetError):
        prepare(tmp_path / "runs", "t4", gpus_per_node=1, overrides=overrides)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("address", ["a b", "-x", "h;touch x", "node:29500", "[::1]"])
def test_what_no_host_is_called_is_refused_as_main_node(tmp_path, address):
    with pytest.raises(ConfigError, match="no name or address"):
        prepare(tmp_path, main_address=address)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("address", ["node-1.cluster", "10.0.0.1", "::1", "fe80::1%eth0"])
def test_names_and_addresses_of_hosts_pass(tmp_path, address):
    assert prepare(tmp_path, main_address=address).main_address == address


# The lines


def test_each_node_gets_its_whole_line(tmp_path):
    launcher = prepare(tmp_path / "my runs" / "$HOME", port=4711)
    for rank in (0, 1):
        line, words = launcher.line(rank), words_of(launcher, rank)
        assert "\n" not in line and line in launcher.text()
        options = dict(itertools.pairwise(words))
        assert options["--machine_rank"] == str(rank)
        assert (options["--num_machines"], options["--num_processes"]) == ("2", "8")
        assert options["--main_process_ip"] == "node01" and options["--main_process_port"] == "4711"
        assert words[-3:] == ["-m", "nbhelpers.jobs.worker", str(launcher.run.path)]
    assert "not run on real nodes" in launcher.text()


@pytest.mark.parametrize(
    ("preset", "word"), [("t4", "fp16"), ("l4", "bf16"), ("seed-graphcodebert", "no")]
)
def test_the_precision_of_the_lines_is_the_presets(tmp_path, preset, word):
    launcher = prepare(tmp_path, preset, gpus_per_node=2)
    words = words_of(launcher, 0)
    assert words[words.index("--mixed_precision") + 1] == word
    config = json.loads((launcher.run.path / "accelerate.json").read_text())
    assert config["mixed_precision"] == word


# The SLURM script


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "fakes", prepare(tmp_path / "my runs"))


def test_the_script_tells_sbatch_what_was_asked(tmp_path):
    launcher = prepare(tmp_path)
    options = ["--time=04:00:00", "--mem=0"]
    lines = launcher.slurm(options).splitlines()
    head = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    assert lines[0] == "#!/bin/bash" and head == [
        *(f"--job-name={launcher.run.id}", "--nodes=2", "--ntasks-per-node=1"),
        *("--gpus-per-node=4", "--cpus-per-task=16", "--requeue", "--open-mode=append"),
        *(f'--output="{launcher.run.path}/slurm-%j.log"', "--signal=B:USR1@120", *options),
    ]
    own = launcher.slurm(["--gres=gpu:h100:4", "--cpus-per-gpu=8"])
    assert "--gpus-per-node" not in own and own.count("#SBATCH --cpus") == 1


def test_every_node_is_started_with_its_rank_and_the_main_nodes_address(cluster):
    out, error = cluster.start().communicate(timeout=120)
    assert out + error == ""
    port = 20000 + 12345 % 20000
    launcher = replace(cluster.launcher, main_address="alpha", port=port)
    for node in (0, 1):
        seen = (cluster.folder / f"node{node}.seen").read_text().strip()
        assert seen == " ".join(words_of(launcher, node)[1:])
        log = (cluster.launcher.run.path / f"node{node}.log").read_text()
        assert f"words of node {node}" in log
    assert "--nodes=2 --ntasks=2 --ntasks-per-node=1 --kill-on-bad-exit=1" in cluster.calls()
    assert "requeue" not in cluster.calls()


def test_the_job_ends_with_a_nodes_code_and_the_ends_of_the_logs(cluster):
    act = 'if [ "$SLURM_NODEID" = 1 ]; then echo last words; exit 17; fi; exec sleep 600'
    job = cluster.start(act)
    _, error = job.communicate(timeout=120)
    assert job.returncode in (17, 128 + signal.SIGTERM) and "last words" in error


WORK = 'until [ -e "$RUN_DIR/stop" ]; do sleep 0.05; done'


@pytest.mark.parametrize(
    ("number", "is_done", "requeued"),
    [(signal.SIGUSR1, False, True), (signal.SIGUSR1, True, False), (signal.SIGTERM, False, False)],
)
def test_near_the_time_limit_the_run_stops_cleanly_and_is_queued_again(
    cluster, number, is_done, requeued
):
    job = cluster.start(WORK)
    wait_for(lambda: all((cluster.folder / f"node{n}.seen").exists() for n in (0, 1)))
    if is_done:
        write_json(cluster.launcher.run.result_path, {"schema": 1})
    job.send_signal(number)
    out, error = job.communicate(timeout=120)
    assert (job.returncode, out + error) == (0, "")
    assert ("scontrol requeue 12345" in cluster.calls()) == requeued


@pytest.mark.parametrize("option", ["mem=0", "--comment=a\nb", "-p gpu"])
def test_what_is_no_option_of_sbatch_is_refused(tmp_path, option):
    with pytest.raises(ConfigError, match="no option of sbatch"):
        prepare(tmp_path).slurm([option])


def test_a_folder_that_a_script_cannot_quote_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot stand in a SLURM script"):
        prepare(tmp_path / "it's").slurm()


def test_only_an_earlier_slurm_script_is_written_over(tmp_path):
    launcher, path = prepare(tmp_path / "runs"), tmp_path / "job.sh"
    for _ in range(2):
        launcher.write_slurm(path)
    path.write_text("precious")
    with pytest.raises(ConfigError, match="export-launcher has not written it"):
        launcher.write_slurm(path)
    assert path.read_text() == "precious"
    with pytest.raises(ConfigError, match="cannot be written"):
        launcher.write_slurm(tmp_path / "no" / "job.sh")
