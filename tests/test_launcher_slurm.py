"""Promise: the SLURM script starts, fails, stops and continues all nodes as one job."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nbhelpers.cli.flow import show_launcher
from nbhelpers.common.files import write_json
from nbhelpers.errors import ConfigError
from nbhelpers.runs.launcher import SlurmOptions
from tests.node_cluster import Cluster, prepare, words_of


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    options = SlurmOptions(partition="gpu", time="04:00:00", account="me", others=("--mem=0",))
    return Cluster(tmp_path / "fakes", prepare(tmp_path / "my runs"), options)


def test_the_script_tells_sbatch_what_was_asked(cluster):
    lines = cluster.script.read_text().splitlines()
    assert lines[0] == "#!/bin/bash"
    head = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    run = cluster.launcher.run
    assert head == [
        *(f"--job-name={run.id}", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=4"),
        "--cpus-per-task=16",
        *("--requeue", "--open-mode=append", f'--output="{run.path}/slurm-%j.log"'),
        *("--signal=B:USR1@120", "--partition=gpu", "--time=04:00:00", "--account=me", "--mem=0"),
    ]
    assert "set -euo pipefail" in lines


def test_every_node_is_started_with_its_rank_and_the_main_nodes_address(cluster):
    code, said = cluster.run()
    assert (code, said) == (0, "")
    port = str(20000 + 12345 % 20000)
    for node in (0, 1):
        words, env = cluster.seen(node)
        expected = words_of(replace(cluster.launcher, main_address="alpha", port=int(port)), node)
        assert words == " ".join(expected[1:])
        assert not {"RANK", "WORLD_SIZE", "ACCELERATE_USE_FSDP"} & set(env)
        assert (env["KEPT"], env["CUDA_DEVICE_ORDER"]) == ("yes", "PCI_BUS_ID")
        log = (cluster.launcher.run.path / f"node{node}.log").read_text()
        assert f"node {node} of job 12345" in log and f"words of node {node}" in log
    calls = cluster.calls()
    assert "--nodes=2 --ntasks=2 --ntasks-per-node=1 --kill-on-bad-exit=1" in calls
    assert "requeue" not in calls


def test_a_port_that_was_given_stands_in_the_script(tmp_path):
    cluster = Cluster(tmp_path / "fakes", prepare(tmp_path, port=777), SlurmOptions())
    assert cluster.run()[0] == 0
    assert "--main_process_port 777 " in cluster.seen(1)[0]


@pytest.mark.parametrize("first", [0, 1])
def test_the_job_ends_with_the_code_of_the_first_node_that_failed(cluster, first):
    act = f'if [ "$SLURM_NODEID" = {first} ]; then echo last words; exit 17; fi; sleep 20'
    begin = time.monotonic()
    code, said = cluster.run(act)
    assert code == 17 and time.monotonic() - begin < 15
    assert f"node {first} failed first, with exit code 17" in said and "last words" in said
    assert cluster.run()[0] == 0  # the same script again is not misled by the last time


def test_a_job_of_another_size_is_refused_before_anything_starts(tmp_path):
    cluster = Cluster(tmp_path / "fakes", prepare(tmp_path, num_nodes=4), SlurmOptions())
    code, said = cluster.run()
    assert code == 3 and "the plan is for 4 nodes, but the job has: alpha beta" in said
    assert "srun" not in cluster.calls()


WORK = 'until [ -e "$RUN_DIR/stop" ]; do sleep 0.05; done'


@pytest.mark.parametrize(
    ("number", "done", "requeued"),
    [(signal.SIGUSR1, False, True), (signal.SIGUSR1, True, False), (signal.SIGTERM, False, False)],
)
def test_near_the_time_limit_the_run_stops_cleanly_and_is_queued_again(
    cluster, number, done, requeued
):
    run = cluster.launcher.run
    job = cluster.start(WORK)
    end = time.monotonic() + 20
    while not (cluster.folder / "node1.seen").exists() and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.2)
    if done:
        write_json(run.result_path, {"schema": 1})
    job.send_signal(number)
    out, error = job.communicate(timeout=20)
    assert (job.returncode, out + error) == (0, "")
    assert ("scontrol requeue 12345" in cluster.calls()) == requeued


@pytest.mark.parametrize("option", ["mem=0", "--comment=a\nb", "-p gpu"])
def test_what_is_no_option_of_sbatch_is_refused(tmp_path, option):
    with pytest.raises(ConfigError, match="no option of sbatch"):
        prepare(tmp_path).slurm(SlurmOptions(others=(option,)))


def test_an_own_wish_for_gpus_replaces_ours(tmp_path):
    script = prepare(tmp_path).slurm(SlurmOptions(others=("--gres=gpu:h100:4",)))
    assert "--gpus-per-node" not in script and "#SBATCH --gres=gpu:h100:4\n" in script


@pytest.mark.parametrize("option", ["--cpus-per-task=2", "--cpus-per-gpu=8"])
def test_an_own_wish_for_cpus_replaces_ours(tmp_path, option):
    script = prepare(tmp_path).slurm(SlurmOptions(others=(option,)))
    assert script.count("#SBATCH --cpus") == 1


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a b", "a'b", '"'])
def test_a_value_that_could_leave_its_line_is_refused(tmp_path, value):
    with pytest.raises(ConfigError, match="SLURM script"):
        prepare(tmp_path).slurm(SlurmOptions(partition=value))


@pytest.mark.parametrize("name", ['q"q', "b\\b", "l\nl"])
def test_a_folder_that_sbatch_cannot_quote_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="cannot stand in an option of sbatch"):
        prepare(tmp_path / name).slurm(SlurmOptions())


def test_a_folder_named_like_a_mark_of_the_script_stays_as_it_is(tmp_path):
    script = prepare(tmp_path / "@NODES@@LAUNCH@").slurm(SlurmOptions())
    assert f"export RUN_DIR={tmp_path}/@NODES@@LAUNCH@/" in script


def test_only_an_earlier_slurm_script_is_written_over(tmp_path, capsys):
    launcher, path = prepare(tmp_path / "runs"), tmp_path / "job.sh"
    for _ in range(2):
        show_launcher(launcher, path, SlurmOptions())
    path.write_text("precious")
    with pytest.raises(ConfigError, match="export-launcher has not written it"):
        show_launcher(launcher, path, SlurmOptions())
    assert path.read_text() == "precious"
    with pytest.raises(ConfigError, match="cannot be written"):
        show_launcher(launcher, tmp_path / "no" / "job.sh", SlurmOptions())
