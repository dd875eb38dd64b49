"""A headless run checks its parameters first, says how it ended, and saves what it has."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import papermill
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from nbhelpers.errors import (
    ConfigError,
    JobFailed,
    Killed,
    NbhelpersError,
    OutOfMemory,
    RequirementMissed,
    Stopped,
)
from nbhelpers.notebook import headless
from nbhelpers.notebook.headless import check_notebook, run_notebook
from nbhelpers.presets.parameters import Overrides, check_parameters, parse_assignments, parse_value
from nbhelpers.runs.run import Run, RunResult
from nbhelpers.runs.thresholds import parse_requirements, require_scores

ROOT = Path(__file__).resolve().parent.parent
CLONES = ROOT / "notebooks" / "03_find_clones.ipynb"
FINETUNE = ROOT / "notebooks" / "01_finetune_gemma.ipynb"
MARK = "ran.txt"
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def notebook(
    folder: Path, *sources: str, first: str = "epochs = 1", kind: str = "code", **metadata: Any
) -> Path:
    """A notebook whose `first` cell is tagged; the second leaves a mark that it ran.

    `metadata` changes the notebook's own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    leave = f"import pathlib; pathlib.Path({str(folder / MARK)!r}).touch()"
    cells = [new_code_cell(source) for source in (first, leave, *sources)]
    if kind != "code":
        cells[0] = new_markdown_cell(first)
    cells[0].metadata["tags"] = ["parameters"]
    content = new_notebook(cells=cells)
    content.metadata.update({"kernelspec": KERNEL} | metadata)
    path = folder / "toy.ipynb"
    path.write_text(json.dumps(content))
    return path


