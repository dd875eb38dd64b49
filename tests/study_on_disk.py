"""A made-up study with the folders of its runs, for the tests of its report."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from fake_study import make_preset, no_gpu
from finetune_on_disk import RIGHT, WRONG, generation, result, scored, write_finetune

from nbhelpers.runs.run import Run, write_json
from nbhelpers.runs.studies import StudyFolder
from nbhelpers.runs.study_plan import plan_study
from nbhelpers.runs.study_results import StudyResult

TASKS = ("humaneval", "mbpp")


def write_study(
    root: Path,
    adapters: str = "all",
    *,
    good: dict[str, float],
    seeds: str | None = None,
    samples: int = 60,
    without: tuple[str, ...] = (),
    **settings: Any,
) -> StudyResult:
    """Write a study whose adapters answer so large a share of the samples rightly.

    Args:
        good: Share by adapter; programs pass a third as often. Right answers come from a draw of
            their own per run, so two equal adapters do not answer alike.
        without: Names of runs that failed.
        settings: Changed in the preset.
    """
    preset = make_preset(evaluate="all", tasks=list(TASKS), bootstrap_samples=300, **settings)
    study = plan_study(preset, no_gpu(), adapters=adapters, seeds=seeds, run_dir=root)
    folder = StudyFolder(root / study.id, study)
    folder.begin()
    for row in study.rows:
        if row.name in without:
            error = {"kind": "OutOfMemory", "message": "asked for <2 GiB>\nmore", "fix": "halve it"}
            folder.note(row, status="failed", error=error)
            continue
        rows = answers(row.name, good[row.adapter], samples)
        s = row.preset.settings
        name = "base" if s.method == "base" else row.adapter
        data = result(name, **scored(rows))
        data["settings"] |= s.model_dump(mode="json")
        data["timing"]["total_s"] += s.lora_r
        write_finetune(root / row.run_id, data=data, rows=rows)
        record = Run(root / row.run_id).read_json()
        write_json(root / row.run_id / "run.json", record | {"command": f"train {row.name}"})
    return folder.result()


def answers(name: str, good: float, samples: int) -> list[dict[str, Any]]:
    """Return generations, right ones by a draw that the name seeds."""
    draw = Random(name)
    rows = [
        generation(at, answer=RIGHT if draw.random() < good else WRONG) for at in range(samples)
    ]
    for task in TASKS:
        for at in range(samples):
            passed = "passed" if draw.random() < good / 3 else "failed"
            rows.append(generation(at, split=task, outcome=passed))
    return rows
