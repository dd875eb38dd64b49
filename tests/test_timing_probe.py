"""A probe makes a few steps of the very run, and the time and memory that it tells are measured."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from contexts import make_context

import nbhelpers as nb
from nbhelpers.budget import speeds
from nbhelpers.budget.time import predict_time
from nbhelpers.common.formatting import duration
from nbhelpers.common.result_files import Record, Result
from nbhelpers.errors import ConfigError
from nbhelpers.reports.writing import report
from nbhelpers.runs.events import Event
from nbhelpers.runs.probe import probe
from nbhelpers.runs.progress import Progress
from nbhelpers.runs.run import Run
from nbhelpers.runs.starting import launch

pytestmark = pytest.mark.slow
TINY = {"seq_len": 96, "global_batch_size": 16, "per_device_train_batch_size": 8}
TINY |= {"train_fraction": 0.1, "pretrain_steps": 0, "num_gpus": 1}


def test_a_probe_measures_and_the_next_prediction_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(speeds.SPEEDS_VARIABLE, str(tmp_path / "speeds.jsonl"))
    hardware = nb.detect_hardware()
    preset = nb.load_preset("clones", "smoke", hardware=hardware, overrides=TINY)
    plan = nb.plan_batch(preset, hardware)
    found = probe(
        preset,
        plan,
        nb.predict_memory(preset, plan, hardware),
        hardware=hardware,
        run_dir=tmp_path / "runs",
        stream=io.StringIO(),
        price_per_hour=1.0,
    )
    assert found is not None and found.steps == (8 if not plan.use_gpu else 20)
    assert found.tokens_per_s > 0 and found.time.basis == "measured on this machine"
    assert found.predicted_bytes == pytest.approx(found.measured_bytes, rel=0.1)
    run = Run(tmp_path / "runs" / found.run_id)
    assert run.status == "finished" and not run.checkpoints_path.exists()
    # The longest examples come first: their steps have more tokens than the typical ones.
    tokens = [e["padded_tokens"] for e in run.events() if e["type"] == "step"]
    each = np.diff([0, *tokens])
    assert each[:2].min() >= each[2:].max()
    (row,) = speeds.user_rows()
    assert (row.kind, row.examples, row.source) == (speeds.PROBE, 380, found.run_id)
    assert found.time.tokens_per_s == pytest.approx(row.tokens_per_s, rel=0.2)
    # It is found again, by another call and for another number of epochs.
    more = preset.override(epochs=preset.settings.epochs + 2)
    assert predict_time(more, plan, hardware).basis == "measured on this machine"
    assert "measured" in found.lines()[1] and "Cost: " in "\n".join(found.lines())


def test_the_longest_steps_come_first_and_a_short_run_is_probed_in_its_own_steps() -> None:
    from nbhelpers.jobs.probe import probed_steps, rate_of, shortened

    preset = nb.load_preset(
        "detector", "smoke", overrides={"global_batch_size": 8, "per_device_train_batch_size": 4}
    )
    settings = shortened(preset.settings)
    changed = (settings.freeze_epochs, settings.epochs, settings.floors)
    assert changed == (0, preset.settings.epochs - preset.settings.freeze_epochs, False)
    context = make_context(settings=settings)
    costs = np.arange(240)  # 120 programs, each in two forms
    usual = [np.arange(n, n + 8) for n in range(0, 120, 8)]
    steps = probed_steps(context, costs, usual, examples=120)
    first, second, *typical = steps.batches
    assert sorted(first) == list(range(232, 240)) and list(second) == list(usual[-1])
    assert len(typical) == 6 and all((a == b).all() for a, b in zip(typical, usual, strict=False))
    assert (steps.longest, steps.examples) == (2, 120)
    assert len(probed_steps(context, costs, usual[:3], examples=120).batches) == 3
    step = {"examples": 8, "useful_tokens": 80, "padded_tokens": 100, "elapsed_s": 0.5}
    events = [{name: (n + 1) * value for name, value in step.items()} for n in range(8)]
    rate = rate_of(events[2:])
    assert (rate["useful_tokens_per_s"], rate["useful_share"]) == pytest.approx((160.0, 0.8))


def test_a_probe_takes_no_checkpoint_and_no_other_mode_is_known(tmp_path: Path) -> None:
    hardware = nb.detect_hardware()
    preset = nb.load_preset("clones", "smoke", hardware=hardware)
    plan = nb.plan_batch(preset, hardware)
    for mode, checkpoint in (("probe", tmp_path), ("guess", None)):
        with pytest.raises(ConfigError):
            launch(
                preset,
                plan,
                None,
                hardware=hardware,
                run_dir=tmp_path,
                job_mode=mode,
                checkpoint=checkpoint,
            )


def test_a_report_shows_predicted_beside_measured_time(tmp_path: Path) -> None:
    hardware = nb.plan_hardware("h100")
    preset = nb.load_preset("clones", "h100", hardware=hardware)
    time = predict_time(preset, nb.plan_batch(preset, hardware), hardware, rows=())
    total = time.expected_s / 1.25
    data = {"scores": {"test": {}}, "timing": {"train_s": total, "total_s": total}}
    Result.write(tmp_path / "result.json", {"job": "clones"} | data)
    Record.write(tmp_path / "run.json", {"time": time.to_dict()})
    text = report(tmp_path, show=False).text
    assert re.search(r"total +.* to .*\+25 %", text)
    assert "error +25 %" in text and "Predicted before the run (" in text
    data["timing"] |= {"pretrain_s": 60.0, "total_s": total + 60}
    Result.write(tmp_path / "result.json", {"job": "clones"} | data)
    text = " ".join(report(tmp_path, show=False).text.split())
    of_run, expected = duration(total), duration(time.expected_s)
    tile = f"without pre-training {of_run}, predicted {expected}, error +25 %"
    assert f"time: {duration(total + 60)} {tile}" in text
    Record.write(tmp_path / "run.json", {})
    assert "Predicted before" not in report(tmp_path, show=False).text


def test_what_is_left_is_told_where_nothing_is_counted() -> None:
    progress = Progress(expected_s=100.0)
    progress.update(Event({"type": "phase", "name": "data", "t": 10.0}))
    assert progress.parts() == ["about 1 min 40 s to the end (predicted)"]
    progress.update(Event({"type": "phase", "name": "model", "t": 70.0}))
    assert progress.parts() == ["about 40 s to the end (predicted)"]
    progress.update(Event({"type": "step", "step": 1, "total_steps": 9, "t": 71.0}))
    assert not any("predicted" in part for part in progress.parts())
    progress.update(Event({"type": "step", "step": 9, "total_steps": 9, "loss": 1.0, "t": 72.0}))
    progress.update(Event({"type": "phase", "name": "scores", "t": 73.0}))
    assert not progress.parts()  # what of the prediction is left for the scores is not known
    assert Progress().parts() == []