def refused(path: Path, parameters: dict[str, Any] | None = None, **options: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        run_notebook(path, parameters, **options)
    assert caught.value.fix and not (path.parent / MARK).exists()
    return caught.value


def _first_cells(folder: Path, last: str, *, tag: bool = True) -> Path:
    """The clone notebook up to a cell, so that bare papermill can run it in a moment."""
    notebook = nbformat.read(CLONES, as_version=4)
    end = next(i for i, cell in enumerate(notebook.cells) if cell.id == last)
    notebook.cells = notebook.cells[: end + 1]
    if not tag:
        for cell in notebook.cells:
            cell.metadata.pop("tags", None)
    path = folder / "first.ipynb"
    nbformat.write(notebook, path)
    return path


# Nothing runs before all is right.

JOB = {"nbhelpers": {"job": "clones"}}


@pytest.mark.parametrize(
    ("made", "given", "said"),
    [
        ({}, {"parameters": {"epoch": 2}}, "write `epochs` for `epoch`"),
        ({}, {"parameters": {"nothing_like_it": 2}}, "the parameters are: epochs"),
        ({}, {"parameters": {"code_length": 9}}, "not a parameter of toy.ipynb"),
        (
            {"first": "seq_len = None"} | JOB,
            {"parameters": {"code_length": 99, "seq_len": 98}},
            "they are one setting",
        ),
        ({}, {"require": ["f2>=0.5"]}, "f2"),
        ({}, {"output": "x.txt"}, "write --output x.ipynb"),
        ({}, {"timeout_s": 0}, "leaves no time"),
        ({}, {"timeout_s": -1}, "leaves no time"),
        ({}, {"timeout_s": float("nan")}, "leaves no time"),
        ({"kind": "markdown"}, {}, "0 code cells tagged"),
        ({"kernelspec": None}, {}, "no Python kernel"),
        ({"kernelspec": {}}, {}, "no Python kernel"),
        ({"kernelspec": {"name": "ir", "language": "R"}}, {}, "no Python kernel"),
        ({"nbhelpers": {"job": "clone"}}, {}, "no job"),
        ({"nbhelpers": {"job": 3}}, {}, "no job"),
        ({"first": "seed = 1 + len('x')"} | JOB, {}, "is computed"),
        ({"first": "import os\nseed = os.getpid()"} | JOB, {}, "is computed"),
        ({"first": "seed = = 1"} | JOB, {}, "not plain Python"),
        ({"first": "%pip install x\nseed = 1"} | JOB, {}, "not plain Python"),
    ],
    ids=str,
)
def test_what_cannot_run_is_refused_before_a_cell_does(
    tmp_path: Path, made: dict[str, Any], given: dict[str, Any], said: str
) -> None:
    assert said in str(refused(notebook(tmp_path, **made), **given))


@pytest.mark.parametrize(
    "parameters",
    [
        {"epochs": "3"},
        {"epochs": 0},
        {"preset": "t5"},
        {"train_fraction": 2.0},
        {"run_dir": ""},
        {"data": "/no/such/folder"},
        {"more_settings": {"learning_rate": "fast"}},
        {"more_settings": {"epochs": 2}, "epochs": 3},
        {"learning_rat": 1e-3},
    ],
    ids=str,
)
def test_the_clone_notebook_refuses_a_value_of_the_wrong_kind(
    parameters: dict[str, object],
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_notebook(CLONES, parameters)
    assert caught.value.fix


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"preset": "smoke", "epochs": 1},
        {"num_gpus": 2, "seed": 7, "train_fraction": 0.5},
        {"preset": "t4", "seq_len": 400, "model": "codegpt", "track": "none"},
        {"learning_rate": 1e-3, "more_settings": {"warmup_ratio": 0.1}},
    ],
    ids=str,
)
def test_the_clone_notebook_takes_what_its_comments_say(parameters: dict[str, object]) -> None:
    checked = check_notebook(CLONES, parameters)
    assert (checked.path, checked.root, checked.job) == (CLONES, ROOT, "clones")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("5e-5", 5e-5),
        ("true", True),
        ("None", None),
        ('"3"', "3"),
        ("smoke", "smoke"),
        ("/a b/c", "/a b/c"),
        ("", ""),
    ],
)
def test_shell_values_get_the_type_that_they_look_like(text: str, value: object) -> None:
    read = parse_value(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("pairs", [["epochs"], ["=3"], ["a-b=3"], ["epochs=1", "epochs=2"]])
def test_a_broken_assignment_is_named(pairs: list[str]) -> None:
    with pytest.raises(ConfigError, match="-p"):
        parse_assignments(pairs, "-p")


# Bare papermill is strict too, by the notebook's own checking cell.


def _bare(path: Path, parameters: dict[str, object]) -> None:
    papermill.execute_notebook(
        str(path), str(path.with_name("out.ipynb")), parameters, progress_bar=False, cwd=str(ROOT)
    )


@pytest.mark.slow
def test_bare_papermill_stops_in_the_checking_cell(tmp_path: Path) -> None:
    with pytest.raises(papermill.PapermillExecutionError) as caught:
        _bare(_first_cells(tmp_path, "imports"), {"epoch": 2, "learning_speed": 0.1})
    assert caught.value.ename == "ConfigError"
    assert "write `epochs` for `epoch`" in caught.value.evalue


@pytest.mark.slow
def test_bare_papermill_without_the_tag_is_told_that_defaults_are_in_force(tmp_path: Path) -> None:
    with pytest.raises(papermill.PapermillExecutionError) as caught:
        _bare(_first_cells(tmp_path, "imports", tag=False), {"epochs": 2})
    assert "before the defaults" in caught.value.evalue


@pytest.mark.slow
def test_bare_papermill_with_good_parameters_passes(tmp_path: Path) -> None:
    given = {"epochs": 2, "preset": "smoke", "learning_rate": 0.002}  # the last is not listed
    _bare(_first_cells(tmp_path, "imports"), given)
    done = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    said = done.cells[-1].outputs[0]["data"]["text/plain"]
    assert said == "You change: epochs = 2, learning_rate = 0.002"


def test_a_setting_that_a_notebook_does_not_list_reaches_it_from_papermill() -> None:
    cell = 'more_settings = {}  # @param {type:"raw"} # others'
    given = "# Parameters\ntrack = 'tensorboard'"
    namespace = {"In": ["", cell, given], "more_settings": {}, "track": "tensorboard"}
    assert check_parameters("clones", namespace) == {"track": "tensorboard"}
    with pytest.raises(ConfigError, match="track"):
        check_parameters("clones", namespace | {"track": "csv"})
    with pytest.raises(ConfigError, match="more_settings"):
        check_parameters("clones", namespace | {"more_settings": {"track": "none"}})


# How a run ends.


@pytest.mark.slow
def test_a_good_run_streams_its_output_and_saves_the_notebook(tmp_path: Path) -> None:
    stream, saved = io.StringIO(), tmp_path / "out" / "done.ipynb"
    path = notebook(tmp_path, "print('epochs:', epochs)")
    path.write_text(path.read_text().replace('"name": "python3"', '"name": "not-here"'))
    assert run_notebook(path, {"epochs": 3}, output=saved, stream=stream) is None
    assert "epochs: 3" in stream.getvalue() and "`not-here` is not here" in stream.getvalue()
    assert "epochs: 3" in saved.read_text()
    assert not list(saved.parent.glob(".*"))


@pytest.mark.slow
def test_the_kernel_works_in_the_project_with_this_python_and_knows_its_owner(
    tmp_path: Path,
) -> None:
    (tmp_path / "nbhelpers").mkdir()
    (tmp_path / "nbhelpers" / "__init__.py").write_text("")
    (tmp_path / "notebooks").mkdir()
    ask = "import os, sys; print(os.getcwd(), sys.executable, os.environ['NBHELPERS_OWNER_PID'],"
    path = notebook(tmp_path / "notebooks", ask + " os.environ['NBHELPERS_FRESH'])")
    stream = io.StringIO()
    run_notebook(path, fresh=False, stream=stream)
    assert stream.getvalue().split() == [str(tmp_path), sys.executable, str(os.getpid()), "0"]
    assert len(list((tmp_path / "runs" / "notebooks").glob("toy-*.ipynb"))) == 1
    assert "NBHELPERS_OWNER_PID" not in os.environ


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        (
            "from nbhelpers.errors import OutOfMemory\nraise OutOfMemory('no room', fix='less')",
            OutOfMemory,
            "Fix: less",
        ),
        ("raise ValueError('<script>x</script>')", JobFailed, "ValueError"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", Killed, "kernel died"),
    ],
)
def test_a_failure_has_its_own_class_and_the_notebook_is_saved(
    tmp_path: Path, source: str, kind: type[NbhelpersError], said: str
) -> None:
    saved = tmp_path / "failed.ipynb"
    with pytest.raises(kind) as caught:
        run_notebook(notebook(tmp_path, "print('before')", source), output=saved)
    assert type(caught.value) is kind
    assert said in str(caught.value)
    text = saved.read_text()
    assert "did not finish" in text and "before" in text
    first = nbformat.reads(text, as_version=4).cells[0].source
    assert "did not finish" in first and "<script>" not in first


