"""Promise: a job is one object and its modules, a metric one entry and the place that computes it.

The toy job in `tests/toy_job` is added from outside: nothing in the package knows of it. The toy
metrics are added to copies of the package, two files each.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nbhelpers as nb
from nbhelpers.budget.memory import UNKNOWN
from nbhelpers.budget.time import predict_time
from nbhelpers.errors import ConfigError, RequirementMissed
from nbhelpers.presets.jobs import JOBS, spec_of
from nbhelpers.runs.thresholds import parse_requirement

ROOT = Path(__file__).resolve().parent.parent
TOY = ROOT / "tests" / "toy_job"
MOST_FILES = 5


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Add the job here and, by the environment, in the worker's process."""
    monkeypatch.syspath_prepend(str(TOY))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TOY), str(ROOT)]))
    monkeypatch.setenv("NBHELPERS_JOBS", "toy_spec")
    monkeypatch.setenv("NBHELPERS_CONFIGS", str(TOY / "configs"))
    import toy_spec

    JOBS["toy"] = toy_spec.TOY
    yield toy_spec
    del JOBS["toy"]


def planned() -> tuple[Any, ...]:
    hardware = nb.detect_hardware()
    preset = nb.load_preset("toy", "base", hardware=hardware)
    plan = nb.plan_batch(preset, hardware)
    return hardware, preset, plan, nb.predict_memory(preset, plan, hardware)


def test_a_fourth_job_is_a_handful_of_files() -> None:
    files = [p for p in TOY.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    assert 1 < len(files) <= MOST_FILES
    package = "".join(path.read_text() for path in (ROOT / "nbhelpers").rglob("*.py"))
    assert "toy_" not in package and '"toy"' not in package


def test_a_module_of_jobs_that_cannot_be_imported_is_named_with_its_fix() -> None:
    env = os.environ | {"NBHELPERS_JOBS": "no_such_module", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", "import nbhelpers.presets.jobs"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode and "ConfigError: NBHELPERS_JOBS names 'no_such_module'" in done.stderr
    assert "Fix: name a module" in done.stderr


def test_a_fourth_job_is_planned_like_any_other(toy: Any) -> None:
    hardware, preset, plan, budget = planned()
    assert spec_of(preset.settings) is toy.TOY
    assert "8 points x 2 micro-steps" in plan.words()
    assert budget.source == UNKNOWN and "cannot be predicted" in budget.title()
    time = predict_time(preset, plan, hardware, rows=())
    assert time.expected_s is None and "unknown" in " ".join(phase.note for phase in time.phases)
    assert nb.list_presets("toy") == []
    with pytest.raises(ConfigError, match="targets names an unknown score `acuracy`") as caught:
        nb.load_preset("toy", "base", overrides={"targets": {"acuracy": 0.5}})
    assert caught.value.fix == "did you mean `accuracy`?"


@pytest.mark.slow
def test_a_fourth_job_runs_and_reports(toy: Any, tmp_path: Path) -> None:
    hardware, preset, plan, budget = planned()
    run = nb.launch(
        preset, plan, budget, hardware=hardware, run_dir=tmp_path, owner_pid=os.getpid()
    )
    assert run.id.startswith("toy-linear-")
    told = io.StringIO()
    result = nb.follow(run, stream=told, timeout_s=240)
    assert result.headline_scores == {
        "test accuracy": f"{result.scores['test']['metrics']['accuracy']:.3f}"
    }
    assert result.scores["test"]["metrics"]["accuracy"] > 0.8
    assert "accuracy 0." in told.getvalue()
    again = nb.launch(preset, plan, budget, hardware=hardware, run_dir=tmp_path)
    assert again.id == run.id and again.status == "finished"
    report = nb.report(run, show=False)
    assert list(report.tables["scores"]["metric"]) == ["accuracy", "mean_distance"] * 2
    assert "mean distance" in report.text and "mean distance" in report.html
    parse_requirement("mean_distance > 0", "toy").enforce(result.data)
    parse_requirement("valid.accuracy > 0.5").enforce(result.data)
    with pytest.raises(RequirementMissed):
        parse_requirement("accuracy > 1", "toy").enforce(result.data)
    with pytest.raises(ConfigError, match="no score is called"):
        parse_requirement("f1 > 0", "toy")


# What is inserted into which file before which text, and what then names the new metric.
METRICS = {
    "finetune": (
        {
            "metrics/registry.py": (
                '        Metric(name="stopped"',
                '        Metric(name="length_ratio", title="length ratio", decimals=2),\n',
            ),
            "metrics/generation.py": (
                '            "mean_new_tokens": lambda:',
                '            "length_ratio": lambda: means([len(a) for a in self.answers]),\n',
            ),
        },
        """
from finetune_on_disk import generations, result, scored, write_finetune
from nbhelpers.jobs.cards import adapter_card
from test_model_card import trained
data = result(**scored(generations()))
write_finetune(folder, data=data)
card = adapter_card(trained(), data)
assert "| length_ratio |" in card, card
""",
    ),
    "detector": (
        {
            "metrics/registry.py": (
                '    Metric(name="specificity"',
                '    Metric(name="length_ratio", title="length ratio"),\n',
            ),
            "metrics/detection.py": (
                '        "balanced_accuracy": (tpr',
                '        "length_ratio": tpr / 2,\n',
            ),
        },
        """
import numpy as np
from detector_on_disk import result, write_detector
from nbhelpers.metrics.detection import choose_operating_point, score_detection
from nbhelpers.jobs.cards import detector_card
y = np.array([0, 1] * 60)
z = np.random.default_rng(0).normal(size=120) + y
point = choose_operating_point(y, z, target_fpr=0.1, target_miss_rate=0.1)
options = {"tasks": [str(i // 2) for i in range(120)], "prevalences": [0.1]}
data = result()
data["scores"]["test"] = score_detection(y, z, point, **options, resamples=100, seed=0)
write_detector(folder, data=data)
card = detector_card(data, {"name": "run"})
assert "| length ratio |" in card, card
""",
    ),
}
SHOWN = """
import sys
from pathlib import Path
folder = Path(sys.argv[1]) / "{job}"
{made}
import nbhelpers as nb
from nbhelpers.presets.jobs import JOBS
from nbhelpers.presets.targets import available
from nbhelpers.runs.thresholds import parse_requirement
assert data["scores"]["test"]["metrics"]["length_ratio"] > 0
report = nb.report(folder, show=False)
assert "length_ratio" in set(report.tables["scores"]["metric"])
assert "length ratio" in report.text and "length ratio" in report.html, report.text
assert available(data)["length_ratio"] > 0
parse_requirement("length_ratio > 0", "{job}").enforce(data)
assert JOBS["{job}"].scores.may_exist("length_ratio")
"""


@pytest.mark.slow
def test_a_metric_is_one_entry_and_the_place_that_computes_it(tmp_path: Path) -> None:
    package = tmp_path / "nbhelpers"
    shutil.copytree(ROOT / "nbhelpers", package)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    for changes, _ in METRICS.values():
        assert len(changes) <= 2
        for name, (before, added) in changes.items():
            text = (package / name).read_text()
            assert text.count(before) == 1
            (package / name).write_text(text.replace(before, added + before))
    shown = [SHOWN.format(made=made, job=job) for job, (_, made) in METRICS.items()]
    paths = os.pathsep.join([str(tmp_path), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(shown), str(tmp_path / "runs")],
        env=os.environ | {"PYTHONPATH": paths},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
