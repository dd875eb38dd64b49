"""Promise: a run on several nodes is planned like any other and prepared once, and each node's line
names everything that counts."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import nbhelpers as nb
from nbhelpers.common.processes import FOREIGN_NAMES
from nbhelpers.errors import BudgetError, ConfigError, HardwareError, LaunchError
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.plan import BatchPlan
from nbhelpers.runs.launcher import SlurmOptions, plan_nodes
from tests.node_cluster import prepare, words_of

ROOT = Path(__file__).resolve().parent.parent


# The plan


@pytest.mark.parametrize(
    ("nodes", "gpus", "formula", "shown"),
    [
        (2, 4, "8 x 1 x 8 = 64", "2 nodes x 4 x GPU"),
        (4, 1, "16 x 1 x 4 = 64", "4 nodes x 1 x GPU"),
        (1, 2, "32 x 1 x 2 = 64", "2 x GPU"),
        (8, 8, "1 x 1 x 64 = 64", "8 nodes x 8 x GPU"),
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
    ("preset", "nodes", "gpus", "given", "kind", "words"),
    [
        ("h100", 3, 1, {}, ConfigError, "cannot be split over world_size=3"),
        ("seed-2x-rtx6000ada", 2, 2, {}, ConfigError, "num_gpus=2, but 2 nodes x 2 are 4"),
        ("h100", 2, 1, {"num_gpus": 3}, HardwareError, "cannot be shared by 2 nodes alike"),
        ("h100", 2, 1, {"num_gpus": 4}, HardwareError, "2 are visible on 2 nodes"),
        ("h100", 0, 1, {}, ConfigError, "num_nodes=0"),
        ("h100", 1, 1, {}, ConfigError, "needs no launcher"),
        ("h100", 2, True, {}, ConfigError, "gpus_per_node=True"),
        ("t4", 2, 1, {"precision": "bf16"}, ConfigError, "needs 8.0"),
    ],
)
def test_what_cannot_be_planned_is_an_error_with_its_fix(preset, nodes, gpus, given, kind, words):
    with pytest.raises(kind) as error:
        plan_nodes("clones", preset, num_nodes=nodes, gpus_per_node=gpus, overrides=given)
    assert words in str(error.value) and error.value.fix


def test_uneven_nodes_are_possible_by_request():
    given = {"allow_uneven_split": True}
    plan = plan_nodes("clones", "h100", num_nodes=3, gpus_per_node=1, overrides=given)[2]
    assert plan.world_size == 3 and not plan.is_exact


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


def test_the_folder_is_written_once_and_nothing_is_started(tmp_path):
    launcher = prepare(tmp_path, command="nbhelpers export-launcher clones")
    run = launcher.run
    assert run.status == "new" and not run.process_path.exists()
    record = run.read_json()
    assert (record["plan"]["world_size"], record["plan"]["num_nodes"]) == (8, 2)
    assert record["hardware"]["is_planned"] and len(record["hardware"]["gpus"]) == 4
    assert record["command"] == "nbhelpers export-launcher clones"
    assert prepare(tmp_path).run == run
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1


def test_the_run_is_the_one_that_a_single_node_would_make(tmp_path):
    assert prepare(tmp_path).run == prepare(tmp_path, num_nodes=1, gpus_per_node=8).run


def test_a_running_run_is_not_prepared_again(tmp_path, monkeypatch):
    run = prepare(tmp_path).run
    monkeypatch.setattr("nbhelpers.runs.run.Run.status", "running")
    with pytest.raises(LaunchError, match="is running"):
        prepare(tmp_path)
    assert run.record_path.exists()


def test_a_run_that_cannot_fit_is_refused_before_its_folder_exists(tmp_path):
    given = {"per_device_train_batch_size": 32}
    with pytest.raises(BudgetError):
        prepare(tmp_path / "runs", "t4", gpus_per_node=1, overrides=given)
    assert not (tmp_path / "runs").exists()


# The lines


def test_each_node_gets_its_whole_line(tmp_path):
    launcher = prepare(tmp_path, port=4711)
    for rank in (0, 1):
        line, words = launcher.line(rank), words_of(launcher, rank)
        assert "\n" not in line and line.startswith("env ")
        for name in FOREIGN_NAMES:
            assert f" -u {name} " in line
        options = dict(itertools.pairwise(words))
        assert options["--machine_rank"] == str(rank)
        assert (options["--num_machines"], options["--num_processes"]) == ("2", "8")
        assert options["--main_process_ip"] == "node01" and options["--main_process_port"] == "4711"
        assert options["--mixed_precision"] == "bf16"
        assert words[-3:] == ["-m", "nbhelpers.jobs.worker", str(launcher.run.path)]
        assert line in launcher.text()


def test_the_precision_of_the_lines_is_the_presets(tmp_path):
    for preset, word in (("t4", "fp16"), ("l4", "bf16"), ("seed-graphcodebert", "no")):
        launcher = prepare(tmp_path, preset, gpus_per_node=2)
        words = words_of(launcher, 0)
        assert words[words.index("--mixed_precision") + 1] == word
        config = json.loads((launcher.run.path / "accelerate.json").read_text())
        assert config["mixed_precision"] == word


def test_a_path_with_blanks_is_quoted_in_line_and_script(tmp_path):
    folder = tmp_path / "my runs" / "a'b $HOME"
    launcher = prepare(folder)
    assert words_of(launcher, 1)[-1] == str(launcher.run.path)
    script = launcher.slurm(SlurmOptions())
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


HOSTILE = """
compute_environment: AMAZON_SAGEMAKER
distributed_type: FSDP
mixed_precision: fp8
num_machines: 9
num_processes: 72
main_process_port: 1
debug: true
same_network: true
"""


@pytest.mark.slow
def test_accelerate_reads_the_lines_and_nothing_of_its_own_configuration(tmp_path):
    """Its own parser, in a process whose default configuration would change everything."""
    launcher = prepare(tmp_path / "runs", port=4711)
    home = tmp_path / "home" / "accelerate"
    home.mkdir(parents=True)
    (home / "default_config.yaml").write_text(HOSTILE)
    code = (
        "import sys; from accelerate.commands.launch import *;"
        "from accelerate.commands.launch import _validate_launch_command as check;"
        "args, defaults, _ = check(launch_command_parser().parse_args(sys.argv[1:]));"
        "names = 'multi_gpu num_machines num_processes machine_rank main_process_ip '"
        "'main_process_port mixed_precision debug same_network use_fsdp gpu_ids rdzv_backend '"
        "'training_script module max_restarts num_cpu_threads_per_process dynamo_backend';"
        "print({name: getattr(args, name) for name in names.split()})"
    )
    env = os.environ | {"HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    env |= {"ACCELERATE_USE_FSDP": "true"}
    words = [sys.executable, "-c", code, *words_of(launcher, 1)[2:]]
    unset = [word for name in FOREIGN_NAMES for word in ("-u", name)]
    done = subprocess.run(["env", *unset, *words], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = eval(done.stdout)
    assert found == {
        **{"multi_gpu": True, "num_machines": 2, "num_processes": 8, "machine_rank": 1},
        **{"main_process_ip": "node01", "main_process_port": 4711, "mixed_precision": "bf16"},
        **{"debug": False, "same_network": False, "use_fsdp": False, "gpu_ids": "all"},
        **{"rdzv_backend": "static", "training_script": "nbhelpers.jobs.worker", "module": True},
        **{"max_restarts": 0, "num_cpu_threads_per_process": 4, "dynamo_backend": "no"},
    }


@pytest.mark.parametrize("address", ["a b", "a\nb", "-x", "h;touch x", "node:29500", " a", "[::1]"])
def test_what_no_host_is_called_is_refused_as_main_node(tmp_path, address):
    with pytest.raises(ConfigError, match="no name or address"):
        prepare(tmp_path, main_address=address)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("address", ["node-1.cluster", "10.0.0.1", "::1", "fe80::1%eth0"])
def test_names_and_addresses_of_hosts_pass(tmp_path, address):
    assert prepare(tmp_path, main_address=address).main_address == address


def test_a_number_beyond_any_cluster_is_an_error_and_not_a_long_wait():
    with pytest.raises(ConfigError, match="gpus_per_node=999999999"):
        plan_nodes("clones", "t4", num_nodes=2, gpus_per_node=999_999_999)
    with pytest.raises(ConfigError, match="count=999999999"):
        plan_hardware("t4", 999_999_999)
