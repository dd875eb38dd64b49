"""A launcher splits its batch exactly, hides no failure, and says what the script gets wrong."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nbhelpers.cli import app
from nbhelpers.errors import ConfigError
from nbhelpers.hardware import detection
from nbhelpers.legacy import RECIPES, make_launcher, passed_options, patch_script
from tests.legacy_scripts import HAND_WRITTEN, SCRIPT, write

# Notes its arguments, a line each, and what it sees; ends with the status in STATUS.
FAKE = """\
#!/bin/sh
for argument in "$@"; do printf '%s\\n' "$argument"; done > "$NOTES"
echo "visible=${CUDA_VISIBLE_DEVICES-unset}"
echo "trouble" >&2
exit "${STATUS:-0}"
"""


def _start(folder: Path, text: str, **settings: str) -> tuple[int, list[str], str]:
    """Run a launcher with an accelerate of ours; its status, the arguments, what it printed."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    fake = tools / "accelerate"
    fake.write_text(FAKE)
    fake.chmod(0o755)
    notes = folder / "notes"
    env = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "NOTES": str(notes), **settings}
    launcher = write(folder, text, "launch me.sh")
    assert subprocess.run(["bash", "-n", str(launcher)], check=False).returncode == 0
    done = subprocess.run(
        ["bash", str(launcher)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, notes.read_text().splitlines(), done.stdout


def _value(arguments: list[str], name: str) -> str:
    for number, argument in enumerate(arguments):
        if argument == f"--{name}":
            return arguments[number + 1]
        if argument.startswith(f"--{name}="):
            return argument.partition("=")[2]
    raise AssertionError(f"no --{name} in {arguments}")


@pytest.mark.parametrize(
    ("model", "gpus", "per_gpu", "steps"),
    [
        ("codegpt", 1, 8, 8),
        ("codegpt", 2, 8, 4),
        ("codegpt", 4, 8, 2),
        ("codegpt", 8, 8, 1),
        ("graphcodebert", 1, 16, 4),
        ("graphcodebert", 2, 16, 2),
        ("graphcodebert", 4, 16, 1),
        ("codebert", 2, 16, 2),
    ],
)
def test_the_global_batch_is_64_on_any_number_of_gpus(
    tmp_path: Path, model: str, gpus: int, per_gpu: int, steps: int
) -> None:
    status, arguments, _ = _start(tmp_path, make_launcher(model, gpus).text)
    assert status == 0
    assert _value(arguments, "num_processes") == str(gpus)
    assert ("--multi_gpu" in arguments) == (gpus > 1)
    assert _value(arguments, "train_batch_size") == str(per_gpu)
    assert _value(arguments, "gradient_accumulation_steps") == str(steps)
    assert per_gpu * steps * gpus == 64
    assert _value(arguments, "mixed_precision") == "no"


def test_the_seeds_settings_arrive(tmp_path: Path) -> None:
    _, arguments, _ = _start(tmp_path, make_launcher("codegpt", 2).text)
    assert arguments[:2] == ["launch", "--multi_gpu"]
    script = arguments.index("run.py")
    seeds = (
        "--model_type=gpt2 --do_train --do_test --block_size 1024 --eval_batch_size 32 --epoch 2 "
        "--learning_rate 5e-5 --max_grad_norm 1.0 --evaluate_during_training --save_steps 500 "
        "--save_total_limit 2 --overwrite_output_dir --seed 3"
    )
    assert [word for word in shlex.split(seeds) if word not in arguments[script:]] == []
    for name in ("config_name", "model_name_or_path", "tokenizer_name"):
        assert _value(arguments, name) == "microsoft/CodeGPT-small-java-adaptedGPT2"
    _, arguments, _ = _start(tmp_path, make_launcher("graphcodebert", 2).text)
    assert _value(arguments, "code_length") == "400"
    assert _value(arguments, "data_flow_length") == "128"
    assert _value(arguments, "model_type") == "roberta"


@pytest.mark.parametrize("status", [0, 1, 17, 137])
def test_the_exit_status_passes_through_tee(tmp_path: Path, status: int) -> None:
    text = make_launcher("codegpt", 2).text
    found, _, printed = _start(tmp_path, text, STATUS=str(status))
    assert found == status
    log = (tmp_path / "saved_models" / "train_optimized.log").read_text()
    assert log == printed
    assert "trouble" in log


def test_paths_with_blanks_and_quotes_arrive_whole(tmp_path: Path) -> None:
    odd = "out $HOME 'a' \"b\" `c` 학습"
    text = make_launcher(
        "codegpt", 2, script=Path("my run.py"), output_dir=Path(odd), data_dir=Path("d; exit 3")
    ).text
    status, arguments, _ = _start(tmp_path, text)
    assert status == 0
    assert _value(arguments, "output_dir") == odd
    assert _value(arguments, "test_data_file") == "d; exit 3/test.txt"
    assert "my run.py" in arguments
    assert (tmp_path / odd / "train_optimized.log").is_file()


@pytest.mark.parametrize("path", ["a\nb", "-rf", "a\x1b[2J", "a\u2028b"])
def test_a_path_that_could_leave_its_line_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="cannot stand in a launcher"):
        make_launcher("codegpt", 2, output_dir=Path(path))


@pytest.mark.parametrize(
    ("visible", "seen"), [(None, "0"), ("2,3", "2"), ("1", "1"), ("", ""), ("GPU-8,GPU-9", "GPU-8")]
)
def test_one_process_is_shown_one_gpu(tmp_path: Path, visible: str | None, seen: str) -> None:
    settings = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    _, _, printed = _start(tmp_path, make_launcher("codegpt", 1).text, **settings)
    assert f"visible={seen}\n" in printed
    assert "CUDA_VISIBLE_DEVICES" not in make_launcher("codegpt", 2).text


def test_an_inexact_split_lists_what_is_exact() -> None:
    with pytest.raises(ConfigError, match="64 % 48 = 16") as caught:
        make_launcher("graphcodebert", 3)
    assert caught.value.fix == (
        "write one of: --num-gpus 1 or 2 or 4; --global-batch 48 or 96 (changes the experiment)"
    )
    with pytest.raises(ConfigError) as caught:
        make_launcher("codegpt", 16)
    assert "--per-gpu-batch 1 or 2 or 4;" in caught.value.fix
    assert make_launcher("codegpt", 16, per_gpu_batch=4).plan.gradient_accumulation_steps == 1
    assert make_launcher("graphcodebert", 3, global_batch=48).plan.formula() == "16 x 1 x 3 = 48"


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no legacy script") as caught:
        make_launcher("gpt5", 2)
    assert "codegpt, graphcodebert, codebert" in caught.value.fix


def test_the_header_and_stderr_say_what_is_to_be_known_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = "    parser = argparse.ArgumentParser()\n"
    text = SCRIPT.replace(own, f'{own}    parser.add_argument("--block_size")\n')
    path = write(tmp_path, text)
    arguments = ("--num-gpus", "2", "--script", path)

    def told() -> tuple[str, str]:
        assert _run(monkeypatch, *arguments) == 0
        out, err = capsys.readouterr()
        notes = [line for line in err.splitlines() if "has no option" not in line]
        assert notes and all(f"# {note}\n" in out for note in notes)
        return out, err

    out, err = told()
    assert f"{path} is not patched yet. Before the first start: nbhelpers patch-legacy" in err
    assert "unpatched, with 4 micro-steps and 2 epochs, nothing is saved" in err
    assert "What stays: each evaluation draws other pairs (line " in err
    assert "train clones" in out
    patch_script(path, write=True)
    out, err = told()
    assert "not patched yet" not in err and "nothing is saved" not in err
    assert "What stays: no set_epoch" in err
    write(tmp_path, text.replace("DistributedDataParallel(model)", "model"))
    out, err = told()
    assert "Do not start it on several GPUs." in err
    assert "calls no DistributedDataParallel" in err
    write(
        tmp_path,
        HAND_WRITTEN.replace(
            '("--local-rank"', '("--block_size")\nparser.add_argument("--local-rank"'
        ),
    )
    out, err = told()
    assert "train clones" not in out + err
    path.unlink()
    out, err = told()
    assert "is not at hand" in err


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["nbhelpers", "legacy-launcher", *map(str, arguments)])
    try:
        app.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_command_prints_a_launcher_for_the_gpus_that_are_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = detection.plan_hardware("rtx6000ada", 2)
    monkeypatch.setattr(detection, "detect_hardware", lambda: here)
    assert _run(monkeypatch) == 0
    told = capsys.readouterr()
    assert told.out.startswith("#!/usr/bin/env bash\n")
    assert "NUM_GPUS=2\n" in told.out
    assert here.gpus[0].name in told.out


