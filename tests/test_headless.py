"""A headless run checks its parameters first, says how it ended, and saves what it has."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import papermill
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from nbhelpers.errors import (
    ConfigError,
    JobFailed,
    Killed,
    NbhelpersError,
    OutOfMemory,
    RequirementMissed,
)
from nbhelpers.notebook.headless import check_notebook, default_output, run_notebook
from nbhelpers.presets.parameters import Overrides, check_parameters, parse_assignments, parse_value
from nbhelpers.runs.run import RunResult
from nbhelpers.runs.thresholds import parse_requirements, require_scores

ROOT = Path(__file__).resolve().parent.parent
CLONES = ROOT / "notebooks" / "03_find_clones.ipynb"
MARK = "ran.txt"
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def _notebook(folder: Path, *sources: str, tag: bool = True, job: str = "") -> Path:
    """A notebook with the parameter `epochs`; its first code leaves a mark that it ran."""
    cells = [new_code_cell('epochs = 1  # @param {type:"raw"} # passes')]
    cells[0].metadata["tags"] = ["parameters"] if tag else []
    leave = f"import pathlib; pathlib.Path({str(folder / MARK)!r}).write_text(str(epochs))"
    cells += [new_code_cell(source) for source in (leave, *sources)]
    metadata = {"kernelspec": KERNEL, "nbhelpers": {"job": job}}
    path = folder / "toy.ipynb"
    nbformat.write(new_notebook(cells=cells, metadata=metadata), path)
    return path


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


# Parameters: nothing runs before they are right.


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"epoch": 2}, "write `epochs` for `epoch`"),
        ({"nothing_like_it": 2}, "the parameters are: epochs"),
    ],
)
def test_an_unknown_parameter_stops_before_any_cell_runs(
    tmp_path: Path, parameters: dict[str, object], said: str
) -> None:
    path = _notebook(tmp_path)
    with pytest.raises(ConfigError) as caught:
        run_notebook(path, parameters)
    assert said in str(caught.value)
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize(
    "parameters",
    [
        {"epochs": "3"},
        {"epochs": True},
        {"epochs": 0},
        {"seq_len": 1.5},
        {"preset": "t5"},
        {"train_fraction": 2.0},
        {"num_gpus": "all"},
        {"track": "stdout"},
        {"run_dir": ""},
        {"run_dir": 3},
        {"data": "/no/such/folder"},
        {"learning_rate": "fast"},
        {"more_settings": {"learning_rate": "fast"}},
        {"more_settings": {"epochs": 2}, "epochs": 3},
        {"more_settings": "learning_rate"},
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
        {"num_gpus": "auto"},
        {"num_gpus": 2, "seed": 7, "train_fraction": 0.5},
        {"preset": "t4", "seq_len": 400, "model": "codegpt", "track": "none"},
        {"learning_rate": 1e-3, "more_settings": {"warmup_ratio": 0.1}},
    ],
    ids=str,
)
def test_the_clone_notebook_takes_what_its_comments_say(parameters: dict[str, object]) -> None:
    path, folder = check_notebook(CLONES, parameters)
    assert (path, folder) == (CLONES, ROOT)


def test_a_notebook_without_the_parameters_tag_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="0 code cells tagged"):
        run_notebook(_notebook(tmp_path, tag=False), {"epochs": 2})
    assert not (tmp_path / MARK).exists()


def test_what_is_no_notebook_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "text.ipynb").write_text("hello")
    for name in ("text.ipynb", "absent.ipynb"):
        with pytest.raises(ConfigError):
            run_notebook(tmp_path / name)


def test_a_condition_that_cannot_be_read_stops_before_any_cell_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="f2"):
        run_notebook(_notebook(tmp_path), require=["f2>=0.5"])
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("+3", 3),
        ("0.5", 0.5),
        ("5e-5", 5e-5),
        ("true", True),
        ("None", None),
        ("null", None),
        ('"3"', "3"),
        ("smoke", "smoke"),
        ("nan", "nan"),
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
@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"epoch": 2}, "write `epochs` for `epoch`"),
        ({"learning_speed": 0.1}, "not a parameter of this notebook"),
        ({"epochs": "2"}, "epochs"),
    ],
)
def test_bare_papermill_stops_in_the_checking_cell(
    tmp_path: Path, parameters: dict[str, object], said: str
) -> None:
    with pytest.raises(papermill.PapermillExecutionError) as caught:
        _bare(_first_cells(tmp_path, "check"), parameters)
    assert caught.value.ename == "ConfigError"
    assert said in caught.value.evalue


@pytest.mark.slow
def test_bare_papermill_without_the_tag_is_told_that_defaults_are_in_force(tmp_path: Path) -> None:
    with pytest.raises(papermill.PapermillExecutionError) as caught:
        _bare(_first_cells(tmp_path, "check", tag=False), {"epochs": 2})
    assert "before the defaults" in caught.value.evalue


@pytest.mark.slow
def test_bare_papermill_with_good_parameters_passes(tmp_path: Path) -> None:
    given = {"epochs": 2, "preset": "smoke", "learning_rate": 0.002}  # the last is not listed
    _bare(_first_cells(tmp_path, "check"), given)
    done = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    said = done.cells[-1].outputs[0]["data"]["text/plain"]
    assert said == "You change: epochs = 2, learning_rate = 0.002"


def test_running_cells_twice_is_no_error() -> None:
    cell = 'epochs = 2  # @param {type:"raw"} # passes'
    namespace = {"In": ["", cell, "x = 1", cell], "epochs": 2, "x": 1}
    assert check_parameters("clones", namespace) == {"epochs": 2}


def test_a_setting_that_a_notebook_does_not_list_reaches_it_from_papermill() -> None:
    cell = 'more_settings = {}  # @param {type:"raw"} # others'
    given = "# Parameters\ntrack = 'tensorboard'"
    namespace = {"In": ["", cell, given], "more_settings": {}, "track": "tensorboard"}
    assert check_parameters("clones", namespace) == {"track": "tensorboard"}
    with pytest.raises(ConfigError, match="track"):
        check_parameters("clones", namespace | {"track": "csv"})
    with pytest.raises(ConfigError, match="more_settings"):
        check_parameters("clones", namespace | {"more_settings": {"track": "none"}})


def test_a_misspelled_name_typed_into_the_parameters_cell_is_an_error() -> None:
    namespace = {"In": ['epoch = 2  # @param {type:"raw"} # passes'], "epoch": 2}
    with pytest.raises(ConfigError, match="epoch"):
        check_parameters("clones", namespace)


def test_checking_before_the_parameters_cell_says_which_cell_to_run() -> None:
    with pytest.raises(ConfigError, match="declares"):
        check_parameters("clones", {"In": ["import nbhelpers as nb"]})


# How a run ends.


@pytest.mark.slow
def test_a_good_run_streams_its_output_and_saves_the_notebook(tmp_path: Path) -> None:
    stream, saved = io.StringIO(), tmp_path / "out" / "done.ipynb"
    path = _notebook(tmp_path, "print('epochs:', epochs)")
    assert run_notebook(path, {"epochs": 3}, output=saved, stream=stream) is None
    assert "epochs: 3" in stream.getvalue()
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
    path = _notebook(tmp_path / "notebooks", ask + " os.environ['NBHELPERS_FRESH'])")
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
        ("1 / 0", JobFailed, "ZeroDivisionError"),
        ("assert 1 == 2, 'must hold'", JobFailed, "must hold"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", Killed, "kernel died"),
    ],
)
def test_a_failure_has_its_own_class_and_the_notebook_is_saved(
    tmp_path: Path, source: str, kind: type[NbhelpersError], said: str
) -> None:
    saved = tmp_path / "failed.ipynb"
    with pytest.raises(kind) as caught:
        run_notebook(_notebook(tmp_path, "print('before')", source), output=saved)
    assert type(caught.value) is kind
    assert said in str(caught.value)
    text = saved.read_text()
    assert "did not finish" in text
    assert "before" in text


@pytest.mark.slow
def test_the_time_limit_ends_the_whole_notebook(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(Killed, match="time limit of 3 s"):
        run_notebook(
            _notebook(tmp_path, "import time\ntime.sleep(60)"),
            output=tmp_path / "late.ipynb",
            timeout_s=3,
        )
    assert time.monotonic() - start < 20
    assert "did not finish" in (tmp_path / "late.ipynb").read_text()


@pytest.mark.slow
def test_a_cell_that_ignores_interrupts_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbhelpers.notebook.headless.CELL_PATIENCE_S", 1.0)
    deaf = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)"
    with pytest.raises(Killed):
        run_notebook(_notebook(tmp_path, deaf), output=tmp_path / "x.ipynb", timeout_s=3)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_a_signal_to_the_command_ends_it_with_exit_code_9_and_a_saved_notebook(
    tmp_path: Path, number: int
) -> None:
    path = _notebook(tmp_path, "print('waiting', flush=True)\nimport time\ntime.sleep(60)")
    saved = tmp_path / "stopped.ipynb"
    command = [sys.executable, "-m", "nbhelpers", "run", str(path), "-O", str(saved)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "waiting"
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 9
    assert "--resume" in said
    assert "did not finish" in saved.read_text()


def test_an_output_that_is_no_notebook_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"write --output .*x.ipynb"):
        run_notebook(_notebook(tmp_path), output=tmp_path / "x.txt")
    assert not (tmp_path / MARK).exists()


def test_overrides_say_in_words_what_you_change() -> None:
    assert repr(Overrides()) == "You change nothing."
    assert repr(Overrides(epochs=1, model="smoke")) == "You change: epochs = 1, model = 'smoke'"
    assert Overrides(epochs=1) == {"epochs": 1}


def test_overrides_name_the_adapters_which_are_no_setting() -> None:
    cell = 'adapters = "all"  # @param {type:"string"}'
    found = check_parameters("finetune", {"In": ["", cell], "adapters": "all"})
    assert found == {} and repr(found) == "You change no setting. Adapters: all."


def test_the_default_output_is_a_new_file_below_runs(tmp_path: Path) -> None:
    path = default_output(Path("a/03_find_clones.ipynb"), tmp_path)
    assert path.parent == tmp_path / "runs" / "notebooks"
    assert path.name.startswith("03_find_clones-")


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


def test_a_requirement_on_a_notebook_that_starts_no_run_is_an_error() -> None:
    with pytest.raises(ConfigError, match="started none"):
        require_scores(None, parse_requirements(["f1>=0.9"]))
