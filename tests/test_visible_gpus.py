"""Promise: the GPUs listed are those that one CUDA process would see, in its order."""

from __future__ import annotations

import os
import sys

import pytest
from nvml_double import ADA, MIB, FakeGpu, FakeNvml, a_slice, an_a100

from nbhelpers.hardware.detection import Hardware, detect_hardware, select_visible
from nbhelpers.hardware.gpus import Gpu
from nbhelpers.hardware.nvml import Device

UUIDS = ("GPU-8932f937-d72c", "GPU-8932aaaa-1111", "GPU-10000000-2222")


def a_gpu(index: int, uuid: str, *, is_mig: bool = False) -> Gpu:
    return Gpu(
        index=index,
        uuid=uuid,
        name="any",
        key=None,
        memory_total_bytes=1,
        memory_free_bytes=1,
        compute_capability=(8, 0),
        is_mig=is_mig,
    )


PLAIN = [Device(gpu=a_gpu(index, uuid)) for index, uuid in enumerate(UUIDS)]
SLICED = [
    Device(
        gpu=a_gpu(0, "GPU-a"),
        is_mig_on=True,
        instances=tuple(a_gpu(0, uuid, is_mig=True) for uuid in ("MIG-a1", "MIG-a2")),
    ),
    Device(gpu=a_gpu(1, "GPU-b")),
    Device(gpu=a_gpu(2, "GPU-c"), is_mig_on=True),
    Device(
        gpu=a_gpu(3, "GPU-d"),
        is_mig_on=True,
        instances=(a_gpu(3, "MIG-GPU-d/7/0", is_mig=True),),
    ),
]


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0", [0]),
        ("2,0", [2, 0]),
        ("0, 1", [0, 1]),
        ("0,x,1", [0]),
        ("0,,1", [0]),
        ("0,0", []),
        ("GPU-1", [2]),
        ("GPU-10000000-2222,GPU-8932f", [2, 0]),
        ("GPU-8932", []),  # two GPUs begin so
        ("GPU-1,GPU-8932,GPU-8932a", [2]),
        ("GPU-1,GPU-1000", []),  # the same GPU twice
        ("GPU-1,0", [2]),
        ("0,GPU-1", [0]),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(
    setting: str | None, indices: list[int]
) -> None:
    assert [gpu.index for gpu in select_visible(PLAIN, setting).gpus] == indices


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("0,9,1", "'9' names no single GPU here"),
        ("GPU-8932", "'GPU-8932' names no single GPU here"),
        ("1,1", "1 stands twice"),
    ],
)
def test_a_setting_that_loses_gpus_is_explained(setting: str, words: str) -> None:
    assert words in " ".join(select_visible(PLAIN, setting).notes)


@pytest.mark.parametrize("setting", [None, "", "-1", "0", "2,1,0", "0,", "0,-1"])
def test_a_plain_setting_needs_no_note(setting: str | None) -> None:
    assert select_visible(PLAIN, setting).notes == ()


@pytest.mark.parametrize(
    ("setting", "uuids"),
    [
        (None, ["MIG-a1"]),
        ("0", ["MIG-a1"]),
        ("GPU-a", ["MIG-a1"]),
        ("1", ["GPU-b"]),
        ("1,0", ["MIG-a1"]),
        ("2", []),
        ("2,1", ["GPU-b"]),
        ("MIG-a2", ["MIG-a2"]),
        ("MIG-a2,MIG-a1", ["MIG-a2"]),
        ("MIG-GPU-d/7/0", ["MIG-GPU-d/7/0"]),
        ("MIG-a", []),
        ("MIG-zz", []),
    ],
)
def test_a_process_sees_one_mig_instance_and_then_no_whole_gpu(
    setting: str | None, uuids: list[str]
) -> None:
    assert [gpu.uuid for gpu in select_visible(SLICED, setting).gpus] == uuids


def test_mig_mode_without_an_instance_tells_how_to_make_one() -> None:
    assert "nvidia-smi mig -i 2 -cgi" in select_visible(SLICED, "2").notes[0]


# --- through detect_hardware ----------------------------------------------------------------------


