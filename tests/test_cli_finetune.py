"""Promise: the shell refuses once and early what cannot run here, and says what to do instead."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fake_study import no_gpu

from nbhelpers.cli import app
from nbhelpers.errors import BudgetError, ConfigError, HardwareError
from nbhelpers.use.model import ExportResult, MergeResult


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command line in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["nbhelpers", *arguments])
    try:
        app.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.parametrize("preset", ["t4", "seed-t4"])
@pytest.mark.parametrize("command", [("study",), ("train", "finetune"), ("budget", "finetune")])
def test_a_preset_for_a_gpu_is_refused_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    preset: str,
    command: tuple[str, ...],
) -> None:
    if (command, preset) == (("budget", "finetune"), "t4"):
        pytest.skip("its precision is auto, so its memory can be told for a CPU")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nbhelpers.hardware.detection.detect_hardware", no_gpu)
    assert _run(monkeypatch, *command, "--preset", preset) == HardwareError.exit_code
    said = capsys.readouterr()
    assert said.err.count(f"The preset {preset} is for the GPU t4; there is no GPU here") == 1
    assert "--gpu t4" in said.err and said.out == "" and list(tmp_path.iterdir()) == []


def test_a_typed_fp16_without_a_gpu_is_what_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nbhelpers.hardware.detection.detect_hardware", no_gpu)
    options = ("--preset", "t4", "-o", "precision=fp16")
    assert _run(monkeypatch, "budget", "finetune", *options) == ConfigError.exit_code
    assert "precision=fp16 was asked for" in capsys.readouterr().err


def test_what_fits_nowhere_has_one_table_and_the_code_of_a_budget(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    planned = ("--gpu", "t4", "--preset", "seed-t4")
    assert _run(monkeypatch, "study", "--plan-only", *planned) == BudgetError.exit_code
    said = capsys.readouterr()
    assert "In total: no adapter fits; base alone: " in said.out and "r32 23." in said.err
    assert _run(monkeypatch, "budget", "finetune", *planned) == BudgetError.exit_code
    said = capsys.readouterr()
    assert ", r16, 512 tokens" in said.out and said.out.count("activations") == 1
    assert "activations" not in said.err and "Fix: set one of" in said.err


def test_export_lists_its_files_and_the_next_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = ("README.md", "adapter_model.safetensors")
    made = ExportResult(path=tmp_path / "out", files=files, url=None)
    monkeypatch.setattr("nbhelpers.use.model.export", lambda run, out, **options: made)
    assert _run(monkeypatch, "export", "finetune-x", str(tmp_path / "out")) == 0
    said = capsys.readouterr().out
    assert all(f"  {name}\n" in said for name in files)
    assert f"nbhelpers ask {tmp_path / 'out'} 'INSTRUCTION'" in said and "--push-to" in said


def test_a_small_merged_model_has_a_size() -> None:
    facts = {name: 0.0 for name in ("top1", "kl", "kl_max", "adapter_kl")}
    facts |= {"path": Path("out"), "run_id": "x", "adapter": "r16", "precision": "fp32"}
    facts |= {"positions": 9, "samples": 2, "held_out": True, "training_base": None}
    facts |= {"limits": {"top1": 0.9, "kl": 0.1}, "reused": False}
    small = MergeResult(size_bytes=3 << 20, **facts)
    assert "3.0 MiB" in repr(small) and small.rows()["weights"] == "fp32, 3.0 MiB"
    assert "5.00 GiB" in repr(MergeResult(size_bytes=5 << 30, **facts))
