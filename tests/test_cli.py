"""The shell's commands call the notebooks' functions, and an error ends them with its own code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from fake_study import no_gpu
from safetensors.numpy import save_file

from nbhelpers.cli import app
from nbhelpers.cli.options import INTERRUPTED, error_text
from nbhelpers.errors import (
    BudgetError,
    ConfigError,
    HardwareError,
    LaunchError,
    NbhelpersError,
    OutOfMemory,
)
from nbhelpers.runs.run import Run
from nbhelpers.use.model import ExportResult

ROOT = Path(__file__).resolve().parent.parent


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command line in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["nbhelpers", *arguments])
    try:
        app.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_commands_are_those_of_the_guide() -> None:
    known = typer.main.get_command(app.app).commands
    commands = {name for name, command in known.items() if not command.hidden}
    texts = [(ROOT / name).read_text() for name in ("QUICK_START.md", "docs/GUIDE.md")]
    shown = re.findall(r"^nbhelpers ([a-z-]+)", "\n".join(texts), re.MULTILINE)
    assert commands == set(shown)


def test_gpu_says_what_is_here_or_why_there_is_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch, "gpu") == 0
    assert capsys.readouterr().out.startswith("Hardware(")


def test_presets_lists_the_settings_and_a_list_may_be_typed_with_commas(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch, "presets", "detector", "--settings") == 0
    listed = capsys.readouterr().out
    assert "\nlanguages = []\n    keep the rows in these languages" in listed
    typed = ("-o", "languages=python,java", "-o", "augment=rename", "-o", "prevalences=0.1")
    assert _run(monkeypatch, "plan", "detector", "--preset", "smoke", *typed) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines if line.startswith("languages ")] == ["python,java"]
    assert max(map(len, lines)) < 220  # no table of targets in a cell
    assert _run(monkeypatch, "plan", "detector", "--preset", "smoke", "-o", "augment=shout") == 2


def test_presets_lists_each_with_its_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch, "presets", "clones") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["preset", "gpu", "about"]
    assert any(line.split()[:4] == ["2x-rtx6000ada", "2", "x", "rtx6000ada"] for line in lines)
    assert any(line.split()[:2] == ["smoke", "none"] for line in lines)


def test_plan_shows_preset_split_and_budget_of_a_gpu_that_is_not_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("plan", "clones", "--preset", "t4", "--gpu", "t4", "--count", "2")
    assert _run(monkeypatch, *arguments) == 0
    said = capsys.readouterr().out
    assert "Preset(clones/t4" in said
    assert "configs/clones/t4.yaml" in said
    assert "BatchPlan(" in said
    assert "MemoryBudget(" in said
    assert "this plan; exact" in said and "allow_uneven_split=true" in said


def test_plan_leaves_the_table_out_where_the_number_is_typed_or_no_gpu_is_planned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in (("--gpu", "t4", "--count", "2", "-o", "num_gpus=2"), ("--preset", "smoke")):
        assert _run(monkeypatch, "plan", "clones", *options) == 0
        assert "this plan" not in capsys.readouterr().out


NODES = ("export-launcher", "clones", "--preset", "h100", "--nodes", "2", "--gpus-per-node", "4")


def test_export_launcher_prepares_the_run_and_prints_each_nodes_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = (*NODES, "--run-dir", str(tmp_path), "--main-address", "n1", "-o", "seed=4")
    assert _run(monkeypatch, *arguments) == 0
    said = capsys.readouterr().out
    for rank in (0, 1):
        assert f"# on node {rank}\n" in said and f"--machine_rank {rank} " in said
    assert "prepared, not started" in said and "Every node must see this folder" in said
    run = next(path for path in tmp_path.iterdir() if path.is_dir())
    record = json.loads((run / "run.json").read_text())
    assert record["preset"]["settings"]["seed"] == 4
    assert record["command"].startswith("nbhelpers export-launcher clones --preset h100")
    assert _run(monkeypatch, "runs", "--run-dir", str(tmp_path)) == 0
    assert " new " in capsys.readouterr().out
    assert _run(monkeypatch, "follow", str(run)) == LaunchError.exit_code
    assert "2 nodes" in capsys.readouterr().err


def test_export_launcher_writes_a_script_or_prints_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "job.sh"
    options = ("--partition", "gpu", "--time", "1:00:00", "--account", "me", "--sbatch", "--mem=0")
    arguments = (*NODES, "--run-dir", str(tmp_path / "runs"), *options, "--slurm")
    assert _run(monkeypatch, *arguments, str(script)) == 0
    assert f"sbatch {script}" in capsys.readouterr().out
    assert _run(monkeypatch, *arguments, "-") == 0
    assert capsys.readouterr().out == script.read_text()
    for line in ("--partition=gpu", "--time=1:00:00", "--account=me", "--mem=0"):
        assert f"#SBATCH {line}\n" in script.read_text()
    assert script.stat().st_mode & 0o100


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ("budget", "--preset", "h100", "--gpu", "t4", "--job", "clones"),
            BudgetError.exit_code,
            "Fix:",
        ),
        (("budget", "--preset", "t4", "--gpu", "t4"), ConfigError.exit_code, "budget clones"),
        (("budget", "clones", "--preset", "t4", "--gpu", "t4"), 0, "fits"),
        (("budget", "clone", "--preset", "t4"), ConfigError.exit_code, "clones"),
        (("budget", "clones", "--job", "other"), ConfigError.exit_code, "Two jobs"),
        (("plan", "clones", "--preset", "smoke", "-o", "num_gpus=2"), 0, "2 processes share"),
        (("plan", "clones", "--preset", "smoke", "-o", "seq_len=1025"), 2, "set seq_len to 1024"),
        (("plan", "clones", "--preset", "smoke", "-o", "epochs=0"), 2, "set epochs to 1 or more"),
        (("plan", "clones", "--preset", "t5"), ConfigError.exit_code, "t4"),
        (("plan", "clone"), ConfigError.exit_code, "clones"),
        (("plan", "clones", "--gpu", "t44"), ConfigError.exit_code, "t4"),
        (("plan", "clones", "--count", "2"), ConfigError.exit_code, "--gpu"),
        (("plan", "clones", "--gpu", ""), ConfigError.exit_code, "--gpu is empty"),
        (("study", "--plan-only", "--gpu", " "), ConfigError.exit_code, "--gpu is empty"),
        (("runs", "--run-dir", "/dev/null"), ConfigError.exit_code, "/dev/null is no folder"),
        (("follow", "x", "--run-dir", "/dev/null"), ConfigError.exit_code, "/dev/null is no"),
        (("train", "clones", "-o", "epoch=1"), ConfigError.exit_code, "epochs"),
        (("train", "clones", "-o", "epochs"), ConfigError.exit_code, "name=value"),
        (("train", "clones", "--preset", "smoke", "-o", "epochs=x"), 2, "epochs"),
        (("evaluate", "clones"), ConfigError.exit_code, "--run"),
        (("evaluate", "clones", "--checkpoint", "no.bin"), 5, "no.bin"),
        (("train", "clones", "--preset", "smoke", "-o", "data=no"), 2, "check the path"),
        (("follow", "nothing"), ConfigError.exit_code, "--run-dir"),
        (("report", "nothing"), ConfigError.exit_code, "The newest runs here: none"),
        (("run", "no.ipynb"), ConfigError.exit_code, "no.ipynb"),
        (("run", "no.ipynb", "-p", "epochs"), ConfigError.exit_code, "name=value"),
        (("run", "no.ipynb", "-o", "epochs=1"), ConfigError.exit_code, "write -p epochs=1"),
        (("run", "no.ipynb", "-o", "a.ipynb"), ConfigError.exit_code, "write --output a.ipynb"),
        (("run", "no.ipynb", "--require", "f1>>1"), ConfigError.exit_code, "f1>>1"),
        (("no-such-command",), 2, "no-such-command"),
        (("export-launcher", "clones", "--nodes", "0"), 2, "nodes"),
        (("export-launcher", "clones", "--preset", "h100", "--nodes", "3"), 2, "cannot be split"),
        (("export-launcher", "clones"), ConfigError.exit_code, "--gpu h100"),
        (("runs",), 0, "no runs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_an_error_is_a_message_with_its_fix_and_a_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _run(monkeypatch, *arguments) == code
    captured = capsys.readouterr()
    assert said in captured.out + captured.err
    assert "Traceback" not in captured.err


def test_a_job_of_ones_own_that_cannot_be_imported_is_one_error(tmp_path: Path) -> None:
    env = os.environ | {"NBHELPERS_JOBS": "no_such_module", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "nbhelpers", "presets"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == ConfigError.exit_code and "Traceback" not in done.stderr
    assert "NBHELPERS_JOBS names 'no_such_module'" in done.stderr and "Fix:" in done.stderr


def test_what_the_system_refuses_ends_a_command_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/no/place")

    monkeypatch.setattr("nbhelpers.runs.run.list_runs", refuse)
    assert _run(monkeypatch, "runs") == 1
    error = capsys.readouterr().err
    assert "JobFailed: /no/place: Permission denied" in error and "Fix:" in error


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # what the C locale has
@pytest.mark.parametrize(
    "arguments", [["--help"], ["presets"], ["plan", "clones", "--preset", "t5"]]
)
def test_a_stream_that_lacks_a_character_shows_a_question_mark(
    monkeypatch: pytest.MonkeyPatch, errors: str, arguments: list[str]
) -> None:
    streams = [TextIOWrapper(BytesIO(), encoding="ascii", errors=errors) for _ in range(2)]
    monkeypatch.setattr("sys.stdout", streams[0])
    monkeypatch.setattr("sys.stderr", streams[1])
    code = _run(monkeypatch, *arguments)
    text = b"".join(stream.buffer.getvalue() for stream in streams if not stream.flush())
    assert code == (2 if "t5" in arguments else 0) and text.isascii() and len(text) > 100
    assert "--help" not in arguments or b"hardware ? preset" in text


def test_debug_shows_the_error_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = _run(monkeypatch, "plan", "clones", "--preset", "t5", "--debug")
    assert code == ConfigError.exit_code
    said = capsys.readouterr().err
    assert "Traceback" in said and "ConfigError" in said and "in _find" in said


@pytest.mark.parametrize("kind", [OutOfMemory, ConfigError, NbhelpersError])
def test_the_printed_error_names_its_kind_and_fix(kind: type[NbhelpersError]) -> None:
    assert error_text(kind("why", fix="do this")) == f"{kind.__name__}: why\nFix: do this"


class _FakeRun:
    path, typed = Path("runs/clones-x"), "clones-x"
    status = "running"
    shell = Run.shell

    def __repr__(self) -> str:
        return "Run(clones-x, running)"


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Calls of `launch`, which starts nothing here."""
    calls: list[dict[str, Any]] = []

    def fake(*arguments: object, **named: object) -> _FakeRun:
        calls.append({"preset": arguments[0], **named})
        return _FakeRun()

    monkeypatch.setattr("nbhelpers.runs.starting.launch", fake)
    return calls