def test_without_a_gpu_the_number_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    bare = detection._hardware("linux", reason="no driver")
    monkeypatch.setattr(detection, "detect_hardware", lambda: bare)
    assert _run(monkeypatch) == 3
    assert "--num-gpus N" in capsys.readouterr().err


def test_a_launcher_is_written_once_and_can_be_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "run_auto.sh"
    arguments = ("--model", "graphcodebert", "--gpu", "rtx6000ada", "--count", "4", "--write")
    assert _run(monkeypatch, *arguments, tmp_path) == 0
    assert "16 pairs x 1 micro-step x 4 processes = 64" in capsys.readouterr().out
    assert os.access(target, os.X_OK)
    first = target.read_bytes()
    assert _run(monkeypatch, *arguments, target) == 2
    assert "exists already" in capsys.readouterr().err
    assert target.read_bytes() == first
    assert _run(monkeypatch, "--num-gpus", "2", "--write", target, "--force") == 0
    assert target.read_bytes() != first
    assert os.access(target, os.X_OK)
    assert [each.name for each in tmp_path.iterdir()] == ["run_auto.sh"]
    assert _run(monkeypatch, "--num-gpus", "2", "--write", tmp_path / "gone" / "run.sh") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--num-gpus", "2", "--gpu", "t4"), "exclude each other"),
        (("--count", "2"), "--count needs --gpu"),
        (("--num-gpus", "2", "--force"), "--force needs --write"),
        (("--num-gpus", "3"), "cannot be split"),
        (("--num-gpus", "2", "--model", "bert"), "has no legacy script"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    assert _run(monkeypatch, *arguments) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert told.out == ""


def test_a_small_gpu_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch, "--gpu", "t4", "--count", "2") == 0
    assert "Add for instance --per-gpu-batch 2" in capsys.readouterr().err
    assert _run(monkeypatch, "--gpu", "t4", "--count", "2", "--per-gpu-batch", "2") == 0
    assert "Add for instance" not in capsys.readouterr().err


@pytest.mark.parametrize("holder", ["run.py", "configs.py"])
def test_the_options_are_checked_against_the_scripts_own_parser(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    holder: str,
) -> None:
    names = [name for name in passed_options(RECIPES["codegpt"]) if name != "save_steps"]
    declared = "\n".join(f"parser.add_argument('--{name}')" for name in names) + "\n"
    write(tmp_path, declared, holder)
    start = declared if holder == "run.py" else "from configs import add_args\n"
    path = write(tmp_path, start + HAND_WRITTEN)
    assert _run(monkeypatch, "--num-gpus", "2", "--script", path) == 0
    told = capsys.readouterr().err
    assert "has no option --save_steps, and refuses what it does not know" in told
    assert _run(monkeypatch, "--num-gpus", "2", "--script", path, "--model", "graphcodebert") == 2
    assert "is not the script of graphcodebert" in capsys.readouterr().err