class Clock:
    """The clock of a headless run: an hour passes once a cell has left its mark."""

    def __init__(self, mark: Path) -> None:
        self.mark, self.strftime = mark, time.strftime

    def monotonic(self) -> float:
        return time.monotonic() + 3600 * self.mark.exists()


@pytest.mark.slow
@pytest.mark.parametrize("is_deaf", [False, True], ids=["interrupted", "killed"])
def test_the_time_limit_ends_the_whole_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deaf: bool
) -> None:
    mark, saved = tmp_path / "works", tmp_path / "late.ipynb"
    monkeypatch.setattr("nbhelpers.notebook.headless.time", Clock(mark))
    if is_deaf:
        monkeypatch.setattr("nbhelpers.notebook.headless.CELL_PATIENCE_S", 0.1)
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" * is_deaf
    source = f"{ignore}import pathlib, time; pathlib.Path({str(mark)!r}).touch(); time.sleep(600)"
    with pytest.raises(Killed, match="time limit of 1800 s"):
        run_notebook(notebook(tmp_path, source), output=saved, timeout_s=1800)
    assert "did not finish" in saved.read_text()


@pytest.mark.slow
def test_an_interrupt_of_the_command_ends_it_with_exit_code_9_and_a_saved_notebook(
    tmp_path: Path,
) -> None:
    """SIGTERM, and SIGKILL, in test_demo_flow.py."""
    path = notebook(tmp_path, "print('waiting', flush=True)\nimport time\ntime.sleep(600)")
    saved = tmp_path / "stopped.ipynb"
    command = [sys.executable, "-m", "nbhelpers", "run", str(path), "-O", str(saved)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "waiting"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 9
    assert "--resume" in said
    assert "did not finish" in saved.read_text()


@pytest.mark.parametrize("name", ["SIGTERM", None])
@pytest.mark.parametrize("status", ["finished", "stopped", ""])
def test_an_end_says_what_became_of_the_run(name: str | None, status: str) -> None:
    run = SimpleNamespace(status=status, typed="clones-x")
    run.shell = partial(Run.shell, run)
    runs = [run] if status else []
    error = headless._ended(runs, name, 5.0)
    assert isinstance(error, Stopped if name else Killed)
    assert ("its run had finished" in error.message) is (status == "finished")
    assert ("nbhelpers report clones-x" in error.fix) is (status == "finished")
    assert ("--resume" in error.fix) is (status != "finished")


def test_overrides_say_in_words_what_you_change() -> None:
    assert repr(Overrides()) == "You change nothing."
    assert repr(Overrides(epochs=1, model="smoke")) == "You change: epochs = 1, model = 'smoke'"
    assert Overrides(epochs=1) == {"epochs": 1}


def test_overrides_name_the_adapters_which_are_no_setting() -> None:
    cell = 'adapters = "all"  # @param {type:"string"}'
    found = check_parameters("finetune", {"In": ["", cell], "adapters": "all"})
    assert found == {} and repr(found) == "You change no setting. Adapters: all."


# What was required.


def _result(f1: float) -> RunResult:
    data = {"scores": {"test": {"orders": {"given": {"f1": f1, "recall": f1}}}}}
    return RunResult("clones-x", Path("runs/clones-x"), data)


def test_a_met_requirement_passes_and_all_missed_ones_are_named() -> None:
    require_scores(_result(0.95), parse_requirements(["f1>=0.9", "recall>0.5"]))
    with pytest.raises(RequirementMissed) as caught:
        require_scores(_result(0.4), parse_requirements(["f1>=0.9", "recall>0.5"]))
    assert "f1>=0.9" in caught.value.message
    assert "recall>0.5" in caught.value.message
    assert caught.value.exit_code == 7


# What is refused before anything runs; no input is overwritten.


@pytest.mark.parametrize("link", ["same", "symlink", "hardlink"])
def test_the_output_is_never_the_notebook_itself(tmp_path: Path, link: str) -> None:
    path = notebook(tmp_path)
    output, before = tmp_path / "out.ipynb", path.read_bytes()
    if link == "same":
        output = path
    elif link == "symlink":
        output.symlink_to(path)
    else:
        os.link(path, output)
    assert "is the notebook itself" in refused(path, output=output).message
    assert path.read_bytes() == before


def test_an_output_that_cannot_be_written_is_found_before_a_cell_runs(tmp_path: Path) -> None:
    path = notebook(tmp_path)
    (tmp_path / "folder.ipynb").mkdir()
    (tmp_path / "file").write_text("precious")
    for name in ("folder.ipynb", "file/out.ipynb", f"{'x' * 300}.ipynb"):
        refused(path, output=tmp_path / name)
    refused(path, output=tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "a {b} ünï %s $HOME"
    path, saved = notebook(folder, "print(epochs)"), folder / "{out}.ipynb"
    assert run_notebook(path, {"epochs": 2}, output=saved) is None
    assert nbformat.read(saved, as_version=4).cells[-1].outputs[0]["text"] == "2\n"


def test_code_length_is_given_to_a_notebook_that_declares_seq_len(tmp_path: Path) -> None:
    path = notebook(tmp_path, first="seq_len = None")
    assert check_notebook(path, {"code_length": 99}).parameters == {"seq_len": 99}


@pytest.mark.parametrize(
    ("named", "asked", "words"),
    [
        ("python3", "", ""),
        ("conda-env-me-py", "", f"`conda-env-me-py` is not here: it runs in {sys.executable}"),
        ("conda-env-me-py", "python3", ""),
        ("python3", "conda-env-me-py", "There is no kernel `conda-env-me-py` here"),
    ],
)
def test_a_kernel_that_is_not_here_gives_way_to_this_python_or_is_refused(
    tmp_path: Path, named: str, asked: str, words: str
) -> None:
    path = notebook(tmp_path, kernelspec=KERNEL | {"name": named})
    if words.startswith("There is no"):
        assert words in (error := refused(path, kernel=asked)).message and error.exit_code == 2
        assert "python3" in error.fix
    else:
        checked = check_notebook(path, {}, kernel=asked)
        assert words in checked.kernel_note and bool(words) == bool(checked.kernel_note)


@pytest.mark.parametrize("about", ["x", {"job": None}], ids=repr)
def test_odd_metadata_of_ours_means_no_job(tmp_path: Path, about: Any) -> None:
    assert check_notebook(notebook(tmp_path, nbhelpers=about), {}).job is None


def test_what_is_no_notebook_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.ipynb").mkdir()
    assert "is a folder" in refused(tmp_path / "folder.ipynb").message
    assert "does not exist" in refused(tmp_path / "none.ipynb").message
    for text in ("", "{", "[]", "{}", '{"cells": 3, "nbformat": 4}', "\0"):
        (tmp_path / "odd.ipynb").write_text(text)
        assert "is not a notebook" in refused(tmp_path / "odd.ipynb").message


def test_a_run_that_is_gone_is_no_run(tmp_path: Path) -> None:
    note = "import os; open(os.environ['NBHELPERS_LAUNCHED'], 'w').write('/no/such/run\\n')"
    assert run_notebook(notebook(tmp_path, note), output=tmp_path / "o.ipynb") is None


# What a study varies.


@pytest.mark.parametrize(
    ("adapters", "said"),
    [
        ("r61x", "There is no adapter `r61x`"),
        ("qlora-16x", "did you mean `qlora-r16`?"),
        (16, "did you mean `r16`?"),
        (True, "There is no adapter `True`"),
        ("r8, r8", "names r8 twice"),
        ("all,r8", "`all` holds it"),
        ([], "names no adapter"),
        (["r8", {"name": "mine", "lora_rank": 4}], "did you mean `lora_r`?"),
    ],
    ids=str,
)
def test_the_fine_tuning_notebook_refuses_adapters_that_are_none(
    adapters: object, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_notebook(FINETUNE, {"adapters": adapters})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"adapters": None, "preset": "smoke"},
        {"adapters": "", "evaluate": "all"},
        {"adapters": "all", "max_train_samples": 200, "track": "none"},
        {"adapters": "base,r8,qlora-r16", "model": "smollm2", "seq_len": 256},
        {"adapters": ["r8", {"name": "attention", "lora_target_modules": ["q_proj", "v_proj"]}]},
        {"preset": "t4", "adapters": "r64", "data": "owner/rows"},
    ],
    ids=str,
)
def test_the_fine_tuning_notebook_takes_what_its_comments_say(
    parameters: dict[str, object],
) -> None:
    assert check_notebook(FINETUNE, parameters).path == FINETUNE


