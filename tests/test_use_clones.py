"""Promise: a clone model can be asked what its run measured, of pairs and of whole folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from job_runs import prepare, work_here
from transformers import AutoModel

from nbhelpers.cli import app
from nbhelpers.data import load_clone_data
from nbhelpers.errors import ConfigError, DataError
from nbhelpers.jobs import serve_model
from nbhelpers.runs.run import Run
from nbhelpers.use import load, model_process
from nbhelpers.use.clones import CloneModel
from nbhelpers.use.model import load_adapter

pytestmark = pytest.mark.slow  # trains the smallest models
SUM = "int sum(int[] a) { int s = 0; for (int x : a) { s += x; } return s; }"
TOTAL = "int total(int[] v) { int t = 0; for (int i = 0; i < v.length; i++) t += v[i]; return t; }"
FIRST = "int first(int[] a) { if (a.length == 0) return -1; return a[0]; }"


class InProcess:
    """In the place of the child process: the same operations, called at once."""

    is_alive = True

    def __init__(self, device: str = "cpu") -> None:
        line = type("Line", (), {"report": print, "is_cancelled": staticmethod(lambda: False)})()
        self.operations = serve_model.operations(line)

    def call(self, op: str, **args: Any) -> dict[str, Any]:
        sent = json.loads(json.dumps(args))
        return json.loads(json.dumps(self.operations[op](**sent)))

    def close(self) -> None:
        self.is_alive = False


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_process, "start_process", InProcess)


@pytest.fixture(scope="module", params=["smoke", "smoke-graphcodebert"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = prepare("clones", tmp_path_factory.mktemp("runs"), model=request.param, epochs=1)
    work_here(run)
    return run


def test_its_answers_are_the_runs_predictions(run: Run) -> None:
    result, data = (
        read(run.result_path),
        load_clone_data("smoke", seed=read(run.result_path)["seed"]),
    )
    code = dict(zip(data.ids, data.functions, strict=True))
    lines = [json.loads(line) for line in run.predictions_path.read_text().splitlines()]
    tested = [line for line in lines if line["split"] == "test"][:3]
    with load(run, device="cpu") as model:
        assert isinstance(model, CloneModel)
        for line in tested:
            answer = model.are_clones(code[line["id1"]], code[line["id2"]], language="java")
            assert answer.pair.p_given == pytest.approx(line["p"], abs=1e-5)
            assert answer.pair.p_reversed == pytest.approx(line["p_reversed"], abs=1e-5)
            mean = (line["p"] + line["p_reversed"]) / 2
            assert bool(answer) == (mean > result["threshold"]["value"])
    precision = result["scores"]["test"]["orders"]["mean"]["precision"]
    assert f"precision was {precision:.3f}" in answer.text()


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "sub").mkdir(parents=True)
    (folder / "A.java").write_text(f"class A {{\n  {SUM}\n  int x() {{ return 1; }}\n}}\n")
    (folder / "sub" / "B.java").write_text(f"class B {{\n{TOTAL}\n\n{FIRST}\n{SUM}\n}}\n")
    (folder / "c.py").write_text("def total(v):\n    t = 0\n    for x in v:\n        t += x * x\n")
    (folder / "broken.py").write_text("def f(:\n  (((\n")
    (folder / "d.go").write_text("package main\n")
    return folder


def test_a_folder_is_cut_into_functions_and_all_pairs_are_scored(
    run: Run, code: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: Any
) -> None:
    line = ["nbhelpers", "clones-of", str(run.path), str(code), "--quiet", "--top", "4"]
    monkeypatch.setattr("sys.argv", [*line, "--json", str(tmp_path / "x.json")])
    with pytest.raises(SystemExit) as end:
        app.main()
    text, facts = capsys.readouterr().out, read(tmp_path / "x.json")
    assert end.value.code in (0, None) and "5 functions of 3 files, 10 pairs scored" in text
    assert facts["n_pairs"] == 10 and len(facts["pairs"]) == 4
    p = [pair["p_clone"] for pair in facts["pairs"]]
    assert p == sorted(p, reverse=True)
    reasons = {each["file"]: each["reason"] for each in facts["skipped"]}
    assert reasons["A.java:3 x"] == "too short" and reasons["d.go"] == "another language"
    assert reasons["broken.py"] == "no function"
    with load(run.path, device="cpu") as model:
        everything = model.clones_of(code, progress=False)
        rows = {frozenset((r["function_a"], r["function_b"])): r for r in everything.rows()}
        same = rows[frozenset(("A.java:2 sum", "sub/B.java:5 sum"))]
        assert same["note"] == "the same text" and same["floor"] == pytest.approx(1.0)
        one = model.are_clones(SUM, FIRST)
        assert rows[frozenset(("A.java:2 sum", "sub/B.java:4 first"))]["p_clone"] == pytest.approx(
            one.p_clone, abs=1e-5
        )
        between = model.clones_of(code / "A.java", code / "sub", progress=False)
        assert between.n_pairs == 3 and len(between.members) == 4
        with pytest.raises(DataError, match=r"not two functions .*another language"):
            model.clones_of(code / "d.go", progress=False)


def test_a_job_refuses_what_is_of_another(run: Run) -> None:
    with pytest.raises(ConfigError, match="no adapter and no template"):
        load(run.path, template="plain")
    with pytest.raises(ConfigError, match="job clones, which makes no adapter"):
        load_adapter(run.path)
    with pytest.raises(ValueError, match="nbhelpers_clones"):
        AutoModel.from_pretrained(run.path / "checkpoints" / "step-00000005")
    settings = {"model": str(run.path / "checkpoints" / "step-00000005")}
    with pytest.raises(ConfigError, match="a whole trained model"):
        prepare("clones", run.path, **settings)


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())
