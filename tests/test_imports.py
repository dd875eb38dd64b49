"""The kernel side stays light: no torch, a fast import, few names, and layers that only look up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import nbhelpers as nb
from tools import lint_code

MAX_EXPORTS = 15
MAX_IMPORT_S = 0.5


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


@pytest.mark.parametrize(
    "first", ["import nbhelpers.runs.starting", "import nbhelpers.reports.writing", "pass"]
)
def test_a_function_stays_callable_after_its_module_was_imported(first: str) -> None:
    code = (
        f"{first}\nimport inspect, json, nbhelpers as nb\n"
        "print(json.dumps([list(inspect.signature(nb.launch).parameters)[:3],"
        " callable(nb.report), nb.launch.launch.__name__]))"
    )
    assert _in_fresh_python(code) == [["preset", "plan", "budget"], True, "launch"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="lunch"):
        _ = nb.lunch


def test_layers_and_lengths_hold_in_the_whole_checkout() -> None:
    assert lint_code.problems() == []


@pytest.mark.parametrize(
    ("file", "source", "said"),
    [
        ("hardware.py", "import torch\n", "worker side"),
        ("hardware.py", "def f():\n    import transformers\n", "worker side"),
        ("batching.py", "import numpy\n", "inside the function"),
        ("batching.py", "from nbhelpers.runs.starting import launch\n", "must not import launch"),
        (
            "metrics.py",
            "def f():\n    from nbhelpers.presets import loading\n",
            "must not import config",
        ),
        ("jobs/loop.py", "from nbhelpers.reports.html import body\n", "must not import report"),
        ("runs.py", "import yaml\n", "config alone"),
        ("novelty.py", "", "no row"),
    ],
)
def test_the_walk_sees_a_forbidden_import(
    tmp_path: Path, file: str, source: str, said: str
) -> None:
    path = tmp_path / "nbhelpers" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    problems = lint_code.layer_problems(path, tmp_path / "nbhelpers")
    assert len(problems) == 1
    assert said in problems[0]


def test_the_walk_allows_heavy_imports_inside_functions_and_for_typing(tmp_path: Path) -> None:
    path = tmp_path / "nbhelpers" / "report.py"
    path.parent.mkdir()
    path.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas\n"
        "def f():\n    import matplotlib\n    from nbhelpers.runs.run import Run\n"
    )
    assert lint_code.layer_problems(path, tmp_path / "nbhelpers") == []


def test_a_long_file_and_a_long_function_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text("def f():\n" + "    x = 1\n" * 400)
    said = " ".join(lint_code.length_problems(path))
    assert "401 lines" in said
    assert "f has 401 lines" in said


def test_a_docstring_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "short.py"
    path.write_text('def f():\n    """One.\n' + "    word\n" * 60 + '    """\n    return 1\n')
    assert lint_code.length_problems(path) == []