def test_adapters_are_a_parameter_of_a_fine_tuning_and_no_setting() -> None:
    cell = 'adapters = "all"  # @param {type:"string"} # which\nseed = 1'
    namespace = {"In": ["", cell], "adapters": "all", "seed": 1}
    assert dict(check_parameters("finetune", namespace)) == {"seed": 1}
    with pytest.raises(ConfigError, match="no setting `adapters`"):
        check_parameters("clones", namespace)


def test_of_a_study_every_trained_run_must_meet_a_requirement() -> None:
    def row(name: str, method: str, bleu: float) -> SimpleNamespace:
        data = {"job": "finetune", "scores": {"test": {"metrics": {"bleu": bleu}}}}
        settings = SimpleNamespace(method=method)
        return SimpleNamespace(name=name, settings=settings, result=SimpleNamespace(data=data))

    rows = (row("base", "base", 5.0), row("r8", "lora", 50.0), row("r16", "lora", 60.0))
    study = SimpleNamespace(finished=rows)
    require_scores(study, parse_requirements(["bleu>=50"], "finetune"))
    with pytest.raises(RequirementMissed) as caught:
        require_scores(study, parse_requirements(["bleu>=55", "bleu>=99"], "finetune"))
    assert caught.value.message.count("r8: ") == 2 and caught.value.message.count("r16: ") == 1
    assert "base" not in caught.value.message
    with pytest.raises(RequirementMissed, match="base: required"):
        require_scores(SimpleNamespace(finished=rows[:1]), parse_requirements(["bleu>=50"]))
