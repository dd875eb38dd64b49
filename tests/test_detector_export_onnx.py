"""Promise: the ONNX graph says what the trained detector says, whatever the shape of a batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from detector_folder import STEP, make_detector, make_run

from nbhelpers.errors import RequirementMissed
from nbhelpers.use.trained import find_detector

for name in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(name, reason="optional: pip install onnx onnxscript onnxruntime")
pytestmark = pytest.mark.slow
CODES = ["print('<s></s>')\n", "x\r\n\ty = 1  \n", "def f(value):\n    return value + 1\n" * 30]


@pytest.mark.parametrize(
    ("family", "pooling", "objective"),
    [("bert", "mean", "detect"), ("t5", "first", "similar"), ("modernbert", "mean", "both")],
)
def test_every_family_becomes_a_graph_that_agrees(
    tmp_path: Path, family: str, pooling: str, objective: str
) -> None:
    from nbhelpers.jobs.load import load_detector
    from nbhelpers.jobs.onnx import graph_scores, write_example, write_graph

    folder = make_detector(tmp_path / family, family, pooling=pooling, objective=objective)
    expected = load_detector(folder).score(CODES)
    loaded = load_detector(folder)
    write_graph(loaded, folder)
    write_example(loaded, folder)
    shapes = []
    for rows, (logit, vector) in graph_scores(folder, CODES):
        np.testing.assert_allclose(logit, expected[0][rows], atol=2e-5)
        np.testing.assert_allclose(vector, expected[1][rows], atol=2e-5)
        shapes.append(len(rows))
    assert set(shapes) == {1, 2, 3}
    assert np.isnan(expected[0]).all() == (objective == "similar")


def test_an_exported_folder_scores_files_without_torch_and_nbhelpers(tmp_path: Path) -> None:
    from nbhelpers.jobs import agreement
    from nbhelpers.jobs.export import export_folder
    from nbhelpers.jobs.load import load_detector

    run, out = make_run(tmp_path / "run"), tmp_path / "out"
    done = export_folder(find_detector(run), out=out, onnx=True)
    plain, *_, graph = done["agreement"]
    assert plain["form"] == "safetensors" and plain["logit"] == 0.0
    assert graph["form"] == "ONNX" and 0 < graph["logit"] < graph["limit"] == 1e-3
    assert graph["batches"] > graph["programs"] > 15
    assert {"model.onnx", "use_detector.py", "canonical.py"} <= set(done["files"])
    files = []
    for number, code in enumerate(CODES):
        files.append(tmp_path / f"{number}.py")
        files[-1].write_text(code, newline="")
    # Away from the package, which a torch or nbhelpers that is imported would betray.
    block = "import sys; sys.modules.update(torch=None, nbhelpers=None, transformers=None); "
    block += f"import runpy; sys.argv[1:] = {[str(path) for path in files]!r}; "
    block += f"sys.path.insert(0, {str(out)!r}); "
    block += f"runpy.run_path({str(out / 'use_detector.py')!r}, run_name='__main__')"
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", block]
    ran = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    assert all(each["call"] is None and "no evidence" in each["notice"] for each in told)
    for asked, code, said in ((["--help"], 0, "nothing is called AI"), (["."], 1, "a folder")):
        other = block.replace(repr([str(path) for path in files]), repr(asked))
        shown = subprocess.run([*command[:-1], other], env=env, cwd=tmp_path, capture_output=True)
        assert shown.returncode == code and not (code and shown.stderr), shown.stderr
        assert said in " ".join(shown.stdout.decode().split())
    logits, _ = load_detector(run / "checkpoints" / STEP).score(CODES)
    np.testing.assert_allclose([each["logit"] for each in told], logits, atol=2e-5)
    point = json.loads((out / "detector.json").read_text())["operating_point"]
    p_ai = 1 / (1 + np.exp(-logits / point["temperature"]))
    np.testing.assert_allclose([each["p_ai"] for each in told], p_ai, atol=2e-5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "ONNX_LIMIT", graph["logit"] / 2)
        patch.setattr("nbhelpers.jobs.onnx.write_graph", lambda loaded, part: _reuse(out, part))
        with pytest.raises(RequirementMissed, match="ONNX does not agree"):
            export_folder(find_detector(run), out=tmp_path / "b", onnx=True)
    assert not any(path.name.startswith("b") for path in tmp_path.iterdir())


def _reuse(out: Path, part: Path) -> None:
    (part / "model.onnx").write_bytes((out / "model.onnx").read_bytes())