def test_train_detached_says_how_to_follow_and_stop(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    launched: list[dict[str, Any]],
) -> None:
    arguments = ("train", "clones", "--preset", "smoke", "-o", "epochs=1", "--fresh", "--detach")
    assert _run(monkeypatch, *arguments) == 0
    said = capsys.readouterr().out
    assert "nbhelpers follow clones-x" in said
    assert "nbhelpers stop clones-x" in said
    assert launched[0]["preset"].settings.epochs == 1
    assert launched[0]["fresh"] is True


def test_num_gpus_of_train_is_the_setting_of_that_name(
    monkeypatch: pytest.MonkeyPatch, launched: list[dict[str, Any]]
) -> None:
    assert _run(monkeypatch, "train", "clones", "--preset", "smoke", "--detach") == 0
    command = ("train", "clones", "--preset", "smoke", "--num-gpus", "2", "--detach")
    assert _run(monkeypatch, *command) == 0
    assert [call["preset"].settings.num_gpus for call in launched] == ["auto", 2]


def test_ctrl_c_while_watching_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, launched: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr("nbhelpers.runs.following.follow", lambda run: None)
    assert _run(monkeypatch, "train", "clones", "--preset", "smoke") == INTERRUPTED


def test_evaluate_hands_the_checkpoint_and_the_data_to_launch(
    monkeypatch: pytest.MonkeyPatch, launched: list[dict[str, Any]], tmp_path: Path, capsys
) -> None:
    monkeypatch.setattr("nbhelpers.runs.following.follow", lambda run: None)
    weights = tmp_path / "model.safetensors"
    save_file({"w": np.zeros(1, dtype=np.float32)}, weights)
    named = ("--checkpoint", str(tmp_path), "--preset", "smoke", "--data", "smoke")
    assert _run(monkeypatch, "evaluate", "clones", *named) == INTERRUPTED
    assert f"Weights: {weights}" in capsys.readouterr().out
    assert launched[0]["job_mode"] == "evaluate"
    assert launched[0]["checkpoint"] == weights
    assert launched[0]["preset"].settings.data == "smoke"