def detect(monkeypatch: pytest.MonkeyPatch, *fakes: FakeGpu, **variables: str) -> Hardware:
    for name in [name for name in os.environ if name.startswith(("CUDA_", "COLAB_", "KAGGLE_"))]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(*fakes))
    return detect_hardware()


def test_a_mig_instance_has_its_own_memory_and_never_the_key_of_the_card(monkeypatch) -> None:
    # In a container the memory of the whole card may not be read, only the instance's.
    card = an_a100(
        [None, a_slice("MIG-1"), a_slice("MIG-2")],
        fails={"nvmlDeviceGetMemoryInfo": "NoPermission"},
    )
    hardware = detect(monkeypatch, card)
    assert len(hardware.gpus) == 1
    gpu = hardware.gpu
    assert (gpu.uuid, gpu.key, gpu.is_mig, gpu.has_bf16) == ("MIG-1", None, True, True)
    assert gpu.memory_total_bytes == 4864 * MIB
    assert "one MIG instance" in hardware.notes[0]
    assert "1 more is not" in hardware.notes[0]


def test_the_largest_slice_of_a_card_is_still_not_the_card(monkeypatch) -> None:
    name = "NVIDIA A100-SXM4-40GB"  # an old driver that leaves the profile out of the name
    whole = a_slice(name=name, total=40192 * MIB, free=40192 * MIB)
    gpu = detect(monkeypatch, an_a100([whole])).gpu
    assert (gpu.key, gpu.name) == (None, f"{name} MIG")


def test_instances_are_found_where_the_mode_itself_may_not_be_read(monkeypatch) -> None:
    card = an_a100([a_slice()], fails={"nvmlDeviceGetMigMode": "NoPermission"})
    assert detect(monkeypatch, card).gpu.is_mig


def test_an_instance_takes_its_capability_from_the_card(monkeypatch) -> None:
    part = a_slice(fails={"nvmlDeviceGetCudaComputeCapability": "NotSupported"})
    assert detect(monkeypatch, an_a100([part])).precision == "bf16"


def test_mig_mode_without_instances_is_a_reason(monkeypatch) -> None:
    hardware = detect(monkeypatch, an_a100([None]))
    assert hardware.gpus == ()
    assert "has no instance" in hardware.reason


@pytest.mark.parametrize("setting", ["", "-1", "7", "0,0"])
def test_hidden_gpus_are_a_reason_that_names_the_variable(monkeypatch, setting: str) -> None:
    hardware = detect(monkeypatch, FakeGpu(), CUDA_VISIBLE_DEVICES=setting)
    assert hardware.gpus == ()
    assert "1 GPU is hidden" in hardware.reason
    assert "Unset CUDA_VISIBLE_DEVICES" in hardware.reason


def test_unlike_gpus_are_noted_and_the_weakest_decides(monkeypatch) -> None:
    ada = FakeGpu(**ADA, uuid="GPU-2")
    hardware = detect(monkeypatch, ada, FakeGpu())
    assert [gpu.key for gpu in hardware.gpus] == ["rtx6000ada", "t4"]
    assert (hardware.gpu.key, hardware.precision, hardware.is_uniform) == ("t4", "fp16", False)
    notes = " ".join(hardware.notes)
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in notes
    assert "least memory limits the plan" in notes
    ordered = detect(monkeypatch, ada, FakeGpu(), CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert "CUDA_DEVICE_ORDER" not in " ".join(ordered.notes)
    one = detect(monkeypatch, ada, FakeGpu(), CUDA_VISIBLE_DEVICES="0")
    assert (one.precision, one.is_uniform) == ("bf16", True)
    assert "hides 1 of 2 GPUs" in " ".join(one.notes)


def test_a_lost_gpu_makes_numbers_uncertain_and_the_note_says_use_uuids(monkeypatch) -> None:
    lost = FakeGpu(fails={"nvmlDeviceGetHandleByIndex": "GpuIsLost"})
    hardware = detect(monkeypatch, lost, FakeGpu(), CUDA_VISIBLE_DEVICES="0")
    assert [gpu.index for gpu in hardware.gpus] == [1]
    assert "use UUIDs" in " ".join(hardware.notes)
