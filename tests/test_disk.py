"""Promise: a disk or a main memory that is too small is found before a download begins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nbhelpers.budget.disk import needs, preflight
from nbhelpers.budget.shapes import GEMMA_2_2B, find_shape
from nbhelpers.hardware.detection import Hardware, plan_hardware
from nbhelpers.presets.loading import load_preset


def machine(ram_gb: float, *, gpu: str = "t4") -> Hardware:
    return replace(plan_hardware(gpu), is_planned=False, ram_available_bytes=int(ram_gb * 1e9))


def settings_of(name: str, **changes: object) -> object:
    return load_preset("finetune", name, overrides=changes).settings


def test_the_needs_are_those_of_the_files():
    found = needs(settings_of("t4"), GEMMA_2_2B, precision="fp16", use_gpu=True)
    assert found.download / 1e9 == pytest.approx(10.46, abs=0.005)
    assert found.merged / 1e9 == pytest.approx(5.23, abs=0.005)
    assert found.checkpoint == 12 * 20_766_720 + 40_000_000
    assert found.checkpoints == 4 * found.checkpoint
    tuned = needs(
        settings_of("t4", model="gemma-2-2b-it"), GEMMA_2_2B, precision="fp16", use_gpu=True
    )
    assert tuned.download / 1e9 == pytest.approx(5.23, abs=0.005)
    base = needs(settings_of("t4", method="base"), GEMMA_2_2B, precision="fp16", use_gpu=True)
    assert (base.checkpoints, base.merged) == (0, 0)
    for changes in ({"model": "smollm2"}, {"random_weights": True}):
        s = settings_of("t4", **changes)
        assert needs(s, find_shape(s), precision="fp16", use_gpu=True).download == 0


def test_free_colab_can_load_gemma_onto_its_gpu_and_not_into_its_main_memory():
    for precision in ("auto", "fp32"):
        settings = settings_of("t4", precision=precision)
        assert preflight(settings, GEMMA_2_2B, machine(11.5), 10**12) == []
    alone = replace(machine(11.5), gpus=(), reason="no driver")
    (problem,) = preflight(settings_of("t4"), GEMMA_2_2B, alone, 10**12)
    assert problem.startswith("11.5 GB of main memory are free, and loading google/gemma-2-2b")
    assert "in fp32 without a GPU needs 14.8 GB" in problem
    (little,) = preflight(settings_of("t4"), GEMMA_2_2B, machine(3.0), 10**12)
    assert "onto the GPU needs 4.4 GB" in little


def test_a_full_disk_is_found_before_the_download():
    (problem,) = preflight(settings_of("t4"), GEMMA_2_2B, machine(50), 5 * 10**9)
    assert "5.0 GB free" in problem and "4 checkpoints of 0.29 GB" in problem
    assert "the weights of google/gemma-2-2b (10.5 GB) need 11.6 GB" in problem
    have = {"is_downloaded": True}
    assert preflight(settings_of("t4"), GEMMA_2_2B, machine(50), 5 * 10**9, **have) == []
    (less,) = preflight(settings_of("t4"), GEMMA_2_2B, machine(50), 10**9, **have)
    assert "weights" not in less and "lower save_total_limit" in less


def test_the_hubs_cache_may_lie_on_another_disk():
    both = preflight(settings_of("t4"), GEMMA_2_2B, machine(50), 10**9, cache_free_bytes=3 * 10**9)
    assert len(both) == 2 and "HF_HOME" in both[1] and "weights" not in both[0]
    assert (
        preflight(settings_of("t4"), GEMMA_2_2B, machine(50), 2 * 10**9, cache_free_bytes=10**11)
        == []
    )


def test_what_is_not_known_is_not_judged():
    assert preflight(settings_of("t4"), None, machine(1), 0) == []
    clones = load_preset("clones", "t4").settings
    assert preflight(clones, find_shape(clones), machine(1), 0) == []
    assert preflight(settings_of("t4"), GEMMA_2_2B, plan_hardware("t4"), 10**12) == []