def test_evaluate_of_a_run_uses_the_preset_that_it_was_made_with(
    monkeypatch: pytest.MonkeyPatch, launched: list[dict[str, Any]], tmp_path: Path
) -> None:
    from nbhelpers.presets.loading import load_preset

    made = load_preset("clones", "smoke", overrides={"seq_len": 64})
    run = tmp_path / "clones-y"
    saved = run / "checkpoints" / "step-00000001"
    saved.mkdir(parents=True)
    (saved.parent / "index.json").write_text(json.dumps({"last": saved.name}))
    (run / "run.json").write_text(json.dumps({"run_id": "clones-y", "preset": made.to_dict()}))
    monkeypatch.setattr("nbhelpers.runs.following.follow", lambda run: None)
    arguments = ("evaluate", "clones", "--run", "clones-y", "--run-dir", str(tmp_path))
    assert _run(monkeypatch, *arguments) == INTERRUPTED
    assert launched[0]["preset"].settings.seq_len == 64
    assert launched[0]["checkpoint"] == run


def test_evaluate_refuses_a_run_without_a_checkpoint_before_the_launch(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    launched: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    (tmp_path / "clones-y").mkdir()
    (tmp_path / "clones-y" / "run.json").write_text('{"command": "nbhelpers train clones"}')
    arguments = ("evaluate", "clones", "--run", "clones-y", "--run-dir", str(tmp_path))
    assert _run(monkeypatch, *arguments) == ConfigError.exit_code
    said = capsys.readouterr().err
    assert "clones-y has no checkpoint yet" in said
    assert "nbhelpers train clones" in said and not launched


def test_evaluate_refuses_a_model_beside_a_checkpoint_of_ours(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    launched: list[dict[str, Any]],
    tmp_path: Path,
) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    save_file({"x": np.zeros(1)}, tmp_path / "model.safetensors")
    for place in (tmp_path, tmp_path / "model.safetensors"):
        named = ("--checkpoint", str(place), "--preset", "smoke", "--model", "codegpt")
        assert _run(monkeypatch, "evaluate", "clones", *named) == ConfigError.exit_code
        assert "leave --model out" in capsys.readouterr().err
    assert not launched


def test_report_of_a_run_without_a_result_says_its_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "clones-y").mkdir()
    (tmp_path / "clones-y" / "run.json").write_text("{}")
    events = tmp_path / "clones-y" / "events-rank0.jsonl"
    error = {"v": 1, "t": 1.0, "rank": 0, "type": "error", "kind": "DataError", "message": "no row"}
    events.write_text(json.dumps(error) + "\n")
    assert _run(monkeypatch, "report", "clones-y", "--run-dir", str(tmp_path)) == 1
    said = capsys.readouterr().err
    assert "clones-y (new) holds no result" in said and "Its last error: no row" in said


def test_score_predictions_prints_scores_and_refuses_a_missing_prediction(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answers, predictions = tmp_path / "test.txt", tmp_path / "predictions.txt"
    answers.write_text("a\tb\t1\nc\td\t0\n")
    predictions.write_text("a\tb\t1\nc\td\t0\n")
    assert _run(monkeypatch, "score-predictions", str(answers), str(predictions)) == 0
    assert "f1: 1" in capsys.readouterr().out
    predictions.write_text("a\tb\t1\n")
    assert _run(monkeypatch, "score-predictions", str(answers), str(predictions)) == 5
    assert "missing" in capsys.readouterr().err


# What cannot run here is refused early


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
