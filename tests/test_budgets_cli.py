"""Promise: `nbhelpers budget` answers at once, without torch, and its exit code is the verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_simulator import VERSIONS, synthetic

from nbhelpers.budget import predict, store
from nbhelpers.cli import app
from nbhelpers.errors import BudgetError, ConfigError, HardwareError
from nbhelpers.hardware.detection import plan_hardware
from nbhelpers.plan import plan_batch
from nbhelpers.presets.loading import load_preset

SEED = ("--job", "finetune", "--preset", "seed-a100", "--gpu", "t4", "-o", "seq_len=512")


@pytest.fixture(autouse=True)
def own_budgets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache, and a simulation whose sums are known."""
    monkeypatch.setenv("NBHELPERS_BUDGETS", str(tmp_path))
    monkeypatch.setattr(store, "shipped", lambda job: {})
    monkeypatch.setattr(store, "installed_versions", lambda: VERSIONS)
    monkeypatch.setattr(predict, "simulated", lambda p, plan, h, **_: synthetic(p, plan))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["nbhelpers", "budget", *arguments])
    try:
        app.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_what_does_not_fit_is_code_8_with_lines_verdict_advice_and_the_same_in_python(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *SEED) == BudgetError.exit_code
    assert "From: an estimate by formulas: not simulated yet" in capsys.readouterr().out
    assert run(monkeypatch, *SEED, "--exact") == BudgetError.exit_code
    assert "simulating 8 x 512" in capsys.readouterr().err
    assert run(monkeypatch, *SEED) == BudgetError.exit_code
    out, err = capsys.readouterr()
    assert "activations      8192.0  told" in out and "does not fit, simulation" in out
    assert "\nfused loss (loss='chunked'): 21.0 to 14.0 GiB; checkpointing" in out
    assert "From: a simulated step (torch 2.11.0, " in out
    python = out.partition("In Python:\n")[2].partition("By papermill:")[0]
    scope: dict[str, Any] = {}
    exec(python, scope)  # what is printed runs, and gives the same budget
    assert scope["budget"].verdict == "does not fit" and scope["budget"].source == "simulation"
    last = out.rstrip().splitlines()[-1]
    assert last.startswith("papermill --cwd . notebooks/01_finetune_gemma.ipynb out.ipynb")
    assert "-p preset seed-a100" in last and "-p seq_len 512" in last
    assert err.startswith("BudgetError: The run needs 21.0 GiB") and "Fix: set one of: " in err


