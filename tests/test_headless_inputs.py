"""Promise: a headless run refuses what it cannot do before it starts, and overwrites no input."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from nbhelpers.errors import ConfigError, JobFailed
from nbhelpers.notebook.headless import check_notebook, run_notebook
from nbhelpers.runs.thresholds import parse_requirements

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
JOB = {"nbhelpers": {"job": "clones"}}


def notebook(folder: Path, *sources: str, **metadata: Any) -> Path:
    """A notebook whose first cell is tagged; `metadata` changes the notebook's own."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = [new_code_cell(source) for source in sources or ("epochs = 1",)]
    cells[0].metadata["tags"] = ["parameters"]
    content = new_notebook(cells=cells, metadata={"kernelspec": KERNEL} | metadata)
    path = folder / "toy.ipynb"
    nbformat.write(content, path)
    return path


def refused(path: Path, parameters: dict[str, Any] | None = None, **options: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        run_notebook(path, parameters, **options)
    assert caught.value.fix
    return caught.value


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
@pytest.mark.parametrize("folder", ["a {b} c", "a { c", "ünï cödé ☃", "%s $HOME"])
def test_a_folder_may_have_any_name(tmp_path: Path, folder: str) -> None:
    path = notebook(tmp_path / folder, "epochs = 1", "print(epochs)")
    saved = tmp_path / folder / "{out}.ipynb"
    assert run_notebook(path, {"epochs": 2}, output=saved) is None
    assert nbformat.read(saved, as_version=4).cells[-1].outputs[0]["text"] == "2\n"


@pytest.mark.slow
def test_code_length_is_given_to_a_notebook_that_declares_seq_len(tmp_path: Path) -> None:
    path, saved = notebook(tmp_path, "seq_len = None", "print(seq_len)"), tmp_path / "out.ipynb"
    assert run_notebook(path, {"code_length": 99}, output=saved) is None
    assert nbformat.read(saved, as_version=4).cells[-1].outputs[0]["text"] == "99\n"
    own = notebook(tmp_path / "own", "code_length = 1", "print(code_length)")
    assert run_notebook(own, {"code_length": 2}, output=saved) is None
    assert nbformat.read(saved, as_version=4).cells[-1].outputs[0]["text"] == "2\n"


def test_both_spellings_of_one_parameter_must_agree(tmp_path: Path) -> None:
    path = notebook(tmp_path, "seq_len = None", **JOB)
    error = refused(path, {"code_length": 99, "seq_len": 98})
    assert "they are one setting" in error.message
    assert "not a parameter of toy.ipynb" in refused(notebook(tmp_path), {"code_length": 9}).message


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), True, "3"], ids=repr)
def test_a_time_limit_that_leaves_no_time_is_refused(tmp_path: Path, timeout: Any) -> None:
    assert "leaves no time" in refused(notebook(tmp_path), timeout_s=timeout).message


@pytest.mark.parametrize("value", [object(), "\udcff", {1, 2}], ids=["object", "surrogate", "set"])
def test_a_value_that_a_notebook_cannot_hold_is_refused(tmp_path: Path, value: Any) -> None:
    assert "cannot be stored" in refused(notebook(tmp_path), {"epochs": value}).message


@pytest.mark.parametrize("spec", [None, {}, "x", {"name": "ir", "language": "R"}], ids=repr)
def test_a_notebook_without_a_python_kernel_is_refused(tmp_path: Path, spec: Any) -> None:
    path = notebook(tmp_path)
    content = json.loads(path.read_text())
    content["metadata"]["kernelspec"] = spec
    path.write_text(json.dumps(content))
    assert "no Python kernel" in refused(path).message


@pytest.mark.parametrize("about", ["x", None, [], {"job": None}], ids=repr)
def test_odd_metadata_of_ours_means_no_job(tmp_path: Path, about: Any) -> None:
    assert check_notebook(notebook(tmp_path, nbhelpers=about), {})[0].name == "toy.ipynb"


@pytest.mark.parametrize("job", ["clone", 3, ["clones"]], ids=repr)
def test_an_unknown_job_is_refused(tmp_path: Path, job: Any) -> None:
    assert "no job" in refused(notebook(tmp_path, nbhelpers={"job": job})).message


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("seed = 1 + len('x')", "is computed"),
        ("import os\nseed = os.getpid()", "is computed"),
        ("seed = = 1", "not plain Python"),
        ("%pip install x\nseed = 1", "not plain Python"),
    ],
)
def test_a_default_that_is_no_literal_is_refused(tmp_path: Path, source: str, said: str) -> None:
    assert said in refused(notebook(tmp_path, source, **JOB)).message


def test_only_a_code_cell_holds_parameters_and_tags_are_a_list(tmp_path: Path) -> None:
    path = notebook(tmp_path)
    content = nbformat.read(path, as_version=4)
    cell = new_markdown_cell("words")
    cell.metadata["tags"] = ["parameters"]
    content.cells = [cell]
    nbformat.write(content, path)
    assert "0 code cells" in refused(path).message
    raw = json.loads(path.read_text())
    raw["cells"][0]["metadata"]["tags"] = None
    path.write_text(json.dumps(raw))
    assert "no list" in refused(path).message


def test_what_is_no_notebook_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.ipynb").mkdir()
    (tmp_path / "loop.ipynb").symlink_to(tmp_path / "loop.ipynb")
    assert "is a folder" in refused(tmp_path / "folder.ipynb").message
    assert "does not exist" in refused(tmp_path / "loop.ipynb").message
    for text in ("", "{", "[]", "{}", '{"cells": 3, "nbformat": 4}', "\0"):
        (tmp_path / "odd.ipynb").write_text(text)
        assert "is not a notebook" in refused(tmp_path / "odd.ipynb").message


def test_the_word_of_a_failure_is_no_markup_in_the_saved_notebook(tmp_path: Path) -> None:
    saved = tmp_path / "out.ipynb"
    path = notebook(tmp_path, "epochs = 1", "raise ValueError('<script>x</script>')")
    with pytest.raises(JobFailed):
        run_notebook(path, output=saved)
    first = nbformat.read(saved, as_version=4).cells[0].source
    assert "did not finish" in first and "<script>" not in first


def test_a_run_that_is_gone_is_no_run(tmp_path: Path) -> None:
    note = "import os; open(os.environ['NBHELPERS_LAUNCHED'], 'w').write('/no/such/run\\n')"
    assert run_notebook(notebook(tmp_path, "epochs = 1", note), output=tmp_path / "o.ipynb") is None


def test_one_condition_may_be_given_as_a_text() -> None:
    assert [str(each) for each in parse_requirements("f1>=0.9")] == ["f1>=0.9"]
    for text in ("f1>=0_9", "f1>=nan", "f1>=1e400", "f1", "", "f1=>1", "f1>=0.9>=0.8"):
        with pytest.raises(ConfigError):
            parse_requirements([text])
