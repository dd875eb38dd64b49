"""Promise: an exported detector needs no run and says what the trained one says, or is not kept."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from detector_folder import STEP, make_detector, make_run
from trained_on_disk import write_adapter_files

from nbhelpers.cli import app
from nbhelpers.errors import ConfigError, DataError, RequirementMissed
from nbhelpers.use import model
from nbhelpers.use.calibrate import fix_threshold
from nbhelpers.use.facts import detector_facts
from nbhelpers.use.trained import find_any, find_detector

pytestmark = pytest.mark.slow
CODES = ["def f(x):\n    return x\n", "", "int main() { return 0; }\n" * 20]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "detector-tiny")


@pytest.fixture(scope="module")
def out(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out") / "mine"
    export(run, folder)
    return folder


def export(run: Path, out: Path, **options: Any) -> dict[str, Any]:
    from nbhelpers.jobs.export import export_folder

    return export_folder(find_detector(run), out=out, **options)


def scores(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    from nbhelpers.jobs.load import load_detector

    return load_detector(folder).score(CODES, batch_size=2)


def test_the_folder_works_without_its_run(run: Path, out: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(out, tmp_path / "elsewhere"))
    for one, other in zip(scores(run / "checkpoints" / STEP), scores(alone), strict=True):
        np.testing.assert_array_equal(one, other)
    found = find_detector(alone)
    assert found.kind == "export" and found.run is None and find_any(alone) == found
    told = json.loads((alone / "detector.json").read_text())
    result = json.loads((run / "result.json").read_text())
    assert told["operating_point"] == result["operating_point"] and told["calibration"] is None
    facts = detector_facts(found)
    assert facts.threshold_logit == pytest.approx(result["operating_point"]["threshold_logit"])
    assert len(facts.rates) == 3 and facts.pair_threshold == pytest.approx(0.61)


def test_it_holds_weights_texts_and_nothing_of_this_machine(run: Path, out: Path) -> None:
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "detector.json"} <= names
    assert {Path(name).suffix for name in names} <= {".safetensors", ".json", ".md", ".py"}
    told = json.loads((out / "nbhelpers.json").read_text())
    assert set(told["files"]) == names - {"nbhelpers.json"}
    for name in (each for each in names if not each.endswith(".safetensors")):
        text = (out / name).read_text(encoding="utf-8")
        assert str(run.parent) not in text and str(out.parent) not in text, name
    source = run / "checkpoints" / STEP / "model.safetensors"
    assert (out / "model.safetensors").read_bytes() == source.read_bytes()


def test_a_local_data_set_and_model_keep_their_folders_to_themselves(tmp_path: Path) -> None:
    from nbhelpers.jobs.public import public_result

    secret = str(tmp_path / "secret" / "rows.jsonl")
    result = {"settings": {"data": secret, "model": secret, "seed": 3}, "data": {"source": secret}}
    result |= {"model": {"name": secret}, "command": f"nbhelpers train --data {secret}"}
    result |= {"audit": {"verdict": "usable", "facts": {"source": secret}, "warnings": [secret]}}
    told = json.dumps(public_result(result))
    assert "secret" not in told and "rows.jsonl" in told and '"seed": 3' in told


def test_what_does_not_agree_is_not_left_behind(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file, save_file

    from nbhelpers.jobs import export as exporting

    def spoil(part: Path) -> None:
        state = load_file(part / "model.safetensors")
        state["classifier.out_proj.bias"] += 1e-4
        save_file(state, part / "model.safetensors")

    monkeypatch.setattr(exporting, "scrub", spoil)
    with pytest.raises(RequirementMissed, match=r"largest difference of a logit is 0\.0001"):
        export(run, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_an_export_replaces_an_earlier_one_and_nothing_else(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "x"
    export(run, out)
    export(run, out)
    (out / "README.md").write_text("my own words")
    with pytest.raises(ConfigError, match="was changed since it was written"):
        export(run, out)
    (out / "calibration.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"holds what is no export of .*calibration\.json"):
        export(run, out)


def test_damaged_weights_are_refused(run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run / "checkpoints" / STEP, tmp_path / "a"))
    (folder / "manifest.json").write_text('{"model.safetensors": {"bytes": 1, "sha256": ""}}')
    with pytest.raises(DataError, match="checkpoint is damaged"):
        export(folder, tmp_path / "x")
    (folder / "detector.json").write_text('{"format": 9}')
    with pytest.raises(DataError, match=r"detector\.json: format: should be 1, is 9"):
        find_detector(folder)


def test_a_calibration_goes_along_and_names_no_folder(run: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(run, tmp_path / "own"))
    calibration = fix_threshold(
        [2.25] + [0.0] * 299,
        ["python"] * 300,
        detector_facts(find_detector(own)),
        target_fpr=0.01,
        confidence=0.95,
        source=str(tmp_path / "class-of-2024"),
        counts={"n_files": 300, "n_duplicates": 0, "left_out": {}},
    )
    calibration.save(own / "calibration.json")
    export(own, tmp_path / "x")
    kept = json.loads((tmp_path / "x" / "calibration.json").read_text())
    assert kept["threshold_logit"] == 2.25 and "2024" not in json.dumps(kept)
    assert json.loads((tmp_path / "x" / "detector.json").read_text())["calibration"] == kept
    card = (tmp_path / "x" / "README.md").read_text()
    assert "| called AI when the logit is above | 2.250 |" in card and "300" in card


def test_a_checkpoint_of_no_run_for_similarity_alone(tmp_path: Path) -> None:
    folder = make_detector(tmp_path / "alone", "t5", objective="similar", pooling="first")
    done = export(folder, tmp_path / "x")
    assert done["agreement"][0]["logit"] == 0.0 and np.isnan(scores(tmp_path / "x")[0]).all()
    card = (tmp_path / "x" / "README.md").read_text()
    assert "no score is known" in card and "None: this model has no threshold" in card
    assert "result.json" not in done["files"]


class InProcess:
    """In the place of the child process: the same operations, called at once."""

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def call(self, op: str, *, report: Any, **args: Any) -> dict[str, Any]:
        from nbhelpers.jobs import serve_model

        line = type("Line", (), {"report": staticmethod(report)})()
        sent = json.loads(json.dumps(args))
        return json.loads(json.dumps(serve_model.operations(line)[op](**sent)))


def test_the_shell_exports_a_detector_by_its_job(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(model, "start_process", InProcess)
    line = ["nbhelpers", "export", run.name, str(tmp_path / "x"), "--run-dir", str(run.parent)]
    monkeypatch.setattr("sys.argv", line)
    with pytest.raises(SystemExit) as end:
        app.main()
    told = capsys.readouterr().out
    assert end.value.code in (0, None) and "safetensors: largest difference" in told
    assert f"nbhelpers detect --model {tmp_path / 'x'} FILE_OR_FOLDER" in told
    with pytest.raises(ConfigError, match="lies in the run's folder"):
        model.export(run, run / "checkpoints" / "x")


def test_a_graph_needs_a_detector_and_the_packages(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = write_adapter_files(tmp_path / "adapter", base_model_name_or_path="a/b")
    with pytest.raises(ConfigError, match="onnx is for detectors"):
        model.export(adapter, tmp_path / "x", onnx=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs onnx, onnxscript, onnxruntime") as error:
        export(run, tmp_path / "x", onnx=True)
    assert "pip install onnx onnxscript onnxruntime" in error.value.fix
    assert list(tmp_path.iterdir()) == [adapter]
