"""An installed package holds all that a checkout has, and set-up chooses the right torch."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

import nbhelpers
from nbhelpers.cli.app import app
from tools import lint_size, make_venv, release

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]


def test_every_folder_with_code_is_a_package_of_the_wheel() -> None:
    folders = {path.parent for path in (ROOT / "nbhelpers").rglob("*.py")}
    names = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    configs = {"nbhelpers.configs"} | {
        f"nbhelpers.configs.{folder.name}"
        for folder in (ROOT / "configs").iterdir()
        if folder.is_dir()
    }
    assert set(SETUPTOOLS["packages"]) == names | configs
    assert SETUPTOOLS["package-dir"] == {"nbhelpers.configs": "configs"}


def _carried(folder: Path, package: str) -> set[Path]:
    patterns = SETUPTOOLS["package-data"].get(package, [])
    return {path for pattern in patterns for path in folder.glob(pattern)}


def test_every_data_file_is_carried_by_the_wheel() -> None:
    carried = _carried(ROOT / "configs", "nbhelpers.configs")
    for package in SETUPTOOLS["packages"]:
        parts = package.split(".")
        where = ROOT.joinpath(*parts[1:]) if "configs" in parts else ROOT.joinpath(*parts)
        carried |= _carried(where, package)
    files = {
        path
        for folder in ("nbhelpers", "configs")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc", ".so")
    }
    assert files - carried == set()
    assert len(files) > 20


def test_the_requirements_are_the_dependencies_and_pin_nothing() -> None:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    wanted = [line.partition("#")[0].strip() for line in lines if line.partition("#")[0].strip()]
    assert SETUPTOOLS["dynamic"]["dependencies"] == {"file": ["requirements.txt"]}
    assert all(re.fullmatch(r"[\w.-]+>=[\d.]+(,<\d+)?", line) for line in wanted)
    names = {re.match(r"[\w.-]+", line)[0] for line in wanted}
    card = (
        "torch transformers peft bitsandbytes trl datasets accelerate evaluate ipywidgets papermill"
    )
    assert set(card.split()) <= names


# Where a distribution is not named as what it is imported as.
DISTRIBUTIONS = {"IPython": "ipython", "pynvml": "nvidia-ml-py", "sklearn": "scikit-learn"}
DISTRIBUTIONS |= {"tree_sitter": "tree-sitter", "yaml": "PyYAML"}
# `google` and `kaggle_secrets` are parts of Colab's and Kaggle's images, asked for only there;
# onnxruntime is the extra `onnx`; pydantic_core is a part of pydantic in a distribution of its own;
# triton comes with torch where it has a GPU, and is asked for only there.
UNDECLARED = {"google", "kaggle_secrets", "onnxruntime", "pydantic_core", "triton"}


def test_every_package_that_is_imported_is_declared() -> None:
    declared = set(re.findall(r"^[\w.-]+", (ROOT / "requirements.txt").read_text(), re.MULTILINE))
    imported = set()
    for path in (ROOT / "nbhelpers").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    imported -= {*sys.stdlib_module_names, "nbhelpers"}
    missing = {DISTRIBUTIONS.get(name, name) for name in imported} - declared
    assert missing == UNDECLARED


def test_without_a_gpu_setup_passes_the_constraint_and_with_one_it_does_not() -> None:
    without = make_venv.pip_arguments(gpu=False, torch_index="")
    assert without[-2:] == ["--constraint", "constraints-cpu.txt"]
    assert "--constraint" not in make_venv.pip_arguments(gpu=True, torch_index="")
    named = make_venv.pip_arguments(gpu=False, torch_index="https://example.org/cpu")
    assert named[-2:] == ["--extra-index-url", "https://example.org/cpu"]
    assert re.search(r"^torch==[\d.]+$", (ROOT / "constraints-cpu.txt").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("script", "has_gpu"),
    [("echo 'GPU 0: Tesla T4'", True), ("echo 'No devices were found'", False), ("exit 9", False)],
)
def test_a_gpu_is_what_the_driver_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, has_gpu: bool
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert make_venv.has_gpu() is has_gpu


def test_setup_never_clears_a_folder_that_is_no_environment(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(OSError, match="no virtual environment"):
        make_venv.make(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_make_setup_refuses_another_python_and_says_what_to_type(tmp_path: Path) -> None:
    old = tmp_path / "python2.7"
    old.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'Python 2.7.18' && exit 0\nexit 1\n")
    old.chmod(0o755)
    command = ["make", "setup", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Python 2.7.18" in done.stdout
    assert "make setup PYTHON=" in done.stdout
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(("has", "is_made_anew"), [("3.11", False), ("3.12", True)])
def test_a_python_that_is_named_is_compared_with_the_one_in_the_environment(
    tmp_path: Path, has: str, is_made_anew: bool
) -> None:
    for name, version in (("named", "3.11"), ("venv/bin/python", has)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\necho {version}\n")
        (tmp_path / name).chmod(0o755)
    command = ["make", "-n", "setup", f"VENV={tmp_path / 'venv'}"]
    # Without what a make that runs these tests hands on: its own PYTHON.
    environ = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "PYTHON", "VENV")}
    run = partial(subprocess.run, cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
    first = run(command)
    stamp = re.search(r"touch (\S+)", first.stdout)
    assert stamp
    Path(stamp[1]).touch()
    again = [run(x).stdout for x in (command, [*command, f"PYTHON={tmp_path / 'named'}"])]
    assert ["make_venv" in said for said in again] == [False, is_made_anew]


def test_the_version_is_in_the_changelog_or_still_unreleased() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert f"[{nbhelpers.__version__}]" in text or "## [Unreleased]" in text


def test_no_file_of_the_checkout_is_above_the_limit(tmp_path: Path) -> None:
    large = tmp_path / "large.bin"
    large.write_bytes(b"0" * (lint_size.MAX_BYTES + 1))
    assert lint_size.main([str(large)]) == 1
    folders = ("nbhelpers", "configs", "notebooks", "tests", "tools", "docs")
    files = [
        p for f in folders for p in (ROOT / f).rglob("*") if p.is_file() and p.suffix != ".pyc"
    ]
    assert lint_size.main([str(path) for path in files]) == 0


def test_what_notebooks_import_is_read_from_all_of_them_and_a_missing_section_blocks(
    tmp_path: Path,
) -> None:
    statements = release.notebook_imports(ROOT / "notebooks")
    assert "import nbhelpers as nb" in statements
    assert all(line.startswith(("from nbhelpers", "import nbhelpers")) for line in statements)
    exec("\n".join(statements), {})
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    package = ("nbhelpers/__init__.py", "nbhelpers/notebook/environment.py")
    for name in ("CHANGELOG.md", "README.md", "QUICK_START.md", "pyproject.toml", *package):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    changes = (tmp_path / "CHANGELOG.md").read_text()
    version = nbhelpers.__version__
    (tmp_path / "CHANGELOG.md").write_text(changes.replace(f"## [{version}]", "## [other]"))
    found = " ".join(release.blockers(tmp_path, is_dry=False))
    assert f"no section [{version}]" in found
    assert "no owner" in found
    assert "not committed" in found


def test_the_version_is_told() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"nbhelpers {nbhelpers.__version__}\n")