def test_tight_is_code_0_with_a_warning_and_unknown_is_code_10(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tight = (*SEED, "-o", "loss=chunked", "--exact")  # 14 of 15 GiB
    assert run(monkeypatch, *tight) == 0
    assert "Warning: tight." in capsys.readouterr().err
    assert run(monkeypatch, *tight, "-o", "gradient_checkpointing=true") == 0
    assert "Warning" not in capsys.readouterr().err
    opaque = ("-o", "gradient_checkpointing=true", "-o", "seed=16")
    assert run(monkeypatch, *tight, *opaque, "-o", "lora_r=8") == 10
    out, err = capsys.readouterr()
    assert "Not predicted: a kernel of nobody: not known" in out and "cannot be said" in err
    odd = ("clones", "-o", "model=nobody/nothing", "-o", "seq_len=64", "-o", "data=smoke")
    odd += ("--preset", "t4", "--gpu", "t4")
    assert run(monkeypatch, *odd) == 10
    out, err = capsys.readouterr()
    assert "MemoryBudget(unknown of 15.0 GiB: unknown, unknown)" in out and "MiB:" not in out
    assert "From: nothing: neither" in out and "cannot be said" in err
    assert run(monkeypatch, *odd, "--json") == 10
    told = json.loads(capsys.readouterr().out)
    assert (told["budget"]["verdict"], told["exit_code"]) == ("unknown", 10)
    assert told["budget"]["total_bytes"] is None


def test_smaller_settings_that_nobody_simulated_are_named_before_a_larger_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a model whose sizes are not known here, one simulation alone is kept."""
    odd = ("detector", "--preset", "t4", "--gpu", "t4", "-o", "model=codet5")
    odd += ("-o", "per_device_train_batch_size=64")
    hardware = plan_hardware("t4")
    changes = {"model": "codet5", "per_device_train_batch_size": 64}
    preset = load_preset("detector", "t4", hardware=hardware, overrides=changes)
    predict.simulate_budget(preset, plan_batch(preset, hardware), hardware, with_advice=False)
    assert run(monkeypatch, *odd) == BudgetError.exit_code
    fix = capsys.readouterr().err
    assert "per_device_train_batch_size=1)" in fix and "--exact" in fix and "larger" not in fix


def test_json_holds_the_budget_and_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *SEED, "--json", "--exact") == BudgetError.exit_code
    told = json.loads(capsys.readouterr().out)
    assert (told["exit_code"], told["gpu"], told["preset"]) == (8, "t4", "seed-a100")
    assert told["budget"]["verdict"] == "does not fit" and told["budget"]["advice"]
    assert sum(x["size_bytes"] for x in told["budget"]["lines"]) == told["budget"]["total_bytes"]


def test_minutes_and_cost_stand_beside_the_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wishes = ("--max-hours", "0.5", "--price", "2", "--currency", "EUR")
    asked = ("finetune", "--preset", "t4", "--gpu", "t4", *wishes)
    assert run(monkeypatch, *asked) == 0
    out = capsys.readouterr().out
    assert "Time: " in out and "not finish in your 30 min 00 s" in out and "2 EUR per hour" in out
    assert run(monkeypatch, *asked, "--json") == 0
    time = json.loads(capsys.readouterr().out)["time"]
    assert time["cost"]["expected"] == pytest.approx(time["expected_s"] / 1800)
    assert time["verdict"].startswith("will not") and len(time["phases"]) == 3


def test_the_grid_shows_every_even_batch_and_marks_where_figures_come_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ("clones", "--preset", "t4", "--gpu", "t4")
    for batch in (4, 32):
        for seq_len in (128, 512):
            given = ("-o", f"per_device_train_batch_size={batch}", "-o", f"seq_len={seq_len}")
            run(monkeypatch, *base, *given, "--exact")
    capsys.readouterr()
    assert run(monkeypatch, *base, "--grid") == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(line for line in lines if line.startswith("tokens"))
    assert "batch 1 " in head and head.rstrip().endswith("batch 64")
    (row,) = (line for line in lines if line.startswith("256 "))
    assert "~7.2 fits" in row and "?" in row  # 8 x 256: 4 + 1 + 2,048 x 2.25 MiB
    assert any(" *" in line for line in lines if line.startswith("1,024 "))


def test_a_budget_of_other_versions_is_shown_labelled_with_the_option_that_makes_it_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, *SEED, "--exact")
    here = VERSIONS | {"torch": "2.13.0"}
    monkeypatch.setattr(store, "installed_versions", lambda: here)
    capsys.readouterr()
    assert run(monkeypatch, *SEED) == BudgetError.exit_code
    out, err = capsys.readouterr()
    assert (
        "simulated with torch 2.11; your 2.13 may need more or less" in out and "add --exact" in err
    )
    anew = lambda p, plan, h, **_: replace(synthetic(p, plan), versions=here)  # noqa: E731
    monkeypatch.setattr(predict, "simulated", anew)
    run(monkeypatch, *SEED, "--exact")
    run(monkeypatch, *SEED)
    assert "made with" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--preset", "smoke"), ConfigError.exit_code, "nbhelpers budget clones"),
        (("clones", "--gpu", "t4", "--gpu-memory", "12"), ConfigError.exit_code, "leave one"),
        (("--job", "finetune", "--preset", "nothing"), ConfigError.exit_code, "no preset"),
        (("clones", "--gpu", "t44"), ConfigError.exit_code, "not a GPU"),
        (("clones", "--method", "qlora"), ConfigError.exit_code, "method"),  # clones have none
        (("finetune", "--method", "full"), ConfigError.exit_code, "method"),
        (("finetune", "--method", "lora", "-o", "method=qlora"), ConfigError.exit_code, "Two"),
        (("finetune", "-o", "seq_len"), ConfigError.exit_code, "name=value"),
        (("--price", "-1"), 2, "--price -1 is no number above zero"),
        (("clones", "--gpu-memory", "1e9"), 2, "less than or equal to 1024"),
        (("--max-hours", "nan"), 2, "write for instance --max-hours 3"),
        (("clones", "--preset", "smoke", "--exact"), HardwareError.exit_code, "--gpu t4"),
    ],
)
def test_a_wrong_option_names_what_is_wrong(
    arguments: tuple[str, ...],
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, *arguments) == code
    assert words in capsys.readouterr().err


def test_the_method_is_an_override(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(monkeypatch, "finetune", "--preset", "h100", "--gpu", "h100", "--method", "qlora") == 0
    )
    out = capsys.readouterr().out
    assert "qlora-r16" in out.splitlines()[0] and "overrides={'method': 'qlora'}" in out
    assert "-p adapters qlora-r16" in out
    assert load_preset("finetune", "h100").settings.method == "lora"


def test_the_command_imports_neither_torch_nor_pandas() -> None:
    code = (
        "import sys; from nbhelpers.cli import app;"
        "sys.argv = ['nbhelpers', 'budget', '--gpu', 't4'];"
        "import atexit; atexit.register(lambda: print(sorted({'torch', 'pandas', 'numpy',"
        " 'ipywidgets', 'matplotlib'} & set(sys.modules)), file=sys.stderr)); app.main()"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stderr.strip().endswith("[]"), done.stderr
