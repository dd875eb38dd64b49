"""Promise: RAM, CPUs and platform are what this process may use, not what the machine has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from nbhelpers.hardware import machine

GIB = 2**30
NO_LIMIT_V1 = str(2**63 - 4096)


def a_root(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


V2 = {"proc/self/cgroup": "0::/job/step"}
V1 = {"proc/self/cgroup": "5:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/job"}


@pytest.mark.parametrize(
    ("files", "total_gib", "available_gib"),
    [
        ({}, 64, 40),
        (V2, 64, 40),
        (V2 | {"sys/fs/cgroup/job/step/memory.max": "max"}, 64, 40),
        (
            V2
            | {
                "sys/fs/cgroup/job/step/memory.max": str(8 * GIB),
                "sys/fs/cgroup/job/step/memory.current": str(6 * GIB),
                "sys/fs/cgroup/job/step/memory.stat": f"anon 1\ninactive_file {2 * GIB}",
            },
            8,
            4,
        ),
        (
            V2
            | {
                "sys/fs/cgroup/job/step/memory.max": str(32 * GIB),
                "sys/fs/cgroup/job/memory.max": str(16 * GIB),
                "sys/fs/cgroup/job/memory.current": str(1 * GIB),
            },
            16,
            15,
        ),
        # In a container the path is the host's and only the mounted root exists.
        (V2 | {"sys/fs/cgroup/memory.max": str(4 * GIB)}, 4, 4),
        (V2 | {"sys/fs/cgroup/memory.max": str(500 * GIB)}, 64, 40),
        (V1 | {"sys/fs/cgroup/memory/job/memory.limit_in_bytes": NO_LIMIT_V1}, 64, 40),
        (
            V1
            | {
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(12 * GIB),
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(13 * GIB),
                "sys/fs/cgroup/memory/job/memory.stat": f"total_inactive_file {4 * GIB}",
            },
            12,
            3,
        ),
        (V1 | {"sys/fs/cgroup/memory/memory.limit_in_bytes": str(2 * GIB)}, 2, 2),
    ],
)
def test_ram_is_the_lower_of_machine_and_cgroup(
    tmp_path: Path, monkeypatch, files: dict[str, str], total_gib: int, available_gib: int
) -> None:
    memory = SimpleNamespace(total=64 * GIB, available=40 * GIB)
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: memory)
    root = a_root(tmp_path, files)
    assert machine.ram_bytes(root) == (total_gib * GIB, available_gib * GIB)


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 8),
        (V2 | {"sys/fs/cgroup/job/step/cpu.max": "max 100000"}, 8),
        (V2 | {"sys/fs/cgroup/job/step/cpu.max": "150000 100000"}, 2),
        (V2 | {"sys/fs/cgroup/job/cpu.max": "10000 100000"}, 1),
        (V2 | {"sys/fs/cgroup/job/step/cpu.max": "6400000 100000"}, 8),
        (
            V1
            | {
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "400000",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
            },
            4,
        ),
        (
            V1
            | {
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            },
            8,
        ),
    ],
)
def test_cpus_are_the_affinity_cut_by_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cpus: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert machine.cpu_count(a_root(tmp_path, files)) == cpus


@pytest.mark.parametrize(
    ("variables", "platform"),
    [
        ({"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "COLAB_RELEASE_TAG": "x"}, "kaggle"),
        ({"COLAB_RELEASE_TAG": "release-colab"}, "colab"),
        ({"COLAB_BACKEND_VERSION": "next"}, "colab"),
        ({"COLAB_RELEASE_TAG": ""}, "shell"),
        ({}, "shell"),
    ],
)
def test_kaggle_is_asked_before_colab(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], platform: str
) -> None:
    monkeypatch.delitem(sys.modules, "google.colab", raising=False)
    monkeypatch.setattr(machine, "is_notebook", lambda: False)
    assert machine.detect_platform(variables) == platform


def test_colab_is_known_by_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    assert machine.detect_platform({}) == "colab"


@pytest.mark.parametrize(
    ("shell", "is_notebook"),
    [
        (SimpleNamespace(kernel=object()), True),  # ipykernel's, of any front end
        (SimpleNamespace(), False),  # a terminal's IPython
        (None, False),  # IPython was imported by something, and does not run this
    ],
)
def test_a_kernel_is_a_notebook_and_a_terminal_is_none(
    monkeypatch: pytest.MonkeyPatch, shell: object, is_notebook: bool
) -> None:
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    monkeypatch.delitem(sys.modules, "google.colab", raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert machine.is_notebook() is is_notebook
    assert machine.detect_platform({}) == ("jupyter" if is_notebook else "shell")
    monkeypatch.delitem(sys.modules, "IPython")
    assert not machine.is_notebook()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_runner_above_a_process_hides_the_widget_without_its_variable(tmp_path: Path) -> None:
    """A widget in a person's session: test_picker.py."""
    code = (
        "import IPython.display as d; from nbhelpers.hardware.detection import plan_hardware\n"
        "from nbhelpers.notebook.picker import pick_preset; seen = []\n"
        "d.display = lambda what, **_: seen.append(what)\n"
        "pick_preset('clones', plan_hardware('t4'))._ipython_display_()\n"
        "print('widget' if any('widget' in key for key in seen[0]) else 'figure')"
    )
    script = tmp_path / "papermill"
    script.write_text(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])")
    told = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert told.stdout.split()[-1:] == ["figure"], told.stderr


def test_a_card_without_driver_is_seen_on_the_bus(tmp_path: Path) -> None:
    assert not machine.has_nvidia_hardware(tmp_path)
    bus = "sys/bus/pci/devices/0000:01:00.0"
    a_root(tmp_path, {f"{bus}/vendor": "0x10de", f"{bus}/class": "0x040300"})
    assert not machine.has_nvidia_hardware(tmp_path), "an HDMI sound device is no GPU"
    a_root(tmp_path, {f"{bus}/class": "0x030200"})
    assert machine.has_nvidia_hardware(tmp_path)


def test_an_amd_machine_is_known_by_its_compute_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert machine.foreign_accelerator(tmp_path) == ""
    a_root(tmp_path, {"dev/kfd": ""})
    assert machine.foreign_accelerator(tmp_path) == "AMD"
