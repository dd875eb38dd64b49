"""The kernel side stays light: no torch, a fast import, few names; no import runs up, no circle."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import nbhelpers as nb
from tools import lint_code

MAX_EXPORTS = 15
MAX_IMPORT_S = 0.2


def _in_fresh_python(code: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


def test_importing_nbhelpers_is_fast_and_leaves_torch_out() -> None:
    code = (
        "import json, sys, time; start = time.perf_counter(); import nbhelpers;"
        "print(json.dumps({'s': time.perf_counter() - start, 'loaded': sorted(sys.modules)}))"
    )
    seen = min((_in_fresh_python(code) for _ in range(3)), key=lambda facts: facts["s"])
    assert seen["s"] < MAX_IMPORT_S
    assert not {"torch", "transformers", "numpy", "pandas", "pydantic"} & set(seen["loaded"])


def test_every_exported_name_can_be_used_without_torch() -> None:
    code = (
        "import json, sys, nbhelpers as nb;"
        "kinds = {n: callable(getattr(nb, n)) for n in nb.__all__};"
        "print(json.dumps({'kinds': kinds, 'torch': 'torch' in sys.modules}))"
    )
    seen = _in_fresh_python(code)
    assert all(seen["kinds"].values())
    assert not seen["torch"]


def test_the_package_exports_few_names() -> None:
    assert len(nb.__all__) <= MAX_EXPORTS


def test_the_exports_are_functions_whatever_was_imported_before() -> None:

    assert list(inspect.signature(nb.launch).parameters)[:3] == ["preset", "plan", "budget"]
    assert inspect.isfunction(nb.report)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="lunch"):
        _ = nb.lunch


def _tree(tmp_path: Path, files: dict[str, str]) -> Path:
    for name, source in files.items():
        path = tmp_path / "nbhelpers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "source", "message"),
    [
        ("hardware/gpus.py", "import torch\n", "worker side"),
        ("hardware/gpus.py", "def f():\n    import transformers\n", "worker side"),
        ("plan.py", "import numpy\n", "inside the function"),
        ("plan.py", "from nbhelpers.runs.starting import launch\n", "plan must not import runs"),
        ("metrics/pairs.py", "def f():\n    from nbhelpers.presets import schema\n", "presets"),
        (
            "budget/memory.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
            "    from nbhelpers.runs.run import Run\n",
            "budget must not import runs",
        ),
        (
            "jobs/loop.py",
            "from nbhelpers.reports.rendering import as_html\n",
            "jobs must not import",
        ),
        ("simulate/step.py", "from ..jobs import loop\n", "simulate must not import jobs"),
        ("runs/run.py", "import yaml\n", "alone reads YAML"),
        ("novelty.py", "", "no place"),
    ],
)
def test_a_forbidden_import_is_seen(tmp_path: Path, file: str, source: str, message: str) -> None:
    problems = lint_code.problems(_tree(tmp_path, {file: source}))
    assert len(problems) == 1
    assert message in problems[0]


@pytest.mark.parametrize("indent", ["", "def f():\n    ", "if TYPE_CHECKING:\n    "])
def test_a_circle_is_seen_however_it_is_imported(tmp_path: Path, indent: str) -> None:
    files = {
        "runs/run.py": "from nbhelpers.runs import events\n",
        "runs/events.py": "from nbhelpers.runs.ranks import Rank\n",
        "runs/ranks.py": f"{indent}from nbhelpers.runs.run import Run\n",
    }
    (problem,) = lint_code.problems(_tree(tmp_path, files))
    assert "circle" in problem and "nbhelpers.runs.ranks" in problem


def test_heavy_imports_are_allowed_inside_functions_and_for_typing(tmp_path: Path) -> None:
    source = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas\n"
        "def f():\n    import matplotlib\n    from nbhelpers.runs.run import Run\n"
    )
    assert lint_code.problems(_tree(tmp_path, {"reports/figures.py": source})) == []


def test_the_folders_are_those_of_the_picture() -> None:
    package = Path(nb.__file__).parent
    here = {
        path.name
        for path in package.iterdir()
        if not path.name.startswith("_")
        and (path.suffix == ".py" or (path / "__init__.py").exists())
    }
    folders = "common hardware presets budget runs metrics reports use notebook cli data jobs"
    assert here == {"errors.py", "plan.py", *folders.split(), "simulate", "legacy"}


def test_a_worker_loads_models_without_libraries_that_no_job_uses() -> None:
    code = (
        "import json, sys; from nbhelpers.jobs import worker;"
        "worker._load_transformers('clones');"
        "from transformers import GPT2Model, utils;"
        "there = [name in sys.modules for name in ('sklearn', 'scipy.optimize')];"
        "print(json.dumps({'there': there, 'known': utils.is_scipy_available()}))"
    )
    assert _in_fresh_python(code) == {"there": [False, False], "known": True}
