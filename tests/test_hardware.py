"""Promise: GPU facts come from the driver alone, are right or called unknown, and never crash."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from nvml_double import ADA, ERRORS, MIB, T4, FakeGpu, FakeNvml, a_slice, an_a100

from nbhelpers.errors import ConfigError
from nbhelpers.hardware import gpus, machine
from nbhelpers.hardware.detection import Hardware, detect_hardware, plan_hardware, utilisation
from nbhelpers.hardware.gpus import Gpu


@pytest.fixture(autouse=True)
def plain_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """No CUDA or platform variable of the machine that runs the tests."""
    for name in list(os.environ):
        if name.startswith(("CUDA_", "COLAB_", "KAGGLE_")):
            monkeypatch.delenv(name)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch):
    """Install a driver with the given GPUs, and return it."""

    def install(*fakes: FakeGpu, **options: str) -> FakeNvml:
        module = FakeNvml(*fakes, **options)
        monkeypatch.setitem(sys.modules, "pynvml", module)
        return module

    return install


# --- facts of a GPU -----------------------------------------------------------------------------


def test_a_t4_has_fp16_tensor_cores_and_no_native_bf16(driver) -> None:
    module = driver(FakeGpu(**T4))
    hardware = detect_hardware()
    gpu = hardware.gpu
    assert (gpu.key, gpu.has_bf16, gpu.has_fp16_tensor_cores) == ("t4", False, True)
    assert (hardware.precision, hardware.reason, hardware.is_planned) == ("fp16", "", False)
    assert (gpu.memory_total_bytes, gpu.memory_free_bytes) == (15360 * MIB, 15000 * MIB)
    assert (gpu.memory_total_gib, hardware.driver_version) == (15.0, "580.65.06")
    assert module.open_sessions == 0, "NVML was left open"


def test_a_card_that_most_builds_of_torch_have_no_kernels_for_is_told(driver) -> None:
    driver(FakeGpu(**T4 | {"name": "Tesla P100-PCIE-16GB", "capability": (6, 0)}))
    (note,) = detect_hardware().notes
    assert "compute capability 6.0" in note and "such as a T4" in note


@pytest.mark.parametrize(
    ("capability", "name", "precision"),
    [
        ((6, 0), "Tesla P100-PCIE-16GB", "fp32"),
        ((7, 0), "Tesla V100-SXM2-16GB", "fp16"),
        ((7, 5), "NVIDIA GeForce GTX 1660 Ti", "fp32"),
        ((7, 5), "NVIDIA GeForce MX450", "fp32"),
        ((7, 5), "NVIDIA T1000 8GB", "fp32"),
        ((7, 5), "NVIDIA GeForce RTX 2080 Ti", "fp16"),
        ((8, 6), "NVIDIA GeForce MX570", "bf16"),
        ((8, 0), "NVIDIA A100-SXM4-40GB", "bf16"),
        ((12, 0), "NVIDIA GeForce RTX 5090", "bf16"),
        ((0, 0), "unknown GPU", "fp32"),
    ],
)
def test_precision_follows_the_chip(capability, name: str, precision: str) -> None:
    gpu = Gpu(
        index=0,
        uuid="",
        name=name,
        key=None,
        memory_total_bytes=1,
        memory_free_bytes=1,
        compute_capability=capability,
    )
    assert gpu.precision == precision


@pytest.mark.parametrize(
    ("name", "capability", "mib", "key"),
    [
        ("Tesla T4", (7, 5), 15109, "t4"),
        ("Tesla T4", (7, 5), 16127, "t4"),
        ("NVIDIA RTX 6000 Ada Generation", (8, 9), 49140, "rtx6000ada"),
        ("NVIDIA RTX 6000 Ada Generation", (8, 9), 46068, "rtx6000ada"),
        ("Quadro RTX 6000", (7, 5), 24220, "quadro-rtx6000"),
        ("Quadro RTX 6000", (7, 5), 22698, "quadro-rtx6000"),
        ("NVIDIA RTX A6000", (8, 6), 49140, "rtx-a6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0), 97887, "rtxpro6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", (12, 0), 97887, "rtxpro6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", (12, 0), 97887, "rtxpro6000"),
        ("NVIDIA RTX 6000 Ada Generation", (8, 9), 24220, None),
        ("NVIDIA RTX 6000 Ada Generation", (8, 6), 49140, None),
        ("NVIDIA A100-SXM4-40GB", (8, 0), 40960, "a100-40gb"),
        ("A100-PCIE-40GB", (8, 0), 40536, "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", (8, 0), 81920, "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", (8, 0), 81920, "a100-80gb"),
        ("NVIDIA A100-SXM-64GB", (8, 0), 65536, None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", (8, 0), 4864, None),
        ("Tesla V100-SXM2-16GB", (7, 0), 16160, "v100-16gb"),
        ("Tesla V100-SXM2-32GB", (7, 0), 32510, "v100-32gb"),
        ("NVIDIA L4", (8, 9), 23034, "l4"),
        ("NVIDIA L40", (8, 9), 46068, None),
        ("NVIDIA L40S", (8, 9), 46068, "l40s"),
        ("NVIDIA A10", (8, 6), 23028, None),
        ("NVIDIA A10G", (8, 6), 23028, "a10g"),
        ("NVIDIA GeForce RTX 3090", (8, 6), 24268, "rtx3090"),
        ("NVIDIA GeForce RTX 3090 Ti", (8, 6), 24564, None),
        ("NVIDIA GeForce RTX 4090", (8, 9), 24564, "rtx4090"),
        ("NVIDIA GeForce RTX 4090", (8, 9), 49140, None),
        ("NVIDIA GeForce RTX 4090 D", (8, 9), 24564, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", (8, 9), 16376, None),
        ("NVIDIA GeForce RTX 5090", (12, 0), 32607, "rtx5090"),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", (12, 0), 24463, None),
        ("NVIDIA H100 80GB HBM3", (9, 0), 81559, "h100"),
        ("NVIDIA H100 PCIe", (9, 0), 81559, "h100-pcie"),
        ("NVIDIA H100 NVL", (9, 0), 95830, "h100-nvl"),
        ("NVIDIA H100 80GB HBM3", (9, 0), 97871, None),
        ("NVIDIA H200", (9, 0), 143771, "h200"),
        ("NVIDIA B200", (10, 0), 183359, "b200"),
    ],
)
def test_name_capability_and_memory_together_decide_the_key(
    name: str, capability: tuple[int, int], mib: int, key: str | None
) -> None:
    assert gpus.match_key(name, capability, mib * MIB) == key


def test_old_releases_answer_in_bytes(driver) -> None:
    driver(FakeGpu(**T4 | {"name": b"Tesla T4\0\0", "uuid": b"GPU-1"}), driver=b"418.87")
    hardware = detect_hardware()
    assert (hardware.gpu.name, hardware.gpu.uuid) == ("Tesla T4", "GPU-1")
    assert (hardware.gpu.key, hardware.driver_version) == ("t4", "418.87")


def test_processes_are_named_and_a_hidden_size_stays_unknown(driver) -> None:
    gpu = FakeGpu(
        **T4 | {"free": 3 * 2**30},
        compute=[(7, 2**64 - 1), (8, 12 * 2**30), (9, None)],
        graphics=[(8, 1), (10, 5 * MIB)],
    )
    driver(gpu).process_names = {8: b"/usr/bin/python3", 10: "C:\\tools\\game.exe -x"}
    hardware = detect_hardware()
    found = [(each.pid, each.name, each.memory_bytes) for each in hardware.gpu.processes]
    assert found == [
        (8, "python3", 12 * 2**30),
        (10, "game.exe", 5 * MIB),
        (7, "", None),
        (9, "", None),
    ]
    assert "12.0 GiB of 15.0 GiB are in use by python3 (pid 8, 12.0 GiB)" in hardware.notes[0]


def test_an_older_driver_lists_processes_by_the_older_call(driver) -> None:
    fails = {"nvmlDeviceGetComputeRunningProcesses": "FunctionNotFound"}
    driver(FakeGpu(**T4, compute=[(8, 1)], fails=fails))
    assert [each.pid for each in detect_hardware().gpu.processes] == [8]


# --- what may fail ------------------------------------------------------------------------------

CALLS = (
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
)


@pytest.mark.parametrize("kind", sorted(set(ERRORS) - {"GpuIsLost"}))
@pytest.mark.parametrize("call", CALLS)
def test_a_failed_call_costs_one_fact_and_not_the_gpu(driver, call: str, kind: str) -> None:
    driver(FakeGpu(**T4, fails={call: kind}), FakeGpu(**ADA))
    assert [gpu.index for gpu in detect_hardware().gpus] == [0, 1]


@pytest.mark.parametrize("call", ("nvmlDeviceGetHandleByIndex", *CALLS))
def test_a_lost_gpu_is_named_and_the_others_are_still_listed(driver, call: str) -> None:
    driver(FakeGpu(**T4, fails={call: "GpuIsLost"}), FakeGpu(**ADA))
    hardware = detect_hardware()
    assert [gpu.key for gpu in hardware.gpus] == ["rtx6000ada"]
    assert "GPU 0 is lost" in hardware.notes[0]


def test_nothing_but_an_index_is_known_and_nothing_is_invented(driver) -> None:
    driver(FakeGpu(fails=dict.fromkeys(CALLS, "NoPermission")))
    gpu = detect_hardware().gpu
    assert (gpu.name, gpu.key, gpu.precision) == ("unknown GPU", None, "fp32")
    assert (gpu.memory_total_bytes, gpu.compute_capability) == (0, (0, 0))


@pytest.mark.parametrize("kind", ["NoPermission", "NotSupported"])
def test_hidden_memory_and_capability_are_taken_from_the_name_and_said_so(
    driver, kind: str
) -> None:
    fails = {
        "nvmlDeviceGetMemoryInfo": kind,
        "nvmlDeviceGetCudaComputeCapability": "NotSupported",
    }
    driver(FakeGpu(**ADA, fails=fails))
    hardware = detect_hardware()
    assert (hardware.gpu.key, hardware.gpu.memory_total_bytes) == ("rtx6000ada", 49140 * MIB)
    assert sum("taken from its name" in note for note in hardware.notes) == 2


@pytest.mark.parametrize(
    "how", [{"fails": {"nvmlDeviceGetMemoryInfo": "NotSupported"}}, {"total": 0}]
)
def test_unified_memory_is_the_ram_of_the_machine(driver, how: dict) -> None:
    driver(FakeGpu(**{"name": "NVIDIA GB10", "capability": (12, 1), "free": 0} | how))
    hardware = detect_hardware()
    assert hardware.gpu.memory_total_bytes == hardware.ram_total_bytes > 0
    assert "shares the machine's RAM" in hardware.notes[0]
    assert hardware.gpu.key is None


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("LibraryNotFound", "no NVIDIA driver"),
        ("DriverNotLoaded", "modprobe nvidia"),
        ("LibRmVersionMismatch", "restart the machine"),
        ("NoPermission", "/dev/nvidiactl"),
        ("Unknown", "nvidia-smi"),
    ],
)
def test_a_driver_that_does_not_start_is_a_reason_with_its_fix(
    driver, monkeypatch: pytest.MonkeyPatch, kind: str, words: str
) -> None:
    monkeypatch.setattr(machine, "has_nvidia_hardware", lambda: False)
    driver(FakeGpu(**T4), init=kind)
    hardware = detect_hardware()
    assert words in hardware.reason
    assert (hardware.gpus, hardware.gpu, hardware.precision) == ((), None, "fp32")
    assert utilisation([0]) == []


@pytest.mark.parametrize(
    ("other", "has_card", "variables", "words"),
    [
        ("Apple", False, {}, "this is a Mac"),
        ("AMD", False, {}, "AMD GPU (ROCm)"),
        ("AMD", True, {}, "--gpus all"),
        ("", False, {"COLAB_RELEASE_TAG": "x"}, "Change runtime type"),
        ("", False, {"KAGGLE_KERNEL_RUN_TYPE": "Batch"}, "Accelerator"),
    ],
)
def test_without_a_driver_the_reason_fits_the_machine(
    driver, monkeypatch, other: str, has_card: bool, variables: dict, words: str
) -> None:
    driver(init="LibraryNotFound")
    monkeypatch.setattr(machine, "foreign_accelerator", lambda: other)
    monkeypatch.setattr(machine, "has_nvidia_hardware", lambda: has_card)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert words in detect_hardware().reason


def test_a_missing_package_is_a_reason_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install nvidia-ml-py" in detect_hardware().reason


def test_a_driver_without_gpus_says_so(driver) -> None:
    driver()
    assert detect_hardware().reason == "the NVIDIA driver runs, but it lists no GPU"


def test_only_lost_gpus_are_a_reason(driver) -> None:
    driver(FakeGpu(**T4, fails={"nvmlDeviceGetHandleByIndex": "GpuIsLost"}))
    assert "GPU 0 is lost" in detect_hardware().reason


def test_the_double_makes_only_calls_that_nvidia_ml_py_has() -> None:
    pynvml = pytest.importorskip("pynvml")
    calls = [name for name in vars(FakeNvml) if name.startswith("nvml")]
    assert len(calls) > 15
    assert [name for name in calls if not hasattr(pynvml, name)] == []
    assert [kind for kind in ERRORS if not hasattr(pynvml, f"NVMLError_{kind}")] == []


# --- the parts around it ------------------------------------------------------------------------


def test_hardware_survives_json(driver, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(**T4 | {"free": 2**30}, compute=[(8, 14 * 2**30)])
    driver(gpu, an_a100([a_slice()])).process_names = {8: "python"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    for hardware in (detect_hardware(), plan_hardware("h100", 4)):
        stored = json.loads(json.dumps(hardware.to_dict())) | {"field_of_tomorrow": 1}
        assert Hardware.from_dict(stored) == hardware
    with pytest.raises(ConfigError, match="hardware record"):
        Hardware.from_dict({"gpus": []})


def test_the_representation_is_one_line_and_the_table_escapes(driver) -> None:
    evil = FakeGpu(**T4 | {"name": "<b>T4\nx</b>", "free": 0}, compute=[(1, 5)])
    driver(evil).process_names = {1: "<script>"}
    hardware = detect_hardware()
    assert "\n" not in repr(hardware)
    assert "<script>" not in hardware._repr_html_()
    assert "&lt;b&gt;T4 x&lt;/b&gt;" in hardware._repr_html_()


def test_utilisation_reads_by_index_and_by_uuid_and_leaves_out_what_is_gone(driver) -> None:
    limits = {"nvmlDeviceGetPowerUsage": "NotSupported"}
    driver(FakeGpu(**T4, fails=limits), an_a100([a_slice()]))
    first, mig = utilisation([0, "MIG-1", 9, "MIG-none"])
    used = 360 * MIB
    assert first == {
        "index": 0,
        "utilisation_percent": 42,
        "memory_used_bytes": used,
        "power_w": None,
    }
    assert (mig["index"], mig["power_w"], mig["memory_used_bytes"]) == ("MIG-1", 70.5, 0)


def test_detection_loads_no_heavy_module() -> None:
    code = (
        "import sys; from nbhelpers.hardware.detection import detect_hardware, plan_hardware;"
        "repr(detect_hardware()); plan_hardware('t4')._repr_html_();"
        "print([m for m in ('torch', 'numpy', 'pandas', 'pydantic') if m in sys.modules])"
    )
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.gpu
def test_the_driver_and_cuda_agree_on_this_machine() -> None:
    hardware = detect_hardware()
    assert hardware.gpus, hardware.reason
    code = (
        "import torch; torch.cuda.init();"
        "print([(p.name, p.major, p.minor) for p in map(torch.cuda.get_device_properties,"
        "range(torch.cuda.device_count()))])"
    )
    order = os.environ | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=order
    )
    seen = [(gpu.name, *gpu.compute_capability) for gpu in hardware.gpus]
    assert re.sub(r"\s", "", done.stdout) == re.sub(r"\s", "", repr(seen))
